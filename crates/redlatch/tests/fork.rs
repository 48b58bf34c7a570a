//! What is inherited over `fork()`, with real processes. They are a test program of their own, because a child has copies of all
//! descriptors of its parent, and connections of other tests would outlive their ends.

use std::{
    cell::RefCell,
    future::{Future, IntoFuture},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redlatch::{
    Client, ErrorKind, LossReason, Unlocked, blocking,
    store::{Call, Listener, RunFuture, Store, SubscribeFuture},
};
use redlatch_testkit::server::RedisServer;

/// From when on a child hangs. None waits for anything that takes longer than a round trip.
const HANGS_AFTER: Duration = Duration::from_secs(120);
const FORKS: usize = 1_000;

/// A child inherits what tests that run at the same time have open.
fn alone() -> impl Drop {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

macro_rules! must {
    ($what:expr) => {
        if !$what {
            return Err(format!("line {}: {}", line!(), stringify!($what)));
        }
    };
}

/// What a child found.
type Verdict = Result<(), String>;

/// Forks, has the child do that, and reports what it found. The child has one thread: this one.
fn in_child(work: impl FnOnce() -> Verdict) -> Verdict {
    let dir = tempfile::tempdir().unwrap();
    let verdict = dir.path().join("verdict");
    match fork::fork().unwrap() {
        fork::Fork::Child => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let outcome = outcome.unwrap_or_else(|_| Err("the child panicked".into()));
            let text = outcome.err().unwrap_or_else(|| "good".into());
            std::fs::write(verdict, text).unwrap();
            std::process::exit(0)
        }
        fork::Fork::Parent(pid) => {
            let began = Instant::now();
            while fork::waitpid_nohang(pid).unwrap().is_none() {
                if began.elapsed() > HANGS_AFTER {
                    let pid = rustix::process::Pid::from_raw(pid).unwrap();
                    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                    fork::waitpid(pid.as_raw_nonzero().get()).unwrap();
                    return Err("the child hangs".into());
                }
                thread::sleep(Duration::from_millis(1));
            }
            match std::fs::read_to_string(verdict) {
                Ok(text) if text == "good" => Ok(()),
                Ok(text) => Err(text),
                Err(_) => Err("the child ended without a word".into()),
            }
        }
    }
}

fn client(server: &RedisServer) -> blocking::Client {
    blocking::Client::connect(&server.url()).unwrap()
}

/// The owner that the server has for a lock.
fn holder(server: &RedisServer, name: &str) -> Option<String> {
    match server.cmd(&["HKEYS", name]).unwrap() {
        redis::Value::Array(fields) => fields.first().map(|field| format!("{field:?}")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_childs_copy_of_a_guard_says_that_it_is_not_held() {
    let _alone = alone();
    let server = RedisServer::start().unwrap();
    let client = client(&server);
    let guard = client.lock("held").lock().unwrap();
    let set =
        blocking::MultiLock::new([client.lock("first"), client.lock("second")]).unwrap().lock().unwrap();
    let permits = client.permit_semaphore("permits");
    assert!(permits.set_if_absent(2).unwrap());
    let permit = permits.acquire().unwrap();
    let before = holder(&server, "held");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The parent keeps its own; only the child's memory is changed.
    let mut inherited = Some((guard, set, permit));
    in_child(|| {
        let (guard, set, permit) = inherited.take().unwrap();
        must!(!guard.is_valid());
        must!(guard.as_async().remaining() == Duration::ZERO);
        must!(guard.as_async().loss() == Some(LossReason::Forked));
        must!(guard.as_async().check().unwrap_err().kind() == ErrorKind::Forked);
        must!(guard.as_async().hold_count() == 0);
        must!(guard.as_async().loss_token().is_cancelled());
        must!(!set.is_valid());
        must!(set.as_async().remaining() == Duration::ZERO);
        must!(set.as_async().check().unwrap_err().kind() == ErrorKind::Forked);
        must!(!permit.is_valid());
        must!(permit.as_async().remaining() == Duration::ZERO);
        must!(format!("{guard:?}").contains("valid: false"));
        must!(guard.extend(Duration::from_secs(60)).unwrap_err().kind() == ErrorKind::Forked);
        must!(
            runtime().block_on(guard.as_async().reenter()).map(|_| ()).unwrap_err().kind()
                == ErrorKind::Forked
        );
        must!(runtime().block_on(guard.as_async().lost()) == LossReason::Forked);
        let work = runtime().block_on(guard.as_async().protect(async { 1 }));
        must!(work.unwrap_err().kind() == ErrorKind::Forked);
        must!(guard.unlock().unwrap_err().kind() == ErrorKind::Forked);
        must!(set.unlock().unwrap_err().kind() == ErrorKind::Forked);
        drop(permit);
        Ok(())
    })
    .unwrap();
    assert_eq!(holder(&server, "held"), before);
    assert!(holder(&server, "second").is_some());
    let (guard, set, permit) = inherited.unwrap();
    assert!(guard.is_valid() && set.is_valid() && permit.is_valid());
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    set.unlock().unwrap().into_result().unwrap();
    permit.release().unwrap();
}

#[test]
fn a_child_locks_with_what_it_inherited_as_another_client() {
    let _alone = alone();
    let server = RedisServer::start().unwrap();
    let client = client(&server);
    let (held, free) = (client.lock("held"), client.lock("free"));
    let guard = held.lock().unwrap();
    let (parent, owner) = (client.id().to_owned(), client.owner());
    let child = || {
        must!(client.id() != parent);
        must!(held.try_lock().unwrap().is_none());
        must!(!held.is_held_by_current_thread().unwrap());
        let guard = free.lock().unwrap();
        must!(guard.is_valid());
        must!(guard.as_async().owner().to_text().starts_with(client.id()));
        // The parent's owner would enter the parent's lock.
        must!(held.acquire().owner(&owner).run().unwrap_err().kind() == ErrorKind::Forked);
        guard.unlock().unwrap();
        client.semaphore("permits").set_if_absent(1, None).unwrap();
        must!(client.semaphore("permits").try_acquire(1).unwrap());
        let set = blocking::MultiLock::new([client.lock("member")]).unwrap();
        must!(set.try_lock().unwrap().is_some());
        Ok(())
    };
    in_child(child).unwrap();
    // And one with a runtime of its own.
    in_child(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let guard = client.as_async().lock("free").lock().await.unwrap();
            must!(guard.is_valid());
            guard.unlock().await.unwrap();
            Ok(())
        })
    })
    .unwrap();
    assert!(guard.is_valid());
    guard.unlock().unwrap();
}

/// The child took up the hold of its parent's owner, and both were valid; its release ended the parent's.
#[test]
fn a_child_takes_up_and_releases_nothing_of_an_owner_that_it_inherited() {
    let _alone = alone();
    let server = RedisServer::start().unwrap();
    let inside = tokio::runtime::Runtime::new().unwrap();
    let client = inside.block_on(Client::connect(&server.url())).unwrap();
    let (lock, owner) = (client.lock("x"), client.owner());
    let guard = inside.block_on(lock.acquire().owner(&owner).into_future()).unwrap().unwrap();
    in_child(|| {
        let kind = |error: redlatch::Error| error.kind();
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let adopted = lock.adopt(&owner, redlatch::Lease::Renewed).await.map(|guard| guard.is_some());
            must!(adopted.map_err(kind) == Err(ErrorKind::Forked));
            must!(lock.release(&owner).await.map_err(kind) == Err(ErrorKind::Forked));
            let renewed = lock.renew(&owner, Duration::from_secs(60)).await;
            must!(renewed.map_err(kind) == Err(ErrorKind::Forked));
            // As text, too: the parent does not know that it was written out here, and its release would take what is entered along.
            let text: redlatch::Owner = owner.to_text().parse().unwrap();
            let entered = lock.acquire().owner(&text).await.map(|guard| guard.is_some());
            must!(entered.map_err(kind) == Err(ErrorKind::Forked));
            Ok(())
        })
    })
    .unwrap();
    assert!(guard.is_valid());
    assert_eq!(inside.block_on(guard.unlock()).unwrap(), Unlocked::Released);
}

