//! Trying the rights of the account, one by one and without leaving anything behind.
//!
//! Where the server lets the account ask (`ACL DRYRUN`), it is asked. Otherwise each command is sent in a form that changes
//! nothing: on a key that does not exist, or with an argument that the command refuses, which it only does after the rights
//! have been checked.

use std::{collections::BTreeSet, sync::Arc};

use redis::{Cmd, aio::PubSub};

use super::{failure::Failure, hub::Hub, link::Link, node::Node, sharded_hub::Ways, sharded_link::Way};
use crate::{
    acl::{Kind, Rights},
    config::ScriptMode,
    error::{Error, ErrorKind},
    finding::{Finding, Severity},
    scripts,
    store::{Fault, Reply, SubscribeFuture},
};

/// For how long a key that had to be made stays if it cannot be removed, in ms.
const LEFTOVER_MS: &str = "5000";
/// No script has this hash.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// How a store sends and hears messages.
pub(super) struct Messages {
    pub(super) ways: Ways,
    pub(super) in_cluster: bool,
    pub(super) may_be_sharded: bool,
    /// Subscribes, on a connection of its own.
    pub(super) listen: Box<dyn Fn(Arc<[u8]>) -> SubscribeFuture + Send + Sync>,
}

impl Messages {
    pub(super) fn of_one_server(hub: Arc<Hub>) -> Messages {
        let listen = move |channel| hub.subscribe(channel, Arc::new(|_| {}));
        Messages {
            ways: Ways::One(Way::Plain),
            in_cluster: false,
            may_be_sharded: false,
            listen: Box::new(listen),
        }
    }
}

/// What became of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allowed,
    CommandRefused,
    KeyRefused,
    ChannelRefused,
}

/// Commands to send for one right: what has to be there first, the command itself, and what takes it away again.
struct Probe {
    before: Vec<Vec<String>>,
    itself: Vec<String>,
    after: Vec<Vec<String>>,
}

/// The form of a command that changes nothing; `None` for those that are tried in another way.
fn probe(command: &str, key: &str) -> Option<Probe> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let on_key = |more: &[&str]| words(&[&[command, key], more].concat());
    let alone = |itself| Some(Probe { before: Vec::new(), itself, after: Vec::new() });
    alone(match command {
        "del" | "exists" | "type" | "pttl" | "persist" | "get" | "strlen" | "hlen" | "hgetall" | "hkeys"
        | "hrandfield" | "llen" | "lpop" | "zcard" => on_key(&[]),
        "hget" | "hmget" | "hdel" | "hexists" | "zrem" | "zscore" => on_key(&["x"]),
        "pexpire" => on_key(&["1"]),
        "lindex" => on_key(&["0"]),
        "lrange" | "zrange" | "zcount" | "zrangebyscore" | "zremrangebyscore" => on_key(&["0", "0"]),
        "lrem" => on_key(&["0", "x"]),
        // Refused for their last argument, or for one that is missing.
        "set" => on_key(&["x", "nonsense"]),
        "incrby" | "decrby" => on_key(&["nonsense"]),
        "hincrby" => on_key(&["x", "nonsense"]),
        "hset" => on_key(&["x", "x", "x"]),
        "zadd" => on_key(&["nonsense", "x"]),
        // Refused because of what is there.
        "rpush" => {
            return Some(Probe {
                before: vec![words(&["hset", key, "x", "x"]), words(&["pexpire", key, LEFTOVER_MS])],
                itself: on_key(&["x"]),
                after: vec![words(&["hdel", key, "x"])],
            });
        }
        "decr" => {
            return Some(Probe {
                before: vec![words(&["set", key, "x", "px", LEFTOVER_MS])],
                itself: on_key(&[]),
                after: vec![words(&["del", key])],
            });
        }
        "ping" | "time" | "asking" => words(&[command]),
        "info" => words(&[command, "server"]),
        "scan" => words(&[command, "0", "count", "1"]),
        "eval" => words(&[command, "return 1", "0"]),
        "evalsha" => words(&[command, NO_SCRIPT, "0"]),
        "fcall" => words(&[command, &scripts::library_check(), "0"]),
        "wait" => words(&[command, "0", "1"]),
        "pubsub|numsub" => words(&["pubsub", "numsub"]),
        "pubsub|shardnumsub" => words(&["pubsub", "shardnumsub"]),
        // Refused for their last argument: what the connection is told is not changed.
        "client|tracking" => words(&["client", "tracking", "nonsense"]),
        "client|caching" => words(&["client", "caching", "nonsense"]),
        "cluster|nodes" => words(&["cluster", "nodes"]),
        "cluster|slots" => words(&["cluster", "slots"]),
        // With their channels, or by what uses them.
        _ => return None,
    })
}

