//! How a cluster is to be.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::cluster::Cluster;
use super::error::StartError;
use super::installation::Installation;

/// Options of a [`Cluster`]. Without any it trusts everybody on this machine and does not sync its files.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Builder {
    pub(super) settings: Vec<(String, String)>,
    hba: Vec<String>,
    pub(super) password_auth: bool,
    tls: Option<Tls>,
}

#[derive(Clone, Debug)]
struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

impl Builder {
    /// A line of `postgresql.conf`, without quotes. A later line overrides an earlier one and the kit's own.
    pub fn setting(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// Makes commits durable as in production. The default does not sync: a cluster outlives a crash of the server, not
    /// one of the machine.
    pub fn durable(self) -> Self {
        self.setting("fsync", "on").setting("full_page_writes", "on")
    }

    /// Asks everybody for a password by SCRAM. The superuser's is made up, see [`Cluster::password`].
    pub fn password_auth(mut self) -> Self {
        self.password_auth = true;
        self
    }

    /// A line of `pg_hba.conf` that goes before the kit's own.
    pub fn hba(mut self, line: impl Into<String>) -> Self {
        self.hba.push(line.into());
        self
    }

    /// Serves TLS with this certificate and key, which are copied.
    pub fn tls(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls = Some(Tls { certificate: certificate.into(), key: key.into(), client_ca: None });
        self
    }

    /// Serves TLS as by [`Self::tls`], and checks the certificates of clients against this authority. A client needs one
    /// only if a `pg_hba.conf` line such as `hostssl all all all cert` says so.
    pub fn tls_with_client_ca(
        self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
        client_ca: impl Into<PathBuf>,
    ) -> Self {
        let mut builder = self.tls(certificate, key);
        if let Some(tls) = &mut builder.tls {
            tls.client_ca = Some(client_ca.into());
        }
        builder
    }

    /// Starts the cluster. Blocks the thread for a second or two.
    pub fn start(self) -> Result<Cluster, StartError> {
        Cluster::create(Installation::find()?, self)
    }

    pub(super) fn new_password(&self) -> Option<String> {
        // A `RandomState` is seeded by the system, once a thread, and differs from call to call.
        self.password_auth.then(|| format!("{:016x}", RandomState::new().hash_one("password")))
    }

    pub(super) fn method(&self) -> &'static str {
        if self.password_auth { "scram-sha-256" } else { "trust" }
    }

    /// What is to be added to the `postgresql.conf` that `initdb` made. The TLS files lie in the folder of sockets.
    pub(super) fn configuration(&self, socket_dir: &Path) -> String {
        let mut settings: Vec<(&str, String)> = vec![
            ("listen_addresses", "127.0.0.1".into()),
            ("unix_socket_directories", socket_dir.display().to_string()),
            ("fsync", "off".into()),
            ("full_page_writes", "off".into()),
            ("shared_buffers", "32MB".into()),
            // Shared memory that lies in the data folder is removed with it, whatever end the server comes to.
            ("dynamic_shared_memory_type", "mmap".into()),
        ];
        if let Some(tls) = &self.tls {
            let file = |name: &str| socket_dir.join(name).display().to_string();
            settings.push(("ssl", "on".into()));
            settings.push(("ssl_cert_file", file(CERTIFICATE)));
            settings.push(("ssl_key_file", file(KEY)));
            if tls.client_ca.is_some() {
                settings.push(("ssl_ca_file", file(CLIENT_CA)));
            }
        }
        settings.extend(self.settings.iter().map(|(name, value)| (name.as_str(), value.clone())));
        let mut text = String::from("\n");
        for (name, value) in settings {
            let value = value.replace('\\', "\\\\").replace('\'', "''");
            let _ = writeln!(text, "{name} = '{value}'");
        }
        text
    }

    pub(super) fn access_rules(&self) -> String {
        let mut text = String::new();
        for line in &self.hba {
            let _ = writeln!(text, "{line}");
        }
        for database in ["all", "replication"] {
            for origin in ["local", "host"] {
                let address = if origin == "host" { "samehost" } else { "" };
                let _ = writeln!(text, "{origin} {database} all {address} {}", self.method());
            }
        }
        text
    }

    /// Names and contents of the TLS files.
    pub(super) fn tls_files(&self) -> io::Result<Vec<(&'static str, Vec<u8>)>> {
        let Some(tls) = &self.tls else { return Ok(Vec::new()) };
        let files = [(CERTIFICATE, Some(&tls.certificate)), (KEY, Some(&tls.key)), (CLIENT_CA, tls.client_ca.as_ref())];
        let files = files.into_iter().filter_map(|(name, path)| Some((name, path?)));
        files.map(|(name, path)| Ok((name, fs::read(path)?))).collect()
    }
}

const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";
const CLIENT_CA: &str = "client-ca.crt";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_leave_its_line_of_the_configuration() {
        let text = Builder::default().setting("application_name", r"it's \ here").configuration(Path::new("/x"));
        assert!(text.ends_with("application_name = 'it''s \\\\ here'\n"), "{text}");
    }

    #[test]
    fn own_settings_come_after_the_kit_s() {
        let text = Builder::default().durable().configuration(Path::new("/x"));
        assert!(text.find("fsync = 'off'").unwrap() < text.find("fsync = 'on'").unwrap(), "{text}");
    }

    #[test]
    fn own_access_rules_come_before_the_kit_s() {
        let text = Builder::default().password_auth().hba("hostssl all all all cert").access_rules();
        assert!(text.starts_with("hostssl all all all cert\nlocal all all  scram-sha-256\n"), "{text}");
    }
}
