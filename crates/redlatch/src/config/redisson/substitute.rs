//! `${NAME}` and `${NAME:-default}` on the raw text, before it is read as YAML, as Redisson does it.

/// How much text may come out: a file of 1 MiB that names a long variable very often must not fill the memory.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// The text with its variables, and the lines on which one has neither a value nor a default and stays as it is.
/// `None` when the result would be over 4 MiB.
pub(super) fn substitute(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Option<(String, Vec<usize>)> {
    let mut out = String::with_capacity(text.len());
    let mut unset = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match variable(rest) {
            Some((name, default, length)) => {
                match lookup(name).or_else(|| default.map(str::to_owned)) {
                    Some(value) => out.push_str(&value),
                    None => {
                        // Line of the result: that is what the reader of the YAML counts.
                        unset.push(1 + out.matches('\n').count());
                        out.push_str(&rest[..length]);
                    }
                }
                rest = &rest[length..];
            }
            None => {
                out.push_str("${");
                rest = &rest[2..];
            }
        }
        if out.len() > BYTES_MAX {
            return None;
        }
    }
    out.push_str(rest);
    (out.len() <= BYTES_MAX).then_some((out, unset))
}

/// Name, default and length of the variable at the start of the text, which begins with `${`.
fn variable(text: &str) -> Option<(&str, Option<&str>, usize)> {
    let inner = &text[2..];
    let end = inner.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'))?;
    let (name, after) = inner.split_at(end);
    if name.is_empty() {
        return None;
    }
    if after.starts_with('}') {
        return Some((name, None, 2 + end + 1));
    }
    let default = after.strip_prefix(":-")?;
    let close = default.find(['}', '\n'])?;
    default[close..].starts_with('}').then(|| (name, Some(&default[..close]), 2 + end + 2 + close + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> (String, Vec<usize>) {
        let lookup = |name: &str| match name {
            "HOST" => Some("db".to_owned()),
            "a.b_c" => Some("dots".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        substitute(text, &lookup).unwrap()
    }

    #[test]
    fn variables_take_value_default_or_stay() {
        for (text, result) in [
            ("redis://${HOST}:${PORT:-6379}", "redis://db:6379"),
            ("${a.b_c}${HOST}", "dotsdb"),
            ("${EMPTY:-x}|${NONE:-}|", "||"),
            ("${NONE:-redis://h:1}", "redis://h:1"),
            ("$HOST {HOST} $${HOST}", "$HOST {HOST} $db"),
            ("${}${-x}${HOST", "${}${-x}${HOST"),
            ("${HO ST} ${HOST:x}", "${HO ST} ${HOST:x}"),
            ("${NONE:-a\n}", "${NONE:-a\n}"),
            ("${${HOST}}", "${db}"),
            ("é${HOST}é", "édbé"),
        ] {
            assert_eq!(with(text), (result.to_owned(), vec![]), "{text}");
        }
        assert_eq!(with("a\n${NONE} ${HOST}\n${NONE}"), ("a\n${NONE} db\n${NONE}".to_owned(), vec![2, 3]));
    }

    #[test]
    fn values_are_not_substituted_again_and_do_not_fill_the_memory() {
        let again = substitute("${A}", &|name| (name == "A").then(|| "${A}".to_owned())).unwrap();
        assert_eq!(again, ("${A}".to_owned(), vec![]));
        let long = "x".repeat(1024 * 1024);
        assert_eq!(substitute(&"${A}".repeat(100), &|_| Some(long.clone())), None);
    }
}
