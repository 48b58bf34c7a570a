//! What a client remembers of what sentinels have said: nobody who is behind the times leads it back, and nobody who belongs to
//! another set leads it away.

use redlatch::{Client, ErrorKind, LossReason, Unlocked};
use redlatch_testkit::{
    net::ReservedPort,
    proxy::{Proxy, Scope},
    server::RedisServer,
};

use crate::{
    fixture::{ms, soon},
    replicated::ThereAndBack,
    sentinel_fakes::{FakeSentinel, exists, of_a_set, three_looks, until, url, uses},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_at_a_superseded_master_end_and_none_is_granted_there() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let way = Proxy::start(&new.url()).unwrap();
    let sentinels = [0; 3].map(|_| FakeSentinel::start(old.port()));
    let [first, second, third] = &sentinels;
    let builder = Client::builder().url(url(&[first, second, third])).watchdog_lease(ms(3_000));
    let client = builder.connect().await.unwrap();
    let renewed = client.lock("renewed").lock().await.unwrap();
    let fixed = client.lock("fixed").lock_with_lease(ms(3_000)).await.unwrap();
    // This client cannot reach the new master, and the old one goes on as if nothing had happened.
    way.refuse_new().unwrap();
    sentinels.iter().for_each(|one| one.say(|says| (says.port, says.epoch) = (way.port(), 2)));
    until("the news", || uses(&client, way.port())).await;
    let error = soon("an answer", client.lock("free").try_lock()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(!exists(&old, "free"), "nobody is granted anything there");
    for guard in [&renewed, &fixed] {
        assert_eq!(soon("the end of a hold", guard.lost()).await, LossReason::Expired);
    }
    // Who can reach the new one has been granted them meanwhile.
    let other = Client::connect(&new.url()).await.unwrap();
    let theirs = other.lock("renewed").try_lock().await.unwrap().expect("nobody holds it there");
    assert!(!renewed.is_valid() && theirs.is_valid());
    way.heal().unwrap();
    assert!(soon("a look", client.lock("renewed").lock_for(ms(50))).await.unwrap_or(None).is_none());
    let free = soon("a grant of the new master", client.lock("free").lock()).await.unwrap();
    assert!(exists(&new, "free"));
    assert_eq!(free.unlock().await.unwrap(), Unlocked::Released);
}

/// The sentinel that led the change was not through with the replicas. So long what it said was taken for a promise, which ranks above what all others said
/// of the same epoch, and a client that could not reach the new master was granted at the old one beside those at the new one, up to `failover-timeout`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_master_that_all_sentinels_name_counts_though_its_replicas_are_not_told_yet() {
    let old = RedisServer::start().unwrap();
    let nobody = ReservedPort::new(0).unwrap();
    let sentinels = [0; 3].map(|_| FakeSentinel::start(old.port()));
    let [first, second, third] = &sentinels;
    let client = Client::connect(&url(&[first, second, third])).await.unwrap();
    first.say(|says| says.promotes = Some(nobody.port()));
    sentinels.iter().for_each(|one| one.say(|says| (says.port, says.epoch) = (nobody.port(), 2)));
    until("the news", || uses(&client, nobody.port())).await;
    let error = soon("an answer", client.lock("free").try_lock()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(!exists(&old, "free"), "nobody is granted anything there");
}

/// Each ordinary change counted three times: a promise, a promise of the next epoch, and that epoch. Each cut all connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_one_from_the_promise_to_its_end() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let sentinels = [0; 3].map(|_| FakeSentinel::start(old.port()));
    let [first, second, third] = &sentinels;
    let client = Client::connect(&url(&[first, second, third])).await.unwrap();
    first.say(|says| says.promotes = Some(new.port()));
    until("the promise", || uses(&client, new.port())).await;
    let comes = Client::connect(&url(&[first, second, third])).await.unwrap();
    assert!(uses(&comes, new.port()), "it says that it is the master");
    let guard = client.lock("n").lock().await.unwrap();
    let connections = || {
        let list = new.cmd(&["CLIENT", "LIST", "TYPE", "NORMAL"]).unwrap();
        let list: String = redis::from_redis_value(list).unwrap();
        let ours = list.lines().filter(|line| !line.contains("cmd=client|list"));
        let mut ids: Vec<_> = ours.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    let before = connections();
    assert!(!before.is_empty());
    // The replica says that it is a master, the others hear of it, and at last the other replicas have been told.
    first.say(|says| (says.port, says.epoch) = (new.port(), 2));
    three_looks(first).await;
    [second, third].iter().for_each(|one| one.say(|says| (says.port, says.epoch) = (new.port(), 2)));
    three_looks(first).await;
    first.say(|says| says.promotes = None);
    three_looks(first).await;
    let after = connections();
    assert!(before.iter().all(|id| after.contains(id)), "{before:?} {after:?}");
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

/// The sentinel that led the change ended before the others had heard of it, and they made the promoted server a replica again, which ends its connections. Where one more
/// sentinel was listed that had ended long ago, those that were heard were not most, and clients stayed at the replica for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promised_master_that_is_a_replica_again_is_left_though_few_sentinels_are_heard() {
    let (old, chosen) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second, third] = [0; 3].map(|_| FakeSentinel::start(old.port()));
    for (sentinel, id, others) in [
        (&first, "a1", ["a2", "a3", "a4"]),
        (&second, "a2", ["a1", "a3", "a4"]),
        (&third, "a3", ["a1", "a2", "a4"]),
    ] {
        sentinel.say(|says| (says.id, says.others) = (id.into(), others.map(String::from).to_vec()));
    }
    let client = Client::connect(&url(&[&first, &second, &third])).await.unwrap();
    let port = old.port().to_string();
    let demote = || {
        first.say(|says| says.silent = true);
        chosen.cmd(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
        chosen.cmd(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]).unwrap();
    };
    first.say(|says| says.promotes = Some(chosen.port()));
    until("the promise", || uses(&client, chosen.port())).await;
    demote();
    until("the way back", || uses(&client, old.port())).await;
    // So it is when the change was done and no other had heard of it.
    chosen.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
    first.say(|says| (says.promotes, says.port, says.epoch, says.silent) = (None, chosen.port(), 2, false));
    until("the change", || uses(&client, chosen.port())).await;
    demote();
    until("the way back again", || uses(&client, old.port())).await;
}

