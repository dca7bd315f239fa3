//! A runtime on a thread of its own, which a blocked runtime of the application does not hold up.

use std::thread;

use distributed_lock::{Error, ErrorKind, Result};
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// Dropped, it ends, and with it every task and every session on it.
#[derive(Debug)]
pub(crate) struct OwnRuntime {
    handle: Handle,
    _ends: oneshot::Sender<()>,
}

impl OwnRuntime {
    pub(crate) fn start() -> Result<Self> {
        let failed = |error| {
            let message = "could not start a thread for the locker's own sessions";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
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

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use lock_testkit::wait_until;

    use super::*;

    #[tokio::test]
    async fn its_thread_ends_when_it_is_dropped_and_takes_its_tasks_along() {
        let runtime = OwnRuntime::start().unwrap();
        let thread = runtime.handle().spawn(async { fs::read_link("/proc/thread-self").unwrap() }).await.unwrap();
        let thread = Path::new("/proc").join(thread);
        assert!(thread.exists());
        let endless = runtime.handle().spawn(std::future::pending::<()>());
        let handle = runtime.handle().clone();
        drop(runtime);
        assert!(endless.await.unwrap_err().is_cancelled());
        let ended = wait_until(std::time::Duration::from_secs(20), "the thread has ended", async || !thread.exists());
        ended.await.unwrap();
        assert!(handle.spawn(std::future::pending::<()>()).await.unwrap_err().is_cancelled());
    }
}
