//! The connection under a session: one of ours, or one borrowed from a pool that the user handed in.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distributed_lock::{Loss, LossCause, backend::HoldRecord};
use tokio::{sync::watch, task::AbortHandle, time::sleep};
use tokio_postgres::Client;

use crate::connect::{Opened, SocketHandle};

/// How often a borrowed connection, whose end nobody tells us, is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The driver's last word on a connection.
pub(crate) type LastWord = Option<Arc<tokio_postgres::Error>>;

#[derive(Debug)]
pub(crate) enum Link {
    Own(OwnLink),
    Borrowed(Borrowed),
}

/// Dropped, it ends, with or without a runtime.
#[derive(Debug)]
pub(crate) struct OwnLink {
    client: Arc<Client>,
    socket: SocketHandle,
    ended: watch::Receiver<LastWord>,
    /// `None` if somebody else polls it.
    driver: Option<AbortHandle>,
    holder: Holder,
}

/// Who relies on a connection of ours. Told of its end before the socket closes, since with that the server lets others in.
#[derive(Clone, Debug, Default)]
struct Holder(Arc<Mutex<Relies>>);

#[derive(Debug, Default)]
enum Relies {
    #[default]
    Nobody,
    One(HoldRecord),
    /// Many, of whom whoever watches the connection knows: it drops the session once they are told.
    Many,
}

impl Holder {
    fn set(&self, relies: Relies) {
        *self.relies() = relies;
    }

    fn relies(&self) -> MutexGuard<'_, Relies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, loss: Loss) {
        if let Relies::One(record) = &*self.relies() {
            record.lose(loss);
        }
    }

    fn are_many(&self) -> bool {
        !matches!(&*self.relies(), Relies::Nobody | Relies::One(_))
    }
}

/// Tells the holder when the driver is dropped together with its runtime.
struct TellOnDrop(Holder);

impl Drop for TellOnDrop {
    fn drop(&mut self) {
        self.0.tell(Loss::new(LossCause::SessionEnded));
    }
}

/// Dropped, it goes back to its pool.
pub(crate) struct Borrowed(pub(crate) deadpool_postgres::Object);

impl OwnLink {
    /// Spawns what polls the connection, on the caller's runtime.
    pub(crate) fn drive(opened: Opened) -> Self {
        let (mut link, driving) = Self::undriven(opened);
        link.driver = Some(tokio::spawn(driving).abort_handle());
        link
    }

    /// With what must be polled for anything to happen. It ends after the connection, or is dropped.
    pub(crate) fn undriven(opened: Opened) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let Opened { client, connection, socket, .. } = opened;
        let (sender, ended) = watch::channel(None);
        let holder = Holder::default();
        let told = holder.clone();
        let driving = async move {
            let mut connection = connection;
            // Declared after the connection, so that it is dropped before the socket closes.
            let tell = TellOnDrop(told);
            // Without an error we ended it ourselves, and nobody waits.
            if let Err(error) = (&mut connection).await {
                let error = Arc::new(error);
                tell.0.tell(Loss::new(LossCause::SessionEnded).with_source(SharedError(Arc::clone(&error))));
                sender.send_replace(Some(error));
                if tell.0.are_many() {
                    sender.closed().await;
                }
            }
        };
        (Self { client: Arc::new(client), socket, ended, driver: None, holder }, driving)
    }

    /// Ends it, the holder being told first. Works also where no runtime polls the driver any more.
    fn end(&self) {
        self.holder.tell(Loss::new(LossCause::SessionEnded));
        self.socket.shutdown_write();
    }
}

impl Deref for OwnLink {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for OwnLink {
    fn drop(&mut self) {
        self.end();
        if let Some(driver) = &self.driver {
            driver.abort();
        }
    }
}

impl Link {
    pub(crate) fn client(&self) -> &Client {
        match self {
            Self::Own(own) => &own.client,
            Self::Borrowed(borrowed) => &borrowed.0,
        }
    }

    /// The same for whoever keeps it while a statement runs; `None` for a borrowed one.
    pub(crate) fn shared_client(&self) -> Option<&Arc<Client>> {
        match self {
            Self::Own(own) => Some(&own.client),
            Self::Borrowed(_) => None,
        }
    }

    #[expect(clippy::expect_used, reason = "statements that keep the client end before anybody else has the session")]
    pub(crate) fn client_mut(&mut self) -> &mut Client {
        match self {
            Self::Own(own) => Arc::get_mut(&mut own.client).expect("BUG: a session is used by two at a time"),
            Self::Borrowed(borrowed) => &mut borrowed.0,
        }
    }

    /// Whether it is known to be over.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Own(own) => {
                own.client.is_closed() || own.ended.has_changed().is_err() || own.ended.borrow().is_some()
            }
            Self::Borrowed(borrowed) => borrowed.0.is_closed(),
        }
    }

    /// Where it can be ended without a runtime; only ours can.
    pub(crate) fn socket(&self) -> Option<&SocketHandle> {
        match self {
            Self::Own(own) => Some(&own.socket),
            Self::Borrowed(_) => None,
        }
    }

    /// Makes this record's holder the one who is told of the end; `None` when nobody holds anything any more.
    pub(crate) fn set_holder(&self, record: Option<HoldRecord>) {
        if let Self::Own(own) = self {
            own.holder.set(record.map_or(Relies::Nobody, Relies::One));
        }
    }

    /// Keeps the socket open until the session is dropped, also when the connection fails.
    pub(crate) fn set_many_holders(&self) {
        if let Self::Own(own) = self {
            own.holder.set(Relies::Many);
        }
    }

    /// Ends a connection of ours at its socket.
    pub(crate) fn shut_down(&self) {
        if let Self::Own(own) = self {
            own.end();
        }
    }

    /// What completes when the connection has ended; `None` for a borrowed one, which is to be asked with
    /// [`is_over`](Self::is_over).
    pub(crate) fn watch(&self) -> Option<watch::Receiver<LastWord>> {
        match self {
            Self::Own(own) => Some(own.ended.clone()),
            Self::Borrowed(_) => None,
        }
    }
}

/// Completes when the connection has ended, with the driver's word for it. Without a watch it only ticks. Cancel safe.
pub(crate) async fn ended(watch: &mut Option<watch::Receiver<LastWord>>) -> Ended {
    match watch {
        Some(ended) => {
            // An error here means that the driver is gone together with its runtime.
            let _ = ended.wait_for(Option::is_some).await;
            Ended::Yes(ended.borrow().clone())
        }
        None => {
            sleep(LOOK_EVERY).await;
            Ended::Look
        }
    }
}

/// What [`ended`] found.
#[derive(Debug)]
pub(crate) enum Ended {
    Yes(LastWord),
    /// It is time to look.
    Look,
}

impl std::fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Borrowed")
    }
}

/// The driver's last word, shared by all who were told.
#[derive(Debug)]
pub(crate) struct SharedError(pub(crate) Arc<tokio_postgres::Error>);

impl std::fmt::Display for SharedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for SharedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&*self.0)
    }
}
