//! The engine: one keyspace, one Lua host, one journal.

mod looks;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, SteadyClock};
use crate::command::{Caller, execute, misconf, unsaved};
use crate::effect::Effect;
use crate::keyspace::{Core, Data, MemoryLimit, NEVER};
use crate::lua::LuaHost;
use crate::number::format_float;
use crate::publisher::Publisher;
use crate::recovery::Recovering;
use crate::value::{EngineError, Value};

/// Keeps changes for the next start.
pub trait Journal: Send {
    /// Writes the changes of one command or script, all or none.
    ///
    /// # Errors
    ///
    /// The engine keeps the changes, refuses further writes and offers the same changes again, in front of newer
    /// ones, until this succeeds.
    fn append(&mut self, effects: &[Effect]) -> std::io::Result<()>;

    /// Whether so much of the journal is history that a rewrite pays.
    fn wants_rewrite(&self) -> bool {
        false
    }

    /// Whether the next start will find it.
    fn is_in_place(&self) -> bool {
        true
    }

    /// Replaces everything written so far by changes that lead to the same state.
    ///
    /// # Errors
    ///
    /// What was written before must then still be there.
    fn rewrite(&mut self, snapshot: &[Effect]) -> std::io::Result<()> {
        let _unused = snapshot;
        Ok(())
    }

    /// Notes that nothing will follow, so that the next start can trust the last values.
    ///
    /// # Errors
    ///
    /// The next start then treats this one as ended by force.
    fn close(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A journal that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoJournal;

impl Journal for NoJournal {
    fn append(&mut self, _effects: &[Effect]) -> std::io::Result<()> {
        Ok(())
    }
}

/// One key of [`Engine::dump`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedKey {
    /// The key.
    pub key: Vec<u8>,
    /// `string`, `hash`, `list` or `zset`.
    pub kind: &'static str,
    /// Milliseconds left, when it expires at all.
    pub ttl_ms: Option<u64>,
    /// The string; or the fields and values of a hash sorted by field; or the list; or the members and scores of
    /// a sorted set in order.
    pub content: Value,
}

/// A single-threaded store that runs scripts: each call sees and changes the keyspace alone.
pub struct Engine {
    core: Arc<Mutex<Core>>,
    lua: LuaHost,
    journal: Option<Box<dyn Journal>>,
    batch: Batch,
    strict_keys: bool,
}

/// Changes that wait for [`Engine::end_batch`], so that many commands share one write.
#[derive(Default)]
struct Batch {
    open: bool,
    /// How many of the recorded changes belong to commands that have ended.
    seen: usize,
    /// What they take in memory, roughly.
    bytes: usize,
    /// Whether a command has added to them lately.
    changed: bool,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("keys", &self.key_count()).finish_non_exhaustive()
    }
}

/// Replaces the journal by what is there now. Taking stock removes what has ended: a journal that could not be replaced is told of that
/// before anything else, or the next start would find it beside what came after.
fn rewrite(journal: &mut dyn Journal, core: &mut Core) -> std::io::Result<()> {
    let snapshot = core.snapshot();
    journal.rewrite(&snapshot)?;
    core.effects.clear();
    Ok(())
}

impl Engine {
    /// An empty engine that keeps nothing across restarts.
    ///
    /// # Errors
    ///
    /// When the Lua state cannot be built (out of memory).
    pub fn new(clock: Arc<dyn Clock>, publisher: Arc<dyn Publisher>) -> Result<Engine, EngineError> {
        Self::build(SteadyClock::new(clock), publisher, None)
    }

    /// An empty engine that hands every change to a journal.
    ///
    /// # Errors
    ///
    /// When the Lua state cannot be built (out of memory).
    pub fn with_journal(
        clock: Arc<dyn Clock>,
        publisher: Arc<dyn Publisher>,
        journal: Box<dyn Journal>,
    ) -> Result<Engine, EngineError> {
        Self::build(SteadyClock::new(clock), publisher, Some(journal))
    }

    /// The same by exactly this clock: another one made of it would differ by the time between two looks at it.
    pub(crate) fn with_steady_clock(
        clock: Arc<SteadyClock>,
        publisher: Arc<dyn Publisher>,
        journal: Box<dyn Journal>,
    ) -> Result<Engine, EngineError> {
        Self::build(clock, publisher, Some(journal))
    }

