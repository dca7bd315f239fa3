//! The server's clock against ours: a step of it can make the server's timers fire early.

use std::time::{Duration, Instant, SystemTime};

use crate::core::Core;

/// What both clocks said last.
#[derive(Debug, Default)]
pub(super) struct Clocks(Option<Reading>);

/// The server read its clock at some time between the send and the receipt, by ours.
#[derive(Debug)]
struct Reading {
    sent: Instant,
    received: Instant,
    server: SystemTime,
}

impl Clocks {
    /// `server`: what an answer that came now said to what was sent then.
    pub(super) fn compare(&mut self, core: &Core, sent: Instant, server: SystemTime, margin: Duration) {
        let received = core.clock.now();
        if let Some(last) = self.0.replace(Reading { sent, received, server }) {
            // Answers that come late, or several at a time, say little of when the server gave them.
            let shortest = sent.saturating_duration_since(last.received);
            let longest = received.saturating_duration_since(last.sent);
            let step = match server.duration_since(last.server) {
                Ok(they_saw) if they_saw > longest => they_saw - longest,
                Ok(they_saw) => shortest.saturating_sub(they_saw),
                Err(back) => shortest.saturating_add(back.duration()),
            };
            if step > margin / 2 {
                core.clock_stepped(step);
            }
        }
    }
}

#[cfg(test)]
mod tests;
