//! The fair lock: who waits stands in line, and only the first one whose time is not over is granted anything.

use super::{
    fair_rules::{JAVA_WAIT_MS, Line, NAME, QUEUE, TIMES, WAIT_MS},
    keyspace::Keyspace,
    lock::Owners,
    server::NUMBER,
    world::{
        Asking, Call, Desk, Judged, LEASE_MS, Model, OWNERS, Ran, Step, TICK_MS, VALID_MS, Words, World,
        same, words,
    },
};

const CHANNEL: &str = "redisson_lock__channel:{n}";
/// How often an owner enters at most.
const COUNT_MAX: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    Try,
    /// Asks and lines up; with `n` = 1 those of Redisson before it are counted again.
    Ask,
    Enter,
    Renew,
    Leave,
    Release,
    ReleaseCounted,
    /// Releases, with `to` as the heir.
    HandOver,
    Undo,
    Force,
    JavaLock,
    JavaGiveUp,
    JavaUnlock,
    JavaRenew,
}
use Verb::*;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Mind {
    count: u8,
    left: i16,
    /// It was told that it stands in line.
    waits: bool,
    /// For how long it may still be silent and keep its place, in ms.
    good: i16,
    /// One of Redisson may be before it.
    behind_java: bool,
    /// Perhaps the server counts another number, or has lined it up unheard.
    in_doubt: bool,
    out: Option<Call<Verb>>,
    is_gone: bool,
    leaves_traces: bool,
}

impl Mind {
    fn traced(&self) -> Mind {
        Mind { leaves_traces: self.leaves_traces, ..Mind::default() }
    }
}

pub(super) struct Fair {
    pub(super) owners: Owners,
    pub(super) has_faults: bool,
    /// Once a look was not answered, each look of that wait has those of Redisson before it counted again. Without that a place that
    /// was lined up unheard is given too little time by the next look.
    pub(super) recounts: bool,
}

fn call(verb: Verb, by: usize, to: usize, n: i64) -> Call<Verb> {
    Call { verb, by: by as u8, to: to as u8, n: n as i16 }
}

fn lost() -> Judged {
    Err("a valid hold is gone".to_owned())
}

impl Fair {
    fn line(&self, keys: &Keyspace) -> Result<Line, String> {
        Line::of(keys, self.owners)
    }

    /// Who asks is granted, or waits if it lined up.
    fn heard(&self, next: &mut World<Self>, at: usize, ran: &Ran, waits: bool) -> Judged {
        let mind = &mut next.minds[at];
        mind.out = None;
        if ran.reply[0] > 0 {
            let traced = mind.traced();
            *mind = Mind { count: ran.reply[0] as u8, left: VALID_MS, ..traced };
        } else if waits {
            mind.waits = true;
            mind.good = WAIT_MS as i16;
            mind.behind_java = ran.reply[1] == -4 || (self.recounts && mind.in_doubt);
        }
        Ok(())
    }

    fn stops(next: &mut World<Self>, at: usize, out: Option<Call<Verb>>) {
        let mind = &mut next.minds[at];
        *mind = Mind { out, ..mind.traced() };
    }

