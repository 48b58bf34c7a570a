//! What others do between the look at the holders and the call.

use std::sync::atomic::AtomicU32;

use super::{
    super::lease::{HeldLease, SentAt, keys_and_owners},
    *,
};
use crate::{
    Client,
    keys::{KeyKind, Keys},
    owner::Owner,
    recipes::{AcquireArgs, ExpectedHolds, Forcing, LeaseTerm, READ, Recipe},
    scripts::{READ_ACQUIRE, READ_RELEASE},
};

struct Rig {
    client: Client,
    keys: Arc<Keys>,
    strictness: Arc<Strictness>,
}

fn owner(number: i64) -> Owner {
    Owner::new("1b671a64-40d5-491e-99b0-da01ff1f3341", number)
}

/// A store of its own for each test, strict or not.
async fn rig(url: &str) -> Rig {
    let keys = Arc::new(Keys::new("x".into(), KeyKind::Read));
    Rig { client: Client::connect(url).await.unwrap(), keys, strictness: Arc::default() }
}

fn asking(lease_ms: i64) -> AcquireArgs {
    AcquireArgs {
        lease_ms,
        fenced: false,
        waits: false,
        count_waiters_ahead: false,
        refuse_if_owned: false,
        redisson_wait_ms: 0,
        publish: "publish",
    }
}

impl Rig {
    /// Runs a call. Each time before it is sent, something else runs, with the number of that time.
    async fn amid<F: Future<Output = ()> + Send>(
        &self,
        call: Call,
        between: impl Fn(u32) -> F + Send + Sync,
    ) -> Result<Vec<i64>, ErrorKind> {
        let declared_keys_variant = call.script.declared_keys_variant().unwrap();
        let key_declarer = KeyDeclarer {
            declared_keys_variant,
            strictness: self.strictness.clone(),
            timers: Handle::current(),
        };
        let (between, times) = (&between, &AtomicU32::new(0));
        let send = |call| async move {
            between(times.fetch_add(1, Ordering::Relaxed) + 1).await;
            self.client.core.store.run(call).await
        };
        let reply =
            key_declarer.run(call, send, |reply| reply).await.map_err(|fault| fault.error().kind())?;
        Ok(reply.array().unwrap().iter().map(|item| item.int().unwrap()).collect())
    }

    async fn run(&self, call: Call) -> Vec<i64> {
        self.amid(call, async |_| {}).await.unwrap()
    }

    async fn reads(&self, number: i64, lease_ms: i64) {
        assert_eq!(self.run(READ.acquire(&self.keys, &owner(number), &asking(lease_ms))).await[1], 1);
    }

    fn release(&self, number: i64) -> Call {
        READ.release(&self.keys, &owner(number), "publish", ExpectedHolds::Any)
    }

    /// The TTL of the hash, and the holds of an owner.
    async fn look(&self, number: i64) -> [i64; 2] {
        self.run(READ.query(&self.keys, owner(number).field())).await.try_into().unwrap()
    }
}

#[tokio::test]
async fn a_reader_that_comes_in_between_is_taken_into_account() {
    let rig = &rig("memory:declare-between?strict_keys").await;
    rig.reads(1, 60_000).await;
    rig.reads(2, 10_000).await;
    let times = &AtomicU32::new(0);
    let reply = rig
        .amid(rig.release(1), |time| async move {
            times.store(time, Ordering::Relaxed);
            if time == 2 {
                rig.reads(3, 20_000).await;
            }
        })
        .await;
    assert_eq!(reply, Ok(vec![1, 1, 0]));
    assert_eq!(times.load(Ordering::Relaxed), 3, "a guess, a look that was overtaken, and the release");
    let [ttl, holds] = rig.look(3).await;
    assert!((10_001..=20_000).contains(&ttl), "what the others need: {ttl}");
    assert_eq!((holds, rig.look(2).await[1], rig.look(1).await[1]), (1, 1, 0));
}

