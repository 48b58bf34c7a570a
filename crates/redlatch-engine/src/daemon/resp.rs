//! RESP: requests in, replies out.

use crate::number::{format_int, parse_int};
use crate::value::Value;

/// The largest request, in bytes.
pub(crate) const REQUEST_BYTES_MAX: usize = 8 << 20;
/// The most words of a request.
pub(crate) const REQUEST_WORDS_MAX: usize = 65_536;

/// Bytes that are no request. The text goes to the client before the connection is closed.
#[derive(Debug, PartialEq)]
pub(crate) struct Garbage(pub(crate) &'static str);

/// The words of one request, as positions in the buffer. What has been read of a request that is not all there is kept, so that no byte
/// is looked at again for each that follows.
#[derive(Debug, Default)]
pub(crate) struct Words {
    found: Vec<(usize, usize)>,
    /// How many there will be, once that has been read.
    count: Option<usize>,
    /// Where the next one begins.
    at: usize,
    /// How long the buffer must be before anything more can be said.
    needed: usize,
    /// All of them are there: what comes next is another request.
    done: bool,
    /// How many steps reading has taken.
    #[cfg(test)]
    steps: usize,
}

impl Words {
    pub(crate) fn new() -> Words {
        Words::default()
    }

    fn step(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }
}

impl std::ops::Deref for Words {
    type Target = [(usize, usize)];

    fn deref(&self) -> &[(usize, usize)] {
        &self.found
    }
}

/// Reads one request from the start of the buffer. `None`: more bytes are needed, and the next call has the same buffer with more behind
/// it. Otherwise the number of bytes that it took.
pub(crate) fn parse(buffer: &[u8], words: &mut Words) -> Result<Option<usize>, Garbage> {
    if words.done {
        words.found.clear();
        (words.count, words.at, words.needed, words.done) = (None, 0, 0, false);
    }
    let Some(&first) = buffer.first() else { return Ok(None) };
    if first != b'*' {
        return Err(Garbage("ERR Protocol error: expected '*'"));
    }
    if buffer.len() < words.needed {
        return within_limit(buffer);
    }
    let count = match words.count {
        Some(count) => count,
        None => {
            let Some((count, at)) = number(buffer, 1)? else { return within_limit(buffer) };
            let count = usize::try_from(count).unwrap_or(0);
            if count > REQUEST_WORDS_MAX {
                return Err(Garbage("ERR Protocol error: too many words in a request"));
            }
            (words.count, words.at) = (Some(count), at);
            count
        }
    };
    while words.found.len() < count {
        words.step();
        match buffer.get(words.at) {
            None => return within_limit(buffer),
            Some(b'$') => {}
            Some(_) => return Err(Garbage("ERR Protocol error: expected '$'")),
        }
        let Some((len, start)) = number(buffer, words.at + 1)? else { return within_limit(buffer) };
        let len = usize::try_from(len).map_err(|_| Garbage("ERR Protocol error: invalid bulk length"))?;
        if len > REQUEST_BYTES_MAX || start + len > REQUEST_BYTES_MAX {
            return Err(Garbage("ERR Protocol error: the request is too large"));
        }
        match buffer.get(start + len..start + len + 2) {
            None => {
                words.needed = start + len + 2;
                return within_limit(buffer);
            }
            Some(b"\r\n") => {}
            Some(_) => return Err(Garbage("ERR Protocol error: a bulk string has the wrong length")),
        }
        words.found.push((start, start + len));
        words.at = start + len + 2;
    }
    words.done = true;
    Ok(Some(words.at))
}

fn within_limit(buffer: &[u8]) -> Result<Option<usize>, Garbage> {
    if buffer.len() > REQUEST_BYTES_MAX {
        return Err(Garbage("ERR Protocol error: the request is too large"));
    }
    Ok(None)
}

/// Twenty digits and a sign are more than any number here has.
const NUMBER_BYTES_MAX: usize = 22;

/// A number up to the end of its line, and where the next line starts.
fn number(buffer: &[u8], from: usize) -> Result<Option<(i64, usize)>, Garbage> {
    let line = &buffer[from.min(buffer.len())..buffer.len().min(from + NUMBER_BYTES_MAX + 2)];
    match line.iter().position(|&byte| byte == b'\r') {
        None if line.len() > NUMBER_BYTES_MAX => Err(Garbage("ERR Protocol error: too big count string")),
        Some(end) if end > NUMBER_BYTES_MAX => Err(Garbage("ERR Protocol error: too big count string")),
        None => Ok(None),
        Some(end) => match line.get(end + 1) {
            None => Ok(None),
            Some(b'\n') => match parse_int(&line[..end]) {
                Some(number) => Ok(Some((number, from + end + 2))),
                None => Err(Garbage("ERR Protocol error: invalid length")),
            },
            Some(_) => Err(Garbage("ERR Protocol error: invalid length")),
        },
    }
}

/// Replies to one connection, in its version of the protocol.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) resp3: bool,
}

