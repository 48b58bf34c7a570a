//! Two names that are taken together, under one owner, beside owners who take one of them.

use super::{
    keyspace::Keyspace,
    lock::{Lock, Owners},
    server::NUMBER,
    world::{
        Asking, Call, Desk, Judged, LEASE_MS, Model, OWNERS, Ran, Step, TICK_MS, VALID_MS, Words, World,
        same, words,
    },
};

const NAMES: [&str; 2] = ["m1", "m2"];
const CHANNELS: [&str; 2] = ["redisson_lock__channel:{m1}", "redisson_lock__channel:{m2}"];
const TOKENS: [&str; 2] = ["redisson_lock_token:{m1}", "redisson_lock_token:{m2}"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    AcquireAll,
    AcquireAllFenced,
    ReleaseAll,
    /// Each if the owner counts `n`.
    ReleaseAllCounted,
    RenewAll,
    /// One name, `n`.
    Acquire,
    Enter,
    Release,
    JavaLock,
    JavaUnlock,
    JavaRenew,
}
use Verb::*;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Mind {
    /// For each name how often it is held.
    counts: [u8; 2],
    left: i16,
    out: Option<Call<Verb>>,
    is_gone: bool,
    leaves_traces: bool,
}

pub(super) struct Multi {
    pub(super) owners: Owners,
}

fn call(verb: Verb, by: usize, n: usize) -> Call<Verb> {
    Call { verb, by: by as u8, to: by as u8, n: n as i16 }
}

impl Mind {
    fn holds(&self) -> bool {
        self.counts != [0, 0]
    }

    fn traced(&self) -> Mind {
        Mind { leaves_traces: self.leaves_traces, ..Mind::default() }
    }
}

impl Multi {
    fn locks(&self, keys: &Keyspace) -> Result<[Lock; 2], String> {
        Ok([Lock::of(keys, NAMES[0], self.owners)?, Lock::of(keys, NAMES[1], self.owners)?])
    }

    /// All names at once: what it comes to on each, the reply, and who is told.
    fn all(&self, locks: [Lock; 2], by: usize, fenced: bool) -> ([Lock; 2], Vec<i64>) {
        for (at, lock) in locks.iter().enumerate() {
            if lock.left.is_some() && lock.counts[by] == 0 {
                return (locks, vec![0, at as i64 + 1, lock.ttl()]);
            }
        }
        let each = locks.map(|lock| lock.acquire(by, LEASE_MS, fenced, false));
        let tokens = each.iter().filter(|_| fenced).map(|wanted| wanted.reply[1]);
        let reply = std::iter::once(1).chain(tokens).collect();
        ([each[0].lock, each[1].lock], reply)
    }

    fn released(&self, locks: [Lock; 2], by: usize, only: Option<i64>) -> ([Lock; 2], Vec<i64>, [bool; 2]) {
        let each = locks.map(|lock| lock.release(by, only));
        // In a set a count that is another one is told without the number.
        let reply = each.iter().flat_map(|wanted| match wanted.reply[..] {
            [-1, _] => [-1, 0],
            [gone, heard] => [gone, heard],
            _ => [0, 0],
        });
        ([each[0].lock, each[1].lock], reply.collect(), [each[0].tells, each[1].tells])
    }