/// Notes that it was called, in this process.
#[derive(Default)]
struct Called(AtomicBool);

impl std::task::Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The child's first look at the guard of a set rang a bell of the parent's: it took that one's mutex, which a thread of the parent may have
/// locked at the fork, and called wakers of runtimes that are not there.
#[test]
fn a_child_that_looks_at_the_guard_of_a_set_wakes_no_task_of_its_parent() {
    let _alone = alone();
    let clients =
        ["a", "b", "c"].map(|name| blocking::Client::connect_lazy(&format!("memory:fork-{name}")).unwrap());
    let multi = blocking::MultiLock::new([clients[0].lock("first"), clients[1].lock("second")]).unwrap();
    let quorum = blocking::QuorumLock::new(clients.iter().map(|client| client.lock("q"))).unwrap();
    let (multi, quorum) = (multi.lock().unwrap(), quorum.lock().unwrap());
    let called = Arc::new(Called::default());
    let waker = std::task::Waker::from(called.clone());
    let mut context = std::task::Context::from_waker(&waker);
    let mut lost: Vec<std::pin::Pin<Box<dyn Future<Output = redlatch::LostMember>>>> =
        vec![Box::pin(multi.as_async().lost()), Box::pin(quorum.as_async().lost())];
    // What polls several futures wakes itself to go on with them.
    while {
        called.0.store(false, Ordering::SeqCst);
        assert!(lost.iter_mut().all(|lost| lost.as_mut().poll(&mut context).is_pending()));
        called.0.load(Ordering::SeqCst)
    } {}
    in_child(|| {
        must!(!multi.is_valid() && !quorum.is_valid());
        must!(multi.as_async().remaining().is_zero() && quorum.as_async().remaining().is_zero());
        let reason = |lost: Option<redlatch::LostMember>| lost.map(|lost| lost.reason);
        must!(reason(multi.as_async().loss()) == Some(LossReason::Forked));
        must!(reason(quorum.as_async().loss()) == Some(LossReason::Forked));
        must!(!called.0.load(Ordering::SeqCst));
        Ok(())
    })
    .unwrap();
    assert!(multi.is_valid() && quorum.is_valid());
}

