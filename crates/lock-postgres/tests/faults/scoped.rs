//! Scoped runs and the transaction form: bodies that panic, lose the lock, or meddle with their transaction.

use std::{
    error::Error as _,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use distributed_lock::{
    Attempt, Backend, Contention, ErrorKind, LockerExt, Loss, LossCause, ScopedError, ScopedLockerExt, Ttl, Wait,
};
use libtest_mimic::Trial;
use lock_postgres::PostgresScopedLocker;
use lock_testkit::{
    Proxy,
    proxy::{AfterLoss, Flow},
};
use tokio::{sync::oneshot, time::timeout};
use tokio_postgres::{Client, Transaction};

use crate::bench::{
    AMPLE, CHECK_INTERVAL, SHORT_DETECTION, SHORT_TTL, Server, Watch, contention, ms, shortened, state_of, trial,
};

pub(crate) fn trials() -> Vec<Trial> {
    let lost = |name: &str, switch: fn(&Proxy), bound: Duration, cause: LossCause| {
        trial(&format!("scoped::body_is_told_of_{name}_and_the_run_says_so"), move |server| {
            lost(server, switch, bound, cause)
        })
    };
    let meddling = |name: &str, statements: &'static str| {
        trial(&format!("scoped::transaction_form_whose_body_{name}_is_lost_and_nothing_later_is_kept"), move |server| {
            meddling(server, statements)
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
        trial("scoped::transaction_form_commits_what_the_body_did_and_rolls_back_its_err", commits),
        trial("scoped::transaction_form_that_panics_rolls_back", transaction_panics),
        trial("scoped::transaction_form_that_is_dropped_rolls_back", transaction_dropped),
        meddling("commits_and_begins", "COMMIT; BEGIN"),
        meddling("commits_and_chains", "COMMIT AND CHAIN"),
        meddling("rolls_back_and_begins", "ROLLBACK; BEGIN"),
        meddling("commits", "COMMIT"),
        meddling("prepares_its_transaction_and_rolls_that_back", "ROLLBACK; BEGIN; SELECT 1; ROLLBACK; BEGIN"),
        trial("scoped::transaction_form_that_swallows_a_failed_statement_is_invalid_input", swallows),
        trial("scoped::transaction_form_that_goes_back_to_a_savepoint_commits", savepoint),
        trial("scoped::transaction_form_whose_commit_is_refused_is_rolled_back", deferred_constraint),
        trial("scoped::transaction_form_whose_commit_is_not_answered_is_indeterminate", unanswered_commit),
        trial("scoped::transaction_form_with_a_silent_body_loses_the_lock_and_commits_nothing", silent_body),
        trial("scoped::transaction_form_contends_and_waits_within_its_budget", contends),
        trial("scoped::transaction_form_of_a_closed_locker_rolls_back", closed),
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

async fn table(server: &Server) -> Client {
    let admin = server.admin().await;
    admin.batch_execute("CREATE TABLE public.done (n int4 PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)").await.unwrap();
    admin
}

async fn done(admin: &Client) -> Vec<i32> {
    let rows = admin.query("SELECT n FROM public.done ORDER BY n", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn insert(tx: &Transaction<'_>, n: i32) -> Result<u64, tokio_postgres::Error> {
    tx.execute("INSERT INTO public.done VALUES ($1)", &[&n]).await
}

async fn commits(server: Server) {
    let (locker, admin) = (server.scoped(), table(&server).await);
    let run = locker.with_transaction("k", Wait::Forever, |tx| Box::pin(insert(tx, 1)));
    assert_eq!(run.await.unwrap().acquired().unwrap().unwrap(), 1);
    let run = locker.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move {
            insert(tx, 2).await.unwrap();
            Err::<(), _>("no")
        })
    });
    assert_eq!(run.await.unwrap().acquired().unwrap(), Err("no"));
    assert_eq!(done(&admin).await, [1]);
    // The body's own failed statement comes through as its own error.
    let run = locker.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move { tx.batch_execute("SELECT 1/0").await.map(|()| 0) })
    });
    let failed = run.await.unwrap().acquired().unwrap().unwrap_err();
    assert_eq!(failed.code().unwrap().code(), "22012");
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn transaction_panics(server: Server) {
    let (locker, admin) = (server.scoped(), table(&server).await);
    let panicked = tokio::spawn(async move {
        let run = locker.with_transaction("k", Wait::Forever, |tx| {
            Box::pin(async move {
                insert(tx, 1).await.unwrap();
                resume_unwind(Box::new("the test's own panic"));
                #[expect(unreachable_code, reason = "it says what a body that does not panic would return")]
                Ok::<(), ()>(())
            })
        });
        let _never = run.await;
    });
    let panic = panicked.await.unwrap_err().into_panic();
    assert_eq!(*panic.downcast::<&str>().unwrap(), "the test's own panic");
    server.quiet().await;
    assert_eq!(done(&admin).await, [0; 0]);
    // Also one that does not get as far as a future.
    let locker = server.scoped();
    let handle = tokio::runtime::Handle::current();
    let run = AssertUnwindSafe(|| {
        handle
            .block_on(locker.with_transaction::<(), (), _>("k", Wait::Forever, |_| resume_unwind(Box::new("at once"))))
    });
    assert!(tokio::task::block_in_place(|| catch_unwind(run)).is_err());
    server.quiet().await;
}

async fn transaction_dropped(server: Server) {
    let (locker, admin) = (server.scoped(), table(&server).await);
    let (began, begun) = oneshot::channel();
    {
        let run = locker.with_transaction("k", Wait::Forever, |tx| {
            Box::pin(async move {
                insert(tx, 1).await.unwrap();
                began.send(()).unwrap();
                std::future::pending::<Result<(), ()>>().await
            })
        });
        tokio::pin!(run);
        tokio::select! {
            ended = &mut run => panic!("{}", ended.is_ok()),
            begun = begun => begun.unwrap(),
        }
    }
    let watch = Watch::start();
    let next = server.locker();
    let guard = next.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    watch.within(ms(500), "the key of a transaction that was dropped is free");
    assert_eq!(done(&admin).await, [0; 0]);
    guard.release().await.unwrap().exclusive().unwrap();
    next.close().await.unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

/// What it did before it ended the transaction may be committed: that was its own doing, under the lock. What it did after is not.
async fn meddling(server: Server, statements: &'static str) {
    let (locker, admin) = (server.scoped(), table(&server).await);
    let run = locker.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move {
            tx.batch_execute(statements).await.unwrap();
            if statements != "COMMIT" {
                insert(tx, 2).await.unwrap();
            }
            Ok::<_, ()>(7)
        })
    });
    let failed = run.await.unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Lost, Some(Ok(7))), "{:?}", failed.error);
    assert_eq!(done(&admin).await, [0; 0]);
    // The locker is none the worse for it.
    let run = locker.with_transaction("k", Wait::Forever, |tx| Box::pin(insert(tx, 3)));
    run.await.unwrap().acquired().unwrap().unwrap();
    assert_eq!(done(&admin).await, [3]);
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn swallows(server: Server) {
    let (locker, admin) = (server.scoped(), table(&server).await);
    let run = locker.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move {
            insert(tx, 1).await.unwrap();
            tx.batch_execute("SELECT 1/0").await.unwrap_err();
            Ok::<_, ()>(7)
        })
    });
    let failed = run.await.unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::InvalidInput, Some(Ok(7))), "{:?}", failed.error);
    assert!(failed.error.to_string().contains("nothing was"), "{}", failed.error);
    assert_eq!(done(&admin).await, [0; 0]);
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn savepoint(server: Server) {
    let (locker, admin) = (server.scoped(), table(&server).await);
    let run = locker.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move {
            insert(tx, 1).await?;
            tx.batch_execute("SAVEPOINT s").await?;
            tx.batch_execute("SELECT 1/0").await.unwrap_err();
            tx.batch_execute("ROLLBACK TO s").await
        })
    });
    run.await.unwrap().acquired().unwrap().unwrap();
    assert_eq!(done(&admin).await, [1]);
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn deferred_constraint(server: Server) {
    let (locker, admin) = (server.scoped(), table(&server).await);
    let run = locker.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move {
            insert(tx, 1).await?;
            insert(tx, 1).await
        })
    });
    let failed = run.await.unwrap_err();
    assert_eq!(failed.error.code(), Some("23505"), "{:?}", failed.error);
    assert!(!matches!(failed.error.kind(), ErrorKind::Indeterminate | ErrorKind::Lost), "{:?}", failed.error);
    assert!(failed.error.key().is_some());
    assert!(matches!(failed.value, Some(Ok(1))));
    assert_eq!(done(&admin).await, [0; 0]);
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn unanswered_commit(server: Server) {
    let admin = table(&server).await;
    for (n, after) in [(1, AfterLoss::Close), (2, AfterLoss::Silence)] {
        let (proxy, config) = server.proxy();
        let locker = PostgresScopedLocker::new(&shortened(config)).unwrap();
        let proxy = Arc::new(proxy);
        let run = locker.with_transaction("k", Wait::Forever, {
            let proxy = Arc::clone(&proxy);
            move |tx| {
                Box::pin(async move {
                    // One request; the driver sends another when it drops a statement that it prepared.
                    tx.batch_execute(&format!("INSERT INTO public.done VALUES ({n})")).await?;
                    // After the proof of ownership comes the commit.
                    proxy.lose_reply(2, after);
                    Ok::<_, tokio_postgres::Error>(n)
                })
            }
        });
        let watch = Watch::start();
        let failed = run.await.unwrap_err();
        watch.within(ms(1_000), "an unanswered commit returns");
        assert_eq!(failed.error.kind(), ErrorKind::Indeterminate, "{:?}", failed.error);
        assert!(!failed.error.is_retryable() && failed.error.key().is_some());
        assert_eq!(failed.value.unwrap().unwrap(), n);
        drop((locker, proxy));
    }
    assert_eq!(done(&admin).await, [1, 2], "they were committed, as the error leaves open");
    server.quiet().await;
}

