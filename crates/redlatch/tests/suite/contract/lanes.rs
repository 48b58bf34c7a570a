use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake},
};

use redlatch::{ErrorKind, Guard, Lease, LossReason, Wait};

use crate::{
    fixture::{Fixture, IN_VAIN, RENEWED, ms, renewed, soon},
    kinds::AnyLock,
};

/// Spawns a waiter and returns once it stands in line.
async fn in_line<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let mut work = Box::pin(work);
    // One poll puts it in line behind those who came before; from there a task drives it.
    let waker = std::task::Waker::noop();
    assert!(work.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    tokio::spawn(work)
}

pub(crate) async fn waiters_of_one_process_are_served_in_order(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for n in 0..20 {
        let (lock, order) = (lock.clone(), order.clone());
        let waiter = async move {
            let guard = lock.lock().await.unwrap();
            order.lock().unwrap().push(n);
            guard.unlock().await.unwrap();
        };
        waiters.push(in_line(waiter).await);
    }
    guard.unlock().await.unwrap();
    for waiter in waiters {
        soon("each waiter's turn", waiter).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    assert_eq!(client.stats().names, 0);
}

pub(crate) async fn a_waiter_with_a_token_of_its_own_is_handed_the_lock(on: Fixture) {
    // A long turn, so that the lock is handed on whatever the time between the steps.
    let client = on.builder().turn_time(ms(60_000)).connect().await.unwrap();
    let lock = on.lock(&client, on.name("x"));
    let owner = client.owner();
    let guard = lock.lock().await.unwrap();
    let (fenced, named, fixed) = (lock.clone(), lock.clone(), lock.clone());
    let named_owner = owner.clone();
    let fenced =
        in_line(async move { fenced.acquire().wait(Wait::Forever).fenced().await.unwrap().unwrap() }).await;
    let named =
        in_line(
            async move { named.acquire().wait(Wait::Forever).owner(&named_owner).await.unwrap().unwrap() },
        )
        .await;
    let fixed = in_line(async move {
        fixed.acquire().wait(Wait::Forever).lease(Lease::Fixed(ms(5_000))).await.unwrap().unwrap()
    })
    .await;
    guard.unlock().await.unwrap();
    let guard = soon("the fenced waiter's turn", fenced).await.unwrap();
    assert!(guard.token().is_some());
    guard.unlock().await.unwrap();
    let guard = soon("the named waiter's turn", named).await.unwrap();
    assert!(lock.is_held_by(&owner).await.unwrap());
    guard.unlock().await.unwrap();
    let guard = soon("the fixed waiter's turn", fixed).await.unwrap();
    let ttl = lock.remaining_ttl().await.unwrap().unwrap();
    assert!(ttl <= ms(5_000), "the next hold has a lease of its own: {ttl:?}");
    guard.unlock().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn a_known_owner_is_never_passed_on(on: Fixture) {
    let client = on.builder().turn_time(ms(60_000)).connect().await.unwrap();
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    let known = guard.owner().clone();
    let waiting = lock.clone();
    let waiter = in_line(async move { waiting.lock().await.unwrap() }).await;
    guard.unlock().await.unwrap();
    let next = soon("the waiter's turn", waiter).await.unwrap();
    assert!(!lock.is_held_by(&known).await.unwrap());
    assert!(
        lock.acquire().owner(&known).await.unwrap().is_none(),
        "the old owner would enter the new owner's hold"
    );
    assert!(next.is_valid());
}

pub(crate) async fn another_process_gets_its_turn(on: Fixture) {
    // Two clients stand for two processes: nothing is shared between them but the store.
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..16 {
        let (lock, stop) = (on.lock(&a, name.as_str()), stop.clone());
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                lock.lock().await.unwrap().unlock().await.unwrap();
            }
        }));
    }
    for _ in 0..10 {
        // How soon is a matter for the benchmark; that it comes at all, again and again, is the promise.
        let guard = soon("the other process's turn", on.lock(&b, name.as_str()).lock()).await.unwrap();
        guard.unlock().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        soon("the end", task).await.unwrap();
    }
}

