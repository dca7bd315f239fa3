//! One connection beside the pool that owns no locks. It does what sessions that own locks must not: look at others, send and
//! hear requests to step down, end holders that were cut off. Opened when it is first needed.

use std::{
    collections::BTreeMap,
    fmt,
    future::{Future, poll_fn},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distributed_lock::{Error, ErrorKind, Result};
use tokio::{
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_postgres::{
    AsyncMessage, Client, Notification, Row,
    types::{ToSql, Type},
};
use tokio_util::sync::CancellationToken;

use crate::{
    budget::unanswered,
    config::Settings,
    connect::{Connector, Opened, SocketHandle},
    core::closed,
    error,
    lease::Lease,
    registry::Registry,
    sql,
    watchdog::{self, Watched},
    world::{WorldCell, ensure_identity},
};

/// For one server: from the look-up of its name until the session is set up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// After so long without a question the server ends the session, unless it listens. In ms.
const IDLE_LIMIT: &str = "60000";
const NO_LIMIT: &str = "0";

/// How long closing waits for the end of the session.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// From one failure to open the session, or one request, to the next attempt: doubled each time, the first with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A parameter of a statement and its type.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Dropped, the session ends, and whatever it was doing.
#[derive(Debug)]
pub(crate) struct Housekeeping(Arc<Desk>);

/// What the session, its task and those who need it share.
pub(crate) struct Desk {
    connector: Connector,
    world: Arc<WorldCell>,
    ear: Ear,
    hand_over: bool,
    watchdog: bool,
    /// How often the watchdog looks, at the least.
    interval: Duration,
    /// How long an answer may take.
    limit: Duration,
    /// Cancelled when the locker is closed or dropped.
    over: CancellationToken,
    // Std mutexes: never held across an await.
    session: Mutex<Option<Arc<HouseSession>>>,
    list: Mutex<List>,
    bell: Notify,
    not_allowed: AtomicBool,
    /// One at a time, so that there is never more than one session.
    opening: tokio::sync::Mutex<()>,
}

/// What is to be done.
#[derive(Debug, Default)]
struct List {
    /// By ticket, in the order in which they came.
    wanted: BTreeMap<u64, Want>,
    tickets: u64,
    /// Somebody of this locker holds, or held, a lock and is to hear requests.
    listens: bool,
    /// A task does it.
    working: bool,
}

/// Somebody waits for this id in the server's queue.
#[derive(Clone, Copy, Debug)]
struct Want {
    id: i64,
    sender: Sender,
    /// Whether it also asks the holder to step down, and when next.
    request: Option<Request>,
}

/// Who sent a request: one wait, or an operator. Whoever is granted the lock just when its own request arrives is not meant by it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Sender(u64);

impl Sender {
    /// One who waits for nothing.
    pub(crate) const OPERATOR: Self = Self(0);

    fn fresh() -> Self {
        // The keys of a `RandomState` come from the system, and each one has others.
        Self(RandomState::new().hash_one(()).max(1))
    }
}

/// Repeated after pauses that double, until the wait is over: the holder may not have been listening yet.
#[derive(Clone, Copy, Debug)]
struct Request {
    due: Instant,
    pause: Duration,
    /// The backend that was asked first, and nobody after it; `None` if nobody could be asked so far.
    asked: Option<i32>,
}

/// Watches over one wait while it lives.
#[derive(Debug)]
pub(crate) struct Wanted {
    desk: Arc<Desk>,
    ticket: u64,
    pub(crate) sender: Sender,
}

impl Drop for Wanted {
    fn drop(&mut self) {
        // The task finds out when it next wakes.
        self.desk.list().wanted.remove(&self.ticket);
    }
}

impl Housekeeping {
    pub(crate) fn new(
        connector: Connector,
        settings: &Settings,
        world: Arc<WorldCell>,
        registry: Arc<Registry<Lease>>,
    ) -> Self {
        Self(Arc::new(Desk {
            connector: connector.for_housekeeping(),
            world,
            ear: Ear { registry, namespace: settings.namespace },
            hand_over: settings.hand_over,
            watchdog: settings.watchdog,
            interval: watchdog::interval(&settings.session),
            limit: settings.session.query_timeout(),
            over: CancellationToken::new(),
            session: Mutex::default(),
            list: Mutex::default(),
            bell: Notify::new(),
            not_allowed: AtomicBool::new(false),
            opening: tokio::sync::Mutex::default(),
        }))
    }

    pub(crate) fn watched(&self) -> Watched {
        match self.0.watchdog {
            false => Watched::Off,
            true if self.0.not_allowed.load(Ordering::Relaxed) => Watched::NotAllowed,
            true => Watched::Yes,
        }
    }

    /// Asks the server something. Cancel safe.
    pub(crate) async fn ask(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        doing: &'static str,
    ) -> Result<Vec<Row>> {
        self.0.ask(statement, parameters, doing).await
    }

    /// Hears requests to step down from now on, if the settings say so. Does not wait.
    pub(crate) fn listen(&self) {
        if self.0.hand_over && !std::mem::replace(&mut self.0.list().listens, true) {
            self.0.bell.notify_one();
        }
        if self.0.hand_over {
            Desk::work(&self.0);
        }
    }

    /// Watches over a wait for this id, and asks the holder to step down, until the answer is dropped. Does not wait.
    pub(crate) fn want(&self, id: i64, asks: bool) -> Wanted {
        let mut list = self.0.list();
        list.tickets += 1;
        let ticket = list.tickets;
        let rings = asks || list.wanted.is_empty();
        let request = asks.then(|| Request { due: Instant::now(), pause: FIRST_PAUSE, asked: None });
        let sender = Sender::fresh();
        list.wanted.insert(ticket, Want { id, sender, request });
        drop(list);
        if rings {
            self.0.bell.notify_one();
        }
        if self.0.watchdog || asks {
            Desk::work(&self.0);
        }
        Wanted { desk: Arc::clone(&self.0), ticket, sender }
    }

    /// Ends the session at once. What it gives completes when the server has let go of it, or soon after: it owns nothing.
    pub(crate) fn close(&self) -> impl Future<Output = ()> + use<> {
        self.0.over.cancel();
        let session = self.0.session().take();
        if let Some(session) = &session {
            session.socket.shutdown_write();
        }
        async move {
            if let Some(session) = session {
                let _ = timeout(CLOSE_LIMIT, session.socket.until_eof()).await;
            }
        }
    }
}

impl Drop for Housekeeping {
    fn drop(&mut self) {
        drop(self.close());
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("list", &*self.list()).field("session", &*self.session()).finish_non_exhaustive()
    }
}

impl Desk {
    fn session(&self) -> MutexGuard<'_, Option<Arc<HouseSession>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, if it is there.
    fn current(&self) -> Option<Arc<HouseSession>> {
        self.session().clone().filter(|session| !session.is_over())
    }

    /// The session, and whether it was in use before. Opens it if need be.
    async fn reach(&self) -> Result<(Arc<HouseSession>, bool)> {
        if let Some(session) = self.current() {
            return Ok((session, true));
        }
        let _turn = self.opening.lock().await;
        if let Some(session) = self.current() {
            return Ok((session, true));
        }
        let opened = Arc::new(self.open().await?);
        let mut slot = self.session();
        // Asked under the lock, so that closing either finds the session or is found.
        if self.over.is_cancelled() {
            return Err(closed());
        }
        *slot = Some(Arc::clone(&opened));
        Ok((opened, false))
    }

    async fn open(&self) -> Result<HouseSession> {
        let mut failed = None;
        for target in self.connector.hosts() {
            let deadline = Instant::now() + OPEN_TIMEOUT;
            let opened = match self.connector.open(target, OPEN_TIMEOUT).await {
                Ok(opened) => opened,
                Err(error) => {
                    failed = Some(Error::from(error));
                    continue;
                }
            };
            match timeout_at(deadline, self.set_up(opened)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => failed = Some(error),
                Err(_elapsed) => failed = Some(unanswered("the set-up of a connection", OPEN_TIMEOUT)),
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Misconfigured, "the connection string names no host")))
    }

    async fn set_up(&self, opened: Opened) -> Result<HouseSession> {
        let target = opened.target.clone();
        let session = HouseSession::drive(opened, self.ear.clone());
        let client = &session.client;
        let idle = [(if self.hand_over { &NO_LIMIT } else { &IDLE_LIMIT } as _, Type::TEXT)];
        let listen = async { if self.hand_over { client.batch_execute(sql::LISTEN).await } else { Ok(()) } };
        // In this order and in one write.
        let (identity, _settings, ()) = tokio::try_join!(
            biased;
            client.query_typed_one(sql::IDENTITY, &[]),
            client.query_typed_one(sql::SETUP_HOUSEKEEPING, &idle),
            listen,
        )
        .map_err(|error| error::wrap(error, "set up the housekeeping session"))?;
        ensure_identity(&identity, &target, &self.world)?;
        Ok(session)
    }

    /// Asks the server something that may be asked twice: once more if the session had ended while nobody used it.
    pub(crate) async fn ask(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        doing: &'static str,
    ) -> Result<Vec<Row>> {
        loop {
            let (session, reused) = self.reach().await?;
            match timeout(self.limit, session.client.query_typed(statement, parameters)).await {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) if error::ended_session(&error) => {
                    self.forget(&session);
                    if !reused {
                        return Err(error::wrap(error, doing));
                    }
                }
                Ok(Err(error)) => return Err(error::wrap(error, doing)),
                Err(_elapsed) => {
                    self.forget(&session);
                    return Err(unanswered("the housekeeping session", self.limit));
                }
            }
        }
    }

    /// Ends this session, so that the next question opens another.
    fn forget(&self, session: &Arc<HouseSession>) {
        let was = self.session().take_if(|current| Arc::ptr_eq(current, session));
        session.socket.shutdown_write();
        drop(was);
    }

    /// Asks the holder of this id, or only this backend, to step down; which backend it was.
    async fn request_step_down(&self, id: i64, sender: Sender, only: Option<i32>) -> Result<Option<i32>> {
        let payload = payload(self.ear.namespace, id, sender);
        let parameters = [(&id as _, Type::INT8), (&payload as _, Type::TEXT), (&only as _, Type::INT4)];
        let asked = self.ask(sql::REQUEST_STEP_DOWN, &parameters, "ask a holder to step down").await?;
        let pid = asked.first().map(|row| row.try_get("pid")).transpose();
        pid.map(Option::flatten).map_err(|error| error::wrap(error, "ask a holder to step down"))
    }

    /// Has the list worked off, on the caller's runtime unless somebody does it already.
    fn work(desk: &Arc<Self>) {
        if !std::mem::replace(&mut desk.list().working, true) {
            let mut work = Working { desk: Arc::clone(desk), done: false };
            tokio::spawn(async move {
                let desk = Arc::clone(&work.desk);
                // Both arms are cancel safe.
                tokio::select! {
                    biased;
                    () = desk.over.cancelled() => {}
                    () = work.work_off() => {}
                }
            });
        }
    }

    /// Those that want something, if there is anything to do at all. Otherwise the task is at its end.
    fn next(&self) -> Option<Vec<(u64, Want)>> {
        let mut list = self.list();
        list.working = list.listens || !list.wanted.is_empty();
        list.working.then(|| list.wanted.iter().map(|(ticket, want)| (*ticket, *want)).collect())
    }

    /// Asks holders on behalf of the waiters whose time it is.
    async fn ask_holders(&self, wants: &[(u64, Want)]) {
        let now = Instant::now();
        for (ticket, want) in wants {
            let Some(request) = want.request.filter(|request| request.due <= now) else { continue };
            let asked = self.request_step_down(want.id, want.sender, request.asked).await.unwrap_or_else(|error| {
                tracing::debug!(target: "lock_postgres", %error, "a holder could not be asked to step down");
                None
            });
            if let Some(want) = self.list().wanted.get_mut(ticket) {
                let pause = self.interval.min(request.pause * 2);
                want.request =
                    Some(Request { due: Instant::now() + request.pause, pause, asked: request.asked.or(asked) });
            }
        }
    }

    async fn watch(&self, wants: &[(u64, Want)]) {
        let mut ids: Vec<_> = wants.iter().map(|(_, want)| want.id).collect();
        ids.sort_unstable();
        ids.dedup();
        match watchdog::round(self, &ids).await {
            Ok(allowed) => {
                let was_allowed = !self.not_allowed.swap(!allowed, Ordering::Relaxed);
                if was_allowed && !allowed {
                    tracing::warn!(target: "lock_postgres", "the watchdog may not see or end the sessions of a holder");
                }
            }
            Err(error) => tracing::debug!(target: "lock_postgres", %error, "the watchdog could not look"),
        }
    }
}

