//! One owner that two processes use, because it was written out as text: each of them has a hold of its own, and none takes the
//! other one's away. The server itself is the witness.

use std::{future::IntoFuture, pin::Pin, time::Duration};

use redlatch::{AnyGuard, Client, ErrorKind, Guard, Owner, Unlocked, Wait, scripts};
use redlatch_testkit::{
    proxy::{Action, Gate, Match, Proxy, RuleId},
    server::RedisServer,
};

use crate::{
    fixture::{SOON, ms, soon},
    kinds::{AnyLock, Face},
};

/// Two processes and a stranger, each as a client. The first two have a proxy each.
struct Rig {
    server: RedisServer,
    proxies: [Proxy; 2],
    clients: [Client; 2],
    stranger: Client,
}

async fn rig() -> Rig {
    rig_within(ms(60_000)).await
}

async fn rig_within(response_timeout: Duration) -> Rig {
    let server = RedisServer::start().unwrap();
    for script in scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxies = [Proxy::start(&server.url()).unwrap(), Proxy::start(&server.url()).unwrap()];
    let connect = async |url: String| {
        let builder = Client::builder().url(url).watchdog_lease(ms(60_000));
        builder.response_timeout(response_timeout).connect().await.unwrap()
    };
    let clients = [connect(proxies[0].url()).await, connect(proxies[1].url()).await];
    let stranger = Client::connect(&server.url()).await.unwrap();
    Rig { server, proxies, clients, stranger }
}

/// The kinds that can be entered again. A read hold comes to be alone, or inside the write hold of its owner.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Of(Face),
    Read,
    ReadInWrite,
}

const KINDS: [Kind; 7] = [
    Kind::Of(Face::Plain),
    Kind::Of(Face::Spin),
    Kind::Of(Face::Fair),
    Kind::Of(Face::Fenced),
    Kind::Of(Face::Write),
    Kind::Read,
    Kind::ReadInWrite,
];

impl Kind {
    async fn acquire(
        self,
        client: &Client,
        name: &str,
        owner: &Owner,
        wait: Wait,
    ) -> Result<Option<Guard>, redlatch::Error> {
        match self {
            Kind::Of(face) => AnyLock::new(face, client, name).acquire().owner(owner).wait(wait).await,
            Kind::Read | Kind::ReadInWrite => {
                let lock = client.read_write_lock(name);
                let guard = lock.read().acquire().owner(owner).wait(wait).await;
                guard.map(|guard| guard.map(AnyGuard::into_guard))
            }
        }
    }

    /// Whether a stranger gets in that the owner keeps out as long as it holds.
    async fn lets_in(self, stranger: &Client, name: &str) -> bool {
        let face = if let Kind::Of(face) = self { face } else { Face::Write };
        AnyLock::new(face, stranger, name).try_lock().await.unwrap().is_some()
    }

    fn field(self, owner: &Owner) -> String {
        if self == Kind::Of(Face::Write) { format!("{}:write", owner.to_text()) } else { owner.to_text() }
    }
}

impl Rig {
    /// An owner of the first process as both have it.
    /// An acquire of the first process that waits behind a hold of that process.
    fn in_line(
        &self,
        name: &str,
        owner: &Owner,
    ) -> Pin<Box<dyn Future<Output = Result<Option<Guard>, redlatch::Error>> + Send>> {
        let (lock, owner) = (self.clients[0].lock(name), owner.clone());
        let waits = async move { lock.acquire().owner(&owner).wait(Wait::Forever).await };
        let mut waiter: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(waits);
        let waker = std::task::Waker::noop();
        let is_pending = waiter.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending();
        assert!(is_pending, "it is in line");
        waiter
    }

    /// The first request of a script that the first process sent.
    fn sent(&self, script: &scripts::Script) -> Option<Vec<Vec<u8>>> {
        let of_it = |args: &Vec<Vec<u8>>| args.iter().any(|arg| arg == script.sha1().as_bytes());
        self.proxies[0].with_log(|log| log.requests().map(|request| request.args.clone()).find(of_it))
    }

    fn owner(&self) -> [Owner; 2] {
        let owner = self.clients[0].owner();
        let read = owner.to_text().parse().unwrap();
        [owner, read]
    }

