//! TLS by `sslmode`, with libpq's meaning and these differences: `prefer` goes on in plaintext only if the server has no
//! TLS, never after a failed handshake; `verify-*` without `sslrootcert` trusts the system's authorities; names are looked
//! up in the certificate's alternative names only. Files are read once, when the connector is made.

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use distributed_lock::InvalidInput;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
    server::ParsedCertificate,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How much TLS is demanded, from none to all.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum TlsMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl TlsMode {
    /// The mode of this name, or the rule it breaks.
    pub(super) fn parse(name: &str) -> Result<Self, &'static str> {
        match name {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            "verify-ca" => Ok(Self::VerifyCa),
            "verify-full" => Ok(Self::VerifyFull),
            "allow" => Err("allow is not supported: use prefer, which takes TLS first, or disable"),
            _ => Err("must be disable, prefer, require, verify-ca or verify-full"),
        }
    }
}

impl fmt::Display for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        })
    }
}

/// Who may issue the server's certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Roots {
    File(PathBuf),
    System,
}

/// What a connection string says about TLS.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct TlsSettings {
    pub(super) mode: TlsMode,
    pub(super) roots: Option<Roots>,
    /// The files of the client's certificate and of its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

/// The mode and, unless it is `disable`, what makes TLS streams of it.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) mode: TlsMode,
    pub(super) maker: Option<MakeRustlsConnect>,
}

impl Tls {
    /// Reads the files.
    pub(super) fn new(settings: &TlsSettings) -> Result<Self, InvalidInput> {
        let maker = match settings.mode {
            TlsMode::Disable => None,
            _ => Some(MakeRustlsConnect::new(client_config(settings)?)),
        };
        Ok(Self { mode: settings.mode, maker })
    }

    /// The name sent to the server and, by `verify-full`, looked for in its certificate. Where no name is verified, a host
    /// whose name cannot stand in a certificate is still reachable.
    pub(super) fn server_name(&self, host: &str, peer: Option<IpAddr>) -> String {
        match peer {
            Some(peer) if self.mode < TlsMode::VerifyFull && ServerName::try_from(host).is_err() => peer.to_string(),
            _ => host.to_owned(),
        }
    }
}

/// Uses its own crypto provider: one installed for the process belongs to the application.
fn client_config(settings: &TlsSettings) -> Result<ClientConfig, InvalidInput> {
    let provider = Arc::new(ring::default_provider());
    #[expect(clippy::expect_used, reason = "the provider chosen above serves both protocol versions")]
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("BUG: ring serves the default protocol versions");
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier(settings, provider)?);
    let Some((certificate, key)) = &settings.identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("sslcert", certificate)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("sslkey", key, "private key", &error))?;
    builder.with_client_auth_cert(chain, secret).map_err(|_| {
        InvalidInput::new("connection parameter sslkey", key.display(), "must be the key of the certificate in sslcert")
    })
}

fn verifier(
    settings: &TlsSettings,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, InvalidInput> {
    let roots = match &settings.roots {
        Some(Roots::File(path)) => Some(roots_of_file(path)?),
        Some(Roots::System) => Some(roots_of_system()?),
        None if settings.mode >= TlsMode::VerifyCa => Some(roots_of_system()?),
        None => None,
    };
    let algorithms = provider.signature_verification_algorithms;
    match roots {
        Some(roots) if settings.mode == TlsMode::VerifyFull => {
            match WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build() {
                Ok(verifier) => Ok(verifier),
                Err(error) => {
                    Err(InvalidInput::new("connection parameter sslrootcert", error, "must be usable as roots"))
                }
            }
        }
        roots => Ok(Arc::new(AnyName { roots, algorithms })),
    }
}

fn roots_of_file(path: &Path) -> Result<RootCertStore, InvalidInput> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("sslrootcert", path)? {
        roots.add(certificate).map_err(|_| {
            InvalidInput::new(
                "connection parameter sslrootcert",
                path.display(),
                "holds a certificate that cannot be read",
            )
        })?;
    }
    Ok(roots)
}

fn roots_of_system() -> Result<RootCertStore, InvalidInput> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let rule = "the system has no root certificates: install them, or name a file with sslrootcert";
        return Err(InvalidInput::new("connection parameter sslrootcert", "system", rule));
    }
    Ok(roots)
}

fn certificates(parameter: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, InvalidInput> {
    let read = CertificateDer::pem_file_iter(path).and_then(|found| found.collect::<Result<Vec<_>, _>>());
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unreadable(parameter, path, "certificate", &pem::Error::NoItemsFound)),
        Err(error) => Err(unreadable(parameter, path, "certificate", &error)),
    }
}

/// Does not repeat the reader's own words: they quote lines of the file, which may be those of a key.
fn unreadable(parameter: &str, path: &Path, kind: &str, error: &pem::Error) -> InvalidInput {
    let rule = match error {
        pem::Error::Io(error) => format!("must be a readable file: {error}"),
        _ => format!("must hold a {kind} in PEM form"),
    };
    InvalidInput::new(&format!("connection parameter {parameter}"), path.display(), &rule)
}

/// Verifies everything but the name: with roots the chain, its dates and its purpose; without roots nothing of the
/// certificate.
///
/// The handshake's signature is verified in both cases. Channel binding proves to the server which certificate we saw, so
/// it protects only if the peer has shown that it owns the key of that certificate.
#[derive(Debug)]
struct AnyName {
    roots: Option<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, self.algorithms.all)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
