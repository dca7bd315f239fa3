use std::{
    future::{Future, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::watch, time::sleep_until};

use super::{
    CancelReason, LeaseEvent, LeaseExit, LeaseState, Term, TermEnd,
    exit::message,
    log::log,
    machine::{Action, At, Exit, Input, Machine, Rules, Stop},
    measured::Measured,
    orders::OrderReader,
    report::{Job, Report},
    runner::Shared,
    tending::{self, Tending},
    term::TermControl,
};
use crate::{
    AcquireOptions, Attempt, Clock, Error, ErrorKind, Fairness, Hold, InvalidInput, LockGuard, LockKey, Result,
    TokioClock, Ttl, Wait, backend::BoxFuture, poll, task, telemetry::trace, unwind,
};

/// One run: does what its machine says, and tells the machine what happens.
pub(super) struct Run<'a> {
    shared: &'a Shared,
    key: LockKey,
    orders: OrderReader,
    state: watch::Sender<LeaseState>,
    machine: Machine,
    ttl: Ttl,
    /// Whether an attempt waits, rather than being repeated.
    waits: bool,
    /// Whether the store said anything before.
    answered: bool,
    measured: Measured,
}

/// What contending led to.
enum Contest {
    Refused(Error),
    Over(Exit),
    Won { guard: LockGuard, proof: Instant, action: Action },
}

