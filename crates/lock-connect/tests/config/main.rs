//! What configurations are taken, and with which words the others are refused. No server is needed: lockers connect when they
//! are first used.

#![expect(clippy::unwrap_used, reason = "a test whose own steps fail has failed")]

mod formats;
#[cfg(feature = "otel")]
#[path = "../../../distributed-lock/tests/telemetry/meter.rs"]
mod meter;
mod noop;
mod refusals;
mod secrets;
mod sound;
#[cfg(feature = "otel")]
mod telemetry;
#[cfg(not(any(feature = "metrics", feature = "tracing")))]
mod unheard;

use std::error::Error as _;

use distributed_lock::{Error, ErrorKind};
use lock_connect::LockConfig;
use serde_json::Value;

fn read(json: Value) -> LockConfig {
    serde_json::from_value(json).unwrap()
}

/// The faults of the one error that both kinds of locker give, each in a line of its own.
fn faults(config: &LockConfig) -> String {
    let [locker, scoped] = [config.locker().map(drop), config.scoped_locker().map(drop)].map(Result::unwrap_err);
    assert_eq!((locker.kind(), scoped.kind()), (ErrorKind::InvalidInput, ErrorKind::InvalidInput));
    assert_eq!(told(&locker), told(&scoped));
    told(&locker).replace("; invalid", "\ninvalid")
}

fn told(error: &Error) -> String {
    error.source().unwrap().to_string()
}
