//! Twelve incidents on a real server, with Java among those who hold and wait: each is named with its cause and the one responsible, by `why`, on the page
//! of `serve` and on the screen of `top`. With `REDLATCH_INCIDENTS` set to a directory each test leaves there what was to be seen (`scripts/incidents`).

use std::{fs, sync::mpsc, thread, time::Instant};

use redlatch::Client;
use redlatch_testkit::{
    redisson::{Connection, Redisson, RedissonVersion},
    server::RedisServer,
    topology::SentinelSet,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    serve::Serve,
    support::{LEASE, LIMIT, Place, Running, both, eventually},
    top::Top,
};

/// What is said there is what is to be seen.
const DOCUMENT: &str = include_str!("../../../../docs/operating.md");
/// A wait of ten of these is long.
const SHORT: &str = "150ms";

/// Where an incident is staged.
struct Stage {
    place: Place,
    title: &'static str,
}

impl Stage {
    fn on(title: &'static str, url: &str) -> Self {
        let mut place = Place::local();
        place.set_url(url);
        place.set("REDLATCH_LEASE", SHORT);
        Stage { place, title }
    }

    /// Everything that is to be seen has these words in it, in any place, and so has the document.
    #[track_caller]
    fn is_named(&self, name: &str, words: &[&str]) {
        let document = squeezed(DOCUMENT);
        for word in words {
            assert!(document.contains(&squeezed(word)), "docs/operating.md has no {word:?}");
        }
        self.is_seen(name, words);
    }

    #[track_caller]
    fn is_seen(&self, name: &str, words: &[&str]) {
        let has = |text: &str| {
            let text = squeezed(text);
            words.iter().all(|word| text.contains(&squeezed(word)))
        };
        let why = until(&format!("why {name}: {words:?}"), || {
            let output = self.place.output(["why", name]);
            assert!(output.status.success(), "{output:?}");
            let told = both(&output);
            if has(&told) { Ok(told) } else { Err(told) }
        });
        let serve = Serve::start(&self.place, &["--interval", "100ms"]);
        until(&format!("the page of alarms: {words:?}"), || {
            let page = serve.page("/alarms");
            let text = page.replace("&quot;", "\"").replace("&amp;", "&").replace("&#39;", "'");
            if has(&text) { Ok(()) } else { Err(text) }
        });
        let mut top = Top::start(&self.place, "env");
        top.until(&["redlatch  "]);
        top.press("4");
        let screen = until(&format!("top: {words:?}"), || {
            let screen = top.screen();
            if has(&screen) { Ok(screen) } else { Err(screen) }
        });
        top.press("q");
        assert_eq!(top.end().0.code(), Some(0));
        if let Some(dir) = std::env::var_os("REDLATCH_INCIDENTS") {
            let text = format!("$ redlatch why {name}\n{why}\n$ redlatch top     (4)\n{screen}\n");
            fs::write(std::path::Path::new(&dir).join(self.title), text).unwrap();
        }
    }

    /// The owner of a hold whose client tells of it by now.
    fn told_holder(&self, name: &str) -> String {
        eventually("its record", || {
            let holder = &self.place.show(name)["holders"][0];
            holder["client"].is_object().then(|| holder["owner"].as_str().unwrap().to_owned())
        })
    }

    /// A run that waits for as long as the test lasts.
    fn waiter(&self, arguments: &[&str]) -> Running {
        self.place.start([&["run"], arguments, &["-w", "1h", "--", "true"]].concat())
    }
}

/// Without blanks and ends of lines: a screen breaks lines where it must.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(Instant::now() < deadline, "{what} was never seen in:\n{seen}"),
        }
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn java(server: &RedisServer) -> Redisson {
    Redisson::start_with(RedissonVersion::Newest, &Connection::single(&server.url())).unwrap()
}

#[test]
fn a_holder_that_is_stuck() {
    let server = RedisServer::start().unwrap();
    let stage = Stage::on("01 stuck holder", &server.url());
    let _stuck = stage.place.holder("import", &["--lease", LEASE, "--why", "nightly import"]);
    let _waits = stage.waiter(&["import"]);
    stage.is_named(
        "import",
        &[
            "long wait: \"import\"",
            "true@",
            "has waited for",
            "it is held for",
            "by sh@",
            "because nightly import",
        ],
    );
    stage.place.end("import");
}

