//! The statements of sessions that know nothing of the locker.

use tokio_postgres::{Client, Error, Row, types::Type};

pub(crate) fn has_state(error: &Error, state: &str) -> bool {
    error.code().is_some_and(|code| code.code() == state)
}

pub(crate) async fn ask(client: &Client, statement: &str, id: i64) -> Result<Row, Error> {
    client.query_typed_one(statement, &[(&id, Type::INT8)]).await
}

pub(crate) const TRY: &str = "select pg_catalog.pg_try_advisory_lock($1::pg_catalog.int8)";
pub(crate) const LOCK: &str = "select pg_catalog.pg_advisory_lock($1::pg_catalog.int8)::pg_catalog.text";
pub(crate) const UNLOCK: &str = "select pg_catalog.pg_advisory_unlock($1::pg_catalog.int8)";
pub(crate) const OWNED: &str = "select pg_catalog.count(*) from pg_catalog.pg_locks as l \
    where l.locktype operator(pg_catalog.=) 'advisory'::pg_catalog.text and l.granted \
    and l.pid operator(pg_catalog.=) pg_catalog.pg_backend_pid() and l.objsubid operator(pg_catalog.=) 1::pg_catalog.int2 \
    and ((l.classid::pg_catalog.int8 operator(pg_catalog.<<) 32) operator(pg_catalog.|) l.objid::pg_catalog.int8) \
    operator(pg_catalog.=) $1::pg_catalog.int8";
