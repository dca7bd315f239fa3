//! `sslmode` against servers: modes x certificates, channel binding, client certificates.

use distributed_lock::ErrorKind;
use libtest_mimic::Trial;
use lock_testkit::Cluster;

use crate::{
    certificates::{Certificates, Flaw},
    leave, open, seen, trial,
};

/// What comes of an attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Outcome {
    Plaintext,
    Encrypted,
    /// Refused by us, with these words.
    Refused(&'static str),
}

use Outcome::{Encrypted, Plaintext, Refused};

const NO_TLS: Outcome = Refused("does not offer TLS");
const HOST: Outcome = Refused("for another name");
const ISSUER: Outcome = Refused("not from a trusted authority");
const DATE: Outcome = Refused("has expired");

/// Servers: without TLS, with a valid certificate, one for another host, one of an unknown authority, an expired one.
const SERVERS: [(&str, Option<Flaw>); 5] = [
    ("without_tls", None),
    ("valid", Some(Flaw::None)),
    ("wrong_host", Some(Flaw::WrongHost)),
    ("unknown_ca", Some(Flaw::UnknownAuthority)),
    ("expired", Some(Flaw::Expired)),
];

/// Settings by servers; `ROOTS` stands for the file of the authority that is trusted.
const TABLE: [(&str, [Outcome; 5]); 8] = [
    ("sslmode=disable", [Plaintext, Plaintext, Plaintext, Plaintext, Plaintext]),
    ("sslmode=prefer", [Plaintext, Encrypted, Encrypted, Encrypted, Encrypted]),
    ("sslmode=require", [NO_TLS, Encrypted, Encrypted, Encrypted, Encrypted]),
    ("sslmode=verify-ca sslrootcert=ROOTS", [NO_TLS, Encrypted, Encrypted, ISSUER, DATE]),
    ("sslmode=verify-full sslrootcert=ROOTS", [NO_TLS, Encrypted, HOST, ISSUER, DATE]),
    // Roots that are given count in the weaker modes too, but not the host's name.
    ("sslmode=prefer sslrootcert=ROOTS", [Plaintext, Encrypted, Encrypted, ISSUER, DATE]),
    ("sslmode=require sslrootcert=ROOTS", [NO_TLS, Encrypted, Encrypted, ISSUER, DATE]),
    // An address is looked for among the certificate's addresses.
    ("host=127.0.0.1 sslmode=verify-full sslrootcert=ROOTS", [NO_TLS, Encrypted, HOST, ISSUER, DATE]),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (column, (name, flaw)) in SERVERS.into_iter().enumerate() {
        let certificates = Certificates::new();
        let server = flaw.map(|flaw| certificates.server(flaw));
        let start = || match server {
            Some((certificate, key)) => Cluster::builder().tls(certificate, key).start(),
            None => Cluster::start(),
        };
        trials.push(trial(format!("tls::{name}"), start, move |cluster| async move {
            for (settings, outcomes) in TABLE {
                check(&cluster, &certificates, settings, outcomes[column]).await;
            }
            // The system's authorities did not issue any of these, if there are any.
            for settings in ["sslmode=verify-ca", "sslmode=verify-full", "sslrootcert=system"] {
                let text = format!("host=localhost port={} user=postgres {settings}", cluster.port());
                let error = open(&text).await.expect_err(settings);
                assert!(matches!(error.kind(), ErrorKind::Misconfigured | ErrorKind::InvalidInput), "{error:?}");
            }
        }));
    }
    let certificates = Certificates::new();
    let (certificate, key) = certificates.server(Flaw::None);
    let start = || Cluster::builder().password_auth().tls(certificate, key).start();
    trials.push(trial("tls::channel_binding", start, move |cluster| channel_binding(cluster, certificates)));
    let certificates = Certificates::new();
    let (certificate, key) = certificates.server(Flaw::None);
    let authority = certificates.authority();
    let start = || {
        let builder = Cluster::builder().tls_with_client_ca(certificate, key, authority);
        builder.hba("hostssl all guest all cert").hba("hostnossl all guest all reject").start()
    };
    trials.push(trial("tls::client_certificate", start, move |cluster| client_certificate(cluster, certificates)));
    trials
}

