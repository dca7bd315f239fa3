//! Heartbeats and renewals that are on their way while their hold ends, or is given up.

use std::{
    future::Future,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use distributed_lock::{ErrorKind, Hold, LockerExt, LossCause};
use libtest_mimic::Trial;
use lock_postgres::PostgresLocker;
use lock_testkit::proxy::Flow;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::bench::{SHORT_TTL, Server, shortened, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("in_flight::renewal_that_fails_is_answered_after_the_hold_has_ended", failed_renewals),
    ]
}

/// Says at each wake whether the hold was valid.
struct Woken {
    hold: Hold,
    valid: UnboundedSender<bool>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let _ = self.valid.send(self.hold.ensure_valid().is_ok());
    }
}

/// Whoever awaits a renewal may run before whatever comes after the answer: were the hold still valid then, its end would get another
/// cause, one that says that the server has let go of it.
async fn failed_renewals(server: Server) {
    let (proxy, config) = server.proxy();
    let locker = PostgresLocker::new(&shortened(config)).unwrap();
    for ttl in [SHORT_TTL, SHORT_TTL * 2] {
        let mut guard = locker.acquire("k", SHORT_TTL).await.unwrap();
        let hold = guard.hold();
        proxy.down(Flow::Drop);
        let (valid, mut woken) = unbounded_channel();
        let waker = Waker::from(Arc::new(Woken { hold: hold.clone(), valid }));
        let mut last = None;
        let mut renewal = Box::pin(guard.renew(ttl));
        let lost = loop {
            match renewal.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(renewed) => break renewed.unwrap_err(),
                Poll::Pending => last = woken.recv().await,
            }
        };
        assert_eq!((lost.kind(), last), (ErrorKind::Lost, Some(false)), "{ttl:?}: answered while the hold was valid");
        assert_eq!(hold.lost().await.cause(), LossCause::HeartbeatTimeout, "{ttl:?}");
        drop(renewal);
        drop(guard);
        proxy.pass();
    }
}
