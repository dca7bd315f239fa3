//! A socket that we own: opened here, given to the driver, and kept in reach by a duplicate, so that a session can be ended
//! from any thread, with or without a runtime.

use std::{
    fmt,
    future::poll_fn,
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, SocketAddr},
    os::fd::OwnedFd,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream, lookup_host},
    time::{Instant, sleep, timeout_at},
};

use tokio::io::Interest;

use super::string::{Host, Target};

const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 3;

/// How long sent data may stay without an acknowledgement: as long as the keepalives of an idle connection take.
const USER_TIMEOUT: Duration = Duration::from_secs(11);

/// The pause before a unix socket is tried again whose server has not yet accepted those before us.
const BACKLOG_PAUSE: Duration = Duration::from_millis(10);

/// The stream handed to the driver.
///
/// Its drop shuts the writing half down, so that a dropped connection ends its session although a [`SocketHandle`] keeps the
/// socket open.
pub(super) struct Socket {
    stream: Stream,
    direct: Arc<Direct>,
    /// What is read directly goes through this, since the driver's memory would have to be zeroed for each read.
    scratch: Vec<u8>,
}

/// More than the answers that may be under way to a lane.
const SCRATCH: usize = 4 * 1024;

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// See [`SocketHandle::go_direct`].
    DirectTcp(std::net::TcpStream),
    DirectUnix(std::os::unix::net::UnixStream),
    /// Between two of them.
    None,
}

/// What a socket and its handles share.
#[derive(Debug, Default)]
struct Direct {
    wanted: AtomicBool,
    /// Nothing is left to read, so that a look for it would be in vain, until something comes.
    is_empty: AtomicBool,
    /// The last write found no room.
    is_full: AtomicBool,
}

/// Why there is no socket.
#[derive(Debug)]
pub(super) enum Unreached {
    Connect(io::Error),
    Resolve(io::Error),
}

impl Socket {
    fn new(stream: Stream) -> Self {
        Self { stream, direct: Arc::default(), scratch: Vec::new() }
    }

