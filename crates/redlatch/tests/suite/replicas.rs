//! Replica acknowledgement, on a master with replicas: what is confirmed, what becomes of a shortfall, and that nobody else waits.

use std::time::Duration;

use redlatch::{
    Client, ErrorKind, Hold, Lease, ReplicaAck, Replicas, Unlocked, Wait,
    scripts::{self, Script},
};
use redlatch_testkit::{
    cancel::{DropMoment, poll_n_then_drop_at},
    leftovers::LeftoverCheck,
    proxy::{Action, Gate, Match, Proxy},
    server::RedisServer,
};

use crate::{
    fixture::{Fixture, SOON, ms, soon},
    kinds::{AnyLock, Face},
};

const FACES: [Face; 7] = [
    Face::Plain,
    Face::Fair,
    Face::Fenced,
    Face::Spin,
    Face::NonReentrant,
    Face::NonReentrantFair,
    Face::Write,
];

/// Longer than any test: only an event ends such a wait.
const LONG: Duration = Duration::from_secs(300);

fn all() -> ReplicaAck {
    ReplicaAck::all().within(LONG)
}

fn at_least(n: u32) -> ReplicaAck {
    ReplicaAck::at_least(n).within(LONG)
}

struct Rig {
    replicas: Vec<RedisServer>,
    proxy: Proxy,
    master: RedisServer,
}

async fn rig(replicas: usize) -> Rig {
    rig_with(replicas, &[]).await
}

async fn rig_with(replicas: usize, settings: &[(&str, &str)]) -> Rig {
    let master = RedisServer::builder().arg("repl-diskless-sync-delay", "0");
    let master = settings.iter().fold(master, |master, (key, value)| master.arg(key, value));
    let master = master.start().unwrap();
    let port = master.port();
    let replica = |_| RedisServer::builder().arg("replicaof", &format!("127.0.0.1 {port}")).start().unwrap();
    let replicas: Vec<RedisServer> = (0..replicas).map(replica).collect();
    in_sync(&master, replicas.len()).await;
    let proxy = Proxy::start(&master.url()).unwrap();
    Rig { replicas, proxy, master }
}

