//! `local:`: the same engine in a daemon behind a unix socket, started when nobody has yet.

mod lifeline;
mod undertaker;

use std::{
    future::Future,
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    pin::Pin,
    process::Command,
    sync::Arc,
    time::Duration,
};

use redis::Value;
use redlatch_engine::connect::{ConnectErrorKind, LocalPaths, ensure_running, is_usable};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
pub use undertaker::DeadClientCleanup;

use self::lifeline::Lifeline;
use super::{
    Store,
    redis::{Dial, LocalEngineHooks, RedisStore},
};
use crate::{
    config::{
        Config, Secret,
        addr::Addr,
        url::{Access, Server},
    },
    error::{Error, ErrorKind},
    finding::{Finding, Severity},
    scripts,
};

/// How long a daemon may take to start. It is ready within a few milliseconds on an idle machine.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// A question that every engine answers, and its answer. A connection alone proves nothing: the system still accepts them for a daemon
/// that is just ending.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PONG: &[u8] = b"+PONG\r\n";

pub(super) async fn open(
    name: Option<&str>,
    dir: Option<&Path>,
    config: &Config,
    background: &tokio::runtime::Handle,
) -> Result<Arc<dyn Store>, Error> {
    let paths = match dir.or(config.engine_dir.as_deref()) {
        Some(dir) => LocalPaths::in_dir(dir.to_owned(), name),
        None => LocalPaths::for_name(name),
    };
    let paths = paths.map_err(|error| {
        Error::new(ErrorKind::Engine, format!("the local engine has no place to live: {error}"))
    })?;
    let server = Server { addr: Addr::Unix(paths.socket.clone()), access: Access::default() };
    let config = Config { username: None, password: Secret(None), password_file: None, ..config.clone() };
    let lifeline = Lifeline::new(config.identity.clone().unwrap_or_default(), paths.socket.clone());
    let binary = config.engine_binary.clone();
    let local_engine = Arc::new(LocalGreeter { name: name.map(str::to_owned), paths, binary, lifeline });
    RedisStore::open_with(
        Dial::new(server, &config, background)?.with_local_engine(local_engine),
        &config,
        background,
    )
    .await
}

struct LocalGreeter {
    name: Option<String>,
    paths: LocalPaths,
    binary: Option<PathBuf>,
    lifeline: Lifeline,
}

impl LocalGreeter {
    /// A connection that was answered on.
    async fn answered(&self) -> io::Result<Option<UnixStream>> {
        if !is_usable(&self.paths) {
            return Ok(None);
        }
        // Before the connection that it is for, as in `prepare`.
        if self.lifeline.is_wanted() {
            let stream = UnixStream::connect(&self.paths.socket).await?;
            self.lifeline.open_on(stream.into_std());
        }
        let mut stream = UnixStream::connect(&self.paths.socket).await?;
        stream.write_all(PING).await?;
        let mut answer = [0; PONG.len()];
        stream.read_exact(&mut answer).await?;
        Ok((answer == *PONG).then_some(stream))
    }
}

