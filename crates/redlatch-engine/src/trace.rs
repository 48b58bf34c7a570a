//! What a client has left in the keyspace.

/// Where something that belongs to a client was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TracePlace {
    /// A field of a hash without `mode`: the hold of a lock.
    Lock,
    /// A field of a hash with `mode`: a hold of a read-write lock.
    ReadWrite,
    /// A member of a sorted set: the time of a waiter.
    Queue,
    /// A member of a sorted set: a permit with a lease.
    Permit,
}

/// The keys of sets whose scores are the ends of permits end so.
pub(crate) const PERMITS_SUFFIX: &[u8] = b":timeout";
/// The score of a permit without an end, in ms.
pub(crate) const NEVER_SCORE_MS: f64 = 922_337_203_685_477.0;
/// The bytes of a permit's id.
pub(crate) const PERMIT_BYTES: usize = 16;
/// How many of them name the client.
const MARK_BYTES: usize = 8;
/// Those of a client's id that are random, as digits in its text.
const RANDOM_DIGITS: [std::ops::Range<usize>; 3] = [0..8, 9..13, 24..28];

/// What the ids of a client's permits begin with; the rest is a number, as in its owners. `None` if the client's id is no UUID.
pub fn permit_mark(client: &[u8]) -> Option<[u8; MARK_BYTES]> {
    let mut digits = RANDOM_DIGITS.into_iter().flatten().map(|at| char::from(*client.get(at)?).to_digit(16));
    let mut mark = [0; MARK_BYTES];
    for byte in &mut mark {
        let (high, low) = (digits.next()??, digits.next()??);
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(mark)
}

/// The mark and the number of a permit.
pub(crate) fn permit(id: &[u8]) -> Option<([u8; MARK_BYTES], i64)> {
    let (mark, number) = id.split_first_chunk::<MARK_BYTES>()?;
    Some((*mark, i64::from_be_bytes(number.try_into().ok()?)))
}

/// The same of an id in hexadecimal digits.
pub(crate) fn permit_in_digits(digits: &str) -> Option<([u8; MARK_BYTES], i64)> {
    let id = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2 * PERMIT_BYTES)?;
    permit(&id.to_be_bytes())
}

/// A hold or a place in a queue of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// The key that it is in.
    pub key: Vec<u8>,
    /// The field or member: the owner, for a write hold with more behind it; the hexadecimal digits of a permit's id.
    pub field: String,
    /// What the key is.
    pub place: TracePlace,
}
