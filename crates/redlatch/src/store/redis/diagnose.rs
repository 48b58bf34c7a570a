//! What a server's settings mean for locks. Every question may be refused; a refusal is itself a finding.

use std::{
    collections::{HashMap, HashSet},
    time::SystemTime,
};

use redis::Cmd;

use super::{link::Link, node::Node};
use crate::{
    error::ErrorKind,
    finding::{Finding, Severity},
    store::{Fault, Reply},
};

/// Over how many connections a server is asked whether it is always the same.
const CONNECTIONS_TRIED: usize = 4;
/// A clock difference that is worth mentioning: Java's fair locks and permits put the client's clock into shared state.
const CLOCK_DIFFERENCE_MS_MAX: u128 = 1_000;

/// How much of its memory limit a server may use, in percent.
const MEMORY_PERCENT_MAX: u64 = 90;

impl Node {
    /// `alone`: the URL takes it for a server on its own.
    pub(super) async fn diagnose(self: std::sync::Arc<Self>, alone: bool) -> Result<Vec<Finding>, Fault> {
        let link = self.link().await?;
        let mut findings = Vec::from_iter(self.dial().finding());
        if self.dial().shows_password() {
            findings.push(
                Finding::new(
                    Severity::Problem,
                    "password",
                    "it is sent over the network without encryption: everybody on the path can read it",
                )
                .remedy("use rediss://, or a unix socket or loopback address"),
            );
        }
        let mut watched_keys = None;
        match ask(&link, &["INFO"]).await {
            Ok(reply) => {
                let info = sections(&reply);
                watched_keys = info.get("tracking_total_keys").and_then(|count| count.parse().ok());
                version(&info, &mut findings);
                persistence(&info, &mut findings);
                eviction(&info, &link, &mut findings).await;
                findings.extend(memory(&info));
                replication(&info, &mut findings);
                membership(&info, alone, &mut findings);
            }
            Err(fault) => findings.push(Finding::new(
                Severity::Note,
                "server information",
                format!("INFO is not allowed ({fault}), so version, persistence and replicas are unknown"),
            )),
        }
        self.turns(&mut findings).await;
        publishing(&link, &mut findings).await;
        findings.push(self.telling(watched_keys).await?);
        clock(&link, &mut findings).await;
        Ok(findings)
    }
}

impl Node {
    /// What is wrong now. It asks two questions, of which an account may be refused the first.
    pub(super) async fn trouble(self: std::sync::Arc<Self>) -> Result<Vec<Finding>, Fault> {
        let link = self.link().await?;
        let mut findings = Vec::new();
        match ask(&link, &["INFO"]).await {
            Ok(reply) => {
                let info = sections(&reply);
                eviction(&info, &link, &mut findings).await;
                findings.extend(memory(&info));
                replication(&info, &mut findings);
            }
            Err(fault) if fault.error().kind() == ErrorKind::Permission => {}
            Err(fault) => return Err(fault),
        }
        // What is as it was set up is for `diagnose`.
        findings.retain(|finding| finding.severity == Severity::Problem);
        let mut clocks = Vec::new();
        clock(&link, &mut clocks).await;
        findings.extend(clocks.into_iter().filter(|finding| finding.severity != Severity::Good));
        Ok(findings)
    }

    /// Whether one server answers at the address, as far as a few connections show it.
    async fn turns(&self, findings: &mut Vec<Finding>) {
        let Ok(processes) = Link::processes(self.dial(), CONNECTIONS_TRIED).await else { return };
        let different: HashSet<_> = processes.into_iter().flatten().collect();
        if different.len() > 1 {
            let text = format!(
                "{} servers answered at this address over {CONNECTIONS_TRIED} connections, one after the other; clients that see them take turns refuse to use them, because none has the locks of the others",
                different.len()
            );
            let finding = Finding::new(Severity::Problem, "server", text);
            findings.push(finding.remedy(
                "have the proxy send all connections to one server; if this one was just started anew, look again",
            ));
        }
    }

