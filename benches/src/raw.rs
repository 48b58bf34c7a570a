//! Scripts sent by hand through the client library: what there is to be compared with.

use std::sync::Arc;

use redis::{Cmd, aio::MultiplexedConnection};
use redlatch::scripts;

use crate::{measure::Stop, outcome::Outcome};

/// As long as our default.
const LEASE_MS: u32 = 30_000;
/// How long Redisson keeps what a release came to, in case that it is asked again.
const LATCH_MS: u32 = 18_000;
const CLIENT: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341";

const REDISSON_ACQUIRE: &str = include_str!("redisson_acquire.lua");
const REDISSON_RELEASE: &str = include_str!("redisson_release.lua");

/// Our two scripts for one lock, put together beforehand.
pub(crate) struct Bare {
    acquire: Cmd,
    release: Cmd,
}

impl Bare {
    pub(crate) fn new(name: &str, number: usize) -> Arc<Bare> {
        Bare::publishing(name, number, "publish")
    }

    /// The same for a node of a cluster, which tells no other node of a release, as ours do not either.
    pub(crate) fn sharded(name: &str, number: usize) -> Arc<Bare> {
        Bare::publishing(name, number, "spublish")
    }

    fn publishing(name: &str, number: usize, publish: &str) -> Arc<Bare> {
        let owner = format!("{CLIENT}:{number}");
        let mut acquire = redis::cmd("EVALSHA");
        acquire.arg(scripts::ACQUIRE.sha1()).arg(1).arg(name).arg(number).arg(&owner).arg(LEASE_MS).arg("0");
        let mut release = redis::cmd("EVALSHA");
        release.arg(scripts::RELEASE.sha1()).arg(1).arg(name).arg(number).arg(&owner);
        release.arg(format!("redisson_lock__channel:{{{name}}}")).arg(publish);
        Arc::new(Bare { acquire, release })
    }

    pub(crate) async fn pairs(
        self: Arc<Self>,
        mut connection: MultiplexedConnection,
        stop: Stop,
    ) -> Outcome<u64> {
        let mut count = 0;
        while !stop.is_set() {
            let (_, held, _): (i64, i64, i64) = self.acquire.query_async(&mut connection).await?;
            let (_, released, _): (i64, i64, i64) = self.release.query_async(&mut connection).await?;
            if (held, released) != (1, 1) {
                return Err("a lock of its own was busy".into());
            }
            count += 1;
        }
        Ok(count)
    }
}

/// Redisson's effects for one lock: three commands a pair. Nobody waits for the deletion of the latch, so it is on its way
/// together with the next acquire. The commands are put together beforehand, which a real client cannot do for a latch
/// that has a new name each time.
pub(crate) struct RedissonShaped {
    acquire: Cmd,
    release: Cmd,
    delete: Cmd,
}

impl RedissonShaped {
    pub(crate) fn new(name: &str, number: usize) -> Arc<RedissonShaped> {
        let owner = format!("{CLIENT}:{number}");
        let latch = format!("redisson_unlock_latch:{{{name}}}:{number:032x}");
        let mut acquire = redis::cmd("EVALSHA");
        acquire.arg(sha1(REDISSON_ACQUIRE)).arg(1).arg(name).arg(LEASE_MS).arg(&owner);
        let mut delete = redis::cmd("DEL");
        delete.arg(&latch);
        let mut release = redis::cmd("EVALSHA");
        release.arg(sha1(REDISSON_RELEASE)).arg(3).arg(name);
        release.arg(format!("redisson_lock__channel:{{{name}}}")).arg(&latch);
        release.arg("0").arg(LEASE_MS).arg(&owner).arg("publish").arg(LATCH_MS);
        Arc::new(RedissonShaped { acquire, release, delete })
    }

    pub(crate) async fn pairs(
        self: Arc<Self>,
        mut connection: MultiplexedConnection,
        stop: Stop,
    ) -> Outcome<u64> {
        let (mut aside, mut count) = (connection.clone(), 0);
        while !stop.is_set() {
            let (deleted, busy) = tokio::join!(
                self.delete.query_async::<i64>(&mut aside),
                self.acquire.query_async::<Option<i64>>(&mut connection)
            );
            deleted?;
            let busy = busy?;
            let released: Option<i64> = self.release.query_async(&mut connection).await?;
            if (busy, released) != (None, Some(1)) {
                return Err("a lock of its own was busy".into());
            }
            count += 1;
        }
        Ok(count)
    }
}

/// One round trip after the other, with a script that does nothing.
pub(crate) async fn round_trips(mut connection: MultiplexedConnection, stop: Stop) -> Outcome<u64> {
    let mut ask = redis::cmd("EVALSHA");
    ask.arg(sha1(NOTHING)).arg(0);
    let mut count = 0;
    while !stop.is_set() {
        let _: i64 = ask.query_async(&mut connection).await?;
        count += 1;
    }
    Ok(count)
}

const NOTHING: &str = "return 1";

fn sha1(source: &str) -> String {
    sha1_smol::Sha1::from(source).hexdigest()
}

/// Makes all scripts known to the server.
pub(crate) async fn load(connection: &mut MultiplexedConnection) -> Outcome<()> {
    let ours = scripts::ALL.iter().map(|script| script.source());
    for source in ours.chain([REDISSON_ACQUIRE, REDISSON_RELEASE, NOTHING]) {
        redis::cmd("SCRIPT").arg("LOAD").arg(source).exec_async(connection).await?;
    }
    Ok(())
}
