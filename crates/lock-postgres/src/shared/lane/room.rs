//! How many keys a lane may own, so that lockers do not fill the server's table of locks, which would refuse new connections to everybody:
//! a quarter of a session's share unasked, and more in blocks that it reserves first.

use std::time::{Duration, Instant};

use crate::{jitter::jittered, session::LockTable};

/// Locks of a lane that are no keys: its beacon and its mark.
const OWN_LOCKS: usize = 2;

/// From one try at the gate to the next, the longest.
const GATE_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct Room {
    pub(super) table: LockTable,
    blocks: i32,
    /// The most keys that were owned since it was last tidied.
    peak: usize,
    /// Blocks are being reserved or given back: until it is known what came of that nothing else is.
    is_asked: bool,
    /// Until when nothing is asked behind the gate.
    opens: Option<Instant>,
    /// Since when somebody else has been found in the gate.
    taken_since: Option<Instant>,
}

impl Room {
    pub(super) fn new(table: LockTable) -> Self {
        Self { table, blocks: 0, peak: 0, is_asked: false, opens: None, taken_since: None }
    }

    /// Keys that it takes unasked.
    fn unasked(&self) -> usize {
        usize::try_from(self.table.unasked()).unwrap_or_default().saturating_sub(OWN_LOCKS)
    }

    /// Keys of one block, in which its mark has a place too.
    fn block(&self) -> usize {
        usize::try_from(self.table.block()).unwrap_or_default().saturating_sub(1).max(1)
    }

    /// More keys that it may own beside these.
    pub(super) fn left(&self, owned: usize) -> usize {
        let blocks = usize::try_from(self.blocks).unwrap_or_default();
        (self.unasked() + blocks * self.block()).saturating_sub(owned)
    }

    /// It is going to own so many.
    pub(super) fn used(&mut self, keys: usize) {
        self.peak = self.peak.max(keys);
    }

    fn blocks_for(&self, keys: usize) -> i32 {
        i32::try_from(keys.saturating_sub(self.unasked()).div_ceil(self.block())).unwrap_or(i32::MAX)
    }

    /// The blocks that it has, and how many more so many keys need; `None` if nothing is to be asked now.
    pub(super) fn ask(&mut self, keys: usize) -> Option<(i32, i64)> {
        let missing = self.blocks_for(keys) - self.blocks;
        if missing <= 0 || self.is_asked || self.opens.is_some() {
            return None;
        }
        self.is_asked = true;
        Some((self.blocks, i64::from(missing)))
    }

    /// It got so many more blocks.
    pub(super) fn reserved(&mut self, blocks: i32) {
        self.blocks += blocks;
        self.settled();
    }

    /// The server has for it those blocks that it knows of, and no others.
    pub(super) fn settled(&mut self) {
        (self.is_asked, self.taken_since) = (false, None);
    }

    pub(super) fn blocks(&self) -> i32 {
        self.blocks
    }

    /// Somebody else was in the gate, for so long by now.
    pub(super) fn gate_taken(&mut self, now: Instant) -> Duration {
        self.is_asked = false;
        self.opens = Some(now + jittered(GATE_PAUSE));
        now.saturating_duration_since(*self.taken_since.get_or_insert(now))
    }

    /// Those who waited at the gate were refused: others have their own time.
    pub(super) fn forget_gate(&mut self) {
        self.taken_since = None;
    }

    /// Looks whether it may be tried again.
    pub(super) fn look_at_gate(&mut self, now: Instant) {
        self.opens = self.opens.filter(|opens| now < *opens);
    }

    pub(super) fn opens(&self) -> Option<Instant> {
        self.opens
    }

    /// How many blocks to keep of how many, if some have not been needed since this was last asked. It has those alone from now on.
    pub(super) fn tidy(&mut self, owned: usize) -> Option<(i32, i32)> {
        let peak = std::mem::replace(&mut self.peak, owned);
        let (keeps, has) = (self.blocks_for(peak), self.blocks);
        if self.is_asked || keeps >= has {
            return None;
        }
        self.blocks = keeps;
        self.is_asked = true;
        Some((keeps, has))
    }
}

#[cfg(test)]
mod tests {
    use distributed_lock::{Clock, SystemClock};

    use super::*;

    fn room() -> Room {
        Room::new(LockTable { share: 64, capacity: 6_400 })
    }

    #[test]
    fn a_quarter_but_for_its_own_locks_needs_no_asking() {
        assert_eq!((room().left(0), room().left(13), room().left(14), room().left(15)), (14, 1, 0, 0));
        assert_eq!(room().ask(14), None);
    }

    #[test]
    fn one_block_holds_its_mark_and_the_rest_in_keys() {
        let mut room = room();
        assert_eq!(room.ask(15), Some((0, 1)));
        room.reserved(1);
        assert_eq!(room.left(14), 63);
        assert_eq!(room.ask(14 + 63), None);
        assert_eq!(room.ask(14 + 64), Some((1, 1)));
    }

    #[test]
    fn nothing_is_asked_twice_or_before_the_gate_opens() {
        let (mut room, now) = (room(), SystemClock.now());
        assert!(room.ask(100).is_some());
        assert_eq!(room.ask(100), None);
        assert_eq!(room.gate_taken(now), Duration::ZERO);
        assert_eq!(room.ask(100), None);
        room.look_at_gate(now + GATE_PAUSE);
        assert!(room.ask(100).is_some());
        assert_eq!(room.gate_taken(now + GATE_PAUSE), GATE_PAUSE);
    }

    #[test]
    fn time_at_the_gate_begins_anew_after_a_statement_that_failed() {
        let (mut room, now) = (room(), SystemClock.now());
        assert_eq!(room.gate_taken(now), Duration::ZERO);
        room.settled();
        assert_eq!(room.gate_taken(now + Duration::from_secs(3_600)), Duration::ZERO);
    }

    #[test]
    fn blocks_that_the_peak_did_not_need_go_back() {
        let mut room = room();
        room.reserved(4);
        room.used(14 + 63 + 1);
        assert_eq!(room.tidy(3), Some((2, 4)));
        room.settled();
        assert_eq!(room.left(0), 14 + 2 * 63);
        assert_eq!(room.tidy(0), Some((0, 2)));
        room.settled();
        assert_eq!(room.tidy(0), None);
    }

    #[test]
    fn nothing_is_asked_for_while_blocks_go_back_which_may_fail_midway() {
        let mut room = room();
        room.reserved(2);
        assert_eq!(room.tidy(0), Some((0, 2)));
        assert_eq!(room.ask(100), None);
        room.settled();
        assert_eq!(room.ask(100), Some((0, 2)));
        assert_eq!(room.tidy(0), None);
    }
}
