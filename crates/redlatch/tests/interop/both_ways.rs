//! What must hold wherever both languages meet: they exclude each other, count alike, and wake each other.

use std::{
    thread,
    time::{Duration, Instant, SystemTime},
};

use redlatch::{Client, Error, FencedGuard, Guard, ReadGuard, Unlocked, WriteGuard};
use tokio::task::JoinHandle;

use crate::{
    bed::{BLOCKED, LIMIT, channel_of, run, runtime},
    meeting::Meeting,
};

/// Half of the wake-ups come in time: a look by chance is never so early, because the first is over when the lock is
/// released, and a machine that pauses is only late now and then.
const SAMPLES: usize = 5;
/// When a waiter of ours looks again at the earliest that is not told.
pub(crate) const FIRST_LOOK: Duration = Duration::from_millis(400);
/// How long Java waits; less than its process is given for an answer.
pub(crate) const WAIT_MS: u64 = 18_000;

/// A kind of lock, or a side of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Fair,
    Read,
    Write,
    Fenced,
}

impl Kind {
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Kind::Plain => "lock",
            Kind::Fair => "fair",
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Fenced => "fenced",
        }
    }

    /// The form of the channels on which waiters are told, one for each waiter of a fair lock.
    pub(crate) fn channels(self, name: &str) -> String {
        match self {
            Kind::Plain | Kind::Fenced => channel_of(name),
            Kind::Fair => format!("{}:*", channel_of(name)),
            Kind::Read | Kind::Write => format!("redisson_rwlock:{{{name}}}"),
        }
    }
}

/// Who holds, and who waits for it.
pub(crate) const PAIRS: [(Kind, Kind); 5] = [
    (Kind::Plain, Kind::Plain),
    (Kind::Fair, Kind::Fair),
    (Kind::Write, Kind::Read),
    (Kind::Read, Kind::Write),
    (Kind::Fenced, Kind::Fenced),
];

/// The kinds that are unlocked by force.
pub(crate) const FORCED: [Kind; 3] = [Kind::Plain, Kind::Fair, Kind::Write];

