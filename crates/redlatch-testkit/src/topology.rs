//! Servers that belong together: Sentinel, Cluster, and a master with replicas.
//!
//! Every node is a [`RedisServer`](crate::server::RedisServer) of its own, so that a test kills, pauses,
//! resumes and restarts it as it does a single one. Nodes are named by their index, which stays the same
//! whatever their role; the first ones start as masters. Nodes talk to each other as users of the kit, so
//! that passwords and ACLs of the test do not get in the way.

mod cluster;
mod master_replica;
mod relay;
mod replication;
mod sentinel;
mod wait;

pub use self::cluster::{RedisCluster, RedisClusterBuilder, SLOTS, SlotMove, slot_of};
pub use self::master_replica::{MasterReplica, MasterReplicaBuilder};
pub use self::sentinel::{MASTER_NAME, SentinelSet, SentinelSetBuilder};
