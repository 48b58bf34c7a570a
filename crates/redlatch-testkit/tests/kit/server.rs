//! Real servers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;
use redlatch_testkit::leftovers::LeftoverCheck;
use redlatch_testkit::server::{KeyContent, RedisServer, ServerProgram, TlsFiles, keyspace_diff};
use redlatch_testkit::{ErrorKind, assert_keyspace};

use crate::client::{Client, LIMIT};

#[test]
fn restarts_on_the_same_port_with_and_without_data() {
    let server = RedisServer::builder().appendonly(true).start().unwrap();
    let (url, pid) = (server.url(), server.pid());
    assert_eq!(Client::tcp(&url).unwrap().call(&["SET", "k", "v"]), "+OK");
    server.kill9();
    assert_eq!(server.pid(), 0);
    assert!(Client::tcp(&url).is_err());
    server.restart().unwrap();
    assert_ne!(server.pid(), pid);
    assert_eq!(Client::tcp(&url).unwrap().call(&["GET", "k"]), "$1 v");
    server.restart_empty().unwrap();
    assert_eq!(Client::tcp(&url).unwrap().call(&["GET", "k"]), "$-1");
    assert_eq!(Client::unix(&server.unix_url()).unwrap().call(&["PING"]), "+PONG");
    let dir = server.dir().to_owned();
    drop(server);
    assert!(!dir.exists());
}

#[test]
fn pause_and_resume() {
    let server = RedisServer::start().unwrap();
    let mut client = Client::tcp(&server.url()).unwrap();
    server.pause().unwrap();
    client.send(&["PING"]);
    client.assert_silent();
    server.resume().unwrap();
    assert_eq!(client.read(), "+PONG");
    server.pause().unwrap();
    // Dropping a paused server must not wait for it in vain.
}

#[test]
fn passwords_and_users_do_not_lock_the_kit_out() {
    let server = RedisServer::builder()
        .requirepass("top \"s3cret\"")
        .acl("alice on >pw ~a:* &* +get")
        .start()
        .unwrap();
    let mut client = Client::tcp(&server.url()).unwrap();
    assert!(client.call(&["GET", "a:1"]).starts_with("-NOAUTH"));
    assert_eq!(client.call(&["AUTH", "alice", "pw"]), "+OK");
    assert_eq!(client.call(&["GET", "a:1"]), "$-1");
    assert!(client.call(&["GET", "b:1"]).starts_with("-NOPERM"));
    let mut by_url = redis::Client::open(server.url_with_password()).unwrap().get_connection().unwrap();
    assert_eq!(redis::cmd("PING").query::<String>(&mut by_url).unwrap(), "PONG");
    assert_eq!(server.cmd(&["DBSIZE"]).unwrap(), Value::Int(0));
    assert!(!format!("{server:?}{:?}", RedisServer::builder().requirepass("s3cret")).contains("s3cret"));
}

/// What `openssl` says about a connection, after one command over it.
fn tls_talk(server: &RedisServer, files: &TlsFiles, with_certificate: bool) -> (bool, String) {
    let mut command = std::process::Command::new("openssl");
    command.args(["s_client", "-verify_return_error", "-brief", "-verify_ip", "127.0.0.1", "-ign_eof"]);
    command.arg("-connect").arg(format!("127.0.0.1:{}", server.port())).arg("-CAfile").arg(&files.ca_cert);
    if with_certificate {
        command.arg("-cert").arg(&files.client_cert).arg("-key").arg(&files.client_key);
    }
    use std::process::Stdio;
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    // Without a certificate the server may have hung up already.
    let _ = std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"PING\r\nQUIT\r\n");
    let output = child.wait_with_output().unwrap();
    let shown = [output.stderr, output.stdout].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.success(), shown.join("\n"))
}

#[test]
fn tls_server_shows_its_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles::create(dir.path()).unwrap();
    let server = RedisServer::builder().tls(&files).start().unwrap();
    assert!(server.url().starts_with("rediss://"));
    for with_certificate in [true, false] {
        let (ok, shown) = tls_talk(&server, &files, with_certificate);
        assert!(ok && shown.contains("Verification: OK") && shown.contains("+PONG"), "{shown}");
    }
}

#[test]
fn mutual_tls_wants_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles::create(dir.path()).unwrap();
    for program in ServerProgram::ALL.into_iter().filter(|program| program.has_tls()) {
        let server = RedisServer::builder().program(program).mutual_tls(&files).start().unwrap();
        let (_, shown) = tls_talk(&server, &files, true);
        assert!(shown.contains("Verification: OK") && shown.contains("+PONG"), "{program}: {shown}");
        let (_, shown) = tls_talk(&server, &files, false);
        assert!(!shown.contains("+PONG"), "{program}: {shown}");
    }
}

