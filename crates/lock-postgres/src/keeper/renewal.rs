//! A renewal that changes the TTL. It goes alone, so that no older answer can undo it.

use std::{pin::pin, sync::Arc, time::Duration};

use distributed_lock::{Loss, LossCause};
use tokio::time::{error::Elapsed, timeout};

use super::{Clocks, Renewal, SECOND_LOOK, confirm, idle_limit, judge, lost, proven};
use crate::{
    core::ghost_bound,
    lease::{Lease, Talk, Terms},
    session::Owner,
    timing::server_millis,
};

/// A shortening counts from before the send, a lengthening once it is confirmed. `false` if the lease was lost.
pub(super) async fn change_ttl(lease: &Arc<Lease>, mut talk: Talk, order: Renewal, clocks: &mut Clocks) -> bool {
    let Renewal { timing, ttl, answer } = order;
    let (old, sent) = (lease.terms(), lease.core.clock.now());
    talk.bound_by(ghost_bound(&lease.core.settings.session, old.timing.ttl().max(timing.ttl())));
    let expires = ttl.duration().map(|ttl| sent + ttl);
    // The beacon publishes the TTL to others: another TTL, another beacon.
    let exchanged = match old.owner {
        Owner::Session(beacon) if old.timing.ttl() != timing.ttl() => Some((beacon, talk.session().beacon(&timing))),
        _ => None,
    };
    let owner = exchanged.map_or(old.owner, |(_, new)| Owner::Session(new));
    let new = Terms { timing, expires, owner, ..old };
    let idle = idle_limit(&new, sent);
    let new = proven(&new, sent, idle);
    if lease.record.hold().remaining().is_some_and(|left| sent + left > new.deadline) {
        // `false` is an end that the conclusion finds as well.
        let _live = lease.record.extend(Some(new.deadline), Some(timing.max_grace()));
    }
    let (limit, millis) = (old.timing.query_timeout(), server_millis(idle));
    let asked = match exchanged {
        None => in_time(limit, talk.session().prove(owner, millis)).await,
        Some((from, to)) => in_time(limit, talk.session().exchange(from, to, millis)).await,
    };
    let proof = match asked {
        Ok(asked) => judge(asked, owner),
        Err(elapsed) => Err(Loss::new(LossCause::HeartbeatTimeout).with_source(elapsed)),
    };
    match proof {
        Ok(proof) => {
            confirm(lease, new);
            talk.finish();
            // A guard that stopped waiting does not mind.
            let _ = answer.send(lease.record.hold().ensure_valid());
            clocks.compare(&lease.core, sent, proof.now, timing.margin());
            true
        }
        Err(loss) => {
            // Whoever ends the hold first says why, and that may be the one who waits for the answer.
            lease.record.lose(loss.clone());
            // Said at once; what follows may take until the deadline.
            let _ = answer.send(Err(loss.clone().into()));
            lost(lease, talk, loss).await;
            false
        }
    }
}

async fn in_time<F: Future>(limit: Duration, asked: F) -> Result<F::Output, Elapsed> {
    let mut asked = pin!(asked);
    match timeout(limit, &mut asked).await {
        Ok(answer) => Ok(answer),
        Err(_elapsed) => timeout(SECOND_LOOK, asked).await,
    }
}
