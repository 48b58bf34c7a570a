//! The plain and the fenced lock, and a hold that is passed on.

use super::{
    keyspace::{Keyspace, TOKEN_BEFORE, TOKEN_NOW},
    lock::{Lock, Owners, Wanted},
    server::NUMBER,
    world::{
        Asking, Call, Desk, Judged, LEASE_MS, Model, OWNERS, Ran, Step, TICK_MS, VALID_MS, Words, World,
        words,
    },
};

const NAME: &str = "n";
const CHANNEL: &str = "redisson_lock__channel:{n}";
const TOKENS: &str = "redisson_lock_token:{n}";
/// What is left of a hold that is left behind for a shorter time.
const SHORT_MS: i64 = TICK_MS / 2;
/// How often an owner enters at most.
const COUNT_MAX: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    Acquire,
    Enter,
    /// Leaves one hold of `n`.
    Leave,
    Release,
    /// Releases if the owner counts `n`.
    ReleaseCounted,
    Renew,
    Look,
    Shorten,
    /// Shortens the hold that ends in `n` ms.
    ShortenMeant,
    Transfer,
    Adopt,
    GiveBack,
    Force,
    ForceNamed,
    JavaLock,
    JavaUnlock,
    JavaRenew,
    JavaDelete,
    LoseTokens,
}
use Verb::*;

/// What an owner's process knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Mind {
    count: u8,
    /// ms until its own deadline; 0 if it is over.
    left: i16,
    /// Perhaps the server counts another number.
    in_doubt: bool,
    /// A request without an answer.
    out: Option<Call<Verb>>,
    /// The process is gone, and knows nothing.
    is_gone: bool,
    /// Something may stand on the server that no process of this owner has.
    leaves_traces: bool,
}

/// How many tokens were drawn since the clock went on, and the highest of all.
#[derive(Clone, Debug, Hash)]
pub(super) struct Memory {
    highest: i64,
}

pub(super) struct Plain {
    pub(super) owners: Owners,
    /// Draws tokens.
    pub(super) fenced: bool,
    /// Passes holds on, instead of entering and detaching.
    pub(super) transfers: bool,
}

fn call(verb: Verb, by: usize, to: usize, n: i64) -> Call<Verb> {
    Call { verb, by: by as u8, to: to as u8, n: n as i16 }
}

impl Plain {
    fn lock(&self, keys: &Keyspace) -> Result<Lock, String> {
        Lock::of(keys, NAME, self.owners)
    }

    /// What a grant tells: it counts as `count`, and its token is above all before.
    fn granted(&self, next: &mut World<Self>, to: usize, ran: &Ran) -> Judged {
        let mind = &mut next.minds[to];
        mind.count = ran.reply[0] as u8;
        mind.left = mind.left.max(VALID_MS);
        mind.out = None;
        Ok(())
    }

    /// Tokens that were drawn, though nobody may know of them.
    fn drawn(&self, next: &mut World<Self>) -> Judged {
        let Some(token) = next.server.keys.number(TOKENS) else { return Ok(()) };
        if token < next.memory.highest {
            return Err(format!("token {token} is below {}, which was drawn before", next.memory.highest));
        }
        next.memory.highest = token;
        Ok(())
    }

    fn takes_away(verb: Verb) -> bool {
        matches!(verb, Leave | Release | ReleaseCounted | Transfer | Adopt | GiveBack | Shorten | JavaUnlock)
    }