    fn build(
        clock: impl Into<Arc<SteadyClock>>,
        publisher: Arc<dyn Publisher>,
        journal: Option<Box<dyn Journal>>,
    ) -> Result<Engine, EngineError> {
        let core = Arc::new(Mutex::new(Core::new(clock.into(), publisher, journal.is_some())));
        let lua = LuaHost::new(&core)?;
        Ok(Engine { core, lua, journal, batch: Batch::default(), strict_keys: false })
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        // Only a panic inside a command could poison the lock; the keyspace is still usable then.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether scripts may only use the keys that they are given as `KEYS`, as some servers want it (Dragonfly, proxies that
    /// route by key); off unless set.
    pub fn set_strict_keys(&mut self, strict: bool) {
        self.strict_keys = strict;
    }

    /// Compiles a script, once, and returns its SHA-1 in hexadecimal.
    ///
    /// # Errors
    ///
    /// `ERR` with Lua's message when the source does not compile.
    pub fn load(&mut self, source: &[u8]) -> Result<String, EngineError> {
        self.lua.load(source)
    }

    /// Whether a script of this SHA-1 was loaded.
    pub fn knows_script(&self, sha: &str) -> bool {
        self.lua.knows(sha)
    }

    /// Whether a loaded script says that it changes nothing.
    pub(crate) fn only_looks(&self, sha: &str) -> bool {
        self.lua.only_looks(sha)
    }

    /// Runs a loaded script. What it changed before an error stays changed, as in Redis.
    ///
    /// # Errors
    ///
    /// `NOSCRIPT` for an unknown SHA-1, otherwise what the script raised or returned; a failed command keeps its
    /// code word. `UNSAVED` when the journal could not be written: the change then stands in memory only. `MISCONF` from then on until it
    /// can be written: nothing has changed.
    pub fn eval_sha(
        &mut self,
        sha: &str,
        keys: &[impl AsRef<[u8]>],
        args: &[impl AsRef<[u8]>],
    ) -> Result<Value, EngineError> {
        self.begin();
        if self.strict_keys {
            self.core().declared = Some(keys.iter().map(|key| key.as_ref().to_vec()).collect());
        }
        // Asked for seldom, so that it costs a script nothing.
        let is_recovering = {
            let core = self.core();
            core.now_ms < core.wait_until_ms
        };
        if is_recovering {
            let recovering = self.lua.recovering(sha);
            self.core().recovering = recovering;
        }
        let reply = self.lua.run(sha, keys, args);
        if is_recovering {
            self.core().recovering = Recovering::Unsaid;
        }
        if self.strict_keys {
            self.core().declared = None;
        }
        self.commit()?;
        reply
    }

    /// Loads a script and runs it.
    ///
    /// # Errors
    ///
    /// As [`Engine::load`] and [`Engine::eval_sha`].
    pub fn eval(
        &mut self,
        source: &[u8],
        keys: &[impl AsRef<[u8]>],
        args: &[impl AsRef<[u8]>],
    ) -> Result<Value, EngineError> {
        let sha = self.load(source)?;
        self.eval_sha(&sha, keys, args)
    }

    /// Runs one command, its name first.
    ///
    /// # Errors
    ///
    /// What Redis would answer; `UNSAVED` and `MISCONF` as in [`Engine::eval_sha`].
    pub fn call(&mut self, command: &[impl AsRef<[u8]>]) -> Result<Value, EngineError> {
        self.begin();
        let words: Vec<&[u8]> = command.iter().map(AsRef::as_ref).collect();
        let reply = execute(&mut self.core(), &words, Caller::Client);
        self.commit()?;
        reply
    }

    /// Has the publisher told, once, when each of these keys goes, or an element of it. Answers how many exist; only those are
    /// watched.
    pub fn watch(&mut self, keys: &[impl AsRef<[u8]>]) -> usize {
        self.begin();
        let mut core = self.core();
        keys.iter().filter(|key| core.watch(key.as_ref())).count()
    }

    fn begin(&mut self) {
        let is_to_offer = {
            let mut core = self.core();
            core.begin();
            core.refuse_writes.is_some() && !core.is_time_held
        };
        if is_to_offer {
            self.offer_again();
        }
    }

    /// Offers the journal the changes that it could not take.
    fn offer_again(&mut self) {
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        if core.refuse_writes.is_some()
            && let Some(journal) = &mut self.journal
            && journal.append(&core.effects).is_ok()
        {
            core.effects.clear();
            core.refuse_writes = None;
            self.batch.seen = 0;
        }
    }

    /// From now on time stands still until [`Engine::go_on_to`] says how late it is, and a journal that could not be written is tried
    /// again by [`Engine::look`] alone: nothing may be granted at a time that has passed.
    pub(crate) fn hold_time(&mut self) {
        self.core().is_time_held = true;
    }

    /// The boot clock as the last command or script saw it, and what it shows now.
    pub(crate) fn look(&mut self) -> (u64, u64) {
        self.offer_again();
        let core = self.core();
        (core.now_us, core.clock_us())
    }

    /// Lets time go on to what the boot clock has shown.
    pub(crate) fn go_on_to(&mut self, now_us: u64) {
        self.core().set_time(now_us);
    }

    /// Whether the journal could not be written.
    pub(crate) fn refuses_writes(&self) -> bool {
        self.core().refuse_writes.is_some()
    }

    /// Lets the changes of the commands that follow wait for [`Engine::end_batch`]. Until that has succeeded,
    /// nobody may learn what they answered.
    pub(crate) fn begin_batch(&mut self) {
        let seen = self.core().effects.len();
        self.batch = Batch { open: true, seen, ..Batch::default() };
    }

    /// Whether a command changed something since this was last asked, and roughly how many bytes wait by now.
    pub(crate) fn take_changed(&mut self) -> (bool, usize) {
        (std::mem::take(&mut self.batch.changed), self.batch.bytes)
    }

    /// Writes what has waited.
    ///
    /// # Errors
    ///
    /// `UNSAVED`; it is the answer to every command of the batch that changed something.
    pub(crate) fn end_batch(&mut self) -> Result<(), EngineError> {
        self.batch = Batch::default();
        self.commit()
    }

    fn commit(&mut self) -> Result<(), EngineError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        if self.batch.open {
            let new = core.effects.get(self.batch.seen..).unwrap_or_default();
            self.batch.changed |= !new.is_empty() && core.refuse_writes.is_none();
            self.batch.bytes += new.iter().map(Effect::size_bytes).sum::<usize>();
            self.batch.seen = core.effects.len();
            return Ok(());
        }
        if core.effects.is_empty() || core.refuse_writes.is_some() {
            return Ok(());
        }
        match journal.append(&core.effects) {
            Ok(()) => {
                core.effects.clear();
                if journal.wants_rewrite()
                    && let Err(error) = rewrite(&mut **journal, &mut core)
                {
                    tracing::warn!(%error, "the journal could not be rewritten, it goes on growing");
                }
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the journal cannot be written, writes are refused");
                core.refuse_writes = Some(misconf(&error));
                Err(unsaved(&error))
            }
        }
    }

