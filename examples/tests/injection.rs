//! The shop on the in-memory backend: its router is called in-process, and contention, failures, slowness and loss come on
//! cue. Nothing here knows of PostgreSQL, and the shop knows nothing of this.

#![expect(clippy::unwrap_used, reason = "a test whose own steps fail has failed")]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode, header};
use distributed_lock::{Backend, ErrorKind, LossCause, MemoryLocker, Scoped};
use examples::shop::{DRAIN, HEALTHY, PATIENCE, PAYMENT, Shop, router, serve};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt;

/// A shop with three teapots, its locker, and another locker on the same store, as another replica would have it.
struct Rig {
    shop: Arc<Shop>,
    locks: Arc<Scoped<Arc<MemoryLocker>>>,
    own: Arc<MemoryLocker>,
    other: MemoryLocker,
    app: Router,
}

fn rig() -> Rig {
    let own = Arc::new(MemoryLocker::new());
    let other = own.peer();
    let locks = Arc::new(Scoped::new(Arc::clone(&own)));
    let shop = Shop::new(Arc::clone(&locks) as _, [("teapot", 3)]);
    let app = router(Arc::clone(&shop));
    Rig { shop, locks, own, other, app }
}

#[derive(Debug)]
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

async fn send(app: &Router, method: &str, path: &str) -> Reply {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(to_bytes(body, 1024).await.unwrap().to_vec()).unwrap();
    Reply { status: parts.status, headers: parts.headers, body }
}

async fn buy(app: &Router) -> Reply {
    send(app, "POST", "/items/teapot/buy").await
}