impl Writer {
    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(crate) fn header(&mut self, kind: u8, count: usize) {
        self.line(kind, format_int(i64::try_from(count).unwrap_or(i64::MAX)).as_bytes());
    }

    pub(crate) fn int(&mut self, number: i64) {
        self.line(b':', format_int(number).as_bytes());
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(crate) fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    pub(crate) fn error(&mut self, text: &str) {
        self.line(b'-', text.as_bytes());
    }

    pub(crate) fn array(&mut self, count: usize) {
        self.header(b'*', count);
    }

    /// A map of so many pairs; RESP2 has none and gets a flat array.
    pub(crate) fn map(&mut self, pairs: usize) {
        if self.resp3 { self.header(b'%', pairs) } else { self.header(b'*', pairs * 2) }
    }

    /// A message that nobody asked for; RESP2 sends it as an array.
    pub(crate) fn push(&mut self, count: usize) {
        self.header(if self.resp3 { b'>' } else { b'*' }, count);
    }

    /// Nothing. The two versions write it differently, and a RESP3 client reads the RESP2 form as an *empty
    /// value*: for a lock script that is the difference between "granted" and "busy".
    pub(crate) fn null(&mut self) {
        self.bytes.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    pub(crate) fn value(&mut self, value: &Value) {
        match value {
            Value::Nil => self.null(),
            Value::Int(number) => self.int(*number),
            Value::Bytes(bytes) => self.bulk(bytes),
            Value::Status(text) => self.status(text),
            Value::Array(values) => {
                self.array(values.len());
                for value in values {
                    self.value(value);
                }
            }
        }
    }
}

/// The words of the requests in these bytes, of which so many come at once, and how it ends.
#[cfg(any(test, fuzzing))]
pub(crate) fn requests_in(bytes: &[u8], at_once: usize) -> (Vec<Vec<Vec<u8>>>, Option<&'static str>) {
    let (mut words, mut requests, mut begun, mut there) = (Words::new(), Vec::new(), 0, 0);
    loop {
        match parse(&bytes[begun..there], &mut words) {
            Err(Garbage(text)) => return (requests, Some(text)),
            Ok(Some(len)) => {
                let buffer = &bytes[begun..there];
                requests.push(words.iter().map(|&(at, end)| buffer[at..end].to_vec()).collect());
                assert!(len > 0 && len <= buffer.len());
                begun += len;
            }
            Ok(None) if there == bytes.len() => return (requests, None),
            Ok(None) => there = bytes.len().min(there + at_once),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_arrive_in_pieces() {
        let whole = b"*2\r\n$4\r\nPING\r\n$2\r\n\r\n\r\n";
        let mut words = Words::new();
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut], &mut words), Ok(None), "{cut}");
        }
        assert_eq!(parse(whole, &mut words), Ok(Some(whole.len())));
        assert_eq!(*words, [(8, 12), (18, 20)]);
        assert_eq!(parse(b"*0\r\n", &mut words), Ok(Some(4)));
        assert!(words.is_empty());
    }

    #[test]
    fn a_request_that_drips_is_read_once() {
        let count = 10_000;
        let whole = format!("*{count}\r\n{}", "$3\r\nabc\r\n".repeat(count)).into_bytes();
        let mut words = Words::new();
        for end in 1..whole.len() {
            assert_eq!(parse(&whole[..end], &mut words), Ok(None));
        }
        assert_eq!(parse(&whole, &mut words), Ok(Some(whole.len())));
        assert_eq!(words.len(), count);
        // A few for each word: while its length arrives.
        assert!(words.steps < 8 * count, "{} steps for {} bytes", words.steps, whole.len());
    }

    #[test]
    fn nulls_differ_by_version() {
        let mut out = Writer { bytes: Vec::new(), resp3: false };
        out.null();
        out.resp3 = true;
        out.null();
        assert_eq!(out.bytes, b"$-1\r\n_\r\n");
    }

    #[test]
    fn limits_are_checked_before_the_bytes_arrive() {
        let mut words = Words::new();
        for garbage in
            ["*1\r\n$9000000\r\n", "*99999999\r\n", "hello\r\n", "*1\r\n:5\r\n", "*1\r\n$-1\r\n", "*x\r\n"]
        {
            assert!(parse(garbage.as_bytes(), &mut words).is_err(), "{garbage}");
            words = Words::new();
        }
    }
}
