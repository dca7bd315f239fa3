//! How a session begins: opened by us, or borrowed from a pool of the user's.

use std::hash::{BuildHasher, RandomState};

use distributed_lock::{Error, ErrorKind, Result};
use tokio_postgres::{Client, types::Type};

use super::{Asking, Beacon, DriverError, Own, Session, SessionKeeper, SessionTtl, Statements};
use crate::{
    answer::{beacon_taken, limits},
    connect::{Connector, Opened},
    error,
    keeper::Keeper,
    link::{Borrowed, Link, OwnLink},
    sql,
    timer::Timer,
    world::{WorldCell, ensure_borrowed, ensure_identity},
};

impl Session {
    /// Opens a session on the first server that accepts locks. `idle` is the limit of a session that owns nothing, in ms.
    pub(crate) async fn open(connector: &Connector, idle: i32, world: &WorldCell) -> Result<Self> {
        let set_up = async |opened: Opened| {
            let target = opened.target.clone();
            Self::set_up(OwnLink::drive(opened), &target, idle, world).await
        };
        connector.first(set_up).await
    }

    pub(super) async fn set_up(link: OwnLink, target: &str, idle: i32, world: &WorldCell) -> Result<Self> {
        let beacon = Beacon { ttl_millis: idle, random: random() };
        // All in one write.
        let (identity, initialized) =
            tokio::try_join!(biased; link.query_typed_one(sql::IDENTITY, &[]), initialize(&link, beacon))
                .map_err(|error| set_up_failed(error, target))?;
        ensure_identity(&identity, target, world)?;
        let (statements, own) = initialized.ok_or_else(beacon_taken)?;
        let link = Link::Own(link);
        Ok(Self {
            keeper: SessionKeeper(Keeper::new(link.watch())),
            link,
            random: beacon.random,
            timer: Timer::default(),
            asking: Asking::default(),
            statements,
            own: Some(own),
        })
    }

    /// A session over a connection of a pool that the user handed in. Its settings stay as they are.
    pub(crate) async fn borrow(object: deadpool_postgres::Object, world: &WorldCell) -> Result<Self> {
        let prepare = |statement, types| object.prepare_typed_cached(statement, types);
        // The statements come from the connection's own cache, but for the first time. Which server it is must be asked each time:
        // the pool may have reconnected to another.
        let (identity, try_lock, try_fenced, heartbeat, heartbeat_in_transaction, unlock, renew) = tokio::try_join!(
            object.simple_query(sql::BORROWED_IDENTITY),
            prepare(sql::TRY_BORROWED, LOCK_AND_LIMIT),
            prepare(sql::TRY_BORROWED_FENCED, LOCK_AND_LIMIT),
            prepare(sql::HEARTBEAT, BEACON_AND_LIMIT),
            prepare(sql::HEARTBEAT_IN_TRANSACTION, LIMIT),
            prepare(sql::UNLOCK_BORROWED, LOCK_AND_LIMIT),
            prepare(sql::RENEW, RENEW_TYPES),
        )
        .map_err(|error| error::wrap(error, "prepare a borrowed session"))?;
        if let Err(error) = ensure_borrowed(&identity, world) {
            drop(deadpool_postgres::Object::take(object));
            return Err(error);
        }
        let statements = Statements { try_lock, try_fenced, heartbeat, heartbeat_in_transaction, unlock, renew };
        let link = Link::Borrowed(Borrowed(object));
        Ok(Self {
            keeper: SessionKeeper(Keeper::new(link.watch())),
            link,
            random: random(),
            timer: Timer::default(),
            asking: Asking::default(),
            statements,
            own: None,
        })
    }
}

const KEY: &[Type] = &[Type::INT8];
const LOCK_AND_LIMIT: &[Type] = &[Type::INT8, Type::INT4, Type::INT4, Type::TEXT];
const LIMIT: &[Type] = &[Type::TEXT];
const BEACON_AND_LIMIT: &[Type] = &[Type::INT4, Type::INT4, Type::TEXT];
const RENEW_TYPES: &[Type] = &[Type::INT4, Type::INT4, Type::INT4, Type::INT4, Type::TEXT];

/// Our settings, beacon and statements, in one write.
///
/// `None` if another session has this beacon.
pub(super) async fn initialize(client: &Client, beacon: Beacon) -> Result<Option<(Statements, Own)>, DriverError> {
    let Beacon { ttl_millis, random } = beacon;
    let idle = ttl_millis.to_string();
    let settings = [(&idle as _, Type::TEXT), (&ttl_millis as _, Type::INT4), (&random as _, Type::INT4)];
    let (before, try_lock, try_fenced, heartbeat, heartbeat_in_transaction, unlock, renew) = tokio::try_join!(
        biased;
        client.query_typed_one(sql::SETUP, &settings),
        client.prepare_typed(sql::TRY, KEY),
        client.prepare_typed(sql::TRY_FENCED, KEY),
        client.prepare_typed(sql::HEARTBEAT, BEACON_AND_LIMIT),
        client.prepare_typed(sql::HEARTBEAT_IN_TRANSACTION, LIMIT),
        client.prepare_typed(sql::UNLOCK, KEY),
        client.prepare_typed(sql::RENEW, RENEW_TYPES),
    )?;
    let own = Own { inherited: limits(&before)?, ttl: SessionTtl::new(ttl_millis) };
    let taken = before.try_get::<_, bool>("beacon")? && before.try_get::<_, bool>("again")?;
    Ok(taken.then_some((Statements { try_lock, try_fenced, heartbeat, heartbeat_in_transaction, unlock, renew }, own)))
}

/// The keys of a `RandomState` come from the system, and each one has others.
fn random() -> i32 {
    let [a, b, c, d, ..] = RandomState::new().hash_one(()).to_be_bytes();
    i32::from_be_bytes([a, b, c, d])
}

fn set_up_failed(error: DriverError, target: &str) -> Error {
    if error.code().is_some_and(|state| state.code() == "42704") {
        let message = format!("{target} lacks a setting that leases need: PostgreSQL 14 or newer is required");
        return error::with_state(Error::new(ErrorKind::Misconfigured, message), error);
    }
    error::wrap(error, "set up a session")
}
