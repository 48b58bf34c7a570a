//! Finding the borders of RESP2 and RESP3 frames, without building values.
//!
//! The proxy forwards bytes as they came, so it needs to know where a frame ends and what its first
//! items are, and nothing more.

/// The longest line (type byte, length, inline command) that is accepted, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// The deepest nesting of aggregates that is accepted.
const DEPTH_MAX: u32 = 32;

/// The bytes are not RESP: another protocol (such as TLS) or a broken peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotResp;

/// The length in bytes of the frame at the start of `buf`, with a RESP3 attribute in front of it
/// counted in. `None` asks for more bytes.
///
/// # Errors
///
/// [`NotResp`] when no more bytes can make it a frame.
pub fn frame_len(buf: &[u8]) -> Result<Option<usize>, NotResp> {
    scan(buf, 0, 0)
}

fn line_end(buf: &[u8], from: usize) -> Result<Option<usize>, NotResp> {
    match buf[from..].iter().position(|&b| b == b'\n') {
        Some(at) => Ok(Some(from + at + 1)),
        None if buf.len() - from > LINE_BYTES_MAX => Err(NotResp),
        None => Ok(None),
    }
}

fn number(line: &[u8]) -> Result<i64, NotResp> {
    std::str::from_utf8(line).ok().and_then(|s| s.trim_end().parse().ok()).ok_or(NotResp)
}

fn scan(buf: &[u8], start: usize, depth: u32) -> Result<Option<usize>, NotResp> {
    if depth > DEPTH_MAX {
        return Err(NotResp);
    }
    let Some(&kind) = buf.get(start) else { return Ok(None) };
    let Some(mut end) = line_end(buf, start)? else {
        return if b"+-:_,#(!=$*%~>|".contains(&kind) { Ok(None) } else { Err(NotResp) };
    };
    let items = match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => return Ok(Some(end)),
        b'$' | b'!' | b'=' => {
            let bytes = number(&buf[start + 1..end])?;
            if bytes < 0 {
                return Ok(Some(end));
            }
            let total = usize::try_from(bytes).ok().and_then(|n| n.checked_add(end + 2)).ok_or(NotResp)?;
            return Ok((buf.len() >= total).then_some(total));
        }
        b'*' | b'~' | b'>' => number(&buf[start + 1..end])?,
        b'%' => number(&buf[start + 1..end])?.checked_mul(2).ok_or(NotResp)?,
        // An attribute belongs to the frame behind it.
        b'|' => number(&buf[start + 1..end])?.checked_mul(2).and_then(|n| n.checked_add(1)).ok_or(NotResp)?,
        _ => return Err(NotResp),
    };
    for _ in 0..items.max(0) {
        match scan(buf, end, depth + 1)? {
            Some(next) => end = next,
            None => return Ok(None),
        }
    }
    Ok(Some(end))
}

/// The length in bytes of a request, and its arguments.
pub type Request = (usize, Vec<Vec<u8>>);

/// One request at the start of `buf`: its length and its arguments. An inline command (a line of
/// words) is a request too. `None` asks for more bytes; an empty line is a request without arguments.
///
/// # Errors
///
/// [`NotResp`] when the bytes are no request.
pub fn request(buf: &[u8]) -> Result<Option<Request>, NotResp> {
    match buf.first() {
        None => Ok(None),
        Some(b'*') => {
            let Some(len) = frame_len(buf)? else { return Ok(None) };
            let args = items(&buf[..len]).into_iter().map(<[u8]>::to_vec).collect();
            Ok(Some((len, args)))
        }
        Some(b) if b.is_ascii_alphabetic() || *b == b'\r' || *b == b'\n' => {
            let Some(len) = line_end(buf, 0)? else { return Ok(None) };
            let words = buf[..len].split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
            Ok(Some((len, words.map(<[u8]>::to_vec).collect())))
        }
        Some(_) => Err(NotResp),
    }
}

