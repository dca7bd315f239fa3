//! What is done to processes, sessions and the server meanwhile.

use std::collections::BTreeMap;

use lock_testkit::{Cluster, Observer, wait_until};
use tests::lease::AMPLE;
use tokio::task::block_in_place;
use tokio_postgres::Client;

use crate::{Failure, random::Random};

use super::{KEY, fleet::Fleet};

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Fault {
    /// SIGKILL for a process, and another in its place.
    ProcessKilled,
    /// The session of the holder, or of its lane, is ended by an administrator.
    HolderTerminated,
    /// SIGKILL for the holder's backend, after which the server restarts itself.
    BackendKilled,
    /// The server stops at once and recovers at its start.
    Crash,
    /// The server stops in an orderly way and starts again.
    Restart,
    /// Checkpoints, one after the other.
    Checkpoints,
    /// Settings of the server change that say when its log is written.
    Settings,
    /// Many transaction ids are used, and much is written.
    Load,
}

impl Fault {
    const ALL: [Self; 8] = [
        Self::ProcessKilled,
        Self::HolderTerminated,
        Self::BackendKilled,
        Self::Crash,
        Self::Restart,
        Self::Checkpoints,
        Self::Settings,
        Self::Load,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ProcessKilled => "process_killed",
            Self::HolderTerminated => "holder_terminated",
            Self::BackendKilled => "backend_killed",
            Self::Crash => "crash",
            Self::Restart => "restart",
            Self::Checkpoints => "checkpoints",
            Self::Settings => "settings",
            Self::Load => "load",
        }
    }
}

/// How often each was done.
pub(super) type Counts = BTreeMap<Fault, usize>;

pub(super) struct Saboteur<'c> {
    cluster: &'c Cluster,
    random: Random,
    /// Each once, in an order that differs from time to time.
    next: Vec<Fault>,
    counts: Counts,
}

impl<'c> Saboteur<'c> {
    pub(super) fn new(cluster: &'c Cluster, random: Random) -> Self {
        Self { cluster, random, next: Vec::new(), counts: Fault::ALL.into_iter().map(|fault| (fault, 0)).collect() }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn has_done_all(&self) -> bool {
        self.counts.values().all(|count| *count > 0)
    }

    pub(super) async fn strike(&mut self, fleet: &mut Fleet) -> Result<(), Failure> {
        if self.next.is_empty() {
            self.next = Fault::ALL.into();
        }
        let fault = self.next.swap_remove(self.random.within(0..self.next.len()));
        self.inflict(fault, fleet).await.map_err(|error| format!("{}: {error}", fault.name()))?;
        *self.counts.entry(fault).or_default() += 1;
        Ok(())
    }

    async fn inflict(&mut self, fault: Fault, fleet: &mut Fleet) -> Result<(), Failure> {
        match fault {
            Fault::ProcessKilled => fleet.replace(self.random.within(0..fleet.len())).await?,
            Fault::HolderTerminated => {
                let observer = self.observer().await?;
                while !observer.terminate(holder(&observer).await?).await? {}
            }
            Fault::BackendKilled => {
                let observer = self.observer().await?;
                let bystander = self.admin().await?;
                while !self.cluster.kill_backend(holder(&observer).await?)? {}
                wait_until(AMPLE, "the server ends all sessions", async || bystander.is_closed()).await?;
            }
            Fault::Crash => block_in_place(|| self.cluster.restart_immediate())?,
            Fault::Restart => block_in_place(|| self.cluster.restart())?,
            Fault::Checkpoints => {
                let admin = self.admin().await?;
                for _ in 0..self.random.within(10..40) {
                    // So that there is something to write, and the position moves.
                    admin.batch_execute("select pg_catalog.pg_current_xact_id()").await?;
                    admin.batch_execute("checkpoint").await?;
                }
            }
            Fault::Settings => {
                let admin = self.admin().await?;
                let commit = ["on", "off"][self.random.within(0..2)];
                let delay = ["10ms", "200ms", "10s"][self.random.within(0..3)];
                admin.batch_execute(&format!("alter system set synchronous_commit = '{commit}'")).await?;
                admin.batch_execute(&format!("alter system set wal_writer_delay = '{delay}'")).await?;
                admin.batch_execute("select pg_catalog.pg_reload_conf()").await?;
            }
            Fault::Load => {
                let admin = self.admin().await?;
                for _ in 0..self.random.within(100..1_000) {
                    admin.batch_execute("select pg_catalog.pg_current_xact_id()").await?;
                }
                admin.batch_execute(WRITE).await?;
            }
        }
        // So that a server that is on its way up is not hit again before anybody can be granted anything.
        self.admin().await.map(drop)
    }

    async fn admin(&self) -> Result<Client, Failure> {
        let mut admin = None;
        let connected = async || {
            admin = self.cluster.admin().await.ok();
            admin.is_some()
        };
        wait_until(AMPLE, "the server takes sessions", connected).await?;
        admin.ok_or_else(|| "no session".into())
    }

    async fn observer(&self) -> Result<Observer, Failure> {
        drop(self.admin().await?);
        Ok(Observer::connect(&self.cluster.admin_config("postgres")).await?)
    }
}

/// The backend that has the key.
async fn holder(observer: &Observer) -> Result<i32, Failure> {
    let mut holder = None;
    let held = async || {
        let holders = observer.holders(KEY.1).await.unwrap_or_default();
        holder = holders.into_iter().find_map(|lock| lock.pid);
        holder.is_some()
    };
    wait_until(AMPLE, "somebody has the key", held).await?;
    holder.ok_or_else(|| "nobody".into())
}

const WRITE: &str = "create table if not exists public.load as select 1 as n; \
                     insert into public.load select n from pg_catalog.generate_series(1, 5000) as n; \
                     truncate public.load; \
                     select pg_catalog.pg_switch_wal()";
