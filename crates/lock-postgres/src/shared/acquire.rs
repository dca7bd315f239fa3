//! One acquire: a try on a lane, and if need be a wait for its turn and for others.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    AcquireOptions, Attempt, Contention, Error, ErrorKind, Fencing, LockGuard, LockKey, Result, Ttl, Wait,
    backend::{store_answered, tell_waiting},
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{
    Shared,
    beacons::Watched,
    ids::Turn,
    lane::{Granted, Lock},
    looks::Seen,
};
use crate::{
    acquire::{Ownership, acquire_as},
    budget::{Budget, unanswered},
    housekeeping::Sender,
    jitter::jittered,
    session::Beacon,
    timing::Timing,
};

/// While nothing is heard, a key is tried after this, then after four times as long, and so on.
const FIRST_POLL: Duration = Duration::from_millis(50);
pub(super) const LONGEST_POLL: Duration = Duration::from_secs(5);

/// Others who were quicker before a waiter queues in the server, where nobody can be: in a row within a second each, and in all.
const LOSSES: u32 = 2;
const ALL_LOSSES: u32 = 10;
const SOON: Duration = Duration::from_secs(1);

/// Looks that failed before a waiter queues in the server.
const BLIND: u32 = 3;

/// Lanes that end under one try before it fails.
const LANES: u32 = 3;

/// What is on the way of every lock is kept small, and the rest boxed: its future is made for each.
pub(super) async fn acquire(shared: &Arc<Shared>, key: &LockKey, options: &AcquireOptions) -> Result<Attempt> {
    let core = &shared.core;
    core.ensure_open()?;
    let fenced = match options.fencing {
        Fencing::Default => core.settings.fencing,
        Fencing::Off => false,
        Fencing::On => true,
    };
    let (id, timing) = (core.id_of(key), core.timing(options.ttl)?);
    let request = Request { key: key.clone(), id, ttl: options.ttl, timing, fenced };
    let budget = Budget::start(options.wait, &core.clock);
    match request.try_once(shared, &budget, None, None).await? {
        Tried::Granted(guard) => Ok(Attempt::Acquired(guard)),
        Tried::Here(why) | Tried::Elsewhere(why) if budget.is_try() => {
            if options.ask_step_down {
                let (core, limit) = (Arc::clone(core), timing.query_timeout());
                let ask = async move {
                    core.ask_once(id, limit).await;
                    Ok(())
                };
                Box::pin(shared.unless_closed(shared.elsewhere(ask))).await?;
            }
            Ok(Attempt::Contended(why))
        }
        Tried::Here(why) | Tried::Elsewhere(why) => {
            tell_waiting(&why);
            let (waiter, options) = (Arc::clone(shared), options.clone());
            let waiting = async move { waiter.wait(request, &options, budget).await };
            Box::pin(shared.unless_closed(shared.elsewhere(waiting))).await
        }
    }
}

struct Request {
    key: LockKey,
    id: i64,
    ttl: Ttl,
    timing: Timing,
    fenced: bool,
}

enum Tried {
    Granted(LockGuard),
    /// A lane of this locker has it, or somebody of this locker waits for it.
    Here(Contention),
    /// Somebody else, or a hold of this locker that is on no lane.
    Elsewhere(Contention),
}

impl Request {
    async fn try_once(
        &self,
        shared: &Shared,
        budget: &Budget,
        turn: Option<&Turn>,
        waited_as: Option<Sender>,
    ) -> Result<Tried> {
        let core = &shared.core;
        let mut lanes = 0;
        loop {
            let claim = match shared.ids.claim(self.id, &self.key, !budget.is_try(), turn) {
                Ok(claim) => claim,
                Err(why) => return Ok(Tried::Here(why)),
            };
            let (answer, answered) = oneshot::channel();
            let Self { ttl, timing, fenced, .. } = *self;
            let lock = Box::new(Lock {
                claim,
                key: self.key.clone(),
                ttl,
                timing,
                fenced,
                waited_as,
                lane: None,
                answer: Some(answer),
            });
            if let Some(lock) = shared.lanes.give(lock) {
                let place = budget.for_place(core.settings.conn_wait);
                // A lane that is open answers when it closes.
                if let Some(why) = Box::pin(shared.unless_closed(shared.lanes.open_for(lock, place))).await? {
                    return Ok(Tried::Elsewhere(why));
                }
            }
            // A lane answers within its query timeout, or ends. What is granted to nobody is given back.
            let limit = budget.for_answer(timing.query_timeout());
            let answer = match limit < timing.query_timeout() {
                true => {
                    Box::pin(timeout(limit, answered)).await.map_err(|_elapsed| unanswered("a lock request", limit))?
                }
                false => answered.await,
            };
            match answer.unwrap_or_else(|_| Err(super::ended()))? {
                Granted::Yes(guard) => return Ok(Tried::Granted(guard)),
                Granted::No => {
                    store_answered();
                    return Ok(Tried::Elsewhere(core.registry.why_contended(self.id, &self.key)));
                }
                Granted::Again(loss) => {
                    lanes += 1;
                    if lanes == LANES {
                        let message = "the sessions that were asked for the lock ended one after the other";
                        return Err(Error::new(ErrorKind::Unavailable, message).with_source(loss));
                    }
                }
            }
        }
    }
}

