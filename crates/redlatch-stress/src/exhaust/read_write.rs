//! The read-write lock: readers beside each other, one writer, a writer that reads and steps down.

use super::{
    keyspace::Keyspace,
    lock::Owners,
    read_write_rules::{NAME, Sides, TIMEOUTS},
    server::NUMBER,
    world::{
        Asking, Call, Desk, Judged, LEASE_MS, Model, OWNERS, Ran, Step, TICK_MS, VALID_MS, Words, World,
        same, words,
    },
};

const CHANNEL: &str = "redisson_rwlock:{n}";
/// What is left of a hold that is left behind for a shorter time.
const SHORT_MS: i64 = TICK_MS / 2;
/// How often an owner enters a side at most.
const COUNT_MAX: u8 = 2;
/// Moments that lie so close together count as the same.
const CLOSE_MS: i64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    Acquire(Side),
    Enter(Side),
    /// Leaves one hold of `n`.
    Leave(Side),
    Release(Side),
    /// Releases if the owner counts `n`.
    ReleaseCounted(Side),
    Renew(Side),
    Look(Side),
    Shorten(Side),
    Pass(Side),
    Force(Side),
    JavaLock(Side),
    JavaUnlock(Side),
}
use Verb::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Read = 0,
    Write = 1,
}
use Side::*;

const SIDES: [Side; 2] = [Read, Write];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    count: u8,
    left: i16,
    in_doubt: bool,
}

