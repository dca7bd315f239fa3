//! One of the processes: takes the key again and again until its orders end.

use std::{
    io::{self, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distributed_lock::{Error, ErrorKind, Wait};
use tests::lease::clock;
use tokio::time::sleep;

use crate::{Failure, random::Random};

use super::{taker::Taker, way::Way, witness::Witness};

/// What makes the program such a process: its first argument.
pub(crate) const ARGUMENT: &str = "take-tokens";

/// In its arguments, of one that goes in without the lock.
pub(super) const INTRUDER: &str = "intruder";

/// How long one waits for the key, where it waits.
const WAIT: Duration = Duration::from_secs(2);

/// Every other second all of them wait, so that there is a queue, which no try gets past; in between all of them try, so that
/// batches and single takers come in turn.
const TURN: Duration = Duration::from_secs(1);

const WAITING: [Way; 5] = [Way::Session, Way::Borrowed, Way::Scoped, Way::Shared, Way::Batch];

/// After a refusal, at most, in ms, and after an error.
const PAUSE: usize = 3;
const BROKEN: Duration = Duration::from_millis(20);

/// Arguments: the server, the witness, the seed, the number of the process among all there ever were, and perhaps what it is.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run_as_process(arguments: &[String]) -> Result<(), Failure> {
    let [url, witness, seed, number, kind @ ..] = arguments else {
        return Err("it is started by the program itself".into());
    };
    let (seed, number): (u64, u64) = (seed.parse()?, number.parse()?);
    let intrudes = kind.first().is_some_and(|kind| kind == INTRUDER);
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    std::thread::spawn(move || {
        // Orders are never given, they end: also when whoever gives them was killed.
        let _ended = io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::SeqCst);
    });
    let witness = Witness::open(Path::new(witness))?;
    let mut taker = Taker::new(url, witness, number, Random::new(seed, 2 * number))?;
    let mut random = Random::new(seed, 2 * number + 1);
    while !stopped.load(Ordering::SeqCst) {
        let (way, wait) = if intrudes { (Way::Intruder, Wait::Never) } else { choose(&mut random) };
        match taker.take(way, wait).await {
            Ok(true) if !intrudes => {}
            Ok(_) => sleep(Duration::from_millis(random.within(0..PAUSE) as u64)).await,
            Err(error) if is_to_be_expected(&error) => sleep(BROKEN).await,
            Err(error) => return Err(error),
        }
    }
    taker.close().await
}

fn choose(random: &mut Random) -> (Way, Wait) {
    if clock::now() / clock::nanos(TURN) % 2 == 0 {
        return (WAITING[random.within(0..WAITING.len())], Wait::UpTo(WAIT));
    }
    let way = if random.one_in(2) { Way::Batch } else { WAITING[random.within(0..WAITING.len())] };
    (way, Wait::Never)
}

/// Of a server that is disturbed.
fn is_to_be_expected(error: &Failure) -> bool {
    let kind = error.downcast_ref().map(Error::kind);
    matches!(kind, Some(ErrorKind::Unavailable | ErrorKind::Indeterminate | ErrorKind::Lost))
}
