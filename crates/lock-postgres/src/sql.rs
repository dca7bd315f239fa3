//! Every statement we send. Names are schema-qualified and arguments cast, so that no function, type or operator of another
//! schema can stand in for the server's own; lock names never enter the text.
//!
//! Order matters inside a statement. A subquery fenced by `offset 0` is evaluated before the list above it; inside a list we
//! rely on left to right only where both orders would be safe, and on `case` for everything that must follow the grant.

/// Which server this is, and whether it may give locks.
pub(crate) const IDENTITY: &str = "\
select pg_catalog.pg_is_in_recovery() as in_recovery, \
pg_catalog.current_database()::pg_catalog.text as database, \
(select c.system_identifier from pg_catalog.pg_control_system() as c)::pg_catalog.text as server";

/// The same of a borrowed connection, as a simple query: `fresh` says that no transaction was open on it.
pub(crate) const BORROWED_IDENTITY: &str = "\
select pg_catalog.pg_is_in_recovery() as in_recovery, \
pg_catalog.current_database()::pg_catalog.text as database, \
(select c.system_identifier from pg_catalog.pg_control_system() as c)::pg_catalog.text as server, \
pg_catalog.now() operator(pg_catalog.=) pg_catalog.statement_timestamp() as fresh";

/// Settings of a session of ours, set once when it connects, and the limits it had before. `$1` is the idle limit. It takes its beacon
/// `$2`, `$3` here, twice.
///
/// `client_connection_check_interval` and `statement_timeout` act from the next statement on.
pub(crate) const SETUP: &str = "\
select i.statement_timeout, i.lock_timeout, \
pg_catalog.pg_try_advisory_lock($2::pg_catalog.int4, $3::pg_catalog.int4) as beacon, \
pg_catalog.pg_try_advisory_lock($2::pg_catalog.int4, $3::pg_catalog.int4) as again, \
pg_catalog.set_config('idle_session_timeout', $1::pg_catalog.text, false) as s1, \
pg_catalog.set_config('idle_in_transaction_session_timeout', $1::pg_catalog.text, false) as s2, \
pg_catalog.set_config('client_connection_check_interval', '500', false) as s3, \
pg_catalog.set_config('statement_timeout', '0', false) as s4, \
pg_catalog.set_config('lock_timeout', '0', false) as s5, \
pg_catalog.set_config('tcp_keepalives_idle', '5', false) as s6, \
pg_catalog.set_config('tcp_keepalives_interval', '2', false) as s7, \
pg_catalog.set_config('tcp_keepalives_count', '3', false) as s8, \
case when pg_catalog.current_setting('server_version_num')::pg_catalog.int4 operator(pg_catalog.>=) 170000 \
then pg_catalog.set_config('transaction_timeout', '0', false) end as s9 \
from (select pg_catalog.current_setting('statement_timeout') as statement_timeout, \
pg_catalog.current_setting('lock_timeout') as lock_timeout offset 0) as i";

/// Takes back whatever somebody left in a session: settings, locks, statements, temporary tables, listeners.
pub(crate) const FORGET: &str = "discard all";

/// Whether the server answers, and whether it may give locks.
pub(crate) const PING: &str = "select pg_catalog.pg_is_in_recovery() as in_recovery";

/// The first word of the answer to a lock statement, and with it all that a row says: see `answer::answer`.
pub(crate) const GRANTED: &str = "granted";
pub(crate) const CONTENDED: &str = "contended";
/// Another session has our beacon.
pub(crate) const BEACON_TAKEN: &str = "beacon";
/// The server is a standby.
pub(crate) const RECOVERY: &str = "recovery";

/// The answer to a grant, followed by the parts of its fencing token: only to be evaluated after the grant, hence always under a
/// `case`.
macro_rules! granted {
    (fenced) => {
        "pg_catalog.concat_ws(' ', 'granted', pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), \
         (pg_catalog.pg_control_checkpoint()).redo_lsn, pg_catalog.pg_current_xact_id())"
    };
    (unfenced) => {
        "'granted'"
    };
}

