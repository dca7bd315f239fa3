//! Others at the beacon: a heartbeat gives it back once and takes it once, and nobody must get in between.

use libtest_mimic::Trial;
use lock_postgres::{PostgresConfig, PostgresLocker};

use crate::{
    bench::{ms, shortened, trial},
    contested::contested,
    silence::pool,
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("beacon::those_who_wait_for_it_or_try_it_never_get_it_from_a_live_holder", |server| {
            let config = shortened(server.config());
            contested(server, move |_| PostgresLocker::new(&config.with_heartbeat_interval(ms(20))).unwrap())
        }),
        trial("beacon::the_same_on_a_borrowed_connection", |server| {
            contested(server, |server| {
                let config = shortened(PostgresConfig::for_pool()).with_heartbeat_interval(ms(20));
                PostgresLocker::with_pool(pool(server.url.clone(), 2), &config).unwrap()
            })
        }),
    ]
}