impl Shared {
    /// For what is left of the budget. On the thread of the sessions.
    async fn wait(&self, request: Request, options: &AcquireOptions, budget: Budget) -> Result<Attempt> {
        let elapsed = Ok(Attempt::Contended(Contention::WaitElapsed));
        // Asks the holder, and watches it, for as long as we wait.
        let wanted = self.core.want(request.id, options.ask_step_down);
        let waited_as = wanted.as_ref().map(|wanted| wanted.sender);
        let place = self.ids.join(request.id);
        let Some(turn) = within(budget.left(), place.turn()).await else { return elapsed };
        let mut patience = Patience::default();
        let mut watched = None;
        if let Some(pause) = self.ids.gives_way(request.id)
            && within(budget.left(), sleep(pause)).await.is_none()
        {
            return elapsed;
        }
        loop {
            let tried = request.try_once(self, &budget, Some(&turn), waited_as).await;
            let here = match tried.map_err(once_contended)? {
                Tried::Granted(guard) => return Ok(Attempt::Acquired(guard)),
                Tried::Here(_) => true,
                Tried::Elsewhere(_) => false,
            };
            if budget.left().is_some_and(|left| left.is_zero()) {
                return elapsed;
            }
            if here {
                // The end of its hold rings; that it does is not all we rely on.
                let rung = timeout(LONGEST_POLL, turn.rung());
                if within(budget.left(), rung).await.is_none() {
                    return elapsed;
                }
                continue;
            }
            let Some(seen) = within(budget.left(), self.looks.look(request.id)).await else { return elapsed };
            let beacon = match seen {
                Ok(Seen::Lane(beacon)) if !patience.is_over() => Some(beacon),
                Ok(Seen::Free) if !patience.is_over() => {
                    patience.lost();
                    continue;
                }
                Err(error) if !patience.is_blind() => {
                    tracing::debug!(target: "lock_postgres", %error, "the holder of a key could not be looked for");
                    None
                }
                _ => match self.queue(&request, options, &budget, waited_as).await.map_err(once_contended)? {
                    // Nobody can pass those who queue, but they go, and so may those who use our connections.
                    Attempt::Contended(Contention::NoConnection) => {
                        patience = Patience::default();
                        None
                    }
                    attempt => return Ok(attempt),
                },
            };
            self.watch(&mut watched, beacon);
            match within(budget.left(), self.sleep(&turn, request.id, watched.as_ref(), &patience)).await {
                None => return elapsed,
                Some(Woken::ByOthers) => patience.lost(),
                Some(Woken::ByItself) => patience.heard_nothing(),
            }
        }
    }

    /// Goes on watching the same session if it still is the holder's.
    fn watch(&self, watched: &mut Option<Watch>, beacon: Option<Beacon>) {
        if watched.as_ref().map(|watch| watch.beacon) != beacon {
            *watched = beacon.and_then(|beacon| Some(Watch { beacon, watched: self.beacons.watch(beacon)? }));
        }
    }

    /// Until the key may have become free, or it is time to try all the same. Cancel safe.
    async fn sleep(&self, turn: &Turn, id: i64, watch: Option<&Watch>, patience: &Patience) -> Woken {
        self.notices.wanted(id);
        let ended = async {
            match watch {
                Some(watch) => watch.watched.ended().await,
                None => std::future::pending().await,
            }
        };
        // The bell stays rung, and the end of a session is kept.
        tokio::select! {
            biased;
            () = turn.rung() => Woken::ByOthers,
            () = ended => Woken::ByOthers,
            () = sleep(jittered(patience.poll)) => Woken::ByItself,
        }
    }

    /// In the server's queue, on a connection of its own. Keeps the turn.
    async fn queue(
        &self,
        request: &Request,
        options: &AcquireOptions,
        budget: &Budget,
        waits_as: Option<Sender>,
    ) -> Result<Attempt> {
        let wait = match budget.left() {
            None => Wait::Forever,
            Some(left) if left.is_zero() => return Ok(Attempt::Contended(Contention::WaitElapsed)),
            Some(left) => Wait::UpTo(left),
        };
        let options = options.clone().with_wait(wait);
        acquire_as(&self.core, &request.key, &options, (Ownership::Session, request.fenced), waits_as).await
    }
}

/// Of the holder's session, while we wait.
struct Watch {
    beacon: Beacon,
    watched: Arc<Watched>,
}

/// The server was fit to give locks when the wait began, so that what it says now may pass.
fn once_contended(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Misconfigured | ErrorKind::Denied => {
            let message = "the server that was waited for does not give the lock any more";
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        }
        _ => error,
    }
}

enum Woken {
    ByOthers,
    ByItself,
}

/// How long a waiter goes on trying before it queues in the server, and how often it tries unasked.
struct Patience {
    poll: Duration,
    /// Others who were quicker: one soon after the other, and in all.
    losses: u32,
    all_losses: u32,
    last_loss: Option<Instant>,
    blind: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self { poll: FIRST_POLL, losses: 0, all_losses: 0, last_loss: None, blind: 0 }
    }
}

impl Patience {
    /// To be asked once the try after the loss was in vain.
    fn is_over(&self) -> bool {
        self.losses > LOSSES || self.all_losses > ALL_LOSSES
    }

    fn is_blind(&mut self) -> bool {
        self.blind += 1;
        self.blind > BLIND
    }

    fn lost(&mut self) {
        let soon = self.last_loss.is_none_or(|last| last.elapsed() < SOON);
        self.losses = if soon { self.losses + 1 } else { 1 };
        self.all_losses += 1;
        self.last_loss = Some(Instant::now());
        // Whoever holds it now may not have heard of us.
        self.poll = FIRST_POLL;
    }

    fn heard_nothing(&mut self) {
        self.poll = LONGEST_POLL.min(self.poll * 4);
    }
}

/// `None` if it takes longer; without a limit it is for ever.
async fn within<T>(limit: Option<Duration>, future: impl Future<Output = T>) -> Option<T> {
    match limit {
        None => Some(future.await),
        Some(limit) => timeout(limit, future).await.ok(),
    }
}
