//! What a process that was forked off makes of what it inherited.
//!
//! A forked child has the memory of its parent and one thread. Locks that other threads of the parent held stay locked in the
//! child for ever, runtimes have nobody who drives them, and connections are the parent's. So a child leaves all that alone: it
//! neither locks nor drops it ([`OfProcess`]), and makes a successor of its own ([`Successors`]) without taking any lock that a thread
//! of another process may hold.

use std::{
    cell::RefCell,
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// In how many processes in a row the making of a successor may be cut short by another fork, or fail.
const SLOTS: usize = 8;

thread_local! {
    /// Whether there was a fork since this thread last looked, and the process that it was in then.
    static HERE: RefCell<(forkguard::Guard, u64)> = RefCell::new((forkguard::new(), known()));
}

/// This process, as its first thread that asked has found; 0 before that. A forked child inherits its parent's.
static KNOWN: AtomicU64 = AtomicU64::new(0);

/// Whether both are the same process. A program may have lost its sight of `/proc` since one of them was found.
fn is_same(one: u64, other: u64) -> bool {
    let is_unseen = |process: u64| process >> 32 == 0;
    one as u32 == other as u32 && (one == other || is_unseen(one) || is_unseen(other))
}

/// This process, for a thread that has not seen a fork. What was found once counts.
fn known() -> u64 {
    found(KNOWN.load(Ordering::Acquire), asked())
}

/// This process, which is `here` as the kernel tells it, when `before` was known. Another thread may have noted something meanwhile:
/// this process, or one that this one was forked off.
fn found(mut before: u64, here: u64) -> u64 {
    loop {
        if is_same(before, here) {
            return before;
        }
        match KNOWN.compare_exchange(before, here, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return here,
            Err(known) => before = known,
        }
    }
}

/// This process, as the kernel tells it: its number, and when it was started where that is told. A number is used again: that of a parent
/// that has ended may be the one of its grandchild.
fn asked() -> u64 {
    u64::from(std::process::id()) | started() << 32
}

/// When this process was started, in ticks since the machine was; 0 where nothing tells.
fn started() -> u64 {
    std::fs::read_to_string("/proc/self/stat").map_or(0, |stat| start_in(&stat))
}

fn start_in(stat: &str) -> u64 {
    // The program's name stands in brackets, and may have any character. The start is the 22nd field; the name is the second.
    let after_name = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after_name.split_ascii_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// This process.
///
/// It is asked at each use of a guard, so the kernel is asked once a thread and after each fork only. A fork is noticed by a handler
/// that `fork(2)` runs in the child. A raw `clone` and `_Fork` run none, so their children are not told from their parent.
pub(crate) fn here() -> u64 {
    HERE.try_with(|here| {
        let (guard, pid) = &mut *here.borrow_mut();
        if guard.detected_fork() {
            *pid = known();
        }
        *pid
    })
    // The thread is about to end.
    .unwrap_or_else(|_| known())
}

/// Something that only the process that made it may drop; elsewhere it stays as it is.
pub(crate) struct OfProcess<T> {
    pid: u64,
    value: Arc<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        OfProcess { pid: here(), value: Arc::new(value) }
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if here() != self.pid {
            std::mem::forget(self.value.clone());
        }
    }
}

/// The successors of something in the processes that were forked off the one that made it.
pub(crate) struct Successors<T>([Slot<T>; SLOTS]);

/// A place for the successor of one process, which has claimed it. Nobody else waits for what that process does with it.
struct Slot<T> {
    claim: AtomicU64,
    value: OnceLock<T>,
}

/// Whose successor has been found.
pub(crate) enum Successor<'a, T> {
    Own(&'a T),
    /// That of a process which this one was forked off in turn; its own successors come next.
    Ancestor(&'a T),
}

impl<T> Default for Successors<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Successors<T> {
    pub(crate) const fn new() -> Self {
        Successors([const { Slot { claim: AtomicU64::new(0), value: OnceLock::new() } }; SLOTS])
    }

    /// The successor of this process, made if there is none yet. Threads that make one at the same time go on with the same one.
    ///
    /// # Errors
    ///
    /// What making one failed with; `None` when too many processes in a row were forked while one was being made.
    pub(crate) fn find<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Option<Successor<'_, T>>, E> {
        let pid = here();
        for slot in &self.0 {
            match slot.claim.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire) {
                Err(other) if other != pid => match slot.value.get() {
                    Some(theirs) => return Ok(Some(Successor::Ancestor(theirs))),
                    // It was forked off before that one was there, and will never be told.
                    None => continue,
                },
                Ok(_) | Err(_) => {}
            }
            if let Some(own) = slot.value.get() {
                return Ok(Some(Successor::Own(own)));
            }
            let made = make()?;
            // Only threads of this process have got this far, so the one who is first is alive, and done in a moment.
            return Ok(Some(Successor::Own(slot.value.get_or_init(|| made))));
        }
        Ok(None)
    }
}

