//! The transaction form: bodies that fail, panic, are silent, or meddle with their transaction, and commits that go wrong.

use std::{
    error::Error as _,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use distributed_lock::{Attempt, Backend, Contention, ErrorKind, LockerExt, Loss, LossCause, ScopedError, Ttl, Wait};
use libtest_mimic::Trial;
use lock_postgres::PostgresScopedLocker;
use lock_testkit::{Cluster, proxy::AfterLoss};
use tokio::{sync::oneshot, time::timeout};
use tokio_postgres::{Client, Transaction};

use crate::bench::{
    AMPLE, CHECK_INTERVAL, SHORT_TTL, Server, Watch, contention, ms, shortened, state_of, trial, trial_alone,
};

pub(crate) fn trials() -> Vec<Trial> {
    let meddling = |name: &str, statements: &'static str| {
        trial(&format!("transaction::body_that_{name}_is_lost_and_nothing_later_is_kept"), move |server| {
            meddling(server, statements)
        })
    };
    vec![
        trial("transaction::commits_what_the_body_did_and_rolls_back_its_err", commits),
        trial("transaction::body_that_panics_rolls_back", transaction_panics),
        trial("transaction::run_that_is_dropped_rolls_back", transaction_dropped),
        meddling("commits_and_begins", "COMMIT; BEGIN"),
        meddling("commits_and_chains", "COMMIT AND CHAIN"),
        meddling("rolls_back_and_begins", "ROLLBACK; BEGIN"),
        meddling("commits", "COMMIT"),
        trial_alone(
            "transaction::body_that_prepares_its_transaction_is_lost_and_keeps_the_key_taken",
            |builder| builder.setting("max_prepared_transactions", 5),
            prepared,
        ),
        trial("transaction::body_that_swallows_a_failed_statement_is_invalid_input", swallows),
        trial("transaction::body_that_goes_back_to_a_savepoint_commits", savepoint),
        trial("transaction::commit_that_is_refused_is_rolled_back", deferred_constraint),
        trial("transaction::commit_that_is_not_answered_is_indeterminate", unanswered_commit),
        trial("transaction::silent_body_loses_the_lock_and_commits_nothing", silent_body),
        trial("transaction::contends_and_waits_within_its_budget", contends),
        trial("transaction::closed_locker_rolls_back_and_frees_the_key", closed),
    ]
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

/// The lock goes with the work: nobody else gets in until somebody decides about the prepared transaction.
async fn prepared(_cluster: Cluster, server: Server) {
    let (locker, admin) = (server.scoped(), table(&server).await);
    let run = locker.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move {
            insert(tx, 1).await.unwrap();
            tx.batch_execute("PREPARE TRANSACTION 'undecided'").await
        })
    });
    let failed = run.await.unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::Lost, "{:?}", failed.error);
    let locks = server.observer.key_locks().await.unwrap();
    assert!(matches!(&locks[..], [lock] if lock.pid.is_none() && lock.granted), "{locks:?}");
    let other = server.locker();
    assert_eq!(contention(other.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap()), Contention::Held);
    admin.batch_execute("COMMIT PREPARED 'undecided'").await.unwrap();
    assert!(!other.try_acquire("k", Ttl::UNTIL_RELEASED).await.unwrap().is_contended());
    assert_eq!(done(&admin).await, [1]);
    other.close().await.unwrap();
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
    assert_eq!(server.observer.key_locks().await.unwrap(), [], "closed, and the key is taken");
    let failed: ScopedError<_> = timeout(AMPLE, run).await.expect("it ends").unwrap().unwrap_err();
    assert_eq!((failed.error.kind(), failed.value), (ErrorKind::Lost, Some(Ok(7))), "{:?}", failed.error);
    let loss = failed.error.source().unwrap().downcast_ref::<Loss>();
    assert_eq!(loss.map(Loss::cause), Some(LossCause::Closed), "{:?}", failed.error);
    assert_eq!(done(&admin).await, [0; 0]);
    let refused = locker.with_transaction("k", Wait::Never, |_| Box::pin(async { Ok::<_, ()>(()) })).await.unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Closed);
    server.quiet().await;
}
