//! Of the sessions that own many locks, and of those that wait for what such a session holds.
//!
//! Keys of the two-int space with a first half under 1,000 are no beacons, since no TTL is that short: `1` marks a lane, whose second half
//! is that of its beacon; `2, 1` is the gate before the last parts of the server's table of locks.

/// Marks the session as a lane with the random half `$1` of its beacon, and what the server's table of locks can hold: for one session
/// and in all.
pub(crate) const MARK: &str = "\
select pg_catalog.pg_try_advisory_lock(1, $1::pg_catalog.int4) as marked, s.share, \
s.share operator(pg_catalog.*) (pg_catalog.current_setting('max_connections')::pg_catalog.int8 \
operator(pg_catalog.+) pg_catalog.current_setting('max_prepared_transactions')::pg_catalog.int8) as capacity \
from (select pg_catalog.current_setting('max_locks_per_transaction')::pg_catalog.int8 as share offset 0) as s";

macro_rules! token {
    (unfenced) => {
        "null::pg_catalog.text"
    };
    // Above the arrays, since below them it would be fixed at the first grant.
    (fenced) => {
        "case when true operator(pg_catalog.=) any (g.locked) then \
         pg_catalog.concat_ws(' ', pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), \
         (pg_catalog.pg_control_checkpoint()).redo_lsn, pg_catalog.pg_current_xact_id()) end"
    };
}

/// Many keys in one statement: gives back those of `$1`, then tries those of `$2`, then makes one token for all that were granted. Their
/// answers come in the order of the keys.
macro_rules! batch {
    ($token:tt) => {
        concat!(
            "select pg_catalog.pg_is_in_recovery() as in_recovery, g.unlocked, g.locked, ",
            token!($token),
            " as token from (select array(select pg_catalog.pg_advisory_unlock(k) from pg_catalog.unnest($1::pg_catalog.int8[]) as k) \
             as unlocked, \
             array(select pg_catalog.pg_try_advisory_lock(k) from pg_catalog.unnest($2::pg_catalog.int8[]) as k) as locked offset 0) as g"
        )
    };
}
pub(crate) const BATCH: &str = batch!(unfenced);
pub(crate) const BATCH_FENCED: &str = batch!(fenced);

/// Behind the gate: marks up to `$4` more blocks as those of this session, which has `$3`, while that many fit under `$2`, where a block is
/// `$1` places in the server's table of locks. A session with blocks counts as if it had filled them, and the `$5` places that it takes
/// unasked; any other by what it holds. `in_use` is null where somebody else is in the gate.
pub(crate) const RESERVE: &str = "\
select g.in_use, g.taken, case when g.gate then pg_catalog.pg_advisory_unlock(2, 1) end as left_gate \
from (select r.gate, r.in_use, \
case when r.gate then (select pg_catalog.count(*)::pg_catalog.int4 from (select pg_catalog.pg_try_advisory_lock_shared(3, n) as marked \
from pg_catalog.generate_series($3::pg_catalog.int4 operator(pg_catalog.+) 1, \
$3::pg_catalog.int4 operator(pg_catalog.+) least($4::pg_catalog.int8, \
($2::pg_catalog.int8 operator(pg_catalog.-) r.in_use) operator(pg_catalog./) $1::pg_catalog.int8)::pg_catalog.int4) as n offset 0) as m \
where m.marked) end as taken \
from (select t.gate, case when t.gate then (select coalesce(pg_catalog.sum(\
case when p.blocks operator(pg_catalog.>) 0::pg_catalog.int8 then greatest(p.locks, \
(p.blocks operator(pg_catalog.*) $1::pg_catalog.int8) operator(pg_catalog.+) $5::pg_catalog.int8) else p.locks end)::pg_catalog.int8, 0::pg_catalog.int8) \
from (select pg_catalog.count(*) as locks, pg_catalog.count(case when l.locktype operator(pg_catalog.=) 'advisory'::pg_catalog.text \
and l.classid operator(pg_catalog.=) 3::pg_catalog.oid and l.objsubid operator(pg_catalog.=) 2::pg_catalog.int2 then 1 end) as blocks \
from pg_catalog.pg_locks as l where not l.fastpath group by l.pid) as p) end as in_use \
from (select pg_catalog.pg_try_advisory_lock(2, 1) as gate offset 0) as t offset 0) as r offset 0) as g";

/// Gives back the marks of the blocks after `$1`, of `$2`.
pub(crate) const UNRESERVE: &str = "\
select pg_catalog.count(u.unmarked) as blocks from (select pg_catalog.pg_advisory_unlock_shared(3, n) as unmarked \
from pg_catalog.generate_series($1::pg_catalog.int4 operator(pg_catalog.+) 1, $2::pg_catalog.int4) as n offset 0) as u";

