//! DeclaredKeysVariant the timeout keys of read holds, where the server wants every key of a script declared.
//!
//! There the scripts of read locks are sent twice: the names of the keys follow from who holds what, which only the server knows. So the script
//! begins with a look, and replies which keys it needs if one was not declared; then it is sent again with these (`scripts/declared.lua`). Whether a server is of that kind
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

use super::Core;
use crate::{
    config::url::StoreUrl,
    error::{Error, ErrorKind},
    jitter::jittered,
    scripts::{DeclaredKeysVariant, Fact, Script},
    store::{Arg, Call, Fault, Reply},
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
    /// What sends a script that touches timeout keys.
    pub(super) fn key_declarer(&self, declared_keys_variant: &'static DeclaredKeysVariant) -> KeyDeclarer {
        let (strictness, timers) = (self.strictness.clone(), self.keeper.handle().clone());
        KeyDeclarer { declared_keys_variant, strictness, timers }
    }
}

/// One call of a script that touches timeout keys.
pub(super) struct KeyDeclarer {
    declared_keys_variant: &'static DeclaredKeysVariant,
    strictness: Arc<Strictness>,
    timers: Handle,
}

impl KeyDeclarer {
    /// Sends the call as it is, and with its keys declared if the server turns out to want that or is known to.
    pub(super) async fn run<T, F>(
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
                Err(fault) if fault.is_migrating() => {}
                Ok(answer) => {
                    self.strictness.learn_loose(call.script, reply(&answer));
                    return Ok(answer);
                }
                Err(fault) => return Err(fault),
            }
        }
        let mut keys = likely(&call, self.declared_keys_variant);
        let mut whose = self.declared_keys_variant.whose;
        for tries in 1..=TRIES_MAX {
            let answer = send(with_keys(&call, self.declared_keys_variant, &keys, whose)).await?;
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
fn likely(call: &Call, declared_keys_variant: &DeclaredKeysVariant) -> Vec<Arc<[u8]>> {
    let whose = declared_keys_variant.whose;
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

fn with_keys(
    call: &Call,
    declared_keys_variant: &'static DeclaredKeysVariant,
    keys: &[Arc<[u8]>],
    whose: &'static str,
) -> Call {
    let mut declared = call.clone();
    declared.script = &declared_keys_variant.script;
    declared.keys.extend(keys.iter().cloned());
    declared.int(call.keys.len() as i64).constant(whose)
}

/// The keys that were missing among those declared, together with all others that are needed; `None` if the script has run.
fn wanted(call: &Call, reply: &Reply) -> Option<Vec<Arc<[u8]>>> {
    // The echo shows that the answer belongs to this call; whatever else it may be is judged by the reader of the reply.
    let [Reply::Bytes(request_id), Reply::Array(keys)] = reply.array()? else { return None };
    if call.args.first().map(text).as_ref() != Some(request_id) {
        return None;
    }
    keys.iter().map(|key| key.bytes().map(Arc::from)).collect()
}

#[cfg(test)]
mod tests;
