//! Peers that are no PostgreSQL, or do not behave: what we send them, how long we stay, and what we say.

use std::{future::Future, time::Duration};

use distributed_lock::{Error, ErrorKind};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};

use super::{super::SSL_REQUEST, AMPLE, open};

const CANARY: &str = "canary-7f3a";

/// The error of an attempt on a peer that reads a first message and sends this, and all that the peer received.
async fn attempt(settings: &str, answer: &[u8]) -> (Error, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = url(&listener, settings);
    let peer = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = vec![0; 8];
        stream.read_exact(&mut received).await.unwrap();
        stream.write_all(answer).await.unwrap();
        stream.shutdown().await.unwrap();
        let _ = stream.read_to_end(&mut received).await;
        received
    };
    let (opened, received) = tokio::join!(open(&url, AMPLE), peer);
    let error = opened.expect_err("this is no server");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(CANARY), "{shown}");
    (error, received)
}

fn url(listener: &TcpListener, settings: &str) -> String {
    format!("postgres://u:{CANARY}@{}/d?{settings}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn first_answer_decides_and_only_n_leads_to_plaintext() {
    let modes = ["sslmode=prefer", "sslmode=require", "sslmode=verify-ca", "sslmode=verify-full"];
    for (index, mode) in modes.into_iter().enumerate() {
        for (answer, kind, says) in [
            (&b""[..], ErrorKind::Unavailable, "broke off before TLS"),
            (b"E\0\0\0\x08bad\0", ErrorKind::Unavailable, "refused before TLS"),
            (b"H", ErrorKind::Misconfigured, "does not answer as PostgreSQL does"),
            (b"Sgarbage in place of a handshake", ErrorKind::Misconfigured, "TLS handshake failed"),
        ] {
            let (error, received) = attempt(mode, answer).await;
            assert_eq!(error.kind(), kind, "{mode} {answer:?}: {error:?}");
            assert!(error.to_string().contains(says), "{mode} {answer:?}: {error}");
            assert_eq!(received[..8], SSL_REQUEST);
            assert!(!received.windows(4).any(|bytes| bytes == b"user"), "{mode} {answer:?} went on in plaintext");
        }
        let (error, received) = attempt(mode, b"N").await;
        let plaintext = received.windows(4).any(|bytes| bytes == b"user");
        assert_eq!(plaintext, index == 0, "{mode}");
        if !plaintext {
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error:?}");
            assert!(error.to_string().contains(&format!("{mode} demands")), "{error}");
        }
    }
}

#[tokio::test]
async fn disabled_tls_is_not_asked_for() {
    let (error, received) = attempt("sslmode=disable", b"").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert_ne!(received[..8], SSL_REQUEST);
}

#[tokio::test]
async fn server_without_tls_and_with_error_after_it_breaks_off_as_unavailable() {
    let (error, _) = attempt("sslmode=prefer", b"NE\0\0\0\x20SFATAL\0VFATAL\0C57P03\0Mwait\0\0").await;
    assert_eq!((error.kind(), error.code()), (ErrorKind::Unavailable, Some("57P03")), "{error:?}");
    assert!(error.to_string().contains("try again") && error.is_retryable(), "{error}");
}

#[tokio::test]
async fn silent_peer_is_left_within_the_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for (settings, says) in [("sslmode=prefer", "whether it has TLS"), ("sslmode=disable", "become ready")] {
        let error = within_limits(300, open(&url(&listener, settings), Duration::from_millis(300))).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains(says) && error.to_string().contains("within 300ms"), "{error}");
    }
}

#[tokio::test]
async fn shorter_connect_timeout_of_the_string_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let error = within_limits(1_000, open(&url(&listener, "connect_timeout=1"), AMPLE)).await;
    assert!(error.to_string().contains("within 1s"), "{error}");
}

#[tokio::test]
async fn refused_and_unreachable_are_unavailable_and_name_the_target() {
    // A port that was free a moment ago; an address and a name that are for documentation and reach nobody.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for (target, says) in [
        (format!("127.0.0.1:{port}"), Some("nothing listens there")),
        ("192.0.2.1:5432".to_owned(), None),
        ("host.invalid:5432".to_owned(), None),
    ] {
        let started = Instant::now();
        let error = open(&format!("postgres://u:{CANARY}@{target}/d"), Duration::from_millis(500)).await.unwrap_err();
        assert!(started.elapsed() < AMPLE);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains(&target) && text.contains("check") && !format!("{error:?}").contains(CANARY),
            "{error:?}"
        );
        assert!(says.is_none_or(|says| text.contains(says)), "{text}");
    }
    let error = open("user=u host=/nonexistent", AMPLE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("/nonexistent/.s.PGSQL.5432: there is no such socket"), "{error}");
}

#[tokio::test]
async fn dropped_attempt_closes_the_socket() {
    for settings in ["sslmode=prefer", "sslmode=disable"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = url(&listener, settings);
        let first_words = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_u64().await.unwrap();
            stream
        };
        let mut stream: TcpStream = tokio::select! {
            opened = open(&url, AMPLE) => panic!("{opened:?}"),
            stream = first_words => stream,
        };
        let mut rest = Vec::new();
        timeout(AMPLE, stream.read_to_end(&mut rest)).await.expect("the socket is closed").unwrap();
    }
}

async fn within_limits<T: std::fmt::Debug>(millis: u64, attempt: impl Future<Output = Result<T, Error>>) -> Error {
    let started = Instant::now();
    let error = attempt.await.unwrap_err();
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(millis) && took < Duration::from_millis(millis) + AMPLE / 2, "{took:?}");
    error
}