/// Until the master knows so many replicas that keep up. The kit's own connection may always ask.
async fn in_sync(master: &RedisServer, count: usize) {
    soon("replicas in sync", async {
        while online(master) != count {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

fn online(master: &RedisServer) -> usize {
    format!("{:?}", master.cmd(&["INFO", "replication"]).unwrap()).matches("state=online").count()
}

impl Rig {
    async fn client(&self) -> Client {
        Client::connect(&self.proxy.url()).await.unwrap()
    }

    fn exists(&self, name: &str) -> bool {
        self.master.keys_dump().unwrap().keys().any(|key| key == name.as_bytes())
    }
}

fn numbers(guard: &impl Hold) -> (u32, u32) {
    let Replicas { acknowledged, wanted, .. } = guard.as_guard().replicas().expect("replicas were asked");
    (acknowledged, wanted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_no_replicas_pays_for_none() {
    let rig = rig(1).await;
    let client = rig.client().await;
    let pair = async |n: u32| {
        let guard = client.lock(format!("n{n}")).try_lock().await.unwrap().unwrap();
        assert_eq!(guard.replicas(), None);
        guard.unlock().await.unwrap();
    };
    pair(0).await;
    rig.proxy.clear_log();
    let connections = rig.proxy.connections_accepted();
    for n in 1..=20 {
        pair(n).await;
    }
    assert_eq!(rig.proxy.with_log(|log| log.total()), 40, "two requests a pair");
    assert_eq!(rig.proxy.count("EVALSHA"), 40);
    assert_eq!(rig.proxy.connections_accepted(), connections);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_confirm_locks_of_every_kind() {
    let rig = rig(2).await;
    let client = rig.client().await;
    let mut acquired = 0;
    for face in FACES {
        let asks = [(at_least(1), 1), (at_least(2), 2), (all(), 2)];
        for (ack, least) in asks {
            let name = format!("{face:?}-{acquired}");
            let lock = AnyLock::new(face, &client, name.as_str());
            let guard = lock.acquire().replica_ack(ack).await.unwrap().unwrap();
            acquired += 1;
            let (acknowledged, wanted) = numbers(&guard);
            assert!(acknowledged >= least && wanted == least, "{face:?}: {acknowledged} of {wanted}");
            let has = |replica: &&RedisServer| {
                replica.keys_dump().unwrap().keys().any(|key| key == name.as_bytes())
            };
            assert!(rig.replicas.iter().filter(has).count() >= least as usize, "{face:?} is on the replicas");
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        }
    }
    let read = client.read_write_lock("r").read().acquire().replica_ack(all()).await;
    assert_eq!(numbers(&read.unwrap().unwrap()), (2, 2));
    let permits = client.permit_semaphore("p");
    permits.set_if_absent(3).await.unwrap();
    let permit = permits.request().permits(2).replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(permit.replicas(), Some(Replicas::new(2, 2)));
    acquired += 2;
    assert_eq!(rig.proxy.count("WAIT"), acquired + 1, "one probe, and one for each grant");
    assert_eq!(rig.proxy.count("WAITAOF"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocking_twin_asks_too() {
    let rig = rig(1).await;
    let url = rig.proxy.url();
    let thread = std::thread::spawn(move || {
        let client = redlatch::blocking::Client::connect(&url).unwrap();
        let guard = client.lock("b").acquire().replica_ack(all()).run().unwrap().unwrap();
        assert_eq!(guard.as_async().replicas(), Some(Replicas::new(1, 1)));
        let missing = client.lock("c").acquire().replica_ack(at_least(2).within(ms(50))).run();
        assert_eq!(missing.map(|_| ()).unwrap_err().kind(), ErrorKind::NotReplicated);
    });
    thread.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shortfall_gives_the_lock_back() {
    let rig = rig(2).await;
    let client = rig.client().await;
    rig.replicas[0].pause().unwrap();
    for face in FACES {
        let lock = AnyLock::new(face, &client, "short");
        for ack in [all(), at_least(2), at_least(3)] {
            let asked = lock.acquire().wait(Wait::Forever).replica_ack(ack.within(ms(60)));
            let error = soon("the shortfall", asked.into_future()).await.map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotReplicated, "{face:?}: {error}");
            let text = error.to_string();
            assert!(
                text.contains("\"short\"") && text.contains(" of ") && text.contains("given back"),
                "{text}"
            );
            assert!(error.is_retryable());
            // Not soon, but now: the error comes after the release.
            assert!(!rig.exists("short"), "{face:?}");
        }
        let guard = lock.acquire().replica_ack(at_least(1)).await.unwrap().unwrap();
        assert_eq!(numbers(&guard), (1, 1));
        guard.unlock().await.unwrap();
    }
    let permits = client.permit_semaphore("p");
    permits.set_if_absent(3).await.unwrap();
    let short = permits.request().replica_ack(all().within(ms(60))).await;
    assert_eq!(short.map(|_| ()).unwrap_err().kind(), ErrorKind::NotReplicated);
    assert_eq!(permits.available().await.unwrap(), 3);
    rig.replicas[0].resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_gets_a_lock_that_was_given_back() {
    let rig = rig(1).await;
    let (client, other) = (rig.client().await, rig.client().await);
    rig.replicas[0].pause().unwrap();
    let lock = client.lock("n");
    let asked =
        tokio::spawn(async move { lock.acquire().replica_ack(all().within(ms(3_000))).await.map(|_| ()) });
    rig.proxy.wait_for(SOON, |log| log.count("WAIT") == 2).await.unwrap();
    assert_eq!(client.inspect("n").await.unwrap().holders[0].holds, 1);
    let waiter = other.lock("n");
    let guard = soon("the lock", waiter.lock()).await.unwrap();
    assert_eq!(soon("the shortfall", asked).await.unwrap().unwrap_err().kind(), ErrorKind::NotReplicated);
    assert!(guard.is_valid());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    rig.replicas[0].resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shortfall_keeps_the_lock_if_asked_to() {
    let rig = rig(2).await;
    let client = rig.client().await;
    rig.replicas.iter().for_each(|replica| replica.pause().unwrap());
    for face in FACES {
        let lock = AnyLock::new(face, &client, "kept");
        let ack = all().within(ms(60)).keep_on_shortfall();
        let guard = lock.acquire().replica_ack(ack).await.unwrap().unwrap();
        assert_eq!(numbers(&guard), (0, 2), "{face:?}");
        assert!(!guard.replicas().unwrap().is_complete());
        assert!(guard.is_valid() && rig.exists("kept"));
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        assert!(!rig.exists("kept"));
    }
    rig.replicas.iter().for_each(|replica| replica.resume().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_lock_asks_no_replicas() {
    let rig = rig(1).await;
    let (client, other) = (rig.client().await, rig.client().await);
    let held = other.lock("busy").try_lock().await.unwrap().unwrap();
    rig.replicas[0].pause().unwrap();
    for _ in 0..5 {
        let lock = client.lock("busy");
        let busy = lock.acquire().replica_ack(all());
        assert!(soon("the refusal", busy.into_future()).await.unwrap().is_none());
    }
    assert_eq!(rig.proxy.count("WAIT"), 1, "the probe alone");
    held.unlock().await.unwrap();
    rig.replicas[0].resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_wait_refuses_before_the_lock_is_taken() {
    let rig = rig_with(0, &[("rename-command", "WAIT \"\"")]).await;
    let client = rig.client().await;
    for ack in [all(), at_least(1), at_least(1).keep_on_shortfall()] {
        let lock = client.lock("n");
        let asked = lock.acquire().wait(Wait::Forever).replica_ack(ack);
        let error = soon("the refusal", asked.into_future()).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("WAIT") && error.to_string().contains("\"n\""), "{error}");
    }
    assert_eq!(rig.proxy.count("EVALSHA") + rig.proxy.count("EVAL"), 0);
    client.lock("n").try_lock().await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_are_asked_for_before_the_lock_is_taken_and_again_when_they_change() {
    let rig = rig(1).await;
    let set = |rules: &[&str]| {
        rig.master.cmd(&[&["ACL", "SETUSER", "poor"], rules].concat()).unwrap();
    };
    set(&["on", ">pw", "~*", "&*", "+@all", "-wait"]);
    let client = Client::connect(&rig.proxy.url().replace("redis://", "redis://poor:pw@")).await.unwrap();
    let lock = client.lock("n");
    let acquire = async |ack: ReplicaAck| match lock.acquire().replica_ack(ack).await {
        Ok(guard) => {
            let guard = guard.unwrap();
            let numbers = numbers(&guard);
            guard.unlock().await.unwrap();
            Ok(numbers)
        }
        Err(error) => Err(error),
    };
    let denied = acquire(all()).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Permission, "{denied}");
    assert!(denied.to_string().contains("rights to WAIT"), "{denied}");
    assert_eq!(rig.proxy.count("EVALSHA"), 0);
    // Without ROLE and INFO nobody knows how many all are.
    set(&["+wait", "-role", "-info"]);
    let denied = acquire(all()).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Permission, "{denied}");
    assert_eq!(rig.proxy.count("EVALSHA"), 0);
    assert_eq!(acquire(at_least(1)).await.unwrap(), (1, 1));
    set(&["+info"]);
    assert_eq!(acquire(all()).await.unwrap(), (1, 1));
    assert_eq!(acquire(all()).await.unwrap(), (1, 1));
    // A right that is taken away later is found out too, and then the lock is not kept.
    set(&["-wait"]);
    let denied = acquire(all()).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Permission, "{denied}");
    soon("the release", async {
        while rig.exists("n") {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_the_server_has_forgotten_is_sent_again_and_still_confirmed() {
    let rig = rig(1).await;
    let client = rig.client().await;
    for n in 0..3 {
        rig.master.flush_scripts().unwrap();
        let lock = client.lock(format!("n{n}"));
        let guard = lock.acquire().replica_ack(all()).await.unwrap().unwrap();
        assert_eq!(numbers(&guard), (1, 1));
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_before_it_is_waited_for_is_missing() {
    let rig = rig(2).await;
    let client = rig.client().await;
    let lock = client.lock("n");
    let ack = all().within(ms(2_000));
    lock.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.unwrap();
    let gate = Gate::new();
    let rule = rig.proxy.rule(Match::command("ROLE"), Action::HoldReplyUntilReleased(gate.clone()));
    let asking = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().replica_ack(ack).await.map(|_| ()) }
    });
    rig.proxy.wait_fired(rule, 1, SOON).await.unwrap();
    rig.replicas[0].kill9();
    in_sync(&rig.master, 1).await;
    gate.release();
    let error = soon("the shortfall", asking).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    assert!(error.to_string().contains(" of 2 "), "{error}");
    assert!(!rig.exists("n"));
    // The master has given it up, so that all are one now.
    let guard = lock.acquire().replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(numbers(&guard), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_demoted_in_between_confirms_nothing() {
    let rig = rig(1).await;
    let client = Client::builder().url(rig.proxy.url()).response_timeout(ms(2_000)).connect().await.unwrap();
    let lock = client.lock("n");
    lock.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.unwrap();
    let gate = Gate::new();
    let rule = rig.proxy.rule(Match::command("ROLE").nth(1), Action::HoldReplyUntilReleased(gate.clone()));
    let asking = tokio::spawn(async move { lock.acquire().replica_ack(all()).await.map(|_| ()) });
    rig.proxy.wait_fired(rule, 1, SOON).await.unwrap();
    // A master that nobody answers at: it is a replica at once, and keeps what it has.
    let nobody = rig.replicas[0].port().to_string();
    rig.replicas[0].kill9();
    rig.master.cmd(&["REPLICAOF", "127.0.0.1", &nobody]).unwrap();
    gate.release();
    let error = soon("the refusal", asking).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    // What it left is removed as soon as the server can be written to again.
    rig.master.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
    soon("the undoing", async {
        while rig.exists("n") {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_of_the_replicas_is_asked_for_again_by_the_same_owner() {
    let rig = rig(1).await;
    for face in FACES {
        let client = rig.client().await;
        let lock = AnyLock::new(face, &client, "lost");
        lock.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.unwrap();
        rig.proxy.clear_rules();
        let rule = rig.proxy.rule(Match::command("WAIT").nth(1), Action::CloseAfterRequest);
        let owner = client.owner();
        let asked = lock.acquire().owner(&owner).replica_ack(all());
        let guard = soon("the second answer", asked.into_future()).await.unwrap().unwrap();
        assert_eq!(rig.proxy.fired(rule), 1, "{face:?}");
        assert_eq!(numbers(&guard), (1, 1));
        assert_eq!(lock.hold_count(&owner).await.unwrap(), 1, "{face:?}");
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        assert!(!rig.exists("lost"));
        client.shutdown(ms(5_000)).await;
    }
}

/// A connection that has written nothing has nothing to wait for, so every repeat has to write, even one that changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_reaches_the_replicas_again() {
    // Otherwise the server's own messages to its replicas would look like a write.
    let rig = rig_with(1, &[("repl-ping-replica-period", "3600")]).await;
    let offset = || {
        let role = format!("{:?}", rig.master.cmd(&["INFO", "replication"]).unwrap());
        let (_, rest) = role.split_once("master_repl_offset:").unwrap();
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()
    };
    let run = |script: &Script, keys: &[&str], args: &[&str]| {
        let count = keys.len().to_string();
        let call = [&["EVAL", script.source(), &count], keys, args].concat();
        let reply = format!("{:?}", rig.master.cmd(&call).unwrap());
        assert!(reply.starts_with("array([int(7), int(1)"), "{}: {reply}", script.name());
    };
    rig.master.cmd(&["SET", "p", "5"]).unwrap();
    // The second lease is shorter, or is none, so that there is nothing to change.
    let never = "922337203685477";
    let id = "0123456789abcdef";
    let fair = |lease| ["7", "me", lease, "0", "0", "ch", "publish", "300000", "0"];
    /// A script, its keys, and the arguments of the first call and of the repeat.
    type Twice<'a> = (&'a Script, &'a [&'a str], [Vec<&'a str>; 2]);
    let calls: [Twice<'_>; 5] = [
        (&scripts::ACQUIRE, &["a"], ["60000", "30000"].map(|lease| vec!["7", "me", lease, "0"])),
        (&scripts::FAIR_ACQUIRE, &["f", "fq", "ft"], ["60000", "30000"].map(|lease| fair(lease).to_vec())),
        (&scripts::READ_ACQUIRE, &["r", "{r}:"], ["60000", "30000"].map(|lease| vec!["7", "me", lease, "0"])),
        (
            &scripts::WRITE_ACQUIRE,
            &["w", "{w}:"],
            ["60000", "30000"].map(|lease| vec!["7", "me", lease, "0"]),
        ),
        (&scripts::PERMIT_TAKE, &["p", "pt"], [never; 2].map(|lease| vec!["7", id, lease, "ch", "publish"])),
    ];
    for (script, keys, [first, again]) in calls {
        run(script, keys, &first);
        let before = offset();
        run(script, keys, &again);
        assert!(offset() > before, "a repeat of {} writes nothing", script.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_is_confirmed_by_replicas_that_have_it_and_by_no_others() {
    let rig = rig(1).await;
    for face in FACES {
        let client = rig.client().await;
        let lock = AnyLock::new(face, &client, "again");
        lock.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.unwrap();
        rig.proxy.clear_rules();
        rig.proxy.rule(Match::command("WAIT").nth(1), Action::CloseBeforeRequest);
        rig.replicas[0].pause().unwrap();
        let asked = lock.acquire().replica_ack(all().within(ms(100)));
        let error = soon("the shortfall", asked.into_future()).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotReplicated, "{face:?}: {error}");
        assert!(!rig.exists("again"), "{face:?}");
        rig.replicas[0].resume().unwrap();
        client.shutdown(ms(5_000)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_for_replicas_hold_up_nobody_else() {
    let rig = rig(1).await;
    let client = rig.client().await;
    rig.replicas[0].pause().unwrap();
    // More than there are connections for them.
    let waiting: Vec<_> = (0..12)
        .map(|n| {
            let lock = client.lock(format!("slow{n}"));
            tokio::spawn(async move {
                let ack = all();
                let guard = lock.acquire().lease(Lease::Fixed(4 * LONG)).replica_ack(ack).await;
                guard.unwrap().unwrap()
            })
        })
        .collect();
    rig.proxy.wait_for(SOON, |log| log.requests().filter(|wait| waits(wait)).count() >= 8).await.unwrap();
    for n in 0..50 {
        let guard = soon("another lock", client.lock(format!("quick{n}")).lock()).await.unwrap();
        soon("its release", guard.unlock()).await.unwrap();
    }
    assert!(waiting.iter().all(|task| !task.is_finished()), "all of that came before any confirmation");
    let connections = rig.proxy.with_log(|log| {
        let of_wait = log.requests().filter(|wait| waits(wait)).map(|wait| wait.connection);
        let of_others =
            log.requests().filter(|request| request.args.iter().any(|arg| arg.starts_with(b"quick")));
        let of_others: Vec<u64> = of_others.map(|request| request.connection).collect();
        let of_wait: Vec<u64> = of_wait.collect();
        assert!(of_wait.iter().all(|connection| !of_others.contains(connection)));
        of_wait.len()
    });
    assert_eq!(connections, 8);
    rig.replicas[0].resume().unwrap();
    for task in waiting {
        let guard = soon("the confirmation", task).await.unwrap();
        assert_eq!(numbers(&guard), (1, 1));
    }
}

/// A request that really waits, and is not the probe.
fn waits(request: &redlatch_testkit::proxy::RequestRecord) -> bool {
    request.command == "WAIT" && request.args[1] != b"0"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_acquire_is_undone_before_the_replicas_have_answered() {
    let rig = rig(1).await;
    let client = rig.client().await;
    rig.replicas[0].pause().unwrap();
    let lock = client.lock("n");
    let task = tokio::spawn(async move {
        let ack = all();
        lock.acquire().lease(Lease::Fixed(4 * LONG)).replica_ack(ack).await.map(|_| ())
    });
    rig.proxy.wait_for(SOON, |log| log.requests().any(waits)).await.unwrap();
    assert!(rig.exists("n"));
    task.abort();
    soon("the undoing", async {
        while rig.exists("n") || client.stats().background_jobs > 0 {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    // Its connection is not used for others: they would have to wait for its answer first.
    let lock = client.lock("m");
    let next = lock.acquire().replica_ack(all().within(ms(60)).keep_on_shortfall());
    let next = soon("the next answer", next.into_future()).await.unwrap().unwrap();
    assert_eq!(numbers(&next), (0, 1));
    rig.replicas[0].resume().unwrap();
    let again = client.lock("n").acquire().replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(numbers(&again), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_dropped_acquires_with_replicas_leave_nothing() {
    let rig = rig(1).await;
    let client = rig.client().await;
    rig.proxy.latency(ms(0), ms(4), 7);
    let one = async |round: usize, face: Face| {
        let lock = AnyLock::new(face, &client, format!("sweep-{round}"));
        // Two of these ask for more than there is, so that giving back is dropped as well.
        let ack = if round.is_multiple_of(3) { at_least(2).within(ms(5)) } else { all() };
        let work = async {
            if let Ok(guard) = lock.acquire().replica_ack(ack).await {
                guard.unwrap().unlock().await.unwrap();
            }
        };
        let moment =
            if (round / 10).is_multiple_of(2) { DropMoment::AfterPoll } else { DropMoment::AtWakeUp };
        let outcome = tokio::time::timeout(ms(500), poll_n_then_drop_at(work, round % 10, moment)).await;
        !matches!(outcome, Ok(Some(())))
    };
    let mut dropped = 0;
    // The counter of a fenced lock stays, as it has to.
    let faces: Vec<Face> = FACES.into_iter().filter(|face| *face != Face::Fenced).collect();
    for lap in 0..20 {
        let face = faces[lap % faces.len()];
        let rounds = (0..20).map(|n| one(lap * 20 + n, face));
        dropped +=
            futures_util::future::join_all(rounds).await.into_iter().filter(|dropped| *dropped).count();
    }
    assert!(dropped > 100, "only {dropped} were dropped");
    soon("quiet", async {
        while client.stats().names + client.stats().background_jobs > 0 {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    LeftoverCheck::new(&rig.master, "sweep").assert_clean_async(Duration::from_secs(8)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_passed_on_is_only_taken_as_confirmed_if_it_was() {
    let rig = rig(1).await;
    let client = rig.client().await;
    let ack = all().within(ms(100));
    for (name, face) in [("p", Face::Plain), ("f", Face::Fair), ("w", Face::Write)] {
        let lock = AnyLock::new(face, &client, name);
        rig.replicas[0].pause().unwrap();
        // Held by somebody who asks nobody, and then wanted by somebody who does.
        let held = lock.try_lock().await.unwrap().unwrap();
        let next = lock.acquire().wait(Wait::Forever).replica_ack(ack);
        let (outcome, _) = tokio::join!(next.into_future(), async {
            soon("a place in line", async {
                while client.stats().in_line == 0 {
                    tokio::time::sleep(ms(5)).await;
                }
            })
            .await;
            held.unlock().await.unwrap()
        });
        assert_eq!(outcome.map(|_| ()).unwrap_err().kind(), ErrorKind::NotReplicated, "{face:?}");
        assert!(!rig.exists(name), "{face:?}");
        rig.replicas[0].resume().unwrap();
        // From somebody who has asked already.
        let held = lock.acquire().replica_ack(all()).await.unwrap().unwrap();
        let next = lock.acquire().wait(Wait::Forever).replica_ack(all());
        let (outcome, _) = tokio::join!(next.into_future(), async {
            soon("a place in line", async {
                while client.stats().in_line == 0 {
                    tokio::time::sleep(ms(5)).await;
                }
            })
            .await;
            held.unlock().await.unwrap()
        });
        let guard = outcome.unwrap().unwrap();
        assert_eq!(numbers(&guard), (1, 1), "{face:?}");
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_entered_again_for_what_it_was_confirmed_with() {
    let rig = rig(1).await;
    let client = rig.client().await;
    let (lock, me) = (client.lock("n"), client.owner());
    let enter = |ack| lock.acquire().owner(&me).replica_ack(ack);
    let outer = lock.acquire().owner(&me).await.unwrap().unwrap();
    let error = enter(all()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1);
    outer.unlock().await.unwrap();
    let outer = enter(all()).await.unwrap().unwrap();
    let inner = enter(at_least(1)).await.unwrap().unwrap();
    assert_eq!((numbers(&inner), lock.hold_count(&me).await.unwrap()), ((1, 1), 2));
    // Another process that knows the owner enters by a request of its own, which replicas confirm or which is taken back.
    let other = rig.client().await;
    let theirs = me.to_string().parse().unwrap();
    let entered = other.lock("n").acquire().owner(&theirs).replica_ack(all()).await.unwrap().unwrap();
    assert_eq!((numbers(&entered), lock.hold_count(&me).await.unwrap()), ((1, 1), 3));
    entered.unlock().await.unwrap();
    rig.replicas[0].pause().unwrap();
    let short = other.lock("n").acquire().owner(&theirs).replica_ack(all().within(ms(60))).await;
    assert_eq!(short.map(|_| ()).unwrap_err().kind(), ErrorKind::NotReplicated);
    assert_eq!(lock.hold_count(&me).await.unwrap(), 2);
    rig.replicas[0].resume().unwrap();
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_replicas_is_part_of_the_wait_and_of_the_lease() {
    let rig = rig(1).await;
    let client = rig.client().await;
    rig.replicas[0].pause().unwrap();
    let ack = all();
    let (one, two) = (client.lock("n"), client.lock("m"));
    let short = one.acquire().wait(Wait::AtMost(ms(2_000))).replica_ack(ack);
    let error = soon("the end of the wait", short.into_future()).await.map(|_| ()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotReplicated | ErrorKind::Timeout), "{error}");
    let brief = two.acquire().lease(Lease::Fixed(ms(2_000))).replica_ack(ack.keep_on_shortfall());
    let kept = soon("half the lease", brief.into_future()).await;
    // A machine that stopped for a second may find the lease over.
    assert!(kept.is_ok() || kept.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout), "{kept:?}");
    rig.replicas[0].resume().unwrap();
}

async fn without_replicas(store: Fixture) {
    let client = store.client().await;
    let lock = client.lock(store.name("n"));
    let guard = lock.acquire().replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(numbers(&guard), (0, 0));
    guard.unlock().await.unwrap();
    let error = lock.acquire().replica_ack(at_least(1)).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(!lock.is_locked().await.unwrap());
    let kept = lock.acquire().replica_ack(at_least(1).keep_on_shortfall()).await.unwrap().unwrap();
    assert_eq!(numbers(&kept), (0, 1));
    kept.unlock().await.unwrap();
    let error = lock.acquire().replica_ack(at_least(0)).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_replicas_says_so() {
    without_replicas(Fixture::memory()).await;
    without_replicas(Fixture::local()).await;
}
