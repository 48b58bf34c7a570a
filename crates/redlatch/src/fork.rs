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
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use once_cell::race::OnceBox;

/// In how many processes in a row the making of a successor may be cut short by another fork, or fail.
const SLOTS: usize = 8;

thread_local! {
    /// Whether there was a fork since this thread last looked, and the generation of the process that it was in then.
    static HERE: RefCell<(Lookout, u64)> = RefCell::new((Lookout::new(), generation()));
}

/// Tells whether this is another process than before.
#[derive(Clone)]
enum Lookout {
    /// A handler that `fork(2)` runs in the child counts.
    Handler(forkguard::Guard),
    /// The number of the process has changed. Where the handler cannot be registered any more: the process was forked off meanwhile.
    Number(u32),
}

/// How far the registration of the handler has come: [`NOT_BEGUN`], the number of the process that began it, or [`REGISTERED`].
static REGISTRATION: AtomicU32 = AtomicU32::new(NOT_BEGUN);
const NOT_BEGUN: u32 = 0;
const REGISTERED: u32 = u32::MAX;

impl Lookout {
    fn new() -> Self {
        if may_register(&REGISTRATION, std::process::id()) {
            let guard = forkguard::new();
            REGISTRATION.store(REGISTERED, Ordering::Release);
            return Lookout::Handler(guard);
        }
        Lookout::Number(std::process::id())
    }

    fn has_seen_fork(&mut self) -> bool {
        match self {
            Lookout::Handler(guard) => guard.detected_fork(),
            Lookout::Number(number) => std::mem::replace(number, std::process::id()) != *number,
        }
    }
}

/// Whether a process may use the handler. One that was forked off while another thread of its parent registered it would wait for that thread for ever.
fn may_register(registration: &AtomicU32, process: u32) -> bool {
    match registration.compare_exchange(NOT_BEGUN, process, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) | Err(REGISTERED) => true,
        Err(by) => by == process,
    }
}

/// The processes whose memory this one has: the first that asked, each of those that were forked off in turn and asked, and this one.
///
/// They are told by the forks between them. Numbers of processes are used again, in namespaces even by the child of a process, and where `/proc` is
/// not there nothing else tells them apart. A fork that was under way when the handler was registered tells nothing, and then the numbers do: the
/// parent lives, so they differ.
struct Generation {
    /// Whether there was a fork since.
    lookout: Lookout,
    /// The process that asked.
    process: u32,
    number: u64,
    /// That of the process which was forked off. Set without a lock, which a fork could leave locked for ever.
    next: OnceBox<Generation>,
}

impl Generation {
    fn new(number: u64, process: u32) -> Box<Self> {
        Box::new(Generation { lookout: Lookout::new(), process, number, next: OnceBox::new() })
    }

    /// That of a process, from this one on.
    fn of(&self, process: u32) -> &Self {
        let mut generation = self;
        while generation.lookout.clone().has_seen_fork() || generation.process != process {
            generation = generation.next.get_or_init(|| Generation::new(generation.number + 1, process));
        }
        generation
    }
}

static FIRST: OnceBox<Generation> = OnceBox::new();

/// The generation of this process among those whose memory it has; from 1 on. What threads of one process find at the same time is the same.
fn generation() -> u64 {
    let process = std::process::id();
    FIRST.get_or_init(|| Generation::new(1, process)).of(process).number
}

/// This process, as a number that none of those has whose memory it has inherited.
///
/// It is asked at each use of a guard, so a thread looks once and after each fork only. A fork is noticed by a handler that `fork(2)`
/// runs in the child. A raw `clone` and `_Fork` run none, so their children are not told from their parent.
pub(crate) fn here() -> u64 {
    HERE.try_with(|here| {
        let (lookout, number) = &mut *here.borrow_mut();
        if lookout.has_seen_fork() {
            *number = generation();
        }
        *number
    })
    // The thread is about to end.
    .unwrap_or_else(|_| generation())
}

/// Something that only the process that made it may drop; elsewhere it stays as it is.
pub(crate) struct OfProcess<T> {
    process: u64,
    value: Arc<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        OfProcess { process: here(), value: Arc::new(value) }
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
        if here() != self.process {
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

    /// The number of a process that this one never was.
    const OTHER: u64 = u64::MAX;

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
        foreign.process = 0;
        drop(foreign);
        assert_eq!(rung.get(), 1);
    }

    #[test]
    fn all_threads_of_a_process_are_of_one_generation() {
        let found: Vec<_> = (0..8).map(|_| std::thread::spawn(|| (here(), generation()))).collect();
        for thread in found {
            assert_eq!(thread.join().unwrap(), (here(), here()));
        }
    }

    /// A fork that is under way when the handler is registered runs none of it in its child.
    #[test]
    fn a_fork_of_which_the_handler_has_not_told_is_told_by_the_number_of_the_process() {
        let first = Generation::new(1, 7);
        assert_eq!(first.of(7).number, 1);
        assert_eq!((first.of(8).number, first.of(8).number), (2, 2));
    }

    #[test]
    fn a_process_that_was_forked_off_during_the_registration_does_not_wait_for_it() {
        let registration = AtomicU32::new(NOT_BEGUN);
        assert!(may_register(&registration, 7), "it is the first");
        assert!(may_register(&registration, 7), "another thread waits for the first, which is alive");
        assert!(!may_register(&registration, 8), "the thread that registers is the parent's");
        registration.store(REGISTERED, Ordering::Release);
        assert!(may_register(&registration, 8));
        let mut lookout = Lookout::Number(7);
        assert!(lookout.has_seen_fork() && !lookout.has_seen_fork());
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
        successors.0[0].claim.store(OTHER, Ordering::SeqCst);
        assert!(matches!(successors.find(|| Ok::<_, ()>(9)), Ok(Some(Successor::Ancestor(7)))));
    }

    #[test]
    fn a_fork_in_the_middle_of_making_one_holds_up_nobody() {
        let successors = Successors::new();
        for at in 0..SLOTS - 1 {
            // Claimed by a process of which only this copy of its memory is left.
            successors.0[at].claim.store(OTHER, Ordering::SeqCst);
        }
        assert_eq!(own(&successors, 7), Some(7));
        let full = Successors::<u32>::new();
        full.0.iter().for_each(|slot| slot.claim.store(OTHER, Ordering::SeqCst));
        assert!(matches!(full.find(|| Ok::<_, ()>(9)), Ok(None)));
    }

    #[test]
    fn making_one_may_fail_and_be_tried_again() {
        let successors = Successors::new();
        assert!(matches!(successors.find(|| Err("no thread")), Err("no thread")));
        assert_eq!(own(&successors, 7), Some(7));
    }
}