    fn java(&self, from: &Asking<'_, Self>, at: usize, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let mind = from.world.minds[at];
        if mind.count < COUNT_MAX {
            let taken = |next: &mut World<Self>, ran: &Ran| {
                if ran.reply[0] > 0 {
                    let mind = &mut next.minds[at];
                    mind.count += 1;
                    // A repeat counts twice, and its lease ends what is too many.
                    mind.in_doubt |= ran.reply[0] != i64::from(mind.count);
                    mind.left = VALID_MS;
                }
                self.drawn(next)
            };
            from.tell(desk, out, call(JavaLock, at, at, 0), taken);
            if mind.count == 0 {
                for ran in desk.call(&from.world.server, call(JavaLock, at, at, 0)).iter() {
                    if Lock::of(&ran.after.keys, NAME, self.owners).is_ok_and(|lock| lock.counts[at] > 2) {
                        continue;
                    }
                    from.event(out, "locks from Java, and the answer is lost", at, |next| {
                        next.server = std::sync::Arc::clone(&ran.after);
                        next.minds[at].leaves_traces = true;
                        let _never = self.drawn(next);
                    });
                }
            }
        }
        if mind.count > 0 {
            from.tell(desk, out, call(JavaRenew, at, at, 0), |next, ran| {
                let mind = &mut next.minds[at];
                let held = ran.reply[0] == 1;
                if !held && mind.left > 0 {
                    return Err("a valid hold of Java is gone".to_owned());
                }
                *mind = if held { Mind { left: VALID_MS, ..*mind } } else { Mind::default() };
                Ok(())
            });
            from.tell(desk, out, call(JavaUnlock, at, at, 0), |next, ran| {
                let mind = &mut next.minds[at];
                if ran.reply[0] < 0 && mind.left > 0 {
                    return Err("a valid hold of Java is gone".to_owned());
                }
                mind.count -= 1;
                mind.leaves_traces |= mind.in_doubt;
                // It is the lease of what stays.
                mind.left = if ran.reply[0] > 0 && mind.count > 0 { VALID_MS } else { 0 };
                if mind.count == 0 {
                    *mind = Mind { leaves_traces: mind.in_doubt || mind.leaves_traces, ..Mind::default() };
                }
                Ok(())
            });
            from.event(out, "the process is killed", at, |next| {
                next.minds[at] = Mind { is_gone: true, ..Mind::default() };
            });
        }
    }

    /// What an owner does that holds.
    fn holder(
        &self,
        from: &Asking<'_, Self>,
        at: usize,
        desk: &mut dyn Desk<Self>,
        out: &mut Vec<Step<Self>>,
    ) {
        let mind = from.world.minds[at];
        let is_valid = mind.left > 0;
        let lost = "a valid hold is gone";
        let released = |next: &mut World<Self>, ran: &Ran| {
            let was_valid = from.world.minds[at].left > 0;
            next.minds[at] = Mind { leaves_traces: from.world.minds[at].leaves_traces, ..Mind::default() };
            if ran.reply[0] == 0 && was_valid { Err(lost.to_owned()) } else { Ok(()) }
        };
        let leaving = |verb, n| {
            move |next: &mut World<Self>| {
                let request = call(verb, at, at, n);
                next.minds[at] =
                    Mind { out: Some(request), leaves_traces: mind.leaves_traces, ..Mind::default() };
            }
        };
        from.ask(desk, out, call(Release, at, at, 0), released, leaving(Release, 0));
        if !is_valid {
            return;
        }
        from.ask(
            desk,
            out,
            call(Renew, at, at, 0),
            |next, ran| {
                next.minds[at].left = VALID_MS;
                if ran.reply[0] == 0 { Err(lost.to_owned()) } else { Ok(()) }
            },
            |_| {},
        );
        from.tell(desk, out, call(Look, at, at, 0), |_, ran| {
            if ran.reply[0] == 0 { Err(lost.to_owned()) } else { Ok(()) }
        });
        if self.transfers {
            self.giver(from, at, desk, out);
        }
        if mind.count < COUNT_MAX && !mind.in_doubt {
            from.ask(
                desk,
                out,
                call(Enter, at, at, 0),
                |next, ran| {
                    self.drawn(next)?;
                    if ran.reply[0] == 0 { Err(lost.to_owned()) } else { self.granted(next, at, ran) }
                },
                |next| {
                    next.minds[at].in_doubt = true;
                    let _never = self.drawn(next);
                },
            );
        }
        if mind.count > 1 && !mind.in_doubt {
            from.ask(
                desk,
                out,
                call(Leave, at, at, mind.count.into()),
                |next, ran| {
                    next.minds[at].count -= 1;
                    if ran.reply[0] < 0 { Err(lost.to_owned()) } else { Ok(()) }
                },
                |next| {
                    next.minds[at].count -= 1;
                    next.minds[at].in_doubt = true;
                },
            );
            // It is sent once; if it ran twice all the same it would count once.
            let request = call(Leave, at, at, mind.count.into());
            for ran in desk.call(&from.world.server, request).iter() {
                let mut world = from.world.clone();
                world.server = std::sync::Arc::clone(&ran.after);
                world.minds[at].count -= 1;
                Asking { world: &world, ..*from }.tell(desk, out, request, |_, _| Ok(()));
            }
        }
        let count = i64::from(mind.count);
        from.tell(desk, out, call(ReleaseCounted, at, at, count), |next, ran| match ran.reply[0] {
            -1 if mind.in_doubt => Ok(()),
            1 => released(next, ran),
            other => Err(format!("the release of all holds was answered by {other}")),
        });
        if !self.transfers {
            let left_behind = |next: &mut World<Self>| {
                next.minds[at] = Mind { leaves_traces: true, ..Mind::default() };
            };
            let end = self.lock(&from.world.server.keys).map_or(0, |lock| lock.ttl());
            for (verb, n) in [(Shorten, 0), (ShortenMeant, end)] {
                let shortened = |next: &mut World<Self>, ran: &Ran| {
                    left_behind(next);
                    if ran.reply[0] == 1 { Ok(()) } else { Err(lost.to_owned()) }
                };
                if verb == ShortenMeant {
                    from.ask(desk, out, call(verb, at, at, n), shortened, left_behind);
                } else {
                    from.tell(desk, out, call(verb, at, at, n), shortened);
                }
            }
        }
    }