/// How commands are tried.
struct Trial {
    link: Arc<Link>,
    /// The account, where the server answers what it may.
    asked: Option<String>,
}

impl Trial {
    async fn begin(link: Arc<Link>) -> Self {
        let mut trial = Trial { link, asked: None };
        if let Ok(Reply::Bytes(me)) = trial.send(&["ACL", "WHOAMI"]).await {
            let me = String::from_utf8_lossy(&me).into_owned();
            let dry = ["ACL", "DRYRUN", &me, "PING"];
            trial.asked = trial.send(&dry).await.is_ok().then_some(me);
        }
        trial
    }

    async fn send<A: AsRef<[u8]>>(&self, parts: &[A]) -> Result<Reply, Failure> {
        let mut cmd = Cmd::new();
        for part in parts {
            cmd.arg(part.as_ref());
        }
        self.link.ask(&cmd).await
    }

    /// Whether the server has a command at all. It says that it has not before it looks at rights, and refuses this form of
    /// one that it has.
    async fn has(&self, command: &str) -> Result<bool, Fault> {
        match self.send(&[command]).await {
            Err(Failure::Refused { detail, .. }) => Ok(!is_unknown(&detail)),
            Err(Failure::Fault(fault)) => Err(fault),
            Ok(_) => Ok(true),
        }
    }

    /// Tries one command.
    async fn verdict<A: AsRef<[u8]>>(&self, parts: &[A]) -> Result<Verdict, Fault> {
        let refused = |words: &str| {
            let words = words.to_ascii_lowercase();
            if words.contains("channel") {
                Verdict::ChannelRefused
            } else if words.contains("key") && !words.contains("command") {
                Verdict::KeyRefused
            } else {
                Verdict::CommandRefused
            }
        };
        if let Some(me) = &self.asked {
            let mut dry: Vec<&[u8]> = vec![b"ACL", b"DRYRUN", me.as_bytes()];
            dry.extend(parts.iter().map(AsRef::as_ref));
            return match self.send(&dry).await {
                Ok(Reply::Bytes(answer)) if answer == b"OK" => Ok(Verdict::Allowed),
                Ok(Reply::Bytes(answer)) => Ok(refused(&String::from_utf8_lossy(&answer))),
                // A command that the server does not have.
                Ok(_) | Err(Failure::Refused { .. }) => Ok(Verdict::CommandRefused),
                Err(Failure::Fault(fault)) => Err(fault),
            };
        }
        match self.send(parts).await {
            Ok(_) => Ok(Verdict::Allowed),
            Err(Failure::Refused { code, detail, .. }) if code == "NOPERM" => Ok(refused(&detail)),
            Err(Failure::Refused { detail, .. }) if is_unknown(&detail) => Ok(Verdict::CommandRefused),
            Err(Failure::Refused { .. }) => Ok(Verdict::Allowed),
            Err(Failure::Fault(fault)) => Err(fault),
        }
    }

    /// Whether the account may use a command, whatever key it may use it on.
    async fn may(&self, probe: &Probe) -> Result<bool, Fault> {
        if self.asked.is_none() {
            for parts in &probe.before {
                // What cannot be prepared would change something; the refusal is found where that command is tried.
                if self.verdict(parts).await? != Verdict::Allowed {
                    return Ok(true);
                }
            }
        }
        let verdict = self.verdict(&probe.itself).await?;
        if self.asked.is_none() {
            for parts in &probe.after {
                self.verdict(parts).await?;
            }
        }
        Ok(verdict != Verdict::CommandRefused)
    }
}

impl Node {
    /// One finding for each kind: whether the account may do all that it needs, and the rules that are missing.
    pub(super) async fn try_rights(
        self: Arc<Self>,
        messages: Messages,
        kinds: Vec<Kind>,
        prefix: String,
    ) -> Result<Vec<Finding>, Fault> {
        let functions = self.script_mode() == ScriptMode::Functions;
        let trial = Trial::begin(self.link().await?).await;
        let mut findings = Vec::with_capacity(kinds.len());
        for kind in kinds {
            let rights = Rights::of(&[kind], &prefix).functions(functions).cluster(messages.in_cluster);
            let missing = missing(&self, &trial, &messages, &rights).await?;
            findings.push(if missing.is_empty() {
                Finding::new(Severity::Good, "rights", format!("{kind}: the account has every right"))
            } else {
                let rules = missing.into_iter().collect::<Vec<_>>().join(" ");
                Finding::new(Severity::Problem, "rights", format!("{kind}: the account lacks {rules}"))
                    .remedy("add these rules with ACL SETUSER, or ask for all with `redlatch acl`")
            });
        }
        Ok(findings)
    }

