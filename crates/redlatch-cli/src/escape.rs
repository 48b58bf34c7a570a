//! Text that came from other programs, made safe to print.
//!
//! Lock names, owners and reasons come from any account that may write to the server. Printed raw, a name could move the cursor,
//! rewrite the operator's screen or reverse the reading direction of a line, so nothing of that kind leaves this program.

use std::{fmt, ops::Range};

use redlatch::LockName;

/// Bytes that are shown escaped.
#[derive(Clone, Copy)]
pub(crate) struct Escaped<'a>(&'a [u8]);

/// Shows bytes of any origin: text as it is, everything that could act on a terminal as an escape.
pub(crate) fn bytes(raw: &[u8]) -> Escaped<'_> {
    Escaped(raw)
}

/// Shows text of any origin.
pub(crate) fn text(raw: &str) -> Escaped<'_> {
    Escaped(raw.as_bytes())
}

/// A lock name in messages.
pub(crate) fn quoted(name: &LockName) -> String {
    format!("\"{}\"", bytes(name.as_bytes()))
}

/// A name as a shell reads it, for commands to copy; nothing for one with bytes that act on a terminal.
pub(crate) fn shell_word(name: &LockName) -> Option<String> {
    let text = name.as_str().filter(|text| !text.chars().any(acts_on_terminal))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@%+,=".contains(c);
    if text.chars().all(is_plain) && !text.starts_with('-') {
        return Some(text.to_owned());
    }
    Some(format!("-- '{}'", text.replace('\'', "'\\''")))
}

/// Characters that act on a terminal, end a line, or are invisible and change how the others read.
pub(crate) fn acts_on_terminal(c: char) -> bool {
    c.is_control() || INVISIBLE.iter().any(|range| range.contains(&(c as u32)))
}

/// Half-open ranges of code points: direction marks and overrides, zero-width characters, line separators, the byte
/// order mark, interlinear marks and tags.
const INVISIBLE: [Range<u32>; 8] = [
    0x00ad..0x00ae,
    0x061c..0x061d,
    0x180e..0x180f,
    0x200b..0x2010,
    0x2028..0x202f,
    0x2060..0x2070,
    0xfeff..0xff00,
    0xfff9..0xfffc,
];

const TAGS: Range<u32> = 0xe0000..0xe0080;

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\n' => f.write_str("\\n")?,
                    '\r' => f.write_str("\\r")?,
                    '\t' => f.write_str("\\t")?,
                    c if c.is_ascii_control() => write!(f, "\\x{:02x}", c as u32)?,
                    c if acts_on_terminal(c) || TAGS.contains(&(c as u32)) => {
                        write!(f, "{}", c.escape_unicode())?
                    }
                    c => write!(f, "{c}")?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// The value of a label in Prometheus' text format: what the format gives a meaning is escaped, and nothing in it acts on a terminal.
pub(crate) fn label(value: &str) -> String {
    let mut label = String::new();
    for c in value.chars() {
        match c {
            '\\' => label.push_str("\\\\"),
            '"' => label.push_str("\\\""),
            '\n' => label.push_str("\\n"),
            c if acts_on_terminal(c) || TAGS.contains(&(c as u32)) => label.push('\u{fffd}'),
            c => label.push(c),
        }
    }
    label
}

/// JSON escapes control characters below the space already; this adds `DEL`, those beyond ASCII and the invisible ones, which may only stand
/// inside strings.
pub(crate) fn json(document: &str) -> String {
    let mut safe = String::with_capacity(document.len());
    for c in document.chars() {
        if (!c.is_ascii() || c == '\u{7f}') && (acts_on_terminal(c) || TAGS.contains(&(c as u32))) {
            let mut units = [0u16; 2];
            for unit in c.encode_utf16(&mut units) {
                safe.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// A URL without its user, password and query, fit for messages and logs.
pub(crate) fn url(raw: &str) -> String {
    let Some((scheme, rest)) = raw.split_once("://") else {
        // `local:name` and `memory:name` carry no secret; anything else may be a mistyped URL with one.
        let known = ["local:", "memory:"].iter().any(|scheme| raw.starts_with(scheme)) && !raw.contains('@');
        return if known || raw == "local" || raw == "memory" {
            text(raw).to_string()
        } else {
            "<unreadable URL>".into()
        };
    };
    // A password may contain '/', '?' or '@' unescaped, so everything up to the last '@' counts as credentials.
    let (credentials, host) = rest.rsplit_once('@').map_or((false, rest), |(_, host)| (true, host));
    let (host, query) = host.split_once('?').map_or((host, false), |(host, _)| (host, true));
    let credentials = if credentials { "***@" } else { "" };
    let query = if query { "?***" } else { "" };
    format!("{}://{credentials}{}{query}", text(scheme), text(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_acts_on_a_terminal_survives() {
        assert_eq!(text("a\x1b[2Jb\n\r\t\u{7f}\u{9b}").to_string(), "a\\x1b[2Jb\\n\\r\\t\\x7f\\u{9b}");
        assert_eq!(
            text("\u{202e}x\u{2066}\u{200f}\u{feff}").to_string(),
            "\\u{202e}x\\u{2066}\\u{200f}\\u{feff}"
        );
        assert_eq!(bytes(b"a\xff\xfeb").to_string(), "a\\xff\\xfeb");
        assert_eq!(text("ä-中 order:42 \"q\"").to_string(), "ä-中 order:42 \"q\"");
    }

    #[test]
    fn labels_stay_one_line_of_their_format() {
        assert_eq!(label("a\"b\\c\nd\u{7}\u{202e}"), "a\\\"b\\\\c\\nd\u{fffd}\u{fffd}");
    }

    #[test]
    fn json_stays_json() {
        let document = serde_json::to_string(&["a\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}ä"]).unwrap();
        let safe = json(&document);
        assert!(!safe.chars().any(acts_on_terminal), "{safe}");
        assert_eq!(
            serde_json::from_str::<Vec<String>>(&safe).unwrap(),
            ["a\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}ä"]
        );
    }

    #[test]
    fn urls_lose_their_secrets() {
        assert_eq!(url("redis://user:p@ss/w?rd@h:6379/0"), "redis://***@h:6379/0");
        assert_eq!(url("redis://h:6379/0"), "redis://h:6379/0");
        assert_eq!(url("unix:///run/x.sock?password=hush"), "unix:///run/x.sock?***");
        assert_eq!(url("local:tests"), "local:tests");
        assert_eq!(url("user:hush@host"), "<unreadable URL>");
        assert_eq!(url("redis:/user:hush@host"), "<unreadable URL>");
    }
}
