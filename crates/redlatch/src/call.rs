//! One call of a script, and its reply.

use std::sync::{
    Arc,
    atomic::{
        AtomicU8,
        Ordering::{AcqRel, Acquire},
    },
};

use smallvec::SmallVec;

use crate::{
    error::{Error, ErrorKind},
    scripts::Script,
};

/// One argument of a script.
#[derive(Debug, Clone)]
pub enum Arg {
    /// An integer, sent as ASCII decimal.
    Int(i64),
    /// Text.
    Text(Arc<str>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A constant.
    Static(&'static str),
}

/// One script call: what a [`Store`](crate::store::Store) runs atomically.
#[derive(Debug, Clone)]
pub struct Call {
    /// The script.
    pub script: &'static Script,
    /// Its keys; all in one cluster slot.
    pub keys: SmallVec<[Arc<[u8]>; 2]>,
    /// Its arguments.
    pub args: SmallVec<[Arg; 6]>,
    /// It is right only for the server that was asked in this [incarnation](crate::store::Store::incarnation), and is not sent (`Fault::NotSent`) once it is another's.
    pub in_incarnation: Option<u64>,
    /// Its first argument is a number with which the reply begins.
    pub(crate) numbered: bool,
    /// For a request that is not to be sent once its caller has gone.
    pub(crate) sending: Option<Arc<SendProgress>>,
}

/// A call that counts a hold up or down, so that the server would count twice what is sent twice. Its sender says why that does no harm.
#[derive(Debug, Clone)]
pub(crate) struct CountingCall(Call);

impl CountingCall {
    /// It is sent once, by `core/send_once.rs`, which has seen the connection answer.
    pub(crate) fn sent_once(self) -> Call {
        self.0
    }

    /// It is sent once, over the connection that has just answered this task.
    pub(crate) fn after_an_answer(self) -> Call {
        self.0
    }

    /// The holds that it counts are all this process's, which knows their number, or it counts none.
    pub(crate) fn repeatable(self) -> Call {
        self.0
    }

    pub(crate) fn in_incarnation(self, incarnation: Option<u64>) -> Self {
        CountingCall(Call { in_incarnation: incarnation, ..self.0 })
    }
}

/// How far a request has come that is not to be sent once its caller has gone.
#[derive(Debug, Default)]
pub(crate) struct SendProgress(AtomicU8);

/// It is not known where the request is: it may have been sent.
const SOMEWHERE: u8 = 0;
/// The store waits for a connection, and sends nothing before [`SendProgress::begin`].
const WAITS: u8 = 1;
const SENT: u8 = 2;
/// Its caller went while it waited.
const GIVEN_UP: u8 = 3;

impl SendProgress {
    /// Gives up a request that waits; `false` if it was sent, or may have been. Otherwise it has not been sent, and will not be.
    pub(crate) fn give_up(&self) -> bool {
        self.0.compare_exchange(WAITS, GIVEN_UP, AcqRel, Acquire).is_ok()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.0.load(Acquire) == GIVEN_UP
    }

    /// It is sent now; `false` if it was given up.
    fn begin(&self) -> bool {
        self.0.fetch_update(AcqRel, Acquire, |state| (state != GIVEN_UP).then_some(SENT)).is_ok()
    }
}

impl Call {
    pub(crate) fn new(script: &'static Script) -> Self {
        Call {
            script,
            keys: SmallVec::new(),
            args: SmallVec::new(),
            in_incarnation: None,
            numbered: false,
            sending: None,
        }
    }

    /// What a call comes to whose caller has gone before it was sent.
    pub(crate) fn given_up() -> Error {
        Error::new(ErrorKind::Timeout, "its caller has gone")
    }

    /// A store that is about to wait for a connection says so, if it sends nothing without [`begin_sending`](Self::begin_sending).
    pub(crate) fn waits_for_connection(&self) {
        if let Some(sending) = &self.sending {
            // What was sent before stays so.
            _ = sending.0.compare_exchange(SOMEWHERE, WAITS, AcqRel, Acquire);
        }
    }

    /// The wait is over, and it is for another store to say when the request waits or is sent; `false` if its caller has gone.
    pub(crate) fn goes_on(&self) -> bool {
        let goes_on = |state| (state != GIVEN_UP).then_some(if state == WAITS { SOMEWHERE } else { state });
        self.sending.as_ref().is_none_or(|sending| sending.0.fetch_update(AcqRel, Acquire, goes_on).is_ok())
    }

    /// The request is sent now; `false` if its caller has gone, and it is not to be sent.
    pub(crate) fn begin_sending(&self) -> bool {
        self.sending.as_ref().is_none_or(|sending| sending.begin())
    }

    /// The call counts a hold up or down.
    pub(crate) fn counting(self) -> CountingCall {
        CountingCall(self)
    }

    pub(crate) fn in_incarnation(mut self, incarnation: u64) -> Self {
        self.in_incarnation = Some(incarnation);
        self
    }

    pub(crate) fn key(mut self, key: &Arc<[u8]>) -> Self {
        self.keys.push(key.clone());
        self
    }

    pub(crate) fn int(mut self, value: i64) -> Self {
        self.args.push(Arg::Int(value));
        self
    }

    /// The first argument: what the reply is to begin with for the caller. The wire never sees it: `core/request_ids.rs` sends a number of the
    /// request's own in its place, and puts this back into the reply.
    pub(crate) fn request_number(mut self, value: i64) -> Self {
        debug_assert!(self.args.is_empty(), "the number is the first argument");
        self.numbered = true;
        self.int(value)
    }

    pub(crate) fn text(mut self, value: &Arc<str>) -> Self {
        self.args.push(Arg::Text(value.clone()));
        self
    }

    pub(crate) fn bytes(mut self, value: &Arc<[u8]>) -> Self {
        self.args.push(Arg::Bytes(value.clone()));
        self
    }

    /// Yes or no, as scripts read it.
    pub(crate) fn flag(self, value: bool) -> Self {
        self.constant(if value { "1" } else { "0" })
    }

    pub(crate) fn constant(mut self, value: &'static str) -> Self {
        self.args.push(Arg::Static(value));
        self
    }
}

/// What a script answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// An integer.
    Int(i64),
    /// A string.
    Bytes(Vec<u8>),
    /// A list.
    Array(Vec<Reply>),
}

impl Reply {
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Reply::Int(value) => Some(*value),
            Reply::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn array(&self) -> Option<&[Reply]> {
        match self {
            Reply::Array(items) => Some(items),
            _ => None,
        }
    }
}

/// The command to publish with, in calls that are put together before it is known.
pub(crate) const PUBLISH_LATER: &str = "publish-later";

pub(crate) fn protocol_error(call: &str, reply: &Reply) -> Error {
    Error::new(ErrorKind::Protocol, format!("the script {call} answered {reply:?}, which it never does"))
}
