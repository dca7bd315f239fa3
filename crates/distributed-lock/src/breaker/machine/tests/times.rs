//! How long it looks back, and how long it stays open.

use super::{config, ms, open, opened, pass, probe, secs, start};
use crate::breaker::{
    BreakerConfig, BreakerCounts, BreakerState,
    machine::{Admission, Change, Machine, Why},
    outcome::Outcome,
};

/// As if all of them came now.
fn after(outcomes: &[Outcome], config: BreakerConfig) -> BreakerState {
    let now = start();
    let mut machine = Machine::new(config, 1, now);
    for outcome in outcomes {
        if machine.state() == BreakerState::Closed {
            let generation = pass(&mut machine, now);
            machine.settle(generation, *outcome, now);
        }
    }
    machine.state()
}

#[test]
fn it_opens_at_the_rate_and_the_minimum_and_not_below_either() {
    use BreakerState::{Closed, Open};
    use Outcome::{Answered, Failure, Success, Unasked};
    let table: &[(u8, u32, &[Outcome], BreakerState)] = &[
        (50, 4, &[Failure, Failure, Failure], Closed),
        (50, 4, &[Failure, Failure, Failure, Failure], Open),
        (50, 4, &[Success, Success, Failure, Failure], Open),
        (50, 4, &[Success, Success, Success, Failure, Failure], Closed),
        (51, 4, &[Success, Success, Failure, Failure], Closed),
        (100, 2, &[Success, Failure, Failure, Failure], Closed),
        (100, 2, &[Failure, Failure], Open),
        (1, 1, &[Failure], Open),
        (1, 100, &[Failure; 99], Closed),
        // What is neutral fills no minimum and thins no rate.
        (50, 2, &[Answered, Answered, Unasked, Failure], Closed),
        (100, 2, &[Answered, Answered, Unasked, Failure, Failure], Open),
        (100, 2, &[Answered; 1000], Closed),
        (100, 2, &[Unasked; 1000], Closed),
    ];
    for (rate, samples, outcomes, state) in table {
        let config = BreakerConfig::new().with_error_rate(*rate).with_min_samples(*samples);
        assert_eq!(after(outcomes, config), *state, "{rate} % of {samples}: {outcomes:?}");
    }
}

#[test]
fn failures_older_than_the_window_are_forgotten() {
    for (gap, state) in [(ms(8_999), BreakerState::Open), (secs(10), BreakerState::Closed)] {
        let now = start();
        let mut machine = Machine::new(config(), 1, now);
        for at in [now, now + gap] {
            let generation = pass(&mut machine, at);
            machine.settle(generation, Outcome::Failure, at);
        }
        assert_eq!(machine.state(), state, "{gap:?}");
    }
}

#[test]
fn silence_is_a_failure_once_nobody_was_answered_within_the_window() {
    use Outcome::{Answered, Silent, Success};
    for answer in [Answered, Success] {
        let now = start();
        let mut machine = Machine::new(config().with_error_rate(100), 1, now);
        let generation = pass(&mut machine, now);
        machine.settle(generation, answer, now);
        for at in [ms(1), ms(5_000), ms(9_999)] {
            let generation = pass(&mut machine, now + at);
            machine.settle(generation, Silent, now + at);
            assert_eq!(machine.state(), BreakerState::Closed, "{answer:?} {at:?}");
        }
        let late = now + secs(10);
        machine.settle(generation, Silent, late);
        assert_eq!(machine.state(), BreakerState::Open, "{answer:?}");
        let why = Why::Failures { failures: 3, samples: 3 };
        assert!(matches!(machine.take_change(), Some(Change::Opened { why: seen, .. }) if seen == why), "{answer:?}");
    }
    assert_eq!(after(&[Silent, Silent], config()), BreakerState::Open, "nobody was ever answered");
}

#[test]
fn a_ping_that_is_answered_keeps_silence_from_being_a_failure() {
    let now = start();
    let mut machine = Machine::new(config(), 1, now);
    let generation = pass(&mut machine, now);
    machine.settle(generation, Outcome::Silent, now);
    assert!(matches!(machine.admit(&|| now), Admission::Pass { ping: true, .. }));
    machine.pinged(generation, Some(true), now);
    for step in 1..20 {
        let at = now + ms(200 * step);
        assert!(matches!(machine.admit(&|| at), Admission::Pass { ping: false, .. }), "{step}");
        machine.settle(generation, Outcome::Silent, at);
    }
    assert_eq!(machine.state(), BreakerState::Closed);
    // The next one is due when nothing was heard for half the window, long before the silence would count.
    assert!(matches!(machine.admit(&|| now + ms(4_999)), Admission::Pass { ping: false, .. }));
    assert!(matches!(machine.admit(&|| now + secs(5)), Admission::Pass { ping: true, .. }));
}

