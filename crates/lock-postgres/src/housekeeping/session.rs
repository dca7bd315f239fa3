//! The connection itself: opened, set up, driven.

use std::{fmt, future::poll_fn};

use distributed_lock::Result;
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client, types::Type};
use tokio_util::sync::CancellationToken;

use super::{Desk, step_down::Ear};
use crate::{
    connect::{Opened, SocketHandle},
    error, sql,
    world::ensure_identity,
};

/// After so long without a question the server ends the session, unless it listens. In ms.
const IDLE_LIMIT: &str = "60000";
const NO_LIMIT: &str = "0";

/// Dropped, it ends, with or without a runtime.
pub(super) struct HouseSession {
    pub(super) client: Client,
    pub(super) socket: SocketHandle,
    driver: AbortHandle,
    /// Cancelled when it has ended.
    pub(super) ended: CancellationToken,
}

impl HouseSession {
    /// Spawns what polls the connection, on the runtime on which it was opened.
    fn drive(opened: Opened, ear: Ear) -> Self {
        let Opened { client, mut connection, socket, .. } = opened;
        let ended = CancellationToken::new();
        let told = ended.clone().drop_guard();
        let driver = tokio::spawn(async move {
            let _told = told;
            while let Some(Ok(message)) = poll_fn(|cx| connection.as_mut().poll_message(cx)).await {
                if let AsyncMessage::Notification(notification) = message {
                    ear.hear(&notification);
                }
            }
        });
        Self { client, socket, driver: driver.abort_handle(), ended }
    }

    pub(super) fn is_over(&self) -> bool {
        self.client.is_closed() || self.ended.is_cancelled()
    }
}

impl Drop for HouseSession {
    fn drop(&mut self) {
        self.socket.shutdown_write();
        self.driver.abort();
    }
}

impl fmt::Debug for HouseSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HouseSession").field("over", &self.is_over()).finish_non_exhaustive()
    }
}

impl Desk {
    pub(super) async fn open(&self) -> Result<HouseSession> {
        self.connector.first(|opened| self.set_up(opened)).await
    }

    async fn set_up(&self, opened: Opened) -> Result<HouseSession> {
        let target = opened.target.clone();
        let session = HouseSession::drive(opened, self.ear.clone());
        let client = &session.client;
        let idle = [(if self.listens_to.is_some() { &NO_LIMIT } else { &IDLE_LIMIT } as _, Type::TEXT)];
        let listen = async {
            match self.listens_to {
                Some(channels) => client.batch_execute(channels).await,
                None => Ok(()),
            }
        };
        // In this order and in one write.
        let (identity, _settings, ()) = tokio::try_join!(
            biased;
            client.query_typed_one(sql::IDENTITY, &[]),
            client.query_typed_one(sql::SETUP_HOUSEKEEPING, &idle),
            listen,
        )
        .map_err(|error| error::wrap(error, "set up the housekeeping session"))?;
        ensure_identity(&identity, &target, &self.world)?;
        Ok(session)
    }
}