    /// Whether a holder learns at once that another client has ended its hold.
    async fn telling(self: &std::sync::Arc<Self>, watched_keys: Option<u64>) -> Result<Finding, Fault> {
        let link = self.background_link().await?;
        let why = match link.tells().await? {
            None => Some("it does not speak RESP3".to_owned()),
            Some(tells) => match tells.refused() {
                None => ask(&link, &["CLIENT", "CACHING", "YES"]).await.err().map(|fault| fault.to_string()),
                refused => refused,
            },
        };
        let Some(why) = why else {
            let keys_max = watched_keys_max(&link).await;
            if let Some(keys) = watched_keys.filter(|keys| keys_max > 0 && *keys >= keys_max) {
                let text = format!(
                    "the server watches {keys} keys for its clients and has no room for more: it forgets some and does not say so, and then a holder learns only after 20 s, or with its next renewal, of a lock that another client has deleted or forced free"
                );
                let finding = Finding::new(Severity::Problem, "loss", text);
                return Ok(
                    finding.remedy("raise tracking-table-max-keys, or keep locks on a server of their own")
                );
            }
            let text = "the server tells at once of a lock that another client has deleted or forced free";
            return Ok(Finding::new(Severity::Good, "loss", text));
        };
        let text = format!(
            "the server does not tell of changes ({why}), so that a holder learns only with its next renewal, up to a third of the lease later, of a lock that another client has deleted or forced free"
        );
        let finding = Finding::new(Severity::Note, "loss", text);
        Ok(finding.remedy(
            "give the account +client|tracking +client|caching +exists, as `redlatch acl` prints them",
        ))
    }
}

/// For how many keys the server has room of which it is to tell changes; 0 for any number.
async fn watched_keys_max(link: &Link) -> u64 {
    const UNLESS_SET: u64 = 1_000_000;
    let setting = ask(link, &["CONFIG", "GET", "tracking-table-max-keys"]).await;
    let text =
        |reply: Reply| reply.array()?.get(1)?.bytes().map(|text| String::from_utf8_lossy(text).into_owned());
    // A manager of servers may not allow to ask.
    setting.ok().and_then(text).and_then(|text| text.parse().ok()).unwrap_or(UNLESS_SET)
}

async fn ask(link: &Link, parts: &[&str]) -> Result<Reply, Fault> {
    let mut cmd = Cmd::new();
    for part in parts {
        cmd.arg(part);
    }
    link.send(&cmd).await
}

fn sections(reply: &Reply) -> HashMap<String, String> {
    let text = reply.bytes().map(String::from_utf8_lossy).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect()
}

/// The oldest version that is supported.
const OLDEST: (u32, u32) = (6, 2);
/// The version that functions and sharded messages came with.
const WITH_FUNCTIONS: (u32, u32) = (7, 0);

fn version(info: &HashMap<String, String>, findings: &mut Vec<Finding>) {
    let valkey = info.get("valkey_version");
    let name = if valkey.is_some() { "Valkey" } else { "Redis" };
    let Some(version) = valkey.or_else(|| info.get("redis_version")) else { return };
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = OLDEST;
    findings.push(if number < OLDEST {
        let text = format!("{name} {version}, which is not supported: the oldest that is, is {major}.{minor}");
        Finding::new(Severity::Problem, "version", text).remedy("upgrade to Redis 6.2 or later, or Valkey")
    } else if number < WITH_FUNCTIONS {
        let text = format!(
            "{name} {version} (supported from {major}.{minor} on); it has no functions and no sharded messages, which came with 7.0"
        );
        Finding::new(Severity::Good, "version", text)
    } else {
        Finding::new(Severity::Good, "version", format!("{name} {version} (supported from {major}.{minor} on)"))
    });
}

fn persistence(info: &HashMap<String, String>, findings: &mut Vec<Finding>) {
    let appending = info.get("aof_enabled").is_some_and(|value| value == "1");
    findings.push(if appending {
        Finding::new(Severity::Good, "persistence", "the append-only file is on: a restart keeps the locks that were written")
    } else {
        Finding::new(
            Severity::Note,
            "persistence",
            "the append-only file is off: a restart of the server forgets every lock, and holders are told at their next renewal",
        )
        .remedy("set appendonly yes (and appendfsync always, if no lock may be forgotten), or use fencing tokens")
    });
}