/// The pairs that this release of Redisson has.
pub(crate) fn pairs(meeting: &Meeting<'_>) -> &'static [(Kind, Kind)] {
    if meeting.is_newest() { &PAIRS } else { &PAIRS[..4] }
}

/// A hold of ours.
#[derive(Debug)]
pub(crate) enum Held {
    Any(Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    Fenced(FencedGuard),
}

impl Held {
    pub(crate) fn guard(&self) -> &Guard {
        match self {
            Held::Any(guard) => guard,
            Held::Read(guard) => guard,
            Held::Write(guard) => guard,
            Held::Fenced(guard) => guard,
        }
    }

    pub(crate) async fn unlock(self) -> Result<Unlocked, Error> {
        match self {
            Held::Any(guard) => guard.unlock().await,
            Held::Read(guard) => guard.unlock().await,
            Held::Write(guard) => guard.unlock().await,
            Held::Fenced(guard) => guard.unlock().await,
        }
    }

    /// Gives it back as the last of its holds.
    #[track_caller]
    pub(crate) fn release(self) {
        assert_eq!(run(self.unlock()).unwrap(), Unlocked::Released);
    }
}

pub(crate) async fn lock(client: &Client, kind: Kind, name: &str) -> Result<Held, Error> {
    Ok(match kind {
        Kind::Plain => Held::Any(client.lock(name).lock().await?),
        Kind::Fair => Held::Any(client.fair_lock(name).lock().await?),
        Kind::Read => Held::Read(client.read_write_lock(name).read().lock().await?),
        Kind::Write => Held::Write(client.read_write_lock(name).write().lock().await?),
        Kind::Fenced => Held::Fenced(client.fenced_lock(name).lock().await?),
    })
}

pub(crate) fn try_lock(client: &Client, kind: Kind, name: &str) -> Option<Held> {
    run(async {
        Ok::<_, Error>(match kind {
            Kind::Plain => client.lock(name).try_lock().await?.map(Held::Any),
            Kind::Fair => client.fair_lock(name).try_lock().await?.map(Held::Any),
            Kind::Read => client.read_write_lock(name).read().try_lock().await?.map(Held::Read),
            Kind::Write => client.read_write_lock(name).write().try_lock().await?.map(Held::Write),
            Kind::Fenced => client.fenced_lock(name).try_lock().await?.map(Held::Fenced),
        })
    })
    .unwrap()
}

async fn force_unlock(client: &Client, kind: Kind, name: &str) -> Result<bool, Error> {
    match kind {
        Kind::Plain => client.lock(name).force_unlock().await,
        Kind::Fair => client.fair_lock(name).force_unlock().await,
        Kind::Read | Kind::Write => client.read_write_lock(name).write().force_unlock().await,
        Kind::Fenced => client.fenced_lock(name).force_unlock().await,
    }
}

/// A task of ours that waits, and when it was let in.
pub(crate) fn waiting(client: &Client, kind: Kind, name: &str) -> JoinHandle<(Held, Instant)> {
    let (client, name) = (client.clone(), name.to_owned());
    runtime().spawn(async move { (lock(&client, kind, &name).await.unwrap(), Instant::now()) })
}

#[track_caller]
fn judge(meeting: &Meeting<'_>, what: &str, mut sample: impl FnMut() -> Duration) {
    let mut times: Vec<_> = (0..SAMPLES).map(|_| sample()).collect();
    times.sort();
    println!("{}: {what}: {times:?}", meeting.client());
    // A waiter that is not told looks after 400 ms at the earliest.
    assert!(times[SAMPLES / 2] < FIRST_LOOK, "{}: {what}: {times:?}", meeting.client());
}

/// The holder keeps the other language out with each of its holds, and lets it in with the last release.
pub(crate) fn holds_exclude_and_are_counted(meeting: &Meeting<'_>, pairs: &[(Kind, Kind)]) {
    for &(holder, waiter) in pairs {
        let name = meeting.name("kept");
        let name = name.as_str();
        let (java, javas_waiter) = (meeting.java(holder.verb()), meeting.java(waiter.verb()));
        java.lock(name);
        java.lock(name);
        assert!(try_lock(&meeting.ours, waiter, name).is_none(), "{holder:?}: Java holds twice");
        let task = waiting(&meeting.ours_too, waiter, name);
        meeting.until_we_listen(&waiter.channels(name), 1);
        java.unlock(name);
        assert_eq!(java.holds(name), 1);
        assert!(try_lock(&meeting.ours, waiter, name).is_none(), "{holder:?}: Java holds once");
        thread::sleep(BLOCKED);
        assert!(!task.is_finished(), "{holder:?}: one hold of Java is left");
        java.unlock(name);
        let (held, _) = run(task).unwrap();
        assert!(!meeting.kind_of(&javas_waiter, holder.verb()).try_lock(name), "{waiter:?}: we hold");
        held.release();

        let outer = run(lock(&meeting.ours, holder, name)).unwrap();
        let inner = run(outer.guard().reenter()).unwrap();
        assert!(!javas_waiter.try_lock(name), "{holder:?}: we hold twice");
        let reply = javas_waiter.wait_for(name, WAIT_MS, -1);
        meeting.until_java_listens(&waiter.channels(name), 1);
        assert_eq!(run(inner.unlock()).unwrap(), Unlocked::StillHeld(1));
        assert!(reply.is_still_waiting_after(BLOCKED), "{holder:?}: one hold of ours is left");
        outer.release();
        assert!(reply.wait(LIMIT).unwrap().as_bool().unwrap(), "{holder:?}: released");
        assert_eq!(javas_waiter.holds(name), 1);
        assert!(try_lock(&meeting.ours, holder, name).is_none(), "{waiter:?}: Java holds");
        javas_waiter.unlock(name);
        try_lock(&meeting.ours, holder, name).expect("nobody holds it").release();
    }
}

/// A release in either language wakes the other.
pub(crate) fn releases_wake_the_other_language(meeting: &Meeting<'_>, pairs: &[(Kind, Kind)]) {
    for &(holder, waiter) in pairs {
        let (java, javas_waiter) = (meeting.java(holder.verb()), meeting.java(waiter.verb()));
        // Names of their own, so that the end of an earlier subscription is not taken for the waiter's.
        judge(meeting, &format!("{waiter:?} of Java after {holder:?} of ours"), || {
            let name = meeting.name("wake-java");
            let held = run(lock(&meeting.ours, holder, &name)).unwrap();
            let reply = javas_waiter.wait_for(&name, WAIT_MS, -1);
            meeting.until_java_listens(&waiter.channels(&name), 1);
            let released_at = SystemTime::now();
            held.release();
            let reply = reply.wait(LIMIT).unwrap();
            assert!(reply.as_bool().unwrap(), "{holder:?}: released");
            javas_waiter.unlock(&name);
            reply.finished_after(released_at)
        });
        judge(meeting, &format!("{waiter:?} of ours after {holder:?} of Java"), || {
            let name = meeting.name("wake-ours");
            java.lock(&name);
            let task = waiting(&meeting.ours, waiter, &name);
            meeting.until_we_listen(&waiter.channels(&name), 1);
            let released_at = Instant::now();
            java.unlock(&name);
            let (held, at) = run(task).unwrap();
            held.release();
            at.saturating_duration_since(released_at)
        });
    }
}

/// An unlock by force lets in who waits, and the holder of the other language learns that it holds nothing.
pub(crate) fn forced_unlocks_are_seen(meeting: &Meeting<'_>, kinds: &[Kind]) {
    for &kind in kinds {
        let name = meeting.name("forced");
        let name = name.as_str();
        let (java, other) = (meeting.java(kind.verb()), meeting.java(kind.verb()));
        let held = run(lock(&meeting.ours, kind, name)).unwrap();
        let task = waiting(&meeting.ours_too, kind, name);
        meeting.until_we_listen(&kind.channels(name), 1);
        assert!(java.force_unlock(name), "{kind:?}");
        let (next, _) = run(task).unwrap();
        let outcome = run(held.unlock());
        assert!(matches!(outcome, Ok(Unlocked::AlreadyLost(_))), "{kind:?}: {outcome:?}");
        assert!(other.is_locked(name), "{kind:?}: freed by the late unlock");
        next.release();

        java.lock(name);
        let reply = other.wait_for(name, WAIT_MS, -1);
        meeting.until_java_listens(&kind.channels(name), 1);
        assert!(run(force_unlock(&meeting.ours, kind, name)).unwrap(), "{kind:?}");
        assert!(reply.wait(LIMIT).unwrap().as_bool().unwrap(), "{kind:?}");
        java.is_refused_to_unlock(name);
        assert_eq!(other.holds(name), 1, "{kind:?}: freed by the late unlock");
        other.unlock(name);
    }
}

/// A writer that becomes a reader lets readers of the other language in, and no writer.
pub(crate) fn downgrades_are_seen(meeting: &Meeting<'_>) {
    let name = meeting.name("downgrade");
    let name = name.as_str();
    let (reader, writer) = (meeting.java("read"), meeting.java("write"));
    let Held::Write(guard) = run(lock(&meeting.ours, Kind::Write, name)).unwrap() else { unreachable!() };
    let reply = reader.wait_for(name, WAIT_MS, -1);
    meeting.until_java_listens(&Kind::Read.channels(name), 1);
    let guard = Held::Read(run(guard.downgrade()).unwrap());
    assert!(reply.wait(LIMIT).unwrap().as_bool().unwrap(), "we only read");
    assert!(!writer.try_lock(name), "two readers");
    reader.unlock(name);
    assert!(!writer.try_lock(name), "our reader");
    guard.release();

    let javas_reader = meeting.kind_of(&writer, "read");
    writer.lock(name);
    javas_reader.lock(name);
    let task = waiting(&meeting.ours, Kind::Read, name);
    meeting.until_we_listen(&Kind::Read.channels(name), 1);
    assert!(!task.is_finished(), "Java writes");
    writer.unlock(name);
    let (held, _) = run(task).unwrap();
    assert!(try_lock(&meeting.ours_too, Kind::Write, name).is_none(), "two readers");
    held.release();
    assert!(try_lock(&meeting.ours_too, Kind::Write, name).is_none(), "Java's reader");
    javas_reader.unlock(name);
    try_lock(&meeting.ours_too, Kind::Write, name).expect("nobody holds it").release();
}

/// Waiters of both languages stand in one queue, and are served in the order in which they came.
pub(crate) fn a_fair_lock_has_one_queue(meeting: &Meeting<'_>) {
    let name = meeting.name("queue");
    let first = meeting.java("fair");
    first.lock(&name);
    let (served, order) = std::sync::mpsc::channel();
    let (mut tasks, mut threads) = (Vec::new(), Vec::new());
    let (mut ours, mut javas) = (0, 0);
    for (place, is_java) in [false, true, true, false, true, false].into_iter().enumerate() {
        let (served, name) = (served.clone(), name.clone());
        if is_java {
            let java = meeting.java("fair");
            javas += 1;
            threads.push(thread::spawn({
                let name = name.clone();
                move || {
                    assert!(java.wait_for(&name, WAIT_MS, -1).wait(LIMIT).unwrap().as_bool().unwrap());
                    served.send(place).unwrap();
                    java.unlock(&name);
                }
            }));
        } else {
            let client = [&meeting.ours, &meeting.ours_too][place % 2].clone();
            ours += 1;
            tasks.push(runtime().spawn({
                let name = name.clone();
                async move {
                    let held = lock(&client, Kind::Fair, &name).await.unwrap();
                    served.send(place).unwrap();
                    held.unlock().await.unwrap()
                }
            }));
        }
        meeting.until_listening(&Kind::Fair.channels(&name), ours, javas);
    }
    first.unlock(&name);
    for task in tasks {
        assert_eq!(run(task).unwrap(), Unlocked::Released);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(served);
    assert_eq!(order.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!(!first.is_locked(&name));
}

/// Tokens of a fenced lock grow over both languages.
pub(crate) fn fencing_tokens_grow(meeting: &Meeting<'_>) {
    let name = meeting.name("tokens");
    let java = meeting.java("fenced");
    let lock = meeting.ours.fenced_lock(name.as_str());
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let reply = java.thread.call(&meeting.verb("fenced.lockAndGetToken"), &[&name]).unwrap();
        tokens.push(u64::try_from(reply.as_i64().unwrap()).unwrap());
        assert!(run(lock.try_lock()).unwrap().is_none(), "Java holds");
        java.unlock(&name);
        let guard = run(lock.lock()).unwrap();
        tokens.push(guard.token());
        assert!(!java.try_lock(&name), "we hold");
        Held::Fenced(guard).release();
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// Permits of a semaphore are counted by both, and a release wakes the other language.
pub(crate) fn semaphores_wake_the_other_language(meeting: &Meeting<'_>) {
    let channel = |name: &str| format!("redisson_sc:{{{name}}}");
    judge(meeting, "a semaphore of Java after ours", || {
        let name = meeting.name("sem-java");
        let (ours, java) = (meeting.ours.semaphore(name.as_str()), meeting.counter("sem", &name));
        assert!(java.bool("trySetPermits", &[3]));
        run(ours.acquire(2)).unwrap();
        assert_eq!(java.number("available"), 1);
        assert!(!java.bool("tryAcquire", &[2]), "one is free");
        let reply = java.send("acquire", &[2]);
        meeting.until_java_listens(&channel(&name), 1);
        let released_at = SystemTime::now();
        run(ours.release(1)).unwrap();
        let reply = reply.wait(LIMIT).unwrap();
        assert_eq!(run(ours.available()).unwrap(), 0);
        reply.finished_after(released_at)
    });
    judge(meeting, "a semaphore of ours after Java's", || {
        let name = meeting.name("sem-ours");
        let (ours, java) = (meeting.ours.semaphore(name.as_str()), meeting.counter("sem", &name));
        assert!(run(ours.set_if_absent(2, None)).unwrap());
        java.call("acquire", &[2]);
        assert!(!run(ours.try_acquire(1)).unwrap(), "none is free");
        let taker = ours.clone();
        let task = runtime().spawn(async move { taker.acquire(1).await.map(|()| Instant::now()) });
        meeting.until_we_listen(&channel(&name), 1);
        let released_at = Instant::now();
        java.call("release", &[2]);
        let at = run(task).unwrap().unwrap();
        assert_eq!(java.number("available"), 1);
        at.saturating_duration_since(released_at)
    });
}

/// The last step of a latch in either language opens it for the other.
pub(crate) fn latches_wake_the_other_language(meeting: &Meeting<'_>) {
    let channel = |name: &str| format!("redisson_countdownlatch__channel__{{{name}}}");
    judge(meeting, "a latch of Java after our last step", || {
        let name = meeting.name("latch-java");
        let (ours, java) = (meeting.ours.count_down_latch(name.as_str()), meeting.counter("latch", &name));
        assert!(run(ours.set_if_absent(2)).unwrap());
        assert_eq!(java.number("getCount"), 2);
        let reply = java.send("await", &[]);
        meeting.until_java_listens(&channel(&name), 1);
        assert_eq!(run(ours.count_down()).unwrap(), 1);
        let opened_at = SystemTime::now();
        assert_eq!(run(ours.count_down()).unwrap(), 0);
        reply.wait(LIMIT).unwrap().finished_after(opened_at)
    });
    judge(meeting, "a latch of ours after Java's last step", || {
        let name = meeting.name("latch-ours");
        let (ours, java) = (meeting.ours.count_down_latch(name.as_str()), meeting.counter("latch", &name));
        assert!(java.bool("trySetCount", &[2]));
        java.call("countDown", &[]);
        assert_eq!(run(ours.count()).unwrap(), 1);
        let task = runtime().spawn(async move { ours.wait().await.map(|()| Instant::now()) });
        meeting.until_we_listen(&channel(&name), 1);
        let opened_at = Instant::now();
        java.call("countDown", &[]);
        run(task).unwrap().unwrap().saturating_duration_since(opened_at)
    });
}

/// Permits with leases are counted by both, given back by either, and wake the other language.
pub(crate) fn permits_wake_the_other_language(meeting: &Meeting<'_>) {
    let channel = |name: &str| format!("redisson_sc:{{{name}}}");
    judge(meeting, "a permit of Java after ours", || {
        let name = meeting.name("permit-java");
        let (ours, java) = (meeting.ours.permit_semaphore(name.as_str()), meeting.counter("permit", &name));
        assert!(java.bool("trySetPermits", &[1]));
        let permit = run(ours.acquire()).unwrap();
        assert!(java.call("tryAcquire", &[]).is_nil(), "none is free");
        let reply = java.send("acquire", &[60_000]);
        meeting.until_java_listens(&channel(&name), 1);
        let released_at = SystemTime::now();
        assert_eq!(run(permit.release()).unwrap(), Unlocked::Released);
        let reply = reply.wait(LIMIT).unwrap();
        assert_eq!(run(ours.acquired()).unwrap(), 1);
        // A client that is told the id can give the permit back.
        run(ours.release(reply.text())).unwrap();
        assert_eq!(java.number("available"), 1);
        reply.finished_after(released_at)
    });
    judge(meeting, "a permit of ours after Java's", || {
        let name = meeting.name("permit-ours");
        let (ours, java) = (meeting.ours.permit_semaphore(name.as_str()), meeting.java("permit"));
        assert!(run(ours.set_if_absent(1)).unwrap());
        let id = java.thread.call(&meeting.verb("permit.acquire"), &[&name]).unwrap().text().to_owned();
        assert!(run(ours.try_acquire()).unwrap().is_none(), "none is free");
        let taker = ours.clone();
        let task = runtime().spawn(async move { (taker.acquire().await.unwrap(), Instant::now()) });
        meeting.until_we_listen(&channel(&name), 1);
        let released_at = Instant::now();
        java.thread.call(&meeting.verb("permit.release"), &[&name, &id]).unwrap();
        let (permit, at) = run(task).unwrap();
        assert_eq!(run(permit.release()).unwrap(), Unlocked::Released);
        at.saturating_duration_since(released_at)
    });
}
