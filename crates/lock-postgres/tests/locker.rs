//! smoke
#![allow(missing_docs)]
use distributed_lock::*;
use lock_postgres::PostgresLocker;
use lock_testkit::{Cluster, Observer};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn smoke() {
    let cluster = Cluster::shared().unwrap();
    let url = cluster.url();
    let observer = Observer::connect(&cluster.admin_config("postgres")).await.unwrap();
    let a = PostgresLocker::from_url(&url).unwrap();
    let b = PostgresLocker::from_url(&url).unwrap();
    a.ping().await.unwrap();
    println!("{}", a.guarantees());
    let guard = a.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    println!("{guard:?} {:?}", guard.remaining());
    println!("{:?}", a.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap());
    println!("{:?}", b.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap());
    println!("{:?}", b.acquire_within("k", Ttl::UNTIL_RELEASED, Duration::from_millis(50)).await.unwrap());
    let t = tokio::time::Instant::now();
    let (r, g) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            guard.release().await
        },
        b.acquire("k", Duration::from_secs(1))
    );
    println!("{r:?} {:?}", t.elapsed());
    let mut g = g.unwrap();
    println!("{g:?}");
    g.renew(Duration::from_secs(2)).await.unwrap();
    println!("{:?}", g.remaining());
    println!("{:?} after {:?}", g.lost().await, t.elapsed());
    let t = tokio::time::Instant::now();
    let g2 = a.acquire("k", Duration::from_secs(1)).await.unwrap();
    println!("free {:?}", t.elapsed());
    println!("{:?}", g.release().await);
    let pid = observer.sessions().await.unwrap();
    println!("{pid:?}");
    for s in pid {
        observer.terminate(s.pid).await.unwrap();
    }
    println!("{:?}", g2.lost().await);
    println!("{:?}", g2.release().await);
    let g2 = a.acquire("k", Duration::from_secs(1)).await.unwrap();
    drop(g2);
    let t = tokio::time::Instant::now();
    let g2 = b.acquire("k", Duration::from_secs(1)).await.unwrap();
    println!("free {:?}", t.elapsed());
    b.close().await.unwrap();
    println!("{:?}", g2.release().await);
    a.close().await.unwrap();
    observer.quiet(Duration::from_secs(5)).await.unwrap();
}
