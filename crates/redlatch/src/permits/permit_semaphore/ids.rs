//! Permit ids: 16 bytes on the wire, 32 hexadecimal digits for people. Half of them name the client, the other half is a number, as in
//! its owners.

use std::sync::Arc;

use redlatch_engine::daemon::permit_mark;

use crate::{
    core::Core,
    error::{Error, ErrorKind},
    name::LockName,
    recipes::members,
};

/// The bytes of an id.
pub(super) const ID_BYTES: usize = 16;
/// The digits of an id.
const ID_DIGITS: usize = 2 * ID_BYTES;
/// How many permits one request is about at most: a script visits each of them.
pub(crate) const PERMITS_AT_ONCE_MAX: usize = 1_000;

/// The digits of `n` fresh ids of a client, one after another.
pub(super) fn fresh(n: usize, core: &Core) -> Result<String, Error> {
    let Some(mark) = permit_mark(core.id.as_bytes()) else { return random(n) };
    let ids = (0..n).flat_map(|_| [mark, core.fresh_number().to_be_bytes()]).flatten();
    Ok(digits(&ids.collect::<Vec<_>>()))
}

/// Those of a client whose own id has too little in it.
fn random(n: usize) -> Result<String, Error> {
    let mut bytes = vec![0; n * ID_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Engine, format!("the system gave no random bytes for permit ids: {error}"))
    })?;
    Ok(digits(&bytes))
}

fn digits(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from(b"0123456789abcdef"[usize::from(half)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

/// Each id of several that are written one after another.
pub(super) fn each(digits: &str) -> impl Iterator<Item = &str> {
    (0..digits.len() / ID_DIGITS).map(|at| &digits[at * ID_DIGITS..(at + 1) * ID_DIGITS])
}

/// The bytes of ids that came from elsewhere, one after another.
pub(super) fn read<'a>(ids: impl Iterator<Item = &'a str>, name: &LockName) -> Result<Arc<[u8]>, Error> {
    let mut all = Vec::new();
    for id in ids {
        if id.len() != ID_DIGITS || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            let shown: String = id.chars().take(2 * ID_DIGITS).flat_map(char::escape_default).collect();
            return Err(Error::new(ErrorKind::InvalidOption, format!("\"{shown}\" is no permit id"))
                .on(name)
                .remedy("pass the 32 hexadecimal digits that the acquire answered with"));
        }
        all.extend_from_slice(&members(id));
    }
    amount(all.len() / ID_BYTES, name)?;
    Ok(all.into())
}

/// Checks how many permits a request is about.
pub(super) fn amount(n: usize, name: &LockName) -> Result<usize, Error> {
    if n == 0 || n > PERMITS_AT_ONCE_MAX {
        return Err(Error::new(
            ErrorKind::InvalidOption,
            format!("{n} permits at once are outside 1 to {PERMITS_AT_ONCE_MAX}"),
        )
        .on(name)
        .remedy("ask for at least 1 and at most 1000 in one request"));
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sixteen_bytes_and_their_digits() {
        let name = LockName::new("n").unwrap();
        let text = random(3).unwrap();
        let ids: Vec<&str> = each(&text).collect();
        assert_eq!(ids.len(), 3);
        assert!(ids[0] != ids[1] && ids[1] != ids[2]);
        let raw = read(ids.iter().copied(), &name).unwrap();
        assert_eq!((raw.len(), digits(&raw)), (48, text.clone()));
        assert_eq!(raw, members(&text));
        let odd = "00ff7F80a0B1c2D3e4F5061728394a5b";
        let raw = read([odd].into_iter(), &name).unwrap();
        assert_eq!(raw[..4], [0, 255, 127, 128]);
        assert_eq!(digits(&raw), odd.to_lowercase());
    }

    #[test]
    fn nonsense_is_refused_in_one_line() {
        let name = LockName::new("n").unwrap();
        let long = "f".repeat(500);
        for bad in
            ["", "ab", "00ff7f80a0b1c2d3e4f5061728394a5g", "00ff7f80a0b1c2d3e4f5061728394a5bcc", &long, "\n"]
        {
            let error = read([bad].into_iter(), &name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
            let text = error.to_string();
            assert!(text.len() < 300 && !text.contains('\n'), "{text}");
        }
        for n in [0, PERMITS_AT_ONCE_MAX + 1] {
            assert_eq!(amount(n, &name).unwrap_err().kind(), ErrorKind::InvalidOption);
        }
    }
}
