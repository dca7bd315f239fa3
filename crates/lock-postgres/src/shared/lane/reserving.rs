//! How a lane asks for places in the server's table of locks, and gives back those that it does not need.

use std::{
    sync::Arc,
    task::Context,
    time::{Duration, Instant},
};

use distributed_lock::{Error, ErrorKind};

use super::{
    batches::{Answer, OTHER, What},
    work::Work,
};
use crate::{
    error,
    session::{DriverError, LockTable, Places},
};

impl Work {
    /// Keys that the session has, or will have if it gets all that is under way.
    pub(super) fn owned(&self) -> usize {
        self.holds.len() + self.batches.asked()
    }

    /// Where there is no room for what is asked. `false` if there is nothing to ask now.
    pub(super) fn ask_for_room(&mut self, now: Instant, cx: &mut Context<'_>) -> bool {
        let owned = self.owned();
        if self.asks.is_empty() || self.room.left(owned) > 0 {
            return false;
        }
        let Some(wanted) = self.room.ask(owned + self.asks.len()) else { return false };
        self.write_left = self.write_left.saturating_sub(OTHER);
        let (session, batch, table) = (Arc::clone(&self.session), Arc::clone(&self.batch), self.room.table);
        let asking = async move { session.reserve(&batch, &table, wanted).await.map(Answer::Places) };
        self.batches.send((now, What::Reserve), Default::default(), asking, cx);
        true
    }

    pub(super) fn room_answered(&mut self, places: &Places) {
        match places {
            Places::Reserved { blocks, in_use } => {
                self.room.reserved(*blocks);
                if *blocks == 0 {
                    let table = self.room.table;
                    self.refuse_beyond_room(|| no_room(*in_use, &table));
                }
            }
            Places::GateTaken => {
                let since = self.room.gate_taken(self.core.clock.now());
                if since >= self.timing.query_timeout() {
                    self.room.forget_gate();
                    self.refuse_beyond_room(|| gate_taken(since));
                }
            }
        }
    }

    /// What was given back meanwhile has made some.
    pub(super) fn refuse_beyond_room(&mut self, error: impl Fn() -> Error) {
        let left = self.room.left(self.owned());
        while self.asks.len() > left {
            let Some(lock) = self.asks.pop_back() else { break };
            self.unload(1);
            lock.refuse(error());
        }
    }

    /// Gives back what has not been needed for a while.
    pub(super) fn tidy_room(&mut self, now: Instant, cx: &mut Context<'_>) {
        if self.batches.are_full() {
            return;
        }
        let owned = self.owned();
        if let Some((keeps, has)) = self.room.tidy(owned) {
            let (session, batch) = (Arc::clone(&self.session), Arc::clone(&self.batch));
            self.write_left = self.write_left.saturating_sub(OTHER);
            let asking = async move { session.unreserve(&batch, keeps, has).await.map(|()| Answer::Tidied) };
            self.batches.send((now, What::Unreserve), Default::default(), asking, cx);
        }
    }

    /// It was refused midway: which marks it made or took back is not known, nor whether it left us in the gate.
    pub(super) fn room_failed(&mut self, what: &What, error: DriverError, cx: &mut Context<'_>) {
        let error = Arc::new(error);
        if matches!(what, What::Reserve) {
            self.refuse_beyond_room(|| error::shared(&error, "take the lock"));
        }
        self.give_back(Default::default(), Some(self.room.blocks()), error, cx);
    }
}

fn gate_taken(since: Duration) -> Error {
    let message = format!(
        "somebody has had the gate to the server's table of locks for {since:?}: find who holds the advisory lock (2, 1) in pg_catalog.pg_locks"
    );
    Error::new(ErrorKind::Unavailable, message)
}

fn no_room(in_use: i64, LockTable { capacity, .. }: &LockTable) -> Error {
    let message = format!(
        "half of the server's table of locks is in use or reserved: {in_use} of about {capacity}; to hold more keys raise \
         max_locks_per_transaction"
    );
    Error::new(ErrorKind::LimitReached, message)
}
