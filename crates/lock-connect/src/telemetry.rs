//! The part `telemetry`: whether lockers are seen in spans, log lines and metrics, as which class, and after how long a wait is explained.

use std::time::Duration;

use distributed_lock::{Inspect, Instrumented, InvalidInput, backend::Fields, telemetry::Telemetry};

const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

const NOBODY: &str = "nobody would be told: that takes the cargo feature `metrics` or `tracing` of lock-connect, or `otel` and a meter \
                      by `with_telemetry`";

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) telemetry: Telemetry,
    explain_waits_after: Option<Duration>,
}

/// What the part sets; none where there is no such part. Faults stay with the fields.
pub(crate) fn read(fields: &mut Fields, telemetry: &Telemetry) -> Option<Seen> {
    let mut part = fields.part("telemetry")?;
    // Whoever asked for it would believe to be seen.
    if !telemetry.is_heard() {
        fields.check::<()>(Err(InvalidInput::new("telemetry", "asked for", NOBODY)));
    }
    let class = part.text("class", "must be text");
    let telemetry = match class {
        Some(class) => part.check(telemetry.clone().with_class(&class)).unwrap_or_default(),
        None => telemetry.clone(),
    };
    let explain_waits_after = part.duration("explain_waits_after");
    if let Some(after) = explain_waits_after
        && !(Duration::from_millis(1)..=LONGEST).contains(&after)
    {
        let rule = "must be 1 ms to 24 h";
        part.check::<()>(Err(InvalidInput::new("explain_waits_after", format_args!("{after:?}"), rule)));
    }
    fields.check(part.finish().map_err(|invalid| invalid.under("telemetry")));
    Some(Seen { telemetry, explain_waits_after })
}

impl Seen {
    pub(crate) fn instrumented<L: Inspect>(self, locker: L) -> Instrumented<L> {
        let locker = Instrumented::new(locker).with_telemetry(self.telemetry);
        match self.explain_waits_after {
            Some(after) => locker.explaining_waits(after),
            None => locker,
        }
    }
}
