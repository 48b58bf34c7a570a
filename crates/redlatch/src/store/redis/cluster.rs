//! Redis or Valkey Cluster: each script runs at the master of its keys' slot.
//!
//! A node that is not the right one refuses before anything has run, so going elsewhere is never a second run. What ends a
//! connection does: the outcome is unknown then, and the callers' rules apply. Nodes have nothing in common here but the
//! picture of who has what: one that is frozen or gone holds up only those who want its slots.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::{Either, FutureExt, join_all, select, try_join_all};
use redis::Cmd;
use tokio::{runtime::Handle, time::Instant};

use super::{
    Dial,
    acked::{Listing, Ready},
    ear::Way,
    ears::{Ears, Ways},
    link::Failure,
    node::Searching,
    redirect::Redirect,
    slots::{SLOTS, slot_of},
    topology::{Member, Topology},
    trial::Messages,
};
use crate::{
    acl::Kind,
    config::{Config, ScriptMode, ShardedPubSub},
    core::jitter::jittered,
    doctor::{Finding, Severity},
    error::{Error, ErrorKind},
    scripts::{BOTH, COUNTER_GET},
    store::{
        AckedFuture, Arg, Call, Confirm, DiagnoseFuture, Fault, Listener, ListenersFuture, LoadFuture,
        ReplicaCount, Reply, RunFuture, Store, SubscribeFuture,
        url::{Addr, Nodes, Server},
    },
};

/// How often one call goes elsewhere or tries again.
const TRIES_MAX: u32 = 64;
/// How many redirections are followed without a pause: to the new master, and on to where the key is already.
const QUICK_TRIES_MAX: u32 = 2;
/// The first and the longest pause before another try.
const RETRY_DELAY_MS_MIN: u64 = 5;
const RETRY_DELAY_MS_MAX: u64 = 200;
/// Of how many keys it is found out whether they have left a node.
const LOOKS_MAX: usize = 64;

/// One cluster.
pub(crate) struct ClusterStore {
    inner: Arc<Inner>,
}

struct Inner {
    topology: Arc<Topology>,
    ears: Ears,
    ways: Ways,
    asked_for: ShardedPubSub,
    /// How long a call may look for the right node.
    patience: Duration,
    searching: Searching,
    name: String,
}

impl ClusterStore {
    /// Connects once, so that a wrong address or password is reported here and not by the first lock.
    pub(crate) async fn open(
        nodes: Nodes,
        config: &Config,
        background: &Handle,
    ) -> Result<Arc<dyn Store>, Error> {
        let scheme = if nodes.access.tls { "rediss-cluster" } else { "redis-cluster" };
        let name = format!("{scheme}://{nodes}");
        let Some(addr) = nodes.addrs.first().cloned() else {
            return Err(Error::new(ErrorKind::InvalidUrl, "the cluster's URL names no server"));
        };
        let dial = Dial::new(Server { addr, access: nodes.access }, config)?;
        let (topology, first) = Topology::open(nodes.addrs, dial, config, background).await?;
        if let Err(failure) = first.node.check_functions().await {
            topology.close();
            return Err(Fault::from(failure).into_error());
        }
        let ways = match config.sharded {
            ShardedPubSub::Off => Ways::One(Way::Plain),
            ShardedPubSub::Compat => Ways::Both,
            ShardedPubSub::Auto => {
                Ways::One(if knows_sharding(&first).await.is_ok() { Way::Sharded } else { Way::Plain })
            }
            ShardedPubSub::On => {
                if let Err(fault) = knows_sharding(&first).await {
                    topology.close();
                    let error = fault.into_error();
                    let why = format!(
                        "sharded publish and subscribe is wanted, and {} has none: {error}",
                        first.addr
                    );
                    return Err(Error::new(ErrorKind::InvalidOption, why).remedy(
                        "use Redis 7.0 or later or Valkey, or plain messages on all sides, Java's included",
                    ));
                }
                Ways::One(Way::Sharded)
            }
        };
        let ears = Ears::start(topology.clone(), ways, background);
        let patience = config.response_timeout;
        let searching = Searching::default();
        let inner = Inner { topology, ears, ways, asked_for: config.sharded, patience, searching, name };
        Ok(Arc::new(ClusterStore { inner: Arc::new(inner) }))
    }
}

