//! What the fuzzer calls (`scripts/fuzz`): everything here that reads what the engine did not write. The tests below read its corpus.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::{
    clock::ManualClock,
    daemon, journal,
    number::parse_int,
    {DumpedKey, Effect, Engine, Journal, Publisher},
};

/// How many ms a line may let pass.
const PASSES_MS_MAX: i64 = 100_000;
/// How long a script may run.
const SCRIPT_LIMIT: Duration = Duration::from_millis(50);
/// How much is looked at: more takes time, and finds nothing that less does not.
const INPUT_BYTES_MAX: usize = 4096;

struct Nobody;

impl Publisher for Nobody {
    fn publish(&self, _channel: &[u8], _payload: &[u8]) -> usize {
        0
    }
}

/// A journal that is only remembered.
#[derive(Clone, Default)]
struct Remembered(Arc<Mutex<Vec<Effect>>>);

impl Remembered {
    fn effects(&self) -> Vec<Effect> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Journal for Remembered {
    fn append(&mut self, effects: &[Effect]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(effects);
        Ok(())
    }

    fn rewrite(&mut self, snapshot: &[Effect]) -> io::Result<()> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = snapshot.to_vec();
        Ok(())
    }
}

fn engine(clock: &ManualClock, journal: &Remembered) -> Engine {
    let clock = Arc::new(clock.clone());
    let mut engine =
        Engine::with_journal(clock, Arc::new(Nobody), Box::new(journal.clone())).expect("a Lua state");
    engine.set_script_time_limit(SCRIPT_LIMIT);
    engine
}

/// What an engine has that starts with these changes.
fn started(clock: &ManualClock, effects: Vec<Effect>) -> (Engine, Remembered, Vec<DumpedKey>) {
    let journal = Remembered::default();
    let mut engine = engine(clock, &journal);
    engine.restore(effects, false);
    let dump = engine.dump();
    (engine, journal, dump)
}

/// A journal of any bytes is taken in, and what is written of it comes back as the same.
pub fn journal(bytes: &[u8]) {
    let clock = ManualClock::new(Duration::ZERO);
    for changes in [journal::changes_in(bytes), journal::changes_in_sealed(bytes)] {
        let (mut engine, journal, before) = started(&clock, changes);
        engine.rewrite_journal().expect("nothing is written anywhere");
        let written = journal::as_bytes(&journal.effects());
        let (_, _, after) = started(&clock, journal::changes_in(&written));
        assert_eq!(before, after);
    }
}

/// Commands, each in a line with its words between spaces; `@5` lets 5 ms pass. What the journal was told of them makes the same keys.
pub fn commands(bytes: &[u8]) {
    let (clock, journal) = (ManualClock::new(Duration::ZERO), Remembered::default());
    let mut engine = engine(&clock, &journal);
    for line in bytes[..bytes.len().min(INPUT_BYTES_MAX)].split(|byte| *byte == b'\n') {
        if let Some(ms) = line.strip_prefix(b"@").and_then(parse_int) {
            clock.advance(Duration::from_millis(ms.clamp(0, PASSES_MS_MAX).unsigned_abs()));
            continue;
        }
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        // A refusal is an answer.
        _ = engine.call(&words);
    }
    let dump = engine.dump();
    let (_, _, again) = started(&clock, journal.effects());
    assert_eq!(dump, again);
}

/// Requests as a client of the daemon sends them: however their bytes come, they mean the same.
pub fn requests(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(INPUT_BYTES_MAX)];
    assert_eq!(daemon::requests_in(bytes, bytes.len().max(1)), daemon::requests_in(bytes, 1));
}

/// A pattern and a text, with a line break between them, as `--compat` scripts may give them to `string.find`: the time that takes is bounded.
pub fn patterns(bytes: &[u8]) {
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (pattern, text) = bytes.split_at(at);
    let mut engine = engine(&ManualClock::new(Duration::ZERO), &Remembered::default());
    for source in [
        "return string.find(ARGV[1], ARGV[2])",
        "return string.gsub(ARGV[1], ARGV[2], '%0')",
        "return string.match(ARGV[1], ARGV[2])",
    ] {
        _ = engine.eval(source.as_bytes(), &[b"k"; 0], &[text, pattern]);
    }
    assert!(engine.eval(b"return 1", &[b"k"; 0], &[b"a"; 0]).is_ok());
}

/// Any script. The engine goes on as before.
pub fn scripts(bytes: &[u8]) {
    let mut engine = engine(&ManualClock::new(Duration::ZERO), &Remembered::default());
    _ = engine.eval(bytes, &[b"k"], &[b"a"]);
    assert!(engine.eval(b"return redis.call('exists', KEYS[1])", &[b"k"], &[b"a"]).is_ok());
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// Each file of the corpus, and what was found to go wrong once.
    fn all_of(target: &str, run: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let mut count = 0;
        for file in fs::read_dir(folder).expect("the corpus is part of the repository") {
            run(&fs::read(file.expect("a file").path()).expect("a file"));
            count += 1;
        }
        assert!(count > 0, "{target}");
    }

    #[test]
    fn the_corpus_of_the_fuzzer_does_no_harm() {
        all_of("journal", super::journal);
        all_of("commands", super::commands);
        all_of("requests", super::requests);
        all_of("patterns", super::patterns);
        all_of("scripts", super::scripts);
    }
}
