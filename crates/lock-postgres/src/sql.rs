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

/// Takes back whatever somebody left in a session: settings, locks, statements, temporary tables, listeners. The parts of `discard all`,
/// which must be a message of its own and leaves a session without limits: cut off then, it would stay in the server. Here they come
/// with the limits, `idle` in ms, and the server carries out all of it or nothing.
pub(crate) fn forget(idle: i32) -> String {
    format!(
        "close all; set session authorization default; reset all; deallocate all; unlisten *; discard plans; discard temp; \
         discard sequences; select pg_catalog.pg_advisory_unlock_all(), \
         pg_catalog.set_config('idle_session_timeout', '{idle}', false), \
         pg_catalog.set_config('client_connection_check_interval', '500', false), \
         pg_catalog.set_config('tcp_keepalives_idle', '5', false), \
         pg_catalog.set_config('tcp_keepalives_interval', '2', false), \
         pg_catalog.set_config('tcp_keepalives_count', '3', false)"
    )
}

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
/// `lock_timeout` `$2`, and the idle limit of a holder `$3`. A beacon without end, for as long as the transaction, says that no lease
/// is kept: the body may stream for as long as it likes, and is not to be taken for one that was cut off (see `SILENT`).
pub(crate) const FOR_BODY: &str = "\
select pg_catalog.set_config('statement_timeout', $1::pg_catalog.text, true) as s1, \
pg_catalog.set_config('lock_timeout', $2::pg_catalog.text, true) as s2, \
pg_catalog.set_config('idle_in_transaction_session_timeout', $3::pg_catalog.text, true) as s3, \
pg_catalog.pg_try_advisory_xact_lock(2147483647::pg_catalog.int4, pg_catalog.pg_backend_pid()) as endless";

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

/// Settings of the housekeeping session. It owns no locks, so its limits are there to keep it out of other people's way: a commit that
/// notifies takes a lock of the whole server, and one that waited for a standby would keep it. `$1` is the idle limit.
pub(crate) const SETUP_HOUSEKEEPING: &str = "\
select pg_catalog.set_config('idle_session_timeout', $1::pg_catalog.text, false) as s1, \
pg_catalog.set_config('synchronous_commit', 'off', false) as s2, \
pg_catalog.set_config('statement_timeout', '5000', false) as s3, \
pg_catalog.set_config('lock_timeout', '2000', false) as s4, \
pg_catalog.set_config('tcp_keepalives_idle', '5', false) as s5, \
pg_catalog.set_config('tcp_keepalives_interval', '2', false) as s6, \
pg_catalog.set_config('tcp_keepalives_count', '3', false) as s7";

/// Where requests to step down are sent. The payload is the namespace, the id and a number of the sender, in decimal with a
/// space between; names are in neither. Whoever may connect to the database can send there, and can thus ask, but not make, a holder step down.
pub(crate) const STEP_DOWN_CHANNEL: &str = "distributed_lock_step_down";

/// From then on the session hears what is sent to `STEP_DOWN_CHANNEL`.
pub(crate) const LISTEN: &str = "listen distributed_lock_step_down";

/// The advisory locks of this database with 64-bit keys, `id`, and those of the two-int space, `ttl` and the random part of beacons.
/// One look at the table, evaluated before whatever refers to it.
macro_rules! with_locks {
    ($($rest:tt)+) => {
        concat!(
            "with l as materialized (select k.pid, k.granted, k.waitstart, k.mode, \
             case when k.objsubid operator(pg_catalog.=) 1::pg_catalog.int2 \
             then (k.classid::pg_catalog.int8 operator(pg_catalog.<<) 32) operator(pg_catalog.|) k.objid::pg_catalog.int8 end as id, \
             case when k.objsubid operator(pg_catalog.=) 2::pg_catalog.int2 and k.granted \
             and k.mode operator(pg_catalog.=) 'ExclusiveLock'::pg_catalog.text then k.classid::pg_catalog.int8 end as ttl, \
             k.objid::pg_catalog.int8 as random \
             from pg_catalog.pg_locks as k \
             where k.locktype operator(pg_catalog.=) 'advisory'::pg_catalog.text \
             and k.database operator(pg_catalog.=) (select d.oid from pg_catalog.pg_database as d \
             where d.datname operator(pg_catalog.=) pg_catalog.current_database())) ",
            $($rest)+
        )
    };
}

/// Who holds the id `$1`. The server keeps no time of a grant: the lock of a session that is idle in a transaction counts from the begin
/// of that, all others from the begin of the session.
pub(crate) const HOLDERS: &str = with_locks!(
    "select l.pid, a.backend_start, a.application_name, pg_catalog.host(a.client_addr) as host, \
     case when a.state operator(pg_catalog.=) 'idle in transaction'::pg_catalog.text then a.xact_start else a.backend_start end as since, \
     pg_catalog.clock_timestamp() as now \
     from l left join lateral pg_catalog.pg_stat_get_activity(l.pid) as a on l.pid is not null \
     where l.id operator(pg_catalog.=) $1::pg_catalog.int8 and l.granted order by l.pid"
);

