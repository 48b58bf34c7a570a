//! Every setting, its default, and its limits.

pub(crate) mod addr;
mod address_map;
mod defaults;
mod options;
mod redisson;
pub(crate) mod settings;
pub(crate) mod url;
mod values;

pub use crate::replica_ack::{REPLICA_ACK_TIME, REPLICA_ACK_TIME_MAX, REPLICAS_MAX};
pub use address_map::AddressMap;
pub(crate) use defaults::lease_ms;
pub use defaults::{
    CONNECT_TIMEOUT, FAIR_WAIT, FAIR_WAIT_MAX, LEASE_MAX, LEASE_MIN, MEMBER_TIMEOUT_MAX, MEMBER_TIMEOUT_MIN,
    MEMBERS_MAX, OUTAGE_TOLERANCE, POLL_INTERVAL_MAX, QUEUE_POLL_INTERVAL_MAX, QUORUM_DRIFT,
    REDISSON_FAIR_WAIT, RENEWAL_BATCH_MAX, RESPONSE_TIMEOUT, TURN_PASSES_MAX, TURN_TIME_MAX, WATCHDOG_LEASE,
    WATCHDOG_LEASE_MIN,
};
pub(crate) use options::Secret;
pub use options::{ScriptMode, ShardedPubSub, TlsOptions};
pub(crate) use redisson::URL_SCHEME as REDISSON_URL_SCHEME;
pub use redisson::{Notice, RedissonValue, RedissonYaml};
pub(crate) use values::Config;
