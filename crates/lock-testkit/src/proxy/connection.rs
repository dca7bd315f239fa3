//! One connection through the proxy.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until};

use super::counts::Counter;
use super::rule::{Direction, Flow, Rules, Sever};
use super::wire::{Message, Seen, Wire};

/// What happens to a connection once a reply on it was lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AfterLoss {
    /// It closes as soon as the server has sent the reply, so that the request was carried out.
    Close,
    /// It stays open, and the client never hears from the server again.
    Silence,
}

/// What connections share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) counter: Counter,
    /// Which request, counted from now, loses its reply.
    pub(super) lose: Mutex<Option<(u64, AfterLoss)>>,
    /// The next write that begins with a Bind stops in its middle.
    pub(super) halve: AtomicBool,
}

struct Connection {
    shared: Arc<Shared>,
    rules: Rules,
    state: Mutex<State>,
    /// The client has gone and the server knows.
    client_done: Notify,
    /// The lost reply's connection has to close.
    close: Notify,
}

#[derive(Default)]
struct State {
    wire: Wire,
    /// The number of the request whose reply is lost, and what follows.
    lost: Option<(u64, AfterLoss)>,
    /// It stopped in the middle of a write, and is silent since.
    halved: bool,
}

/// Carries one connection to its end.
pub(super) async fn serve(mut client: TcpStream, server: SocketAddr, shared: Arc<Shared>, rules: Rules) {
    let age = rules.severed();
    let mut upstream = None;
    let connection = Connection {
        shared,
        rules: rules.clone(),
        state: Mutex::default(),
        client_done: Notify::new(),
        close: Notify::new(),
    };
    let manner = match rules.refuse() {
        Some(manner) => manner,
        None => tokio::select! {
            manner = rules.severed_after(age) => manner,
            () = connection.close.notified() => Sever::Close,
            manner = connection.relay(&mut client, &mut upstream, server) => manner,
        },
    };
    if connection.state().wire.is_opaque() {
        connection.shared.counter.opaque_closed();
    }
    if manner == Sever::Reset {
        for stream in [Some(client), upstream].into_iter().flatten() {
            // It fails only on a socket that is dead already.
            let _ = stream.set_zero_linger();
        }
    }
}

impl Connection {
    async fn relay(&self, client: &mut TcpStream, upstream: &mut Option<TcpStream>, server: SocketAddr) -> Sever {
        // A connection is made when a packet can go there and back. Until then the client's are repeated by TCP.
        let delay = self.rules.open(Direction::Up).await + self.rules.open(Direction::Down).await;
        sleep(delay).await;
        let Ok(connected) = TcpStream::connect(server).await else { return Sever::Reset };
        let upstream = upstream.insert(connected);
        for stream in [&*client, &*upstream] {
            // It fails only on a socket that is dead already, which the first read tells.
            let _ = stream.set_nodelay(true);
        }
        let (client_reads, client_writes) = client.split();
        let (server_reads, server_writes) = upstream.split();
        let up = async {
            self.pump(client_reads, server_writes, Direction::Up).await;
            self.client_done.notify_one();
        };
        tokio::join!(up, self.pump(server_reads, client_writes, Direction::Down));
        Sever::Close
    }

    /// Carries one direction to its end.
    async fn pump(&self, source: ReadHalf<'_>, sink: WriteHalf<'_>, direction: Direction) {
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::join!(self.take_in(source, sender, direction), self.let_out(receiver, sink, direction));
    }

