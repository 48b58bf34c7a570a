//! One call of a force script, and the record that it leaves for those who held the lock.

use std::sync::Arc;

use crate::{call::Call, error::LossReason, keys::Keys, kind::key_pattern::FORCED};

/// What the force scripts leave for the holders.
pub(crate) struct Record {
    key: Arc<[u8]>,
    /// Who, a line break, and why. The script puts the time before it, between line breaks.
    text: Arc<str>,
}

impl Record {
    /// Who, a line break, and why.
    pub(crate) fn new(keys: &Keys, text: String) -> Self {
        Record { key: Record::key(keys), text: text.into() }
    }

    /// Where the records of a name are.
    pub(crate) fn key(keys: &Keys) -> Arc<[u8]> {
        FORCED.of(&keys.key).into()
    }

    /// What the holder is told.
    pub(crate) fn read(text: &[u8]) -> Option<LossReason> {
        if text.is_empty() {
            return None;
        }
        let text = String::from_utf8_lossy(text);
        let (by, reason) = text.split_once('\n').unwrap_or((&text, ""));
        let reason = (!reason.is_empty()).then(|| reason.to_owned());
        Some(LossReason::Forced { by: by.to_owned(), reason })
    }
}

/// One call of a force script.
pub(crate) struct Forcing<'a> {
    pub(crate) number: i64,
    /// The owner that must hold it; empty for any.
    pub(crate) owner: &'a str,
    pub(crate) publish: &'static str,
    /// What is recorded. Accounts without a right to the record do without.
    pub(crate) record: Option<&'a Record>,
}

impl Forcing<'_> {
    /// The call with the record as its last key and its last argument.
    pub(crate) fn recorded(&self, call: Call) -> Call {
        match self.record {
            Some(record) => call.key(&record.key).text(&record.text),
            None => call,
        }
    }
}
