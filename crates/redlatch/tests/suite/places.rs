//! Where threads may block, and what a caller's runtime need not have.

use std::{
    cell::RefCell,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use redlatch::{Client, ErrorKind, blocking, scripts};
use redlatch_testkit::{
    proxy::{Action, Gate, Match, Proxy},
    server::RedisServer,
    topology::{RedisCluster, SentinelSet},
};
use tokio::runtime::{Builder, Runtime};

use crate::fixture::{IN_VAIN, ms};

fn current() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn several() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Everything that blocks: connecting, locking, waiting in vain, releasing, ending.
fn a_life(url: &str) {
    let client = blocking::Client::connect(url).unwrap();
    let lock = client.lock("place");
    let guard = lock.lock().unwrap();
    let other = blocking::Client::connect_lazy(url).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| assert!(other.lock("place").lock_for(IN_VAIN).unwrap().is_none()));
    });
    guard.unlock().unwrap();
    client.shutdown(Duration::from_secs(20)).unwrap();
}

#[test]
fn threads_may_block_where_a_runtime_lets_them() {
    let server = RedisServer::start().unwrap();
    for runtime in [current(), several()] {
        let url = server.url();
        runtime.block_on(async { tokio::task::spawn_blocking(move || a_life(&url)).await.unwrap() });
        // Knowing a runtime is not being polled by it.
        let _inside = runtime.enter();
        a_life(&server.url());
    }
    let (runtime, url) = (several(), server.url());
    runtime.block_on(async {
        let in_root = url.clone();
        tokio::task::block_in_place(|| a_life(&in_root));
        tokio::spawn(async move { tokio::task::block_in_place(|| a_life(&url)) }).await.unwrap();
    });
}

/// In code that is polled nothing may block, and asking does not use up what the task may do.
#[test]
fn code_that_is_polled_may_not_block_wherever_it_is() {
    fn refused(lock: &blocking::Lock) {
        for _ in 0..3 {
            let error = lock.try_lock().map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InsideRuntime, "{error}");
        }
        assert!(tokio::task::coop::has_budget_remaining());
    }
    let client = blocking::Client::connect("memory:").unwrap();
    let lock = client.lock("x");
    for runtime in [current(), several()] {
        let lock = lock.clone();
        runtime.block_on(async move {
            refused(&lock);
            let again = lock.clone();
            tokio::spawn(async move {
                refused(&again);
                tokio::task::yield_now().await;
                refused(&again);
                tokio::select! {
                    biased;
                    () = async { refused(&again) } => {}
                    () = std::future::pending() => {}
                }
            })
            .await
            .unwrap();
            let local = tokio::task::LocalSet::new();
            local
                .run_until(async { tokio::task::spawn_local(async move { refused(&lock) }).await.unwrap() })
                .await;
        });
    }
    // A task that may do nothing more before it gives way is polled all the same.
    current().block_on(async {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        (0..1_000).for_each(|n| tell.send(n).unwrap());
        while futures_util::poll!(std::pin::pin!(told.recv())).is_ready() {}
        assert_eq!(lock.try_lock().map(|_| ()).unwrap_err().kind(), ErrorKind::InsideRuntime);
    });
    assert!(lock.try_lock().unwrap().is_some());
}

/// It had begun before it was refused, and the hold that no guard had any more lasted for as long as it says.
#[test]
fn a_detach_for_that_is_refused_gives_the_lock_back() {
    let server = RedisServer::start().unwrap();
    let client = blocking::Client::connect(&server.url()).unwrap();
    let guard = client.lock("x").lock().unwrap();
    let error = current().block_on(async { guard.detach_for(Duration::from_secs(600)) }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InsideRuntime, "{error}");
    let other = blocking::Client::connect(&server.url()).unwrap();
    assert!(other.lock("x").lock_for(Duration::from_secs(25)).unwrap().is_some());
}

/// What is dropped after everything else of its thread.
struct Last {
    lock: blocking::Lock,
    guard: Option<blocking::Guard>,
    told: mpsc::Sender<Vec<ErrorKind>>,
}

