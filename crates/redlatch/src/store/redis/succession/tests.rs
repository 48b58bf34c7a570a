use super::*;

fn addr(port: u16) -> Addr {
    Addr::Tcp { host: "h".into(), port }
}

/// What sentinels say, each in its turn, of so many that were asked.
fn said(asked: usize, claims: &[(u16, Right)]) -> Said {
    let claim = |(at, (port, right)): (usize, &(u16, Right))| Claim {
        addr: addr(*port),
        right: right.clone(),
        by: Voice::at(addr(900 + at as u16)),
        amid: false,
    };
    Said {
        claims: claims.iter().enumerate().map(claim).collect(),
        asked,
        answered: claims.len(),
        ..Said::default()
    }
}

fn epoch(epoch: i64) -> Right {
    Right::Epoch(epoch)
}

fn promise(after: i64) -> Right {
    Right::Promise { after }
}

fn port(memory: &Memory) -> u16 {
    match memory.present().unwrap().addr {
        Addr::Tcp { port, .. } => port,
        Addr::Unix(_) => unreachable!("all have ports"),
    }
}

/// A memory that has heard this.
fn after(told: &[&[(u16, Right)]]) -> Memory {
    let mut memory = Memory::default();
    for claims in told {
        memory.judge(&said(claims.len(), claims), Instant::now());
    }
    memory
}

#[track_caller]
fn is(verdict: &Verdict, wanted: u16) {
    let Verdict::Is(claim) = verdict else { panic!("{verdict:?}") };
    assert_eq!(claim.addr, addr(wanted));
}

/// Two sentinels that were told to fail over at once named different masters in one epoch. Who had heard the one of the minority first stayed with
/// it for good, also when it was a replica again.
#[test]
fn of_two_masters_in_one_epoch_most_sentinels_decide() {
    let now = Instant::now();
    let mut memory = after(&[&[(1, epoch(5))]]);
    is(&memory.judge(&said(3, &[(1, epoch(5)), (2, epoch(5)), (2, epoch(5))]), now), 2);
    assert_eq!(port(&memory), 2);
    // Most of those who were asked, not of those who have answered.
    for claims in [&[(3, epoch(5))][..], &[(2, epoch(5)), (3, epoch(5))], &[(3, promise(5)); 1]] {
        let mut memory = after(&[&[(2, epoch(5))]]);
        assert_ne!(
            memory.judge(&said(3, claims), now),
            Verdict::Is(said(3, &[(3, epoch(5))]).claims[0].clone())
        );
    }
    // Nor does a majority of an earlier epoch.
    assert_eq!(memory.judge(&said(3, &[(1, epoch(4)), (1, epoch(4)), (2, epoch(5))]), now), Verdict::Stays);
}

#[test]
fn the_newest_configuration_wins_over_the_majority() {
    let now = Instant::now();
    let mut memory = after(&[&[(1, epoch(4))]]);
    is(&memory.judge(&said(3, &[(1, epoch(4)), (1, epoch(4)), (2, epoch(5))]), now), 2);
    // Where epochs are unknown most of them decide, and the present one in doubt.
    let mut memory = after(&[&[(1, epoch(-1))]]);
    is(&memory.judge(&said(3, &[(1, epoch(-1)), (2, epoch(-1)), (2, epoch(-1))]), now), 2);
    for present in [1, 2] {
        let mut memory = after(&[&[(present, epoch(3))]]);
        assert_eq!(memory.judge(&said(2, &[(1, epoch(3)), (2, epoch(3))]), now), Verdict::Stays);
        assert_eq!(port(&memory), present);
    }
    assert_eq!(Memory::default().judge(&said(3, &[]), now), Verdict::Stays);
}

