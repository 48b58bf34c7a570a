//! Holds and waiters of both languages that stay while the master changes.

use std::time::{Instant, SystemTime};

use redlatch_testkit::{redisson::PendingReply, server::RedisServer};
use tokio::task::JoinHandle;

use crate::{
    bed::{Java, LIMIT, ms, run},
    both_ways::{Held, Kind, lock, try_lock, waiting},
    meeting::Meeting,
};

/// Longer than a change of the master takes on a busy machine.
const WAIT_MS: u64 = 120_000;

/// One lock that Java holds and we wait for, and one the other way round.
pub(crate) struct Staying<'a> {
    meeting: &'a Meeting<'a>,
    javas: String,
    ours: String,
    probe: String,
    java: Java,
    task: JoinHandle<(Held, Instant)>,
    held: Held,
    javas_waiter: Java,
    reply: PendingReply,
}

impl<'a> Staying<'a> {
    pub(crate) fn begin(meeting: &'a Meeting<'a>, name: impl Fn(&str) -> String) -> Self {
        let (javas, ours, probe) = (name("stays-java"), name("stays-ours"), name("probe"));
        let (java, javas_waiter) = (meeting.java("lock"), meeting.java("lock"));
        java.lock(&javas);
        let held = run(lock(&meeting.ours, Kind::Plain, &ours)).unwrap();
        let task = waiting(&meeting.ours_too, Kind::Plain, &javas);
        let reply = javas_waiter.wait_for(&ours, WAIT_MS, -1);
        meeting.until_we_listen(&Kind::Plain.channels(&javas), 1);
        meeting.until_java_listens(&Kind::Plain.channels(&ours), 1);
        Self { meeting, javas, ours, probe, java, task, held, javas_waiter, reply }
    }

    pub(crate) fn names(&self) -> [&str; 2] {
        [&self.javas, &self.ours]
    }

    /// Waits until all clients write to the new master. Before that an old one may take writes that nobody will see, and
    /// Redisson 3.15.1 throws, because it sends `WAIT` to a server that has become a replica.
    fn until_all_have_followed(&self, new: &RedisServer) {
        let (who, probe) = (self.meeting.client(), self.probe.as_str());
        let deadline = Instant::now() + LIMIT;
        let has_followed = || {
            assert!(Instant::now() < deadline, "{who} does not find the new master");
            matches!(new.cmd(&["EXISTS", probe]), Ok(redis::Value::Int(1)))
        };
        let java = self.meeting.java("lock");
        let ask = |verb: &str| java.thread.call(&self.meeting.verb(verb), &[probe]);
        while ask("lock.tryLock").is_err() || !has_followed() {
            // What it took elsewhere would let it in here as if it had entered again.
            drop(ask("lock.forceUnlock"));
        }
        assert!(java.force_unlock(probe), "{who}");
        for client in [&self.meeting.ours, &self.meeting.ours_too] {
            loop {
                let held = try_lock(client, Kind::Plain, probe).expect("nobody else asks");
                if has_followed() {
                    held.release();
                    break;
                }
                drop(run(held.unlock()));
            }
        }
    }

    /// Waits until all are there and listen again, and asserts that nothing has changed for anybody, and that releases still
    /// wake. Plain messages may be heard at any of the servers `plain_at`.
    pub(crate) fn end(self, new: &RedisServer, plain_at: &[RedisServer]) {
        self.until_all_have_followed(new);
        let sharded_at = std::slice::from_ref(new);
        let Self { meeting, javas, ours, java, task, held, javas_waiter, reply, .. } = self;
        let who = meeting.client();
        meeting.until_listening_at([plain_at, sharded_at], &Kind::Plain.channels(&javas), 1, 0);
        meeting.until_listening_at([plain_at, sharded_at], &Kind::Plain.channels(&ours), 0, 1);
        let stranger = meeting.java("lock");
        for name in [&javas, &ours] {
            assert!(try_lock(&meeting.ours_too, Kind::Plain, name).is_none(), "{who}: {name}");
            assert!(!stranger.try_lock(name), "{who}: {name}");
        }
        assert!(!task.is_finished() && reply.is_still_waiting_after(ms(1)), "{who}: a waiter was let in");
        assert!(held.guard().is_valid(), "{who}: {:?}", held.guard().loss());
        let released_at = Instant::now();
        java.unlock(&javas);
        let (next, at) = run(task).unwrap();
        println!("{who}: we got it {:?} after Java", at.saturating_duration_since(released_at));
        assert!(!stranger.try_lock(&javas), "{who}: we hold");
        next.release();
        let released_at = SystemTime::now();
        held.release();
        let reply = reply.wait(LIMIT).unwrap();
        println!("{who}: Java got it {:?} after us", reply.finished_after(released_at));
        assert!(reply.as_bool().unwrap(), "{who}: released");
        assert!(try_lock(&meeting.ours, Kind::Plain, &ours).is_none(), "{who}: Java holds");
        javas_waiter.unlock(&ours);
    }
}
