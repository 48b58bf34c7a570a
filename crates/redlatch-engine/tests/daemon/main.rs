//! The daemon over its socket: protocol, access, journal, crashes and start-up.

mod places;
#[path = "../support/mod.rs"]
mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use redlatch_engine::connect::{ConnectErrorKind, LocalPaths, READY_LINE, ensure_running};
use redlatch_engine::daemon::{DaemonConfig, DaemonError, DaemonErrorKind, ExitReason, run};
use support::{Client, Wire};

const EPOCH: u32 = 7;
const TAKE: &str = "redis.call('hset', KEYS[1], ARGV[1], 1) redis.call('pexpire', KEYS[1], ARGV[2]) return 1";
const ASK: &str = "return {redis.call('hget', KEYS[1], ARGV[1]), redis.call('pttl', KEYS[1])}";
const DRAW: &str = "return redis.call('incr', KEYS[1])";
const TELL: &str = "return redis.call('publish', ARGV[1], ARGV[2])";
const PUT: &str = "redis.call('set', KEYS[1], ARGV[1]) return redis.call('get', KEYS[1])";
const SCRIPTS: [(&str, &str); 5] =
    [("take", TAKE), ("ask", ASK), ("draw", DRAW), ("tell", TELL), ("put", PUT)];
const COUNTER: &str = "redisson_lock_token:{name}";

fn paths(dir: &Path) -> LocalPaths {
    LocalPaths::in_dir(dir.join("run"), None).expect("a short path")
}

fn config(paths: &LocalPaths) -> DaemonConfig {
    let mut config = DaemonConfig::new(paths.socket.clone(), paths.dir.clone(), EPOCH);
    config.allowed_scripts = SCRIPTS.to_vec();
    config
}

/// A daemon on a thread of this process.
struct Daemon {
    socket: PathBuf,
    thread: Option<JoinHandle<Result<ExitReason, DaemonError>>>,
}

impl Daemon {
    fn start(config: DaemonConfig) -> Daemon {
        Daemon::try_start(config).expect("the daemon gets ready")
    }

    /// The error is that of a daemon that does not get ready.
    fn try_start(mut config: DaemonConfig) -> Result<Daemon, DaemonError> {
        let (ready, is_ready) = mpsc::channel();
        config.ready = Some(Box::new(move || ready.send(()).expect("the test waits")));
        let socket = config.socket.clone();
        let thread = std::thread::spawn(move || run(config));
        match is_ready.recv_timeout(Duration::from_secs(20)) {
            Ok(()) => Ok(Daemon { socket, thread: Some(thread) }),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let ended = thread.join().expect("no panic");
                Err(ended.expect_err("one that was never ready"))
            }
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the daemon does not get ready"),
        }
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket).expect("the daemon listens")
    }

    fn wait(mut self) -> ExitReason {
        let thread = self.thread.take().expect("it was not ended before");
        thread.join().expect("no panic").expect("no error")
    }

    fn stop(self) -> ExitReason {
        assert_eq!(self.client().ask(&["REDLATCH", "SHUTDOWN", "FORCE"]), simple("OK"));
        self.wait()
    }
}

fn simple(text: &str) -> Wire {
    Wire::Simple(text.to_owned())
}

fn bulk(text: &str) -> Wire {
    Wire::Bulk(text.as_bytes().to_vec())
}

fn code(reply: &Wire) -> &str {
    match reply {
        Wire::Error(text) => text.split(' ').next().unwrap_or_default(),
        other => panic!("not an error: {other:?}"),
    }
}

fn eval(client: &mut Client, script: &str, key: &str, args: &[&str]) -> Wire {
    let mut words = vec!["EVAL", script, "1", key];
    words.extend(args);
    client.ask(&words)
}

