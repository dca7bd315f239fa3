//! A session that belongs to one caller until it is proven clean or gone.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use deadpool::managed::Object;

use crate::{
    link::Link,
    pool::{InUse, OwnPlace},
    reaper::{Doomed, Reaper},
    session::Session,
};

/// Dropped, it is destroyed: only [`give_back`](Self::give_back) says that it owns nothing.
#[derive(Debug)]
pub(crate) struct Reserved {
    // Present until the drop or the giving back.
    place: Option<Place>,
}

#[derive(Debug)]
pub(crate) enum Place {
    /// In our pool; `bound` is how long the session can stay in the server once it is destroyed.
    Own { place: OwnPlace, reaper: Arc<Reaper>, bound: Duration },
    /// In the user's.
    Borrowed(Box<Session>),
}

impl Reserved {
    pub(crate) fn new(place: Place) -> Self {
        Self { place: Some(place) }
    }

    /// Whether it was in use before.
    pub(crate) fn is_reused(&self) -> bool {
        match &self.place {
            Some(Place::Own { place, .. }) => place.is_reused(),
            Some(Place::Borrowed(session)) => match session.link() {
                Link::Borrowed(borrowed) => Object::metrics(&borrowed.0).recycle_count > 0,
                Link::Own(_) => false,
            },
            None => false,
        }
    }

    /// What counts its place in our pool as in use.
    pub(crate) fn in_use(&self) -> Option<Arc<InUse>> {
        match &self.place {
            Some(Place::Own { place, .. }) => Some(place.in_use()),
            Some(Place::Borrowed(_)) | None => None,
        }
    }

    /// Sets how long it can stay in the server once it is destroyed.
    pub(crate) fn bound_by(&mut self, limit: Duration) {
        if let Some(Place::Own { bound, .. }) = &mut self.place {
            *bound = limit;
        }
    }

    /// Returns it to its pool. For a session that was proven to own nothing and to wait for nothing.
    pub(crate) fn give_back(mut self) {
        self.link().set_holder(None);
        drop(self.place.take());
    }
}

impl Deref for Reserved {
    type Target = Session;

    #[expect(clippy::expect_used, reason = "taken only by those who consume or drop it")]
    fn deref(&self) -> &Session {
        match self.place.as_ref().expect("BUG: a reserved session was used after it was given up") {
            Place::Own { place, .. } => place,
            Place::Borrowed(session) => session,
        }
    }
}

impl DerefMut for Reserved {
    #[expect(clippy::expect_used, reason = "taken only by those who consume or drop it")]
    fn deref_mut(&mut self) -> &mut Session {
        match self.place.as_mut().expect("BUG: a reserved session was used after it was given up") {
            Place::Own { place, .. } => place,
            Place::Borrowed(session) => session,
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        match self.place.take() {
            Some(Place::Own { place, reaper, bound }) => match place.link().socket().cloned() {
                Some(socket) => {
                    place.link().shut_down();
                    reaper.take(Doomed { place, socket, bound });
                }
                None => place.forget(),
            },
            Some(Place::Borrowed(session)) => session.end(),
            None => {}
        }
    }
}
