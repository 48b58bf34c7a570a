//! Goes through all worlds of a model, those with the fewest steps first, with each one once.

use std::{
    collections::HashSet,
    fmt::Write,
    hash::{Hash, Hasher},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    scripts::Texts,
    server::{Bench, Server},
    world::{self, Model, What, World},
};

#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Steps at most.
    pub(super) depth: usize,
    /// No further level is begun with so many worlds.
    pub(super) worlds: usize,
    pub(super) threads: usize,
    /// Whether each call is held against what it is to do.
    pub(super) has_rules: bool,
}

/// What a search came to.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) worlds: usize,
    pub(super) transitions: u64,
    /// How many steps the furthest world that was gone on from is away.
    pub(super) depth: usize,
    /// Every world was gone on from.
    pub(super) is_whole: bool,
    pub(super) ran: u64,
    pub(super) keyspaces: usize,
    pub(super) took: Duration,
    /// A violation and how it comes about.
    pub(super) story: Option<String>,
}

/// 128 bits, because two worlds must not be taken for one: among 10^8 that happens once in 10^22 searches.
#[derive(Default)]
struct Wide(u64, u64);

impl Wide {
    fn mix(&mut self, word: u64) {
        let fold = |state: u64, by: u64| {
            let product = u128::from(state ^ word) * u128::from(by);
            (product as u64) ^ ((product >> 64) as u64)
        };
        self.0 = fold(self.0.rotate_left(5) ^ 0x51_7C_C1_B7, 0x9E37_79B9_7F4A_7C15);
        self.1 = fold(self.1.rotate_left(9) ^ 0x2545_F491, 0xD6E8_FEB8_6659_FD93);
    }
}

