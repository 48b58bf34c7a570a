//! Records as bytes.

use super::boot::ClockNote;
use crate::command::WORD_BYTES_MAX;
use crate::effect::Effect;

/// Bodies above this size can only be damage.
const BODY_BYTES_MAX: usize = 256 << 20;
/// Changes are cut into records of about this size, so that no number of them makes a body that is taken for damage.
const CHANGES_BYTES: usize = 4 << 20;
// A change has at most three texts and a few numbers, and stands in one record.
const _: () = assert!(CHANGES_BYTES + 3 * (WORD_BYTES_MAX + 64) < BODY_BYTES_MAX);

/// One record. Changes are borrowed when written and owned when read.
pub(super) enum Record<'a> {
    Boot(String),
    /// The end of the changes of one command or script, or all of them.
    Changes(&'a [Effect]),
    Restored(Vec<Effect>),
    /// Changes that mean nothing without those of the next record.
    Part(&'a [Effect]),
    RestoredPart(Vec<Effect>),
    Bound {
        key: Vec<u8>,
        bound: i64,
    },
    /// Nothing is granted before this time on the boot clock: what holds it may be missing.
    Wait {
        until_ms: u64,
    },
    /// No lease that may be missing is longer; in a file of its own.
    Longest {
        boot_id: String,
        lease_ms: u64,
        noted: ClockNote,
    },
    /// What the clocks showed when this was written.
    Clock(ClockNote),
    Clean,
}

/// How many bytes the checksum takes in one step.
const CRC_STEP: usize = 8;

/// The first table advances the checksum by one byte; each further one by the same byte and one more zero.
static CRC_TABLES: [[u32; 256]; CRC_STEP] = {
    let mut tables = [[0_u32; 256]; CRC_STEP];
    let mut i = 0;
    while i < 256 {
        let mut value = i as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0xEDB8_8320 } else { value >> 1 };
            bit += 1;
        }
        tables[0][i] = value;
        i += 1;
    }
    let mut step = 1;
    while step < CRC_STEP {
        let mut i = 0;
        while i < 256 {
            let before = tables[step - 1][i];
            tables[step][i] = (before >> 8) ^ tables[0][(before & 0xFF) as usize];
            i += 1;
        }
        step += 1;
    }
    tables
};

fn crc32(bytes: &[u8]) -> u32 {
    let (chunks, rest) = bytes.as_chunks::<CRC_STEP>();
    let mut crc = u32::MAX;
    for chunk in chunks {
        let mixed = u64::from_le_bytes(*chunk) ^ u64::from(crc);
        let byte = |at: usize| CRC_TABLES[CRC_STEP - 1 - at][usize::from((mixed >> (8 * at)) as u8)];
        crc = (0..CRC_STEP).fold(0, |crc, at| crc ^ byte(at));
    }
    !rest.iter().fold(crc, |crc, &byte| (crc >> 8) ^ CRC_TABLES[0][usize::from(crc as u8 ^ byte)])
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Requests are bounded far below 4 GiB, and so is everything in them.
    out.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_clock(out: &mut Vec<u8>, noted: ClockNote) {
    out.extend(noted.boot_us.to_le_bytes());
    out.extend(noted.wall_us.to_le_bytes());
    if let Some(began_us) = noted.boot_began_us {
        out.extend(began_us.to_le_bytes());
    }
}

/// Appends a record.
pub(super) fn encode(record: &Record<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; 8]);
    match record {
        Record::Boot(id) => {
            out.push(b'B');
            put_bytes(out, id.as_bytes());
        }
        Record::Changes(effects) => put_effects(b'C', out, effects),
        Record::Restored(effects) => put_effects(b'C', out, effects),
        Record::Part(effects) => put_effects(b'P', out, effects),
        Record::RestoredPart(effects) => put_effects(b'P', out, effects),
        Record::Wait { until_ms } => {
            out.push(b'W');
            out.extend(until_ms.to_le_bytes());
        }
        Record::Longest { boot_id, lease_ms, noted } => {
            out.push(b'L');
            put_bytes(out, boot_id.as_bytes());
            out.extend(lease_ms.to_le_bytes());
            put_clock(out, *noted);
        }
        Record::Clock(noted) => {
            out.push(b'T');
            put_clock(out, *noted);
        }
        Record::Bound { key, bound } => {
            out.push(b'R');
            put_bytes(out, key);
            out.extend(bound.to_le_bytes());
        }
        Record::Clean => out.push(b'E'),
    }
    let len = u32::try_from(out.len() - start - 8).unwrap_or(u32::MAX);
    let crc = crc32(&out[start + 8..]);
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

/// Appends changes that count all together or not at all, in as many records as they need.
pub(super) fn encode_changes(effects: &[Effect], out: &mut Vec<u8>) {
    let mut rest = effects;
    loop {
        let (first, after) = cut(rest);
        if after.is_empty() {
            return encode(&Record::Changes(first), out);
        }
        encode(&Record::Part(first), out);
        rest = after;
    }
}

