//! Who holds a lock: a value, never a thread or a task (decision D4).

use std::{fmt, str::FromStr, sync::Arc};

use smallvec::SmallVec;

use crate::{
    error::{Error, ErrorKind},
    fork,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering},
};

/// The longest owner text that is read from text, in bytes.
pub(crate) const OWNER_BYTES_MAX: usize = 256;

/// The identity of a holder: `client-uuid:number`, which is the field that stands in the lock's hash.
///
/// Each acquisition gets a fresh owner unless one is passed in; passing the same owner again is how a lock is re-entered.
/// An owner that was written out ([`to_text`](Owner::to_text)) may be in use by another process as well, so from then on
/// its releases count down instead of removing the field outright. There is no `Display`, so that nothing is written out in passing.
#[derive(Clone)]
pub struct Owner(Arc<Inner>);

/// Who may act in an owner's name besides its guard decides how its holds end:
///
/// | the owner is | because | so |
/// |---|---|---|
/// | nobody else's | nothing below is true | its hold goes from task to task without a round trip; a release removes its field |
/// | known outside of its guard | the program has the value, or its guard may hand it out after the hold was lost or entered again | its attempts wait for what is under way in its name, and its hold is not passed on inside the process |
/// | shared: foreign, shown or uncounted | it was read from text, written out as text, or has holds that this process does not count | another process may hold under it: releases count down |
struct Inner {
    text: Arc<str>,
    number: i64,
    /// It was read from text.
    foreign: bool,
    /// The process that the value was made in.
    pid: u64,
    /// It was written out as text.
    shown: AtomicBool,
    /// It has holds that this process does not count.
    uncounted: AtomicBool,
    /// It may be used to enter or acquire by others than its guard.
    reusable: AtomicBool,
    /// How many leases of this process are its.
    holds: AtomicU32,
    /// The program was given it and may compare it with who holds.
    pinned: AtomicBool,
    /// How many calls under way need the thread to stay this owner.
    staying: AtomicU32,
    /// A thread is this owner.
    of_thread: AtomicBool,
    /// Until when the server was asked to keep a hold of it.
    pending_extension_ms: AtomicU64,
}

impl Owner {
    fn of(text: Arc<str>, number: i64, foreign: bool) -> Self {
        Owner(Arc::new(Inner {
            text,
            number,
            foreign,
            pid: fork::here(),
            shown: AtomicBool::new(foreign),
            uncounted: AtomicBool::new(false),
            reusable: AtomicBool::new(foreign),
            holds: AtomicU32::new(0),
            pinned: AtomicBool::new(false),
            staying: AtomicU32::new(0),
            of_thread: AtomicBool::new(false),
            pending_extension_ms: AtomicU64::new(0),
        }))
    }

    pub(crate) fn new(client: &str, number: i64) -> Self {
        // Put together without memory of its own: this is on the path of every acquire.
        let mut text = SmallVec::<[u8; 64]>::from_slice(client.as_bytes());
        text.push(b':');
        push_decimal(&mut text, number);
        Owner::of(String::from_utf8_lossy(&text).as_ref().into(), number, false)
    }

    /// A request is about to have the server keep a hold of it until then.
    pub(crate) fn note_pending_extension(&self, until_ms: u64) {
        self.0.pending_extension_ms.fetch_max(until_ms, Ordering::AcqRel);
    }

    pub(crate) fn pending_extension_ms(&self) -> u64 {
        self.0.pending_extension_ms.load(Ordering::Acquire)
    }

    /// The owner of permits, whose text is their ids.
    pub(crate) fn of_permits(ids: &str, number: i64) -> Self {
        Owner::of(ids.into(), number, false)
    }

    /// The owner number: unique within its client, positive.
    pub fn number(&self) -> i64 {
        self.0.number
    }

    /// Stands in a call for the number of its request, which `core/request_ids.rs` puts in its place.
    pub(crate) fn request_number_placeholder(&self) -> i64 {
        self.0.number
    }

    /// Marks the owner as known outside of its guard, where it could be used to enter again.
    pub(crate) fn mark_reusable(&self) -> &Self {
        self.0.reusable.store(true, Ordering::Relaxed);
        self
    }

    /// Marks the owner as one under which there are holds that this process does not count.
    pub(crate) fn becomes_multi_process(&self) {
        self.0.uncounted.store(true, Ordering::Relaxed);
    }

    /// Whether a request of the owner `asking` may enter a hold of this one: it is this very owner, or one that is known outside of its guard. An
    /// owner is one and the same whatever its value was made from, so what is known of the one holds for the other.
    pub(crate) fn lets_in(&self, asking: &Owner) -> bool {
        debug_assert_eq!(self.0.text, asking.0.text, "of the same text");
        if Arc::ptr_eq(&self.0, &asking.0) {
            return true;
        }
        if asking.is_multi_process() && self.is_reusable() {
            self.becomes_multi_process();
        }
        self.is_reusable()
    }