    fn holder(
        &self,
        from: &Asking<'_, Self>,
        at: usize,
        desk: &mut dyn Desk<Self>,
        out: &mut Vec<Step<Self>>,
    ) {
        let mind = from.world.minds[at];
        let is_valid = mind.left > 0;
        let whole = mind.counts[0] > 0 && mind.counts[1] > 0;
        let lost = || Err("a valid hold is gone".to_owned());
        if whole {
            let leave = call(ReleaseAll, at, 0);
            from.ask(
                desk,
                out,
                leave,
                |next, ran| {
                    next.minds[at] = mind.traced();
                    if is_valid && (ran.reply[0] != 1 || ran.reply[2] != 1) { lost() } else { Ok(()) }
                },
                |next| next.minds[at] = Mind { out: Some(leave), ..mind.traced() },
            );
            from.tell(desk, out, call(ReleaseAllCounted, at, 1), |next, ran| {
                let mind = &mut next.minds[at];
                for name in 0..2 {
                    if ran.reply[2 * name] != -1 {
                        mind.counts[name] = 0;
                    }
                }
                if mind.counts == [0, 0] {
                    *mind = mind.traced();
                }
                Ok(())
            });
        }
        for name in (0..2).filter(|name| mind.counts[*name] > 0 && !whole) {
            let leave = call(Release, at, name);
            from.ask(
                desk,
                out,
                leave,
                |next, ran| {
                    next.minds[at] = mind.traced();
                    if is_valid && ran.reply[0] != 1 { lost() } else { Ok(()) }
                },
                |next| next.minds[at] = Mind { out: Some(leave), ..mind.traced() },
            );
        }
        if !is_valid || !whole {
            return;
        }
        from.ask(
            desk,
            out,
            call(RenewAll, at, 0),
            |next, ran| {
                next.minds[at].left = VALID_MS;
                if ran.reply == [1, 1] { Ok(()) } else { lost() }
            },
            |_| {},
        );
        if mind.counts[1] == 1 {
            from.tell(desk, out, call(Enter, at, 1), |next, ran| {
                next.minds[at].counts[1] = ran.reply[0] as u8;
                if ran.reply[0] == 2 { Ok(()) } else { lost() }
            });
        }
    }

    fn java(&self, from: &Asking<'_, Self>, at: usize, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let mind = from.world.minds[at];
        for name in 0..2 {
            if mind.counts[name] == 0 && mind.holds() && mind.left == 0 {
                continue;
            }
            if mind.counts[name] == 0 {
                from.tell(desk, out, call(JavaLock, at, name), |next, ran| {
                    let mind = &mut next.minds[at];
                    if ran.reply[0] > 0 {
                        mind.counts[name] = ran.reply[0] as u8;
                        mind.left = if mind.left > 0 { mind.left } else { VALID_MS };
                    }
                    Ok(())
                });
                continue;
            }
            from.tell(desk, out, call(JavaUnlock, at, name), |next, ran| {
                let mind = &mut next.minds[at];
                mind.counts[name] = ran.reply[0].max(0) as u8;
                if !mind.holds() {
                    *mind = Mind::default();
                }
                if ran.reply[0] < 0 && from.world.minds[at].left > 0 {
                    return Err("a valid hold of Java is gone".to_owned());
                }
                Ok(())
            });
            from.tell(desk, out, call(JavaRenew, at, name), |_, ran| {
                if ran.reply[0] == 0 && mind.left > 0 {
                    return Err("a valid hold of Java is gone".to_owned());
                }
                Ok(())
            });
        }
    }
}

impl Model for Multi {
    type Verb = Verb;
    type Mind = Mind;
    type Memory = ();

    fn first(&self) -> (Keyspace, [Mind; OWNERS], ()) {
        (Keyspace::default(), [Mind::default(); OWNERS], ())
    }

