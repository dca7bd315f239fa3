use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A fixed sequence (xorshift), so that a failure comes back.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    /// Spread over the sizes rather than over the values: from nanoseconds to some 100 days.
    fn duration(&mut self) -> Duration {
        let size = 10_u64.pow(u32::try_from(self.below(17)).unwrap());
        Duration::from_nanos(self.below(size * 10))
    }

    fn maybe(&mut self) -> Option<Duration> {
        (self.below(2) == 0).then(|| self.duration())
    }
}

/// Any instant serves: the code under test only adds to it.
fn sent() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[test]
fn the_defaults_of_an_until_released_hold_give_17_seconds() {
    let timing = Timing::for_session(None, None, None).unwrap();
    assert_eq!(timing.ttl(), 17 * SECOND);
    assert_eq!(timing.heartbeat(), 5 * SECOND);
    assert_eq!(timing.query_timeout(), 10 * SECOND);
    assert_eq!(timing.margin(), millis(1_700));
    assert_eq!(timing.detection(), millis(15_100));
    assert_eq!(timing.max_grace(), millis(30));
    assert_eq!(timing.waiter_idle(), millis(4_250));
    assert!(Timing::for_session(None, None, Some(millis(16_900))).is_err());
}

#[test]
fn the_defaults_with_a_grace_of_5_seconds_need_23_seconds() {
    let grace_of = |seconds| Timing::for_session(None, None, Some(seconds * SECOND)).unwrap().max_grace();
    assert!(grace_of(22) < 5 * SECOND);
    assert!(grace_of(23) >= 5 * SECOND);
}

#[test]
fn the_smallest_ttl_derives_an_eighth_and_a_half_of_it() {
    let timing = Timing::for_ttl(MIN_TTL, None, None).unwrap();
    assert_eq!((timing.heartbeat(), timing.query_timeout(), timing.margin()), (millis(125), millis(500), millis(250)));
    assert_eq!(timing.detection(), millis(725));
    assert_eq!(timing.max_grace(), millis(390));
    assert_eq!(timing.waiter_idle(), SECOND);
    let at = sent();
    assert_eq!(timing.deadline(at, MIN_TTL), at + millis(740));
    assert_eq!(timing.ttl(), SECOND);
}

#[test]
fn a_long_ttl_derives_the_defaults_and_a_set_time_is_kept() {
    let timing = Timing::for_ttl(60 * SECOND, None, None).unwrap();
    assert_eq!((timing.heartbeat(), timing.query_timeout()), (5 * SECOND, 10 * SECOND));
    assert_eq!(timing.max_grace(), millis(60_000 - 600 - 6_000 - 5_000 - 7_500 - 100));
    let timing = Timing::for_ttl(60 * SECOND, Some(SECOND), Some(2 * SECOND)).unwrap();
    assert_eq!((timing.heartbeat(), timing.query_timeout()), (SECOND, 2 * SECOND));
    assert_eq!(timing.max_grace(), millis(60_000 - 600 - 6_000 - 1_000 - 2_000 - 100));
}

#[test]
fn while_a_heartbeat_is_unanswered_the_next_is_an_eighth_of_the_query_timeout_away_at_least() {
    let timing = |heartbeat| Timing::for_ttl(20 * SECOND, Some(heartbeat), Some(8 * SECOND));
    for (heartbeat, next) in [(millis(10), SECOND), (SECOND, SECOND), (millis(1_500), millis(1_500))] {
        let timing = timing(heartbeat).unwrap();
        assert_eq!((timing.heartbeat(), timing.heartbeat_unanswered()), (heartbeat, next));
        assert_eq!(timing.detection(), next + 8 * SECOND + DELTA);
    }
    let refused = Timing::for_ttl(10 * SECOND, Some(millis(10)), Some(8 * SECOND)).unwrap_err().to_string();
    let sum = "heartbeat_interval 10ms, 1s while one is unanswered, + query_timeout 8s + 100ms = 9.1s";
    assert!(refused.contains(sum), "{refused}");
}

/// With the formula written out anew, in whole nanoseconds.
#[test]
fn whatever_is_accepted_meets_the_constraint_and_ends_before_the_server_lets_others_in() {
    let (mut numbers, mut accepted) = (Numbers(0x5eed), 0);
    for _ in 0..100_000 {
        let (ttl, heartbeat, query_timeout) = (numbers.duration(), numbers.maybe(), numbers.maybe());
        let derived = Timing::for_ttl(ttl, heartbeat, query_timeout);
        let session = Timing::for_session(heartbeat, query_timeout, (numbers.below(2) == 0).then_some(ttl));
        for timing in [derived, session].into_iter().flatten() {
            accepted += 1;
            assert!(heartbeat.is_none_or(|set| set == timing.heartbeat()));
            assert!(query_timeout.is_none_or(|set| set == timing.query_timeout()));
            assert!((MIN_TTL..=MAX_TTL + millis(1)).contains(&timing.ttl()), "{timing:?}");
            let t = timing.ttl().as_nanos();
            let margin = (t / 10).max(250_000_000);
            let need = max(timing.heartbeat(), timing.query_timeout() / 8).as_nanos()
                + timing.query_timeout().as_nanos()
                + 100_000_000;
            assert!(need + margin <= t - t / 100, "{timing:?}");
            let shortest = if query_timeout.is_none() { timing.ttl() / 8 } else { timing.query_timeout() };
            let shortest = min(shortest, timing.query_timeout());
            let least = max(timing.heartbeat(), shortest / 8) + shortest + timing.max_grace() + DELTA;
            assert!(least.as_nanos() + margin <= t - t / 100, "{timing:?}");

            let at = sent();
            let server_ttl = millis(u64::try_from(server_millis(timing.ttl())).unwrap());
            assert!(server_ttl <= timing.ttl());
            assert!(at < timing.deadline(at, server_ttl) && timing.deadline(at, server_ttl) < (at + timing.ttl()));
            assert!(timing.deadline(at, server_ttl) + timing.margin() <= at + server_ttl);
            let left = min(numbers.duration(), timing.ttl());
            let deadline = timing.deadline(at, left);
            assert!(deadline == at || deadline + timing.margin() <= at + left, "{timing:?} {left:?}");
        }
    }
    assert!(accepted > 20_000, "only {accepted} of 200,000 were accepted, so this tested little");
}

