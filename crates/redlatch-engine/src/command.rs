//! The table of commands, and how one is looked up, checked and run.

use crate::keyspace::{Core, Reply, expiry, hash, keys, list, string, zset};
use crate::recovery::only_takes_away;
use crate::value::{EngineError, NOT_INTEGER, Value};

struct Command {
    packed: u128,
    name: &'static str,
    /// Exact number of words, command included; negative: at least so many.
    arity: i16,
    writes: bool,
    run: fn(&mut Core, &[&[u8]]) -> Reply,
}

const fn command(
    name: &'static str,
    arity: i16,
    writes: bool,
    run: fn(&mut Core, &[&[u8]]) -> Reply,
) -> Command {
    Command { packed: pack(name.as_bytes()), name, arity, writes, run }
}

/// Packs a name of at most 16 bytes into a number, lower case, so that a lookup compares numbers.
const fn pack(name: &[u8]) -> u128 {
    let mut packed: u128 = 0;
    let mut i = 0;
    while i < 16 {
        packed <<= 8;
        if i < name.len() {
            packed |= name[i].to_ascii_lowercase() as u128;
        }
        i += 1;
    }
    packed
}

const READ: bool = false;
const WRITE: bool = true;

static TABLE: &[Command] = &[
    command("dbsize", 1, READ, keys::dbsize),
    command("decr", 2, WRITE, string::decr),
    command("decrby", 3, WRITE, string::decrby),
    command("del", -2, WRITE, keys::del),
    command("echo", 2, READ, echo),
    command("exists", -2, READ, keys::exists),
    command("expire", -3, WRITE, expiry::expire),
    command("flushall", -1, WRITE, keys::flushall),
    command("get", 2, READ, string::get),
    command("hdel", -3, WRITE, hash::hdel),
    command("hexists", 3, READ, hash::hexists),
    command("hget", 3, READ, hash::hget),
    command("hgetall", 2, READ, hash::hgetall),
    command("hincrby", 4, WRITE, hash::hincrby),
    command("hkeys", 2, READ, hash::hkeys),
    command("hlen", 2, READ, hash::hlen),
    command("hmget", -3, READ, hash::hmget),
    command("hrandfield", -2, READ, hash::hrandfield),
    command("hset", -4, WRITE, hash::hset),
    command("hsetnx", 4, WRITE, hash::hsetnx),
    command("hvals", 2, READ, hash::hvals),
    command("incr", 2, WRITE, string::incr),
    command("incrby", 3, WRITE, string::incrby),
    command("lindex", 3, READ, list::lindex),
    command("llen", 2, READ, list::llen),
    command("lpop", -2, WRITE, list::lpop),
    command("lpush", -3, WRITE, list::lpush),
    command("lrange", 4, READ, list::lrange),
    command("lrem", 4, WRITE, list::lrem),
    command("persist", 2, WRITE, expiry::persist),
    command("pexpire", -3, WRITE, expiry::pexpire),
    command("pexpireat", -3, WRITE, expiry::pexpireat),
    command("pexpiretime", 2, READ, expiry::pexpiretime),
    command("ping", -1, READ, ping),
    command("pttl", 2, READ, expiry::pttl),
    command("publish", 3, READ, publish),
    command("rpop", -2, WRITE, list::rpop),
    command("rpush", -3, WRITE, list::rpush),
    command("scan", -2, READ, keys::scan),
    command("select", 2, READ, select),
    command("set", -3, WRITE, string::set),
    command("spublish", 3, READ, spublish),
    command("strlen", 2, READ, string::strlen),
    command("time", 1, READ, time),
    command("ttl", 2, READ, expiry::ttl),
    command("type", 2, READ, keys::type_of),
    command("unlink", -2, WRITE, keys::del),
    command("zadd", -4, WRITE, zset::zadd),
    command("zcard", 2, READ, zset::zcard),
    command("zcount", 4, READ, zset::zcount),
    command("zincrby", 4, WRITE, zset::zincrby),
    command("zrange", -4, READ, zset::zrange),
    command("zrangebyscore", -4, READ, zset::zrangebyscore),
    command("zrank", 3, READ, zset::zrank),
    command("zrem", -3, WRITE, zset::zrem),
    command("zremrangebyscore", 4, WRITE, zset::zremrangebyscore),
    command("zscore", 3, READ, zset::zscore),
];

