//! A listener with bounds: more connections than that wait until one ends, and one on which nothing happens is closed.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

/// How many connections there are at once.
const CONNECTIONS_MAX: usize = 256;
/// How long nothing may come or go on one. A page that is kept up to date gets something each 15 s at least.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A listener that accepts only so many.
#[derive(Debug)]
pub(super) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Bounded { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

impl Listener for Bounded {
    type Io = Connection<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let place = Arc::clone(&self.places).acquire_owned().await;
        // A failed accept, for want of descriptors for instance, is tried again after a second.
        let (stream, from) = Listener::accept(&mut self.listener).await;
        (Connection::new(stream, place.ok()), from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection and its place among those that are allowed.
#[derive(Debug)]
pub(super) struct Connection<S> {
    stream: S,
    idle: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl<S> Connection<S> {
    fn new(stream: S, place: Option<OwnedSemaphorePermit>) -> Self {
        Connection { stream, idle: Box::pin(sleep(IDLE_MAX)), _place: place }
    }

    /// Something came or went, or nothing has for too long.
    fn watched<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.idle.as_mut().reset(Instant::now() + IDLE_MAX);
            return done;
        }
        self.idle.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_read(cx, bytes);
        self.watched(cx, done)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watched(cx, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_on_which_nothing_happens_is_closed() {
        let (mut peer, ours) = duplex(64);
        let mut ours = Connection::new(ours, None);
        let mut byte = [0];
        // What comes and what goes keeps it open, for longer than it may be idle.
        for _ in 0..3 {
            tokio::time::sleep(IDLE_MAX * 2 / 3).await;
            peer.write_all(b"x").await.unwrap();
            assert_eq!(ours.read(&mut byte).await.unwrap(), 1);
        }
        let begin = Instant::now();
        assert_eq!(ours.read(&mut byte).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed().as_secs(), IDLE_MAX.as_secs());
        // A peer that does not read.
        let (_peer, ours) = duplex(64);
        let mut ours = Connection::new(ours, None);
        assert_eq!(ours.write_all(&[0; 100]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
