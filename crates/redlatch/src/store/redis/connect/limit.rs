//! How much a server may send: bytes, and the values of one reply. What is read is kept until a reply is whole, and whether it ever will be is
//! not known.

use tokio::time::Instant;

/// How many bytes may come at once. The largest reply that Redlatch asks for is a fair queue, with some 60 bytes a waiter.
const BURST_BYTES_MAX: u64 = 128 << 20;
/// How many bytes may come in a second besides: ten times what comes of as many calls as a core can make. A reply that does not end is given up
/// with its connection after the response timeout.
const BYTES_PER_S_MAX: u64 = 32 << 20;
/// How many values one reply may have, those of its lists included: a waiter of a fair queue is four at most. A value of four bytes takes some
/// 60 in memory, and a list of one value 300.
const VALUES_MAX: u64 = 1 << 20;
/// The longest line that may say how much comes: spaces, a sign, 19 digits.
const LENGTH_BYTES_MAX: usize = 32;

/// What a server may still send.
pub(super) struct ReadLimit {
    left_bytes: u64,
    counted_from: Instant,
    values: ReplyValues,
}

impl ReadLimit {
    pub(super) fn new() -> Self {
        ReadLimit { left_bytes: BURST_BYTES_MAX, counted_from: Instant::now(), values: ReplyValues::new() }
    }

    /// Counts what was read. `false` if it was more than may come.
    pub(super) fn count(&mut self, read: &[u8]) -> bool {
        self.count_bytes(read.len() as u64) && self.values.count(read)
    }

    fn count_bytes(&mut self, bytes: u64) -> bool {
        if self.left_bytes < bytes {
            // Only here, so that no read asks the clock.
            let now = Instant::now();
            let passed_ms = now.duration_since(self.counted_from).as_millis() as u64;
            let more_bytes = passed_ms.saturating_mul(BYTES_PER_S_MAX) / 1_000;
            self.left_bytes = self.left_bytes.saturating_add(more_bytes).min(BURST_BYTES_MAX);
            self.counted_from = now;
        }
        match self.left_bytes.checked_sub(bytes) {
            Some(left_bytes) => self.left_bytes = left_bytes,
            None => return false,
        }
        true
    }
}

/// Where in the protocol the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// At the byte that says what kind of value comes.
    Kind,
    /// In a line whose text is the value. Whether the byte before was the `\r` that may end it.
    Line { ends: bool },
    /// In a line that says how much of this kind comes, and how many of its bytes were read.
    Length { kind: u8, bytes: usize },
    /// In a text of which so many bytes come, its end included.
    Text { left_bytes: u64 },
    /// Behind what is no protocol. The connection ends when it is parsed.
    Nothing,
}

/// Counts the values of the reply under way. It knows how many are outstanding and needs no stack for that: a list is a value, and so many more
/// are outstanding from then on.
struct ReplyValues {
    at: At,
    length: [u8; LENGTH_BYTES_MAX],
    /// Those that have begun, and are known to come.
    known: u64,
    /// Those of them that have not begun.
    outstanding: u64,
}

impl ReplyValues {
    fn new() -> Self {
        ReplyValues { at: At::Kind, length: [0; LENGTH_BYTES_MAX], known: 1, outstanding: 1 }
    }

