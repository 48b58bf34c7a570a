//! Leased permits: a number that is free, and a set of those that are taken, each with its end.

use super::{
    keyspace::{Content, Keyspace},
    server::NUMBER,
    world::{
        Asking, Call, Desk, HEARD, Judged, LEASE_MS, Model, OWNERS, Ran, Step, TICK_MS, VALID_MS, Words,
        World, same, words,
    },
};

const NAME: &str = "n";
const TAKEN: &str = "{n}:timeout";
const CHANNEL: &str = "redisson_sc:{n}";
const PERMITS: i64 = 2;
const PERMITS_MAX: i64 = 3;
/// What is left of a hold that is left behind for a shorter time.
const SHORT_MS: i64 = TICK_MS / 2;
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    /// Takes `n` permits, as the others here are of `n`.
    Take,
    Give,
    GiveAll,
    Renew,
    Look,
    Shorten,
    Count,
    SetAbsent,
    SetTotal,
    Add,
    End,
    EndLater,
    /// The id is the `n`th of the owner.
    JavaTake,
    JavaGive,
    /// The counter goes, and what is taken stays.
    LoseCounter,
}
use Verb::*;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Mind {
    /// How many it holds; for Java which of its ids.
    n: u8,
    left: i16,
    out: Option<Call<Verb>>,
    is_gone: bool,
    leaves_traces: bool,
}

pub(super) struct Permits {
    /// The last owner is a thread of Redisson.
    pub(super) java: bool,
    /// For how long permits are there, once that is bounded. What is taken in the last millisecond of a counter outlives it, which a whole
    /// number of ticks shows.
    pub(super) life_ms: i64,
}

fn call(verb: Verb, by: usize, n: i64) -> Call<Verb> {
    Call { verb, by: by as u8, to: by as u8, n: n as i16 }
}

/// 16 bytes.
fn id(owner: usize, number: usize) -> String {
    format!("permit-of-{}-no-{number}", char::from(b'A' + owner as u8))
}

fn ids(call: Call<Verb>) -> Vec<String> {
    (1..=usize::from(call.n.unsigned_abs())).map(|number| id(call.by.into(), number)).collect()
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    free: Option<i64>,
    taken: Vec<(String, i64)>,
    ttls: [Option<i64>; 2],
}

impl State {
    fn of(keys: &Keyspace) -> State {
        let ttl = |name| keys.get(name).and_then(|key| key.left_ms);
        State { free: keys.number(NAME), taken: keys.times(TAKEN).to_vec(), ttls: [ttl(NAME), ttl(TAKEN)] }
    }

    fn end(&self, id: &str) -> Option<i64> {
        self.taken.iter().find(|(known, _)| known == id).map(|(_, end)| *end)
    }

    fn put(&mut self, id: &str, end: i64) {
        self.taken.retain(|(known, _)| known != id);
        self.taken.push((id.to_owned(), end));
        self.taken.sort_unstable();
    }

    /// What is over goes; how many.
    fn purge(&mut self) -> i64 {
        let before = self.taken.len();
        self.taken.retain(|(_, end)| *end > 0);
        (before - self.taken.len()) as i64
    }

    fn add(&mut self, n: i64) -> i64 {
        self.free = self.free.map(|free| free + n);
        self.free.unwrap_or(0)
    }
}