/// Asks as Redisson does when it decides.
async fn knows_sharding(member: &Member) -> Result<(), Fault> {
    let mut cmd = Cmd::new();
    cmd.arg("PUBSUB").arg("SHARDNUMSUB").arg("0");
    member.node.send(&cmd).await?;
    Ok(())
}

/// What one call may still spend on finding its node.
struct Budget {
    tries: u32,
    until: Option<Instant>,
}

/// How a script goes to a node.
#[derive(Debug, Clone, Copy, Default)]
struct Form {
    /// Another node has named this one for this once.
    asking: bool,
    /// Only the first key is declared.
    gathered: bool,
}

impl Form {
    fn of(self, call: &Call) -> Cow<'_, Call> {
        match call.script.gathering() {
            Some(script) if self.gathered => {
                let mut gathered = Call { script, keys: call.keys[..1].into(), args: call.args.clone() };
                gathered.args.extend(call.keys.iter().cloned().map(Arg::Bytes));
                Cow::Owned(gathered.int(call.keys.len() as i64))
            }
            _ => Cow::Borrowed(call),
        }
    }
}

impl Inner {
    /// Runs a script at the master of a slot, wherever that is by then. `run` gets a node, and how the script is to go there.
    async fn route<T, F>(
        &self,
        slot: u16,
        call: &Call,
        run: impl Fn(Arc<Member>, Form) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut budget = Budget { tries: 0, until: None };
        let mut sent_on: Option<(Arc<Member>, Form)> = None;
        let mut searching = None;
        loop {
            let (sent, form) = sent_on.take().unzip();
            let form = form.unwrap_or_default();
            let Some(member) = sent.or_else(|| self.topology.owner(slot)) else {
                searching.get_or_insert_with(|| self.searching.begin());
                let error =
                    Error::new(ErrorKind::ServerBusy, format!("no master of the cluster has slot {slot}"));
                self.again(&mut budget, true, Fault::Server(error)).await?;
                continue;
            };
            let mut connected = Ok(());
            if !form.asking && member.node.ready_link().is_none() {
                // Nothing has been sent, so a call need not insist on a server whose slot another one takes over.
                let (connecting, leaving) = (member.node.link(), self.topology.leaves(slot, &member.addr));
                let (connecting, leaving) = (std::pin::pin!(connecting), std::pin::pin!(leaving));
                match select(connecting, leaving).await {
                    Either::Left((outcome, _)) => connected = outcome.map(drop),
                    Either::Right(_) => continue,
                }
            }
            let outcome = match connected {
                Ok(()) => run(member.clone(), form).await,
                Err(fault) => Err(Failure::Fault(fault)),
            };
            if outcome.is_err() {
                searching.get_or_insert_with(|| self.searching.begin());
            }
            let (code, detail, at) = match outcome {
                Ok(reply) => return Ok(reply),
                Err(Failure::Refused { code, detail, at }) => (code, detail, at),
                Err(Failure::Fault(Fault::NotSent(error))) => {
                    // Another node may have its slots by now.
                    self.topology.looked().await;
                    let stays = self.topology.owner(slot).is_none_or(|owner| owner.addr == member.addr);
                    if stays || error.kind() == ErrorKind::Closed {
                        return Err(Fault::NotSent(error));
                    }
                    self.again(&mut budget, false, Fault::NotSent(error)).await?;
                    continue;
                }
                // Its replicas cannot be asked because it is one itself; nothing has run.
                Err(Failure::Fault(Fault::Server(error))) if error.kind() == ErrorKind::ReadOnly => {
                    self.again(&mut budget, true, Fault::Server(error)).await?;
                    continue;
                }
                Err(Failure::Fault(fault)) => return Err(fault),
            };
            let fault = Fault::server_at(at.as_deref(), &code, &detail);
            match Redirect::read(&code, &detail, &member.dial) {
                None => return Err(fault),
                Some(Redirect::Moved { slot, to: Some(to) }) => {
                    self.topology.moved(slot, &to);
                    self.again(&mut budget, false, fault).await?;
                }
                Some(Redirect::Ask(to)) => {
                    self.topology.unsettled();
                    self.again(&mut budget, false, fault).await?;
                    let gathered = self.has_none_of(&member, call).await;
                    // Servers before 7 say so as soon as one of the keys is not there.
                    let stays = !gathered && !form.gathered && self.may_do_without(&member, call);
                    sent_on = Some(match stays {
                        true => (member, Form { asking: false, gathered: true }),
                        false => (self.topology.member(&to), Form { asking: true, gathered }),
                    });
                }
                Some(Redirect::Split)
                    if !form.asking && !form.gathered && self.may_do_without(&member, call) =>
                {
                    sent_on = Some((member, Form { asking: false, gathered: true }));
                }
                Some(Redirect::Split) => self.split(&mut budget, slot, &member, call).await?,
                Some(Redirect::Halfway) if form.gathered && call.script.looks_first() => {
                    self.split(&mut budget, slot, &member, call).await?;
                }
                Some(Redirect::Later) => self.again(&mut budget, false, fault).await?,
                Some(Redirect::Moved { to: None, .. } | Redirect::Astray) => {
                    self.again(&mut budget, true, fault).await?;
                }
                Some(Redirect::Halfway) => {
                    let error = format!("keys of slot {slot} moved away while a script was running");
                    return Err(Fault::Unknown(Error::new(ErrorKind::ServerBusy, error)));
                }
            }
        }
    }