async fn check(cluster: &Cluster, certificates: &Certificates, settings: &str, expected: Outcome) {
    let roots = certificates.authority();
    let host = if settings.contains("host=") { "" } else { "host=localhost " };
    let text = format!("{host}port={} user=postgres {settings}", cluster.port());
    let text = text.replace("ROOTS", &roots.display().to_string());
    let outcome = match open(&text).await {
        Ok(locker) => {
            let admin = cluster.admin().await.unwrap();
            let session = seen(&admin).await;
            leave(&admin, locker).await;
            match session.as_str() {
                "postgres postgres 127.0.0.1 distributed-lock t" => Encrypted,
                "postgres postgres 127.0.0.1 distributed-lock f" => Plaintext,
                other => panic!("{settings}: {other}"),
            }
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{settings}: {error:?}");
            match expected {
                Refused(words) if error.to_string().contains(words) => expected,
                _ => panic!("{settings}: expected {expected:?}, got {error:?}"),
            }
        }
    };
    assert_eq!(outcome, expected, "{settings}");
}

async fn channel_binding(cluster: Cluster, certificates: Certificates) {
    let password = cluster.password().expect("the cluster asks for one");
    let base = format!("host=localhost port={} user=postgres password={password}", cluster.port());
    for settings in ["sslmode=prefer", "sslmode=require", "sslmode=verify-full sslrootcert=ROOTS"] {
        let settings = settings.replace("ROOTS", &certificates.authority().display().to_string());
        for binding in ["disable", "prefer", "require"] {
            let opened = open(&format!("{base} {settings} channel_binding={binding}")).await;
            opened.unwrap_or_else(|error| panic!("{settings} {binding}: {error:?}"));
        }
    }
    // The unix socket has no TLS to bind to.
    let local = format!("host={} port={} user=postgres", cluster.socket_dir().display(), cluster.port());
    let error = open(&format!("{local} password={password} channel_binding=require")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.to_string().contains("channel_binding"), "{error}");
}

async fn client_certificate(cluster: Cluster, certificates: Certificates) {
    let admin = cluster.admin().await.unwrap();
    admin.batch_execute("CREATE ROLE guest LOGIN").await.unwrap();
    let base = format!("host=localhost port={} user=guest dbname=postgres sslmode=require", cluster.port());
    let with = |(certificate, key): (std::path::PathBuf, std::path::PathBuf)| {
        format!("{base} sslcert={} sslkey={}", certificate.display(), key.display())
    };

    let locker = open(&with(certificates.client("guest", true))).await.unwrap();
    assert_eq!(seen(&admin).await, "guest postgres 127.0.0.1 distributed-lock t");
    leave(&admin, locker).await;

    for (text, says) in [
        (base.clone(), "pg_hba.conf"),
        (base.replace("sslmode=require", "sslmode=disable"), "sslmode"),
        (with(certificates.client("somebody", true)), "role"),
        (with(certificates.client("guest", false)), "sslcert"),
    ] {
        let error = open(&text).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{text}: {error:?}");
        assert!(error.to_string().contains(says), "{text}: {error:?}");
    }

    let (certificate, key) = certificates.client("guest", true);
    let (_, other_key) = certificates.client("other", true);
    let absent = certificate.with_extension("absent");
    for (files, says) in [
        ((certificate.clone(), other_key.clone()), ["sslkey", "must be the key of the certificate"]),
        ((key.clone(), key.clone()), ["sslcert", "must hold a certificate in PEM form"]),
        ((certificate.clone(), certificate.clone()), ["sslkey", "must hold a private key in PEM form"]),
        ((absent.clone(), key), ["sslcert", "must be a readable file"]),
        ((certificate, absent), ["sslkey", "must be a readable file"]),
    ] {
        let error = open(&with(files.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
        let shown = format!("{error:?}");
        assert!(says.iter().all(|words| shown.contains(words)), "{files:?}: {shown}");
    }
    let roots = other_key.display();
    let error = open(&format!("{base} sslrootcert={roots}")).await.unwrap_err();
    let shown = format!("{error:?}");
    assert!(shown.contains("sslrootcert") && shown.contains(&format!("({roots})")), "{shown}");
}
