//! Requests of an acquire that are taken for lost, and arrive when their repeats have been granted.

use std::{future::IntoFuture, pin::Pin, time::Duration};

use redlatch::{Client, Lease, Unlocked, Wait, blocking, scripts::READ_ACQUIRE};
use redlatch_testkit::proxy::{Action, Gate, Match};
use tokio::sync::oneshot;

use super::{Rig, rig};
use crate::fixture::{IN_VAIN, SOON, ms, quiet, soon};

const HOUR: Lease = Lease::Fixed(Duration::from_secs(3_600));

impl Rig {
    /// The arguments of the first script with this key that was sent and never arrived.
    async fn sent(&self, name: &str, count: usize) -> Vec<Vec<u8>> {
        let of_name = |args: &Vec<Vec<u8>>| args.iter().any(|arg| arg == name.as_bytes());
        let mut first = None;
        let asked = self.proxy.wait_for(SOON, |log| {
            let mut sent = log.requests().map(|request| &request.args).filter(|args| of_name(args));
            first = sent.next().cloned();
            sent.count() + 1 >= count
        });
        asked.await.unwrap();
        first.unwrap()
    }

    /// The request arrives after all, and leaves this key. Both are one transaction: a look may come at any time.
    fn arrives(&self, args: &[Vec<u8>], leaves: &str) {
        self.server.cmd(&["MULTI"]).unwrap();
        self.server.cmd(args).unwrap();
        self.server.cmd(&["EXISTS", leaves]).unwrap();
        let redis::Value::Array(replies) = self.server.cmd(&["EXEC"]).unwrap() else {
            panic!("a transaction")
        };
        assert_eq!(
            replies.last(),
            Some(&redis::Value::Int(1)),
            "{leaves}: a request that is late leaves nothing: {replies:?}"
        );
    }

    fn exists(&self, key: &str) -> bool {
        self.server.cmd(&["EXISTS", key]).unwrap() == redis::Value::Int(1)
    }
}

async fn until(what: &str, is_met: impl Fn() -> bool) {
    soon(what, async {
        while !is_met() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

/// What the repeat had been granted was found and given back, and nobody looked for the request that it repeated: the lock was held by nobody for its whole
/// lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_of_an_acquire_that_was_given_up_is_looked_for() {
    type Acquires = fn(Client, String) -> Pin<Box<dyn Future<Output = ()> + Send>>;
    let kinds: [(&str, Acquires); 4] = [
        ("plain", |client, name| {
            Box::pin(async move { drop(client.lock(name).acquire().wait(Wait::Forever).lease(HOUR).await) })
        }),
        ("fair", |client, name| {
            Box::pin(
                async move { drop(client.fair_lock(name).acquire().wait(Wait::Forever).lease(HOUR).await) },
            )
        }),
        ("read", |client, name| {
            let lock = client.read_write_lock(name);
            Box::pin(async move { drop(lock.read().acquire().wait(Wait::Forever).lease(HOUR).await) })
        }),
        ("write", |client, name| {
            let lock = client.read_write_lock(name);
            Box::pin(async move { drop(lock.write().acquire().wait(Wait::Forever).lease(HOUR).await) })
        }),
    ];
    let rig = rig(ms(30_000)).await;
    for (n, (name, acquires)) in kinds.into_iter().enumerate() {
        // The server knows the script.
        soon("a grant", acquires(rig.client.clone(), format!("known-{n}"))).await;
        let gate = Gate::new();
        rig.proxy.rule(Match::script().key_contains(name).nth(1), Action::CloseBeforeRequest);
        rig.proxy
            .rule(Match::script().key_contains(name).nth(2), Action::HoldReplyUntilReleased(gate.clone()));
        let acquiring = tokio::spawn(acquires(rig.client.clone(), name.into()));
        let first = rig.sent(name, 2).await;
        until("the grant of the repeat", || rig.exists(name)).await;
        acquiring.abort();
        gate.release();
        until("the grant is given back", || !rig.exists(name)).await;
        rig.arrives(&first, name);
        until("what came late is given back", || !rig.exists(name)).await;
        rig.proxy.clear_rules();
    }
}

/// It was looked for only when the acquire had ended without a grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_a_fair_queue_that_comes_late_is_removed_though_its_owner_was_written_out() {
    let rig = rig(ms(30_000)).await;
    soon("a grant", rig.client.fair_lock("warm").lock()).await.unwrap().unlock().await.unwrap();
    rig.proxy.rule(Match::script().key_contains("n").nth(1), Action::CloseBeforeRequest);
    let guard = soon("the grant", rig.client.fair_lock("n").lock()).await.unwrap();
    let first = rig.sent("n", 2).await;
    guard.owner().to_text();
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let holder = rig.direct.fair_lock("n").lock().await.unwrap();
    let queue = "redisson_lock_queue:{n}";
    rig.arrives(&first, queue);
    until("the place is given up", || !rig.exists(queue)).await;
    assert_eq!(holder.unlock().await.unwrap(), Unlocked::Released);
}

/// It was looked for at once and not later: the next attempt of the owner takes over what came late, but there may be none. A thread has another owner then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_an_owner_that_may_be_used_again_is_looked_for_when_its_acquire_has_ended() {
    let rig = rig(ms(30_000)).await;
    let mut clients = Vec::new();
    for name in ["asked", "thread"] {
        let holder = rig.direct.lock(name).lock().await.unwrap();
        rig.proxy.rule(Match::script().key_contains(name).nth(1), Action::CloseBeforeRequest);
        let has_it = if name == "asked" {
            let (lock, owner) = (rig.client.lock(name), rig.client.owner());
            let acquire = lock.acquire().owner(&owner).lease(HOUR).wait(Wait::AtMost(IN_VAIN));
            soon("an answer", acquire.into_future()).await.unwrap().is_some()
        } else {
            let (tell, told) = oneshot::channel();
            let url = rig.proxy.url();
            std::thread::spawn(move || {
                let client = blocking::Client::build(quiet().url(url)).unwrap();
                let wait = Wait::AtMost(IN_VAIN);
                let guard = client.lock(name).acquire().lease(HOUR).wait(wait).run().unwrap();
                // The client stays, with what it has to look for.
                let is_some = guard.is_some();
                drop(guard);
                assert!(tell.send((is_some, client)).is_ok());
            });
            let (has_it, client) = soon("an answer", told).await.unwrap();
            clients.push(client);
            has_it
        };
        assert!(!has_it, "{name}: it is taken");
        let first = rig.sent(name, 2).await;
        // The look at once is over.
        until("the end of what was under way", || rig.client.stats().background_jobs == 0).await;
        assert_eq!(holder.unlock().await.unwrap(), Unlocked::Released);
        rig.arrives(&first, name);
        until("what came late is given back", || !rig.exists(name)).await;
    }
}