    /// Forgets every script.
    pub fn flush_scripts(&mut self) {
        self.lua.forget_all();
    }

    /// Keys in the keyspace, those included whose expiry has passed unnoticed.
    pub fn key_count(&self) -> usize {
        self.core().len()
    }

    /// Whether a live key has an expiry.
    pub fn has_expiring_keys(&mut self) -> bool {
        self.expiring_key_count() > 0
    }

    /// How many live keys have an expiry.
    pub fn expiring_key_count(&mut self) -> usize {
        self.begin();
        self.core().expiring_key_count()
    }

    /// Looks at up to `limit` keys, removes those whose time has passed and says how many. Meant for a timer; every
    /// call looks at two more keys by itself.
    pub fn expire_some(&mut self, limit: usize) -> usize {
        self.begin();
        let gone = self.core().expire_some(limit);
        // A failure is remembered and answered to the next write.
        let _refused_later = self.commit();
        gone
    }

    /// Refuses what would make the keyspace larger while more memory is in use than this, as `measure` says: it is asked after each MiB
    /// of changes, and for each refusal. Unbounded unless set; needs a journal, whose changes are counted.
    pub fn set_memory_limit(&mut self, bytes_max: u64, measure: impl Fn() -> Option<u64> + Send + 'static) {
        self.core().memory = Some(MemoryLimit { bytes_max, measure: Box::new(measure), found: 0, grown: 0 });
    }