    fn waiter(
        &self,
        from: &Asking<'_, Self>,
        at: usize,
        desk: &mut dyn Desk<Self>,
        out: &mut Vec<Step<Self>>,
    ) {
        let mind = from.world.minds[at];
        let ask = call(Ask, at, at, i64::from(mind.behind_java || !mind.waits));
        let asked = |next: &mut World<Self>, ran: &Ran| self.heard(next, at, ran, true);
        let again = Call { n: ask.n.max(i16::from(self.recounts)), ..ask };
        from.ask(desk, out, ask, asked, |next| {
            next.minds[at].out = Some(again);
            next.minds[at].in_doubt = true;
        });
        if mind.waits {
            let undo = call(Undo, at, at, 0);
            let undone = |next: &mut World<Self>, _: &Ran| {
                Self::stops(next, at, None);
                Ok(())
            };
            from.ask(desk, out, undo, undone, |next| Self::stops(next, at, Some(undo)));
            // Nothing is held under it, and its place goes.
            from.tell(desk, out, call(Leave, at, at, 5), |next, ran| {
                Self::stops(next, at, None);
                next.minds[at].leaves_traces |= ran.reply[0] > 0;
                Ok(())
            });
        } else {
            let try_once = call(Try, at, at, 0);
            let tried = |next: &mut World<Self>, ran: &Ran| self.heard(next, at, ran, false);
            from.tell(desk, out, try_once, tried);
        }
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
        let released = |next: &mut World<Self>, ran: &Ran| {
            Self::stops(next, at, None);
            if ran.reply[0] == 0 && is_valid { lost() } else { Ok(()) }
        };
        let release = call(Release, at, at, 0);
        from.ask(desk, out, release, released, |next| Self::stops(next, at, Some(release)));
        for heir in (0..OWNERS).filter(|heir| from.world.minds[*heir].waits && !self.owners.is_java(*heir)) {
            if from.world.minds[heir].out.is_some() || mind.in_doubt {
                continue;
            }
            let handed = |next: &mut World<Self>, ran: &Ran| {
                released(next, ran)?;
                if ran.reply[0] == 2 {
                    let granted = Ran { reply: vec![1, 0], ..ran.clone() };
                    return self.heard(next, heir, &granted, false);
                }
                Ok(())
            };
            let hand = call(HandOver, at, heir, 0);
            // What did not answer is repeated as a plain release, and the heir asks again.
            from.ask(desk, out, hand, handed, |next| Self::stops(next, at, Some(release)));
        }
        if !is_valid {
            return;
        }
        from.ask(
            desk,
            out,
            call(Renew, at, at, 0),
            |next, ran| {
                next.minds[at].left = VALID_MS;
                if ran.reply[0] == 0 { lost() } else { Ok(()) }
            },
            |_| {},
        );
        if mind.in_doubt {
            return;
        }
        let count = i64::from(mind.count);
        let counted = |next: &mut World<Self>, ran: &Ran| {
            if ran.reply[0] == -1 && next.minds[at].leaves_traces { Ok(()) } else { released(next, ran) }
        };
        from.tell(desk, out, call(ReleaseCounted, at, at, count), counted);
        if mind.count < COUNT_MAX {
            from.ask(
                desk,
                out,
                call(Enter, at, at, 0),
                |next, ran| {
                    next.minds[at].count = ran.reply[0] as u8;
                    next.minds[at].left = VALID_MS;
                    if ran.reply[0] == 0 { lost() } else { Ok(()) }
                },
                |next| next.minds[at].in_doubt = true,
            );
        }
        from.ask(
            desk,
            out,
            call(Leave, at, at, count),
            |next, ran| {
                next.minds[at].count -= 1;
                if next.minds[at].count == 0 {
                    Self::stops(next, at, None);
                }
                if ran.reply[0] < 0 { lost() } else { Ok(()) }
            },
            |next| {
                next.minds[at].count -= 1;
                next.minds[at].in_doubt = true;
                if next.minds[at].count == 0 {
                    Self::stops(next, at, Some(release));
                }
            },
        );
    }

