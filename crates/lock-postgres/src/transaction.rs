//! The transaction form: the body receives the very transaction that owns the lock, so its work cannot commit without it.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Weak,
    task::Poll,
    thread,
    time::{Duration, SystemTime},
};

use distributed_lock::{
    Attempt, Contention, Error, ErrorKind, LockKey, Loss, LossCause, Result, ScopedError, Wait, backend::BoxFuture,
};
use tokio::{sync::watch, time::timeout};
use tokio_postgres::{Transaction, types::Type};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::{
    answer::{Answer, Granted, Limits, answer, before},
    budget::{Budget, SLACK, server_share, unanswered},
    core::{Core, closed},
    error,
    link::{LastWord, SharedError},
    registry::Ticket,
    reserved::Reserved,
    session::{Owner, Scope},
    sql,
    timing::{lock_timeout_text, server_millis},
};

/// Whether the lock was acquired, and what the body made of it.
pub(crate) type Outcome<T, E> = Result<Attempt<Result<T, E>>, ScopedError<Result<T, E>>>;

pub(crate) async fn run<T, E, Body>(core: &Core, key: &LockKey, wait: Wait, body: Body) -> Outcome<T, E>
where
    Body: for<'t> FnOnce(&'t Transaction<'t>) -> BoxFuture<'t, Result<T, E>>,
{
    let with_key = |error: Error| if error.key().is_some() { error } else { error.with_key(key) };
    let not_run = |error: Error| ScopedError::new(with_key(error), None);
    core.ensure_open().map_err(not_run)?;
    let run = Run {
        core,
        key,
        id: core.settings.keys.id(core.settings.namespace, key),
        budget: Budget::start(wait, &core.clock),
    };
    loop {
        // Both arms are cancel safe; a session reserved by the second is destroyed when the first wins.
        let reserved = tokio::select! {
            biased;
            () = core.until_closed() => Err(closed()),
            reserved = core.pool.reserve(run.budget.for_place(core.settings.conn_wait)) => reserved,
        };
        let mut session = match reserved.map_err(not_run)? {
            Attempt::Acquired(session) => session,
            Attempt::Contended(why) => return Ok(Attempt::Contended(why)),
        };
        let (reused, socket) = (session.is_reused(), session.link().socket().cloned());
        let in_use = session.in_use();
        let (inherited, watch) = (session.inherited().cloned(), session.link().watch());
        let limit = run.budget.for_answer(core.settings.session.query_timeout());
        let transaction = match timeout(limit, session.begin()).await {
            Ok(Ok(transaction)) => transaction,
            // The server ended it while it lay in the pool.
            Ok(Err(error)) if reused && error::ended_session(&error) => continue,
            Ok(Err(error)) => return Err(not_run(error::unavailable(error, "begin a transaction"))),
            Err(_elapsed) => return Err(not_run(unanswered("the begin of a transaction", limit))),
        };
        let locked = tokio::select! {
            biased;
            () = core.until_closed() => Err(closed()),
            locked = run.lock(&transaction, inherited.as_ref()) => locked,
        };
        let since = match locked.map_err(not_run)? {
            Attempt::Acquired(since) => since,
            Attempt::Contended(why) => {
                if let Ok(Ok(())) = timeout(SLACK, transaction.rollback()).await {
                    session.give_back();
                }
                return Ok(Attempt::Contended(why));
            }
        };
        let mut listed = Some(Listed::new(core, run.id, key));
        // Either closing waits for us, or we find that it has begun.
        core.ensure_open().map_err(not_run)?;
        let close = async {
            core.until_closed().await;
            // The server rolls back; the body finds out by its next statement. A borrowed connection is ended after the body.
            if let Some(socket) = &socket {
                socket.shutdown_write();
                if socket.until_eof().await.is_ok() {
                    listed = None;
                    in_use.iter().for_each(|place| place.leave());
                }
            }
        };
        let ended = beside(catch(|| body(&transaction)), close).await;
        let outcome = match ended {
            Ok(Ok(value)) => run.commit(transaction, since, watch.as_ref(), value).await,
            Ok(Err(failed)) => match timeout(limit, transaction.rollback()).await {
                Ok(Ok(())) => Ok(Attempt::Acquired(Err(failed))),
                // Destroyed instead: it is rolled back all the same.
                _ => {
                    drop(session);
                    drop(listed);
                    return Ok(Attempt::Acquired(Err(failed)));
                }
            },
            Err(panic) => {
                drop(transaction);
                drop(session);
                drop(listed);
                resume_unwind(panic)
            }
        };
        match outcome.is_ok() {
            true => run.give_back(session).await,
            false => drop(session),
        }
        // Only now, since closing waits for it.
        drop(listed);
        return outcome.map_err(|failed| ScopedError::new(with_key(failed.error), failed.value));
    }
}

