//! One that takes the key, by every kind of locker.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    AcquireOptions, Attempt, Backend, Fencing, FencingToken, LockGuard, LockKey, Locker, Release, ScopedLocker,
    ScopedOptions, Ttl, Wait,
};
use lock_postgres::{PostgresConfig, PostgresLocker, PostgresScopedLocker, PostgresSharedSession};
use tokio::{task::JoinSet, time::sleep};
use tokio_postgres::NoTls;

use crate::{Failure, random::Random};

use super::{
    KEY,
    way::Way,
    witness::{Hold, Mark, Witness},
};

/// With the key, in one statement or two: a lane has 256.
const BATCH: usize = 300;

/// Of the holds that have one.
const TTL: Duration = Duration::from_secs(20);

/// How long one hold in so many lasts, so that many of those who are disturbed are holders. The others end at once.
const LONG: (Duration, usize) = (Duration::from_millis(5), 32);

pub(super) struct Taker {
    witness: Witness,
    key: LockKey,
    /// Those that are asked for together with the key, nobody else's.
    others: Vec<LockKey>,
    session: PostgresLocker,
    borrowed: PostgresLocker,
    scoped: PostgresScopedLocker,
    shared: Arc<PostgresSharedSession>,
    /// Of the next hold.
    id: u64,
    random: Random,
}

impl Taker {
    /// `process`: its number among all there ever were.
    pub(super) fn new(url: &str, witness: Witness, process: u64, random: Random) -> Result<Self, Failure> {
        let others = (1..BATCH).map(|number| LockKey::new(format!("{process}/{number}")));
        let manager = deadpool_postgres::Manager::new(url.parse()?, NoTls);
        let pool = deadpool_postgres::Pool::builder(manager).max_size(2).build()?;
        Ok(Self {
            witness,
            key: LockKey::new(KEY.0)?,
            others: others.collect::<Result<_, _>>()?,
            session: PostgresLocker::from_url(url)?,
            borrowed: PostgresLocker::with_pool(pool, &PostgresConfig::for_pool())?,
            scoped: PostgresScopedLocker::from_url(url)?,
            shared: Arc::new(PostgresSharedSession::from_url(url)?),
            id: process << 32,
            random,
        })
    }

    pub(super) async fn close(&self) -> Result<(), Failure> {
        self.session.close().await?;
        self.borrowed.close().await?;
        self.scoped.close().await?;
        Ok(self.shared.close().await?)
    }

    /// Whether it had the key.
    pub(super) async fn take(&mut self, way: Way, wait: Wait) -> Result<bool, Failure> {
        let ttl = if self.random.one_in(2) { Ttl::UNTIL_RELEASED } else { Ttl::new(TTL)? };
        let long = self.random.one_in(LONG.1);
        self.id += 1;
        let ask = Ask { options: AcquireOptions::new(ttl).with_wait(wait), long, id: self.id, way };
        match way {
            Way::Session => self.single(&self.session, ask).await,
            Way::Borrowed => self.single(&self.borrowed, ask).await,
            Way::Shared => self.single(&*self.shared, ask).await,
            Way::Scoped => self.scoped(ask).await,
            Way::Batch => self.batch(ask).await,
            Way::Intruder => self.intrude(ask).await,
            Way::Sql => Err("plain SQL has no locker".into()),
        }
    }

    async fn single(&self, locker: &dyn Locker, ask: Ask) -> Result<bool, Failure> {
        let asked = self.witness.count()?;
        let Some(guard) = locker.acquire_opts(&self.key, &ask.options).await?.acquired() else { return Ok(false) };
        let hold = ask.granted(asked, guard.fencing_token())?;
        self.hold(hold, ask.long).await?;
        self.released(hold, &guard.release().await?)?;
        Ok(true)
    }

