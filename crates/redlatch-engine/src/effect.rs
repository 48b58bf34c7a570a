//! Changes of the keyspace, for the journal: recorded while a script runs.

/// One change. Times are absolute on the boot clock, so that replaying late changes nothing.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Effect {
    /// A string was set, whatever was there.
    SetString {
        /// The key.
        key: Vec<u8>,
        /// The new value.
        value: Vec<u8>,
        /// When the key expires, in ms of the boot clock.
        expires_at_ms: Option<u64>,
    },
    /// A key went away.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// The expiry of a key was set or taken away.
    Expire {
        /// The key.
        key: Vec<u8>,
        /// When the key expires, in ms of the boot clock.
        expires_at_ms: Option<u64>,
    },
    /// A field of a hash was set.
    HashSet {
        /// The key.
        key: Vec<u8>,
        /// The field.
        field: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
    },
    /// A field of a hash was removed.
    HashDelete {
        /// The key.
        key: Vec<u8>,
        /// The field.
        field: Vec<u8>,
    },
    /// A value was added to an end of a list.
    ListPush {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// At the head instead of the tail.
        front: bool,
    },
    /// Values were taken from an end of a list.
    ListPop {
        /// The key.
        key: Vec<u8>,
        /// How many.
        count: u64,
        /// At the head instead of the tail.
        front: bool,
    },
    /// Equal values were removed from a list.
    ListRemove {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// How many and from which end, as in `LREM`.
        count: i64,
    },
    /// A member of a sorted set got a score.
    SortedSet {
        /// The key.
        key: Vec<u8>,
        /// The member.
        member: Vec<u8>,
        /// Its new score.
        score: f64,
    },
    /// A member of a sorted set was removed.
    SortedRemove {
        /// The key.
        key: Vec<u8>,
        /// The member.
        member: Vec<u8>,
    },
    /// Every key went away.
    Clear,
}

impl Effect {
    /// Roughly what the change takes, in memory and in the journal.
    pub(crate) fn size_bytes(&self) -> usize {
        let texts = match self {
            Effect::SetString { key, value, .. }
            | Effect::ListPush { key, value, .. }
            | Effect::ListRemove { key, value, .. } => key.len() + value.len(),
            Effect::HashSet { key, field, value } => key.len() + field.len() + value.len(),
            Effect::HashDelete { key, field } => key.len() + field.len(),
            Effect::SortedSet { key, member, .. } | Effect::SortedRemove { key, member } => {
                key.len() + member.len()
            }
            Effect::Delete { key } | Effect::Expire { key, .. } | Effect::ListPop { key, .. } => key.len(),
            Effect::Clear => 0,
        };
        texts + 32
    }
}