    fn java(&self, from: &Asking<'_, Self>, at: usize, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let mind = from.world.minds[at];
        if mind.count > 0 {
            from.tell(desk, out, call(JavaUnlock, at, at, 0), |next, ran| {
                Self::stops(next, at, None);
                if ran.reply[0] < 0 && mind.left > 0 { lost() } else { Ok(()) }
            });
            from.tell(desk, out, call(JavaRenew, at, at, 0), |next, ran| {
                next.minds[at].left = if ran.reply[0] == 1 { VALID_MS } else { 0 };
                if ran.reply[0] == 0 && mind.left > 0 { lost() } else { Ok(()) }
            });
            return;
        }
        from.tell(desk, out, call(JavaLock, at, at, 0), |next, ran| {
            self.heard(next, at, ran, true)?;
            // When its time is over is Redisson's affair.
            next.minds[at].good = 0;
            Ok(())
        });
        if mind.waits {
            from.tell(desk, out, call(JavaGiveUp, at, at, 0), |next, _| {
                Self::stops(next, at, None);
                Ok(())
            });
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
        let asks = request.verb == Ask;
        from.tell(desk, out, request, |next, ran| {
            if asks {
                return self.heard(next, at, ran, true);
            }
            Self::stops(next, at, None);
            Ok(())
        });
        if asks {
            let undo = call(Undo, at, at, 0);
            let undone = |next: &mut World<Self>, _: &Ran| {
                Self::stops(next, at, None);
                Ok(())
            };
            from.ask(desk, out, undo, undone, |next| Self::stops(next, at, Some(undo)));
        }
    }
}

impl Model for Fair {
    type Verb = Verb;
    type Mind = Mind;
    /// Who stands in line, in the order in which they came.
    type Memory = Vec<u8>;

    fn has_faults(&self) -> bool {
        self.has_faults
    }

    fn first(&self) -> (Keyspace, [Mind; OWNERS], Vec<u8>) {
        (Keyspace::default(), [Mind::default(); OWNERS], Vec::new())
    }

    fn words(&self, call: Call<Verb>) -> Words {
        let Call { verb, by, to, n } = call;
        let (by, to) = (self.owners.field(by.into()), self.owners.field(to.into()));
        let keys = &format!("{NAME} {QUEUE} {TIMES}");
        let tell = format!("{NUMBER} {by} {CHANNEL} publish");
        let ask = |wait: i64| {
            let args = format!("{NUMBER} {by} {LEASE_MS} 0 {wait} {CHANNEL} publish {JAVA_WAIT_MS} {n}");
            words("fair_acquire", keys, &args)
        };
        match verb {
            Try => ask(0),
            Ask => ask(WAIT_MS),
            Enter => words("enter", NAME, &format!("{NUMBER} {by} {LEASE_MS}")),
            Renew => words("renew", NAME, &format!("{NUMBER} {LEASE_MS} {by}")),
            Leave => words("fair_release_one", keys, &format!("{tell} {n} {TICK_MS}")),
            Release => words("fair_release", keys, &format!("{tell} _ 0 0")),
            ReleaseCounted => words("fair_release", keys, &format!("{tell} _ 0 0 {n}")),
            HandOver => words("fair_release", keys, &format!("{tell} {to} {LEASE_MS} 0")),
            Undo => words("fair_undo", keys, &tell),
            Force => words("fair_force", keys, &format!("{NUMBER} _ {CHANNEL} publish")),
            JavaLock => words("java/fair_lock", keys, &format!("{NUMBER} {by} {LEASE_MS} {JAVA_WAIT_MS}")),
            JavaGiveUp => words(
                "java/fair_give_up",
                &format!("{QUEUE} {TIMES}"),
                &format!("{NUMBER} {by} {JAVA_WAIT_MS}"),
            ),
            JavaUnlock => words("java/fair_unlock", keys, &format!("{NUMBER} {by} {LEASE_MS} {CHANNEL}")),
            JavaRenew => words("java/renew", NAME, &format!("{NUMBER} {by} {LEASE_MS}")),
        }
    }

    fn contract(&self, call: Call<Verb>, before: &Keyspace, after: &Keyspace, ran: &Ran) -> Judged {
        let mut line = self.line(before)?;
        let (by, to, n) = (usize::from(call.by), usize::from(call.to), i64::from(call.n));
        let (reply, told) = match call.verb {
            Try => line.acquire(by, 0, n == 1, self.owners),
            Ask => line.acquire(by, WAIT_MS, n == 1, self.owners),
            Enter | Renew => {
                let renews = call.verb == Renew;
                let wanted =
                    if renews { line.lock.renew(by, LEASE_MS) } else { line.lock.enter(by, LEASE_MS, false) };
                line.lock = wanted.lock;
                (wanted.reply, None)
            }
            Leave => line.leave(by, n),
            Release => line.release(by, None, None),
            ReleaseCounted => line.release(by, None, Some(n)),
            HandOver => line.release(by, Some(to), None),
            Undo => line.undo(by),
            Force => line.force(),
            JavaLock | JavaGiveUp | JavaUnlock | JavaRenew => return Ok(()),
        };
        same("the reply", &ran.reply, &reply)?;
        same("what the server has then", &self.line(after)?, &line)?;
        let told = told.map(|head| (format!("{CHANNEL}:{}", self.owners.field(head)), "0".to_owned()));
        same("what is told", &ran.told, &told.into_iter().collect())
    }

