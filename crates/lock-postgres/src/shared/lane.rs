//! A lane: one session that owns many locks, and the task that talks to it. What is asked of it while a statement is in flight goes
//! together in the next one. It is the unit of heartbeat and of loss.

mod alarm;
mod asked;
mod batches;
mod holds;
mod inbox;
mod proofs;
mod pump;
mod work;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distributed_lock::Result;

pub(super) use self::asked::{Granted, Lock, Order, Renew, Ticket, Unlock};
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
    /// Keys that it holds or asks for.
    load: Arc<AtomicUsize>,
    pump: Arc<Pump>,
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
        let (load, alarm) = (Arc::<AtomicUsize>::default(), Arc::new(Alarm::new(Arc::clone(&core.clock))));
        let desk = (Arc::clone(&inbox), Arc::clone(&load));
        let work =
            Work::new(Arc::clone(core), notices.clone(), session, (batch, table), timing, desk, Arc::clone(&alarm));
        let running = async move {
            tokio::select! {
                biased;
                () = work.run() => {}
                () = driving => {}
            }
        };
        let pump = Pump::start(running, socket.clone(), alarm);
        if let Some(housekeeping) = &core.housekeeping {
            housekeeping.listen();
        }
        Ok(Self { inbox, pump, load, socket, ttl: timing.ttl(), mark, runtime })
    }

    /// Gives the order back if the lane has ended.
    pub(super) fn give(&self, order: Order) -> std::result::Result<(), Order> {
        let asks = matches!(order, Order::Lock(_));
        if asks {
            self.load.fetch_add(1, Ordering::Relaxed);
            self.pump.attend(self.runtime.handle());
        }
        self.pump.tell(|| self.inbox.put(order)).inspect_err(|_| {
            if asks {
                self.load.fetch_sub(1, Ordering::Relaxed);
            }
        })
    }

    /// T.
    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// By what the server's table of locks knows it.
    pub(super) fn mark(&self) -> i64 {
        self.mark
    }

    pub(super) fn is_over(&self) -> bool {
        self.inbox.is_closed()
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
        self.pump.tell(|| self.inbox.abandon());
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("ttl", &self.ttl).field("load", &self.load()).finish_non_exhaustive()
    }
}
