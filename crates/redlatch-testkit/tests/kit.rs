//! The kit, tried on real servers and on histories that are wrong on purpose.

#[path = "kit/client.rs"]
mod client;
#[path = "kit/cluster.rs"]
mod cluster;
#[path = "kit/fake_server.rs"]
mod fake_server;
#[path = "kit/history.rs"]
mod history;
#[path = "kit/master_replica.rs"]
mod master_replica;
#[path = "kit/network.rs"]
mod network;
#[path = "kit/process.rs"]
mod process;
#[path = "kit/rules.rs"]
mod rules;
#[path = "kit/sentinel.rs"]
mod sentinel;
#[path = "kit/server.rs"]
mod server;