/// The changes for one record, at least one, and those that are left.
pub(super) fn cut(effects: &[Effect]) -> (&[Effect], &[Effect]) {
    let mut bytes = 0;
    let fits = effects.iter().take_while(|effect| {
        bytes += effect.size_bytes();
        bytes <= CHANGES_BYTES
    });
    effects.split_at(fits.count().max(1).min(effects.len()))
}

fn put_effects(kind: u8, out: &mut Vec<u8>, effects: &[Effect]) {
    out.push(kind);
    for effect in effects {
        put_effect(out, effect);
    }
}

fn put_effect(out: &mut Vec<u8>, effect: &Effect) {
    let expiry = |at: &Option<u64>| at.unwrap_or(u64::MAX).to_le_bytes();
    match effect {
        Effect::SetString { key, value, expires_at_ms } => {
            out.push(1);
            put_bytes(out, key);
            put_bytes(out, value);
            out.extend(expiry(expires_at_ms));
        }
        Effect::Delete { key } => {
            out.push(2);
            put_bytes(out, key);
        }
        Effect::Expire { key, expires_at_ms } => {
            out.push(3);
            put_bytes(out, key);
            out.extend(expiry(expires_at_ms));
        }
        Effect::HashSet { key, field, value } => {
            out.push(4);
            put_bytes(out, key);
            put_bytes(out, field);
            put_bytes(out, value);
        }
        Effect::HashDelete { key, field } => {
            out.push(5);
            put_bytes(out, key);
            put_bytes(out, field);
        }
        Effect::ListPush { key, value, front } => {
            out.push(6);
            put_bytes(out, key);
            put_bytes(out, value);
            out.push(u8::from(*front));
        }
        Effect::ListPop { key, count, front } => {
            out.push(7);
            put_bytes(out, key);
            out.extend(count.to_le_bytes());
            out.push(u8::from(*front));
        }
        Effect::ListRemove { key, value, count } => {
            out.push(8);
            put_bytes(out, key);
            put_bytes(out, value);
            out.extend(count.to_le_bytes());
        }
        Effect::SortedSet { key, member, score } => {
            out.push(9);
            put_bytes(out, key);
            put_bytes(out, member);
            out.extend(score.to_le_bytes());
        }
        Effect::SortedRemove { key, member } => {
            out.push(10);
            put_bytes(out, key);
            put_bytes(out, member);
        }
        Effect::Clear => out.push(11),
    }
}

/// Reads the first record, and says what follows it. `None` when there is none or it is damaged.
pub(super) fn decode(bytes: &[u8]) -> Option<(Record<'static>, &[u8])> {
    let (len, crc, rest) = header(bytes)?;
    let (body, rest) = rest.split_at_checked(len)?;
    // Most of what is no record shows by its first byte, which costs less than the sum.
    if !KINDS.contains(body.first()?) || crc32(body) != crc {
        return None;
    }
    Some((record(&mut Reader::new(body))?, rest))
}

const KINDS: &[u8] = b"BCPREWLT";

fn header(bytes: &[u8]) -> Option<(usize, u32, &[u8])> {
    let mut reader = Reader::new(bytes);
    let len =
        usize::try_from(u32::from_le_bytes(reader.take()?)).ok().filter(|&len| len <= BODY_BYTES_MAX)?;
    let crc = u32::from_le_bytes(reader.take()?);
    Some((len, crc, reader.rest))
}

fn clock(body: &mut Reader<'_>) -> Option<ClockNote> {
    Some(ClockNote {
        boot_us: u64::from_le_bytes(body.take()?),
        wall_us: u64::from_le_bytes(body.take()?),
        boot_began_us: if body.is_at_end() { None } else { Some(i64::from_le_bytes(body.take()?)) },
    })
}

fn record(body: &mut Reader<'_>) -> Option<Record<'static>> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
    Some(match body.byte()? {
        b'B' => Record::Boot(text(body.bytes()?)?),
        b'R' => Record::Bound { key: body.bytes()?, bound: i64::from_le_bytes(body.take()?) },
        b'W' => Record::Wait { until_ms: u64::from_le_bytes(body.take()?) },
        b'L' => Record::Longest {
            boot_id: text(body.bytes()?)?,
            lease_ms: u64::from_le_bytes(body.take()?),
            noted: clock(body)?,
        },
        b'T' => Record::Clock(clock(body)?),
        b'E' => Record::Clean,
        b'C' => Record::Restored(body.effects()?),
        b'P' => Record::RestoredPart(body.effects()?),
        _ => {
            body.is_nonsense = true;
            return None;
        }
    })
}

/// How many bytes lie before the next whole record.
pub(super) fn skip_damage(bytes: &[u8]) -> Option<usize> {
    (1..bytes.len()).find(|&at| decode(&bytes[at..]).is_some())
}