/// Every command that the engine knows, in alphabetical order. The list is frozen: it holds what lock scripts
/// call, and grows only with them.
pub const COMMANDS: &[&str] = &[
    "dbsize",
    "decr",
    "decrby",
    "del",
    "echo",
    "exists",
    "expire",
    "flushall",
    "get",
    "hdel",
    "hexists",
    "hget",
    "hgetall",
    "hincrby",
    "hkeys",
    "hlen",
    "hmget",
    "hrandfield",
    "hset",
    "hsetnx",
    "hvals",
    "incr",
    "incrby",
    "lindex",
    "llen",
    "lpop",
    "lpush",
    "lrange",
    "lrem",
    "persist",
    "pexpire",
    "pexpireat",
    "pexpiretime",
    "ping",
    "pttl",
    "publish",
    "rpop",
    "rpush",
    "scan",
    "select",
    "set",
    "spublish",
    "strlen",
    "time",
    "ttl",
    "type",
    "unlink",
    "zadd",
    "zcard",
    "zcount",
    "zincrby",
    "zrange",
    "zrangebyscore",
    "zrank",
    "zrem",
    "zremrangebyscore",
    "zscore",
];

/// Who asks; only the wording of two errors depends on it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Caller {
    Client,
    Script,
}

/// Runs one command. The first word is its name, in any case.
pub(crate) fn execute(core: &mut Core, args: &[&[u8]], caller: Caller) -> Reply {
    let name = args.first().copied().unwrap_or_default();
    let found = if name.len() <= 16 {
        TABLE.binary_search_by_key(&pack(name), |command| command.packed).ok()
    } else {
        None
    };
    let Some(command) = found.map(|at| &TABLE[at]) else { return Err(unknown(args, caller)) };
    let words = i16::try_from(args.len()).unwrap_or(i16::MAX);
    if (command.arity >= 0 && words != command.arity) || words < -command.arity {
        return Err(match caller {
            Caller::Client => {
                EngineError::new(format!("ERR wrong number of arguments for '{}' command", command.name))
            }
            Caller::Script => {
                EngineError::fixed("ERR Wrong number of args calling Redis command from script")
            }
        });
    }
    if command.writes {
        if let Some(error) = &core.refuse_writes {
            return Err(error.clone());
        }
        if let Some(word) = args.iter().find(|word| word.len() > WORD_BYTES_MAX) {
            return Err(EngineError::new(format!(
                "ERR a text of {} bytes is too long, the engine keeps at most {WORD_BYTES_MAX}",
                word.len()
            )));
        }
        if needs_memory(command.name) && core.is_full() {
            return Err(OOM);
        }
        if core.now_ms < core.wait_until_ms && !core.recovering.admits(command.name, args) {
            return Err(recovering(core.wait_until_ms, core.now_ms));
        }
    }
    if let Some(declared) = &core.declared
        && let Some(key) = keys_of(command.name, args).iter().find(|key| !declared.contains(**key))
    {
        let key = String::from_utf8_lossy(key);
        return Err(EngineError::new(format!("ERR script tried accessing undeclared key '{key}'")));
    }
    (command.run)(core, args)
}

