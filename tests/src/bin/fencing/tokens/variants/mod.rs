//! Wrong ways to make tokens, each in a history that shows what is wrong with it. In the same history the right way is right, so
//! that it is not the history that is found wrong.

mod caller;
mod crash;
mod promotion;
mod session;
mod statement;

use lock_testkit::Cluster;

use crate::Failure;

use super::{judge::judge, witness::Record};

/// One history, as the wrong way and the right way tell it.
struct Told {
    wrong: Vec<Record>,
    right: Vec<Record>,
}

pub(super) struct Caught {
    pub(super) all: usize,
    /// What was not found, and why.
    pub(super) missed: Vec<String>,
}

pub(super) async fn run() -> Result<Caught, Failure> {
    // Only what is asked for is in the server's log, so that ids are lost with it.
    let quiet =
        [("wal_level", "minimal"), ("max_wal_senders", "0"), ("autovacuum", "off"), ("wal_writer_delay", "10s")];
    let quiet = quiet.into_iter().fold(Cluster::builder(), |builder, (name, value)| builder.setting(name, value));
    let cluster = quiet.start()?;
    let mut caught = Caught { all: 0, missed: Vec::new() };
    caught.add("id alone", &crash::history(&cluster).await?);
    caught.add("minted at the first grant of a statement", &statement::history(&cluster).await?);
    caught.add("id of a transaction that is older than the grant", &caller::history(&cluster).await?);
    drop(cluster);
    caught.add("timeline of the control file", &promotion::history().await?);
    Ok(caught)
}

impl Caught {
    fn add(&mut self, name: &str, told: &Told) {
        self.all += 1;
        let [wrong, right] = [&told.wrong, &told.right].map(|records| judge(records));
        if wrong.regressions.is_empty() {
            self.missed.push(format!("{name}: no regression was found"));
        } else if !right.regressions.is_empty() || !wrong.two_holders.is_empty() || !right.two_holders.is_empty() {
            self.missed.push(format!("{name}: the history is wrong: {right:?}"));
        }
    }
}