impl<'a> Run<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        key: LockKey,
        orders: OrderReader,
        state: watch::Sender<LeaseState>,
    ) -> Result<Self> {
        let can = shared.locker.capabilities();
        let (queues, waits) = (can.fairness == Fairness::Fifo, can.can_wait());
        let config = &shared.config;
        let rules = Rules {
            patience: shared.timing.patience(),
            grace: config.grace,
            retry: config.retry_interval,
            max_term: config.max_term,
            progress_deadline: config.progress_deadline,
            takeover_delay: config.takeover_delay,
            queues,
        };
        let machine = Machine::new(rules, TokioClock.now());
        let measured = Measured::new(config.telemetry.clone().for_class(config.class));
        Ok(Self { shared, key, orders, state, machine, ttl: Ttl::new(config.ttl)?, waits, answered: false, measured })
    }

    pub(super) async fn drive<T, E, Fut: Future<Output = Result<T, E>>>(
        mut self,
        mut job: impl FnMut(Term) -> Fut,
        mut on_term_end: impl FnMut(TermEnd<T, E>),
    ) -> Result<LeaseExit<T, E>> {
        task::ensure_not_under(self.shared.locker.id(), &self.key, Wait::Forever)?;
        self.say(&LeaseEvent::StandingBy { key: &self.key, guarantees: &self.shared.guarantees() });
        let mut action = Action::Acquire { ask: false };
        loop {
            let (guard, proof, granted) = match self.contend(action).await {
                Contest::Won { guard, proof, action } => (guard, proof, action),
                Contest::Over(exit) => return Ok(idle(exit)),
                Contest::Refused(error) => return Err(error),
            };
            let (next, report) = self.term(guard, proof, granted, &mut job).await;
            match next {
                Action::Exit(exit) => return Ok(report.into_exit(exit)),
                next => action = next,
            }
            if let Some(end) = report.into_end() {
                on_term_end(end);
            }
        }
    }

    /// From standing by to a grant or to the end of the run.
    async fn contend(&mut self, mut action: Action) -> Contest {
        self.state.send_replace(LeaseState::Standby);
        let mut asked_at = TokioClock.now();
        let mut acquiring: Option<BoxFuture<'static, Result<Attempt>>> = None;
        loop {
            match action {
                Action::Exit(exit) => return Contest::Over(exit),
                Action::Acquire { ask } => {
                    // The old attempt gives up its place before the new one asks.
                    drop(acquiring.take());
                    asked_at = TokioClock.now();
                    acquiring = Some(self.acquire(ask));
                }
                _ => {}
            }
            // All arms are cancel safe: orders stay, the attempt is polled again, the time to wake up is computed anew.
            let input = tokio::select! {
                biased;
                order = self.orders.next() => order,
                answer = answer(&mut acquiring) => {
                    acquiring = None;
                    match answer {
                        Ok(Attempt::Acquired(guard)) => return self.granted(guard, asked_at).await,
                        Ok(Attempt::Contended(_)) => Input::Contended { pause: self.pause() },
                        Err(error) if self.is_final(&error) => return self.refused(error),
                        Err(error) => {
                            let pause = self.pause().max(error.retry_after().unwrap_or_default());
                            let event = LeaseEvent::AcquireFailed { key: &self.key, error: &error, retry_in: Some(pause) };
                            self.say(&event);
                            Input::Failed { pause, last: false }
                        }
                    }
                }
                () = wake(self.machine.wake_at()) => Input::Time,
            };
            self.answered |= matches!(input, Input::Contended { .. } | Input::Failed { .. });
            action = self.machine.step(now(), input);
        }
    }

    fn acquire(&self, ask: bool) -> BoxFuture<'static, Result<Attempt>> {
        let mut options = AcquireOptions::new(self.ttl);
        options.class = self.shared.config.class;
        if self.waits {
            options = options.with_wait(Wait::Forever);
        }
        if ask {
            options = options.with_step_down_request();
        }
        let (locker, key) = (Arc::clone(&self.shared.locker), self.key.clone());
        Box::pin(async move { locker.acquire_opts(&key, &options).await })
    }

    async fn granted(&mut self, guard: LockGuard, asked_at: Instant) -> Contest {
        self.answered = true;
        let (hold, at) = (guard.hold(), now());
        if let Some(limit) = hold.max_grace().filter(|limit| self.shared.config.grace > *limit) {
            let _how_it_ended = tending::release(guard, self.shared.timing.answer()).await;
            let rule = format!("this locker allows at most {limit:?} for a ttl of {}; use a longer ttl", self.ttl);
            let invalid = InvalidInput::new("grace", format_args!("{:?}", self.shared.config.grace), &rule);
            return self.refused(Error::from(invalid).with_key(&self.key));
        }
        // An attempt that waited was proven long after it was asked for: no earlier than a TTL before the deadline.
        let at = At { left: hold.until_deadline(), ..at };
        let proof = match at.left {
            Some(left) => {
                at.now.checked_sub(self.shared.config.ttl.saturating_sub(left)).unwrap_or(asked_at).max(asked_at)
            }
            None => at.now,
        };
        let action = self.machine.step(at, Input::Granted { proof });
        Contest::Won { guard, proof, action }
    }

    fn refused(&mut self, error: Error) -> Contest {
        self.machine.step(now(), Input::Failed { pause: Duration::ZERO, last: true });
        self.say(&LeaseEvent::AcquireFailed { key: &self.key, error: &error, retry_in: None });
        Contest::Refused(error)
    }

    /// Whether asking again changes nothing. A refusal that comes after other answers is what a failover or a changed password
    /// looks like, so it is retried.
    fn is_final(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Closed | ErrorKind::InvalidInput | ErrorKind::Unsupported => true,
            ErrorKind::Denied | ErrorKind::Misconfigured => !self.answered,
            _ => false,
        }
    }

    /// The retry interval and up to a fifth more.
    fn pause(&self) -> Duration {
        let (pause, fifth) = (self.shared.config.retry_interval, self.shared.config.retry_interval / 5);
        pause.saturating_sub(fifth).saturating_add(poll::jitter(fifth * 2))
    }

    /// One term, from its grant to its release, and what the machine wants next.
    async fn term<T, E, Fut: Future<Output = Result<T, E>>>(
        &mut self,
        guard: LockGuard,
        proof: Instant,
        mut action: Action,
        job: &mut impl FnMut(Term) -> Fut,
    ) -> (Action, Report<T, E>) {
        let mut tending = Tending::new(guard, self.shared.timing, proof);
        let hold = tending.hold();
        if action == Action::Wait {
            self.state.send_replace(LeaseState::TakingOver(hold.clone()));
            self.say(&LeaseEvent::TakingOver { hold: &hold });
        }
        while action == Action::Wait {
            let input = tokio::select! {
                biased;
                order = self.orders.next() => order,
                input = tending.next() => input,
                () = wake(self.machine.wake_at()) => Input::Time,
            };
            action = self.machine.step(at(&hold), input);
        }
        let mut report = match action {
            Action::Start => self.lead(&mut tending, job).await,
            _ => Report::new(hold.clone(), Job::NotStarted, None),
        };
        let release = tending.release().await;
        let lost = match &release {
            Ok(crate::Release::Lost(loss)) => {
                report.loss.get_or_insert_with(|| loss.clone());
                true
            }
            _ => false,
        };
        self.say(&LeaseEvent::TermEnded {
            hold: &hold,
            reason: report.reason.as_ref(),
            outcome: report.job.outcome(),
            loss: report.loss.as_ref(),
            overrun: report.overrun,
            release: &release,
        });
        if let Some(stop) = self.orders.stop() {
            // Given before we contend again: the value of this term is the last one.
            self.machine.step(now(), Input::Stop(stop));
        }
        (self.machine.step(now(), Input::Released { lost }), report)
    }

    /// The job, from its first poll to its end or its drop.
    async fn lead<T, E, Fut: Future<Output = Result<T, E>>>(
        &mut self,
        tending: &mut Tending,
        job: &mut impl FnMut(Term) -> Fut,
    ) -> Report<T, E> {
        let hold = tending.hold();
        let (control, term) = TermControl::open(&hold);
        self.state.send_replace(LeaseState::Leading(hold.clone()));
        self.say(&LeaseEvent::Leading { hold: &hold });
        let work = task::under(hold.locker(), self.key.clone(), async { job(term).await });
        let span = trace::term(self.measured.telemetry(), &hold);
        let mut work = Box::pin(unwind::catch(trace::within(&span, work)));
        let ended = 'term: loop {
            // Kept until it ends: a renewal that is dropped in flight is sent again, and its answer is lost.
            let mut next = Box::pin(tending.next());
            loop {
                // All arms are cancel safe. The job comes last: one that is always ready must not keep the others from being polled.
                let (input, tended) = tokio::select! {
                    biased;
                    order = self.orders.next() => (order, false),
                    input = &mut next => (input, true),
                    () = wake(self.machine.wake_at()) => {
                        self.machine.step(at(&hold), Input::Progress { at: control.progressed_at() });
                        (Input::Time, false)
                    }
                    ended = &mut work => break 'term Some(ended),
                };
                match self.machine.step(at(&hold), input) {
                    Action::Cancel(reason) => self.tell(&hold, &control, CancelReason::new(reason, hold.loss())),
                    Action::Drop => break 'term None,
                    _ => self.show_late_loss(&hold, input),
                }
                if tended {
                    break;
                }
            }
        };
        let job = match (ended, catch_unwind(AssertUnwindSafe(|| drop(work)))) {
            (Some(Err(panic)), _) | (None, Err(panic)) => Job::Panicked(message(&*panic)),
            (Some(Ok(result)), _) => Job::Returned(result),
            (None, Ok(())) => Job::Dropped,
        };
        let at = at(&hold);
        let report = Report::new(hold, job, control.reason());
        self.machine.step(at, Input::JobEnded { end: report.job.end(), lost: report.loss.is_some() });
        report
    }

    fn tell(&self, hold: &Hold, control: &TermControl, reason: CancelReason) {
        control.cancel(reason.clone());
        self.state.send_replace(match &reason {
            CancelReason::Lost(loss) => LeaseState::Lost(hold.clone(), loss.clone()),
            reason => LeaseState::Draining(hold.clone(), reason.clone()),
        });
        self.say(&LeaseEvent::Draining { hold, reason: &reason });
    }

    /// A job that drains for another reason may lose its lease meanwhile.
    fn show_late_loss(&self, hold: &Hold, input: Input) {
        if let (Input::Lost { .. }, Some(loss)) = (input, hold.loss()) {
            self.state.send_replace(LeaseState::Lost(hold.clone(), loss));
        }
    }

    fn say(&self, event: &LeaseEvent<'_>) {
        log(event);
        self.measured.see(event);
        if let Some(hook) = &self.shared.config.hook {
            (hook.0)(event);
        }
    }
}

/// The end of a run that stood by.
fn idle<T, E>(exit: Exit) -> LeaseExit<T, E> {
    match exit {
        Exit::Stopped(Stop::Close) => LeaseExit::Closed(None),
        Exit::Stopped(Stop::Stop) => LeaseExit::Stopped(None),
        exit => unreachable!("BUG: no standby ends as {exit:?}"),
    }
}

fn now() -> At {
    At { now: TokioClock.now(), left: None }
}

fn at(hold: &Hold) -> At {
    At { now: TokioClock.now(), left: hold.until_deadline() }
}

async fn wake(at: Option<Instant>) {
    match at {
        // A timer would round up to its next tick, and the job be polled once more meanwhile.
        Some(at) if at <= TokioClock.now() => {}
        Some(at) => sleep_until(at.into()).await,
        None => pending().await,
    }
}

async fn answer(acquiring: &mut Option<BoxFuture<'static, Result<Attempt>>>) -> Result<Attempt> {
    match acquiring {
        Some(attempt) => attempt.await,
        None => pending().await,
    }
}
