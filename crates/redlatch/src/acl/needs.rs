//! What each kind needs: scripts, keys and channels, and what Redisson needs besides.

use super::{
    Kind,
    place::{
        FORCED, LATCH_CHANNEL, LOCK_CHANNEL, PERMITS_CHANNEL, Place, QUEUE, RW_CHANNEL, TIMES, TOKEN,
        UNLOCK_LATCH,
    },
};
use crate::scripts::{self, Script};

/// A script that a kind runs, and commands in it that this kind never comes to, or can do without.
pub(super) struct Part {
    pub(super) script: &'static Script,
    pub(super) without: &'static [&'static str],
}

/// What one kind needs.
pub(super) struct Needs {
    pub(super) parts: Vec<Part>,
    pub(super) keys: &'static [Place],
    pub(super) channels: &'static [Place],
    /// What Redisson's own scripts of the kind call, as far as ours do not.
    pub(super) redisson: &'static [&'static str],
    /// Keys that only Redisson uses; it passes channels as keys besides.
    pub(super) redisson_keys: &'static [Place],
}

impl Kind {
    pub(super) fn needs(self) -> Needs {
        use scripts::*;
        // Commands that only the drawing of a token comes to.
        const TOKEN_ONLY: &[&str] = &["get", "set", "time"];
        let whole = |script| Part { script, without: &[] };
        let parts = |scripts: &[&'static Script]| scripts.iter().copied().map(whole).collect::<Vec<_>>();
        let tokenless = |script| Part { script, without: TOKEN_ONLY };
        // How it ended is asked when a hold is lost.
        let taken_over = || whole(&LOST);
        let plain = || {
            let mut all = parts(&[&RELEASE, &RELEASE_ALL, &LEAVE, &RENEW, &SHORTEN, &FORCE, &QUERY]);
            all.extend([
                tokenless(&ENTER),
                tokenless(&ACQUIRE),
                tokenless(&ACQUIRE_ALL),
                tokenless(&TRANSFER),
                taken_over(),
            ]);
            all
        };
        let needs = Needs {
            parts: Vec::new(),
            keys: &[Place::Name],
            channels: &[],
            redisson: &[],
            redisson_keys: &[],
        };
        match self {
            Kind::Lock => Needs {
                parts: plain(),
                keys: &[Place::Name, FORCED],
                channels: &[LOCK_CHANNEL],
                redisson: &["exists", "hexists", "hincrby", "get", "set"],
                redisson_keys: &[UNLOCK_LATCH],
            },
            Kind::Fenced => {
                let mut all = plain();
                all.extend(parts(&[&ACQUIRE, &ACQUIRE_ALL, &TRANSFER, &ENTER, &COUNTER_GET]));
                Needs {
                    parts: all,
                    keys: &[Place::Name, TOKEN, FORCED],
                    channels: &[LOCK_CHANNEL],
                    redisson: &["exists", "hexists", "hincrby", "incr"],
                    redisson_keys: &[UNLOCK_LATCH],
                }
            }
            Kind::Fair => {
                let mut all = parts(&[&FAIR_LEAVE, &FAIR_UNDO, &FAIR_FORCE, &RENEW, &SHORTEN, &QUERY]);
                all.extend([tokenless(&ENTER), tokenless(&TRANSFER)]);
                let granting = [&FAIR_ACQUIRE, &FAIR_RELEASE];
                all.extend(granting.map(|script| Part { script, without: &["get", "set"] }));
                all.push(taken_over());
                Needs {
                    parts: all,
                    keys: &[Place::Name, QUEUE, TIMES, FORCED],
                    channels: &[LOCK_CHANNEL],
                    redisson: &["exists", "hexists", "hincrby", "get", "set", "zrange", "zincrby"],
                    redisson_keys: &[UNLOCK_LATCH],
                }
            }
            // Its scripts are given no command to publish with.
            Kind::Spin => Needs {
                parts: plain(),
                keys: &[Place::Name, FORCED],
                redisson: &["exists", "hexists", "hincrby", "get", "set"],
                redisson_keys: &[UNLOCK_LATCH],
                ..needs
            },
            Kind::ReadWrite => {
                let mut all = parts(&[
                    &READ_RELEASE,
                    &READ_LEAVE,
                    &READ_RENEW,
                    &READ_SHORTEN,
                    &WRITE_RELEASE,
                    &WRITE_LEAVE,
                    &WRITE_RENEW,
                    &WRITE_SHORTEN,
                    &RW_FORCE,
                    &RW_QUERY,
                ]);
                let granting = [&READ_ACQUIRE, &READ_ENTER, &READ_TRANSFER];
                all.extend(granting.map(|script| Part { script, without: &["get", "time"] }));
                all.extend([tokenless(&WRITE_ACQUIRE), tokenless(&WRITE_ENTER), tokenless(&WRITE_TRANSFER)]);
                all.push(taken_over());
                Needs {
                    parts: all,
                    keys: &[Place::Name, Place::After, FORCED],
                    channels: &[RW_CHANNEL],
                    redisson: &["hkeys", "get"],
                    redisson_keys: &[UNLOCK_LATCH],
                }
            }
            Kind::Semaphore => Needs {
                parts: parts(&[
                    &SEMAPHORE_TAKE,
                    &SEMAPHORE_GIVE,
                    &SEMAPHORE_DRAIN,
                    &SEMAPHORE_DELETE,
                    &COUNTER_GET,
                    &COUNTER_SET,
                ]),
                channels: &[PERMITS_CHANNEL],
                ..needs
            },
            Kind::Permits => {
                let mut all = parts(&[
                    &PERMIT_TAKE,
                    &PERMIT_GIVE,
                    &PERMIT_RENEW,
                    &PERMIT_LOOK,
                    &PERMIT_SET,
                    &PERMIT_END,
                ]);
                all.push(taken_over());
                Needs {
                    parts: all,
                    keys: &[Place::Name, Place::After],
                    channels: &[PERMITS_CHANNEL],
                    redisson: &["exists", "zrangebyscore"],
                    ..needs
                }
            }
            Kind::Latch => Needs {
                parts: parts(&[&LATCH_DOWN, &LATCH_DELETE, &COUNTER_GET, &COUNTER_SET]),
                channels: &[LATCH_CHANNEL],
                redisson: &["exists"],
                ..needs
            },
            Kind::RateLimiter => Needs {
                parts: parts(&[&RATE_TAKE, &RATE_RELEASE, &RATE_SET, &RATE_SHOW, &RATE_DELETE]),
                keys: &[Place::Name, Place::After],
                redisson: &["hgetall", "hsetnx"],
                ..needs
            },
            Kind::Stock => Needs { parts: parts(&[&SELL, &STOCK]), ..needs },
            Kind::Look => Needs {
                parts: parts(&[&SHOW, &LIST]),
                keys: &[Place::Name, TOKEN, QUEUE, TIMES, Place::After],
                ..needs
            },
        }
    }
}