    #[track_caller]
    fn assert_count(&self, kind: Kind, name: &str, owner: &Owner, count: u32, when: &str) {
        let found = self.server.cmd(&["HGET", name, &kind.field(owner)]).unwrap();
        let found = match found {
            redis::Value::Nil => 0,
            redis::Value::BulkString(text) => String::from_utf8(text).unwrap().parse().unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(found, count, "{kind:?}: {when}");
    }

    /// Until everything that goes on in the background is done.
    async fn quiet(&self) {
        soon("quiet", async {
            while self.clients.iter().any(|client| client.stats().background_jobs > 0) {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    }

    async fn fired(&self, process: usize, rule: RuleId) {
        self.proxies[process].wait_for(SOON, |log| log.fired(rule) > 0).await.unwrap();
    }

    /// Both processes hold under one owner: gives back one hold and then the other.
    async fn give_back(&self, kind: Kind, name: &str, owner: &Owner, one: Guard, two: Guard) {
        self.assert_count(kind, name, owner, 2, "both hold");
        assert_eq!(one.unlock().await.unwrap(), Unlocked::StillHeld(1), "{kind:?}");
        assert!(two.is_valid(), "{kind:?}");
        assert!(!kind.lets_in(&self.stranger, name).await, "{kind:?}: a stranger beside a valid hold");
        self.assert_count(kind, name, owner, 1, "one holds");
        assert_eq!(two.unlock().await.unwrap(), Unlocked::Released, "{kind:?}");
        assert!(kind.lets_in(&self.stranger, name).await, "{kind:?}: it is free");
    }
}

fn script(script: &scripts::Script) -> Match {
    Match::script().arg_contains(script.sha1())
}

/// R5 between processes: both were granted the same free lock, and it was counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_that_acquire_under_one_owner_at_once_hold_twice() {
    let rig = rig().await;
    for (nth, (kind, wait)) in
        KINDS.into_iter().flat_map(|kind| [Wait::No, Wait::Forever].map(|wait| (kind, wait))).enumerate()
    {
        let name = format!("x{nth}");
        let owner = rig.owner();
        let outer = match kind {
            Kind::ReadInWrite => {
                Kind::Of(Face::Write).acquire(&rig.clients[0], &name, &owner[0], wait).await.unwrap()
            }
            _ => None,
        };
        // Both have asked before one of them knows the answer.
        let gate = Gate::new();
        let held = [0, 1].map(|process| {
            rig.proxies[process].rule(Match::script().nth(1), Action::HoldReplyUntilReleased(gate.clone()))
        });
        let ask = |process: usize| kind.acquire(&rig.clients[process], &name, &owner[process], wait);
        let opened = async {
            rig.fired(0, held[0]).await;
            rig.fired(1, held[1]).await;
            gate.release();
        };
        let (one, two, ()) = soon("both", async { tokio::join!(ask(0), ask(1), opened) }).await;
        let guards = (one.unwrap(), two.unwrap());
        rig.proxies.iter().for_each(Proxy::clear_rules);
        let (Some(one), Some(two)) = guards else { panic!("{kind:?} {wait:?}: the owner was kept out") };
        // The one that enters cannot know whether the last token drawn is of this hold.
        assert!(one.token() != two.token() || one.token().is_none(), "{kind:?}: each draws its own");
        assert_eq!(one.token().is_some(), kind == Kind::Of(Face::Fenced));
        if let Some(outer) = outer {
            outer.unlock().await.unwrap();
        }
        rig.give_back(kind, &name, &owner[0], one, two).await;
    }
}

/// The last token drawn is a stranger's, whose writes must stay stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_enters_a_hold_without_a_token_draws_one() {
    let rig = rig().await;
    for face in [Face::Plain, Face::Fair, Face::Spin, Face::Write] {
        let name = format!("{face:?}");
        let [owner, read] = rig.owner();
        let lock = |client: &Client| AnyLock::new(face, client, name.as_str());
        let stranger = lock(&rig.stranger).acquire().fenced().await.unwrap().unwrap();
        let token = stranger.token().unwrap();
        stranger.unlock().await.unwrap();
        let outer = lock(&rig.clients[0]).acquire().owner(&owner).await.unwrap().unwrap();
        let inner = lock(&rig.clients[1]).acquire().owner(&read).fenced().await.unwrap().unwrap();
        assert!(inner.token().unwrap() > token, "{face:?}");
        rig.give_back(Kind::Of(face), &name, &owner, inner, outer).await;
        let again = lock(&rig.stranger);
        let stranger = again.acquire().wait(Wait::Forever).fenced();
        let stranger = soon("a token", stranger.into_future()).await.unwrap().unwrap();
        assert!(stranger.token().unwrap() > token, "{face:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_enters_a_read_hold_without_a_token_draws_one() {
    let rig = rig().await;
    let [owner, read] = rig.owner();
    let lock = |client: &Client| client.read_write_lock("x").read().clone();
    let stranger = lock(&rig.stranger).acquire().fenced().await.unwrap().unwrap();
    let token = stranger.token().unwrap();
    stranger.unlock().await.unwrap();
    let outer = lock(&rig.clients[0]).acquire().owner(&owner).await.unwrap().unwrap();
    let inner = lock(&rig.clients[1]).acquire().owner(&read).fenced().await.unwrap().unwrap();
    assert!(inner.token().unwrap() > token);
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
}

/// The same in whatever order it comes, in a lock that the last round has just left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_that_acquire_under_one_owner_again_and_again_hold_twice() {
    let rig = rig().await;
    for kind in KINDS {
        let name = format!("{kind:?}");
        for round in 0..50 {
            let owner = rig.owner();
            let outer = match kind {
                Kind::ReadInWrite => Kind::Of(Face::Write)
                    .acquire(&rig.clients[0], &name, &owner[0], Wait::Forever)
                    .await
                    .unwrap(),
                _ => None,
            };
            let ask = |process: usize| {
                let (client, owner, name) =
                    (rig.clients[process].clone(), owner[process].clone(), name.clone());
                tokio::spawn(async move { kind.acquire(&client, &name, &owner, Wait::Forever).await })
            };
            let (one, two) = soon("both", async { tokio::join!(ask(0), ask(1)) }).await;
            let (one, two) = (one.unwrap().unwrap().unwrap(), two.unwrap().unwrap().unwrap());
            if let Some(outer) = outer {
                outer.unlock().await.unwrap();
            }
            if round % 10 == 0 {
                rig.give_back(kind, &name, &owner[0], one, two).await;
            } else {
                rig.assert_count(kind, &name, &owner[0], 2, "both hold");
                let (one, two) = soon("both", async { tokio::join!(one.unlock(), two.unlock()) }).await;
                let mut ends = [one.unwrap(), two.unwrap()];
                ends.sort_by_key(|end| matches!(end, Unlocked::Released));
                assert_eq!(ends, [Unlocked::StillHeld(1), Unlocked::Released], "{kind:?} round {round}");
            }
        }
    }
}

/// Read holds whose timeout keys have ended are no holds, also while another reader keeps the hash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_owner_whose_read_hold_has_ended_begins_anew() {
    let rig = rig().await;
    let owner = rig.owner();
    let other = rig.stranger.read_write_lock("x").read().lock().await.unwrap();
    rig.server.cmd(&["HSET", "x", &owner[0].to_text(), "3"]).unwrap();
    let one = Kind::Read.acquire(&rig.clients[0], "x", &owner[0], Wait::No).await.unwrap().unwrap();
    rig.assert_count(Kind::Read, "x", &owner[0], 1, "the first hold");
    let two = Kind::Read.acquire(&rig.clients[1], "x", &owner[1], Wait::No).await.unwrap().unwrap();
    other.into_guard().unlock().await.unwrap();
    rig.give_back(Kind::Read, "x", &owner[0], one, two).await;
}

/// What can be entered once only was granted to both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_processes_gets_what_its_owner_cannot_enter_twice() {
    let rig = rig().await;
    for (face, name) in [(Face::NonReentrant, "plain"), (Face::NonReentrantFair, "fair")] {
        for wait in [Wait::No, Wait::Forever] {
            let (kind, [_, owner]) = (Kind::Of(face), rig.owner());
            let owner = [owner.clone(), owner.to_text().parse().unwrap()];
            let gate = Gate::new();
            let held = [0, 1].map(|process| {
                let hold = Action::HoldReplyUntilReleased(gate.clone());
                rig.proxies[process].rule(Match::script().nth(1), hold)
            });
            let ask = |process: usize| kind.acquire(&rig.clients[process], name, &owner[process], wait);
            let opened = async {
                rig.fired(0, held[0]).await;
                rig.fired(1, held[1]).await;
                gate.release();
            };
            let (one, two, ()) = soon("both", async { tokio::join!(ask(0), ask(1), opened) }).await;
            rig.proxies.iter().for_each(Proxy::clear_rules);
            let (guard, refused) = match (one, two) {
                (Ok(Some(guard)), Err(refused)) | (Err(refused), Ok(Some(guard))) => (guard, refused),
                (one, two) => panic!("{face:?} {wait:?}: {:?} and {:?}", one.is_ok(), two.is_ok()),
            };
            assert_eq!(refused.kind(), ErrorKind::AlreadyHeld);
            rig.quiet().await;
            rig.assert_count(kind, name, &owner[0], 1, "one holds");
            assert!(guard.is_valid() && !kind.lets_in(&rig.stranger, name).await);
            guard.unlock().await.unwrap();
            assert!(kind.lets_in(&rig.stranger, name).await);
        }
    }
}

/// What was given up was undone twice: once because nobody knew of a grant, and once more when its answer told of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_given_up_before_its_answer_leaves_the_hold_of_another_process_alone() {
    let rig = rig().await;
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::ReadInWrite) {
        // Read from text, and shown as text: the one is used as much elsewhere as the other.
        for asks in [1, 0] {
            let (name, owner, holds) = (format!("{kind:?}{asks}"), rig.owner(), 1 - asks);
            let guard =
                kind.acquire(&rig.clients[holds], &name, &owner[holds], Wait::No).await.unwrap().unwrap();
            let gate = Gate::new();
            let proxy = &rig.proxies[asks];
            let held = proxy.rule(Match::script().nth(1), Action::HoldReplyUntilReleased(gate.clone()));
            let wait = Wait::AtMost(ms(50));
            let _ = kind.acquire(&rig.clients[asks], &name, &owner[asks], wait).await;
            assert_eq!(proxy.fired(held), 1);
            gate.release();
            proxy.clear_rules();
            rig.quiet().await;
            rig.assert_count(kind, &name, &owner[0], 1, "one holds");
            assert!(guard.is_valid() && !kind.lets_in(&rig.stranger, &name).await);
            guard.unlock().await.unwrap();
        }
    }
}

