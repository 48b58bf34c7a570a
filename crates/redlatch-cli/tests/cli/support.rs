//! A place of its own for every test: home, runtime directory, local engine, and the processes started in it.

use std::{
    ffi::OsStr,
    fs,
    io::Read,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use redlatch_testkit::server::RedisServer;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::Value;

/// How long anything in these tests may take before it counts as hanging. On a machine with ten times more to do than it has cores, some have taken
/// half a minute; a waiter tells again every minute who holds the lock.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A lease that is renewed every 2 s, and the time that a command has to end. When a renewal is due, 3.7 s are left until the
/// command is stopped, which is more than a machine pauses for.
pub(crate) const LEASE: &str = "6s";
pub(crate) const GRACE: &str = "300ms";

/// A directory with everything that one test uses. Its engine ends with it.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    url: Option<String>,
    settings: Vec<(&'static str, &'static str)>,
}

impl Place {
    /// With a local engine that nobody else sees.
    pub(crate) fn local() -> Self {
        redlatch_testkit::stall::watch();
        Place { dir: redlatch_testkit::dir::for_sockets("rl").unwrap(), url: None, settings: Vec::new() }
    }

    /// With the locks on this server.
    pub(crate) fn on(server: &RedisServer) -> Self {
        let mut place = Place::local();
        place.url = Some(server.url());
        place
    }

    /// Uses another address, such as one with an account in it.
    pub(crate) fn set_url(&mut self, url: &str) {
        self.url = Some(url.to_owned());
    }

    /// Has everything that is started from here on see this variable.
    pub(crate) fn set(&mut self, variable: &'static str, value: &'static str) {
        self.settings.push((variable, value));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file with a shell word for its path, for use in scripts.
    pub(crate) fn word(&self, name: &str) -> String {
        format!("'{}'", self.path(name).display())
    }

    /// The program, in a session without a terminal, so that the test behaves the same in a terminal and in CI.
    pub(crate) fn redlatch<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new("setsid");
        // The process that runs the tests may ignore signals, as `nohup` does, and that would be inherited.
        command.args(["env", "--default-signal", env!("CARGO_BIN_EXE_redlatch")]).args(arguments);
        self.surround(&mut command);
        command
    }

    /// A shell script that can call `redlatch`.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("setsid");
        command.args(["env", "--default-signal", "sh", "-c", script]);
        self.surround(&mut command);
        command
    }

    /// Takes the settings of the user who runs the tests away and puts the test's own in place.
    pub(crate) fn surround(&self, command: &mut Command) {
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REDLATCH_"))
        {
            command.env_remove(name);
        }
        let program = Path::new(env!("CARGO_BIN_EXE_redlatch"));
        let mut path = program.parent().unwrap().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap());
        command.env("PATH", path).env("HOME", self.dir.path()).env("XDG_CONFIG_HOME", self.path("config"));
        command.env("REDLATCH_RUNTIME_DIR", self.path("run")).env("TMPDIR", self.dir.path());
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        if let Some(url) = &self.url {
            command.env("REDLATCH_URL", url);
        }
        command.envs(self.settings.iter().copied());
    }

    /// Runs to the end.
    pub(crate) fn output<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        finish(self.redlatch(arguments))
    }

    /// Runs to the end and answers the exit code.
    pub(crate) fn code<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> i32 {
        let output = self.output(arguments);
        output.status.code().unwrap_or_else(|| panic!("{output:?}"))
    }

    /// Starts a process that the test watches.
    pub(crate) fn start<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Running {
        Running::spawn(self.redlatch(arguments))
    }

    /// Starts a run of `name` that holds the lock until the file `end` exists, and waits until it does hold it.
    pub(crate) fn holder(&self, name: &str, options: &[&str]) -> Running {
        self.holder_as(name, &[name], options)
    }

    /// A holder of these names that the test calls `tag`.
    pub(crate) fn holder_as(&self, tag: &str, names: &[&str], options: &[&str]) -> Running {
        let script = format!(
            "echo $$ > {started}; while [ ! -e {end} ]; do sleep 0.02; done",
            started = self.word(&format!("{tag}.pid")),
            end = self.word(&format!("{tag}.end")),
        );
        let arguments = [&["run"], names, options, &["--", "sh", "-c", &script]].concat();
        let running = self.start(&arguments);
        self.pid(tag);
        running
    }

    /// The process id of the command that a holder runs.
    pub(crate) fn pid(&self, name: &str) -> i32 {
        let file = self.path(&format!("{name}.pid"));
        eventually("the command starts", || fs::read_to_string(&file).ok()?.trim().parse().ok())
    }

    /// Lets a holder's command end.
    pub(crate) fn end(&self, name: &str) {
        fs::write(self.path(&format!("{name}.end")), "").unwrap();
    }

    /// What `show -o json` says.
    pub(crate) fn show(&self, name: &str) -> Value {
        let output = self.output(["show", name, "-o", "json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until a lock's time to live has been renewed so often, while it has one all the time.
    pub(crate) fn renewed(&self, name: &str, times: u32) {
        let left = || self.show(name)["ttl_ms"].as_u64().unwrap_or_else(|| panic!("{name} is free"));
        let mut last = left();
        for _ in 0..times {
            eventually("a renewal", || {
                let before = std::mem::replace(&mut last, left());
                (last > before).then_some(())
            });
        }
    }

    /// The report in a file.
    pub(crate) fn report(&self, file: &str) -> Value {
        let text = fs::read_to_string(self.path(file)).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "one line: {text:?}");
        serde_json::from_str(&text).unwrap()
    }

    /// A copy of `program` that may be run. Another process writes it: while this one had it open for writing, a child that
    /// another test starts meanwhile would inherit the descriptor, and the kernel refuses to run a file that is open so.
    pub(crate) fn copy_program(&self, program: impl AsRef<std::path::Path>, file: &str) -> PathBuf {
        let copy = self.path(file);
        let mut install = Command::new("install");
        install.args(["-m", "755"]).arg(program.as_ref()).arg(&copy);
        assert!(install.status().unwrap().success(), "{install:?}");
        copy
    }

    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let files = fs::read_dir(self.path("run")).into_iter().flatten().flatten().map(|file| file.path());
        // An engine that was never started is no failure, and neither is one of another user's.
        for claim in files.filter(|file| file.extension().is_some_and(|kind| kind == "engine")) {
            let mut stop = Command::new(env!("CARGO_BIN_EXE_redlatch"));
            stop.args(["engine", "stop", "--force", "--name"]).arg(claim.file_stem().unwrap());
            self.surround(&mut stop);
            _ = stop.env_remove("REDLATCH_URL").stderr(Stdio::null()).stdout(Stdio::null()).status();
        }
    }
}

