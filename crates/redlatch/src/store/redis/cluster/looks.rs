//! What the nodes of a cluster say when they are asked about themselves.

use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use redis::Cmd;

use super::{
    super::{
        sharded_hub::Ways,
        sharded_link::Way,
        slots::{SLOTS, slot_of},
        topology::Member,
        trial::Messages,
    },
    Inner,
};
use crate::{
    acl::Kind,
    config::ShardedPubSub,
    finding::{Finding, Severity},
    randomness::SeededMap,
    store::Fault,
};

impl Inner {
    /// How many connections listen to each of some channels at one master.
    async fn count(&self, member: Arc<Member>, channels: Vec<Arc<[u8]>>) -> Result<Vec<u64>, Fault> {
        let mut sums = vec![0; channels.len()];
        let questions: &[&str] = match self.ways {
            Ways::One(Way::Plain) => &["NUMSUB"],
            Ways::One(Way::Sharded) => &["SHARDNUMSUB"],
            Ways::Both => &["NUMSUB", "SHARDNUMSUB"],
        };
        for question in questions {
            let mut cmd = Cmd::new();
            cmd.arg("PUBSUB").arg(*question);
            for channel in &channels {
                cmd.arg(&channel[..]);
            }
            let reply = match member.node.send(&cmd).await {
                Ok(reply) => reply,
                // Servers before 7 have no sharded listeners.
                Err(_) if questions.len() > 1 && *question == "SHARDNUMSUB" => continue,
                Err(failure) => return Err(failure.into()),
            };
            for (sum, pair) in sums.iter_mut().zip(reply.array().unwrap_or_default().chunks_exact(2)) {
                *sum += pair[1].int().and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
            }
        }
        Ok(sums)
    }

    pub(super) async fn listeners(&self, channels: Vec<Arc<[u8]>>) -> Result<Option<Vec<u64>>, Fault> {
        let mut places: SeededMap<_, (Arc<Member>, Vec<usize>)> = SeededMap::default();
        for (at, channel) in channels.iter().enumerate() {
            let Some(owner) = self.topology.owner(slot_of(channel)) else { return Ok(None) };
            places.entry(owner.addr.clone()).or_insert_with(|| (owner, Vec::new())).1.push(at);
        }
        let asked = places.into_values().map(async |(member, places)| {
            let some = places.iter().map(|at| channels[*at].clone()).collect();
            Ok::<_, Fault>((places, self.count(member, some).await?))
        });
        let mut counts = vec![0; channels.len()];
        for (places, some) in try_join_all(asked).await? {
            for (at, count) in places.into_iter().zip(some) {
                counts[at] = count;
            }
        }
        Ok(Some(counts))
    }

    pub(super) async fn diagnose(&self) -> Result<Vec<Finding>, Fault> {
        self.topology.looked().await;
        let mut findings = vec![self.coverage(), self.sharding()];
        for (_, member) in self.topology.masters() {
            match member.node.clone().diagnose(false).await {
                Ok(found) => {
                    findings.extend(found.into_iter().map(|finding| finding.at(&member.addr.to_string())));
                }
                Err(fault) => findings.push(
                    Finding::new(Severity::Problem, "master", fault.to_string()).at(&member.addr.to_string()),
                ),
            }
        }
        Ok(findings)
    }

    pub(super) async fn trouble(&self) -> Result<Vec<Finding>, Fault> {
        self.topology.looked().await;
        let asked = self.topology.masters().into_iter().map(async |(_, member)| {
            let at = member.addr.to_string();
            let found = member.node.clone().trouble().await;
            let found = found
                .unwrap_or_else(|fault| vec![Finding::new(Severity::Problem, "master", fault.to_string())]);
            found.into_iter().map(|finding| finding.at(&at)).collect::<Vec<_>>()
        });
        Ok(join_all(asked).await.concat())
    }

    /// Accounts are each node's own. A node looks at the rights before it looks at the slot, so each master answers for any name.
    pub(super) async fn try_rights(
        self: &Arc<Self>,
        kinds: &[Kind],
        prefix: &str,
    ) -> Result<Vec<Finding>, Fault> {
        self.topology.looked().await;
        let mut findings = Vec::new();
        for (_, member) in self.topology.masters() {
            let inner = self.clone();
            let listen = move |channel| inner.ears.subscribe(channel, Arc::new(|_| {}));
            let may_be_sharded = self.asked_for != ShardedPubSub::Off;
            let messages =
                Messages { ways: self.ways, in_cluster: true, may_be_sharded, listen: Box::new(listen) };
            let found = member.node.clone().try_rights(messages, kinds.to_vec(), prefix.to_owned()).await?;
            findings.extend(found.into_iter().map(|finding| finding.at(&member.addr.to_string())));
        }
        Ok(findings)
    }

    fn coverage(&self) -> Finding {
        let masters = self.topology.masters().len();
        match self.topology.uncovered() {
            0 => Finding::new(
                Severity::Good,
                "slots",
                format!("all {SLOTS} are served, by {masters} masters; all keys of a lock share one slot"),
            ),
            missing => Finding::new(
                Severity::Problem,
                "slots",
                format!("{missing} of {SLOTS} are served by nobody: locks whose names belong there are unavailable"),
            )
            .remedy("look at CLUSTER INFO, and bring the missing masters back or assign their slots"),
        }
    }

    /// Which messages are used, and what Java's side does.
    fn sharding(&self) -> Finding {
        let chosen = match self.asked_for {
            ShardedPubSub::Auto => "decided as Redisson does",
            _ => "as asked for",
        };
        let (ways, java) = match self.ways {
            Ways::One(Way::Sharded) => (
                "sharded messages are used",
                "Redisson 3.22 and later does the same unless its shardedSubscriptionMode is OFF; older ones do not hear them",
            ),
            Ways::One(Way::Plain) => (
                "plain messages are used",
                "Redisson 3.22 and later uses sharded ones where servers have them, unless its shardedSubscriptionMode is OFF",
            ),
            Ways::Both => {
                ("messages are sent and heard both ways", "Redisson of any version and setting takes part")
            }
        };
        Finding::new(Severity::Note, "sharded messages", format!("{ways} ({chosen}); {java}"))
    }
}
