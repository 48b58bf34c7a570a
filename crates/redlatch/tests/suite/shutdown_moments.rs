//! A shutdown that begins at any moment of a call: each reading of the clock is one. What the call is granted goes with the client, and
//! no guard that comes out of it is valid.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
};

use redlatch::{
    AnyGuard, Client, Clock, Error, Guard, Lease, LockState, MultiLock, Owner, ShutdownReport, SystemClock,
    WriteGuard,
};
use tokio::{runtime::Handle, task::JoinHandle};

use crate::fixture::{SOON, ms, soon};

const NAME: &str = "moments";
/// More than any call reads the clock; one that ends without having been met is the last.
const READINGS_MAX: u64 = 400;

type ShuttingDown = Pin<Box<dyn Future<Output = ShutdownReport> + Send>>;
/// Whether what came out of a call is valid, and what keeps it.
type Valid = Box<dyn Fn() -> bool>;

/// Begins the shutdown when it is read for the n-th time.
#[derive(Default)]
struct Moments {
    readings_left: AtomicU64,
    shutdown: Mutex<Option<ShuttingDown>>,
    begun: Mutex<Option<JoinHandle<ShutdownReport>>>,
}

impl Moments {
    /// Closes the client and looks for its holds, which is the first step of a shutdown, before it answers; unless the task that reads the
    /// clock has locked what the shutdown needs.
    fn begin(&self) {
        let mut shutdown = self.shutdown.lock().unwrap().take().expect("it begins once");
        let (tell, told) = mpsc::channel();
        let first_step = thread::spawn(move || {
            let polled = shutdown.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let _ = tell.send(());
            (polled, shutdown)
        });
        let _ = told.recv_timeout(ms(20));
        let rest = tokio::spawn(async move {
            let (polled, shutdown) =
                tokio::task::spawn_blocking(|| first_step.join().unwrap()).await.unwrap();
            match polled {
                Poll::Ready(report) => report,
                Poll::Pending => shutdown.await,
            }
        });
        *self.begun.lock().unwrap() = Some(rest);
    }
}

impl Clock for Moments {
    fn boot_us(&self) -> u64 {
        let left =
            self.readings_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left == Ok(1) {
            self.begin();
        }
        SystemClock.boot_us()
    }

    fn unix_us(&self) -> u64 {
        SystemClock.unix_us()
    }
}

/// Does a call once for each moment, each time in a store of its own. `left` are the owners that may hold afterwards.
async fn at_each_moment<P, F>(
    what: &str,
    prepare: impl AsyncFn(&Client, &Client) -> P,
    call: impl Fn(Client, P) -> F,
    may_stay: impl Fn(&LockState) -> bool,
) where
    F: Future<Output = Vec<Valid>>,
{
    for reading in 1..READINGS_MAX {
        let clock = Arc::new(Moments::default());
        // Named by what it is for, because stores of one name are one.
        let url = format!("memory:{what}-{reading}");
        let other = Client::connect(&url).await.unwrap();
        let client = Client::builder().url(&url).clock(clock.clone()).background_on(Handle::current());
        let client = client.connect().await.unwrap();
        let prepared = prepare(&client, &other).await;
        *clock.shutdown.lock().unwrap() = Some(Box::pin(client.clone().shutdown(SOON)));
        clock.readings_left.store(reading, Ordering::SeqCst);
        let valid = soon(what, call(client.clone(), prepared)).await;
        clock.readings_left.store(0, Ordering::SeqCst);
        let begun = clock.begun.lock().unwrap().take();
        let Some(begun) = begun else {
            assert!(reading > 1, "{what}: no reading of the clock was met");
            return;
        };
        soon("the shutdown", begun).await.unwrap();
        assert!(!valid.iter().any(|is_valid| is_valid()), "{what}, reading {reading}: a guard is valid");
        let state = other.inspect(NAME).await.unwrap();
        assert!(may_stay(&state), "{what}, reading {reading}: it stays: {state:?}");
    }
    panic!("{what}: {READINGS_MAX} readings of the clock are not enough");
}

fn nothing(state: &LockState) -> bool {
    state.holders.is_empty() && state.permits.is_empty() && state.waiters.is_empty()
}

fn valid<G: AnyGuard + 'static>(guard: Result<Option<G>, Error>) -> Vec<Valid> {
    let guard = guard.ok().flatten().map(AnyGuard::into_guard);
    guard.map(|guard| Box::new(move || guard.is_valid()) as Valid).into_iter().collect()
}

async fn no_preparation(_: &Client, _: &Client) {}

/// One that took a hold up looked whether the client was closed before it put the hold where a shutdown looks: 3 of 15,000 stayed.
#[tokio::test]
async fn what_is_granted_while_its_client_shuts_down_goes_with_it() {
    macro_rules! free {
        ($what:literal, $client:ident => $lock:expr) => {
            at_each_moment(
                $what,
                no_preparation,
                async |$client: Client, ()| valid($lock.try_lock().await),
                nothing,
            )
            .await
        };
    }
    free!("plain", client => client.lock(NAME));
    free!("fair", client => client.fair_lock(NAME));
    free!("fenced", client => client.fenced_lock(NAME));
    free!("spin", client => client.spin_lock(NAME));
    free!("non-reentrant", client => client.non_reentrant_lock(NAME));
    free!("read", client => client.read_write_lock(NAME).read());
    free!("write", client => client.read_write_lock(NAME).write());
}

