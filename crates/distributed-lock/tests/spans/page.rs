//! What a program's log would show: a subscriber that formats every span and line.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::format::FmtSpan;

#[derive(Clone, Default)]
pub(crate) struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    /// Of this thread, for as long as the guard lives.
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let page = Self::default();
        let format = tracing_subscriber::fmt().with_ansi(false).without_time().with_max_level(tracing::Level::TRACE);
        let writer = page.clone();
        let subscriber = format.with_span_events(FmtSpan::FULL).with_writer(move || writer.clone()).finish();
        let guard = tracing::subscriber::set_default(subscriber);
        (page, guard)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Page {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
