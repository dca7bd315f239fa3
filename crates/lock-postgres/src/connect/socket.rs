//! A socket that we own: opened here, given to the driver, and kept in reach by a duplicate, so that a session can be ended
//! from any thread, with or without a runtime.

use std::{
    fmt, io,
    net::{IpAddr, Shutdown, SocketAddr},
    os::fd::OwnedFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream, lookup_host},
    time::{Instant, sleep, timeout_at},
};

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
pub(super) struct Socket(Stream);

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Why there is no socket.
#[derive(Debug)]
pub(super) enum Unreached {
    Connect(io::Error),
    Resolve(io::Error),
}

impl Socket {
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
                Ok(stream) => return Ok(Self(Stream::Tcp(stream))),
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
                other => return other.map(|stream| Self(Stream::Unix(stream))),
            }
        }
    }

    /// A handle on a duplicate of the socket.
    pub(super) fn handle(&self) -> io::Result<SocketHandle> {
        Ok(SocketHandle(Arc::new(self.duplicate()?)))
    }

    pub(super) fn duplicate(&self) -> io::Result<socket2::Socket> {
        self.as_ref().try_clone()
    }

    /// The address at the other end; `None` for a unix socket.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        match &self.0 {
            Stream::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            Stream::Unix(_) => None,
        }
    }

    fn as_ref(&self) -> SockRef<'_> {
        match &self.0 {
            Stream::Tcp(stream) => SockRef::from(stream),
            Stream::Unix(stream) => SockRef::from(stream),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Fails only if the socket is down already.
        let _ = self.as_ref().shutdown(Shutdown::Write);
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
        match &mut self.0 {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Ends a session at its socket. Clones share the socket, which is closed with the last of them.
#[derive(Clone)]
pub(crate) struct SocketHandle(Arc<socket2::Socket>);

impl SocketHandle {
    /// Ends the writing half: the server reads the end of the session, and [`until_eof`](Self::until_eof) sees it go.
    pub(crate) fn shutdown_write(&self) {
        // Fails only if the socket is down already.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Reads and discards until the server has closed its end, which a PostgreSQL backend does after it has given up its
    /// locks. An error means that this was not seen: a cut connection says nothing about the server.
    ///
    /// Runs on the current runtime, which need not be the one that drives the connection. Takes the server's answers away
    /// from a connection that is still driven.
    pub(crate) async fn until_eof(&self) -> io::Result<()> {
        let socket = self.0.try_clone()?;
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
