//! What others do between the look at the holders and the call.

use std::sync::atomic::AtomicU32;

use super::{
    super::{Recipe, lease::{Lease, Term}},
    *,
};
use crate::{
    config::Config,
    name::{Keys, Kind},
    owner::Owner,
    read_write::{READ, Read},
    store::{self, Store},
};

struct Rig {
    store: Arc<dyn Store>,
    keys: Arc<Keys>,
    strictness: Arc<Strictness>,
    /// Calls that were sent.
    sent: Arc<AtomicU32>,
}

fn owner(number: i64) -> Owner {
    Owner::new("1b671a64-40d5-491e-99b0-da01ff1f3341", number)
}

async fn rig(url: &str) -> Rig {
    let config = Config { url: url.to_owned(), ..Config::default() };
    Rig {
        store: store::open(&config, &Handle::current()).await.unwrap(),
        keys: Arc::new(Keys::new("x".into(), Kind::Read)),
        strictness: Arc::default(),
        sent: Arc::default(),
    }
}

const STRICT_URL: &str = "memory:?strict_keys";

impl Rig {
    /// Runs a call; before each time that it is sent, whatever happens in between runs with the number of that time.
    async fn amid<F>(&self, call: Call, between: impl Fn(u32) -> F + Send + Sync) -> Result<Vec<i64>, ErrorKind>
    where
        F: Future<Output = ()> + Send,
    {
        self.sent.store(0, Ordering::Relaxed);
        let declaring = call.script.declaring().unwrap();
        let declarer =
            Declarer { declaring, strictness: self.strictness.clone(), timers: Handle::current() };
        let between = &between;
        let send = |call| async move {
            between(self.sent.fetch_add(1, Ordering::Relaxed) + 1).await;
            self.store.run(call).await
        };
        let reply = declarer.run(call, send, |reply| reply).await.map_err(|fault| fault.error().kind())?;
        Ok(reply.array().unwrap().iter().map(|item| item.int().unwrap()).collect())
    }

    async fn run(&self, call: Call) -> Vec<i64> {
        // The count of the call around this one goes on.
        let sent = self.sent.load(Ordering::Relaxed);
        let reply = Box::pin(self.amid(call, |_| async {})).await.unwrap();
        self.sent.store(sent, Ordering::Relaxed);
        reply
    }

    async fn reads(&self, number: i64, lease_ms: i64) {
        assert_eq!(self.run(READ.acquire(&self.keys, &owner(number), lease_ms, false)).await[1], 1);
    }

    fn release(&self, number: i64) -> Call {
        READ.release(&self.keys, &owner(number), "publish")
    }

    /// The TTL of the hash, and the holds of an owner.
    async fn look(&self, number: i64) -> [i64; 2] {
        self.run(READ.query(&self.keys, owner(number).field())).await.try_into().unwrap()
    }
}

#[tokio::test]
async fn a_reader_that_comes_in_between_is_taken_into_account() {
    let rig = rig(STRICT_URL).await;
    rig.reads(1, 60_000).await;
    rig.reads(2, 10_000).await;
    let reply = rig
        .amid(rig.release(1), async |time| {
            if time == 2 {
                rig.reads(3, 20_000).await;
            }
        })
        .await;
    assert_eq!(reply, Ok(vec![1, 1, 0]));
    assert_eq!(rig.sent.load(Ordering::Relaxed), 3, "a guess, a look that was overtaken, and the call");
    let [ttl, holds] = rig.look(3).await;
    assert!((10_001..=20_000).contains(&ttl), "what the others need: {ttl}");
    assert_eq!((holds, rig.look(2).await[1], rig.look(1).await[1]), (1, 1, 0));
}
