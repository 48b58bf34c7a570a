//! The class of a name: a label of which there are few, for names of which there are millions.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use crate::name::LockName;

/// How many classes a [`Classes`] tells apart, of all kinds together. Monitoring keeps a series for each, times the other labels.
pub const CLASSES_MAX: usize = 64;
/// The class of all names that come when so many classes are known, and of those that are no text or whose class is longer than 100 bytes.
pub const OTHER: &str = "other";
const CLASS_BYTES_MAX: usize = 100;
/// Stands for what differs from name to name.
const ID: &str = "*";

/// Makes labels of names: what looks like an identifier becomes `*`, and the number of classes is bounded by [`CLASSES_MAX`].
///
/// A name is cut at `:`, `/`, `.`, `-`, `_`, `#`, `|`, `@`, `,`, `=`, braces and spaces; a part that has a digit is an identifier, and so is a UUID as a
/// whole. Names whose identifiers are words, such as user names, fill the bound, and what comes later is [`OTHER`].
///
/// # Example
///
/// ```
/// use redlatch::observe::Classes;
///
/// assert_eq!(Classes::template("order:4711:pay"), "order:*:pay");
/// assert_eq!(Classes::template("cart/550e8400-e29b-41d4-a716-446655440000"), "cart/*");
/// ```
#[derive(Debug, Default)]
pub struct Classes(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    count: usize,
    of_kinds: HashMap<&'static str, HashSet<Arc<str>>>,
}

impl Classes {
    /// The class of a name of a [kind](crate::observe::Subject::kind).
    pub fn of(&self, kind: &'static str, name: &LockName) -> Arc<str> {
        let Some(name) = name.as_str() else { return OTHER.into() };
        let template = Self::template(name);
        if template.len() > CLASS_BYTES_MAX {
            return OTHER.into();
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = known.count >= CLASSES_MAX;
        let of_kind = known.of_kinds.entry(kind).or_default();
        if let Some(class) = of_kind.get(template.as_str()) {
            return class.clone();
        }
        if is_full {
            return OTHER.into();
        }
        let class: Arc<str> = template.into();
        of_kind.insert(class.clone());
        known.count += 1;
        class
    }

    /// The class of a name, as if there were no bound. Control characters become `*` as well.
    pub fn template(name: &str) -> String {
        let mut template = String::with_capacity(name.len());
        let mut rest = name;
        while !rest.is_empty() {
            let part = match uuid_at(rest) {
                Some(uuid) => uuid,
                None => &rest[..rest.find(is_separator).unwrap_or(rest.len())],
            };
            let is_id = uuid_at(part).is_some() || part.chars().any(|c| c.is_numeric() || c.is_control());
            // Identifiers that stand together are one.
            let goes_on = is_id && ["*-", "*_", "*."].iter().any(|end| template.ends_with(end));
            if goes_on {
                template.pop();
            } else {
                template.push_str(if is_id { ID } else { part });
            }
            rest = &rest[part.len()..];
            if let Some(separator) = rest.chars().next() {
                // A UUID may end within a longer word.
                if is_separator(separator) {
                    template.push(separator);
                    rest = &rest[separator.len_utf8()..];
                }
            }
        }
        template
    }
}

fn is_separator(c: char) -> bool {
    matches!(c, ' ' | ':' | '/' | '.' | '-' | '_' | '#' | '|' | '@' | ',' | '=' | '{' | '}')
}

/// The UUID with which a text begins.
fn uuid_at(text: &str) -> Option<&str> {
    const LENGTH: usize = 36;
    let uuid = text.get(..LENGTH)?;
    let fits = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    uuid.bytes().enumerate().all(fits).then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_name_to_name_is_left_out_of_the_class() {
        for (name, class) in [
            ("orders", "orders"),
            ("order:4711", "order:*"),
            ("order:{4711}:pay", "order:{*}:pay"),
            ("shard-7", "shard-*"),
            ("job.2026-11-29.eu", "job.*.eu"),
            ("cart/550e8400-e29b-41d4-a716-446655440000", "cart/*"),
            ("abcdabcd-abcd-abcd-abcd-abcdabcdabcd/x", "*/x"),
            ("a\u{7}b:c", "*:c"),
            ("", ""),
            ("::", "::"),
            ("ключ:٣", "ключ:*"),
        ] {
            assert_eq!(Classes::template(name), class, "{name:?}");
        }
    }

    #[test]
    fn a_million_names_have_no_more_classes_than_the_bound() {
        let classes = Classes::default();
        let mut seen = HashSet::new();
        for n in 0u64..1_000_000 {
            // Words without a digit, each another one.
            let word: String = n.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
            let name = LockName::unchecked(format!("user:{word}").as_bytes());
            seen.insert(classes.of("lock", &name));
        }
        assert_eq!(seen.len(), CLASSES_MAX + 1);
        let known = LockName::unchecked(b"user:a");
        assert_eq!(&*classes.of("lock", &known), "user:a", "the first ones keep theirs");
    }

    #[test]
    fn what_is_no_text_or_too_long_is_other() {
        let classes = Classes::default();
        for name in [&b"\xff\xfe"[..], &[b'x'; 200]] {
            assert_eq!(&*classes.of("lock", &LockName::unchecked(name)), OTHER);
        }
    }
}
