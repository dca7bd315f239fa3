//! Healthy leaders under watchdogs that never pause.

use libtest_mimic::Trial;
use lock_testkit::requirement;
use tests::lease::{Failure, clock, locker::LockerKind, settings::Settings};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_postgres::NoTls;

use crate::{
    bench::{Bench, SHORT, handed_over, ms, trial},
    spinning::{Statements, spin},
};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    let mut trials = vec![trial(
        locker,
        "watched::leaders_granted_after_a_wait_longer_than_t_survive_three_watchdogs_that_spin",
        |bench| healthy(bench, SHORT),
    )];
    // The session's own T is 2 s: each term lengthens it after its grant. A lane has the T of its leases.
    if locker == LockerKind::Postgres {
        trials.push(trial(
            locker,
            "watched::leaders_that_lengthen_their_session_s_t_survive_three_watchdogs_that_spin",
            |bench| healthy(bench, Settings { ttl: ms(3_000), ..SHORT }),
        ));
    }
    trials
}

/// Each leads for longer than T, so that the next one has waited for so long when it gets its turn.
async fn healthy(bench: Bench, settings: Settings) -> Result<(), Failure> {
    let promised = bench.guarantees(settings)?;
    let (mut leader, mut standby) = bench.pair(settings).await?;
    let terms = u32::try_from(requirement::rounds(2))?;
    let term = settings.ttl + ms(400);
    let until = Instant::now() + term * terms;
    let mut spinners = JoinSet::new();
    for _ in 0..3 {
        let (client, connection) = bench.admin.connect(NoTls).await?;
        tokio::spawn(connection);
        let id = bench.server.id();
        spinners.spawn(async move { spin(&client, &[id], &Statements::ours(), until).await });
    }
    for _ in 0..terms {
        sleep(term).await;
        assert_eq!((leader.said(), standby.said()), (None, None));
        let stopped = clock::now();
        leader.order("stop")?;
        let (ended, next) = (leader.ends().await?, standby.leads().await?);
        assert!(ended.last_step + clock::nanos(ms(1_000)) > stopped, "it had not worked for long: {ended:?}");
        handed_over(promised.overlap_ended, &ended, next);
        bench.server.has_a_standby().await?;
        std::mem::swap(&mut leader, &mut standby);
    }
    let spun = spinners.join_all().await;
    println!("rounds and ended of each: {spun:?}");
    assert!(spun.iter().all(|(rounds, ended)| *rounds > 100 && *ended == 0), "{spun:?}");
    bench.over([leader, standby]).await
}
