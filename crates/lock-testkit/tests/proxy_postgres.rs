//! The proxy before a real server: counts, and replies that get lost.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test; clippy knows only those of the standard harness")]

mod common;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

use common::block_on;
use lock_testkit::proxy::{AfterLoss, Flow};
use lock_testkit::{Cluster, Observer, Proxy, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, NoTls};

fn main() -> ExitCode {
    common::run(&[
        ("round_trips_are_counted", round_trips_are_counted),
        ("refused_encryption_is_read_along", refused_encryption_is_read_along),
        ("encryption_is_carried_and_makes_round_trips_unknown", encryption_is_carried_and_makes_round_trips_unknown),
        ("cancel_requests_are_counted", cancel_requests_are_counted),
        ("lost_reply_leaves_the_request_done_and_closes", lost_reply_leaves_the_request_done_and_closes),
        ("silent_loss_keeps_the_connection_open", silent_loss_keeps_the_connection_open),
        ("replies_before_the_lost_one_arrive", replies_before_the_lost_one_arrive),
        ("blackhole_hides_a_terminated_session", blackhole_hides_a_terminated_session),
        (
            "halved_write_stops_the_timer_of_its_session_and_no_other",
            halved_write_stops_the_timer_of_its_session_and_no_other,
        ),
    ])
}

struct Setting {
    proxy: Proxy,
    observer: Observer,
    url: String,
}

impl Setting {
    async fn new() -> Self {
        let cluster = Cluster::shared().unwrap();
        let database = cluster.create_database().await.unwrap();
        let observer = Observer::connect(&cluster.admin_config(&database)).await.unwrap();
        let proxy = Proxy::start((Ipv4Addr::LOCALHOST, cluster.port())).unwrap();
        let url = proxy.url(&cluster.url_for("postgres", &database));
        Self { proxy, observer, url }
    }

    async fn connect(&self) -> Client {
        self.connect_with_task().await.0
    }

