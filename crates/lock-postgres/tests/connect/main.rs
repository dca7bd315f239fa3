//! Connection strings, logins and TLS against real servers, by what a locker's `ping` says and what the server sees.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by a panic")]

mod certificates;
mod login;
mod password;
mod tls;

use std::{future::Future, time::Duration};

use distributed_lock::{Backend, Error};
use libtest_mimic::{Arguments, Failed};
use lock_postgres::PostgresLocker;
use lock_testkit::{Cluster, postgres::StartError};
use tokio_postgres::Client;

/// Ample for a machine under load.
const AMPLE: Duration = Duration::from_secs(20);

fn main() {
    let arguments = Arguments::from_args();
    let trials = [login::trials(), password::trials(), tls::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// A trial on a cluster of its own.
fn trial<F: Future<Output = ()>>(
    name: impl Into<String>,
    cluster: impl FnOnce() -> Result<Cluster, StartError> + Send + 'static,
    body: impl FnOnce(Cluster) -> F + Send + 'static,
) -> libtest_mimic::Trial {
    lock_testkit::requirement::trial(name, cluster, |cluster| {
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(body(cluster));
        Ok::<_, Failed>(())
    })
}

/// A locker that has reached its server.
async fn open(text: &str) -> Result<PostgresLocker, Error> {
    let locker = PostgresLocker::from_url(text)?;
    locker.ping().await?;
    Ok(locker)
}

/// How the server sees the only session of a locker: role, database, the address it came to, name, and whether by TLS.
async fn seen(admin: &Client) -> String {
    let query = "SELECT pg_catalog.concat_ws(' ', usename, datname, client_addr, application_name, ssl)
        FROM pg_catalog.pg_stat_activity JOIN pg_catalog.pg_stat_ssl USING (pid)
        WHERE backend_type = 'client backend' AND application_name <> $1";
    // Those that the kit has dropped can still be there, beside this one.
    let rows = admin.query(query, &[&lock_testkit::APPLICATION_NAME]).await.unwrap();
    let sessions: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    sessions.join(", ")
}

/// Ends a locker and waits until the server has seen it go.
async fn leave(admin: &Client, locker: PostgresLocker) {
    locker.close().await.unwrap();
    gone(admin).await;
}

async fn gone(admin: &Client) {
    lock_testkit::wait_until(AMPLE, "no session is left", async || seen(admin).await.is_empty()).await.unwrap();
}