/// R1: the background thread had taken in the first holder's lease and nothing asked it to look for the next one's.
pub(crate) async fn a_lock_that_was_passed_on_is_renewed_like_any_other(on: Fixture) {
    let client = on.builder().watchdog_lease(RENEWED).turn_time(ms(60_000)).connect().await.unwrap();
    let lock = on.lock(&client, on.name("x"));
    let ttl = async || lock.remaining_ttl().await.unwrap().expect("it is held");
    let guard = lock.lock().await.unwrap();
    renewed(1, ttl).await;
    let waiting = lock.clone();
    let waiter = in_line(async move { waiting.lock().await.unwrap() }).await;
    guard.unlock().await.unwrap();
    let next = soon("the waiter's turn", waiter).await.unwrap();
    renewed(2, ttl).await;
    assert!(next.is_valid());
    // A fixed hold that it is transferred to, and one after that.
    let (fixed, last) = (lock.clone(), lock.clone());
    let fixed = in_line(async move {
        fixed.acquire().wait(Wait::Forever).lease(Lease::Fixed(ms(60_000))).await.unwrap().unwrap()
    })
    .await;
    let last = in_line(async move { last.lock().await.unwrap() }).await;
    next.unlock().await.unwrap();
    soon("the fixed hold", fixed).await.unwrap().unlock().await.unwrap();
    let last = soon("the last hold", last).await.unwrap();
    renewed(2, ttl).await;
    assert!(last.is_valid());
}

/// R7: they stayed in line until the lock was given back.
pub(crate) async fn waits_that_are_over_leave_the_line(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    for _ in 0..20 {
        let waits = (0..100).map(|_| lock.acquire().wait(Wait::AtMost(ms(1))).into_future());
        for outcome in futures_util::future::join_all(waits).await {
            assert!(outcome.unwrap().is_none());
        }
        assert_eq!(client.stats().in_line, 0);
    }
    let (stays, last) = (lock.clone(), lock.clone());
    let stays = in_line(async move { stays.lock().await.unwrap() }).await;
    for _ in 0..100 {
        assert!(lock.acquire().wait(Wait::AtMost(ms(1))).await.unwrap().is_none());
        assert!(client.stats().in_line <= 2, "those who have left are never more than those who stay");
    }
    guard.unlock().await.unwrap();
    soon("its turn", stays).await.unwrap().unlock().await.unwrap();
    drop(last);
}

