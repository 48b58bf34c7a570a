//! One error for everything, with a kind to branch on.
//!
//! "Busy" is not an error (acquires answer `None`), and loss is a value ([`LossReason`]); an [`Error`] means that a
//! question could not be answered or a request was refused.

use std::fmt;

use crate::{fork::TooManyForks, name::LockName};

/// What went wrong, in the terms a caller can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock's name is empty, too long, or would be split over cluster slots.
    InvalidName,
    /// An option is out of range, or two options contradict each other.
    InvalidOption,
    /// The store's URL cannot be understood, or takes the server for what it is not, such as a member of a cluster for one on its
    /// own.
    InvalidUrl,
    /// No connection to the server.
    Unreachable,
    /// The server is there, but no encrypted connection comes about: a certificate is refused, or only one side encrypts.
    Tls,
    /// The server did not answer in time; what it did is unknown and is being cleaned up in the background.
    Timeout,
    /// User or password was refused.
    Auth,
    /// The account lacks a right (a command, a key pattern or a channel).
    Permission,
    /// The name is used by a key of another type.
    WrongType,
    /// The name is used by a lock of another kind, or the owner holds it as one.
    WrongLockKind,
    /// Nobody has given the semaphore its permits, or the rate limiter its rate, yet.
    NotInitialised,
    /// The owner does not hold the lock.
    NotOwner,
    /// The owner holds the lock already, and the lock is not to be entered twice.
    AlreadyHeld,
    /// An earlier request of the owner that may take a hold away was never answered. A network may still deliver it, so the owner
    /// is granted nothing more under this name for an hour, and its last write hold is not downgraded if its owner was written out. Fresh
    /// owners, which are what an acquire uses unless told, are refused in one case: a grant came after
    /// its lease had ended, and the request that gives it back was not answered. Asking again uses another owner.
    OwnerInDoubt,
    /// The owner holds the read lock and asks for the write lock, for which it would wait for itself. An owner of
    /// this client whose read hold another process has waits for its end, and is refused when it is made to last for longer.
    UpgradeRefused,
    /// The hold was lost before the request was made.
    Lost,
    /// The server is out of memory and refuses new keys; releases and renewals still work.
    OutOfMemory,
    /// The server is a read-only replica.
    ReadOnly,
    /// Too few replicas confirmed the grant in time; the lock was given back.
    NotReplicated,
    /// The server lacks a command that the request needs.
    Unsupported,
    /// The server is loading, failing over or blocked by a slow script.
    ServerBusy,
    /// The client was shut down.
    Closed,
    /// The wait was cancelled.
    Cancelled,
    /// A hold, an owner, or a client that cannot be made anew was inherited over `fork()` and belongs to the parent process. Or no thread
    /// runs in this process, which was forked off while a thread of its parent began or ended.
    Forked,
    /// The server refused a script for a key that it had not declared. Keys are declared where a server turns out to want that,
    /// so this is left for a server that has begun to want it while a read lock was held.
    UndeclaredKey,
    /// The server lacks the functions that the client is to use
    /// ([`ScriptMode::Functions`](crate::ScriptMode::Functions)).
    FunctionMissing,
    /// The local engine could not be started, or speaks another version.
    Engine,
    /// The server's answer makes no sense.
    Protocol,
    /// Any other error answer of the server.
    Server,
    /// A blocking call was made from inside an async runtime.
    InsideRuntime,
}

/// Why an operation failed: a [kind](ErrorKind), the lock and owner concerned, and the remedy.
///
/// The text never contains passwords. It is one line; control characters in names are escaped.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    lock: Option<LockName>,
    owner: Option<String>,
    remedy: Option<&'static str>,
    is_migrating: bool,
    is_answered: bool,
    is_elsewhere: bool,
}

