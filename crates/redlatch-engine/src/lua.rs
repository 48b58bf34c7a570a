//! The Lua host: compiled scripts, their sandbox and the way from `redis.call` into the keyspace.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mlua::chunk::ChunkMode;
use mlua::{
    BString, Either, Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Variadic, VmState,
};

use rustix::time::{ClockId, clock_gettime};

use crate::command::{COMMANDS, Caller, execute};
use crate::fast_hash::FastMap;
use crate::keyspace::Core;
use crate::lua_struct;
use crate::lua_text;
use crate::recovery::{Recovering, only_looks};
use crate::value::{EngineError, NOSCRIPT, Value};

/// How often a running script is looked at, in virtual-machine instructions.
const INSTRUCTIONS_PER_CHECK: u32 = 1_000;
/// How much memory the Lua state may use before a running script is stopped.
const LUA_MEMORY_BYTES_MAX: usize = 512 << 20;
/// What one operation of a script may not go beyond, between two looks at it.
const LUA_MEMORY_BYTES_END: usize = 2 * LUA_MEMORY_BYTES_MAX;
/// How many compiled scripts are kept.
const SCRIPTS_MAX: usize = 10_000;
/// Deeper replies are refused; Redis has a similar bound in the Lua stack.
const REPLY_DEPTH_MAX: usize = 100;

/// Watches one running script.
struct Watch {
    /// When the current script was first seen running, and how long this thread had been running then; empty until a check happens.
    first_seen: Mutex<Option<(Instant, Duration)>>,
    seen: AtomicBool,
    stopped: AtomicBool,
    time_limit: Mutex<Duration>,
}

/// A SHA-1 in lower-case hexadecimal.
type Sha = [u8; 40];

/// The SHA-1 that a text names, in whatever case; none when it is not 40 bytes long.
fn sha_of(text: &str) -> Option<Sha> {
    let mut sha: Sha = text.as_bytes().try_into().ok()?;
    sha.make_ascii_lowercase();
    Some(sha)
}

struct Script {
    function: Function,
    recovering: Recovering,
    only_looks: bool,
}

pub(crate) struct LuaHost {
    lua: Lua,
    environment: Table,
    run: Function,
    run_one_key: Function,
    run_two_keys: Function,
    scripts: FastMap<Sha, Script>,
    watch: Arc<Watch>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held cannot leave these values half-changed in a way that matters more than
    // stopping every later command would.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn internal(error: mlua::Error) -> EngineError {
    EngineError::new(format!("ERR {error}"))
}

impl LuaHost {
    pub(crate) fn new(core: &Arc<Mutex<Core>>) -> Result<LuaHost, EngineError> {
        Self::build(core).map_err(internal)
    }

