//! `redlatch engine`: the local engine behind `local:` URLs.

use std::{
    fs::File,
    io::{self, IsTerminal, Read, Seek, SeekFrom},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use redlatch::{
    scripts,
    store::{DeadClientCleanup, StoreUrl},
};
use redlatch_engine::{
    connect::{LocalPaths, READY_LINE, ensure_running},
    daemon::{self, DaemonConfig, DaemonErrorKind, ExitReason},
};
use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};
use serde::Serialize;

use super::{Context, apart};
use crate::{
    args::{
        Output,
        engine::{EngineArgs, EngineRunArgs, EngineVerb, Which},
    },
    config::{PASSWORD_ENV, SENTINEL_PASSWORD_ENV},
    door::{self, Answer},
    durations::{Wait, human},
    escape,
    exit::{self, Failure},
    output::{self, Record},
    own_program,
    recovery::Recovery,
};

/// How long an engine may take to start or to stop.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often to look whether it is gone; the socket closes before the journal does.
const GONE_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long an engine without clients and locks stays, unless told otherwise.
const IDLE_EXIT: Duration = Duration::from_secs(10 * 60);
/// The most of a log file that is read, in bytes.
const LOG_BYTES_MAX: u64 = 1024 * 1024;

pub(super) fn engine(args: EngineArgs, context: &Context) -> Result<u8, Failure> {
    match args.verb {
        EngineVerb::Run(args) => run(args),
        EngineVerb::Start(which) => start(&paths(which, context)?, context),
        EngineVerb::Stop { which, force } => stop(&paths(which, context)?, force, context),
        EngineVerb::Status { which, output } => status(&paths(which, context)?, output, context),
        EngineVerb::Logs { which, lines } => logs(&paths(which, context)?, lines),
    }
}

/// The paths of the engine that was named, or that the URL names.
fn paths(which: Which, context: &Context) -> Result<Paths, Failure> {
    let Which { name, dir } = which;
    if name.is_some() || dir.is_some() {
        return Paths::of(name, dir);
    }
    match StoreUrl::parse(&context.settings()?.url) {
        Ok(StoreUrl::Local { name, dir }) => Paths::of(name, dir),
        _ => Paths::of(None, None),
    }
}

struct Paths {
    name: Option<String>,
    local: LocalPaths,
}

impl Paths {
    fn of(name: Option<String>, dir: Option<PathBuf>) -> Result<Self, Failure> {
        let local = match dir {
            Some(dir) => LocalPaths::in_dir(dir, name.as_deref()),
            None => LocalPaths::for_name(name.as_deref()),
        };
        let local = local.map_err(|error| Failure::usage(escape::text(&error.to_string()).to_string()))?;
        Ok(Paths { name, local })
    }

    fn ask(&self, words: &[&str]) -> Result<Option<Answer>, Failure> {
        door::ask(&self.local.socket, words).map_err(|error| {
            let socket = self.local.socket.to_string_lossy();
            Failure::new(exit::UNAVAILABLE, format!("the local engine at {}: {error}", escape::text(&socket)))
        })
    }
}