    async fn scoped(&self, ask: Ask) -> Result<bool, Failure> {
        let asked = self.witness.count()?;
        let options = ScopedOptions::new(ask.options.wait).with_fencing(Fencing::On);
        // Stays empty where the body was dropped before its end, since the key was lost.
        let mut held = None;
        let slot = &mut held;
        let body = async move |token| {
            let hold = ask.granted(asked, token)?;
            self.hold(hold, ask.long).await?;
            Ok::<_, Failure>(hold)
        };
        let run = self.scoped.run_scoped(
            &self.key,
            &options,
            Box::new(|hold| Box::pin(async move { *slot = Some(body(hold.fencing_token()).await) })),
        );
        let Attempt::Acquired(release) = run.await? else { return Ok(false) };
        match held.transpose()? {
            Some(hold) => self.released(hold, &release)?,
            None if matches!(release, Release::Released) => return Err("a run without its body".into()),
            None => {}
        }
        Ok(true)
    }

    /// The key and the others, the key in a place that differs from time to time. They are asked for without a wait.
    async fn batch(&mut self, mut ask: Ask) -> Result<bool, Failure> {
        let place = self.random.within(0..BATCH);
        let mut keys: Vec<_> = self.others.iter().map(|key| (key.clone(), Wait::Never)).collect();
        keys.insert(place, (self.key.clone(), ask.options.wait));
        let asked = self.witness.count()?;
        let mut asking = JoinSet::new();
        for (key, wait) in keys {
            let (locker, options) = (Arc::clone(&self.shared), ask.options.clone().with_wait(wait));
            asking.spawn(async move { locker.acquire_opts(&key, &options).await });
        }
        let (mut guard, mut others, mut failed) = (None, Vec::new(), None);
        while let Some(answer) = asking.join_next().await {
            match answer? {
                Ok(Attempt::Acquired(granted)) if *granted.key() == self.key => guard = Some(granted),
                Ok(Attempt::Acquired(granted)) => others.push(granted),
                Ok(Attempt::Contended(_)) => {}
                Err(error) => failed = Some(error),
            }
        }
        let Some(guard) = guard else {
            release(others).await?;
            return failed.map_or(Ok(false), |error| Err(error.into()));
        };
        // A statement gives one token to all that it was granted.
        let token = guard.fencing_token();
        let together = token.is_some() && others.iter().any(|other| other.fencing_token() == token);
        ask.way = if together { Way::Batch } else { Way::Shared };
        let hold = ask.granted(asked, token)?;
        self.hold(hold, ask.long).await?;
        // With the others, so that it is given back in one statement with them.
        let (outcome, rest) = tokio::join!(guard.release(), release(others));
        self.released(hold, &outcome?)?;
        rest.map(|()| true)
    }

    async fn intrude(&self, ask: Ask) -> Result<bool, Failure> {
        let hold = ask.granted(self.witness.count()?, Some(FencingToken::new(1)))?;
        self.hold(hold, true).await?;
        self.released(hold, &Release::Released)?;
        Ok(true)
    }

    async fn hold(&self, hold: Hold, long: bool) -> Result<(), Failure> {
        self.witness.note(Mark::Granted, hold)?;
        if long {
            sleep(LONG.0).await;
        }
        Ok(self.witness.note(Mark::Ending, hold)?)
    }

    fn released(&self, hold: Hold, outcome: &Release) -> Result<(), Failure> {
        if matches!(outcome, Release::Released) {
            self.witness.note(Mark::Released, hold)?;
        }
        Ok(())
    }
}

/// What is asked for.
struct Ask {
    options: AcquireOptions,
    long: bool,
    id: u64,
    way: Way,
}

impl Ask {
    fn granted(&self, asked: usize, token: Option<FencingToken>) -> Result<Hold, Failure> {
        let token = token.ok_or_else(|| format!("a grant without a token: {}", self.way.name()))?;
        Ok(Hold { id: self.id, way: self.way, asked, token: token.get() })
    }
}

async fn release(guards: Vec<LockGuard>) -> Result<(), Failure> {
    let mut releasing = JoinSet::new();
    for guard in guards {
        releasing.spawn(guard.release());
    }
    while let Some(outcome) = releasing.join_next().await {
        // Of a lost one there is nothing to give back.
        let _outcome = outcome??;
    }
    Ok(())
}