    fn build(core: &Arc<Mutex<Core>>) -> mlua::Result<LuaHost> {
        // The standard `pcall` is kept: panics of Rust callbacks do not travel through Lua, they abort the call.
        let options = LuaOptions::new().catch_rust_panics(false);
        let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE | StdLib::MATH, options)?;
        let core = Arc::clone(core);
        let raw_call = lua.create_function(move |lua, (count, a, b, c, d, e, rest): Words| {
            call(lua, &core, count, [a, b, c, d, e], &rest)
        })?;
        let watch = Arc::new(Watch {
            first_seen: Mutex::new(None),
            seen: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            time_limit: Mutex::new(Duration::from_secs(5)),
        });
        let pace = {
            let watch = Arc::clone(&watch);
            move |lua: &Lua| look(lua, &watch)
        };
        lua.load(include_str!("patterns.lua"))
            .set_name("=patterns")
            .set_mode(ChunkMode::Text)
            .call::<()>(lua_text::functions(&lua, pace)?)?;
        let names = lua.create_table_from(COMMANDS.iter().map(|name| (*name, true)))?;
        let (environment, run, run_one_key, run_two_keys) = lua
            .load(include_str!("sandbox.lua"))
            .set_name("=sandbox")
            .set_mode(ChunkMode::Text)
            .call((raw_call, helpers(&lua)?, lua_struct::library(&lua)?, names))?;
        lua.set_memory_limit(LUA_MEMORY_BYTES_END)?;
        install_hook(&lua, &watch, INSTRUCTIONS_PER_CHECK)?;
        Ok(LuaHost { lua, environment, run, run_one_key, run_two_keys, scripts: FastMap::default(), watch })
    }

    pub(crate) fn set_time_limit(&mut self, limit: Duration) {
        *lock(&self.watch.time_limit) = limit;
    }

    /// Compiles a script unless that was done before. Returns its SHA-1 in hexadecimal.
    pub(crate) fn load(&mut self, source: &[u8]) -> Result<String, EngineError> {
        let sha = sha1_smol::Sha1::from(source).hexdigest();
        if !self.knows(&sha) {
            // Sources made up at run time must not fill the memory. A client that misses a script loads it again, as
            // after SCRIPT FLUSH.
            if self.scripts.len() >= SCRIPTS_MAX {
                self.scripts.clear();
            }
            let function = self
                .lua
                .load(source)
                .set_name("@user_script")
                .set_mode(ChunkMode::Text)
                .set_environment(self.environment.clone())
                .into_function()
                .map_err(|error| {
                    EngineError::new(format!("ERR Error compiling script (new function): {}", root(&error)))
                })?;
            let (recovering, only_looks) = (Recovering::of(source), only_looks(source));
            let script = Script { function, recovering, only_looks };
            self.scripts.extend(sha_of(&sha).map(|sha| (sha, script)));
        }
        Ok(sha)
    }

    pub(crate) fn knows(&self, sha: &str) -> bool {
        sha_of(sha).is_some_and(|sha| self.scripts.contains_key(&sha))
    }

    /// What a script does while holds may be missing.
    pub(crate) fn recovering(&self, sha: &str) -> Recovering {
        let script = sha_of(sha).and_then(|sha| self.scripts.get(&sha));
        script.map_or(Recovering::Unsaid, |script| script.recovering)
    }

    pub(crate) fn only_looks(&self, sha: &str) -> bool {
        sha_of(sha).and_then(|sha| self.scripts.get(&sha)).is_some_and(|script| script.only_looks)
    }

    pub(crate) fn forget_all(&mut self) {
        self.scripts.clear();
    }

    pub(crate) fn run(
        &self,
        sha: &str,
        keys: &[impl AsRef<[u8]>],
        args: &[impl AsRef<[u8]>],
    ) -> Result<Value, EngineError> {
        let script = sha_of(sha).and_then(|sha| self.scripts.get(&sha)).ok_or(NOSCRIPT)?;
        if self.watch.seen.swap(false, Ordering::Relaxed) {
            *lock(&self.watch.first_seen) = None;
        }
        let outcome = self.enter(&script.function, keys, args);
        if self.watch.stopped.swap(false, Ordering::Relaxed) {
            install_hook(&self.lua, &self.watch, INSTRUCTIONS_PER_CHECK).map_err(internal)?;
            // What it has left must not stop the next script.
            self.lua.gc_collect().map_err(internal)?;
            return Err(EngineError::new(format!(
                "ERR Script stopped: it ran for too long or used too much memory script: {sha}, on @user_script."
            )));
        }
        match outcome {
            Ok((true, -1, reply)) => reply.first().map_or(Ok(Value::Nil), |reply| from_lua(reply, 0)),
            Ok((true, _, items)) => from_items(&items),
            Ok((false, _, error)) => Err(script_error(error.first().unwrap_or(&mlua::Value::Nil), sha)),
            Err(error) => Err(EngineError::new(format!("ERR {} script: {sha}", root(&error)))),
        }
    }
}

/// Bytes on their way into Lua. UTF-8 is pushed as it is; only other bytes take the detour over a copy.
fn text(value: &impl AsRef<[u8]>) -> Either<&str, BString> {
    let bytes = value.as_ref();
    std::str::from_utf8(bytes).map_or_else(|_| Either::Right(bytes.into()), Either::Left)
}

/// Whether the script ended well, how its reply is handed over, and the reply (see `finish` in the sandbox).
type Outcome = (bool, i64, Variadic<mlua::Value>);

impl LuaHost {
    fn enter(
        &self,
        script: &Function,
        keys: &[impl AsRef<[u8]>],
        args: &[impl AsRef<[u8]>],
    ) -> mlua::Result<Outcome> {
        let variadic = || args.iter().map(text).collect::<Variadic<_>>();
        match keys {
            [key] if args.len() <= VARIADIC_MAX => self.run_one_key.call((script, text(key), variadic())),
            [first, second] if args.len() <= VARIADIC_MAX => {
                self.run_two_keys.call((script, text(first), text(second), variadic()))
            }
            _ => {
                let keys = self.lua.create_sequence_from(keys.iter().map(text))?;
                let args = self.lua.create_sequence_from(args.iter().map(text))?;
                self.run.call((script, keys, args))
            }
        }
    }
}

