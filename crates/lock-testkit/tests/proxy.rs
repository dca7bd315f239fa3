//! What the proxy does to plain TCP streams, seen from both ends.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests; clippy knows only the tests themselves")]

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::time::Duration;

use lock_testkit::proxy::Flow;
use lock_testkit::{Proxy, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

/// Both ends of a connection through a proxy.
struct Pair {
    proxy: Proxy,
    listener: TcpListener,
    client: TcpStream,
    server: TcpStream,
}

impl Pair {
    async fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
        let client = TcpStream::connect(proxy.address()).await.unwrap();
        let (server, _) = within(listener.accept()).await.unwrap();
        Self { proxy, listener, client, server }
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), future).await.expect("in time")
}

/// Bytes sent on one end arrive on the other.
async fn assert_carries(from: &mut TcpStream, to: &mut TcpStream, text: &[u8]) {
    from.write_all(text).await.unwrap();
    let mut arrived = vec![0; text.len()];
    within(to.read_exact(&mut arrived)).await.unwrap();
    assert_eq!(arrived, text);
}

/// Nothing arrives, not even an end, for a while.
async fn assert_silent(stream: &mut TcpStream) {
    let read = timeout(Duration::from_millis(100), stream.read_u8()).await;
    assert!(read.is_err(), "something arrived: {read:?}");
}

async fn assert_closed(stream: &mut TcpStream) {
    assert_eq!(within(stream.read(&mut [0])).await.unwrap(), 0);
}

