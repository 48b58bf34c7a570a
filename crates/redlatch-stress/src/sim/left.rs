//! What there is of locks on a simulated server.

use redlatch_engine::{DumpedKey, Value};

/// A hold or a place in a queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Left {
    pub(super) key: String,
    pub(super) kind: &'static str,
    /// The owner's field, or the id of a permit.
    pub(super) owner: String,
    pub(super) ttl_ms: Option<u64>,
}

fn text(value: &Value) -> String {
    match value {
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}

/// Everything but counters, tokens, numbers of permits, and what clients tell of themselves, which holds nothing and ends some time after what it tells of.
pub(super) fn all(dump: Vec<DumpedKey>) -> Vec<Left> {
    let mut all = Vec::new();
    for DumpedKey { key, kind, ttl_ms, content } in dump {
        let key = String::from_utf8_lossy(&key).into_owned();
        if key.starts_with("redlatch:client:") {
            continue;
        }
        let owners: Vec<String> = match (kind, &content) {
            ("hash" | "zset", Value::Array(pairs)) => pairs.iter().step_by(2).map(text).collect(),
            ("list", Value::Array(places)) => places.iter().map(text).collect(),
            // The end of one read hold names its owner in the key.
            ("string", _) if key.contains("rwlock_timeout") => vec![key.clone()],
            _ => Vec::new(),
        };
        let owners = owners.into_iter().filter(|owner| owner != "mode");
        all.extend(owners.map(|owner| Left { key: key.clone(), kind, owner, ttl_ms }));
    }
    all
}