/// Lets a script run on, or stops it. Stopping raises an error at *every* instruction from then on, because a
/// script may catch the first one.
fn install_hook(lua: &Lua, watch: &Arc<Watch>, every: u32) -> mlua::Result<()> {
    let watch = Arc::clone(watch);
    lua.set_hook(HookTriggers::new().every_nth_instruction(every), move |lua, _| {
        look(lua, &watch).map(|()| VmState::Continue)
    })
}

/// How long this thread has been running so far. It stands still while the process is stopped, and other programs have the processor.
fn thread_ran() -> Duration {
    let ran = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(ran.tv_sec.unsigned_abs(), u32::try_from(ran.tv_nsec).unwrap_or(0))
}

/// Fails when the running script is to end.
fn look(lua: &Lua, watch: &Arc<Watch>) -> mlua::Result<()> {
    if watch.stopped.load(Ordering::Relaxed) {
        return Err(mlua::Error::runtime("script stopped"));
    }
    watch.seen.store(true, Ordering::Relaxed);
    let (first, ran_before) = *lock(&watch.first_seen).get_or_insert_with(|| (Instant::now(), thread_ran()));
    let limit = *lock(&watch.time_limit);
    // A process that was stopped comes back to its script, which must not end half-way on account of that.
    let ran_out = first.elapsed() > limit && thread_ran().saturating_sub(ran_before) > limit;
    if ran_out || lua.used_memory() > LUA_MEMORY_BYTES_MAX {
        watch.stopped.store(true, Ordering::Relaxed);
        install_hook(lua, watch, 1)?;
        return Err(mlua::Error::runtime("script stopped"));
    }
    Ok(())
}

fn helpers(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set(
        "sha1hex",
        lua.create_function(|_, text: mlua::LuaString| {
            Ok(sha1_smol::Sha1::from(&*text.as_bytes()).hexdigest())
        })?,
    )?;
    table
        .set("status_reply", lua.create_function(|lua, args: MultiValue| single_field(lua, "ok", &args))?)?;
    table
        .set("error_reply", lua.create_function(|lua, args: MultiValue| single_field(lua, "err", &args))?)?;
    table.set("log", lua.create_function(|_, _: MultiValue| Ok(()))?)?;
    table.set("replicate_commands", lua.create_function(|_, ()| Ok(true))?)?;
    for (level, name) in ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"].iter().enumerate() {
        table.set(*name, level)?;
    }
    Ok(table)
}

/// `{ok = text}` or `{err = text}`; an error text may begin with the minus sign of the wire format.
fn single_field(lua: &Lua, field: &str, args: &MultiValue) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    match args.iter().next() {
        Some(mlua::Value::String(text)) if args.len() == 1 => {
            let bytes = text.as_bytes();
            let text = match &*bytes {
                [b'-', rest @ ..] if field == "err" => rest,
                all => all,
            };
            table.raw_set(field, lua.create_string(text)?)?;
        }
        _ => table.raw_set("err", "ERR wrong number or type of arguments")?,
    }
    Ok(table)
}

/// The words of most commands fit here; more of them cost an allocation.
const WORDS_INLINE: usize = 5;
/// So many arguments are passed on the Lua stack, more of them in a table.
const VARIADIC_MAX: usize = 64;

/// A word as the sandbox hands it over: text, or `false` for what cannot be one. Byte strings are copied out of
/// Lua, which is much cheaper than holding a reference to them.
type Word = Option<Either<BString, bool>>;
type Words = (usize, Word, Word, Word, Word, Word, Variadic<Either<BString, bool>>);

/// `redis.call` and `redis.pcall`: returns the reply, and true when it is an error.
fn call(
    lua: &Lua,
    core: &Mutex<Core>,
    count: usize,
    first: [Word; WORDS_INLINE],
    rest: &[Either<BString, bool>],
) -> mlua::Result<(Either<String, mlua::Value>, bool)> {
    if count == 0 {
        let error = EngineError::fixed("ERR Please specify at least one argument for this redis lib call");
        return failed(lua, &error);
    }
    let inline = count.min(WORDS_INLINE);
    let mut slices: [&[u8]; WORDS_INLINE] = [b""; WORDS_INLINE];
    for (slice, word) in slices.iter_mut().zip(&first[..inline]) {
        match word {
            Some(Either::Left(text)) => *slice = text,
            _ => return failed(lua, &BAD_ARGUMENT),
        }
    }
    let reply = if count <= WORDS_INLINE {
        execute(&mut lock(core), &slices[..inline], Caller::Script)
    } else {
        let mut all = slices.to_vec();
        for word in rest {
            match word {
                Either::Left(text) => all.push(text),
                Either::Right(_) => return failed(lua, &BAD_ARGUMENT),
            }
        }
        execute(&mut lock(core), &all, Caller::Script)
    };
    match reply {
        Ok(value) => Ok((to_lua(lua, value)?, false)),
        Err(error) => failed(lua, &error),
    }
}