    /// What an owner does that gives its hold to another.
    fn giver(
        &self,
        from: &Asking<'_, Self>,
        at: usize,
        desk: &mut dyn Desk<Self>,
        out: &mut Vec<Step<Self>>,
    ) {
        for to in (0..OWNERS).filter(|to| *to != at && !self.owners.is_java(*to)) {
            let taker = from.world.minds[to];
            let blocked = from.world.late.is_some_and(|late| [late.by, late.to].contains(&(to as u8)));
            if taker.count > 0 || taker.out.is_some() || taker.is_gone || taker.leaves_traces || blocked {
                continue;
            }
            for verb in [Transfer, Adopt] {
                let request = call(verb, at, to, 0);
                from.ask(
                    desk,
                    out,
                    request,
                    |next, ran| self.passed(next, request, ran),
                    |next| {
                        next.minds[at] = Mind { out: Some(request), ..Mind::default() };
                        next.minds[to].out = Some(request);
                        let _never = self.drawn(next);
                    },
                );
            }
        }
    }

    fn passed(&self, next: &mut World<Self>, request: Call<Verb>, ran: &Ran) -> Judged {
        let (at, to) = (usize::from(request.by), usize::from(request.to));
        self.drawn(next)?;
        match ran.reply[0] {
            1 => {
                next.minds[at] = Mind::default();
                let token = ran.reply[1];
                next.minds[to] = Mind::default();
                self.granted(next, to, &Ran { reply: vec![1, token], ..ran.clone() })
            }
            2 if next.minds[at].count > 1 || next.minds[at].in_doubt || next.minds[at].out.is_some() => {
                if next.minds[at].out.is_some() {
                    next.minds[at] = Mind { leaves_traces: true, ..Mind::default() };
                    next.minds[to] = Mind::default();
                }
                Ok(())
            }
            _ if next.minds[at].left > 0 => Err("a valid hold is gone when it is passed on".to_owned()),
            _ => {
                next.minds[at] = Mind::default();
                next.minds[to] = Mind::default();
                Ok(())
            }
        }
    }