impl Drop for Last {
    fn drop(&mut self) {
        let mut kinds = Vec::new();
        kinds.extend(self.lock.try_lock().map(|_| ()).err().map(|error| error.kind()));
        kinds.extend(self.lock.is_locked().map(|_| ()).err().map(|error| error.kind()));
        drop(self.guard.take());
        self.told.send(kinds).unwrap();
    }
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

#[test]
fn a_thread_that_ends_does_not_end_the_process() {
    let server = RedisServer::start().unwrap();
    let client = blocking::Client::connect(&server.url()).unwrap();
    let (tell, told) = mpsc::channel();
    let lock = client.lock("last");
    thread::spawn(move || {
        // First come, last dropped.
        LAST.with_borrow_mut(|last| *last = None);
        let guard = lock.lock().unwrap();
        LAST.with_borrow_mut(|last| {
            *last = Some(Last { lock: lock.clone(), guard: Some(guard), told: tell })
        });
    })
    .join()
    .unwrap();
    let kinds = told.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(kinds, [ErrorKind::Unsupported; 2]);
    // The guard was released; a waiter gets the lock.
    assert!(client.lock("last").lock_for(Duration::from_secs(20)).unwrap().is_some());
}

/// The last client of a process, which measures how long its going takes.
struct Lasting {
    held: Option<(blocking::Guard, blocking::Client)>,
    told: mpsc::Sender<Duration>,
}

impl Drop for Lasting {
    fn drop(&mut self) {
        let began = Instant::now();
        drop(self.held.take());
        self.told.send(began.elapsed()).unwrap();
    }
}

thread_local! {
    static LASTING: RefCell<Option<Lasting>> = const { RefCell::new(None) };
}

/// What a thread stored before it came to know the runtime goes after that one's own values, and nothing waited for its release.
#[test]
fn the_last_client_waits_for_a_release_that_is_on_its_way_though_the_thread_has_no_runtime_any_more() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let gate = Gate::new();
    let release = Match::script().arg_contains(scripts::RELEASE.sha1());
    proxy.rule(release, Action::HoldReplyUntilReleased(gate.clone()));
    let wait = |is_first: bool| {
        let (url, (tell, told)) = (proxy.url(), mpsc::channel());
        thread::spawn(move || {
            if is_first {
                // First come, last dropped.
                LASTING.with_borrow(|lasting| assert!(lasting.is_none()));
            }
            let client = blocking::Client::connect(&url).unwrap();
            let guard = client.lock(format!("lasting-{is_first}")).lock().unwrap();
            LASTING.set(Some(Lasting { held: Some((guard, client)), told: tell }));
        })
        .join()
        .unwrap();
        told.recv_timeout(Duration::from_secs(30)).unwrap()
    };
    for is_first in [true, false] {
        let waited = wait(is_first);
        assert!(waited >= ms(250), "{waited:?}, with the thread-local first: {is_first}");
    }
    gate.release();
}

/// A runtime whose timers stand still, or that has none, is enough: nothing here counts on them.
#[test]
fn a_runtime_without_timers_is_enough() {
    let server = RedisServer::start().unwrap();
    let sentinels = SentinelSet::start().unwrap();
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let runtime = Builder::new_current_thread().enable_io().build().unwrap();
    for url in [server.url(), sentinels.url(), cluster.url(), server.unix_url()] {
        runtime.block_on(async {
            let client = Client::connect(&url).await.unwrap();
            let other = Client::connect_lazy(&url).unwrap();
            let guard = client.lock("timeless").lock().await.unwrap();
            assert!(other.lock("timeless").lock_for(IN_VAIN).await.unwrap().is_none());
            guard.unlock().await.unwrap();
            assert_eq!(client.shutdown(Duration::from_secs(20)).await.failed.len(), 0);
        });
    }
    // The time for connecting ends there as well.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let error = runtime.block_on(Client::builder().url(url).connect_timeout(ms(50)).connect()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}
