//! Addresses, ports that stay ours, and streams over TCP or a unix socket.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener as StdTcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::error::{Error, ErrorKind, Result};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;
/// How many ports are tried until one is free together with the other one.
const PAIR_TRIES_MAX: usize = 256;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp(String, u16),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads `redis://host:port`, `unix:///path`, `redis+unix:///path`, `host:port` or `/path`. User,
    /// password, database and options are ignored: bytes are passed on as they come.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] when the text has none of these forms.
    pub fn parse(text: &str) -> Result<Self> {
        // The text may hold a password, so the message does not repeat it.
        let invalid = || {
            Error::new(
                ErrorKind::Invalid,
                "the address is none of redis://host:port, unix:///path, host:port, /path",
            )
        };
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let rest = rest.split(['?', '#']).next().unwrap_or(rest);
        match scheme {
            "unix" | "redis+unix" | "valkey+unix" => Ok(Self::Unix(rest.into())),
            "" if rest.starts_with('/') => Ok(Self::Unix(rest.into())),
            "" | "redis" | "rediss" | "valkey" | "valkeys" => {
                let authority = rest.split('/').next().unwrap_or(rest);
                let host_port = authority.rsplit('@').next().unwrap_or(authority);
                let (host, port) = host_port.rsplit_once(':').unwrap_or((host_port, "6379"));
                if host.is_empty() {
                    return Err(invalid());
                }
                Ok(Self::Tcp(host.to_owned(), port.parse().map_err(|_| invalid())?))
            }
            _ => Err(invalid()),
        }
    }

    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "redis://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// A loopback port that nobody else gets while this value lives.
///
/// The port is bound but not listened on, with address reuse allowed: a server can take it, a connection
/// attempt is refused while none does, and it cannot be handed to another process between two starts.
#[derive(Debug)]
pub struct ReservedPort {
    port: u16,
    _socket: OwnedFd,
}

impl ReservedPort {
    /// Reserves `port` on 127.0.0.1; 0 lets the kernel choose a free one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when the port is taken.
    pub fn new(port: u16) -> Result<Self> {
        let reserve = || -> io::Result<Self> {
            let socket = bound_socket(port)?;
            let address: SocketAddrV4 = rustix::net::getsockname(&socket)?.try_into()?;
            Ok(Self { port: address.port(), _socket: socket })
        };
        reserve().map_err(|e| Error::io(format!("cannot reserve port {port} on 127.0.0.1"), e))
    }

    /// Reserves `port` unless any socket has it. [`new`](Self::new) with a number shares the port with another reservation,
    /// as a server that starts on it does.
    fn unshared(port: u16) -> io::Result<Self> {
        let socket = unbound_socket()?;
        rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
        Ok(Self { port, _socket: socket })
    }

    /// Reserves a free port and the one so far above it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when no such pair is found.
    pub(crate) fn pair(offset: u16) -> Result<(Self, Self)> {
        // Ports that do not do are kept meanwhile, so that the kernel chooses others.
        let mut unfit = Vec::new();
        for _ in 0..PAIR_TRIES_MAX {
            let port = Self::new(0)?;
            match port.port.checked_add(offset).map(Self::unshared) {
                Some(Ok(above)) => return Ok((port, above)),
                _ => unfit.push(port),
            }
        }
        let text = format!("no two free ports on 127.0.0.1 that are {offset} apart");
        Err(Error::new(ErrorKind::Io, text))
    }

    /// The number of the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts listening on the port.
    pub(crate) fn listen(&self) -> io::Result<StdTcpListener> {
        let socket = bound_socket(self.port)?;
        rustix::net::listen(&socket, BACKLOG)?;
        let listener = StdTcpListener::from(socket);
        listener.set_nonblocking(true)?;
        Ok(listener)
    }
}

fn unbound_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

fn bound_socket(port: u16) -> io::Result<OwnedFd> {
    let socket = unbound_socket()?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(socket)
}