#[test]
fn keyspace_is_compared_whole() {
    let server = RedisServer::start().unwrap();
    for args in [
        &["HSET", "lock", "owner:1", "2"][..],
        &["PEXPIRE", "lock", "30000"],
        &["ZADD", "queue", "2", "b", "1", "a"],
        &["RPUSH", "list", "x", "y"],
        &["SADD", "set", "m"],
        &["SET", "token", "7"],
    ] {
        server.cmd(args).unwrap();
    }
    let lock = || KeyContent::hash([("owner:1", "2")]);
    assert_keyspace!(
        server,
        tolerance_ms = 10_000,
        [
            ("lock", lock(), Some(30_000)),
            ("queue", KeyContent::sorted_set([("a", "1"), ("b", "2")]), None),
            ("list", KeyContent::list(["x", "y"]), None),
            ("set", KeyContent::set(["m"]), None),
            ("token", KeyContent::string("7"), None),
        ]
    );
    let dump = server.keys_dump().unwrap();
    let diff = |key: &[u8], content, ttl, tolerance| {
        keyspace_diff(&dump, &[(key, content, ttl)], tolerance)
            .iter()
            .filter(|l| !l.starts_with("unexp"))
            .count()
    };
    assert_eq!(diff(b"lock", lock(), Some(30_000), 10_000), 0);
    assert_eq!(diff(b"lock", lock(), Some(20_000), 1_000), 1, "lives too long");
    assert_eq!(diff(b"lock", lock(), Some(50_000), 1_000), 1, "lives too short");
    assert_eq!(diff(b"lock", lock(), None, 1_000), 1, "must not expire");
    assert_eq!(diff(b"lock", KeyContent::hash([("owner:1", "1")]), Some(30_000), 10_000), 1);
    assert_eq!(diff(b"none", lock(), None, 0), 1);
    assert_eq!(keyspace_diff(&dump, &[], 0).len(), 5);
}

#[test]
fn counts_commands_and_forgets_scripts() {
    let server = RedisServer::start().unwrap();
    let sha = match server.cmd(&["SCRIPT", "LOAD", "return 1"]).unwrap() {
        Value::BulkString(sha) => sha,
        other => panic!("{other:?}"),
    };
    server.reset_command_counts().unwrap();
    for _ in 0..3 {
        server.cmd(&[b"EVALSHA".as_slice(), &sha, b"0"]).unwrap();
    }
    assert_eq!((server.command_count("evalsha").unwrap(), server.command_count("eval").unwrap()), (3, 0));
    server.flush_scripts().unwrap();
    let error = server.cmd(&[b"EVALSHA".as_slice(), &sha, b"0"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert!(error.to_string().contains("EVALSHA"), "{error}");
}

#[test]
fn leftovers_are_named_and_waited_for() {
    let server = RedisServer::start().unwrap();
    let mut client = Client::tcp(&server.url()).unwrap();
    client.call(&["SUBSCRIBE", "channel:{job}"]);
    server.cmd(&["SET", "queue:{job}", "x"]).unwrap();
    server.cmd(&["SET", "other", "x"]).unwrap();
    let check = LeftoverCheck::new(&server, "{job}").clients_max(0);
    let found = check.look().unwrap();
    assert_eq!(found.len(), 3, "{found:?}");
    let message = std::panic::catch_unwind(|| check.assert_clean(Duration::from_millis(20))).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.contains("key queue:{job} (string, no expiry)"), "{message}");
    assert!(message.contains("channel channel:{job}") && message.contains("client "), "{message}");
    server.cmd(&["PEXPIRE", "queue:{job}", "50"]).unwrap();
    drop(client);
    check.assert_clean(LIMIT);
}

#[test]
fn a_server_that_cannot_start_shows_its_log() {
    let error = RedisServer::builder().arg("maxmemory-policy", "nonsense").start().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Start);
    let server = RedisServer::start().unwrap();
    let taken = RedisServer::builder().port(server.port()).start().unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Io, "{taken}");
}

#[test]
fn a_server_with_its_own_clock_takes_steps_and_rates() {
    let ms = |server: &RedisServer| {
        let Value::Array(parts) = server.cmd(&["TIME"]).unwrap() else { panic!("no time") };
        let [seconds, us]: [i64; 2] = [0, 1].map(|at| redis::from_redis_value(parts[at].clone()).unwrap());
        seconds * 1_000 + us / 1_000
    };
    let machine_ms = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    // How far the server is ahead at most and at least; a busy machine makes this wide and not wrong.
    let ahead_ms = |server: &RedisServer| {
        let before = machine_ms();
        let there = ms(server);
        (there - machine_ms(), there - before + 1)
    };
    let server = RedisServer::builder().own_clock().start().unwrap();
    let (least, most) = ahead_ms(&server);
    assert!(least <= 0 && most >= 0, "the machine's at first: {least} to {most}");
    server.cmd(&["SET", "key", "x", "PX", "60000"]).unwrap();
    server.set_clock(-3_600_000, None).unwrap();
    let (least, most) = ahead_ms(&server);
    assert!(least <= -3_600_000 && most >= -3_600_000, "{least} to {most}");
    let Value::Int(ttl) = server.cmd(&["PTTL", "key"]).unwrap() else { panic!("no time to live") };
    assert!(ttl > 3_600_000, "{ttl}");
    // Twice as fast for a while; what it gained stays.
    let start = machine_ms();
    server.set_clock(3_600_000, Some(1_000_000)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    server.set_clock(0, Some(0)).unwrap();
    // Three readings in whole milliseconds.
    let took = machine_ms() - start + 3;
    let (least, most) = ahead_ms(&server);
    assert!(most >= 200 && least <= took, "gained {least} to {most} in {took}");
    server.restart().unwrap();
    let (least, most) = ahead_ms(&server);
    assert!(most >= 200 && least <= took, "the same after a restart: {least} to {most}");
    let plain = RedisServer::start().unwrap();
    assert_eq!(plain.set_clock(1, None).unwrap_err().kind(), ErrorKind::Io);
}
