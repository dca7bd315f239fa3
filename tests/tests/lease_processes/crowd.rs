//! Fifty jobs of one process under locks that share a session, and a hot standby for all of them.

use std::collections::BTreeSet;

use distributed_lock::LockKey;
use libtest_mimic::Trial;
use lock_postgres::KeyScheme;
use lock_testkit::wait_until;
use rustix::process::Signal;
use tests::lease::{
    AMPLE, Failure, clock, job,
    locker::LockerKind,
    process::{Ended, Event, Replica},
    settings::Settings,
    standbys::Line,
};

use crate::bench::{Bench, LONG, handed_over, limit, ms, trial};

pub(crate) fn trials(locker: LockerKind) -> Vec<Trial> {
    // A connection for each job and each waiter is what this is not.
    if locker == LockerKind::Postgres {
        return Vec::new();
    }
    vec![
        trial(locker, "crowd::fifty_jobs_of_a_killed_process_are_all_taken_over_at_once", killed),
        trial(locker, "crowd::fifty_jobs_of_a_process_that_gets_sigterm_are_all_handed_over_at_once", left),
        trial(locker, "crowd::fifty_jobs_whose_session_is_ended_are_all_told_and_taken_up_again", session_ended),
    ]
}

const JOBS: usize = 50;

const CROWD: Settings = Settings { jobs: JOBS, ..LONG };

/// Of each process: a lane, housekeeping, and while it stands by a session that waits for the end of the other's lane.
const SESSIONS: usize = 3;

async fn killed(bench: Bench) -> Result<(), Failure> {
    let (leader, mut standby) = pair(&bench).await?;
    let promised = bench.guarantees(CROWD)?;
    let (mark, at) = (bench.mark(), clock::now());
    leader.signal(Signal::KILL)?;
    let next = all_lead(&mut standby).await?;
    assert!(next.iter().all(|next| *next > at), "the standby led beside a leader that lived");
    let last = next.into_iter().max().ok_or("no jobs")?;
    bench.within(mark, last - at, limit(promised.takeover_killed), "all jobs of a killed leader are followed");
    few_sessions(&bench).await?;
    bench.over([leader, standby]).await
}

async fn left(bench: Bench) -> Result<(), Failure> {
    let (mut leader, mut standby) = pair(&bench).await?;
    let promised = bench.guarantees(CROWD)?;
    let mark = bench.mark();
    leader.signal(Signal::TERM)?;
    let (ended, next) = (all_end(&mut leader).await?, all_lead(&mut standby).await?);
    for (ended, next) in ended.iter().zip(&next) {
        handed_over(promised.overlap_ended, ended, *next);
    }
    let longest = ended.iter().zip(next).map(|(ended, next)| next - ended.at).max().ok_or("no jobs")?;
    bench.within(mark, longest, limit(promised.takeover_released), "each job of a leader that left is followed");
    let status = leader.exits().await?;
    assert!(status.success(), "{status}");
    assert_eq!(standby.said(), None);
    few_sessions(&bench).await?;
    bench.over([standby]).await
}

/// It is the unit of loss. Who takes which job up again is nobody's promise: both processes contend.
async fn session_ended(bench: Bench) -> Result<(), Failure> {
    let (mut leader, mut standby) = pair(&bench).await?;
    let promised = bench.guarantees(CROWD)?;
    let (mark, at) = (bench.mark(), clock::now());
    for holder in holders(&bench).await? {
        bench.server.observer().terminate(holder).await?;
    }
    let (mut lost, mut last_steps, mut next) = (vec![None; JOBS], vec![None; JOBS], vec![None; JOBS]);
    while last_steps.iter().any(Option::is_none) || next.iter().any(Option::is_none) {
        let (job, event) = tokio::select! {
            said = leader.next_of_all() => said?,
            said = standby.next_of_all() => said?,
        };
        match event {
            Event::Lost(loss) if lost[job].is_none() => lost[job] = Some(loss.at),
            Event::Ended { last_step, .. } if last_steps[job].is_none() => last_steps[job] = Some(last_step),
            Event::Leading { at } if next[job].is_none() => next[job] = Some(at),
            other => return Err(other.unexpected()),
        }
    }
    let told: Option<Vec<_>> = lost.into_iter().collect();
    let told = told.ok_or("a job was not told")?.into_iter().max().ok_or("no jobs")?;
    bench.within(mark, told - at, ms(100), "all jobs are told");
    let last = next.iter().copied().max().flatten().ok_or("no jobs")?;
    bench.within(mark, last - at, limit(promised.takeover_killed), "all jobs are taken up again");
    let overlaps = last_steps.into_iter().zip(next).filter_map(|(last_step, next)| Some(last_step? - next?));
    let overlap = overlaps.max().ok_or("no jobs")?;
    let bound = promised.overlap_forgotten;
    println!("overlap {:.1} ms, bound {bound}", clock::millis(overlap));
    assert!(overlap <= clock::nanos(limit(bound)), "two worked at a time for {:.1} ms", clock::millis(overlap));
    all_have_a_standby(&bench).await?;
    few_sessions(&bench).await?;
    bench.over([leader, standby]).await
}

