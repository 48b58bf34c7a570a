//! Replies and errors of the engine.

use std::borrow::Cow;
use std::fmt;

/// A reply, after the conversion rules that Redis applies to what a script returns.
///
/// Numbers are truncated to integers, `true` becomes 1, `false` and `nil` become [`Value::Nil`], and a table
/// ends at its first `nil`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// No value.
    Nil,
    /// An integer.
    Int(i64),
    /// A byte string.
    Bytes(Vec<u8>),
    /// Several values in order.
    Array(Vec<Value>),
    /// A status such as `OK`.
    Status(String),
}

impl Value {
    pub(crate) fn ok() -> Value {
        Value::Status("OK".to_owned())
    }

    pub(crate) fn bytes(bytes: &[u8]) -> Value {
        Value::Bytes(bytes.to_vec())
    }
}

/// What a command or script failed with, in the form that Redis uses: a code word, then a sentence.
#[derive(Clone, PartialEq, Eq)]
pub struct EngineError {
    text: Cow<'static, str>,
}

impl EngineError {
    /// An error from a whole line such as `ERR syntax error`; line breaks become spaces, since an error reply
    /// is one line.
    pub fn new(text: impl Into<Cow<'static, str>>) -> EngineError {
        let text = text.into();
        if text.contains(['\r', '\n']) {
            return EngineError { text: text.replace(['\r', '\n'], " ").into() };
        }
        EngineError { text }
    }

    pub(crate) const fn fixed(text: &'static str) -> EngineError {
        EngineError { text: Cow::Borrowed(text) }
    }

    /// The first word, for example `WRONGTYPE`, `NOSCRIPT` or `ERR`.
    pub fn code(&self) -> &str {
        self.text.split(' ').next().unwrap_or_default()
    }

    /// The whole line, code included.
    pub fn message(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineError").field(&self.text).finish()
    }
}

impl std::error::Error for EngineError {}

pub(crate) const WRONGTYPE: EngineError =
    EngineError::fixed("WRONGTYPE Operation against a key holding the wrong kind of value");
pub(crate) const NOT_INTEGER: EngineError = EngineError::fixed("ERR value is not an integer or out of range");
pub(crate) const NOT_FLOAT: EngineError = EngineError::fixed("ERR value is not a valid float");
pub(crate) const NOT_POSITIVE: EngineError =
    EngineError::fixed("ERR value is out of range, must be positive");
pub(crate) const SYNTAX: EngineError = EngineError::fixed("ERR syntax error");
pub(crate) const OVERFLOW: EngineError = EngineError::fixed("ERR increment or decrement would overflow");
pub(crate) const NOSCRIPT: EngineError = EngineError::fixed("NOSCRIPT No matching script. Please use EVAL.");
