//! Sentinels and masters that say what a test wants: what real ones say only at rare moments.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use redlatch::{Client, ErrorKind, LossReason, Unlocked};
use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    resp,
    server::RedisServer,
};

use crate::fixture::{ms, soon};

/// What a sentinel says.
#[derive(Clone, Default)]
pub(crate) struct Says {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) epoch: i64,
    pub(crate) silent: bool,
    /// How long it takes to answer.
    pub(crate) delay: Duration,
    /// What it calls itself, and what the others of its set call themselves; with `@PORT` where one of them is to be found.
    pub(crate) id: String,
    pub(crate) others: Vec<String>,
    /// The port of the replica that it has chosen to be the next master, as long as it leads the change.
    pub(crate) promotes: Option<u16>,
}

pub(crate) struct FakeSentinel {
    pub(crate) server: FakeServer,
    pub(crate) says: Arc<Mutex<Says>>,
}

impl FakeSentinel {
    pub(crate) fn start(port: u16) -> FakeSentinel {
        let says = Says { host: "127.0.0.1".to_owned(), port, epoch: 1, ..Says::default() };
        let says = Arc::new(Mutex::new(says));
        let shared = says.clone();
        let server = FakeServer::start(move |request| {
            let Says { host, port, epoch, silent, delay, id, others, promotes } =
                shared.lock().unwrap().clone();
            if silent {
                return FakeReply::Silence;
            }
            let words: Vec<String> =
                request.iter().map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            FakeReply::Reply(match words[..] {
                ["sentinel", "get-master-addr-by-name", _] => {
                    resp::array(&[resp::bulk(host), resp::bulk(port.to_string())])
                }
                ["sentinel", "master", _] => {
                    std::thread::sleep(delay);
                    let flags = if promotes.is_some() { "master,failover_in_progress" } else { "master" };
                    let fields = ["flags", flags, "config-epoch", &epoch.to_string(), "quorum", "1"];
                    resp::array(&fields.map(resp::bulk))
                }
                ["sentinel", "replicas", _] => {
                    let chosen = |port: u16| {
                        let port = port.to_string();
                        resp::array(
                            &["ip", "127.0.0.1", "port", &port, "flags", "slave,promoted"].map(resp::bulk),
                        )
                    };
                    resp::array(&promotes.map(chosen).into_iter().collect::<Vec<_>>())
                }
                ["sentinel", "myid"] if !id.is_empty() => resp::bulk(id),
                ["sentinel", "sentinels", _] => {
                    let other = |other: &String| {
                        // Nobody answers at that port.
                        let (id, port) = other.split_once('@').unwrap_or((other, "1"));
                        resp::array(&["runid", id, "ip", "127.0.0.1", "port", port].map(resp::bulk))
                    };
                    resp::array(&others.iter().map(other).collect::<Vec<_>>())
                }
                _ => return FakeReply::Default,
            })
        })
        .unwrap();
        FakeSentinel { server, says }
    }

    pub(crate) fn say(&self, change: impl FnOnce(&mut Says)) {
        change(&mut self.says.lock().unwrap());
    }

    pub(crate) fn addr(&self) -> String {
        self.server.url().replace("redis://", "")
    }
}

pub(crate) fn url(sentinels: &[&FakeSentinel]) -> String {
    let addrs: Vec<String> = sentinels.iter().map(|sentinel| sentinel.addr()).collect();
    format!("redis-sentinel://{}/any", addrs.join(","))
}

pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    soon(what, async {
        while !condition() {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
}

pub(crate) fn exists(server: &RedisServer, key: &str) -> bool {
    server.cmd(&["EXISTS", key]).unwrap() == redis::Value::Int(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_was_cut_off_does_not_lead_back() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second, third] = [0; 3].map(|_| FakeSentinel::start(old.port()));
    let client = Client::connect(&url(&[&first, &second, &third])).await.unwrap();
    let _old = client.lock("old").lock().await.unwrap();
    assert!(exists(&old, "old"));
    // Host names are as good as addresses.
    second.say(|says| *says = Says { host: "localhost".into(), port: new.port(), epoch: 2, ..says.clone() });
    let moved = format!("localhost:{}", new.port());
    until("the move", || client.store().ends_with(&moved)).await;
    let asked = first.server.count("SENTINEL");
    until("some more looks", || first.server.count("SENTINEL") > asked + 12).await;
    assert!(client.store().ends_with(&moved), "{}", client.store());
    let _guard = client.lock("new").lock().await.unwrap();
    assert!(exists(&new, "new") && !exists(&old, "new"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_are_told_also_when_no_connection_broke() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let sentinel = FakeSentinel::start(old.port());
    // Neither renewals nor deadlines are due while the test lasts.
    let client =
        Client::builder().url(url(&[&sentinel])).watchdog_lease(ms(120_000)).connect().await.unwrap();
    let renewed = client.lock("renewed").lock().await.unwrap();
    let fixed = client.lock("fixed").lock_with_lease(ms(120_000)).await.unwrap();
    let kept = client.lock("kept").lock().await.unwrap();
    new.cmd(&["HSET", "kept", &kept.owner().to_text(), "1"]).unwrap();
    new.cmd(&["PEXPIRE", "kept", "60000"]).unwrap();
    new.cmd(&["HSET", "renewed", "somebody:1", "1"]).unwrap();
    sentinel.say(|says| (says.port, says.epoch) = (new.port(), 2));
    let by = "somebody:1".to_owned();
    assert_eq!(soon("the notice", renewed.lost()).await, LossReason::TakenOver { by });
    assert_eq!(soon("the notice", fixed.lost()).await, LossReason::Deleted);
    assert!(kept.is_valid());
    assert_eq!(kept.unlock().await.unwrap(), Unlocked::Released);
    assert!(!exists(&new, "kept"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_falls_silent_holds_nothing_up() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second] = [0; 2].map(|_| FakeSentinel::start(old.port()));
    let client =
        Client::builder().url(url(&[&first, &second])).response_timeout(ms(600)).connect().await.unwrap();
    first.say(|says| says.silent = true);
    let connections = first.server.connections_accepted();
    until("another try to reach the silent one", || first.server.connections_accepted() > connections + 1)
        .await;
    second.say(|says| (says.port, says.epoch) = (new.port(), 2));
    let moved = format!("127.0.0.1:{}", new.port());
    until("the move", || client.store().ends_with(&moved)).await;
    // The one that comes back late is believed again when it knows more.
    first.say(|says| *says = Says { port: old.port(), epoch: 3, silent: false, ..says.clone() });
    let back = format!("127.0.0.1:{}", old.port());
    until("the move back", || client.store().ends_with(&back)).await;
}

/// A master that answers scripts as told, and its port.
fn fake_master(answer: impl Fn() -> FakeReply + Send + Sync + 'static) -> (FakeServer, u16) {
    let server = FakeServer::start(move |request| match &request[0].to_ascii_uppercase()[..] {
        b"ROLE" => {
            let role = [resp::bulk("master"), resp::integer(0), resp::array::<Vec<u8>>(&[])];
            FakeReply::Reply(resp::array(&role))
        }
        b"EVALSHA" => answer(),
        _ => FakeReply::Default,
    });
    let server = server.unwrap();
    let port = server.url().rsplit(':').next().unwrap().parse().unwrap();
    (server, port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_by_a_demoted_master_is_asked_of_the_new_one() {
    for refusal in [
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "LOADING Redis is loading the dataset in memory",
        "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a read only replica.",
    ] {
        let new = RedisServer::start().unwrap();
        let (new_port, says) = (new.port(), Arc::new(Mutex::new(None::<Arc<Mutex<Says>>>)));
        let told = says.clone();
        // The sentinel names the new master from the very refusal on, so that no look can have come before it.
        let (old, port) = fake_master(move || {
            let says = told.lock().unwrap().clone().expect("the sentinel runs");
            let mut says = says.lock().unwrap();
            (says.port, says.epoch) = (new_port, 2);
            FakeReply::Error(refusal.to_owned())
        });
        let sentinel = FakeSentinel::start(port);
        *says.lock().unwrap() = Some(sentinel.says.clone());
        let client = Client::connect(&url(&[&sentinel])).await.unwrap();
        // Not even who does not wait is bothered with it.
        let guard = soon("the grant of the new master", client.lock("free").try_lock()).await.unwrap();
        assert!(exists(&new, "free"), "{refusal}");
        guard.expect("a free lock").unlock().await.unwrap();
        assert_eq!(old.count("EVALSHA"), 1, "{refusal}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_under_way_on_the_old_master_is_asked_of_the_new_one() {
    let (hangs, port) = fake_master(|| FakeReply::Silence);
    let new = RedisServer::start().unwrap();
    let sentinel = FakeSentinel::start(port);
    // No answer would be missed before the test is over.
    let builder = Client::builder().url(url(&[&sentinel])).response_timeout(ms(60_000));
    let client = builder.connect().await.unwrap();
    let (waits, tries) = (client.lock("waits"), client.lock("tries"));
    let waits = tokio::spawn(async move { waits.lock().await.map(Some) });
    let tries = tokio::spawn(async move { tries.try_lock().await });
    until("both calls", || hangs.count("EVALSHA") >= 2).await;
    sentinel.say(|says| (says.port, says.epoch) = (new.port(), 2));
    for (call, name) in [(waits, "waits"), (tries, "tries")] {
        let guard = soon("the grant of the new master", call).await.unwrap().unwrap();
        assert!(exists(&new, name));
        guard.expect("a free lock").unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_named_but_no_master_is_not_used() {
    let replica = RedisServer::start().unwrap();
    replica.cmd(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let sentinel = FakeSentinel::start(replica.port());
    let builder = || Client::builder().url(url(&[&sentinel])).connect_timeout(ms(700));
    let error = soon("the refusal", builder().connect()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    let text = error.to_string();
    assert!(text.contains(&sentinel.addr()) && text.contains(&replica.port().to_string()), "{text}");
    // It is asked again as long as there is time, because a change of masters may be under way.
    let connecting =
        tokio::spawn(Client::builder().url(url(&[&sentinel])).connect_timeout(ms(8_000)).connect());
    let asked = sentinel.server.count("SENTINEL");
    until("some looks", || sentinel.server.count("SENTINEL") > asked + 12).await;
    replica.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let client = soon("the connection", connecting).await.unwrap().unwrap();
    client.lock("there").lock().await.unwrap().unlock().await.unwrap();
}

/// How long a new master takes to say that it is one: longer than connections are watched after the last call was made, and
/// shorter than a look for the master may take.
const SLOW_ROLE: Duration = ms(850);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waited_for_a_new_master_does_not_wait_for_ever_when_that_one_is_silent() {
    let old = RedisServer::start().unwrap();
    let new = FakeServer::start(|request| match request[0].to_ascii_uppercase().as_slice() {
        b"ROLE" => {
            std::thread::sleep(SLOW_ROLE);
            FakeReply::Reply(resp::array(&[
                resp::bulk("master"),
                resp::integer(0),
                resp::array::<Vec<u8>>(&[]),
            ]))
        }
        b"EVALSHA" | b"EVAL" => FakeReply::Silence,
        _ => FakeReply::Default,
    })
    .unwrap();
    let sentinel = FakeSentinel::start(old.port());
    let client =
        Client::builder().url(url(&[&sentinel])).response_timeout(ms(1_000)).connect().await.unwrap();
    let port = new.url().rsplit_once(':').unwrap().1.parse().unwrap();
    // Refused by the old one, the call waits for the new one, which takes it and never answers.
    old.kill9();
    sentinel.say(|says| *says = Says { port, epoch: 2, ..says.clone() });
    let error = soon("the end of the call", client.lock("x").try_lock()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(new.count("EVALSHA") > 0, "the new master was asked");
}

/// A promised master ended right away, and the sentinel that had chosen it went on naming it until `failover-timeout`: clients that had moved were granted nothing, though all other
/// sentinels named the former master, which was well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promised_master_that_ends_is_left_for_the_one_that_most_sentinels_name() {
    let (old, chosen) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let sentinels = [0; 3].map(|_| FakeSentinel::start(old.port()));
    let [first, second, third] = &sentinels;
    let client = Client::connect(&url(&[first, second, third])).await.unwrap();
    let uses = |port: u16| client.store().ends_with(&format!(":{port}"));
    first.say(|says| says.promotes = Some(chosen.port()));
    until("the promise", || uses(chosen.port())).await;
    drop(chosen);
    until("the way back", || uses(old.port())).await;
    soon("a grant", client.lock("n").lock()).await.unwrap().unlock().await.unwrap();
}

/// Only `ROLE` was asked: a promised master whose account may not use that looked silent, and was left for its predecessor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promised_master_that_may_not_tell_its_role_by_the_one_command_tells_it_by_the_other() {
    let (old, chosen) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    for server in [&old, &chosen] {
        server.cmd(&["ACL", "SETUSER", "default", "-role"]).unwrap();
    }
    let sentinels = [0; 3].map(|_| FakeSentinel::start(old.port()));
    let [first, second, third] = &sentinels;
    let client = Client::connect(&url(&[first, second, third])).await.unwrap();
    first.say(|says| says.promotes = Some(chosen.port()));
    until("the promise", || uses(&client, chosen.port())).await;
    for _ in 0..10 {
        three_looks(second).await;
        assert!(uses(&client, chosen.port()), "it is still the master");
    }
}

/// How many questions three looks ask of one sentinel.
const THREE_LOOKS: u64 = 3 * 4;

pub(crate) async fn three_looks(sentinel: &FakeSentinel) {
    let asked = sentinel.server.count("SENTINEL");
    until("three looks", || sentinel.server.count("SENTINEL") > asked + THREE_LOOKS).await;
}

pub(crate) fn uses(client: &Client, port: u16) -> bool {
    client.store().ends_with(&format!(":{port}"))
}

pub(crate) fn of_a_set(sentinel: &FakeSentinel, id: &str, others: [&str; 2]) {
    let others = others.map(String::from).to_vec();
    sentinel.say(|says| (says.id, says.others) = (id.into(), others));
}
