//! The words on the lines between the two processes, the replies and the errors.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::stall::awake_between;

/// What Java answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    value: Option<String>,
    is_list: bool,
    elapsed: Duration,
    finished_at: SystemTime,
}

impl Reply {
    /// The value as text; empty if there is none.
    #[must_use]
    pub fn text(&self) -> &str {
        self.value.as_deref().unwrap_or("")
    }

    /// Whether Java answered null, or nothing at all.
    #[must_use]
    pub fn is_nil(&self) -> bool {
        self.value.is_none()
    }

    /// The value as a truth value.
    ///
    /// # Errors
    ///
    /// If it is neither `true` nor `false`.
    pub fn as_bool(&self) -> Result<bool, JavaError> {
        self.parse("a truth value")
    }

    /// The value as a number.
    ///
    /// # Errors
    ///
    /// If it is none.
    pub fn as_i64(&self) -> Result<i64, JavaError> {
        self.parse("a number")
    }

    fn parse<T: std::str::FromStr>(&self, expected: &str) -> Result<T, JavaError> {
        self.text().parse().map_err(|_| {
            JavaError::new(JavaErrorKind::Protocol, format!("expected {expected}, got {:?}", self.value))
        })
    }

    /// The items of a list. A single value is a list of one, nothing is an empty list.
    #[must_use]
    pub fn list(&self) -> Vec<&str> {
        match &self.value {
            Some(items) if self.is_list => items.split(',').collect(),
            Some(item) if !item.is_empty() => vec![item],
            _ => Vec::new(),
        }
    }

    /// How long the command ran in its Java thread, not counting the way there and back.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// The wall clock of this host when the command ended, to compare with events of other processes.
    #[must_use]
    pub fn finished_at(&self) -> SystemTime {
        self.finished_at
    }

    /// How long after `event` the command ended; zero if it ended before.
    #[must_use]
    pub fn finished_after(&self, event: SystemTime) -> Duration {
        self.finished_at.duration_since(event).unwrap_or_default()
    }

    /// The same without the time in which the machine stood still, as far as [`stall`](crate::stall) has noticed it.
    #[must_use]
    pub fn awake_after(&self, event: SystemTime) -> Duration {
        let (wall, now) = (SystemTime::now(), Instant::now());
        let ago = |at: SystemTime| wall.duration_since(at).unwrap_or_default();
        let at = |at: SystemTime| now.checked_sub(ago(at)).unwrap_or(now);
        awake_between(at(event), at(self.finished_at))
    }
}

/// Why there is no reply, or not the one asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JavaErrorKind {
    /// Java threw an exception; [`JavaError::exception`] is its class.
    Exception,
    /// The time that the caller allowed is over; the command may still be running.
    Timeout,
    /// The Java process has ended.
    Gone,
    /// The driver could not be built or started.
    Build,
    /// Java or Maven is not installed.
    MissingTool,
    /// The reply was not understood.
    Protocol,
}

/// A failed command.
#[derive(Clone, Debug)]
pub struct JavaError {
    kind: JavaErrorKind,
    exception: Option<String>,
    message: String,
}

impl JavaError {
    pub(super) fn new(kind: JavaErrorKind, message: impl Into<String>) -> Self {
        Self { kind, exception: None, message: message.into() }
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> JavaErrorKind {
        self.kind
    }

    /// The simple class name of the Java exception, such as `IllegalMonitorStateException`.
    #[must_use]
    pub fn exception(&self) -> Option<&str> {
        self.exception.as_deref()
    }

    /// The message, on one line for an exception.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for JavaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.exception {
            Some(class) => write!(f, "{class}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for JavaError {}

/// One member of a multi-lock. The name of the object in a `multi.…` or `red.…` verb is a list of these, joined by
/// commas. `kind` is a kind of lock, with `client@` before it for a member of another client.
#[must_use]
pub fn member(kind: &str, name: &str) -> String {
    format!("{kind}={}", encode(name))
}

/// Writes a word so that it has no space, comma, equals sign or line end in it.
pub(super) fn encode(word: &str) -> String {
    match word {
        "" => "%".to_owned(),
        "-" => "%2D".to_owned(),
        _ => {
            let mut line = String::with_capacity(word.len());
            for octet in word.bytes() {
                match octet {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => line.push(octet.into()),
                    _ => line.push_str(&format!("%{octet:02X}")),
                }
            }
            line
        }
    }
}

fn decode(line: &str) -> Option<String> {
    if line == "%" {
        return Some(String::new());
    }
    let mut octets = Vec::with_capacity(line.len());
    let mut rest = line.bytes();
    while let Some(octet) = rest.next() {
        if octet == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            octets.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            octets.push(octet);
        }
    }
    String::from_utf8(octets).ok()
}

/// Takes a reply line apart: its sequence number and its outcome. `None` if it is not a reply line.
pub(super) fn parse_reply(line: &str) -> Option<(u64, Result<Reply, JavaError>)> {
    let mut words = line.split(' ');
    let seq = words.next()?.parse().ok()?;
    let outcome = words.next()?;
    let elapsed = Duration::from_micros(words.next()?.parse().ok()?);
    let finished_at = UNIX_EPOCH + Duration::from_micros(words.next()?.parse().ok()?);
    let result = match outcome {
        "ok" => {
            let word = words.next()?;
            let is_list = word.contains(',');
            let items: Option<Vec<String>> = word.split(',').map(decode).collect();
            let value = if word == "-" { None } else { Some(items?.join(",")) };
            Ok(Reply { value, is_list, elapsed, finished_at })
        }
        "err" => {
            let exception = Some(words.next()?.to_owned());
            let message = decode(words.next()?)?.replace(['\r', '\n'], " ");
            Err(JavaError { kind: JavaErrorKind::Exception, exception, message })
        }
        _ => return None,
    };
    words.next().is_none().then_some((seq, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_survives_the_line() {
        for word in ["", "-", "--", "a b", "%", "ä{x},=%20", "line\nend", "\0", "😀"] {
            let line = encode(word);
            assert!(!line.contains([' ', ',', '=', '\n']), "{line}");
            assert_eq!(decode(&line).as_deref(), Some(word));
        }
    }

    #[test]
    fn replies_are_told_apart() {
        let (seq, reply) = parse_reply("7 ok 1500 1700000000000000 a%20b,c").expect("a reply line");
        let reply = reply.expect("an ok reply");
        assert_eq!((seq, reply.list(), reply.elapsed().as_micros()), (7, vec!["a b", "c"], 1500));

        let (_, nil) = parse_reply("8 ok 1 1 -").expect("a reply line");
        assert!(nil.expect("an ok reply").is_nil());

        let (_, error) = parse_reply("9 err 1 1 IllegalStateException no%0Away").expect("a reply line");
        let error = error.expect_err("an error reply");
        assert_eq!((error.exception(), error.message()), (Some("IllegalStateException"), "no way"));

        for line in ["", "x ok 1 1 -", "1 ok 1 -", "1 maybe 1 1 -", "1 ok 1 1 %Z", "1 ok 1 1 - more"] {
            assert!(parse_reply(line).is_none(), "{line:?}");
        }
    }
}