    fn words(&self, call: Call<Verb>) -> Words {
        let Call { verb, by, n, .. } = call;
        let by = self.owners.field(by.into());
        let name = usize::from(n.unsigned_abs()).min(1);
        let (one, channel, all) = (NAMES[name], CHANNELS[name], NAMES.join(" "));
        let sets =
            |only: &str| format!("{NUMBER} publish {by} {} {only} {by} {} {only}", CHANNELS[0], CHANNELS[1]);
        match verb {
            AcquireAll => words("acquire_all", &all, &format!("{NUMBER} {by} {LEASE_MS} 0")),
            AcquireAllFenced => {
                let keys = format!("{all} {}", TOKENS.join(" "));
                words("acquire_all", &keys, &format!("{NUMBER} {by} {LEASE_MS} 1"))
            }
            ReleaseAll => words("release_all", &all, &sets("_")),
            ReleaseAllCounted => words("release_all", &all, &sets(&n.to_string())),
            RenewAll => words("renew", &all, &format!("{NUMBER} {LEASE_MS} {by} {by}")),
            Acquire => words("acquire", one, &format!("{NUMBER} {by} {LEASE_MS} 0")),
            Enter => words("enter", one, &format!("{NUMBER} {by} {LEASE_MS}")),
            Release => words("release", one, &format!("{NUMBER} {by} {channel} publish")),
            JavaLock => words("java/lock", one, &format!("{NUMBER} {by} {LEASE_MS}")),
            JavaUnlock => words("java/unlock", one, &format!("{NUMBER} {by} {LEASE_MS} {channel}")),
            JavaRenew => words("java/renew", one, &format!("{NUMBER} {by} {LEASE_MS}")),
        }
    }

    fn contract(&self, call: Call<Verb>, before: &Keyspace, after: &Keyspace, ran: &Ran) -> Judged {
        let (mut locks, then) = (self.locks(before)?, self.locks(after)?);
        let (by, name) = (usize::from(call.by), usize::from(call.n.unsigned_abs()).min(1));
        let mut tells = [false, false];
        let reply = match call.verb {
            AcquireAll | AcquireAllFenced => {
                let (done, reply) = self.all(locks, by, call.verb == AcquireAllFenced);
                locks = done;
                reply
            }
            ReleaseAll | ReleaseAllCounted => {
                let only = (call.verb == ReleaseAllCounted).then_some(i64::from(call.n));
                let (done, reply, told) = self.released(locks, by, only);
                (locks, tells) = (done, told);
                reply
            }
            RenewAll => {
                let each = locks.map(|lock| lock.renew(by, LEASE_MS));
                locks = [each[0].lock, each[1].lock];
                vec![each[0].reply[0], each[1].reply[0]]
            }
            Acquire | Enter | Release => {
                let wanted = match call.verb {
                    Acquire => locks[name].acquire(by, LEASE_MS, false, false),
                    Enter => locks[name].enter(by, LEASE_MS, false),
                    _ => locks[name].release(by, None),
                };
                locks[name] = wanted.lock;
                tells[name] = wanted.tells;
                wanted.reply
            }
            JavaLock | JavaUnlock | JavaRenew => return Ok(()),
        };
        same("the reply", &ran.reply, &reply)?;
        same("what the server has then", &then, &locks)?;
        let told = (0..2).filter(|name| tells[*name]).map(|name| (CHANNELS[name].to_owned(), "0".to_owned()));
        same("what is told", &ran.told, &told.collect())
    }

    fn sound(&self, keys: &Keyspace) -> Judged {
        self.locks(keys)?;
        let later = keys.tick(LEASE_MS + 1);
        match later.0.iter().find(|key| !TOKENS.contains(&key.name.as_str())) {
            Some(key) => Err(format!("{} is there when every lease is over", key.name)),
            None => Ok(()),
        }
    }

    fn judge(&self, world: &World<Self>) -> Judged {
        let locks = self.locks(&world.server.keys)?;
        for (name, lock) in locks.iter().enumerate() {
            let valid = |mind: &&Mind| mind.counts[name] > 0 && mind.left > 0;
            if world.minds.iter().filter(valid).count() > 1 {
                return Err(format!("there are two valid holders of {}", NAMES[name]));
            }
            for (at, mind) in world.minds.iter().enumerate() {
                let (counted, known) = (lock.counts[at], i64::from(mind.counts[name]));
                if valid(&mind) && (counted < known || lock.ttl() < i64::from(mind.left)) {
                    return Err(format!(
                        "an owner counts {known}, and the server {counted} for {} ms",
                        lock.ttl()
                    ));
                }
                if valid(&mind) && counted != known && !mind.leaves_traces {
                    return Err(format!("an owner counts {known}, and the server {counted}"));
                }
                let excused = known > 0 || mind.out.is_some() || mind.is_gone || mind.leaves_traces;
                if counted > 0 && !excused {
                    return Err(format!("the server has a hold of {} that nobody has", NAMES[name]));
                }
            }
        }
        Ok(())
    }