/// The child entered the parent's hold through a client of its own. The parent's release took its hold along, and another one
/// got the lock beside it.
#[test]
fn a_new_client_of_a_child_takes_up_nothing_of_an_owner_that_was_inherited() {
    let _alone = alone();
    let server = RedisServer::start().unwrap();
    let inside = tokio::runtime::Runtime::new().unwrap();
    let client = inside.block_on(Client::connect(&server.url())).unwrap();
    let (lock, owner) = (client.lock("x"), client.owner());
    let guard = inside.block_on(lock.acquire().owner(&owner).into_future()).unwrap().unwrap();
    in_child(|| {
        let kind = |error: redlatch::Error| error.kind();
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let lock = Client::connect(&server.url()).await.unwrap().lock("x");
            for owner in [&owner, guard.owner()] {
                let entered = lock.acquire().owner(owner).await.map(|guard| guard.is_some());
                must!(entered.map_err(kind) == Err(ErrorKind::Forked));
                let adopted = lock.adopt(owner, redlatch::Lease::Renewed).await.map(|guard| guard.is_some());
                must!(adopted.map_err(kind) == Err(ErrorKind::Forked));
                must!(lock.release(owner).await.map_err(kind) == Err(ErrorKind::Forked));
                let renewed = lock.renew(owner, Duration::from_secs(60)).await;
                must!(renewed.map_err(kind) == Err(ErrorKind::Forked));
            }
            Ok(())
        })
    })
    .unwrap();
    assert!(guard.is_valid());
    assert_eq!(inside.block_on(guard.unlock()).unwrap(), Unlocked::Released);
}