/// A single try for the key `$1`.
macro_rules! try_lock {
    ($then:expr, $more:literal) => {
        concat!(
            "select case when pg_catalog.pg_is_in_recovery() then 'recovery' \
             when pg_catalog.pg_try_advisory_lock($1::pg_catalog.int8) then ",
            $then,
            " else 'contended' end as answer",
            $more
        )
    };
}

/// On a session of ours, which has its beacon and its idle limit.
pub(crate) const TRY: &str = try_lock!(granted!(unfenced), "");
pub(crate) const TRY_FENCED: &str = try_lock!(granted!(fenced), "");

/// On a borrowed session: takes the beacon `$2`, `$3` twice and sets the idle limit `$4` with the key, and says what the limit was.
macro_rules! try_borrowed {
    ($token:tt) => {
        try_lock!(
            concat!(
                "case when pg_catalog.pg_try_advisory_lock($2::pg_catalog.int4, $3::pg_catalog.int4) \
                 and pg_catalog.pg_try_advisory_lock($2::pg_catalog.int4, $3::pg_catalog.int4) \
                 and pg_catalog.set_config('idle_session_timeout', $4::pg_catalog.text, false) is not null then ",
                granted!($token),
                " else 'beacon' end"
            ),
            ", i.idle_before from (select pg_catalog.current_setting('idle_session_timeout') as idle_before offset 0) as i"
        )
    };
}
pub(crate) const TRY_BORROWED: &str = try_borrowed!(unfenced);
pub(crate) const TRY_BORROWED_FENCED: &str = try_borrowed!(fenced);

/// The settings that a wait needs and that act from the next statement on, with what they were before. `$local` says whether they
/// end with the transaction.
macro_rules! before_wait {
    ($more:literal, $local:literal) => {
        concat!(
            "select b.idle, b.statement_timeout, b.lock_timeout, b.check_interval, b.transaction_timeout, ",
            $more,
            "pg_catalog.set_config('statement_timeout', '0', ",
            $local,
            ") as s1, pg_catalog.set_config('client_connection_check_interval', '500', ",
            $local,
            ") as s2, case when b.transaction_timeout is not null \
             then pg_catalog.set_config('transaction_timeout', '0', ",
            $local,
            ") end as s3 \
             from (select pg_catalog.current_setting('idle_session_timeout') as idle, \
             pg_catalog.current_setting('statement_timeout') as statement_timeout, \
             pg_catalog.current_setting('lock_timeout') as lock_timeout, \
             pg_catalog.current_setting('client_connection_check_interval') as check_interval, \
             case when pg_catalog.current_setting('server_version_num')::pg_catalog.int4 operator(pg_catalog.>=) 170000 \
             then pg_catalog.current_setting('transaction_timeout') end as transaction_timeout offset 0) as b"
        )
    };
}

/// Goes ahead of a queued wait, as a statement of its own, so that a waiter that is cut off or whose wait fails is bounded: `$1` is
/// the idle limit of a waiter.
pub(crate) const BEFORE_WAIT: &str =
    before_wait!("pg_catalog.set_config('idle_session_timeout', $1::pg_catalog.text, false) as s0, ", "false");

/// The same ahead of a wait in a transaction.
pub(crate) const BEFORE_WAIT_IN_TRANSACTION: &str = before_wait!("", "true");

/// After a wait: `statement_timeout`, `client_connection_check_interval` and `transaction_timeout` back to `$1`, `$2` and `$3`, the
/// last one null where the server knows none.
pub(crate) const AFTER_WAIT: &str = "\
select pg_catalog.set_config('statement_timeout', $1::pg_catalog.text, false) as s1, \
pg_catalog.set_config('client_connection_check_interval', $2::pg_catalog.text, false) as s2, \
case when $3::pg_catalog.text is not null \
then pg_catalog.set_config('transaction_timeout', $3::pg_catalog.text, false) end as s3";