/// A process of the test; it is killed if the test fails.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn spawn(mut command: Command) -> Self {
        Running(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    /// A process whose output goes elsewhere.
    pub(crate) fn of(child: Child) -> Self {
        Running(Some(child))
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    /// The process id of `redlatch` itself, which `setsid` and `env` become.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.0.as_ref().unwrap().id()).unwrap()
    }

    /// Reads its stderr until it has said this.
    pub(crate) fn until_told(&mut self, what: &str) {
        read_until(self.child().stderr.as_mut().unwrap(), what);
    }

    /// Reads its stdout until it has printed this: on a terminal, everything that is shown.
    pub(crate) fn until_printed(&mut self, what: &str) {
        read_until(self.child().stdout.as_mut().unwrap(), what);
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child().try_wait().unwrap().is_none()
    }

    /// Waits for the end.
    pub(crate) fn finish(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        // Read meanwhile: a process that fills a pipe would otherwise wait for its reader for ever.
        let stdout = drain(child.stdout.take().unwrap());
        let stderr = drain(child.stderr.take().unwrap());
        let deadline = Instant::now() + LIMIT;
        let (status, in_time) = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break (status, true);
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                break (child.wait().unwrap(), false);
            }
            thread::sleep(Duration::from_millis(5));
        };
        let output = Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() };
        assert!(in_time, "still running: {output:?}");
        output
    }
}

/// Reads until this has come, and not a byte further.
fn read_until(pipe: &mut (impl Read + AsFd), what: &str) {
    let deadline = Instant::now() + LIMIT;
    let mut read = Vec::new();
    let shown = |read: &[u8]| String::from_utf8_lossy(read).into_owned();
    while !shown(&read).contains(what) {
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&left.try_into().unwrap()));
        assert_ne!(ready, Ok(0), "it never said {what:?}: {}", shown(&read));
        let mut byte = [0];
        assert_eq!(pipe.read(&mut byte).unwrap(), 1, "it ended: {}", shown(&read));
        read.push(byte[0]);
    }
}

/// Reads to the end, aside.
fn drain(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut read = Vec::new();
        pipe.read_to_end(&mut read).unwrap();
        read
    })
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// Tells a thread of the test that it is over, also when the test fails.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a command to its end, within the limit.
pub(crate) fn finish(command: Command) -> Output {
    Running::spawn(command).finish()
}

/// Runs a command on a terminal of its own.
///
/// The shell that `script` starts gives its place to the command: whether it would by itself depends on the shell, and
/// one that stays gets the signals of the terminal too and answers with its own exit code.
pub(crate) fn on_a_terminal(place: &Place, line: &str) -> Command {
    let mut command = Command::new("script");
    // The process that runs the tests may ignore signals, and what is ignored is inherited.
    let line = format!("exec env --default-signal {line}");
    command.args(["-q", "-e", "-c", &line, "/dev/null"]);
    place.surround(&mut command);
    command.env("SHELL", "/bin/sh").stdin(Stdio::piped());
    command
}

/// Waits until something is there.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process exists and is not merely waiting to be collected.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// The output's text, both streams.
pub(crate) fn both(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
