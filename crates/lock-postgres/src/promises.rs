//! What the lockers of this crate can do and promise, from their live settings.

use std::time::Duration;

use distributed_lock::{Bound, Capabilities, Cleanup, Expiry, Fairness, FencingStrength, Guarantees, Reach, World};

use crate::{
    core::CHECK_INTERVAL,
    timing::{MIN_TTL, Timing},
    watchdog::{self, Watched},
};

/// How promptly the server acts on the end of a connection or of a timer, the network's own delay excluded.
const PROMPTLY: Duration = Duration::from_millis(100);

/// `hand_over`: whether its holders hear that they are asked to step down.
pub(crate) fn capabilities(hand_over: bool) -> Capabilities {
    let mut capabilities = Capabilities::new(Expiry::Store, Reach::Store);
    capabilities.fairness = Fairness::Fifo;
    capabilities.fencing = FencingStrength::Durable;
    capabilities.until_released = true;
    capabilities.step_down = hand_over;
    capabilities.early_notice = true;
    capabilities.min_ttl = MIN_TTL;
    capabilities
}

/// For holds until released, with the lease of the session, on connections of our own, or of the user's pool: then nobody watches.
pub(crate) fn guarantees(session: &Timing, world: Option<World>, watched: Option<Watched>) -> Guarantees {
    let ttl = session.ttl();
    let borrowed = watched.is_none();
    let mut cleanup = Cleanup::NONE;
    // The socket of a borrowed connection is closed by its own runtime, or else the session ends by the server's timer.
    let live = if borrowed { ttl } else { PROMPTLY };
    cleanup.live = Bound::Within(CHECK_INTERVAL + live);
    cleanup.cut_waiter = Bound::Within(session.waiter_idle() + CHECK_INTERVAL);
    cleanup.cut_holder = Bound::Within(ttl + CHECK_INTERVAL);
    let mut guarantees = Guarantees::NONE;
    guarantees.ttl = Some(ttl);
    guarantees.detection = Bound::Within(session.detection());
    guarantees.overlap = Bound::Within(session.detection());
    guarantees.cleanup = cleanup;
    guarantees.takeover_released = Bound::Within(PROMPTLY);
    guarantees.takeover_killed = Bound::Within(PROMPTLY);
    guarantees.takeover_frozen = Bound::Within(ttl + PROMPTLY);
    guarantees.takeover_partitioned = Bound::Within(ttl + PROMPTLY);
    guarantees.world = world;
    guarantees.notes = vec![
        "bounds exclude the network's own delay; each dead waiter ahead in the queue adds the bound of a cut waiter"
            .into(),
        "overlap is zero unless the server forgets the lock: a crash or restart of the server, or a promotion".into(),
        watchdog::note(session, watched),
        "a promotion while the old primary still runs and is reachable is not covered".into(),
    ];
    if borrowed {
        let note = "on a pool of yours a drop is prompt only while the pool's runtime is polled, and the end of a connection is \
                    noticed within 100 ms";
        guarantees.notes.push(note.into());
    }
    guarantees
}

/// The same of locks on lanes, for a waiter that hears nothing and tries again after `poll`.
pub(crate) fn on_lanes(mut guarantees: Guarantees, session: &Timing, poll: Duration) -> Guarantees {
    let tries = poll + PROMPTLY;
    guarantees.takeover_released = Bound::Within(tries);
    guarantees.takeover_killed = Bound::Within(tries);
    guarantees.takeover_frozen = Bound::Within(session.ttl() + tries);
    guarantees.takeover_partitioned = Bound::Within(session.ttl() + tries);
    guarantees.notes.extend([
        "a waiter is told of a release, and of the end of the holder's session, within milliseconds while its housekeeping and that of the \
         holder are connected; the bounds are of one that is not told"
            .into(),
        "waiters of one process are served in the order they came; one that others were quicker than twice queues in the server".into(),
        "the keys of one lane are lost together, and a frozen process keeps a key with a TTL for the lane's T beyond it".into(),
    ]);
    guarantees
}