/// The sentinels that knew had failed over once more when the client heard only the one that knew of neither change. The server that it used was a replica then, and the client went back to
/// the first master, which was cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_sentinel_leads_nobody_back_from_a_master_that_copies_another_one() {
    let [old, chosen, next] = [0; 3].map(|_| RedisServer::start().unwrap());
    let [knows, stale] = [0; 2].map(|_| FakeSentinel::start(old.port()));
    let client = Client::connect(&url(&[&knows, &stale])).await.unwrap();
    knows.say(|says| (says.port, says.epoch) = (chosen.port(), 2));
    until("the change", || uses(&client, chosen.port())).await;
    knows.say(|says| says.silent = true);
    chosen.cmd(&["REPLICAOF", "127.0.0.1", &next.port().to_string()]).unwrap();
    chosen.cmd(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]).unwrap();
    three_looks(&stale).await;
    assert!(uses(&client, chosen.port()) && !exists(&old, "free"));
    knows.say(|says| (says.port, says.epoch, says.silent) = (next.port(), 3, false));
    until("the next change", || uses(&client, next.port())).await;
}

/// Two sentinels that fail over while the other one is down name different masters in one epoch, for good. Clients stayed at the one that was made a replica, and every second new
/// one did not connect, though all servers were well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_masters_in_one_epoch_the_one_that_is_a_master_is_used() {
    let (one, two) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second] = [&one, &two].map(|server| FakeSentinel::start(server.port()));
    second.say(|says| says.silent = true);
    let client = Client::connect(&url(&[&first, &second])).await.unwrap();
    client.lock("n").lock().await.unwrap().unlock().await.unwrap();
    one.cmd(&["REPLICAOF", "127.0.0.1", &two.port().to_string()]).unwrap();
    second.say(|says| says.silent = false);
    until("the other one", || uses(&client, two.port())).await;
    soon("a grant", client.lock("n").lock()).await.unwrap().unlock().await.unwrap();
    for order in [[&first, &second], [&second, &first]] {
        let new = soon("a connection", Client::connect(&url(&order))).await.unwrap();
        assert!(uses(&new, two.port()));
    }
}

