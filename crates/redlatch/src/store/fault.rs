//! Why a script call has no answer, sorted by what may have happened on the server.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// Why a call to a [`Store`](super::Store) failed.
///
/// The three cases differ in what the server may have done, which is what decides whether and how to go on.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing reached the server.
    NotSent(Error),
    /// The request may have run; its answer is lost.
    Unknown(Error),
    /// The server answered with an error. The first word of its text decides the [`ErrorKind`].
    Server(Error),
}

impl Fault {
    /// The error inside.
    pub fn error(&self) -> &Error {
        match self {
            Fault::NotSent(error) | Fault::Unknown(error) | Fault::Server(error) => error,
        }
    }

    /// The error inside, by value.
    pub fn into_error(self) -> Error {
        match self {
            Fault::NotSent(error) | Fault::Unknown(error) | Fault::Server(error) => error,
        }
    }

    /// Whether nothing has run because the keys of the call were in two places.
    pub(crate) fn is_migrating(&self) -> bool {
        matches!(self, Fault::Server(error) if error.is_migrating())
    }

    /// Whether a call of several keys may have been refused because of one of them.
    pub(crate) fn may_be_of_one_key(&self) -> bool {
        let of_one = |kind| {
            use ErrorKind::{Permission, Server, UndeclaredKey, WrongType};
            matches!(kind, Permission | Server | UndeclaredKey | WrongType)
        };
        matches!(self, Fault::Server(error) if error.is_migrating() || of_one(error.kind()))
    }

