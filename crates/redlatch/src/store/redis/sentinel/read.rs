//! Reads what sentinels reply.

use crate::{config::addr::Addr, store::Reply};

/// How long a sentinel has to connect to a replica after this one has answered it or was met by it: a sentinel that changes masters begins with no
/// connection to any of them.
const CONNECTS_MS: u64 = 2_000;

/// A replica as one sentinel tells it, with its process as far as that is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) run: Option<String>,
    pub(super) addr: Addr,
    pub(super) sight: Sight,
}

/// Whether a sentinel has a replica in sight. One that has gone stays in its list until an operator resets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    Seen,
    /// It has no connection to it, and has had no answer for longer than it takes to make one. It may have given that connection up, and be about to
    /// make another one.
    Lost,
    /// It holds it for down.
    Down,
}

/// The replica that a sentinel has chosen to be the next master.
pub(super) fn promised_master(replicas: &Reply) -> Option<Addr> {
    let chosen = replicas.array()?.iter().find(|replica| {
        let flags = field(replica, "flags").and_then(text).unwrap_or_default();
        flags.split(',').any(|flag| flag == "promoted")
    })?;
    address(field(chosen, "ip")?, field(chosen, "port")?)
}

/// The replicas of this master that a sentinel that names that one does not hold for down. It may not have heard yet that one of its replicas was
/// promoted: the others are to copy that one, and so is the one that it names. Or that one has the place of this one by now, and may have all
/// of its replicas.
pub(super) fn replicas_of(
    master: &Addr,
    named: &Addr,
    replicas: &[Reply],
    reachable: impl Fn(Addr) -> Addr,
) -> Option<Vec<Told>> {
    let address = |replica: &Reply| address(field(replica, "ip")?, field(replica, "port")?).map(&reachable);
    let is_master = |replica: &Reply| address(replica).as_ref() == Some(master);
    // It is a replica in the list of another one: its former master, which is to be its replica, is not in it.
    let is_promoted = replicas.iter().any(is_master);
    if named != master && !is_promoted {
        return None;
    }
    let run = |replica: &Reply| field(replica, "runid").and_then(text).filter(|run| !run.is_empty());
    let others = replicas.iter().filter(|replica| !is_master(replica)).filter_map(|replica| {
        let sight = sight(replica);
        let told = Told { run: run(replica), addr: address(replica)?, sight };
        (sight != Sight::Down).then_some(told)
    });
    let former = || Told { run: None, addr: named.clone(), sight: Sight::Seen };
    Some(others.chain(is_promoted.then(former)).collect())
}

pub(super) fn sight(replica: &Reply) -> Sight {
    let flags = field(replica, "flags").and_then(text).unwrap_or_default();
    let has = |wanted: &str| flags.split(',').any(|flag| flag == wanted);
    if has("s_down") || has("o_down") {
        return Sight::Down;
    }
    let quiet_ms = field(replica, "last-ok-ping-reply").and_then(text).and_then(|text| text.parse().ok());
    match !has("disconnected") || quiet_ms.is_some_and(|quiet_ms: u64| quiet_ms < CONNECTS_MS) {
        true => Sight::Seen,
        false => Sight::Lost,
    }
}

/// A field of a reply that is a list of names and values.
pub(super) fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
    let pairs = reply.array()?.chunks_exact(2);
    pairs.filter(|pair| pair[0].bytes() == Some(name.as_bytes())).map(|pair| &pair[1]).next()
}

pub(super) fn text(reply: &Reply) -> Option<String> {
    reply.bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Host names and IPv6 addresses come as they are, without brackets.
pub(super) fn address(host: &Reply, port: &Reply) -> Option<Addr> {
    let host = text(host).filter(|host| !host.is_empty())?;
    let port = port.int().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0)?;
    Some(Addr::Tcp { host, port })
}

/// Reads an answer as any that sentinels give.
#[cfg(any(test, fuzzing))]
pub(in crate::store::redis) fn reads(answer: &Reply, asked: &Addr) {
    _ = promised_master(answer);
    _ = replicas_of(asked, asked, answer.array().unwrap_or_default(), |announced| announced);
}
