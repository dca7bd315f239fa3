//! A session that takes keys by plain SQL.

use tokio_postgres::{Client, Config, NoTls};

use crate::{
    Failure,
    tokens::{
        way::Way,
        witness::{Hold, Mark, Record},
    },
};

pub(super) async fn connect(config: &Config) -> Result<Client, Failure> {
    let (client, connection) = config.connect(NoTls).await?;
    // Ends with the client.
    tokio::spawn(connection);
    Ok(client)
}

/// All that a token could be made of, in SQL.
macro_rules! parts {
    () => {
        "pg_catalog.concat_ws(' ', \
         ('x' operator(pg_catalog.||) pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8)) \
         ::pg_catalog.bit(32)::pg_catalog.int8, \
         (pg_catalog.pg_control_checkpoint()).timeline_id, \
         (pg_catalog.pg_control_checkpoint()).redo_lsn operator(pg_catalog.-) '0/0'::pg_catalog.pg_lsn, \
         pg_catalog.pg_current_xact_id())"
    };
}
pub(super) use parts;

/// Takes the key `$1` until it is given back, or until the transaction is over.
pub(super) const TAKE: &str =
    concat!("select case when pg_catalog.pg_try_advisory_lock($1::pg_catalog.int8) then ", parts!(), " end as parts");
pub(super) const TAKE_IN_TRANSACTION: &str = concat!(
    "select case when pg_catalog.pg_try_advisory_xact_lock($1::pg_catalog.int8) then ",
    parts!(),
    " end as parts"
);
const UNLOCK: &str = "select pg_catalog.pg_advisory_unlock($1::pg_catalog.int8)";

#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub(super) timeline: u128,
    pub(super) control_timeline: u128,
    pub(super) redo: u128,
    pub(super) id: u128,
}

impl Parts {
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let numbers: Vec<u128> = text.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [timeline, control_timeline, redo, id] = numbers[..] else {
            return Err(format!("no parts: {text:?}").into());
        };
        Ok(Self { timeline, control_timeline, redo, id })
    }

    pub(super) fn right(self) -> u128 {
        token(self.timeline, self.redo, self.id)
    }

    pub(super) fn by_control_file(self) -> u128 {
        token(self.control_timeline, self.redo, self.id)
    }
}

/// Laid out as the library does, without the epoch.
fn token(timeline: u128, redo: u128, id: u128) -> u128 {
    timeline << 104 | (redo / 8) << 50 | id
}

pub(super) async fn take(client: &Client, statement: &str, key: i64) -> Result<Parts, Failure> {
    let parts: Option<String> = client.query_one(statement, &[&key]).await?.get("parts");
    Parts::parse(&parts.ok_or("the key is taken")?)
}

pub(super) async fn give_back(client: &Client, key: i64) -> Result<(), Failure> {
    let unlocked: bool = client.query_one(UNLOCK, &[&key]).await?.get(0);
    if unlocked { Ok(()) } else { Err("the key was not held".into()) }
}

/// Records of holds with what they were granted, in order. Who writes them takes care that they are noted when they must.
#[derive(Default)]
pub(super) struct Log(pub(super) Vec<(Mark, u64, usize, Parts)>);

impl Log {
    pub(super) fn note(&mut self, mark: Mark, id: u64, asked: usize, parts: Parts) {
        self.0.push((mark, id, asked, parts));
    }

    /// A hold from its note to its release.
    pub(super) fn whole(&mut self, id: u64, asked: usize, parts: Parts) {
        for mark in [Mark::Granted, Mark::Ending, Mark::Released] {
            self.note(mark, id, asked, parts);
        }
    }

    pub(super) fn with(&self, token: impl Fn(Parts) -> u128) -> Vec<Record> {
        let record = |&(mark, id, asked, parts): &_| Record {
            mark,
            hold: Hold { id, way: Way::Sql, asked, token: token(parts) },
        };
        self.0.iter().map(record).collect()
    }
}
