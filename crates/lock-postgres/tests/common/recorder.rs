//! A port that passes everything on and keeps what clients send, and what is wrong with it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use lock_testkit::wait_until;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
};

use crate::bench::{AMPLE, Server};

/// The most that goes into one write while a lock is held.
pub(crate) const LIMIT: usize = 1_200;

/// Passes everything on and keeps what clients send.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
    /// The most bytes that came at a time.
    #[allow(dead_code, reason = "not every target needs it")]
    pub(crate) longest: Arc<AtomicUsize>,
}

#[allow(dead_code, reason = "not every target needs all of it")]
impl Recorder {
    pub(crate) async fn start(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sent, target) = (Arc::<Mutex<Vec<Vec<u8>>>>::default(), ("127.0.0.1", server.port()));
        let longest = Arc::<AtomicUsize>::default();
        let (keep, most) = (Arc::clone(&sent), Arc::clone(&longest));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(target).await.unwrap();
                let index = {
                    let mut sent = keep.lock().unwrap();
                    sent.push(Vec::new());
                    sent.len() - 1
                };
                let (keep, most) = (Arc::clone(&keep), Arc::clone(&most));
                tokio::spawn(async move {
                    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                        (client.into_split(), server.into_split());
                    let back = tokio::spawn(async move { copy(&mut from_server, &mut to_client).await });
                    let mut chunk = [0; 8_192];
                    while let Ok(read @ 1..) = from_client.read(&mut chunk).await {
                        most.fetch_max(read, Ordering::SeqCst);
                        keep.lock().unwrap()[index].extend_from_slice(&chunk[..read]);
                        if to_server.write_all(&chunk[..read]).await.is_err() {
                            break;
                        }
                    }
                    drop(to_server);
                    let _ = back.await;
                });
            }
        });
        Self { address, sent, longest }
    }

    pub(crate) fn url(&self, server: &Server) -> String {
        url_through(self.address, server)
    }

    /// Waits until clients have sent so many more statements: heartbeats, when nobody does anything.
    pub(crate) async fn wait_for(&self, more: usize) {
        let before = self.statements();
        wait_until(AMPLE, "heartbeats", async || self.statements() >= before + more).await.unwrap();
    }

    pub(crate) fn statements(&self) -> usize {
        self.units().len()
    }

    /// All that sessions sent that keep house, each as text.
    pub(crate) fn housekeeping(&self) -> Vec<String> {
        let sent = self.sent.lock().unwrap();
        let streams = sent.iter().filter(|stream| keeps_house(stream));
        streams.map(|stream| String::from_utf8_lossy(stream).to_lowercase()).collect()
    }

    /// What all others sent, cut after each `Sync` and each simple query; the last of a connection may have no end.
    fn units(&self) -> Vec<(Vec<u8>, bool)> {
        let sent = self.sent.lock().unwrap();
        let mut units = Vec::new();
        for stream in sent.iter() {
            if keeps_house(stream) {
                continue;
            }
            let Some(start) = stream.first_chunk::<4>() else { continue };
            let mut rest = stream.get(u32::from_be_bytes(*start) as usize..).unwrap_or_default();
            let mut unit = Vec::new();
            while let Some(length) = rest.get(1..5).and_then(|length| length.first_chunk::<4>()) {
                let end = 1 + u32::from_be_bytes(*length) as usize;
                let Some(message) = rest.get(..end) else { break };
                unit.extend_from_slice(message);
                rest = &rest[end..];
                if matches!(message[0], b'S' | b'Q' | b'X') {
                    units.push((std::mem::take(&mut unit), true));
                }
            }
            if !unit.is_empty() {
                units.push((unit, false));
            }
        }
        units
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        // They may listen and ask at length because they own nothing.
        for text in self.housekeeping() {
            if text.contains("advisory_lock(") || text.contains("advisory_xact_lock(") {
                faults.push(format!("takes locks beside its housekeeping: {text:?}"));
            }
        }
        for (unit, ended) in self.units() {
            // That ends what a body may have begun.
            let text = String::from_utf8_lossy(&unit).to_lowercase().replace("unlisten *", "");
            if !ended {
                faults.push(format!("no end: {text:?}"));
            }
            if kinds(&unit).contains(&b'H') {
                faults.push(format!("a flush: {text:?}"));
            }
            if text.contains("listen ") || text.contains("notify ") || text.contains("pg_notify") {
                faults.push(format!("listens or notifies: {text:?}"));
            }
            // Only while nothing is held: the settings of a new session, its statements, and what goes ahead of a wait.
            let prepares = text.starts_with("p") && !kinds(&unit).contains(&b'B');
            let free = prepares || text.contains("tcp_keepalives_idle") || text.contains("b.check_interval");
            if unit.len() > LIMIT && !free {
                faults.push(format!("{} bytes: {text:?}", unit.len()));
            }
        }
        faults
    }
}

/// The database through a port that passes everything on as it is.
pub(crate) fn url_through(address: SocketAddr, server: &Server) -> String {
    let url = server.url.replace(&format!(":{}/", server.port()), &format!(":{}/", address.port()));
    // A connection then begins with the start-up message.
    format!("{url}?sslmode=disable")
}

/// By the name in its start-up message.
fn keeps_house(stream: &[u8]) -> bool {
    let name = b"distributed-lock housekeeping\0";
    stream.windows(name.len()).any(|window| window == name)
}

fn kinds(unit: &[u8]) -> Vec<u8> {
    let (mut kinds, mut rest) = (Vec::new(), unit);
    while let Some(length) = rest.get(1..5).and_then(|length| length.first_chunk::<4>()) {
        kinds.push(rest[0]);
        rest = rest.get(1 + u32::from_be_bytes(*length) as usize..).unwrap_or_default();
    }
    kinds
}
