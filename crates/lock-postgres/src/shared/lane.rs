//! A lane: one session that owns many locks, and the task that talks to it. What is asked of it while a statement is in flight goes
//! together in the next one. It is the unit of heartbeat and of loss.

mod asked;
mod batches;
mod holds;
mod proofs;
mod work;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use distributed_lock::Result;
use tokio::sync::mpsc;

pub(super) use self::asked::{Granted, Lock, Order, Renew, Ticket, Unlock};
use self::work::Work;
use super::{notices::Notices, runtime::OwnRuntime};
use crate::{
    connect::{Connector, SocketHandle},
    core::Core,
    session::Session,
    timing::{Timing, server_millis},
};

/// Where orders for a lane are given.
#[derive(Debug)]
pub(super) struct Lane {
    orders: mpsc::UnboundedSender<Order>,
    /// Keys that it holds or asks for.
    load: Arc<AtomicUsize>,
    socket: Option<SocketHandle>,
    ttl: Duration,
    mark: i64,
    /// As long as anybody has a lock of it.
    _runtime: Arc<OwnRuntime>,
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
        let session = Session::open(connector, server_millis(timing.ttl()), &core.world).await?;
        let (batch, table) = session.make_lane().await?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let (socket, mark) = (session.link().socket().cloned(), session.mark());
        let load = Arc::<AtomicUsize>::default();
        let work =
            Work::new(Arc::clone(core), notices.clone(), session, (batch, table), timing, (inbox, Arc::clone(&load)));
        tokio::spawn(work.run());
        if let Some(housekeeping) = &core.housekeeping {
            housekeeping.listen();
        }
        Ok(Self { orders, load, socket, ttl: timing.ttl(), mark, _runtime: runtime })
    }

    /// Gives the order back if the lane has ended.
    pub(super) fn give(&self, order: Order) -> std::result::Result<(), Order> {
        let asks = matches!(order, Order::Lock(_));
        if asks {
            self.load.fetch_add(1, Ordering::Relaxed);
        }
        self.orders.send(order).map_err(|refused| {
            if asks {
                self.load.fetch_sub(1, Ordering::Relaxed);
            }
            refused.0
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
        self.orders.is_closed()
    }

    pub(super) async fn ended(&self) {
        self.orders.closed().await;
    }

    /// Until the server has let go of it.
    pub(super) async fn until_eof(&self) {
        if let Some(socket) = &self.socket {
            let _ = socket.until_eof().await;
        }
    }
}