/// The task at work. Dropped, as with its runtime, it lets the next one begin.
struct Working {
    desk: Arc<Desk>,
    /// The list says so already.
    done: bool,
}

impl Drop for Working {
    fn drop(&mut self) {
        if !self.done {
            self.desk.list().working = false;
        }
    }
}

impl Working {
    async fn work_off(&mut self) {
        let desk = Arc::clone(&self.desk);
        let mut round = None;
        let mut failures = 0;
        while let Some(wants) = desk.next() {
            let due = wants.iter().filter_map(|(_, want)| want.request).map(|request| request.due).min();
            if due.is_some_and(|due| due <= Instant::now()) {
                desk.ask_holders(&wants).await;
                continue;
            }
            // Short waits need no session.
            let first = || Instant::now() + watchdog::SHORTEST_ROUND.max(jittered(desk.interval));
            round = (desk.watchdog && !wants.is_empty()).then(|| round.unwrap_or_else(first));
            let wakes = due.into_iter().chain(round).min();
            let listens = desk.hand_over && desk.list().listens;
            // All arms are cancel safe: the bell stays rung, the end of the session is kept.
            tokio::select! {
                biased;
                () = desk.bell.notified() => {}
                () = sleep_until(wakes.unwrap_or_else(Instant::now)), if wakes.is_some() => {
                    if round.is_some_and(|round| round <= Instant::now()) {
                        round = None;
                        desk.watch(&wants).await;
                    }
                }
                () = desk.lost(failures), if listens => {
                    match desk.reach().await {
                        Ok(_) => failures = 0,
                        Err(error) => {
                            failures += 1;
                            tracing::warn!(target: "lock_postgres", %error, failures, "requests to step down are not heard for now");
                        }
                    }
                }
            }
        }
        self.done = true;
    }
}