async fn eviction(info: &HashMap<String, String>, link: &Link, findings: &mut Vec<Finding>) {
    let mut policy = info.get("maxmemory_policy").cloned();
    if policy.is_none() {
        policy = match ask(link, &["CONFIG", "GET", "maxmemory-policy"]).await {
            Ok(reply) => reply
                .array()
                .and_then(|items| items.get(1)?.bytes())
                .map(|text| String::from_utf8_lossy(text).into_owned()),
            Err(_) => None,
        };
    }
    let limited = info.get("maxmemory").is_some_and(|limit| limit != "0");
    findings.push(match policy.as_deref() {
        Some("noeviction") => Finding::new(
            Severity::Good,
            "eviction",
            "noeviction: a full memory refuses new locks and keeps the others",
        ),
        Some(policy) if limited => Finding::new(
            Severity::Problem,
            "eviction",
            format!("{policy}: when memory is full the server deletes keys, and locks are keys with a TTL"),
        )
        .remedy("set maxmemory-policy noeviction, or keep locks on a server of their own"),
        Some(policy) => Finding::new(
            Severity::Note,
            "eviction",
            format!("{policy}, but no memory limit is set, so nothing is evicted"),
        ),
        None => Finding::new(Severity::Note, "eviction", "the eviction policy could not be read"),
    });
}

/// A memory that is nearly full. What happens then is the business of [`eviction`].
fn memory(info: &HashMap<String, String>) -> Option<Finding> {
    let number = |key| info.get(key)?.parse::<u64>().ok();
    let (used, limit) = (number("used_memory")?, number("maxmemory").filter(|limit| *limit > 0)?);
    let percent = used.saturating_mul(100) / limit;
    let text = format!(
        "{percent} % of the memory limit of {limit} bytes are in use; a full server takes no new lock"
    );
    (percent >= MEMORY_PERCENT_MAX).then(|| {
        Finding::new(Severity::Problem, "memory", text)
            .remedy("raise maxmemory, or keep locks on a server of their own")
    })
}

fn replication(info: &HashMap<String, String>, findings: &mut Vec<Finding>) {
    if info.get("role").is_some_and(|role| role != "master") {
        findings.push(
            Finding::new(Severity::Problem, "role", "this server is a replica: it refuses every lock")
                .remedy("connect to the master"),
        );
        return;
    }
    let replicas = info.get("connected_slaves").and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
    findings.push(if replicas == 0 {
        Finding::new(
            Severity::Note,
            "replicas",
            "none: if this server is lost, locks are unavailable until it is back",
        )
    } else {
        Finding::new(
            Severity::Note,
            "replicas",
            format!(
                "{replicas}: replication is asynchronous, so a failover can lose a lock that was just granted"
            ),
        )
        .remedy("guard what must not be written twice with fencing tokens")
    });
    if replicas == 0 {
        return;
    }
    // The server tells of the replicas that are good enough only where some have to be.
    findings.push(if info.contains_key("min_slaves_good_slaves") {
        let text = "a master that is cut off from its replicas refuses writes, so it grants nothing beside the next one";
        Finding::new(Severity::Good, "isolation", text)
    } else {
        let text = "min-replicas-to-write is 0: a master that is cut off from its replicas goes on granting and renewing beside the next one, to clients that are cut off with it";
        Finding::new(Severity::Note, "isolation", text)
            .remedy("set min-replicas-to-write 1 and min-replicas-max-lag to a few seconds, less than the leases")
    });
}

fn membership(info: &HashMap<String, String>, alone: bool, findings: &mut Vec<Finding>) {
    if alone && info.get("cluster_enabled").is_some_and(|value| value == "1") {
        let text = "this server is a member of a cluster: it refuses names whose slots other members have";
        findings
            .push(Finding::new(Severity::Note, "cluster", text).remedy("use redis-cluster:// in its URL"));
    }
}