    async fn take_in(
        &self,
        mut source: ReadHalf<'_>,
        sender: mpsc::UnboundedSender<(Instant, Cargo)>,
        direction: Direction,
    ) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = source.read(&mut buffer).await.unwrap_or_default();
            if self.state().halved {
                // As after a cut that does not heal: the end is not seen either.
                std::future::pending::<()>().await;
            }
            let (bytes, closes) = self.inspect(&buffer[..read], direction);
            let due = match self.rules.flow(direction) {
                Flow::Delay(delay) => Instant::now() + delay,
                Flow::Drop | Flow::Hold | Flow::Pass => Instant::now(),
            };
            // The end of a stream is repeated by TCP until it gets through, other bytes are lost.
            let cargo = if read == 0 { Some(Cargo::End) } else { Some(Cargo::Bytes(bytes.to_vec())) };
            let cargo = cargo.filter(|_| read == 0 || self.rules.flow(direction) != Flow::Drop);
            for cargo in cargo.into_iter().chain(closes.then_some(Cargo::Close)) {
                // The receiver stays until the end was sent.
                let _ = sender.send((due, cargo));
            }
            if read == 0 {
                return;
            }
        }
    }

    async fn let_out(
        &self,
        mut queue: mpsc::UnboundedReceiver<(Instant, Cargo)>,
        mut sink: WriteHalf<'_>,
        direction: Direction,
    ) {
        let mut is_dead = false;
        while let Some((due, cargo)) = queue.recv().await {
            sleep_until(due).await;
            match cargo {
                Cargo::Bytes(bytes) => {
                    let flow = self.rules.unheld(direction).await;
                    if flow != Flow::Drop && !is_dead {
                        // A sink that is dead is noticed by the other direction, which reads from it.
                        is_dead = sink.write_all(&bytes).await.is_err();
                    }
                }
                Cargo::Close => self.close.notify_one(),
                Cargo::End => return self.end(sink, direction).await,
            }
        }
    }

    /// Passes on the end of a stream.
    async fn end(&self, mut sink: WriteHalf<'_>, direction: Direction) {
        match direction {
            Direction::Down => tokio::select! {
                () = self.client_done.notified() => return,
                () = self.open_to_client() => {}
            },
            Direction::Up => {
                self.rules.open(direction).await;
            }
        }
        // It fails only if the other end is gone, and then has nothing to be told.
        let _ = sink.shutdown().await;
    }

    async fn open_to_client(&self) {
        if self.state().lost.is_some() {
            std::future::pending::<()>().await;
        }
        self.rules.open(Direction::Down).await;
    }

    /// Counts what is in these bytes. Gives the part of them that is not a lost reply, and whether the connection closes then.
    fn inspect<'a>(&self, bytes: &'a [u8], direction: Direction) -> (&'a [u8], bool) {
        let mut state = self.state();
        match direction {
            Direction::Down => {
                let before = state.wire.ready;
                let seen = state.wire.server_sent(bytes);
                self.shared.counter.add(&seen);
                let Some((request, after)) = state.lost else { return (bytes, false) };
                // The startup ends with a `ReadyForQuery` too, so the reply to the first request begins after one of them.
                let closes = after == AfterLoss::Close && state.wire.ready > request;
                if before >= request {
                    return (&[], closes);
                }
                let mut ready = seen.iter().filter(|seen| seen.message == Message::Ready);
                let skipped = usize::try_from(request - before - 1).unwrap_or(usize::MAX);
                (ready.nth(skipped).map_or(bytes, |seen| &bytes[..seen.end]), closes)
            }
            Direction::Up => {
                let before = state.wire.requests;
                let seen = state.wire.client_sent(bytes);
                self.shared.counter.add(&seen);
                let new = state.wire.requests - before;
                if let Some((index, after)) = self.shared.take_lost(new) {
                    // A connection that is silent already stays as it is.
                    state.lost.get_or_insert((before + index, after));
                }
                match seen.first() {
                    Some(Seen { message: Message::Typed(b'B'), end }) if *end < bytes.len() => {
                        state.halved = self.shared.halve.swap(false, Ordering::SeqCst);
                        (if state.halved { &bytes[..=*end] } else { bytes }, false)
                    }
                    _ => (bytes, false),
                }
            }
        }
    }

    /// Never held across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Counts that many requests, and says which of them, from 1, is to lose its reply.
    fn take_lost(&self, requests: u64) -> Option<(u64, AfterLoss)> {
        let mut lose = self.lose.lock().unwrap_or_else(PoisonError::into_inner);
        let (remaining, after) = (*lose)?;
        if remaining > requests {
            *lose = Some((remaining - requests, after));
            return None;
        }
        *lose = None;
        Some((remaining, after))
    }
}

/// What is on its way.
enum Cargo {
    Bytes(Vec<u8>),
    /// The lost reply would have ended here.
    Close,
    /// The end of the stream.
    End,
}