    pub(crate) fn is_reusable(&self) -> bool {
        self.0.reusable.load(Ordering::Relaxed) || self.is_multi_process()
    }

    /// A lease of this process begins. Who is given one of several leases of an owner has the owner of the others: none of them is passed on from
    /// then on, and what ends each is covered.
    pub(crate) fn note_lease_begun(&self) {
        if self.0.holds.fetch_add(1, Ordering::Relaxed) > 0 {
            self.mark_reusable();
        }
    }

    /// A lease of this process goes on as another one.
    pub(crate) fn note_lease_replaced(&self) {
        self.0.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// A lease of this process is over.
    pub(crate) fn note_lease_over(&self) {
        self.0.holds.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a lease of this process is its.
    pub(crate) fn is_holding(&self) -> bool {
        self.0.holds.load(Ordering::Relaxed) > 0
    }

    /// A thread is this owner from now on: it enters what it holds.
    pub(crate) fn becomes_a_thread(&self) {
        self.0.of_thread.store(true, Ordering::Relaxed);
        self.mark_reusable();
    }

    /// An error where a hold of a thread would get a guard that other threads may have.
    pub(crate) fn check_may_be_sent(&self) -> Result<(), Error> {
        if self.0.of_thread.load(Ordering::Relaxed) {
            let error =
                Error::new(ErrorKind::InvalidOption, "the hold is a thread's, and is entered by that thread");
            return Err(error.remedy("lock it again on that thread, or take it with `run_to_send`").by(self));
        }
        Ok(())
    }

    /// The program has been given it. It stays a thread's owner as long as the program has it.
    pub(crate) fn pin(&self) {
        self.0.pinned.store(true, Ordering::Relaxed);
    }

    /// Whether a thread that was this owner can be another one with its next acquire: it holds nothing, and the program does not
    /// know it. What it has left behind under its owner stays with that one.
    pub(crate) fn is_spent(&self) -> bool {
        let known = self.0.pinned.load(Ordering::Relaxed) && Arc::strong_count(&self.0) > 1;
        let used = self.0.holds.load(Ordering::Relaxed) + self.0.staying.load(Ordering::Relaxed) > 0;
        !used && !known && !self.0.foreign && !self.0.shown.load(Ordering::Relaxed)
    }

    /// Keeps the thread this owner until the returned value is dropped.
    pub(crate) fn stays(self) -> Stay {
        self.0.staying.fetch_add(1, Ordering::Relaxed);
        Stay(self)
    }

    pub(crate) fn field(&self) -> &Arc<str> {
        &self.0.text
    }

    /// Writes the owner out, for another process that reads it with [`str::parse`] and enters the hold, renews or releases it. From now on
    /// that process may hold under the owner, too, so releases here count down instead of removing the field.
    ///
    /// # Example
    ///
    /// ```
    /// # use redlatch::{Client, Owner};
    /// # async fn example() -> Result<(), redlatch::Error> {
    /// let client = Client::connect("memory:").await?;
    /// let guard = client.lock("deploy").lock().await?;
    /// let text = guard.owner().to_text();
    /// // In another process, which got the text:
    /// let owner: Owner = text.parse()?;
    /// # assert_eq!(&owner, guard.owner());
    /// # Ok(()) }
    /// ```
    pub fn to_text(&self) -> String {
        self.0.shown.store(true, Ordering::Relaxed);
        self.0.text.to_string()
    }

    /// Whether the owner came from text, so that its hold may have been taken elsewhere.
    pub(crate) fn is_foreign(&self) -> bool {
        self.0.foreign
    }

    /// Whether it was made in a process of which this one was forked off. What was read from text is known there to be in use elsewhere.
    pub(crate) fn is_inherited(&self) -> bool {
        !self.0.foreign && self.0.pid != fork::here()
    }

    /// Whether another process may hold under this owner too.
    pub(crate) fn is_multi_process(&self) -> bool {
        let noted = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        self.0.foreign || noted(&self.0.shown) || noted(&self.0.uncounted)
    }
}

/// While it lives, a thread stays the owner that it is.
pub(crate) struct Stay(Owner);

impl Drop for Stay {
    fn drop(&mut self) {
        self.0.0.staying.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `i64::to_string` goes through the formatter.
fn push_decimal(text: &mut SmallVec<[u8; 64]>, number: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        text.push(b'-');
    }
    text.extend_from_slice(&digits[at..]);
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for Owner {}

/// For logs: it hands the owner to nobody. The text that another process reads is what [`to_text`](Owner::to_text) returns.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0.text)
    }
}

impl FromStr for Owner {
    type Err = Error;

    /// Reads an owner that its guard wrote out, perhaps in another process, to enter its hold again or to release it.
    ///
    /// Text that was read off the server may be used to release a hold and not to enter it: a guard that has not handed out its
    /// owner counts nobody else, so its hold may be passed on or removed beside such an entry. In its own process that is refused
    /// ([`ErrorKind::NotOwner`]); other processes cannot tell.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] unless the text is `something:number` of at most 256 visible ASCII characters.
    fn from_str(text: &str) -> Result<Self, Error> {
        let number = text
            .rsplit_once(':')
            .filter(|(client, _)| !client.is_empty())
            .and_then(|(_, number)| number.parse::<i64>().ok())
            .filter(|_| text.len() <= OWNER_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic()));
        match number {
            Some(number) => Ok(Owner::of(text.into(), number, true)),
            None => Err(Error::new(ErrorKind::InvalidOption, "the owner is not of the form uuid:number")
                .remedy("pass the owner as its guard or `redlatch lock` wrote it out")),
        }
    }
}

impl Error {
    /// Names the owner. That does not make it one that other processes may use.
    pub(crate) fn by(self, owner: &Owner) -> Self {
        self.naming_owner(|| {
            let mut text = String::from(&**owner.field());
            // The owner of many permits is as long as all their ids.
            if let Some((end, _)) = text.char_indices().nth(OWNER_BYTES_MAX) {
                text.replace_range(end.., "…");
            }
            text
        })
    }
}

/// What makes the owners of a client its own: its id, and the numbers that it has given out.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) id: Arc<str>,
    next: Arc<AtomicI64>,
}

