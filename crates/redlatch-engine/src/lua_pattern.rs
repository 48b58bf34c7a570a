//! Lua's patterns, with a bound. Those of the standard library go back and forth for as long as a pattern lets them, and nothing can
//! stop them: one `string.find` could keep the engine from everybody for hours. These ask every few thousand steps whether the
//! script's time is over, and how deep they may go is limited.

/// Captures of one pattern, as in Lua.
const CAPTURES_MAX: usize = 32;
/// How deep a match may nest.
const DEPTH_MAX: usize = 200;
/// Steps between two looks at the time.
const STEPS_PER_CHECK: u32 = 10_000;

const ESCAPE: u8 = b'%';

/// Why a pattern was given up.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// What Lua would say of it.
    Pattern(&'static str),
    /// The script's time is over.
    Stopped(mlua::Error),
}

type Found<T> = Result<T, Trouble>;

/// A part of the text that is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// These bytes.
    Text(usize, usize),
    /// The position itself, counted from 0.
    Position(usize),
    /// The pattern does not say where it ends; that is an error for those who ask for it.
    Unfinished,
}

#[derive(Clone, Copy)]
enum Length {
    Open,
    Position,
    Closed(usize),
}

/// One search.
pub(crate) struct Matcher<'a, F> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: [(usize, Length); CAPTURES_MAX],
    level: usize,
    depth: usize,
    steps: u32,
    is_over: F,
}

impl<'a, F: FnMut() -> mlua::Result<()>> Matcher<'a, F> {
    /// `is_over` fails when the script's time is over.
    pub(crate) fn new(text: &'a [u8], pattern: &'a [u8], is_over: F) -> Self {
        Matcher {
            text,
            pattern,
            captures: [(0, Length::Open); CAPTURES_MAX],
            level: 0,
            depth: 0,
            steps: 0,
            is_over,
        }
    }

    /// The first match from a position on, or only there: where it begins and ends.
    pub(crate) fn find(&mut self, from: usize, only_there: bool) -> Found<Option<(usize, usize)>> {
        for start in from..=self.text.len() {
            self.level = 0;
            if let Some(end) = self.match_here(start, 0)? {
                return Ok(Some((start, end)));
            }
            if only_there {
                break;
            }
        }
        Ok(None)
    }

    /// What was captured; the whole match where the pattern captures nothing.
    pub(crate) fn captured(&self, whole: (usize, usize)) -> Vec<Capture> {
        if self.level == 0 {
            return vec![Capture::Text(whole.0, whole.1)];
        }
        let one = |&(start, length): &(usize, Length)| match length {
            Length::Open => Capture::Unfinished,
            Length::Position => Capture::Position(start),
            Length::Closed(length) => Capture::Text(start, start + length),
        };
        self.captures[..self.level].iter().map(one).collect()
    }

    /// How many captures the last match has.
    pub(crate) fn has_captures(&self) -> bool {
        self.level > 0
    }

    fn step(&mut self) -> Found<()> {
        self.steps += 1;
        if self.steps >= STEPS_PER_CHECK {
            self.steps = 0;
            (self.is_over)().map_err(Trouble::Stopped)?;
        }
        Ok(())
    }

    fn match_here(&mut self, at: usize, item: usize) -> Found<Option<usize>> {
        if self.depth >= DEPTH_MAX {
            return Err(Trouble::Pattern("pattern too complex"));
        }
        self.depth += 1;
        let end = self.items(at, item);
        self.depth -= 1;
        end
    }