/// The chosen replica hung, and the master was back: no new client connected for up to `failover-timeout`, though all sentinels named the master and it worked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promise_that_is_not_kept_keeps_no_new_client_waiting() {
    let (old, chosen) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let (old, way) = (Proxy::start(&old.url()).unwrap(), Proxy::start(&chosen.url()).unwrap());
    let sentinels = [0; 3].map(|_| FakeSentinel::start(old.port()));
    let [first, second, third] = &sentinels;
    first.say(|says| says.promotes = Some(way.port()));
    way.stall(Scope::Both);
    let client = soon("a connection", Client::connect(&url(&[first, second, third]))).await.unwrap();
    assert!(uses(&client, old.port()));
    // Nor one that came while the master was away.
    old.refuse_new().unwrap();
    let coming = tokio::spawn({
        let url = url(&[first, second, third]);
        async move { Client::connect(&url).await }
    });
    let asked = way.connections_accepted();
    until("a try of the chosen one", || way.connections_accepted() > asked).await;
    old.heal().unwrap();
    let client = soon("a connection", coming).await.unwrap().unwrap();
    assert!(uses(&client, old.port()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_the_new_master_has_is_kept_when_that_one_is_reached_late() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let way = Proxy::start(&new.url()).unwrap();
    let sentinel = FakeSentinel::start(old.port());
    // Neither renewals nor deadlines are due while the test lasts.
    let client =
        Client::builder().url(url(&[&sentinel])).watchdog_lease(ms(120_000)).connect().await.unwrap();
    let kept = client.lock("kept").lock().await.unwrap();
    let missed = client.lock("missed").lock().await.unwrap();
    new.cmd(&["HSET", "kept", &kept.owner().to_text(), "1"]).unwrap();
    new.cmd(&["PEXPIRE", "kept", "60000"]).unwrap();
    way.refuse_new().unwrap();
    sentinel.say(|says| (says.port, says.epoch) = (way.port(), 2));
    until("the news", || uses(&client, way.port())).await;
    three_looks(&sentinel).await;
    assert!(kept.is_valid() && missed.is_valid(), "nobody knows anything of them");
    way.heal().unwrap();
    assert_eq!(soon("the notice", missed.lost()).await, LossReason::Deleted);
    assert_eq!(kept.unlock().await.unwrap(), Unlocked::Released);
    assert!(!exists(&new, "kept"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_sentinel_leads_nobody_back_though_no_other_answers() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second, stale] = [0; 3].map(|_| FakeSentinel::start(old.port()));
    // Neither renewals nor deadlines are due while the test lasts.
    let builder = Client::builder().url(url(&[&first, &second, &stale])).watchdog_lease(ms(120_000));
    let client = builder.connect().await.unwrap();
    for good in [&first, &second] {
        good.say(|says| (says.port, says.epoch) = (new.port(), 2));
    }
    until("the move", || uses(&client, new.port())).await;
    let held = client.lock("held").lock().await.unwrap();
    for good in [&first, &second] {
        good.say(|says| says.silent = true);
    }
    three_looks(&stale).await;
    assert!(uses(&client, new.port()), "{}", client.store());
    assert!(held.is_valid(), "{:?}", held.loss());
    let granted = client.lock("granted").lock().await.unwrap();
    assert!(exists(&new, "granted") && !exists(&old, "granted"));
    for guard in [held, granted] {
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_sentinels_with_news_are_heard_beside_a_quick_one_that_is_stale() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second, stale] = [0; 3].map(|_| FakeSentinel::start(old.port()));
    let client = Client::connect(&url(&[&first, &second, &stale])).await.unwrap();
    for good in [&first, &second] {
        good.say(|says| (says.port, says.epoch, says.delay) = (new.port(), 2, ms(240)));
    }
    until("the move", || uses(&client, new.port())).await;
    // Who comes now has nothing to remember.
    let late = Client::connect(&url(&[&stale, &first, &second])).await.unwrap();
    assert!(uses(&late, new.port()), "{}", late.store());
    three_looks(&stale).await;
    assert!(uses(&client, new.port()) && uses(&late, new.port()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_were_set_up_anew_are_followed_when_most_insist() {
    let (before, after) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let sentinels = [0; 3].map(|_| FakeSentinel::start(before.port()));
    let [first, second, third] = &sentinels;
    sentinels.iter().for_each(|one| one.say(|says| says.epoch = 7));
    let builder = Client::builder().url(url(&[first, second, third])).watchdog_lease(ms(120_000));
    let client = builder.connect().await.unwrap();
    let held = client.lock("held").lock().await.unwrap();
    // As after SENTINEL REMOVE and SENTINEL MONITOR.
    third.say(|says| says.silent = true);
    for one in [first, second] {
        one.say(|says| (says.port, says.epoch) = (after.port(), 0));
    }
    three_looks(first).await;
    assert!(uses(&client, before.port()) && held.is_valid(), "not at once");
    until("the move", || uses(&client, after.port())).await;
    assert_eq!(soon("the notice", held.lost()).await, LossReason::Deleted);
    // Their epochs count from there.
    first.say(|says| (says.port, says.epoch) = (before.port(), 1));
    until("the move back", || uses(&client, before.port())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_of_another_set_lead_nobody_away() {
    let (ours, theirs, next) =
        (RedisServer::start().unwrap(), RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second] = [0; 2].map(|_| FakeSentinel::start(ours.port()));
    let called = |one: &FakeSentinel, id: &str, other: &str| {
        one.say(|says| (says.id, says.others) = (id.to_owned(), vec![other.to_owned()]));
    };
    called(&first, "a", "b");
    called(&second, "b", "a");
    let client = Client::connect(&url(&[&first, &second])).await.unwrap();
    let held = client.lock("held").lock().await.unwrap();
    // The address of the first one has got another owner, with the same name for its master, as so often.
    called(&first, "x", "y");
    first.say(|says| (says.port, says.epoch) = (theirs.port(), 99));
    three_looks(&first).await;
    assert!(uses(&client, ours.port()), "{}", client.store());
    second.say(|says| says.silent = true);
    three_looks(&first).await;
    assert!(uses(&client, ours.port()), "though nobody else answers: {}", client.store());
    assert!(held.is_valid() && !exists(&theirs, "held"));
    // Its own are followed, and one that is new among them as well.
    second.say(|says| (says.silent, says.port, says.epoch) = (false, next.port(), 2));
    until("the move", || uses(&client, next.port())).await;
    called(&first, "c", "b");
    first.say(|says| (says.port, says.epoch) = (ours.port(), 3));
    until("the move back", || uses(&client, ours.port())).await;
}

/// Two environments had the same private addresses, and one name in the URL came to lead to a sentinel of the other. It named the master that was used, so it was believed,
/// and the greater epoch of its set hid every later change of ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_of_another_set_that_names_a_master_of_our_address_is_not_believed() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second, third, stranger] = [0; 4].map(|_| FakeSentinel::start(old.port()));
    of_a_set(&first, "a1", ["a2", "a3"]);
    of_a_set(&second, "a2", ["a1", "a3"]);
    of_a_set(&third, "a3", ["a1", "a2"]);
    of_a_set(&stranger, "x1", ["x2", "x3"]);
    let client = Client::connect(&url(&[&first, &second, &third, &stranger])).await.unwrap();
    three_looks(&stranger).await;
    stranger.say(|says| says.epoch = 9);
    three_looks(&stranger).await;
    for ours in [&first, &second, &third] {
        ours.say(|says| (says.port, says.epoch) = (new.port(), 2));
    }
    until("the move", || uses(&client, new.port())).await;
}

/// All of ours were slow for a moment. The one of another set that was heard alone, and named a master of that address, was taken for all there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_of_another_set_that_is_heard_alone_for_a_moment_is_not_believed() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second, third, stranger] = [0; 4].map(|_| FakeSentinel::start(old.port()));
    of_a_set(&first, "a1", ["a2", "a3"]);
    of_a_set(&second, "a2", ["a1", "a3"]);
    of_a_set(&third, "a3", ["a1", "a2"]);
    of_a_set(&stranger, "x1", ["x2", "x3"]);
    let client = Client::connect(&url(&[&first, &second, &third, &stranger])).await.unwrap();
    let ours = [&first, &second, &third];
    ours.iter().for_each(|one| one.say(|says| says.silent = true));
    stranger.say(|says| says.epoch = 9);
    three_looks(&stranger).await;
    for one in ours {
        one.say(|says| (says.silent, says.port, says.epoch) = (false, new.port(), 2));
    }
    until("the move", || uses(&client, new.port())).await;
}

/// The only sentinel of a small set told nothing of itself, which may be because it may not be asked, and was believed beside those that do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_tells_nothing_of_itself_is_not_believed_beside_those_that_do() {
    let (ours, theirs) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second, third] = [0; 3].map(|_| FakeSentinel::start(ours.port()));
    of_a_set(&first, "a1", ["a2", "a3"]);
    of_a_set(&second, "a2", ["a1", "a3"]);
    of_a_set(&third, "a3", ["a1", "a2"]);
    let client = Client::connect(&url(&[&first, &second, &third])).await.unwrap();
    three_looks(&third).await;
    third.say(|says| {
        (says.id, says.others) = (String::new(), Vec::new());
        (says.port, says.epoch) = (theirs.port(), 9);
    });
    three_looks(&third).await;
    assert!(uses(&client, ours.port()), "{}", client.store());
}

/// All of them were believed then, and the highest epoch counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_does_not_tell_its_own_id_lets_no_other_set_in() {
    let (ours, theirs) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second] = [0; 2].map(|_| FakeSentinel::start(ours.port()));
    let stranger = FakeSentinel::start(theirs.port());
    of_a_set(&first, "a1", ["a2", "a3"]);
    of_a_set(&second, "", ["a1", "a3"]);
    of_a_set(&stranger, "x1", ["x2", "x3"]);
    stranger.say(|says| says.epoch = 9);
    let client = Client::connect(&url(&[&stranger, &first, &second])).await.unwrap();
    three_looks(&stranger).await;
    assert!(uses(&client, ours.port()), "{}", client.store());
}

/// A new client believed the highest epoch of any sentinel: one of another set at one of three addresses granted locks that others held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_client_believes_the_set_that_most_of_its_sentinels_are_of() {
    let (ours, theirs) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let called = |port: u16, epoch: i64, id: &str, others: &[&str]| {
        let sentinel = FakeSentinel::start(port);
        sentinel.say(|says| {
            (says.id, says.epoch) = (id.to_owned(), epoch);
            says.others = others.iter().map(|id| (*id).to_owned()).collect();
        });
        sentinel
    };
    let (stranger, first) =
        (called(theirs.port(), 9, "x", &["y", "z"]), called(ours.port(), 1, "a", &["b", "c"]));
    let second = called(ours.port(), 1, "b", &["a", "c"]);
    let client = Client::connect(&url(&[&stranger, &first, &second])).await.unwrap();
    assert!(uses(&client, ours.port()), "{}", client.store());
    // One that was taken to another set with its id leads nobody away, either.
    second
        .say(|says| (says.others, says.port, says.epoch) = (vec!["x".into(), "y".into()], theirs.port(), 9));
    three_looks(&first).await;
    assert!(uses(&client, ours.port()), "{}", client.store());
    // Of two that belong to different sets nobody can tell which is ours.
    let brief = Client::builder().url(url(&[&stranger, &first])).connect_timeout(ms(500));
    let error = brief.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("different sets"), "{error}");
}

