//! Two replicas in one process: one leads, through a proxy, and the other stands by.

use std::{
    future::{Future, pending},
    pin::Pin,
    time::Duration,
};

use distributed_lock::{
    Backend, Bound, Clock, SystemClock,
    lease::{LeaseConfig, LeaseExit, LeaseState, Term},
};
use lock_postgres::PostgresConfig;
use lock_testkit::{Observer, Proxy, proxy::Flow, wait_until};

use crate::{
    intruder::Intruder,
    referee::Referee,
    replica::{self, Next, Replica},
    server::{AMPLE, Server, line, ms, shortened},
};

pub(crate) const JOB: &str = "job";

/// T of [`lease`].
pub(crate) const TTL: Duration = Duration::from_secs(2);

/// g of [`lease`].
pub(crate) const GRACE: Duration = Duration::from_millis(300);

/// Short times: h 250 ms, tau 665 ms, D 1.43 s.
pub(crate) fn lease() -> LeaseConfig {
    LeaseConfig::new().with_ttl(TTL).with_grace(GRACE).with_retry_interval(ms(100))
}

/// So long that what comes at once is told apart from what a heartbeat finds: h 1 s, tau 3.36 s.
pub(crate) fn long_lease() -> LeaseConfig {
    lease().with_ttl(Duration::from_secs(8))
}

pub(crate) type Outcome = Result<&'static str, &'static str>;
pub(crate) type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Winds down when it is told to.
pub(crate) fn obedient(term: Term) -> Work {
    Box::pin(async move {
        term.cancelled().await;
        Ok("wound down")
    })
}

/// Ends only by being dropped.
pub(crate) fn deaf(_term: Term) -> Work {
    Box::pin(pending())
}

/// A leader behind a proxy, and a standby that will know at once when it is its turn.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) proxy: Proxy,
    pub(crate) leader: Replica,
    pub(crate) standby: Replica,
    pub(crate) referee: Referee,
}

impl Pair {
    /// With lockers whose h and tau are short too.
    pub(crate) async fn start(server: &Server, job: fn(Term) -> Work) -> Self {
        Self::with(server, shortened, lease(), job).await
    }

    /// With times that a busy machine does not get near to, for where none of them matters.
    pub(crate) async fn patient(server: &Server, job: impl Fn(Term) -> Work + Clone + Send + Sync + 'static) -> Self {
        Self::with(server, |config| config, long_lease(), job).await
    }

    pub(crate) async fn with(
        server: &Server,
        times: fn(PostgresConfig) -> PostgresConfig,
        lease: LeaseConfig,
        job: impl Fn(Term) -> Work + Clone + Send + Sync + 'static,
    ) -> Self {
        let (proxy, proxied) = server.proxy();
        let referee = Referee::default();
        let leader = server.start("leader", &times(proxied), lease.clone(), &referee, job.clone());
        leader.leads().await;
        let standby = server.start("standby", &times(server.config()), lease, &referee, job);
        server.standbys(1).await;
        Self { proxy, leader, standby, referee }
    }

    /// Holds back all answers from now on, and waits until a heartbeat lacks its one.
    pub(crate) async fn hold_answers_of_a_heartbeat(&self) {
        self.proxy.reset_counts();
        self.proxy.down(Flow::Hold);
        // One that was sent before the count shows by its answer, which counts although it is held.
        let sent = wait_until(AMPLE, "a heartbeat", async || {
            let counts = self.proxy.counts();
            counts.frontend(b'B') > 0 || counts.ready > 0
        });
        sent.await.unwrap();
    }

    /// Waits until the leader's next heartbeat is answered.
    pub(crate) async fn heartbeat_is_answered(&self) {
        self.proxy.reset_counts();
        let answered = wait_until(AMPLE, "a heartbeat", async || self.proxy.counts().ready > 0);
        answered.await.unwrap();
    }

    /// Waits until one leads again after a loss, which `standby` then is.
    pub(crate) async fn next_leader(&mut self) -> Next {
        replica::next_leader(&mut self.leader, &mut self.standby).await
    }

