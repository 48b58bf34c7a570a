//! What processes leave that die while they use the local engine: real processes, killed. They are this very program once more.

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use redlatch::{Client, Lease, LockKind, Owner, Wait, blocking, scripts, store::DeadClientCleanup};
use redlatch_engine::{
    connect::LocalPaths,
    daemon::{self, DaemonConfig, ExitReason},
};

/// A lease that no test outlives: what is free before it ends was freed.
const LONG: Duration = Duration::from_secs(600);
/// How long anything may take before it counts as hanging.
const LIMIT: Duration = Duration::from_secs(28);
/// What a worker is to do, and where the engine lives.
const ORDER: &str = "REDLATCH_TEST_ORDER";
const DIR: &str = "REDLATCH_TEST_DIR";

/// The command, which holds the engine; `cargo test --workspace` has built it.
fn redlatch_command() -> PathBuf {
    let exe = env::current_exe().unwrap();
    exe.ancestors().nth(2).unwrap().join("redlatch")
}

fn connect(dir: &str) -> blocking::Client {
    let builder = Client::builder().url("local:").engine_binary(redlatch_command()).engine_dir(dir);
    blocking::Client::build(builder).unwrap()
}

/// An engine of one test; it is stopped at the end.
struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        Bed { dir: redlatch_testkit::dir::for_sockets("redlatch-dead-").unwrap() }
    }

    fn path(&self) -> String {
        self.dir.path().join("engine").display().to_string()
    }

    fn client(&self) -> blocking::Client {
        connect(&self.path())
    }

    /// Starts a worker and waits until it has done what it is to do. Answers what it says.
    fn worker(&self, order: &str) -> (Worker, String) {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "worker", "--ignored", "--nocapture"])
            .env(ORDER, order)
            .env(DIR, self.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = lines.find_map(|line| Some(line.unwrap().split_once("READY ")?.1.to_owned()));
        (Worker(child), said.expect("the worker gets ready"))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let mut stop = Command::new(redlatch_command());
        stop.args(["engine", "stop", "--force", "--dir", &self.path()]);
        _ = stop.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

struct Worker(Child);

impl Worker {
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Not a test: the process that dies. It does its order, says so, and waits for its end.
#[test]
#[ignore = "no test: the process that the tests here start, with --ignored, and kill"]
fn worker() {
    let order = env::var(ORDER).unwrap();
    let client = connect(&env::var(DIR).unwrap());
    let mut holds: Vec<Box<dyn std::any::Any>> = Vec::new();
    let mut said = String::from("-");
    for step in order.split(' ') {
        let (what, name) = step.split_once('=').unwrap();
        let wait = Wait::AtMost(LIMIT);
        macro_rules! take {
            ($lock:expr) => {{
                // A thread would be one owner for all of them.
                let owner = client.as_async().owner();
                let taken = $lock.acquire().owner(&owner).lease(Lease::Fixed(LONG)).wait(wait).run();
                taken.unwrap().expect("it is free")
            }};
        }
        match what {
            "plain" => holds.push(Box::new(take!(client.lock(name)))),
            "fair" => holds.push(Box::new(take!(client.fair_lock(name)))),
            "fenced" => holds.push(Box::new(take!(client.fenced_lock(name)))),
            "spin" => holds.push(Box::new(take!(client.spin_lock(name)))),
            "once" => holds.push(Box::new(take!(client.non_reentrant_lock(name)))),
            "read" => holds.push(Box::new(take!(client.read_write_lock(name).read()))),
            "write" => holds.push(Box::new(take!(client.read_write_lock(name).write()))),
            "both" => {
                let lock = client.read_write_lock(name);
                let write = take!(lock.write());
                holds.push(Box::new(write.read().unwrap()));
                holds.push(Box::new(write));
            }
            "shown" => {
                let owner = client.as_async().owner();
                said = owner.to_text();
                let taken = client.lock(name).acquire().owner(&owner).lease(Lease::Fixed(LONG)).run();
                holds.push(Box::new(taken.unwrap().unwrap()));
            }
            "permits" => {
                let permits = client.permit_semaphore(name);
                let taken = permits.request().permits(2).lease(Lease::Fixed(LONG)).wait(wait).run();
                holds.push(Box::new(taken.unwrap().expect("they are free")));
            }
            "kept" => {
                let permits = client.permit_semaphore(name);
                let taken = permits.request().lease(Lease::Fixed(LONG)).wait(wait).run().unwrap();
                said = taken.expect("it is free").detach().remove(0);
            }
            "told" => {
                let permits = client.permit_semaphore(name);
                let taken = permits
                    .request()
                    .lease(Lease::Fixed(LONG))
                    .wait(wait)
                    .run()
                    .unwrap()
                    .expect("it is free");
                said = taken.ids().remove(0);
                holds.push(Box::new(taken));
            }
            "detached" => {
                let held = take!(client.lock(name)).detach();
                said = held.owner.to_text();
            }
            "queue" => {
                let lock = client.fair_lock(name);
                holds.push(Box::new(std::thread::spawn(move || lock.lock().map(drop))));
            }
            "fork" => match fork::fork().unwrap() {
                fork::Fork::Child => {
                    std::thread::sleep(LIMIT);
                    std::process::exit(0)
                }
                fork::Fork::Parent(pid) => said = pid.to_string(),
            },
            other => panic!("{other}"),
        }
    }
    println!("READY {said}");
    let mut end = String::new();
    _ = std::io::stdin().read_to_string(&mut end);
}

fn free(client: &blocking::Client, name: &str) -> bool {
    client.lock(name).try_lock().unwrap().is_some()
}

#[test]
fn what_a_killed_process_held_goes_to_the_next_one_at_once() {
    let bed = Bed::new();
    let client = bed.client();
    for kind in ["plain", "fair", "fenced", "spin", "once"] {
        let (worker, _) = bed.worker(&format!("{kind}={kind}"));
        let waiting = client.clone();
        // One that waits already, and is told.
        let next = std::thread::spawn(move || match kind {
            "fair" => waiting.fair_lock(kind).lock_for(LIMIT).unwrap().is_some(),
            _ => waiting.lock(kind).lock_for(LIMIT).unwrap().is_some(),
        });
        worker.kill();
        assert!(next.join().unwrap(), "{kind}");
    }
    for (kind, order) in [("read", "read=a"), ("write", "write=b"), ("both", "both=c")] {
        let (worker, _) = bed.worker(order);
        let lock = client.read_write_lock(&order[order.len() - 1..]);
        assert!(lock.write().try_lock().unwrap().is_none(), "{kind}");
        let next = std::thread::spawn(move || lock.write().lock_for(LIMIT).unwrap().is_some());
        worker.kill();
        assert!(next.join().unwrap(), "{kind}");
    }
}

#[test]
fn readers_stay_when_another_reader_has_died() {
    let bed = Bed::new();
    let client = bed.client();
    let (worker, _) = bed.worker("read=rw plain=mark");
    let lock = client.read_write_lock("rw");
    let reading = lock.read().lock().unwrap();
    worker.kill();
    assert!(client.lock("mark").lock_for(LIMIT).unwrap().is_some(), "the worker's holds are gone");
    let other = bed.client().read_write_lock("rw");
    assert!(other.write().try_lock().unwrap().is_none(), "ours is not");
    reading.unlock().unwrap();
    assert!(other.write().try_lock().unwrap().is_some());
}

#[test]
fn a_place_in_a_queue_goes_with_its_process() {
    let bed = Bed::new();
    let client = bed.client();
    let held = client.fair_lock("turn").lock().unwrap();
    let waiting = || client.inspect("turn").unwrap().waiting;
    let (worker, _) = bed.worker("queue=turn plain=mark");
    while waiting() == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    worker.kill();
    assert!(client.lock("mark").lock_for(LIMIT).unwrap().is_some());
    assert_eq!(waiting(), 0);
    held.unlock().unwrap();
    assert!(client.fair_lock("turn").try_lock().unwrap().is_some());
}

#[test]
fn a_detached_hold_outlives_its_process() {
    let bed = Bed::new();
    let client = bed.client();
    let (worker, owner) = bed.worker("detached=kept plain=mark");
    worker.kill();
    assert!(client.lock("mark").lock_for(LIMIT).unwrap().is_some(), "what was not detached is free");
    assert!(!free(&client, "kept"));
    assert_eq!(client.inspect("kept").unwrap().holders[0].owner, owner);
}

/// Their ids named nobody, so their lease decided.
#[test]
fn the_permits_of_a_killed_process_are_free_at_once() {
    let bed = Bed::new();
    let client = bed.client();
    for name in ["few", "in{a}tag", "{braced}"] {
        let permits = client.permit_semaphore(name);
        assert!(permits.set_if_absent(3).unwrap());
        let kept = permits.acquire().unwrap();
        let (worker, _) = bed.worker(&format!("permits={name}"));
        assert_eq!(permits.available().unwrap(), 0, "{name}");
        let waiting = permits.clone();
        let next = std::thread::spawn(move || {
            let both = waiting.request().permits(2).wait(Wait::AtMost(LIMIT)).run().unwrap();
            both.map(|both| both.release().unwrap())
        });
        worker.kill();
        assert!(next.join().unwrap().is_some(), "{name}");
        assert!(kept.is_valid());
        assert_eq!((permits.available().unwrap(), permits.total().unwrap()), (2, 3), "{name}");
    }
}

#[test]
fn permits_that_others_count_on_outlive_their_process() {
    let bed = Bed::new();
    let client = bed.client();
    let [detached, told] = ["detached", "told"].map(|name| client.permit_semaphore(name));
    for permits in [&detached, &told] {
        assert!(permits.set_if_absent(1).unwrap());
    }
    let (first, _) = bed.worker("kept=detached plain=first");
    let (second, id) = bed.worker("told=told plain=second");
    // Another process has it from now on.
    assert!(told.update_lease(&id, LONG).unwrap());
    first.kill();
    second.kill();
    for mark in ["first", "second"] {
        assert!(client.lock(mark).lock_for(LIMIT).unwrap().is_some(), "what was the worker's alone is free");
    }
    assert_eq!((detached.available().unwrap(), told.available().unwrap()), (0, 0));
    told.release(&id).unwrap();
    assert_eq!(told.available().unwrap(), 1);
}

#[test]
fn what_another_process_holds_under_the_owner_stays() {
    let bed = Bed::new();
    let client = bed.client();
    let (worker, owner) = bed.worker("shown=theirs plain=mark");
    let owner: Owner = owner.parse().unwrap();
    let ours = client.lock("ours").acquire().owner(&owner).run().unwrap().unwrap();
    worker.kill();
    assert!(client.lock("mark").lock_for(LIMIT).unwrap().is_some(), "what is the worker's alone is free");
    assert!(!free(&client, "ours") && ours.is_valid());
    // Nobody can tell whose that is, so its lease decides.
    assert!(!free(&client, "theirs"));
}

/// A process that only asked whether another one holds a lock kept that hold until its lease had ended.
#[test]
fn a_look_at_what_a_process_holds_is_no_use_of_it() {
    let bed = Bed::new();
    let client = bed.client();
    let (worker, owner) = bed.worker("shown=theirs");
    let owner: Owner = owner.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (lock, sides) = (client.as_async().lock("theirs"), client.as_async().read_write_lock("sides"));
        assert!(lock.is_held_by(&owner).await.unwrap());
        assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
        assert!(!sides.read().is_held_by(&owner).await.unwrap());
        assert!(!sides.write().is_held_by(&owner).await.unwrap());
    });
    worker.kill();
    assert!(client.lock("theirs").lock_for(LIMIT).unwrap().is_some(), "it is free at once");
}

