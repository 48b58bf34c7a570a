//! What clients tell of themselves, as others read it; and what holds a name up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use redlatch::{
    Client, ClientRecord, Force, Guard, LockKind, LockName, LostHold, Presence, Why, acl, blocking,
    observe::{Event, Observer},
};
use redlatch_testkit::server::RedisServer;

use crate::fixture::{ms, soon, told};

async fn client(server: &RedisServer, presence: Presence) -> Client {
    Client::builder().url(server.url()).presence(presence).connect().await.unwrap()
}

/// The keys in which clients tell of themselves, read past the library.
fn records(server: &RedisServer) -> usize {
    let keys = server.cmd(&["KEYS", "redlatch:client:*"]).unwrap();
    redis::from_redis_value::<Vec<String>>(keys).unwrap().len()
}

/// Counts how often records are written.
#[derive(Default)]
struct Writes(AtomicUsize);

impl Observer for Writes {
    fn observe(&self, event: &Event<'_>) {
        if let Event::CallEnded { script: "presence_set", .. } = event {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !done().await {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
}

/// Tasks of a server that shows them have to be `Send`, which the compiler finds out only where one is spawned.
#[tokio::test]
async fn whatever_looks_at_locks_can_be_a_task() {
    let client = Client::connect("memory:").await.unwrap();
    let _guard = client.lock("orders").lock().await.unwrap();
    let looks = tokio::spawn(async move {
        let states = client.list(None, 10).await?;
        client.list_kinds(&[LockKind::Lock], Some("*"), 10).await?;
        client.inspect("orders").await?;
        client.why("orders").await?;
        client.client_record(&states[0].holders[0].owner).await?;
        client.diagnose().await?;
        client.diagnose_under("orders").await?;
        client.diagnose_rights(&[acl::Kind::Lock], "orders").await?;
        let why = Why::among(states, &client.clients(10).await?);
        assert_eq!((why.names.len(), why.names[0].blockers.len(), why.cycles.len()), (1, 1, 0));
        Ok::<(), redlatch::Error>(())
    });
    told("the looks", looks).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_and_a_waiter_say_who_they_are() {
    let server = RedisServer::start().unwrap();
    let holder = client(&server, Presence::told().program("billing").why("nightly import")).await;
    let waiter = client(&server, Presence::told().program("api").traceparent("00-1-2-01")).await;
    let looker = Client::connect(&server.url()).await.unwrap();
    let guard = holder.lock("orders").lock().await.unwrap();
    let waiting = tokio::spawn({
        let lock = waiter.fair_lock("orders");
        async move { lock.lock_for(Duration::from_secs(60)).await }
    });
    until("both records", async || looker.clients(10).await.unwrap().len() == 2).await;
    let record = looker.client_record(&guard.owner().to_text()).await.unwrap().unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert_eq!(
        (record.id.as_str(), &*record.host, record.pid),
        (holder.id(), &*host, Some(std::process::id()))
    );
    assert_eq!((&*record.program, record.why.as_deref()), ("billing", Some("nightly import")));
    let hold = record.holds.first().unwrap();
    assert_eq!((&hold.name, &*hold.kind), (&LockName::from("orders"), "lock"));
    assert_eq!(hold.owner.as_deref(), Some(&*guard.owner().to_text()));
    assert!(hold.lasts >= ms(1_000) && record.age < ms(30_000), "{record:?}");
    let record = looker.client_record(waiter.id()).await.unwrap().unwrap();
    assert_eq!((record.holds.len(), record.waits.len(), &*record.program), (0, 1, "api"));
    assert_eq!(record.traceparent.as_deref(), Some("00-1-2-01"));
    assert_eq!((&*record.waits[0].kind, &record.waits[0].name), ("fair", &LockName::from("orders")));
    let ttl = server.cmd(&["PTTL", &format!("redlatch:client:{{{}}}", holder.id())]).unwrap();
    assert!(matches!(ttl, redis::Value::Int(1..=60_000)), "{ttl:?}");
    guard.unlock().await.unwrap();
    drop(told("the grant", waiting).await.unwrap().unwrap());
    // What has ended is no longer told; a write is due within 10 s.
    until("the holder's record ends", async || looker.client_record(holder.id()).await.unwrap().is_none())
        .await;
    let id = waiter.id().to_owned();
    let _other = waiter.lock("other").lock().await.unwrap();
    until("the record of another hold", async || {
        let record = looker.client_record(&id).await.unwrap();
        record.is_some_and(|record| record.holds.iter().any(|hold| hold.name == LockName::from("other")))
    })
    .await;
    waiter.shutdown(Duration::from_secs(5)).await;
    assert!(looker.client_record(&id).await.unwrap().is_none(), "shutting down takes it away");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_tells_nothing_and_what_is_short_leave_no_record() {
    let server = RedisServer::start().unwrap();
    let silent = client(&server, Presence::untold()).await;
    let short = client(&server, Presence::told()).await;
    let _guard = silent.lock("silent").lock().await.unwrap();
    for _ in 0..12 {
        let guard = short.lock("short").lock().await.unwrap();
        tokio::time::sleep(ms(300)).await;
        guard.unlock().await.unwrap();
        assert_eq!(records(&server), 0);
    }
}

/// A record is written at most once in 10 s on average, whatever is held.
/// Looks until the record of a client tells of a loss of this name.
async fn loss(looker: &Client, id: &str, name: &str) -> (ClientRecord, LostHold) {
    let mut found = None;
    until("the loss is told", async || {
        let Some(record) = looker.client_record(id).await.unwrap() else { return false };
        let lost = record.losses.iter().find(|lost| lost.name == LockName::from(name)).cloned();
        found = lost.map(|lost| (record, lost));
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// Holds these for long enough to be told of.
async fn told_holds(client: &Client, looker: &Client, names: &[&str]) -> Vec<Guard> {
    let mut guards = Vec::new();
    for name in names {
        guards.push(client.lock(*name).lock().await.unwrap());
    }
    until("the holds are told", async || {
        let record = looker.client_record(client.id()).await.unwrap();
        record.is_some_and(|record| record.holds.len() == names.len())
    })
    .await;
    guards
}

/// The program may have ended because of it, and its log is where nobody looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_lost_is_told_for_a_while_also_by_a_client_that_has_ended() {
    let server = RedisServer::start().unwrap();
    let holder = client(&server, Presence::told().program("billing").why("nightly import")).await;
    let looker = Client::connect(&server.url()).await.unwrap();
    let short = holder.lock("short").lock().await.unwrap();
    server.cmd(&["DEL", "short"]).unwrap();
    told("the short one", short.lost()).await;
    let guards = told_holds(&holder, &looker, &["forced", "deleted"]).await;
    let owner = guards[0].owner().to_text();
    let force = Force::new().by("ops@desk").reason("it hung");
    looker.lock("forced").force(force).await.unwrap();
    server.cmd(&["DEL", "deleted"]).unwrap();
    for guard in &guards {
        told("the loss", guard.lost()).await;
    }
    let (record, lost) = loss(&looker, holder.id(), "forced").await;
    assert_eq!((&*lost.kind, lost.owner == owner, record.is_over), ("lock", true, false));
    assert_eq!(lost.reason, "the lock was forced free by ops@desk: it hung");
    let (_, lost) = loss(&looker, holder.id(), "deleted").await;
    assert_eq!(lost.reason, "the lock was deleted on the server");
    let id = holder.id().to_owned();
    drop(guards);
    holder.shutdown(Duration::from_secs(5)).await;
    let (record, lost) = loss(&looker, &id, "forced").await;
    assert!(record.is_over && record.holds.is_empty() && record.waits.is_empty(), "{record:?}");
    assert!(record.age < ms(30_000) && lost.ago < ms(60_000), "{record:?}");
    assert_eq!(
        (record.losses.len(), &*record.program),
        (2, "billing"),
        "what was held for moments is not told: {record:?}"
    );
    let ttl = server.cmd(&["PTTL", &format!("redlatch:client:{{{id}}}")]).unwrap();
    assert!(matches!(ttl, redis::Value::Int(500_000..=600_000)), "ten minutes from the last loss: {ttl:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_with_the_servers_data_says_that_another_process_serves() {
    let server = RedisServer::start().unwrap();
    let holder = client(&server, Presence::told()).await;
    let looker = Client::connect(&server.url()).await.unwrap();
    let guards = told_holds(&holder, &looker, &["job"]).await;
    server.kill9();
    server.restart_empty().unwrap();
    told("the loss", guards[0].lost()).await;
    let (_, lost) = loss(&looker, holder.id(), "job").await;
    assert!(
        lost.reason.starts_with("the lock was deleted on the server; another server process"),
        "{lost:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_much_changes_a_record_is_written_seldom() {
    let server = RedisServer::start().unwrap();
    let writes = Arc::new(Writes::default());
    let client = Client::builder().url(server.url()).observer(writes.clone()).connect().await.unwrap();
    let mut guards = Vec::new();
    for at in 0..30 {
        guards.push(client.lock(format!("n{at}")).lock().await.unwrap());
        tokio::time::sleep(ms(400)).await;
    }
    let writes = writes.0.load(Ordering::SeqCst);
    assert!((1..=4).contains(&writes), "{writes} in 12 s");
    let record = client.client_record(client.id()).await.unwrap().unwrap();
    assert!(record.holds.len() > 1, "{record:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn circles_of_two_three_and_five_processes_are_found_within_seconds() {
    for length in [2, 3, 5] {
        let server = RedisServer::start().unwrap();
        let mut clients = Vec::new();
        for at in 0..length {
            clients.push(client(&server, Presence::told().program(&format!("service-{at}"))).await);
        }
        // Tasks that meet at one name, which is in no circle.
        let bystander = client(&server, Presence::told().program("bystander")).await;
        let began = Arc::new(tokio::sync::Barrier::new(length));
        let work = join_all(clients.iter().enumerate().map(|(at, client)| {
            let (began, client) = (began.clone(), client.clone());
            tokio::spawn(async move {
                let guard = client.lock(format!("n{at}")).lock().await.unwrap();
                began.wait().await;
                // None of them gets it before its neighbour has given up.
                let next = client.lock(format!("n{}", (at + 1) % length)).lock_for(ms(8_000)).await.unwrap();
                drop((guard, next));
            })
        }));
        let look = async {
            let looker = Client::connect(&server.url()).await.unwrap();
            let meets = bystander.lock("n0");
            let meets = tokio::spawn(async move { meets.lock_for(ms(8_000)).await.map(drop) });
            let mut why: Option<Why> = None;
            until("the circle", async || {
                let found = looker.why("n1").await.unwrap();
                let is_there = !found.cycles.is_empty();
                why = Some(found);
                is_there
            })
            .await;
            meets.abort();
            why.unwrap()
        };
        let (done, why) = tokio::join!(work, look);
        done.into_iter().for_each(Result::unwrap);
        let [cycle] = &why.cycles[..] else { panic!("{why:?}") };
        let mut names: Vec<String> = cycle.names.iter().map(ToString::to_string).collect();
        names.sort();
        assert_eq!(names, (0..length).map(|at| format!("n{at}")).collect::<Vec<_>>());
        assert_eq!((why.names.len(), cycle.is_certain), (length, true), "{why:?}");
        let first = &why.names[0].blockers[0];
        assert_eq!(first.client.as_ref().unwrap().program, "service-1");
        assert_eq!(first.waits_for[0].name, LockName::from(format!("n{}", 2 % length)));
    }
}

/// Two tasks of one process, of which one holds and the other one waits, are no circle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_task_of_the_holder_that_waits_makes_no_circle() {
    let server = RedisServer::start().unwrap();
    let [one, two] = [client(&server, Presence::told()).await, client(&server, Presence::told()).await];
    let holds_and_waits = |client: &Client, holds: &'static str, waits: &'static str| {
        let (holder, waiter) = (client.lock(holds), client.lock(waits));
        let holds = tokio::spawn(async move {
            let guard = holder.lock().await.unwrap();
            tokio::time::sleep(ms(6_000)).await;
            guard.unlock().await.unwrap();
        });
        let waits = tokio::spawn(async move {
            tokio::time::sleep(ms(300)).await;
            waiter.lock_for(ms(5_000)).await.map(drop)
        });
        (holds, waits)
    };
    let tasks = [holds_and_waits(&one, "a", "b"), holds_and_waits(&two, "b", "a")];
    let looker = Client::connect(&server.url()).await.unwrap();
    until("two waits", async || {
        let why = looker.why("a").await.unwrap();
        assert!(why.cycles.is_empty(), "{why:?}");
        assert!(why.names.len() == 1 || why.names[0].blockers[0].waits_for.is_empty(), "{why:?}");
        let clients = looker.clients(10).await.unwrap();
        clients.iter().filter(|client| !client.waits.is_empty() && !client.holds.is_empty()).count() == 2
    })
    .await;
    for (holds, waits) in tasks {
        holds.await.unwrap();
        waits.await.unwrap().unwrap();
    }
}

/// Threads without a runtime have owners, by which the one who holds is known to be the one who waits.
#[test]
fn a_circle_of_threads_is_certain() {
    let server = RedisServer::start().unwrap();
    let clients = [0, 1].map(|_| blocking::Client::connect(&server.url()).unwrap());
    let began = std::sync::Barrier::new(2);
    let why = std::thread::scope(|scope| {
        for (at, client) in clients.iter().enumerate() {
            let began = &began;
            scope.spawn(move || {
                let _guard = client.lock(format!("n{at}")).lock().unwrap();
                began.wait();
                drop(client.lock(format!("n{}", 1 - at)).lock_for(ms(6_000)).unwrap());
            });
        }
        let looker = blocking::Client::connect(&server.url()).unwrap();
        let begun = std::time::Instant::now();
        loop {
            let why = looker.why("n0").unwrap();
            if !why.cycles.is_empty() || begun.elapsed() > ms(30_000) {
                break why;
            }
            std::thread::sleep(ms(20));
        }
    });
    assert_eq!(
        (why.cycles.len(), why.cycles[0].names.len(), why.cycles[0].is_certain),
        (1, 2, true),
        "{why:?}"
    );
}