    fn sound(&self, keys: &Keyspace) -> Judged {
        let line = self.line(keys)?;
        for at in 0..OWNERS {
            let places = line.queue.iter().filter(|member| **member == at).count();
            if places != usize::from(line.times[at].is_some()) {
                return Err(format!("an owner has {places} places and the time {:?}", line.times[at]));
            }
            if line.times[at] > Some(LEASE_MS + WAIT_MS + 2 * JAVA_WAIT_MS) {
                return Err(format!("a place counts for {:?} ms", line.times[at]));
            }
            if line.lock.counts[at] > 0 && places > 0 {
                return Err("an owner holds and stands in line".to_owned());
            }
        }
        let strange = keys.0.iter().find(|key| ![NAME, QUEUE, TIMES].contains(&key.name.as_str()));
        if let Some(key) = strange {
            return Err(format!("there is a key {}", key.name));
        }
        if keys.tick(LEASE_MS + 1).get(NAME).is_some() {
            return Err("the lock is there when every lease is over".to_owned());
        }
        Ok(())
    }

    fn judge(&self, world: &World<Self>) -> Judged {
        let line = self.line(&world.server.keys)?;
        let valid = |mind: &Mind| mind.count > 0 && mind.left > 0;
        if world.minds.iter().filter(|mind| valid(mind)).count() > 1 {
            return Err("there are two valid holders".to_owned());
        }
        for (at, mind) in world.minds.iter().enumerate() {
            let (counted, known) = (line.lock.counts[at], i64::from(mind.count));
            if valid(mind) && (counted < known || line.lock.ttl() < i64::from(mind.left)) {
                return Err(format!(
                    "an owner counts {known}, and the server {counted} for {} ms",
                    line.lock.ttl()
                ));
            }
            if valid(mind) && counted != known && !mind.in_doubt && !mind.leaves_traces {
                return Err(format!("an owner counts {known}, and the server {counted}"));
            }
            let in_line = line.queue.contains(&at);
            // Who was just heard of keeps its place until it has the lock, perhaps unknown to it.
            if mind.waits && mind.good > 0 && counted == 0 && line.times[at] < Some(i64::from(mind.good)) {
                return Err(format!(
                    "a waiter has a place for {:?} ms, and is good for {}",
                    line.times[at], mind.good
                ));
            }
            let excused = mind.out.is_some() || mind.is_gone || mind.leaves_traces || mind.waits;
            if (counted > 0 && known == 0 || in_line && !mind.waits) && !excused {
                return Err("the server has a hold or a place that nobody has".to_owned());
            }
        }
        let heard = |at: &u8| world.minds[usize::from(*at)].good > 0;
        let told: Vec<_> = world.memory.iter().filter(|at| heard(at)).map(|at| usize::from(*at)).collect();
        let place = |at: &usize| line.queue.iter().position(|member| member == at);
        let places: Vec<_> = told.iter().filter_map(place).collect();
        if !places.is_sorted() {
            return Err(format!("the line is {:?}, and those who are heard of came as {told:?}", line.queue));
        }
        Ok(())
    }

