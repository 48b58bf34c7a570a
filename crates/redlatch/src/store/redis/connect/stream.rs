//! The bytes of a connection, and how many of them a server may send.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    time::Instant,
};
use tokio_rustls::client::TlsStream;

use super::super::tls::Trouble;
use crate::dialer::Plain;

/// How much a server may send at once. A reply is kept until it is whole, and whether it ever will be is not known; the largest that
/// Redlatch asks for is a fair queue, with some 60 bytes a waiter.
const BURST_BYTES_MAX: u64 = 128 << 20;
/// How much it may send in a second besides: ten times what comes of as many calls as a core can make. A reply that does not end is given up
/// with its connection after the response timeout.
const BYTES_PER_S_MAX: u64 = 32 << 20;

/// The bytes that a server may still send.
struct ReadLimit {
    left_bytes: u64,
    counted_from: Instant,
}

impl ReadLimit {
    fn new() -> Self {
        ReadLimit { left_bytes: BURST_BYTES_MAX, counted_from: Instant::now() }
    }

    /// Counts what was read. `false` if it was more than may come.
    fn count(&mut self, bytes: u64) -> bool {
        if self.left_bytes < bytes {
            // Only here, so that no read asks the clock.
            let now = Instant::now();
            let passed_ms = now.duration_since(self.counted_from).as_millis() as u64;
            let more_bytes = passed_ms.saturating_mul(BYTES_PER_S_MAX) / 1_000;
            self.left_bytes = self.left_bytes.saturating_add(more_bytes).min(BURST_BYTES_MAX);
            self.counted_from = now;
        }
        match self.left_bytes.checked_sub(bytes) {
            Some(left_bytes) => self.left_bytes = left_bytes,
            None => return false,
        }
        true
    }
}

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
        let bytes = (buf.filled().len() - before) as u64;
        if matches!(outcome, Poll::Ready(Ok(()))) && !limit.count(bytes) {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{BURST_BYTES_MAX, BYTES_PER_S_MAX, ReadLimit};

    #[test]
    fn a_server_may_send_a_burst_and_then_so_much_a_second() {
        let mut limit = ReadLimit::new();
        for _ in 0..128 {
            assert!(limit.count(1 << 20), "a burst");
        }
        assert!(!limit.count(BYTES_PER_S_MAX), "no second has passed");
        let mut limit = ReadLimit::new();
        assert!(limit.count(BURST_BYTES_MAX));
        limit.counted_from -= Duration::from_secs(1);
        assert!(limit.count(BYTES_PER_S_MAX), "what a second allows");
        assert!(!limit.count(BYTES_PER_S_MAX));
    }
}
