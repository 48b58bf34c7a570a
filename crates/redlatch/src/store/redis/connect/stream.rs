//! The bytes of a connection.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};
use tokio_rustls::client::TlsStream;

use super::{super::tls::Trouble, limit::ReadLimit};
use crate::dialer::Plain;

/// A byte stream to a server.
pub(in super::super) struct Stream {
    way: Way,
    limit: ReadLimit,
}

/// The three kinds of byte stream.
enum Way {
    /// With the trouble that its first bytes may tell of, until they have been seen.
    Plain(Plain, Option<Trouble>),
    Tls(Box<TlsStream<Plain>>, Trouble),
    Unix(UnixStream),
}

impl Stream {
    pub(super) fn plain(stream: Plain, trouble: Trouble) -> Self {
        Self::over(Way::Plain(stream, Some(trouble)))
    }

    pub(super) fn tls(stream: TlsStream<Plain>, trouble: Trouble) -> Self {
        Self::over(Way::Tls(Box::new(stream), trouble))
    }

    pub(super) fn unix(stream: UnixStream) -> Self {
        Self::over(Way::Unix(stream))
    }

    fn over(way: Way) -> Self {
        Stream { way, limit: ReadLimit::new() }
    }
}

macro_rules! each {
    ($way:expr, $inner:ident => $do:expr) => {
        match $way {
            Way::Plain($inner, _) => $do,
            Way::Tls($inner, _) => $do,
            Way::Unix($inner) => $do,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Stream { way, limit } = self.get_mut();
        let before = buf.filled().len();
        let outcome = each!(&mut *way, inner => Pin::new(inner).poll_read(cx, buf));
        match (way, &outcome) {
            (Way::Tls(_, trouble), Poll::Ready(Err(error))) => trouble.note(error),
            (Way::Plain(_, trouble @ Some(_)), Poll::Ready(Ok(()))) => {
                if let Some(trouble) = trouble.take() {
                    trouble.look(&buf.filled()[before..]);
                }
            }
            _ => {}
        }
        if matches!(outcome, Poll::Ready(Ok(()))) && !limit.count(&buf.filled()[before..]) {
            tracing::warn!("the server sent more than any reply has; the connection is dropped");
            return Poll::Ready(Err(io::Error::other("the server sent more than any reply has")));
        }
        outcome
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(&mut self.get_mut().way, inner => Pin::new(inner).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.get_mut().way, inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(&mut self.get_mut().way, inner => Pin::new(inner).poll_shutdown(cx))
    }
}