    /// Who led first and lost it, once the `next` leader is known.
    pub(crate) fn former(&self, next: &Next) -> &Replica {
        if next.again { &self.standby } else { &self.leader }
    }

    /// Nothing happened but the loss of the first term, which its replica told of in these words, and a change of roles after the next one.
    pub(crate) fn ensure_told(&self, next: &Next, lost: &[&str]) {
        let (before_next, before_last, terms) = match next.again {
            true => (lost, &["stands by"][..], ["leader", "leader", "standby"]),
            false => (&["stands by"][..], lost, ["leader", "standby", "leader"]),
        };
        let stepped_down = ["leads", "told: StepDown", "ended: Ok, kept, released"];
        assert_eq!(self.standby.events(), [before_next, &stepped_down].concat());
        assert_eq!(self.leader.events(), [before_last, &["leads"]].concat());
        assert_eq!(self.referee.terms(), terms);
    }

    /// Two jobs never worked at once for longer than this, and each term had a higher token than the one before.
    pub(crate) fn ensure_overlap(&self, bound: Bound) {
        self.referee.ensure_tokens_rise();
        let overlap = self.referee.overlap();
        println!("overlap {overlap:?}, bound {bound}");
        assert!(overlap <= within(bound), "two worked for {overlap:?}, bound {bound}: {:?}", self.referee);
    }

    /// The standby leads now, and the former leader stands by with nothing left of its term: it leads again when it is its turn.
    pub(crate) async fn ensure_roles_can_change_back(&self, server: &Server) {
        server.standbys(1).await;
        let hold = self.standby.leads().await;
        let token = hold.fencing_token();
        assert!(matches!(self.leader.watch.state(), LeaseState::Standby), "{:?}", self.leader.watch.state());
        let deadline = || SystemClock.now() + hold.remaining().unwrap_or_default();
        // Two looks at the same deadline differ by less.
        let before = deadline() + ms(10);
        let renewed = wait_until(AMPLE, "a renewal of the new term", async || deadline() > before);
        renewed.await.unwrap();
        assert_eq!(self.standby.leads().await.fencing_token(), token);
        assert!(self.standby.runner.step_down(JOB));
        assert!(self.leader.leads().await.fencing_token() > token);
        hold.ensure_valid().unwrap_err();
    }

    /// Closes both, and nothing is left in the server.
    pub(crate) async fn end(self, server: &Server) {
        let (one, other) = (self.leader.close().await, self.standby.close().await);
        assert!(matches!((&one, &other), (LeaseExit::Closed(_), LeaseExit::Closed(_))), "{one:?}, {other:?}");
        drop(self.proxy);
        server.quiet().await;
    }

    /// The same where the leader's run has ended already.
    pub(crate) async fn end_after_exit(self, server: &Server) {
        self.leader.runner.close().await.unwrap();
        self.leader.locker.close().await.unwrap();
        let exit = self.standby.close().await;
        assert!(matches!(exit, LeaseExit::Closed(Some(_))), "{exit:?}");
        drop(self.proxy);
        server.quiet().await;
    }
}

/// A way into its sessions, and how a locker is led through it.
pub(crate) async fn intruded(server: &Server) -> (Intruder, PostgresConfig) {
    let intruder = Intruder::start(server.port()).await;
    let direct = format!("127.0.0.1:{}", server.port());
    let url = server.url.replace(&direct, &intruder.address.to_string());
    (intruder, PostgresConfig::from_url(format!("{url}?sslmode=disable")))
}

/// Runs statements in the session of the only holder, whatever other sessions its locker has.
pub(crate) async fn meddle(server: &Server, intruder: &Intruder, statements: &str) {
    intruder.run_in(server.holder().await, statements).await;
}

/// Waits until one holds and one stands by, for where the server's own look at it ended with a restart.
pub(crate) async fn one_stands_by(observer: &Observer) {
    let stands_by =
        wait_until(AMPLE, "one holds and one stands by", async || line(observer).await.led_before(1).is_some());
    stands_by.await.unwrap();
}

/// What a bound says.
pub(crate) fn within(bound: Bound) -> Duration {
    match bound {
        Bound::Within(limit) => limit,
        other => panic!("no number: {other}"),
    }
}