/// The lock could be held by nobody for its whole lease: the looks at fixed times met nobody who answers, and were not made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_late_is_looked_for_until_a_look_is_answered() {
    let rig = rig(ms(30_000)).await;
    rig.proxy.rule(Match::script().key_contains("n").nth(1), Action::CloseBeforeRequest);
    let guard = soon("the grant", rig.client.lock("n").acquire().lease(HOUR).into_future()).await;
    let first = rig.sent("n", 2).await;
    assert_eq!(guard.unwrap().unwrap().unlock().await.unwrap(), Unlocked::Released);
    // The first look may be answered; from the next on nobody answers.
    for nth in 2..100 {
        rig.proxy.rule(Match::script().key_contains("n").nth(nth), Action::CloseBeforeRequest);
    }
    // The last of them has been given up by then: 4.15 s after the release it began, for 3 s, and a try may take 2.5 s.
    tokio::time::sleep(ms(11_000)).await;
    rig.arrives(&first, "n");
    rig.proxy.clear_rules();
    until("what came late is given back", || !rig.exists("n")).await;
}

/// Beside the owner's write hold the last of its read holds is counted down alone, and an entry without an answer stayed counted: the read
/// hold that nobody had was left when the write hold had gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_without_an_answer_beside_a_write_hold_is_removed_when_that_has_gone() {
    let rig = rig(ms(30_000)).await;
    let (lock, owner) = (rig.client.read_write_lock("n"), rig.client.owner());
    let reads = || lock.read().acquire().owner(&owner).lease(HOUR).into_future();
    // The server knows the scripts.
    let warm = [soon("a read hold", reads()).await, soon("an entry", reads()).await];
    for reading in warm {
        reading.unwrap().unwrap().unlock().await.unwrap();
    }
    let writing = lock.write().acquire().owner(&owner).lease(HOUR).await.unwrap().unwrap();
    let first = soon("a read hold", reads()).await.unwrap().unwrap();
    rig.proxy.rule(Match::script().key_contains("n").nth(1), Action::CloseAfterRequest);
    let second = soon("an entry", reads()).await.unwrap().unwrap();
    let count = rig.server.cmd(&["HVALS", "n"]).unwrap();
    assert!(format!("{count:?}").contains("\"3\""), "the entry and its repeat are counted: {count:?}");
    for reading in [second, first] {
        reading.unlock().await.unwrap();
    }
    assert!(rig.exists("n"), "the write hold is there");
    writing.unlock().await.unwrap();
    until("what was counted too much is removed", || !rig.exists("n")).await;
}