    /// What follows a request that was not answered.
    fn unanswered(
        &self,
        from: &Asking<'_, Self>,
        at: usize,
        request: Call<Verb>,
        desk: &mut dyn Desk<Self>,
        out: &mut Vec<Step<Self>>,
    ) {
        let own = usize::from(request.by) == at;
        match request.verb {
            Acquire => {
                from.tell(desk, out, request, |next, ran| {
                    self.drawn(next)?;
                    if ran.reply[0] > 0 {
                        return self.granted(next, at, ran);
                    }
                    next.minds[at].out = None;
                    Ok(())
                });
                let undo = call(Release, at, at, 0);
                from.ask(
                    desk,
                    out,
                    undo,
                    |next, _| {
                        next.minds[at].out = None;
                        Ok(())
                    },
                    |next| next.minds[at].out = Some(undo),
                );
            }
            Transfer | Adopt if own => {
                from.tell(desk, out, request, |next, ran| self.passed(next, request, ran));
                // What was taken up for no task goes back, or both go.
                let to = usize::from(request.to);
                if request.verb == Adopt {
                    from.tell(desk, out, call(GiveBack, to, at, 0), |next, _| {
                        next.minds[to] = Mind::default();
                        next.minds[at] = Mind { leaves_traces: true, ..Mind::default() };
                        Ok(())
                    });
                }
                from.event(out, "gives the passing on up", at, |next| {
                    next.minds[at].out = Some(call(Release, at, at, 0));
                    next.minds[to].out = Some(call(Release, to, to, 0));
                });
            }
            Release => {
                from.tell(desk, out, request, |next, _| {
                    next.minds[at].out = None;
                    Ok(())
                });
            }
            _ => {}
        }
    }
}

impl Model for Plain {
    type Verb = Verb;
    type Mind = Mind;
    type Memory = Memory;

    fn first(&self) -> (Keyspace, [Mind; OWNERS], Memory) {
        (Keyspace::default(), [Mind::default(); OWNERS], Memory { highest: TOKEN_BEFORE - 1 })
    }

    fn words(&self, call: Call<Verb>) -> Words {
        let Call { verb, by, to, n } = call;
        let (by, to) = (self.owners.field(by.into()), self.owners.field(to.into()));
        let fenced = i32::from(self.fenced);
        let keys = &if self.fenced { format!("{NAME} {TOKENS}") } else { NAME.to_owned() };
        let tell = format!("{NUMBER} {by} {CHANNEL} publish");
        let drawing = if self.fenced { " 1" } else { "" };
        match verb {
            Acquire => words("acquire", keys, &format!("{NUMBER} {by} {LEASE_MS} {fenced}")),
            Enter => words("enter", keys, &format!("{NUMBER} {by} {LEASE_MS}{drawing}")),
            Leave => words("release_one", NAME, &format!("{tell} {n} {TICK_MS}")),
            Release => words("release", NAME, &tell),
            ReleaseCounted => words("release", NAME, &format!("{tell} {n}")),
            Renew => words("renew", NAME, &format!("{NUMBER} {LEASE_MS} {by}")),
            Look => words("renew", NAME, &format!("{NUMBER} 0 {by}")),
            Shorten => words("shorten", NAME, &format!("{NUMBER} {by} {SHORT_MS}")),
            ShortenMeant => {
                let end = super::keyspace::UNIX_MS + i64::from(n);
                words("shorten", NAME, &format!("{NUMBER} {by} {SHORT_MS} {end}"))
            }
            Transfer => words("transfer", keys, &format!("{NUMBER} {by} {to} {LEASE_MS} {fenced} 0")),
            Adopt => words("transfer", keys, &format!("{NUMBER} {by} {to} {LEASE_MS} {fenced} 1")),
            GiveBack => words("transfer", keys, &format!("{NUMBER} {by} {to} {LEASE_MS} 0 2")),
            Force => words("force", NAME, &format!("{NUMBER} _ {CHANNEL} publish")),
            ForceNamed => words("force", NAME, &tell),
            JavaLock => words("java/lock", keys, &format!("{NUMBER} {by} {LEASE_MS}")),
            JavaUnlock => words("java/unlock", NAME, &format!("{NUMBER} {by} {LEASE_MS} {CHANNEL}")),
            JavaRenew => words("java/renew", NAME, &format!("{NUMBER} {by} {LEASE_MS}")),
            JavaDelete => words("java/delete", NAME, &format!("{NUMBER} {CHANNEL}")),
            LoseTokens => words("java/delete", TOKENS, &format!("{NUMBER} _")),
        }
    }

