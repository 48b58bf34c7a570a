//! Which slot a key belongs to.

/// How many slots a cluster has.
pub const SLOTS: u16 = 16_384;

/// The slot of a key: CRC-16/XMODEM of its hash tag, or of all of it, modulo [`SLOTS`].
pub fn slot_of(key: impl AsRef<[u8]>) -> u16 {
    let key = key.as_ref();
    crc16(hash_tag(key).unwrap_or(key)) % SLOTS
}

/// What stands between the first `{` and the first `}` after it, unless that is nothing.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let rest = &key[key.iter().position(|&b| b == b'{')? + 1..];
    let tag = &rest[..rest.iter().position(|&b| b == b'}')?];
    (!tag.is_empty()).then_some(tag)
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_the_published_one() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
    }

    #[test]
    fn only_a_hash_tag_counts() {
        assert_eq!(slot_of("a{job}b"), slot_of("job"));
        assert_eq!(slot_of("{job}{other}"), slot_of("job"));
        assert_eq!(slot_of("{{job}}"), slot_of("{job"));
        for whole in ["{}job", "job{", "}job{", "a{}{job}"] {
            assert_eq!(slot_of(whole), crc16(whole.as_bytes()) % SLOTS, "{whole}");
        }
    }
}