/// Its last guard had gone while it was entered once more, and the request that was to take that entry back was lost without a trace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_could_not_be_taken_back_beside_a_write_hold_is_removed_when_that_has_gone() {
    let rig = rig(ms(30_000)).await;
    let (lock, owner) = (rig.client.read_write_lock("n"), rig.client.owner());
    let reads = || lock.read().acquire().owner(&owner).lease(HOUR).into_future();
    // The server knows the scripts.
    let warm = [soon("a read hold", reads()).await, soon("an entry", reads()).await];
    for reading in warm {
        reading.unwrap().unwrap().unlock().await.unwrap();
    }
    let writing = lock.write().acquire().owner(&owner).lease(HOUR).await.unwrap().unwrap();
    let first = soon("a read hold", reads()).await.unwrap().unwrap();
    let gate = Gate::new();
    let entry = rig
        .proxy
        .rule(Match::script().key_contains("n").nth(1), Action::HoldReplyUntilReleased(gate.clone()));
    let takes_back = rig.proxy.rule(Match::script().key_contains("n").nth(2), Action::CloseBeforeRequest);
    let (other, same) = (rig.client.read_write_lock("n"), owner.clone());
    let entering = tokio::spawn(async move { other.read().acquire().owner(&same).lease(HOUR).await });
    rig.proxy.wait_for(SOON, |log| log.fired(entry) == 1).await.unwrap();
    let leaving = tokio::spawn(first.unlock());
    // It waits for the entry.
    until("the guard has gone", || rig.client.stats().background_jobs > 0).await;
    gate.release();
    let entered = soon("the end of the entry", entering).await.unwrap();
    assert!(!matches!(entered, Ok(Some(_))), "{entered:?}");
    soon("the end of the release", leaving).await.unwrap().unwrap();
    rig.proxy.wait_for(SOON, |log| log.fired(takes_back) == 1).await.unwrap();
    writing.unlock().await.unwrap();
    until("what was counted too much is removed", || !rig.exists("n")).await;
}

/// It was looked for when the write hold had gone, once; what came after that look kept writers out for the whole lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_comes_after_the_end_of_the_write_hold_beside_which_it_was_asked_for_is_removed() {
    let rig = rig(ms(30_000)).await;
    let (lock, owner) = (rig.client.read_write_lock("n"), rig.client.owner());
    let reads = || lock.read().acquire().owner(&owner).lease(HOUR).wait(Wait::AtMost(ms(300))).into_future();
    soon("a read hold", reads()).await.unwrap().unwrap().unlock().await.unwrap();
    let writing = lock.write().acquire().owner(&owner).lease(HOUR).await.unwrap().unwrap();
    for nth in 1..200 {
        rig.proxy.rule(Match::script().key_contains("n").nth(nth), Action::CloseBeforeRequest);
    }
    let refused = soon("the end of the acquire", reads()).await;
    assert!(!matches!(refused, Ok(Some(_))), "{refused:?}");
    let (mut entry, asks) = (Vec::new(), READ_ACQUIRE.sha1().as_bytes());
    let asked = rig.proxy.wait_for(SOON, |log| {
        let mut asked = log.requests().filter(|request| request.args.iter().any(|arg| arg == asks));
        entry = asked.next_back().unwrap().args.clone();
        true
    });
    asked.await.unwrap();
    rig.proxy.clear_rules();
    // The first look, after 150 ms, finds the write hold and asks nobody.
    tokio::time::sleep(ms(500)).await;
    writing.unlock().await.unwrap();
    until("the write hold is gone", || !rig.exists("n")).await;
    // The look that comes with the end of the write hold is over by then, and the last one is four seconds away.
    tokio::time::sleep(ms(300)).await;
    rig.arrives(&entry, "n");
    until("what came late is given back", || !rig.exists("n")).await;
}

/// It was looked for until its lease ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_went_missing_is_looked_for_no_more_once_the_server_refuses_that() {
    let rig = rig(ms(30_000)).await;
    let owner = rig.client.owner();
    for nth in 1..200 {
        rig.proxy.rule(Match::script().key_contains("n").nth(nth), Action::CloseBeforeRequest);
    }
    let lock = rig.client.lock("n");
    let asked = lock.acquire().owner(&owner).lease(HOUR).wait(Wait::AtMost(ms(300))).into_future();
    assert!(!matches!(soon("the end of the acquire", asked).await, Ok(Some(_))));
    rig.server.cmd(&["SET", "n", "no lock"]).unwrap();
    rig.proxy.clear_rules();
    let quiet = async {
        loop {
            rig.server.reset_command_counts().unwrap();
            // Looks are three seconds apart at most.
            tokio::time::sleep(ms(4_000)).await;
            let counts = rig.server.command_counts().unwrap();
            if !counts.keys().any(|command| command.starts_with("eval")) {
                break;
            }
        }
    };
    tokio::time::timeout(SOON, quiet).await.expect("the looks end");
}
