//! Keys and channels of a name, and the patterns that cover them for all names with a prefix.

use crate::keys::{prefixed, suffixed};

/// How a key or channel comes from the name of a lock (`docs/protocol.md`, names).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The name itself.
    Name,
    /// A word, a colon, and the name, in braces unless it has some.
    Before(&'static str),
    /// The name, in braces unless it has some, a colon, and more.
    After,
    /// A word and the name, always in braces.
    InBraces(&'static str),
}

pub(super) const LOCK_CHANNEL: Place = Place::Before("redisson_lock__channel");
pub(super) const RW_CHANNEL: Place = Place::Before("redisson_rwlock");
pub(super) const PERMITS_CHANNEL: Place = Place::Before("redisson_sc");
pub(super) const LATCH_CHANNEL: Place = Place::InBraces("redisson_countdownlatch__channel__");
pub(super) const TOKEN: Place = Place::Before("redisson_lock_token");
pub(super) const QUEUE: Place = Place::Before("redisson_lock_queue");
pub(super) const TIMES: Place = Place::Before("redisson_lock_timeout");
/// Who forced locks free.
pub(super) const FORCED: Place = Place::Before("redlatch_forced");
/// What Redisson remembers an unlock by.
pub(super) const UNLOCK_LATCH: Place = Place::Before("redisson_unlock_latch");

impl Place {
    /// The key or channel of one name; `more` is what comes after the name, where something does.
    pub(super) fn of(self, name: &[u8], more: &str) -> Vec<u8> {
        match self {
            Place::Name => name.into(),
            Place::Before(word) => prefixed(word.as_bytes(), name),
            Place::After => suffixed(name, more.as_bytes()),
            Place::InBraces(word) => [word.as_bytes(), b"{", name, b"}"].concat(),
        }
    }

    /// The patterns that all names with this prefix need, each with a key or channel that only it covers. A name that has braces
    /// is used without others, so most have two.
    pub(super) fn patterns(self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let start = escaped(prefix);
        let own_braces = prefix.contains('{');
        // A brace that the prefix opens is closed by the name.
        let end = if own_braces && !prefix.contains('}') { "}" } else { "" };
        let name = format!("{prefix}{SAMPLE}{end}");
        let braced = format!("{prefix}{{{SAMPLE}}}");
        let of = |name: &str| self.of(name.as_bytes(), SAMPLE);
        let (before, inside) = match self {
            Place::Name => return vec![(format!("{start}*"), of(&name))],
            Place::InBraces(word) => return vec![(format!("{word}{{{start}*"), of(&name))],
            Place::Before(word) => (format!("{word}:"), "{"),
            Place::After => (String::new(), "{"),
        };
        if prefix.is_empty() || own_braces {
            return vec![(format!("{before}{start}*"), of(&name))];
        }
        vec![(format!("{before}{start}*"), of(&braced)), (format!("{before}{inside}{start}*"), of(&name))]
    }
}

/// The part of the names that rights are tried with; nobody else uses it.
const SAMPLE: &str = "redlatch-doctor-trial";

/// Text as part of a pattern, where it stands for itself. Blanks and quotes, which no rule can hold, match as any one byte.
pub fn escaped(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 4);
    for c in prefix.chars() {
        match c {
            '*' | '?' | '[' | ']' | '\\' => pattern.extend(['\\', c]),
            '"' | '\'' => pattern.push('?'),
            // A pattern counts bytes.
            c if c.is_whitespace() || c.is_control() => {
                pattern.extend(std::iter::repeat_n('?', c.len_utf8()))
            }
            c => pattern.push(c),
        }
    }
    pattern
}
