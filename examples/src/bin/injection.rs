//! An HTTP service that was given its locks: `Arc<dyn ScopedLocker>`, here the one line that knows the backend.
//!
//! ```sh
//! cargo run -p examples --bin injection
//! DATABASE_URL=postgres://user@localhost/app cargo run -p examples --bin injection
//! cargo run -p examples --bin injection -- --serve 127.0.0.1:8080
//! ```
//!
//! The service is `examples/src/shop.rs`, its tests on the in-memory backend are `examples/tests/injection.rs`. Without
//! arguments the program plays a few clients of it and ends; it exits 1 if an answer was not the right one. With `--serve` it
//! serves until Ctrl-C or SIGTERM:
//!
//! ```sh
//! curl -i -X POST http://127.0.0.1:8080/items/teapot/buy
//! curl -i http://127.0.0.1:8080/healthz
//! ```

use std::env;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use distributed_lock::{ScopedLocker, ScopedLockerExt};
use examples::shop::{Shop, serve};
use examples::{Answer, request};
use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const BUY: &str = "/items/teapot/buy";
const PIECES: u32 = 3;
const BUYERS: usize = 5;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let address = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["--serve", address] => Some(address),
        _ => {
            eprintln!("usage: injection [--serve ADDRESS:PORT]");
            return Ok(ExitCode::from(2));
        }
    };

    // The only line that knows the backend. A test puts the in-memory one here, and fails, delays or loses on cue.
    let locks: Arc<dyn ScopedLocker> = examples::scoped_locker()?;
    let shop = Shop::new(Arc::clone(&locks), [("teapot", PIECES)]);
    let listener = TcpListener::bind(address.unwrap_or("127.0.0.1:0")).await?;
    let server = listener.local_addr()?;
    println!("locker={locks} address={server}");

    if address.is_some() {
        let stop = told_to_stop()?;
        serve(listener, shop, stop).await?;
        return Ok(ExitCode::SUCCESS);
    }

    let (stop, stopped) = oneshot::channel::<()>();
    // A server that fails takes its end of this channel along, and the session fails with it.
    let session = async {
        let right = session(server, locks.as_ref()).await;
        drop(stop);
        right
    };
    let (served, right) = tokio::join!(serve(listener, Arc::clone(&shop), stopped), session);
    served?;
    let closed = locks.ping().await.is_err();
    println!("stopped: locker closed={closed}, teapots left={:?}", shop.left("teapot"));
    Ok(if right? && closed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What clients see; whether it was what they should see.
async fn session(server: SocketAddr, locks: &dyn ScopedLocker) -> io::Result<bool> {
    // 1. The service is healthy if its lock store answers.
    let health = request(server, "GET", "/healthz").await?;
    println!("GET /healthz: {health}");

    // 2. More buyers than pieces, all at once. Each sale reads the stock, takes its time and writes it back; the lock sees
    //    to it that each of them reads what the one before it wrote.
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        buyers.spawn(async move { request(server, "POST", BUY).await });
    }
    let (mut sold, mut sold_out) = (0, 0);
    for answer in buyers.join_all().await {
        let answer = answer?;
        println!("POST {BUY}: {answer}");
        sold += u32::from(answer.status == 200);
        sold_out += u32::from(answer.status == 410);
    }

    // 3. Somebody keeps the item to himself, as a replica that counts the stock would: the buyer waits a little and is then
    //    told to come back. Contention is an answer, not a failure.
    let counting = locks.with_lock("items/teapot", async |_hold| request(server, "POST", BUY).await).await;
    let busy: Answer = counting.map_err(io::Error::other)??;
    println!("POST {BUY}: {busy}");

    // 4. A name that is no key is the client's mistake, found before any lock is touched.
    let nameless = request(server, "POST", &format!("/items/{}/buy", "x".repeat(600))).await?;
    println!("POST /items/xxx…/buy: {nameless}");

    let rights = [
        health.status == 200,
        sold == PIECES && sold_out == BUYERS as u32 - PIECES,
        busy.status == 409 && busy.retry_after.is_some(),
        nameless.status == 400,
    ];
    Ok(rights.iter().all(|right| *right))
}

/// Completes when the operator (Ctrl-C) or the platform (SIGTERM) wants the service to end. Heard from the call on.
fn told_to_stop() -> io::Result<impl Future<Output = ()>> {
    let mut terminated = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _pressed = ctrl_c() => {}
            _ = terminated.recv() => {}
        }
    })
}