/// What never arrived was undone, and that took away what the other process had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_never_arrives_takes_nothing_away_from_another_process() {
    let rig = rig().await;
    for kind in KINDS.into_iter().filter(|kind| *kind != Kind::ReadInWrite) {
        for asks in [1, 0] {
            let (name, owner, holds) = (format!("{kind:?}{asks}"), rig.owner(), 1 - asks);
            let guard =
                kind.acquire(&rig.clients[holds], &name, &owner[holds], Wait::No).await.unwrap().unwrap();
            let proxy = &rig.proxies[asks];
            for ask in [
                &scripts::ACQUIRE,
                &scripts::FAIR_ACQUIRE,
                &scripts::READ_ACQUIRE,
                &scripts::WRITE_ACQUIRE,
                &scripts::ENTER,
                &scripts::READ_ENTER,
                &scripts::WRITE_ENTER,
            ] {
                proxy.rule(script(ask), Action::CloseBeforeRequest);
            }
            let wait = Wait::AtMost(ms(50));
            assert!(kind.acquire(&rig.clients[asks], &name, &owner[asks], wait).await.is_err());
            rig.quiet().await;
            proxy.clear_rules();
            rig.assert_count(kind, &name, &owner[0], 1, "one holds");
            assert!(guard.is_valid() && !kind.lets_in(&rig.stranger, &name).await);
            guard.unlock().await.unwrap();
        }
    }
}