async fn silent_body(server: Server) {
    let (locker, admin) = (server.scoped(), table(&server).await);
    let next = server.locker();
    let run = locker.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move {
            insert(tx, 1).await?;
            let watch = Watch::start();
            let guard = next.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
            watch.within(SHORT_TTL, "the key of a silent body is free");
            guard.release().await.unwrap().exclusive().unwrap();
            Ok::<_, tokio_postgres::Error>(7)
        })
    });
    let failed = run.await.unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Lost, "{:?}", failed.error);
    assert_eq!(state_of(&failed.error).as_deref(), Some("25P03"), "{:?}", failed.error);
    assert_eq!(failed.value.unwrap().unwrap(), 7);
    assert_eq!(done(&admin).await, [0; 0]);
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn contends(server: Server) {
    let (locker, other) = (server.scoped(), server.locker());
    let body = |_: &Transaction<'_>| -> distributed_lock::backend::BoxFuture<'static, Result<(), ()>> {
        Box::pin(async { panic!("it has no lock") })
    };
    let guard = other.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    locker.ping().await.unwrap();
    let watch = Watch::start();
    let waited = locker.with_transaction("k", Wait::UpTo(ms(200)), |tx| body(tx)).await.unwrap();
    watch.within(ms(200), "a wait returns");
    assert_eq!(contention(waited), Contention::WaitElapsed);
    let run = locker.with_transaction("k", Wait::UpTo(AMPLE), |_| Box::pin(async { Ok::<_, ()>(7) }));
    let release = async {
        server.waiters(1).await;
        guard.release().await.unwrap().exclusive().unwrap();
    };
    let (ran, ()) = tokio::join!(run, release);
    assert!(matches!(ran, Ok(Attempt::Acquired(Ok(7)))));
    other.close().await.unwrap();
    locker.close().await.unwrap();
    server.quiet().await;
}

