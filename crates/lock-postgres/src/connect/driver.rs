use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio_postgres::{AsyncMessage, Connection, Error};

use super::{Connector, socket::Socket};

/// The driver's side of a connection, whatever encrypts it. As a future it throws away what the server sends unasked.
pub(crate) trait Driver: Future<Output = Result<(), Error>> + Send {
    /// Drives it until the server sends something unasked; `None` when it has ended in order.
    fn poll_message(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>>;
}

impl<T> Driver for Connection<Socket, T>
where
    Self: Future<Output = Result<(), Error>> + Send + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    fn poll_message(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> {
        Self::poll_message(self.get_mut(), cx)
    }
}

/// The server cuts names off after 63 bytes.
const LONGEST_NAME: usize = 48;

impl Connector {
    /// The same for sessions that keep house: their application's name says so.
    pub(crate) fn for_housekeeping(mut self) -> Self {
        let name = self.driver.get_application_name().unwrap_or_default();
        let end = (0..=LONGEST_NAME.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
        let name = format!("{} housekeeping", &name[..end.unwrap_or_default()]);
        self.driver.application_name(name);
        self
    }
}
