//! Our sockets: their options, and how they end.

use std::{io, thread, time::Duration};

use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixListener},
    runtime,
    time::{Instant, timeout},
};

use super::{
    super::{ConnectionString, socket::Socket},
    AMPLE,
};

async fn opened(text: &str) -> Socket {
    let parsed: ConnectionString = text.parse().unwrap();
    Socket::open(&parsed.targets[0], Instant::now() + AMPLE).await.unwrap()
}

async fn tcp_pair() -> (Socket, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let text = format!("user=u host=127.0.0.1 port={}", listener.local_addr().unwrap().port());
    let (ours, theirs) = tokio::join!(opened(&text), listener.accept());
    (ours, theirs.unwrap().0)
}

async fn reads_the_end(mut theirs: impl AsyncReadExt + Unpin) {
    let mut rest = Vec::new();
    timeout(AMPLE, theirs.read_to_end(&mut rest)).await.expect("the end arrives").unwrap();
}

#[tokio::test]
async fn tcp_options_are_set() {
    let (ours, _theirs) = tcp_pair().await;
    let copy = ours.duplicate().unwrap();
    assert!(copy.tcp_nodelay().unwrap() && copy.keepalive().unwrap());
    assert_eq!(copy.tcp_keepalive_time().unwrap(), Duration::from_secs(5));
    assert_eq!(copy.tcp_keepalive_interval().unwrap(), Duration::from_secs(2));
    assert_eq!(copy.tcp_keepalive_retries().unwrap(), 3);
    #[cfg(target_os = "linux")]
    assert_eq!(copy.tcp_user_timeout().unwrap(), Some(Duration::from_secs(11)));
}

#[tokio::test]
async fn shutdown_needs_no_runtime_and_may_be_repeated() {
    let (ours, theirs) = tcp_pair().await;
    let handle = ours.handle().unwrap();
    let handle = thread::spawn(move || {
        handle.shutdown_write();
        handle.shutdown_write();
        handle
    });
    let handle = handle.join().unwrap();
    reads_the_end(theirs).await;
    drop(ours);
    handle.shutdown_write();
}

#[tokio::test]
async fn dropped_stream_ends_the_session_although_a_handle_lives() {
    let (ours, theirs) = tcp_pair().await;
    let handle = ours.handle().unwrap();
    drop(ours);
    reads_the_end(theirs).await;
    timeout(AMPLE, handle.until_eof()).await.expect("the peer is gone").unwrap();
}

#[tokio::test]
async fn end_of_the_peer_is_seen_on_another_runtime() {
    let (ours, mut theirs) = tcp_pair().await;
    let handle = ours.handle().unwrap();
    handle.shutdown_write();
    theirs.write_all(&[7; 100_000]).await.unwrap();
    drop(theirs);
    let elsewhere = thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { timeout(AMPLE, handle.until_eof()).await })
    });
    elsewhere.join().unwrap().expect("the end arrives").unwrap();
}

#[tokio::test]
async fn living_peer_is_not_taken_for_gone() {
    let (ours, theirs) = tcp_pair().await;
    let handle = ours.handle().unwrap();
    handle.shutdown_write();
    assert!(timeout(Duration::from_millis(100), handle.until_eof()).await.is_err(), "the peer has not closed");
    drop(theirs);
    timeout(AMPLE, handle.until_eof()).await.expect("now it has").unwrap();
}

#[tokio::test]
async fn reset_is_not_taken_for_an_end() {
    let (ours, theirs) = tcp_pair().await;
    let handle = ours.handle().unwrap();
    SockRef::from(&theirs).set_linger(Some(Duration::ZERO)).unwrap();
    drop(theirs);
    let seen = timeout(AMPLE, handle.until_eof()).await.expect("the reset arrives");
    assert_eq!(seen.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn unix_socket_works_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join(".s.PGSQL.7")).unwrap();
    let ours = opened(&format!("user=u host={} port=7", folder.path().display())).await;
    let (theirs, _) = listener.accept().await.unwrap();
    assert_eq!(ours.peer(), None);
    let handle = ours.handle().unwrap();
    drop(ours);
    reads_the_end(theirs).await;
    timeout(AMPLE, handle.until_eof()).await.expect("the peer is gone").unwrap();
    handle.shutdown_write();
}

#[tokio::test]
async fn full_backlog_of_a_unix_socket_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(".s.PGSQL.7");
    let listener = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    listener.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    listener.listen(0).unwrap();
    let text = format!("user=u host={} port=7", folder.path().display());
    let first = opened(&text).await;
    let second = opened(&text);
    tokio::pin!(second);
    assert!(timeout(Duration::from_millis(100), &mut second).await.is_err(), "the backlog is full");
    listener.accept().unwrap();
    timeout(AMPLE, second).await.expect("there is room again");
    drop(first);
}

#[tokio::test]
async fn next_address_of_a_name_is_tried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // Where the name has an IPv6 address as well, that one comes first and refuses.
    let text = format!("user=u host=localhost port={port}");
    let (ours, _) = tokio::join!(opened(&text), listener.accept());
    assert_eq!(ours.peer(), Some("127.0.0.1".parse().unwrap()));
}
