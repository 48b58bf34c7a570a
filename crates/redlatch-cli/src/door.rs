//! The control door of a running local engine: a few words over its socket, in the protocol of Redis.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// How long the engine may take to answer; it does nothing that takes longer than milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest text in an answer, in bytes.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// The most elements of a list, and the deepest nesting.
const ITEMS_MAX: usize = 1 << 16;
const DEPTH_MAX: usize = 8;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A text, or a status word.
    Text(Vec<u8>),
    /// A refusal: code word and explanation.
    Refusal(String),
    /// A number.
    Number(i64),
    /// A list; maps come as lists of keys and values.
    List(Vec<Answer>),
    /// Nothing.
    Nil,
}

/// Asks the engine behind `socket`. `None` when nobody listens.
///
/// # Errors
///
/// Those of the connection; [`io::ErrorKind::InvalidData`] when the answer cannot be understood.
pub(crate) fn ask(socket: &Path, words: &[&str]) -> io::Result<Option<Answer>> {
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes())?;
    read(&mut BufReader::new(stream), 0).map(Some)
}

fn read(from: &mut impl BufRead, depth: usize) -> io::Result<Answer> {
    let mut line = Vec::new();
    from.by_ref().take(TEXT_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
    let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "the answer cannot be understood");
    let text =
        line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok()).ok_or_else(nonsense)?;
    let (kind, rest) = text.split_at_checked(1).ok_or_else(nonsense)?;
    let count =
        |limit: usize| rest.parse::<usize>().ok().filter(|count| *count <= limit).ok_or_else(nonsense);
    Ok(match kind {
        "+" => Answer::Text(rest.into()),
        "-" => Answer::Refusal(rest.into()),
        ":" => Answer::Number(rest.parse().map_err(|_| nonsense())?),
        "$" | "*" if rest == "-1" => Answer::Nil,
        "_" => Answer::Nil,
        "$" => {
            let mut bytes = vec![0; count(TEXT_BYTES_MAX)? + 2];
            from.read_exact(&mut bytes)?;
            bytes.truncate(bytes.len() - 2);
            Answer::Text(bytes)
        }
        "*" | "%" if depth < DEPTH_MAX => {
            let items = count(ITEMS_MAX)? * if kind == "%" { 2 } else { 1 };
            Answer::List((0..items).map(|_| read(from, depth + 1)).collect::<Result<_, _>>()?)
        }
        _ => return Err(nonsense()),
    })
}

impl Answer {
    /// The value behind a key of a map.
    pub(crate) fn get(&self, key: &str) -> Option<&Answer> {
        let Answer::List(items) = self else { return None };
        let pairs = items.chunks_exact(2);
        pairs.into_iter().find(|pair| pair[0] == Answer::Text(key.into())).map(|pair| &pair[1])
    }

    /// The number behind a key of a map.
    pub(crate) fn number(&self, key: &str) -> Option<i64> {
        match self.get(key)? {
            Answer::Number(number) => Some(*number),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_nonsense_is_refused() {
        let parse = |text: &str| read(&mut text.as_bytes(), 0);
        assert_eq!(parse("+OK\r\n").unwrap(), Answer::Text(b"OK".into()));
        assert_eq!(parse("-INUSE locks\r\n").unwrap(), Answer::Refusal("INUSE locks".into()));
        let map = parse("*4\r\n$3\r\npid\r\n:7\r\n$1\r\nx\r\n$-1\r\n").unwrap();
        assert_eq!((map.number("pid"), map.get("x")), (Some(7), Some(&Answer::Nil)));
        assert_eq!(parse("%1\r\n+a\r\n*0\r\n").unwrap().get("a"), Some(&Answer::List(vec![])));
        let nested = "*1\r\n".repeat(20);
        for bad in ["", "\r\n", "x", ":a\r\n", "$999999999\r\n", "*99999999\r\n", "$5\r\nab", &nested] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
