//! What the holder of a lock that was forced free is told, and the next hold of its owner is not.

use std::{future::IntoFuture, time::Instant};

use redlatch::{AnyGuard, Client, Force, Guard, LossReason, MultiLock, Owner, Unlocked};
use redlatch_testkit::server::RedisServer;

use crate::{
    fixture::{awake, ms, soon},
    kinds::{AnyLock, Face},
    watched::until_watched,
};

const KINDS: [&str; 4] = ["plain", "fair", "write", "read"];

struct Rig {
    server: RedisServer,
    client: Client,
    other: Client,
}

async fn rig() -> Rig {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    Rig { server, client, other }
}

impl Rig {
    async fn hold(&self, kind: &str, owner: &Owner) -> Guard {
        let both = self.client.read_write_lock(kind);
        let hold = async {
            match kind {
                "fair" => self.client.fair_lock(kind).acquire().owner(owner).into_future().await,
                "write" => {
                    both.write().acquire().owner(owner).await.map(|guard| guard.map(AnyGuard::into_guard))
                }
                "read" => {
                    both.read().acquire().owner(owner).await.map(|guard| guard.map(AnyGuard::into_guard))
                }
                _ => self.client.lock(kind).acquire().owner(owner).await,
            }
        };
        soon("the hold", hold).await.unwrap().expect("it is free")
    }

    async fn force(&self, kind: &str) {
        let (force, both) = (Force::new().by("ops").reason("stuck"), self.other.read_write_lock(kind));
        let outcome = match kind {
            "fair" => self.other.fair_lock(kind).force(force).await,
            "write" => both.write().force(force).await,
            "read" => both.read().force(force).await,
            _ => self.other.lock(kind).force(force).await,
        };
        outcome.unwrap();
    }

    async fn deleted(&self, kind: &str, guard: Guard) -> LossReason {
        self.server.cmd(&["DEL", kind]).unwrap();
        soon("the loss", guard.lost()).await
    }
}

fn forced() -> LossReason {
    LossReason::Forced { by: "ops".into(), reason: Some("stuck".into()) }
}

/// The note of the first one was read, and the second one was told that it had been forced free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_deleted_is_not_told_who_forced_an_earlier_one_free() {
    let rig = rig().await;
    for kind in KINDS {
        let owner = rig.client.owner();
        let first = rig.hold(kind, &owner).await;
        rig.force(kind).await;
        assert_eq!(soon("the first loss", first.lost()).await, forced(), "{kind}");
        // So that the note is older by more than clocks are read for.
        tokio::time::sleep(ms(50)).await;
        let second = rig.hold(kind, &owner).await;
        assert_eq!(rig.deleted(kind, second).await, LossReason::Deleted, "{kind}");
        let third = rig.hold(kind, &owner).await;
        rig.force(kind).await;
        assert_eq!(soon("the last loss", third.lost()).await, forced(), "{kind}");
    }
}

/// Accounts without the right to `TIME` leave such ones, and so do earlier releases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_note_without_a_time_is_believed() {
    let rig = rig().await;
    for kind in KINDS {
        let owner = rig.client.owner();
        let guard = rig.hold(kind, &owner).await;
        let field = if kind == "write" { format!("{}:write", owner.to_text()) } else { owner.to_text() };
        rig.server.cmd(&["HSET", &format!("redlatch_forced:{{{kind}}}"), &field, "ops\nstuck"]).unwrap();
        assert_eq!(rig.deleted(kind, guard).await, forced(), "{kind}");
    }
}

/// The script was to ask for the time, and is refused: the lock is forced free, and its holder is told who did it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_may_not_ask_for_the_time_forces_a_lock_free() {
    let mut rig = rig().await;
    rig.server.cmd(&["ACL", "SETUSER", "timeless", "on", ">pw", "~*", "&*", "+@all", "-time"]).unwrap();
    let url = rig.server.url().replacen("://", "://timeless:pw@", 1);
    rig.other = Client::connect(&url).await.unwrap();
    rig.client = Client::connect(&url).await.unwrap();
    // A fair lock needs the time for its queue.
    for kind in ["plain", "write", "read"] {
        let guard = rig.hold(kind, &rig.client.owner()).await;
        rig.force(kind).await;
        assert_eq!(soon("the loss", guard.lost()).await, forced(), "{kind}");
    }
}