/// LaneStep the queue gave back what the other process had been granted from the owner's place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_the_queue_takes_nothing_away_from_another_process() {
    let rig = rig().await;
    let kind = Kind::Of(Face::Fair);
    for asks in [1, 0] {
        let (name, owner, holds) = (format!("x{asks}"), rig.owner(), 1 - asks);
        let first = rig.stranger.fair_lock(name.as_str()).lock().await.unwrap();
        let (client, waits, of) = (rig.clients[asks].clone(), owner[asks].clone(), name.clone());
        let waiter = tokio::spawn(async move { kind.acquire(&client, &of, &waits, Wait::Forever).await });
        let queue = format!("redisson_lock_queue:{{{name}}}");
        soon("a place in the queue", async {
            while rig.server.cmd(&["LLEN", &queue]).unwrap() != redis::Value::Int(1) {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        // The waiter's next look comes too late.
        rig.proxies[asks].rule(script(&scripts::FAIR_ACQUIRE), Action::DelayRequest(ms(3_000)));
        rig.proxies[asks].rule(script(&scripts::ENTER), Action::DelayRequest(ms(3_000)));
        first.unlock().await.unwrap();
        let guard = kind.acquire(&rig.clients[holds], &name, &owner[holds], Wait::No).await.unwrap();
        let guard = guard.expect("the place is the owner's");
        waiter.abort();
        let _ = waiter.await;
        rig.quiet().await;
        rig.proxies[asks].clear_rules();
        rig.assert_count(kind, &name, &owner[0], 1, "one holds");
        assert!(guard.is_valid() && !kind.lets_in(&rig.stranger, &name).await);
        guard.unlock().await.unwrap();
    }
}

/// A release that hands over to a waiter of its process, and that waiter's own look, are counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_owner_that_waits_is_granted_once() {
    let rig = rig().await;
    for face in [Face::Plain, Face::Fair, Face::Write] {
        let (kind, name) = (Kind::Of(face), format!("{face:?}"));
        for round in 0..30 {
            let owner = rig.clients[0].owner();
            let _ = owner.to_text();
            let first = AnyLock::new(face, &rig.clients[0], name.as_str()).lock().await.unwrap();
            let (client, waits, of) = (rig.clients[0].clone(), owner.clone(), name.clone());
            let waiter = tokio::spawn(async move { kind.acquire(&client, &of, &waits, Wait::Forever).await });
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            first.unlock().await.unwrap();
            let guard = soon("the next grant", waiter).await.unwrap().unwrap().unwrap();
            rig.quiet().await;
            rig.assert_count(kind, &name, &owner, 1, "one holds");
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{face:?} round {round}");
        }
    }
}

/// A transfer that came late would set the count to one, though another process had entered meanwhile. So none is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_moved_to_an_owner_that_was_written_out() {
    let rig = rig().await;
    let (kind, owner) = (Kind::Of(Face::Plain), rig.owner());
    let first = rig.clients[0].lock("x").lock().await.unwrap();
    let mut waiter = rig.in_line("x", &owner[0]);
    first.unlock().await.unwrap();
    let one = soon("the next grant", &mut waiter).await.unwrap().unwrap();
    let two = kind.acquire(&rig.clients[1], "x", &owner[1], Wait::No).await.unwrap().unwrap();
    assert_eq!(rig.sent(&scripts::TRANSFER), None);
    rig.give_back(kind, "x", &owner[0], one, two).await;
}