    /// Opens a socket to the target. Each address of a name gets its share of the time left, so that one that is dead does
    /// not keep us from the next.
    pub(super) async fn open(target: &Target, deadline: Instant) -> Result<Self, Unreached> {
        let Host::Tcp(host) = &target.host else {
            return Self::open_unix(target).await.map_err(Unreached::Connect);
        };
        let found: Vec<SocketAddr> =
            lookup_host((host.as_str(), target.port)).await.map_err(Unreached::Resolve)?.collect();
        let mut failed = None;
        for (tried, address) in found.iter().enumerate() {
            let now = Instant::now();
            let left = u32::try_from(found.len() - tried).unwrap_or(u32::MAX);
            let share = deadline.saturating_duration_since(now) / left;
            let opened = match timeout_at(now + share, TcpStream::connect(address)).await {
                Ok(opened) => opened.and_then(|stream| set_options(&stream).map(|()| stream)),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            match opened {
                Ok(stream) => return Ok(Self::new(Stream::Tcp(stream))),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(Unreached::Connect(error)),
            None => Err(Unreached::Resolve(io::Error::new(io::ErrorKind::NotFound, "the name has no address"))),
        }
    }

    /// The caller's timeout bounds the repeats.
    async fn open_unix(target: &Target) -> io::Result<Self> {
        let path = target.socket_path().ok_or(io::ErrorKind::InvalidInput)?;
        loop {
            match UnixStream::connect(&path).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(BACKLOG_PAUSE).await,
                other => return other.map(|stream| Self::new(Stream::Unix(stream))),
            }
        }
    }

    /// A handle on a duplicate of the socket.
    pub(super) fn handle(&self) -> io::Result<SocketHandle> {
        Ok(SocketHandle { socket: Arc::new(self.duplicate()?), direct: Arc::clone(&self.direct) })
    }

    pub(super) fn duplicate(&self) -> io::Result<socket2::Socket> {
        self.as_ref().ok_or(io::ErrorKind::NotConnected)?.try_clone()
    }

    /// The address at the other end; `None` for a unix socket.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        match &self.stream {
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            _ => None,
        }
    }

    fn as_ref(&self) -> Option<SockRef<'_>> {
        match &self.stream {
            Stream::Tcp(stream) => Some(SockRef::from(stream)),
            Stream::Unix(stream) => Some(SockRef::from(stream)),
            Stream::DirectTcp(stream) => Some(SockRef::from(stream)),
            Stream::DirectUnix(stream) => Some(SockRef::from(stream)),
            Stream::None => None,
        }
    }

    /// Makes the stream what is wanted by now.
    fn settle(&mut self) -> io::Result<()> {
        if matches!(self.stream, Stream::Tcp(_) | Stream::Unix(_)) && self.direct.wanted.load(Ordering::Relaxed) {
            self.stream = match std::mem::replace(&mut self.stream, Stream::None) {
                Stream::Tcp(stream) => Stream::DirectTcp(stream.into_std()?),
                Stream::Unix(stream) => Stream::DirectUnix(stream.into_std()?),
                direct => direct,
            };
            self.scratch = vec![0; SCRATCH];
        }
        Ok(())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(socket) = self.as_ref() {
            // Fails only if the socket is down already.
            let _ = socket.shutdown(Shutdown::Write);
        }
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.settle()?;
        let Self { stream, direct, scratch } = &mut *self;
        match stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::DirectTcp(stream) => direct.read(stream, scratch, buf),
            Stream::DirectUnix(stream) => direct.read(stream, scratch, buf),
            Stream::None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.settle()?;
        let Self { stream, direct, .. } = &mut *self;
        match stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::DirectTcp(stream) => direct.write(stream, buf),
            Stream::DirectUnix(stream) => direct.write(stream, buf),
            Stream::None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.settle()?;
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Stream::DirectTcp(_) | Stream::DirectUnix(_) | Stream::None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.settle()?;
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::DirectTcp(stream) => Poll::Ready(stream.shutdown(Shutdown::Write)),
            Stream::DirectUnix(stream) => Poll::Ready(stream.shutdown(Shutdown::Write)),
            Stream::None => Poll::Ready(Ok(())),
        }
    }
}

impl Direct {
    fn read(&self, stream: &mut impl Read, scratch: &mut [u8], buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_empty.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // Before the read: of whatever comes after it we are told.
        self.is_empty.store(true, Ordering::Release);
        let room = scratch.len().min(buf.remaining());
        let read = unless_it_would_block(|| stream.read(&mut scratch[..room]));
        // One that leaves room has taken all there was. The end stays.
        let all = match &read {
            Poll::Pending => true,
            Poll::Ready(Ok(read)) => (1..room).contains(read),
            Poll::Ready(Err(_)) => false,
        };
        if !all {
            self.is_empty.store(false, Ordering::Release);
        }
        read.map_ok(|read| buf.put_slice(&scratch[..read]))
    }

    fn write(&self, stream: &mut impl Write, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = unless_it_would_block(|| stream.write(buf));
        self.is_full.store(written.is_pending(), Ordering::Relaxed);
        written
    }
}

fn unless_it_would_block<T>(mut call: impl FnMut() -> io::Result<T>) -> Poll<io::Result<T>> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            done => return Poll::Ready(done),
        }
    }
}

/// Ends a session at its socket. Clones share the socket, which is closed with the last of them.
#[derive(Clone)]
pub(crate) struct SocketHandle {
    socket: Arc<socket2::Socket>,
    direct: Arc<Direct>,
}