/// R13: the other tasks of its client waited for a hold that was there no more, for a third of its lease.
pub(crate) async fn a_lock_that_was_forced_free_is_not_kept_from_its_own_process(on: Fixture) {
    // Only a renewal after minutes would find it.
    let (a, b) = (on.brisk(ms(1_800_000)).await, on.client().await);
    let lock = on.lock(&a, on.name("x"));
    let guard = lock.lock().await.unwrap();
    let waiting = lock.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await.unwrap() });
    // Long enough in line for this to be a wait, and not a queue of short holds.
    tokio::time::sleep(ms(600)).await;
    on.lock(&b, on.name("x")).force_unlock().await.unwrap();
    let next = soon("the waiter's turn", waiter).await.unwrap();
    assert!(!guard.is_valid() && next.is_valid(), "never two");
    on.lock(&b, on.name("x")).force_unlock().await.unwrap();
    let third = soon("a look at a free lock", async {
        loop {
            if let Some(guard) = lock.try_lock().await.unwrap() {
                break guard;
            }
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    assert!(third.is_valid() && !next.is_valid(), "never two");
    let loss = next.loss().expect("it is lost");
    assert!(!matches!(loss, LossReason::Expired | LossReason::Shutdown), "{loss:?}");
}

/// R10: a task was woken under a mutex, and what it did then wanted the same one.
pub(crate) async fn a_waker_may_run_its_task_at_once(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    let inline = Inline::start({
        let lock = lock.clone();
        async move {
            for _ in 0..3 {
                lock.lock().await.unwrap().unlock().await.unwrap();
                drop(lock.lock().await.unwrap());
            }
        }
    });
    assert!(!inline.is_done());
    drop(guard);
    soon("the task's end", async {
        while !inline.is_done() {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

/// A task that is polled wherever it is woken.
struct Inline {
    work: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    woken: AtomicBool,
}

impl Inline {
    fn start(work: impl Future<Output = ()> + Send + 'static) -> Arc<Inline> {
        let inline =
            Arc::new(Inline { work: Mutex::new(Some(Box::pin(work))), woken: AtomicBool::new(false) });
        inline.clone().wake();
        inline
    }

    fn is_done(&self) -> bool {
        self.work.lock().unwrap().is_none()
    }
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        // Woken while it is polled, it is polled once more after that.
        while let Ok(mut work) = self.work.try_lock() {
            if !self.woken.swap(false, Ordering::SeqCst) {
                return;
            }
            let waker = self.clone().into();
            let done = match work.as_mut() {
                Some(work) => work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready(),
                None => return,
            };
            if done {
                *work = None;
            }
        }
    }
}

pub(crate) async fn waiters_that_give_up_do_not_stop_the_line(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    for held_here in [true, false] {
        let holder = if held_here { &a } else { &b };
        let guard = on.lock(holder, name.as_str()).lock().await.unwrap();
        let mut waiters = Vec::new();
        for n in 0..12 {
            let lock = on.lock(&a, name.as_str());
            waiters.push(
                in_line(async move {
                    let wait = if n % 3 == 0 { Wait::Forever } else { Wait::AtMost(ms(10 + n)) };
                    match lock.acquire().wait(wait).await.unwrap() {
                        Some(guard) => guard.unlock().await.map(|_| true).unwrap(),
                        None => false,
                    }
                })
                .await,
            );
        }
        let (stay, leave): (Vec<_>, Vec<_>) = waiters.into_iter().enumerate().partition(|(n, _)| n % 3 == 0);
        for (_, waiter) in leave {
            assert!(!soon("the end of its time", waiter).await.unwrap(), "another one holds it");
        }
        guard.unlock().await.unwrap();
        for (_, waiter) in stay {
            assert!(soon("each waiter's turn", waiter).await.unwrap());
        }
    }
    assert_eq!(a.stats().names, 0);
}

/// R9: it was woken and asked nobody, and those behind it asked nobody because it led.
pub(crate) async fn a_leader_that_is_not_polled_does_not_stop_its_line(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&b, name.as_str()).lock().await.unwrap();
    let lock = on.lock(&a, name.as_str());
    let mut leader = Box::pin(lock.lock());
    // Long enough to ask, and to sleep.
    assert!(tokio::time::timeout(IN_VAIN, &mut leader).await.is_err(), "it is busy");
    // Nor does one that is not polled when it is told to lead.
    let mut second = Box::pin(lock.lock());
    assert!(futures_util::poll!(&mut second).is_pending());
    let waiting = lock.clone();
    let third = in_line(async move { waiting.lock().await.unwrap() }).await;
    guard.unlock().await.unwrap();
    let guard = soon("the turn of the task that is polled", third).await.unwrap();
    assert!(guard.is_valid());
    guard.unlock().await.unwrap();
    for waiter in [leader, second] {
        soon("the turn of a task that is polled again", waiter).await.unwrap().unlock().await.unwrap();
    }
    assert!(!lock.is_locked().await.unwrap());
    assert_eq!(a.stats().names, 0);
}

/// R9: it stayed with the task, renewed, for as long as the task was not polled.
pub(crate) async fn a_lock_that_is_handed_to_a_task_that_is_not_polled_goes_on(on: Fixture) {
    // Nothing is to wait for the end of that time, as it once did for a task whose owner was written out.
    let patient = on.builder().turn_time(ms(60_000)).response_timeout(ms(60_000));
    let (a, b) = (patient.connect().await.unwrap(), on.client().await);
    let name = on.name("x");
    let (lock, owner) = (on.lock(&a, name.as_str()), a.owner());
    for named in [false, true] {
        let guard = lock.lock().await.unwrap();
        let acquire = if named { lock.acquire().owner(&owner) } else { lock.acquire() };
        let mut recipient = Box::pin(acquire.wait(Wait::Forever).into_future());
        // Long enough to stand in line, on the server where there is one.
        assert!(tokio::time::timeout(ms(200), &mut recipient).await.is_err(), "it is busy");
        guard.unlock().await.unwrap();
        let theirs = on.lock(&b, name.as_str());
        let other = soon("the turn of another process", theirs.lock()).await.unwrap();
        other.unlock().await.unwrap();
        let guard = soon("the turn of a task that is polled again", recipient).await.unwrap().unwrap();
        no_attempt_asks(&guard, &theirs).await;
        guard.unlock().await.unwrap();
        assert!(!lock.is_locked().await.unwrap());
    }
    assert_eq!(a.stats().names, 0);
}

/// Nobody else gets the lock while the guard is valid, whatever comes late.
async fn no_attempt_asks(guard: &Guard, theirs: &AnyLock) {
    for _ in 0..20 {
        let other = theirs.acquire().await.unwrap();
        assert!(!(guard.is_valid() && other.is_some()), "two valid holders");
        tokio::time::sleep(ms(50)).await;
    }
    assert!(guard.is_valid(), "{:?}", guard.loss());
}

/// The lock was handed to a wait that was dropped, and its undoing ended the next hold of the same owner.
pub(crate) async fn an_owner_that_gives_up_what_it_was_handed_gets_a_hold_of_its_own(on: Fixture) {
    let (a, b) = (on.builder().turn_time(ms(60_000)).connect().await.unwrap(), on.client().await);
    let name = on.name("x");
    let (lock, owner, theirs) = (on.lock(&a, name.as_str()), a.owner(), on.lock(&b, name.as_str()));
    for _ in 0..3 {
        let guard = lock.lock().await.unwrap();
        let mut recipient = Box::pin(lock.acquire().owner(&owner).wait(Wait::Forever).into_future());
        assert!(tokio::time::timeout(ms(200), &mut recipient).await.is_err(), "it is busy");
        guard.unlock().await.unwrap();
        drop(recipient);
        let again = lock.acquire().owner(&owner).wait(Wait::Forever);
        let guard = soon("the turn of the same owner", again.into_future()).await.unwrap().unwrap();
        no_attempt_asks(&guard, &theirs).await;
        guard.unlock().await.unwrap();
    }
    assert!(!theirs.is_locked().await.unwrap());
}

/// The releasing task was not polled any more, and those behind it waited for the end of its release.
pub(crate) async fn a_release_that_is_not_polled_does_not_stop_its_line(on: Fixture) {
    let client = on.builder().watchdog_lease(RENEWED).connect().await.unwrap();
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    // Nobody stands in line yet, so the server is told.
    let mut release = Box::pin(guard.unlock());
    let polled = futures_util::poll!(&mut release);
    let waiting = lock.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await.unwrap() });
    let guard = soon("the turn of the task that is polled", waiter).await.unwrap();
    assert!(guard.is_valid());
    guard.unlock().await.unwrap();
    if polled.is_pending() {
        soon("the end of the release", release).await.unwrap();
    }
    assert!(!lock.is_locked().await.unwrap());
}

/// Its sibling was not renewed any more and was told nothing.
pub(crate) async fn a_guard_goes_on_when_another_one_of_its_hold_is_detached(on: Fixture) {
    let (a, b) = (on.builder().watchdog_lease(RENEWED).connect().await.unwrap(), on.client().await);
    let name = on.name("x");
    let (lock, theirs) = (on.lock(&a, name.as_str()), on.lock(&b, name.as_str()));
    let first = lock.lock().await.unwrap();
    let second = first.reenter().await.unwrap();
    let left = first.detach();
    assert!(second.is_valid());
    renewed(2, async || lock.remaining_ttl().await.unwrap().expect("it is held")).await;
    no_attempt_asks(&second, &theirs).await;
    assert_eq!(
        second.unlock().await.unwrap(),
        redlatch::Unlocked::StillHeld(1),
        "one goes on without a guard"
    );
    assert!(theirs.acquire().await.unwrap().is_none());
    assert!(lock.is_held_by(&left.owner).await.unwrap());
    lock.release(&left.owner).await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

/// The release of the dropped guard ended the hold that had been taken over.
pub(crate) async fn what_is_being_released_is_not_adopted(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let (lock, theirs) = (on.lock(&a, name.as_str()), on.lock(&b, name.as_str()));
    for _ in 0..10 {
        let guard = lock.lock().await.unwrap();
        let owner = guard.owner().clone();
        drop(guard);
        if let Some(guard) = lock.adopt(&owner, Lease::Renewed).await.unwrap() {
            no_attempt_asks(&guard, &theirs).await;
            guard.unlock().await.unwrap();
        }
    }
}

/// The next task had it for an hour, though it asked for half a minute that is renewed.
pub(crate) async fn a_hold_that_was_extended_is_not_passed_on_for_longer_than_asked(on: Fixture) {
    let client = on.builder().turn_time(ms(60_000)).connect().await.unwrap();
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    let mut next = Box::pin(lock.lock());
    assert!(tokio::time::timeout(ms(100), &mut next).await.is_err(), "it is busy");
    guard.extend(ms(3_600_000)).await.unwrap();
    guard.unlock().await.unwrap();
    let next = soon("the turn", next).await.unwrap();
    assert!(next.remaining() <= ms(30_000), "{:?}", next.remaining());
    assert!(lock.remaining_ttl().await.unwrap().unwrap() <= ms(30_000));
    next.unlock().await.unwrap();
}

/// Both guards counted as the only hold: the release of the one freed the lock beside the other.
pub(crate) async fn an_owner_that_has_a_guard_here_is_not_adopted(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let (lock, theirs, owner) = (on.lock(&a, name.as_str()), on.lock(&b, name.as_str()), a.owner());
    let guard = lock.acquire().owner(&owner).await.unwrap().unwrap();
    let error = lock.adopt(&owner, Lease::Renewed).await.map(|guard| guard.is_some()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyHeld, "{error}");
    no_attempt_asks(&guard, &theirs).await;
    let left = guard.detach();
    let guard = lock.adopt(&left.owner, Lease::Renewed).await.unwrap().expect("it was left");
    no_attempt_asks(&guard, &theirs).await;
    assert_eq!(guard.unlock().await.unwrap(), redlatch::Unlocked::Released);
    assert!(!lock.is_locked().await.unwrap());
}
