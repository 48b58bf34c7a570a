//! The daemon's own troubles: a damaged journal, a full disk, values that are too large, descriptors that run out, ends at a bad moment.

mod support;

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use redlatch_engine::connect::{LocalPaths, READY_LINE, ensure_running};
use redlatch_engine::daemon::{
    DaemonConfig, DaemonError, DaemonErrorKind, ExitReason, Step, Trace, Undertaker, run,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use support::{Client, Wire};

const TAKE: &str = "if redis.call('exists', KEYS[1]) == 1 then return 0 end \
                    redis.call('hset', KEYS[1], ARGV[1], 1) redis.call('pexpire', KEYS[1], ARGV[2]) return 1";
const RENEW: &str = "if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 0 end \
                     redis.call('pexpire', KEYS[1], ARGV[2]) return 1";
const GIVE: &str = "return redis.call('hdel', KEYS[1], ARGV[1])";
const PUT: &str = "return redis.call('set', KEYS[1], ARGV[1])";
const SCRIPTS: [(&str, &str); 4] = [("take", TAKE), ("renew", RENEW), ("give", GIVE), ("put", PUT)];

fn paths(dir: &Path) -> LocalPaths {
    LocalPaths::in_dir(dir.join("run"), None).expect("a short path")
}

fn config(paths: &LocalPaths) -> DaemonConfig {
    let mut config = DaemonConfig::new(paths.socket.clone(), paths.dir.clone(), 7);
    config.allowed_scripts = SCRIPTS.to_vec();
    config
}

/// A daemon on a thread of this process.
fn start(mut config: DaemonConfig) -> JoinHandle<Result<ExitReason, DaemonError>> {
    let (ready, is_ready) = mpsc::channel();
    config.ready = Some(Box::new(move || ready.send(()).expect("the test waits")));
    let thread = std::thread::spawn(move || run(config));
    is_ready.recv_timeout(Duration::from_secs(60)).expect("the daemon gets ready");
    thread
}

fn stop(paths: &LocalPaths, thread: JoinHandle<Result<ExitReason, DaemonError>>) {
    let mut client = Client::connect(&paths.socket).expect("it listens");
    assert_eq!(client.ask(&["REDLATCH", "SHUTDOWN", "FORCE"]), Wire::Simple("OK".to_owned()));
    thread.join().expect("no panic").expect("no error");
}

fn eval(client: &mut Client, script: &str, key: &str, args: &[&str]) -> Wire {
    client.ask(&[&["EVAL", script, "1", key][..], args].concat())
}

fn refusal(reply: Wire) -> String {
    match reply {
        Wire::Error(text) => text,
        other => panic!("not refused: {other:?}"),
    }
}

/// A daemon in a process of its own, which tests kill.
struct Process(Child);

impl Process {
    fn start(dir: &Path) -> Process {
        Process::with(dir, "")
    }

    /// A daemon that may open so many descriptors and no more.
    fn with(dir: &Path, descriptors: &str) -> Process {
        Process::limited(dir, descriptors, "")
    }

    /// The same, whose files may become so large.
    fn limited(dir: &Path, descriptors: &str, file_bytes: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["helper_runs_a_daemon", "--exact", "--nocapture"]).env("REDLATCH_TEST_DAEMON_DIR", dir);
        command.env("REDLATCH_TEST_DESCRIPTORS", descriptors).env("REDLATCH_TEST_FILE_BYTES", file_bytes);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = io::BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        while !line.ends_with(READY_LINE) {
            assert_ne!(
                io::BufRead::read_line(&mut output, &mut line).expect("a line"),
                0,
                "it ended: {line}"
            );
        }
        std::thread::spawn(move || io::copy(&mut output, &mut io::sink()));
        Process(child)
    }

    fn kill(mut self) {
        self.0.kill().expect("it lives");
        self.0.wait().expect("it ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Sees to the dead and leaves what they have left to its lease.
struct Leaves;

impl Undertaker for Leaves {
    fn queues_begin_with(&self) -> &'static [u8] {
        b"queue:"
    }

    fn permits_end_with(&self) -> &'static [u8] {
        b":timeout"
    }

    fn release(&self, _: &Trace, _: &mut dyn FnMut(&[u8]) -> bool) -> Vec<Step> {
        Vec::new()
    }

    fn give_back(&self, _: &[u8], _: &[Vec<u8>], _: &mut dyn FnMut(&[u8]) -> bool) -> Vec<Step> {
        Vec::new()
    }

    fn keep(&self, _: &Trace, _: u64) -> Vec<Step> {
        Vec::new()
    }
}

/// Not a test of its own: the process that others start and kill.
#[test]
fn helper_runs_a_daemon() {
    let Some(dir) = std::env::var_os("REDLATCH_TEST_DAEMON_DIR") else { return };
    if let Ok(descriptors) = std::env::var("REDLATCH_TEST_DESCRIPTORS").unwrap_or_default().parse() {
        let limit = Rlimit { current: Some(20), maximum: Some(descriptors) };
        setrlimit(Resource::Nofile, limit).expect("a lower limit");
    }
    if let Ok(bytes) = std::env::var("REDLATCH_TEST_FILE_BYTES").unwrap_or_default().parse() {
        setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), maximum: None }).expect("a lower limit");
    }
    let mut config = config(&LocalPaths::in_dir(dir.into(), None).expect("a short path"));
    config.undertaker = Some(Box::new(Leaves));
    config.ready = Some(Box::new(|| {
        use std::io::Write as _;
        let mut out = io::stdout();
        out.write_all(READY_LINE.as_bytes()).and_then(|()| out.flush()).expect("the starter reads");
    }));
    run(config).expect("the daemon runs");
}