    fn steps(&self, from: &Asking<'_, Self>, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let Ok(line) = self.line(&from.world.server.keys) else { return };
        let first = out.len();
        for at in 0..OWNERS {
            let mind = from.world.minds[at];
            let late =
                from.world.late.filter(|late| usize::from(late.by) == at || usize::from(late.to) == at);
            if mind.is_gone {
                if line.lock.counts[at] == 0 && !line.queue.contains(&at) && late.is_none() {
                    from.event(out, "another process comes", at, |next| next.minds[at] = Mind::default());
                }
                continue;
            }
            if mind.count > 0 || mind.waits || mind.out.is_some() {
                from.event(out, "the process is killed", at, |next| {
                    Self::stops(next, at, None);
                    next.minds[at] = Mind { is_gone: true, ..Mind::default() };
                });
            }
            let blocks = |verb| matches!(verb, Leave | Release | ReleaseCounted | HandOver | Undo);
            if self.owners.is_java(at) {
                self.java(from, at, desk, out);
            } else if let Some(request) = mind.out {
                self.unanswered(from, at, request, desk, out);
            } else if mind.count > 0 {
                self.holder(from, at, desk, out);
            } else if late.is_none_or(|late| mind.waits && !blocks(late.verb)) {
                // A wait has an owner of its own, so nothing of an earlier one is on its way.
                self.waiter(from, at, desk, out);
            }
        }
        from.tell(desk, out, call(Force, 0, 0, 0), |next, _| {
            for mind in next.minds.iter_mut().filter(|mind| mind.count > 0) {
                *mind = Mind { out: mind.out, ..mind.traced() };
            }
            Ok(())
        });
        for step in &mut out[first..] {
            self.overtakes(from.world, &line, step);
        }
    }

    fn tick(&self, world: &mut World<Self>) {
        for mind in &mut world.minds {
            mind.left = (mind.left - TICK_MS as i16).max(0);
            mind.good = (mind.good - TICK_MS as i16).max(0);
        }
    }

    fn tidy(&self, world: &mut World<Self>) {
        let Ok(line) = self.line(&world.server.keys) else { return };
        for (at, mind) in world.minds.iter_mut().enumerate() {
            mind.leaves_traces &= line.lock.counts[at] > 0 || line.queue.contains(&at);
            mind.in_doubt &= mind.count > 0 || mind.waits || mind.out.is_some();
            // Its turn has come, though it may not know.
            if mind.waits && line.lock.counts[at] > 0 {
                mind.good = 0;
            }
        }
        world.memory.retain(|member| line.queue.contains(&usize::from(*member)));
        for member in line.queue.iter().map(|member| *member as u8) {
            if !world.memory.contains(&member) {
                world.memory.push(member);
            }
        }
    }

    fn arrives(&self, world: &mut World<Self>, call: Call<Verb>, _: &Ran) {
        for at in [call.by, call.to] {
            let mind = &mut world.minds[usize::from(at)];
            mind.leaves_traces = true;
            mind.in_doubt |= mind.count > 0 || mind.waits;
        }
        // A look that was sent while nobody of Redisson was before it gives a place too little time that was lined up anew since, until the
        // next look.
        if call.verb == Ask && call.n == 0 {
            world.minds[usize::from(call.by)].good = 0;
            world.minds[usize::from(call.by)].behind_java |= self.recounts;
        }
    }
}

impl Fair {
    /// A grant passes nobody over who came before and was heard of lately.
    fn overtakes(&self, before: &World<Self>, line: &Line, step: &mut Step<Self>) {
        let Ok(then) = self.line(&step.next.server.keys) else { return };
        let granted = (0..OWNERS).find(|at| line.lock.counts[*at] == 0 && then.lock.counts[*at] > 0);
        let Some(granted) = granted else { return };
        let came = |at: usize| before.memory.iter().position(|member| usize::from(*member) == at);
        let passed = (0..OWNERS).find(|at| {
            *at != granted
                && before.minds[*at].good > 0
                && came(*at).is_some_and(|own| came(granted).is_none_or(|other| own < other))
        });
        if let Some(passed) = passed {
            let told = format!("owner {granted} is granted what owner {passed} waits for, who came before");
            step.wrong.get_or_insert(told);
        }
    }
}
