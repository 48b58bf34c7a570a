//! The engine behind `local:`, in a process of this program's own, so that what it has allocated can be asked for.

use std::{
    fs::Permissions,
    io::{BufRead as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::Duration,
};

use redlatch_engine::{
    connect::{LocalPaths, READY_LINE},
    daemon::{self, DaemonConfig},
};
use redlatch_testkit::{dir, process::ChildProcess};
use tempfile::TempDir;

use super::{figures::Figures, process};
use crate::bed::Outcome;

/// What the process is asked: how many bytes it has allocated and not freed.
const LIVE: &str = "live";
/// The same question after it has kept as many bytes more, and a thread, for the control.
const KEEP: &str = "keep";
const KEEP_BYTES: usize = 6 << 20;
/// How long it may take until it answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Serves the folder, and answers questions, until it is killed.
pub(crate) fn run(dir: &Path) -> Outcome<bool> {
    let paths = LocalPaths::in_dir(dir.to_owned(), None)?;
    let mut config = DaemonConfig::new(paths.socket, paths.dir, redlatch::scripts::EPOCH);
    config.allowed_scripts =
        redlatch::scripts::ALL.iter().map(|script| (script.name(), script.source())).collect();
    config.undertaker = Some(Box::new(redlatch::store::DeadClientCleanup));
    config.ready = Some(Box::new(|| {
        print!("{READY_LINE}");
        let _ = std::io::stdout().flush();
    }));
    std::thread::spawn(answer);
    daemon::run(config)?;
    Ok(true)
}

fn answer() {
    let mut kept = Vec::new();
    for question in std::io::stdin().lock().lines().map_while(Result::ok) {
        if question == KEEP {
            kept.push(vec![1_u8; KEEP_BYTES]);
            std::thread::spawn(std::thread::park);
        }
        println!("{}", process::live_bytes());
    }
}

pub(super) struct Engine {
    process: ChildProcess,
    watcher: redis::Connection,
    dir: TempDir,
}

impl Engine {
    pub(super) fn start() -> Outcome<Self> {
        let dir = dir::for_sockets("redlatch-soak-")?;
        // The engine refuses a place that others could reach.
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700))?;
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.arg("soak-engine").arg(dir.path());
        let process = ChildProcess::spawn(command)?;
        process.read_until(READY_LINE.trim_end(), ANSWER_LIMIT)?;
        let socket = LocalPaths::in_dir(dir.path().to_owned(), None)?.socket;
        let watcher = redis::Client::open(format!("unix://{}", socket.display()))?.get_connection()?;
        Ok(Engine { process, watcher, dir })
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn ask(&mut self, question: &str) -> Outcome<u64> {
        self.process.write_line(question)?;
        Ok(self.process.read_line(ANSWER_LIMIT)?.parse()?)
    }

    /// Lets it keep some memory and a thread.
    pub(super) fn leak(&mut self) -> Outcome<()> {
        self.ask(KEEP).map(drop)
    }

    pub(super) fn look(&mut self, figures: &mut Figures) -> Outcome<()> {
        let pid = self.process.pid();
        figures.bytes("engine: live", self.ask(LIVE)?)?;
        figures.bytes("engine: resident", process::resident_bytes(pid)?)?;
        figures.count("engine: descriptors", process::descriptors(pid)?)?;
        figures.count("engine: threads", process::threads(pid)?)?;
        let info: String = redis::cmd("INFO").query(&mut self.watcher)?;
        let number = |field: &str| -> Outcome<u64> {
            let value = info.lines().find_map(|line| line.strip_prefix(field));
            Ok(value.ok_or_else(|| format!("the engine does not tell {field}"))?.trim().parse()?)
        };
        figures.count("engine: clients", number("connected_clients:")?)?;
        let channels: Vec<String> = redis::cmd("PUBSUB").arg("CHANNELS").query(&mut self.watcher)?;
        figures.count("engine: channels", channels.len() as u64)?;
        figures.count("engine: keys", number("db0:keys=")?)
    }
}