#[test]
fn what_a_damaged_journal_may_have_held_is_granted_to_nobody_until_its_lease_is_over() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let journal = paths.dir.join("default.journal");
    let daemon = start(config(&paths));
    let mut client = Client::connect(&paths.socket).expect("it listens");
    let mut ends = Vec::new();
    for name in ["first", "lost", "third"] {
        assert_eq!(eval(&mut client, TAKE, name, &["me", "3000"]), Wire::Int(1));
        ends.push(std::fs::metadata(&journal).expect("a journal").len());
    }
    stop(&paths, daemon);
    let mut bytes = std::fs::read(&journal).expect("a journal");
    let (from, to) = (usize::try_from(ends[0]).expect("small"), usize::try_from(ends[1]).expect("small"));
    for (at, byte) in bytes[from..to].iter_mut().enumerate().skip(5).take(30) {
        *byte ^= u8::try_from(at).expect("small") | 0x40;
    }
    std::fs::write(&journal, &bytes).expect("a damaged journal");

    let daemon = start(config(&paths));
    let aside =
        std::fs::metadata(paths.dir.join("default.damaged")).expect("it is kept for those who want to know");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&aside.permissions()) & 0o777, 0o600);
    assert_eq!(aside.len(), bytes.len() as u64);
    let mut client = Client::connect(&paths.socket).expect("it listens");
    for name in ["lost", "another"] {
        let refused = refusal(eval(&mut client, TAKE, name, &["you", "60000"]));
        assert!(refused.starts_with("RECOVERING") && refused.contains("ms more"), "{refused}");
    }
    // What is intact goes on: it is busy, it is renewed, it is given back.
    assert_eq!(eval(&mut client, TAKE, "third", &["you", "60000"]), Wire::Int(0));
    assert_eq!(eval(&mut client, RENEW, "third", &["me", "60000"]), Wire::Int(1));
    assert_eq!(eval(&mut client, GIVE, "first", &["me"]), Wire::Int(1));
    assert!(refusal(eval(&mut client, TAKE, "first", &["you", "60000"])).starts_with("RECOVERING"));
    let Wire::Array(status) = client.ask(&["REDLATCH", "STATUS"]) else { panic!("no status") };
    let at =
        status.iter().position(|item| *item == Wire::Bulk(b"recovering_ms".to_vec())).expect("it is told");
    assert!(matches!(status[at + 1], Wire::Int(1..=4096)), "{:?}", status[at + 1]);
    stop(&paths, daemon);

    // A further start does not forget it.
    let daemon = start(config(&paths));
    let mut client = Client::connect(&paths.socket).expect("it listens");
    let mut refused = 0;
    while let Wire::Error(text) = eval(&mut client, TAKE, "lost", &["you", "60000"]) {
        assert!(text.starts_with("RECOVERING"), "{text}");
        refused += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(refused > 0, "it was granted at once");
    assert_eq!(eval(&mut client, TAKE, "third", &["you", "60000"]), Wire::Int(0), "it was renewed");
    stop(&paths, daemon);
}