#[test]
fn only_own_scripts_run_without_compat() {
    let dir = support::dir();
    let daemon = Daemon::start(config(&paths(dir.path())));
    let mut client = daemon.client();
    assert_eq!(eval(&mut client, TAKE, "l", &["me", "60000"]), Wire::Int(1));
    let sha = sha1_smol::Sha1::from(TAKE).hexdigest();
    assert_eq!(client.ask(&["evalsha", &sha, "1", "l", "me", "60000"]), Wire::Int(1));
    assert_eq!(client.ask(&["SCRIPT", "LOAD", TAKE]), bulk(&sha));
    assert_eq!(client.ask(&["SCRIPT", "EXISTS", &sha, "00"]), Wire::Array(vec![Wire::Int(1), Wire::Int(0)]));
    assert_eq!(code(&client.ask(&["EVAL", "return 1", "0"])), "NOPERM");
    assert_eq!(code(&client.ask(&["SCRIPT", "LOAD", "return 1"])), "NOPERM");
    assert_eq!(code(&client.ask(&["GET", "l"])), "NOPERM");
    assert_eq!(code(&client.ask(&["FLUSHALL"])), "NOPERM");
    assert_eq!(code(&client.ask(&["PSUBSCRIBE", "*"])), "NOPERM");
    assert_eq!(code(&client.ask(&["EVALSHA", &"a".repeat(40), "0"])), "NOSCRIPT");
    assert_eq!(client.ask(&["SELECT", "0"]), simple("OK"));
    assert_eq!(code(&client.ask(&["REDLATCH", "SHUTDOWN"])), "INUSE");
    assert_eq!(daemon.stop(), ExitReason::Shutdown);
}

/// The engine would not stop for as long as the record of a forced unlock was there, because "locks or permits are held".
#[test]
fn the_record_of_a_forced_unlock_is_no_lock_that_is_held() {
    let dir = support::dir();
    let daemon = Daemon::start(config(&paths(dir.path())));
    let mut client = daemon.client();
    assert_eq!(eval(&mut client, TAKE, "redlatch_forced:{l}", &["me", "60000"]), Wire::Int(1));
    client.ask(&["HELLO", "3"]);
    let Wire::Map(status) = client.ask(&["REDLATCH", "STATUS"]) else { panic!("no status") };
    let count = status.iter().position(|item| *item == bulk("lock_count")).map(|at| &status[at + 1]);
    assert_eq!(count, Some(&Wire::Int(0)));
    assert_eq!(client.ask(&["REDLATCH", "SHUTDOWN"]), simple("OK"));
    assert_eq!(daemon.wait(), ExitReason::Shutdown);
}

#[test]
fn another_epoch_is_refused_with_both_numbers() {
    let dir = support::dir();
    let daemon = Daemon::start(config(&paths(dir.path())));
    let mut client = daemon.client();
    let Wire::Array(hello) = client.ask(&["REDLATCH", "HELLO", "7"]) else { panic!("no greeting") };
    assert_eq!((&hello[0], &hello[2]), (&bulk("redlatch"), &Wire::Int(7)));
    let refused = client.ask(&["REDLATCH", "HELLO", "8"]);
    assert_eq!(code(&refused), "EPOCH");
    let Wire::Error(text) = refused else { unreachable!("code() checked it") };
    assert!(
        text.contains("epoch 7") && text.contains("epoch 8") && text.contains("redlatch engine stop"),
        "{text}"
    );
    assert_eq!(client.ask(&["REDLATCH", "SHUTDOWN"]), simple("OK"));
    assert_eq!(daemon.wait(), ExitReason::Shutdown);
}

#[test]
fn nil_is_null_on_resp3_and_status_is_a_map() {
    let dir = support::dir();
    let daemon = Daemon::start(config(&paths(dir.path())));
    let mut client = daemon.client();
    let absent = Wire::Array(vec![Wire::Nil, Wire::Int(-2)]);
    assert_eq!(eval(&mut client, ASK, "l", &["me"]), absent);
    assert!(matches!(client.ask(&["HELLO", "3"]), Wire::Map(_)));
    assert_eq!(eval(&mut client, ASK, "l", &["me"]), Wire::Array(vec![Wire::Null, Wire::Int(-2)]));
    eval(&mut client, TAKE, "l", &["me", "60000"]);
    let Wire::Map(status) = client.ask(&["REDLATCH", "STATUS"]) else { panic!("no status") };
    let at = status.iter().position(|item| *item == bulk("locks")).expect("locks are named");
    let Wire::Map(locks) = &status[at + 1] else { panic!("no locks") };
    assert_eq!(locks[0], bulk("l"));
    assert!(matches!(locks[1], Wire::Int(left) if left > 0 && left <= 60_000));
    assert_eq!(code(&client.ask(&["HELLO", "4"])), "NOPROTO");
    daemon.stop();
}

