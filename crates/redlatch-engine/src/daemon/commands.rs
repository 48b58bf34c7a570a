//! What clients may ask for. Without compat mode that is: say who you are, run our scripts, subscribe.

use std::rc::Rc;

use super::lifelines::Line;
use super::pubsub::Kind;
use super::session::Session;
use super::{ExitReason, Shared};
use crate::number::parse_int;
use crate::value::{EngineError, NOSCRIPT, NOT_INTEGER, SYNTAX};

/// How many locks a status names.
const STATUS_LOCKS_MAX: usize = 1000;

/// How many subscriptions a connection may have.
const SUBSCRIPTIONS_MAX: usize = 10_000;

const RESTRICTED: EngineError = EngineError::fixed(
    "NOPERM this engine only runs Redlatch's own scripts; start it with --compat to open it to other clients",
);

fn wrong_arity(command: &str) -> EngineError {
    EngineError::new(format!("ERR wrong number of arguments for '{command}' command"))
}

/// Runs one request; its reply goes behind the others of the connection.
pub(super) fn run(shared: &Rc<Shared>, session: &mut Session, request: &[u8], words: &[(usize, usize)]) {
    let args: Vec<&[u8]> = words.iter().map(|&(start, end)| &request[start..end]).collect();
    let name = String::from_utf8_lossy(args[0]).to_ascii_lowercase();
    if let Err(error) = dispatch(shared, session, &name, &args) {
        session.out.error(error.message());
    }
}

fn dispatch(
    shared: &Rc<Shared>,
    session: &mut Session,
    name: &str,
    args: &[&[u8]],
) -> Result<(), EngineError> {
    // A RESP2 client cannot tell replies from messages, so it may do nothing else while it listens.
    let listening = !session.out.resp3 && !session.subscriptions.is_empty();
    match name {
        "evalsha" if !listening => return evalsha(shared, session, args),
        "eval" if !listening => return eval(shared, session, args),
        "subscribe" | "psubscribe" | "ssubscribe" => return subscribe(shared, session, name, args),
        "unsubscribe" | "punsubscribe" | "sunsubscribe" => return unsubscribe(shared, session, name, args),
        "quit" => {
            session.out.status("OK");
            session.closing = true;
        }
        "reset" => {
            leave_all(shared, session);
            session.out.resp3 = false;
            session.outbox.use_resp3(false);
            session.out.status("RESET");
        }
        "ping" if listening => {
            session.out.array(2);
            session.out.bulk(b"pong");
            session.out.bulk(args.get(1).copied().unwrap_or_default());
        }
        _ if listening => {
            return Err(EngineError::new(format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed \
                 in this context",
                &name[..name.floor_char_boundary(64)]
            )));
        }
        "hello" => return hello(session, args),
        "auth" => session.out.status("OK"),
        "client" => return client(session, args),
        "redlatch" => return redlatch(shared, session, args),
        "script" => return script(shared, session, args),
        "pubsub" => return pubsub(shared, session, args),
        "info" => info(shared, session),
        "command" => session.out.array(0),
        "ping" | "select" => return engine(shared, session, args),
        _ if shared.compat => return engine(shared, session, args),
        _ => return Err(RESTRICTED),
    }
    Ok(())
}

fn engine(shared: &Shared, session: &mut Session, args: &[&[u8]]) -> Result<(), EngineError> {
    let reply = shared.engine().call(args)?;
    session.out.value(&reply);
    Ok(())
}