#[tokio::test(start_paused = true)]
async fn free_item_is_sold() {
    let rig = rig();
    let reply = buy(&rig.app).await;
    assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, "sold, 2 left\n"));
    assert_eq!(send(&rig.app, "POST", "/items/kettle/buy").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn buyers_at_once_get_every_piece_once() {
    let rig = rig();
    let mut buyers = JoinSet::new();
    for _ in 0..5 {
        let app = rig.app.clone();
        buyers.spawn(async move { buy(&app).await.status });
    }
    let mut statuses = buyers.join_all().await;
    statuses.sort();
    let (ok, gone) = (StatusCode::OK, StatusCode::GONE);
    assert_eq!(statuses, [ok, ok, ok, gone, gone]);
    assert_eq!(rig.shop.left("teapot"), Some(0));
}

#[tokio::test(start_paused = true)]
async fn item_that_another_replica_keeps_is_a_conflict_after_the_patience() {
    let rig = rig();
    let somebody = rig.other.hold("items/teapot").unwrap();
    let start = Instant::now();
    let reply = buy(&rig.app).await;
    assert_eq!((reply.status, &reply.headers[header::RETRY_AFTER]), (StatusCode::CONFLICT, &"1".parse().unwrap()));
    assert!(start.elapsed() >= PATIENCE && start.elapsed() < PATIENCE * 2, "{:?}", start.elapsed());
    assert_eq!(rig.shop.left("teapot"), Some(3));
    drop(somebody);
    assert_eq!(buy(&rig.app).await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn store_that_cannot_be_used_is_unavailable_and_sells_nothing() {
    let rig = rig();
    for kind in [ErrorKind::Unavailable, ErrorKind::CircuitOpen, ErrorKind::LimitReached] {
        rig.own.fail_next(kind);
        let reply = buy(&rig.app).await;
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{kind:?}");
        assert!(!reply.headers.contains_key(header::RETRY_AFTER), "nobody knows when");
        assert_eq!(rig.shop.left("teapot"), Some(3));
    }
    assert_eq!(buy(&rig.app).await.status, StatusCode::OK, "the next request finds the store again");
}

#[tokio::test(start_paused = true)]
async fn lock_that_is_lost_during_the_payment_sells_nothing_and_says_so() {
    let rig = rig();
    let lose = async {
        sleep(PAYMENT / 2).await;
        assert!(rig.other.lose("items/teapot", LossCause::SessionEnded).unwrap());
    };
    let (reply, ()) = tokio::join!(buy(&rig.app), lose);
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(rig.shop.left("teapot"), Some(3));
}

#[tokio::test(start_paused = true)]
async fn lock_that_cannot_be_asked_for_by_a_bad_name_or_right_is_no_server_trouble() {
    let rig = rig();
    let long = format!("/items/{}/buy", "x".repeat(600));
    assert_eq!(send(&rig.app, "POST", &long).await.status, StatusCode::BAD_REQUEST);
    rig.own.fail_next(ErrorKind::Denied);
    assert_eq!(buy(&rig.app).await.status, StatusCode::INTERNAL_SERVER_ERROR, "asking again changes nothing");
}

#[tokio::test(start_paused = true)]
async fn client_that_hangs_up_in_the_middle_frees_the_item() {
    let rig = rig();
    assert!(timeout(PAYMENT / 2, buy(&rig.app)).await.is_err());
    assert!(rig.other.hold("items/teapot").is_ok());
    assert_eq!(rig.shop.left("teapot"), Some(3));
}

#[tokio::test(start_paused = true)]
async fn health_is_that_of_the_store() {
    let rig = rig();
    let health = || send(&rig.app, "GET", "/healthz");
    assert_eq!(health().await.status, StatusCode::OK);
    rig.own.fail_next(ErrorKind::Unavailable);
    assert_eq!(health().await.status, StatusCode::SERVICE_UNAVAILABLE);
    rig.own.delay(HEALTHY * 60);
    let start = Instant::now();
    assert_eq!(health().await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(start.elapsed() < HEALTHY * 2, "a health check that hangs is no health check: {:?}", start.elapsed());
    rig.own.delay(Duration::ZERO);
    rig.locks.close().await.unwrap();
    assert_eq!(health().await.status, StatusCode::SERVICE_UNAVAILABLE);
}

/// A served shop: where, what stops it, and its end.
macro_rules! served {
    ($rig:ident, $address:ident, $stop:ident, $server:ident) => {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let $address = listener.local_addr().unwrap();
        let ($stop, stopped) = oneshot::channel::<()>();
        let shop = Arc::clone(&$rig.shop);
        let $server = tokio::spawn(async move { serve(listener, shop, stopped).await.map_err(|e| e.to_string()) });
    };
}

#[tokio::test]
async fn request_in_flight_ends_well_and_then_the_locker_is_closed() {
    let rig = rig();
    served!(rig, address, stop, server);
    let sale = tokio::spawn(async move { examples::request(address, "POST", "/items/teapot/buy").await });
    let sale_has_the_lock = async {
        while rig.other.hold("items/teapot").is_ok() {
            yield_now().await;
        }
    };
    timeout(Duration::from_secs(10), sale_has_the_lock).await.unwrap();
    // All tasks share this thread, so the sale is still in its payment.
    drop(stop);
    assert_eq!(sale.await.unwrap().unwrap().status, 200);
    assert_eq!(server.await.unwrap(), Ok(()));
    assert_eq!(rig.locks.ping().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
}

#[tokio::test(start_paused = true)]
async fn client_that_never_ends_its_request_cannot_keep_the_service_up() {
    let rig = rig();
    served!(rig, address, stop, server);
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET /healthz HTT").await.unwrap();
    // Connections are taken in their order, so an answer to the second proves that the first is being served.
    assert_eq!(examples::request(address, "GET", "/healthz").await.unwrap().status, 200);
    drop(stop);
    let start = Instant::now();
    assert_eq!(server.await.unwrap(), Ok(()));
    assert!(start.elapsed() >= DRAIN && start.elapsed() < DRAIN * 2, "{:?}", start.elapsed());
    assert_eq!(rig.locks.ping().await.unwrap_err().kind(), ErrorKind::Closed);
}