async fn publishing(link: &Link, findings: &mut Vec<Finding>) {
    findings.push(match ask(link, &["PUBLISH", "redisson_lock__channel:{redlatch-doctor}", "0"]).await {
        Ok(_) => {
            Finding::new(Severity::Good, "messages", "publishing is allowed, so waiters are woken at once")
        }
        Err(fault) if fault.to_string().contains("channel") => Finding::new(
            Severity::Note,
            "messages",
            "publishing is allowed, but not on every channel, as it should be for an account with a prefix of its own",
        )
        .remedy("try the channels of its names with `redlatch doctor --prefix`"),
        Err(fault) => Finding::new(
            Severity::Problem,
            "messages",
            format!("publishing is refused ({fault}): waiters find a free lock only at their next look"),
        )
        .remedy("give the account &redisson_lock__channel:* and +publish +subscribe"),
    });
}

/// By how much a clock is off that showed this between two moments: not at all if that lies between them.
fn difference_ms(asked_ms: u128, shown_ms: u128, answered_ms: u128) -> u128 {
    asked_ms.saturating_sub(shown_ms).max(shown_ms.saturating_sub(answered_ms))
}

async fn clock(link: &Link, findings: &mut Vec<Finding>) {
    let own_ms =
        || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let asked_ms = own_ms();
    let Ok(reply) = ask(link, &["TIME"]).await else { return };
    let answered_ms = own_ms();
    let Some([seconds, micros]) = reply.array() else { return };
    let (Some(seconds), Some(micros)) = (seconds.int(), micros.int()) else { return };
    let server_ms = seconds as u128 * 1_000 + micros as u128 / 1_000;
    let difference_ms = difference_ms(asked_ms, server_ms, answered_ms);
    findings.push(if difference_ms <= CLOCK_DIFFERENCE_MS_MAX {
        Finding::new(Severity::Good, "clock", format!("this machine and the server differ by {difference_ms} ms"))
    } else {
        Finding::new(
            Severity::Note,
            "clock",
            format!("this machine and the server differ by {difference_ms} ms; our locks do not depend on it, Java's fair locks do"),
        )
        .remedy("synchronise clocks with NTP")
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_below_the_oldest_are_a_problem() {
        let judged = |key: &str, number: &str| {
            // Valkey tells the version of Redis that it is compatible with besides its own.
            let mut info = HashMap::from([("redis_version".to_owned(), "7.2.4".to_owned())]);
            info.insert(key.to_owned(), number.to_owned());
            let mut findings = Vec::new();
            version(&info, &mut findings);
            findings.pop().unwrap()
        };
        for old in ["2.8.0", "5.0.14", "6.0.20", "garbled"] {
            let finding = judged("redis_version", old);
            assert_eq!(finding.severity, Severity::Problem, "{finding}");
            assert!(finding.text.contains("6.2") && finding.remedy.is_some(), "{finding}");
        }
        for (key, good, lacks) in [
            ("redis_version", "6.2.14", true),
            ("redis_version", "7.0.15", false),
            ("valkey_version", "8.1.1", false),
        ] {
            let finding = judged(key, good);
            assert_eq!(finding.severity, Severity::Good, "{finding}");
            assert_eq!(finding.text.contains("no functions"), lacks, "{finding}");
            assert!(finding.text.contains("6.2"), "{finding}");
        }
    }

    #[test]
    fn a_master_that_may_be_cut_off_with_clients_is_told_of() {
        let isolation = |lines: &[(&str, &str)]| {
            let info = lines.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let mut findings = Vec::new();
            replication(&info, &mut findings);
            findings.into_iter().find(|finding| finding.subject == "isolation")
        };
        assert!(isolation(&[("role", "master"), ("connected_slaves", "0")]).is_none());
        let alone = isolation(&[("role", "master"), ("connected_slaves", "2")]).unwrap();
        assert!(alone.severity == Severity::Note && alone.remedy.is_some(), "{alone}");
        let bound = [("role", "master"), ("connected_slaves", "2"), ("min_slaves_good_slaves", "2")];
        assert_eq!(isolation(&bound).unwrap().severity, Severity::Good);
    }

    #[test]
    fn a_slow_answer_is_no_difference_of_clocks() {
        assert_eq!(difference_ms(1_000, 1_500, 4_000), 0);
        assert_eq!(difference_ms(1_000, 900, 1_010), 100);
        assert_eq!(difference_ms(1_000, 5_010, 1_010), 4_000);
    }
}
