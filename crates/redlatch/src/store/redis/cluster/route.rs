//! The way of a call to the node that has its keys.

use std::{
    borrow::Cow,
    future::{Future, ready},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures_util::future::{Either, FutureExt, join_all, select};
use tokio::time::Instant;

use super::{
    super::{
        acked::Ready,
        failure::Failure,
        listed::{Listed, Listing},
        redirect::Redirect,
        server_process,
        sharded_hub::Ways,
        topology::{Member, Topology},
    },
    Inner,
};
use crate::{
    config::{ScriptMode, addr::Addr},
    error::{Error, ErrorKind},
    jitter::jittered,
    panic_safe::panic_safe,
    replica_ack::ReplicaCount,
    scripts::{BOTH, COUNTER_GET},
    store::{Arg, Call, Confirm, Fault, Reply, of_stale_incarnation},
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

/// What one call may still spend on finding its node.
struct Budget {
    tries: u32,
    until: Option<Instant>,
}

/// How a script goes to a node.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Form {
    /// Another node has named this one for this once.
    pub(super) asking: bool,
    /// Only the first key is declared.
    gathered: bool,
}

impl Form {
    pub(super) fn of(self, call: &Call) -> Cow<'_, Call> {
        match call.script.keys_in_args() {
            Some(script) if self.gathered => {
                let mut gathered = Call { keys: call.keys[..1].into(), script, ..call.clone() };
                gathered.args.extend(call.keys.iter().cloned().map(Arg::Bytes));
                Cow::Owned(gathered.int(call.keys.len() as i64))
            }
            _ => Cow::Borrowed(call),
        }
    }
}

impl Inner {
    /// Runs a script at the master of a slot, wherever that is by then. `run` gets a node, how the script is to go there, and how often the
    /// slot had got another master when the node was chosen.
    pub(super) async fn route<T, F>(
        &self,
        slot: u16,
        call: &Call,
        run: impl Fn(Arc<Member>, Form, u64) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut budget = Budget { tries: 0, until: None };
        let mut with_asking_command: Option<(Arc<Member>, Form, u64)> = None;
        let mut searching = None;
        loop {
            // The mastership is read before the master is looked up, so that the answer of an earlier one is not taken for its.
            let (sent, form, mastership) = match with_asking_command.take() {
                Some((member, form, mastership)) => (Some(member), form, mastership),
                None => (None, Form::default(), self.topology.mastership(slot)),
            };
            let Some(member) = sent.or_else(|| self.topology.owner(slot)) else {
                searching.get_or_insert_with(|| self.searching.begin());
                let error =
                    Error::new(ErrorKind::ServerBusy, format!("no master of the cluster has slot {slot}"));
                self.again(&mut budget, true, Fault::Server(error)).await?;
                continue;
            };
            // Asked again once it is connected: a slot may go and come back meanwhile.
            let is_elsewhere = || {
                call.in_incarnation.is_some_and(|incarnation| {
                    form.asking || self.topology.mastership(slot) != server_process::mastership(incarnation)
                })
            };
            if is_elsewhere() {
                return Err(of_stale_incarnation());
            }
            call.waits_for_connection();
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
                Ok(()) if is_elsewhere() => return Err(of_stale_incarnation()),
                Ok(()) => run(member.clone(), form, mastership).await,
                Err(fault) => Err(Failure::Fault(fault)),
            };
            if outcome.is_err() {
                searching.get_or_insert_with(|| self.searching.begin());
            }
            let (code, detail, at) = match outcome {
                // What a former master granted is perhaps unknown to its successor; so is what was granted by one that was named for this once and has
                // got the slot and lost it since. And what cannot be asked for again is not better known by being forgotten.
                Ok(_)
                    if !call.script.is_sent_once()
                        && !self.topology.is_served(
                            slot,
                            mastership,
                            form.asking.then_some(&member.addr),
                        ) =>
                {
                    let error = format!("slot {slot} got another master while it answered");
                    return Err(Fault::Unknown(Error::new(ErrorKind::ServerBusy, error).answered()));
                }
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
                    self.topology.moved(slot, &member.addr, &to);
                    self.again(&mut budget, false, fault).await?;
                }
                Some(Redirect::Here) => {
                    self.topology.connect_anew(&member);
                    self.again(&mut budget, false, fault).await?;
                }
                Some(Redirect::Ask(to)) => {
                    self.topology.unsettled();
                    self.again(&mut budget, false, fault).await?;
                    let gathered = self.has_none_of(&member, call).await;
                    // Servers before 7 say so as soon as one of the keys is not there.
                    let stays = !gathered && !form.gathered && self.may_do_without(&member, call);
                    with_asking_command = Some(match stays {
                        true => (member, Form { asking: false, gathered: true }, mastership),
                        false => (self.topology.member(&to), Form { asking: true, gathered }, mastership),
                    });
                }
                Some(Redirect::Split)
                    if !form.asking && !form.gathered && self.may_do_without(&member, call) =>
                {
                    with_asking_command = Some((member, Form { asking: false, gathered: true }, mastership));
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

    /// The keys of a call are in two places, or would be. A caller that knows another way is told at once.
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
            || call.script.keys_in_args().is_none()
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
    pub(super) async fn route_acked(
        self: &Arc<Self>,
        slot: u16,
        call: &Call,
        count: ReplicaCount,
    ) -> Result<(Reply, Confirm), Fault> {
        let run = |member: Arc<Member>, form: Form, mastership: u64| async move {
            let asking = form.asking;
            let ready = self.ready_for_replicas(slot, &member, count, asking).await?;
            let listing =
                Arc::new(InPicture { topology: self.topology.clone(), master: member.addr.clone() });
            let (reply, confirm) =
                ready.run(member.node.script_mode(), &form.of(call), asking, Some(listing)).await?;
            // While its slot moves, a node that was named for this once is not the owner yet.
            Ok((reply, confirm, mastership, asking.then(|| member.addr.clone())))
        };
        let (reply, confirm, mastership, heir) = self.route(slot, call, run).await?;
        let inner = self.clone();
        let confirm: Confirm = Box::new(move |within| {
            Box::pin(async move {
                let elsewhere = std::pin::pin!(inner.topology.loses(slot, mastership, heir.as_ref()));
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
            panic_safe(async || {
                select(pause, std::pin::pin!(changes.changed())).await;
            })
            .await;
        }
        Ok(())
    }

    /// Scripts that publish both ways have a beginning that knows how.
    pub(super) fn prepared(&self, mut call: Call) -> Call {
        if self.ways == Ways::Both
            && call.args.iter().any(|arg| matches!(arg, Arg::Static(BOTH)))
            && let Some(script) = call.script.plain_and_sharded()
        {
            call.script = script;
        }
        call
    }
}

impl Member {
    /// Whether scripts go there as text, so that every form of them can.
    fn is_told_all(&self) -> bool {
        self.node.script_mode() == ScriptMode::Eval
    }
}

/// The replicas of a node in the picture of the cluster.
struct InPicture {
    topology: Arc<Topology>,
    master: Addr,
}

impl Listing for InPicture {
    fn listed(&self, _within: Duration) -> Pin<Box<dyn Future<Output = Option<Listed>> + Send + '_>> {
        Box::pin(ready(Some(Listed::Count(self.topology.replicas_of(&self.master)))))
    }
}

#[cfg(test)]
mod tests;