/// Who waits for the id `$1`, in the order of the queue.
pub(crate) const WAITERS: &str = with_locks!(
    "select l.pid, a.backend_start, a.application_name, pg_catalog.host(a.client_addr) as host, \
     l.waitstart as since, pg_catalog.clock_timestamp() as now \
     from l left join lateral pg_catalog.pg_stat_get_activity(l.pid) as a on l.pid is not null \
     where l.id operator(pg_catalog.=) $1::pg_catalog.int8 and not l.granted order by l.waitstart, l.pid"
);

/// Ends the backend `$2` that began at `$3` if it holds the id `$1`; null if the server does not show us when it began. No row if it
/// is another, or holds no more.
pub(crate) const END_HOLDER: &str = with_locks!(
    "select case when h.backend_start is not null then pg_catalog.pg_terminate_backend(h.pid) end as ended \
     from (select l.pid, a.backend_start from l cross join lateral pg_catalog.pg_stat_get_activity(l.pid) as a \
     where l.id operator(pg_catalog.=) $1::pg_catalog.int8 and l.granted and l.pid operator(pg_catalog.=) $2::pg_catalog.int4 \
     and (a.backend_start is null or a.backend_start operator(pg_catalog.=) $3::pg_catalog.timestamptz) limit 1 offset 0) as h"
);

/// Asks the holder of the id `$1` to step down: sends `$2` to `STEP_DOWN_CHANNEL`, if anybody holds it, and if it is the backend `$3`
/// where that is not null.
pub(crate) const REQUEST_STEP_DOWN: &str = with_locks!(
    "select h.pid, pg_catalog.pg_notify('distributed_lock_step_down', $2::pg_catalog.text)::pg_catalog.text as asked \
     from (select l.pid from l where l.id operator(pg_catalog.=) $1::pg_catalog.int8 and l.granted \
     and ($3::pg_catalog.int4 is null or l.pid operator(pg_catalog.=) $3::pg_catalog.int4) limit 1 offset 0) as h"
);

/// Holders of one of the ids `$1` with a beacon of a lease, the longest T if they have several, and what they are doing. Their locks are looked at first: whoever is seen
/// to hold is also seen to have been active when it took the lock.
macro_rules! with_leases {
    ($($rest:tt)+) => {
        with_locks!(
            ", h as materialized (select k.pid, pg_catalog.max(b.ttl)::pg_catalog.float8 as ttl from l as k \
             join l as b on b.pid operator(pg_catalog.=) k.pid \
             where k.id operator(pg_catalog.=) any ($1::pg_catalog.int8[]) and k.granted \
             and b.ttl operator(pg_catalog.>=) 1000::pg_catalog.int8 group by k.pid) ",
            $($rest)+
        )
    };
}

/// True of a session that waits for its client and has been silent for longer than T + max(T/10, 250 ms).
macro_rules! silent {
    () => {
        "a.wait_event_type operator(pg_catalog.=) 'Client'::pg_catalog.text \
         and pg_catalog.clock_timestamp() operator(pg_catalog.-) a.state_change operator(pg_catalog.>) \
         pg_catalog.make_interval(secs => (h.ttl operator(pg_catalog.+) greatest(h.ttl operator(pg_catalog./) 10::pg_catalog.float8, \
         250::pg_catalog.float8)) operator(pg_catalog./) 1000::pg_catalog.float8)"
    };
}

/// Those that were silent for too long, or whose activity the server does not show us: `blind`.
pub(crate) const SILENT: &str = with_leases!(
    "select h.pid, a.backend_start, a.state_change, a.state_change is null as blind \
     from h cross join lateral pg_catalog.pg_stat_get_activity(h.pid) as a where a.state_change is null or ",
    silent!()
);

/// Ends the backend `$2` that began at `$3` if it has done nothing since `$4` and still is one of those.
pub(crate) const END_SILENT: &str = with_leases!(
    "select pg_catalog.pg_terminate_backend(s.pid) as ended \
     from (select h.pid from h cross join lateral pg_catalog.pg_stat_get_activity(h.pid) as a \
     where h.pid operator(pg_catalog.=) $2::pg_catalog.int4 \
     and a.backend_start operator(pg_catalog.=) $3::pg_catalog.timestamptz \
     and a.state_change operator(pg_catalog.=) $4::pg_catalog.timestamptz and ",
    silent!(),
    " limit 1 offset 0) as s"
);