#[test]
fn an_older_epoch_is_not_believed_unless_most_insist() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    for few in [&[(1, epoch(4))][..], &[(1, epoch(4)), (3, epoch(4))], &[(1, epoch(4)), (2, epoch(5))]] {
        let mut memory = after(&[&[(2, epoch(5))]]);
        for at in [now, later, later + RESET_TIME] {
            assert_eq!(memory.judge(&said(3, few), at), Verdict::Stays, "{few:?}");
        }
        assert_eq!(port(&memory), 2);
    }
    // An operator who sets them up anew leaves them with smaller epochs.
    let most = [(1, epoch(0)), (1, epoch(0))];
    let mut memory = after(&[&[(2, epoch(5))]]);
    for at in [now, later - Duration::from_millis(1)] {
        assert_eq!(memory.judge(&said(3, &most), at), Verdict::Stays);
    }
    is(&memory.judge(&said(3, &most), later), 1);
    is(&memory.judge(&said(3, &[(3, epoch(1))]), later), 3);
    // A look at which they were not most begins it anew.
    let mut memory = after(&[&[(2, epoch(5))]]);
    for (at, claims) in [(now, &most[..]), (now, &most[..1]), (later, &most)] {
        assert_eq!(memory.judge(&said(3, claims), at), Verdict::Stays);
    }
    // What happened to the same server before it was set up anew is unknown, so it is a new master.
    let mut memory = after(&[&[(2, epoch(5))]]);
    assert_eq!(memory.judge(&said(1, &[(2, epoch(0))]), now), Verdict::Stays);
    is(&memory.judge(&said(1, &[(2, epoch(0))]), later), 2);
    assert_eq!(memory.judge(&said(1, &[(2, epoch(0))]), later), Verdict::Stays);
    is(&memory.judge(&said(1, &[(1, epoch(1))]), later), 1);
}

#[test]
fn a_later_epoch_of_the_same_server_is_a_change_that_was_missed() {
    let now = Instant::now();
    let mut memory = after(&[&[(1, epoch(4))]]);
    is(&memory.judge(&said(1, &[(1, epoch(6))]), now), 1);
    // How many changes there were before the epoch could be asked for is unknown.
    let mut memory = after(&[&[(1, epoch(-1))]]);
    is(&memory.judge(&said(1, &[(1, epoch(6))]), now), 1);
    assert_eq!(memory.judge(&said(1, &[(1, epoch(6))]), now), Verdict::Stays);
    // One that is promised its place has lost it.
    let mut memory = after(&[&[(1, epoch(4))]]);
    assert_eq!(memory.judge(&said(3, &[(1, promise(4))]), now), Verdict::Stays);
    becomes(&mut memory, &[(1, promise(5))], 1);
    assert_eq!(memory.judge(&said(3, &[(1, promise(5))]), now), Verdict::Stays);
    assert_eq!(memory.judge(&said(3, &[(1, epoch(6))]), now), Verdict::Stays);
}

#[test]
fn a_promise_with_a_later_epoch_than_its_own_is_a_change_that_was_missed() {
    let now = Instant::now();
    // The epoch of the promise itself is the next one.
    let mut memory = promised();
    assert_eq!(memory.judge(&said(3, &[(2, epoch(5))]), now), Verdict::Stays);
    is(&memory.judge(&said(3, &[(2, epoch(6))]), now), 2);
    for later in [6, 7, 9] {
        let mut memory = promised();
        is(&memory.judge(&said(3, &[(2, epoch(later))]), now), 2);
        assert_eq!(memory.judge(&said(3, &[(2, epoch(later))]), now), Verdict::Stays);
        // So it is when nothing was heard but another promise.
        let mut memory = promised();
        becomes(&mut memory, &[(2, promise(later - 1))], 2);
        assert_eq!(memory.judge(&said(3, &[(2, epoch(later))]), now), Verdict::Stays);
    }
}

