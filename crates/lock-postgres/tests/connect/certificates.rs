//! Authorities and certificates, made anew for each run.

use std::{fs, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// What is wrong with a server's certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Flaw {
    None,
    Expired,
    UnknownAuthority,
    WrongHost,
}

/// The files of two authorities: one that clients and servers trust, and one that nobody knows.
pub(crate) struct Certificates {
    folder: TempDir,
    known: Issuer<'static, KeyPair>,
    unknown: Issuer<'static, KeyPair>,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (known, pem) = authority("known");
        fs::write(folder.path().join("ca.crt"), pem).unwrap();
        let (unknown, _) = authority("unknown");
        Self { folder, known, unknown }
    }

    /// The file of the authority that is trusted.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// The files of a server's certificate and key.
    pub(crate) fn server(&self, flaw: Flaw) -> (PathBuf, PathBuf) {
        let names = if flaw == Flaw::WrongHost { &["elsewhere.example"][..] } else { &["localhost", "127.0.0.1"] };
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        if flaw == Flaw::Expired {
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let issuer = if flaw == Flaw::UnknownAuthority { &self.unknown } else { &self.known };
        self.write(&format!("server-{flaw:?}"), &params, issuer)
    }

    /// The files of a certificate by which this role logs in, and of its key.
    pub(crate) fn client(&self, role: &str, known: bool) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, role);
        let issuer = if known { &self.known } else { &self.unknown };
        self.write(&format!("client-{role}-{known}"), &params, issuer)
    }

    fn write(&self, name: &str, params: &CertificateParams, issuer: &Issuer<'_, KeyPair>) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, issuer).unwrap();
        let path = |end: &str| self.folder.path().join(format!("{name}.{end}"));
        fs::write(path("crt"), certificate.pem()).unwrap();
        fs::write(path("key"), key.serialize_pem()).unwrap();
        (path("crt"), path("key"))
    }
}

fn authority(name: &str) -> (Issuer<'static, KeyPair>, String) {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    (Issuer::new(params, key), pem)
}
