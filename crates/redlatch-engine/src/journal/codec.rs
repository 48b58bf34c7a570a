//! Records as bytes.

use crate::effect::Effect;

/// Bodies above this size can only be damage.
const BODY_BYTES_MAX: usize = 256 << 20;

/// One record. Changes are borrowed when written and owned when read.
pub(super) enum Record<'a> {
    Boot(String),
    Changes(&'a [Effect]),
    Restored(Vec<Effect>),
    Bound { key: Vec<u8>, bound: i64 },
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

/// Appends a record.
pub(super) fn encode(record: &Record<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; 8]);
    match record {
        Record::Boot(id) => {
            out.push(b'B');
            put_bytes(out, id.as_bytes());
        }
        Record::Changes(effects) => put_effects(out, effects),
        Record::Restored(effects) => put_effects(out, effects),
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

fn put_effects(out: &mut Vec<u8>, effects: &[Effect]) {
    out.push(b'C');
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
    let mut reader = Reader(bytes);
    let len =
        usize::try_from(u32::from_le_bytes(reader.take()?)).ok().filter(|&len| len <= BODY_BYTES_MAX)?;
    let crc = u32::from_le_bytes(reader.take()?);
    let (body, rest) = reader.0.split_at_checked(len)?;
    if crc32(body) != crc {
        return None;
    }
    let mut body = Reader(body);
    let record = match body.byte()? {
        b'B' => Record::Boot(String::from_utf8(body.bytes()?).ok()?),
        b'R' => Record::Bound { key: body.bytes()?, bound: i64::from_le_bytes(body.take()?) },
        b'E' => Record::Clean,
        b'C' => {
            let mut effects = Vec::new();
            while !body.0.is_empty() {
                effects.push(body.effect()?);
            }
            Record::Restored(effects)
        }
        _ => return None,
    };
    Some((record, rest))
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = usize::try_from(u32::from_le_bytes(self.take()?)).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
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
            _ => return None,
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
    fn crc_is_the_usual_one() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }
}
