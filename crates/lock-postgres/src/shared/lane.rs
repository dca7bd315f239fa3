//! A lane: one session that owns many locks, and the task that talks to it. What is asked of it while a statement is in flight goes
//! together in the next one. It is the unit of heartbeat and of loss.

mod alarm;
mod asked;
mod batches;
mod holds;
mod inbox;
mod parts;
mod proofs;
mod pump;
mod reserving;
mod room;
mod work;

use std::{fmt, sync::Arc, time::Duration};

use distributed_lock::Result;

pub(super) use self::asked::{Asked, Granted, Lock, Order, Renew, Ticket, Unlock};
use self::{alarm::Alarm, inbox::Inbox, pump::Pump, work::Work};
use super::notices::Notices;
use crate::{
    connect::{Connector, SocketHandle},
    core::Core,
    runtime::OwnRuntime,
    session::Session,
    timing::{Timing, server_millis},
};

/// Where orders for a lane are given.
pub(super) struct Lane {
    inbox: Arc<Inbox>,
    pump: Arc<Pump>,
    core: Arc<Core>,
    socket: SocketHandle,
    ttl: Duration,
    mark: i64,
    /// As long as anybody has a lock of it.
    runtime: Arc<OwnRuntime>,
}

impl Lane {
    /// Opens it and starts its task, on the caller's runtime. `timing` is its own: T is the idle limit of its session.
    pub(super) async fn open(
        core: &Arc<Core>,
        connector: &Connector,
        notices: &Notices,
        runtime: Arc<OwnRuntime>,
        timing: Timing,
    ) -> Result<Self> {
        let (session, driving, batch, table) =
            Session::open_lane(connector, server_millis(timing.ttl()), &core.world).await?;
        let inbox = Arc::<Inbox>::default();
        let (socket, mark) = (session.link().socket().cloned(), session.mark());
        let socket = socket.ok_or_else(super::ended)?;
        let alarm = Arc::new(Alarm::new(Arc::clone(&core.clock)));
        let work = Work::new(
            Arc::clone(core),
            notices.clone(),
            session,
            (batch, table),
            timing,
            Arc::clone(&inbox),
            Arc::clone(&alarm),
        );
        let pump = Pump::start(work.run(), driving, socket.clone(), alarm);
        if let Some(housekeeping) = &core.housekeeping {
            housekeeping.listen();
        }
        Ok(Self { inbox, pump, core: Arc::clone(core), socket, ttl: timing.ttl(), mark, runtime })
    }

    /// Gives the order back if the lane has ended.
    pub(super) fn give(&self, order: Order) -> std::result::Result<(), Order> {
        if matches!(order, Order::Lock(_)) {
            self.pump.attend(self.runtime.handle());
        }
        let can_wait = order.can_wait();
        self.inbox.put(order)?;
        self.pump.told(can_wait);
        Ok(())
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// T.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(super) fn load(&self) -> usize {
        self.inbox.load()
    }

    /// By what the server's table of locks knows it.
    pub(super) fn mark(&self) -> i64 {
        self.mark
    }

    /// It takes no orders any more.
    pub(super) fn is_over(&self) -> bool {
        self.inbox.is_closed()
    }

    /// So has its connection.
    pub(super) fn has_ended(&self) -> bool {
        self.pump.is_over()
    }

    pub(super) async fn ended(&self) {
        self.pump.ended().await;
    }

    /// Ends it at its socket.
    pub(super) fn shut_down(&self) {
        self.socket.shutdown_write();
    }

    /// Until the server has let go of it.
    pub(super) async fn until_eof(&self) {
        let _ = self.socket.until_eof().await;
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.inbox.abandon();
        self.pump.told(false);
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("ttl", &self.ttl).field("load", &self.load()).finish_non_exhaustive()
    }
}
