//! What no server of ours would do, and what is decided before a server is asked.

use std::{io::Write, net::TcpListener, sync::Arc, thread};

use distributed_lock::{Error, ErrorKind};
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, SupportedProtocolVersion,
    crypto::ring,
    pki_types::PrivateKeyDer,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};

use super::{
    super::tls::{Tls, TlsMode},
    AMPLE, open,
};

/// Gives out one certificate, whoever asks, with whatever key.
#[derive(Debug)]
struct Always(Arc<CertifiedKey>);

impl ResolvesServerCert for Always {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// The error of a connection to a peer that ends after the handshake, if it comes so far.
async fn attempt(version: &'static SupportedProtocolVersion, own_key: bool) -> Error {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let signer = if own_key { key } else { KeyPair::generate().unwrap() };
    let signer = PrivateKeyDer::try_from(signer.serialize_der()).unwrap();
    let signer = ring::sign::any_supported_type(&signer).unwrap();
    let given = Always(Arc::new(CertifiedKey::new(vec![certificate.der().clone()], signer)));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(given));

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/d?sslmode=require", listener.local_addr().unwrap());
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        std::io::Read::read_exact(&mut stream, &mut [0; 8]).unwrap();
        stream.write_all(b"S").unwrap();
        let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
        while tls.is_handshaking() && tls.complete_io(&mut stream).is_ok() {}
    });
    let error = open(&url, AMPLE).await.expect_err("the peer ends at once");
    peer.join().unwrap();
    error
}

/// Else an attacker who shows the true server's certificate would pass channel binding.
#[tokio::test]
async fn certificate_without_its_key_is_refused_in_every_mode_and_version() {
    for version in [&TLS12, &TLS13] {
        let honest = attempt(version, true).await;
        assert_eq!(honest.kind(), ErrorKind::Unavailable, "{version:?}: {honest:?}");
        let stolen = attempt(version, false).await;
        assert_eq!(stolen.kind(), ErrorKind::Misconfigured, "{version:?}: {stolen:?}");
        assert!(format!("{stolen:?}").contains("BadSignature"), "{stolen:?}");
    }
}

#[test]
fn name_that_no_certificate_holds_is_replaced_where_names_do_not_count() {
    let peer = Some("192.0.2.1".parse().unwrap());
    for (mode, host, expected) in [
        (TlsMode::Require, "db.example", "db.example"),
        (TlsMode::Require, "::1", "::1"),
        (TlsMode::Require, "a..b", "192.0.2.1"),
        (TlsMode::VerifyCa, "a..b", "192.0.2.1"),
        (TlsMode::VerifyFull, "a..b", "a..b"),
    ] {
        assert_eq!(Tls { mode, maker: None }.server_name(host, peer), expected, "{mode} {host}");
    }
}

#[test]
fn making_a_connector_installs_no_crypto_provider() {
    let connector = super::Connector::new("user=u sslmode=require".parse().unwrap(), None).unwrap();
    assert!(connector.tls.maker.is_some());
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}
