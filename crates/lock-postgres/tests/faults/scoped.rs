//! Scoped runs: bodies that panic, are dropped, or lose the lock.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use distributed_lock::{Backend, Contention, ErrorKind, LockerExt, LossCause, ScopedLockerExt, Ttl, Wait};
use libtest_mimic::Trial;
use lock_postgres::PostgresScopedLocker;
use lock_testkit::{Proxy, proxy::Flow};
use tokio::{sync::oneshot, time::timeout};

use crate::bench::{
    CHECK_INTERVAL, SHORT_DETECTION, SHORT_TTL, Server, Watch, contention, ms, shortened, state_of, trial,
};

pub(crate) fn trials() -> Vec<Trial> {
    let lost = |name: &str, switch: fn(&Proxy), bound: Duration, cause: LossCause| {
        trial(&format!("scoped::body_is_told_of_{name}_and_the_run_says_so"), move |server| {
            lost(server, switch, bound, cause)
        })
    };
    vec![
        trial("scoped::panic_in_the_body_frees_the_key_and_comes_through", panics),
        trial("scoped::dropped_run_frees_the_key_after_its_body", dropped),
        trial("scoped::terminated_session_is_told_to_the_body_at_once_with_57p01", terminated),
        lost("a_cut", Proxy::cut, ms(100), LossCause::SessionEnded),
        lost("a_black_hole", |proxy| proxy.both(Flow::Drop), SHORT_DETECTION, LossCause::HeartbeatTimeout),
        trial("scoped::run_longer_than_the_ttl_of_its_session_keeps_the_key", long_run),
        trial("scoped::case_18_session_and_scoped_lockers_exclude_each_other", exclude_each_other),
    ]
}

async fn panics(server: Server) {
    let locker = Arc::new(server.scoped());
    let run = tokio::spawn({
        let locker = Arc::clone(&locker);
        async move {
            let run = locker.with_lock("k", async |_| -> () { resume_unwind(Box::new("the test's own panic")) });
            run.await.unwrap();
        }
    });
    let watch = Watch::start();
    let panic = run.await.unwrap_err().into_panic();
    assert_eq!(*panic.downcast::<&str>().unwrap(), "the test's own panic");
    let next = server.locker();
    let guard = next.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    watch.within(ms(500), "the key of a body that panicked is free");
    guard.release().await.unwrap().exclusive().unwrap();
    next.close().await.unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn dropped(server: Server) {
    let locker = server.scoped();
    let (began, begun) = oneshot::channel();
    let hold = {
        let run = locker.with_lock("k", async |hold| {
            began.send(hold).unwrap();
            std::future::pending::<()>().await;
        });
        tokio::pin!(run);
        tokio::select! {
            ended = &mut run => panic!("{ended:?}"),
            hold = begun => hold.unwrap(),
        }
    };
    let watch = Watch::start();
    hold.ensure_valid().unwrap_err();
    let next = server.locker();
    let guard = next.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    watch.within(ms(500), "the key of a run that was dropped is free");
    guard.release().await.unwrap().exclusive().unwrap();
    next.close().await.unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn terminated(server: Server) {
    // Default times: no heartbeat would notice within five seconds.
    let locker = PostgresScopedLocker::new(&server.config()).unwrap();
    let body = async |hold: distributed_lock::Hold| {
        hold.ensure_valid().unwrap();
        server.observer.terminate(server.holder().await).await.unwrap();
        let watch = Watch::start();
        let loss = hold.lost().await;
        watch.within(ms(100), "a body is told of the end of its session");
        assert_eq!(state_of(&loss).as_deref(), Some("57P01"), "{loss:?}");
        7
    };
    let failed = locker.with_lock("k", body).await.unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Lost, Some(7)), "{:?}", failed.error);
    assert_eq!(locker.with_lock("k", async |_| 8).await.unwrap(), 8);
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn lost(server: Server, switch: fn(&Proxy), bound: Duration, cause: LossCause) {
    let (proxy, config) = server.proxy();
    let locker = PostgresScopedLocker::new(&shortened(config)).unwrap();
    let body = async |hold: distributed_lock::Hold| {
        let rival = server.rival("k", &hold).await;
        let watch = Watch::start();
        switch(&proxy);
        assert_eq!(hold.lost().await.cause(), cause);
        watch.within(bound, "a body is told of a loss");
        let (rival, at) = rival.granted().await;
        watch.at_within(at, SHORT_TTL + CHECK_INTERVAL, "the key is free");
        // It runs on: a loss is told, and nothing is taken from a body.
        rival
    };
    let failed = locker.with_lock("k", body).await.unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Lost, "{:?}", failed.error);
    let rival = failed.value.expect("the body ran to its end");
    rival.ensure_valid().unwrap();
    rival.release().await.unwrap().exclusive().unwrap();
    drop((locker, proxy));
    server.quiet().await;
}

async fn long_run(server: Server) {
    let locker = server.scoped();
    let body = async |hold: distributed_lock::Hold| {
        let rival = server.rival("k", &hold).await;
        assert!(timeout(SHORT_TTL + ms(500), hold.lost()).await.is_err());
        assert!(rival.is_waiting());
        rival
    };
    let (rival, _) = locker.with_lock("k", body).await.unwrap().granted().await;
    rival.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn exclude_each_other(server: Server) {
    let (session, scoped) = (server.locker(), server.scoped());
    let guard = session.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    assert_eq!(contention(scoped.try_with_lock("k", async |_| ()).await.unwrap()), Contention::Held);
    let tried = scoped.with_transaction("k", Wait::Never, |_| Box::pin(async { Ok::<_, ()>(()) })).await.unwrap();
    assert_eq!(contention(tried), Contention::Held);
    guard.release().await.unwrap().exclusive().unwrap();
    let inside = async |_| contention(session.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap());
    assert_eq!(scoped.with_lock("k", inside).await.unwrap(), Contention::Held);
    let session = Arc::new(session);
    let inside = scoped.with_transaction("k", Wait::Never, {
        let session = Arc::clone(&session);
        |_| {
            Box::pin(
                async move { Ok::<_, ()>(contention(session.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap())) },
            )
        }
    });
    assert_eq!(inside.await.unwrap().acquired().unwrap(), Ok(Contention::Held));
    session.close().await.unwrap();
    scoped.close().await.unwrap();
    server.quiet().await;
}