async fn assert_reset(stream: &mut TcpStream) {
    assert_eq!(within(stream.read(&mut [0])).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn passing_proxy_carries_both_ways_and_ends() {
    let Pair { proxy, mut client, mut server, .. } = Pair::new().await;
    assert_carries(&mut client, &mut server, b"up").await;
    assert_carries(&mut server, &mut client, b"down").await;
    assert_eq!(proxy.connections(), 1);
    client.shutdown().await.unwrap();
    assert_closed(&mut server).await;
    assert_carries(&mut server, &mut client, b"half open").await;
    drop(server);
    assert_closed(&mut client).await;
    let ended = wait_until(Duration::from_secs(10), "no connection", async || proxy.connections() == 0);
    ended.await.unwrap();
}

#[tokio::test]
async fn cut_closes_both_ends_and_later_clients_until_it_passes() {
    let Pair { proxy, listener, mut client, mut server } = Pair::new().await;
    proxy.cut();
    assert_closed(&mut client).await;
    assert_closed(&mut server).await;
    let mut late = TcpStream::connect(proxy.address()).await.unwrap();
    assert_closed(&mut late).await;
    proxy.pass();
    let mut fresh = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut server, _) = within(listener.accept()).await.unwrap();
    assert_carries(&mut fresh, &mut server, b"fresh").await;
}

#[tokio::test]
async fn cut_is_not_undone_by_passing_at_once() {
    let Pair { proxy, mut client, .. } = Pair::new().await;
    proxy.cut();
    proxy.pass();
    assert_closed(&mut client).await;
}

#[tokio::test]
async fn reset_resets_both_ends_and_later_clients() {
    let Pair { proxy, mut client, mut server, .. } = Pair::new().await;
    proxy.reset();
    assert_reset(&mut client).await;
    assert_reset(&mut server).await;
    if let Ok(mut late) = TcpStream::connect(proxy.address()).await {
        assert_reset(&mut late).await;
    }
}

#[tokio::test]
async fn unreachable_server_resets_the_client() {
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(closed).unwrap();
    if let Ok(mut client) = TcpStream::connect(proxy.address()).await {
        assert_reset(&mut client).await;
    }
}

#[tokio::test]
async fn dropped_direction_loses_bytes_and_the_other_passes() {
    let Pair { proxy, mut client, mut server, .. } = Pair::new().await;
    proxy.up(Flow::Drop);
    client.write_all(b"lost").await.unwrap();
    assert_silent(&mut server).await;
    assert_carries(&mut server, &mut client, b"down").await;
    proxy.pass();
    assert_carries(&mut client, &mut server, b"up").await;
    proxy.down(Flow::Drop);
    server.write_all(b"lost").await.unwrap();
    assert_silent(&mut client).await;
    assert_carries(&mut client, &mut server, b"up").await;
}

#[tokio::test]
async fn blackhole_hides_the_end_of_each_side_until_it_heals() {
    let Pair { proxy, mut client, server, .. } = Pair::new().await;
    proxy.both(Flow::Drop);
    drop(server);
    assert_silent(&mut client).await;
    client.write_all(b"to nobody").await.unwrap();
    assert_silent(&mut client).await;
    proxy.pass();
    assert_closed(&mut client).await;

    let Pair { proxy, client, mut server, .. } = Pair::new().await;
    proxy.both(Flow::Drop);
    drop(client);
    assert_silent(&mut server).await;
    proxy.pass();
    assert_closed(&mut server).await;
}

#[tokio::test]
async fn held_bytes_arrive_after_healing() {
    let Pair { proxy, mut client, mut server, .. } = Pair::new().await;
    proxy.both(Flow::Hold);
    client.write_all(b"one ").await.unwrap();
    assert_silent(&mut server).await;
    client.write_all(b"two").await.unwrap();
    proxy.pass();
    let mut arrived = [0; 7];
    within(server.read_exact(&mut arrived)).await.unwrap();
    assert_eq!(&arrived, b"one two");
}

#[tokio::test]
async fn client_in_a_blackhole_reaches_the_server_after_healing() {
    for flow in [Flow::Drop, Flow::Hold] {
        let Pair { proxy, listener, .. } = Pair::new().await;
        proxy.down(flow);
        let mut late = TcpStream::connect(proxy.address()).await.unwrap();
        late.write_all(b"late").await.unwrap();
        assert!(timeout(Duration::from_millis(100), listener.accept()).await.is_err());
        proxy.pass();
        let (mut server, _) = within(listener.accept()).await.unwrap();
        let mut arrived = [0; 4];
        within(server.read_exact(&mut arrived)).await.unwrap();
        assert_eq!(&arrived, b"late");
    }
}

#[tokio::test]
async fn delay_holds_each_way_back_and_lets_bytes_overlap() {
    const DELAY: Duration = Duration::from_millis(100);
    let Pair { proxy, mut client, mut server, .. } = Pair::new().await;
    client.set_nodelay(true).unwrap();
    proxy.up(Flow::Delay(DELAY));
    let start = Instant::now();
    for byte in 0..10 {
        client.write_u8(byte).await.unwrap();
        // The next byte has to be a piece of its own for the proxy.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for byte in 0..10 {
        assert_eq!(within(server.read_u8()).await.unwrap(), byte);
        assert!(start.elapsed() >= DELAY);
    }
    assert!(start.elapsed() < DELAY * 10, "one after the other: {:?}", start.elapsed());
    let start = Instant::now();
    assert_carries(&mut server, &mut client, b"down").await;
    assert!(start.elapsed() < DELAY, "{:?}", start.elapsed());
}

#[tokio::test]
async fn what_is_no_postgres_is_carried_and_not_counted() {
    let Pair { proxy, mut client, mut server, .. } = Pair::new().await;
    assert_eq!(proxy.round_trips(), Some(0));
    assert_carries(&mut client, &mut server, b"GET / HTTP/1.1\r\n\r\n").await;
    assert_carries(&mut server, &mut client, b"HTTP/1.1 200 OK\r\n\r\n").await;
    assert_eq!(proxy.round_trips(), None);
    proxy.reset_counts();
    assert_eq!(proxy.round_trips(), None, "it is still open");
    drop((client, server));
    let ended = wait_until(Duration::from_secs(10), "no connection", async || proxy.connections() == 0);
    ended.await.unwrap();
    proxy.reset_counts();
    assert_eq!(proxy.round_trips(), Some(0));
}

#[tokio::test]
async fn dropped_proxy_closes_everything() {
    let Pair { proxy, mut client, mut server, .. } = Pair::new().await;
    let address = proxy.address();
    drop(proxy);
    assert_closed(&mut client).await;
    assert_closed(&mut server).await;
    assert!(TcpStream::connect(address).await.is_err());
}