    /// How long a script may run before it is stopped; 5 s unless set.
    pub fn set_script_time_limit(&mut self, limit: Duration) {
        self.lua.set_time_limit(limit);
    }

    /// Makes recorded changes again, without writing them to the journal. After a restart of the machine
    /// (`other_boot`) the recorded times mean nothing, and keys that expire are dropped. What has its time in another way is left.
    pub fn restore(&mut self, effects: impl IntoIterator<Item = Effect>, other_boot: bool) {
        let mut core = self.core();
        let journaling = std::mem::replace(&mut core.journaling, false);
        core.set_time(0);
        for effect in effects {
            core.apply(effect);
        }
        if other_boot {
            core.drop_expiring();
        }
        // What has ended since is gone from here on, and the journal has it still.
        core.journaling = journaling;
        core.begin();
    }

    /// Does something that the journal is told by its next rewrite.
    pub(crate) fn unrecorded(&mut self, work: impl FnOnce(&mut Engine)) {
        let journaling = std::mem::replace(&mut self.core().journaling, false);
        work(self);
        self.core().journaling = journaling;
    }

    /// Grants nothing before this time on the boot clock: what holds it may be missing. What is there is renewed and released as
    /// ever. `until_ms` is in milliseconds; `u64::MAX` is never.
    pub fn wait_until(&mut self, until_ms: u64) {
        self.core().wait_until_ms = until_ms;
    }

    /// For how many milliseconds more nothing is granted.
    pub(crate) fn wait_left_ms(&mut self) -> u64 {
        self.begin();
        let core = self.core();
        core.wait_until_ms.saturating_sub(core.now_ms)
    }

    /// Rewrites the journal with what is there now.
    ///
    /// # Errors
    ///
    /// The error of the journal; it goes on with what it has.
    pub fn rewrite_journal(&mut self) -> std::io::Result<()> {
        self.begin();
        let Some(journal) = &mut self.journal else { return Ok(()) };
        rewrite(&mut **journal, &mut self.core.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the journal again if its file is not where it was.
    pub(crate) fn mend_journal(&mut self) -> std::io::Result<()> {
        if self.journal.as_ref().is_none_or(|journal| journal.is_in_place()) {
            return Ok(());
        }
        self.rewrite_journal()?;
        tracing::warn!("the journal was deleted and has been made again");
        Ok(())
    }

    /// Ends the journal; nothing may change afterwards.
    ///
    /// # Errors
    ///
    /// The error of the journal.
    pub fn close_journal(&mut self) -> std::io::Result<()> {
        self.journal.as_mut().map_or(Ok(()), |journal| journal.close())
    }

    /// The shortest list of changes that builds the present keyspace.
    pub fn snapshot(&mut self) -> Vec<Effect> {
        self.begin();
        self.core().snapshot()
    }

    /// The whole keyspace in a stable order.
    pub fn dump(&mut self) -> Vec<DumpedKey> {
        self.begin();
        let mut core = self.core();
        core.expiring_key_count();
        let now_ms = core.now_ms;
        let mut out: Vec<DumpedKey> = core
            .slots_from(0)
            .map(|(_, slot)| DumpedKey {
                key: slot.key.to_vec(),
                kind: slot.data.type_name(),
                ttl_ms: (slot.expires_at_ms != NEVER).then(|| slot.expires_at_ms.saturating_sub(now_ms)),
                content: content(&slot.data),
            })
            .collect();
        out.sort_by(|a, b| a.key.cmp(&b.key));
        out
    }
}

fn content(data: &Data) -> Value {
    match data {
        Data::Str(text) => Value::bytes(text),
        Data::Hash(hash) => {
            let mut fields: Vec<(&[u8], &[u8])> = hash.iter().collect();
            fields.sort_unstable();
            let pairs = fields.into_iter().flat_map(|(field, value)| [field, value]);
            Value::Array(pairs.map(Value::bytes).collect())
        }
        Data::List(list) => Value::Array(list.iter().map(|value| Value::bytes(value)).collect()),
        Data::SortedSet(set) => Value::Array(
            set.iter()
                .flat_map(|(member, score)| {
                    [Value::bytes(member), Value::bytes(format_float(score).as_bytes())]
                })
                .collect(),
        ),
    }
}