/// Both listeners of a server of the kit: a loopback port and a unix socket.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) tcp: tokio::net::TcpListener,
    pub(crate) unix: tokio::net::UnixListener,
}

impl Listeners {
    /// Must be called inside a runtime.
    pub(crate) fn open(port: &ReservedPort, path: &Path) -> io::Result<Self> {
        let tcp = tokio::net::TcpListener::from_std(port.listen()?)?;
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        Ok(Self { tcp, unix: tokio::net::UnixListener::bind(path)? })
    }

    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        tokio::select! {
            tcp = self.tcp.accept() => {
                let stream = tcp?.0;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            unix = self.unix.accept() => Ok(Stream::Unix(unix?.0)),
        }
    }
}

impl Drop for Listeners {
    /// Ends the listening itself. To close them is too little: a process that another thread starts has copies until its program begins,
    /// and the kernel goes on taking connections for those.
    fn drop(&mut self) {
        // A listener that cannot be shut down is closed by what follows.
        let _ = rustix::net::shutdown(&self.tcp, rustix::net::Shutdown::Both);
        let _ = rustix::net::shutdown(&self.unix, rustix::net::Shutdown::Both);
    }
}

/// A connection over TCP or a unix socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Closes with a reset instead of an orderly end. Unix sockets know no reset and just close.
    pub(crate) fn reset(self) {
        if let Self::Tcp(stream) = &self {
            // The peer is about to be cut off; if the option cannot be set, it gets an orderly end instead.
            let _ = stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A runtime with one thread of its own, so that a server of the kit keeps working while the test starves or
/// blocks its own runtime. Ends in the background when dropped, inside another runtime as well.
#[derive(Debug)]
pub(crate) struct OwnRuntime(Option<tokio::runtime::Runtime>);

impl OwnRuntime {
    pub(crate) fn new(name: &str) -> Result<Self> {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_all()
            .build()
            .map(|runtime| Self(Some(runtime)))
            .map_err(|e| Error::io("cannot start a runtime", e))
    }

    pub(crate) fn handle(&self) -> &tokio::runtime::Handle {
        self.0.as_ref().expect("the runtime is taken only by drop").handle()
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A proxy that refused connections took one, since a process was being started at that moment.
    #[test]
    fn listeners_that_are_dropped_take_no_connection_while_a_copy_is_open() {
        let runtime = OwnRuntime::new("listeners").unwrap();
        let _inside = runtime.handle().enter();
        let (port, dir) = (ReservedPort::new(0).unwrap(), crate::dir::for_sockets("listeners").unwrap());
        let path = dir.path().join("socket");
        for _ in 0..2 {
            let listeners = Listeners::open(&port, &path).unwrap();
            let connect = || {
                let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, port.port())).map(drop);
                (tcp.map_err(|e| e.kind()), UnixStream::connect(&path).map(drop).map_err(|e| e.kind()))
            };
            let _copies =
                [&listeners.tcp.as_fd(), &listeners.unix.as_fd()].map(|fd| fd.try_clone_to_owned().unwrap());
            assert_eq!(connect(), (Ok(()), Ok(())));
            drop(listeners);
            let refused = io::ErrorKind::ConnectionRefused;
            assert_eq!(connect(), (Err(refused), Err(refused)));
        }
    }

    /// A cluster took the port of a proxy that refused connections for a moment, and its node answered in the proxy's place.
    #[test]
    fn the_upper_port_of_a_pair_is_nobody_elses() {
        let other = ReservedPort::new(0).unwrap();
        assert!(ReservedPort::unshared(other.port()).is_err());
        let port = other.port();
        drop(other);
        let ours = ReservedPort::unshared(port).unwrap();
        assert!(ReservedPort::unshared(port).is_err());
        drop(ours.listen().unwrap());
        drop(ours.listen().unwrap());
    }
}