/// The reply, and the totals that are told, in order; `state` becomes what it is to be.
fn wanted(call: Call<Verb>, state: &mut State, life_ms: i64) -> (Vec<i64>, Vec<i64>) {
    let (ids, n) = (ids(call), i64::from(call.n));
    let mut told = Vec::new();
    let free = state.free;
    let mut tell = |total: i64| {
        if total > 0 {
            told.push(total);
        }
    };
    let reply = match call.verb {
        Take if free.is_none() => vec![-3, 0],
        Take => {
            let over = state.purge();
            let total = state.add(over);
            if over > 0 {
                tell(total);
            }
            let wanted = ids.iter().filter(|id| state.end(id).is_none()).count() as i64;
            if wanted > 0 && total < wanted {
                vec![0, state.taken.iter().map(|(_, end)| *end).min().unwrap_or(-1)]
            } else {
                state.add(-wanted);
                for id in &ids {
                    let end = state.end(id).unwrap_or(0).max(LEASE_MS + 1);
                    state.put(id, end);
                }
                state.ttls[1] = state.ttls[0].or(state.ttls[1]);
                vec![n, total - wanted]
            }
        }
        Give | GiveAll => {
            let mut back = state.purge();
            let missing = ids.iter().position(|id| state.end(id).is_none());
            let found = ids.iter().filter(|id| state.end(id).is_some()).count() as i64;
            let given = found > 0 && (missing.is_none() || call.verb == Give);
            if given {
                back += found;
                state.taken.retain(|(known, _)| !ids.contains(known));
            }
            let mut heard = 0;
            if back > 0 && free.is_some() {
                let total = state.add(back);
                tell(total);
                heard = if total > 0 { HEARD } else { 0 };
            }
            if given { vec![1, heard] } else { vec![0, missing.map_or(0, |at| at as i64 + 1)] }
        }
        Renew | Look | Shorten => {
            let held = ids.iter().all(|id| state.end(id).is_some_and(|end| end > 0));
            for id in ids.iter().filter(|_| held) {
                let end = state.end(id).unwrap_or(0);
                match call.verb {
                    Renew => state.put(id, end.max(LEASE_MS + 1)),
                    Shorten => state.put(id, SHORT_MS + 1),
                    _ => {}
                }
            }
            vec![i64::from(held)]
        }
        Count => {
            let over = state.purge();
            if over > 0 && free.is_some() {
                let total = state.add(over);
                tell(total);
            }
            let left = state.end(&ids[0]).unwrap_or(-2);
            vec![state.free.unwrap_or(0), state.taken.len() as i64, left]
        }
        SetAbsent if free.is_some() => vec![0, free.unwrap_or(0)],
        SetAbsent | SetTotal | Add if free.is_none() => {
            state.free = Some(n);
            tell(n);
            vec![1, n]
        }
        SetTotal | Add => {
            let over = state.purge();
            let was = free.unwrap_or(0);
            let change = if call.verb == Add { over + n } else { n - state.taken.len() as i64 - was };
            let total = state.add(change);
            if change != 0 {
                tell(total);
            }
            vec![i64::from(change != 0), total]
        }
        End => {
            let there = free.is_some() || !state.taken.is_empty();
            *state = State::default();
            if there {
                tell(1);
            }
            vec![i64::from(there)]
        }
        EndLater => {
            let there = free.is_some() || !state.taken.is_empty();
            state.ttls = [free.map(|_| life_ms), Some(life_ms)];
            vec![i64::from(there)]
        }
        SetAbsent | JavaTake | JavaGive | LoseCounter => Vec::new(),
    };
    if state.taken.is_empty() {
        state.ttls[1] = None;
    }
    (reply, told)
}

/// The permits of a counter that is gone are nobody's any more.
fn gone(next: &mut World<Permits>) {
    next.minds = next.minds.map(|mind| {
        let Mind { out, is_gone, .. } = mind;
        Mind { out, is_gone, leaves_traces: true, ..Mind::default() }
    });
    next.memory = 0;
}

