//! Holders that were cut off in the middle of a write, which stops the server's own timer; and all those that a watchdog must leave
//! alone.

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc, time::Duration};

use distributed_lock::{Backend, Contention, LockKey, LockerExt, ScopedLockerExt, Ttl, Wait};
use libtest_mimic::Trial;
use lock_postgres::{KeyScheme, PostgresLocker};
use lock_testkit::{requirement, wait_until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_postgres::Client;

use crate::{
    bench::{AMPLE, SHORT_TTL, Server, Watch, contention, ms, trial},
    spinning::{self, Statements},
};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("watchdog::holder_cut_in_the_middle_of_a_write_is_freed_in_time", cut),
        trial("watchdog::scoped_run_cut_in_the_middle_of_a_write_is_freed_in_time", cut_in_transaction),
        trial("watchdog::without_it_such_a_holder_stays", unwatched),
        trial("watchdog::body_that_streams_in_the_lock_s_transaction_is_left_alone", streaming),
        trial("watchdog::healthy_holders_survive_three_that_spin", healthy),
        trial("watchdog::statement_without_the_client_filter_ends_a_working_holder", without_filter),
        trial("watchdog::statement_with_the_shorter_of_two_leases_ends_one_that_was_lengthened", with_shorter_lease),
        trial("watchdog::what_it_may_not_do_is_said", not_allowed),
    ]
}

/// T + max(T/10, 250 ms) of [`Server::short`]: when the watchdog may act.
const OVERDUE: Duration = ms(2_250);

/// One poll, and the second look.
const POLL: Duration = ms(550);

fn id(key: &str) -> i64 {
    KeyScheme::default().id(0, &LockKey::new(key).unwrap())
}

async fn spin(client: &Client, keys: &[&str], statements: &Statements, until: Instant) -> (u64, u64) {
    let ids: Vec<_> = keys.iter().map(|key| id(key)).collect();
    spinning::spin(client, &ids, statements, until).await
}

/// A client that speaks the protocol by hand, so that it can stop anywhere.
struct Raw {
    stream: TcpStream,
}

impl Raw {
    async fn connect(server: &Server, user: &str) -> Self {
        let database = server.url.rsplit('/').next().unwrap();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).await.unwrap();
        let body = format!("user\0{user}\0database\0{database}\0application_name\0raw\0\0");
        stream.write_u32(u32::try_from(body.len() + 8).unwrap()).await.unwrap();
        stream.write_u32(196_608).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut raw = Self { stream };
        raw.until_ready().await;
        raw
    }

    /// Reads to the end of an answer. Panics at an error, or if the server has closed.
    async fn until_ready(&mut self) {
        timeout(AMPLE, async {
            loop {
                let tag = self.stream.read_u8().await.unwrap();
                let length = self.stream.read_u32().await.unwrap();
                let mut body = vec![0; length as usize - 4];
                self.stream.read_exact(&mut body).await.unwrap();
                match tag {
                    b'Z' => return,
                    b'E' => panic!("{}", String::from_utf8_lossy(&body)),
                    _ => {}
                }
            }
        })
        .await
        .unwrap();
    }

    async fn send(&mut self, statement: &str) {
        let message = message(b'Q', format!("{statement}\0").as_bytes());
        self.stream.write_all(&message).await.unwrap();
    }

    async fn run(&mut self, statement: &str) {
        self.send(statement).await;
        self.until_ready().await;
    }

    /// Takes the key as a session of a locker does, with its beacon and its idle limit.
    async fn take(&mut self, key: &str, ttl: Duration) {
        self.run(&format!("SET idle_session_timeout = {}", ttl.as_millis())).await;
        self.run(&format!("SELECT pg_advisory_lock({}), {}", id(key), beacon(ttl, 77))).await;
    }

    /// Sends a write up to its middle: one whole message that leaves the server waiting for more, and a piece of the next.
    async fn stop_in_the_middle(&mut self) {
        let mut write = message(b'P', b"\0select 1\0\0\0");
        write.extend_from_slice(&message(b'B', b"\0\0\0\0\0\0\0\0")[..7]);
        self.stream.write_all(&write).await.unwrap();
    }
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag], &u32::try_from(body.len() + 4).unwrap().to_be_bytes()[..], body].concat()
}

/// Twice, as lockers take it.
fn beacon(ttl: Duration, random: i32) -> String {
    let one = format!("pg_try_advisory_lock({}, {random})", ttl.as_millis());
    format!("{one}, {one}")
}

