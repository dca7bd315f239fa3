//! One acquire: a session, a try, and if need be a wait in the server's queue.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use distributed_lock::{
    AcquireOptions, Attempt, Contention, Error, ErrorKind, LockGuard, LockKey, Loss, LossCause, Result, Ttl,
    backend::{HoldRecord, store_answered, tell_waiting},
    telemetry::Metric,
};
use tokio::time::timeout;

use crate::{
    answer::{Answer, Before, Granted},
    budget::{Budget, SLACK, server_share, unanswered},
    core::{Core, ghost_bound},
    error,
    housekeeping::Sender,
    lease::{Lease, PostgresHandle, Terms},
    reserved::Reserved,
    session::{Ask, Scope, Session},
    timing::{Timing, lock_timeout_text, server_millis},
    token,
};

/// What is to own the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ownership {
    Session,
    Transaction,
}

pub(crate) async fn acquire(
    core: &Arc<Core>,
    key: &LockKey,
    options: &AcquireOptions,
    ownership: Ownership,
    fenced: bool,
) -> Result<Attempt> {
    acquire_as(core, key, options, (ownership, fenced), None).await
}

/// The same for somebody who waits already, as this sender.
pub(crate) async fn acquire_as(
    core: &Arc<Core>,
    key: &LockKey,
    options: &AcquireOptions,
    (ownership, fenced): (Ownership, bool),
    waits_as: Option<Sender>,
) -> Result<Attempt> {
    core.ensure_open()?;
    let acquire = Acquire {
        core,
        key,
        id: core.settings.keys.id(core.settings.namespace, key),
        ttl: options.ttl,
        timing: core.timing(options.ttl)?,
        ownership,
        fenced,
        asks: options.ask_step_down,
        waits_as,
        budget: Budget::start(options.wait, &core.clock),
    };
    // Both arms are cancel safe; what the first had reserved is destroyed when the second wins. A grant looks at the closing itself.
    tokio::select! {
        biased;
        acquired = acquire.run() => acquired,
        () = core.until_closed() => Err(crate::core::closed()),
    }
    .map_err(|error| if error.key().is_some() { error } else { error.with_key(key) })
}

struct Acquire<'a> {
    core: &'a Arc<Core>,
    key: &'a LockKey,
    id: i64,
    ttl: Ttl,
    timing: Timing,
    ownership: Ownership,
    fenced: bool,
    /// Whether the holder is asked to step down.
    asks: bool,
    /// As whom it waits already.
    waits_as: Option<Sender>,
    budget: Budget,
}