#[tokio::test]
async fn what_is_taken_up_while_its_client_shuts_down_goes_with_it_or_stays_with_its_owner() {
    macro_rules! left {
        ($what:literal, $client:ident => $lock:expr) => {
            let owners: Mutex<Option<Owner>> = Mutex::default();
            let leave = async |_: &Client, $client: &Client| {
                let owner = $lock.lock_with_lease(ms(60_000)).await.unwrap().detach().owner;
                *owners.lock().unwrap() = Some(owner.clone());
                owner
            };
            let is_refused = Arc::new(AtomicBool::default());
            let is_left = |state: &LockState| {
                let owner = owners.lock().unwrap().as_ref().map(|owner| owner.to_text());
                let owner = owner.expect("it was left");
                let is_refused = is_refused.load(Ordering::SeqCst);
                // That of a write hold has an ending.
                state.holders.iter().all(|holder| holder.owner.starts_with(&owner))
                    && (state.holders.len() == 1 || !is_refused)
            };
            let adopt = |$client: Client, owner: Owner| {
                let is_refused = is_refused.clone();
                async move {
                    let adopted = $lock.adopt(&owner, Lease::Renewed).await;
                    is_refused.store(adopted.is_err(), Ordering::SeqCst);
                    valid(adopted)
                }
            };
            at_each_moment($what, leave, adopt, is_left).await
        };
    }
    left!("taken-up-plain", client => client.lock(NAME));
    left!("taken-up-fair", client => client.fair_lock(NAME));
    left!("taken-up-read", client => client.read_write_lock(NAME).read());
    left!("taken-up-write", client => client.read_write_lock(NAME).write());
}

/// The task that takes a hold up is not polled while its client is shut down: the shutdown freed what another process had left.
#[tokio::test]
async fn what_was_taken_up_for_a_task_that_has_not_seen_it_stays_with_its_owner() {
    let url = "memory:taken-up-unseen";
    let other = Client::connect(url).await.unwrap();
    // It works on this thread, so that nothing is done while the task is polled.
    let client = Client::builder().url(url).background_on(Handle::current()).connect().await.unwrap();
    let owner = other.lock(NAME).lock_with_lease(ms(60_000)).await.unwrap().detach().owner;
    let lock = client.lock(NAME);
    let adopting = lock.adopt(&owner, Lease::Renewed);
    let mut adopting = Box::pin(adopting);
    let holder = async || other.inspect(NAME).await.unwrap().holders[0].owner.to_string();
    assert!(futures_util::poll!(&mut adopting).is_pending());
    soon("the hold moves", async {
        while holder().await == owner.to_text() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let report = soon("the shutdown", client.clone().shutdown(SOON)).await;
    assert!(report.failed.is_empty(), "{report:?}");
    assert_eq!(holder().await, owner.to_text());
    assert_eq!(soon("the task", adopting).await.unwrap_err().kind(), redlatch::ErrorKind::Closed);
}

#[tokio::test]
async fn what_comes_of_a_hold_while_its_client_shuts_down_goes_with_it() {
    let write =
        async |client: &Client, _: &Client| client.read_write_lock(NAME).write().lock().await.unwrap();
    let downgrade = async |_, guard: WriteGuard| valid(guard.downgrade().await.map(Some));
    at_each_moment("downgrade", write, downgrade, nothing).await;

    let take = async |client: &Client, _: &Client| client.lock(NAME).lock().await.unwrap();
    let enter = async |client: Client, guard: Guard| {
        let entered = client.lock(NAME).acquire().owner(guard.owner()).await;
        valid(Ok(Some(guard))).into_iter().chain(valid(entered)).collect()
    };
    at_each_moment("entered", take, enter, nothing).await;

    let take_with_waiter = async |client: &Client, other: &Client| {
        let guard = take(client, other).await;
        let waiter = tokio::spawn({
            let lock = client.lock(NAME);
            async move { lock.lock().await }
        });
        tokio::task::yield_now().await;
        (guard, waiter)
    };
    let pass_on = async |_, (guard, waiter): (Guard, JoinHandle<Result<Guard, Error>>)| {
        // The answer does not matter: it may be that of the shutdown.
        let _ = guard.unlock().await;
        valid(waiter.await.unwrap().map(Some))
    };
    at_each_moment("passed-on", take_with_waiter, pass_on, nothing).await;
}

#[tokio::test]
async fn a_set_that_is_granted_while_its_client_shuts_down_goes_with_it() {
    let take = async |client: Client, ()| {
        let set = MultiLock::new([client.lock(NAME), client.lock("other")]).unwrap();
        let guard = set.try_lock().await.ok().flatten();
        guard.map(|guard| Box::new(move || guard.is_valid()) as Valid).into_iter().collect()
    };
    at_each_moment("set", no_preparation, take, nothing).await;
}

#[tokio::test]
async fn permits_that_are_granted_while_their_client_shuts_down_go_with_it() {
    let fill = async |_: &Client, other: &Client| {
        other.permit_semaphore(NAME).set(2).await.unwrap();
    };
    let take = async |client: Client, ()| {
        let guard = client.permit_semaphore(NAME).try_acquire().await.ok().flatten();
        guard.map(|guard| Box::new(move || guard.is_valid()) as Valid).into_iter().collect()
    };
    at_each_moment("permit", fill, take, nothing).await;

    let fill = async |_: &Client, other: &Client| {
        other.semaphore(NAME).set_if_absent(2, None).await.unwrap();
    };
    let take = async |client: Client, ()| {
        // What was taken is the caller's to give back, and the client is closed.
        let taken = client.semaphore(NAME).try_acquire(1).await;
        TAKEN.store(matches!(taken, Ok(true)), Ordering::SeqCst);
        Vec::new()
    };
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let all_but_what_was_taken =
        |state: &LockState| state.value == Some(if TAKEN.load(Ordering::SeqCst) { 1 } else { 2 });
    at_each_moment("bare-permit", fill, take, all_but_what_was_taken).await;
}