#[test]
fn a_full_disk_is_named_in_what_clients_are_told() {
    struct Full;
    impl redlatch_engine::Journal for Full {
        fn append(&mut self, _effects: &[redlatch_engine::Effect]) -> io::Result<()> {
            Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()))
        }
    }
    struct Nobody;
    impl redlatch_engine::Publisher for Nobody {
        fn publish(&self, _channel: &[u8], _payload: &[u8]) -> usize {
            0
        }
    }
    let clock = std::sync::Arc::new(redlatch_engine::SystemClock);
    let nobody = std::sync::Arc::new(Nobody);
    let mut engine = redlatch_engine::Engine::with_journal(clock, nobody, Box::new(Full)).expect("an engine");
    // The first change stands in memory, and no further one is begun.
    for code in ["UNSAVED", "MISCONF"] {
        let refused = engine.call(&["set", "a", "1"]).expect_err("there is no room");
        assert_eq!(refused.code(), code);
        assert!(refused.message().contains("No space left"), "{refused}");
    }
}

/// A daemon that was stopped went on serving its clients until it looked at its files, up to a second later.
#[test]
fn a_daemon_that_was_stopped_while_another_took_its_place_grants_nothing() {
    for _ in 0..5 {
        let dir = support::dir();
        let paths = paths(dir.path());
        let mut first = Process::start(&paths.dir);
        let mut client = Client::connect(&paths.socket).expect("it listens");
        assert_eq!(client.ask(&["PING"]), Wire::Simple("PONG".to_owned()));
        let pid = rustix::process::Pid::from_child(&first.0);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("it lives");
        support::soon("it is stopped", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", first.0.id())).expect("it is there");
            stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
        });
        client.send(&["EVAL", TAKE, "1", "lock", "first", "60000"]).expect("the socket takes it");
        for file in [paths.socket.with_extension("engine"), paths.socket.clone()] {
            std::fs::remove_file(file).expect("it is there");
        }
        let second = Process::start(&paths.dir);
        let mut other = Client::connect(&paths.socket).expect("it listens");
        assert_eq!(eval(&mut other, TAKE, "lock", &["second", "60000"]), Wire::Int(1));
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("it lives");
        assert!(client.is_closed(), "two hold the lock");
        assert!(first.0.wait().expect("it ends").success(), "the helper has checked why");
        drop(second);
    }
}

#[test]
fn a_journal_at_the_limit_of_file_sizes_is_an_error_of_the_clients_and_ends_no_daemon() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let process = Process::limited(&paths.dir, "", "1000000");
    let mut client = Client::connect(&paths.socket).expect("it listens");
    assert_eq!(eval(&mut client, PUT, "small", &["1"]), Wire::Simple("OK".to_owned()));
    let refused = refusal(eval(&mut client, PUT, "big", &[&"x".repeat(2_000_000)]));
    assert!(refused.starts_with("UNSAVED") && refused.contains("File too large"), "{refused}");
    assert_eq!(client.ask(&["PING"]), Wire::Simple("PONG".to_owned()));
    assert!(refusal(eval(&mut client, PUT, "small", &["2"])).starts_with("MISCONF"));
    drop(process);
}

#[test]
fn what_is_too_large_to_be_read_again_is_refused_when_it_is_written() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let mut open = config(&paths);
    open.compat = true;
    let daemon = start(open);
    let mut client = Client::connect(&paths.socket).expect("it listens");
    let make = "return redis.call('set', KEYS[1], string.rep('x', ARGV[1]))";
    let refused = refusal(eval(&mut client, make, "k", &["67108865"]));
    assert!(refused.contains("too long"), "{refused}");
    assert_eq!(eval(&mut client, make, "k", &["67108864"]), Wire::Simple("OK".to_owned()));
    stop(&paths, daemon);
    let mut open = config(&paths);
    open.compat = true;
    let daemon = start(open);
    let mut client = Client::connect(&paths.socket).expect("it listens");
    assert_eq!(client.ask(&["STRLEN", "k"]), Wire::Int(67_108_864));
    stop(&paths, daemon);
}

