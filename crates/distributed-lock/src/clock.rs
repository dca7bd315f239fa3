use std::{
    fmt,
    future::pending,
    time::{Duration, Instant},
};

/// Where "now" comes from. Readings of one clock are compared with each other only.
///
/// ```
/// use std::{sync::{Arc, Mutex}, time::{Duration, Instant}};
/// use distributed_lock::{Clock, MemoryLocker, SystemClock};
///
/// /// A clock for tests: moves when told to.
/// #[derive(Clone, Debug)]
/// struct ManualClock(Arc<Mutex<Instant>>);
///
/// impl Clock for ManualClock {
///     fn now(&self) -> Instant {
///         *self.0.lock().unwrap()
///     }
/// }
///
/// let clock = ManualClock(Arc::new(Mutex::new(SystemClock.now())));
/// let locker = MemoryLocker::with_clock(clock.clone());
/// *clock.0.lock().unwrap() += Duration::from_secs(60);
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present instant. Never goes back.
    fn now(&self) -> Instant;
}

/// The system's monotonic clock, running on while the machine is suspended. What production code uses.
///
/// Std's own `Instant` stands still during a suspend on Linux, so a lease measured with it would look fresh on waking up.
/// Source by platform: Linux and Android `CLOCK_BOOTTIME`; macOS and its relatives `CLOCK_MONOTONIC`, which counts sleep
/// there; elsewhere std's `Instant`. Only Linux is tested; the others are chosen by `cfg` and were not run.
///
/// ```
/// use distributed_lock::{Clock, SystemClock};
///
/// let earlier = SystemClock.now();
/// assert!(SystemClock.now() >= earlier);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        platform::now()
    }
}

#[cfg(any(target_os = "android", target_os = "linux", target_vendor = "apple"))]
mod platform {
    use std::{
        sync::OnceLock,
        time::{Duration, Instant},
    };

    use rustix::time::{ClockId, clock_gettime};

    #[cfg(target_vendor = "apple")]
    const CLOCK: ClockId = ClockId::Monotonic;
    #[cfg(not(target_vendor = "apple"))]
    const CLOCK: ClockId = ClockId::Boottime;

    /// `Instant` cannot be made from a reading, so readings are distances from the first one, added to an `Instant` taken then.
    pub(super) fn now() -> Instant {
        static ORIGIN: OnceLock<(Instant, Duration)> = OnceLock::new();
        let reading = reading();
        let (instant, first) = ORIGIN.get_or_init(|| (std_now(), reading));
        *instant + reading.saturating_sub(*first)
    }

    pub(super) fn reading() -> Duration {
        let time = clock_gettime(CLOCK);
        // Both parts of this clock are positive, and the second is below 10^9.
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    #[expect(clippy::disallowed_methods, reason = "the origin of the clock module")]
    fn std_now() -> Instant {
        Instant::now()
    }
}

#[cfg(not(any(target_os = "android", target_os = "linux", target_vendor = "apple")))]
mod platform {
    #[expect(clippy::disallowed_methods, reason = "the clock module's last resort")]
    pub(super) fn now() -> std::time::Instant {
        std::time::Instant::now()
    }
}

/// The runtime's clock: follows `tokio::time::pause` in tests. Does not run through a suspend.
///
/// ```
/// use std::time::Duration;
/// use distributed_lock::{Clock, TokioClock};
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let start = TokioClock.now();
/// tokio::time::advance(Duration::from_secs(60)).await; // paused time
/// assert_eq!(TokioClock.now() - start, Duration::from_secs(60));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

pub(crate) async fn sleep_or_forever(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => pending().await,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    use super::platform;

    /// Catches the wrong clock only where the two differ: on a machine that slept, and under `unshare -T --boottime 1000`.
    #[test]
    fn the_system_clock_reads_the_clock_that_counts_suspend() {
        let boot = || Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap();
        let (before, reading, after) = (boot(), platform::reading(), boot());
        assert!(before <= reading && reading <= after, "{reading:?} not in {before:?}..{after:?}");
    }
}
