//! `Arc<L>` and `Box<L>` are lockers, so stacks can be built from configuration.

use std::{future::Future, pin::Pin, sync::Arc};

use async_trait::async_trait;

use crate::{
    AcquireOptions, Attempt, Backend, BackendId, Capabilities, Guarantees, Holder, Inspect, LockKey, Locker, Release,
    Result, ScopedLocker, ScopedOptions, Waiter, backend::ScopedBody,
};

macro_rules! forward { ($($pointer:ident),+) => { $(
    #[deny(clippy::missing_trait_methods)]
    #[async_trait]
    impl<L: Backend + ?Sized> Backend for $pointer<L> {
        fn id(&self) -> BackendId {
            (**self).id()
        }
        fn capabilities(&self) -> Capabilities {
            (**self).capabilities()
        }
        fn guarantees(&self) -> Guarantees {
            (**self).guarantees()
        }
        async fn ping(&self) -> Result<()> {
            (**self).ping().await
        }
        async fn close(&self) -> Result<()> {
            (**self).close().await
        }
    }

    // By hand, so that its future is the inner one and not another box around it.
    #[deny(clippy::missing_trait_methods)]
    impl<L: Locker + ?Sized> Locker for $pointer<L> {
        fn acquire_opts<'locker, 'key, 'options, 'acquire>(
            &'locker self,
            key: &'key LockKey,
            options: &'options AcquireOptions,
        ) -> Pin<Box<dyn Future<Output = Result<Attempt>> + Send + 'acquire>>
        where
            'locker: 'acquire,
            'key: 'acquire,
            'options: 'acquire,
            Self: 'acquire,
        {
            (**self).acquire_opts(key, options)
        }
    }

    #[deny(clippy::missing_trait_methods)]
    #[async_trait]
    impl<L: ScopedLocker + ?Sized> ScopedLocker for $pointer<L> {
        async fn run_scoped(&self, key: &LockKey, options: &ScopedOptions, body: ScopedBody<'_>) -> Result<Attempt<Release>> {
            (**self).run_scoped(key, options, body).await
        }
    }

    #[deny(clippy::missing_trait_methods)]
    #[async_trait]
    impl<L: Inspect + ?Sized> Inspect for $pointer<L> {
        async fn holders(&self, key: &LockKey) -> Result<Vec<Holder>> {
            (**self).holders(key).await
        }
        async fn waiters(&self, key: &LockKey) -> Result<Vec<Waiter>> {
            (**self).waiters(key).await
        }
        async fn end_holder(&self, key: &LockKey, holder: &Holder) -> Result<bool> {
            (**self).end_holder(key, holder).await
        }
        async fn request_step_down(&self, key: &LockKey) -> Result<bool> {
            (**self).request_step_down(key).await
        }
    }
)+ } }
forward!(Arc, Box);