/// R3 for what moves a hold: the request arrives when its giver holds again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_transfer_does_not_end_the_next_hold_of_its_giver() {
    let rig = rig().await;
    let (giver, taker) = (rig.clients[0].owner(), rig.clients[0].owner());
    for round in 0..50 {
        let name = format!("x{round}");
        let lock = rig.clients[0].lock(name.as_str());
        let first = lock.acquire().owner(&giver).await.unwrap().unwrap();
        let lost = rig.proxies[0].rule(script(&scripts::TRANSFER), Action::CloseBeforeRequest);
        let mut waiter = rig.in_line(&name, &taker);
        first.unlock().await.unwrap();
        let second = soon("the next grant", &mut waiter).await.unwrap().unwrap();
        assert_eq!(second.unlock().await.unwrap(), Unlocked::Released);
        rig.proxies[0].remove_rule(lost);
        // A busy machine lets the turn of the process pass, in which holds are moved.
        let Some(late) = rig.sent(&scripts::TRANSFER) else { continue };
        let again = soon("an answer", lock.acquire().owner(&giver).into_future()).await;
        rig.server.cmd(&late).unwrap();
        match again {
            Err(error) => assert_eq!(error.kind(), ErrorKind::OwnerInDoubt, "{error}"),
            Ok(held) => {
                let held = held.expect("it is free");
                assert_eq!(held.unlock().await.unwrap(), Unlocked::Released, "its hold is there");
            }
        }
        return;
    }
    panic!("no hold was moved");
}

