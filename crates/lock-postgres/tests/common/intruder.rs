//! A connection into which a test can put statements of its own: what a pooler, a colleague with the same connection, or a
//! mistake would do to the session behind a locker's back.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};

/// Carries connections to a server, unencrypted ones only.
#[derive(Debug)]
pub(crate) struct Intruder {
    pub(crate) address: SocketAddr,
    orders: mpsc::UnboundedSender<(Option<i32>, Order)>,
}

type Order = (String, oneshot::Sender<()>);

/// A connection, and the backend that serves it once the server has said so.
type Connection = (Arc<AtomicI32>, mpsc::UnboundedSender<Order>);

#[allow(dead_code, reason = "one target has many sessions, the other one at a time")]
impl Intruder {
    /// Runs in the current runtime.
    pub(crate) async fn start(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (orders, mut ordered) = mpsc::unbounded_channel::<(Option<i32>, Order)>();
        tokio::spawn(async move {
            // All are kept: a connection ends when nobody can order anything in it.
            let mut connections: Vec<Connection> = Vec::new();
            loop {
                tokio::select! {
                    order = ordered.recv() => {
                        let Some((backend, order)) = order else { return };
                        let is_meant = |pid: i32| backend.is_none_or(|backend| backend == pid);
                        let meant = connections.iter().rev().find(|(pid, _)| is_meant(pid.load(Ordering::SeqCst)));
                        meant.expect("there is no such connection").1.send(order).unwrap();
                    }
                    accepted = listener.accept() => {
                        let (client, _) = accepted.unwrap();
                        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
                        // Requests go in parts, and the second would wait for the acknowledgement of the first.
                        for stream in [&client, &server] {
                            stream.set_nodelay(true).unwrap();
                        }
                        let (sender, orders) = mpsc::unbounded_channel();
                        let pid = Arc::<AtomicI32>::default();
                        connections.push((Arc::clone(&pid), sender));
                        tokio::spawn(carry(client, server, orders, pid));
                    }
                }
            }
        });
        Self { address, orders }
    }

    /// Runs statements in the session that was opened last, between two requests of its client, who does not see the answers.
    pub(crate) async fn run(&self, statements: &str) {
        self.order(None, statements).await;
    }

    /// The same in the session of this backend.
    pub(crate) async fn run_in(&self, backend: i32, statements: &str) {
        self.order(Some(backend), statements).await;
    }

    async fn order(&self, backend: Option<i32>, statements: &str) {
        let (done, ran) = oneshot::channel();
        self.orders.send((backend, (statements.into(), done))).unwrap();
        ran.await.unwrap();
    }
}

/// Ends with the first end of a side. The other sees it by the drop.
async fn carry(client: TcpStream, server: TcpStream, mut orders: mpsc::UnboundedReceiver<Order>, pid: Arc<AtomicI32>) {
    let ((mut from_client, mut to_client), (from_server, mut to_server)) = (client.into_split(), server.into_split());
    let (forward, mut requests) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut starting = true;
        while let Some(message) = read(&mut from_client, !starting).await {
            starting = false;
            if forward.send(message).await.is_err() {
                return;
            }
        }
    });
    let (back, mut answers) = mpsc::channel(1);
    tokio::spawn(answers_of(from_server, back, pid));
    // The startup is answered as a request is.
    let mut unanswered = 1_i32;
    let mut intruding = None;
    loop {
        tokio::select! {
            order = orders.recv(), if unanswered == 0 && intruding.is_none() => {
                let Some((statements, done)) = order else { return };
                if send_query(&mut to_server, &statements).await.is_none() {
                    return;
                }
                intruding = Some(done);
            }
            request = requests.recv(), if intruding.is_none() => {
                let Some(request) = request else { return };
                // Every request of ours ends with a sync or is a simple query.
                unanswered += i32::from(matches!(request.first(), Some(b'S' | b'Q')));
                if to_server.write_all(&request).await.is_err() {
                    return;
                }
            }
            answer = answers.recv() => {
                let Some(answer) = answer else { return };
                let ready = answer.first() == Some(&b'Z');
                if intruding.is_some() {
                    if ready {
                        // Nobody need wait for it.
                        let _ = intruding.take().map(|done: oneshot::Sender<()>| done.send(()));
                    }
                    continue;
                }
                unanswered -= i32::from(ready);
                if to_client.write_all(&answer).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn answers_of(mut from_server: OwnedReadHalf, back: mpsc::Sender<Vec<u8>>, pid: Arc<AtomicI32>) {
    while let Some(message) = read(&mut from_server, true).await {
        if let [b'K', _, _, _, _, a, b, c, d, ..] = message[..] {
            pid.store(i32::from_be_bytes([a, b, c, d]), Ordering::SeqCst);
        }
        if back.send(message).await.is_err() {
            return;
        }
    }
}

/// One message; only the first of a client has no type.
pub(crate) async fn read(stream: &mut OwnedReadHalf, typed: bool) -> Option<Vec<u8>> {
    let mut message = vec![0; if typed { 5 } else { 4 }];
    stream.read_exact(&mut message).await.ok()?;
    let head = message.len();
    let length = u32::from_be_bytes(message[head - 4..].try_into().unwrap()) as usize;
    message.resize(head - 4 + length, 0);
    stream.read_exact(&mut message[head..]).await.ok()?;
    Some(message)
}

async fn send_query(to_server: &mut OwnedWriteHalf, statements: &str) -> Option<()> {
    let mut message = vec![b'Q'];
    message.extend(u32::try_from(statements.len() + 5).unwrap().to_be_bytes());
    message.extend(statements.as_bytes());
    message.push(0);
    to_server.write_all(&message).await.ok()
}