/// Runs the engine. What starts by itself is this verb without a name from the environment: a client of `local:` in a
/// process whose REDLATCH_URL says something else must get the engine that it asked for.
fn run(args: EngineRunArgs) -> Result<u8, Failure> {
    let paths = Paths::of(args.which.name, args.which.dir)?.local;
    let mut config = DaemonConfig::new(args.socket.unwrap_or(paths.socket), paths.dir, scripts::EPOCH);
    config.allowed_scripts = scripts::ALL.iter().map(|script| (script.name(), script.source())).collect();
    config.idle_exit = match args.idle_exit {
        Some(Wait::Forever) => None,
        Some(Wait::AtMost(idle)) => Some(idle),
        // Nobody but its owner can start it again, so those who use it count on it.
        None if args.shared => None,
        None => Some(IDLE_EXIT),
    };
    config.undertaker = Some(Box::new(DeadClientCleanup));
    config.shared = args.shared;
    config.compat = args.compat;
    config.memory_max_bytes = args.memory_max.unwrap_or(daemon::MEMORY_MAX_BYTES);
    config.compat_listen = args.listen;
    // A user who runs it by hand wants Ctrl-C to end it.
    config.detach = !io::stdin().is_terminal();
    if config.detach {
        apart::leave_the_starter();
    }
    // The process that started it may have gone meanwhile.
    config.ready = Some(Box::new(|| _ = output::try_emit(READY_LINE)));
    match daemon::run(config) {
        // One that serves goes on: for those who start engines, that is the same as to find it running.
        Ok(ExitReason::Displaced) => Err(Failure::new(
            exit::BUSY,
            "the lock file of this engine was deleted, and another engine serves its socket: this one has ended",
        )),
        Ok(_) => Ok(exit::OK),
        Err(error) => {
            let code = match error.kind() {
                DaemonErrorKind::Config => exit::USAGE,
                DaemonErrorKind::Access | DaemonErrorKind::Journal => exit::CONFIG,
                DaemonErrorKind::AlreadyRunning => exit::BUSY,
                _ => exit::INTERNAL,
            };
            Err(Failure::new(code, escape::text(&error.to_string()).to_string()))
        }
    }
}

fn start(paths: &Paths, context: &Context) -> Result<u8, Failure> {
    let launcher = |_: &LocalPaths| {
        let mut command = own_program::command()?;
        command.args(["engine", "run", "--dir"]).arg(&paths.local.dir);
        command.env_remove(PASSWORD_ENV).env_remove(SENTINEL_PASSWORD_ENV);
        if let Some(name) = &paths.name {
            command.args(["--name", name]);
        }
        Ok(command)
    };
    let outcome = ensure_running(&paths.local, &launcher, CHANGE_TIMEOUT)
        .map_err(|error| Failure::new(exit::UNAVAILABLE, escape::text(&error.to_string()).to_string()))?;
    context.talk.say(if outcome.started {
        "the local engine was started"
    } else {
        "the local engine runs already"
    });
    Ok(exit::OK)
}

fn stop(paths: &Paths, force: bool, context: &Context) -> Result<u8, Failure> {
    let words: &[&str] = if force { &["REDLATCH", "SHUTDOWN", "FORCE"] } else { &["REDLATCH", "SHUTDOWN"] };
    let asked_by = Instant::now() + CHANGE_TIMEOUT;
    let mut process;
    let answer = loop {
        process = Running::of(paths)?;
        match paths.ask(words)? {
            // It lives without a socket while it reads its journal, and until it has made a deleted one again.
            None if paths.local.is_claimed() && Instant::now() < asked_by => {
                thread::sleep(GONE_POLL_INTERVAL)
            }
            answer => break answer,
        }
    };
    match answer {
        None if paths.local.is_claimed() => {
            return Err(Failure::new(
                exit::UNAVAILABLE,
                "the local engine runs and does not listen yet; `redlatch engine logs` says what it does",
            ));
        }
        None => {
            context.talk.say("no local engine runs");
            return Ok(exit::OK);
        }
        Some(Answer::Refusal(text)) if text.starts_with("INUSE") => {
            return Err(Failure::new(
                exit::BUSY,
                "the local engine holds locks or permits; see them with `redlatch ls`, wait for them, or stop it with --force",
            ));
        }
        Some(Answer::Refusal(text)) => {
            return Err(Failure::internal(format!("the local engine refused: {}", escape::text(&text))));
        }
        Some(_) => {}
    }
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    while !process.has_ended() && (paths.local.socket.exists() || paths.local.is_claimed()) {
        if Instant::now() > deadline {
            return Err(Failure::internal("the local engine does not end"));
        }
        thread::sleep(GONE_POLL_INTERVAL);
    }
    context.talk.say("the local engine was stopped");
    Ok(exit::OK)
}

