//! A circuit breaker around a shared session.

use libtest_mimic::Trial;

use crate::{
    bench::{trial, trial_alone},
    breaking,
    lanes::session,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_alone(
            "breaker::frozen_server_opens_it_and_one_probe_closes_it",
            |builder| builder,
            |cluster, server| {
                let locker = session(&server.config().with_pool_size(1));
                breaking::frozen_server(cluster, server, locker)
            },
        ),
        trial("breaker::waits_that_elapse_or_are_cancelled_leave_it_closed", |server| {
            let locker = session(&server.short());
            breaking::cancelled_waits(server, locker)
        }),
        trial("breaker::held_guards_are_renewed_released_and_dropped_while_it_is_open", |server| {
            let locker = session(&server.short());
            breaking::held_guards(server, locker)
        }),
    ]
}
