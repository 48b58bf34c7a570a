//! Servers, a fault proxy, a fake server and a history checker for testing lock clients.
//!
//! | module | for |
//! |---|---|
//! | [`server`] | a real Redis or Valkey server, private to a test: kill, restart, pause, keyspace comparison |
//! | [`topology`] | such servers together: Sentinel, Cluster, a master with replicas; failover, slots on the move |
//! | [`proxy`] | faults between client and server, aimed at single commands and replies |
//! | [`fake_server`] | a server that answers what a test tells it to |
//! | [`history`] | recording what happened in a run, and judging it afterwards |
//! | [`cancel`] | dropping a future after each of its polls |
//! | [`dir`] | temporary directories in which sockets have room |
//! | [`leftovers`] | asserting that nothing stayed on the server |
//! | [`redisson`] | the real Redisson, driven from Rust |
//! | [`process`] | child processes that end with the test |
//! | [`stall`] | time without the moments in which the machine stood still |
//!
//! Everything listens on the loopback interface or on unix sockets only, and every started process ends with
//! the test, also when the test panics or is killed.

pub mod cancel;
pub mod dir;
pub mod error;
pub mod fake_server;
pub mod history;
pub mod leftovers;
pub mod net;
pub mod process;
pub mod proxy;
pub mod redisson;
pub mod resp;
pub mod server;
pub mod stall;
pub mod topology;

pub use error::{Error, ErrorKind, Result};
