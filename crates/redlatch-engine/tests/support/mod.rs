//! A small blocking RESP client and a throw-away redis-server.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A reply as it was on the wire.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wire {
    /// RESP2 null of either kind.
    Nil,
    /// RESP3 null.
    Null,
    /// Integer.
    Int(i64),
    /// Bulk string.
    Bulk(Vec<u8>),
    /// Simple string.
    Simple(String),
    /// Error line.
    Error(String),
    /// Array.
    Array(Vec<Wire>),
    /// RESP3 map, flattened.
    Map(Vec<Wire>),
    /// RESP3 push.
    Push(Vec<Wire>),
}

/// A connection.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to a unix socket.
    pub(crate) fn connect(path: &Path) -> std::io::Result<Client> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(120)))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Sends bytes as they are.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, words: &[impl AsRef<[u8]>]) -> std::io::Result<()> {
        let mut out = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.as_ref();
            out.extend(format!("${}\r\n", word.len()).bytes());
            out.extend_from_slice(word);
            out.extend_from_slice(b"\r\n");
        }
        self.send_raw(&out)
    }

    /// Sends a command and reads its reply.
    pub(crate) fn ask(&mut self, words: &[impl AsRef<[u8]>]) -> Wire {
        self.send(words).expect("the server takes the command");
        self.read().expect("the server answers")
    }

    /// Reads one reply.
    pub(crate) fn read(&mut self) -> std::io::Result<Wire> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if line.len() < 3 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&line[1..line.len() - 2]).into_owned();
        let number = || text.parse::<i64>().expect("a number");
        Ok(match line[0] {
            b'+' => Wire::Simple(text),
            b'-' => Wire::Error(text),
            b':' => Wire::Int(number()),
            b'_' => Wire::Null,
            b'$' => {
                if number() < 0 {
                    return Ok(Wire::Nil);
                }
                let mut bulk = vec![0; usize::try_from(number()).expect("a length") + 2];
                self.stream.read_exact(&mut bulk)?;
                bulk.truncate(bulk.len() - 2);
                Wire::Bulk(bulk)
            }
            b'*' if number() < 0 => Wire::Nil,
            b'*' => Wire::Array(self.many(number())?),
            b'>' => Wire::Push(self.many(number())?),
            b'%' => Wire::Map(self.many(number() * 2)?),
            other => panic!("unexpected reply type {:?} {text}", char::from(other)),
        })
    }

    fn many(&mut self, count: i64) -> std::io::Result<Vec<Wire>> {
        (0..count).map(|_| self.read()).collect()
    }

    /// Whether the other side has closed the connection; blocks until it does or sends something.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.stream.read(&mut byte), Ok(0) | Err(_))
    }
}

/// A directory for a test, with a path that leaves room for the name of a socket.
pub(crate) fn dir() -> tempfile::TempDir {
    let usual = std::env::temp_dir();
    let place = if usual.as_os_str().len() <= 40 { usual } else { "/tmp".into() };
    tempfile::tempdir_in(place).expect("a directory")
}

/// A redis-server in a directory of its own, ended with the value.
pub(crate) struct RedisServer {
    child: Child,
    dir: tempfile::TempDir,
}

impl RedisServer {
    /// Starts the server and waits until it says that it is ready.
    pub(crate) fn start() -> RedisServer {
        let dir = dir();
        let socket = dir.path().join("redis.sock");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("redis-server must be installed for this test: apt-get install redis-server");
        let mut server = RedisServer { child, dir };
        let mut log = BufReader::new(server.child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        while !line.contains("onnections at") && !line.contains("Ready to accept") {
            line.clear();
            assert_ne!(log.read_line(&mut line).expect("a log"), 0, "redis-server ended early");
        }
        // The pipe must stay drained, or the server would block once it is full.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        server
    }

    /// A connection to it.
    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.dir.path().join("redis.sock")).expect("the server is ready")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A repeatable source of choices (xorshift64*).
pub(crate) struct Rng(u64);

impl Rng {
    /// Starts from a seed.
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(high).expect("31 bits") % bound
    }

    /// One of several.
    pub(crate) fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Waits until something is so.
pub(crate) fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "it took too long until {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
