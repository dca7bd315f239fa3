//! Ways to a server and through its door.

use std::net::TcpListener;

use distributed_lock::{Backend, ErrorKind};
use libtest_mimic::Trial;
use lock_postgres::PostgresConfig;
use lock_testkit::Cluster;

use crate::{
    certificates::{Certificates, Flaw},
    gone, leave, open, seen, trial,
};

/// Each character that a URL or a pair treats specially; it is looked for in all that is printed.
const PASSWORD: &str = r"canary @/?:#%&=+'\ é";
const IN_URL: &str = "canary%20%40%2F%3F%3A%23%25%26%3D%2B'%5C%20%C3%A9";
const IN_PAIRS: &str = r"'canary @/?:#%&=+\'\\ é'";

pub(crate) fn trials() -> Vec<Trial> {
    let with_password = || Cluster::builder().password_auth().start();
    let with_tls = || {
        let certificates = Certificates::new();
        let (certificate, key) = certificates.server(Flaw::None);
        Cluster::builder().tls(certificate, key).start()
    };
    vec![
        trial("login::each_way_in", with_password, each_way_in),
        trial("login::refusals", with_password, refusals),
        trial("login::ipv6", || Cluster::builder().setting("listen_addresses", "127.0.0.1,::1").start(), ipv6),
        trial("login::dropped_locker_in_plaintext", Cluster::start, |cluster| dropped_locker(cluster, "disable")),
        trial("login::dropped_locker_in_tls", with_tls, |cluster| dropped_locker(cluster, "require")),
    ]
}

async fn create_guest(cluster: &Cluster) {
    let admin = cluster.admin().await.unwrap();
    let literal = PASSWORD.replace('\'', "''");
    admin.batch_execute(&format!("CREATE ROLE \"g@st\" LOGIN PASSWORD '{literal}'")).await.unwrap();
    admin.batch_execute("CREATE DATABASE \"d/b\"").await.unwrap();
}

async fn each_way_in(cluster: Cluster) {
    create_guest(&cluster).await;
    let port = cluster.port();
    let folder = cluster.socket_dir().display().to_string();
    let encoded = folder.replace('/', "%2F");
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let admin = cluster.admin().await.unwrap();
    for (text, address) in [
        (format!("postgres://g%40st:{IN_URL}@127.0.0.1:{port}/d%2Fb"), "127.0.0.1 "),
        (format!("postgresql://g%40st:{IN_URL}@localhost:{port}/d/b"), "127.0.0.1 "),
        (format!("postgres://g%40st:{IN_URL}@{encoded}:{port}/d%2Fb"), ""),
        (format!("postgres://g%40st:{IN_URL}@/d%2Fb?host={folder}&port={port}"), ""),
        (format!("postgres://g%40st:{IN_URL}@127.0.0.1:{closed},{encoded}:{port}/d%2Fb"), ""),
        (format!("postgres://127.0.0.1:{port}/d%2Fb?user=g%40st&password={IN_URL}"), "127.0.0.1 "),
        (format!("host=127.0.0.1 port={port} user=g@st password={IN_PAIRS} dbname=d/b"), "127.0.0.1 "),
        (format!("host=127.0.0.1,{folder} port={closed},{port} user=g@st password={IN_PAIRS} dbname='d/b'"), ""),
    ] {
        let locker = open(&text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
        assert_eq!(seen(&admin).await, format!("g@st d/b {address}distributed-lock f"), "{text}");
        let config = PostgresConfig::from_url(&text);
        let shown = format!("{locker} {locker:?} {locker:#?} {:?} {config:?}", locker.guarantees());
        assert!(!shown.contains("canary"), "{shown}");
        leave(&admin, locker).await;
    }

    let text = format!("postgres://g%40st:{IN_URL}@127.0.0.1:{port}?dbname=postgres&application_name=it%27s%20mine");
    let locker = open(&text).await.unwrap();
    assert_eq!(seen(&admin).await, "g@st postgres 127.0.0.1 it's mine f");
    leave(&admin, locker).await;
}

async fn refusals(cluster: Cluster) {
    create_guest(&cluster).await;
    let admin = cluster.admin().await.unwrap();
    let literal = PASSWORD.replace('\'', "''");
    for statement in [
        "CREATE DATABASE private".to_owned(),
        "REVOKE CONNECT ON DATABASE private FROM PUBLIC".to_owned(),
        format!("CREATE ROLE asleep NOLOGIN PASSWORD '{literal}'"),
        format!("CREATE ROLE full LOGIN CONNECTION LIMIT 0 PASSWORD '{literal}'"),
    ] {
        admin.batch_execute(&statement).await.unwrap();
    }
    let port = cluster.port();
    for (user, password, database, kind, state, says) in [
        ("g%40st", "canary-wrong", "postgres", ErrorKind::Denied, Some("28P01"), "wrong password"),
        ("nobody", IN_URL, "postgres", ErrorKind::Denied, Some("28P01"), "wrong password or user"),
        ("asleep", IN_URL, "postgres", ErrorKind::Denied, Some("28000"), "check the role"),
        ("g%40st", IN_URL, "absent", ErrorKind::Misconfigured, Some("3D000"), "check dbname"),
        ("g%40st", IN_URL, "private", ErrorKind::Denied, Some("42501"), "GRANT CONNECT"),
        ("full", IN_URL, "postgres", ErrorKind::LimitReached, Some("53300"), "make the pools smaller"),
        ("g%40st", "", "postgres", ErrorKind::Misconfigured, None, "asks for a password"),
        ("g%40st", IN_URL, "postgres?options=-cx=y", ErrorKind::Misconfigured, Some("42704"), "the source says why"),
        ("g%40st", IN_URL, "postgres?options=-cwork_mem=y", ErrorKind::Misconfigured, Some("22023"), "source"),
        ("g%40st", IN_URL, "postgres?sslmode=require", ErrorKind::Misconfigured, None, "does not offer TLS"),
    ] {
        let error = open(&format!("postgres://{user}:{password}@127.0.0.1:{port}/{database}")).await.unwrap_err();
        assert_eq!((error.kind(), error.code()), (kind, state), "{user} {database}: {error:?}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
        assert!(!format!("{error} {error:?} {error:#?}").contains("canary"), "{error:?}");
    }

    cluster.stop().unwrap();
    let error = open(&format!("postgres://g%40st:{IN_URL}@127.0.0.1:{port}/postgres")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.is_retryable() && error.to_string().contains("nothing listens there"), "{error}");
    assert!(!cluster.log().contains("canary"), "the server logged a password");
}

async fn ipv6(cluster: Cluster) {
    let port = cluster.port();
    let admin = cluster.admin().await.unwrap();
    for text in [format!("postgres://postgres@[::1]:{port}/postgres"), format!("user=postgres host=::1 port={port}")] {
        let locker = open(&text).await.unwrap();
        assert_eq!(seen(&admin).await, "postgres postgres ::1 distributed-lock f");
        leave(&admin, locker).await;
    }
}

/// Without a word to the server, from a thread that has no runtime.
async fn dropped_locker(cluster: Cluster, mode: &str) {
    let admin = cluster.admin().await.unwrap();
    let text = format!("host=127.0.0.1 port={} user=postgres sslmode={mode}", cluster.port());
    let locker = open(&text).await.unwrap();
    assert!(!seen(&admin).await.is_empty());
    std::thread::spawn(move || drop(locker)).join().unwrap();
    gone(&admin).await;
}
