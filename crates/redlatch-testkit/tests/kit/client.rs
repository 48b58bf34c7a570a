//! A client so simple that nothing of it can hide what the kit does.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redlatch_testkit::resp;

/// Long enough for a busy machine; reached only when a test fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// How long "nothing comes" is watched.
pub(crate) const QUIET: Duration = Duration::from_millis(100);

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub(crate) struct Client {
    socket: Socket,
    buf: Vec<u8>,
    /// Sizes of the reads, for telling slices.
    pub(crate) reads: Vec<usize>,
}

impl Client {
    pub(crate) fn tcp(url: &str) -> io::Result<Self> {
        let socket = TcpStream::connect(url.trim_start_matches("redis://"))?;
        socket.set_nodelay(true)?;
        Ok(Self { socket: Socket::Tcp(socket), buf: Vec::new(), reads: Vec::new() })
    }

    pub(crate) fn unix(url: &str) -> io::Result<Self> {
        let socket = Socket::Unix(UnixStream::connect(url.trim_start_matches("unix://"))?);
        Ok(Self { socket, buf: Vec::new(), reads: Vec::new() })
    }

    pub(crate) fn send(&mut self, args: &[&str]) {
        self.write(&resp::encode_request(args));
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        match &mut self.socket {
            Socket::Tcp(socket) => socket.write_all(bytes).unwrap(),
            Socket::Unix(socket) => socket.write_all(bytes).unwrap(),
        }
    }

    /// The next frame; an end of file is an `UnexpectedEof`, silence a `WouldBlock`.
    pub(crate) fn try_read(&mut self, limit: Duration) -> io::Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(len) = resp::frame_len(&self.buf).unwrap() {
                let frame: Vec<u8> = self.buf.drain(..len).collect();
                return Ok(frame.escape_ascii().to_string().replace("\\r\\n", " ").trim_end().to_owned());
            }
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let mut chunk = [0; 4096];
            let read = match &mut self.socket {
                Socket::Tcp(socket) => {
                    socket.set_read_timeout(Some(left))?;
                    socket.read(&mut chunk)
                }
                Socket::Unix(socket) => {
                    socket.set_read_timeout(Some(left))?;
                    socket.read(&mut chunk)
                }
            };
            match read? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => {
                    self.reads.push(n);
                    self.buf.extend_from_slice(&chunk[..n]);
                }
            }
        }
    }

    #[track_caller]
    pub(crate) fn read(&mut self) -> String {
        self.try_read(LIMIT).unwrap()
    }

    #[track_caller]
    pub(crate) fn call(&mut self, args: &[&str]) -> String {
        self.send(args);
        self.read()
    }

    #[track_caller]
    pub(crate) fn assert_silent(&mut self) {
        assert_eq!(self.try_read(QUIET).map_err(|e| e.kind()), Err(io::ErrorKind::WouldBlock));
    }

    #[track_caller]
    pub(crate) fn assert_closed(&mut self) {
        let kind = self.try_read(LIMIT).unwrap_err().kind();
        assert!(matches!(kind, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset), "{kind:?}");
    }

    #[track_caller]
    pub(crate) fn assert_reset(&mut self) {
        assert_eq!(self.try_read(LIMIT).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
