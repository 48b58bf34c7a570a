//! Where byte streams to servers come from: sockets, or something of the program's own.

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// After how long without traffic, and how often then, a connection says that it lives; and how often in vain.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);
const KEEPALIVE_COUNT: u32 = 4;

/// What a [`Dialer`] gives: a stream of bytes in both directions.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// What [`Dialer::dial`] returns.
pub type DialFuture = Pin<Box<dyn Future<Output = io::Result<Box<dyn Socket>>> + Send>>;

/// Opens the streams to servers in place of TCP: a tunnel, a proxy, or a simulated network. Encryption and log-in run over what it gives.
///
/// [`ClientBuilder::dialer`](crate::ClientBuilder::dialer) sets it. URLs with the path of a unix socket, and `local:`, do not use it.
pub trait Dialer: Send + Sync + 'static {
    /// Opens a stream to this port of a host, which is a name or an address. The time it may take is the client's connect timeout, after
    /// which its future is dropped.
    ///
    /// # Errors
    ///
    /// What a socket would say: [`ConnectionRefused`](io::ErrorKind::ConnectionRefused) counts as the word of a machine on which no
    /// server listens, and anything else as silence.
    fn dial(&self, host: &str, port: u16) -> DialFuture;
}

/// The dialer of a client; TCP unless one was set.
#[derive(Clone, Default)]
pub(crate) struct Dialing(pub(crate) Option<Arc<dyn Dialer>>);

impl fmt::Debug for Dialing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a dialer" } else { "TCP" })
    }
}

impl Dialing {
    pub(crate) async fn dial(&self, host: &str, port: u16) -> io::Result<Plain> {
        match &self.0 {
            Some(dialer) => Ok(Plain::Given(dialer.dial(host, port).await?)),
            None => {
                let tcp = TcpStream::connect((host, port)).await?;
                tcp.set_nodelay(true)?;
                keep_alive(&tcp)?;
                Ok(Plain::Tcp(tcp))
            }
        }
    }
}

/// What lies between, an address translation for instance, forgets a connection on which nothing goes. One to a machine that has gone is
/// found out in 75 s also where nothing is sent.
fn keep_alive(tcp: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, KEEPALIVE_TIME)?;
    sockopt::set_tcp_keepintvl(tcp, KEEPALIVE_TIME)?;
    Ok(sockopt::set_tcp_keepcnt(tcp, KEEPALIVE_COUNT)?)
}

/// A stream before encryption.
pub(crate) enum Plain {
    Tcp(TcpStream),
    Given(Box<dyn Socket>),
}

macro_rules! each {
    ($stream:expr, $inner:ident => $do:expr) => {
        match $stream {
            Plain::Tcp($inner) => $do,
            Plain::Given($inner) => $do,
        }
    };
}

impl AsyncRead for Plain {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_read(cx, buf))
    }
}

impl AsyncWrite for Plain {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_idle_connection_says_that_it_lives() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let Plain::Tcp(tcp) = Dialing::default().dial("127.0.0.1", port).await.unwrap() else {
            panic!("TCP")
        };
        assert!(sockopt::socket_keepalive(&tcp).unwrap() && tcp.nodelay().unwrap());
        let times = [sockopt::tcp_keepidle(&tcp).unwrap(), sockopt::tcp_keepintvl(&tcp).unwrap()];
        assert_eq!((times, sockopt::tcp_keepcnt(&tcp).unwrap()), ([KEEPALIVE_TIME; 2], KEEPALIVE_COUNT));
    }
}