impl Default for Identity {
    fn default() -> Self {
        Identity { id: client_id().into(), next: Arc::new(AtomicI64::new(1)) }
    }
}

impl Identity {
    /// A number that no owner of this client has.
    pub(crate) fn fresh_number(&self) -> i64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that comes next.
    pub(crate) fn next_number(&self) -> i64 {
        self.next.load(Ordering::Relaxed)
    }
}

/// The id of the client that made an owner, of which this is the text.
pub(crate) fn client_of(owner: &str) -> &str {
    owner.split(':').next().unwrap_or_default()
}

/// The id of a client: a random UUID of version 4 like that of any Redisson client, with a fixed part in the middle by which
/// scripts know our waiters in a queue from those who subtract from the times of others (`docs/protocol.md`, fair lock). 96
/// random bits are left.
fn client_id() -> String {
    let mut bytes = crate::randomness::identity().into_bytes();
    bytes[6..10].copy_from_slice(&MARK);
    uuid::Uuid::from_bytes(bytes).to_string()
}

/// Characters 15 to 23 of our ids, without the dash. Its first digit is the version, the first bits of its fifth the variant.
const MARK: [u8; 4] = [0x4e, 0xd1, 0xa7, 0xc4];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let owner = Owner::new("1b671a64-40d5-491e-99b0-da01ff1f3341", 42);
        assert!(
            format!("{owner:?}").contains(":42") && !owner.is_multi_process(),
            "a log hands it to nobody"
        );
        let text = owner.to_text();
        assert_eq!(text, "1b671a64-40d5-491e-99b0-da01ff1f3341:42");
        assert!(owner.is_multi_process(), "an owner that was shown may be in use elsewhere");
        let read: Owner = text.parse().unwrap();
        assert_eq!(read, owner);
        assert_eq!(read.number(), 42);
        for number in [0, 7, -1, i64::MAX, i64::MIN] {
            assert_eq!(Owner::new("c", number).to_text(), format!("c:{number}"));
        }
    }

    #[test]
    fn an_error_that_names_an_owner_does_not_make_it_one_of_several_processes() {
        let owner = Owner::new("1b671a64-40d5-491e-99b0-da01ff1f3341", 42);
        let error = Error::new(ErrorKind::Timeout, "no answer").by(&owner);
        assert!(error.to_string().contains("1b671a64-40d5-491e-99b0-da01ff1f3341:42"));
        assert!(!owner.is_multi_process(), "what it may have left is undone as ever");
    }

    #[test]
    fn an_owner_of_several_leases_counts_as_known_outside() {
        let owner = Owner::new("1b671a64-40d5-491e-99b0-da01ff1f3341", 42);
        owner.note_lease_begun();
        owner.note_lease_replaced();
        owner.note_lease_over();
        assert!(!owner.is_reusable(), "its one lease was passed on");
        owner.note_lease_begun();
        assert!(owner.is_reusable());
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["", ":", ":1", "a:", "a:b", "a b:1", "mode", "a\n:1"] {
            assert_eq!(bad.parse::<Owner>().unwrap_err().kind(), ErrorKind::InvalidOption, "{bad:?}");
        }
        assert!(format!("{}:1", "x".repeat(300)).parse::<Owner>().is_err());
    }
}
