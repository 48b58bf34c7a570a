//! The promises of the multi-lock: all members or none, no ring of waiters, loss of one is loss of all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use redlatch::{AnyGuard, Client, ErrorKind, Lease, LossReason, Member, MultiLock, Unlocked, Wait, blocking};

use super::blocking::aside;
use crate::fixture::{Fixture, IN_VAIN, LATE, RENEWED, awake, ms, renewed, soon};

fn names(on: &Fixture, parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| on.name(part)).collect()
}

fn multi(client: &Client, names: &[String]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| client.lock(name.as_str()))).unwrap()
}

async fn are_locked(client: &Client, names: &[String]) -> Vec<bool> {
    let mut locked = Vec::new();
    for name in names {
        locked.push(client.lock(name.as_str()).is_locked().await.unwrap());
    }
    locked
}

async fn until_locked<const N: usize>(what: &str, client: &Client, names: &[String], wanted: [bool; N]) {
    soon(what, async {
        while are_locked(client, names).await != wanted {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

pub(crate) async fn a_multi_lock_holds_all_members_or_none(on: Fixture) {
    let (client, other) = (on.client().await, on.client().await);
    let names = names(&on, &["c", "a", "b"]);
    let set = multi(&client, &names);
    for busy in 0..3 {
        // By another process, and by a task of this one, of which the client knows by itself.
        for holder in [&other, &client] {
            let held = holder.lock(names[busy].as_str()).lock().await.unwrap();
            assert!(set.try_lock().await.unwrap().is_none());
            let expected: Vec<bool> = (0..3).map(|at| at == busy).collect();
            assert_eq!(are_locked(&other, &names).await, expected, "nothing but what was held is held");
            held.unlock().await.unwrap();
        }
    }
    let guard = set.try_lock().await.unwrap().expect("all are free");
    assert!(guard.is_valid() && guard.remaining() > ms(20_000));
    assert_eq!(are_locked(&other, &names).await, [true; 3]);
    assert_eq!(guard.members().iter().map(|held| held.name().to_string()).collect::<Vec<_>>(), names);
    assert!(set.try_lock().await.unwrap().is_none(), "every acquire has an owner of its own");
    assert!(other.lock(names[1].as_str()).try_lock().await.unwrap().is_none());
    let report = guard.unlock().await;
    assert!(report.is_clean(), "{report:?}");
    assert!(report.members.iter().all(|(_, outcome)| *outcome.as_ref().unwrap() == Unlocked::Released));
    assert_eq!(are_locked(&other, &names).await, [false; 3]);
    drop(set.lock().await.unwrap());
    until_locked("release on drop", &other, &names, [false; 3]).await;
}

pub(crate) async fn members_may_be_of_any_kind_and_client(on: Fixture) {
    let (client, second, other) = (on.client().await, on.client().await, on.client().await);
    let names = names(
        &on,
        &["plain", "fair", "fenced", "spin", "once", "fair-once", "second", "nested", "reads", "writes"],
    );
    let nested = MultiLock::new([second.lock(names[7].as_str())]).unwrap();
    let set = MultiLock::new([
        Member::from(client.lock(names[0].as_str())),
        Member::from(client.fair_lock(names[1].as_str())),
        Member::from(client.fenced_lock(names[2].as_str())),
        Member::from(client.spin_lock(names[3].as_str())),
        Member::from(client.non_reentrant_lock(names[4].as_str())),
        Member::from(client.non_reentrant_fair_lock(names[5].as_str())),
        Member::from(second.lock(names[6].as_str())),
        Member::from(nested),
        Member::from(client.read_write_lock(names[8].as_str()).read()),
        Member::from(client.read_write_lock(names[9].as_str()).write()),
    ])
    .unwrap();
    assert_eq!(set.names().map(ToString::to_string).collect::<Vec<_>>(), names);
    let guard = set.lock().await.unwrap();
    assert_eq!(are_locked(&other, &names).await, [true; 10]);
    let tokens: Vec<_> = guard.tokens().collect();
    assert_eq!(tokens.iter().filter(|token| token.is_some()).count(), 1, "{tokens:?}");
    let first = tokens[2].expect("the fenced member draws a token");
    assert!(guard.unlock().await.is_clean());
    assert_eq!(are_locked(&other, &names).await, [false; 10]);
    for (at, name) in names.iter().enumerate() {
        // A read-write lock is kept busy by one of its own kind: on a plain hold it is refused.
        let held = if at < 8 {
            other.lock(name.as_str()).lock().await.unwrap()
        } else {
            other.read_write_lock(name.as_str()).write().lock().await.unwrap().into_guard()
        };
        assert!(set.try_lock().await.unwrap().is_none(), "{name} is busy");
        held.unlock().await.unwrap();
        until_locked("what was tried is free again", &other, &names, [false; 10]).await;
    }
    let guard = set.lock().await.unwrap();
    assert!(guard.tokens().nth(2).flatten() > Some(first));
    guard.unlock().await.into_result().unwrap();
    let guard = multi(&client, &names[..3]).acquire().fenced().await.unwrap().expect("all are free");
    assert!(guard.tokens().all(|token| token.is_some()));
    guard.unlock().await.into_result().unwrap();
}

pub(crate) async fn a_multi_lock_waits_for_the_member_that_is_busy(on: Fixture) {
    let (client, other) = (on.client().await, on.client().await);
    let names = names(&on, &["a", "b", "c", "d"]);
    let set = multi(&client, &names);
    let (first, second) = (
        other.lock(names[1].as_str()).lock().await.unwrap(),
        other.lock(names[3].as_str()).lock().await.unwrap(),
    );
    let waiting = tokio::spawn(async move { set.lock().await.unwrap() });
    // What a try has got it gives back, which takes a moment. One that kept it would keep it for good.
    tokio::time::sleep(ms(100)).await;
    until_locked("a waiter holds nothing", &other, &names, [false, true, false, true]).await;
    first.unlock().await.unwrap();
    tokio::time::sleep(ms(100)).await;
    until_locked("a waiter holds nothing", &other, &names, [false, false, false, true]).await;
    second.unlock().await.unwrap();
    let guard = soon("the grant", waiting).await.unwrap();
    assert_eq!(are_locked(&other, &names).await, [true; 4]);
    guard.unlock().await.into_result().unwrap();
    let held = other.lock(names[2].as_str()).lock().await.unwrap();
    let start = Instant::now();
    assert!(multi(&client, &names).lock_for(IN_VAIN).await.unwrap().is_none());
    assert!(start.elapsed() >= IN_VAIN - ms(5), "{:?}", start.elapsed());
    held.unlock().await.unwrap();
    until_locked("a wait in vain leaves nothing", &other, &names, [false; 4]).await;
}

pub(crate) async fn losing_one_member_loses_the_multi_lock(on: Fixture) {
    let (client, other) = (on.brisk(RENEWED).await, on.client().await);
    let names = names(&on, &["a", "b", "c"]);
    let set = multi(&client, &names);
    let guard = set.lock().await.unwrap();
    let token = guard.loss_token();
    // Of the member that has least left there is more only when it was renewed, so every one is.
    renewed(1, async || {
        let mut least = RENEWED;
        for name in &names {
            let left = other.lock(name.as_str()).remaining_ttl().await.unwrap();
            least = least.min(left.expect("it is held"));
        }
        least
    })
    .await;
    assert!(guard.is_valid() && guard.loss().is_none());
    guard.check().unwrap();
    assert!(other.lock(names[1].as_str()).force_unlock().await.unwrap());
    let lost = soon("the notice", guard.lost()).await;
    let forced = LossReason::Forced { by: other.id().to_owned(), reason: None };
    assert_eq!((lost.name.to_string(), lost.reason.clone()), (names[1].clone(), forced));
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert_eq!(guard.loss(), Some(lost));
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    soon("the token", token.cancelled()).await;
    assert_eq!(guard.protect(std::future::pending::<()>()).await.unwrap_err().kind(), ErrorKind::Lost);
    tokio::time::sleep(ms(1_200)).await;
    assert_eq!(
        are_locked(&other, &names).await,
        [true, false, true],
        "the others are kept until the guard goes"
    );
    let report = guard.unlock().await;
    assert!(!report.is_clean());
    assert!(
        matches!(report.members[1].1, Ok(Unlocked::AlreadyLost(LossReason::Forced { .. }))),
        "{report:?}"
    );
    assert!(matches!(report.members[0].1, Ok(Unlocked::Released)), "{report:?}");
    assert_eq!(report.into_result().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(are_locked(&other, &names).await, [false; 3]);
    let outcome = set.acquire().with(async |_guard| 7).await.unwrap();
    assert_eq!(outcome, 7);
    assert_eq!(are_locked(&other, &names).await, [false; 3]);
}

/// M1 and M2: members have the lease that was asked for from the start, however many rounds it took.
pub(crate) async fn members_have_the_final_lease_from_the_start(on: Fixture) {
    let (client, other) = (on.client().await, on.client().await);
    let names = names(&on, &["a", "b", "c"]);
    let set = multi(&client, &names);
    let looks = Arc::new(AtomicUsize::new(0));
    let watch = {
        let looks = looks.clone();
        let (other, names, stop) = (other.clone(), names.clone(), Arc::new(AtomicBool::new(false)));
        let seen = stop.clone();
        let task = tokio::spawn(async move {
            let mut longest = ms(0);
            while !seen.load(Ordering::SeqCst) {
                for name in &names {
                    let state = other.inspect(name.as_str()).await.unwrap();
                    let ours = state.holders.iter().any(|holder| holder.owner.starts_with(client.id()));
                    if let Some(ttl) = state.ttl.filter(|_| ours) {
                        longest = longest.max(ttl);
                    }
                }
                looks.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
            longest
        });
        (task, stop)
    };
    for busy in [&names[0], &names[2], &names[1]] {
        let held = other.lock(busy.as_str()).lock().await.unwrap();
        let set = set.clone();
        let waiting = tokio::spawn(async move {
            set.acquire().wait(Wait::Forever).lease(Lease::Fixed(ms(3_000))).await.unwrap().unwrap()
        });
        tokio::time::sleep(ms(120)).await;
        held.unlock().await.unwrap();
        let guard = soon("the grant", waiting).await.unwrap();
        assert!(guard.remaining() <= ms(3_000), "{:?}", guard.remaining());
        for name in &names {
            let ttl = other.lock(name.as_str()).remaining_ttl().await.unwrap().unwrap();
            assert!(ttl <= ms(3_000) && ttl > ms(1_500), "{name}: {ttl:?}");
        }
        // Held until it has been seen from beginning to end of a look.
        let before = looks.load(Ordering::SeqCst);
        soon("two looks", async {
            while looks.load(Ordering::SeqCst) < before + 2 {
                tokio::time::sleep(ms(1)).await;
            }
        })
        .await;
        guard.unlock().await.into_result().unwrap();
    }
    watch.1.store(true, Ordering::SeqCst);
    let longest = watch.0.await.unwrap();
    assert!(longest > ms(0) && longest <= ms(3_000), "a member had {longest:?}");
    let guard = set.lock_with_lease(ms(250)).await.unwrap();
    let lost = soon("the end of the lease", guard.lost()).await;
    assert_eq!(lost.reason, LossReason::Expired);
    assert!(!guard.is_valid());
}

pub(crate) async fn an_owner_enters_a_multi_lock_again(on: Fixture) {
    let client = on.client().await;
    let names = names(&on, &["a", "b"]);
    let (set, me) = (multi(&client, &names), client.owner());
    let outer = set.acquire().owner(&me).await.unwrap().unwrap();
    assert!(set.is_held_by(&me).await.unwrap());
    let inner = set.acquire().owner(&me).wait(Wait::Forever).await.unwrap().unwrap();
    for name in &names {
        assert_eq!(client.lock(name.as_str()).hold_count(&me).await.unwrap(), 2);
    }
    let report = inner.unlock().await;
    assert!(report.is_clean(), "{report:?}");
    assert!(report.members.iter().all(|(_, outcome)| *outcome.as_ref().unwrap() == Unlocked::StillHeld(1)));
    assert!(outer.is_valid() && set.is_held_by(&me).await.unwrap());
    assert!(outer.unlock().await.is_clean());
    assert!(!set.is_held_by(&me).await.unwrap());
    // Held in part already: the rest is taken, and the part is entered.
    let part = client.lock(names[1].as_str()).acquire().owner(&me).await.unwrap().unwrap();
    let whole = set.acquire().owner(&me).await.unwrap().unwrap();
    whole.unlock().await.into_result().unwrap();
    assert!(part.is_valid());
    part.unlock().await.unwrap();
    let once = MultiLock::new([client.non_reentrant_lock(names[0].as_str())]).unwrap();
    let held = once.acquire().owner(&me).await.unwrap().unwrap();
    assert_eq!(once.acquire().owner(&me).await.unwrap_err().kind(), ErrorKind::AlreadyHeld);
    held.unlock().await.into_result().unwrap();
    // Again and again, with no pause between: a release is not taken for the next hold.
    for _ in 0..50 {
        set.acquire()
            .owner(&me)
            .wait(Wait::Forever)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .into_result()
            .unwrap();
    }
    for _ in 0..50 {
        let guard = set.acquire().owner(&me).wait(Wait::Forever).await.unwrap().unwrap();
        assert!(set.is_held_by(&me).await.unwrap());
        drop(guard);
    }
}

pub(crate) async fn a_detached_multi_lock_is_released_by_its_owner(on: Fixture) {
    let (client, other) = (on.client().await, on.client().await);
    let names = names(&on, &["b", "a"]);
    let held = multi(&client, &names).lock().await.unwrap().detach();
    assert_eq!(
        held.iter().map(|held| held.name.to_string()).collect::<Vec<_>>(),
        names,
        "in the order of listing"
    );
    assert_eq!(are_locked(&other, &names).await, [true; 2]);
    for held in &held {
        let lock = other.lock(&held.name);
        assert!(lock.renew(&held.owner, ms(60_000)).await.unwrap());
        assert_eq!(lock.release(&held.owner).await.unwrap(), Unlocked::Released);
    }
    assert_eq!(are_locked(&other, &names).await, [false; 2]);
    // What became of the guard gives nothing back.
    let minute = Lease::Fixed(ms(60_000));
    let held = multi(&client, &names).acquire().lease(minute).await.unwrap().unwrap().detach();
    assert!(held.iter().all(|held| held.remaining > ms(30_000)));
    assert_eq!(client.stats().background_jobs, 0);
    assert_eq!(are_locked(&other, &names).await, [true; 2]);
    for held in held {
        assert_eq!(other.lock(&held.name).release(&held.owner).await.unwrap(), Unlocked::Released);
    }
}

pub(crate) async fn sets_that_make_no_sense_are_refused(on: Fixture) {
    let (client, same, closed) = (on.client().await, on.client().await, on.client().await);
    let kind = |members: Vec<Member>| MultiLock::new(members).unwrap_err().kind();
    assert_eq!(kind(Vec::new()), ErrorKind::InvalidOption);
    let (x, y) = (on.name("x"), on.name("y"));
    let lock = |name: &str| Member::from(client.lock(name));
    assert_eq!(kind(vec![lock(&x), lock(&y), lock(&x)]), ErrorKind::InvalidOption);
    assert_eq!(kind(vec![lock(&x), Member::from(same.lock(x.as_str()))]), ErrorKind::InvalidOption);
    assert_eq!(kind(vec![lock(&x), Member::from(client.fair_lock(x.as_str()))]), ErrorKind::WrongLockKind);
    assert_eq!(kind(vec![lock("a}b")]), ErrorKind::InvalidName);
    assert_eq!(kind((0..1_001).map(|n| lock(&on.name(&n.to_string()))).collect()), ErrorKind::InvalidOption);
    let error = MultiLock::new([client.lock(x.as_str()), client.lock(x.as_str())]).unwrap_err();
    assert_eq!(error.lock().map(ToString::to_string), Some(x.clone()));
    let set = MultiLock::new([client.lock(x.as_str()), closed.lock(y.as_str())]).unwrap();
    let member = Member::from(closed.lock(y.as_str()));
    closed.shutdown(ms(1_000)).await;
    assert_eq!(kind(vec![member]), ErrorKind::Closed);
    assert_eq!(set.lock().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(!same.lock(x.as_str()).is_locked().await.unwrap(), "what was had is given back");
    let set = MultiLock::new([client.lock(x.as_str())]).unwrap();
    let error = set.lock_with_lease(std::time::Duration::from_micros(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    // A thousand fit into one request.
    let many = MultiLock::new((0..1_000).map(|n| lock(&on.name(&format!("many-{n}"))))).unwrap();
    let guard = many.try_lock().await.unwrap().expect("all are free");
    assert!(guard.unlock().await.is_clean());
}

/// Tasks of three clients take random sets of overlapping names, in random order of listing, as fast as they can.
pub(crate) async fn sets_that_overlap_never_meet_and_never_stop(on: Fixture) {
    const NAMES: usize = 5;
    const TASKS: usize = 12;
    const ROUNDS: usize = 25;
    let clients = [on.client().await, on.client().await, on.client().await];
    let names: Vec<String> = (0..NAMES).map(|n| on.name(&format!("n{n}"))).collect();
    let taken: Arc<Vec<AtomicBool>> = Arc::new((0..NAMES).map(|_| AtomicBool::new(false)).collect());
    let grants = Arc::new(AtomicUsize::new(0));
    let seed = std::env::var("REDLATCH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7_u64);
    println!("REDLATCH_SEED={seed}");
    let tasks = (0..TASKS).map(|task| {
        let (clients, names, taken, grants) = (clients.clone(), names.clone(), taken.clone(), grants.clone());
        tokio::spawn(async move {
            let mut state = seed * 1_000 + task as u64 + 1;
            let mut roll = |sides: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % sides as u64) as usize
            };
            for round in 0..ROUNDS {
                let mut members: Vec<usize> = (0..NAMES).collect();
                for at in (1..NAMES).rev() {
                    members.swap(at, roll(at + 1));
                }
                members.truncate(1 + roll(NAMES));
                let client = roll(clients.len());
                let handles = members.iter().enumerate().map(|(nth, at)| {
                    // Now and then a set is of two clients, and so needs several requests.
                    let by = if round % 3 == 0 && nth % 2 == 1 { client + 1 } else { client };
                    let client = &clients[by % clients.len()];
                    if *at == 0 {
                        Member::from(client.fair_lock(names[*at].as_str()))
                    } else {
                        Member::from(client.lock(names[*at].as_str()))
                    }
                });
                let guard = MultiLock::new(handles).unwrap().lock().await.unwrap();
                for at in &members {
                    assert!(!taken[*at].swap(true, Ordering::SeqCst), "{at} is held twice");
                }
                if roll(2) == 0 {
                    tokio::task::yield_now().await;
                }
                assert!(guard.is_valid());
                for at in &members {
                    taken[*at].store(false, Ordering::SeqCst);
                }
                grants.fetch_add(1, Ordering::SeqCst);
                if roll(2) == 0 { drop(guard) } else { assert!(guard.unlock().await.is_clean()) }
            }
        })
    });
    let all =
        tokio::time::timeout(std::time::Duration::from_secs(60), futures_util::future::join_all(tasks)).await;
    let all = all.unwrap_or_else(|_| panic!("stuck after {} grants", grants.load(Ordering::SeqCst)));
    all.into_iter().for_each(|task| task.unwrap());
    assert_eq!(grants.load(Ordering::SeqCst), TASKS * ROUNDS);
}

pub(crate) async fn a_dropped_wait_for_several_locks_leaves_nothing(on: Fixture) {
    let (client, other) = (on.client().await, on.client().await);
    let names = names(&on, &["a", "b", "c"]);
    let held = other.lock(names[1].as_str()).lock().await.unwrap();
    let set = multi(&client, &names);
    assert!(tokio::time::timeout(ms(80), set.lock()).await.is_err());
    held.unlock().await.unwrap();
    soon("quiet", async {
        while client.stats().names + client.stats().background_jobs > 0 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert_eq!(are_locked(&other, &names).await, [false; 3]);
    let guard = set.lock().await.unwrap();
    client.shutdown(ms(2_000)).await;
    assert_eq!(soon("the notice", guard.lost()).await.reason, LossReason::Shutdown);
    assert_eq!(are_locked(&other, &names).await, [false; 3]);
}

pub(crate) async fn threads_hold_several_locks_at_once(on: Fixture) {
    let (builder, x, y) = (on.builder(), on.name("x"), on.name("y"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let lock = |name: &str| client.lock(name);
        let set = blocking::MultiLock::new([lock(&x), lock(&y)]).unwrap();
        let outer = set.lock().unwrap();
        assert!(set.is_held_by_current_thread().unwrap());
        assert_eq!(lock(&y).hold_count().unwrap(), 1);
        let inner = set.try_lock().unwrap().expect("a thread enters what it holds");
        assert_eq!(lock(&x).hold_count().unwrap(), 2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!set.is_held_by_current_thread().unwrap());
                assert!(set.try_lock().unwrap().is_none());
                assert!(set.lock_for(IN_VAIN).unwrap().is_none());
            });
        });
        assert!(inner.unlock().unwrap().is_clean());
        outer.extend(ms(60_000)).unwrap();
        assert!(outer.is_valid() && outer.lost_within(ms(20)).unwrap().is_none());
        assert!(outer.as_async().remaining() > ms(40_000));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| set.lock().unwrap().unlock().unwrap().is_clean());
            std::thread::sleep(ms(50));
            assert!(outer.unlock().unwrap().is_clean());
            assert!(waiter.join().unwrap());
        });
        let short = set.acquire().lease(Lease::Fixed(ms(200))).run().unwrap().unwrap();
        assert_eq!(short.lost_within(ms(5_000)).unwrap().unwrap().reason, LossReason::Expired);
    })
    .await;
}

/// RedissonMultiLockTest.testLockUnlock
pub(crate) async fn test_lock_unlock(on: Fixture) {
    let (client, me) = (on.client().await, on.client().await.owner());
    let names = names(&on, &["lock1", "lock2", "lock3"]);
    let set = multi(&client, &names);
    let guard = set.acquire().owner(&me).wait(Wait::Forever).await.unwrap().unwrap();
    assert!(set.is_held_by(&me).await.unwrap());
    for name in &names {
        assert!(client.lock(name.as_str()).is_held_by(&me).await.unwrap());
    }
    guard.unlock().await.into_result().unwrap();
    assert!(!set.is_held_by(&me).await.unwrap());
}

/// RedissonMultiLockTest.testWaitAndLeaseTimeouts
pub(crate) async fn test_wait_and_lease_timeouts(on: Fixture) {
    let client = on.client().await;
    let set = multi(&client, &names(&on, &["lock1", "lock2", "lock3"]));
    let start = Instant::now();
    let tries = (0..10).map(|_| {
        let set = set.clone();
        tokio::spawn(async move { set.acquire().lease(Lease::Fixed(ms(10_000))).await.unwrap() })
    });
    let tries = futures_util::future::join_all(tries).await;
    let held = tries.into_iter().filter_map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(held.len(), 1, "exactly one succeeds");
    assert!(awake(start) < LATE, "{:?}", start.elapsed());
}

/// RedissonMultiLockTest.testMultiThreads
pub(crate) async fn test_multi_threads(on: Fixture) {
    let client = on.client().await;
    let names = names(&on, &["lock1", "lock2", "lock3"]);
    let guard = client.lock(names[0].as_str()).lock().await.unwrap();
    let set = multi(&client, &names);
    let second = tokio::spawn(async move { set.lock_for(ms(5_000)).await.unwrap().is_some() });
    tokio::time::sleep(ms(100)).await;
    assert!(!second.is_finished());
    guard.unlock().await.unwrap();
    assert!(soon("the second owner's grant", second).await.unwrap());
}
