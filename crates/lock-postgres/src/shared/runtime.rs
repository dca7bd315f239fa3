//! A runtime on a thread of its own, which a blocked runtime of the application does not hold up.

use std::thread;

use distributed_lock::{Error, ErrorKind, Result};
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// Dropped, it ends, and with it every task and every session on it.
#[derive(Debug)]
pub(super) struct OwnRuntime {
    handle: Handle,
    _ends: oneshot::Sender<()>,
}

impl OwnRuntime {
    pub(super) fn start() -> Result<Self> {
        let failed = |error| {
            Error::new(ErrorKind::Unavailable, "could not start the thread of a shared session").with_source(error)
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (ends, ended) = oneshot::channel::<()>();
        let live = move || {
            // An error: the other half was dropped.
            let _ = runtime.block_on(ended);
        };
        thread::Builder::new().name("lock-postgres".into()).spawn(live).map_err(failed)?;
        Ok(Self { handle, _ends: ends })
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }
}