impl Error {
    /// An error of that kind, with the remedy of the kind: for stores of one's own ([`Store`](crate::store::Store)). The message says
    /// what was in the way, without lock, owner and remedy, which are added, in one line and without secrets.
    ///
    /// # Example
    ///
    /// ```
    /// use redlatch::{Error, ErrorKind, store::Fault};
    /// let fault = Fault::NotSent(Error::new(ErrorKind::Unreachable, "cannot connect to the shelf"));
    /// assert!(fault.into_error().is_retryable());
    /// ```
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.contains(char::is_control) {
            message = message.replace(char::is_control, " ");
        }
        Error(Box::new(Inner {
            kind,
            message,
            lock: None,
            owner: None,
            remedy: remedy(kind),
            is_migrating: false,
            is_answered: false,
            is_elsewhere: false,
        }))
    }

    pub(crate) fn on(mut self, lock: &LockName) -> Self {
        self.0.lock.get_or_insert_with(|| lock.clone());
        self
    }

    /// Names the owner, unless one is named already.
    pub(crate) fn naming_owner(mut self, field: impl FnOnce() -> String) -> Self {
        self.0.owner.get_or_insert_with(field);
        self
    }

    /// The same fault, seen in a wider context.
    pub(crate) fn within(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// The same with another remedy: what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: &'static str) -> Self {
        self.0.remedy = Some(remedy);
        self
    }

    /// Says that nothing has run because the keys of one call were in two places.
    pub(crate) fn split(mut self) -> Self {
        self.0.is_migrating = true;
        self
    }

    pub(crate) fn is_migrating(&self) -> bool {
        self.0.is_migrating
    }

    /// Says that the call was answered, by a server that does not count any more. So it does not arrive later.
    pub(crate) fn answered(mut self) -> Self {
        self.0.is_answered = true;
        self
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.0.is_answered
    }

    /// Says that nothing was sent because another server than the one that counted would have run it.
    pub(crate) fn elsewhere(mut self) -> Self {
        self.0.is_elsewhere = true;
        self
    }

    pub(crate) fn is_elsewhere(&self) -> bool {
        self.0.is_elsewhere
    }

    /// The text without lock, owner and remedy.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The lock that was asked for, if there was one.
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        use ErrorKind::*;
        matches!(self.0.kind, Unreachable | Timeout | ReadOnly | ServerBusy | OutOfMemory | NotReplicated)
    }
}

fn remedy(kind: ErrorKind) -> Option<&'static str> {
    use ErrorKind::*;
    Some(match kind {
        Unreachable => "check that the server runs and that the URL names it",
        Timeout => {
            "check the server's load and the network; a lock that was granted unseen is released in the background"
        }
        Tls => "check certificates, and that the URL says rediss:// if and only if the port is encrypted",
        Auth => "check user name and password",
        Permission => {
            "give the account the missing right: `redlatch doctor --prefix` finds it, `redlatch acl` prints what is needed"
        }
        WrongType => "choose another name, or remove the key if it is not needed",
        WrongLockKind => "use one kind of lock for one name",
        NotInitialised => "set the number of permits first, with set_if_absent",
        UndeclaredKey => {
            "try again, or let the server allow undeclared keys (Dragonfly: --default_lua_flags=allow-undeclared-keys)"
        }
        OutOfMemory => "raise maxmemory or free memory on the server",
        ReadOnly => "connect to the master",
        OwnerInDoubt => "acquire with a fresh owner",
        NotReplicated => {
            "look at the replicas and their lag, give them more time, ask for fewer, or keep the lock on a shortfall"
        }
        Unsupported => "do without it there",
        Closed => "connect a new client",
        Forked => "acquire the lock in the child process",
        InsideRuntime => "use the async client there",
        _ => return None,
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(lock) = &inner.lock {
            write!(f, "lock \"{lock}\": ")?;
        }
        f.write_str(&inner.message)?;
        if let Some(owner) = &inner.owner {
            write!(f, " (owner {owner})")?;
        }
        if let Some(remedy) = inner.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl std::error::Error for Error {}

impl From<TooManyForks> for Error {
    fn from(_: TooManyForks) -> Self {
        let why = "too many processes in a row were forked off in the middle of beginning";
        Error::new(ErrorKind::Forked, why).remedy("make clients before forking")
    }
}

/// Why a hold ended before its guard gave it back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ran out by the local clock before it could be renewed; the server may or may not still have it.
    Expired,
    /// The lock was freed by force, with this library or its command.
    Forced {
        /// Who did it.
        by: String,
        /// Why, if that was said.
        reason: Option<String>,
    },
    /// The server no longer has the hold, and another owner had the lock when it was looked for.
    TakenOver {
        /// The owner found in place of ours.
        by: String,
    },
    /// The server no longer has the hold, and nobody else had the lock when it was looked for: deleted, forced free by another
    /// library, or lost with the server's data.
    Deleted,
    /// The client was shut down.
    Shutdown,
    /// The guard was inherited over `fork()`: the parent process has the hold, not this one.
    Forked,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::Expired => f.write_str("the lease ran out before it could be renewed"),
            LossReason::Forced { by, reason } => {
                write!(f, "the lock was forced free by {}", by.escape_debug())?;
                match reason {
                    Some(reason) => write!(f, ": {}", reason.escape_debug()),
                    None => Ok(()),
                }
            }
            LossReason::TakenOver { by } => write!(f, "the lock was taken over by {by}"),
            LossReason::Deleted => f.write_str("the lock was deleted on the server"),
            LossReason::Forked => f.write_str("the hold is the parent process's"),
            LossReason::Shutdown => f.write_str("the client was shut down"),
        }
    }
}