#[test]
fn a_forked_child_keeps_what_its_parent_held() {
    let bed = Bed::new();
    let client = bed.client();
    let (worker, child) = bed.worker("plain=kept fork=child");
    worker.kill();
    let busy = client.lock("kept").lock_for(Duration::from_secs(1)).unwrap();
    assert!(busy.is_none(), "its copy of the lifeline is open");
    let child = rustix::process::Pid::from_raw(child.parse().unwrap()).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    assert!(client.lock("kept").lock_for(LIMIT).unwrap().is_some());
}

#[test]
fn a_client_that_goes_in_order_frees_nothing_else() {
    let bed = Bed::new();
    let client = bed.client();
    let owner = client.as_async().owner();
    let kept = client.lock("kept").acquire().owner(&owner).lease(Lease::Fixed(LONG)).run();
    let kept = kept.unwrap().unwrap();
    let held = kept.detach();
    drop((client, held));
    let other = bed.client();
    // An engine that had freed it would have done so with what it was told before this.
    let (worker, _) = bed.worker("plain=mark");
    worker.kill();
    assert!(other.lock("mark").lock_for(LIMIT).unwrap().is_some());
    assert!(!free(&other, "kept"));
    assert_eq!(other.inspect("kept").unwrap().kind, LockKind::Lock);
}

