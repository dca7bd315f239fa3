//! A build in which nobody can be told by spans, lines or the facade: a part `telemetry` needs a meter, or is refused. Only seen where
//! no other package of the build switches these features of the core on: `cargo test -p lock-connect --test config`.

use serde_json::json;

use crate::{faults, read};

const NOBODY: &str = "invalid telemetry (asked for): nobody would be told: that takes the cargo feature `metrics` or `tracing` of \
                      lock-connect, or `otel` and a meter by `with_telemetry`";

#[test]
fn telemetry_that_nobody_could_be_told_is_refused_wherever_it_is_asked_for() {
    for asked in [json!(true), json!("true"), json!({}), json!({ "class": "billing" })] {
        for provider in ["memory", "noop", "postgres://app@db/app"] {
            let told = faults(&read(json!({ "provider": provider, "telemetry": asked })));
            assert!(told.lines().any(|line| line.ends_with(NOBODY)), "{provider}: {told}");
        }
        assert_eq!(faults(&read(json!({ "provider": "memory", "telemetry": asked }))), NOBODY);
    }
    let not_asked = [json!(false), json!("false"), json!(null)];
    for none in not_asked {
        assert_eq!(read(json!({ "provider": "memory", "telemetry": none })).locker().unwrap().to_string(), "Memory");
    }
}

#[test]
fn telemetry_that_nobody_could_be_told_is_refused_beside_every_other_fault() {
    let told = faults(&read(json!({ "provider": "memory", "telemetry": { "class": "", "colour": "red" } })));
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert_eq!(lines[0], format!("invalid configuration (3 faults): {NOBODY}"));
    assert!(lines[1].starts_with("invalid telemetry.class (\"\"): must be 1 to 40 characters "), "{told}");
    assert!(lines[2].starts_with("invalid telemetry.colour ("), "{told}");
}

#[cfg(feature = "otel")]
#[test]
fn meter_is_somebody_to_tell() {
    use distributed_lock::telemetry::Telemetry;

    let config = read(json!({ "provider": "memory", "telemetry": true }));
    let telemetry = Telemetry::new().with_meter(&crate::meter::Exported::new().meter());
    assert_eq!(config.clone().with_telemetry(telemetry).locker().unwrap().to_string(), "Instrumented(Memory)");
    for silent in [Telemetry::new(), Telemetry::OFF] {
        assert_eq!(faults(&config.clone().with_telemetry(silent)), NOBODY);
    }
}