/// It met the sentinels of that set one by one. With its own id half of those that it named first were known, and from then on the other set was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_was_taken_to_another_set_leads_nobody_away_when_it_has_met_one_there() {
    let (ours, theirs) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second, moved] = [0; 3].map(|_| FakeSentinel::start(ours.port()));
    let called = |one: &FakeSentinel, id: &str, others: &[&str]| {
        one.say(|says| {
            says.id = id.to_owned();
            says.others = others.iter().map(|id| (*id).to_owned()).collect();
        });
    };
    called(&first, "a", &["b", "c"]);
    called(&second, "b", &["a", "c"]);
    called(&moved, "c", &["a", "b"]);
    let all = url(&[&moved, &first, &second]);
    let client = Client::connect(&all).await.unwrap();
    let held = client.lock("held").lock().await.unwrap();
    moved.say(|says| (says.port, says.epoch) = (theirs.port(), 9));
    for others in [&["x"][..], &["x", "y"], &["x", "y", "z"]] {
        called(&moved, "c", others);
        three_looks(&moved).await;
        assert!(uses(&client, ours.port()), "{others:?}: {}", client.store());
        let new = Client::connect(&all).await.unwrap();
        assert!(uses(&new, ours.port()), "a new client, {others:?}: {}", new.store());
    }
    assert!(held.is_valid() && !exists(&theirs, "held"));
    // Ours are followed on.
    first.say(|says| (says.port, says.epoch) = (theirs.port(), 2));
    until("the move", || uses(&client, theirs.port())).await;
}

