//! A master, replicas and sentinels.

use std::time::{Duration, Instant};

use redis::Value;
use redlatch_testkit::ErrorKind;
use redlatch_testkit::server::{RedisServer, ServerProgram, TlsFiles};
use redlatch_testkit::topology::{SentinelSet, SentinelSetBuilder};

use crate::client::Client;

/// A set that does not take a pause of the machine for the death of its master.
fn calm() -> SentinelSetBuilder {
    SentinelSet::builder().down_after(Duration::from_secs(5))
}

fn get(node: &RedisServer, key: &str) -> Value {
    node.cmd(&["GET", key]).unwrap()
}

fn master_named_by(set: &SentinelSet, sentinel: usize) -> String {
    let url = format!("redis://{}", set.sentinel_addrs()[sentinel]);
    Client::tcp(&url).unwrap().call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "redlatch"])
}

/// Whether the sentinels could let a node follow another master than it does.
fn sentinels_may_redirect(set: &SentinelSet, node: usize) -> bool {
    let rules = set.node(node).cmd(&["ACL", "GETUSER", "redlatch-testkit-sentinel-0"]).unwrap();
    let Value::Array(fields) = rules else { panic!("{rules:?}") };
    let commands = fields.iter().position(|field| *field == Value::BulkString(b"commands".to_vec()));
    let commands: String = redis::from_redis_value(fields[commands.expect("rules") + 1].clone()).unwrap();
    assert!(commands.starts_with("+@all"), "{commands}");
    !commands.contains("-slaveof")
}

#[test]
fn a_killed_master_is_replaced_and_comes_back_as_a_replica() {
    let set = calm().start().unwrap();
    assert_eq!(set.master().unwrap(), 0);
    assert_eq!(set.replicas().unwrap(), [1, 2]);
    assert_eq!(set.url(), format!("redis-sentinel://{}/redlatch", set.sentinel_addrs().join(",")));
    let before = set.node(0).port();
    for sentinel in 0..3 {
        assert!(master_named_by(&set, sentinel).contains(&before.to_string()));
    }
    set.node(0).cmd(&["SET", "k", "v"]).unwrap();
    assert_eq!(set.node(0).cmd(&["WAIT", "2", "10000"]).unwrap(), Value::Int(2));
    set.node(0).kill9();
    let master = set.wait_for_master_other_than(before).unwrap();
    assert_ne!(master, 0);
    assert_eq!(get(set.node(master), "k"), Value::BulkString(b"v".to_vec()));
    let port = set.node(master).port();
    assert!(master_named_by(&set, 2).contains(&port.to_string()));
    assert_eq!(Client::tcp(&set.node(master).url()).unwrap().call(&["SET", "k", "w"]), "+OK");
    set.node(0).restart().unwrap();
    set.wait_until_ready().unwrap();
    assert_eq!(set.master().unwrap(), master);
    assert!(set.replicas().unwrap().contains(&0));
    assert_eq!(get(set.node(0), "k"), Value::BulkString(b"w".to_vec()));
}

#[test]
fn a_frozen_master_is_replaced() {
    let set = calm().start().unwrap();
    set.node(0).pause().unwrap();
    assert!(!set.node(0).is_up());
    let master = set.wait_for_master_other_than(set.node(0).port()).unwrap();
    assert_ne!(master, 0);
    set.node(0).resume().unwrap();
    set.wait_until_ready().unwrap();
    assert_eq!(set.master().unwrap(), master);
}

#[test]
fn failover_on_request_with_passwords_on_every_program() {
    for program in ServerProgram::ALL {
        let set = calm()
            .servers(RedisServer::builder().requirepass("data"))
            .sentinels(RedisServer::builder().requirepass("watch"))
            .program(program)
            .start()
            .unwrap();
        let mut sentinel = Client::tcp(&set.sentinel(0).url()).unwrap();
        assert!(sentinel.call(&["SENTINEL", "MASTERS"]).starts_with("-NOAUTH"), "{program}");
        assert_eq!(sentinel.call(&["AUTH", "watch"]), "+OK");
        let mut master = Client::tcp(&set.node(0).url()).unwrap();
        assert!(master.call(&["AUTH", "watch"]).starts_with("-WRONGPASS"), "{program}");
        assert_eq!(master.call(&["AUTH", "data"]), "+OK");
        assert_eq!(master.call(&["SET", "k", "v"]), "+OK");
        let new = set.failover().unwrap();
        assert_ne!(new, 0, "{program}");
        assert_eq!(set.master().unwrap(), new);
        assert_eq!(get(set.node(new), "k"), Value::BulkString(b"v".to_vec()), "{program}");
        assert!(!format!("{set:?}").contains("watch"));
    }
}

