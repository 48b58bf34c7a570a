//! Whole numbers on the command line, with errors that say what to give.

use std::{net::SocketAddr, ops::RangeInclusive};

/// How many permits, or steps of a latch: what fits into the number that Redisson's scripts count with.
pub(crate) const COUNT: RangeInclusive<i64> = 1..=i32::MAX as i64;

/// A parser for whole numbers of this range.
pub(crate) fn within<T: TryFrom<i64>>(
    range: RangeInclusive<i64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse::<i64>().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("give a whole number from {} to {}", range.start(), range.end()))
    }
}

/// An address with a port.
///
/// # Errors
///
/// What to give.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an address and a port, such as 127.0.0.1:6379".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_out_of_range_and_a_word_are_told_the_range() {
        let count = within::<u32>(COUNT);
        assert_eq!((count("1"), count("2147483647")), (Ok(1), Ok(2_147_483_647)));
        for bad in ["", "0", "-1", "many", "1.5", "2147483648", "99999999999999999999"] {
            assert_eq!(count(bad), Err("give a whole number from 1 to 2147483647".into()), "{bad}");
        }
        assert_eq!(within::<i32>(i32::MIN.into()..=i32::MAX.into())("-3"), Ok(-3));
        assert!(address("localhost").unwrap_err().contains("127.0.0.1:6379"));
    }
}
