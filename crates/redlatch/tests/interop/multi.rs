//! Sets of locks in both languages: `MultiLock` and `RedissonMultiLock`, `QuorumLock` and `RedissonRedLock`.

use std::time::Instant;

use redlatch::{Client, Lease, MultiLock, QuorumLock, Wait};
use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    server::RedisServer,
};

use crate::bed::{BLOCKED, Bed, LIMIT, awake, ms, run, runtime};

/// Three names, the set of ours, and the name of Java's set of the same members in another order.
fn sets(bed: &Bed, what: &str) -> (Vec<String>, MultiLock, String) {
    let names: Vec<String> = (0..3).map(|_| bed.name(what)).collect();
    let ours = MultiLock::new(names.iter().map(|name| bed.ours.lock(name.as_str()))).unwrap();
    let members: Vec<_> = [2, 0, 1].iter().map(|at: &usize| format!("lock={}", names[*at])).collect();
    (names, ours, members.join(","))
}

pub(crate) fn either_language_waits_for_the_set_of_the_other(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (names, set, members) = sets(&bed, "multi");
    let java = bed.thread().with("multi");
    for round in 0..3 {
        let guard = run(set.lock()).unwrap();
        assert!(!java.try_lock(&members), "round {round}");
        let waiting = java.wait_for(&members, 15_000, 10_000);
        assert!(waiting.is_still_waiting_after(BLOCKED), "round {round}");
        let unlocked_at = Instant::now();
        assert!(run(guard.unlock()).is_clean());
        assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "round {round}");
        assert!(awake(unlocked_at) < ms(10_000), "{:?}", unlocked_at.elapsed());
        for name in &names {
            assert!(bed.java_holds(&java.field(&bed), name), "{name}");
        }
        assert!(run(set.try_lock()).unwrap().is_none(), "round {round}");
        let waiter = set.clone();
        let ours = runtime().spawn(async move { waiter.lock_for(LIMIT).await });
        std::thread::sleep(BLOCKED);
        assert!(!ours.is_finished());
        java.unlock(&members);
        let guard = run(ours).unwrap().unwrap().expect("Java released every member");
        for name in &names {
            assert!(!java.with("lock").try_lock(name), "{name} is ours");
        }
        assert!(run(guard.unlock()).is_clean());
        for name in &names {
            assert_eq!(bed.number(&["EXISTS", name]), 0, "{name}");
        }
    }
}

pub(crate) fn one_member_is_enough_to_keep_the_set_of_the_other_out(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (names, set, members) = sets(&bed, "member");
    let (java, single) = (bed.thread().with("multi"), bed.thread());
    for name in &names {
        single.lock(name);
        assert!(run(set.try_lock()).unwrap().is_none(), "{name} is Java's");
        let free = names.iter().filter(|name| bed.number(&["EXISTS", name]) == 0).count();
        assert_eq!(free, 2, "nothing else is held");
        single.unlock(name);
        let guard = run(bed.ours.lock(name.as_str()).lock()).unwrap();
        assert!(!java.try_lock(&members), "{name} is ours");
        run(guard.unlock()).unwrap();
    }
    let guard = run(set.lock()).unwrap();
    for name in &names {
        assert!(!single.try_lock(name), "{name} is ours");
        assert!(!single.with("fair").try_lock(name), "{name} is ours");
    }
    let waiting = single.wait_for(&names[1], 15_000, -1);
    assert!(waiting.is_still_waiting_after(BLOCKED));
    assert!(run(guard.unlock()).is_clean());
    assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "every member's waiters are told");
    single.unlock(&names[1]);
}

pub(crate) fn leases_of_sets_end_for_both_languages(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (names, set, members) = sets(&bed, "leased");
    let java = bed.thread().with("multi");
    java.lock_lease(&members, 3_000);
    for name in &names {
        assert!(bed.pttl(name) <= ms(3_000), "{name}");
    }
    let begin = Instant::now();
    let guard = run(set.acquire().wait(Wait::AtMost(LIMIT)).lease(Lease::Fixed(ms(3_000))).into_future());
    let guard = guard.unwrap().expect("Java's lease ends");
    assert!(awake(begin) < ms(10_000), "{:?}", begin.elapsed());
    for name in &names {
        let left = bed.pttl(name);
        assert!(left <= ms(3_000) && !left.is_zero(), "M2: the final lease from the start: {left:?}");
    }
    assert!(
        java.wait_for(&members, 10_000, 10_000).wait(LIMIT).unwrap().as_bool().unwrap(),
        "our lease ends"
    );
    assert!(!guard.is_valid());
    let report = run(guard.unlock());
    assert!(!report.is_clean(), "{report:?}");
    for name in &names {
        assert!(bed.java_holds(&java.field(&bed), name), "{name}: a late unlock frees nobody");
    }
    java.unlock(&members);
    // Ours is renewed for as long as it is held.
    let brisk = MultiLock::new(names.iter().map(|name| bed.brisk.lock(name.as_str()))).unwrap();
    let guard = run(brisk.lock()).unwrap();
    assert!(!java.wait_for(&members, 6_000, 10_000).wait(LIMIT).unwrap().as_bool().unwrap());
    assert!(guard.is_valid());
    assert!(run(guard.unlock()).is_clean());
}

pub(crate) fn a_quorum_of_either_language_keeps_the_other_out(version: RedissonVersion) {
    let bed = Bed::of(version);
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
    let (mut clients, mut members) = (Vec::new(), Vec::new());
    let name = bed.name("red");
    for server in &servers {
        let client = bed.name("red-client");
        bed.java.connect(&Connection::single(&server.url()).named(&client)).unwrap();
        members.push(format!("{client}@lock={name}"));
        clients.push(Client::connect_lazy(&server.url()).unwrap());
    }
    let members = members.join(",");
    let set = QuorumLock::new(clients.iter().map(|client| client.lock(name.as_str()))).unwrap();
    let java = bed.thread().with("red");
    for away in [None, Some(1)] {
        if let Some(away) = away {
            // One member is another owner's: the two others are a quorum in both languages.
            servers[away].cmd(&["HSET", &name, "stranger:1", "1"]).unwrap();
        }
        let guard = run(set.lock()).unwrap();
        // A member that is slow to answer is not waited for once there is a quorum.
        let held = guard.members().len();
        assert!(held == 2 || held == 3 && away.is_none(), "{held} of three, away: {away:?}");
        assert!(!java.try_lock(&members), "{away:?}");
        let waiting = java.wait_for(&members, 15_000, 10_000);
        assert!(waiting.is_still_waiting_after(BLOCKED));
        let _ = run(guard.unlock());
        assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "{away:?}");
        assert!(run(set.try_lock()).unwrap().is_none(), "{away:?}");
        let waiter = set.clone();
        let ours = runtime().spawn(async move { waiter.lock_for(LIMIT).await });
        std::thread::sleep(BLOCKED);
        assert!(!ours.is_finished());
        java.unlock(&members);
        let guard = run(ours).unwrap().unwrap().expect("Java released its quorum");
        assert!(guard.is_valid());
        let _ = run(guard.unlock());
    }
    java.lock_lease(&members, 3_000);
    let guard = run(set.lock_for(LIMIT)).unwrap().expect("Java's lease ends");
    let _ = run(guard.unlock());
}
