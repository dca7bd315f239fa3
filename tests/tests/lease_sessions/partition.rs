//! The leader is cut off from the server, in one direction or in both, and nobody sees an end.

use distributed_lock::{Bound, LossCause};
use libtest_mimic::Trial;
use lock_postgres::PostgresConfig;
use lock_testkit::{Proxy, proxy::Flow};
use tests::lease::locker::LockerKind;

use crate::{
    bench::{Pair, deaf, lease, within},
    server::{Server, Watch, ms, trial},
};

type Switch = fn(&Proxy);

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    // What is held back comes when the network heals, as by the repeats of TCP; what is dropped never comes.
    let cuts: [(&str, Switch, Word); 6] = [
        ("both_ways", |proxy| proxy.both(Flow::Drop), Word::Lost),
        ("both_ways_and_late", |proxy| proxy.both(Flow::Hold), Word::Lost),
        ("towards_the_server", |proxy| proxy.up(Flow::Drop), Word::Arrives),
        ("towards_the_leader", |proxy| proxy.down(Flow::Drop), Word::Lost),
        ("towards_the_server_and_late", |proxy| proxy.up(Flow::Hold), Word::Arrives),
        ("towards_the_leader_and_late", |proxy| proxy.down(Flow::Hold), Word::Lost),
    ];
    // The sessions of both lockers are the same to the rest.
    let (cut_off, killed_too) = match locker {
        LockerKind::Postgres => (0..6, 0..6),
        LockerKind::Shared => (0..4, 1..3),
    };
    let partitioned = cuts[cut_off].iter().map(|&(name, cut, _)| {
        let name = format!("partition::{name}_has_one_at_work_and_revives_nothing");
        trial(locker, &name, move |server| partitioned(server, cut))
    });
    let killed = cuts[killed_too].iter().map(|&(name, cut, word)| {
        let name = format!("partition::case_09_{name}_with_the_session_killed_is_told_in_time");
        trial(locker, &name, move |server| killed(server, cut, word))
    });
    let slower = trial(locker, "partition::runner_tells_before_a_locker_with_longer_times", runner_tells);
    partitioned.chain(killed).chain([slower]).collect()
}

/// What becomes of the last word of a session that the server ends.
#[derive(Clone, Copy, Debug)]
enum Word {
    Arrives,
    Lost,
}

/// The job does not mind being told, so the next one starts only after it was dropped, by a clock of nobody's but the leader's.
async fn partitioned(server: Server, cut: Switch) {
    let pair = Pair::start(&server, deaf).await;
    let watch = Watch::start();
    cut(&pair.proxy);
    let promised = pair.leader.promised();
    watch.at_within(pair.leader.event("told: HeartbeatTimeout").await, promised.detection, "the leader is told");
    watch.at_within(pair.standby.event("leads").await, within(promised.takeover_partitioned), "the standby leads");
    pair.proxy.pass();
    pair.ensure_roles_can_change_back(&server).await;
    assert_eq!(promised.overlap_partitioned, Bound::Within(ms(0)));
    pair.ensure_overlap(promised.overlap_partitioned);
    let end = pair.leader.only_end();
    assert!(end.result.is_none(), "{end:?}");
    assert_eq!(end.loss.unwrap().cause(), LossCause::HeartbeatTimeout);
    assert_eq!(
        pair.leader.events(),
        ["stands by", "leads", "told: HeartbeatTimeout", "ended: Dropped, HeartbeatTimeout, lost", "leads"]
    );
    assert_eq!(pair.standby.events(), ["stands by", "leads", "told: StepDown", "ended: Dropped, kept, released"]);
    pair.end(&server).await;
}

/// The server gives the lease away at once, and cannot say so.
async fn killed(server: Server, cut: Switch, word: Word) {
    let pair = Pair::start(&server, deaf).await;
    let holder = server.holder().await;
    let watch = Watch::start();
    cut(&pair.proxy);
    server.observer.terminate(holder).await.unwrap();
    let promised = pair.leader.promised();
    watch.at_within(pair.standby.event("leads").await, within(promised.takeover_killed), "the standby leads");
    let loss = match word {
        Word::Arrives => "SessionEnded",
        Word::Lost => "HeartbeatTimeout",
    };
    let told = pair.leader.event(&format!("told: {loss}")).await;
    watch.at_within(told, promised.detection, "the leader is told");
    pair.leader.event(&format!("ended: Dropped, {loss}, lost")).await;
    pair.proxy.pass();
    pair.ensure_roles_can_change_back(&server).await;
    pair.ensure_overlap(promised.overlap_forgotten);
    assert_eq!(pair.referee.terms(), ["leader", "standby", "leader"]);
    pair.end(&server).await;
}

/// A locker that waits for an answer until after the runner's D: the runner counts from its own proofs.
async fn runner_tells(server: Server) {
    let slow: fn(PostgresConfig) -> PostgresConfig =
        |config| config.with_heartbeat_interval(ms(200)).with_query_timeout(ms(1_100));
    let pair = Pair::with(&server, slow, lease(), deaf).await;
    let watch = Watch::start();
    pair.proxy.both(Flow::Drop);
    let promised = pair.leader.promised();
    watch.at_within(pair.leader.event("told: HeartbeatTimeout").await, promised.detection, "the leader is told");
    watch.at_within(pair.standby.event("leads").await, within(promised.takeover_partitioned), "the standby leads");
    pair.proxy.pass();
    pair.ensure_roles_can_change_back(&server).await;
    pair.ensure_overlap(promised.overlap_partitioned);
    pair.end(&server).await;
}