/// Whether the end of a file is the beginning of a record, as a process leaves it that is killed while it writes. Nobody was told
/// of such a record. Anything else is damage, and may hide what was confirmed.
pub(super) fn is_torn(bytes: &[u8]) -> bool {
    if bytes.len() < HEADER_BYTES {
        return true;
    }
    let Some((len, crc, body)) = header(bytes) else { return false };
    if body.len() >= len || crc32(body) == crc {
        return false;
    }
    let mut reader = Reader { is_cut: true, ..Reader::new(body) };
    // A kind alone says nothing yet.
    let is_whole = record(&mut reader).is_some() && body.len() > 1;
    !is_whole && !reader.is_nonsense
}

/// The same bytes with the sum of each body set right, which a fuzzer never gets.
#[cfg(any(test, fuzzing))]
pub(super) fn sealed(bytes: &[u8]) -> Vec<u8> {
    let (mut sealed, mut at) = (bytes.to_vec(), 0);
    while let Some((len, _, rest)) = header(&bytes[at..])
        && let Some(body) = rest.get(..len)
    {
        sealed[at + 4..at + HEADER_BYTES].copy_from_slice(&crc32(body).to_le_bytes());
        at += HEADER_BYTES + len;
    }
    sealed
}

const HEADER_BYTES: usize = 8;

struct Reader<'a> {
    rest: &'a [u8],
    /// Something was found that no record has; else what is missing is only its end.
    is_nonsense: bool,
    /// More was to follow.
    is_cut: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes, is_nonsense: false, is_cut: false }
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*first)
    }

    /// Whether the record ends here.
    fn is_at_end(&self) -> bool {
        self.rest.is_empty() && !self.is_cut
    }

    fn effects(&mut self) -> Option<Vec<Effect>> {
        let mut effects = Vec::new();
        while !self.rest.is_empty() {
            effects.push(self.effect()?);
        }
        Some(effects)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = usize::try_from(u32::from_le_bytes(self.take()?)).ok()?;
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes.to_vec())
    }

    fn expiry(&mut self) -> Option<Option<u64>> {
        let at = u64::from_le_bytes(self.take()?);
        Some((at != u64::MAX).then_some(at))
    }

    fn effect(&mut self) -> Option<Effect> {
        Some(match self.byte()? {
            1 => {
                Effect::SetString { key: self.bytes()?, value: self.bytes()?, expires_at_ms: self.expiry()? }
            }
            2 => Effect::Delete { key: self.bytes()? },
            3 => Effect::Expire { key: self.bytes()?, expires_at_ms: self.expiry()? },
            4 => Effect::HashSet { key: self.bytes()?, field: self.bytes()?, value: self.bytes()? },
            5 => Effect::HashDelete { key: self.bytes()?, field: self.bytes()? },
            6 => Effect::ListPush { key: self.bytes()?, value: self.bytes()?, front: self.byte()? == 1 },
            7 => Effect::ListPop {
                key: self.bytes()?,
                count: u64::from_le_bytes(self.take()?),
                front: self.byte()? == 1,
            },
            8 => Effect::ListRemove {
                key: self.bytes()?,
                value: self.bytes()?,
                count: i64::from_le_bytes(self.take()?),
            },
            9 => Effect::SortedSet {
                key: self.bytes()?,
                member: self.bytes()?,
                score: f64::from_le_bytes(self.take()?),
            },
            10 => Effect::SortedRemove { key: self.bytes()?, member: self.bytes()? },
            11 => Effect::Clear,
            _ => {
                self.is_nonsense = true;
                return None;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one_at_every_length() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        let bytes: Vec<u8> = (0..100_u8).map(|i| i.wrapping_mul(37)).collect();
        for len in 0..bytes.len() {
            let bytes = &bytes[..len];
            let slow = !bytes.iter().fold(u32::MAX, |crc, &byte| {
                (0..8).fold(crc ^ u32::from(byte), |crc, _| {
                    if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 }
                })
            });
            assert_eq!(crc32(bytes), slow, "{len}");
        }
    }

    #[test]
    fn a_record_that_was_cut_short_is_told_from_one_that_was_damaged() {
        let effects = [
            Effect::HashSet { key: b"key".to_vec(), field: b"me".to_vec(), value: b"1".to_vec() },
            Effect::Expire { key: b"key".to_vec(), expires_at_ms: Some(7) },
        ];
        let mut whole = Vec::new();
        encode(&Record::Changes(&effects), &mut whole);
        let between = whole.len() - 1 - 4 - 3 - 8;
        for len in 1..whole.len() {
            // Cut exactly between two changes it cannot be told from one whose length was damaged.
            assert_eq!(is_torn(&whole[..len]), len != between, "{len} of {}", whole.len());
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x01;
            assert!(!is_torn(&damaged), "byte {at}");
        }
        let mut longer = whole.clone();
        longer[..8].copy_from_slice(&[0xFF, 0, 0, 0, 1, 2, 3, 4]);
        assert!(!is_torn(&longer), "the length and the sum were damaged, and all the rest is there");
        assert!(!is_torn(&[0xA5; 40]));
    }
}