/// Values so large that the journal is rewritten every few dozen of them.
#[test]
fn what_was_confirmed_is_there_whenever_the_daemon_is_killed_while_it_rewrites_its_journal() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let mut rng = support::Rng::new(11);
    let mut value = 0_u64;
    let padding = "x".repeat(512 << 10);
    for round in 0..12 {
        let process = Process::start(&paths.dir);
        let mut client = Client::connect(&paths.socket).expect("it listens");
        if round > 0 {
            let taken = eval(&mut client, TAKE, &format!("at-{value}"), &["me", "600000"]);
            assert_eq!(taken, Wire::Int(0), "round {round}: the hold of {value} is gone");
        }
        let until = value + 40 + u64::try_from(rng.below(60)).expect("small");
        let (confirmed, is_confirmed) = mpsc::channel();
        let killer = std::thread::spawn({
            let pause = Duration::from_millis(u64::try_from(rng.below(400)).expect("small"));
            move || {
                // A slow machine may not get anywhere in that time.
                is_confirmed.recv().expect("something is confirmed before the client ends");
                std::thread::sleep(pause);
                process.kill();
            }
        });
        while value < until {
            let put = client.send(&["EVAL", PUT, "1", "big", &padding]).and_then(|()| client.read());
            if put.is_err() {
                break;
            }
            let next = format!("at-{}", value + 1);
            if client.send(&["EVAL", TAKE, "1", &next, "me", "600000"]).and_then(|()| client.read()).is_err()
            {
                break;
            }
            value += 1;
            let _has_begun = confirmed.send(());
        }
        killer.join().expect("no panic");
    }
    assert!(value > 0);
}

#[test]
fn clients_beyond_the_descriptors_are_told_so_and_the_journal_is_rewritten_all_the_same() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let process = Process::with(&paths.dir, "64");
    let mut clients: Vec<Client> = Vec::new();
    let refused = loop {
        assert!(clients.len() < 64, "it serves more clients than it has descriptors");
        let mut client = Client::connect(&paths.socket).expect("it listens");
        // One that is not served may be told so, and closed, before it has asked.
        _ = client.send(&["PING"]);
        match client.read().expect("the server answers") {
            Wire::Simple(_) => clients.push(client),
            other => break refusal(other),
        }
    };
    assert!(refused.contains("max number of clients"), "{refused}");
    assert!(clients.len() >= 20, "it raises the limit that it was started with: {} clients", clients.len());
    let padding = "x".repeat(4 << 20);
    for _ in 0..6 {
        assert_eq!(eval(&mut clients[0], PUT, "big", &[&padding]), Wire::Simple("OK".to_owned()));
    }
    let len = std::fs::metadata(paths.dir.join("default.journal")).expect("a journal").len();
    assert!(len < 16 << 20, "six values of 4 MiB, and it was not rewritten: {len} bytes");
    clients.pop();
    drop(process);
}

/// Each lifeline had a descriptor of the engine beside its connection, which was not counted: when they ran out nobody was let in any more.
#[test]
fn clients_with_lifelines_beyond_the_descriptors_are_told_so() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let process = Process::with(&paths.dir, "64");
    let mut clients: Vec<Client> = Vec::new();
    let refused = loop {
        assert!(clients.len() < 64, "it serves more clients than it has descriptors");
        let mut client = Client::connect(&paths.socket).expect("it listens");
        _ = client.send(&["PING"]);
        match client.read().expect("the server answers") {
            Wire::Simple(_) => {
                let id = format!("1b671a64-40d5-4ed1-a7c4-{:012}", clients.len());
                client.send(&["REDLATCH", "LIFELINE", &id, "0", "0"]).expect("it takes it");
                clients.push(client);
            }
            other => break refusal(other),
        }
    };
    assert!(refused.contains("max number of clients"), "{refused}");
    drop(clients);
    support::soon("there is room", || {
        let mut client = Client::connect(&paths.socket).expect("it listens");
        _ = client.send(&["PING"]);
        matches!(client.read(), Ok(Wire::Simple(_)))
    });
    drop(process);
}