/// Without epochs the sentinels say nothing of what has happened between two looks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_got_its_place_back_is_a_new_one_though_epochs_may_not_be_asked_for() {
    let servers = ThereAndBack::start().await;
    let sentinel = FakeSentinel::start(servers.port());
    sentinel.say(|says| says.epoch = -1);
    servers.is_a_new_master(&url(&[&sentinel])).await;
}

/// It was asked at both of its addresses, and had two votes of four for good. It did not answer when the client connected, so nothing said that they
/// were one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_the_url_names_otherwise_than_the_others_do_has_one_vote() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [stale, second, third] = [0; 3].map(|_| FakeSentinel::start(old.port()));
    let stale_port = stale.addr().rsplit(':').next().unwrap().to_owned();
    let at = format!("stale@{stale_port}");
    for (sentinel, id, others) in [
        (&stale, "stale", ["second".into(), "third".into()]),
        (&second, "second", [at.clone(), "third".into()]),
        (&third, "third", [at.clone(), "second".into()]),
    ] {
        let others = others.to_vec();
        sentinel.say(|says| (says.id, says.others, says.epoch) = (id.into(), others, -1));
    }
    stale.say(|says| says.silent = true);
    let url = url(&[&stale, &second, &third]).replace(&stale.addr(), &format!("localhost:{stale_port}"));
    let client = Client::connect(&url).await.unwrap();
    stale.say(|says| says.silent = false);
    three_looks(&stale).await;
    for sentinel in [&second, &third] {
        sentinel.say(|says| says.port = new.port());
    }
    until("the move to the master that most name", || uses(&client, new.port())).await;
    three_looks(&stale).await;
    assert!(uses(&client, new.port()));
}

