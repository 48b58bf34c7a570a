//! The semaphore: one number, and nobody's name at it. What is asked once and not answered is lost, and never given twice.

use super::{
    keyspace::{Content, Keyspace},
    server::NUMBER,
    world::{Asking, Call, Desk, Judged, Model, OWNERS, Ran, Step, TICK_MS, Words, World, same, words},
};

const NAME: &str = "n";
const CHANNEL: &str = "redisson_sc:{n}";
const PERMITS: i64 = 2;
const PERMITS_MAX: i64 = 3;
/// For how long permits are set, where they are not set for good.
const LIFE_MS: i64 = 2 * TICK_MS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    Take,
    Give,
    GiveIfThere,
    Drain,
    Set,
    SetForAWhile,
    Delete,
    JavaAdd,
    JavaDrain,
}
use Verb::*;

#[derive(Clone, Debug, Hash)]
pub(super) struct Memory {
    /// How many permits there are, free, taken and lost; as long as the counter is there.
    total: i64,
    /// Those that nobody has and that are not free, because an answer was lost.
    lost: i64,
}

pub(super) struct Semaphore;

fn call(verb: Verb, by: usize, n: i64) -> Call<Verb> {
    Call { verb, by: by as u8, to: by as u8, n: n as i16 }
}

/// The counter and its TTL.
fn counter(keys: &Keyspace) -> Option<(i64, Option<i64>)> {
    let key = keys.get(NAME)?;
    Some((keys.number(NAME)?, key.left_ms))
}

/// The permits of a counter that is gone are nobody's any more.
fn gone(next: &mut World<Semaphore>) {
    next.minds = [0; OWNERS];
    next.memory = Memory { total: 0, lost: 0 };
}

impl Model for Semaphore {
    type Verb = Verb;
    /// How many permits an owner has.
    type Mind = u8;
    type Memory = Memory;

    fn first(&self) -> (Keyspace, [u8; OWNERS], Memory) {
        (Keyspace::default(), [0; OWNERS], Memory { total: 0, lost: 0 })
    }

    fn words(&self, call: Call<Verb>) -> Words {
        let n = call.n;
        match call.verb {
            Take => words("semaphore_take", NAME, &format!("{NUMBER} {n}")),
            Give => words("semaphore_give", NAME, &format!("{NUMBER} {n} {CHANNEL} publish 0")),
            GiveIfThere => words("semaphore_give", NAME, &format!("{NUMBER} {n} {CHANNEL} publish 1")),
            Drain => words("semaphore_drain", NAME, &format!("{NUMBER}")),
            Set => words("counter_set", NAME, &format!("{NUMBER} {n} 0 {CHANNEL} publish {n}")),
            SetForAWhile => {
                words("counter_set", NAME, &format!("{NUMBER} {n} {LIFE_MS} {CHANNEL} publish {n}"))
            }
            Delete => words("semaphore_delete", NAME, &format!("{NUMBER} {CHANNEL} publish")),
            JavaAdd => words("java/semaphore_add", NAME, &format!("{NUMBER} {n} {CHANNEL}")),
            JavaDrain => words("java/semaphore_drain", NAME, &format!("{NUMBER}")),
        }
    }

    fn contract(&self, call: Call<Verb>, before: &Keyspace, after: &Keyspace, ran: &Ran) -> Judged {
        let (was, n) = (counter(before), i64::from(call.n));
        let kept = |free: i64| was.map(|(_, left)| (free, left));
        let free = was.map(|(free, _)| free);
        let (reply, then, told) = match (call.verb, free) {
            (Take, None) => (vec![-1, 0], None, None),
            (Take, Some(free)) if free < n => (vec![0, free], was, None),
            (Take, Some(free)) => (vec![1, free - n], kept(free - n), None),
            (GiveIfThere, None) => (vec![0, 0], None, None),
            (Give | GiveIfThere, free) => {
                let total = free.unwrap_or(0) + n;
                let told = (total > 0).then_some(total);
                (vec![1, total], kept(total).or(Some((total, None))), told)
            }
            (Drain, None) => (vec![0, 0], None, None),
            (Drain, Some(free)) => (vec![1, free], kept(0), None),
            (Set | SetForAWhile, Some(_)) => (vec![0], was, None),
            (Set, None) => (vec![1], Some((n, None)), Some(n)),
            (SetForAWhile, None) => (vec![1], Some((n, Some(LIFE_MS))), Some(n)),
            (Delete, None) => (vec![0], None, None),
            (Delete, Some(_)) => (vec![1], None, Some(1)),
            (JavaAdd | JavaDrain, _) => return Ok(()),
        };
        same("the reply", &ran.reply, &reply)?;
        same("the counter", &counter(after), &then)?;
        let told: Vec<_> = told.iter().map(|total| (CHANNEL.to_owned(), total.to_string())).collect();
        same("what is told", &ran.told, &told)
    }

