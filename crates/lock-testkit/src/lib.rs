//! What tests of distributed locks stand on: throw-away servers, observers, faults and checkers.
//!
//! For use as a dev-dependency only.

pub mod bench;
pub mod broken;
pub mod cancel;
pub mod conformance;
pub mod detector;
pub mod faulty;
mod kinds;
pub mod observe;
pub mod postgres;
pub mod proxy;
pub mod redis;
pub mod requirement;
mod round_trip;
mod session;
pub mod stall;
pub mod subjects;
mod supervisor;
mod user;
pub mod wait;

pub use detector::Detector;
pub use faulty::Faulty;
pub use kinds::ERROR_KINDS;
pub use observe::Observer;
pub use postgres::Cluster;
pub use proxy::Proxy;
pub use redis::Redis;
pub use round_trip::RoundTrip;
pub use session::APPLICATION_NAME;
pub use stall::StallProbe;
pub use wait::{wait_until, wait_until_blocking};
