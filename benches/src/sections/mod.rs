//! The sections: each measures one thing in every round, and says at the end what came out.

mod cluster;
mod contention;
mod dead;
mod failover;
mod fair;
mod handoff;
mod held;
mod java;
mod kinds;
mod latency;
mod multi;
mod observed;
mod pair;
mod stores;
mod told;

pub(crate) use self::pair::pairs;
use crate::{
    bed::Bed,
    outcome::Outcome,
    report::{Report, Samples},
};

pub(crate) enum Section {
    Pair(pair::Pair),
    Multi(multi::Multi),
    Observed(observed::Observed),
    Memory(stores::Memory),
    Local(stores::Local),
    Handoff(handoff::Handoff),
    Fair(fair::Fair),
    Latency(latency::Latency),
    Held(held::Held),
    Contention(contention::Contention),
    Kinds(kinds::Kinds),
    Cluster(cluster::Cluster),
    Failover(failover::Failover),
    Told(told::Told),
    Dead(dead::Dead),
    Java(java::Java),
}

macro_rules! each {
    ($section:expr, $inner:ident => $do:expr) => {
        match $section {
            Section::Pair($inner) => $do,
            Section::Multi($inner) => $do,
            Section::Observed($inner) => $do,
            Section::Memory($inner) => $do,
            Section::Local($inner) => $do,
            Section::Handoff($inner) => $do,
            Section::Fair($inner) => $do,
            Section::Latency($inner) => $do,
            Section::Held($inner) => $do,
            Section::Contention($inner) => $do,
            Section::Kinds($inner) => $do,
            Section::Cluster($inner) => $do,
            Section::Failover($inner) => $do,
            Section::Told($inner) => $do,
            Section::Dead($inner) => $do,
            Section::Java($inner) => $do,
        }
    };
}

impl Section {
    /// Makes everything that is not to be measured.
    pub(crate) async fn open(name: &str, bed: &Bed) -> Outcome<Section> {
        Ok(match name {
            "pair" => Section::Pair(pair::Pair::open(bed).await?),
            "multi" => Section::Multi(multi::Multi::open(bed).await?),
            "observed" => Section::Observed(observed::Observed::open(bed).await?),
            "memory" => Section::Memory(stores::Memory::open(bed).await?),
            "local" => Section::Local(stores::Local::open(bed).await?),
            "handoff" => Section::Handoff(handoff::Handoff::open(bed).await?),
            "fair" => Section::Fair(fair::Fair::open(bed).await?),
            "latency" => Section::Latency(latency::Latency::open(bed).await?),
            "held" => Section::Held(held::Held),
            "contention" => Section::Contention(contention::Contention),
            "kinds" => Section::Kinds(kinds::Kinds::open(bed).await?),
            "cluster" => Section::Cluster(cluster::Cluster::open(bed).await?),
            "failover" => Section::Failover(failover::Failover),
            "told" => Section::Told(told::Told::open(bed).await?),
            "dead" => Section::Dead(dead::Dead::open(bed).await?),
            "java" => Section::Java(java::Java::open(bed).await?),
            _ => return Err(format!("there is no section {name}").into()),
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Section::Pair(_) => "pair",
            Section::Multi(_) => "multi",
            Section::Observed(_) => "observed",
            Section::Memory(_) => "memory",
            Section::Local(_) => "local",
            Section::Handoff(_) => "handoff",
            Section::Fair(_) => "fair",
            Section::Latency(_) => "latency",
            Section::Held(_) => "held",
            Section::Contention(_) => "contention",
            Section::Kinds(_) => "kinds",
            Section::Cluster(_) => "cluster",
            Section::Failover(_) => "failover",
            Section::Told(_) => "told",
            Section::Dead(_) => "dead",
            Section::Java(_) => "java",
        }
    }

    pub(crate) async fn round(&mut self, bed: &Bed, round: usize, samples: &mut Samples) -> Outcome<()> {
        each!(self, inner => inner.round(bed, round, samples).await)
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        each!(self, inner => inner.judge(report));
    }
}
