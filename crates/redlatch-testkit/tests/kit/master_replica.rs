//! A master and replicas without sentinels.

use redis::Value;
use redlatch_testkit::ErrorKind;
use redlatch_testkit::server::{RedisServer, ServerProgram};
use redlatch_testkit::topology::MasterReplica;

use crate::client::Client;

fn get(set: &MasterReplica, node: usize) -> Value {
    set.node(node).cmd(&["GET", "k"]).unwrap()
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// Writes over a new connection and returns how many replicas have it.
fn write(set: &MasterReplica, value: &str, replicas: usize, limit_ms: &str) -> String {
    let mut client = Client::tcp(&set.node(set.master().unwrap()).url()).unwrap();
    assert_eq!(client.call(&["SET", "k", value]), "+OK");
    client.call(&["WAIT", &replicas.to_string(), limit_ms])
}

fn connected_replicas(set: &MasterReplica) -> String {
    let role = Client::tcp(&set.node(set.master().unwrap()).url()).unwrap().call(&["INFO", "replication"]);
    role.split(' ').find_map(|field| field.strip_prefix("connected_slaves:")).unwrap().to_owned()
}

#[test]
fn a_stalled_replica_counts_but_lags() {
    for program in ServerProgram::ALL {
        let set = MasterReplica::builder().program(program).start().unwrap();
        assert!(set.url().ends_with(&set.addrs().join(",")), "{}", set.url());
        assert_eq!(write(&set, "old", 2, "10000"), ":2", "{program}");
        set.stall_replication(2).unwrap();
        assert_eq!(write(&set, "new", 1, "10000"), ":1", "{program}");
        assert_eq!(write(&set, "new", 2, "100"), ":1", "{program}");
        assert_eq!(connected_replicas(&set), "2", "{program}");
        assert_eq!((get(&set, 1), get(&set, 2)), (text("new"), text("old")), "{program}");
        set.release_replication(2).unwrap();
        assert_eq!(write(&set, "newer", 2, "10000"), ":2", "{program}");
        assert_eq!(get(&set, 2), text("newer"), "{program}");
    }
}

#[test]
fn a_lagging_replica_is_promoted() {
    let set = MasterReplica::start().unwrap();
    assert_eq!(write(&set, "old", 2, "10000"), ":2");
    set.stall_replication(1).unwrap();
    assert_eq!(set.stall_replication(0).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(write(&set, "new", 1, "10000"), ":1");
    set.node(0).kill9();
    set.promote(1).unwrap();
    assert_eq!(set.master().unwrap(), 1);
    assert_eq!((get(&set, 1), get(&set, 2)), (text("old"), text("old")));
    assert_eq!(write(&set, "other", 1, "10000"), ":1");
    set.node(0).restart().unwrap();
    assert_eq!(set.masters().unwrap(), [0, 1], "nobody told the old master");
    assert_eq!(set.master().unwrap_err().kind(), ErrorKind::Server);
    set.promote(1).unwrap();
    set.wait_until_ready().unwrap();
    assert_eq!(get(&set, 0), text("other"));
}

#[test]
fn a_blocked_replica_does_not_count() {
    let set = MasterReplica::builder()
        .servers(RedisServer::builder().acl("default on nopass ~* &* +@all -psync"))
        .start()
        .unwrap();
    assert_eq!(write(&set, "old", 2, "10000"), ":2");
    set.block_replication(1).unwrap();
    assert_eq!(connected_replicas(&set), "1");
    assert_eq!(write(&set, "new", 2, "100"), ":1");
    assert_eq!((get(&set, 1), get(&set, 2)), (text("old"), text("new")));
    set.promote_alone(1).unwrap();
    assert_eq!(set.masters().unwrap(), [0, 1]);
    assert_eq!(get(&set, 1), text("old"));
    set.node(1).cmd(&["REPLICAOF", "127.0.0.1", &set.node(0).port().to_string()]).unwrap();
    set.release_replication(1).unwrap();
    set.wait_until_ready().unwrap();
    assert_eq!(get(&set, 1), text("new"));
}