#[test]
fn a_blocked_replica_lags_and_can_be_the_one_that_is_promoted() {
    let set = calm().replica_count(1).start().unwrap();
    let node = set.node(0);
    node.cmd(&["SET", "k", "old"]).unwrap();
    assert_eq!(node.cmd(&["WAIT", "1", "10000"]).unwrap(), Value::Int(1));
    set.block_replication(1).unwrap();
    node.cmd(&["SET", "k", "new"]).unwrap();
    assert_eq!(node.cmd(&["WAIT", "1", "1"]).unwrap(), Value::Int(0));
    node.kill9();
    assert_eq!(set.wait_for_master_other_than(node.port()).unwrap(), 1);
    assert_eq!(get(set.node(1), "k"), Value::BulkString(b"old".to_vec()));
    set.release_replication(1).unwrap();
}

#[test]
fn failover_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles::create(dir.path()).unwrap();
    let set = calm().mutual_tls(&files).start().unwrap();
    assert!(set.url().starts_with("rediss-sentinel://"), "{}", set.url());
    set.node(0).cmd(&["SET", "k", "v"]).unwrap();
    let master = set.failover().unwrap();
    assert_ne!(master, 0);
    assert_eq!(get(set.node(master), "k"), Value::BulkString(b"v".to_vec()));
}

#[test]
fn a_stalled_replica_counts_but_lags_and_is_promoted() {
    for program in ServerProgram::ALL {
        let set = calm().program(program).replica_count(1).start().unwrap();
        assert_eq!(set.node(0).clients().unwrap(), [], "{program}: only replicas and sentinels are there");
        let mut master = Client::tcp(&set.node(0).url()).unwrap();
        assert_eq!(master.call(&["SET", "k", "old"]), "+OK");
        assert_eq!(master.call(&["WAIT", "1", "10000"]), ":1", "{program}");
        assert_eq!(set.stall_replication(0).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(sentinels_may_redirect(&set, 1), "{program}");
        set.stall_replication(1).unwrap();
        assert!(!sentinels_may_redirect(&set, 1), "{program}");
        assert_eq!(master.call(&["SET", "k", "new"]), "+OK");
        assert_eq!(master.call(&["WAIT", "1", "100"]), ":0", "{program}");
        assert!(master.call(&["INFO", "replication"]).contains("connected_slaves:1 "), "{program}");
        set.release_replication(1).unwrap();
        assert!(sentinels_may_redirect(&set, 1), "{program}");
        assert_eq!(master.call(&["SET", "k", "newer"]), "+OK");
        assert_eq!(master.call(&["WAIT", "1", "10000"]), ":1", "{program}");
        set.stall_replication(1).unwrap();
        assert_eq!(master.call(&["SET", "k", "newest"]), "+OK");
        set.node(0).kill9();
        assert_eq!(set.wait_for_master_other_than(set.node(0).port()).unwrap(), 1, "{program}");
        assert_eq!(get(set.node(1), "k"), Value::BulkString(b"newer".to_vec()), "{program}");
    }
}

#[test]
fn the_side_with_most_sentinels_gets_a_master_of_its_own() {
    let servers = RedisServer::builder().requirepass("data");
    let set = calm().servers(servers).sentinels(RedisServer::builder().requirepass("watch")).start().unwrap();
    set.part(&[0], &[0]).unwrap();
    let named_by = |sentinel: usize| {
        let named = set.sentinel(sentinel).cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "redlatch"]).unwrap();
        let (_, port): (String, u16) = redis::from_redis_value(named).unwrap();
        port
    };
    let began = Instant::now();
    let new = loop {
        let named = named_by(1);
        match (1..3).find(|index| named == set.node(*index).port()) {
            Some(new) if named == named_by(2) => break new,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no other master");
    };
    assert_eq!(named_by(0), set.node(0).port(), "it has heard of nothing");
    for node in [0, new] {
        // Who is promoted closes all connections once, and is named before it takes writes.
        while set.node(node).cmd(&["SET", "a", &node.to_string()]).is_err() {
            std::thread::sleep(Duration::from_millis(20));
            assert!(began.elapsed() < Duration::from_secs(60), "it takes no writes");
        }
    }
    set.join(&[0], &[0]).unwrap();
    assert_eq!(set.wait_for_master_other_than(set.node(0).port()).unwrap(), new);
}