    fn contract(&self, call: Call<Verb>, before: &Keyspace, after: &Keyspace, ran: &Ran) -> Judged {
        let (lock, then) = (self.lock(before)?, self.lock(after)?);
        let (by, to, n) = (usize::from(call.by), usize::from(call.to), i64::from(call.n));
        let wanted: Wanted = match call.verb {
            Acquire => lock.acquire(by, LEASE_MS, self.fenced, false),
            Enter => lock.enter(by, LEASE_MS, self.fenced),
            Leave => lock.leave(by, n, TICK_MS),
            Release => lock.release(by, None),
            ReleaseCounted => lock.release(by, Some(n)),
            Renew => lock.renew(by, LEASE_MS),
            Look => lock.renew(by, 0),
            Shorten => lock.shorten(by, SHORT_MS, None),
            ShortenMeant => lock.shorten(by, SHORT_MS, Some(n)),
            Transfer => lock.transfer(by, to, LEASE_MS, (self.fenced, false, false)),
            Adopt => lock.transfer(by, to, LEASE_MS, (self.fenced, true, false)),
            GiveBack => lock.transfer(by, to, LEASE_MS, (false, false, true)),
            Force => lock.force(None),
            ForceNamed => lock.force(Some(by)),
            JavaLock | JavaUnlock | JavaRenew | JavaDelete | LoseTokens => return Ok(()),
        };
        wanted.compare(&then, &ran.reply, &ran.told, CHANNEL)
    }

    fn sound(&self, keys: &Keyspace) -> Judged {
        self.lock(keys)?;
        let strange = keys.0.iter().find(|key| key.name != NAME && key.name != TOKENS);
        if let Some(key) = strange {
            return Err(format!("there is a key {}", key.name));
        }
        let later = keys.tick(LEASE_MS + 1);
        match later.0.iter().find(|key| key.name != TOKENS) {
            Some(key) => Err(format!("{} is there when every lease is over", key.name)),
            None => Ok(()),
        }
    }

    fn judge(&self, world: &World<Self>) -> Judged {
        let lock = self.lock(&world.server.keys)?;
        let mut holder = None;
        for (at, mind) in world.minds.iter().enumerate() {
            let counted = lock.counts[at];
            if mind.count > 0 && mind.left > 0 {
                if holder.is_some() {
                    return Err("there are two valid holders".to_owned());
                }
                holder = Some(at);
                if counted < i64::from(mind.count) && !self.owners.is_java(at) || counted == 0 {
                    return Err(format!("a valid owner counts {}, and the server {counted}", mind.count));
                }
                if lock.ttl() < i64::from(mind.left) {
                    return Err(format!("an owner has {} ms left, and the server {}", mind.left, lock.ttl()));
                }
                if counted != i64::from(mind.count) && !mind.in_doubt && !mind.leaves_traces {
                    return Err(format!("an owner counts {}, and the server {counted}", mind.count));
                }
            }
            let excused = mind.count > 0 || mind.out.is_some() || mind.is_gone || mind.leaves_traces;
            if counted > 0 && !excused {
                return Err("the server has a hold that nobody has".to_owned());
            }
        }
        Ok(())
    }