struct Run<'a> {
    core: &'a Core,
    key: &'a LockKey,
    id: i64,
    budget: Budget,
}

impl Run<'_> {
    /// Takes the lock and sets the limits of the body's statements; the answer is when the transaction that owns it began.
    async fn lock(&self, transaction: &Transaction<'_>, inherited: Option<&Limits>) -> Result<Attempt<SystemTime>> {
        let session = &self.core.settings.session;
        let limit = self.budget.for_answer(session.query_timeout());
        let holder = server_millis(session.ttl()).to_string();
        let parameters = [(&self.id as _, Type::INT8), (&holder as _, Type::TEXT)];
        let sent = self.core.clock.now();
        // In this order and in one write.
        let tried = async {
            let tried = transaction.query_typed_one(sql::TRY_IN_TRANSACTION, &parameters);
            let (tried, limited) = tokio::join!(biased; tried, for_body(transaction, inherited, &holder));
            // The first failure is the cause of the second.
            let tried = tried?;
            limited?;
            answer(&tried, Scope::Transaction)
        };
        let tried = timeout(limit, tried).await.map_err(|_elapsed| unanswered("a lock request", limit))?;
        match tried.map_err(|error| error::unavailable(error, "ask for a lock"))? {
            Answer::Granted(granted) => return Ok(Attempt::Acquired(began(&granted)?)),
            Answer::Refused(error) => return Err(error),
            Answer::Contended if self.budget.is_try() => {
                return Ok(Attempt::Contended(self.core.registry.why_contended(self.id, self.key)));
            }
            Answer::Contended => {}
        }
        let left = self.budget.left();
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Attempt::Contended(Contention::WaitElapsed));
        }
        let round_trip = self.core.clock.now().saturating_duration_since(sent);
        self.wait(transaction, left, round_trip, inherited).await
    }

    async fn wait(
        &self,
        transaction: &Transaction<'_>,
        left: Option<Duration>,
        round_trip: Duration,
        inherited: Option<&Limits>,
    ) -> Result<Attempt<SystemTime>> {
        // Watches the holder for as long as we wait.
        let _wanted = self.core.want(self.id, false);
        let session = &self.core.settings.session;
        let waiter = server_millis(session.waiter_idle()).to_string();
        let lock_timeout = lock_timeout_text(server_share(left, round_trip));
        let parameters = [(&self.id as _, Type::INT8), (&waiter as _, Type::TEXT), (&lock_timeout as _, Type::TEXT)];
        // In this order and in one write.
        let waiting = async {
            tokio::join!(
                biased;
                transaction.query_typed_one(sql::BEFORE_WAIT_IN_TRANSACTION, &[]),
                transaction.query_typed_one(sql::WAIT_IN_TRANSACTION, &parameters),
            )
        };
        let (ahead, waited) = match left {
            None => waiting.await,
            Some(left) => {
                let limit = left.saturating_add(SLACK);
                timeout(limit, waiting).await.map_err(|_elapsed| unanswered("a queued lock request", limit))?
            }
        };
        let failed = |error| error::unavailable(error, "wait for a lock");
        let found = before(&ahead.map_err(failed)?).map_err(failed)?;
        let waited = match waited {
            Err(error) if error.code().is_some_and(|state| state.code() == "55P03") => {
                return Ok(Attempt::Contended(Contention::WaitElapsed));
            }
            waited => waited.and_then(|row| answer(&row, Scope::Transaction)).map_err(failed)?,
        };
        match waited {
            Answer::Granted(granted) => {
                let (limit, holder) = (session.query_timeout(), server_millis(session.ttl()).to_string());
                let limited =
                    timeout(limit, for_body(transaction, Some(inherited.unwrap_or(&found.limits)), &holder)).await;
                limited.map_err(|_elapsed| unanswered("a session's settings", limit))?.map_err(failed)?;
                Ok(Attempt::Acquired(began(&granted)?))
            }
            Answer::Refused(error) => Err(error),
            Answer::Contended => Err(Error::new(ErrorKind::Other, "BUG: a wait without an error granted nothing")),
        }
    }

    /// A session of ours goes back without what the body left in it, or not at all; one of the user's is theirs.
    async fn give_back(&self, mut session: Reserved) {
        if session.inherited().is_none() {
            return session.give_back();
        }
        if let Ok(Ok(true)) = timeout(self.core.settings.session.query_timeout(), session.reset()).await {
            session.give_back();
        }
    }

    /// Commits, if the transaction is still the one that took the lock.
    async fn commit<T, E>(
        &self,
        transaction: Transaction<'_>,
        since: SystemTime,
        watch: Option<&watch::Receiver<LastWord>>,
        value: T,
    ) -> Outcome<T, E> {
        let limit = self.core.settings.session.query_timeout();
        let proved = timeout(limit, transaction.query_typed_one(sql::PROVE_TRANSACTION, &[])).await;
        let refused = match proved {
            Ok(Ok(row)) => match read::<SystemTime>(&row, "since") {
                Ok(now) if now == since => self.core.ensure_open().err().map(|_| Loss::new(LossCause::Closed).into()),
                Ok(_) => Some(self.lost(Loss::new(LossCause::NotOurs))),
                Err(error) => Some(error),
            },
            Ok(Err(error)) if error.code().is_some_and(|state| state.code() == "25P02") => {
                let message = "the body returned a value from a transaction in which a statement had failed, so nothing was \
                               committed: let it return the error";
                Some(error::with_state(Error::new(ErrorKind::InvalidInput, message), error))
            }
            // The session lives: the body's own limits cut our statement short.
            Ok(Err(error)) if error.as_db_error().is_some() && !error::ended_session(&error) => {
                Some(error::unavailable(error, "check the lock before the commit"))
            }
            Ok(Err(error)) => {
                let loss = Loss::new(LossCause::SessionEnded);
                // The driver's last word says more than that the connection is closed.
                let last_word = watch.and_then(|watch| watch.borrow().clone());
                Some(self.lost(match last_word {
                    Some(last_word) => loss.with_source(SharedError(last_word)),
                    None => loss.with_source(error),
                }))
            }
            Err(elapsed) => Some(self.lost(Loss::new(LossCause::HeartbeatTimeout).with_source(elapsed))),
        };
        if let Some(error) = refused {
            // Never committed: with its session it is rolled back.
            return Err(ScopedError::new(error, Some(Ok(value))));
        }
        match timeout(limit, transaction.commit()).await {
            Ok(Ok(())) => Ok(Attempt::Acquired(Ok(value))),
            // The server's word: it is rolled back.
            Ok(Err(error)) if error.as_db_error().is_some() && !error::ended_session(&error) => {
                Err(ScopedError::new(error::wrap(error, "commit"), Some(Ok(value))))
            }
            Ok(Err(error)) => Err(ScopedError::new(indeterminate().with_source(error), Some(Ok(value)))),
            Err(elapsed) => Err(ScopedError::new(indeterminate().with_source(elapsed), Some(Ok(value)))),
        }
    }

    fn lost(&self, loss: Loss) -> Error {
        match self.core.closed.is_told() {
            true => Loss::new(LossCause::Closed).into(),
            false => loss.into(),
        }
    }
}