    /// Matches the rest of the pattern; what needs no way back goes on in this loop.
    fn items(&mut self, mut at: usize, mut item: usize) -> Found<Option<usize>> {
        loop {
            self.step()?;
            let Some(&first) = self.pattern.get(item) else { return Ok(Some(at)) };
            match (first, self.pattern.get(item + 1)) {
                (b'(', Some(b')')) => return self.start_capture(at, item + 2, Length::Position),
                (b'(', _) => return self.start_capture(at, item + 1, Length::Open),
                (b')', _) => return self.end_capture(at, item + 1),
                (ESCAPE, Some(b'b')) => match self.balanced(at, item + 2)? {
                    Some(end) => (at, item) = (end, item + 4),
                    None => return Ok(None),
                },
                (ESCAPE, Some(b'f')) => {
                    item += 2;
                    if self.pattern.get(item) != Some(&b'[') {
                        return Err(Trouble::Pattern("missing '[' after '%f' in pattern"));
                    }
                    let end = self.class_end(item)?;
                    let before = at.checked_sub(1).map_or(0, |before| self.text[before]);
                    let after = self.text.get(at).copied().unwrap_or(0);
                    if self.in_set(before, item, end - 1) || !self.in_set(after, item, end - 1) {
                        return Ok(None);
                    }
                    item = end;
                }
                (ESCAPE, Some(digit)) if digit.is_ascii_digit() => match self.back_reference(at, *digit)? {
                    Some(end) => (at, item) = (end, item + 2),
                    None => return Ok(None),
                },
                (b'$', None) => return Ok((at == self.text.len()).then_some(at)),
                _ => {
                    let end = self.class_end(item)?;
                    let fits = self.fits(at, item, end);
                    match self.pattern.get(end) {
                        Some(b'?') => {
                            if fits && let Some(end) = self.match_here(at + 1, end + 1)? {
                                return Ok(Some(end));
                            }
                            item = end + 1;
                        }
                        Some(b'*') => return self.longest(at, item, end),
                        Some(b'+') if fits => return self.longest(at + 1, item, end),
                        Some(b'-') => return self.shortest(at, item, end),
                        Some(b'+') => return Ok(None),
                        _ if fits => (at, item) = (at + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    fn longest(&mut self, at: usize, item: usize, end: usize) -> Found<Option<usize>> {
        let mut count = 0;
        while self.fits(at + count, item, end) {
            self.step()?;
            count += 1;
        }
        loop {
            if let Some(end) = self.match_here(at + count, end + 1)? {
                return Ok(Some(end));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    fn shortest(&mut self, mut at: usize, item: usize, end: usize) -> Found<Option<usize>> {
        loop {
            if let Some(end) = self.match_here(at, end + 1)? {
                return Ok(Some(end));
            }
            if !self.fits(at, item, end) {
                return Ok(None);
            }
            at += 1;
        }
    }

    fn start_capture(&mut self, at: usize, item: usize, length: Length) -> Found<Option<usize>> {
        if self.level >= CAPTURES_MAX {
            return Err(Trouble::Pattern("too many captures"));
        }
        self.captures[self.level] = (at, length);
        self.level += 1;
        let end = self.match_here(at, item)?;
        if end.is_none() {
            self.level -= 1;
        }
        Ok(end)
    }

    fn end_capture(&mut self, at: usize, item: usize) -> Found<Option<usize>> {
        let open = self.captures[..self.level].iter().rposition(|(_, length)| matches!(length, Length::Open));
        let Some(open) = open else { return Err(Trouble::Pattern("invalid pattern capture")) };
        self.captures[open].1 = Length::Closed(at - self.captures[open].0);
        let end = self.match_here(at, item)?;
        if end.is_none() {
            self.captures[open].1 = Length::Open;
        }
        Ok(end)
    }

    fn back_reference(&mut self, at: usize, digit: u8) -> Found<Option<usize>> {
        let number = usize::from(digit).checked_sub(usize::from(b'1'));
        let known = number.filter(|&number| number < self.level).map(|number| self.captures[number]);
        let (start, length) = match known {
            Some((start, Length::Closed(length))) => (start, length),
            // A position is longer than any text, as in Lua.
            Some((_, Length::Position)) => return Ok(None),
            _ => return Err(Trouble::Pattern("invalid capture index")),
        };
        self.steps += u32::try_from(length / 64).unwrap_or(STEPS_PER_CHECK).min(STEPS_PER_CHECK);
        let fits = self.text[at..].starts_with(&self.text[start..start + length]);
        Ok(fits.then_some(at + length))
    }

    fn balanced(&mut self, at: usize, item: usize) -> Found<Option<usize>> {
        let (Some(&open), Some(&close)) = (self.pattern.get(item), self.pattern.get(item + 1)) else {
            return Err(Trouble::Pattern("unbalanced pattern"));
        };
        if self.text.get(at) != Some(&open) {
            return Ok(None);
        }
        let mut deep = 1;
        for end in at + 1..self.text.len() {
            self.step()?;
            if self.text[end] == close {
                deep -= 1;
                if deep == 0 {
                    return Ok(Some(end + 1));
                }
            } else if self.text[end] == open {
                deep += 1;
            }
        }
        Ok(None)
    }

    /// Where the single character or class that begins here ends.
    fn class_end(&mut self, item: usize) -> Found<usize> {
        let mut end = item + 1;
        match self.pattern[item] {
            ESCAPE if self.pattern.get(end).is_none() => {
                Err(Trouble::Pattern("malformed pattern (ends with '%')"))
            }
            ESCAPE => Ok(end + 1),
            b'[' => {
                if self.pattern.get(end) == Some(&b'^') {
                    end += 1;
                }
                // The first one is a member also if it is a closing bracket.
                loop {
                    self.step()?;
                    let Some(&byte) = self.pattern.get(end) else {
                        return Err(Trouble::Pattern("malformed pattern (missing ']')"));
                    };
                    end += if byte == ESCAPE { 2 } else { 1 };
                    if self.pattern.get(end) == Some(&b']') {
                        return Ok(end + 1);
                    }
                }
            }
            _ => Ok(end),
        }
    }

    fn fits(&self, at: usize, item: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(at) else { return false };
        match self.pattern[item] {
            b'.' => true,
            ESCAPE => is_of_class(byte, self.pattern[item + 1]),
            b'[' => self.in_set(byte, item, end - 1),
            other => other == byte,
        }
    }

    /// Whether a byte is in the set between an opening bracket and its closing one.
    fn in_set(&self, byte: u8, open: usize, close: usize) -> bool {
        let mut at = open + 1;
        let inverted = self.pattern[at] == b'^';
        if inverted {
            at += 1;
        }
        while at < close {
            let first = self.pattern[at];
            if first == ESCAPE {
                at += 1;
                if is_of_class(byte, self.pattern[at]) {
                    return !inverted;
                }
                at += 1;
            } else if self.pattern[at + 1] == b'-' && at + 2 < close {
                if (first..=self.pattern[at + 2]).contains(&byte) {
                    return !inverted;
                }
                at += 3;
            } else {
                if first == byte {
                    return !inverted;
                }
                at += 1;
            }
        }
        inverted
    }
}

/// The classes of the C locale; a capital letter means all others.
fn is_of_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => matches!(byte, b' ' | b'\t'..=b'\r'),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_in != class.is_ascii_uppercase()
}
