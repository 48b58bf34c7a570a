//! One call of a script, and its reply.

use std::sync::Arc;

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
}

impl Call {
    pub(crate) fn new(script: &'static Script) -> Self {
        Call { script, keys: SmallVec::new(), args: SmallVec::new(), in_incarnation: None, numbered: false }
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
