//! A TCP proxy that a test puts between a client and a server, to disturb the connection and to count round trips.

mod connection;
mod counts;
mod rule;
mod wire;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use connection::AfterLoss;
pub use counts::Counts;
pub use rule::Flow;

use connection::Shared;
use rule::{Rule, Rules, Sever};

/// Carries connections from a port of its own on 127.0.0.1 to a server.
///
/// Up is from client to server, down the other way. What is switched applies to connections that are open and to later
/// ones, until it is switched again. The proxy runs in a thread of its own, in real time: a test's runtime may stop, block
/// or pause its clock. Dropping it closes everything.
pub struct Proxy {
    address: SocketAddr,
    server: SocketAddr,
    /// Taken on drop: the thread ends when it is gone.
    rules: Option<watch::Sender<Rule>>,
    shared: Arc<Shared>,
    open: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy that passes everything.
    pub fn start(server: impl Into<SocketAddr>) -> io::Result<Self> {
        let server = server.into();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (sender, receiver) = watch::channel(Rule::default());
        let (shared, open) = (Arc::<Shared>::default(), Arc::<AtomicUsize>::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let accepting = accept(listener, server, Arc::clone(&shared), receiver, Arc::clone(&open));
        let thread = std::thread::Builder::new().name("proxy".into()).spawn(move || runtime.block_on(accepting))?;
        Ok(Self { address, server, rules: Some(sender), shared, open, thread: Some(thread) })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A URL of the server, as by [`crate::Cluster::url`], that goes through the proxy.
    #[must_use]
    pub fn url(&self, direct: &str) -> String {
        direct.replace(&self.server.to_string(), &self.address.to_string())
    }

    /// Connections that are open. One that was severed is counted until it has ended.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Passes everything again. Connections that were severed stay so.
    pub fn pass(&self) {
        self.change(|rule| *rule = Rule { severed: rule.severed, ..Rule::default() });
    }

    /// Switches both directions.
    pub fn both(&self, flow: Flow) {
        self.change(|rule| (rule.up, rule.down) = (flow, flow));
    }

    /// Switches what clients send.
    pub fn up(&self, flow: Flow) {
        self.change(|rule| rule.up = flow);
    }

    /// Switches what the server sends.
    pub fn down(&self, flow: Flow) {
        self.change(|rule| rule.down = flow);
    }

    /// Closes all connections at both ends, and new ones at once until [`Self::pass`]. An end that has not read what was sent
    /// to it can see a reset instead of a close.
    pub fn cut(&self) {
        self.change(|rule| rule.sever(Sever::Close));
    }

    /// Resets all connections at both ends, and new ones at once until [`Self::pass`].
    pub fn reset(&self) {
        self.change(|rule| rule.sever(Sever::Reset));
    }

    /// Passes the `nth` request from now, counted from 1 over all connections, on to the server and loses the reply. Earlier
    /// replies arrive. A request is a simple query, a sync or a function call.
    ///
    /// Does nothing on connections whose messages cannot be read.
    pub fn lose_reply(&self, nth: u64, after: AfterLoss) {
        *self.shared.lose.lock().unwrap_or_else(PoisonError::into_inner) = Some((nth.max(1), after));
    }

    /// The next write of a client that begins with a Bind stops in its middle: the Bind passes, with one byte of what follows, and
    /// then its connection is silent both ways until all are severed. The server waits for the rest, and no timer of its own runs.
    ///
    /// Does nothing on connections whose messages cannot be read.
    pub fn halve_next_bind(&self) {
        self.shared.halve.store(true, Ordering::SeqCst);
    }

    /// What passed since [`Self::reset_counts`]. A message counts when the proxy has read it, also if it is then lost.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counter.counts()
    }

    /// Round trips since [`Self::reset_counts`], those of startups included. `None` if a connection could not be read along,
    /// so that its round trips are unknown.
    #[must_use]
    pub fn round_trips(&self) -> Option<u64> {
        let counts = self.counts();
        (counts.opaque == 0).then_some(counts.ready)
    }

    /// Counts from zero.
    pub fn reset_counts(&self) {
        self.shared.counter.reset();
    }

    fn change(&self, change: impl FnOnce(&mut Rule)) {
        if let Some(rules) = &self.rules {
            rules.send_modify(change);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.rules.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed and cannot be raised again from here.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("address", &self.address).field("server", &self.server).finish_non_exhaustive()
    }
}

/// Serves connections until the sender of rules is gone. They end with the set that holds them.
async fn accept(
    listener: TcpListener,
    server: SocketAddr,
    shared: Arc<Shared>,
    mut receiver: watch::Receiver<Rule>,
    open: Arc<AtomicUsize>,
) {
    let rules = Rules(receiver.clone());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            changed = receiver.changed() => if changed.is_err() { return },
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                // A client that is gone before it was accepted is no connection.
                let Ok((client, _)) = accepted else { continue };
                let counted = Counted::new(Arc::clone(&open));
                let serving = connection::serve(client, server, Arc::clone(&shared), rules.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(counted);
                });
            }
        }
    }
}

/// Counts one open connection.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(open: Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::SeqCst);
        Self(open)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
