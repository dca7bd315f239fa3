//! The server's clock against ours: a step of it can make the server's timers fire early.

use std::time::{Duration, Instant, SystemTime};

use crate::core::Core;

/// What both clocks said last.
#[derive(Debug, Default)]
pub(super) struct Clocks(Option<(Instant, SystemTime)>);

impl Clocks {
    /// `server`: what an answer that came now said.
    pub(super) fn compare(&mut self, core: &Core, server: SystemTime, margin: Duration) {
        let ours = core.clock.now();
        if let Some((our_last, their_last)) = self.0.replace((ours, server)) {
            let we_saw = ours.saturating_duration_since(our_last);
            let step = match server.duration_since(their_last) {
                Ok(they_saw) => they_saw.abs_diff(we_saw),
                Err(back) => we_saw + back.duration(),
            };
            if step > margin / 2 {
                core.clock_stepped(step);
            }
        }
    }
}

#[cfg(test)]
mod tests;