#[test]
fn another_epoch_finds_the_holds_of_the_last_one() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let daemon = start(config(&paths));
    let mut client = Client::connect(&paths.socket).expect("it listens");
    assert_eq!(eval(&mut client, TAKE, "x", &["me", "60000"]), Wire::Int(1));
    // The newer client is refused and starts nothing beside it: one claim, one journal.
    assert!(refusal(client.ask(&["REDLATCH", "HELLO", "8"])).starts_with("EPOCH"));
    let mut newer = config(&paths);
    newer.epoch = 8;
    assert_eq!(run(newer).expect_err("one serves").kind(), DaemonErrorKind::AlreadyRunning);
    stop(&paths, daemon);
    let mut newer = config(&paths);
    newer.epoch = 8;
    let daemon = start(newer);
    let mut client = Client::connect(&paths.socket).expect("it listens");
    assert_eq!(eval(&mut client, TAKE, "x", &["you", "60000"]), Wire::Int(0));
    stop(&paths, daemon);
}

/// A successor that has the claim may serve, and what is at its path then is its own.
#[cfg(target_os = "linux")]
#[test]
fn the_socket_of_a_daemon_is_gone_before_its_claim_is_free() {
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};

    let dir = support::dir();
    let paths = paths(dir.path());
    let daemon = start(config(&paths));
    let watch = init(CreateFlags::NONBLOCK).expect("a watch");
    add_watch(&watch, &paths.dir, WatchFlags::DELETE | WatchFlags::CLOSE_WRITE).expect("a watch");
    stop(&paths, daemon);
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = Reader::new(&watch, &mut buffer);
    let mut seen: Vec<(String, ReadFlags)> = Vec::new();
    let at = |seen: &[(String, ReadFlags)], name: &str, flag: ReadFlags| {
        seen.iter().position(|(of, flags)| of == name && flags.contains(flag))
    };
    // A process that another test starts has the file as well until it runs its program, and only then is it closed.
    let began = std::time::Instant::now();
    let freed = loop {
        while let Ok(event) = events.next() {
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            seen.push((name, event.events()));
        }
        if let Some(freed) = at(&seen, "default.engine", ReadFlags::CLOSE_WRITE) {
            break freed;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "the claim is not freed: {seen:?}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let gone = at(&seen, "default.sock", ReadFlags::DELETE);
    assert!(gone.is_some_and(|gone| gone < freed), "{seen:?}");
}

#[test]
fn the_end_of_a_daemon_takes_nothing_of_its_successor() {
    let dir = support::dir();
    let paths = paths(dir.path());
    for _ in 0..40 {
        let first = start(config(&paths));
        // The successor waits for the claim, and serves as soon as it has it.
        let second = std::thread::spawn({
            let paths = paths.clone();
            move || start(config(&paths))
        });
        stop(&paths, first);
        let second = second.join().expect("no panic");
        assert!(paths.socket.exists(), "the socket of the second daemon is gone");
        stop(&paths, second);
    }
}

#[test]
fn a_socket_that_was_deleted_is_made_again_and_those_who_come_meanwhile_wait_for_it() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let daemon = start(config(&paths));
    let mut client = Client::connect(&paths.socket).expect("it listens");
    assert_eq!(eval(&mut client, TAKE, "x", &["me", "60000"]), Wire::Int(1));
    std::fs::remove_file(&paths.socket).expect("it was there");
    assert!(paths.is_claimed());
    let launcher = |_: &LocalPaths| -> io::Result<Command> { panic!("nothing may be started beside it") };
    let outcome = ensure_running(&paths, &launcher, Duration::from_millis(1)).expect("it is made again");
    assert!(!outcome.started);
    let mut other = Client::connect(&paths.socket).expect("it listens");
    assert_eq!(eval(&mut other, TAKE, "x", &["you", "60000"]), Wire::Int(0), "it is the same engine");
    assert_eq!(eval(&mut client, RENEW, "x", &["me", "60000"]), Wire::Int(1), "those who were there go on");
    stop(&paths, daemon);
    assert!(!paths.socket.exists());
    // A process that another test starts has the file as well until it runs its program.
    let began = std::time::Instant::now();
    while paths.is_claimed() {
        assert!(began.elapsed() < Duration::from_secs(20), "the claim is not freed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_daemon_that_reads_its_journal_is_not_killed_by_its_starter() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let survived = dir.path().join("survived");
    let launcher = |paths: &LocalPaths| {
        let mut command = Command::new("sh");
        let (claim, survived) = (paths.claim_file.display(), survived.display());
        command.args(["-c", &format!("exec 9>>'{claim}'; flock 9; sleep 1; : > '{survived}'")]);
        Ok(command)
    };
    let error = ensure_running(&paths, &launcher, Duration::from_millis(300)).expect_err("it is no daemon");
    assert!(survived.exists(), "it was killed while it had the claim: {error}");
}

thread_local! {
    /// Where this thread's part of the log goes.
    static LOG: RefCell<Option<mpsc::Sender<String>>> = const { RefCell::new(None) };
}

/// Sends on what the log says. One for all threads: a line that a thread without a log reaches first would be off for all.
struct Log;

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let Some(log) = LOG.with_borrow(Clone::clone) else { return };
        let mut text = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text.push_str(&format!("{field}={value:?} "));
        });
        let _nobody_listens_any_more = log.send(text);
    }

    fn enter(&self, _: &tracing::Id) {}

    fn exit(&self, _: &tracing::Id) {}
}

