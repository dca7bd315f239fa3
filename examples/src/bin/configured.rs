//! Which locks a service uses is written in a file, and the environment has the last word. No backend is named here.
//!
//! ```sh
//! cargo run -p examples --bin configured
//! EXAMPLE_LOCKS_MEMORY_SCOPED_TTL=5s cargo run -p examples --bin configured
//! DATABASE_URL=postgres://user@localhost/app cargo run -p examples --bin configured
//! ```

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use distributed_lock::{ScopedLocker, ScopedLockerExt};
use lock_connect::LockConfig;

/// Stands for the service's file. It has a part for each backend; only the one of the chosen provider counts.
const FILE: &str = r#"
provider = "memory"
breaker = true

[memory]
scoped_ttl = "20s"

[postgres]
pool_size = 4
session_ttl = "10s"
heartbeat_interval = "1s"
query_timeout = "2s"
"#;

/// What comes of haste: four faults in as many lines, two of them in a part that is not chosen.
const BROKEN: &str = r#"
provider = "memory"
colour = "red"
memory.scoped_ttl = "20"
postgres.url = "postgres://app:s3cret@db.example/app?sslmode=maybe"
postgres.pool_size = 0
"#;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    // 1. The file, the environment over it, and the URL that platforms give to their programs over both.
    let file: LockConfig = toml::from_str(FILE)?;
    let mut config = file.overlaid_by(LockConfig::from_vars("EXAMPLE_LOCKS_", env::vars_os()));
    if let Ok(url) = env::var("DATABASE_URL") {
        config = config.overlaid_by(LockConfig::new(url));
    }
    println!("{config:?}"); // names alone, whatever secrets are in it

    // 2. What the service is given. `ping` is its start-up check, `close` its last word.
    let locks: Arc<dyn ScopedLocker> = config.scoped_locker()?;
    locks.ping().await?;
    println!("locker={locks}");
    println!("guarantees: {}", locks.guarantees());
    let sum = locks.with_lock("accounts/42", async |hold| hold.ensure_valid().map(|()| 40 + 2)).await??;
    println!("under the lock: {sum}");
    locks.close().await?;

    // 3. A file with faults is refused before anything connects, with all of them at once and without the password.
    let broken: LockConfig = toml::from_str(BROKEN)?;
    let mut right = sum == 42;
    for (provider, faults) in [("memory", 2), ("postgres", 3)] {
        let refused = broken.clone().overlaid_by(LockConfig::new(provider)).locker().map(drop);
        let told = refused.err().and_then(|error| error.source().map(ToString::to_string)).unwrap_or_default();
        println!("refused with {provider}:\n  {}", told.replace("; invalid", "\n  invalid"));
        right &= told.matches("invalid ").count() == faults + 1 && !told.contains("s3cret");
    }
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
