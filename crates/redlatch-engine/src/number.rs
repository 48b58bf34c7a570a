//! Numbers as text, read and written the way Redis does it.

/// Reads an integer strictly: no sign `+`, no leading zero, no blank, within 64 bits.
pub(crate) fn parse_int(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    if digits[0] == b'0' {
        return if digits.len() == 1 && !negative { Some(0) } else { None };
    }
    let mut magnitude: u64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // Nineteen digits always fit into an unsigned 64-bit number.
        magnitude = magnitude * 10 + u64::from(digit - b'0');
    }
    if negative { 0_i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// Reads a floating-point number; NaN is refused, infinities are allowed.
pub(crate) fn parse_float(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    if number.is_nan() { None } else { Some(number) }
}

/// Text of at most 32 bytes, kept without an allocation.
#[derive(Clone, Copy)]
pub(crate) struct ShortText {
    bytes: [u8; 32],
    len: usize,
}

impl ShortText {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, text: &[u8]) {
        let end = (self.len + text.len()).min(self.bytes.len());
        self.bytes[self.len..end].copy_from_slice(&text[..end - self.len]);
        self.len = end;
    }
}

/// Writes an integer.
pub(crate) fn format_int(number: i64) -> ShortText {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let mut out = ShortText { bytes: [0; 32], len: 0 };
    if number < 0 {
        out.push(b"-");
    }
    out.push(&digits[at..]);
    out
}

/// Writes a floating-point number with 17 significant digits, like C's `%.17g`: this is how a Lua number
/// reaches a command and how a score is replied.
pub(crate) fn format_float(number: f64) -> ShortText {
    let mut out = ShortText { bytes: [0; 32], len: 0 };
    if number.is_nan() {
        out.push(if number.is_sign_negative() { b"-nan" } else { b"nan" });
        return out;
    }
    if number.is_infinite() {
        out.push(if number < 0.0 { b"-inf" } else { b"inf" });
        return out;
    }
    if number == 0.0 {
        out.push(if number.is_sign_negative() { b"-0" } else { b"0" });
        return out;
    }
    if number.trunc() == number && number.abs() < 1e17 {
        return format_int(number as i64);
    }
    let scientific = format!("{number:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..17).contains(&exponent) {
        let decimals = usize::try_from(16 - exponent).unwrap_or(0);
        let plain = format!("{number:.decimals$}");
        out.push(trim(&plain).as_bytes());
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        out.push(format!("{}e{sign}{:02}", trim(mantissa), exponent.abs()).as_bytes());
    }
    out
}

/// Drops zeros that say nothing after a decimal point.
fn trim(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_strictly() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-0", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("", None),
            ("-", None),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(i64::MIN)),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse_int(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn floats_are_written_like_c() {
        for (number, expected) in [
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.10000000000000001"),
            (1e17, "1e+17"),
            (1e16, "10000000000000000"),
            (1e300, "1.0000000000000001e+300"),
            (1e-5, "1.0000000000000001e-05"),
            (0.0001, "0.0001"),
            (1_763_708_595_123_456.0, "1763708595123456"),
            (f64::INFINITY, "inf"),
            (-0.0, "-0"),
            (3.125e20, "3.125e+20"),
        ] {
            assert_eq!(std::str::from_utf8(format_float(number).as_bytes()), Ok(expected));
        }
        assert_eq!(format_int(i64::MIN).as_bytes(), b"-9223372036854775808");
    }
}