#[test]
fn an_engine_that_is_killed_frees_nothing_and_the_next_one_frees_what_is_new() {
    let bed = Bed::new();
    let (client, ours) = (bed.client(), bed.client());
    let (worker, _) = bed.worker("plain=old");
    let held = ours.lock("ours").lock().unwrap();
    let status = Command::new(redlatch_command())
        .args(["engine", "status", "-o", "json", "--dir", &bed.path()])
        .output()
        .unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    let pid = status.split("\"pid\":").nth(1).unwrap().split(',').next().unwrap().trim().to_owned();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    assert!(!free(&client, "ours") && !free(&client, "old"));
    worker.kill();
    let (worker, _) = bed.worker("plain=new");
    worker.kill();
    assert!(client.lock("new").lock_for(LIMIT).unwrap().is_some());
    assert!(!free(&client, "old"), "its lease ends what was held before");
    assert!(!free(&client, "ours") && held.is_valid());
}

/// An engine in this process, in the run of the machine that has this name, which takes every command.
fn engine_of_boot(dir: &str, boot: &str) -> (std::thread::JoinHandle<ExitReason>, PathBuf) {
    let paths = LocalPaths::in_dir(dir.into(), None).unwrap();
    let mut config = DaemonConfig::new(paths.socket.clone(), paths.dir, scripts::EPOCH);
    config.allowed_scripts = scripts::ALL.iter().map(|script| (script.name(), script.source())).collect();
    config.undertaker = Some(Box::new(DeadClientCleanup));
    config.compat = true;
    config.boot_id = boot.to_owned();
    let (ready, is_ready) = mpsc::channel();
    config.ready = Some(Box::new(move || ready.send(()).unwrap()));
    let engine = std::thread::spawn(move || daemon::run(config).unwrap());
    is_ready.recv_timeout(LIMIT).unwrap();
    (engine, paths.socket)
}