#[test]
fn a_status_counts_all_locks_and_names_a_thousand() {
    let dir = support::dir();
    let daemon = Daemon::start(config(&paths(dir.path())));
    let mut client = daemon.client();
    client.ask(&["HELLO", "3"]);
    for n in 0..1100 {
        eval(&mut client, TAKE, &format!("l{n}"), &["me", "60000"]);
    }
    let Wire::Map(status) = client.ask(&["REDLATCH", "STATUS"]) else { panic!("no status") };
    let item = |name| &status[status.iter().position(|item| *item == bulk(name)).expect("it is told") + 1];
    assert_eq!(*item("lock_count"), Wire::Int(1100));
    assert!(matches!(item("locks"), Wire::Map(locks) if locks.len() == 2000), "keys and times");
    daemon.stop();
}

#[test]
fn messages_arrive_in_both_protocols() {
    let dir = support::dir();
    let daemon = Daemon::start(config(&paths(dir.path())));
    let (mut two, mut three, mut teller) = (daemon.client(), daemon.client(), daemon.client());
    three.ask(&["HELLO", "3"]);
    let subscribed = vec![bulk("subscribe"), bulk("c"), Wire::Int(1)];
    assert_eq!(two.ask(&["SUBSCRIBE", "c"]), Wire::Array(subscribed.clone()));
    assert_eq!(three.ask(&["SUBSCRIBE", "c"]), Wire::Push(subscribed));
    assert_eq!(eval(&mut teller, TELL, "x", &["c", "hey"]), Wire::Int(2));
    let message = vec![bulk("message"), bulk("c"), bulk("hey")];
    assert_eq!(two.read().expect("a message"), Wire::Array(message.clone()));
    assert_eq!(three.read().expect("a message"), Wire::Push(message));
    assert_eq!(code(&two.ask(&["EVAL", TELL, "0", "c", "x"])), "ERR");
    assert_eq!(eval(&mut three, DRAW, "n", &[]), Wire::Int(1));
    assert_eq!(
        teller.ask(&["PUBSUB", "NUMSUB", "c", "d"]),
        Wire::Array(vec![bulk("c"), Wire::Int(2), bulk("d"), Wire::Int(0)])
    );
    drop(two);
    assert_eq!(three.ask(&["UNSUBSCRIBE"]), Wire::Push(vec![bulk("unsubscribe"), bulk("c"), Wire::Int(0)]));
    daemon.stop();
}

#[test]
fn a_subscriber_that_does_not_read_is_dropped() {
    let dir = support::dir();
    let daemon = Daemon::start(config(&paths(dir.path())));
    let (mut slow, mut teller) = (daemon.client(), daemon.client());
    slow.ask(&["SUBSCRIBE", "c"]);
    let payload = "x".repeat(1 << 20);
    let mut heard = 0;
    while eval(&mut teller, TELL, "x", &["c", &payload]) == Wire::Int(1) {
        heard += 1;
        assert!(heard < 64, "the subscriber is never dropped");
    }
    assert!(heard >= 8, "dropped after {heard} MiB");
    daemon.stop();
}