/// After a statement that failed in the middle, which keeps what it had done: gives back those of the keys `$1` that the session has, the
/// marks of blocks after `$2` unless that is null, and leaves the gate. In the order of the keys: null where it had none. Looks into no
/// catalogue that is shared by databases: that would take places in the server's table of locks, which may be full.
pub(crate) const GIVE_BACK: &str = "\
with m as materialized (select case when k.objsubid operator(pg_catalog.=) 1::pg_catalog.int2 \
then (k.classid::pg_catalog.int8 operator(pg_catalog.<<) 32) operator(pg_catalog.|) k.objid::pg_catalog.int8 end as id, \
case when k.objsubid operator(pg_catalog.=) 2::pg_catalog.int2 then k.classid::pg_catalog.int8 end as ttl, \
k.objid::pg_catalog.int8 as second \
from pg_catalog.pg_locks as k where k.locktype operator(pg_catalog.=) 'advisory'::pg_catalog.text \
and k.pid operator(pg_catalog.=) pg_catalog.pg_backend_pid() and k.granted) \
select array(select case when exists (select from m where m.id operator(pg_catalog.=) k) then pg_catalog.pg_advisory_unlock(k) end \
from pg_catalog.unnest($1::pg_catalog.int8[]) as k) as unlocked, \
array(select pg_catalog.pg_advisory_unlock_shared(3, m.second::pg_catalog.int4) from m where m.ttl operator(pg_catalog.=) 3::pg_catalog.int8 \
and m.second operator(pg_catalog.>) $2::pg_catalog.int4::pg_catalog.int8) as unmarked, \
case when exists (select from m where m.ttl operator(pg_catalog.=) 2::pg_catalog.int8) \
then pg_catalog.pg_advisory_unlock(2, 1) end as left_gate";

/// Which of the ids `$1` the lane that is marked with the number in `$2` does not hold.
pub(crate) const MISSING: &str = with_locks!(
    "select w.id from (select pg_catalog.unnest($1::pg_catalog.int8[]) as id, pg_catalog.unnest($2::pg_catalog.int8[]) as mark offset 0) as w \
     where not exists (select from l as k join l as m on m.pid operator(pg_catalog.=) k.pid \
     where k.granted and k.id operator(pg_catalog.=) w.id \
     and m.ttl operator(pg_catalog.=) 1::pg_catalog.int8 and m.random operator(pg_catalog.=) w.mark) limit 500"
);

/// Of the ids `$1`: whether anybody holds it, whether anybody queues for it, and if a lane holds it, its beacon.
pub(crate) const LOOK: &str = with_locks!(
    "select w.id, h.held, h.queued, b.ttl, b.random \
     from (select pg_catalog.unnest($1::pg_catalog.int8[]) as id offset 0) as w \
     cross join lateral (select pg_catalog.bool_or(l.granted) as held, pg_catalog.bool_or(not l.granted) as queued from l \
     where l.id operator(pg_catalog.=) w.id) as h \
     left join lateral (select b.ttl, b.random from l as k join l as b on b.pid operator(pg_catalog.=) k.pid \
     join l as m on m.pid operator(pg_catalog.=) k.pid and m.random operator(pg_catalog.=) b.random \
     where k.granted and k.id operator(pg_catalog.=) w.id and b.ttl operator(pg_catalog.>=) 1000::pg_catalog.int8 \
     and m.ttl operator(pg_catalog.=) 1::pg_catalog.int8 limit 1) as b on true"
);

/// Sends each of the texts `$2` to the channel `$1`.
pub(crate) const NOTIFY: &str = "\
select pg_catalog.count(n.sent) as sent from (select pg_catalog.pg_notify($1::pg_catalog.text, t)::pg_catalog.text as sent \
from pg_catalog.unnest($2::pg_catalog.text[]) as t offset 0) as n";

/// Settings of a session that waits for the end of another one: `$1` is its idle limit.
pub(crate) const SETUP_WATCH: &str = "\
select pg_catalog.set_config('idle_session_timeout', $1::pg_catalog.text, false) as s1, \
pg_catalog.set_config('client_connection_check_interval', '500', false) as s2, \
pg_catalog.set_config('statement_timeout', '0', false) as s3, \
pg_catalog.set_config('lock_timeout', '0', false) as s4, \
pg_catalog.set_config('tcp_keepalives_idle', '5', false) as s5, \
pg_catalog.set_config('tcp_keepalives_interval', '2', false) as s6, \
pg_catalog.set_config('tcp_keepalives_count', '3', false) as s7, \
case when pg_catalog.current_setting('server_version_num')::pg_catalog.int4 operator(pg_catalog.>=) 170000 \
then pg_catalog.set_config('transaction_timeout', '0', false) end as s8";

/// Answers when nobody has the beacon `$1`, `$2` any more.
pub(crate) const WATCH: &str =
    "select pg_catalog.pg_advisory_lock_shared($1::pg_catalog.int4, $2::pg_catalog.int4)::pg_catalog.text as ended";

/// Where lockers say that they wait for a key, and where its release is told to them. The payload is the namespace and the id, in decimal
/// with a space between.
pub(crate) const WANTED_CHANNEL: &str = "distributed_lock_wanted";
pub(crate) const RELEASED_CHANNEL: &str = "distributed_lock_released";

/// From then on the session hears what is sent there.
pub(crate) const LISTEN: &str = "listen distributed_lock_wanted; listen distributed_lock_released";
pub(crate) const LISTEN_TO_ALL: &str =
    "listen distributed_lock_step_down; listen distributed_lock_wanted; listen distributed_lock_released";
