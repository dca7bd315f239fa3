//! The locker that locks nothing, which nobody gets who did not name it.

use std::{sync::Arc, time::Duration};

use distributed_lock::{
    AcquireOptions, Backend, ErrorKind, Fencing, FencingStrength, LockKey, Locker, LockerExt, LossCause, Reach,
    Release, ScopedLockerExt, Ttl,
};
use lock_connect::LockConfig;
use serde_json::json;
use tokio::sync::Barrier;

use crate::{faults, read};

const TTL: Duration = Duration::from_secs(30);

fn noop() -> Arc<dyn Locker> {
    LockConfig::new("noop").locker().unwrap()
}

#[test]
fn noop_says_what_it_is_wherever_it_can() {
    for provider in ["noop", "noop:", "NOOP"] {
        let config = LockConfig::new(provider);
        assert_eq!(config.locker().unwrap().to_string(), "Noop[locks nothing]");
        assert_eq!(config.scoped_locker().unwrap().to_string(), "Scoped(Noop[locks nothing])");
    }
    let capabilities = noop().capabilities();
    assert_eq!((capabilities.reach, capabilities.fencing), (Reach::Nobody, FencingStrength::Absent));
    assert!(noop().guarantees().to_string().ends_with("locks nothing: any number of callers hold a key at once"));
}

#[test]
fn nobody_gets_noop_who_did_not_name_it() {
    for unnamed in [json!({}), json!({ "provider": null }), json!({ "provider": "" }), json!({ "provider": "none" })] {
        assert!(faults(&read(unnamed)).starts_with("invalid provider ("));
    }
    for (named, word) in [("memory", "Memory"), ("noop", "Noop")] {
        assert!(LockConfig::new(named).locker().unwrap().to_string().starts_with(word));
    }
}

#[tokio::test]
async fn noop_lets_everybody_hold_a_key_at_once() {
    let locker = noop();
    let guards = [locker.acquire("k", TTL).await.unwrap(), locker.acquire("k", TTL).await.unwrap()];
    for guard in &guards {
        guard.ensure_valid().unwrap();
        assert_eq!(guard.fencing_token(), None);
    }
    for mut guard in guards {
        guard.renew(TTL).await.unwrap();
        assert!(matches!(guard.release().await.unwrap(), Release::Released));
    }
    let scoped = LockConfig::new("noop").scoped_locker().unwrap();
    // Neither body ends before both run.
    let both = Barrier::new(2);
    let body = || scoped.with_lock("k", async |_| both.wait().await);
    let (one, other) = tokio::join!(body(), body());
    assert!(one.is_ok() && other.is_ok());
}

#[tokio::test]
async fn noop_ends_a_hold_at_its_deadline_and_at_close() {
    let locker = noop();
    let brief = locker.acquire("k", Duration::from_millis(1)).await.unwrap();
    assert_eq!(brief.lost().await.cause(), LossCause::DeadlinePassed);
    assert!(matches!(brief.release().await.unwrap(), Release::Lost(_)));

    let endless = locker.acquire("k", Ttl::UNTIL_RELEASED).await.unwrap();
    locker.close().await.unwrap();
    endless.ensure_valid().unwrap_err();
    assert_eq!(endless.lost().await.cause(), LossCause::Closed);
    assert_eq!(locker.try_acquire("k", TTL).await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn noop_refuses_to_mint_a_token() {
    let options = AcquireOptions::new(Ttl::UNTIL_RELEASED).with_fencing(Fencing::On);
    let refused = noop().acquire_opts(&LockKey::new("k").unwrap(), &options).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}
