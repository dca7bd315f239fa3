//! A session that belongs to one caller until it is proven clean or gone.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use deadpool_postgres::Object;

use crate::{
    link::Link,
    pool::{InUse, Place},
    session::Session,
};

/// Dropped, it is destroyed: only [`give_back`](Self::give_back) says that it owns nothing.
#[derive(Debug)]
pub(crate) struct Reserved(Option<Parts>);

#[derive(Debug)]
struct Parts {
    session: Box<Session>,
    /// In our pool; `None` if it is borrowed from the user's.
    place: Option<Place>,
}

impl Reserved {
    pub(crate) fn own(session: Box<Session>, place: Place) -> Self {
        Self(Some(Parts { session, place: Some(place) }))
    }

    pub(crate) fn borrowed(session: Box<Session>) -> Self {
        Self(Some(Parts { session, place: None }))
    }

    #[expect(clippy::expect_used, reason = "taken only by those who consume or drop it")]
    fn parts(&self) -> &Parts {
        self.0.as_ref().expect("BUG: a reserved session was used after it was given up")
    }

    #[expect(clippy::expect_used, reason = "taken only by those who consume or drop it")]
    fn parts_mut(&mut self) -> &mut Parts {
        self.0.as_mut().expect("BUG: a reserved session was used after it was given up")
    }

    /// Whether it was in use before.
    pub(crate) fn is_reused(&self) -> bool {
        let Parts { session, place } = self.parts();
        match (place, session.link()) {
            (Some(place), _) => place.is_reused(),
            (None, Link::Borrowed(borrowed)) => Object::metrics(&borrowed.0).recycle_count > 0,
            (None, Link::Own(_)) => false,
        }
    }

    /// What counts its place in our pool as in use.
    pub(crate) fn in_use(&self) -> Option<Arc<InUse>> {
        self.parts().place.as_ref().map(Place::in_use)
    }

    /// Sets how long it can stay in the server once it is destroyed.
    pub(crate) fn bound_by(&self, limit: Duration) {
        if let Some(place) = &self.parts().place {
            place.bound_by(limit);
        }
    }

    /// Returns it to its pool. For a session that was proven to own nothing and to wait for nothing.
    pub(crate) fn give_back(mut self) {
        if let Some(Parts { session, place }) = self.0.take() {
            session.link().set_holder(None);
            if let Some(place) = place {
                place.put_back(session);
            }
        }
    }
}

impl Deref for Reserved {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.parts().session
    }
}

impl DerefMut for Reserved {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.parts_mut().session
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Parts { session, place: Some(place) }) => place.destroy(session),
            Some(Parts { session, place: None }) => session.end(),
            None => {}
        }
    }
}
