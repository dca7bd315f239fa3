//! A holder whose beacon others want.

use std::collections::BTreeSet;

use distributed_lock::{Locker, LockerExt, Ttl};
use lock_testkit::wait_until;
use tokio_postgres::Client;

use crate::bench::{AMPLE, Server, ms};

/// Backends that wait for any beacon.
const QUEUED: &str = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// The beacons that are held.
async fn beacons(admin: &Client) -> BTreeSet<(i32, i32)> {
    let query = "SELECT DISTINCT classid::int8, objid::int8 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid::int8 >= 1000";
    let rows = admin.query(query, &[]).await.unwrap();
    // The same bits, since the catalogue shows them without a sign.
    rows.iter().map(|row| (row.get::<_, i64>(0) as i32, row.get::<_, i64>(1) as i32)).collect()
}

/// A holder whose heartbeats all meet one who waits for its beacon in shared mode, one who waits for it alone and one who tries all
/// the time; then the same with the beacon of another TTL.
pub(crate) async fn contested<L: Locker>(server: Server, locker: impl FnOnce(&Server) -> L) {
    let (admin, locker) = (server.admin().await, locker(&server));
    let mut guard = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    for ttl in [None, Some(Ttl::new(ms(5_000)).unwrap())] {
        if let Some(ttl) = ttl {
            guard.renew(ttl).await.unwrap();
        }
        let held = beacons(&admin).await;
        assert_eq!(held.len(), 1, "{held:?}");
        let (first, second) = held.iter().next().copied().unwrap();
        for take in ["pg_advisory_lock_shared", "pg_advisory_lock"] {
            let waiting = server.stranger().await;
            let statement = format!("SELECT {take}({first}, {second})");
            tokio::spawn(async move { waiting.batch_execute(&statement).await });
        }
        let queued = async || admin.query(QUEUED, &[]).await.unwrap().len();
        wait_until(AMPLE, "two wait for the beacon", async || queued().await == 2).await.unwrap();
        let tries =
            format!("SELECT pg_try_advisory_lock({first}, {second}) OR pg_try_advisory_lock_shared({first}, {second})");
        let (mut proofs, mut before) = (0, guard.remaining());
        let beats = wait_until(AMPLE, "twenty proofs of ownership", async || {
            assert!(!admin.query_one(&tries, &[]).await.unwrap().get::<_, bool>(0), "its beacon was free for a moment");
            if let Some(ttl) = ttl {
                guard.renew(ttl).await.unwrap();
            }
            guard.ensure_valid().unwrap();
            // More is left than before only after a proof.
            let left = guard.remaining();
            proofs += usize::from(left > before);
            before = left;
            proofs >= 20
        });
        beats.await.unwrap();
        assert_eq!(queued().await, 2, "one who waited for the beacon got it");
        assert_eq!(beacons(&admin).await, held);
        for waiter in admin.query(QUEUED, &[]).await.unwrap() {
            server.observer.terminate(waiter.get(0)).await.unwrap();
        }
        wait_until(AMPLE, "nobody waits", async || queued().await == 0).await.unwrap();
    }
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    // With the pool that it has.
    drop(locker);
    server.quiet().await;
}