#[test]
fn without_epochs_the_master_says_what_was_missed() {
    let now = Instant::now();
    let history = |id: &str| History { id: id.to_owned(), ..History::default() };
    let mut memory = after(&[&[(1, epoch(-1))]]);
    assert_eq!(memory.hear_of(&addr(1), &history("a")), Verdict::Stays, "the first one that is heard of");
    assert_eq!(memory.hear_of(&addr(1), &history("a")), Verdict::Stays);
    assert_eq!(memory.hear_of(&addr(2), &history("b")), Verdict::Stays, "it is not the master");
    is(&memory.hear_of(&addr(1), &history("b")), 1);
    assert_eq!(memory.hear_of(&addr(1), &history("b")), Verdict::Stays);
    assert_eq!(memory.judge(&said(1, &[(1, epoch(-1))]), now), Verdict::Stays);
    assert_eq!(memory.hear_of(&addr(1), &history("b")), Verdict::Stays);
    // Another master, and back.
    is(&memory.judge(&said(1, &[(2, epoch(-1))]), now), 2);
    assert_eq!(memory.hear_of(&addr(2), &history("c")), Verdict::Stays);
    is(&memory.judge(&said(1, &[(1, epoch(-1))]), now), 1);
    assert_eq!(memory.hear_of(&addr(1), &history("d")), Verdict::Stays);
}

/// A server that is to be the master says that it is.
#[track_caller]
fn becomes(memory: &mut Memory, claims: &[(u16, Right)], wanted: u16) {
    let verdict = memory.judge(&said(3, claims), Instant::now());
    let Verdict::Becomes(claim) = verdict else { panic!("{verdict:?}") };
    assert_eq!(claim.addr, addr(wanted));
    assert!(memory.admit(&claim));
}

/// The present master says whose replica it is.
fn follows(memory: &mut Memory, replica: u16, master: u16, claims: &[(u16, Right)]) -> bool {
    memory.follow(&addr(replica), &addr(master), &said(3, claims)).is_some()
}

/// A memory whose master was promised by the first sentinel and has said that it is the master.
fn promised() -> Memory {
    let mut memory = after(&[&[(1, epoch(4))]]);
    let Verdict::Becomes(claim) = memory.judge(&said(3, &[(2, promise(4)), (1, epoch(4))]), Instant::now())
    else {
        panic!("a promise")
    };
    assert_eq!(port(&memory), 1, "until it says so itself");
    assert!(memory.admit(&claim));
    memory
}

/// Behind the address of a service another sentinel answered in the middle of a promise, and counted as the one that had given it up. One that was heard at a second address
/// counted as another one that had heard of the change.
#[test]
fn a_sentinel_is_the_one_that_it_is_wherever_it_is_heard() {
    let with_ids = |claims: &[(u16, Right)], ids: &[&str]| {
        let mut said = said(3, claims);
        for (claim, id) in said.claims.iter_mut().zip(ids) {
            claim.by.id = Some((*id).into());
        }
        said
    };
    let begin = Instant::now();
    let mut memory = Memory::default();
    memory.judge(&with_ids(&[(1, epoch(4)), (1, epoch(4))], &["first", "second"]), begin);
    let promises = with_ids(&[(2, promise(4)), (1, epoch(4))], &["first", "second"]);
    let Verdict::Becomes(claim) = memory.judge(&promises, begin) else { panic!("a promise") };
    assert!(memory.admit(&claim));
    // At the first address.
    memory.judge(&with_ids(&[(1, epoch(4)), (1, epoch(4))], &["third", "second"]), begin);
    assert!(memory.present().unwrap().is_promise(), "another one has promised nothing");
    memory.judge(&with_ids(&[(1, epoch(4)), (2, promise(4))], &["third", "first"]), begin);
    assert!(!memory.has_spread, "nobody else has heard of it");
    // At any address.
    memory.judge(&with_ids(&[(1, epoch(4)), (1, epoch(4))], &["second", "first"]), begin);
    assert!(!memory.present().unwrap().is_promise(), "it has given it up");
}