    async fn connect_with_task(&self) -> (Client, JoinHandle<Result<(), tokio_postgres::Error>>) {
        let mut config: Config = self.url.parse().unwrap();
        config.ssl_mode(SslMode::Disable);
        let (client, connection) = config.connect(NoTls).await.unwrap();
        (client, tokio::spawn(connection))
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

fn round_trips_are_counted() {
    block_on(async {
        let setting = Setting::new().await;
        let client = setting.connect().await;
        assert_eq!(setting.proxy.round_trips(), Some(1), "the startup");
        let statement = client.prepare("SELECT $1::int4").await.unwrap();
        setting.proxy.reset_counts();
        client.query(&statement, &[&1]).await.unwrap();
        assert_eq!(setting.proxy.round_trips(), Some(1));
        client.batch_execute("SELECT 1; SELECT 2").await.unwrap();
        assert_eq!(setting.proxy.round_trips(), Some(2));
        assert!(client.batch_execute("SELECT wrong").await.is_err());
        assert_eq!(setting.proxy.round_trips(), Some(3));
        client.query("SELECT 1", &[]).await.unwrap();
        // Unprepared: one to prepare, one to run, and one to close the statement, which nobody awaits.
        let counted = wait_until(PATIENCE, "three round trips", async || setting.proxy.round_trips() == Some(6));
        counted.await.unwrap();
        let counts = setting.proxy.counts();
        assert_eq!((counts.frontend(b'Q'), counts.frontend(b'B'), counts.frontend(b'S')), (2, 2, 4));
        assert_eq!((counts.startups, counts.cancels, counts.opaque), (0, 0, 0));
    });
}

/// Asks for TLS, which the driver does only if it has some, and gives the server's answer.
async fn ask_for_tls(proxy: &Proxy) -> (TcpStream, u8) {
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
    let answer = stream.read_u8().await.unwrap();
    (stream, answer)
}

fn refused_encryption_is_read_along() {
    block_on(async {
        let setting = Setting::new().await;
        let (mut stream, answer) = ask_for_tls(&setting.proxy).await;
        assert_eq!(answer, b'N');
        let body = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        stream.write_u32(u32::try_from(body.len() + 4).unwrap()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let ready = wait_until(PATIENCE, "ready", async || setting.proxy.round_trips() == Some(1));
        ready.await.unwrap();
        let counts = setting.proxy.counts();
        assert_eq!((counts.frontend(b's'), counts.startups, counts.opaque), (1, 1, 0));
    });
}

fn encryption_is_carried_and_makes_round_trips_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("certificate"), folder.path().join("key"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let cluster = Cluster::builder().tls_with_client_ca(&certificate, &key, &certificate).start().unwrap();
    let proxy = Proxy::start((Ipv4Addr::LOCALHOST, cluster.port())).unwrap();
    block_on(async {
        let (_stream, answer) = ask_for_tls(&proxy).await;
        assert_eq!(answer, b'S');
        assert_eq!(proxy.round_trips(), None);
    });
}

fn cancel_requests_are_counted() {
    block_on(async {
        let setting = Setting::new().await;
        let client = setting.connect().await;
        client.cancel_token().cancel_query(NoTls).await.unwrap();
        let counted = wait_until(PATIENCE, "a cancel request", async || setting.proxy.counts().cancels == 1);
        counted.await.unwrap();
        assert_eq!(setting.proxy.counts().startups, 1);
    });
}

fn lost_reply_leaves_the_request_done_and_closes() {
    block_on(async {
        let setting = Setting::new().await;
        let client = setting.connect().await;
        setting.proxy.lose_reply(2, AfterLoss::Close);
        client.batch_execute("CREATE TABLE first ()").await.unwrap();
        let lost = timeout(PATIENCE, client.batch_execute("CREATE TABLE second ()")).await.expect("it closes");
        assert!(lost.unwrap_err().is_closed());
        let client = setting.connect().await;
        client.batch_execute("SELECT FROM first; SELECT FROM second").await.unwrap();
    });
}

fn silent_loss_keeps_the_connection_open() {
    block_on(async {
        let setting = Setting::new().await;
        let (client, connection) = setting.connect_with_task().await;
        setting.proxy.lose_reply(1, AfterLoss::Silence);
        let lost = client.batch_execute("SELECT pg_catalog.pg_advisory_lock(5)");
        assert!(timeout(Duration::from_millis(200), lost).await.is_err());
        let holders = setting.observer.holders(5).await.unwrap();
        assert_eq!(holders.len(), 1);
        // The server's end is not seen either.
        setting.observer.terminate(holders[0].pid.unwrap()).await.unwrap();
        setting.observer.quiet(PATIENCE).await.unwrap();
        assert!(!client.is_closed());
        // The driver keeps its connection, even without the client, as long as an answer is due.
        connection.abort();
        let gone = wait_until(PATIENCE, "no connection", async || setting.proxy.connections() == 0);
        gone.await.unwrap();
    });
}

fn replies_before_the_lost_one_arrive() {
    block_on(async {
        let setting = Setting::new().await;
        for after in [AfterLoss::Close, AfterLoss::Silence] {
            let client = setting.connect().await;
            setting.proxy.lose_reply(2, after);
            // Sent together, so that the replies can come together.
            let (first, second) = tokio::join!(
                client.batch_execute("SELECT 1"),
                timeout(Duration::from_millis(500), client.batch_execute("SELECT 2")),
            );
            first.unwrap();
            match after {
                AfterLoss::Close => assert!(second.expect("it closes").unwrap_err().is_closed()),
                AfterLoss::Silence => assert!(second.is_err()),
            }
        }
    });
}

fn halved_write_stops_the_timer_of_its_session_and_no_other() {
    block_on(async {
        let setting = Setting::new().await;
        let [halved, whole] = [setting.connect().await, setting.connect().await];
        let mut statements = Vec::new();
        for (client, key) in [(&halved, 5), (&whole, 6)] {
            client
                .batch_execute(&format!("SELECT pg_advisory_lock({key}); SET idle_session_timeout = 300"))
                .await
                .unwrap();
            statements.push(client.prepare("SELECT 1").await.unwrap());
        }
        setting.proxy.halve_next_bind();
        // A simple query has no Bind.
        whole.batch_execute("SELECT 1").await.unwrap();
        assert!(timeout(Duration::from_millis(100), halved.query(&statements[0], &[])).await.is_err());
        whole.query(&statements[1], &[]).await.unwrap();
        let held = async |key| !setting.observer.holders(key).await.unwrap().is_empty();
        let freed = wait_until(PATIENCE, "the server's timer ends the other", async || !held(6).await);
        freed.await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(held(5).await, "its timer ran");
        // Its end is not seen either, until all are severed.
        drop(halved);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(held(5).await, "its end was seen");
        setting.proxy.reset();
        setting.observer.quiet(PATIENCE).await.unwrap();
    });
}

fn blackhole_hides_a_terminated_session() {
    block_on(async {
        let setting = Setting::new().await;
        let client = setting.connect().await;
        client.batch_execute("SELECT pg_catalog.pg_advisory_lock(5)").await.unwrap();
        setting.proxy.both(Flow::Drop);
        let pid = setting.observer.holders(5).await.unwrap()[0].pid.unwrap();
        setting.observer.terminate(pid).await.unwrap();
        setting.observer.quiet(PATIENCE).await.unwrap();
        assert!(timeout(Duration::from_millis(200), client.batch_execute("SELECT 1")).await.is_err());
        assert!(!client.is_closed());
    });
}