#[test]
fn the_redis_crate_works_with_resp2_and_resp3() {
    let dir = support::dir();
    let mut config = config(&paths(dir.path()));
    config.compat = true;
    let daemon = Daemon::start(config);
    for protocol in ["resp2", "resp3"] {
        let url = format!("redis+unix://{}?protocol={protocol}", daemon.socket.display());
        let client = redis::Client::open(url).expect("a URL");
        let mut connection = client.get_connection().expect("a connection");
        let run = |connection: &mut redis::Connection, words: &[&str]| -> redis::RedisResult<redis::Value> {
            redis::cmd(words[0]).arg(&words[1..]).query(connection)
        };
        assert_eq!(run(&mut connection, &["SET", "k", "v"]).expect(protocol), redis::Value::Okay);
        assert_eq!(run(&mut connection, &["GET", "missing"]).expect(protocol), redis::Value::Nil);
        let evaluated =
            run(&mut connection, &["EVAL", "return {1, false, redis.call('get', KEYS[1])}", "1", "k"]);
        let expected = vec![redis::Value::Int(1), redis::Value::Nil, redis::Value::BulkString(b"v".to_vec())];
        assert_eq!(evaluated.expect(protocol), redis::Value::Array(expected));
        let wrong = run(&mut connection, &["HGET", "k", "f"]).expect_err("a string is no hash");
        assert_eq!(wrong.code(), Some("WRONGTYPE"));
    }
    let client = redis::Client::open(format!("redis+unix://{}", daemon.socket.display())).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    let mut pubsub = connection.as_pubsub();
    pubsub.psubscribe("c*").expect("compat allows patterns");
    assert_eq!(daemon.client().ask(&["PUBLISH", "c1", "hey"]), Wire::Int(1));
    let message = pubsub.get_message().expect("a message");
    assert_eq!((message.get_channel_name(), message.get_payload_bytes()), ("c1", b"hey".as_slice()));
    daemon.stop();
}

#[test]
fn garbage_and_oversize_end_the_connection_only() {
    let dir = support::dir();
    let daemon = Daemon::start(config(&paths(dir.path())));
    let oversize = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"*2\r\n$4\r\nPING\r\n$99999999\r\n".to_vec(),
        b"*9999999\r\n".to_vec(),
        b"*1\r\n$4\r\nPINGPONG\r\n".to_vec(),
        vec![0xFF; 4096],
    ];
    for bytes in oversize {
        let mut client = daemon.client();
        client.send_raw(&bytes).expect("the socket takes it");
        let reply = client.read().expect("an answer");
        assert!(matches!(&reply, Wire::Error(text) if text.contains("Protocol error")), "{reply:?}");
        assert!(client.is_closed());
    }
    // Random bytes behind a plausible start: whatever happens, the daemon serves the next client.
    let mut rng = support::Rng::new(5);
    for _ in 0..200 {
        let mut client = daemon.client();
        let alphabet: &[u8] = b"*$0123456789\r\n-+PING\xff\0";
        let length = 1 + rng.below(60);
        let noise: Vec<u8> = (0..length).map(|_| alphabet[rng.below(alphabet.len())]).collect();
        client.send_raw(b"*").and_then(|()| client.send_raw(&noise)).expect("the socket takes it");
    }
    assert_eq!(daemon.client().ask(&["PING"]), simple("PONG"));
    daemon.stop();
}

#[test]
fn requests_in_one_packet_are_answered_in_order() {
    let dir = support::dir();
    let daemon = Daemon::start(config(&paths(dir.path())));
    let mut client = daemon.client();
    let one = format!("*4\r\n$4\r\nEVAL\r\n${}\r\n{DRAW}\r\n$1\r\n1\r\n$1\r\nn\r\n", DRAW.len());
    client.send_raw(one.repeat(500).as_bytes()).expect("the socket takes it");
    for expected in 1..=500 {
        assert_eq!(client.read().expect("a reply"), Wire::Int(expected));
    }
    daemon.stop();
}

#[test]
fn an_open_directory_or_a_link_is_refused() {
    let dir = support::dir();
    let paths = paths(dir.path());
    std::fs::create_dir(&paths.dir).expect("a directory");
    std::fs::set_permissions(&paths.dir, PermissionsExt::from_mode(0o750)).expect("a mode");
    assert_eq!(run(config(&paths)).expect_err("others may enter").kind(), DaemonErrorKind::Access);
    let launcher = |_: &LocalPaths| -> std::io::Result<Command> { panic!("nothing may be started") };
    let refused = ensure_running(&paths, &launcher, Duration::from_secs(5)).expect_err("others may enter");
    assert_eq!(refused.kind(), ConnectErrorKind::NotRunning);
    std::fs::rename(&paths.dir, dir.path().join("real")).expect("a rename");
    std::os::unix::fs::symlink(dir.path().join("real"), &paths.dir).expect("a link");
    std::fs::set_permissions(dir.path().join("real"), PermissionsExt::from_mode(0o700)).expect("a mode");
    assert_eq!(run(config(&paths)).expect_err("a link is refused").kind(), DaemonErrorKind::Access);
}