#[test]
fn a_promise_counts_until_it_is_kept_or_given_up() {
    let now = Instant::now();
    let others = |memory: &mut Memory, first: &[(u16, Right)]| {
        let mut said = said(3, &[&[(9, epoch(0))], first].concat());
        said.claims.remove(0);
        memory.judge(&said, now)
    };
    // The one who promised is not heard this time, and the others do not know yet.
    let mut memory = promised();
    assert_eq!(others(&mut memory, &[(1, epoch(4)), (1, epoch(4))]), Verdict::Stays);
    assert_eq!(port(&memory), 2);
    // It is kept.
    assert_eq!(others(&mut memory, &[(2, epoch(5))]), Verdict::Stays);
    assert_eq!(others(&mut memory, &[(1, epoch(4))]), Verdict::Stays);
    assert_eq!(port(&memory), 2);
    // Nor does the one who promised while it is at it.
    let mut memory = promised();
    let mut amid = said(3, &[(1, epoch(4))]);
    amid.claims[0].amid = true;
    assert_eq!(memory.judge(&amid, now), Verdict::Stays);
    assert_eq!(port(&memory), 2);
    // Another failover comes first.
    let mut memory = promised();
    is(&others(&mut memory, &[(3, epoch(5))]), 3);
    // The one who promised gives up.
    let mut memory = promised();
    is(&memory.judge(&said(3, &[(1, epoch(4)), (1, epoch(4))]), now), 1);
    // The server itself is none after all.
    let mut memory = promised();
    assert!(follows(&mut memory, 2, 1, &[(1, epoch(4))]));
    assert_eq!(others(&mut memory, &[(1, epoch(4))]), Verdict::Stays);
    assert_eq!(port(&memory), 1);
    // Too late to be admitted.
    let mut memory = after(&[&[(1, epoch(4))]]);
    let Verdict::Becomes(claim) = memory.judge(&said(1, &[(2, promise(4))]), now) else {
        panic!("a promise")
    };
    is(&memory.judge(&said(1, &[(3, epoch(5))]), now), 3);
    assert!(!memory.admit(&claim));
}

/// The sentinel that led the change ended right after it had promoted the replica. The others never hear of it, and everybody who asks them
/// stays with the old master.
#[test]
fn a_promise_whose_sentinel_is_gone_is_given_up_when_most_contradict_it_for_longer_than_it_takes_to_tell_them()
 {
    let (now, later) = (Instant::now(), Instant::now() + PROMISE_TIME);
    let mut others = said(4, &[(9, epoch(0)), (1, epoch(4)), (1, epoch(4)), (1, epoch(4))]);
    others.claims.remove(0);
    let mut memory = promised();
    for at in [now, later - Duration::from_millis(1)] {
        assert_eq!(memory.judge(&others, at), Verdict::Stays);
    }
    is(&memory.judge(&others, later), 1);
    // As long as it is heard itself, or what it has done is, it takes as long as with anything else.
    let mut memory = promised();
    let mut amid = said(3, &[(1, epoch(4)), (1, epoch(4)), (1, epoch(4))]);
    amid.claims[0].amid = true;
    for at in [now, later, now + RESET_TIME - Duration::from_millis(1)] {
        assert_eq!(memory.judge(&amid, at), Verdict::Stays);
    }
    let mut memory = promised();
    assert_eq!(memory.judge(&others, now), Verdict::Stays);
    assert_eq!(memory.judge(&said(3, &[(9, promise(4)), (2, epoch(5))]), later), Verdict::Stays);
    assert_eq!(memory.judge(&others, later), Verdict::Stays);
    assert_eq!(port(&memory), 2);
}