/// The child made a lesser quorum of the same name, and a majority of each could hold it.
#[test]
fn a_child_uses_no_quorum_that_it_inherited_beside_another_one_of_its_own() {
    let _alone = alone();
    // Nothing listens there, and nothing is sent.
    let clients =
        [1, 2, 3].map(|port| blocking::Client::connect_lazy(&format!("redis://127.0.0.1:{port}")).unwrap());
    let members = |count: usize| clients.iter().take(count).map(|client| client.lock("q"));
    let inherited = blocking::QuorumLock::new(members(3)).unwrap();
    in_child(|| {
        let _lesser = blocking::QuorumLock::new(members(1)).map_err(|error| error.to_string())?;
        must!(inherited.try_lock().unwrap_err().kind() == ErrorKind::InvalidOption);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_grandchild_locks_too() {
    let _alone = alone();
    let server = RedisServer::start().unwrap();
    let client = client(&server);
    let lock = client.lock("deep");
    fn descend(client: &blocking::Client, lock: &blocking::Lock, depth: u32) -> Verdict {
        let guard = lock.lock().unwrap();
        let id = client.id().to_owned();
        if depth > 0 {
            in_child(|| {
                must!(guard.as_async().check().unwrap_err().kind() == ErrorKind::Forked);
                must!(client.id() != id);
                must!(lock.try_lock().unwrap().is_none());
                descend(client, &client.lock(format!("deep-{depth}")), depth - 1)
            })?;
        }
        must!(guard.is_valid());
        guard.unlock().unwrap();
        Ok(())
    }
    // More than one generation's worth of places for successors.
    descend(&client, &lock, 12).unwrap();
}

/// In the middle of three generations another thread uses the library, and not the one that forks. What it has found was taken for the last
/// generation's as well, whose copies of guards were valid beside the ones that they were copied from.
#[test]
fn a_grandchild_whose_parents_thread_did_nothing_is_no_copy_of_it() {
    let _alone = alone();
    let server = RedisServer::start().unwrap();
    let client = client(&server);
    let first = client.lock("first").lock().unwrap();
    let mut children = Some(server.url());
    in_child(|| {
        let url = children.take().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let elsewhere = thread::spawn(move || {
            let held = runtime.block_on(async {
                Client::connect(&url).await.unwrap().lock("middle").lock().await.unwrap()
            });
            (runtime, held)
        });
        let (runtime, held) = elsewhere.join().unwrap();
        in_child(|| {
            must!(!held.is_valid());
            must!(held.loss() == Some(LossReason::Forked));
            Ok(())
        })?;
        must!(held.is_valid());
        must!(runtime.block_on(held.unlock()).unwrap() == Unlocked::Released);
        Ok(())
    })
    .unwrap();
    assert!(first.is_valid());
    first.unlock().unwrap();
}

/// Threads that keep the locks inside of the client busy, as far as they can.
fn busy(client: &blocking::Client, stop: &Arc<AtomicBool>) -> Vec<thread::JoinHandle<()>> {
    (0..4)
        .map(|n| {
            let (client, stop) = (client.clone(), stop.clone());
            thread::spawn(move || {
                let own = client.lock(format!("own-{n}"));
                let shared = client.lock("shared");
                while !stop.load(Ordering::Relaxed) {
                    drop(own.lock().unwrap());
                    // Waiting subscribes, and passing on wakes.
                    if let Some(guard) = shared.lock_for(Duration::from_secs(60)).unwrap() {
                        guard.unlock().unwrap();
                    }
                }
            })
        })
        .collect()
}

#[test]
fn a_thousand_children_of_a_busy_parent_lock_and_release_nothing_of_it() {
    let _alone = alone();
    let server = RedisServer::start().unwrap();
    let client = client(&server);
    let (kept, taken) = (client.lock("kept"), client.lock("taken"));
    let guard = kept.lock().unwrap();
    let before = holder(&server, "kept").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let threads = busy(&client, &stop);
    for n in 0..FORKS {
        let inherited = &guard;
        let outcome = in_child(|| {
            must!(inherited.as_async().check().unwrap_err().kind() == ErrorKind::Forked);
            must!(kept.try_lock().unwrap().is_none());
            let guard = taken.try_lock().unwrap();
            must!(guard.as_ref().is_some_and(|guard| guard.is_valid()));
            guard.unwrap().unlock().unwrap();
            Ok(())
        });
        assert_eq!(outcome, Ok(()), "child {n}");
        assert_eq!(holder(&server, "kept").as_ref(), Some(&before), "child {n}");
        assert_eq!(holder(&server, "taken"), None, "child {n}");
        assert!(guard.is_valid());
    }
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    guard.unlock().unwrap();
}

/// A process that ends right after it has dropped what it had: 9 of 24 such locks stayed until their leases ended.
#[test]
fn a_guard_that_is_dropped_right_before_the_process_ends_is_released() {
    let _alone = alone();
    let server = RedisServer::start().unwrap();
    let url = server.url();
    for n in 0..60 {
        let name = format!("end-{n}");
        match fork::fork().unwrap() {
            fork::Fork::Child => {
                let client = blocking::Client::connect(&url).unwrap();
                let guard = client.lock(name.as_str()).lock().unwrap();
                match n % 3 {
                    0 => drop((guard, client)),
                    1 => drop((client, guard)),
                    _ => {
                        let second = client.lock(name.clone() + "-second").lock().unwrap();
                        drop(client);
                        drop(second);
                        drop(guard);
                    }
                }
                std::process::exit(0)
            }
            fork::Fork::Parent(pid) => assert_eq!(fork::waitpid(pid).unwrap(), 0),
        }
        assert_eq!(holder(&server, &name), None, "round {n}");
        assert_eq!(holder(&server, &format!("{name}-second")), None, "round {n}");
    }
}

thread_local! {
    static KEPT: RefCell<Option<(blocking::Guard, blocking::Client)>> = const { RefCell::new(None) };
}

/// The runtime's own values of the thread are gone by the time that these go.
#[test]
fn a_guard_in_a_thread_local_that_goes_after_the_runtimes_is_released_before_the_process_ends() {
    let _alone = alone();
    let server = RedisServer::start().unwrap();
    for n in 0..20 {
        let (url, name) = (server.url(), format!("kept-{n}"));
        let ended = thread::spawn(move || {
            // First come, last dropped.
            KEPT.with_borrow(|kept| assert!(kept.is_none()));
            match fork::fork().unwrap() {
                fork::Fork::Child => {
                    let client = blocking::Client::connect(&url).unwrap();
                    let guard = client.lock(name).lock().unwrap();
                    KEPT.set(Some((guard, client)));
                    std::process::exit(0)
                }
                fork::Fork::Parent(pid) => fork::waitpid(pid).unwrap(),
            }
        });
        assert_eq!(ended.join().unwrap(), 0);
        assert_eq!(holder(&server, &format!("kept-{n}")), None, "round {n}");
    }
}

#[test]
fn a_child_has_an_engine_in_memory_of_its_own() {
    let _alone = alone();
    for url in ["memory:", "memory:shared"] {
        let client = blocking::Client::connect(url).unwrap();
        let lock = client.lock("x");
        let guard = lock.lock().unwrap();
        in_child(|| {
            must!(guard.as_async().check().unwrap_err().kind() == ErrorKind::Forked);
            let own = lock.try_lock().unwrap();
            must!(own.is_some());
            let same = blocking::Client::connect(url).unwrap();
            must!(same.lock("x").try_lock().unwrap().is_none() == (url == "memory:shared"));
            Ok(())
        })
        .unwrap();
        assert!(guard.is_valid());
    }
}

#[test]
fn a_client_that_was_shut_down_stays_so_in_a_child() {
    let _alone = alone();
    let client = blocking::Client::connect("memory:").unwrap();
    let lock = client.lock("x");
    client.shutdown(Duration::from_secs(10)).unwrap();
    in_child(|| {
        must!(lock.try_lock().unwrap_err().kind() == ErrorKind::Closed);
        Ok(())
    })
    .unwrap();
}

/// A store that is never asked for anything, and tells when it goes.
struct Custom(Arc<AtomicBool>);

impl Store for Custom {
    fn run(&self, _: Call) -> RunFuture {
        unreachable!("nothing is asked")
    }

    fn subscribe(&self, _: Arc<[u8]>, _: Listener) -> SubscribeFuture {
        unreachable!("nothing is asked")
    }

    fn describe(&self) -> String {
        "custom".into()
    }

    fn close(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Drop for Custom {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_child_neither_closes_nor_drops_the_store_that_it_inherited() {
    let _alone = alone();
    let gone = Arc::new(AtomicBool::new(false));
    let custom = Client::builder().custom_store(Arc::new(Custom(gone.clone())));
    let client = blocking::Client::build(custom).unwrap();
    let mut handles = Some((client.lock("x"), client.semaphore("y"), client));
    in_child(|| {
        drop(handles.take());
        // The parent's thread is not here, so nobody else can have the last handle.
        must!(!gone.load(Ordering::SeqCst));
        Ok(())
    })
    .unwrap();
    drop(handles);
    assert!(gone.load(Ordering::SeqCst));
}

#[test]
fn a_client_of_a_custom_store_says_that_it_cannot_be_made_anew() {
    let _alone = alone();
    let custom = Client::builder().custom_store(Arc::new(Custom(Arc::default())));
    let client = blocking::Client::build(custom).unwrap();
    in_child(|| {
        must!(client.lock("x").try_lock().unwrap_err().kind() == ErrorKind::Forked);
        must!(client.as_async().stats().names == 0);
        Ok(())
    })
    .unwrap();
}

/// Set for the process that a test starts in a namespace of its own.
const IN_NAMESPACE: &str = "REDLATCH_TEST_IN_NAMESPACE";

/// The first process of a namespace forks the first one of another: both have the number 1, and nothing shows `/proc`. The child's copy of a guard said that it
/// was valid until its deadline, while another process held the lock.
#[test]
fn a_child_with_the_number_of_its_parent_has_no_copy_of_a_hold() {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        assert_eq!(std::process::id(), 1);
        let client = blocking::Client::connect("memory:numbers").unwrap();
        let guard = client.lock("held").lock().unwrap();
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWPID).unwrap();
        let verdict = in_child(|| {
            must!(std::process::id() == 1);
            must!(!guard.is_valid());
            must!(guard.as_async().loss() == Some(LossReason::Forked));
            // So is one that a thread of the child's own looks at.
            let looked = thread::scope(|scope| scope.spawn(|| guard.is_valid()).join().unwrap());
            must!(!looked);
            std::mem::forget(guard);
            Ok(())
        });
        assert_eq!(verdict, Ok(()));
        return;
    }
    let _alone = alone();
    let words = [&["--mount", "--pid", "--fork"][..], &["--map-root-user", "--mount", "--pid", "--fork"]];
    let may = |words: &&&[&str]| {
        std::process::Command::new("unshare").args(**words).arg("true").status().unwrap().success()
    };
    let words = words.iter().find(may).expect("this system allows nobody a namespace of processes");
    let test = "a_child_with_the_number_of_its_parent_has_no_copy_of_a_hold";
    let output = std::process::Command::new("unshare")
        .args(*words)
        .args(["sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(IN_NAMESPACE, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}
