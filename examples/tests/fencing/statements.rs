//! The statements of the page: what passes, and who gets what when two come at a time.

use distributed_lock::{Backend, LockerExt, Ttl};
use lock_postgres::PostgresLocker;
use tokio_postgres::error::SqlState;

use crate::bench::{Bench, passes, token};

pub(crate) async fn order(bench: Bench) {
    let tokens: Vec<_> = [0, 1, 0xff, 0x100, u128::MAX >> 1, (u128::MAX >> 1) + 1, u128::MAX - 1, u128::MAX]
        .map(|value| token(value).to_string())
        .into();
    let mixed: Vec<_> = tokens.iter().rev().collect();
    let sorted = "select array_agg(token order by token::uuid) from unnest($1::text[]) token";
    let sorted: Vec<String> = bench.observer.query_one(sorted, &[&mixed]).await.unwrap().get(0);
    assert_eq!(sorted, tokens);
}

pub(crate) async fn refusal(bench: Bench) {
    let client = bench.client().await;
    for statement in [bench.sql.write, bench.sql.claim, bench.sql.seen] {
        for (value, passed) in [(7, true), (7, true), (6, false), (9, true), (8, false), (7, false), (9, true)] {
            // Each statement from where the one before it ended, and the last on a table of its own.
            let value = value + if statement == bench.sql.claim { 10 } else { 0 };
            assert_eq!(passes(&client, statement, token(value)).await.unwrap(), passed, "{value}: {statement}");
        }
    }
    assert_eq!(bench.balance().await, 9, "what was refused changed nothing");
}

/// What makes the tests of refusals red.
pub(crate) async fn no_condition(bench: Bench) {
    let client = bench.client().await;
    for statement in [bench.sql.write, bench.sql.claim, bench.sql.seen] {
        let without =
            statement.replace(" and fence <= $2::text::uuid", "").replace(" where seen.fence <= excluded.fence", "");
        assert_ne!(statement, without);
        assert!(passes(&client, &without, token(9)).await.unwrap());
        assert!(passes(&client, &without, token(3)).await.unwrap(), "{without}");
    }
}

pub(crate) async fn missing_row(bench: Bench) {
    let client = bench.client().await;
    client.execute("delete from accounts", &[]).await.unwrap();
    for statement in [bench.sql.claim, bench.sql.write] {
        assert!(!passes(&client, statement, token(7)).await.unwrap());
    }
    assert!(passes(&client, bench.sql.seen, token(7)).await.unwrap());
    let kept: String = client.query_one("select fence::text from fences where key = '42'", &[]).await.unwrap().get(0);
    assert_eq!(kept.replace('-', ""), token(7).to_string());
}

pub(crate) async fn behind(bench: Bench) {
    passes(&bench.observer, bench.sql.seen, token(1)).await.unwrap();
    let mut value = 1;
    for statement in [bench.sql.write, bench.sql.claim, bench.sql.seen] {
        let mut round = async |end, later_is_same, isolation| {
            // The lower one is what the row has, so that it looks right until the other has ended.
            let (lower, higher) = (token(value), token(value + 1));
            let later = if later_is_same { higher } else { lower };
            let passed = bench.interleaved(statement, (higher, end), (later, isolation)).await;
            value += u128::from(end == "commit");
            passed
        };
        // Rolled back, the higher one was never here.
        assert!(round("rollback", false, "read committed").await.unwrap(), "{statement}");
        assert!(!round("commit", false, "read committed").await.unwrap(), "{statement}");
        assert!(round("commit", true, "read committed").await.unwrap(), "the same holder: {statement}");
        for isolation in ["repeatable read", "serializable"] {
            let refused = round("commit", false, isolation).await.unwrap_err();
            assert_eq!(refused.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{isolation}: {statement}");
        }
        if statement == bench.sql.write {
            assert_eq!(bench.balance().await, 5, "that of the highest token");
        }
        if statement == bench.sql.claim {
            value = 1;
        }
    }
}

pub(crate) async fn ahead(bench: Bench) {
    for (lock, read) in [
        (bench.sql.claim, bench.sql.claim),
        (bench.sql.seen, "select balance from accounts where name = $1 and $2::text <> ''"),
    ] {
        let (older, newer) = (bench.client().await, bench.client().await);
        passes(&older, bench.sql.seen, token(1)).await.unwrap();
        let pid = newer.query_one("select pg_catalog.pg_backend_pid()", &[]).await.unwrap().get(0);
        older.batch_execute("begin").await.unwrap();
        assert!(passes(&older, lock, token(7)).await.unwrap());
        older.execute("update accounts set balance = balance + 10", &[]).await.unwrap();
        let before = bench.balance().await;
        newer.batch_execute("begin").await.unwrap();
        let commits = async {
            bench.blocked(pid).await;
            older.batch_execute("commit").await.unwrap();
        };
        let (passed, ()) = tokio::join!(passes(&newer, lock, token(9)), commits);
        assert!(passed.unwrap());
        let row = newer.query_one(read, &[&"42", &token(9).to_string()]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), before + 10, "{lock}");
        newer.batch_execute("rollback").await.unwrap();
    }
}

pub(crate) async fn first_two(bench: Bench) {
    let passed = bench.interleaved(bench.sql.seen, (token(9), "commit"), (token(8), "read committed")).await;
    assert!(!passed.unwrap());
    bench.observer.execute("delete from fences", &[]).await.unwrap();
    let passed = bench.interleaved(bench.sql.seen, (token(8), "commit"), (token(9), "read committed")).await;
    assert!(passed.unwrap());
}

/// Why the page says to bring the token with the read.
pub(crate) async fn overtaken(bench: Bench) {
    let client = bench.client().await;
    let (stale, holder) = (token(110), token(130));
    assert_eq!(bench.balance().await, 100, "the holder reads, without its token");
    assert!(passes(&client, bench.sql.write, stale).await.unwrap(), "nobody has shown a higher one");
    assert!(passes(&client, bench.sql.write, holder).await.unwrap(), "and what the stale one wrote is lost");

    let (stale, holder) = (token(140), token(160));
    assert!(passes(&client, bench.sql.claim, holder).await.unwrap());
    assert!(!passes(&client, bench.sql.write, stale).await.unwrap());
    assert_eq!(bench.balance().await, 130);
}

pub(crate) async fn deleted(bench: Bench) {
    let client = bench.client().await;
    assert!(passes(&client, bench.sql.write, token(9)).await.unwrap());
    client.execute("delete from accounts", &[]).await.unwrap();
    client.execute("insert into accounts (name, balance) values ('42', 0)", &[]).await.unwrap();
    assert!(passes(&client, bench.sql.write, token(3)).await.unwrap());
}

pub(crate) async fn real_tokens(bench: Bench) {
    let locker = PostgresLocker::from_url(&bench.cluster.url()).unwrap();
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let guard = locker.acquire("accounts/42", Ttl::UNTIL_RELEASED).await.unwrap();
        tokens.push(guard.fencing_token().unwrap());
        guard.release().await.unwrap().exclusive().unwrap();
    }
    locker.close().await.unwrap();
    let client = bench.client().await;
    for statement in [bench.sql.claim, bench.sql.write, bench.sql.seen] {
        for (token, passed) in [(tokens[1], true), (tokens[0], false), (tokens[1], true)] {
            assert_eq!(passes(&client, statement, token).await.unwrap(), passed, "{token}: {statement}");
        }
    }
}