async fn closed(server: Server) {
    let (locker, admin) = (Arc::new(server.scoped()), table(&server).await);
    let (began, begun) = oneshot::channel();
    let run = tokio::spawn({
        let locker = Arc::clone(&locker);
        async move {
            let run = locker.with_transaction("k", Wait::Forever, |tx| {
                Box::pin(async move {
                    insert(tx, 1).await.unwrap();
                    began.send(()).unwrap();
                    // Until the end of its session is told.
                    tx.batch_execute("SELECT pg_catalog.pg_sleep(60)").await.unwrap_err();
                    Ok::<_, ()>(7)
                })
            });
            run.await
        }
    });
    begun.await.unwrap();
    let watch = Watch::start();
    locker.close().await.unwrap();
    watch.within(CHECK_INTERVAL, "a locker with a transaction is closed");
    assert_eq!(server.observer.advisory_locks().await.unwrap(), [], "closed, and the key is taken");
    let failed: ScopedError<_> = timeout(AMPLE, run).await.expect("it ends").unwrap().unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Lost, Some(Ok(7))), "{:?}", failed.error);
    let loss = failed.error.source().unwrap().downcast_ref::<Loss>();
    assert_eq!(loss.map(Loss::cause), Some(LossCause::Closed), "{:?}", failed.error);
    assert_eq!(done(&admin).await, [0; 0]);
    let refused = locker.with_transaction("k", Wait::Never, |_| Box::pin(async { Ok::<_, ()>(()) })).await.unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Closed);
    server.quiet().await;
}
