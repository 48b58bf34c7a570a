//! Bar 12: a cluster of three masters has 1,000 locks, and one master stands still for a minute. No lock elsewhere is lost, and none
//! is renewed later than due by more than a tenth of its lease. The control renews one master after the other.

use std::time::{Duration, Instant};

use redlatch::{Client, Guard};
use redlatch_testkit::server::RedisServer;
use redlatch_testkit::stall;
use redlatch_testkit::topology::{RedisCluster, slot_of};

use crate::common::{Result, Verdict, ms, raw, runtime};

const LOCKS: usize = 1_000;
const LEASE: Duration = Duration::from_secs(6);
const STOPPED: Duration = Duration::from_secs(60);
const CONTROL_STOPPED: Duration = Duration::from_secs(15);
const LATE_MAX: Duration = Duration::from_millis(600);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the control waits for an answer, as clients do by default.
const NAIVE_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let settings = RedisServer::builder().arg("cluster-require-full-coverage", "no");
    // Nobody takes the place of the master that stands still.
    let cluster = RedisCluster::builder()
        .servers(settings)
        .replicas_per_master(0)
        .node_timeout(Duration::from_secs(300))
        .start()?;
    let names: Vec<String> = (0..LOCKS).map(|n| format!("bar12:{n}")).collect();
    let mut of_node: Vec<Vec<String>> = vec![Vec::new(); 3];
    for name in &names {
        of_node[cluster.owner_of(slot_of(name))?].push(name.clone());
    }
    let runtime = runtime(2)?;
    let mut guards: Vec<Guard> = Vec::new();
    if control {
        hold_naively(&cluster, &of_node)?;
    } else {
        let client =
            runtime.block_on(Client::builder().url(cluster.url()).watchdog_lease(LEASE).connect())?;
        for name in &names {
            guards.push(runtime.block_on(client.lock(name.as_str()).lock())?);
        }
        // What belongs to the acquires is over after one renewal.
        std::thread::sleep(LEASE / 2);
    }
    let owners = [owners(&cluster, &of_node, 1)?, owners(&cluster, &of_node, 2)?];
    cluster.node(0).pause()?;
    let (mut latest, mut gone) = (Duration::ZERO, 0);
    let end = Instant::now() + if control { CONTROL_STOPPED } else { STOPPED };
    while Instant::now() < end {
        let begin = Instant::now();
        std::thread::sleep(LOOK_EVERY);
        // So much older a renewal may look because the machine stood still.
        let stood_still = Instant::now().checked_sub(LEASE).map_or(Duration::ZERO, stall::paused_since);
        for node in [1, 2] {
            let (oldest, missing) = oldest_renewal(&cluster, &of_node, node)?;
            latest = latest.max(oldest.saturating_sub(LEASE / 3).saturating_sub(stood_still));
            gone = gone.max(missing);
        }
        if begin.elapsed() > LEASE {
            return Err("the machine is too busy to look".into());
        }
    }
    let after = [self::owners(&cluster, &of_node, 1)?, self::owners(&cluster, &of_node, 2)?];
    let changed =
        owners.iter().flatten().zip(after.iter().flatten()).filter(|(before, after)| before != after).count();
    cluster.node(0).resume()?;
    let elsewhere = |guard: &&Guard| !of_node[0].contains(&guard.name().to_string());
    let told = guards.iter().filter(elsewhere).filter(|guard| guard.loss().is_some()).count();
    let lost = gone.max(changed).max(told);
    let figure = format!(
        "{lost} of {} locks lost on the other masters, at most 0; renewals late by at most {} of {}; lease {} s, {LOCKS} locks",
        of_node[1].len() + of_node[2].len(),
        ms(latest),
        ms(LATE_MAX),
        LEASE.as_secs()
    );
    Ok(Verdict::new(lost == 0 && latest <= LATE_MAX, figure))
}

/// How long ago the lock was renewed that was renewed first of all, and how many are not there.
fn oldest_renewal(cluster: &RedisCluster, of_node: &[Vec<String>], node: usize) -> Result<(Duration, usize)> {
    let mut pipe = redis::pipe();
    for name in &of_node[node] {
        pipe.cmd("PTTL").arg(name);
    }
    let ttls_ms: Vec<i64> = pipe.query(&mut raw(&cluster.node(node).url())?)?;
    let missing = ttls_ms.iter().filter(|ttl_ms| **ttl_ms < 0).count();
    let least = ttls_ms.iter().copied().filter(|ttl_ms| *ttl_ms >= 0).min().unwrap_or(0);
    Ok((LEASE.saturating_sub(Duration::from_millis(u64::try_from(least)?)), missing))
}

/// Who holds the locks of a master, as it says.
fn owners(cluster: &RedisCluster, of_node: &[Vec<String>], node: usize) -> Result<Vec<Vec<String>>> {
    let mut pipe = redis::pipe();
    for name in &of_node[node] {
        pipe.cmd("HKEYS").arg(name);
    }
    Ok(pipe.query(&mut raw(&cluster.node(node).url())?)?)
}

/// Renews the locks of one master after the other, and waits for each of them.
fn hold_naively(cluster: &RedisCluster, of_node: &[Vec<String>]) -> Result<()> {
    let lease_ms = u64::try_from(LEASE.as_millis())?;
    let mut connections = Vec::new();
    for (node, names) in of_node.iter().enumerate() {
        let mut connection = raw(&cluster.node(node).url())?;
        let mut take = redis::pipe();
        let mut renew = redis::pipe();
        for name in names {
            take.cmd("HSET").arg(name).arg("naive").arg(1).ignore();
            take.cmd("PEXPIRE").arg(name).arg(lease_ms).ignore();
            renew.cmd("PEXPIRE").arg(name).arg(lease_ms).ignore();
        }
        let () = take.query(&mut connection)?;
        connection.set_read_timeout(Some(NAIVE_TIMEOUT))?;
        connections.push((connection, renew));
    }
    // Ends with this process.
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LEASE / 3);
            for (connection, renew) in &mut connections {
                let _: redis::RedisResult<()> = renew.query(connection);
            }
        }
    });
    Ok(())
}
