//! Keys and channels of a name, and the patterns that cover them for all names with a prefix.

/// How a key or channel comes from the name of a lock (`docs/protocol.md`, names).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyPattern {
    /// The name itself.
    Name,
    /// A word, and the name, in braces unless it has some.
    Before(&'static str),
    /// The name, in braces unless it has some, and a word. Whatever a word is, one pattern covers it.
    After(&'static str),
    /// A word and the name, always in braces.
    InBraces(&'static str),
    /// A word, and the id of a client in braces. It has nothing to do with the names of locks.
    OfClient(&'static str),
}

pub(crate) const LOCK_CHANNEL: KeyPattern = KeyPattern::Before("redisson_lock__channel:");
pub(crate) const RW_CHANNEL: KeyPattern = KeyPattern::Before("redisson_rwlock:");
pub(crate) const PERMITS_CHANNEL: KeyPattern = KeyPattern::Before("redisson_sc:");
pub(crate) const LATCH_CHANNEL: KeyPattern = KeyPattern::InBraces("redisson_countdownlatch__channel__");
pub(crate) const TOKEN: KeyPattern = KeyPattern::Before("redisson_lock_token:");
/// Who waits for a fair lock, and until when each of them counts.
pub(crate) const QUEUE: KeyPattern = KeyPattern::Before("redisson_lock_queue:");
pub(crate) const QUEUE_TIMES: KeyPattern = KeyPattern::Before("redisson_lock_timeout:");
/// What the timeout keys of read holds begin with, and one of them.
pub(crate) const READ_TIMES: KeyPattern = KeyPattern::After(":");
pub(crate) const READ_TIME: KeyPattern = KeyPattern::After(":owner:rwlock_timeout:1");
/// The ends of permits in use.
pub(crate) const PERMIT_TIMES: KeyPattern = KeyPattern::After(":timeout");
/// What a rate limiter counts with. Keys of one client have its id behind them.
pub(crate) const RATE_VALUE: KeyPattern = KeyPattern::After(":value");
pub(crate) const RATE_PERMITS: KeyPattern = KeyPattern::After(":permits");
/// Who forced locks free.
pub(crate) const FORCED: KeyPattern = KeyPattern::Before("redlatch_forced:");
/// What a client tells of itself.
pub(crate) const CLIENT_RECORD: KeyPattern = KeyPattern::OfClient("redlatch:client:");
/// What Redisson remembers an unlock by.
pub(crate) const UNLOCK_LATCH: KeyPattern = KeyPattern::Before("redisson_unlock_latch:");

impl KeyPattern {
    /// What is beside the name.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            KeyPattern::Name => "",
            KeyPattern::Before(word)
            | KeyPattern::After(word)
            | KeyPattern::InBraces(word)
            | KeyPattern::OfClient(word) => word,
        }
    }

    /// The key or channel of one name.
    pub(crate) fn of(self, name: &[u8]) -> Vec<u8> {
        self.with(name, self.word())
    }

    /// The same with another word.
    fn with(self, name: &[u8], word: &str) -> Vec<u8> {
        let (before, after) = match self {
            KeyPattern::Name => return name.into(),
            KeyPattern::Before(_) | KeyPattern::InBraces(_) | KeyPattern::OfClient(_) => (word, ""),
            KeyPattern::After(_) => ("", word),
        };
        let braces =
            matches!(self, KeyPattern::InBraces(_) | KeyPattern::OfClient(_)) || !name.contains(&b'{');
        let mut key = Vec::with_capacity(before.len() + name.len() + after.len() + 2);
        key.extend_from_slice(before.as_bytes());
        if braces {
            key.push(b'{');
        }
        key.extend_from_slice(name);
        if braces {
            key.push(b'}');
        }
        key.extend_from_slice(after.as_bytes());
        key
    }

    /// The pattern that finds it for all names.
    pub(crate) fn of_any(self) -> String {
        match self {
            KeyPattern::Name => "*".into(),
            KeyPattern::Before(word) | KeyPattern::InBraces(word) | KeyPattern::OfClient(word) => {
                format!("{word}*")
            }
            KeyPattern::After(word) => format!("*{word}"),
        }
    }

    /// The patterns that all names with this prefix need, each with a key or channel that only it covers. A name that has braces
    /// is used without others, so most have two.
    pub(crate) fn patterns(self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let start = escaped(prefix);
        let own_braces = prefix.contains('{');
        // A brace that the prefix opens is closed by the name.
        let end = if own_braces && !prefix.contains('}') { "}" } else { "" };
        let name = format!("{prefix}{SAMPLE}{end}");
        let braced = format!("{prefix}{{{SAMPLE}}}");
        let of = |name: &str| match self {
            KeyPattern::After(_) => self.with(name.as_bytes(), &format!(":{SAMPLE}")),
            _ => self.of(name.as_bytes()),
        };
        let before = match self {
            KeyPattern::Name => return vec![(format!("{start}*"), of(&name))],
            KeyPattern::InBraces(word) => return vec![(format!("{word}{{{start}*"), of(&name))],
            KeyPattern::OfClient(_) => return vec![(self.of_any(), self.of(SAMPLE.as_bytes()))],
            KeyPattern::Before(word) => word,
            KeyPattern::After(_) => "",
        };
        if prefix.is_empty() || own_braces {
            return vec![(format!("{before}{start}*"), of(&name))];
        }
        vec![(format!("{before}{start}*"), of(&braced)), (format!("{before}{{{start}*"), of(&name))]
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