/// The reason was `Deleted` always, also where this library had forced it free and noted who did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_the_first_to_find_its_hold_gone_says_how_it_ended() {
    let rig = rig().await;
    for kind in KINDS {
        let guard = rig.hold(kind, &rig.client.owner()).await;
        rig.force(kind).await;
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::AlreadyLost(forced()), "{kind}");
    }
    let both = MultiLock::new([rig.client.lock("plain"), rig.client.lock("other")]).unwrap();
    let guard = both.lock().await.unwrap();
    rig.force("plain").await;
    let taken = rig.other.lock("plain").try_lock().await.unwrap().expect("it is free");
    let report = guard.unlock().await;
    let of = |name: &str| {
        let (_, outcome) = report.members.iter().find(|(lock, _)| lock.as_str() == Some(name)).unwrap();
        outcome.clone().unwrap()
    };
    assert_eq!((of("plain"), of("other")), (Unlocked::AlreadyLost(forced()), Unlocked::Released));
    taken.unlock().await.unwrap();
}

/// It went from task to task beside the holder that the server had granted it to, and each of them was told that all was well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_forced_free_unseen_is_not_passed_on() {
    let server = RedisServer::start().unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let client = Client::builder().url(server.url()).turn_time(ms(10_000)).connect().await.unwrap();
    let first = client.lock("x").lock().await.unwrap();
    let waits = client.clone();
    let mut waiter = tokio::spawn(async move { waits.lock("x").lock().await.unwrap() });
    assert!(tokio::time::timeout(ms(150), &mut waiter).await.is_err(), "it is held");
    other.lock("x").force(Force::new().by("ops").reason("stuck")).await.unwrap();
    let taken = other.lock("x").try_lock().await.unwrap().expect("it is free");
    assert_eq!(first.unlock().await.unwrap(), Unlocked::AlreadyLost(forced()));
    assert!(tokio::time::timeout(ms(300), &mut waiter).await.is_err() && taken.is_valid(), "two hold it");
    taken.unlock().await.unwrap();
    drop(soon("the lock", waiter).await.unwrap());
}

/// Who ends a hold from outside, at a server of its own.
#[derive(Debug, Clone, Copy)]
enum By {
    Library,
    /// Redisson notes nothing, and its spin lock tells nobody.
    Java,
}

impl By {
    async fn frees(self, rig: &Rig, face: Face) {
        let Rig { server, other, .. } = rig;
        if let By::Library = self {
            assert!(AnyLock::new(face, other, "x").force_unlock().await.unwrap());
            return;
        }
        assert_eq!(server.cmd(&["DEL", "x"]).unwrap(), redis::Value::Int(1));
        match face {
            Face::Spin => {}
            Face::Write => _ = server.cmd(&["PUBLISH", "redisson_rwlock:{x}", "0"]).unwrap(),
            _ => _ = server.cmd(&["PUBLISH", "redisson_lock__channel:{x}", "0"]).unwrap(),
        }
    }
}

/// R13: the tasks of its own client do not ask while one of them holds it, and the holder's first renewal comes after a third of the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_forced_free_goes_to_the_next_task_of_its_client_long_before_a_renewal() {
    // That of the default lease.
    const RENEWAL: std::time::Duration = ms(10_000);
    let until_queued = async |rig: &Rig| {
        while rig.client.stats().in_line == 0 {
            tokio::time::sleep(ms(5)).await;
        }
    };
    for face in [Face::Plain, Face::Write, Face::Spin, Face::Fenced] {
        for (by, at_once) in [(By::Library, true), (By::Library, false), (By::Java, true), (By::Java, false)]
        {
            let (rig, case) = (rig().await, format!("{face:?} by {by:?}, at once: {at_once}"));
            let lock = AnyLock::new(face, &rig.client, "x");
            let began = Instant::now();
            let first = lock.lock().await.unwrap();
            let waits = lock.clone();
            let waiter = tokio::spawn(async move { waits.lock().await.unwrap() });
            soon("a task in line", until_queued(&rig)).await;
            if !at_once {
                until_watched(&[&rig.server], 1).await;
            }
            by.frees(&rig, face).await;
            let second = soon("the turn of the task in line", waiter).await.unwrap();
            assert!(awake(began) < RENEWAL, "{case}: after {:?}", awake(began));
            assert!(second.is_valid() && !first.is_valid(), "{case}");
            let began = Instant::now();
            by.frees(&rig, face).await;
            let third = soon("a free lock", async {
                loop {
                    if let Some(guard) = lock.try_lock().await.unwrap() {
                        return guard;
                    }
                    tokio::time::sleep(ms(20)).await;
                }
            });
            let third = third.await;
            assert!(awake(began) < RENEWAL, "{case}: after {:?}", awake(began));
            assert!(third.is_valid() && !second.is_valid(), "{case}");
        }
    }
}