#[tokio::test]
async fn readers_that_never_stop_coming_hold_up_no_release() {
    let rig = &rig("memory:declare-never?strict_keys").await;
    rig.reads(1, 60_000).await;
    let reply = rig.amid(rig.release(1), |time| rig.reads(100 + i64::from(time), 20_000)).await;
    assert_eq!(reply, Ok(vec![1, 1, 0]));
    let [ttl, holds] = rig.look(101).await;
    assert!(ttl > 20_000, "nobody could say what the others need, so the hash keeps its time: {ttl}");
    assert_eq!((holds, rig.look(1).await[1]), (1, 0));
    let came = i64::from(WHOLE_TRIES_MAX) + 1;
    for number in 101..=100 + came {
        assert_eq!(rig.run(rig.release(number)).await[1], 1);
    }
    assert_eq!(rig.look(1).await, [-2, 0], "the last one ends it");
}

#[tokio::test]
async fn the_last_reader_ends_the_lock_though_others_came_and_went() {
    let rig = &rig("memory:declare-went?strict_keys").await;
    rig.reads(1, 60_000).await;
    let came = i64::from(WHOLE_TRIES_MAX);
    let reply = rig
        .amid(rig.release(1), |time| async move {
            if time <= WHOLE_TRIES_MAX {
                rig.reads(100 + i64::from(time), 20_000).await;
                return;
            }
            for number in 101..=100 + came {
                assert_eq!(rig.run(rig.release(number)).await[1], 1);
            }
        })
        .await;
    assert_eq!(reply, Ok(vec![1, 1, 0]));
    assert_eq!(rig.look(1).await, [-2, 0]);
}

#[tokio::test]
async fn a_forced_end_is_whole_though_readers_keep_coming() {
    let rig = &rig("memory:declare-force?strict_keys").await;
    rig.reads(1, 60_000).await;
    let force = READ.force(&rig.keys, &Forcing { number: 7, owner: "", publish: "publish", record: None });
    let reply = rig.amid(force, |time| rig.reads(100 + i64::from(time), 20_000)).await;
    assert_eq!(reply, Ok(vec![7, 1, 0]));
    assert_eq!(rig.look(1).await, [-2, 0]);
    rig.reads(101, 1_000).await;
    let [ttl, holds] = rig.look(101).await;
    assert!(holds == 1 && ttl <= 1_000, "what is left of an ended hold counts for nothing: {ttl}");
}

#[tokio::test]
async fn holds_of_many_owners_are_renewed_in_one_call() {
    let rig = &rig("memory:declare-renew?strict_keys").await;
    let lease_term = LeaseTerm { lease_ms: 10_000, renewed: true };
    let mut leases = Vec::new();
    for (number, name) in (1..).zip(["a", "a", "b"]) {
        let keys = Arc::new(Keys::new(name.into(), KeyKind::Read));
        rig.run(READ.acquire(&keys, &owner(number), &asking(10_000))).await;
        for _ in 0..number {
            rig.run(READ.enter(&keys, &owner(number), 10_000).repeatable()).await;
        }
        leases.push(Arc::new(HeldLease::new(
            keys,
            owner(number),
            &READ,
            None,
            lease_term,
            SentAt { at_ms: 0, incarnation: 0 },
        )));
    }
    assert_eq!(rig.run(READ.renew(5, &keys_and_owners(&leases), 60_000)).await, [5, 1, 1, 1]);
    let [ttl, holds] = rig.run(READ.query(&leases[2].keys, owner(3).field())).await.try_into().unwrap();
    assert!(ttl > 10_000 && holds == 4, "{ttl} {holds}");
}

#[tokio::test]
async fn nothing_is_declared_once_a_server_has_shown_that_it_need_not_be() {
    let rig = &rig("memory:declare-loose").await;
    let declares = |script| rig.strictness.declares(script);
    assert!(declares(&READ_RELEASE), "it changes something first, so that a refusal would come too late");
    assert!(!declares(&READ_ACQUIRE));
    assert_eq!(rig.run(rig.release(1)).await, [1, 0, 0], "nothing was held");
    rig.reads(1, 60_000).await;
    assert!(!declares(&READ_RELEASE));
    rig.strictness.mark_strict();
    rig.reads(2, 60_000).await;
    assert!(declares(&READ_RELEASE) && declares(&READ_ACQUIRE), "a refusal stands");
    for number in [1, 2] {
        assert_eq!(rig.run(rig.release(number)).await, [number, 1, 0]);
    }
    assert_eq!(rig.look(1).await, [-2, 0]);
}