/// One that leads all jobs, and one that stands by for all of them.
async fn pair(bench: &Bench) -> Result<(Replica, Replica), Failure> {
    let mut leader = bench.named_replica("leader", CROWD)?;
    all_lead(&mut leader).await?;
    let standby = bench.named_replica("standby", CROWD)?;
    all_have_a_standby(bench).await?;
    few_sessions(bench).await?;
    Ok((leader, standby))
}

fn ids() -> Result<Vec<i64>, Failure> {
    (0..JOBS).map(|number| Ok(KeyScheme::default().id(0, &LockKey::new(job(number))?))).collect()
}

async fn all_have_a_standby(bench: &Bench) -> Result<(), Failure> {
    let ids = ids()?;
    let waited = wait_until(AMPLE, "a holder and a standby of each job", async || {
        let locks = bench.server.observer().advisory_locks().await.unwrap_or_default();
        ids.iter().all(|id| Line::of(&locks, |key| key == *id).led_before(1).is_some())
    });
    Ok(waited.await?)
}

/// The sessions that hold the jobs' locks.
async fn holders(bench: &Bench) -> Result<BTreeSet<i32>, Failure> {
    let locks = bench.server.observer().key_locks().await?;
    Ok(locks.iter().filter(|lock| lock.granted).filter_map(|lock| lock.pid).collect())
}

/// However many jobs there are.
async fn few_sessions(bench: &Bench) -> Result<(), Failure> {
    let sessions = bench.server.observer().sessions().await?;
    for name in ["leader", "standby"] {
        let of_it = sessions.iter().filter_map(|session| session.application_name.as_deref());
        let of_it: Vec<_> = of_it.filter(|session| session.starts_with(name)).collect();
        println!("sessions: {of_it:?}");
        assert!(of_it.len() <= SESSIONS, "{} sessions: {of_it:?}", of_it.len());
    }
    Ok(())
}

/// When each job started, which must be all that it says.
async fn all_lead(replica: &mut Replica) -> Result<Vec<i64>, Failure> {
    let mut leads = vec![None; JOBS];
    while leads.iter().any(Option::is_none) {
        match replica.next_of_all().await? {
            (job, Event::Leading { at }) if leads[job].is_none() => leads[job] = Some(at),
            (job, other) => return Err(format!("unexpected of job {job}: {other:?}").into()),
        }
    }
    Ok(leads.into_iter().flatten().collect())
}

/// How each job ended, which must be all that it says.
async fn all_end(replica: &mut Replica) -> Result<Vec<Ended>, Failure> {
    let (mut lost, mut ends) = (vec![None; JOBS], vec![None; JOBS]);
    while ends.iter().any(Option::is_none) {
        match replica.next_of_all().await? {
            (job, Event::Lost(loss)) if lost[job].is_none() => lost[job] = Some(loss),
            (job, Event::Ended { at, last_step, polled }) if ends[job].is_none() => {
                ends[job] = Some(Ended { at, last_step, polled, lost: lost[job] });
            }
            (job, other) => return Err(format!("unexpected of job {job}: {other:?}").into()),
        }
    }
    Ok(ends.into_iter().flatten().collect())
}
