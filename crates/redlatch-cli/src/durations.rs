//! Durations as people write them: `250ms`, `30s`, `1h30m`, and `forever` where waiting is meant.

use std::time::Duration;

/// The longest duration accepted, one hundred years: beyond it sums of milliseconds could overflow on the server.
const MS_MAX: u64 = 100 * 365 * DAY_MS;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Without limit.
    Forever,
    /// At most this long; zero means one attempt.
    AtMost(Duration),
}

/// Reads `forever` or a duration; a bare number is seconds, as for `flock -w`.
pub(crate) fn parse_wait(text: &str) -> Result<Wait, String> {
    if text.eq_ignore_ascii_case("forever") {
        return Ok(Wait::Forever);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        let seconds = text.parse().map_err(|_| WAIT_HINT.to_owned())?;
        let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| time.as_millis() <= MS_MAX.into());
        return time.map(Wait::AtMost).ok_or_else(|| TOO_LONG.into());
    }
    let hint = |error: String| if error == HINT { WAIT_HINT.to_owned() } else { error };
    parse(text).map(Wait::AtMost).map_err(hint)
}

/// Reads when an engine exits: `never`, `forever`, or a duration.
pub(crate) fn parse_idle(text: &str) -> Result<Wait, String> {
    if text.eq_ignore_ascii_case("never") { Ok(Wait::Forever) } else { parse_wait(text) }
}

/// Reads a duration that must be longer than zero.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Duration::ZERO => Err("give a time longer than zero".into()),
        duration => Ok(duration),
    }
}

/// Reads a sum of whole numbers with units, largest unit first: `1h30m`, `30s`, `250ms`. `0` needs no unit.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total_ms: u64 = 0;
    let mut previous_unit_ms = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(letters);
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1000,
            "m" => 60 * 1000,
            "h" => 60 * 60 * 1000,
            "d" => DAY_MS,
            _ => return Err(HINT.into()),
        };
        if number.is_empty() || unit_ms >= previous_unit_ms {
            return Err(HINT.into());
        }
        previous_unit_ms = unit_ms;
        let part_ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms));
        total_ms = part_ms
            .and_then(|part| total_ms.checked_add(part))
            .filter(|total| *total <= MS_MAX)
            .ok_or(TOO_LONG)?;
        rest = tail;
    }
    if text.is_empty() { Err(HINT.into()) } else { Ok(Duration::from_millis(total_ms)) }
}

const TOO_LONG: &str = "give a time of at most one hundred years";
const HINT: &str = "give a number with a unit (ms, s, m, h, d), largest unit first, such as 30s or 1h30m";
const WAIT_HINT: &str = "give seconds, forever, or a number with a unit (ms, s, m, h, d), largest unit first, such as 30s or 1h30m";

/// Whole milliseconds, which never overflow because every duration accepted here is bounded.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A duration for readers: the two largest units that matter.
pub(crate) fn human(duration: Duration) -> String {
    let ms = ms(duration);
    let (s, m, h, d) = (ms / 1000 % 60, ms / 60_000 % 60, ms / 3_600_000 % 24, ms / DAY_MS);
    match ms {
        0 => "<1ms".into(),
        1..1000 => format!("{ms}ms"),
        1000..10_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        10_000..60_000 => format!("{s}s"),
        60_000..3_600_000 => format!("{m}m{s:02}s"),
        3_600_000..DAY_MS => format!("{h}h{m:02}m"),
        _ => format!("{d}d{h:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_units() {
        for (text, expected_ms) in [
            ("30s", 30_000),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("1d2h3m4s5ms", 93_784_005),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(expected_ms)), "{text}");
        }
        assert_eq!(parse_wait("forever"), Ok(Wait::Forever));
        assert_eq!(parse_wait("2s"), Ok(Wait::AtMost(Duration::from_secs(2))));
        assert_eq!(parse_wait("5"), Ok(Wait::AtMost(Duration::from_secs(5))));
        assert_eq!(parse_wait("0.25"), Ok(Wait::AtMost(Duration::from_millis(250))));
        assert_eq!(parse_idle("never"), Ok(Wait::Forever));
        for bad in ["", ".", "1.2.3", "-1", "1e3", "never", "99999999999999999999", "1.5s"] {
            assert!(parse_wait(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nonsense_and_overflow_are_refused() {
        for bad in ["", "30", "s", "-1s", "1.5s", "1s2h", "1s1s", "30 s", "1w", "ms", "1sx", "forever", "１s"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for huge in ["36501d", "99999999999999999999s", "18446744073709551615h", "36500d1ms"] {
            assert!(parse(huge).unwrap_err().contains("hundred years"), "{huge}");
        }
        assert!(parse("36500d").is_ok());
        assert!(parse_positive("0s").is_err());
    }

    #[test]
    fn readers_see_two_units() {
        for (ms, expected) in [
            (0, "<1ms"),
            (7, "7ms"),
            (1234, "1.2s"),
            (28_900, "28s"),
            (72_000, "1m12s"),
            (5_400_000, "1h30m"),
            (90_000_000, "1d01h"),
        ] {
            assert_eq!(human(Duration::from_millis(ms)), expected);
        }
    }
}
