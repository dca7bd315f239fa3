//! Where the PostgreSQL server binaries are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt, fs};

/// Server binaries found on this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Installation {
    bin_dir: PathBuf,
    major_version: u32,
}

/// No server binaries were found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Missing {
    /// The folders that were searched, in this order.
    pub looked_in: Vec<PathBuf>,
    /// Whether `LOCK_TEST_PG_BIN` was set, so that its folder alone was searched.
    pub by_variable: bool,
}

impl Installation {
    /// Finds the binaries: in the folder that `LOCK_TEST_PG_BIN` names and nowhere else if it is set, otherwise in
    /// `PATH`, then in Debian's places, the newest major version first.
    pub fn find() -> Result<Self, Missing> {
        Self::find_in(env::var_os("LOCK_TEST_PG_BIN").as_deref(), || {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path).chain(debian_folders(Path::new("/usr/lib/postgresql"))).collect()
        })
    }

    /// The folder that holds `initdb` and `postgres`.
    #[must_use]
    pub fn bin_dir(&self) -> &Path {
        &self.bin_dir
    }

    /// Such as 15.
    #[must_use]
    pub fn major_version(&self) -> u32 {
        self.major_version
    }

    fn find_in(variable: Option<&OsStr>, otherwise: impl FnOnce() -> Vec<PathBuf>) -> Result<Self, Missing> {
        let by_variable = variable.is_some();
        let looked_in = variable.map_or_else(otherwise, |folder| vec![folder.into()]);
        looked_in
            .iter()
            // A relative folder would mean another one to the server's supervisor, which works elsewhere.
            .filter(|folder| folder.is_absolute())
            .filter_map(|folder| real_folder(folder))
            .find_map(|bin_dir| Some(Self { major_version: major_version(&bin_dir)?, bin_dir }))
            .ok_or_else(|| Missing { looked_in: looked_in.clone(), by_variable })
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folders: Vec<_> = self.looked_in.iter().map(|folder| folder.display().to_string()).collect();
        let folders = folders.join(", ");
        if self.by_variable {
            write!(f, "no PostgreSQL server binaries (initdb, postgres) in LOCK_TEST_PG_BIN={folders}")
        } else {
            write!(f, "no PostgreSQL server binaries (initdb, postgres); looked in {folders}")
        }
    }
}

impl std::error::Error for Missing {}

/// The folder of the binaries themselves, where `pg_basebackup` lies too, if that folder only has links to them.
fn real_folder(folder: &Path) -> Option<PathBuf> {
    let server = folder.join("postgres").canonicalize().ok()?;
    let real = server.parent().filter(|real| real.join("initdb").is_file()).map(Path::to_owned);
    real.or_else(|| folder.join("initdb").is_file().then(|| folder.to_owned()))
}

fn debian_folders(parent: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<(u32, PathBuf)> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin")))
        })
        .collect();
    folders.sort_by(|a, b| b.cmp(a));
    // The place is named even if nothing is there, because the list also tells a reader where to install.
    if folders.is_empty() { vec![parent.join("*/bin")] } else { folders.into_iter().map(|(_, bin)| bin).collect() }
}

fn major_version(bin_dir: &Path) -> Option<u32> {
    let output = Command::new(bin_dir.join("postgres")).arg("--version").output().ok()?;
    parse_major(&String::from_utf8(output.stdout).ok()?)
}

/// Reads `postgres (PostgreSQL) 15.18 (Debian …)` as well as `postgres (PostgreSQL) 19beta1`.
fn parse_major(version: &str) -> Option<u32> {
    let number = version.split_once("(PostgreSQL) ")?.1;
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_s_folder_is_the_only_one_searched() {
        let missing = Installation::find_in(Some(OsStr::new("/nonexistent")), || unreachable!("searched elsewhere"));
        let missing = missing.expect_err("nothing is there");
        assert_eq!(missing, Missing { looked_in: vec!["/nonexistent".into()], by_variable: true });
        assert!(missing.to_string().contains("LOCK_TEST_PG_BIN=/nonexistent"), "{missing}");
    }

    #[test]
    fn every_searched_folder_is_named() {
        let missing = Installation::find_in(None, || vec!["/nonexistent/a".into(), "/nonexistent/b".into()]);
        let text = missing.expect_err("nothing is there").to_string();
        assert!(text.contains("/nonexistent/a, /nonexistent/b"), "{text}");
    }

    #[test]
    fn a_folder_with_initdb_but_no_runnable_server_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("initdb"), "").unwrap();
        fs::write(folder.path().join("postgres"), "").unwrap();
        assert!(Installation::find_in(None, || vec![folder.path().into()]).is_err());
    }

    #[test]
    fn links_to_the_binaries_lead_to_their_folder() {
        let (real, links) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["initdb", "postgres"] {
            fs::write(real.path().join(name), "").unwrap();
            std::os::unix::fs::symlink(real.path().join(name), links.path().join(name)).unwrap();
        }
        assert_eq!(real_folder(links.path()), real.path().canonicalize().ok());
    }

    #[test]
    fn debian_s_folders_come_newest_first_by_number() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["9", "15", "18", "common"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        let expected = ["18", "15", "9"].map(|major| parent.path().join(major).join("bin"));
        assert_eq!(debian_folders(parent.path()), expected);
    }

    #[test]
    fn the_major_version_is_read_from_releases_and_betas() {
        assert_eq!(parse_major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(parse_major("postgres (PostgreSQL) 19beta1\n"), Some(19));
        assert_eq!(parse_major("something else 3"), None);
    }
}
