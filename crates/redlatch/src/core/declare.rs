//! Declaring the timeout keys of read holds, where the server wants every key of a script declared.
//!
//! Their names follow from who holds what, which only the server knows. So the script begins with a look, and answers which keys
//! it needs if one was not declared; then it is sent again with these (`scripts/declared.lua`). Whether a server is of that kind
//! shows in its first refusal. The scripts touch such a key before they change anything, so a call that was refused may be
//! repeated. Only a release of read holds changes something first, so it declares its keys until a hold has shown that the server
//! is not strict.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::Sleep};

use super::{Core, echo::Echo};
use crate::{
    config::url::StoreUrl,
    error::{Error, ErrorKind},
    jitter::jittered,
    replica_ack::ReplicaCount,
    scripts::{Declaring, Fact, Script},
    store::{AckedFuture, Arg, Call, Fault, Reply, RunFuture},
};

/// How often a script is sent with all keys of all holders, before others' keys that came in meanwhile may be missing.
const WHOLE_TRIES_MAX: u32 = 4;
/// How often it is sent in all.
const TRIES_MAX: u32 = 20;
/// The most keys that one call declares for the sake of others.
const KEYS_MAX: usize = 10_000;

/// What is known of the server.
#[derive(Debug, Default)]
pub(super) struct Strictness(AtomicU8);

const UNKNOWN: u8 = 0;
const LOOSE: u8 = 1;
const STRICT: u8 = 2;

impl Strictness {
    /// The local daemon is known not to be strict, and runs no other form of a script than the plain one.
    pub(super) fn of(url: &str) -> Self {
        let is_local = matches!(StoreUrl::parse(url), Ok(StoreUrl::Local { .. }));
        Strictness(AtomicU8::new(if is_local { LOOSE } else { UNKNOWN }))
    }

    fn declares(&self, script: &Script) -> bool {
        match self.0.load(Ordering::Relaxed) {
            STRICT => true,
            UNKNOWN => script.is(Fact::ChangesFirst),
            _ => false,
        }
    }

    fn mark_strict(&self) {
        self.0.store(STRICT, Ordering::Relaxed);
    }