/// For the statements of a body that runs in the lock's transaction: the limits that are its own, `statement_timeout` `$1` and
/// `lock_timeout` `$2`, and the idle limit of a holder `$3`.
pub(crate) const FOR_BODY: &str = "\
select pg_catalog.set_config('statement_timeout', $1::pg_catalog.text, true) as s1, \
pg_catalog.set_config('lock_timeout', $2::pg_catalog.text, true) as s2, \
pg_catalog.set_config('idle_in_transaction_session_timeout', $3::pg_catalog.text, true) as s3";

/// A queued wait for the key `$1`: the lock timeout `$2` is set before the lock call and put back after it. The idle limit stays a
/// waiter's until the proof that follows, since whoever was cut off while it waited must not keep the lock for longer.
macro_rules! wait_lock {
    ($then:expr) => {
        concat!(
            "select case when pg_catalog.pg_is_in_recovery() then 'recovery' when g.waited is null then 'contended' else ",
            $then,
            " end as answer, g.limited, pg_catalog.set_config('lock_timeout', g.before, false) as unlimited \
             from (select pg_catalog.current_setting('lock_timeout') as before, \
             pg_catalog.set_config('lock_timeout', $2::pg_catalog.text, false) as limited, \
             pg_catalog.pg_advisory_lock($1::pg_catalog.int8)::pg_catalog.text as waited offset 0) as g"
        )
    };
}
pub(crate) const WAIT: &str = wait_lock!(granted!(unfenced));
pub(crate) const WAIT_FENCED: &str = wait_lock!(granted!(fenced));

/// On a borrowed session: takes the beacon `$3`, `$4` twice after the key.
macro_rules! wait_borrowed {
    ($token:tt) => {
        wait_lock!(concat!(
            "case when pg_catalog.pg_try_advisory_lock($3::pg_catalog.int4, $4::pg_catalog.int4) \
             and pg_catalog.pg_try_advisory_lock($3::pg_catalog.int4, $4::pg_catalog.int4) then ",
            granted!($token),
            " else 'beacon' end"
        ))
    };
}
pub(crate) const WAIT_BORROWED: &str = wait_borrowed!(unfenced);
pub(crate) const WAIT_BORROWED_FENCED: &str = wait_borrowed!(fenced);

/// After a wait that failed: how many advisory locks the session has or waits for, and its idle limit back to `$1`.
pub(crate) const PROVE_CLEAN: &str = "\
select (select pg_catalog.count(*) from pg_catalog.pg_locks as l \
where l.locktype operator(pg_catalog.=) 'advisory'::pg_catalog.text \
and l.pid operator(pg_catalog.=) pg_catalog.pg_backend_pid()) as locks, \
pg_catalog.set_config('idle_session_timeout', $1::pg_catalog.text, false) as idle";

/// Proof of ownership: the beacon `$1`, `$2`, held twice, is given back once and taken once. `$3` is the idle limit from now on.
pub(crate) const HEARTBEAT: &str = "\
select pg_catalog.pg_advisory_unlock($1::pg_catalog.int4, $2::pg_catalog.int4) as had, \
pg_catalog.pg_try_advisory_lock($1::pg_catalog.int4, $2::pg_catalog.int4) as has, \
pg_catalog.set_config('idle_session_timeout', $3::pg_catalog.text, false) as idle, \
pg_catalog.pg_is_in_recovery() as in_recovery, \
pg_catalog.clock_timestamp() as now";

/// A heartbeat that also changes the TTL: the new beacon `$3`, `$4` comes first, then the limit `$5`, then the old beacon `$1`, `$2`
/// goes.
pub(crate) const RENEW: &str = "\
select pg_catalog.pg_advisory_unlock($1::pg_catalog.int4, $2::pg_catalog.int4) as had, \
n.beacon and n.again and pg_catalog.pg_advisory_unlock($1::pg_catalog.int4, $2::pg_catalog.int4) as has, \
n.idle, \
pg_catalog.pg_is_in_recovery() as in_recovery, \
pg_catalog.clock_timestamp() as now \
from (select pg_catalog.pg_try_advisory_lock($3::pg_catalog.int4, $4::pg_catalog.int4) as beacon, \
pg_catalog.pg_try_advisory_lock($3::pg_catalog.int4, $4::pg_catalog.int4) as again, \
pg_catalog.set_config('idle_session_timeout', $5::pg_catalog.text, false) as idle offset 0) as n";