type KeysAndArgs<'a> = (&'a [&'a [u8]], &'a [&'a [u8]]);

/// Splits the words behind a script into keys and arguments.
fn split<'a>(args: &'a [&'a [u8]], name: &str) -> Result<KeysAndArgs<'a>, EngineError> {
    let Some(count) = args.get(2) else { return Err(wrong_arity(name)) };
    let count = parse_int(count).ok_or(NOT_INTEGER)?;
    let count =
        usize::try_from(count).map_err(|_| EngineError::fixed("ERR Number of keys can't be negative"))?;
    args[3..]
        .split_at_checked(count)
        .ok_or(EngineError::fixed("ERR Number of keys can't be greater than number of args"))
}

fn evalsha(shared: &Shared, session: &mut Session, args: &[&[u8]]) -> Result<(), EngineError> {
    let (keys, rest) = split(args, "evalsha")?;
    let sha = std::str::from_utf8(args[1]).map_err(|_| NOSCRIPT)?;
    // Whatever is loaded may be run: without compat mode nothing else can be loaded.
    run_script(shared, session, sha, (keys, rest))
}

fn run_script(
    shared: &Shared,
    session: &mut Session,
    sha: &str,
    (keys, rest): KeysAndArgs<'_>,
) -> Result<(), EngineError> {
    let mut engine = shared.engine();
    if !engine.only_looks(sha) {
        shared.lifelines.note_owners(&session.user(), &mut session.known, rest);
    }
    let reply = engine.eval_sha(sha, keys, rest);
    shared.scripts_run.set(shared.scripts_run.get() + 1);
    session.out.value(&reply?);
    Ok(())
}

fn allowed(shared: &Shared, source: &[u8]) -> Result<(), EngineError> {
    if shared.compat || shared.allowed.contains(&sha1_smol::Sha1::from(source).hexdigest()) {
        Ok(())
    } else {
        Err(RESTRICTED)
    }
}

fn eval(shared: &Shared, session: &mut Session, args: &[&[u8]]) -> Result<(), EngineError> {
    let (keys, rest) = split(args, "eval")?;
    allowed(shared, args[1])?;
    let sha = shared.engine().load(args[1])?;
    run_script(shared, session, &sha, (keys, rest))
}

fn script(shared: &Shared, session: &mut Session, args: &[&[u8]]) -> Result<(), EngineError> {
    let verb = args.get(1).map(|verb| verb.to_ascii_lowercase()).unwrap_or_default();
    match (verb.as_slice(), &args[2.min(args.len())..]) {
        (b"load", [source]) => {
            allowed(shared, source)?;
            let sha = shared.engine().load(source)?;
            session.out.bulk(sha.as_bytes());
        }
        (b"exists", shas) if !shas.is_empty() => {
            session.out.array(shas.len());
            let engine = shared.engine();
            for sha in shas {
                let known = std::str::from_utf8(sha).is_ok_and(|sha| engine.knows_script(sha));
                session.out.int(i64::from(known));
            }
        }
        // Our own scripts stay: a client that flushes them would only make the next caller load them again.
        (b"flush", _) => session.out.status("OK"),
        _ => return Err(SYNTAX),
    }
    Ok(())
}

fn hello(session: &mut Session, args: &[&[u8]]) -> Result<(), EngineError> {
    match args.get(1).copied() {
        None => {}
        Some(b"2") => session.out.resp3 = false,
        Some(b"3") => session.out.resp3 = true,
        Some(_) => return Err(EngineError::fixed("NOPROTO unsupported protocol version")),
    }
    session.outbox.use_resp3(session.out.resp3);
    let protocol = if session.out.resp3 { 3 } else { 2 };
    let id = i64::try_from(session.id).unwrap_or(i64::MAX);
    let out = &mut session.out;
    out.map(7);
    for (name, value) in [("server", "redlatch"), ("version", env!("CARGO_PKG_VERSION"))] {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"proto");
    out.int(protocol);
    out.bulk(b"id");
    out.int(id);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"modules");
    out.array(0);
    Ok(())
}

fn client(session: &mut Session, args: &[&[u8]]) -> Result<(), EngineError> {
    let verb = args.get(1).map(|verb| verb.to_ascii_lowercase()).unwrap_or_default();
    match (verb.as_slice(), args.len()) {
        (b"id", 2) => session.out.int(i64::try_from(session.id).unwrap_or(i64::MAX)),
        (b"setname", 3) => {
            session.name = args[2][..args[2].len().min(256)].to_vec();
            session.out.status("OK");
        }
        (b"getname", 2) if session.name.is_empty() => session.out.null(),
        (b"getname", 2) => session.out.bulk(&session.name),
        (b"setinfo", 4) => session.out.status("OK"),
        _ => return Err(SYNTAX),
    }
    Ok(())
}

fn redlatch(shared: &Shared, session: &mut Session, args: &[&[u8]]) -> Result<(), EngineError> {
    let verb = args.get(1).map(|verb| verb.to_ascii_lowercase()).unwrap_or_default();
    match (verb.as_slice(), &args[2.min(args.len())..]) {
        (b"hello", [epoch]) => {
            let epoch = parse_int(epoch).ok_or(NOT_INTEGER)?;
            if epoch != i64::from(shared.epoch) {
                return Err(EngineError::new(format!(
                    "EPOCH the running engine speaks epoch {}, this client speaks epoch {epoch}: use the same \
                     version of redlatch, or run `redlatch engine stop` when no lock is held",
                    shared.epoch
                )));
            }
            session.out.array(4);
            session.out.bulk(b"redlatch");
            session.out.bulk(env!("CARGO_PKG_VERSION").as_bytes());
            session.out.int(i64::from(shared.epoch));
            session.out.int(i64::from(std::process::id()));
        }
        // No answer to any of these: what a dead client has not read would make its end look like an accident.
        (b"lifeline", [id, from]) => lifeline(shared, session, id, from, None)?,
        (b"lifeline", [id, from, next]) => lifeline(shared, session, id, from, Some(next))?,
        (b"spare", [number]) => {
            let number = parse_int(number).ok_or(NOT_INTEGER)?;
            shared.lifelines.spare(own_line(session)?, number);
        }
        (b"command", []) => shared.lifelines.expect_command(own_line(session)?),
        (b"goodbye", []) => shared.lifelines.say_goodbye(own_line(session)?),
        (b"watch", keys) if session.out.resp3 => {
            session.watches = true;
            let mut found = 0;
            for key in keys {
                // One that does not exist is not told of: a client that watches sees that it is missing.
                if shared.engine().watch(&[key]) == 1 {
                    shared.hub.watch(key, &session.outbox);
                    found += 1;
                }
            }
            session.out.int(found);
        }
        (b"status", []) => status(shared, session),
        (b"shutdown", _) if !session.is_owner => {
            return Err(EngineError::fixed("NOPERM only the user that the engine belongs to may stop it"));
        }
        (b"shutdown", []) => {
            let mut engine = shared.engine();
            if engine.lease_count() > 0 || engine.permits_taken() != (0, 0) {
                return Err(EngineError::fixed(
                    "INUSE locks or permits are held; wait for them, or add FORCE",
                ));
            }
            drop(engine);
            stop(shared, session);
        }
        (b"shutdown", [option]) if option.eq_ignore_ascii_case(b"force") => stop(shared, session),
        _ => return Err(SYNTAX),
    }
    Ok(())
}

/// Makes a connection the lifeline of a client, or with `COMMAND` for a number that of its command.
fn lifeline(
    shared: &Shared,
    session: &mut Session,
    id: &[u8],
    from: &[u8],
    next: Option<&[u8]>,
) -> Result<(), EngineError> {
    let pid = session.pid.filter(|_| session.line.is_none());
    let pid = pid.ok_or(EngineError::fixed("ERR this connection cannot be a lifeline"))?;
    let line = if from.eq_ignore_ascii_case(b"command") {
        shared.lifelines.begin_command(id, pid)
    } else {
        let processes = &shared.lifelines.processes;
        if shared.is_full() && !processes.has(pid) {
            return Err(EngineError::fixed("ERR max number of clients reached: no lifeline"));
        }
        let process =
            processes.open(pid).map_err(|_| EngineError::fixed("ERR the end of your process is not told"))?;
        let next = next.map(|next| parse_int(next).ok_or(NOT_INTEGER)).transpose()?;
        shared.lifelines.begin(id, parse_int(from).ok_or(NOT_INTEGER)?, next, process)
    };
    session.line = Some(line.ok_or(SYNTAX)?);
    shared.clients.set(shared.clients.get() - 1);
    shared.lines.set(shared.lines.get() + 1);
    shared.lifelines.went(&session.user());
    Ok(())
}

fn own_line(session: &Session) -> Result<&Line, EngineError> {
    session.line.as_ref().ok_or(EngineError::fixed("ERR this connection is no lifeline"))
}

fn stop(shared: &Shared, session: &mut Session) {
    session.out.status("OK");
    session.closing = true;
    shared.end(ExitReason::Shutdown);
}

fn status(shared: &Shared, session: &mut Session) {
    let mut engine = shared.engine();
    let (ending, endless) = engine.permits_taken();
    let held = engine.lease_count() + ending + endless;
    let locks = engine.expiring_keys(STATUS_LOCKS_MAX);
    let number = |value: u128| i64::try_from(value).unwrap_or(i64::MAX);
    let out = &mut session.out;
    out.map(10);
    out.bulk(b"version");
    out.bulk(env!("CARGO_PKG_VERSION").as_bytes());
    for (name, value) in [
        ("epoch", i64::from(shared.epoch)),
        ("pid", i64::from(std::process::id())),
        ("uptime_ms", number(shared.started.elapsed().as_millis())),
        ("clients", number(shared.clients.get() as u128)),
        ("keys", number(engine.key_count() as u128)),
        ("recovering_ms", number(u128::from(engine.wait_left_ms()))),
        ("lock_count", number(held as u128)),
        ("scripts_run", number(u128::from(shared.scripts_run.get()))),
    ] {
        out.bulk(name.as_bytes());
        out.int(value);
    }
    out.bulk(b"locks");
    out.map(locks.len());
    for (key, ttl_ms) in locks {
        out.bulk(&key);
        out.int(number(u128::from(ttl_ms)));
    }
}

fn info(shared: &Shared, session: &mut Session) {
    // Client libraries read `redis_version` to decide which commands they may use.
    let text = format!(
        "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nredlatch_version:{}\r\nredlatch_epoch:{}\r\n\
         process_id:{}\r\nuptime_in_seconds:{}\r\n# Clients\r\nconnected_clients:{}\r\n# Replication\r\nrole:master\r\n\
         connected_slaves:0\r\n# Keyspace\r\ndb0:keys={}\r\n",
        env!("CARGO_PKG_VERSION"),
        shared.epoch,
        std::process::id(),
        shared.started.elapsed().as_secs(),
        shared.clients.get(),
        shared.engine().key_count(),
    );
    session.out.bulk(text.as_bytes());
}

fn kind_of(name: &str) -> Kind {
    match name.as_bytes().first() {
        Some(b'p') => Kind::Pattern,
        Some(b's') if name.starts_with("ss") || name.starts_with("sun") => Kind::Shard,
        _ => Kind::Channel,
    }
}

fn subscribe(shared: &Shared, session: &mut Session, name: &str, args: &[&[u8]]) -> Result<(), EngineError> {
    if args.len() < 2 {
        return Err(wrong_arity(name));
    }
    let kind = kind_of(name);
    if kind == Kind::Pattern && !shared.compat {
        return Err(RESTRICTED);
    }
    for channel in &args[1..] {
        if !session.subscriptions.iter().any(|(other, name)| *other == kind && name == channel) {
            if session.subscriptions.len() >= SUBSCRIPTIONS_MAX {
                return Err(EngineError::fixed("ERR too many subscriptions on one connection"));
            }
            shared.hub.subscribe(kind, channel, &session.outbox);
            session.subscriptions.push((kind, channel.to_vec()));
        }
        confirm(session, name, kind, Some(channel));
    }
    Ok(())
}

fn confirm(session: &mut Session, name: &str, kind: Kind, channel: Option<&[u8]>) {
    let count = session.subscription_count(kind);
    session.out.push(3);
    session.out.bulk(name.as_bytes());
    match channel {
        Some(channel) => session.out.bulk(channel),
        None => session.out.null(),
    }
    session.out.int(i64::try_from(count).unwrap_or(i64::MAX));
}

fn unsubscribe(
    shared: &Shared,
    session: &mut Session,
    name: &str,
    args: &[&[u8]],
) -> Result<(), EngineError> {
    let kind = kind_of(name);
    let channels: Vec<Vec<u8>> = if args.len() > 1 {
        args[1..].iter().map(|channel| channel.to_vec()).collect()
    } else {
        let all = session.subscriptions.iter().filter(|(other, _)| *other == kind);
        all.map(|(_, channel)| channel.clone()).collect()
    };
    if channels.is_empty() {
        confirm(session, name, kind, None);
    }
    for channel in channels {
        shared.hub.unsubscribe(kind, &channel, &session.outbox);
        session.subscriptions.retain(|(other, name)| *other != kind || *name != channel);
        confirm(session, name, kind, Some(&channel));
    }
    Ok(())
}

fn leave_all(shared: &Shared, session: &mut Session) {
    for (kind, channel) in std::mem::take(&mut session.subscriptions) {
        shared.hub.unsubscribe(kind, &channel, &session.outbox);
    }
}

fn pubsub(shared: &Shared, session: &mut Session, args: &[&[u8]]) -> Result<(), EngineError> {
    let verb = args.get(1).map(|verb| verb.to_ascii_lowercase()).unwrap_or_default();
    let rest = &args[2.min(args.len())..];
    match (verb.as_slice(), rest) {
        (b"channels" | b"shardchannels", [] | [_]) => {
            let kind = if verb == b"channels" { Kind::Channel } else { Kind::Shard };
            let names = shared.hub.names(kind, rest.first().copied());
            session.out.array(names.len());
            for name in names {
                session.out.bulk(&name);
            }
        }
        (b"numsub" | b"shardnumsub", channels) => {
            let kind = if verb == b"numsub" { Kind::Channel } else { Kind::Shard };
            session.out.array(channels.len() * 2);
            for channel in channels {
                session.out.bulk(channel);
                let count = shared.hub.listeners(kind, channel);
                session.out.int(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        (b"numpat", []) => {
            let count = shared.hub.names(Kind::Pattern, None).len();
            session.out.int(i64::try_from(count).unwrap_or(i64::MAX));
        }
        _ => return Err(SYNTAX),
    }
    Ok(())
}
