//! Every key of a Redisson file, and what becomes of it here.

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Its value is read by name.
    Used,
    /// It is about threads, pools, caches and the like, which are different here, or about objects that are not locks.
    Silent,
    /// It means something for locks and is not followed: why, and the values that are Redisson's own and need no word.
    Noted(&'static str, &'static [&'static str]),
    /// An object of a Java class that is not needed here; worth a word, because the file's author chose it.
    Class,
    /// A schedule of pauses: read, so that mistakes are found, and not followed.
    Delay,
    /// A Java class that changes what is read and written: never passed over.
    Mapper,
    /// A section of the commercial edition.
    Commercial,
}

use Treatment::{Class, Commercial, Delay, Mapper, Noted, Silent, Used};

type Table = &'static [(&'static str, Treatment)];

const RETRIES: &str = "not used: nothing is sent twice blindly, and a wait goes on until its own limit or the outage tolerance (30 s unless set)";
const ACKNOWLEDGED: &str =
    "not used: here each lock says for itself how many replicas must acknowledge it, none unless asked";
const ADDRESS_MAP: &str = "not applied: servers are reached at the addresses that they tell, unless address_map (REDLATCH_ADDRESS_MAP) says where they are";
const RUSTLS: &str = "not used: TLS 1.2 and 1.3 with the cipher suites of rustls";

/// The server sections in their order of precedence.
pub(super) const SECTIONS: [&str; 5] = [
    "masterSlaveServersConfig",
    "singleServerConfig",
    "sentinelServersConfig",
    "clusterServersConfig",
    "replicatedServersConfig",
];

/// At the root and in sections; the root wins.
const SHARED: Table = &[
    ("username", Used),
    ("password", Used),
    ("credentialsResolver", Mapper),
    ("credentialsReapplyInterval", Silent),
    ("nameMapper", Mapper),
    ("commandMapper", Mapper),
    ("sslVerificationMode", Used),
    ("sslEnableEndpointIdentification", Used),
    ("sslTruststore", Used),
    ("sslTruststorePassword", Silent),
    ("sslKeystore", Used),
    ("sslKeystorePassword", Silent),
    ("sslKeystoreType", Used),
    ("sslProvider", Silent),
    ("sslProtocols", Noted(RUSTLS, &[])),
    ("sslCiphers", Noted(RUSTLS, &[])),
    ("sslTrustManagerFactory", Class),
    ("sslKeyManagerFactory", Class),
    ("keepAlive", Silent),
    ("tcpKeepAlive", Silent),
    ("tcpKeepAliveCount", Silent),
    ("tcpKeepAliveIdle", Silent),
    ("tcpKeepAliveInterval", Silent),
    ("tcpUserTimeout", Silent),
    ("tcpNoDelay", Silent),
];

const ROOT: Table = &[
    ("masterSlaveServersConfig", Used),
    ("singleServerConfig", Used),
    ("sentinelServersConfig", Used),
    ("clusterServersConfig", Used),
    ("replicatedServersConfig", Used),
    ("proxyServersConfig", Commercial),
    ("multiClusterServersConfig", Commercial),
    ("multiSentinelServersConfig", Commercial),
    ("registrationKey", Noted("not needed: this is not Redisson", &[])),
    ("secretKey", Noted("not used: values are not decrypted here", &[])),
    ("lockWatchdogTimeout", Used),
    ("lockWatchdogBatchSize", Used),
    ("fairLockWaitTimeout", Used),
    ("checkLockSyncedSlaves", Noted(ACKNOWLEDGED, &["true"])),
    ("slavesSyncTimeout", Noted(ACKNOWLEDGED, &["1000"])),
    ("codec", Class),
    ("codecProvider", Class),
    ("resolverProvider", Class),
    ("executor", Silent),
    ("nettyExecutor", Silent),
    ("eventLoopGroup", Silent),
    ("nettyHook", Class),
    ("connectionListener", Class),
    ("addressResolverGroupFactory", Class),
    ("useScriptCache", Silent),
    ("keepPubSubOrder", Silent),
    ("protocol", Silent),
    ("threads", Silent),
    ("nettyThreads", Silent),
    ("lazyInitialization", Silent),
    ("transportMode", Silent),
    ("useLinuxNativeEpoll", Silent),
    ("referenceEnabled", Silent),
    ("redissonReferenceEnabled", Silent),
    ("decodeInExecutor", Silent),
    ("minCleanUpDelay", Silent),
    ("maxCleanUpDelay", Silent),
    ("cleanUpKeysAmount", Silent),
    ("reliableTopicWatchdogTimeout", Silent),
    ("useThreadClassLoader", Silent),
    ("valkeyCapabilities", Silent),
    ("metricsEnabled", Silent),
];