impl Desk {
    /// Completes when the session is to be opened: at once, or after a pause if that has failed so often before. Cancel safe, but
    /// the pause begins anew.
    async fn lost(&self, failures: u32) {
        match self.current() {
            Some(session) => session.ended.cancelled().await,
            None if failures == 0 => {}
            None => sleep(jittered(LONGEST_PAUSE.min(FIRST_PAUSE * 2_u32.saturating_pow(failures.min(10) - 1)))).await,
        }
    }
}

/// Between four fifths of it and all of it.
fn jittered(duration: Duration) -> Duration {
    let [a, b, ..] = RandomState::new().hash_one(()).to_be_bytes();
    duration - duration / 5 * u32::from(u16::from_be_bytes([a, b])) / u32::from(u16::MAX)
}

/// Dropped, it ends, with or without a runtime.
struct HouseSession {
    client: Client,
    socket: SocketHandle,
    driver: AbortHandle,
    /// Cancelled when it has ended.
    ended: CancellationToken,
}

impl HouseSession {
    /// Spawns what polls the connection, on the caller's runtime.
    fn drive(opened: Opened, ear: Ear) -> Self {
        let Opened { client, mut connection, socket, .. } = opened;
        let ended = CancellationToken::new();
        let told = ended.clone().drop_guard();
        let driver = tokio::spawn(async move {
            let _told = told;
            while let Some(Ok(message)) = poll_fn(|cx| connection.as_mut().poll_message(cx)).await {
                if let AsyncMessage::Notification(notification) = message {
                    ear.hear(&notification);
                }
            }
        });
        Self { client, socket, driver: driver.abort_handle(), ended }
    }