#[test]
fn any_ttl_from_the_smallest_to_the_largest_is_accepted_with_derived_times() {
    let mut numbers = Numbers(0xdeed);
    for _ in 0..100_000 {
        let ttl = numbers.duration().clamp(MIN_TTL, MAX_TTL);
        assert!(Timing::for_ttl(ttl, None, None).is_ok(), "{ttl:?}");
    }
}

#[test]
fn the_session_ttl_chosen_is_the_smallest_whole_second() {
    let mut numbers = Numbers(0xfeed);
    for _ in 0..10_000 {
        let (heartbeat, query_timeout) = (numbers.maybe(), numbers.maybe());
        let Ok(timing) = Timing::for_session(heartbeat, query_timeout, None) else { continue };
        if timing.ttl() == MAX_TTL {
            continue;
        }
        assert_eq!(timing.ttl().subsec_nanos(), 0);
        let shorter = timing.ttl() - SECOND;
        assert!(Timing::for_session(heartbeat, query_timeout, Some(shorter)).is_err(), "{timing:?}");
    }
}

#[test]
fn a_violated_constraint_shows_its_numbers_and_what_would_do() {
    let refused = Timing::for_session(None, None, Some(10 * SECOND)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "invalid session_ttl (10s): heartbeat_interval 5s + query_timeout 10s + 100ms = 15.1s must be at most \
         session_ttl 10s - 1 % - margin 1s = 8.9s; a session_ttl of 17s would do, or shorter times"
    );
    let refused = Timing::for_ttl(2 * SECOND, Some(SECOND), None).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "invalid ttl (2s): heartbeat_interval 1s + query_timeout 1s + 100ms = 2.1s must be at most \
         ttl 2s - 1 % - margin 250ms = 1.73s; a ttl of 3s would do, or shorter times"
    );
    assert!(Timing::for_ttl(3 * SECOND, Some(SECOND), None).is_ok());
    let refused = Timing::for_session(Some(MAX_TTL), None, None).unwrap_err().to_string();
    assert!(refused.contains("no session_ttl would do"), "{refused}");
}

#[test]
fn a_time_out_of_range_is_refused_with_the_rule() {
    let text = |result: Result<Timing, InvalidInput>| result.unwrap_err().to_string();
    assert_eq!(
        text(Timing::for_ttl(millis(999), None, None)),
        "invalid ttl (999ms): must be at least 1s, so that a margin and a heartbeat fit"
    );
    assert_eq!(
        text(Timing::for_ttl(MAX_TTL + millis(1), None, None)),
        "invalid ttl (2147483.648s): must be at most 2147483.647s (24 days), the longest timeout that PostgreSQL has"
    );
    assert!(text(Timing::for_session(None, None, Some(Duration::MAX))).starts_with("invalid session_ttl ("));
    assert_eq!(
        text(Timing::for_ttl(SECOND, Some(Duration::ZERO), None)),
        "invalid heartbeat_interval (0ns): must be at least 1ms"
    );
    assert!(text(Timing::for_session(None, Some(millis(0)), None)).starts_with("invalid query_timeout (0ns)"));
    assert!(text(Timing::for_session(Some(Duration::MAX), Some(Duration::MAX), None)).contains("no session_ttl"));
}

#[test]
fn the_server_is_told_whole_milliseconds_rounded_down_but_never_zero() {
    assert_eq!(server_millis(Duration::ZERO), 1);
    assert_eq!(server_millis(Duration::from_micros(1_999)), 1);
    assert_eq!(server_millis(millis(2)), 2);
    assert_eq!(server_millis(MAX_TTL), i32::MAX);
    assert_eq!(server_millis(Duration::MAX), i32::MAX);
}

#[test]
fn a_short_wait_rounds_up_and_only_one_without_a_usable_limit_is_for_ever() {
    assert_eq!(lock_timeout_text(None), "0");
    assert_eq!(lock_timeout_text(Some(Duration::ZERO)), "1");
    assert_eq!(lock_timeout_text(Some(Duration::from_nanos(1))), "1");
    assert_eq!(lock_timeout_text(Some(Duration::from_micros(1_001))), "2");
    assert_eq!(lock_timeout_text(Some(millis(300))), "300");
    assert_eq!(lock_timeout_text(Some(MAX_TTL)), "2147483647");
    assert_eq!(lock_timeout_text(Some(MAX_TTL + Duration::from_nanos(1))), "0");
    assert_eq!(lock_timeout_text(Some(Duration::MAX)), "0");
}

#[test]
fn a_deadline_is_never_before_the_send_whatever_is_left() {
    let (timing, at) = (Timing::for_ttl(2 * SECOND, None, None).unwrap(), sent());
    assert_eq!(timing.deadline(at, Duration::ZERO), at);
    assert_eq!(timing.deadline(at, timing.margin()), at);
    assert_eq!(timing.deadline(at, Duration::MAX), at);
    assert_eq!(timing.deadline(at, SECOND), at + millis(740));
}
