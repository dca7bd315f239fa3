//! A circuit breaker around a locker with a connection for each hold.

use libtest_mimic::Trial;
use lock_postgres::PostgresLocker;

use crate::{
    bench::{trial, trial_alone},
    breaking,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_alone(
            "breaker::frozen_server_opens_it_with_a_pool_of_one_and_one_probe_closes_it",
            |builder| builder,
            |cluster, server| {
                let locker = PostgresLocker::new(&server.config().with_pool_size(1)).unwrap();
                breaking::frozen_server(cluster, server, locker)
            },
        ),
        trial("breaker::waits_that_elapse_or_are_cancelled_leave_it_closed", |server| {
            let locker = server.locker();
            breaking::cancelled_waits(server, locker)
        }),
        trial("breaker::held_guards_are_renewed_released_and_dropped_while_it_is_open", |server| {
            let locker = server.locker();
            breaking::held_guards(server, locker)
        }),
    ]
}
