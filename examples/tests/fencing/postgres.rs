//! A PostgreSQL cluster of this test's own, on a unix socket only.

use std::{
    fs::Permissions,
    io::ErrorKind,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use redlatch_testkit::process::ChildProcess;
use rustix::process::Signal;
use tokio_postgres::{Client, Config, NoTls};

/// How long the server may take to start or to end on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// The user that the server runs as when the tests run as root, which PostgreSQL refuses to do: Debian's `nobody`.
const NOBODY: u32 = 65_534;

/// A running server with an empty database. Dropping it ends the server and removes its files.
pub(crate) struct Postgres {
    // Ended before its files are removed: fields are dropped in this order.
    server: ChildProcess,
    dir: tempfile::TempDir,
}

/// A program of the newest PostgreSQL that is installed. Debian keeps them out of `PATH`.
fn program(name: &str) -> PathBuf {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = installed
        .filter_map(|version| {
            let path = version.path().join("bin").join(name);
            let number: u32 = version.file_name().to_str()?.parse().ok()?;
            path.exists().then_some((number, path))
        })
        .max();
    newest.map_or_else(|| PathBuf::from(name), |(_, path)| path)
}

fn command(name: &str) -> Command {
    let mut command = Command::new(program(name));
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    // The C locale is the only one that is always there; and no setting of the caller's psql may reach the server.
    command.env_clear().env("LC_ALL", "C").current_dir("/");
    command
}

impl Postgres {
    /// Starts a server; fails the test with the command that installs PostgreSQL if there is none.
    pub(crate) async fn start() -> Self {
        // Not below TMPDIR, whose parents another user may not be allowed to enter and whose path may be too long for a socket.
        let dir = tempfile::Builder::new().prefix("redlatch-pg").tempdir_in("/tmp").unwrap();
        if rustix::process::geteuid().is_root() {
            chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        let data = dir.path().join("data");
        let made = command("initdb")
            .args(["--auth=trust", "--username=ledger", "--encoding=UTF8", "--locale=C", "--no-sync"])
            .arg("--pgdata")
            .arg(&data)
            .output();
        let made = made.unwrap_or_else(|error| match error.kind() {
            ErrorKind::NotFound => {
                panic!("no initdb. Install PostgreSQL with:\n\n    apt-get install postgresql\n")
            }
            _ => panic!("initdb: {error}"),
        });
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut server = command("postgres");
        server.arg("-D").arg(&data).arg("-k").arg(dir.path()).stderr(Stdio::from(log));
        for setting in ["listen_addresses=", "fsync=off", "max_connections=20", "shared_buffers=16MB"] {
            server.args(["-c", setting]);
        }
        let postgres = Postgres { server: ChildProcess::spawn(server).unwrap(), dir };
        let deadline = Instant::now() + START_LIMIT;
        while let Err(error) = postgres.try_connect().await {
            let log = std::fs::read_to_string(postgres.dir.path().join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "PostgreSQL does not answer: {error}\n{log}");
            tokio::time::sleep(POLL).await;
        }
        postgres
    }

    async fn try_connect(&self) -> Result<Client, tokio_postgres::Error> {
        let mut config = Config::new();
        config.host_path(self.dir.path()).user("ledger").dbname("postgres");
        let (client, connection) = config.connect(NoTls).await?;
        // Ends when the client is dropped or the server ends.
        tokio::spawn(connection);
        Ok(client)
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Client {
        self.try_connect().await.unwrap()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The end without ceremony; the processes of its connections end with it, and its shared memory is given back.
        // What does not end is killed when the child is dropped.
        if self.server.signal(Signal::QUIT).is_ok() {
            let _ = self.server.wait(STOP_LIMIT);
        }
    }
}
