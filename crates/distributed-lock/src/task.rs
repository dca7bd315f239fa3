//! Which keys the body that is running right now is under, so that a wait for one of them is refused instead of hanging.

use std::{future::Future, sync::Arc};

use crate::{BackendId, Error, ErrorKind, LockKey, Result, Wait};

tokio::task_local! {
    static HELD: Arc<Held>;
}

struct Held {
    locker: BackendId,
    key: LockKey,
    outer: Option<Arc<Self>>,
}

/// Runs work under this key. The mark is there only while the work itself is polled: siblings joined to it and tasks spawned by
/// it do not carry it.
pub(crate) async fn under<F: Future>(locker: BackendId, key: LockKey, work: F) -> F::Output {
    let outer = HELD.try_with(Arc::clone).ok();
    HELD.scope(Arc::new(Held { locker, key, outer }), work).await
}

/// Refuses a wait that this very body would have to end.
pub(crate) fn ensure_not_under(locker: BackendId, key: &LockKey, wait: Wait) -> Result<()> {
    if wait.is_try() {
        return Ok(());
    }
    let mut held = HELD.try_with(Arc::clone).ok();
    while let Some(outer) = held {
        if outer.locker == locker && outer.key == *key {
            let message = "this body holds the very lock it would wait for: pass its hold down instead of acquiring again \
                 (only waits inside a body are detected, not those of spawned tasks or under plain guards)";
            return Err(Error::new(ErrorKind::Deadlock, message).with_key(key));
        }
        held = outer.outer.clone();
    }
    Ok(())
}