    fn steps(&self, from: &Asking<'_, Self>, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let Ok(lock) = self.lock(&from.world.server.keys) else { return };
        for at in 0..OWNERS {
            let mind = from.world.minds[at];
            let late =
                from.world.late.filter(|late| usize::from(late.by) == at || usize::from(late.to) == at);
            if mind.is_gone {
                if lock.counts[at] == 0 && late.is_none() {
                    from.event(out, "another process comes", at, |next| next.minds[at] = Mind::default());
                }
                continue;
            }
            if self.owners.is_java(at) {
                self.java(from, at, desk, out);
                continue;
            }
            if let Some(request) = mind.out {
                self.unanswered(from, at, request, desk, out);
            } else if mind.count > 0 {
                self.holder(from, at, desk, out);
            } else if late.is_none_or(|late| !Self::takes_away(late.verb) && i64::from(late.n) != LEASE_MS) {
                // Nothing is granted to an owner while what may take a hold of it away is on its way. What shortens a hold is meant
                // for one that ends at another moment, which another process of the owner may have by now.
                let request = call(Acquire, at, at, 0);
                from.ask(
                    desk,
                    out,
                    request,
                    |next, ran| {
                        self.drawn(next)?;
                        if ran.reply[0] > 0 { self.granted(next, at, ran) } else { Ok(()) }
                    },
                    |next| {
                        next.minds[at].out = Some(request);
                        let _never = self.drawn(next);
                    },
                );
            }
            if mind.count > 0 || mind.out.is_some() {
                from.event(out, "the process is killed", at, |next| {
                    next.minds[at] = Mind { is_gone: true, ..Mind::default() };
                    // Who gives and who takes are of one process.
                    for other in
                        next.minds.iter_mut().filter(|other| mind.out.is_some() && other.out == mind.out)
                    {
                        *other = Mind { is_gone: true, ..Mind::default() };
                    }
                });
            }
        }
        // Who is forced off is told, and so are those from whom the server takes it without a word.
        for verb in [Force, JavaDelete] {
            from.tell(desk, out, call(verb, 0, 0, 0), |next, _| {
                for mind in next.minds.iter_mut().filter(|mind| mind.count > 0) {
                    *mind = Mind { out: mind.out, leaves_traces: mind.leaves_traces, ..Mind::default() };
                }
                Ok(())
            });
        }
        from.tell(desk, out, call(ForceNamed, 0, 0, 0), |next, ran| {
            if ran.reply[0] == 1 {
                next.minds[0] =
                    Mind { out: next.minds[0].out, is_gone: next.minds[0].is_gone, ..Mind::default() };
            }
            Ok(())
        });
        if self.fenced && from.world.memory.highest < TOKEN_NOW {
            from.tell(desk, out, call(LoseTokens, 0, 0, 0), |_, _| Ok(()));
        }
    }

    fn tick(&self, world: &mut World<Self>) {
        for mind in &mut world.minds {
            mind.left = (mind.left - TICK_MS as i16).max(0);
        }
        if let Some(late) = world.late.as_mut().filter(|late| late.verb == ShortenMeant) {
            late.n = (late.n - TICK_MS as i16).max(-1);
        }
        world.memory.highest = (world.memory.highest - TICK_MS * 1000).max(TOKEN_BEFORE);
    }

    fn tidy(&self, world: &mut World<Self>) {
        let lock = self.lock(&world.server.keys).unwrap_or_default();
        for (at, mind) in world.minds.iter_mut().enumerate() {
            mind.leaves_traces &= lock.counts[at] > 0;
            mind.in_doubt &= mind.count > 0;
        }
    }

    fn arrives(&self, world: &mut World<Self>, call: Call<Verb>, _: &Ran) {
        let _never = self.drawn(world);
        for at in [call.by, call.to] {
            let mind = &mut world.minds[usize::from(at)];
            mind.leaves_traces = true;
            mind.in_doubt |= call.verb == Enter && mind.count > 0;
        }
    }
}