/// The name of a service led to one sentinel when the client connected, and to another one later. It kept the id of the first, which was never asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_is_asked_though_its_name_has_come_to_lead_to_another_one() {
    let master = RedisServer::start().unwrap();
    let [service, first, second, third] = [0; 4].map(|_| FakeSentinel::start(master.port()));
    let at =
        |id: &str, sentinel: &FakeSentinel| format!("{id}@{}", sentinel.addr().rsplit(':').next().unwrap());
    let all = [at("first", &first), at("second", &second), at("third", &third)];
    let be = |sentinel: &FakeSentinel, index: usize| {
        let id = all[index].split('@').next().unwrap().to_owned();
        let others = all.iter().filter(|other| **other != all[index]).cloned().collect();
        sentinel.say(|says| (says.id, says.others) = (id, others));
    };
    [&service, &first, &second, &third]
        .into_iter()
        .zip([0, 0, 1, 2])
        .for_each(|(sentinel, at)| be(sentinel, at));
    let _client = Client::connect(&url(&[&service])).await.unwrap();
    three_looks(&service).await;
    assert_eq!(first.server.count("SENTINEL"), 0, "it is asked by the name of the service");
    be(&service, 1);
    three_looks(&first).await;
}

/// It counted as one that might vote otherwise, so two of three were not most of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_at_which_no_sentinel_is_has_no_vote() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [stale, second, third] = [0; 3].map(|_| FakeSentinel::start(old.port()));
    for (sentinel, id, others) in [
        (&stale, "stale", ["second", "third"]),
        (&second, "second", ["stale", "third"]),
        (&third, "third", ["stale", "second"]),
    ] {
        let others = others.map(String::from).to_vec();
        sentinel.say(|says| (says.id, says.others, says.epoch) = (id.into(), others, -1));
    }
    let gone = ReservedPort::new(0).unwrap();
    let url = url(&[&stale, &second, &third]).replace("/any", &format!(",127.0.0.1:{}/any", gone.port()));
    let client = Client::connect(&url).await.unwrap();
    three_looks(&stale).await;
    for sentinel in [&second, &third] {
        sentinel.say(|says| says.port = new.port());
    }
    until("the move to the master that most name", || uses(&client, new.port())).await;
}

