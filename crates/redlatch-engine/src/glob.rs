//! Redis glob patterns: `*`, `?`, `[abc]`, `[a-z]`, `[^x]` and `\` before a character.

/// Whether the whole text matches the pattern. Takes at most `pattern × text` steps: only the last star is ever
/// retried, so that no pattern can stall the engine.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() {
            if pattern[p] == b'*' {
                retry = Some((p + 1, t));
                p += 1;
                continue;
            }
            let (hit, width) = one(&pattern[p..], text[t]);
            if hit {
                p += width;
                t += 1;
                continue;
            }
        }
        let Some((after_star, from)) = retry else { return false };
        retry = Some((after_star, from + 1));
        p = after_star;
        t = from + 1;
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// Matches one pattern element against one byte; also says how long the element is.
fn one(pattern: &[u8], byte: u8) -> (bool, usize) {
    match pattern[0] {
        b'?' => (true, 1),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte, 2),
        b'[' => class(pattern, byte),
        plain => (plain == byte, 1),
    }
}

fn class(pattern: &[u8], byte: u8) -> (bool, usize) {
    let mut i = 1;
    let negated = pattern.get(i) == Some(&b'^');
    if negated {
        i += 1;
    }
    let mut hit = false;
    loop {
        match pattern.get(i) {
            // An unclosed class ends with the pattern, as in Redis.
            None => return (hit != negated, pattern.len()),
            Some(b']') => return (hit != negated, i + 1),
            Some(b'\\') if i + 1 < pattern.len() => {
                hit |= pattern[i + 1] == byte;
                i += 2;
            }
            Some(&low) if pattern.get(i + 1) == Some(&b'-') && i + 2 < pattern.len() => {
                let high = pattern[i + 2];
                hit |= (low.min(high)..=low.max(high)).contains(&byte);
                i += 3;
            }
            Some(&plain) => {
                hit |= plain == byte;
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn elements() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbbd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            (r"\*", "*", true),
            (r"\*", "a", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("", "", true),
            ("", "a", false),
            ("[abc", "c", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} on {text}");
        }
    }
}