/// A ping has its own timeout: one that outlives it is on a runtime that does not run.
#[test]
fn probe_that_is_overdue_is_a_failed_one_and_another_follows_it() {
    let now = start();
    let mut machine = Machine::new(config(), 1, now);
    let due = now + open(&mut machine, now);
    probe(&mut machine, due);
    let (first, limit) = (machine.ping_number(), due + config().probe_timeout + super::super::OVERDUE);
    assert!(matches!(machine.admit(&|| limit - ms(1)), Admission::Refused { .. }));
    assert_eq!(machine.state(), BreakerState::HalfOpen);
    let Admission::Refused { retry_after } = machine.admit(&|| limit) else { panic!("the old ping still counts") };
    assert_eq!((machine.state(), opened(&mut machine) >= ms(1)), (BreakerState::Open, true));
    probe(&mut machine, limit + retry_after);
    assert_ne!(machine.ping_number(), first, "the late end of the first would be taken for that of the second");
}

#[test]
fn ping_that_went_along_and_is_overdue_keeps_no_probe_back() {
    let now = start();
    let mut machine = Machine::new(config(), 1, now);
    let generation = pass(&mut machine, now);
    machine.settle(generation, Outcome::Silent, now);
    assert!(matches!(machine.admit(&|| now), Admission::Pass { ping: true, .. }));
    while machine.state() == BreakerState::Closed {
        machine.settle(generation, Outcome::Failure, now);
    }
    probe(&mut machine, now + config().probe_timeout + super::super::OVERDUE + config().open_time);
}

#[test]
fn no_ping_goes_out_while_calls_are_answered() {
    let now = start();
    let mut machine = Machine::new(config(), 1, now);
    for step in 0..100 {
        let at = now + ms(300 * step);
        assert!(matches!(machine.admit(&|| at), Admission::Pass { ping: false, .. }));
        machine.settle(machine.generation, Outcome::Answered, at);
    }
}

#[test]
fn each_opening_doubles_the_time_up_to_the_cap_less_half_of_it_at_most() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let now = start();
        let mut machine = Machine::new(config().with_max_open_time(secs(7)), seed, now);
        let mut now = now + secs(100);
        let mut time = open(&mut machine, now);
        for full in [500, 1_000, 2_000, 4_000, 7_000, 7_000, 7_000] {
            assert!((ms(full / 2)..=ms(full)).contains(&time), "seed {seed}: {time:?} of {full} ms");
            seen.insert(time);
            now += time;
            let generation = probe(&mut machine, now);
            machine.pinged(generation, Some(false), now);
            time = opened(&mut machine);
        }
    }
    assert!(seen.len() > 1_000, "by chance");
}

#[test]
fn the_time_goes_on_growing_until_it_was_closed_for_a_whole_window() {
    for (closed, times) in [(ms(9_999), 1_000), (secs(10), 500)] {
        let mut now = start();
        let mut machine = Machine::new(config(), 7, now);
        now += open(&mut machine, now);
        let generation = probe(&mut machine, now);
        machine.pinged(generation, Some(true), now);
        machine.take_change();
        now += closed;
        let time = open(&mut machine, now);
        assert!((ms(times / 2)..=ms(times)).contains(&time), "closed for {closed:?}: {time:?}");
    }
}

#[test]
fn any_number_of_openings_and_the_longest_times_do_not_overflow() {
    let day = secs(24 * 60 * 60);
    let config = config().with_open_time(day).with_max_open_time(day).with_probe_timeout(day);
    let mut now = start();
    let mut machine = Machine::new(config, 1, now);
    now += open(&mut machine, now);
    for _ in 0..100 {
        let generation = probe(&mut machine, now);
        machine.pinged(generation, Some(false), now);
        let time = opened(&mut machine);
        assert!((day / 2..=day).contains(&time));
        now += time;
    }
    machine.openings = u32::MAX;
    let generation = probe(&mut machine, now);
    machine.pinged(generation, Some(false), now);
    assert!(opened(&mut machine) <= day);
}

#[test]
fn every_change_and_every_refusal_is_counted() {
    let mut now = start();
    let mut machine = Machine::new(config(), 1, now);
    now += open(&mut machine, now) / 2;
    for _ in 0..3 {
        assert!(matches!(machine.admit(&|| now), Admission::Refused { .. }));
    }
    now += secs(1);
    let generation = probe(&mut machine, now);
    machine.pinged(generation, None, now);
    let generation = probe(&mut machine, now);
    machine.pinged(generation, Some(false), now);
    now += opened(&mut machine);
    let generation = probe(&mut machine, now);
    machine.pinged(generation, Some(true), now);
    let counted = BreakerCounts { opened: 2, half_opened: 2, closed: 1, refused: 3 };
    assert_eq!(machine.counts(), counted);
}

#[test]
fn changes_are_said_in_words() {
    let opened = |why| Change::Opened { time: ms(480), why };
    let table = [
        (opened(Why::Failures { failures: 6, samples: 10 }), "open for 480.0ms: 6 of 10 calls failed within 10s"),
        (opened(Why::Probe), "open for 480.0ms: the ping that probed the store failed"),
        (Change::HalfOpened, "half-open: the store is probed by a ping"),
        (Change::Closed, "closed: the store answered the ping"),
    ];
    for (change, words) in table {
        assert_eq!(change.to_string(), words);
    }
}
