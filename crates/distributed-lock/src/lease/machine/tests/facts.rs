//! Single steps that random histories over the in-memory backend do not tell apart.

use std::time::Duration;

use super::super::{Action, At, Exit, Input, JobEnd, Machine, Patience, Reason, Rules};
use crate::{Clock, TokioClock};

const SECOND: Duration = Duration::from_secs(1);

fn machine() -> (Machine, At) {
    let rules = Rules {
        patience: Patience { heartbeat: SECOND * 3, answer: SECOND * 5 },
        grace: SECOND * 5,
        retry: SECOND,
        max_term: None,
        progress_deadline: None,
        takeover_delay: None,
        queues: true,
    };
    // An hour in, so that there is a past.
    let at = At { now: TokioClock.now() + SECOND * 3_600, left: Some(SECOND * 20) };
    (Machine::new(rules, at.now), at)
}

#[test]
fn a_value_after_a_loss_is_no_finish_though_nobody_else_came_in_between() {
    for (lost, next) in [(true, Action::Acquire { ask: false }), (false, Action::Exit(Exit::Finished))] {
        let (mut machine, at) = machine();
        assert_eq!(machine.step(at, Input::Granted { proof: at.now }), Action::Start);
        let at = At { now: at.now + SECOND * 2, ..at };
        assert_eq!(machine.step(at, Input::JobEnded { end: JobEnd::Ok, lost }), Action::Release);
        assert_eq!(machine.step(at, Input::Released { lost: false }), next);
    }
}

#[test]
fn a_grant_whose_proof_is_old_or_whose_hold_is_nearly_over_starts_no_job() {
    for (age, left, wanted) in [
        (Duration::ZERO, SECOND * 20, Action::Start),
        (SECOND * 11, SECOND * 20, Action::Release),
        (Duration::ZERO, SECOND * 5, Action::Release),
    ] {
        let (mut machine, at) = machine();
        let at = At { left: Some(left), ..at };
        assert_eq!(machine.step(at, Input::Granted { proof: at.now - age }), wanted);
    }
}

#[test]
fn answers_that_each_take_nearly_as_long_as_they_may_are_no_loss_and_one_that_takes_longer_is() {
    let ms = Duration::from_millis;
    let (mut machine, start) = machine();
    let at = |offset| At { now: start.now + offset, ..start };
    assert_eq!(machine.step(start, Input::Granted { proof: start.now }), Action::Start);
    let (mut sent, mut answered) = (SECOND * 3, SECOND * 8);
    for _ in 0..20 {
        assert_eq!(machine.step(at(answered - ms(1)), Input::Time), Action::Wait);
        assert_eq!(machine.step(at(answered), Input::Confirmed { sent: at(sent).now }), Action::Wait);
        (sent, answered) = (answered, answered + SECOND * 5);
    }
    let due = sent + SECOND * 5 + ms(100);
    assert_eq!(machine.wake_at(), Some(at(due).now));
    // An older answer that comes late changes nothing.
    assert_eq!(machine.step(at(due - ms(1)), Input::Confirmed { sent: at(sent - SECOND * 5).now }), Action::Wait);
    assert_eq!(machine.step(at(due), Input::Time), Action::Cancel(Reason::Unconfirmed));
}

#[test]
fn a_process_that_stood_still_looks_for_the_answer_once_more() {
    let ms = Duration::from_millis;
    for answered in [true, false] {
        let (mut machine, start) = machine();
        let at = |offset| At { now: start.now + offset, ..start };
        assert_eq!(machine.step(start, Input::Granted { proof: start.now }), Action::Start);
        let woken = SECOND * 9;
        assert!(machine.wake_at().is_some_and(|due| due < at(woken).now));
        assert_eq!(machine.step(at(woken), Input::Time), Action::Wait);
        assert_eq!(machine.wake_at(), Some(at(woken + ms(25)).now));
        if answered {
            assert_eq!(machine.step(at(woken + ms(1)), Input::Confirmed { sent: at(SECOND * 3).now }), Action::Wait);
            // D after its send, since it is as old as it is.
            assert_eq!(machine.wake_at(), Some(at(SECOND * 3 + ms(10_100)).now));
        } else {
            assert_eq!(machine.step(at(woken + ms(25)), Input::Time), Action::Cancel(Reason::Unconfirmed));
        }
    }
}
