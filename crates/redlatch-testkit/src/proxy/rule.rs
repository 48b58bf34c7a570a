//! Rules: which request, and what happens to it or to its reply.

use std::time::Duration;

use tokio::sync::watch;

/// What a connection is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionKind {
    /// It has not subscribed to anything.
    Commands,
    /// It has sent a subscribe command, now or before.
    PubSub,
}

/// Which of the requests that fit a rule it acts on; counted from 1, over all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Nth {
    /// All of them.
    #[default]
    Every,
    /// Only this one.
    Only(u64),
    /// This many from the start.
    First(u64),
    /// This one and all behind it.
    From(u64),
}

impl Nth {
    fn includes(self, n: u64) -> bool {
        match self {
            Self::Every => true,
            Self::Only(only) => n == only,
            Self::First(count) => n <= count,
            Self::From(first) => n >= first,
        }
    }
}

/// Which requests a rule fits. All given conditions must hold; none given fits everything.
#[derive(Debug, Clone, Default)]
pub struct Match {
    commands: Vec<String>,
    nth: Nth,
    key_contains: Option<Vec<u8>>,
    arg_contains: Vec<Vec<u8>>,
    arg_is: Vec<Vec<u8>>,
    kind: Option<ConnectionKind>,
    connection_max: Option<u64>,
}

impl Match {
    /// Fits every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// Fits a command by its name, in any case.
    pub fn command(name: &str) -> Self {
        Self { commands: vec![name.to_ascii_uppercase()], ..Self::default() }
    }

    /// Fits script calls: `EVAL`, `EVALSHA`, their read-only forms, and `FCALL`.
    pub fn script() -> Self {
        let names = ["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"];
        Self { commands: names.map(str::to_owned).to_vec(), ..Self::default() }
    }

    /// Acts only on the `n`th request that fits, counted from 1.
    pub fn nth(mut self, n: u64) -> Self {
        self.nth = Nth::Only(n);
        self
    }

    /// Acts on this selection of the requests that fit.
    pub fn which(mut self, nth: Nth) -> Self {
        self.nth = nth;
        self
    }

    /// A key must contain these bytes. For scripts the declared keys count, for other commands all arguments.
    pub fn key_contains(mut self, part: impl AsRef<[u8]>) -> Self {
        self.key_contains = Some(part.as_ref().to_vec());
        self
    }

    /// Any argument must contain these bytes: the SHA-1 or the text of a script, a channel, an owner. Each call adds a condition.
    pub fn arg_contains(mut self, part: impl AsRef<[u8]>) -> Self {
        self.arg_contains.push(part.as_ref().to_vec());
        self
    }

    /// Any argument must be exactly this: a figure, which the number of a request may contain by chance. Each call adds a condition.
    pub fn arg_is(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.arg_is.push(arg.as_ref().to_vec());
        self
    }

    /// The connection must be of this kind. A subscribe command makes its connection one for pub/sub
    /// before the rules look at it.
    pub fn kind(mut self, kind: ConnectionKind) -> Self {
        self.kind = Some(kind);
        self
    }

    /// The connection must be one of the first so many.
    pub fn connection_up_to(mut self, number: u64) -> Self {
        self.connection_max = Some(number);
        self
    }

    fn fits(&self, command: &str, args: &[Vec<u8>], kind: ConnectionKind, connection: u64) -> bool {
        let any = |args: &[Vec<u8>], part: &[u8]| args.iter().any(|arg| contains(arg, part));
        (self.commands.is_empty() || self.commands.iter().any(|name| name == command))
            && self.kind.is_none_or(|wanted| wanted == kind)
            && self.connection_max.is_none_or(|last| connection <= last)
            && self.key_contains.as_deref().is_none_or(|part| any(keys(command, args), part))
            && self.arg_is.iter().all(|arg| args.get(1..).unwrap_or_default().contains(arg))
            && self.arg_contains.iter().all(|part| any(args.get(1..).unwrap_or_default(), part))
    }
}

fn keys<'a>(command: &str, args: &'a [Vec<u8>]) -> &'a [Vec<u8>] {
    if command.starts_with("EVAL") || command.starts_with("FCALL") {
        let count =
            args.get(2).and_then(|n| std::str::from_utf8(n).ok()).and_then(|n| n.parse::<usize>().ok());
        let end = count.unwrap_or(0).saturating_add(3).min(args.len());
        return args.get(3..end).unwrap_or_default();
    }
    args.get(1..).unwrap_or_default()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

/// Holds replies back until it is released. Clones are the same gate.
#[derive(Debug, Clone)]
pub struct Gate(watch::Sender<bool>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets everything through, from now on.
    pub fn release(&self) {
        self.0.send_replace(true);
    }

    pub(super) async fn passed(&self) {
        // The sender lives in self, so the wait ends only with a release.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

/// What happens to a request, or to its reply. Order is kept: whatever comes behind a delayed or held
/// message on the same connection waits as well, as it does in a TCP stream.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Action {
    /// The server acts, but its reply and everything behind it on this connection is lost, as if the
    /// network had gone silent. The connection stays open until [`heal`](super::Proxy::heal) resets it.
    DropReply,
    /// Only this reply vanishes; the next one arrives in its place. No network does this. It is for proving
    /// that a client notices replies that have shifted.
    SkipReply,
    /// The reply comes later by this much.
    DelayReply(Duration),
    /// The request comes later by this much.
    DelayRequest(Duration),
    /// The request and everything behind it on this connection never arrives. The connection stays open
    /// until [`heal`](super::Proxy::heal) resets it.
    DropRequest,
    /// The connection is closed and the request never arrives.
    CloseBeforeRequest,
    /// The server acts, then the connection is closed in place of the reply.
    CloseAfterRequest,
    /// The server acts, but the client gets these bytes; the functions of [`resp`](crate::resp) make them.
    ReplaceReply(Vec<u8>),
    /// The reply waits until the gate is released.
    HoldReplyUntilReleased(Gate),
}

impl Action {
    pub(super) fn is_for_request(&self) -> bool {
        matches!(self, Self::DelayRequest(_) | Self::DropRequest | Self::CloseBeforeRequest)
    }
}

/// A rule of the proxy.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Which requests it fits.
    pub when: Match,
    /// What happens then.
    pub then: Action,
}

/// Names a rule that was added to a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub(super) u64);

#[derive(Debug, Default)]
pub(super) struct Rules {
    next_id: u64,
    rules: Vec<(RuleId, Rule, u64)>,
}

impl Rules {
    pub(super) fn add(&mut self, rule: Rule) -> RuleId {
        self.next_id += 1;
        let id = RuleId(self.next_id);
        self.rules.push((id, rule, 0));
        id
    }

    pub(super) fn remove(&mut self, id: RuleId) {
        self.rules.retain(|(other, ..)| *other != id);
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// The action of the first rule that acts. The others still count the request.
    pub(super) fn decide(
        &mut self,
        command: &str,
        args: &[Vec<u8>],
        kind: ConnectionKind,
        connection: u64,
    ) -> Option<(RuleId, Action)> {
        let mut decided = None;
        for (id, rule, seen) in &mut self.rules {
            if rule.when.fits(command, args, kind, connection) {
                *seen += 1;
                if decided.is_none() && rule.when.nth.includes(*seen) {
                    decided = Some((*id, rule.then.clone()));
                }
            }
        }
        decided
    }
}