#[test]
fn an_engine_that_listens_on_an_address_says_that_every_user_can_connect() {
    let dir = support::dir();
    let mut config = config(&paths(dir.path()));
    config.compat = true;
    config.compat_listen = Some(([127, 0, 0, 1], 0).into());
    // It ends before it serves.
    config.socket = "relative".into();
    let (log, said) = mpsc::channel();
    LOG.set(Some(log));
    let ended = tracing::subscriber::with_default(Log, || run(config));
    LOG.set(None);
    assert_eq!(ended.expect_err("a relative path").kind(), DaemonErrorKind::Config);
    let told: String = said.iter().collect();
    assert!(told.contains("every user of this machine can connect") && told.contains("127.0.0.1"), "{told}");
}

/// A journal of a million keys takes longer to read than a start may last. Here it is a pipe, so that it is read as slowly as the test wants.
#[cfg(target_os = "linux")]
#[test]
fn a_journal_that_is_read_for_long_is_waited_for_and_told_of() {
    let dir = support::dir();
    let paths = paths(dir.path());
    stop(&paths, start(config(&paths)));
    let journal = paths.dir.join("default.journal");
    std::fs::remove_file(&journal).expect("it was there");
    std::fs::remove_file(paths.dir.join("default.leases")).expect("it was there");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &journal, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    let (log, said) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let told = said.recv_timeout(Duration::from_secs(50)).expect("progress is told");
        // Opening waits for the engine, and closing is the end of the journal.
        drop(std::fs::OpenOptions::new().write(true).open(&journal).expect("the engine reads"));
        told
    });
    let launcher = |paths: &LocalPaths| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["helper_runs_a_daemon", "--exact", "--nocapture"]);
        command.env("REDLATCH_TEST_DAEMON_DIR", &paths.dir);
        Ok(command)
    };
    tracing::subscriber::set_global_default(Log).expect("this test alone has one");
    LOG.set(Some(log));
    let outcome = ensure_running(&paths, &launcher, Duration::from_millis(300));
    let told = reader.join().expect("no panic");
    assert!(told.contains("waiting for the local engine") && told.contains("seconds=1"), "{told}");
    assert!(outcome.expect("the engine serves in the end").started);
    let mut client = Client::connect(&paths.socket).expect("it listens");
    assert_eq!(client.ask(&["REDLATCH", "SHUTDOWN", "FORCE"]), Wire::Simple("OK".to_owned()));
}