    /// The keys of a call are in two places, or would be. Whoever knows another way is told at once.
    async fn split(&self, budget: &mut Budget, slot: u16, member: &Member, call: &Call) -> Result<(), Fault> {
        self.topology.unsettled();
        let error = format!(
            "slot {slot} is moving and {} cannot tell yet where all keys of this name are or will be",
            member.addr
        );
        let error = Error::new(ErrorKind::ServerBusy, error).split().remedy(
            "try again when the slot has moved, or wait for it; if nobody moves it any more, `redis-cli --cluster fix` ends that",
        );
        let fault = Fault::Server(error);
        if call.script.is_done_otherwise() {
            return Err(fault);
        }
        self.again(budget, false, fault).await
    }

    /// Whether a script may be tried where some of its keys are absent: it may be that it does not need them.
    fn may_do_without(&self, member: &Member, call: &Call) -> bool {
        call.keys.len() > 1 && call.script.looks_first() && member.is_told_all()
    }

    /// Whether a node that a slot is leaving has none of the keys of a call any more. It gets none of them back: what is not
    /// there is made at the node that the slot goes to. Several servers send a call on as soon as they lack one of its keys, so
    /// that alone says too little.
    async fn has_none_of(&self, member: &Arc<Member>, call: &Call) -> bool {
        if !(2..=LOOKS_MAX).contains(&call.keys.len())
            || call.script.gathering().is_none()
            || !member.is_told_all()
        {
            return false;
        }
        // Asked for a single key that it lacks, it sends that on; whatever else it answers, it has run the script.
        let looks = call.keys.iter().map(|key| {
            let look = Call::new(&COUNTER_GET).key(key).int(0);
            async move { member.node.run_here(&look, false).await }
        });
        let gone =
            |look: &Result<_, Failure>| matches!(look, Err(Failure::Refused { code, .. }) if code == "ASK");
        join_all(looks).await.iter().all(gone)
    }

    /// As [`route`](Self::route), for a script whose change the replicas of that master are to confirm.
    async fn route_acked(
        self: &Arc<Self>,
        slot: u16,
        call: &Call,
        count: ReplicaCount,
    ) -> Result<(Reply, Confirm), Fault> {
        let run = |member: Arc<Member>, form: Form| async move {
            let asking = form.asking;
            let ready = self.ready_for_replicas(slot, &member, count, asking).await?;
            // While its slot moves, a node that was named for this once is not the owner yet.
            let owner = self.topology.owner(slot).filter(|_| asking).unwrap_or_else(|| member.clone());
            let (topology, asked) = (self.topology.clone(), member.addr.clone());
            let listing: Listing =
                Box::new(move |_| Box::pin(std::future::ready(topology.replicas_of(&asked))));
            let (reply, confirm) =
                ready.run(member.node.script_mode(), &form.of(call), asking, Some(listing)).await?;
            Ok((reply, confirm, owner, member))
        };
        let (reply, confirm, owner, member) = self.route(slot, call, run).await?;
        let inner = self.clone();
        let confirm: Confirm = Box::new(move |within| {
            Box::pin(async move {
                let elsewhere = std::pin::pin!(inner.elsewhere(slot, &owner.addr, &member.addr));
                let (confirmed, elsewhere) = match select(confirm(within), elsewhere).await {
                    Either::Left((confirmed, elsewhere)) => (Some(confirmed), elsewhere.now_or_never()),
                    Either::Right(_) => (None, Some(())),
                };
                match confirmed {
                    Some(Ok(replicas)) if elsewhere.is_none() => Ok(replicas),
                    Some(Err(fault)) => {
                        inner.topology.look();
                        Err(fault)
                    }
                    // The new master's replicas are others, and may not have it.
                    _ => Err(Fault::Unknown(Error::new(
                        ErrorKind::ServerBusy,
                        "the slot got another master while replicas were asked",
                    ))),
                }
            })
        });
        Ok((reply, confirm))
    }