/// Gives back the key `$1`.
pub(crate) const UNLOCK: &str = "select pg_catalog.pg_advisory_unlock($1::pg_catalog.int8) as owned";

/// On a borrowed session: and the beacon `$2`, `$3`, each only if what comes before it was owned, and the idle limit to `$4`.
pub(crate) const UNLOCK_BORROWED: &str = "\
select pg_catalog.pg_advisory_unlock($1::pg_catalog.int8) \
and pg_catalog.pg_advisory_unlock($2::pg_catalog.int4, $3::pg_catalog.int4) \
and pg_catalog.pg_advisory_unlock($2::pg_catalog.int4, $3::pg_catalog.int4) as owned, \
pg_catalog.set_config('idle_session_timeout', $4::pg_catalog.text, false) as idle";

/// Starts the transaction that owns a lock. Later statements see what was committed before them, not before the lock.
pub(crate) const BEGIN: &str = "begin isolation level read committed";

/// Ends it, and with it the lock.
pub(crate) const COMMIT: &str = "commit";

/// Ends it after a lock that was not granted.
pub(crate) const ROLLBACK: &str = "rollback";

/// A single try in a transaction: key `$1`, idle limit `$2`.
macro_rules! try_in_transaction {
    ($token:tt) => {
        concat!(
            "select case when pg_catalog.pg_is_in_recovery() then 'recovery' when g.granted then ",
            granted!($token),
            " else 'contended' end as answer, pg_catalog.now() as since, g.idle, \
             case when pg_catalog.current_setting('server_version_num')::pg_catalog.int4 operator(pg_catalog.>=) 170000 \
             then pg_catalog.set_config('transaction_timeout', '0', true) end as untimed \
             from (select pg_catalog.set_config('idle_in_transaction_session_timeout', $2::pg_catalog.text, true) as idle, \
             pg_catalog.pg_try_advisory_xact_lock($1::pg_catalog.int8) as granted offset 0) as g"
        )
    };
}
pub(crate) const TRY_IN_TRANSACTION: &str = try_in_transaction!(unfenced);
pub(crate) const TRY_IN_TRANSACTION_FENCED: &str = try_in_transaction!(fenced);

/// A queued wait in a transaction: key `$1`, the idle limit of a waiter `$2`, which stays until the statement that follows, and the
/// lock timeout `$3`.
macro_rules! wait_in_transaction {
    ($token:tt) => {
        concat!(
            "select case when pg_catalog.pg_is_in_recovery() then 'recovery' when g.waited is null then 'contended' else ",
            granted!($token),
            " end as answer, pg_catalog.now() as since, g.limited, g.idle, \
             pg_catalog.set_config('lock_timeout', '0', true) as unlimited \
             from (select pg_catalog.set_config('lock_timeout', $3::pg_catalog.text, true) as limited, \
             pg_catalog.set_config('idle_in_transaction_session_timeout', $2::pg_catalog.text, true) as idle, \
             pg_catalog.pg_advisory_xact_lock($1::pg_catalog.int8)::pg_catalog.text as waited offset 0) as g"
        )
    };
}
pub(crate) const WAIT_IN_TRANSACTION: &str = wait_in_transaction!(unfenced);
pub(crate) const WAIT_IN_TRANSACTION_FENCED: &str = wait_in_transaction!(fenced);

/// Proof of ownership in a transaction: it is the one that took the lock if it began when that one did.
pub(crate) const PROVE_TRANSACTION: &str = "\
select pg_catalog.now() as since, pg_catalog.pg_is_in_recovery() as in_recovery, pg_catalog.clock_timestamp() as now";

/// The same, with the idle limit `$1` from now on.
pub(crate) const HEARTBEAT_IN_TRANSACTION: &str = "\
select pg_catalog.now() as since, pg_catalog.pg_is_in_recovery() as in_recovery, pg_catalog.clock_timestamp() as now, \
pg_catalog.set_config('idle_in_transaction_session_timeout', $1::pg_catalog.text, true) as idle";