/// The sentinel that led the change ended between its own word that the change was done and the first word of it to the others. Clients that had heard it stayed at the promoted
/// server for ten seconds, beside those that came and asked the others.
#[test]
fn a_change_that_only_its_leader_has_told_is_given_up_as_soon_as_a_promise() {
    let (now, later) = (Instant::now(), Instant::now() + PROMISE_TIME);
    let mut others = said(3, &[(9, epoch(0)), (1, epoch(4)), (1, epoch(4))]);
    others.claims.remove(0);
    let settled = || {
        let mut memory = promised();
        assert_eq!(
            memory.judge(&said(3, &[(2, epoch(5)), (1, epoch(4)), (1, epoch(4))]), now),
            Verdict::Stays
        );
        memory
    };
    let mut memory = settled();
    for at in [now, later - Duration::from_millis(1)] {
        assert_eq!(memory.judge(&others, at), Verdict::Stays);
    }
    is(&memory.judge(&others, later), 1);
    // So it is when no promise was heard before.
    let mut memory = after(&[&[(1, epoch(4))]]);
    is(&memory.judge(&said(3, &[(2, epoch(5)), (1, epoch(4))]), now), 2);
    assert_eq!(memory.judge(&others, now), Verdict::Stays);
    is(&memory.judge(&others, later), 1);
    // Once another one has told it, too, only a reset contradicts it.
    let mut memory = settled();
    assert_eq!(memory.judge(&said(3, &[(2, epoch(5)), (2, epoch(5)), (1, epoch(4))]), now), Verdict::Stays);
    for at in [now, later, now + RESET_TIME - Duration::from_millis(1)] {
        assert_eq!(memory.judge(&others, at), Verdict::Stays);
    }
    is(&memory.judge(&others, now + RESET_TIME), 1);
    // Those that are heard need not be most once it says itself that it is a replica.
    let mut memory = settled();
    let mut one = said(3, &[(9, epoch(0)), (1, epoch(4))]);
    one.claims.remove(0);
    for at in [now, later] {
        assert_eq!(memory.judge(&one, at), Verdict::Stays);
    }
    assert!(memory.is_abandoned(&one));
    assert!(follows(&mut memory, 2, 1, &[(1, epoch(4))]));
    assert_eq!((port(&memory), memory.judge(&one, later)), (1, Verdict::Stays));
    // The others may have heard of the change, and of another one since: the server that it copies is the one that they have told it.
    let mut memory = settled();
    assert!(!follows(&mut memory, 2, 3, &[(1, epoch(4))]), "the one that is heard is behind the times");
    assert_eq!(port(&memory), 2);
    // Nor is it given up while its leader is heard.
    let mut memory = settled();
    for at in [now, later] {
        assert_eq!(
            memory.judge(&said(3, &[(2, epoch(5)), (1, epoch(4)), (1, epoch(4))]), at),
            Verdict::Stays
        );
    }
}

/// A sentinel that leads a change and was stopped for a moment does nothing for half a minute and goes on naming its choice. The others made that one a replica again, and clients
/// were granted nothing until the leader gave up.
#[test]
fn a_promise_that_is_not_kept_hides_nobody_who_is_the_master() {
    let now = Instant::now();
    let goes_on = said(3, &[(2, promise(4)), (1, epoch(4)), (1, epoch(4))]);
    let mut memory = promised();
    assert_eq!(memory.judge(&goes_on, now), Verdict::Stays);
    assert_eq!(port(&memory), 2);
    assert!(memory.follow(&addr(2), &addr(1), &goes_on).is_some());
    assert_eq!(port(&memory), 1);
    // It may be kept after all.
    becomes(&mut memory, &[(2, promise(4)), (1, epoch(4)), (1, epoch(4))], 2);
}