#[test]
fn tcp_is_for_compat_on_loopback_only() {
    let dir = support::dir();
    let mut open = config(&paths(dir.path()));
    open.compat = true;
    open.compat_listen = Some(([0, 0, 0, 0], 0).into());
    assert_eq!(run(open).expect_err("not loopback").kind(), DaemonErrorKind::Config);
    let mut plain = config(&paths(dir.path()));
    plain.compat_listen = Some(([127, 0, 0, 1], 0).into());
    assert_eq!(run(plain).expect_err("not compat").kind(), DaemonErrorKind::Config);
}

#[test]
fn an_idle_daemon_ends_but_not_while_a_lease_runs() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let mut config = config(&paths);
    config.idle_exit = Some(Duration::from_millis(100));
    let daemon = Daemon::start(config);
    let started = std::time::Instant::now();
    eval(&mut daemon.client(), TAKE, "l", &["me", "1000"]);
    assert_eq!(daemon.wait(), ExitReason::Idle);
    assert!(started.elapsed() >= Duration::from_millis(1000), "it ended during a lease");
    assert!(!paths.socket.exists());
}

#[test]
fn a_daemon_is_not_stopped_while_a_permit_is_taken_and_stays_until_its_end() {
    let dir = support::dir();
    let paths = paths(dir.path());
    for ends in ["1000", "never"] {
        let mut config = config(&paths);
        config.compat = true;
        config.idle_exit = Some(Duration::from_millis(100));
        let daemon = Daemon::start(config);
        let started = std::time::Instant::now();
        let mut client = daemon.client();
        let script = "local time = redis.call('time') \
            local ends = ARGV[1] == 'never' and 922337203685477 or time[1] * 1000 + time[2] / 1000 + ARGV[1] \
            return redis.call('zadd', KEYS[1], string.format('%.0f', ends), '0123456789abcdef')";
        let key = format!("{{{ends}}}:timeout");
        assert_eq!(eval(&mut client, script, &key, &[ends]), Wire::Int(1));
        assert_eq!(code(&client.ask(&["REDLATCH", "SHUTDOWN"])), "INUSE", "{ends}");
        drop(client);
        // One without an end would keep it for ever.
        assert_eq!(daemon.wait(), ExitReason::Idle);
        assert!(ends == "never" || started.elapsed() >= Duration::from_millis(1000), "it ended too early");
    }
}

#[test]
fn a_restart_keeps_everything_and_another_boot_drops_leases() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let with_boot = |id: &str| {
        let mut config = config(&paths);
        config.boot_id = id.to_owned();
        Daemon::start(config)
    };
    let daemon = with_boot("one");
    let mut client = daemon.client();
    eval(&mut client, TAKE, "l", &["me", "60000"]);
    assert_eq!(eval(&mut client, DRAW, COUNTER, &[]), Wire::Int(1));
    daemon.stop();
    let daemon = with_boot("one");
    let mut client = daemon.client();
    let Wire::Array(held) = eval(&mut client, ASK, "l", &["me"]) else { panic!("no answer") };
    assert_eq!(held[0], bulk("1"));
    assert!(matches!(held[1], Wire::Int(left) if left > 0 && left <= 60_000), "{held:?}");
    // After a clean end the counter goes on where it was.
    assert_eq!(eval(&mut client, DRAW, COUNTER, &[]), Wire::Int(2));
    daemon.stop();
    let daemon = with_boot("two");
    let mut client = daemon.client();
    assert_eq!(eval(&mut client, ASK, "l", &["me"]), Wire::Array(vec![Wire::Nil, Wire::Int(-2)]));
    assert_eq!(eval(&mut client, DRAW, COUNTER, &[]), Wire::Int(3));
    daemon.stop();
}

