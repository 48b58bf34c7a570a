//! A master behind sentinels dies: how soon locks go on when there is a new one.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redlatch::LossReason;
use redlatch_testkit::{server::RedisServer, topology::SentinelSet};

use crate::{
    bed::Bed,
    outcome::Outcome,
    report::{Bar, Report, Samples},
};

const FAILOVERS: usize = 3;
const FAILOVERS_QUICK: usize = 1;
/// So long that neither a renewal nor the end of the lease can be what tells a holder.
const LEASE: Duration = Duration::from_secs(120);
/// How often the replicas are asked whether they take writes.
const ASKED_EVERY: Duration = Duration::from_millis(2);
/// How long anything may take before it counts as not coming.
const LIMIT: Duration = Duration::from_secs(60);
/// Held when the master dies, and on no replica; nobody waits for the first, whose holder would else be told that it was
/// taken over if the waiter is sooner.
const GONE: &str = "bench:failover:gone";
const BEHIND: &str = "bench:failover:behind";
const FREE: &str = "bench:failover:free";

pub(crate) struct Failover;

/// Milliseconds, each but the first from the moment when the new master takes writes.
struct Times {
    outage_ms: f64,
    asked_ms: f64,
    slept_ms: f64,
    told_ms: f64,
}

impl Failover {
    pub(crate) async fn round(&mut self, bed: &Bed, _: usize, samples: &mut Samples) -> Outcome<()> {
        let mut longest = [0.0_f64; 3];
        for _ in 0..if bed.quick { FAILOVERS_QUICK } else { FAILOVERS } {
            let times = failover(bed).await?;
            samples.push("failover.outage", times.outage_ms);
            for (at, (key, ms)) in
                [("asked", times.asked_ms), ("slept", times.slept_ms), ("told", times.told_ms)]
                    .into_iter()
                    .enumerate()
            {
                samples.push(format!("failover.{key}"), ms);
                longest[at] = longest[at].max(ms);
            }
        }
        for (key, ms) in ["asked", "slept", "told"].into_iter().zip(longest) {
            samples.push(format!("failover.{key}.longest"), ms);
        }
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        report.line(
            "failover",
            "from the death of the master to the first write",
            "failover.outage",
            "ms",
            None,
        );
        for (key, words, bar) in [
            ("asked", "first grant to who asked while there was no master", Some(500.0)),
            ("slept", "first grant to who slept behind a hold that is gone", Some(500.0)),
            ("told", "notice to a holder whose lock is gone", None),
        ] {
            report.line("failover", words, &format!("failover.{key}"), "ms", None);
            report.line(
                "failover",
                format!("{words}, longest of a round"),
                &format!("failover.{key}.longest"),
                "ms",
                bar.map(Bar::AtMost),
            );
        }
    }
}

async fn failover(bed: &Bed) -> Outcome<Times> {
    let set = Arc::new(SentinelSet::start()?);
    let old = set.master()?;
    for replica in set.replicas()? {
        set.block_replication(replica)?;
    }
    let holder = bed.leased_client(&set.url(), LEASE).await?;
    let waiter = bed.client(&set.url()).await?;
    let guard = holder.lock(GONE).lock().await?;
    let _hold = holder.lock(BEHIND).lock().await?;
    let told = guard.lost();
    let told = tokio::spawn(async move { Outcome::Ok((told.await, Instant::now())) });
    let sleeper = waiter.lock(BEHIND);
    let slept = tokio::spawn(async move {
        let guard = sleeper.lock().await?;
        Outcome::Ok((guard, Instant::now()))
    });
    listened_to(set.node(old), BEHIND).await?;

    let killed = Instant::now();
    set.node(old).kill9();
    let asker = waiter.lock(FREE);
    let asked = tokio::spawn(async move {
        let guard = asker.lock().await?;
        Outcome::Ok((guard, Instant::now()))
    });
    let polled = set.clone();
    let accepting = tokio::task::spawn_blocking(move || first_write(&polled, old)).await??;
    let ms = |at: Instant| at.saturating_duration_since(accepting).as_secs_f64() * 1e3;

    let (free, asked_at) = tokio::time::timeout(LIMIT, asked).await???;
    let (taken, slept_at) = tokio::time::timeout(LIMIT, slept).await???;
    let (reason, told_at) = tokio::time::timeout(LIMIT, told).await???;
    if reason != LossReason::Deleted {
        return Err(format!("the holder was told {reason:?} instead").into());
    }
    free.unlock().await?;
    taken.unlock().await?;
    Ok(Times {
        outage_ms: accepting.saturating_duration_since(killed).as_secs_f64() * 1e3,
        asked_ms: ms(asked_at),
        slept_ms: ms(slept_at),
        told_ms: ms(told_at),
    })
}

/// The moment from which on some other node may have taken writes: when it was asked for the last time in vain. So the
/// times that count from it are rather too long than too short.
fn first_write(set: &SentinelSet, dead: usize) -> Outcome<Instant> {
    let begun = Instant::now();
    let mut refused_at = vec![begun; set.nodes().len()];
    while begun.elapsed() < LIMIT {
        for (index, node) in set.nodes().iter().enumerate().filter(|(index, _)| *index != dead) {
            let asked_at = Instant::now();
            if node.cmd(&["SET", "bench:failover:accepting", "1"]).is_ok() {
                return Ok(refused_at[index]);
            }
            refused_at[index] = asked_at;
        }
        std::thread::sleep(ASKED_EVERY);
    }
    Err("no replica was promoted".into())
}

/// Waits until a waiter listens to the releases of a lock, which a waiter does before it sleeps.
async fn listened_to(server: &RedisServer, name: &str) -> Outcome<()> {
    let channel = format!("redisson_lock__channel:{{{name}}}").into_bytes();
    let begun = Instant::now();
    while !server.subscriber_channels()?.contains(&channel) {
        if begun.elapsed() > LIMIT {
            return Err("nobody waits".into());
        }
        tokio::time::sleep(ASKED_EVERY).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a round fails whose figures are good but for this one.
    fn fails(key: &str, ms: f64) -> bool {
        let mut report = Report::default();
        for good in ["outage", "asked", "slept", "told", "asked.longest", "slept.longest", "told.longest"] {
            report.samples.push(format!("failover.{good}"), if good == key { ms } else { 1.0 });
        }
        Failover.judge(&mut report);
        report.failed()
    }

    #[test]
    fn the_longest_grants_of_a_round_have_half_a_second() {
        for key in ["asked.longest", "slept.longest"] {
            assert!(!fails(key, 500.0) && fails(key, 500.1), "{key}");
        }
        for key in ["outage", "asked", "slept", "told", "told.longest"] {
            assert!(!fails(key, 60_000.0), "{key} has no bar");
        }
    }
}
