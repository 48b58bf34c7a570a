//! The rights of an account: each kind runs with what the library says it needs, and with nothing else.

use redlatch::{
    Client, LossReason, Rate, Unlocked, Wait,
    acl::{Kind, Rights},
};
use redlatch_testkit::server::RedisServer;

use crate::{
    fixture::{ms, soon},
    kinds::{AnyLock, Face},
};

const LEASE_MS: u64 = 600;
/// Commands that a look at a lost lock tries and does without.
const SPARED: [&str; 3] = ["llen", "get", "strlen"];

struct Account {
    server: RedisServer,
    functions: bool,
}

impl Account {
    /// A server with one account for these kinds and names that begin with `app:`.
    fn of(kinds: &[Kind]) -> Self {
        Self::with(&Rights::of(kinds, "app:"))
    }

    fn with(rights: &Rights) -> Self {
        let builder = RedisServer::builder().acl("default off").acl(&format!("app on >pw {rights}"));
        Account { server: builder.start().unwrap() }
    }

    async fn client(&self) -> Client {
        let builder = Client::builder().url(self.server.url()).username("app").password("pw");
        builder.watchdog_lease(ms(LEASE_MS)).connect().await.unwrap()
    }

    /// What the server has refused, as `command` or `key`.
    fn refused(&self) -> Vec<String> {
        let log = format!("{:?}", self.server.cmd(&["ACL", "LOG"]).unwrap());
        log.split("bulk-string('\"object\"'), bulk-string('\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().to_owned())
            .collect()
    }

    fn assert_nothing_was_refused(&self) {
        let refused = self.refused();
        assert!(refused.iter().all(|what| SPARED.contains(&what.as_str())), "{refused:?}");
    }
}

/// Everything that a lock with one holder does.
async fn exercise(account: &Account, face: Face) {
    let (client, other) = (account.client().await, account.client().await);
    for name in ["app:plain", "app:{tag}:x"] {
        let (lock, others) = (AnyLock::new(face, &client, name), AnyLock::new(face, &other, name));
        let guard = lock.lock().await.unwrap();
        assert!(others.try_lock().await.unwrap().is_none());
        if !matches!(face, Face::NonReentrant | Face::NonReentrantFair) {
            let inner = guard.reenter().await.unwrap();
            assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
        }
        guard.extend(ms(30_000)).await.unwrap();
        let waiter = tokio::spawn(async move { others.lock().await.unwrap() });
        // Long enough for a renewal; the waiter may have come to wait or not.
        tokio::time::sleep(ms(LEASE_MS)).await;
        // Another owner of this client, to whom the lock may be passed on.
        let owner = client.owner();
        let next = lock.clone();
        let heir = tokio::spawn(async move { next.lock_as(&owner, Wait::Forever).await.unwrap().unwrap() });
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        let one = async { soon("a grant", waiter).await.unwrap().unlock().await.unwrap() };
        let two = async { soon("a grant", heir).await.unwrap().unlock().await.unwrap() };
        tokio::join!(one, two);
        let lost = lock.lock().await.unwrap();
        let thief = AnyLock::new(face, &other, name);
        assert!(thief.force_unlock().await.unwrap());
        let _held = thief.lock().await.unwrap();
        let reason = soon("the loss", lost.lost()).await;
        assert!(matches!(reason, LossReason::TakenOver { .. }), "{reason:?}");
    }
    account.assert_nothing_was_refused();
}