#[test]
fn a_damaged_end_of_the_journal_is_dropped_and_counters_never_go_back() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let journal = paths.dir.join("default.journal");
    let daemon = Daemon::start(config(&paths));
    let mut client = daemon.client();
    assert_eq!(eval(&mut client, DRAW, COUNTER, &[]), Wire::Int(1));
    // What is in the file now was synced; what comes next may be lost with the machine.
    let synced = std::fs::metadata(&journal).expect("a journal").len();
    eval(&mut client, TAKE, "l", &["me", "60000"]);
    for expected in 2..=900 {
        assert_eq!(eval(&mut client, DRAW, COUNTER, &[]), Wire::Int(expected));
    }
    daemon.stop();
    let whole = std::fs::read(&journal).expect("a journal");
    for end in [synced, synced + 5, synced + 11, whole.len() as u64 - 1] {
        let end = usize::try_from(end).expect("a small file");
        std::fs::write(&journal, &whole[..end]).expect("a shorter journal");
        let daemon = Daemon::start(config(&paths));
        let Wire::Int(next) = eval(&mut daemon.client(), DRAW, COUNTER, &[]) else { panic!("no number") };
        assert!(next > 900, "cut at {end}: the counter went back to {next}");
        daemon.stop();
    }
}

/// Not a test of its own: the process that others start and kill.
#[test]
fn helper_runs_a_daemon() {
    let Some(dir) = std::env::var_os("REDLATCH_TEST_DAEMON_DIR") else { return };
    let mut config = config(&LocalPaths::in_dir(dir.into(), None).expect("a short path"));
    config.detach = true;
    config.idle_exit = Some(Duration::from_secs(60));
    config.ready = Some(Box::new(|| {
        use std::io::Write as _;
        let mut out = std::io::stdout();
        out.write_all(READY_LINE.as_bytes()).and_then(|()| out.flush()).expect("the starter reads");
    }));
    run(config).expect("the daemon runs");
}

fn launcher(paths: &LocalPaths) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["helper_runs_a_daemon", "--exact", "--nocapture"]);
    command.env("REDLATCH_TEST_DAEMON_DIR", &paths.dir);
    Ok(command)
}

fn pid_of(client: &mut Client) -> i64 {
    match client.ask(&["REDLATCH", "HELLO", "7"]) {
        Wire::Array(hello) => match hello[3] {
            Wire::Int(pid) => pid,
            ref other => panic!("no pid but {other:?}"),
        },
        other => panic!("no greeting but {other:?}"),
    }
}

#[test]
fn twenty_at_once_start_one_daemon_and_a_killed_one_is_replaced() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let race = || {
        std::thread::scope(|scope| {
            let racers: Vec<_> = (0..20)
                .map(|_| scope.spawn(|| ensure_running(&paths, &launcher, Duration::from_secs(30))))
                .collect();
            let outcomes = racers.into_iter().map(|racer| racer.join().expect("no panic").expect("a daemon"));
            outcomes.filter(|outcome| outcome.started).count()
        })
    };
    assert_eq!(race(), 1);
    let mut client = Client::connect(&paths.socket).expect("a daemon");
    let first = pid_of(&mut client);
    assert_eq!(eval(&mut client, TAKE, "l", &["me", "600000"]), Wire::Int(1));
    assert_eq!(eval(&mut client, DRAW, COUNTER, &[]), Wire::Int(1));
    assert_eq!(eval(&mut client, PUT, "plain", &["kept"]), bulk("kept"));
    let pid = rustix::process::Pid::from_raw(i32::try_from(first).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it lives");
    assert!(client.is_closed());
    assert_eq!(race(), 1);
    let mut client = Client::connect(&paths.socket).expect("a daemon");
    assert_ne!(pid_of(&mut client), first);
    let Wire::Array(held) = eval(&mut client, ASK, "l", &["me"]) else { panic!("no answer") };
    assert_eq!(held[0], bulk("1"));
    let Wire::Int(next) = eval(&mut client, DRAW, COUNTER, &[]) else { panic!("no number") };
    assert!(next > 1000, "after a crash the counter continues from its synced bound, not from {next}");
    assert_eq!(client.ask(&["REDLATCH", "SHUTDOWN", "FORCE"]), simple("OK"));
    assert!(client.is_closed());
}
