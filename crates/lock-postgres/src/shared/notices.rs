//! What lockers tell each other through the server: that one waits for a key, and that a key is free again. Sent by the housekeeping
//! session, many at a time. None of it is needed for safety: whoever hears nothing tries again after a while.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_postgres::types::Type;

use crate::{core::Core, sql_lanes as sql};

/// In one statement.
const MOST: usize = 500;

#[derive(Clone, Debug)]
pub(super) struct Notices(mpsc::UnboundedSender<Notice>);

#[derive(Debug)]
enum Notice {
    Wanted(i64),
    Released(i64),
}

impl Notices {
    /// What was sent is to be sent on by [`send_all`](Unsent::send_all).
    pub(super) fn new() -> (Self, Unsent) {
        let (sender, unsent) = mpsc::unbounded_channel();
        (Self(sender), Unsent(unsent))
    }

    /// Whoever holds this id is to tell us of its release. Does not wait.
    pub(super) fn wanted(&self, id: i64) {
        let _ = self.0.send(Notice::Wanted(id));
    }

    /// Whoever waits for this id may try. Does not wait.
    pub(super) fn released(&self, id: i64) {
        let _ = self.0.send(Notice::Released(id));
    }
}

#[derive(Debug)]
pub(super) struct Unsent(mpsc::UnboundedReceiver<Notice>);

impl Unsent {
    /// Until nobody is left who could have something to tell.
    pub(super) async fn send_all(mut self, core: Arc<Core>) {
        let mut notices = Vec::new();
        while self.0.recv_many(&mut notices, MOST).await > 0 {
            let (mut wanted, mut released) = (Vec::new(), Vec::new());
            for notice in notices.drain(..) {
                match notice {
                    Notice::Wanted(id) => wanted.push(id),
                    Notice::Released(id) => released.push(id),
                }
            }
            send(&core, sql::RELEASED_CHANNEL, &released).await;
            send(&core, sql::WANTED_CHANNEL, &wanted).await;
        }
    }
}

async fn send(core: &Core, channel: &str, ids: &[i64]) {
    let Some(housekeeping) = core.housekeeping.as_ref().filter(|_| !ids.is_empty()) else { return };
    let texts: Vec<_> = ids.iter().map(|id| format!("{} {id}", core.settings.namespace)).collect();
    let parameters = [(&channel as _, Type::TEXT), (&texts as _, Type::TEXT_ARRAY)];
    if let Err(error) = housekeeping.ask(sql::NOTIFY, &parameters, "tell other lockers of a key").await {
        tracing::debug!(target: "lock_postgres", %error, channel, "a notice could not be sent");
    }
}
