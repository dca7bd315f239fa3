//! Many tasks at the same time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::Failure;

use super::subject::Subject;

pub(super) const TASKS: usize = 256;

/// Of the pool that it is compared with.
pub(super) const CONNECTIONS: usize = 16;

/// Of each kind, in each round.
const TURN: Duration = Duration::from_millis(250);

/// Pairs of acquire and release a second, of all tasks together.
pub(super) async fn pairs_per_second(subject: &Arc<Subject>) -> Result<f64, Failure> {
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for task in 0..TASKS {
        let (subject, over) = (Arc::clone(subject), Arc::clone(&over));
        tasks.spawn(async move {
            let mut pairs = 0_u32;
            while !over.load(Ordering::Relaxed) {
                subject.pair(task).await?;
                pairs += 1;
            }
            Ok::<_, Failure>(pairs)
        });
    }
    sleep(TURN).await;
    over.store(true, Ordering::Relaxed);
    let mut pairs = 0.0;
    while let Some(of_one) = tasks.join_next().await {
        pairs += f64::from(of_one??);
    }
    Ok(pairs / start.elapsed().as_secs_f64())
}