    /// Whether nothing was sent because another server than the one that counted would have run it.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.error().is_elsewhere()
    }

    /// Whether the server could not be asked, or says that it cannot be asked now. Keys that are on their way are the trouble of one name, and
    /// what is right for one server alone was not asked of another.
    pub(crate) fn is_outage(&self) -> bool {
        let kept_back =
            self.is_elsewhere() || self.is_migrating() || self.error().kind() == ErrorKind::Closed;
        !kept_back
            && !self.error().is_answered()
            && (!matches!(self, Fault::Server(_)) || self.error().is_retryable())
    }

    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Fault::Unknown(_))
    }

    /// Whether the request may run later than now.
    pub(crate) fn may_arrive(&self) -> bool {
        matches!(self, Fault::Unknown(error) if !error.is_answered())
    }

    /// An error answer of a server, as text: the first word, which is its code, and the rest. The kind follows from them as it does
    /// for the built-in stores.
    ///
    /// # Example
    ///
    /// ```
    /// use redlatch::{ErrorKind, store::Fault};
    /// let fault = Fault::server("WRONGTYPE", "Operation against a key holding the wrong kind of value");
    /// assert_eq!(fault.error().kind(), ErrorKind::WrongType);
    /// ```
    pub fn server(code: &str, detail: &str) -> Self {
        Fault::server_at(None, code, detail)
    }

    /// The same, with the server's address: of several servers one may be in trouble.
    pub(crate) fn server_at(server: Option<&str>, code: &str, detail: &str) -> Self {
        let error = ServerCode::classify(server.unwrap_or("the server"), code, detail);
        // It has run, and a crash may undo it.
        if code == UNSAVED { Fault::Unknown(error.answered()) } else { Fault::Server(error) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

/// The local engine's word for what it has changed and could not write down.
const UNSAVED: &str = "UNSAVED";

/// A script's first write was refused, because `cluster-allow-reads-when-down` lets it begin.
pub(crate) const CLUSTER_IS_DOWN: &str = "while the cluster is down";

/// How much is repeated of what a server says.
const TEXT_CHARS_MAX: usize = 300;

/// What helps a server that cannot serve at present.
fn remedy(code: &str, lower: &str) -> Option<&'static str> {
    Some(match code {
        "LOADING" => "wait until it has loaded its data",
        "BUSY" => "wait until the script ends that keeps it busy, or end that with SCRIPT KILL",
        "UNKILLABLE" => "wait until the script ends that keeps it busy",
        "MISCONF" | UNSAVED => "mend what keeps it from saving to disk; its log says what that is",
        "RECOVERING" => "wait until then; `redlatch engine logs` says what was lost",
        "NOREPLICAS" => "look at its replicas: fewer are in sync than min-replicas-to-write asks for",
        _ if code == "CLUSTERDOWN" || lower.contains(CLUSTER_IS_DOWN) => {
            "look at the cluster (CLUSTER INFO): slots have no master, or most masters are gone"
        }
        "MASTERDOWN" => "connect to the master; this replica has lost it",
        "TRYAGAIN" => "try again when the slot has been moved",
        "BUSYKEY" => "choose another name, or remove the key",
        _ if lower.contains("max number of clients") => "raise its maxclients, or close connections",
        _ => return None,
    })
}

/// The sorting of server errors by their first word.
pub(crate) struct ServerCode;

impl ServerCode {
    pub(crate) fn classify(who: &str, code: &str, detail: &str) -> Error {
        // The rights of an account are checked again inside scripts, where the text has no code of its own and
        // differs between servers; both name what was refused.
        let lower = detail.to_ascii_lowercase();
        let denied_inside = lower.contains("acl failure")
            || lower.contains("no permissions")
            || lower.contains("can't run this command or subcommand")
            || lower.contains("can't access")
            || lower.contains("can't publish");
        let kind = match code {
            "NOAUTH" | "WRONGPASS" => ErrorKind::Auth,
            "NOPERM" => ErrorKind::Permission,
            "WRONGTYPE" => ErrorKind::WrongType,
            "OOM" => ErrorKind::OutOfMemory,
            "READONLY" => ErrorKind::ReadOnly,
            "LOADING" | "BUSY" | "CLUSTERDOWN" | "MASTERDOWN" | "TRYAGAIN" | "MISCONF" | "NOREPLICAS"
            | "RECOVERING" | "UNKILLABLE" | "BUSYKEY" | "MOVED" | "ASK" | UNSAVED => ErrorKind::ServerBusy,
            "EPOCH" => ErrorKind::Engine,
            // Dragonfly names the key; proxies that look at the text before they pass it on name the array.
            // Words of Redis and Valkey for a call of several keys, in a script, of which not all are there while their slot
            // moves.
            _ if lower.contains("during rehashing of the slot") => ErrorKind::ServerBusy,
            // The same of a cluster that is down and may be read.
            _ if lower.contains(CLUSTER_IS_DOWN) => ErrorKind::ServerBusy,
            _ if lower.contains("undeclared key") || lower.contains("using the keys array") => {
                ErrorKind::UndeclaredKey
            }
            _ if denied_inside => ErrorKind::Permission,
            _ if lower.contains("invalid password") || lower.contains("without any password configured") => {
                ErrorKind::Auth
            }
            _ if lower.contains("max number of clients") => ErrorKind::ServerBusy,
            _ if lower.contains("command not allowed when used memory") => ErrorKind::OutOfMemory,
            _ if lower.contains("read only replica") => ErrorKind::ReadOnly,
            _ => ErrorKind::Server,
        };
        let text = if detail.is_empty() { code.to_owned() } else { format!("{code} {detail}") };
        let mut cut: String =
            text.chars().take(TEXT_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if text.chars().nth(TEXT_CHARS_MAX).is_some() {
            cut.push('…');
        }
        // The remedy follows behind a semicolon.
        let cut = cut.trim_end_matches(['.', ' ']);
        let error = match code {
            "NOAUTH" => Error::new(kind, format!("{who} wants a password")),
            _ => Error::new(kind, format!("{who} answered: {cut}")),
        };
        match remedy(code, &lower) {
            Some(remedy) if kind == ErrorKind::ServerBusy => error.remedy(remedy),
            _ => error,
        }
    }
}