/// Sends one command, and answers the first line of the reply.
fn ask(socket: &Path, words: &[&str]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let words: Vec<String> = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    write!(stream, "*{}\r\n{}", words.len(), words.concat()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn nothing_that_was_held_or_waited_for_outlives_a_restart_of_the_machine() {
    let bed = Bed::new();
    let (engine, socket) = engine_of_boot(&bed.path(), "one");
    let names = ["few", "in{a}tag", "{braced}"];
    {
        let client = bed.client();
        for name in names {
            assert!(client.permit_semaphore(name).set_if_absent(3).unwrap());
        }
        assert!(client.semaphore("plain").set_if_absent(2, None).unwrap());
    }
    // They outlive their process, and so nothing but the restart frees them.
    let (worker, _) = bed.worker("detached=held kept=few kept=in{a}tag kept={braced}");
    worker.kill();
    // One without an end, as Java takes it; one in the digits of older releases.
    let taken =
        [("922337203685477", "0123456789abcdef"), ("922337203685477", "00112233445566778899aabbccddeeff")];
    for (ends, id) in taken {
        assert_eq!(ask(&socket, &["DECRBY", "few", "1"]).as_bytes()[0], b':');
        assert_eq!(ask(&socket, &["ZADD", "{few}:timeout", ends, id]), ":1");
    }
    // A waiter that has died with the machine, one without a time, and what is no permit though its key ends so.
    let place = "7a1e8d2c-0f0e-4ed1-a7c4-0123456789ab:1";
    for name in ["{turn}", "{lost}"] {
        assert_eq!(ask(&socket, &["RPUSH", &format!("redisson_lock_queue:{name}"), place]), ":1");
    }
    assert_eq!(ask(&socket, &["ZADD", "redisson_lock_timeout:{turn}", "99999999999999", place]), ":1");
    assert_eq!(ask(&socket, &["ZADD", "jobs:timeout", "5", "a job"]), ":1");
    assert_eq!(ask(&socket, &["REDLATCH", "SHUTDOWN", "FORCE"]), "+OK");
    engine.join().unwrap();

    let (engine, socket) = engine_of_boot(&bed.path(), "two");
    {
        let client = bed.client();
        for name in names {
            let permits = client.permit_semaphore(name);
            assert_eq!((permits.available().unwrap(), permits.total().unwrap()), (3, 3), "{name}");
        }
        assert!(free(&client, "held"));
        for name in ["turn", "lost"] {
            assert!(client.fair_lock(name).try_lock().unwrap().is_some(), "{name}");
        }
        assert_eq!(client.semaphore("plain").available().unwrap(), 2);
    }
    assert_eq!(ask(&socket, &["ZCARD", "jobs:timeout"]), ":1");
    assert_eq!(ask(&socket, &["REDLATCH", "SHUTDOWN", "FORCE"]), "+OK");
    engine.join().unwrap();
    // What it gave back is in its journal.
    let (engine, socket) = engine_of_boot(&bed.path(), "two");
    assert_eq!(bed.client().permit_semaphore("few").available().unwrap(), 3);
    assert_eq!(ask(&socket, &["REDLATCH", "SHUTDOWN", "FORCE"]), "+OK");
    engine.join().unwrap();
}