async fn cut(server: Server) {
    for _ in 0..requirement::rounds(2) {
        let mut holder = Raw::connect(&server, "postgres").await;
        holder.take("k", SHORT_TTL).await;
        holder.stop_in_the_middle().await;
        let watch = Watch::start();
        let locker = server.locker();
        let guard = timeout(AMPLE, locker.acquire("k", Ttl::UNTIL_RELEASED)).await.unwrap().unwrap();
        let at = Instant::now();
        assert!(at.duration_since(watch.start) + ms(50) >= OVERDUE, "before its lease was over for certain");
        watch.at_within(at, OVERDUE + POLL, "holder cut in the middle of a write freed");
        guard.ensure_valid().unwrap();
        guard.release().await.unwrap().exclusive().unwrap();
        locker.close().await.unwrap();
        drop(holder);
        server.quiet().await;
    }
}

/// As sessions of our pool do it: the beacon by the session, the lock by the transaction.
async fn cut_in_transaction(server: Server) {
    let mut holder = Raw::connect(&server, "postgres").await;
    holder.run(&format!("SELECT {}", beacon(SHORT_TTL, 77))).await;
    let idle = format!("SET LOCAL idle_in_transaction_session_timeout = {}", SHORT_TTL.as_millis());
    holder.run(&format!("BEGIN; {idle}; SELECT pg_advisory_xact_lock({})", id("k"))).await;
    holder.stop_in_the_middle().await;
    let (watch, locker) = (Watch::start(), server.scoped());
    let ran = timeout(AMPLE, locker.with_lock("k", async |_| Instant::now())).await.unwrap().unwrap();
    assert!(ran.duration_since(watch.start) + ms(50) >= OVERDUE, "before its lease was over for certain");
    watch.at_within(ran, OVERDUE + POLL, "transaction cut in the middle of a write freed");
    locker.close().await.unwrap();
    drop(holder);
    server.quiet().await;
}

/// While a body copies, its session is in a statement and waits for its client, for as long as the body likes.
async fn streaming(server: Server) {
    let scoped = server.scoped();
    let waiting = server.locker();
    let begun = Arc::new(Notify::new());
    let tell = Arc::clone(&begun);
    let copying = scoped.with_transaction("k", Wait::Forever, |tx| {
        Box::pin(async move {
            tx.batch_execute("CREATE TEMP TABLE t (a text)").await?;
            let sink = tx.copy_in::<_, &'static [u8]>("COPY t FROM STDIN").await?;
            tell.notify_one();
            sleep(OVERDUE * 2).await;
            let mut sink = std::pin::pin!(sink);
            sink.as_mut().finish().await
        })
    });
    let waited = async {
        begun.notified().await;
        waiting.acquire_within("k", Ttl::UNTIL_RELEASED, OVERDUE * 2 - ms(300)).await
    };
    let (copied, waited) = timeout(AMPLE, async { tokio::join!(copying, waited) }).await.unwrap();
    assert_eq!(contention(waited.unwrap()), Contention::WaitElapsed);
    assert_eq!(copied.unwrap().acquired().unwrap().unwrap(), 0, "no row, and no end of the session either");
    scoped.close().await.unwrap();
    waiting.close().await.unwrap();
    server.quiet().await;
}

async fn unwatched(server: Server) {
    let mut holder = Raw::connect(&server, "postgres").await;
    holder.take("k", SHORT_TTL).await;
    holder.stop_in_the_middle().await;
    let locker = PostgresLocker::new(&server.short().with_watchdog(false)).unwrap();
    let notes = locker.guarantees().notes.join("; ");
    assert!(notes.contains("the watchdog is off"), "{notes}");
    let waited = locker.acquire_within("k", Ttl::UNTIL_RELEASED, (OVERDUE + POLL) * 2).await.unwrap();
    assert_eq!(contention(waited), Contention::WaitElapsed);
    let pid = server.holder().await;
    // The same state, and one who watches.
    let watching = server.locker();
    let notes = watching.guarantees().notes.join("; ");
    assert!(notes.contains("bounded by the watchdog"), "{notes}");
    let guard = timeout(AMPLE, watching.acquire("k", Ttl::UNTIL_RELEASED)).await.unwrap().unwrap();
    assert_ne!(server.holder().await, pid);
    guard.release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    watching.close().await.unwrap();
    drop(holder);
    server.quiet().await;
}

const SECOND: Duration = Duration::from_secs(1);