    fn is_over(&self) -> bool {
        self.client.is_closed() || self.ended.is_cancelled()
    }
}

impl Drop for HouseSession {
    fn drop(&mut self) {
        self.socket.shutdown_write();
        self.driver.abort();
    }
}

impl fmt::Debug for HouseSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HouseSession").field("over", &self.is_over()).finish_non_exhaustive()
    }
}

/// Passes requests to step down on to the holds of this locker.
#[derive(Clone, Debug)]
struct Ear {
    registry: Arc<Registry<Lease>>,
    namespace: i32,
}

impl Ear {
    /// Anybody may send anything, so whatever is no request to one of ours is passed over.
    fn hear(&self, notification: &Notification) {
        if notification.channel() != sql::STEP_DOWN_CHANNEL {
            return;
        }
        let Some((namespace, id, sender)) = read_payload(notification.payload()) else { return };
        let lease =
            self.registry.find(id).filter(|lease| namespace == self.namespace && lease.waited_as != Some(sender));
        if let Some(lease) = lease {
            lease.record.request_step_down();
        }
    }
}

/// What is sent to `sql::STEP_DOWN_CHANNEL`.
pub(crate) fn payload(namespace: i32, id: i64, Sender(sender): Sender) -> String {
    format!("{namespace} {id} {sender}")
}

fn read_payload(text: &str) -> Option<(i32, i64, Sender)> {
    let mut parts = text.split(' ');
    let (namespace, id) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let sender = Sender(parts.next()?.parse().ok()?);
    parts.next().is_none().then_some((namespace, id, sender))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_read_back_and_others_are_passed_over() {
        for (namespace, id, sender) in [(0, 0, 0), (i32::MIN, i64::MAX, u64::MAX), (i32::MAX, i64::MIN, 7)] {
            let sender = Sender(sender);
            assert_eq!(read_payload(&payload(namespace, id, sender)), Some((namespace, id, sender)));
        }
        for foreign in ["", " ", "1", "1 2", "1 2 ", " 1 2", "1 2 3 4", "one 2 3", "1  2 3", "2147483648 1 1", "1 2 -1"]
        {
            assert_eq!(read_payload(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn jitter_stays_between_four_fifths_and_all() {
        let all = Duration::from_secs(5);
        let drawn: Vec<_> = (0..200).map(|_| jittered(all)).collect();
        assert!(drawn.iter().all(|drawn| (all * 4 / 5..=all).contains(drawn)), "{drawn:?}");
        assert!(drawn.iter().any(|one| *one != drawn[0]), "it never varies");
    }
}