    /// `false` if a reply has more values than any that is asked for.
    fn count(&mut self, mut read: &[u8]) -> bool {
        while let Some((&first, rest)) = read.split_first() {
            match self.at {
                At::Kind => {
                    read = rest;
                    self.at = match first {
                        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => At::Line { ends: false },
                        b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|' => {
                            At::Length { kind: first, bytes: 0 }
                        }
                        _ => At::Nothing,
                    };
                }
                At::Line { ends: true } if first == b'\n' => {
                    read = rest;
                    self.value_ends();
                }
                At::Line { .. } => match read.iter().position(|byte| *byte == b'\r') {
                    Some(at) => {
                        read = &read[at + 1..];
                        self.at = At::Line { ends: true };
                    }
                    None => {
                        self.at = At::Line { ends: false };
                        return true;
                    }
                },
                At::Length { kind, bytes } => {
                    read = rest;
                    if bytes == LENGTH_BYTES_MAX {
                        return false;
                    }
                    self.length[bytes] = first;
                    self.at = At::Length { kind, bytes: bytes + 1 };
                    if let Some(length) = self.length[..=bytes].strip_suffix(b"\r\n") {
                        match str::from_utf8(length).ok().and_then(|text| text.trim().parse().ok()) {
                            Some(length) if !self.length_is(kind, length) => return false,
                            Some(_) => {}
                            None => self.at = At::Nothing,
                        }
                    }
                }
                At::Text { left_bytes } => {
                    let now = left_bytes.min(read.len() as u64);
                    read = &read[now as usize..];
                    self.at = At::Text { left_bytes: left_bytes - now };
                    if left_bytes == now {
                        self.value_ends();
                    }
                }
                At::Nothing => return true,
            }
        }
        true
    }

    fn length_is(&mut self, kind: u8, length: i64) -> bool {
        let Ok(count) = u64::try_from(length) else {
            // Nothing comes where a text or a list might have come. No other kind may be less than none.
            if matches!(kind, b'$' | b'*' | b'~' | b'>') {
                self.value_ends();
            } else {
                self.at = At::Nothing;
            }
            return true;
        };
        let more_values = match kind {
            b'$' | b'!' | b'=' => {
                self.at = At::Text { left_bytes: count.saturating_add(2) };
                return true;
            }
            b'%' => count.saturating_mul(2),
            // And what they are attributes of.
            b'|' => count.saturating_mul(2).saturating_add(1),
            _ => count,
        };
        self.known = self.known.saturating_add(more_values);
        self.outstanding = self.outstanding.saturating_add(more_values);
        self.value_ends();
        self.known <= VALUES_MAX
    }

    /// Of a list: its length was read.
    fn value_ends(&mut self) {
        self.at = At::Kind;
        self.outstanding -= 1;
        if self.outstanding == 0 {
            *self = Self::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_server_may_send_a_burst_and_then_so_much_a_second() {
        let mut limit = ReadLimit::new();
        for _ in 0..128 {
            assert!(limit.count_bytes(1 << 20), "a burst");
        }
        assert!(!limit.count_bytes(BYTES_PER_S_MAX), "no second has passed");
        let mut limit = ReadLimit::new();
        assert!(limit.count_bytes(BURST_BYTES_MAX));
        limit.counted_from -= Duration::from_secs(1);
        assert!(limit.count_bytes(BYTES_PER_S_MAX), "what a second allows");
        assert!(!limit.count_bytes(BYTES_PER_S_MAX));
    }

    #[test]
    fn a_reply_may_have_so_many_values_and_the_next_one_too() {
        let mut values = ReplyValues::new();
        for _ in 0..3 {
            assert!(values.count(format!("*{}\r\n", VALUES_MAX - 1).as_bytes()));
            assert!(values.count(&b":1\r\n".repeat(VALUES_MAX as usize - 1)));
            assert_eq!((values.known, values.outstanding), (1, 1), "it is whole");
        }
    }

    #[test]
    fn a_reply_of_more_values_is_too_much_however_it_says_so() {
        let max = VALUES_MAX;
        for reply in [
            format!("*{max}\r\n"),
            format!("~{max}\r\n"),
            format!(">{max}\r\n"),
            format!("%{}\r\n", max / 2),
            format!("|{}\r\n", max / 2),
            "*9223372036854775807\r\n*9223372036854775807\r\n*9223372036854775807\r\n".into(),
            "|9223372036854775807\r\n".into(),
            format!("*2\r\n*{}\r\n", max - 2),
            // Each list says no more than a few.
            "*8\r\n".repeat(max as usize / 8),
            // What says how much comes may not go on without an end.
            format!("*{}1\r\n", "0".repeat(LENGTH_BYTES_MAX)),
        ] {
            assert!(!ReplyValues::new().count(reply.as_bytes()), "{:.40}", reply.escape_debug());
        }
        assert!(
            ReplyValues::new().count(format!("*{}\r\n", max - 1).as_bytes()),
            "one less is no more than may come"
        );
        assert!(
            ReplyValues::new().count(format!("${}\r\n", i64::MAX).as_bytes()),
            "the bytes of a text are counted apart"
        );
    }

    /// How many of these bytes the first reply has. It was read in pieces of so many bytes.
    fn whole_after(bytes: &[u8], piece: usize) -> Option<usize> {
        let (mut values, mut read) = (ReplyValues::new(), 0);
        // Byte by byte within a piece, so that its end is met.
        for piece in bytes.chunks(piece) {
            let mut copy = ReplyValues { ..values };
            for byte in piece {
                read += 1;
                assert!(copy.count(&[*byte]));
                if copy.at == At::Kind && copy.outstanding == 1 && copy.known == 1 {
                    return Some(read);
                }
            }
            assert!(values.count(piece));
            assert_eq!(
                (values.at, values.known, values.outstanding),
                (copy.at, copy.known, copy.outstanding),
                "in one piece"
            );
        }
        None
    }

    /// What the parser of the connections says to that.
    fn parsed_after(bytes: &[u8]) -> Option<usize> {
        (1..=bytes.len()).find(|end| redis::parse_redis_value(&bytes[..*end]).is_ok())
    }

    fn replies() -> impl Strategy<Value = Vec<u8>> {
        let some: [&[u8]; 19] = [
            b"+OK\r\n",
            b"+a\rb\nc\r\r\n",
            b"-ERR no\r\n",
            b":-17\r\n",
            b": 4 \r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$4\r\n\r\n:1\r\n",
            b"$+3\r\nabc\r\n",
            b"*-1\r\n",
            b"~-1\r\n",
            b">-1\r\n",
            b"$ 3 \r\nabc\r\n",
            b"*0\r\n",
            b"_\r\n",
            b",1.5\r\n",
            b"#t\r\n",
            b"(12345678901234567890\r\n",
            b"=5\r\ntxt:a\r\n",
        ];
        let leaf = prop::sample::select(some.to_vec()).prop_map(<[u8]>::to_vec);
        leaf.prop_recursive(4, 40, 5, |inner| {
            (prop::sample::select(b"*~>%|".to_vec()), prop::collection::vec(inner, 0..6)).prop_map(
                |(kind, inner)| {
                    let mut inner: Vec<_> = match kind {
                        b'>' => [vec![b"+message\r\n".to_vec()], inner].concat(),
                        b'|' => [vec![b":1\r\n".to_vec()], inner].concat(),
                        _ => inner,
                    };
                    let count = match kind {
                        b'%' | b'|' => {
                            let is_odd = usize::from(kind == b'|');
                            let pairs = (inner.len() - is_odd) / 2;
                            inner.truncate(2 * pairs + is_odd);
                            pairs
                        }
                        _ => inner.len(),
                    };
                    [format!("{}{count}\r\n", char::from(kind)).into_bytes(), inner.concat()].concat()
                },
            )
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// A counter that loses its place counts texts as lists.
        #[test]
        fn a_reply_is_whole_when_the_parser_says_so(reply in replies(), behind in replies(), piece in 1_usize..20) {
            let bytes = [reply.clone(), behind].concat();
            prop_assert_eq!(parsed_after(&bytes), Some(reply.len()));
            prop_assert_eq!(whole_after(&bytes, piece), Some(reply.len()));
        }

        /// What the parser makes of it is the same, whatever a server sends.
        #[test]
        fn whatever_the_parser_takes_for_a_reply_is_one(
            bytes in prop::collection::vec(prop::sample::select(b"+-:$*%|~>=!_,#(0012\r\n\r\n\r\n t".to_vec()), 0..24),
        ) {
            if let Some(end) = parsed_after(&bytes) {
                prop_assert_eq!(whole_after(&bytes, 3), Some(end), "{}", bytes.escape_ascii());
            }
        }
    }
}