const BAD_ARGUMENT: EngineError =
    EngineError::fixed("ERR Lua redis lib command arguments must be strings or integers");

fn failed(lua: &Lua, error: &EngineError) -> mlua::Result<(Either<String, mlua::Value>, bool)> {
    Ok((Either::Right(error_table(lua, error)?), true))
}

fn error_table(lua: &Lua, error: &EngineError) -> mlua::Result<mlua::Value> {
    let table = lua.create_table()?;
    table.raw_set("err", error.message())?;
    Ok(mlua::Value::Table(table))
}

fn to_lua(lua: &Lua, value: Value) -> mlua::Result<Either<String, mlua::Value>> {
    Ok(Either::Right(match value {
        Value::Nil => mlua::Value::Boolean(false),
        Value::Int(number) => mlua::Value::Number(number as f64),
        Value::Bytes(bytes) => match String::from_utf8(bytes) {
            Ok(text) => return Ok(Either::Left(text)),
            Err(other) => mlua::Value::String(lua.create_string(other.as_bytes())?),
        },
        Value::Array(values) => {
            let items =
                values.into_iter().map(|value| to_lua(lua, value)).collect::<mlua::Result<Vec<_>>>()?;
            mlua::Value::Table(lua.create_sequence_from(items)?)
        }
        Value::Status(text) => {
            let table = lua.create_table()?;
            table.raw_set("ok", text)?;
            mlua::Value::Table(table)
        }
    }))
}

fn from_lua(value: &mlua::Value, depth: usize) -> Result<Value, EngineError> {
    if depth > REPLY_DEPTH_MAX {
        return Err(EngineError::fixed("ERR reached lua stack limit"));
    }
    Ok(match value {
        mlua::Value::String(text) => Value::bytes(&text.as_bytes()),
        mlua::Value::Integer(number) => Value::Int(*number),
        mlua::Value::Number(number) => Value::Int(truncated(*number)),
        mlua::Value::Boolean(true) => Value::Int(1),
        mlua::Value::Table(table) => return from_table(table, depth),
        _ => Value::Nil,
    })
}

/// A number as the integer that Redis replies. Numbers that fit no integer become the smallest one, which is what the
/// C conversion gives on the machines that Redis runs on.
fn truncated(number: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&number) { number as i64 } else { i64::MIN }
}

/// A list that ends at its first nil.
fn from_items(items: &[mlua::Value]) -> Result<Value, EngineError> {
    let items = items.iter().take_while(|item| !item.is_nil());
    items.map(|item| from_lua(item, 1)).collect::<Result<Vec<Value>, EngineError>>().map(Value::Array)
}

fn from_table(table: &Table, depth: usize) -> Result<Value, EngineError> {
    let size = table.raw_len();
    // A plain sequence is by far the commonest reply and has neither field.
    if let mlua::Value::String(text) = table.raw_get("err").map_err(internal)? {
        return Err(EngineError::new(text.to_string_lossy()));
    }
    if let mlua::Value::String(text) = table.raw_get("ok").map_err(internal)? {
        return Ok(Value::Status(text.to_string_lossy().replace(['\r', '\n'], " ")));
    }
    let mut out = Vec::with_capacity(size);
    for i in 1.. {
        match table.raw_get::<mlua::Value>(i).map_err(internal)? {
            mlua::Value::Nil => break,
            item => out.push(from_lua(&item, depth + 1)?),
        }
    }
    Ok(Value::Array(out))
}

fn script_error(error: &mlua::Value, sha: &str) -> EngineError {
    let text = match error {
        mlua::Value::Table(table) => match table.raw_get::<mlua::Value>("err") {
            Ok(mlua::Value::String(text)) => text.to_string_lossy(),
            _ => "ERR unknown error".to_owned(),
        },
        mlua::Value::String(text) => format!("ERR {}", text.to_string_lossy()),
        mlua::Value::Error(error) => format!("ERR {}", root(error)),
        _ => "ERR unknown error".to_owned(),
    };
    EngineError::new(format!("{text} script: {sha}, on @user_script."))
}

/// The message of an error without the traceback that is put around it.
fn root(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause, .. } => root(cause),
        mlua::Error::RuntimeError(text) => text.lines().next().unwrap_or_default().to_owned(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}