#[test]
fn a_holder_that_has_crashed() {
    let server = RedisServer::start().unwrap();
    let stage = Stage::on("02 crashed holder", &server.url());
    let crashed = stage.place.holder("deploy", &["--lease", "10m", "--why", "release 7"]);
    let owner = stage.told_holder("deploy");
    crashed.signal(Signal::KILL);
    // Forty seconds go by: it lasts for a minute.
    server.cmd(&["PEXPIRE", &format!("redlatch:client:{{{}}}", &owner[..36]), "20000"]).unwrap();
    stage.is_named(
        "deploy",
        &[
            "silent holder: \"deploy\"",
            "nothing was heard for 4",
            "of sh@",
            "it has died or hangs",
            "the lease ends in 9",
        ],
    );
}

#[test]
fn a_waiter_of_a_fair_queue_that_has_died_behind_a_java_holder() {
    let server = RedisServer::start().unwrap();
    let stage = Stage::on("03 dead waiter in a fair queue", &server.url());
    let java = java(&server);
    java.thread(1).call("fair.lock", &["queue"]).unwrap();
    let dead = stage.waiter(&["queue", "--fair"]);
    eventually("its place and its record", || {
        let output = stage.place.output(["why", "queue", "-o", "json"]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let waits = told["names"][0]["waiting"].as_array()?.len();
        (waits == 1 && stage.place.show("queue")["waiting"] == 1).then_some(())
    });
    dead.signal(Signal::KILL);
    // As if its time, the lease of the holder and some minutes, had gone by.
    let place = stage.place.show("queue")["waiters"][0]["owner"].as_str().unwrap().to_owned();
    server.cmd(&["ZADD", "redisson_lock_timeout:{queue}", "1", &place]).unwrap();
    stage.is_named(
        "queue",
        &["queue: \"queue\": true@", "is first in the queue and overdue", "has died or hangs"],
    );
}

#[test]
fn a_circle_of_waits_over_three_services() {
    let server = RedisServer::start().unwrap();
    let stage = Stage::on("04 circle over three services", &server.url());
    let service = |name: &str, other: &str| {
        let script = format!(
            "touch {name}.held; while [ ! -e a.held ] || [ ! -e b.held ] || [ ! -e c.held ]; do sleep 0.02; done; exec redlatch run {other} -w 1h -- true"
        );
        stage.place.start(["run", name, "--lease", LEASE, "--", "sh", "-c", &script])
    };
    let _circle = [service("a", "b"), service("b", "c"), service("c", "a")];
    stage.is_named("a", &["deadlock", "waits for \"a\"", "waits for \"b\"", "waits for \"c\"", "sh@"]);
}

#[test]
fn a_lock_that_is_lost_by_a_failover() {
    let set = SentinelSet::start().unwrap();
    let stage = Stage::on("05 lost by a failover", &set.url());
    let master = set.master().unwrap();
    for replica in set.replicas().unwrap() {
        set.stall_replication(replica).unwrap();
    }
    let holder = stage.place.holder("migrate", &["--lease", LEASE, "--why", "schema 42"]);
    stage.told_holder("migrate");
    set.node(master).kill9();
    let output = holder.finish();
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    stage.is_named(
        "migrate",
        &[
            "lost: \"migrate\"",
            "by sh@",
            "because schema 42",
            "another server process has taken over",
            "the client has ended",
        ],
    );
}

#[test]
fn a_lock_that_a_person_has_forced_free() {
    let server = RedisServer::start().unwrap();
    let stage = Stage::on("06 forced free by a person", &server.url());
    let holder = stage.place.holder("report", &["--lease", LEASE, "--why", "month end"]);
    let owner = stage.told_holder("report");
    let forced = stage.place.output([
        "force-unlock",
        "--yes",
        "report",
        "--owner",
        &owner,
        "--by",
        "anna",
        "--reason",
        "hangs since noon",
    ]);
    assert!(forced.status.success(), "{forced:?}");
    holder.finish();
    stage.is_named(
        "report",
        &["lost: \"report\"", "by sh@", "forced free by anna: hangs since noon", "the client has ended"],
    );
}

#[test]
fn an_entry_that_was_never_given_back() {
    let server = RedisServer::start().unwrap();
    let stage = Stage::on("07 leaked re-entry", &server.url());
    let script =
        "exec redlatch run entered --lease 6s -- sh -c 'while [ ! -e entered.end ]; do sleep 0.02; done'";
    let _entered = stage.place.start(["run", "entered", "--lease", LEASE, "--", "sh", "-c", script]);
    stage.is_named(
        "entered",
        &["re-entry: \"entered\": entered 2 times", "by sh@", "a release may be missing"],
    );
    stage.place.end("entered");
}

#[test]
fn a_lock_without_a_time_to_live() {
    let server = RedisServer::start().unwrap();
    let stage = Stage::on("08 lock without a time to live", &server.url());
    server.cmd(&["HSET", "never", "1b671a64-40d5-491e-99b0-da01ff1f3341:7", "1"]).unwrap();
    stage.is_named(
        "never",
        &[
            "lock state: \"never\"",
            "no TTL",
            "something other than a lock client wrote the key",
            "1b671a64-40d5-491e-99b0-da01ff1f3341:7",
        ],
    );
}

#[test]
fn a_herd_of_waiters() {
    const HERD: usize = 100;
    let server = RedisServer::start().unwrap();
    let stage = Stage::on("09 thundering herd", &server.url());
    let _holder = stage.place.holder("ticket", &["--lease", LEASE, "--why", "sale"]);
    let (end, ended) = mpsc::channel::<()>();
    let url = server.url();
    let herd = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let waits: Vec<_> = (0..HERD)
            .map(|_| {
                let url = url.clone();
                runtime.spawn(async move {
                    let client = Client::connect(&url).await.unwrap();
                    client.lock("ticket").lock().await.map(drop)
                })
            })
            .collect();
        runtime.block_on(async {
            while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        drop(waits);
    });
    stage.is_named(
        "ticket",
        &["herd: \"ticket\": 100 clients listen", "each release wakes all of them", "by sh@", "because sale"],
    );
    drop(end);
    herd.join().unwrap();
    stage.place.end("ticket");
}

#[test]
fn a_writer_that_starves_behind_java_readers() {
    let server = RedisServer::start().unwrap();
    let stage = Stage::on("10 starving writer", &server.url());
    let java = java(&server);
    let id = java.client_id().unwrap();
    java.thread(1).call("read.lock", &["table"]).unwrap();
    let _writer = stage.waiter(&["table", "--exclusive"]);
    stage.is_named(
        "table",
        &[
            "starving writer: \"table\": true@",
            "has waited for",
            "readers that come later pass a waiting writer",
        ],
    );
    stage.is_seen("table", &[&format!("it is held by {id}:")]);
}

#[test]
fn a_server_that_is_full() {
    let server = RedisServer::start().unwrap();
    let stage = Stage::on("11 server full", &server.url());
    let info = format!("{:?}", server.cmd(&["INFO", "memory"]).unwrap());
    let (_, used) = info.split_once("used_memory:").unwrap();
    let digits = used.find(|c: char| !c.is_ascii_digit()).unwrap();
    let limit = used[..digits].parse::<u64>().unwrap() + 50_000;
    server.cmd(&["CONFIG", "SET", "maxmemory", &limit.to_string()]).unwrap();
    stage.is_named(
        "orders",
        &["memory:", "of the memory limit", "a full server takes no new lock", "raise maxmemory"],
    );
}

#[test]
fn a_clock_that_is_wrong() {
    let server = RedisServer::builder().own_clock().start().unwrap();
    server.set_clock(120_000, None).unwrap();
    let stage = Stage::on("12 wrong clock", &server.url());
    stage.is_named("orders", &["clock:", "this machine and the server differ by 12", "synchronise clocks"]);
}