/// The process of an engine. Another engine may be started for its socket as soon as it has ended.
struct Running(Option<Pid>);

impl Running {
    /// Nothing where the number means nothing here: the engine is in a container, or is not there.
    fn of(paths: &Paths) -> Result<Running, Failure> {
        let answer = paths.ask(&["REDLATCH", "STATUS"])?;
        let pid = answer.and_then(|answer| answer.number("pid")).and_then(|pid| i32::try_from(pid).ok());
        Ok(Running(pid.and_then(Pid::from_raw).filter(|pid| test_kill_process(*pid).is_ok())))
    }

    fn has_ended(&self) -> bool {
        self.0.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }
}

/// A running engine.
#[derive(Serialize)]
struct Status {
    socket: String,
    pid: Option<i64>,
    version: String,
    epoch: Option<i64>,
    uptime_ms: Option<i64>,
    clients: Option<i64>,
    keys: Option<i64>,
    /// More than the status names when there are many.
    locks: Option<i64>,
    scripts_run: Option<i64>,
    /// For how long nothing is granted, because of a damaged journal.
    recovering_ms: Option<u64>,
}

impl Record for Status {
    const COLUMNS: &'static [&'static str] =
        &["SOCKET", "PID", "VERSION", "UPTIME", "CLIENTS", "KEYS", "LOCKS", "SCRIPTS"];
    const NARROW: usize = 8;

    fn cells(&self) -> Vec<String> {
        let number = |number: Option<i64>| number.map(|number| number.to_string()).unwrap_or_default();
        let uptime =
            self.uptime_ms.and_then(|ms| u64::try_from(ms).ok()).map(|ms| human(Duration::from_millis(ms)));
        vec![
            self.socket.clone(),
            number(self.pid),
            self.version.clone(),
            uptime.unwrap_or_default(),
            number(self.clients),
            number(self.keys),
            number(self.locks),
            number(self.scripts_run),
        ]
    }

    fn name(&self) -> String {
        self.socket.clone()
    }
}

fn status(paths: &Paths, output: Output, context: &Context) -> Result<u8, Failure> {
    let Some(answer) = paths.ask(&["REDLATCH", "STATUS"])? else {
        context.talk.say("no local engine runs; it starts with the first lock");
        return Ok(exit::UNAVAILABLE);
    };
    let text = |key: &str| match answer.get(key) {
        Some(Answer::Text(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let status = Status {
        socket: paths.local.socket.to_string_lossy().into_owned(),
        pid: answer.number("pid"),
        version: text("version"),
        epoch: answer.number("epoch"),
        uptime_ms: answer.number("uptime_ms"),
        clients: answer.number("clients"),
        keys: answer.number("keys"),
        locks: answer.number("lock_count"),
        scripts_run: answer.number("scripts_run"),
        recovering_ms: Recovery::of(&answer).map(|recovery| recovery.left_ms),
    };
    if let Some(recovery) = Recovery::of(&answer) {
        context.talk.say(recovery);
    }
    output::one(output::format(output, &context.settings()?), &status)?;
    Ok(exit::OK)
}

/// The end of the log, where a daemon that was started in the background writes.
fn logs(paths: &Paths, lines: u32) -> Result<u8, Failure> {
    let path = &paths.local.log_file;
    let text = tail(path).map_err(|error| {
        let path = path.to_string_lossy();
        Failure::new(exit::UNAVAILABLE, format!("cannot read the log {}: {error}", escape::text(&path)))
    })?;
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    let skipped = all.len().saturating_sub(usize::try_from(lines).unwrap_or(usize::MAX));
    output::emit(&all[skipped..].iter().map(|line| format!("{}\n", escape::text(line))).collect::<String>())?;
    Ok(exit::OK)
}

fn tail(path: &std::path::Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