impl Permits {
    fn java(&self, from: &Asking<'_, Self>, at: usize, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let mind = from.world.minds[at];
        if mind.n == 0 {
            let state = State::of(&from.world.server.keys);
            // Each request has an id of its own.
            let fresh = (1..=2).find(|number| state.end(&id(at, *number)).is_none());
            let Some(number) = fresh.filter(|_| state.free.is_some()) else { return };
            let request = call(JavaTake, at, number as i64);
            from.tell(desk, out, request, |next, ran| {
                if ran.reply[0] == 1 {
                    next.minds[at].n = number as u8;
                    next.minds[at].left = VALID_MS;
                }
                Ok(())
            });
            from.tell(desk, out, request, |next, _| {
                next.minds[at].leaves_traces = true;
                Ok(())
            });
            return;
        }
        // A client may give back what it was told the id of. Whose permit it was has lost it.
        if from.world.minds[0].n == 2 {
            from.tell(desk, out, call(JavaGive, 0, 1), |next, _| {
                next.minds[0].left = 0;
                next.minds[0].leaves_traces = true;
                Ok(())
            });
        }
        from.tell(desk, out, call(JavaGive, at, mind.n.into()), |next, ran| {
            next.minds[at] = Mind { leaves_traces: mind.leaves_traces, ..Mind::default() };
            if ran.reply[0] == 0 && mind.left > 0 {
                return Err("a valid permit of Java is gone".to_owned());
            }
            Ok(())
        });
    }

    fn holder(
        &self,
        from: &Asking<'_, Self>,
        at: usize,
        desk: &mut dyn Desk<Self>,
        out: &mut Vec<Step<Self>>,
    ) {
        let mind = from.world.minds[at];
        let (n, is_valid) = (i64::from(mind.n), mind.left > 0);
        let lost = || Err("a valid permit is gone".to_owned());
        for verb in [Give, GiveAll] {
            let request = call(verb, at, n);
            from.ask(
                desk,
                out,
                request,
                |next, ran| {
                    next.minds[at] = Mind { leaves_traces: mind.leaves_traces, ..Mind::default() };
                    if is_valid && ran.reply[0] == 0 { lost() } else { Ok(()) }
                },
                |next| {
                    let leaves_traces = mind.leaves_traces;
                    next.minds[at] = Mind { out: Some(request), leaves_traces, ..Mind::default() };
                },
            );
        }
        if !is_valid {
            return;
        }
        let seen = |_: &mut World<Self>, ran: &Ran| if ran.reply[0] == 0 { lost() } else { Ok(()) };
        from.ask(
            desk,
            out,
            call(Renew, at, n),
            |next, ran| {
                next.minds[at].left = VALID_MS;
                seen(next, ran)
            },
            |_| {},
        );
        from.tell(desk, out, call(Look, at, n), seen);
        from.tell(desk, out, call(Shorten, at, n), |next, ran| {
            next.minds[at] = Mind { leaves_traces: true, ..Mind::default() };
            seen(next, ran)
        });
        from.tell(desk, out, call(Count, at, n), |_, ran| {
            if ran.reply[2] >= i64::from(mind.left) { Ok(()) } else { lost() }
        });
    }

    /// What those do who say how many permits there are.
    fn keeper(&self, from: &Asking<'_, Self>, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let state = State::of(&from.world.server.keys);
        let total = from.world.memory;
        let mut set = |verb, n: i64, then: i64| {
            from.tell(desk, out, call(verb, 0, n), |next, _| {
                next.memory = then;
                Ok(())
            });
        };
        if state.free.is_none() && !state.taken.is_empty() {
            return;
        }
        if state.free.is_none() {
            for verb in [SetAbsent, SetTotal, Add] {
                set(verb, PERMITS, PERMITS);
            }
        } else {
            set(SetAbsent, PERMITS, total);
            set(SetTotal, 1, 1);
            set(SetTotal, PERMITS, PERMITS);
            for n in [-1, 1] {
                if (0..=PERMITS_MAX).contains(&(total + n)) {
                    set(Add, n, total + n);
                }
            }
        }
        from.tell(desk, out, call(End, 0, 0), |next, _| {
            gone(next);
            Ok(())
        });
        if state.free.is_some() {
            from.tell(desk, out, call(LoseCounter, 0, 0), |next, _| {
                gone(next);
                Ok(())
            });
        }
        // What Redisson takes is not bounded by the counter.
        if !self.java && state.free.is_some() && state.ttls == [None, None] {
            from.tell(desk, out, call(EndLater, 0, 0), |_, _| Ok(()));
        }
    }
}