    /// A connection of a node that replicas can be asked on, unless it loses the slot before there is one.
    async fn ready_for_replicas(
        &self,
        slot: u16,
        member: &Member,
        count: ReplicaCount,
        asking: bool,
    ) -> Result<Ready, Failure> {
        let ready = member.node.ready_for_replicas(count);
        if asking {
            return ready.await;
        }
        let (ready, leaving) =
            (std::pin::pin!(ready), std::pin::pin!(self.topology.leaves(slot, &member.addr)));
        match select(ready, leaving).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => {
                let error = Error::new(ErrorKind::ServerBusy, format!("slot {slot} has another master now"));
                Err(Fault::NotSent(error).into())
            }
        }
    }

    /// Resolves when a slot has a third master: neither the one that it had when a script ran, nor the one where it ran.
    async fn elsewhere(&self, slot: u16, had: &Addr, ran: &Addr) {
        self.topology.leaves(slot, had).await;
        if had != ran && self.topology.owner(slot).is_some_and(|owner| owner.addr == *ran) {
            self.topology.leaves(slot, ran).await;
        }
    }

    /// Pauses before another try, or answers that the budget is spent. `look`: the picture has to be asked for first.
    async fn again(&self, budget: &mut Budget, look: bool, fault: Fault) -> Result<(), Fault> {
        let now = Instant::now();
        let until = *budget.until.get_or_insert(now + self.patience);
        budget.tries += 1;
        if budget.tries > TRIES_MAX || now >= until {
            return Err(fault);
        }
        // What the look finds may come at once.
        let mut changes = self.topology.changes();
        if look {
            self.topology.look();
        }
        let known = matches!(&fault, Fault::Server(error) if error.kind() == ErrorKind::ServerBusy);
        let quick = budget.tries <= QUICK_TRIES_MAX && !look && known;
        if !quick {
            let delay_ms = (RETRY_DELAY_MS_MIN << budget.tries.min(8)).min(RETRY_DELAY_MS_MAX);
            let pause = std::pin::pin!(self.topology.sleep(jittered(Duration::from_millis(delay_ms))));
            // Where the slots are now may be news for this call, too.
            select(pause, std::pin::pin!(changes.changed())).await;
        }
        Ok(())
    }

    /// Scripts that publish both ways have a beginning that knows how.
    fn prepared(&self, mut call: Call) -> Call {
        if self.ways == Ways::Both
            && call.args.iter().any(|arg| matches!(arg, Arg::Static(BOTH)))
            && let Some(script) = call.script.telling_both()
        {
            call.script = script;
        }
        call
    }

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

    async fn listeners(&self, channels: Vec<Arc<[u8]>>) -> Result<Option<Vec<u64>>, Fault> {
        let mut places: HashMap<_, (Arc<Member>, Vec<usize>)> = HashMap::new();
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

    async fn diagnose(&self) -> Result<Vec<Finding>, Fault> {
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

    /// Accounts are each node's own. A node looks at the rights before it looks at the slot, so each master answers for any name.
    async fn try_rights(self: &Arc<Self>, kinds: &[Kind], prefix: &str) -> Result<Vec<Finding>, Fault> {
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

impl Member {
    /// Whether scripts go there as text, so that every form of them can.
    fn is_told_all(&self) -> bool {
        self.node.script_mode() == ScriptMode::Eval
    }
}

/// The slot of a script's keys.
fn slot_of_all(call: &Call) -> u16 {
    let slot = call.keys.first().map_or(0, |key| slot_of(key));
    debug_assert!(
        call.keys.iter().all(|key| slot_of(key) == slot),
        "the keys of {call:?} have several slots"
    );
    slot
}

impl Store for ClusterStore {
    fn run(&self, call: Call) -> RunFuture {
        self.run_at(slot_of_all(&call), call)
    }

    fn run_at(&self, shard: u16, call: Call) -> RunFuture {
        let inner = self.inner.clone();
        Box::pin(async move {
            let call = &inner.prepared(call);
            let run = |member: Arc<Member>, form: Form| async move {
                member.node.run_here(&form.of(call), form.asking).await
            };
            inner.route(shard, call, run).await
        })
    }

    fn run_acked(&self, call: Call, count: ReplicaCount, _must: bool) -> AckedFuture {
        let slot = slot_of_all(&call);
        let inner = self.inner.clone();
        Box::pin(async move {
            let call = inner.prepared(call);
            inner.route_acked(slot, &call, count).await
        })
    }

    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
        self.inner.ears.subscribe(channel, listener)
    }

    fn tick(&self, now_ms: u64) {
        for member in self.inner.topology.members() {
            member.node.tick(now_ms);
        }
    }

    fn is_waiting(&self) -> bool {
        self.inner.searching.any()
            || self.inner.topology.members().iter().any(|member| member.node.is_waiting())
    }

    fn own_receivers(&self, channel: &[u8]) -> i64 {
        // A script counts those who listen at the node that ran it.
        let owner = self.inner.topology.owner(slot_of(channel));
        owner.map_or(0, |owner| self.inner.ears.heard_at(channel, &owner.addr))
    }

    fn listeners(&self, channels: Vec<Arc<[u8]>>) -> ListenersFuture {
        let inner = self.inner.clone();
        Box::pin(async move { inner.listeners(channels).await })
    }

    fn shard(&self, key: &[u8]) -> u16 {
        slot_of(key)
    }

    fn shard_owner(&self, shard: u16) -> u16 {
        self.inner.topology.owner_number(shard)
    }

    fn shards(&self) -> Vec<u16> {
        self.inner.topology.masters().into_iter().map(|(slot, _)| slot).collect()
    }

    fn moves(&self) -> u64 {
        self.inner.topology.moves()
    }

    fn try_rights(&self, kinds: &[Kind], prefix: &str) -> DiagnoseFuture {
        let (inner, kinds, prefix) = (self.inner.clone(), kinds.to_vec(), prefix.to_owned());
        Box::pin(async move { inner.try_rights(&kinds, &prefix).await })
    }

    fn load_functions(&self) -> LoadFuture {
        // Each master passes them on to its replicas.
        let masters = self.inner.topology.masters();
        Box::pin(async move {
            for (_, member) in masters {
                member.node.load_functions().await?;
            }
            Ok(())
        })
    }

    fn distrust(&self, key: &[u8]) {
        let topology = &self.inner.topology;
        match topology.owner(slot_of(key)) {
            Some(owner) if topology.is_settled() => owner.node.distrust(),
            // The answer may have come from another node than the one that has the slot now.
            _ => topology.members().iter().for_each(|member| member.node.distrust()),
        }
    }

    fn on_interruption(&self, hook: Arc<dyn Fn() + Send + Sync>) {
        self.inner.topology.interruption().set(hook);
    }

    fn place(&self) -> Option<String> {
        Some(self.inner.topology.id().map_or_else(|| self.describe(), |id| format!("cluster {id}")))
    }

    fn publish_command(&self) -> &'static str {
        match self.inner.ways {
            Ways::One(Way::Plain) => "publish",
            Ways::One(Way::Sharded) => "spublish",
            Ways::Both => BOTH,
        }
    }

    fn describe(&self) -> String {
        self.inner.name.clone()
    }

    fn diagnose(&self) -> DiagnoseFuture {
        let inner = self.inner.clone();
        Box::pin(async move { inner.diagnose().await })
    }

    fn close(&self) {
        self.inner.ears.close();
        self.inner.topology.close();
    }
}

impl Drop for ClusterStore {
    fn drop(&mut self) {
        self.close();
    }
}
