//! Who has the place of a daemon: its socket, its lock file, its journal.

use super::*;

#[test]
fn a_second_daemon_on_the_same_socket_is_refused() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let daemon = Daemon::start(config(&paths));
    assert_eq!(run(config(&paths)).expect_err("one serves already").kind(), DaemonErrorKind::AlreadyRunning);
    assert_eq!(daemon.client().ask(&["PING"]), simple("PONG"));
    daemon.stop();
}

/// Deletes lock file and socket of a daemon and starts another one. The first looks for its files each second: it makes them again and
/// stays when it looks before the other one has locked its own, and they are deleted once more.
fn take_the_place(paths: &LocalPaths) -> Daemon {
    let files = [paths.socket.with_extension("engine"), paths.socket.clone()];
    for _ in 0..20 {
        for file in &files {
            std::fs::remove_file(file).expect("it is there");
        }
        if let Ok(second) = Daemon::try_start(config(paths)) {
            return second;
        }
        let began = std::time::Instant::now();
        while !files.iter().all(|file| file.exists()) {
            assert!(began.elapsed() < Duration::from_secs(20), "the files are not made again");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    panic!("the first daemon looked before the second one each time");
}

/// Both served for ever, and each took the other one's socket away.
#[test]
fn a_daemon_whose_lock_file_was_deleted_and_taken_serves_nobody() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let first = Daemon::start(config(&paths));
    eval(&mut first.client(), TAKE, "l", &["me", "60000"]);
    let second = take_the_place(&paths);
    assert_eq!(first.wait(), ExitReason::Displaced);
    // It has read the journal, and nobody takes its socket away.
    let Wire::Array(held) = eval(&mut second.client(), ASK, "l", &["me"]) else { panic!("no answer") };
    assert_eq!(held[0], bulk("1"));
    second.stop();
}

/// It removed the socket of the one that had taken its place, when it was told to end before it had found that out.
#[test]
fn a_daemon_that_ends_leaves_the_socket_of_the_one_that_has_taken_its_place() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let first = Daemon::start(config(&paths));
    let mut client = first.client();
    assert_eq!(client.ask(&["PING"]), simple("PONG"));
    let second = take_the_place(&paths);
    let socket = || std::fs::symlink_metadata(&paths.socket).map(|found| found.ino()).ok();
    let before = socket();
    // Unless it has found it out by now.
    let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        client.ask(&["REDLATCH", "SHUTDOWN", "FORCE"])
    }));
    let reason = first.wait();
    assert!(asked.is_ok() || reason == ExitReason::Displaced, "{reason:?}");
    // At once: the other one makes it again a second later.
    assert_eq!(socket(), before, "{reason:?}");
    second.stop();
}

#[test]
fn a_second_daemon_is_refused_though_the_lock_file_was_deleted() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let daemon = Daemon::start(config(&paths));
    let claim = paths.socket.with_extension("engine");
    std::fs::remove_file(&claim).expect("it is there");
    assert_eq!(run(config(&paths)).expect_err("one serves already").kind(), DaemonErrorKind::AlreadyRunning);
    assert_eq!(daemon.client().ask(&["PING"]), simple("PONG"));
    daemon.stop();
}

/// The next daemon knew nothing of what was held.
#[test]
fn a_journal_that_is_deleted_under_a_daemon_is_made_again() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let daemon = Daemon::start(config(&paths));
    eval(&mut daemon.client(), TAKE, "l", &["me", "60000"]);
    let files = ["journal", "leases"].map(|extension| paths.socket.with_extension(extension));
    for gone in [&files[..1], &files[1..], &files[..]] {
        for file in gone {
            std::fs::remove_file(file).expect("it is there");
        }
        let began = std::time::Instant::now();
        while !files.iter().all(|file| file.exists()) {
            assert!(began.elapsed() < Duration::from_secs(20), "{gone:?} is not made again");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // What a crash would leave.
    let copy = support::dir();
    let elsewhere = self::paths(copy.path());
    std::fs::create_dir(&elsewhere.dir).expect("a directory");
    std::fs::set_permissions(&elsewhere.dir, PermissionsExt::from_mode(0o700)).expect("a mode");
    for file in &files {
        std::fs::copy(file, elsewhere.dir.join(file.file_name().expect("a name"))).expect("a copy");
    }
    let next = Daemon::start(config(&elsewhere));
    let Wire::Array(held) = eval(&mut next.client(), ASK, "l", &["me"]) else { panic!("no answer") };
    assert_eq!(held[0], bulk("1"));
    next.stop();
    daemon.stop();
}

#[test]
fn a_daemon_that_never_gets_ready_is_an_error() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let ends = |_: &LocalPaths| Ok(Command::new("true"));
    let error = ensure_running(&paths, &ends, Duration::from_secs(10)).expect_err("it ended");
    assert_eq!(error.kind(), ConnectErrorKind::NotReady);
    let tells = |_: &LocalPaths| {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'redlatch: No space left on device (os error 28)' >&2; exit 78"]);
        Ok(command)
    };
    let error = ensure_running(&paths, &tells, Duration::from_secs(10)).expect_err("it ended");
    assert!(error.to_string().contains("No space left"), "{error}");
    let hangs = |_: &LocalPaths| {
        let mut command = Command::new("sleep");
        command.arg("60");
        Ok(command)
    };
    let error = ensure_running(&paths, &hangs, Duration::from_millis(200)).expect_err("it hangs");
    assert_eq!(error.kind(), ConnectErrorKind::NotReady);
}

#[test]
fn names_and_paths_are_checked() {
    for bad in ["", "a/b", "..", "a b", &"x".repeat(65)] {
        assert_eq!(
            LocalPaths::in_dir("/tmp".into(), Some(bad)).expect_err(bad).kind(),
            ConnectErrorKind::Name
        );
    }
    let deep = PathBuf::from(format!("/{}", "d".repeat(90)));
    assert_eq!(LocalPaths::in_dir(deep, None).expect_err("too long").kind(), ConnectErrorKind::Name);
}

/// Two engines deleted each other's socket for ever, each granting what the other one had granted.
#[test]
fn a_socket_whose_journal_is_elsewhere_has_one_engine() {
    let dir = support::dir();
    let paths = paths(dir.path());
    let mut apart = config(&paths);
    apart.dir = dir.path().join("journal");
    let again = |dir: &Path| {
        let mut config = config(&paths);
        config.dir = dir.to_owned();
        config
    };
    let daemon = Daemon::start(apart);
    // The clients' way to start one, and another place.
    for other in [&paths.dir, &dir.path().join("third")] {
        let refused = Daemon::try_start(again(other)).map(drop).unwrap_err();
        assert_eq!(refused.kind(), DaemonErrorKind::AlreadyRunning, "{refused}");
    }
    assert!(paths.is_claimed(), "clients wait for it and start no other");
    daemon.stop();
    // Its holds are in its journal, so no other engine serves their clients.
    let refused = Daemon::try_start(again(&paths.dir)).map(drop).unwrap_err();
    assert_eq!(refused.kind(), DaemonErrorKind::Config, "{refused}");
    assert!(refused.to_string().contains("journal in"), "{refused}");
    Daemon::start(again(&dir.path().join("journal"))).stop();
}