    /// A script that found or took a read hold has touched its timeout key.
    fn learn_loose(&self, script: &Script, reply: &Reply) {
        let touched = || {
            script.is(Fact::TouchesTimeouts)
                && reply.array().and_then(|items| items.get(1)?.int()).is_some_and(|count| count > 0)
        };
        if self.0.load(Ordering::Relaxed) == UNKNOWN && touched() {
            // Should another call have been refused meanwhile, that stands.
            _ = self.0.compare_exchange(UNKNOWN, LOOSE, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Core {
    /// Runs a script, with all its keys declared where the server wants that. Where it runs on the background thread, which watches keys
    /// over the same connection, their holds are watched on.
    pub(crate) fn run(&self, mut call: Call) -> RunFuture {
        let keys = self.unwatched_by(&call, self.keeper.is_here());
        let echo = self.echoes.number(&mut call);
        let shard = self.shard_of(&call);
        let run = Echo::awaited(echo, self.outages.noted(shard, self.run_here(call)), |reply| reply);
        self.watched_after(keys, run)
    }

    fn run_here(&self, call: Call) -> RunFuture {
        let Some(declaring) = call.script.declaring() else { return self.store.run(call) };
        let store = self.store.clone();
        Box::pin(self.declarer(declaring).run(call, move |call| store.run(call), |reply| reply))
    }

    /// As [`run`](Self::run), over the connection of the background thread.
    pub(crate) fn run_apart(&self, call: Call) -> RunFuture {
        let keys = self.unwatched_by(&call, true);
        let run = self.run_apart_unwatched(call);
        self.watched_after(keys, run)
    }

    /// The same for those that have the keys watched anew themselves.
    pub(super) fn run_apart_unwatched(&self, mut call: Call) -> RunFuture {
        let echo = self.echoes.number(&mut call);
        let shard = self.shard_of(&call);
        Echo::awaited(echo, self.outages.noted(shard, self.run_apart_here(call)), |reply| reply)
    }

    fn run_apart_here(&self, call: Call) -> RunFuture {
        let Some(declaring) = call.script.declaring() else { return self.store.run_apart(call) };
        let store = self.store.clone();
        Box::pin(self.declarer(declaring).run(call, move |call| store.run_apart(call), |reply| reply))
    }

    /// As [`run`](Self::run), for calls that replicas are to confirm.
    pub(crate) fn run_acked(&self, mut call: Call, count: ReplicaCount, must: bool) -> AckedFuture {
        let keys = self.unwatched_by(&call, self.keeper.is_here());
        let echo = self.echoes.number(&mut call);
        let shard = self.shard_of(&call);
        let run = self.outages.noted(shard, self.run_acked_here(call, count, must));
        let run = Echo::awaited(echo, run, |(reply, _)| reply);
        self.watched_after(keys, run)
    }

    fn run_acked_here(&self, call: Call, count: ReplicaCount, must: bool) -> AckedFuture {
        let Some(declaring) = call.script.declaring() else { return self.store.run_acked(call, count, must) };
        let store = self.store.clone();
        let send = move |call| store.run_acked(call, count, must);
        Box::pin(self.declarer(declaring).run(call, send, |(reply, _)| reply))
    }

    /// Runs a script that changes nothing, so that no watching ends by it.
    pub(crate) fn look(&self, call: Call) -> RunFuture {
        self.outages.noted(self.shard_of(&call), self.store.run(call))
    }

    fn shard_of(&self, call: &Call) -> u16 {
        call.keys.first().map_or(0, |key| self.store.shard(key))
    }

    /// The same at the server of one shard.
    pub(crate) fn look_in(&self, shard: u16, call: Call) -> RunFuture {
        self.outages.noted(shard, self.store.run_at(shard, call))
    }

    /// The same over the connection of the background thread.
    pub(super) fn look_apart(&self, call: Call) -> RunFuture {
        self.outages.noted(self.shard_of(&call), self.store.run_apart(call))
    }

    fn declarer(&self, declaring: &'static Declaring) -> Declarer {
        let (strictness, timers) = (self.strictness.clone(), self.keeper.handle().clone());
        Declarer { declaring, strictness, timers }
    }
}

/// One call of a script that touches timeout keys.
struct Declarer {
    declaring: &'static Declaring,
    strictness: Arc<Strictness>,
    timers: Handle,
}

impl Declarer {
    /// Sends the call as it is, and with its keys declared if the server turns out to want that or is known to.
    async fn run<T, F>(
        self,
        call: Call,
        send: impl Fn(Call) -> F + Send,
        reply: fn(&T) -> &Reply,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>> + Send,
    {
        if !self.strictness.declares(call.script) {
            match send(call.clone()).await {
                Err(Fault::Server(error)) if error.kind() == ErrorKind::UndeclaredKey => {
                    self.strictness.mark_strict();
                    if call.script.is(Fact::ChangesFirst) {
                        return Err(Fault::Server(error));
                    }
                }
                // The name that all its timeout keys begin with is no key, and a slot that moves cannot be asked for it.
                Err(fault) if fault.is_split() => {}
                Ok(answer) => {
                    self.strictness.learn_loose(call.script, reply(&answer));
                    return Ok(answer);
                }
                Err(fault) => return Err(fault),
            }
        }
        let mut keys = likely(&call, self.declaring);
        let mut whose = self.declaring.whose;
        for tries in 1..=TRIES_MAX {
            let answer = send(with_keys(&call, self.declaring, &keys, whose)).await?;
            let Some(wanted) = wanted(&call, reply(&answer)) else { return Ok(answer) };
            // There are more keys than that, or others come in faster than this can follow.
            if whose == ALL && (tries >= WHOLE_TRIES_MAX || wanted.len() > KEYS_MAX) {
                whose = SOME;
            }
            keys = wanted;
            if tries > WHOLE_TRIES_MAX {
                self.pause(jittered(Duration::from_millis(tries.into()))).await;
            }
        }
        let error =
            Error::new(ErrorKind::ServerBusy, "the holds of the owner changed with every look at them");
        Err(Fault::Server(error))
    }

    /// A timer that works in any runtime and in none.
    fn pause(&self, time: Duration) -> Sleep {
        let _inside = self.timers.enter();
        tokio::time::sleep(time)
    }
}

/// The values of `whose` for scripts that touch keys of all holders, and only of those that are declared.
const ALL: &str = "all";
const SOME: &str = "some";

/// The argument that names the first or only owner, counted from 1.
fn first_owner(whose: &str) -> usize {
    whose.parse().unwrap_or(2)
}

/// The keys of owners with one hold, which is what most have.
fn likely(call: &Call, declaring: &Declaring) -> Vec<Arc<[u8]>> {
    let whose = declaring.whose;
    let one = if whose == "3" { usize::MAX } else { 1 };
    let bases = call.keys.iter().skip(1).step_by(2).take(one);
    let owners = call.args.iter().skip(first_owner(whose) - 1);
    let mut keys = Vec::new();
    for (base, owner) in bases.zip(owners) {
        let owner = text(owner);
        keys.extend(["1", "2"].map(|i| timeout_key(base, &owner, i)));
        if whose == ALL {
            // The field for the mode of the hash counts as a holder in the look at all fields.
            keys.push(timeout_key(base, b"mode", "1"));
        }
    }
    keys
}

fn timeout_key(base: &[u8], owner: &[u8], i: &str) -> Arc<[u8]> {
    [base, owner, b":rwlock_timeout:", i.as_bytes()].concat().into()
}

fn text(arg: &Arg) -> Vec<u8> {
    match arg {
        Arg::Int(value) => value.to_string().into_bytes(),
        Arg::Text(text) => text.as_bytes().to_vec(),
        Arg::Bytes(bytes) => bytes.to_vec(),
        Arg::Static(text) => text.as_bytes().to_vec(),
    }
}

fn with_keys(call: &Call, declaring: &'static Declaring, keys: &[Arc<[u8]>], whose: &'static str) -> Call {
    let mut declared = call.clone();
    declared.script = &declaring.script;
    declared.keys.extend(keys.iter().cloned());
    declared.int(call.keys.len() as i64).constant(whose)
}

/// The keys that were missing among those declared, together with all others that are needed; `None` if the script has run.
fn wanted(call: &Call, reply: &Reply) -> Option<Vec<Arc<[u8]>>> {
    // The echo shows that the answer belongs to this call; whatever else it may be is judged by the reader of the reply.
    let [Reply::Bytes(echo), Reply::Array(keys)] = reply.array()? else { return None };
    if call.args.first().map(text).as_ref() != Some(echo) {
        return None;
    }
    keys.iter().map(|key| key.bytes().map(Arc::from)).collect()
}

#[cfg(test)]
mod tests;