impl Model for Permits {
    type Verb = Verb;
    type Mind = Mind;
    /// How many permits there are.
    type Memory = i64;

    fn first(&self) -> (Keyspace, [Mind; OWNERS], i64) {
        (Keyspace::default(), [Mind::default(); OWNERS], 0)
    }

    fn words(&self, call: Call<Verb>) -> Words {
        let keys = &format!("{NAME} {TAKEN}");
        let (ids, n) = (ids(call).concat(), call.n);
        let java = id(call.by.into(), usize::from(n.unsigned_abs()));
        let set = |how: &str| words("permit_set", keys, &format!("{NUMBER} {n} {CHANNEL} publish {how}"));
        match call.verb {
            Take => words("permit_take", keys, &format!("{NUMBER} {ids} {LEASE_MS} {CHANNEL} publish")),
            Give => words("permit_give", keys, &format!("{NUMBER} {ids} {CHANNEL} publish 0 1 0")),
            GiveAll => words("permit_give", keys, &format!("{NUMBER} {ids} {CHANNEL} publish 1 1 0")),
            Renew => words("permit_renew", TAKEN, &format!("{NUMBER} {LEASE_MS} {ids}")),
            Look => words("permit_renew", TAKEN, &format!("{NUMBER} 0 {ids}")),
            Shorten => words("permit_renew", TAKEN, &format!("{NUMBER} -{SHORT_MS} {ids}")),
            Count => {
                let first = id(call.by.into(), 1);
                words("permit_look", keys, &format!("{NUMBER} {first} {CHANNEL} publish"))
            }
            SetAbsent => set("absent"),
            SetTotal => set("total"),
            Add => set("add"),
            End => words("permit_end", keys, &format!("{NUMBER} 0 {CHANNEL} publish")),
            EndLater => words("permit_end", keys, &format!("{NUMBER} {} {CHANNEL} publish", self.life_ms)),
            LoseCounter => words("java/delete", NAME, &format!("{NUMBER} _")),
            JavaTake => words("java/permit_take", keys, &format!("{NUMBER} {java} {LEASE_MS}")),
            JavaGive => words("java/permit_give", keys, &format!("{NUMBER} {java} {CHANNEL}")),
        }
    }

    fn contract(&self, call: Call<Verb>, before: &Keyspace, after: &Keyspace, ran: &Ran) -> Judged {
        if matches!(call.verb, JavaTake | JavaGive | LoseCounter) {
            return Ok(());
        }
        let mut state = State::of(before);
        let (reply, told) = wanted(call, &mut state, self.life_ms);
        same("the reply", &ran.reply, &reply)?;
        same("what the server has then", &State::of(after), &state)?;
        let told: Vec<_> = told.iter().map(|total| (CHANNEL.to_owned(), total.to_string())).collect();
        same("what is told", &ran.told, &told)
    }

    fn sound(&self, keys: &Keyspace) -> Judged {
        for key in &keys.0 {
            match (&*key.name, &key.content) {
                (NAME, Content::Text(_)) => {}
                (TAKEN, Content::Times(times)) => {
                    if let Some((_, end)) = times.iter().find(|(_, end)| *end > LEASE_MS + 1) {
                        return Err(format!("a permit is taken for {end} ms"));
                    }
                }
                _ => return Err(format!("there is {key:?}")),
            }
        }
        Ok(())
    }

