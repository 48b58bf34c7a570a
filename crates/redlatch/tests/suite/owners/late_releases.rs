//! R3 for every kind: what is late of a release meets the next hold of nobody.

use std::future::IntoFuture;

use futures_util::future::join_all;
use redlatch::{AnyGuard, Client, Error, ErrorKind, Guard, Lease, Owner, Unlocked, Wait, scripts};
use redlatch_testkit::proxy::{Action, Match};

use super::{Rig, rig};
use crate::{
    fixture::{ms, soon},
    kinds::{AnyLock, Face},
};

/// A kind of lock; nothing stands for the read side.
type Kind = Option<Face>;

const KINDS: [Kind; 8] = [
    Some(Face::Plain),
    Some(Face::Fair),
    Some(Face::Fenced),
    Some(Face::Spin),
    Some(Face::NonReentrant),
    Some(Face::NonReentrantFair),
    Some(Face::Write),
    None,
];

async fn acquire(
    client: &Client,
    kind: Kind,
    name: &str,
    owner: &Owner,
    (lease, wait): (Lease, Wait),
) -> Result<Option<Guard>, Error> {
    if let Some(face) = kind {
        return AnyLock::new(face, client, name).acquire().owner(owner).lease(lease).wait(wait).await;
    }
    let lock = client.read_write_lock(name);
    let acquire = lock.read().acquire().owner(owner).lease(lease).wait(wait);
    acquire.await.map(|guard| guard.map(AnyGuard::into_guard))
}

impl Rig {
    /// The requests for this name that were sent, whether they arrived or not.
    fn sent(&self, name: &str) -> Vec<Vec<Vec<u8>>> {
        self.proxy.with_log(|log| {
            let all = log.requests().map(|request| request.args.clone());
            all.filter(|args| args.iter().any(|arg| arg == name.as_bytes())).collect()
        })
    }

    /// Whether a client that knows of nothing gets what would exclude everybody.
    async fn is_free(&self, kind: Kind, name: &str) -> bool {
        let owner = self.other.owner();
        let kind = kind.or(Some(Face::Write));
        acquire(&self.other, kind, name, &owner, (Lease::Fixed(ms(20_000)), Wait::No))
            .await
            .unwrap()
            .is_some()
    }
}

/// The first request of a release is kept by the network; the lock is free, because of a repeat or because its lease has ended; and then it arrives.
async fn a_release_arrives_late(rig: &Rig, kind: Kind, written: bool) {
    let name = format!("{kind:?}-{written}");
    let long = Lease::Fixed(ms(60_000));
    let owner = rig.client.owner();
    if written {
        owner.to_text();
    }
    // What counts down is sent once, and the lease ends what it did not reach.
    let lease = if written { Lease::Fixed(ms(4_000)) } else { long };
    let guard = acquire(&rig.client, kind, &name, &owner, (lease, Wait::No)).await.unwrap().unwrap();
    let before = rig.sent(&name).len();
    // Not a look at the connection, which may go first.
    let releases = || {
        scripts::ALL
            .iter()
            .filter(|script| ["release", "give"].iter().any(|part| script.name().contains(part)))
    };
    for script in releases() {
        let first = Match::script().arg_contains(script.sha1()).key_contains(&name).nth(1);
        rig.proxy.rule(first, Action::CloseBeforeRequest);
    }
    let outcome = soon("the release", guard.unlock().into_future()).await;
    if written {
        soon("the end of its lease", async {
            while rig.server.cmd(&["EXISTS", &name]).unwrap() == redis::Value::Int(1) {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    } else {
        assert_eq!(outcome.as_ref().unwrap(), &Unlocked::Released, "{name}");
    }
    let is_release = |request: &&Vec<Vec<u8>>| {
        releases().any(|script| request.iter().any(|arg| arg == script.sha1().as_bytes()))
    };
    let late = rig.sent(&name)[before..].iter().find(is_release).expect("a release").clone();

    for wait in [Wait::No, Wait::AtMost(ms(100)), Wait::Forever] {
        let again = acquire(&rig.client, kind, &name, &owner, (long, wait));
        let error = soon("an answer", again).await.map(drop).expect_err(&name);
        assert_eq!(error.kind(), ErrorKind::OwnerInDoubt, "{name}: {error}");
    }
    let fresh = rig.client.owner();
    let next = acquire(&rig.client, kind, &name, &fresh, (long, Wait::No)).await.unwrap().expect(&name);
    rig.server.cmd(&late).unwrap();
    assert!(!rig.is_free(kind, &name).await, "{name}: two valid holders");
    assert!(next.is_valid(), "{name}: {:?}", next.loss());
    assert_eq!(next.unlock().await.unwrap(), Unlocked::Released, "{name}");
    // Its own hold of another name is a hold as any other.
    let elsewhere = format!("elsewhere-{name}");
    let other = acquire(&rig.client, kind, &elsewhere, &owner, (long, Wait::No)).await.unwrap().unwrap();
    rig.server.cmd(&late).unwrap();
    assert!(!rig.is_free(kind, &elsewhere).await && other.is_valid(), "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_release_of_any_kind_meets_no_next_hold_of_an_owner_that_is_used_again() {
    let rig = rig().await;
    join_all(KINDS.map(|kind| a_release_arrives_late(&rig, kind, false))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_release_of_any_kind_meets_no_next_hold_of_an_owner_that_was_written_out() {
    // Each has connections of its own: a release that is sent once would be lost with the connection that the network closes on another one.
    join_all(KINDS.map(async |kind| a_release_arrives_late(&rig().await, kind, true).await)).await;
}