/// The texts of the direct items of an aggregate frame: the payload of strings, the line of numbers,
/// nothing for nested aggregates and nulls. A frame that is no aggregate has no items.
pub fn items(frame: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    if !matches!(frame.first(), Some(b'*' | b'>' | b'~' | b'%')) {
        return out;
    }
    let Ok(Some(mut at)) = line_end(frame, 0) else { return out };
    while at < frame.len() {
        let Ok(Some(end)) = scan(frame, at, 0) else { break };
        out.push(text(&frame[at..end]));
        at = end;
    }
    out
}

fn text(frame: &[u8]) -> &[u8] {
    let Ok(Some(line)) = line_end(frame, 0) else { return b"" };
    match frame[0] {
        b'$' | b'=' | b'!' if frame.len() >= line + 2 => &frame[line..frame.len() - 2],
        b'+' | b'-' | b':' | b',' | b'#' | b'(' => frame[1..line].trim_ascii_end(),
        _ => b"",
    }
}

/// A request as a RESP array of bulk strings.
pub fn encode_request<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(&bulk(arg.as_ref()));
    }
    out
}

/// A bulk string frame.
pub fn bulk(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut out = format!("${}\r\n", bytes.len()).into_bytes();
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
    out
}

/// An array frame of frames that are encoded already.
pub fn array<F: AsRef<[u8]>>(frames: &[F]) -> Vec<u8> {
    aggregate('*', frames)
}

/// A RESP3 push frame of frames that are encoded already.
pub fn push<F: AsRef<[u8]>>(frames: &[F]) -> Vec<u8> {
    aggregate('>', frames)
}

/// An integer frame.
pub fn integer(value: i64) -> Vec<u8> {
    format!(":{value}\r\n").into_bytes()
}

/// A status frame. Line breaks in `text` would end the frame early and become spaces.
pub fn simple(text: &str) -> Vec<u8> {
    format!("+{}\r\n", text.replace(['\r', '\n'], " ")).into_bytes()
}

/// An error frame; `text` starts with the code, as in `ERR no such thing`.
pub fn error(text: &str) -> Vec<u8> {
    format!("-{}\r\n", text.replace(['\r', '\n'], " ")).into_bytes()
}

/// The null of RESP2, which RESP3 clients accept as well.
pub fn null() -> Vec<u8> {
    b"$-1\r\n".to_vec()
}

fn aggregate<F: AsRef<[u8]>>(mark: char, frames: &[F]) -> Vec<u8> {
    let mut out = format!("{mark}{}\r\n", frames.len()).into_bytes();
    for frame in frames {
        out.extend_from_slice(frame.as_ref());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_of_a_frame_asks_for_more() {
        let frames: [&[u8]; 9] = [
            b"+OK\r\n",
            b":-12\r\n",
            b"$5\r\na\r\nbc\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b"%1\r\n+k\r\n,1.5\r\n",
            b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$0\r\n\r\n",
            b"|1\r\n+ttl\r\n:3\r\n$2\r\nok\r\n",
        ];
        for frame in frames {
            for cut in 0..frame.len() {
                assert_eq!(
                    frame_len(&frame[..cut]),
                    Ok(None),
                    "{:?}",
                    frame[..cut].escape_ascii().to_string()
                );
            }
            let mut two = frame.to_vec();
            two.extend_from_slice(b"+next\r\n");
            assert_eq!(frame_len(&two), Ok(Some(frame.len())));
        }
    }

    #[test]
    fn requests_inline_and_array() {
        let bytes = encode_request(&["GET", "a\r\nb"]);
        let (len, args) = request(&bytes).unwrap().unwrap();
        assert_eq!((len, args), (bytes.len(), vec![b"GET".to_vec(), b"a\r\nb".to_vec()]));
        assert_eq!(request(b"PING x\r\n").unwrap().unwrap().1, vec![b"PING".to_vec(), b"x".to_vec()]);
        assert_eq!(request(&[0x16, 3, 1]), Err(NotResp));
    }
}