/// The words of a command that are keys.
fn keys_of<'a>(name: &str, args: &'a [&'a [u8]]) -> &'a [&'a [u8]] {
    match name {
        "del" | "exists" | "unlink" => &args[1..],
        "dbsize" | "echo" | "flushall" | "ping" | "publish" | "scan" | "select" | "spublish" | "time" => &[],
        _ => &args[1..2],
    }
}

/// The longest text that is kept, in bytes.
pub(crate) const WORD_BYTES_MAX: usize = 64 << 20;

/// The journal cannot be written.
pub(crate) fn misconf(error: &std::io::Error) -> EngineError {
    EngineError::new(format!(
        "MISCONF The journal cannot be written: {error}; writes are refused until it can"
    ))
}

/// What was changed stands in memory, and the journal does not have it yet. Unlike a refusal, which has changed nothing.
pub(crate) fn unsaved(error: &std::io::Error) -> EngineError {
    EngineError::new(format!(
        "UNSAVED The journal cannot be written: {error}; the change is kept as long as the engine runs"
    ))
}

/// Whether a command changes keys.
pub fn writes(name: &str) -> bool {
    TABLE.iter().any(|command| command.name == name && command.writes)
}

/// Whether a command may make the keyspace larger by more than a few digits.
fn needs_memory(name: &str) -> bool {
    !only_takes_away(name) && !matches!(name, "persist")
}

/// As Redis says it.
const OOM: EngineError = EngineError::fixed(
    "OOM command not allowed when used memory > 'maxmemory': the engine keeps no more than --memory-max",
);

/// What holds this may be missing from the journal.
fn recovering(until_ms: u64, now_ms: u64) -> EngineError {
    let until = if until_ms == u64::MAX {
        "until the engine is stopped and its files are removed by hand, because nobody knows how long"
            .to_owned()
    } else {
        format!("for {} ms more, the longest lease", until_ms - now_ms)
    };
    EngineError::new(format!(
        "RECOVERING the local engine found its journal damaged, and what is missing may be a hold; nothing is granted {until}"
    ))
}

fn unknown(args: &[&[u8]], caller: Caller) -> EngineError {
    if caller == Caller::Script {
        return EngineError::fixed("ERR Unknown Redis command called from script");
    }
    // What a client sent comes back shortened, as in Redis: an error reply stays small.
    let mut text = String::from("ERR unknown command '");
    push_short(&mut text, args.first().copied().unwrap_or_default());
    text.push_str("', with args beginning with: ");
    for arg in args.iter().skip(1).take(8) {
        text.push('\'');
        push_short(&mut text, arg);
        text.push_str("' ");
        if text.len() > 200 {
            break;
        }
    }
    EngineError::new(text)
}

fn push_short(text: &mut String, bytes: &[u8]) {
    text.push_str(&String::from_utf8_lossy(&bytes[..bytes.len().min(128)]));
}

fn ping(_core: &mut Core, args: &[&[u8]]) -> Reply {
    match args {
        [_] => Ok(Value::Status("PONG".to_owned())),
        [_, text] => Ok(Value::bytes(text)),
        _ => Err(EngineError::fixed("ERR wrong number of arguments for 'ping' command")),
    }
}

fn echo(_core: &mut Core, args: &[&[u8]]) -> Reply {
    Ok(Value::bytes(args[1]))
}

fn select(_core: &mut Core, args: &[&[u8]]) -> Reply {
    match crate::number::parse_int(args[1]) {
        Some(0) => Ok(Value::ok()),
        Some(_) => Err(EngineError::fixed("ERR DB index is out of range")),
        None => Err(NOT_INTEGER),
    }
}

fn time(core: &mut Core, _args: &[&[u8]]) -> Reply {
    let now_us = core.unix_us();
    let text = |number: u64| Value::Bytes(number.to_string().into_bytes());
    Ok(Value::Array(vec![text(now_us / 1_000_000), text(now_us % 1_000_000)]))
}

fn publish(core: &mut Core, args: &[&[u8]]) -> Reply {
    Ok(Value::Int(keys::count(core.publisher.publish(args[1], args[2]))))
}

fn spublish(core: &mut Core, args: &[&[u8]]) -> Reply {
    Ok(Value::Int(keys::count(core.publisher.publish_sharded(args[1], args[2]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_the_table() {
        let names: Vec<&str> = TABLE.iter().map(|command| command.name).collect();
        assert_eq!(names, COMMANDS);
        assert!(TABLE.is_sorted_by_key(|command| command.packed));
        assert_eq!(COMMANDS.len(), 57);
    }
}