impl Hold {
    fn is_valid(&self) -> bool {
        self.count > 0 && self.left > 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Mind {
    /// The read holds and the write holds.
    holds: [Hold; 2],
    out: Option<Call<Verb>>,
    is_gone: bool,
    leaves_traces: bool,
}

impl Mind {
    fn holds(&self) -> bool {
        self.holds.iter().any(|hold| hold.count > 0)
    }
}

pub(super) struct ReadWrite {
    pub(super) owners: Owners,
}

fn call(verb: Verb, by: usize, to: usize, n: i64) -> Call<Verb> {
    Call { verb, by: by as u8, to: to as u8, n: n as i16 }
}

fn lost() -> Judged {
    Err("a valid hold is gone".to_owned())
}

fn granted(mind: &mut Mind, side: Side, count: i64) {
    mind.out = None;
    let hold = &mut mind.holds[side as usize];
    (hold.count, hold.left) = (count as u8, VALID_MS);
}

impl ReadWrite {
    fn sides(&self, keys: &Keyspace) -> Result<Sides, String> {
        Sides::of(keys, self.owners)
    }

    fn acquire(
        &self,
        from: &Asking<'_, Self>,
        (at, side): (usize, Side),
        desk: &mut dyn Desk<Self>,
        out: &mut Vec<Step<Self>>,
    ) {
        let request = call(Acquire(side), at, at, 0);
        let answered = |next: &mut World<Self>, ran: &Ran| {
            next.minds[at].out = None;
            if ran.reply[0] > 0 {
                granted(&mut next.minds[at], side, ran.reply[0]);
            }
            Ok(())
        };
        if from.world.minds[at].out.is_some() {
            from.tell(desk, out, request, answered);
        } else {
            from.ask(desk, out, request, answered, |next| next.minds[at].out = Some(request));
        }
    }

    fn holder(
        &self,
        from: &Asking<'_, Self>,
        (at, side): (usize, Side),
        desk: &mut dyn Desk<Self>,
        out: &mut Vec<Step<Self>>,
    ) {
        let own = side as usize;
        let mind = from.world.minds[at];
        let (hold, is_valid) = (mind.holds[own], mind.holds[own].is_valid());
        let ends = |next: &mut World<Self>| next.minds[at].holds[own] = Hold::default();
        let released = |next: &mut World<Self>, ran: &Ran| {
            ends(next);
            if ran.reply[0] == 0 && is_valid { lost() } else { Ok(()) }
        };
        let release = call(Release(side), at, at, 0);
        from.ask(desk, out, release, released, |next| {
            ends(next);
            next.minds[at].out = Some(release);
        });
        if !is_valid {
            return;
        }
        let seen = |_: &mut World<Self>, ran: &Ran| if ran.reply[0] == 0 { lost() } else { Ok(()) };
        from.ask(
            desk,
            out,
            call(Renew(side), at, at, 0),
            |next, ran| {
                next.minds[at].holds[own].left = VALID_MS;
                seen(next, ran)
            },
            |_| {},
        );
        from.tell(desk, out, call(Look(side), at, at, 0), seen);
        from.tell(desk, out, call(Shorten(side), at, at, 0), |next, ran| {
            ends(next);
            next.minds[at].leaves_traces = true;
            seen(next, ran)
        });
        if !hold.in_doubt && hold.count < COUNT_MAX {
            from.ask(
                desk,
                out,
                call(Enter(side), at, at, 0),
                |next, ran| {
                    granted(&mut next.minds[at], side, ran.reply[0]);
                    seen(next, ran)
                },
                |next| next.minds[at].holds[own].in_doubt = true,
            );
        }
        if !hold.in_doubt {
            let count = i64::from(hold.count);
            from.tell(desk, out, call(ReleaseCounted(side), at, at, count), |next, ran| {
                let others = ran.reply[0] == -1 && next.minds[at].leaves_traces;
                if others { Ok(()) } else { released(next, ran) }
            });
            from.tell(desk, out, call(ReleaseCounted(side), at, at, count + 1), |next, ran| {
                if ran.reply[0] == -1 || next.minds[at].leaves_traces { Ok(()) } else { lost() }
            });
            let left_one = |next: &mut World<Self>| {
                let hold = &mut next.minds[at].holds[own];
                hold.count -= 1;
                if hold.count == 0 {
                    *hold = Hold::default();
                }
            };
            let leave = call(Leave(side), at, at, count);
            from.ask(
                desk,
                out,
                leave,
                |next, ran| {
                    left_one(next);
                    if ran.reply[0] < 0 { lost() } else { Ok(()) }
                },
                |next| {
                    left_one(next);
                    next.minds[at].holds[own].in_doubt = hold.count > 1;
                    if hold.count == 1 {
                        next.minds[at].out = Some(release);
                    }
                },
            );
            // It is sent once; if it ran twice all the same it would count once.
            if hold.count > 1 {
                for ran in desk.call(&from.world.server, leave).iter() {
                    let mut world = from.world.clone();
                    world.server = std::sync::Arc::clone(&ran.after);
                    left_one(&mut world);
                    Asking { world: &world, ..*from }.tell(desk, out, leave, |_, _| Ok(()));
                }
            }
        }
        let other = &mind.holds[1 - own];
        // An owner turns into no reader or writer while what may take such a hold away is on its way.
        let late = from.world.late.is_some_and(|late| [late.by, late.to].contains(&(at as u8)));
        if side == Write && other.count == 0 && !late {
            // A nested read hold, with which it may step down.
            self.acquire(from, (at, Read), desk, out);
        } else if side == Read && other.count == 0 && !late {
            from.tell(desk, out, call(Acquire(Write), at, at, 0), |next, ran| {
                if ran.reply[0] > 0 && !next.minds[at].leaves_traces {
                    return Err("a reader is granted the write hold".to_owned());
                }
                if ran.reply[0] > 0 {
                    granted(&mut next.minds[at], Write, ran.reply[0]);
                }
                Ok(())
            });
        }
        self.giver(from, (at, side), desk, out);
    }

    fn giver(
        &self,
        from: &Asking<'_, Self>,
        (at, side): (usize, Side),
        desk: &mut dyn Desk<Self>,
        out: &mut Vec<Step<Self>>,
    ) {
        let mind = from.world.minds[at];
        if mind.holds[side as usize].in_doubt {
            return;
        }
        for to in (0..OWNERS).filter(|to| *to != at && !self.owners.is_java(*to)) {
            let blocked = from.world.late.is_some_and(|late| [late.by, late.to].contains(&(to as u8)));
            if from.world.minds[to] != Mind::default() || blocked {
                continue;
            }
            let request = call(Pass(side), at, to, 0);
            from.ask(
                desk,
                out,
                request,
                |next, ran| self.passed(next, request, side, ran),
                |next| {
                    next.minds[at].holds[side as usize] = Hold::default();
                    next.minds[at].out = Some(request);
                    next.minds[to].out = Some(request);
                },
            );
        }
    }

    fn passed(&self, next: &mut World<Self>, request: Call<Verb>, side: Side, ran: &Ran) -> Judged {
        let (at, to) = (usize::from(request.by), usize::from(request.to));
        let was_valid = next.minds[at].holds[side as usize].is_valid();
        let pending = next.minds[at].out.take().is_some();
        next.minds[to].out = None;
        match ran.reply[0] {
            1 => {
                next.minds[at].holds[side as usize] = Hold::default();
                granted(&mut next.minds[to], side, 1);
                Ok(())
            }
            2 => {
                next.minds[at].leaves_traces |= pending;
                Ok(())
            }
            _ if was_valid => Err("a valid hold is gone when it is passed on".to_owned()),
            _ => {
                next.minds[at].holds[side as usize] = Hold::default();
                // In its last millisecond it is over, and there.
                next.minds[at].leaves_traces = true;
                next.minds[to].leaves_traces = true;
                Ok(())
            }
        }
    }

    fn unanswered(
        &self,
        from: &Asking<'_, Self>,
        at: usize,
        request: Call<Verb>,
        desk: &mut dyn Desk<Self>,
        out: &mut Vec<Step<Self>>,
    ) {
        match request.verb {
            Acquire(side) => {
                self.acquire(from, (at, side), desk, out);
                let undo = call(Release(side), at, at, 0);
                let undone = |next: &mut World<Self>, _: &Ran| {
                    next.minds[at].out = None;
                    Ok(())
                };
                from.ask(desk, out, undo, undone, |next| next.minds[at].out = Some(undo));
            }
            Pass(side) if usize::from(request.by) == at => {
                from.tell(desk, out, request, |next, ran| self.passed(next, request, side, ran));
                let to = usize::from(request.to);
                from.event(out, "gives the passing on up", at, |next| {
                    next.minds[at].out = Some(call(Release(side), at, at, 0));
                    next.minds[to].out = Some(call(Release(side), to, to, 0));
                });
            }
            Release(_) => from.tell(desk, out, request, |next, _| {
                next.minds[at].out = None;
                Ok(())
            }),
            _ => {}
        }
    }

    fn java(&self, from: &Asking<'_, Self>, at: usize, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let mind = from.world.minds[at];
        for side in SIDES {
            let hold = mind.holds[side as usize];
            // It enters to read; to write, each entry would add to the TTL (R1).
            let may_enter = hold.count == 0 || side == Read && hold.left > 0 && hold.count < COUNT_MAX;
            if may_enter && mind.holds[1 - side as usize].count == 0 {
                from.tell(desk, out, call(JavaLock(side), at, at, 0), |next, ran| {
                    let hold = &mut next.minds[at].holds[side as usize];
                    if ran.reply[0] > 0 {
                        hold.in_doubt |= ran.reply[0] != i64::from(hold.count) + 1;
                        hold.count += 1;
                        // Its holds end each at its own time, and it may count on the first.
                        hold.left = if hold.count > 1 { hold.left } else { VALID_MS };
                    }
                    Ok(())
                });
            }
            if hold.count > 0 {
                from.tell(desk, out, call(JavaUnlock(side), at, at, 0), |next, ran| {
                    let mind = &mut next.minds[at];
                    // Which of its timeout keys is left is another matter (R4), so it counts on none.
                    mind.leaves_traces |= ran.reply[0] != 0;
                    mind.holds[side as usize] = Hold::default();
                    if ran.reply[0] < 0 && hold.is_valid() { lost() } else { Ok(()) }
                });
            }
        }
    }

    fn run(&self, call: Call<Verb>, sides: &mut Sides) -> (Vec<i64>, Option<&'static str>) {
        let (by, to, n) = (usize::from(call.by), usize::from(call.to), i64::from(call.n));
        match call.verb {
            Acquire(Read) => sides.read(by),
            Acquire(Write) => sides.write(by),
            Enter(Read) => sides.enter_read(by),
            Enter(Write) => sides.enter_write(by),
            Leave(Read) => sides.leave_read(by, n),
            Leave(Write) => sides.leave_write(by, n),
            Release(Read) => sides.unlock_read(by, None),
            Release(Write) => sides.unlock_write(by, None),
            ReleaseCounted(Read) => sides.unlock_read(by, Some(n)),
            ReleaseCounted(Write) => sides.unlock_write(by, Some(n)),
            Renew(Read) => sides.renew_read(by, LEASE_MS),
            Renew(Write) => sides.renew_write(by),
            Look(Read) => sides.renew_read(by, 0),
            Look(Write) => (vec![i64::from(sides.writes[by] > 0)], None),
            Shorten(Read) => sides.shorten_read(by, SHORT_MS),
            Shorten(Write) => sides.shorten_write(by, SHORT_MS),
            Pass(Read) => sides.pass_read(by, to),
            Pass(Write) => sides.pass_write(by, to),
            Force(side) => sides.force(side == Write),
            JavaLock(_) | JavaUnlock(_) => (Vec::new(), None),
        }
    }
}

impl Model for ReadWrite {
    type Verb = Verb;
    type Mind = Mind;
    type Memory = ();

    fn first(&self) -> (Keyspace, [Mind; OWNERS], ()) {
        (Keyspace::default(), [Mind::default(); OWNERS], ())
    }

    fn words(&self, call: Call<Verb>) -> Words {
        let Call { verb, by, to, n } = call;
        let (by, to) = (self.owners.field(by.into()), self.owners.field(to.into()));
        let keys = &format!("{NAME} {TIMEOUTS}");
        let tell = &format!("{NUMBER} {by} {CHANNEL} publish");
        let lease = &format!("{NUMBER} {by} {LEASE_MS}");
        let pick = |side, read, write| if side == Read { read } else { write };
        match verb {
            Acquire(side) => words(pick(side, "read_acquire", "write_acquire"), keys, &format!("{lease} 0")),
            Enter(Read) => words("read_enter", keys, lease),
            Enter(Write) => words("write_enter", NAME, lease),
            Leave(side) => words(
                pick(side, "read_release_one", "write_release_one"),
                keys,
                &format!("{tell} {n} {TICK_MS}"),
            ),
            Release(side) => words(pick(side, "read_release", "write_release"), keys, tell),
            ReleaseCounted(side) => {
                words(pick(side, "read_release", "write_release"), keys, &format!("{tell} {n}"))
            }
            Renew(Read) => words("read_renew", keys, &format!("{NUMBER} {LEASE_MS} {by}")),
            Renew(Write) => words("write_renew", NAME, &format!("{NUMBER} {LEASE_MS} {by}")),
            Look(Read) => words("read_renew", keys, &format!("{NUMBER} 0 {by}")),
            Look(Write) => words("write_renew", NAME, &format!("{NUMBER} 0 {by}")),
            Shorten(side) => {
                words(pick(side, "read_shorten", "write_shorten"), keys, &format!("{NUMBER} {by} {SHORT_MS}"))
            }
            Pass(Read) => words("read_transfer", keys, &format!("{NUMBER} {to} {LEASE_MS} {by} 0 0")),
            Pass(Write) => words("write_transfer", keys, &format!("{NUMBER} {by} {to} {LEASE_MS} 0 0")),
            Force(Read) => words("rw_force", keys, &format!("{NUMBER} _ read {CHANNEL} publish 0")),
            Force(Write) => words("rw_force", keys, &format!("{NUMBER} _ write {CHANNEL} publish 1")),
            JavaLock(Read) => words("java/read_lock", keys, lease),
            JavaLock(Write) => words("java/write_lock", NAME, lease),
            JavaUnlock(Read) => words("java/read_unlock", keys, &format!("{NUMBER} {by} {CHANNEL}")),
            JavaUnlock(Write) => words("java/write_unlock", NAME, &format!("{lease} {CHANNEL}")),
        }
    }

    fn contract(&self, call: Call<Verb>, before: &Keyspace, after: &Keyspace, ran: &Ran) -> Judged {
        if matches!(call.verb, JavaLock(_) | JavaUnlock(_)) {
            return Ok(());
        }
        let (was, then) = (self.sides(before)?, self.sides(after)?);
        let mut sides = was.clone();
        let (reply, told) = self.run(call, &mut sides);
        // In its last millisecond a hold may count either way.
        let ends = was.timeouts[usize::from(call.by)].contains(&Some(0));
        if !(ends && matches!(call.verb, Release(Read) | ReleaseCounted(Read))) {
            same("the reply", &ran.reply, &reply)?;
        }
        same("what the server has then", &then, &sides)?;
        let told = told.map(|payload| (CHANNEL.to_owned(), payload.to_owned()));
        same("what is told", &ran.told, &told.into_iter().collect())
    }

    fn sound(&self, keys: &Keyspace) -> Judged {
        let sides = self.sides(keys)?;
        for at in 0..OWNERS {
            let named = sides.timeouts[at].iter().take(sides.reads[at].max(0) as usize).count();
            if sides.timeouts[at][named..].iter().flatten().any(|left| *left != 0) {
                return Err("there is a timeout key of no hold".to_owned());
            }
            if sides.timeouts[at].iter().flatten().any(|left| !(0..=LEASE_MS).contains(left)) {
                return Err("a timeout key outlives the longest lease".to_owned());
            }
            if sides.longest(at) > sides.ttl().max(0) {
                return Err(format!("a reader needs {} ms of {}", sides.longest(at), sides.ttl()));
            }
            if sides.is_writing && sides.writes[at] == 0 && sides.reads[at] > 0 {
                return Err("a reader beside another writer".to_owned());
            }
        }
        if sides.left > Some(LEASE_MS) {
            return Err(format!("the lock outlives the longest lease: {} ms", sides.ttl()));
        }
        let writers = sides.writes.iter().filter(|count| **count > 0).count();
        if writers != usize::from(sides.is_writing) {
            return Err(format!("there are {writers} writers"));
        }
        let needed = (0..OWNERS).map(|at| sides.longest(at)).max().unwrap_or(0);
        if !sides.is_writing && sides.ttl() > needed + CLOSE_MS {
            return Err(format!("readers need {needed} ms, and the lock lasts for {}", sides.ttl()));
        }
        Ok(())
    }

    fn judge(&self, world: &World<Self>) -> Judged {
        let sides = self.sides(&world.server.keys)?;
        let writer = world.minds.iter().position(|mind| mind.holds[1].is_valid());
        for (at, mind) in world.minds.iter().enumerate() {
            let meets = writer.is_some_and(|writer| writer != at);
            if meets && mind.holds.iter().any(Hold::is_valid) {
                return Err("a valid holder meets a valid writer".to_owned());
            }
            for side in SIDES {
                let hold = &mind.holds[side as usize];
                let counted = if side == Read { sides.reads[at] } else { sides.writes[at] };
                let lasts = if side == Read { sides.longest(at).min(sides.ttl()) } else { sides.ttl() };
                let known = i64::from(hold.count);
                if hold.is_valid() && (counted < known || lasts < i64::from(hold.left)) {
                    return Err(format!("an owner counts {known}, and the server {counted} for {lasts} ms"));
                }
                let excused = mind.out.is_some() || mind.is_gone || mind.leaves_traces || hold.in_doubt;
                if hold.is_valid() && counted != known && !excused {
                    return Err(format!("an owner counts {known}, and the server {counted}"));
                }
                if known == 0 && counted > 0 && !excused {
                    return Err(format!("the server has a hold to {side:?} that nobody has"));
                }
            }
        }
        Ok(())
    }

    fn steps(&self, from: &Asking<'_, Self>, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let Ok(sides) = self.sides(&from.world.server.keys) else { return };
        for at in 0..OWNERS {
            let mind = from.world.minds[at];
            let late = from.world.late.filter(|late| [late.by, late.to].contains(&(at as u8)));
            if mind.is_gone {
                if sides.reads[at] == 0 && sides.writes[at] == 0 && late.is_none() {
                    from.event(out, "another process comes", at, |next| next.minds[at] = Mind::default());
                }
                continue;
            }
            if mind.holds() || mind.out.is_some() {
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
            if self.owners.is_java(at) {
                self.java(from, at, desk, out);
            } else if let Some(request) = mind.out {
                self.unanswered(from, at, request, desk, out);
            } else if mind.holds() {
                for side in SIDES.into_iter().filter(|side| mind.holds[*side as usize].count > 0) {
                    self.holder(from, (at, side), desk, out);
                }
            } else if late.is_none() {
                self.acquire(from, (at, Read), desk, out);
                self.acquire(from, (at, Write), desk, out);
            }
        }
        for side in SIDES {
            from.tell(desk, out, call(Force(side), 0, 0, 0), |next, ran| {
                if ran.reply[0] == 1 {
                    next.minds.iter_mut().for_each(|mind| mind.holds = [Hold::default(); 2]);
                }
                Ok(())
            });
        }
    }

    fn tick(&self, world: &mut World<Self>) {
        for hold in world.minds.iter_mut().flat_map(|mind| &mut mind.holds) {
            hold.left = (hold.left - TICK_MS as i16).max(0);
        }
    }

    fn tidy(&self, world: &mut World<Self>) {
        let Ok(sides) = self.sides(&world.server.keys) else { return };
        for (at, mind) in world.minds.iter_mut().enumerate() {
            mind.leaves_traces &= sides.reads[at] > 0 || sides.writes[at] > 0;
            mind.holds.iter_mut().for_each(|hold| hold.in_doubt &= hold.count > 0);
        }
    }

    fn arrives(&self, world: &mut World<Self>, call: Call<Verb>, _: &Ran) {
        for at in [call.by, call.to] {
            let mind = &mut world.minds[usize::from(at)];
            mind.leaves_traces = true;
            mind.holds.iter_mut().for_each(|hold| hold.in_doubt |= hold.count > 0);
        }
    }
}