/// A promised master ended right away, and the sentinel that had chosen it went on naming it until `failover-timeout`: who had moved was granted nothing, though all others named the
/// former master, which was well.
#[test]
fn a_promised_master_that_does_not_answer_is_given_up_for_the_one_that_most_name() {
    let (now, later) = (Instant::now(), Instant::now() + PROMISE_TIME);
    let goes_on = said(3, &[(2, promise(4)), (1, epoch(4)), (1, epoch(4))]);
    let mut memory = promised();
    assert_eq!(memory.hear_promised(false, &goes_on, now), None);
    assert_eq!(memory.hear_promised(true, &goes_on, now), None);
    for at in [now, later - Duration::from_millis(1)] {
        assert_eq!(memory.hear_promised(false, &goes_on, at), None);
    }
    let few = said(3, &[(2, promise(4)), (1, epoch(4))]);
    assert_eq!(memory.hear_promised(false, &few, later), None, "one of three");
    assert_eq!(memory.hear_promised(false, &goes_on, later).unwrap().addr, addr(1));
    assert_eq!(port(&memory), 1);
    // It may come back and be the master after all.
    becomes(&mut memory, &[(2, promise(4)), (1, epoch(4)), (1, epoch(4))], 2);
    assert_eq!(memory.judge(&said(3, &[(2, epoch(5))]), later), Verdict::Stays);
    assert_eq!(
        memory.hear_promised(false, &said(3, &[(1, epoch(4)), (1, epoch(4))]), later),
        None,
        "it is kept"
    );
}

/// Two sentinels that failed over while the other one was down name different masters in one epoch, for good.
#[test]
fn of_two_masters_in_one_epoch_the_one_that_is_a_replica_yields() {
    let now = Instant::now();
    let tie = said(2, &[(1, epoch(5)), (2, epoch(5))]);
    let mut memory = after(&[&[(1, epoch(5))]]);
    assert_eq!(memory.judge(&tie, now), Verdict::Stays);
    assert!(memory.has_rival(&tie));
    assert!(memory.follow(&addr(1), &addr(2), &tie).is_some());
    assert_eq!((port(&memory), memory.judge(&tie, now)), (2, Verdict::Stays));
    assert!(memory.follow(&addr(1), &addr(2), &tie).is_none(), "it is not the present one any more");
    is(&memory.judge(&said(2, &[(3, epoch(6))]), now), 3);
    assert!(!memory.has_rival(&said(2, &[(3, epoch(6)), (1, epoch(5)), (2, promise(6))])));
    // Of several it is the one that the replica names, though another one is heard first.
    let mut memory = after(&[&[(1, epoch(-1))]]);
    assert!(follows(&mut memory, 1, 3, &[(2, epoch(-1)), (3, epoch(-1))]));
    assert_eq!(port(&memory), 3);
}

/// An account that may not ask for epochs was led back to the old master at once by one sentinel that had heard of no change.
#[test]
fn without_epochs_most_sentinels_decide_at_once_and_fewer_when_no_others_are_heard_for_a_while() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let (old, new) = ((1, epoch(-1)), (2, epoch(-1)));
    let mut memory = after(&[&[old.clone(), old.clone(), old.clone()]]);
    is(&memory.judge(&said(3, &[new.clone(), new.clone(), old.clone()]), now), 2);
    let stale = said(3, std::slice::from_ref(&old));
    for at in [now, later - Duration::from_millis(1)] {
        assert_eq!(memory.judge(&stale, at), Verdict::Stays);
    }
    // The others are heard again.
    assert_eq!(memory.judge(&said(3, &[new, old]), later), Verdict::Stays);
    assert_eq!(memory.judge(&stale, later), Verdict::Stays);
    is(&memory.judge(&stale, later + RESET_TIME), 1);
}

/// Who insisted once, and was heard again when the time was over, was believed though nobody had insisted in between.
#[test]
fn a_doubt_lasts_only_from_one_look_to_the_next() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    // Sentinels that were set up anew, or look like it.
    let insist = [(1, epoch(0)), (1, epoch(0))];
    let promised = said(3, &[(2, promise(5))]);
    let silence = Said { asked: 3, ..Said::default() };
    for between in [silence, promised] {
        let mut memory = after(&[&[(2, epoch(5))]]);
        assert_eq!(memory.judge(&said(3, &insist), now), Verdict::Stays);
        assert_eq!(memory.judge(&between, now), Verdict::Stays);
        assert_eq!(memory.judge(&said(3, &insist), later), Verdict::Stays, "{between:?}");
        is(&memory.judge(&said(3, &insist), later + RESET_TIME), 1);
    }
}
