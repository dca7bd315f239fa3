//! Waits for the end of lanes of other lockers, so that their keys are tried at once when a holder dies: one connection for each of their
//! sessions, queued for its beacon.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use distributed_lock::{Error, ErrorKind, Result};
use tokio::time::sleep;
use tokio_postgres::types::Type;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    connect::{Connector, Opened},
    core::Core,
    error,
    session::Beacon,
    sql, sql_lanes as lanes,
    timing::server_millis,
    world::ensure_identity,
};

/// At a time. Whose beacon is not waited for is found by trying.
const MOST: usize = 16;

/// After a wait that failed, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Beacons {
    core: Arc<Core>,
    connector: Connector,
    // A std mutex: never held across an await.
    watched: Mutex<HashMap<Beacon, Weak<Watched>>>,
}

/// Dropped by all who wait, its connection ends.
#[derive(Debug)]
pub(super) struct Watched {
    ended: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

impl Watched {
    /// Until the session has ended that has the beacon. Cancel safe.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Beacons {
    pub(super) fn new(core: Arc<Core>, connector: Connector) -> Self {
        Self { core, connector: connector.for_housekeeping(), watched: Mutex::default() }
    }

    /// On the caller's runtime, unless somebody watches it already. `None` if too many are watched.
    pub(super) fn watch(&self, beacon: Beacon) -> Option<Arc<Watched>> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watched) = watched.get(&beacon).and_then(Weak::upgrade) {
            return Some(watched);
        }
        watched.retain(|_, watched| watched.strong_count() > 0);
        if watched.len() >= MOST {
            return None;
        }
        let ended = CancellationToken::new();
        let (core, connector, tell) = (Arc::clone(&self.core), self.connector.clone(), ended.clone());
        let task = tokio::spawn(async move {
            let mut pause = FIRST_PAUSE;
            loop {
                match connector.first(|opened| begin(opened, &core)).await {
                    Ok(watch) => match watch.until_ended(beacon).await {
                        Ok(()) => return tell.cancel(),
                        Err(error) => {
                            tracing::debug!(target: "lock_postgres", %error, "a wait for a session's end failed")
                        }
                    },
                    Err(error) => {
                        tracing::debug!(target: "lock_postgres", %error, "the end of a session cannot be waited for")
                    }
                }
                sleep(pause).await;
                pause = LONGEST_PAUSE.min(pause * 2);
            }
        });
        let new = Arc::new(Watched { ended, _task: AbortOnDropHandle::new(task) });
        watched.insert(beacon, Arc::downgrade(&new));
        Some(new)
    }
}

/// A connection that is ready to wait. Dropped, it ends.
struct Watch(Opened);

/// Nobody but its own session has a beacon for longer, should the one who waited be cut off.
async fn begin(mut opened: Opened, core: &Core) -> Result<Watch> {
    let idle = server_millis(core.settings.session.waiter_idle()).to_string();
    let settings = [(&idle as _, Type::TEXT)];
    let target = opened.target.clone();
    let asked = async {
        // In this order and in one write.
        tokio::try_join!(
            biased;
            opened.client.query_typed_one(sql::IDENTITY, &[]),
            opened.client.query_typed_one(lanes::SETUP_WATCH, &settings),
        )
    };
    let (identity, _) = tokio::select! {
        biased;
        asked = asked => asked.map_err(|error| error::wrap(error, "set up a session that waits for another's end"))?,
        _ = &mut opened.connection => return Err(ended()),
    };
    ensure_identity(&identity, &target, &core.world)?;
    Ok(Watch(opened))
}

impl Watch {
    async fn until_ended(mut self, Beacon { ttl_millis, random }: Beacon) -> Result<()> {
        let Opened { client, connection, .. } = &mut self.0;
        let halves = [(&ttl_millis as _, Type::INT4), (&random as _, Type::INT4)];
        tokio::select! {
            biased;
            answer = client.query_typed_one(lanes::WATCH, &halves) => {
                answer.map(drop).map_err(|error| error::wrap(error, "wait for a session's end"))
            }
            _ = connection => Err(ended()),
        }
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection that waits for a session's end has ended")
}