    fn sound(&self, keys: &Keyspace) -> Judged {
        match keys.0.iter().find(|key| key.name != NAME || !matches!(key.content, Content::Text(_))) {
            Some(key) => Err(format!("there is {key:?}")),
            None => Ok(()),
        }
    }

    fn judge(&self, world: &World<Self>) -> Judged {
        let Some((free, _)) = counter(&world.server.keys) else { return Ok(()) };
        let taken: i64 = world.minds.iter().map(|has| i64::from(*has)).sum();
        let Memory { total, lost } = world.memory;
        if free + taken + lost == total {
            return Ok(());
        }
        Err(format!("of {total} permits {free} are free, {taken} taken and {lost} lost"))
    }

    fn steps(&self, from: &Asking<'_, Self>, desk: &mut dyn Desk<Self>, out: &mut Vec<Step<Self>>) {
        let before = counter(&from.world.server.keys);
        // A request that ran without an answer, as the server shows.
        let missing = |next: &mut World<Self>| {
            let then = counter(&next.server.keys);
            if let (Some((free, _)), Some((left, _))) = (before, then) {
                next.memory.lost += free - left;
            }
        };
        for at in 0..OWNERS {
            let has = i64::from(from.world.minds[at]);
            for n in 1..=2 {
                let take = call(Take, at, n);
                let took = |next: &mut World<Self>, ran: &Ran| {
                    next.minds[at] += if ran.reply[0] == 1 { n as u8 } else { 0 };
                    Ok(())
                };
                from.ask(desk, out, take, took, missing);
            }
            for n in 1..=has {
                for verb in [Give, GiveIfThere] {
                    let gave = |next: &mut World<Self>, _: &Ran| {
                        next.minds[at] -= n as u8;
                        Ok(())
                    };
                    from.ask(desk, out, call(verb, at, n), gave, |next| {
                        next.minds[at] -= n as u8;
                        // What did not arrive is free for nobody.
                        next.memory.lost += n;
                        missing(next);
                    });
                }
            }
            if has > 0 {
                from.event(out, "the process is killed", at, |next| {
                    next.minds[at] = 0;
                    next.memory.lost += has;
                });
            }
        }
        let Memory { total, .. } = from.world.memory;
        if before.is_none() {
            for verb in [Set, SetForAWhile] {
                from.tell(desk, out, call(verb, 0, PERMITS), |next, _| {
                    gone(next);
                    next.memory.total = PERMITS;
                    Ok(())
                });
            }
            for verb in [Take, GiveIfThere, Drain, Delete] {
                from.tell(desk, out, call(verb, 0, 1), |_, _| Ok(()));
            }
            return;
        }
        from.tell(desk, out, call(Set, 0, PERMITS), |_, _| Ok(()));
        for verb in [Give, JavaAdd] {
            for n in [-1, 1] {
                if (0..=PERMITS_MAX).contains(&(total + n)) {
                    from.tell(desk, out, call(verb, 0, n), |next, _| {
                        next.memory.total += n;
                        Ok(())
                    });
                }
            }
        }
        for verb in [Drain, JavaDrain] {
            from.tell(desk, out, call(verb, 0, 0), |next, ran| {
                next.memory.total -= ran.reply[ran.reply.len() - 1];
                Ok(())
            });
        }
        from.tell(desk, out, call(Delete, 0, 0), |next, _| {
            gone(next);
            Ok(())
        });
    }

    fn tick(&self, world: &mut World<Self>) {
        if counter(&world.server.keys).is_none() {
            gone(world);
        }
    }

    fn tidy(&self, _: &mut World<Self>) {}

    fn arrives(&self, world: &mut World<Self>, call: Call<Verb>, ran: &Ran) {
        let n = i64::from(call.n);
        match call.verb {
            Take if ran.reply[0] == 1 => world.memory.lost += n,
            Give | GiveIfThere if ran.reply[0] == 1 => {
                // Where the counter was gone it begins with these.
                if world.memory.total == 0 {
                    world.memory.total = n;
                } else {
                    world.memory.lost -= n;
                }
            }
            _ => {}
        }
    }
}
