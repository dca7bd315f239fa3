//! Every state with every input, one row each.

use std::{collections::BTreeSet, time::Instant};

use super::{OUTCOMES, config, ms, open, opened, pass, probe, secs, start};
use crate::breaker::{
    BreakerState::{self, Closed, HalfOpen, Open},
    machine::{Admission, Generation, Machine},
    outcome::Outcome,
};

/// Where a row begins.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum At {
    /// Closed, and nothing went wrong yet.
    Well,
    /// Closed, one failure before it opens.
    Edge,
    /// Closed, one silent call seen, nothing heard: a ping is due.
    Quiet,
    /// The same, with the ping under way.
    Pinging,
    /// The open time runs.
    Opened,
    /// The open time is over.
    Due,
    /// Half-open, the probe under way.
    Probing,
    /// Half-open, the probe was given up.
    ProbeGone,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Input {
    Admit,
    /// A result, by its place in [`OUTCOMES`], of a call of this state or of one of an older state.
    Settle {
        outcome: usize,
        late: bool,
    },
    /// What the ping said; `late` if it began in an older state.
    Pinged {
        well: Option<bool>,
        late: bool,
    },
}

const PLACES: [At; 8] = [At::Well, At::Edge, At::Quiet, At::Pinging, At::Opened, At::Due, At::Probing, At::ProbeGone];

fn inputs() -> Vec<Input> {
    let mut inputs = vec![Input::Admit];
    for late in [false, true] {
        inputs.extend((0..OUTCOMES.len()).map(|outcome| Input::Settle { outcome, late }));
        inputs.extend([None, Some(false), Some(true)].map(|well| Input::Pinged { well, late }));
    }
    inputs
}

/// The machine there, the time, and a generation that is over.
fn machine_at(at: At) -> (Machine, Instant, Generation) {
    let now = start();
    let mut machine = Machine::new(config(), 1, now);
    let old = pass(&mut machine, now);
    // Once around, so that there is an older state.
    let time = open(&mut machine, now);
    let probed = probe(&mut machine, now + time);
    machine.pinged(probed, Some(true), now + time);
    let now = now + time + secs(60);
    let generation = pass(&mut machine, now);
    match at {
        At::Well => {}
        At::Edge => machine.settle(generation, Outcome::Failure, now),
        At::Quiet => machine.settle(generation, Outcome::Silent, now),
        At::Pinging => {
            machine.settle(generation, Outcome::Silent, now);
            assert!(matches!(machine.admit(&|| now), Admission::Pass { ping: true, .. }));
        }
        At::Opened => drop(open(&mut machine, now)),
        At::Due | At::Probing | At::ProbeGone => {
            let time = open(&mut machine, now);
            let now = now + time;
            if at != At::Due {
                let probed = probe(&mut machine, now);
                if at == At::ProbeGone {
                    machine.pinged(probed, None, now);
                }
            }
            machine.take_change();
            return (machine, now, old);
        }
    }
    machine.take_change();
    (machine, now, old)
}

/// What is to come of it.
fn expected(at: At, input: Input) -> BreakerState {
    let before = match at {
        At::Well | At::Edge | At::Quiet | At::Pinging => Closed,
        At::Opened | At::Due => Open,
        At::Probing | At::ProbeGone => HalfOpen,
    };
    match (at, input) {
        // One more call went wrong: the second of the two that decide.
        (At::Edge, Input::Settle { outcome: 1 | 2, late: false }) => Open,
        (At::Quiet | At::Pinging, Input::Settle { outcome: 1 | 2, late: false }) => Open,
        // A ping that fails beside calls is a failure like any other.
        (At::Edge | At::Quiet | At::Pinging, Input::Pinged { well: Some(false), late: false }) => Open,
        (At::Due, Input::Admit) => HalfOpen,
        (At::Probing | At::ProbeGone, Input::Pinged { well: Some(true), late: false }) => Closed,
        (At::Probing | At::ProbeGone, Input::Pinged { well: Some(false), late: false }) => Open,
        _ => before,
    }
}

#[test]
fn every_state_meets_every_input_as_the_table_says() {
    let mut seen = BTreeSet::new();
    for at in PLACES {
        for input in inputs() {
            let (mut machine, now, old) = machine_at(at);
            let (generation, before) = (machine.generation, machine.state());
            let tag = |late| if late { old } else { generation };
            match input {
                Input::Admit => drop(machine.admit(&|| now)),
                Input::Settle { outcome, late } => machine.settle(tag(late), OUTCOMES[outcome], now),
                Input::Pinged { well, late } => machine.pinged(tag(late), well, now),
            }
            let wanted = expected(at, input);
            assert_eq!(machine.state(), wanted, "{at:?} {input:?}");
            let changed = before != wanted;
            assert_eq!(machine.generation != generation, changed, "{at:?} {input:?}: a generation for each change");
            assert_eq!(machine.take_change().is_some(), changed, "{at:?} {input:?}");
            seen.insert((at, input));
        }
    }
    assert_eq!(seen.len(), PLACES.len() * 17);
}

#[test]
fn calls_are_let_in_while_closed_refused_while_open_and_one_of_them_probes_after_that() {
    for at in PLACES {
        let (mut machine, now, _) = machine_at(at);
        let pinged_before = machine.ping_until.is_some();
        let (admission, refused) = (machine.admit(&|| now), machine.counts().refused);
        let fits = match at {
            At::Well | At::Edge | At::Pinging => matches!(admission, Admission::Pass { ping: false, .. }),
            At::Quiet => matches!(admission, Admission::Pass { ping: true, .. }),
            At::Opened => {
                matches!(admission, Admission::Refused { retry_after } if (ms(250)..=ms(500)).contains(&retry_after))
            }
            At::Probing => admission == Admission::Refused { retry_after: secs(2) },
            At::Due | At::ProbeGone => matches!(admission, Admission::Probe { .. }),
        };
        assert!(fits, "{at:?}: {admission:?}");
        assert_eq!(refused, u64::from(matches!(admission, Admission::Refused { .. })), "{at:?}");
        // Whoever comes next begins no second ping.
        let second = machine.admit(&|| now);
        let pinging =
            pinged_before || matches!(admission, Admission::Probe { .. } | Admission::Pass { ping: true, .. });
        let begins = matches!(second, Admission::Probe { .. } | Admission::Pass { ping: true, .. });
        assert!(!(pinging && begins), "{at:?}: a second ping");
    }
}

/// The one that was begun beside calls may still be under way when the open time is over.
#[test]
fn a_ping_of_before_holds_the_probe_up_and_says_nothing() {
    let (mut machine, now, _) = machine_at(At::Pinging);
    let before = machine.generation;
    machine.settle(before, Outcome::Failure, now);
    let due = now + opened(&mut machine);
    assert_eq!(machine.admit(&|| due), Admission::Refused { retry_after: secs(2) - due.duration_since(now) });
    assert_eq!(machine.state(), Open);
    machine.pinged(before, Some(true), due);
    assert_eq!(machine.state(), Open);
    probe(&mut machine, due);
}