/// In every section.
const COMMON: Table = &[
    ("timeout", Used),
    ("connectTimeout", Used),
    ("clientName", Used),
    ("database", Used),
    ("idleConnectionTimeout", Silent),
    ("pingConnectionInterval", Silent),
    ("pingTimeout", Silent),
    ("retryAttempts", Noted(RETRIES, &["3", "4"])),
    ("retryInterval", Noted(RETRIES, &["1500"])),
    ("retryDelay", Delay),
    ("reconnectionDelay", Delay),
    ("reconnectionTimeout", Silent),
    ("failedAttempts", Silent),
    ("subscriptionTimeout", Silent),
    ("subscriptionsPerConnection", Silent),
    ("subscriptionConnectionMinimumIdleSize", Silent),
    ("subscriptionConnectionPoolSize", Silent),
    ("dnsMonitoring", Silent),
    ("dnsMonitoringInterval", Silent),
    ("dnsMonitoringTimes", Silent),
];

/// In every section with replicas.
const REPLICAS: Table = &[
    ("loadBalancer", Class),
    ("readMode", Silent),
    ("subscriptionMode", Silent),
    ("masterConnectionMinimumIdleSize", Silent),
    ("masterConnectionPoolSize", Silent),
    ("slaveConnectionMinimumIdleSize", Silent),
    ("slaveConnectionPoolSize", Silent),
    ("slaveSubscriptionConnectionMinimumIdleSize", Silent),
    ("slaveSubscriptionConnectionPoolSize", Silent),
    ("failedSlaveReconnectionInterval", Silent),
    ("failedSlaveCheckInterval", Silent),
    ("failedSlaveNodeDetector", Class),
    ("fallbackLoadingToMaster", Silent),
];

const SINGLE: Table =
    &[("address", Used), ("connectionMinimumIdleSize", Silent), ("connectionPoolSize", Silent)];

const MASTER_SLAVE: Table = &[("masterAddress", Used), ("slaveAddresses", Used)];

const SENTINEL: Table = &[
    ("sentinelAddresses", Used),
    ("masterName", Used),
    ("sentinelUsername", Used),
    ("sentinelPassword", Used),
    ("scanInterval", Silent),
    ("checkSentinelsList", Silent),
    ("checkSlaveStatusWithSyncing", Silent),
    ("sentinelsDiscovery", Silent),
    ("natMapper", Noted(ADDRESS_MAP, &[])),
    ("natMap", Noted(ADDRESS_MAP, &[])),
];

const CLUSTER: Table = &[
    ("nodeAddresses", Used),
    ("shardedSubscriptionMode", Used),
    ("scanInterval", Silent),
    ("checkSlotsCoverage", Silent),
    ("checkMasterLinkStatus", Silent),
    ("natMapper", Noted(ADDRESS_MAP, &[])),
    ("natMap", Noted(ADDRESS_MAP, &[])),
];

const REPLICATED: Table = &[
    ("nodeAddresses", Used),
    ("scanInterval", Silent),
    ("monitorIPChanges", Silent),
    ("natMapper", Noted(ADDRESS_MAP, &[])),
    ("natMap", Noted(ADDRESS_MAP, &[])),
];

/// The tables of a section, or of the root for `None`.
fn tables(section: Option<&str>) -> Vec<Table> {
    match section {
        None => vec![ROOT, SHARED],
        Some("singleServerConfig") => vec![SINGLE, COMMON, SHARED],
        Some("masterSlaveServersConfig") => vec![MASTER_SLAVE, REPLICAS, COMMON, SHARED],
        Some("sentinelServersConfig") => vec![SENTINEL, REPLICAS, COMMON, SHARED],
        Some("clusterServersConfig") => vec![CLUSTER, REPLICAS, COMMON, SHARED],
        Some(_) => vec![REPLICATED, REPLICAS, COMMON, SHARED],
    }
}

/// The key as Redisson spells it and what becomes of it. Another mix of small and capital letters is recognised, because
/// Redisson can be told to do so.
pub(super) fn find(section: Option<&str>, key: &str) -> Option<(&'static str, Treatment)> {
    let tables = tables(section);
    let all = || tables.iter().flat_map(|table| table.iter());
    all()
        .find(|(name, _)| *name == key)
        .or_else(|| all().find(|(name, _)| name.eq_ignore_ascii_case(key)))
        .copied()
}

/// The setting of this name in some other place than the one where it was looked for.
pub(super) fn elsewhere(key: &str) -> Option<&'static str> {
    [None].into_iter().chain(SECTIONS.map(Some)).find_map(|section| find(section, key)).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_stands_twice_in_one_place() {
        for section in SECTIONS.iter().map(|section| Some(*section)).chain([None]) {
            let mut names: Vec<_> = tables(section).into_iter().flatten().map(|(name, _)| name).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{section:?}");
        }
    }
}