impl Hasher for Wide {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.mix(number.into());
    }

    fn write_i16(&mut self, number: i16) {
        self.mix(u64::from(number as u16));
    }

    fn write_u32(&mut self, number: u32) {
        self.mix(number.into());
    }

    fn write_i64(&mut self, number: i64) {
        self.mix(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.mix(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn mark<M: Model>(world: &World<M>) -> u128 {
    let mut wide = Wide(1, 2);
    world.hash(&mut wide);
    u128::from(wide.0) << 64 | u128::from(wide.1)
}

/// Where a world came from: which world of the level before, and which of its steps.
type From = (u32, u16);

struct Level<M: Model> {
    worlds: Vec<World<M>>,
    from: Vec<From>,
}

/// How many worlds a thread takes at once.
const SLICE: usize = 256;
const PARTS: usize = 64;

struct Seen(Vec<Mutex<HashSet<u128>>>);

impl Seen {
    fn add(&self, mark: u128) -> bool {
        let part = &self.0[(mark >> 100) as usize % PARTS];
        part.lock().unwrap_or_else(PoisonError::into_inner).insert(mark)
    }
}

/// Goes through the worlds until there are no more, or the bounds are met, or one is wrong.
pub(super) fn search<M: Model>(model: &M, texts: Texts, bounds: Bounds) -> Result<Found, String> {
    let begin = Instant::now();
    let server = Server::new(model, texts, bounds.has_rules);
    let (keys, minds, memory) = model.first();
    let first = World { server: server.known(keys), minds, late: None, memory };
    let seen = Seen((0..PARTS).map(|_| Mutex::default()).collect());
    seen.add(mark(&first));
    let mut level = Level { worlds: vec![first.clone()], from: Vec::new() };
    let mut history: Vec<Vec<From>> = Vec::new();
    let mut found = Found { worlds: 1, ..Found::default() };
    let mut benches = (0..bounds.threads).map(|_| Bench::new(&server)).collect::<Result<Vec<_>, _>>()?;
    loop {
        if level.worlds.is_empty() {
            found.is_whole = true;
            break;
        }
        if found.depth >= bounds.depth || found.worlds >= bounds.worlds {
            break;
        }
        let (next, transitions, wrong) = expand(model, &seen, &level, &mut benches);
        found.transitions += transitions;
        found.depth += 1;
        history.push(std::mem::take(&mut level.from));
        if let Some((at, step, wrong)) = wrong {
            found.story = Some(story(model, &first, &history, (at, step), &wrong, &mut benches[0]));
            break;
        }
        found.worlds += next.worlds.len();
        level = next;
    }
    (found.ran, found.keyspaces) = server.counts();
    found.took = begin.elapsed();
    Ok(found)
}

type Wrong = Option<(u32, u16, String)>;

fn expand<M: Model>(
    model: &M,
    seen: &Seen,
    level: &Level<M>,
    benches: &mut [Bench<'_, M>],
) -> (Level<M>, u64, Wrong) {
    let next_slice = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let work = |bench: &mut Bench<'_, M>| {
        let mut own = Level { worlds: Vec::new(), from: Vec::new() };
        let (mut transitions, mut wrong) = (0_u64, None);
        while !stop.load(Ordering::Relaxed) {
            let begin = next_slice.fetch_add(SLICE, Ordering::Relaxed);
            let end = (begin + SLICE).min(level.worlds.len());
            if begin >= end {
                break;
            }
            for at in begin..end {
                let steps = world::steps(model, &level.worlds[at], bench);
                transitions += steps.len() as u64;
                for (number, step) in steps.into_iter().enumerate() {
                    let from = (at as u32, number as u16);
                    let is_new = step.wrong.is_some() || seen.add(mark(&step.next));
                    if !is_new {
                        continue;
                    }
                    let known = || step.next.server.wrong.clone();
                    if let Some(told) = step.wrong.or_else(known).or_else(|| model.judge(&step.next).err()) {
                        wrong = wrong.or(Some((from.0, from.1, told)));
                        stop.store(true, Ordering::Relaxed);
                        break;
                    }
                    own.worlds.push(step.next);
                    own.from.push(from);
                }
            }
        }
        (own, transitions, wrong)
    };
    let done: Vec<(Level<M>, u64, Wrong)> = if level.worlds.len() <= SLICE {
        vec![work(&mut benches[0])]
    } else {
        thread::scope(|scope| {
            let threads: Vec<_> = benches.iter_mut().map(|bench| scope.spawn(|| work(bench))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a thread of the search ends well"))
                .collect()
        })
    };
    let mut all = (Level { worlds: Vec::new(), from: Vec::new() }, 0, None);
    for (mut level, transitions, wrong) in done {
        all.0.worlds.append(&mut level.worlds);
        all.0.from.append(&mut level.from);
        all.1 += transitions;
        all.2 = all.2.or(wrong);
    }
    all
}

/// The steps that lead to a violation, made again from the beginning.
fn story<M: Model>(
    model: &M,
    first: &World<M>,
    history: &[Vec<From>],
    last: From,
    wrong: &str,
    bench: &mut Bench<'_, M>,
) -> String {
    let mut path = vec![last];
    for from in history.iter().skip(1).rev() {
        let (at, _) = path[path.len() - 1];
        path.push(from[at as usize]);
    }
    let mut told = String::new();
    let mut world = first.clone();
    for (number, (_, step)) in path.iter().rev().enumerate() {
        let mut steps = world::steps(model, &world, bench);
        let step = steps.swap_remove(usize::from(*step));
        let _written = writeln!(told, "{:>4}. {}", number + 1, line(&step.what, first.minds.len()));
        world = step.next;
    }
    let _written =
        write!(told, "      {:?}\n      knows {:?}\n      {wrong}", world.server.keys.0, world.minds);
    told
}

fn line<V: std::fmt::Debug>(what: &What<V>, owners: usize) -> String {
    let name = |at: usize| char::from(b'A' + at as u8);
    match what {
        What::Call(call, how) => {
            let (by, to) = (name(usize::from(call.by)), name(usize::from(call.to)));
            format!("{by} {:?} (to {to}, {}): {how:?}", call.verb, call.n)
        }
        What::Event(event, whom) if *whom < owners => format!("{}: {event}", name(*whom)),
        What::Event(event, _) => (*event).to_owned(),
    }
}