impl SocketHandle {
    /// Ends the writing half: the server reads the end of the session, and [`until_eof`](Self::until_eof) sees it go.
    pub(crate) fn shutdown_write(&self) {
        // Fails only if the socket is down already.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// From now on no runtime waits for the socket: whoever drives the connection is to poll it when the
    /// [`readiness`](Self::readiness) of the socket says so, on any thread.
    pub(crate) fn go_direct(&self) {
        self.direct.wanted.store(true, Ordering::Relaxed);
    }

    /// The next poll is to look whether there is something to read.
    pub(crate) fn look(&self) {
        self.direct.is_empty.store(false, Ordering::Release);
    }

    /// Whether the last write found no room.
    pub(crate) fn is_full(&self) -> bool {
        self.direct.is_full.load(Ordering::Relaxed)
    }

    /// For the current runtime, which must be one that waits for sockets.
    pub(crate) fn readiness(&self) -> io::Result<Readiness> {
        let socket = self.socket.try_clone()?;
        let stream = match socket.local_addr()?.is_unix() {
            true => Stream::Unix(UnixStream::from_std(OwnedFd::from(socket).into())?),
            false => Stream::Tcp(TcpStream::from_std(socket.into())?),
        };
        Ok(Readiness { stream, direct: Arc::clone(&self.direct) })
    }

    /// Reads and discards until the server has closed its end, which a PostgreSQL backend does after it has given up its
    /// locks. An error means that this was not seen: a cut connection says nothing about the server.
    ///
    /// Runs on the current runtime, which need not be the one that drives the connection. Takes the server's answers away
    /// from a connection that is still driven.
    pub(crate) async fn until_eof(&self) -> io::Result<()> {
        let socket = self.socket.try_clone()?;
        if socket.local_addr()?.is_unix() {
            drain(UnixStream::from_std(OwnedFd::from(socket).into())?).await
        } else {
            drain(TcpStream::from_std(socket.into())?).await
        }
    }
}

async fn drain(mut stream: impl AsyncRead + Unpin) -> io::Result<()> {
    let mut discarded = [0; 4096];
    while stream.read(&mut discarded).await? != 0 {}
    Ok(())
}

impl fmt::Debug for SocketHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketHandle").finish_non_exhaustive()
    }
}

/// When a connection that went direct is to be polled, as one runtime sees it.
pub(crate) struct Readiness {
    stream: Stream,
    direct: Arc<Direct>,
}

impl Readiness {
    /// Completes when there is something to read, or room to write where that was missing. Cancel safe. One waits at a time.
    pub(crate) async fn ready(&self) {
        let interest = poll_fn(|cx| {
            if self.poll_read_ready(cx).is_ready() {
                return Poll::Ready(Interest::READABLE);
            }
            let writable = self.direct.is_full.load(Ordering::Relaxed) && self.poll_write_ready(cx).is_ready();
            if writable { Poll::Ready(Interest::WRITABLE) } else { Poll::Pending }
        })
        .await;
        // Whoever polls reads until nothing is left, so that the next is told anew.
        let read = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = match &self.stream {
            Stream::Tcp(stream) => stream.try_io(interest, read),
            Stream::Unix(stream) => stream.try_io(interest, read),
            _ => Ok(()),
        };
        self.direct.is_empty.store(false, Ordering::Release);
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.stream {
            Stream::Tcp(stream) => unless_it_fails(stream.poll_read_ready(cx)),
            Stream::Unix(stream) => unless_it_fails(stream.poll_read_ready(cx)),
            _ => Poll::Pending,
        }
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.stream {
            Stream::Tcp(stream) => unless_it_fails(stream.poll_write_ready(cx)),
            Stream::Unix(stream) => unless_it_fails(stream.poll_write_ready(cx)),
            _ => Poll::Pending,
        }
    }
}

/// Without a reactor nothing comes any more.
fn unless_it_fails(ready: Poll<io::Result<()>>) -> Poll<()> {
    match ready {
        Poll::Ready(Ok(())) => Poll::Ready(()),
        Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
    }
}
