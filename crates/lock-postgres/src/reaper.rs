//! Waits until the server has let go of sessions that were destroyed, and only then gives their places in the pool back.

use std::{sync::OnceLock, thread, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{connect::SocketHandle, pool::Permit, session::Session};

/// One thread with a runtime of its own, started with the first session to be destroyed: a session can be dropped where no
/// runtime is, or none is polled.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    inbox: OnceLock<Option<mpsc::UnboundedSender<Doomed>>>,
}

/// A session whose socket is shut down for writing.
pub(crate) struct Doomed {
    /// `None` if it is still with somebody who may never be polled again.
    pub(crate) session: Option<Box<Session>>,
    pub(crate) permit: Permit,
    pub(crate) socket: SocketHandle,
    /// When the server has ended it at the latest.
    pub(crate) bound: Duration,
}

impl Doomed {
    /// In this order, so that the place is free only after the session.
    fn end(self) {
        drop(self.session);
        drop(self.permit);
    }
}

impl Reaper {
    /// Takes a session over. Neither waits nor needs a runtime.
    pub(crate) fn take(&self, doomed: Doomed) {
        let inbox = self.inbox.get_or_init(start);
        let refused = match inbox {
            Some(inbox) => inbox.send(doomed).err().map(|refused| refused.0),
            None => Some(doomed),
        };
        // Where no thread is to be had the place comes back early, which can only cost a connection too many.
        if let Some(doomed) = refused {
            doomed.end();
        }
    }
}

fn start() -> Option<mpsc::UnboundedSender<Doomed>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let (sender, mut inbox) = mpsc::unbounded_channel::<Doomed>();
    let work = async move {
        let mut waiting = tokio::task::JoinSet::new();
        while let Some(doomed) = inbox.recv().await {
            waiting.spawn(async move {
                let deadline = Instant::now() + doomed.bound;
                // What is not seen to end has ended by its bound.
                match timeout_at(deadline, doomed.socket.until_eof()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => sleep_until(deadline).await,
                }
                doomed.end();
            });
            while waiting.try_join_next().is_some() {}
        }
        waiting.join_all().await;
    };
    let thread = thread::Builder::new().name("lock-postgres-reaper".into());
    thread.spawn(move || runtime.block_on(work)).ok()?;
    Some(sender)
}
