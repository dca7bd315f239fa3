//! Whether the store answered within a call that goes on, for those around it who judge the store by that.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::telemetry;

tokio::task_local! {
    static ASKED: Arc<Asked>;
}

/// One call, and whether the store has answered in it.
#[derive(Debug)]
pub(crate) struct Asked {
    answered: AtomicBool,
    /// The call in which this one was made.
    outer: Option<Arc<Self>>,
}

impl Asked {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { answered: AtomicBool::new(false), outer: ASKED.try_with(Arc::clone).ok() })
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// Makes the call, listening while it is polled. Tasks that it spawns are not heard.
    pub(crate) fn during<F: Future>(self: &Arc<Self>, call: F) -> impl Future<Output = F::Output> + use<F> {
        ASKED.scope(Arc::clone(self), call)
    }
}

/// Says that the store has just answered within this call, although the call goes on: a try was contended and a wait begins.
///
/// A circuit breaker around the locker takes it for a sign of life. Without it, a caller who gives a wait up cannot be told from one
/// whose store is silent. Costs nothing where nobody listens. Heard in the task that was asked for the lock; work that it spawns is
/// heard through [`heard_by_caller`].
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::{Attempt, Result, Wait, backend::store_answered};
///
/// async fn acquire(wait: Wait) -> Result<Attempt> {
///     let tried = try_once().await?;
///     store_answered(); // also if the caller drops the wait below
///     match tried {
///         Attempt::Contended(_) if wait != Wait::Never => queue(wait).await,
///         tried => Ok(tried),
///     }
/// }
/// # async fn try_once() -> Result<Attempt> { Ok(Attempt::Contended(distributed_lock::Contention::Held)) }
/// # async fn queue(_: Wait) -> Result<Attempt> { Ok(Attempt::Contended(distributed_lock::Contention::WaitElapsed)) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// assert!(acquire(Wait::Never).await?.is_contended());
/// # Ok(()) }
/// ```
pub fn store_answered() {
    let _nobody_listens = ASKED.try_with(|asked| {
        let mut next = Some(asked);
        while let Some(asked) = next {
            asked.answered.store(true, Ordering::Relaxed);
            next = asked.outer.as_ref();
        }
    });
}

/// Work that is spawned for this call: when it says that the store answered, or that the call must wait, that is heard as if the call
/// itself said so.
///
/// ```
/// use distributed_lock::{Attempt, Contention, Error, ErrorKind, Result, backend::{heard_by_caller, store_answered}};
///
/// async fn acquire() -> Result<Attempt> {
///     let elsewhere = tokio::spawn(heard_by_caller(async {
///         store_answered();
///         Attempt::Contended(Contention::Held)
///     }));
///     elsewhere.await.map_err(|_| Error::new(ErrorKind::Unavailable, "the runtime has ended"))
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// assert!(acquire().await?.is_contended());
/// # Ok(()) }
/// ```
pub fn heard_by_caller<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let (asked, work) = (ASKED.try_with(Arc::clone).ok(), telemetry::call::heard_by_caller(work));
    async move {
        match asked {
            Some(asked) => ASKED.scope(asked, work).await,
            None => work.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_is_heard_by_the_call_and_by_those_around_it_and_by_no_other() {
        let (outer, other) = (Asked::new(), Asked::new());
        outer
            .during(async {
                let inner = Asked::new();
                assert!(!inner.is_answered());
                inner.during(async { store_answered() }).await;
                assert!(inner.is_answered());
            })
            .await;
        assert!(outer.is_answered());
        store_answered();
        tokio::spawn(other.during(async { tokio::spawn(async { store_answered() }).await })).await.unwrap().unwrap();
        assert!(!other.is_answered());
    }

    #[tokio::test]
    async fn an_answer_of_spawned_work_is_heard_if_it_is_meant_to_be() {
        let asked = Asked::new();
        let call = async { tokio::spawn(heard_by_caller(async { store_answered() })).await };
        asked.during(call).await.unwrap();
        assert!(asked.is_answered());
        // Also where nobody listens.
        tokio::spawn(heard_by_caller(async { store_answered() })).await.unwrap();
    }
}