    fn judge(&self, world: &World<Self>) -> Judged {
        let state = State::of(&world.server.keys);
        if let Some(free) = state.free
            && free + state.taken.len() as i64 != world.memory
        {
            let total = world.memory;
            return Err(format!("of {total} permits {free} are free and {} taken", state.taken.len()));
        }
        for (at, mind) in world.minds.iter().enumerate() {
            let java = self.java && at == OWNERS - 1;
            let own = (1..=2).filter(|number| if java { *number == mind.n } else { *number <= mind.n });
            for number in own.filter(|_| mind.left > 0) {
                let end = state.end(&id(at, number.into())).unwrap_or(-2);
                if end < i64::from(mind.left) {
                    return Err(format!("a valid permit ends in {end} ms"));
                }
            }
            let known = mind.n > 0 || mind.out.is_some() || mind.is_gone || mind.leaves_traces;
            if !known && (1..=2).any(|number| state.end(&id(at, number)).is_some()) {
                return Err("a permit is taken that nobody has".to_owned());
            }
        }
        Ok(())
    }

    fn steps(&self, from: &Asking<'_, Self>, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let state = State::of(&from.world.server.keys);
        for at in 0..OWNERS {
            let mind = from.world.minds[at];
            let late = from.world.late.filter(|late| usize::from(late.by) == at);
            let traced = (1..=2).any(|number| state.end(&id(at, number)).is_some());
            if mind.is_gone {
                if !traced && late.is_none() {
                    from.event(out, "another process comes", at, |next| next.minds[at] = Mind::default());
                }
                continue;
            }
            if mind.n > 0 || mind.out.is_some() {
                from.event(out, "the process is killed", at, |next| {
                    next.minds[at] = Mind { is_gone: true, ..Mind::default() };
                });
            }
            if self.java && at == OWNERS - 1 {
                self.java(from, at, desk, out);
            } else if let Some(request) = mind.out {
                let takes = request.verb == Take;
                let settled = Mind { leaves_traces: mind.leaves_traces, ..Mind::default() };
                from.tell(desk, out, request, |next, ran| {
                    next.minds[at] = settled;
                    if takes && ran.reply[0] > 0 {
                        next.minds[at] = Mind { n: request.n as u8, left: VALID_MS, ..settled };
                    }
                    Ok(())
                });
                if takes {
                    let undo = Call { verb: Give, ..request };
                    let undone = |next: &mut World<Self>, _: &Ran| {
                        next.minds[at] = settled;
                        Ok(())
                    };
                    from.ask(desk, out, undo, undone, |next| next.minds[at].out = Some(undo));
                }
            } else if mind.n > 0 {
                self.holder(from, at, desk, out);
            } else if traced && mind.leaves_traces && state.free.is_none() && late.is_none() {
                for verb in [Give, Count] {
                    from.tell(desk, out, call(verb, at, 2), |_, _| Ok(()));
                }
            } else if !traced && late.is_none() {
                // Ids are drawn anew for each hold, so none is used again while it may be there.
                for n in 1..=2 {
                    let request = call(Take, at, n);
                    from.ask(
                        desk,
                        out,
                        request,
                        |next, ran| {
                            if ran.reply[0] > 0 {
                                next.minds[at] = Mind { n: n as u8, left: VALID_MS, ..Mind::default() };
                            }
                            Ok(())
                        },
                        |next| next.minds[at].out = Some(request),
                    );
                }
            }
        }
        self.keeper(from, desk, out);
    }

    fn tick(&self, world: &mut World<Self>) {
        for mind in &mut world.minds {
            mind.left = (mind.left - TICK_MS as i16).max(0);
        }
        if State::of(&world.server.keys).free.is_none() {
            gone(world);
        }
    }

    fn tidy(&self, world: &mut World<Self>) {
        let state = State::of(&world.server.keys);
        for (at, mind) in world.minds.iter_mut().enumerate() {
            mind.leaves_traces &= (1..=2).any(|number| state.end(&id(at, number)).is_some());
        }
    }

    fn arrives(&self, world: &mut World<Self>, call: Call<Verb>, _: &Ran) {
        world.minds[usize::from(call.by)].leaves_traces = true;
    }
}
