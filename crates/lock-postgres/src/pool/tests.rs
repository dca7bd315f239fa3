//! Closing against a place that is being taken, step by step: by chance it would be hit once in many thousand times.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use distributed_lock::ErrorKind;

use super::{OwnPool, SessionPool};
use crate::{PostgresConfig, core::Core};

fn pool() -> OwnPool {
    let core = Core::new(&PostgresConfig::from_url("postgres://u@h/d").with_pool_size(1)).unwrap();
    match core.pool {
        SessionPool::Own(pool) => pool,
        SessionPool::Borrowed(_) => panic!("not ours"),
    }
}

fn has_closed(pool: &OwnPool) -> bool {
    pin!(pool.close()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[tokio::test]
async fn place_that_is_taken_but_not_counted_when_closing_ends_is_not_given_out() {
    let pool = pool();
    let place = Arc::clone(&pool.0.places).try_acquire_owned().unwrap();
    assert!(has_closed(&pool), "nobody counts, so closing does not wait");
    assert_eq!(pool.count(place).unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn closing_waits_for_a_place_that_counts() {
    let pool = pool();
    let place = Arc::clone(&pool.0.places).try_acquire_owned().unwrap();
    let permit = pool.count(place).unwrap();
    assert!(!has_closed(&pool));
    drop(permit);
    assert!(has_closed(&pool));
}