    /// Whether the account may leave a channel. It is answered by a message, so it is tried on a connection for those, which listens to nothing.
    async fn may_unsubscribe(&self, channel: &[u8]) -> bool {
        let dial = self.dial();
        let connected = dial.bounded(|| async {
            let stream = dial.stream().await?;
            let mut talk = PubSub::new(&dial.login(), stream).await.map_err(|error| dial.refused(&error))?;
            Ok(talk.unsubscribe(channel).await)
        });
        // A connection that fails says nothing of rights.
        !matches!(connected.await, Ok(Err(error)) if error.code() == Some("NOPERM"))
    }
}

/// The rules that the account lacks.
async fn missing(
    node: &Node,
    trial: &Trial,
    messages: &Messages,
    rights: &Rights,
) -> Result<BTreeSet<String>, Fault> {
    let mut missing = BTreeSet::new();
    let keys = rights.sample_keys();
    let key = keys.first().map(|(_, key)| String::from_utf8_lossy(key).into_owned()).unwrap_or_default();
    let mut looking = None;
    let commands = rights.commands();
    for command in &commands {
        // An account that lacks this right gets plain messages, so it says nothing that they are in use.
        if *command == "pubsub|shardnumsub" && !(messages.may_be_sharded && trial.has("SPUBLISH").await?) {
            continue;
        }
        let Some(probe) = probe(command, &key) else { continue };
        if !trial.may(&probe).await? {
            missing.insert(format!("+{command}"));
        } else if ["pttl", "exists", "get"].contains(command) {
            looking = Some(*command);
        }
    }
    if let Some(command) = looking {
        for (pattern, key) in keys {
            if trial.verdict(&[command.as_bytes(), &key]).await? == Verdict::KeyRefused {
                missing.insert(format!("~{pattern}"));
            }
        }
    }
    for (pattern, channel) in rights.sample_channels() {
        for way in messages.ways.each() {
            let publish = match way {
                Way::Plain => "publish",
                Way::Sharded => "spublish",
            };
            let unsubscribe = match way {
                Way::Plain => "unsubscribe",
                Way::Sharded => "sunsubscribe",
            };
            // No form of it changes nothing and is answered like any other command, so only a server that can be asked says it.
            if trial.asked.is_some()
                && trial.verdict(&[unsubscribe.as_bytes(), &channel[..]]).await? == Verdict::CommandRefused
            {
                missing.insert(format!("+{unsubscribe}"));
            }
            let unsubscribe = match way {
                Way::Plain => "unsubscribe",
                Way::Sharded => "sunsubscribe",
            };
            let may_unsubscribe = match way {
                _ if trial.asked.is_some() => {
                    trial.verdict(&[unsubscribe.as_bytes(), &channel[..]]).await? != Verdict::CommandRefused
                }
                Way::Plain => node.may_unsubscribe(&channel).await,
                // Refused where it is used, and then the channel is listened to for longer.
                Way::Sharded => true,
            };
            if !may_unsubscribe {
                missing.insert(format!("+{unsubscribe}"));
            }
            match trial.verdict(&[publish.as_bytes(), &channel[..], b"0"]).await? {
                Verdict::CommandRefused => _ = missing.insert(format!("+{publish}")),
                Verdict::ChannelRefused => _ = missing.insert(format!("&{pattern}")),
                Verdict::Allowed | Verdict::KeyRefused => {}
            }
        }
        // Subscribing has a connection of its own; what is refused there because of the channel has been found already.
        match (messages.listen)(channel.into()).await {
            Err(Fault::Server(error)) if is_about_the_command(&error) => {
                let sharded = match messages.ways {
                    Ways::One(way) => way == Way::Sharded,
                    Ways::Both => error.to_string().contains("ssubscribe"),
                };
                missing.insert(if sharded { "+ssubscribe" } else { "+subscribe" }.into());
            }
            Err(Fault::Server(_)) | Ok(_) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(missing)
}

fn is_unknown(detail: &str) -> bool {
    detail.to_ascii_lowercase().starts_with("unknown command")
}

fn is_about_the_command(error: &Error) -> bool {
    let text = error.to_string();
    (error.kind() == ErrorKind::Permission && !text.contains("channel")) || text.contains("unknown command")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_right_of_every_kind_is_tried() {
        let plain = ["publish", "subscribe", "unsubscribe"];
        let by_channel = [plain, ["spublish", "ssubscribe", "sunsubscribe"]].concat();
        for functions in [false, true] {
            for command in Rights::of(&Kind::ALL, "app:").functions(functions).cluster(true).commands() {
                assert!(probe(command, "k").is_some() || by_channel.contains(&command), "{command}");
            }
        }
    }
}
