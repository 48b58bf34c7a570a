//! A cluster.

use std::time::Duration;

use redis::Value;
use redlatch_testkit::ErrorKind;
use redlatch_testkit::server::{RedisServer, ServerProgram, TlsFiles};
use redlatch_testkit::topology::{RedisCluster, RedisClusterBuilder, SLOTS};

use crate::client::Client;

/// A cluster that does not take a pause of the machine for the death of a node.
fn calm() -> RedisClusterBuilder {
    RedisCluster::builder().node_timeout(Duration::from_secs(5))
}

fn client(cluster: &RedisCluster, node: usize) -> Client {
    Client::tcp(&cluster.node(node).url()).unwrap()
}

/// Keys in the slot of `{job}`, made on its owner.
fn make_keys(cluster: &RedisCluster, count: usize) -> (u16, usize) {
    let slot = cluster.slot_of("{job}");
    let owner = cluster.owner_of(slot).unwrap();
    let mut client = client(cluster, owner);
    for n in 0..count {
        assert_eq!(client.call(&["SET", &format!("{{job}}{n}"), &n.to_string()]), "+OK");
    }
    (slot, owner)
}

#[test]
fn slots_move_step_by_step() {
    let cluster = calm().start().unwrap();
    assert_eq!(cluster.masters().unwrap(), [0, 1, 2]);
    assert_eq!(cluster.replicas_of(1).unwrap(), [4]);
    assert_eq!(cluster.seeds().len(), 6);
    assert!(cluster.url().starts_with("redis-cluster://127.0.0.1:"), "{}", cluster.url());
    assert_eq!(cluster.node(0).clients().unwrap(), [], "replicas do not count as clients");
    let (slot, from) = make_keys(&cluster, 5);
    let slot_by_server: Value = cluster.node(4).cmd(&["CLUSTER", "KEYSLOT", "x{job}y"]).unwrap();
    assert_eq!(slot_by_server, Value::Int(slot.into()));
    let to = (from + 1) % 3;
    let (mut old, mut new) = (client(&cluster, from), client(&cluster, to));
    let moved = format!("-MOVED {slot} 127.0.0.1:{}", cluster.node(from).port());
    assert_eq!(new.call(&["GET", "{job}0"]), moved);

    let step = cluster.begin_move(slot, to).unwrap();
    assert_eq!((step.slot(), step.from(), step.to()), (slot, from, to));
    assert_eq!(step.move_keys(2).unwrap(), 2);
    step.move_key("{job}4").unwrap();
    assert_eq!(step.move_key("{other}").unwrap_err().kind(), ErrorKind::Invalid);
    let ask = format!("-ASK {slot} 127.0.0.1:{}", cluster.node(to).port());
    assert_eq!(old.call(&["GET", "{job}4"]), ask);
    let all: Vec<String> = (0..5).map(|n| old.call(&["GET", &format!("{{job}}{n}")])).collect();
    assert!(all.iter().filter(|answer| **answer == ask).count() >= 2, "{all:?}");
    assert!(all.iter().any(|answer| answer.starts_with("$1 ")), "{all:?}");
    let some = ["MGET", "{job}0", "{job}1", "{job}2", "{job}3", "{job}4"];
    assert!(old.call(&some).starts_with("-TRYAGAIN"));
    assert_eq!(cluster.owner_of(slot).unwrap(), from);
    assert_eq!(cluster.begin_move(slot, to).unwrap().finish().unwrap_err().kind(), ErrorKind::Server);

    while step.move_keys(1).unwrap() > 0 {}
    step.finish().unwrap();
    assert_eq!(cluster.owner_of(slot).unwrap(), to);
    assert_eq!(new.call(&["GET", "{job}3"]), "$1 3");
    let moved = format!("-MOVED {slot} 127.0.0.1:{}", cluster.node(to).port());
    for other in [from, (from + 2) % 3] {
        assert_eq!(client(&cluster, other).call(&["GET", "{job}0"]), moved);
    }
    cluster.wait_until_ready().unwrap();

    cluster.move_slot(slot, from).unwrap();
    assert_eq!(old.call(&["GET", "{job}4"]), "$1 4");
    let step = cluster.begin_move(slot, to).unwrap();
    assert_eq!(step.move_keys(3).unwrap(), 3);
    step.abandon().unwrap();
    assert_eq!(old.call(&some), "*5 $1 0 $1 1 $1 2 $1 3 $1 4");
    assert_eq!(cluster.begin_move(slot, from).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(cluster.begin_move(SLOTS, from).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_replica_takes_over_on_request_after_a_kill_and_after_a_freeze() {
    let cluster = calm().start().unwrap();
    cluster.failover(3).unwrap();
    assert_eq!(cluster.masters().unwrap(), [1, 2, 3]);
    cluster.wait_until_ready().unwrap();
    assert_eq!(cluster.replicas_of(3).unwrap(), [0]);
    let slot_of_1 = (0..SLOTS).find(|&slot| cluster.owner_of(slot).unwrap() == 1).unwrap();
    cluster.node(1).kill9();
    assert_eq!(cluster.masters().unwrap(), [1, 2, 3], "down, but not replaced");
    assert_eq!(cluster.wait_for_owner_other_than(slot_of_1, 1).unwrap(), 4);
    cluster.node(1).restart().unwrap();
    cluster.wait_until_ready().unwrap();
    cluster.node(2).pause().unwrap();
    cluster.wait_for_master(5).unwrap();
    assert_eq!(cluster.masters().unwrap(), [3, 4, 5]);
    cluster.node(2).resume().unwrap();
    cluster.wait_until_ready().unwrap();
    assert_eq!(cluster.masters().unwrap(), [3, 4, 5]);
    assert_eq!(cluster.replicas_of(5).unwrap(), [2]);
}

#[test]
fn a_blocked_replica_lags_and_can_take_over() {
    let cluster = calm().start().unwrap();
    let (_, owner) = make_keys(&cluster, 1);
    let replica = cluster.replicas_of(owner).unwrap()[0];
    let node = cluster.node(owner);
    let mut master = client(&cluster, owner);
    assert_eq!(master.call(&["SET", "{job}0", "old"]), "+OK");
    assert_eq!(master.call(&["WAIT", "1", "10000"]), ":1");
    cluster.block_replication(replica).unwrap();
    assert_eq!(master.call(&["SET", "{job}0", "new"]), "+OK");
    assert_eq!(master.call(&["WAIT", "1", "1"]), ":0");
    cluster.take_over(replica).unwrap();
    assert_eq!(client(&cluster, replica).call(&["GET", "{job}0"]), "$3 old");
    cluster.unblock_replication(replica).unwrap();
    cluster.wait_until_ready().unwrap();
    assert_eq!(node.cmd(&["READONLY"]).unwrap(), Value::Okay);
    assert_eq!(node.cmd(&["GET", "{job}0"]).unwrap(), Value::BulkString(b"old".to_vec()));
}

#[test]
fn passwords_do_not_stop_replication_and_moves_on_any_program() {
    for program in ServerProgram::ALL {
        let servers = RedisServer::builder().requirepass("data").arg("save", "\"\"");
        let cluster =
            calm().servers(servers).program(program).replicas_per_master(0).master_count(2).start().unwrap();
        let slot = cluster.slot_of("k");
        let from = cluster.owner_of(slot).unwrap();
        assert!(client(&cluster, from).call(&["GET", "k"]).starts_with("-NOAUTH"), "{program}");
        cluster.node(from).cmd(&["SET", "k", "v"]).unwrap();
        cluster.move_slot(slot, 1 - from).unwrap();
        let found = cluster.node(1 - from).cmd(&["GET", "k"]).unwrap();
        assert_eq!(found, Value::BulkString(b"v".to_vec()), "{program}");
        let info = cluster.node(0).cmd(&["INFO", "server"]).unwrap();
        let Value::BulkString(info) = info else { panic!("{info:?}") };
        let info = String::from_utf8(info).unwrap();
        let version = match program {
            ServerProgram::Redis62 => "redis_version:6.2.",
            ServerProgram::Redis8 => "redis_version:8.0.",
            ServerProgram::Valkey8 => "valkey_version:8.1.",
            _ => "redis_version:",
        };
        assert!(info.contains(version), "{info}");
    }
}

#[test]
fn moves_and_replicas_work_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles::create(dir.path()).unwrap();
    let cluster = calm().mutual_tls(&files).start().unwrap();
    assert!(cluster.url().starts_with("rediss-cluster://"), "{}", cluster.url());
    let slot = cluster.slot_of("k");
    let from = cluster.owner_of(slot).unwrap();
    let to = (from + 1) % 3;
    cluster.node(from).cmd(&["SET", "k", "v"]).unwrap();
    cluster.move_slot(slot, to).unwrap();
    assert_eq!(cluster.node(to).cmd(&["GET", "k"]).unwrap(), Value::BulkString(b"v".to_vec()));
    assert_eq!(cluster.node(to).cmd(&["WAIT", "1", "10000"]).unwrap(), Value::Int(1));
}
