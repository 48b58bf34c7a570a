//! A master and its replicas without sentinels: who is the master is asked of the servers themselves.

use std::time::Instant;

use redlatch::{Client, ErrorKind, LossReason, Owner, Unlocked, Wait};
use redlatch_testkit::{
    proxy::{Proxy, Scope},
    server::{RedisServer, RedisServerBuilder},
    topology::MasterReplica,
};

use crate::fixture::{ms, quiet, soon};

/// Two servers of which the second follows the first.
struct Pair {
    first: RedisServer,
    second: RedisServer,
}

impl Pair {
    async fn start(settings: RedisServerBuilder) -> Pair {
        let settings = settings.arg("repl-diskless-sync-delay", "0");
        let pair = Pair { first: settings.clone().start().unwrap(), second: settings.start().unwrap() };
        follow(&pair.second, &pair.first).await;
        pair
    }

    /// The replica is named first, so that the order cannot be what finds the master.
    fn url(&self, user: &str) -> String {
        format!("redis-replicated://{user}127.0.0.1:{},127.0.0.1:{}", self.second.port(), self.first.port())
    }

    /// The replica takes over, and the former master follows it.
    async fn change_places(&self) {
        let Pair { first, second } = self;
        soon("the copy", async {
            while first.cmd(&["DBSIZE"]).unwrap() != second.cmd(&["DBSIZE"]).unwrap() {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await;
        second.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
        follow(first, second).await;
    }
}

async fn follow(replica: &RedisServer, master: &RedisServer) {
    replica.cmd(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).unwrap();
    soon("the link to the master", async {
        while !info(replica).contains("master_link_status:up") {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
}

fn info(server: &RedisServer) -> String {
    match server.cmd(&["INFO", "replication"]).unwrap() {
        redis::Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn scripts_run(server: &RedisServer) -> u64 {
    let counts = server.command_counts().unwrap();
    counts.iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, count)| count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_over_is_followed() {
    let pair = Pair::start(RedisServer::builder()).await;
    let client = quiet().url(pair.url("")).connect().await.unwrap();
    let other = quiet().url(pair.url("")).connect().await.unwrap();
    assert!(
        client.store().ends_with(&format!("master 127.0.0.1:{}", pair.first.port())),
        "{}",
        client.store()
    );
    let guard = client.lock("kept").lock().await.unwrap();
    let waiting = other.lock("kept");
    let waiter = tokio::spawn(async move { waiting.lock().await });
    soon("the waiter's subscription", async {
        while pair.first.subscriber_channels().unwrap().is_empty() {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
    pair.change_places().await;
    soon("the waiter's new subscription", async {
        while pair.second.subscriber_channels().unwrap().is_empty() {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
    assert!(guard.is_valid());
    assert!(soon("an answer", client.lock("kept").try_lock()).await.unwrap().is_none());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    // Both have been refused by the demoted master by now, if they had not noticed before.
    let before = scripts_run(&pair.first);
    for client in [&client, &other] {
        client.lock("kept").lock().await.unwrap().unlock().await.unwrap();
    }
    assert_eq!(scripts_run(&pair.first), before, "the demoted master is left alone");
    let findings = client.diagnose().await.unwrap();
    let of_servers: Vec<_> = findings.iter().filter(|finding| finding.subject == "server").collect();
    assert_eq!(of_servers.len(), 2, "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_nobody_is_the_master_nobody_is_pestered() {
    let pair = Pair::start(RedisServer::builder()).await;
    let client = quiet().url(pair.url("")).connect().await.unwrap();
    client.lock("warm").lock().await.unwrap().unlock().await.unwrap();
    pair.first.cmd(&["REPLICAOF", "127.0.0.1", &pair.second.port().to_string()]).unwrap();
    pair.first.reset_command_counts().unwrap();
    let start = Instant::now();
    let error = client.lock("free").lock_for(ms(1_000)).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    let counts = pair.first.command_counts().unwrap();
    let asked: u64 = ["evalsha", "eval", "role"].iter().filter_map(|name| counts.get(*name)).sum();
    let looks_max = start.elapsed().as_millis() / 25 + 20;
    assert!(u128::from(asked) < looks_max, "{asked} in {:?}: {counts:?}", start.elapsed());
    // A caller that goes on waiting gets the lock from the server that becomes the master.
    let waiting = client.lock("free");
    let waiter = tokio::spawn(async move { waiting.lock().await });
    let error = client.lock("other").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    pair.second.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
    soon("the grant of the new master", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    assert!(
        client.store().ends_with(&format!("master 127.0.0.1:{}", pair.second.port())),
        "{}",
        client.store()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn either_right_to_ask_for_the_role_is_enough() {
    let settings = RedisServer::builder()
        .acl("by-info on >pw ~* &* +@all -role")
        .acl("by-role on >pw ~* &* +@all -info")
        .acl("blind on >pw ~* &* +@all -role -info");
    let pair = Pair::start(settings).await;
    for user in ["by-info", "by-role"] {
        let client = quiet().url(pair.url(&format!("{user}:pw@"))).connect().await.unwrap();
        client.lock(user).lock().await.unwrap().unlock().await.unwrap();
        assert!(client.store().ends_with(&format!("master 127.0.0.1:{}", pair.first.port())));
    }
    let error = quiet().url(pair.url("blind:pw@")).connect().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    assert!(error.to_string().contains("right to role"), "{error}");
    let start = Instant::now();
    let connect = quiet().url(pair.url("blind:hunter2@")).connect_timeout(ms(60_000)).connect();
    let error = connect.await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    assert!(start.elapsed() < ms(30_000), "{:?}", start.elapsed());
}

/// The old master has been cut off and does not know it: it lists a replica as before, and the one that was promoted has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_promoted_is_followed_though_the_old_master_still_lists_its_replicas() {
    let servers = MasterReplica::builder().replica_count(2).start().unwrap();
    let [old, new] = [0, 1].map(|at| servers.node(at));
    let client = quiet().url(servers.url()).watchdog_lease(ms(120_000)).connect().await.unwrap();
    let uses =
        |client: &Client, server: &RedisServer| client.store().ends_with(&format!(":{}", server.port()));
    assert!(uses(&client, old));
    let held = client.lock("held").lock().await.unwrap();
    soon("its way to the replica", async {
        while new.cmd(&["EXISTS", "held"]).unwrap() != redis::Value::Int(1) {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
    tokio::task::block_in_place(|| {
        for replica in [1, 2] {
            servers.stall_replication(replica).unwrap();
        }
    });
    let missed = client.lock("missed").lock().await.unwrap();
    new.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
    // The other replica is cut off, too, and is listed as before.
    assert!(!info(old).contains("connected_slaves:0"), "{}", info(old));
    soon("the move", async {
        while !uses(&client, new) {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
    // What it had got is kept, and what it had not is lost and told.
    assert_eq!(soon("the notice", missed.lost()).await, LossReason::Deleted);
    assert!(held.is_valid());
    let late = quiet().url(servers.url()).connect().await.unwrap();
    assert!(uses(&late, new), "{}", late.store());
    let theirs = late.lock("missed").try_lock().await.unwrap().expect("nobody holds it there");
    assert!(late.lock("held").try_lock().await.unwrap().is_none());
    assert!(!missed.is_valid() && theirs.is_valid());
    // The new one is silent for a while: nobody goes back.
    new.pause().unwrap();
    tokio::time::sleep(ms(2_500)).await;
    assert!(uses(&client, new) && uses(&late, new));
    new.resume().unwrap();
    assert_eq!(held.unlock().await.unwrap(), Unlocked::Released);
    theirs.unlock().await.unwrap();
}

/// A master and its replica behind proxies, so that a client can be kept from seeing what happens to them.
pub(crate) struct ThereAndBack {
    pair: Pair,
    ways: [Proxy; 2],
}

impl ThereAndBack {
    /// The servers tell of no changes, so that only a look finds what is missing.
    pub(crate) async fn start() -> ThereAndBack {
        let pair =
            Pair::start(RedisServer::builder().acl("default on nopass ~* &* +@all -client|tracking")).await;
        let ways = [&pair.first, &pair.second].map(|server| Proxy::start(&server.url()).unwrap());
        ThereAndBack { pair, ways }
    }

    /// The port of the master, as clients know it.
    pub(crate) fn port(&self) -> u16 {
        self.ways[0].port()
    }

    /// While a client sees nothing, the replica takes over, loses a hold and an entry, and gives the place back. The client had seen the
    /// same master before, and went on as if it had all that it was told.
    pub(crate) async fn is_a_new_master(&self, url: &str) {
        let ThereAndBack { pair: Pair { first, second }, ways } = self;
        // Neither renewals nor missed answers are due while the test lasts.
        let lease = ms(120_000);
        let one = quiet().url(first.url()).watchdog_lease(lease).connect().await.unwrap();
        let two = quiet().url(url).watchdog_lease(lease).response_timeout(ms(60_000));
        let two = two.connect().await.unwrap();
        let missed = two.lock("missed").lock().await.unwrap();
        let owner = one.owner();
        let held = one.lock("n").acquire().owner(&owner).await.unwrap().expect("it is free");
        let text: Owner = owner.to_text().parse().unwrap();
        let entered = two.lock("n").acquire().owner(&text).wait(Wait::No).await.unwrap().expect("it enters");
        let counted = |server: &RedisServer| {
            redis::from_redis_value::<Option<i64>>(server.cmd(&["HGET", "n", &owner.to_text()]).unwrap())
                .unwrap()
        };
        soon("the copy", async {
            while counted(second) != Some(2) {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await;
        ways.iter().for_each(|way| way.stall(Scope::Both));
        second.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
        second.cmd(&["DEL", "missed"]).unwrap();
        second.cmd(&["HINCRBY", "n", &owner.to_text(), "-1"]).unwrap();
        follow(first, second).await;
        soon("the copy back", async {
            while counted(first) != Some(1) {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await;
        first.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
        follow(second, first).await;
        let before = ways[0].connections_accepted();
        ways.iter().for_each(|way| way.heal().unwrap());
        soon("connections to the new master", async {
            while ways[0].connections_accepted() == before {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await;
        assert_eq!(soon("the notice", missed.lost()).await, LossReason::Deleted);
        let unlocked = soon("a release", entered.unlock()).await.unwrap();
        assert!(matches!(unlocked, Unlocked::StillHeld(_)), "{unlocked:?}");
        assert_eq!(
            counted(first),
            Some(1),
            "what the master of before has counted is not taken from this one"
        );
        assert!(two.lock("n").try_lock().await.unwrap().is_none() && held.is_valid());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_lost_its_place_and_got_it_back_between_two_looks_is_a_new_one() {
    let servers = ThereAndBack::start().await;
    let [first, second] = [&servers.ways[0], &servers.ways[1]].map(Proxy::port);
    servers.is_a_new_master(&format!("redis-replicated://127.0.0.1:{first},127.0.0.1:{second}")).await;
}

/// The one in between was seen by nobody, and the old master says that it is one. Clients guessed, each with what it remembered, and some were at one and some
/// at the other. They use none until a person has made the old one a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_grants_where_it_cannot_be_told_which_of_two_masters_counts() {
    let servers = MasterReplica::builder().replica_count(2).start().unwrap();
    let [old, between, last] = [0, 1, 2].map(|at| servers.node(at));
    let client = quiet().url(servers.url()).connect().await.unwrap();
    let uses = |server: &RedisServer| client.store().ends_with(&format!(":{}", server.port()));
    assert!(uses(old), "{}", client.store());
    let held = soon("the hold", client.lock("x").lock()).await.unwrap();
    soon("its way to the replica", async {
        while last.cmd(&["EXISTS", "x"]).unwrap() != redis::Value::Int(1) {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
    // No look is to see that one: the client hears of nothing meanwhile.
    tokio::task::block_in_place(|| {
        old.pause().unwrap();
        between.pause().unwrap();
    });
    last.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
    soon("the change to the last one", async {
        while !uses(last) {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    // It has had no replica for long, and does not say any more whose copy it was.
    last.cmd(&["CONFIG", "SET", "repl-backlog-ttl", "1"]).unwrap();
    soon("a name without a parent", async {
        while !info(last).contains("master_replid2:0000000000") {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    tokio::task::block_in_place(|| {
        old.resume().unwrap();
        between.resume().unwrap();
    });
    soon("that none is used", async {
        while !client.store().ends_with("no master") {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    let error = soon("an error of two masters", async {
        loop {
            let error = client.lock("z").try_lock().await.unwrap_err();
            if error.kind() == ErrorKind::Unreachable {
                return error;
            }
            // A server that has just gone on may not answer yet: then it is that there is no master.
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    for server in [old, last] {
        assert!(error.to_string().contains(&format!(":{}", server.port())), "{error}");
    }
    assert!(error.to_string().contains("REPLICAOF"), "{error}");
    let new = quiet().url(servers.url()).connect_timeout(ms(1_500)).connect().await.unwrap_err();
    assert_eq!(new.kind(), ErrorKind::Unreachable, "{new}");
    assert!(new.to_string().contains("REPLICAOF"), "{new}");
    // A person decides.
    follow(old, last).await;
    soon("the last one", async {
        while !uses(last) {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    assert!(soon("the lock", client.lock("y").lock()).await.unwrap().is_valid());
    assert!(held.is_valid(), "it was there all the time, and a lease has not passed");
    assert_eq!(soon("its release", held.unlock()).await.unwrap(), Unlocked::Released);
}

/// A former master that is started anew by its machine is a master again, with nothing or with what it had saved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_master_that_comes_back_as_one_disturbs_nobody_whose_master_most_copy() {
    let servers = MasterReplica::builder().replica_count(2).start().unwrap();
    let [former, master, other] = [0, 1, 2].map(|at| servers.node(at));
    let client = quiet().url(servers.url()).watchdog_lease(ms(3_000)).connect().await.unwrap();
    tokio::task::block_in_place(|| former.kill9());
    master.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
    follow(other, master).await;
    let held = soon("the hold", client.lock("x").lock()).await.unwrap();
    tokio::task::block_in_place(|| former.restart().unwrap());
    assert!(info(former).contains("role:master"), "{}", info(former));
    // Longer than two looks, than a lease, and than the time after which a doubt counts.
    for _ in 0..24 {
        tokio::time::sleep(ms(500)).await;
        assert!(held.is_valid() && client.store().ends_with(&format!(":{}", master.port())));
    }
    // Who knows nothing cannot tell.
    let new = quiet().url(servers.url()).connect_timeout(ms(1_500)).connect().await.unwrap_err();
    assert!(new.to_string().contains("REPLICAOF"), "{new}");
    follow(former, master).await;
    let new = quiet().url(servers.url()).connect().await.unwrap();
    assert!(new.lock("x").try_lock().await.unwrap().is_none());
    assert_eq!(held.unlock().await.unwrap(), Unlocked::Released);
}