/// Too many processes in a row were forked off in the middle of making a successor.
#[derive(Debug)]
pub(crate) struct TooManyForks;

/// Something of which each process has its own, empty at first.
pub(crate) struct PerProcess<T>(Successors<Box<Own<T>>>);

#[derive(Default)]
struct Own<T> {
    value: T,
    successors: Successors<Box<Own<T>>>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        PerProcess(Successors::new())
    }

    /// That of this process.
    ///
    /// # Errors
    ///
    /// When too many processes in a row were forked while it was being made.
    pub(crate) fn get(&self) -> Result<&T, TooManyForks> {
        let mut successors = &self.0;
        loop {
            match successors.find(|| Ok::<_, TooManyForks>(Box::<Own<T>>::default()))? {
                Some(Successor::Own(own)) => return Ok(&own.value),
                Some(Successor::Ancestor(theirs)) => successors = &theirs.successors,
                None => return Err(TooManyForks),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    /// Tells when it is dropped.
    struct Bell(Rc<Cell<u32>>);

    impl Drop for Bell {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn what_another_process_made_is_not_dropped() {
        let rung = Rc::new(Cell::new(0));
        drop(OfProcess::new(Bell(rung.clone())));
        assert_eq!(rung.get(), 1);
        let mut foreign = OfProcess::new(Bell(rung.clone()));
        foreign.pid = 0;
        drop(foreign);
        assert_eq!(rung.get(), 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_is_told_by_its_start_as_well() {
        let (here, me) = (here(), std::process::id());
        assert_eq!(here as u32, me);
        assert!(here >> 32 > 0 && here >> 32 == started() & u64::from(u32::MAX));
        // A child that is started a tick later has another start.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        let theirs = start_in(&stat.unwrap());
        assert!(theirs > start_in(&std::fs::read_to_string("/proc/self/stat").unwrap()), "{theirs}");
        assert_eq!(start_in("7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20"), 4711);
    }

    fn own(successors: &Successors<u32>, value: u32) -> Option<u32> {
        match successors.find(|| Ok::<_, ()>(value)).unwrap() {
            Some(Successor::Own(own)) => Some(*own),
            Some(Successor::Ancestor(_)) => None,
            None => None,
        }
    }

    #[test]
    fn each_process_has_one_successor() {
        let successors = Successors::new();
        assert_eq!((own(&successors, 7), own(&successors, 8)), (Some(7), Some(7)));
        // As a grandchild finds it: made by the process in between.
        successors.0[0].claim.store(1, Ordering::SeqCst);
        assert!(matches!(successors.find(|| Ok::<_, ()>(9)), Ok(Some(Successor::Ancestor(7)))));
    }

    #[test]
    fn a_fork_in_the_middle_of_making_one_holds_up_nobody() {
        let successors = Successors::new();
        for at in 0..SLOTS - 1 {
            // Claimed by a process of which only this copy of its memory is left.
            successors.0[at].claim.store(1, Ordering::SeqCst);
        }
        assert_eq!(own(&successors, 7), Some(7));
        let full = Successors::<u32>::new();
        full.0.iter().for_each(|slot| slot.claim.store(1, Ordering::SeqCst));
        assert!(matches!(full.find(|| Ok::<_, ()>(9)), Ok(None)));
    }

    #[test]
    fn making_one_may_fail_and_be_tried_again() {
        let successors = Successors::new();
        assert!(matches!(successors.find(|| Err("no thread")), Err("no thread")));
        assert_eq!(own(&successors, 7), Some(7));
    }
}