/// All T are 1 s or 2 s, so whoever is silent for 1.25 s or 2.25 s is overdue.
async fn healthy(server: Server) {
    const KEYS: [&str; 8] = ["waited", "waited too", "pooled", "long", "lengthening", "both", "renewed", "foreign"];
    let until = Instant::now() + Duration::from_secs(8) * u32::try_from(requirement::rounds(1)).unwrap();
    let mut spinners = JoinSet::new();
    for _ in 0..3 {
        let client = server.admin().await;
        spinners.spawn(async move { spin(&client, &KEYS, &Statements::ours(), until).await });
    }
    let ttl = Ttl::new(SECOND * 2).unwrap();
    let locker = |server: &Server| PostgresLocker::new(&server.config()).unwrap();

    // Granted after a wait that was longer than T.
    let waited = async |key: &'static str| {
        let (ours, theirs) = (locker(&server), locker(&server));
        let mut guard = ours.acquire(key, ttl).await.unwrap();
        let mut grants = 0;
        while Instant::now() < until {
            let rival = theirs.acquire(key, ttl);
            let holds = async {
                let end = Instant::now() + ms(2_500);
                while Instant::now() < end {
                    guard.renew(ttl).await.unwrap();
                    sleep(ms(100)).await;
                }
                guard.release().await.unwrap().exclusive().unwrap();
            };
            let (granted, ()) = tokio::join!(rival, holds);
            grants += 1;
            guard = granted.unwrap();
        }
        guard.ensure_valid().unwrap();
        guard.release().await.unwrap().exclusive().unwrap();
        ours.close().await.unwrap();
        theirs.close().await.unwrap();
        println!("{grants} grants after a wait");
        assert!(grants > 1);
    };
    // Granted on a session that had been idle for longer than T.
    let pooled = async {
        let locker = locker(&server);
        let mut grants = 0;
        while Instant::now() < until {
            let guard = locker.try_acquire("pooled", ttl).await.unwrap().acquired().unwrap();
            guard.ensure_valid().unwrap();
            guard.release().await.unwrap().exclusive().unwrap();
            grants += 1;
            sleep(ms(2_400)).await;
        }
        locker.close().await.unwrap();
        assert!(grants > 1);
    };
    // In a long statement.
    let long = async {
        let mut raw = Raw::connect(&server, "postgres").await;
        raw.take("long", SECOND).await;
        while Instant::now() < until {
            raw.run("SELECT pg_sleep(2)").await;
        }
    };
    // Silent within a T that was lengthened, and while both beacons were there.
    let lengthened = async {
        let (mut done, mut both) = (Raw::connect(&server, "postgres").await, Raw::connect(&server, "postgres").await);
        let new = Duration::from_secs(600);
        done.take("renewed", SECOND).await;
        both.take("both", SECOND).await;
        let longer = format!("SELECT {}, set_config('idle_session_timeout', '600000', false)", beacon(new, 78));
        both.run(&longer.replace("78", "79")).await;
        done.run(&longer).await;
        done.run("SELECT pg_advisory_unlock(1000, 77), pg_advisory_unlock(1000, 77)").await;
        sleep(until - Instant::now()).await;
        for raw in [&mut done, &mut both] {
            raw.run("SELECT 1").await;
        }
    };
    let lengthening = async {
        let locker = locker(&server);
        while Instant::now() < until {
            let mut guard = locker.acquire("lengthening", ttl).await.unwrap();
            for ttl in [SECOND * 8, SECOND * 2, SECOND * 20] {
                guard.renew(Ttl::new(ttl).unwrap()).await.unwrap();
                sleep(ms(200)).await;
                guard.ensure_valid().unwrap();
            }
            guard.release().await.unwrap().exclusive().unwrap();
        }
        locker.close().await.unwrap();
    };
    // Without a beacon, idle in its session and in a transaction, and cut in the middle of a write.
    let foreign = async {
        let (session, transaction) = (server.stranger().await, server.stranger().await);
        let mut raw = Raw::connect(&server, "postgres").await;
        let take = |call: &str| format!("SELECT {call}_shared({})", id("foreign"));
        session.batch_execute(&take("pg_advisory_lock")).await.unwrap();
        transaction.batch_execute(&format!("BEGIN; {}", take("pg_advisory_xact_lock"))).await.unwrap();
        raw.run(&take("pg_advisory_lock")).await;
        // A pair of integers of its own, which is no beacon.
        raw.run("SELECT pg_advisory_lock(1, 2)").await;
        let held = server.observer.holders(id("foreign")).await.unwrap().len();
        assert_eq!(held, 3);
        raw.stop_in_the_middle().await;
        sleep(until - Instant::now()).await;
        session.batch_execute("SELECT 1").await.unwrap();
        transaction.batch_execute("COMMIT").await.unwrap();
        assert_eq!(server.observer.holders(id("foreign")).await.unwrap().len(), 2);
    };
    tokio::join!(waited("waited"), waited("waited too"), pooled, long, lengthened, lengthening, foreign);
    let spun = spinners.join_all().await;
    println!("rounds and ended of each: {spun:?}");
    assert!(spun.iter().all(|(rounds, ended)| *rounds > 100 && *ended == 0), "{spun:?}");
}

