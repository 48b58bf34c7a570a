//! Bar 10: a replica that lags is promoted, 60 times. An acquire that all replicas have to confirm never leaves two holders: what was
//! confirmed is still held afterwards, and what was not was never granted. The control acquires without asking the replicas.

use std::time::Duration;

use redlatch::{Client, ErrorKind, Guard, ReplicaAck};
use redlatch_testkit::topology::MasterReplica;

use crate::common::{Result, Verdict, raw_async, runtime};

const PROMOTIONS: usize = 60;
const CONTROL_PROMOTIONS: usize = 40;
/// So many double grants the control has to show.
const CONTROL_DOUBLE_MIN: usize = 38;
const ACK_TIME: Duration = Duration::from_millis(1_000);

#[derive(Default)]
struct Seen {
    promotions: usize,
    refused: usize,
    double: usize,
    kept: usize,
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let rig = MasterReplica::start()?;
    let mut seen = Seen::default();
    let promotions = if control { CONTROL_PROMOTIONS } else { PROMOTIONS };
    let ack = if control { ReplicaAck::none() } else { ReplicaAck::all().within(ACK_TIME) };
    runtime(2)?.block_on(async {
        for number in 0..promotions {
            promote(&rig, ack, number, &mut seen).await?;
        }
        Ok::<_, crate::common::Error>(())
    })?;
    let Seen { promotions, refused, double, kept } = seen;
    if control {
        let figure = format!(
            "{double} double grants of two locks each in {promotions} promotions, replicas unasked, at least {CONTROL_DOUBLE_MIN} wanted"
        );
        return Ok(Verdict::new(double < CONTROL_DOUBLE_MIN, figure));
    }
    let figure = format!(
        "{double} double grants in {promotions} promotions of a replica that lagged, at most 0; {refused} acquires refused for want of \
         confirmation, {kept} confirmed holds still there"
    );
    // Unless acquires were refused and holds survived, nothing was tried.
    Ok(Verdict::new(double == 0 && refused == promotions && kept == promotions, figure))
}

async fn promote(rig: &MasterReplica, ack: ReplicaAck, number: usize, seen: &mut Seen) -> Result<()> {
    let master = rig.master()?;
    let next = (master + 1) % rig.nodes().len();
    // A client of the old master, which nobody tells of the promotion.
    let first = Client::connect(&rig.node(master).url()).await?;
    let (before, behind) = (format!("bar10:before:{number}"), format!("bar10:behind:{number}"));
    let confirmed =
        acquire(&first, &before, ack).await?.ok_or("a lock that all replicas can confirm was refused")?;
    tokio::task::block_in_place(|| rig.stall_replication(next))?;
    let unconfirmed = acquire(&first, &behind, ack).await?;
    seen.refused += usize::from(unconfirmed.is_none());
    tokio::task::block_in_place(|| rig.promote_alone(next))?;
    let second = Client::connect(&rig.node(next).url()).await?;
    for (name, held) in [(&before, Some(&confirmed)), (&behind, unconfirmed.as_ref())] {
        let other = second.lock(name.as_str()).try_lock().await?;
        // Both servers have their holder, and the first one does not know that it is not alone.
        let doubled = other.is_some() && held.is_some_and(Guard::is_valid);
        seen.double += usize::from(doubled);
        if name == &before {
            let mut raw = raw_async(&rig.node(next).url()).await?;
            let fields: i64 = redis::cmd("HLEN").arg(name).query_async(&mut raw).await?;
            seen.kept += usize::from(other.is_none() && fields == 1);
        }
    }
    seen.promotions += 1;
    // All follow the new master, for the next round.
    tokio::task::block_in_place(|| rig.promote(next).and_then(|()| rig.wait_until_ready()))?;
    Ok(())
}

/// Nothing where too few replicas confirm.
async fn acquire(client: &Client, name: &str, ack: ReplicaAck) -> Result<Option<Guard>> {
    match client.lock(name).acquire().replica_ack(ack).await {
        Ok(Some(guard)) => Ok(Some(guard)),
        Ok(None) => Err("a lock of its own is busy".into()),
        Err(e) if e.kind() == ErrorKind::NotReplicated => Ok(None),
        Err(e) => Err(e.into()),
    }
}