/// The write hold was given back once by the downgrade and once more because that was not answered; or a read hold that never came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_without_an_answer_takes_nothing_away_from_another_process() {
    let rig = rig_within(ms(1_000)).await;
    let (writes, reads) = (Kind::Of(Face::Write), Kind::Read);
    let parts = [&scripts::READ_ACQUIRE, &scripts::READ_ENTER];
    let cases = parts.into_iter().flat_map(|part| {
        [false, true].into_iter().flat_map(move |nested| [(part, nested, true), (part, nested, false)])
    });
    for (nth, (part, nested, arrives)) in cases.enumerate() {
        if std::ptr::eq(part, &scripts::READ_ACQUIRE) && nested {
            // It enters the hold that it has.
            continue;
        }
        let (name, [one, two]) = (format!("x{nth}"), rig.owner());
        let hold = async |kind: Kind, process: usize| {
            let owner = if process == 0 { &one } else { &two };
            kind.acquire(&rig.clients[process], &name, owner, Wait::No)
                .await
                .unwrap()
                .expect("its owner holds it")
        };
        let lock = rig.clients[0].read_write_lock(name.as_str());
        let writing = lock.write().acquire().owner(&one).await.unwrap().unwrap();
        let beside = if nested { Some(hold(reads, 0).await) } else { None };
        let (write, read) = (hold(writes, 1).await, hold(reads, 1).await);
        let cut = if arrives { Action::CloseAfterRequest } else { Action::CloseBeforeRequest };
        rig.proxies[0].rule(script(part), cut);
        assert!(writing.downgrade().await.is_err());
        rig.quiet().await;
        rig.proxies[0].clear_rules();
        if let Some(beside) = beside {
            beside.unlock().await.unwrap();
        }
        let reader = rig.stranger.read_write_lock(name.as_str());
        assert!(write.is_valid() && reader.read().try_lock().await.unwrap().is_none(), "{nested} {arrives}");
        write.unlock().await.unwrap();
        assert!(read.is_valid() && !reads.lets_in(&rig.stranger, &name).await, "{nested} {arrives}");
        let left = rig.server.cmd(&["HGET", &name, &reads.field(&one)]).unwrap();
        assert_ne!(left, redis::Value::Nil, "{nested} {arrives}");
        read.unlock().await.unwrap();
    }
}

/// What is passed to the owner that has it stays as it is, however often it was entered.
#[test]
fn a_lock_that_is_passed_to_its_own_owner_keeps_its_count() {
    let server = RedisServer::start().unwrap();
    let owner = "1b671a64-40d5-491e-99b0-da01ff1f3341:7";
    for count in ["1", "2"] {
        for (giver, token) in [(owner, "0"), (owner, "1"), ("gone:1", "0")] {
            server.cmd(&["DEL", "x", "t"]).unwrap();
            server.cmd(&["HSET", "x", owner, count]).unwrap();
            server.cmd(&["PEXPIRE", "x", "1000"]).unwrap();
            let source = scripts::TRANSFER.source();
            let reply =
                server.cmd(&["EVAL", source, "2", "x", "t", "7", giver, owner, "50000", token]).unwrap();
            let redis::Value::Array(reply) = reply else { panic!("{reply:?}") };
            assert_eq!(reply[..2], [redis::Value::Int(7), redis::Value::Int(1)]);
            let drawn = matches!(reply[2], redis::Value::Int(token) if token > 0);
            assert_eq!(drawn, token == "1");
            let hash = server.cmd(&["HGETALL", "x"]).unwrap();
            let text = |text: &str| redis::Value::BulkString(text.into());
            assert_eq!(hash, redis::Value::Array(vec![text(owner), text(count)]), "{giver}");
            let redis::Value::Int(left) = server.cmd(&["PTTL", "x"]).unwrap() else { panic!("no TTL") };
            assert!((40_000..=50_000).contains(&left), "{left}");
        }
    }
}

/// The read side let text in that was read off the server, and the write hold, whose owner nobody had been given, was passed on beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_from_the_server_gets_no_read_hold_beside_the_write_hold_of_another_task() {
    let client = Client::connect("memory:").await.unwrap();
    let lock = client.read_write_lock("read off");
    let writing = lock.write().lock().await.unwrap();
    let state = client.inspect("read off").await.unwrap();
    let text = state.holders[0].owner.strip_suffix(":write").unwrap_or(&state.holders[0].owner).to_owned();
    let owner: Owner = text.parse().unwrap();
    for refused in [
        lock.write().acquire().owner(&owner).await.map(drop),
        lock.read().acquire().owner(&owner).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotOwner);
    }
    // The one who has been given the owner may read beside it, under the text as well.
    let given = writing.owner();
    let reading = lock.read().acquire().owner(given).await.unwrap().unwrap();
    let again = lock.read().acquire().owner(&owner).await.unwrap().unwrap();
    assert!(reading.is_valid() && again.is_valid() && writing.is_valid());
}