/// One that was granted its lock after a wait and still works, and a silent one to show that the statements do end somebody.
async fn working(server: &Server, statements: &Statements) -> (bool, bool) {
    let blocker = server.stranger().await;
    blocker.batch_execute(&format!("SELECT pg_advisory_lock({})", id("fresh"))).await.unwrap();
    let mut fresh = Raw::connect(server, "postgres").await;
    let take = format!("SELECT pg_advisory_lock({}), {}, pg_sleep(1.5)", id("fresh"), beacon(SECOND, 7));
    fresh.send(&take).await;
    let [fresh_pid] = server.waiters(1).await[..] else { panic!() };
    let mut stuck = Raw::connect(server, "postgres").await;
    stuck.take("stuck", SECOND).await;
    stuck.stop_in_the_middle().await;
    // Until it has waited for longer than its lease.
    sleep(ms(1_400)).await;
    drop(blocker);
    let until = Instant::now() + ms(1_000);
    spin(&server.admin().await, &["fresh", "stuck"], statements, until).await;
    let alive: BTreeSet<_> = server.observer.sessions().await.unwrap().iter().map(|session| session.pid).collect();
    let stuck_is_held = !server.observer.holders(id("stuck")).await.unwrap().is_empty();
    (alive.contains(&fresh_pid), stuck_is_held)
}

async fn without_filter(server: Server) {
    assert_eq!(working(&server, &Statements::ours()).await, (true, false));
    server.quiet().await;
    let filter = "a.wait_event_type operator(pg_catalog.=) 'Client'::pg_catalog.text and ";
    assert_eq!(working(&server, &Statements::with(filter, "")).await, (false, false), "the filter is what spares it");
}

async fn with_shorter_lease(server: Server) {
    let shorter = Statements::with("pg_catalog.max(b.ttl)", "pg_catalog.min(b.ttl)");
    for (statements, survives) in [(Statements::ours(), true), (shorter, false)] {
        let mut both = Raw::connect(&server, "postgres").await;
        both.take("k", SECOND).await;
        let new = beacon(Duration::from_secs(600), 78);
        both.run(&format!("SELECT {new}, set_config('idle_session_timeout', '600000', false)")).await;
        let until = Instant::now() + ms(2_000);
        spin(&server.admin().await, &["k"], &statements, until).await;
        let held = !server.observer.holders(id("k")).await.unwrap().is_empty();
        assert_eq!(held, survives);
        drop(both);
        server.quiet().await;
    }
}

async fn not_allowed(server: Server) {
    let admin = server.admin().await;
    admin.batch_execute("CREATE ROLE watched_app LOGIN; CREATE ROLE watched_ops LOGIN").await.unwrap();
    let mut holder = Raw::connect(&server, "watched_app").await;
    holder.take("k", SHORT_TTL).await;
    holder.stop_in_the_middle().await;
    let url = server.url_of("watched_ops");
    let locker = PostgresLocker::new(&crate::bench::shortened(lock_postgres::PostgresConfig::from_url(url))).unwrap();
    let waiting = locker.acquire("k", Ttl::UNTIL_RELEASED);
    let granted = async {
        let said = async || locker.guarantees().notes.iter().any(|note| note.contains("may not see or end"));
        wait_until(AMPLE, "it says that it may not look", said).await.unwrap();
        admin.batch_execute("GRANT pg_read_all_stats TO watched_ops").await.unwrap();
        // It sees, but may not act.
        sleep(OVERDUE + POLL).await;
        wait_until(AMPLE, "it says that it may not act", said).await.unwrap();
        server.waiters(1).await;
        admin.batch_execute("GRANT pg_signal_backend TO watched_ops").await.unwrap();
        let unsaid = async || !said().await;
        wait_until(AMPLE, "it may", unsaid).await.unwrap();
    };
    let (guard, ()) = tokio::join!(timeout(AMPLE, waiting), granted);
    guard.unwrap().unwrap().release().await.unwrap().exclusive().unwrap();
    locker.close().await.unwrap();
    drop(holder);
}
