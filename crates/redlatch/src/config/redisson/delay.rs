//! Schedules of pauses, as Redisson's files have them. They are not followed here; they are read so that one that makes no sense
//! is reported.

use std::{fmt, time::Duration};

use super::tree::{Kind, Value};

const EQUAL: &str = "half random";

/// A schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delay {
    Constant(Duration),
    Growing { form: &'static str, base: Duration, max: Duration },
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Delay::Constant(delay) => write!(f, "{delay:?} each time"),
            Delay::Growing { form, base, max } => write!(f, "{form}, {base:?} to {max:?}"),
        }
    }
}

impl Delay {
    /// Whether it is one that Redisson has unless told otherwise.
    pub(super) fn is_default(&self) -> bool {
        let ms = Duration::from_millis;
        let Delay::Growing { form: EQUAL, base, max } = *self else { return false };
        [(ms(1_000), ms(2_000)), (ms(100), ms(10_000))].contains(&(base, max))
    }

    /// Reads a schedule; an error says what is wrong with it without repeating it.
    pub(super) fn read(value: &Value) -> Result<Delay, &'static str> {
        let class = value.class.as_deref().unwrap_or("");
        let form = match class.strip_prefix("org.redisson.config.") {
            Some("EqualJitterDelay") => EQUAL,
            Some("FullJitterDelay") => "random",
            Some("DecorrelatedJitterDelay") => "random, by the last one",
            Some("ConstantDelay") => return Ok(Delay::Constant(part(value, "delay", 100)?)),
            _ => return Err("its class is not one of Redisson's schedules"),
        };
        let (base, max) = (part(value, "baseDelay", 100)?, part(value, "maxDelay", 1_000)?);
        if base > max {
            return Err("its base is over its maximum");
        }
        Ok(Delay::Growing { form, base, max })
    }
}

fn part(value: &Value, key: &str, default_ms: u64) -> Result<Duration, &'static str> {
    let entries = match &value.kind {
        Kind::Map(entries) => entries.as_slice(),
        Kind::Null => &[],
        Kind::Scalar(text) if text.is_empty() => &[],
        _ => return Err("it is not a map"),
    };
    match entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value.kind) {
        None | Some(Kind::Null) => Ok(Duration::from_millis(default_ms)),
        Some(Kind::Scalar(text)) => iso8601(text).ok_or("a duration in it is not like PT1S or PT0.1S"),
        Some(_) => Err("a duration in it is not a text"),
    }
}

/// A duration such as `PT1S`, `PT0.1S`, `P1DT2H` or `PT1M30S`. Signs, weeks, months and years are not accepted.
pub(super) fn iso8601(text: &str) -> Option<Duration> {
    let text = text.trim().to_ascii_uppercase();
    let (days, time) = match text.strip_prefix('P')?.split_once('T') {
        Some((_, "")) => return None,
        Some((days, time)) => (days, time),
        None => (text.strip_prefix('P')?, ""),
    };
    if days.is_empty() && time.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    for (mut rest, units) in
        [(days, &[('D', 86_400u64)][..]), (time, &[('H', 3_600), ('M', 60), ('S', 1)][..])]
    {
        for (unit, seconds) in units {
            let Some((number, after)) = rest.split_once(*unit) else { continue };
            rest = after;
            let (whole, fraction) = number.split_once(['.', ',']).unwrap_or((number, "0"));
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            // Only seconds have a fraction, of nine digits at most.
            if !digits(whole) || !digits(fraction) || fraction.len() > 9 || (*unit != 'S' && number != whole)
            {
                return None;
            }
            let nanos = fraction.parse::<u32>().ok()? * 10u32.pow(9 - fraction.len() as u32);
            let seconds = whole.parse::<u64>().ok()?.checked_mul(*seconds)?;
            total = total.checked_add(Duration::new(seconds, nanos))?;
        }
        if !rest.is_empty() {
            return None;
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::{super::tree, *};

    #[test]
    fn durations_of_iso_8601() {
        let ms = Duration::from_millis;
        for (text, value) in [
            ("PT1S", ms(1_000)),
            ("PT0.1S", ms(100)),
            ("PT0,25S", ms(250)),
            ("PT1M30S", ms(90_000)),
            ("P1DT2H3M4.005S", ms(93_784_005)),
            ("P2D", ms(172_800_000)),
            ("pt10s", ms(10_000)),
            ("PT0S", ms(0)),
        ] {
            assert_eq!(iso8601(text), Some(value), "{text}");
        }
        for text in [
            "",
            "P",
            "PT",
            "1S",
            "PT1",
            "PT1X",
            "PT-1S",
            "PT1S1M",
            "P1S",
            "PT1.5M",
            "PT.S",
            "PT1.1234567890S",
            "P1Y",
            "PT99999999999999999999S",
            "PT9999999999999999H",
        ] {
            assert_eq!(iso8601(text), None, "{text}");
        }
    }

    #[test]
    fn schedules_have_the_defaults_of_redisson() {
        let read = |text: &str| {
            let Kind::Map(entries) = tree::read(&format!("d: {text}")).unwrap().kind else { unreachable!() };
            Delay::read(&entries[0].value)
        };
        let ms = Duration::from_millis;
        let growing = |form, base, max| Ok(Delay::Growing { form, base: ms(base), max: ms(max) });
        assert_eq!(read("!<org.redisson.config.EqualJitterDelay> {}"), growing("half random", 100, 1_000));
        assert_eq!(
            read("!<org.redisson.config.EqualJitterDelay> {baseDelay: PT1S, maxDelay: PT2S}"),
            growing("half random", 1_000, 2_000)
        );
        assert_eq!(
            read("!!org.redisson.config.FullJitterDelay {maxDelay: \"PT3S\"}"),
            growing("random", 100, 3_000)
        );
        assert_eq!(
            read("!<org.redisson.config.DecorrelatedJitterDelay> {baseDelay: null}"),
            growing("random, by the last one", 100, 1_000)
        );
        assert_eq!(
            read("!<org.redisson.config.ConstantDelay> {delay: PT0.5S}"),
            Ok(Delay::Constant(ms(500)))
        );
        assert_eq!(read("!<org.redisson.config.ConstantDelay> {}"), Ok(Delay::Constant(ms(100))));
        for bad in [
            "!<com.example.Delay> {}",
            "{baseDelay: PT1S}",
            "!<org.redisson.config.ConstantDelay> {delay: 5}",
            "!<org.redisson.config.ConstantDelay> {delay: [PT1S]}",
            "!<org.redisson.config.ConstantDelay> [PT1S]",
            "!<org.redisson.config.FullJitterDelay> {baseDelay: PT5S}",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