impl Acquire<'_> {
    async fn run(&self) -> Result<Attempt> {
        loop {
            let session = match self.core.pool.reserve(self.budget.for_place(self.core.settings.conn_wait)).await? {
                Attempt::Acquired(session) => session,
                Attempt::Contended(why) => return Ok(Attempt::Contended(why)),
            };
            session.bound_by(ghost_bound(&self.core.settings.session, self.timing.ttl()));
            let ask = self.ask(&session);
            let sent = self.core.clock.now();
            let limit = self.budget.for_answer(self.timing.query_timeout());
            // A session that is dropped from here on is destroyed: it may own the lock.
            let answered = session.within(limit, pin!(session.try_lock(&ask))).await;
            if let Some(Ok(_)) = answered {
                store_answered();
            }
            match answered {
                Some(Ok(Answer::Granted(granted))) => {
                    return self.grant(session, granted, sent, self.waits_as).map(Attempt::Acquired);
                }
                Some(Ok(Answer::Refused(error))) => return Err(error),
                Some(Ok(Answer::Contended)) if self.budget.is_try() => {
                    let round_trip = self.core.clock.now().saturating_duration_since(sent);
                    Box::pin(self.leave(session, &ask, round_trip)).await;
                    if self.asks {
                        Box::pin(self.core.ask_once(self.id, limit)).await;
                    }
                    return Ok(Attempt::Contended(self.core.registry.why_contended(self.id, self.key)));
                }
                Some(Ok(Answer::Contended)) => {
                    let round_trip = self.core.clock.now().saturating_duration_since(sent);
                    // On the heap, as all that is not the common way, so that an acquire stays a small future.
                    return Box::pin(self.wait(session, &ask, round_trip)).await;
                }
                // The server ended it while it lay in the pool: it owns nothing, and the next may be alive.
                Some(Err(error)) if session.is_reused() && error::ended_session(&error) => {}
                Some(Err(error)) => return Err(error::unavailable(error, "ask for a lock")),
                None => return Err(unanswered("a lock request", limit)),
            }
        }
    }

    fn ask(&self, session: &Session) -> Ask {
        let scope = match self.ownership {
            Ownership::Session => Scope::Session(session.beacon(&self.timing)),
            Ownership::Transaction => Scope::Transaction,
        };
        Ask { id: self.id, scope, idle: server_millis(self.timing.ttl()), fenced: self.fenced }
    }

    /// After a contended try: gives the session back, or destroys it if it does not answer.
    async fn leave(&self, session: Reserved, ask: &Ask, round_trip: Duration) {
        if let Ok(Ok(true)) = timeout(SLACK.max(round_trip * 2), session.leave_try(ask.scope)).await {
            session.give_back();
        }
    }

    /// In the server's queue, for what is left of the budget.
    async fn wait(&self, session: Reserved, ask: &Ask, round_trip: Duration) -> Result<Attempt> {
        let left = self.budget.left();
        if left.is_some_and(|left| left.is_zero()) {
            self.leave(session, ask, round_trip).await;
            return Ok(Attempt::Contended(Contention::WaitElapsed));
        }
        tell_waiting(&self.core.registry.why_contended(self.id, self.key));
        if self.asks && self.core.housekeeping.is_none() {
            self.core.ask_once(self.id, SLACK).await;
        }
        // Asks the holder, and watches it, for as long as we wait.
        let wanted = if self.waits_as.is_none() { self.core.want(self.id, self.asks) } else { None };
        let waiter_idle = server_millis(self.timing.waiter_idle()).to_string();
        let lock_timeout = lock_timeout_text(server_share(left, round_trip));
        let waiting = session.wait_lock(ask, &waiter_idle, &lock_timeout);
        let waited = match left {
            None => waiting.await,
            Some(left) => {
                let limit = left.saturating_add(SLACK);
                timeout(limit, waiting).await.map_err(|_elapsed| unanswered("a queued lock request", limit))?
            }
        };
        let (before, answer) = waited.map_err(|error| error::unavailable(error, "wait for a lock"))?;
        let mut granted = match answer {
            Ok(Answer::Granted(granted)) => granted,
            Ok(Answer::Refused(error)) => return Err(error),
            Ok(Answer::Contended) => {
                return Err(Error::new(ErrorKind::Other, "BUG: a wait without an error granted nothing"));
            }
            Err(error) if error.code().is_some_and(|state| state.code() == "55P03") => {
                self.elapsed(session, ask, &before, round_trip).await;
                return Ok(Attempt::Contended(Contention::WaitElapsed));
            }
            Err(error) => return Err(error::unavailable(error, "wait for a lock")),
        };
        // A grant that waited may be older than it looks, so the lease counts from a proof that was sent after it.
        let sent = self.core.clock.now();
        let limit = self.timing.query_timeout();
        // In this order and in one write.
        let checked = async {
            tokio::join!(biased; session.prove(granted.owner, ask.idle), session.after_wait(ask.scope, &before))
        };
        let (proof, put_back) =
            timeout(limit, checked).await.map_err(|_elapsed| unanswered("the check of a lock", limit))?;
        let proof = proof.map_err(|error| error::unavailable(error, "confirm a lock"))?;
        put_back.map_err(|error| error::unavailable(error, "confirm a lock"))?;
        if !proof.owned || proof.in_recovery {
            let message = "the session lost the lock while it was being granted";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        granted.idle_before = Some(before.idle);
        let waited_as = wanted.map(|wanted| wanted.sender).or(self.waits_as);
        self.grant(session, granted, sent, waited_as).map(Attempt::Acquired)
    }

    /// A wait that ended in an error may have been granted all the same: the session is proven clean or destroyed.
    async fn elapsed(&self, session: Reserved, ask: &Ask, before: &Before, round_trip: Duration) {
        match timeout(SLACK.max(round_trip * 2), session.leave_wait(ask.scope, before)).await {
            Ok(Ok(true)) => session.give_back(),
            Ok(Ok(false)) => {
                self.core.settings.telemetry.count(Metric::Ghosts, &[]);
                tracing::debug!(
                    target: "lock_postgres",
                    key = ?self.key,
                    "a wait that timed out had been granted; the session is destroyed"
                );
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }

    /// No await from here to the guard, so that the grant always has an owner.
    fn grant(
        &self,
        session: Reserved,
        granted: Granted,
        sent: Instant,
        waited_as: Option<Sender>,
    ) -> Result<LockGuard> {
        let Granted { owner, token, idle_before } = granted;
        let token = match &token {
            Some(text) => Some(token::parse(self.core.settings.epoch, text)?),
            None => None,
        };
        let server_ttl = self.timing.ttl();
        let deadline = self.timing.deadline(sent, server_ttl);
        let record = HoldRecord::draft(self.core.id, self.key.clone(), Arc::clone(&self.core.clock))
            .with_fencing_token(token)
            .with_deadline(Some(deadline))
            .with_max_grace(Some(self.timing.max_grace()))
            .open();
        let expires = self.ttl.duration().map(|ttl| sent + ttl);
        let terms = Terms { timing: self.timing, expires, owner, proved: sent, deadline };
        let hold = record.hold();
        let session = (session, idle_before);
        let lock = (self.key.clone(), self.id, waited_as);
        let lease = Lease::new(Arc::clone(self.core), lock, record, session, terms);
        if !lease.keep() {
            let message = "the lease was over, or the runtime of its session had ended, when the answer was read; poll an acquire all \
                           the time";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        let guard = LockGuard::new(hold, self.ttl, PostgresHandle(Arc::clone(&lease)));
        if let Some(housekeeping) = &self.core.housekeeping {
            housekeeping.listen();
        }
        // Either closing found the lease in its list, or we find that it has begun.
        if self.core.ensure_open().is_err() {
            lease.record.lose(Loss::new(LossCause::Closed));
            return Err(crate::core::closed());
        }
        Ok(guard)
    }
}