impl LocalEngineHooks for LocalGreeter {
    fn reach(&self) -> Pin<Box<dyn Future<Output = Option<UnixStream>> + Send + '_>> {
        Box::pin(async { self.answered().await.ok().flatten() })
    }

    fn prepare(&self) -> Result<(), Error> {
        ensure_running(&self.paths, &|_| self.launch(), START_TIMEOUT).map_err(|error| {
            let remedy = match error.kind() {
                ConnectErrorKind::Spawn => {
                    "install the redlatch command on PATH, name it in REDLATCH_ENGINE_BIN, or use a server (redis://…)"
                }
                ConnectErrorKind::NotReady => "`redlatch engine run` in a terminal shows why it does not start",
                // It stays as it is until its rights are changed, so nothing is to be waited for.
                ConnectErrorKind::Directory => {
                    let refused = Error::new(ErrorKind::Permission, format!("the local engine cannot be used: {error}"));
                    return refused.remedy("or name another directory in the URL: local:///path");
                }
                // These texts say what to do.
                _ => return Error::new(ErrorKind::Engine, format!("the local engine cannot be used: {error}")),
            };
            Error::new(ErrorKind::Engine, format!("the local engine could not be started: {error}")).remedy(remedy)
        })?;
        // Before the connection that it is for, so that the engine knows whose owners come over that one.
        self.lifeline.open();
        Ok(())
    }

    fn outlives(&self, owner: &str) {
        self.lifeline.spare(owner);
    }

    fn lifeline(&self) -> Option<OwnedFd> {
        self.lifeline.share()
    }

    fn close(&self) {
        self.lifeline.end();
    }

    fn findings(&self) -> Vec<Finding> {
        vec![self.reach()]
    }

    fn hello(&self) -> Vec<Vec<u8>> {
        vec![b"REDLATCH".to_vec(), b"HELLO".to_vec(), scripts::EPOCH.to_string().into_bytes()]
    }

    fn check(&self, answer: &Value) -> Result<(), Error> {
        match answer {
            Value::Array(items) if matches!(items.first(), Some(Value::BulkString(name)) if name == b"redlatch") => {
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::Engine,
                "what listens on the local engine's socket is not Redlatch",
            )
            .remedy("stop the process that owns the socket")),
        }
    }
}

/// What tells that this process lives in a container, whose file system is its own.
const CONTAINER_MARKS: [&str; 3] = ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"];

impl LocalGreeter {
    /// The processes that this engine keeps apart, and those that have another one.
    fn reach(&self) -> Finding {
        let dir = self.paths.dir.display();
        let named =
            std::env::var_os("REDLATCH_RUNTIME_DIR").is_some_and(|named| self.paths.dir == Path::new(&named));
        if named {
            return Finding::new(
                Severity::Note,
                "engine",
                format!("it lives in {dir}, as REDLATCH_RUNTIME_DIR says: processes without that variable have another engine, and their locks do not exclude ours"),
            )
            .remedy("unset REDLATCH_RUNTIME_DIR, or set it alike for all of them");
        }
        if CONTAINER_MARKS.iter().any(|mark| Path::new(mark).exists()) {
            return Finding::new(
                Severity::Note,
                "engine",
                format!("it lives in {dir} of this container: processes outside of it have another engine, and their locks do not exclude ours"),
            )
            .remedy("mount one directory into all of them and name it as local:///directory, or use a Redis server");
        }
        Finding::new(
            Severity::Good,
            "engine",
            format!(
                "it lives in {dir}: all processes that see this directory and may use it share its locks, and nobody else does"
            ),
        )
    }

    fn launch(&self) -> io::Result<Command> {
        let program = self.binary.clone().or_else(engine_binary).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "the redlatch command was not found (REDLATCH_ENGINE_BIN, PATH)",
            )
        })?;
        let mut command = Command::new(program);
        command.arg0("redlatch");
        command.args(["engine", "run", "--dir"]).arg(&self.paths.dir);
        // The daemon needs no secrets, and its environment can be read by other processes of the user.
        command.env_remove("REDLATCH_PASSWORD");
        if let Some(name) = &self.name {
            command.args(["--name", name]);
        }
        Ok(command)
    }
}

/// The command that holds the daemon: named by the environment, this very program, or found on `PATH`.
fn engine_binary() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("REDLATCH_ENGINE_BIN") {
        return Some(named.into());
    }
    if let Ok(own) = std::env::current_exe()
        && own.file_name().is_some_and(|name| name == "redlatch" || name == "redlatch (deleted)")
    {
        // After an upgrade the name on disk is another program's, or nobody's; this path is still our own.
        let running = Path::new("/proc/self/exe");
        return Some(if running.exists() { running.to_owned() } else { own });
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("redlatch")).find(|file| file.is_file())
}