/// The body's statements run under the user's own limits, not under those of our sessions.
async fn for_body(
    transaction: &Transaction<'_>,
    limits: Option<&Limits>,
    idle: &str,
) -> Result<(), tokio_postgres::Error> {
    let Some(Limits { statement_timeout, lock_timeout }) = limits else { return Ok(()) };
    let parameters = [(statement_timeout as _, Type::TEXT), (lock_timeout as _, Type::TEXT), (&idle as _, Type::TEXT)];
    transaction.query_typed_one(sql::FOR_BODY, &parameters).await.map(drop)
}

fn began(granted: &Granted) -> Result<SystemTime> {
    match granted.owner {
        Owner::Transaction(since) => Ok(since),
        Owner::Session(_) => Err(Error::new(ErrorKind::Other, "BUG: a transaction's lock is owned by something else")),
    }
}

fn indeterminate() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the server did not say whether the transaction was committed: look for its effects before you repeat it",
    )
}

fn read<V: for<'r> tokio_postgres::types::FromSql<'r>>(row: &tokio_postgres::Row, column: &str) -> Result<V> {
    row.try_get(column).map_err(|error| error::wrap(error, "read the answer to a lock request"))
}

/// Listed, and waited for by closing, while it lives.
struct Listed<'a> {
    core: &'a Core,
    ticket: Ticket,
    _running: TaskTrackerToken,
}

impl<'a> Listed<'a> {
    fn new(core: &'a Core, id: i64, key: &LockKey) -> Self {
        let running = core.transactions.token();
        Self { core, ticket: core.registry.list(id, key, Weak::new()), _running: running }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.core.registry.unlist(self.ticket);
    }
}

/// Runs work to its end, and what goes on beside it for as long.
async fn beside<F: Future>(work: F, aside: impl Future<Output = ()>) -> F::Output {
    let mut work = std::pin::pin!(work);
    // Both arms are polled again after the other.
    tokio::select! {
        biased;
        ended = &mut work => return ended,
        () = aside => {}
    }
    work.await
}

/// Runs a body to its end or its panic. Sound to assert: after a panic the future is dropped and never polled again.
async fn catch<'t, R>(body: impl FnOnce() -> BoxFuture<'t, R>) -> thread::Result<R> {
    let mut future = catch_unwind(AssertUnwindSafe(body))?;
    poll_fn(move |cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}