/// The only name that the URL has for it had ended, and it was not asked at the address that the others know, though it was up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_whose_name_is_gone_is_asked_where_the_others_say_that_it_is() {
    let master = RedisServer::start().unwrap();
    let [name, first, second] = [0; 3].map(|_| FakeSentinel::start(master.port()));
    let at =
        |id: &str, sentinel: &FakeSentinel| format!("{id}@{}", sentinel.addr().rsplit(':').next().unwrap());
    let (first_at, second_at) = (at("first", &first), at("second", &second));
    for (sentinel, id, other) in
        [(&name, "first", &second_at), (&first, "first", &second_at), (&second, "second", &first_at)]
    {
        sentinel.say(|says| (says.id, says.others) = (id.into(), vec![other.clone()]));
    }
    let _client = Client::connect(&url(&[&name])).await.unwrap();
    three_looks(&second).await;
    assert_eq!(first.server.count("SENTINEL"), 0, "it is asked by the name of the URL");
    name.say(|says| says.silent = true);
    three_looks(&first).await;
}

/// Its id went on counting as one of the set, so two of three were not most of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_was_taken_out_of_the_set_has_no_vote() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let all = [0; 4].map(|_| FakeSentinel::start(old.port()));
    let names = ["stale", "second", "third", "fourth"];
    let knows = |count: usize| {
        for (sentinel, id) in all.iter().zip(names).take(count) {
            let others =
                names.iter().take(count).filter(|other| **other != id).map(|id| id.to_string()).collect();
            sentinel.say(|says| (says.id, says.others, says.epoch) = (id.into(), others, -1));
        }
    };
    knows(4);
    let [stale, second, third, fourth] = &all;
    let client = Client::connect(&url(&[stale, second, third, fourth])).await.unwrap();
    three_looks(fourth).await;
    fourth.say(|says| says.silent = true);
    knows(3);
    three_looks(stale).await;
    for sentinel in [second, third] {
        sentinel.say(|says| says.port = new.port());
    }
    until("the move to the master that most name", || uses(&client, new.port())).await;
}

/// Two of three were ended, and the last one was reset and told to fail over. It had forgotten the others, so clients that heard it all the time did not
/// believe it, and were granted locks at the old master for half a minute that others held at the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_sentinel_is_followed_though_it_has_forgotten_the_others() {
    let (old, new, elsewhere) =
        (RedisServer::start().unwrap(), RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let [first, second, last, stranger] = [0; 4].map(|_| FakeSentinel::start(old.port()));
    of_a_set(&first, "a1", ["a2", "a3"]);
    of_a_set(&second, "a2", ["a1", "a3"]);
    of_a_set(&last, "a3", ["a1", "a2"]);
    // One that is alone and was never of the set.
    stranger.say(|says| (says.id, says.port, says.epoch) = ("x1".into(), elsewhere.port(), 9));
    let client = Client::connect(&url(&[&first, &second, &last, &stranger])).await.unwrap();
    three_looks(&last).await;
    // Beside others that are known it is not: a sentinel keeps its id when it is taken to another set.
    last.say(|says| (says.others, says.port, says.epoch) = (Vec::new(), new.port(), 2));
    three_looks(&last).await;
    assert!(uses(&client, old.port()), "{}", client.store());
    [&first, &second].iter().for_each(|one| one.say(|says| says.silent = true));
    until("the move", || uses(&client, new.port())).await;
    three_looks(&last).await;
    assert!(uses(&client, new.port()), "{}", client.store());
}
