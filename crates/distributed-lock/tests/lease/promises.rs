//! Settings and the numbers that come of them.

use std::{error::Error as _, sync::Arc, time::Duration};

use distributed_lock::{
    Bound, Capabilities, Expiry, Fairness, MemoryLocker,
    lease::{LeaseConfig, LeaseRunner},
};

use crate::support::{MS, Weaker, over, secs};

const NONE: Bound = Bound::Within(Duration::ZERO);

fn refusal(config: LeaseConfig) -> String {
    let refused = LeaseRunner::new(Arc::new(MemoryLocker::new()), config).unwrap_err();
    refused.source().unwrap().to_string()
}

#[test]
fn a_setting_that_breaks_its_rule_is_refused_with_its_name_and_the_numbers() {
    let config = LeaseConfig::new;
    assert_eq!(
        refusal(config().with_ttl(secs(6))),
        "invalid lease ttl (6s): two answers of 750ms + 100ms + grace 5s = 6.6s must be at most ttl 6s - 1 % - \
         margin 600ms = 5.34s; the smallest whole second that would do for this grace is 8s"
    );
    assert_eq!(
        refusal(config().with_retry_interval(Duration::ZERO)),
        "invalid retry interval (0ns): must be at least 1ms"
    );
    assert_eq!(refusal(config().with_max_term(Duration::ZERO)), "invalid max term (0ns): must be at least 1ms");
    assert_eq!(
        refusal(config().with_progress_deadline(Duration::ZERO)),
        "invalid progress deadline (0ns): must be at least 1ms"
    );
    assert_eq!(
        refusal(config().with_takeover_delay(secs(14))),
        "invalid takeover delay (14s): must be at least 18.1s, the detection bound 13.1s + the grace 5s, or it protects \
         nothing"
    );
    assert!(refusal(config().with_ttl(Duration::MAX)).starts_with("invalid ttl ("));
    let picky = Weaker::new(MemoryLocker::new(), |can| can.min_ttl = secs(30));
    let refused = LeaseRunner::new(Arc::new(picky), config()).unwrap_err();
    assert_eq!(
        refused.source().unwrap().to_string(),
        "invalid lease ttl (23s): this locker takes no TTL below 30s; the smallest whole second that would do for this grace \
         is 30s"
    );
}

#[test]
fn over_a_store_that_queues_and_ends_leases_itself() {
    let promised = over(MemoryLocker::new(), LeaseConfig::new()).guarantees();
    assert_eq!(promised.detection, MS * 13_100);
    assert_eq!([promised.overlap_ended, promised.overlap_frozen, promised.overlap_partitioned], [NONE; 3]);
    assert_eq!(promised.overlap_forgotten, Bound::Within(MS * 18_100));
    assert_eq!([promised.takeover_released, promised.takeover_killed], [NONE; 2]);
    let ttl = Bound::Within(MS * 23_100);
    assert_eq!([promised.takeover_frozen, promised.takeover_partitioned], [ttl; 2]);
    let line = promised.to_string();
    assert!(!line.contains('\n'));
    assert!(
        line.starts_with(
            "detection <= 13.1s, grace 5s, overlap: ended or killed <= 0ns, frozen <= 0ns, partitioned <= 0ns, store forgot it \
             <= 18.1s, takeover: released <= 0ns, killed <= 0ns, frozen <= 23.1s, partitioned <= 23.1s, cleanup: live <= \
             0ns, cut waiter <= 0ns, cut holder unbounded, standbys queue, fencing while the store lives"
        ),
        "{line}"
    );
}

/// A locker's numbers are for its own TTL, and a lease has another.
#[test]
fn what_a_locker_takes_beyond_its_ttl_comes_on_top_of_that_of_the_lease() {
    let fixed = Weaker::promising(MemoryLocker::new(), |promised| {
        promised.takeover_frozen = Bound::Within(MS * 22_100);
        promised.takeover_partitioned = promised.takeover_frozen;
        promised.cleanup.cut_holder = Bound::Within(MS * 17_500);
    });
    let promised = over(fixed, LeaseConfig::new()).guarantees();
    assert_eq!([promised.takeover_frozen, promised.takeover_partitioned], [Bound::Within(MS * 23_100); 2]);
    assert_eq!(promised.cleanup.cut_holder, Bound::Within(MS * 17_500));
    let for_17_s = Weaker::promising(MemoryLocker::new(), |promised| {
        promised.ttl = Some(secs(17));
        promised.takeover_frozen = Bound::Within(MS * 22_100);
        promised.takeover_partitioned = promised.takeover_frozen;
        promised.cleanup.cut_holder = Bound::Within(MS * 17_500);
    });
    let promised = over(for_17_s, LeaseConfig::new()).guarantees();
    assert_eq!([promised.takeover_frozen, promised.takeover_partitioned], [Bound::Within(MS * 28_100); 2]);
    assert_eq!(promised.cleanup.cut_holder, Bound::Within(MS * 23_500));
}

#[test]
fn pauses_of_standbys_and_the_takeover_delay_are_in_the_numbers() {
    let config = LeaseConfig::new().with_takeover_delay(secs(20)).with_retry_interval(secs(10));
    let promised =
        over(Weaker::new(MemoryLocker::new(), |can| can.fairness = Fairness::Unordered), config).guarantees();
    let pauses = secs(12 + 20);
    assert_eq!([promised.takeover_released, promised.takeover_killed], [Bound::Within(pauses); 2]);
    assert_eq!(promised.takeover_frozen, Bound::Within(pauses + MS * 23_100));
    assert_eq!(promised.overlap_forgotten, NONE);
    assert!(promised.to_string().contains("standbys poll"));
}

#[test]
fn standbys_that_are_woken_do_not_pause() {
    let change = |can: &mut Capabilities| (can.fairness, can.wakes) = (Fairness::Unordered, true);
    let promised = over(Weaker::new(MemoryLocker::new(), change), LeaseConfig::new()).guarantees();
    assert_eq!([promised.takeover_released, promised.takeover_killed], [NONE; 2]);
    assert!(promised.to_string().contains("standbys are woken"));
}

#[test]
fn over_a_store_that_ends_sessions_only_a_freeze_is_not_bounded_and_a_partition_by_detection_and_grace() {
    let promised =
        over(Weaker::new(MemoryLocker::new(), |can| can.expiry = Expiry::Session), LeaseConfig::new()).guarantees();
    assert_eq!([promised.overlap_frozen, promised.takeover_frozen], [Bound::Unbounded; 2]);
    assert_eq!(promised.overlap_partitioned, Bound::Within(MS * 18_100));
}