    fn steps(&self, from: &Asking<'_, Self>, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let Ok(locks) = self.locks(&from.world.server.keys) else { return };
        for at in 0..OWNERS {
            let mind = from.world.minds[at];
            let late = from.world.late.filter(|late| usize::from(late.by) == at);
            if mind.is_gone {
                if locks.iter().all(|lock| lock.counts[at] == 0) && late.is_none() {
                    from.event(out, "another process comes", at, |next| next.minds[at] = Mind::default());
                }
                continue;
            }
            if self.owners.is_java(at) {
                self.java(from, at, desk, out);
            } else if let Some(request) = mind.out {
                let takes = matches!(request.verb, AcquireAll | AcquireAllFenced | Acquire);
                from.tell(desk, out, request, |next, ran| {
                    next.minds[at] = mind.traced();
                    if takes && ran.reply[0] > 0 {
                        took(&mut next.minds[at], request, &ran.after.keys, self.owners);
                    }
                    Ok(())
                });
                if takes {
                    let verb = if request.verb == Acquire { Release } else { ReleaseAll };
                    let undo = Call { verb, ..request };
                    let undone = |next: &mut World<Self>, _: &Ran| {
                        next.minds[at] = mind.traced();
                        Ok(())
                    };
                    from.ask(desk, out, undo, undone, |next| next.minds[at].out = Some(undo));
                }
            } else if mind.holds() {
                self.holder(from, at, desk, out);
            } else if late.is_none_or(|late| !matches!(late.verb, ReleaseAll | Release)) {
                let single = [call(Acquire, at, 0), call(Acquire, at, 1)];
                // The last owner takes single names, the others mostly sets.
                let requests = match at {
                    0 => vec![call(AcquireAll, at, 0)],
                    1 => vec![call(AcquireAllFenced, at, 0), single[1]],
                    _ => single.to_vec(),
                };
                for request in requests {
                    from.ask(
                        desk,
                        out,
                        request,
                        |next, ran| {
                            if ran.reply[0] > 0 {
                                took(&mut next.minds[at], request, &ran.after.keys, self.owners);
                            }
                            Ok(())
                        },
                        |next| next.minds[at].out = Some(request),
                    );
                }
            }
            if mind.holds() || mind.out.is_some() {
                from.event(out, "the process is killed", at, |next| {
                    next.minds[at] = Mind { is_gone: true, ..Mind::default() };
                });
            }
        }
    }

    fn tick(&self, world: &mut World<Self>) {
        for mind in &mut world.minds {
            mind.left = (mind.left - TICK_MS as i16).max(0);
        }
    }

    fn tidy(&self, world: &mut World<Self>) {
        let Ok(locks) = self.locks(&world.server.keys) else { return };
        for (at, mind) in world.minds.iter_mut().enumerate() {
            mind.leaves_traces &= locks.iter().any(|lock| lock.counts[at] > 0);
        }
    }

    fn arrives(&self, world: &mut World<Self>, call: Call<Verb>, _: &Ran) {
        world.minds[usize::from(call.by)].leaves_traces = true;
    }
}

/// What a grant tells: the count that the server has by now.
fn took(mind: &mut Mind, request: Call<Verb>, keys: &Keyspace, owners: Owners) {
    let all = request.verb != Acquire;
    for name in (0..2).filter(|name| all || *name == usize::from(request.n.unsigned_abs())) {
        let lock = Lock::of(keys, NAMES[name], owners).unwrap_or_default();
        mind.counts[name] = lock.counts[usize::from(request.by)] as u8;
    }
    mind.left = VALID_MS;
    mind.out = None;
}
