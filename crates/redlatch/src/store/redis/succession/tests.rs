use super::*;

fn addr(port: u16) -> Addr {
    Addr::Tcp { host: "h".into(), port }
}

/// What sentinels say, each in its turn, of so many that were asked.
fn said(asked: usize, claims: &[(u16, Right)]) -> Said {
    let claim = |(at, (port, right)): (usize, &(u16, Right))| Claim {
        addr: addr(*port),
        right: right.clone(),
        by: addr(900 + at as u16),
        amid: false,
    };
    // Who has replicas that are asked has them say so.
    let copies = claims.iter().flat_map(|(_, right)| match right {
        Right::Own { replicas, history: Some(history) } => vec![history.id.as_str(); *replicas],
        _ => Vec::new(),
    });
    Said {
        claims: claims.iter().enumerate().map(claim).collect(),
        copied: by_replicas(copies),
        asked,
        answered: claims.len(),
    }
}

/// Replicas that say which history they copy.
fn by_replicas<'a>(ids: impl Iterator<Item = &'a str>) -> Vec<(Addr, String)> {
    (800..).zip(ids).map(|(port, id)| (addr(port), id.to_owned())).collect()
}

/// The same, with such replicas.
fn copied(claims: &[(u16, Right)], by: &[&str]) -> Said {
    let all = claims.len() + by.len();
    Said { copied: by_replicas(by.iter().copied()), answered: all, ..said(all, claims) }
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
    memory.withdraw();
    is(&others(&mut memory, &[(1, epoch(4))]), 1);
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

fn own(replicas: usize, id: &str, before: &str) -> Right {
    let before = (!before.is_empty()).then(|| before.to_owned());
    let history = (!id.is_empty()).then(|| History { id: id.to_owned(), before, run: None });
    Right::Own { replicas, history }
}

/// The same, of a server that names its process.
fn own_of(run: &str, id: &str, before: &str) -> Right {
    let Right::Own { replicas, history: Some(history) } = own(1, id, before) else {
        unreachable!("it has one")
    };
    Right::Own { replicas, history: Some(History { run: Some(run.to_owned()), ..history }) }
}

#[test]
fn who_has_gone_on_from_the_master_is_the_master_however_many_replicas_the_old_one_lists() {
    let now = Instant::now();
    // Nobody needs a memory for that.
    let mut memory = Memory::default();
    is(&memory.judge(&said(2, &[(1, own(5, "a", "")), (2, own(0, "b", "a"))]), now), 2);
    let mut memory = after(&[&[(1, own(5, "a", ""))]]);
    is(&memory.judge(&said(2, &[(1, own(5, "a", "")), (2, own(0, "b", "a"))]), now), 2);
    // The old one alone leads nobody back, nor does it after a restart.
    for old in [own(5, "a", ""), own(5, "x", "a")] {
        assert_eq!(memory.judge(&said(3, &[(1, old)]), now), Verdict::Stays);
        assert_eq!(port(&memory), 2);
    }
    // It does when it has copied from the new one and was promoted.
    is(&memory.judge(&said(2, &[(1, own(0, "c", "b")), (2, own(1, "b", "a"))]), now), 1);
}

#[test]
fn a_master_that_nobody_has_followed_is_taken_when_the_known_one_stays_away() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let mut memory = after(&[&[(1, own(1, "a", ""))]]);
    let stranger = [(3, own(0, "z", "y"))];
    let mut heard = said(3, &stranger);
    for (answered, at) in [(1, now), (1, later), (2, later)] {
        heard.answered = answered;
        assert_eq!(memory.judge(&heard, at), Verdict::Stays);
    }
    is(&memory.judge(&heard, later + RESET_TIME), 3);
}

/// Clients were at the old one for good though its successor was back.
#[test]
fn a_master_that_was_superseded_is_taken_by_nobody_however_long_its_successor_is_away() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let old = [(1, own(2, "a", ""))];
    let mut memory = after(&[&[(1, own(2, "a", ""))], &[(2, own(0, "b", "a")), (1, own(2, "a", ""))]]);
    for at in [now, later, later + RESET_TIME] {
        let others = Said { asked: 3, ..copied(&old, &["a"]) };
        assert_eq!(memory.judge(&others, at), Verdict::Stays);
        assert_eq!(port(&memory), 2);
    }
}

/// The same, where the one that had the place meanwhile has gone on from nobody.
#[test]
fn a_master_that_was_away_counts_again_when_it_is_back() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let (empty, promoted) = ((1, own(0, "z", "")), (2, own(0, "b", "a")));
    let absent = || {
        let alone = [empty.clone()];
        let mut memory = after(&[&[(1, own(2, "a", ""))], &[(2, own(0, "b", "a"))]]);
        assert_eq!(memory.judge(&copied(&alone, &["b"]), now), Verdict::Stays);
        is(&memory.judge(&copied(&alone, &["b"]), later), 1);
        memory
    };
    is(&absent().judge(&copied(&[empty.clone(), promoted.clone()], &[]), later), 2);
    // So does one that has gone on from it, and not one that has gone on from the other as long as it is not there.
    is(&absent().judge(&copied(&[empty.clone(), (3, own(0, "c", "b"))], &[]), later), 3);
    let mut memory = absent();
    is(&memory.judge(&copied(&[(3, own(0, "y", "z"))], &[]), later), 3);
    is(&memory.judge(&copied(&[(3, own(0, "y", "z")), promoted.clone()], &[]), later), 2);
    // Most have left it by then, and so do those that never saw it away.
    let mut memory = absent();
    let left = [(3, own(0, "y", "z")), promoted];
    is(&memory.judge(&copied(&[(3, own(0, "y", "z"))], &[]), later), 3);
    assert_eq!(memory.judge(&copied(&left, &["y"]), later), Verdict::Stays);
    is(&memory.judge(&copied(&left, &["y"]), later + RESET_TIME), 3);
}

#[test]
fn a_master_that_says_whose_copy_it_is_has_given_its_place_up() {
    let now = Instant::now();
    let undone = |claims: &[(u16, Right)], id: &str| Said {
        copied: vec![(addr(2), id.to_owned())],
        ..said(3, claims)
    };
    let known = || after(&[&[(1, own(2, "a", ""))], &[(2, own(0, "b", "a"))]]);
    is(&known().judge(&undone(&[(1, own(2, "a", ""))], "a"), now), 1);
    // Until it has copied anything it has its own.
    assert_eq!(known().judge(&undone(&[(1, own(2, "a", ""))], "b"), now), Verdict::Stays);
    // Who has gone on from that one counts.
    is(&known().judge(&undone(&[(1, own(2, "a", "")), (3, own(0, "c", "a"))], "a"), now), 3);
}

#[test]
fn a_master_with_a_new_history_is_a_new_master() {
    let now = Instant::now();
    // It was a replica between two looks. Who had its place meanwhile does not know yet that it has lost it.
    for run in ["r", "s"] {
        let mut memory = after(&[&[(1, own_of("r", "a", ""))]]);
        let (back, late) = ((1, own_of(run, "c", "b")), (2, own(5, "b", "a")));
        is(&memory.judge(&said(2, &[late.clone(), back.clone()]), now), 1);
        for claims in [&[late.clone(), back.clone()][..], &[late], &[back]] {
            assert_eq!(memory.judge(&said(2, claims), now), Verdict::Stays, "{claims:?}");
        }
        is(&memory.judge(&said(2, &[(2, own(0, "d", "c"))]), now), 2);
    }
    // There was a third one between them. As the process is the same, its own data have gone on, too.
    let mut memory = after(&[&[(1, own_of("r", "a", ""))]]);
    is(&memory.judge(&said(2, &[(1, own_of("r", "d", "c"))]), now), 1);
    assert_eq!(memory.judge(&said(2, &[(2, own(5, "b", "a"))]), now), Verdict::Stays);
    // A restart is told from that by what it remembers: nothing, or what it has saved.
    for (before, saved) in [("", ""), ("", "a"), ("x", "x")] {
        let mut memory = after(&[&[(1, own(1, "x", ""))], &[(2, own(1, "a", "x"))]]);
        let again = (2, own(0, "n", if before.is_empty() { saved } else { before }));
        is(&memory.judge(&said(3, &[again.clone(), (3, own(9, "z", "y"))]), now), 2);
        assert_eq!(memory.judge(&said(3, std::slice::from_ref(&again)), now), Verdict::Stays);
        // Who was promoted meanwhile has gone on from what it was before.
        let promoted = (3, own(0, "b", "a"));
        for claims in [[again.clone(), promoted.clone()], [promoted, again]] {
            is(&memory.clone().judge(&said(3, &claims), now), 3);
        }
    }
    // An answer without a history hides no change.
    let mut memory = after(&[&[(1, own(1, "a", ""))]]);
    assert_eq!(memory.judge(&said(1, &[(1, own(1, "", ""))]), now), Verdict::Stays);
    assert_eq!(memory.judge(&said(1, &[(1, own(1, "a", ""))]), now), Verdict::Stays);
    assert_eq!(memory.judge(&said(1, &[(1, own(1, "", ""))]), now), Verdict::Stays);
    is(&memory.judge(&said(1, &[(1, own(1, "c", "b"))]), now), 1);
    // However many there were, each counts once.
    for n in 0..3 * HISTORIES_MAX {
        let claims = [(1, own(1, &format!("n{n}"), ""))];
        is(&memory.judge(&said(1, &claims), now), 1);
        assert_eq!(memory.judge(&said(1, &claims), now), Verdict::Stays);
    }
}

#[test]
fn without_histories_the_number_of_replicas_decides() {
    let now = Instant::now();
    let mut memory = after(&[&[(1, own(1, "", "")), (2, own(1, "", ""))]]);
    assert_eq!(port(&memory), 1, "the one that is named first");
    assert_eq!(memory.judge(&said(2, &[(1, own(1, "", "")), (2, own(1, "", ""))]), now), Verdict::Stays);
    is(&memory.judge(&said(2, &[(1, own(0, "", "")), (2, own(1, "", ""))]), now), 2);
    assert_eq!(memory.judge(&said(2, &[(1, own(1, "", "")), (2, own(1, "", ""))]), now), Verdict::Stays);
}

/// Two promotions between two looks: the successor has gone on from a server whose history was never seen here, and the old master says that
/// it is one for as long as it lives.
#[test]
fn who_most_servers_copy_is_the_master_though_the_known_one_is_still_there() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let [old, new] = [(1, own(0, "a", "")), (3, own(1, "c", "b"))];
    let both = [old.clone(), new.clone()];
    let mut memory = after(&[&[(1, own(2, "a", ""))]]);
    for at in [now, later - Duration::from_millis(1)] {
        assert_eq!(memory.judge(&said(3, &both), at), Verdict::Stays);
    }
    is(&memory.judge(&said(3, &both), later), 3);
    // And so it stays, whatever the old one says.
    for at in [later, later + RESET_TIME, later + 3 * RESET_TIME] {
        assert_eq!(memory.judge(&said(3, &both), at), Verdict::Stays);
        assert_eq!(memory.judge(&said(3, std::slice::from_ref(&old)), at), Verdict::Stays);
    }
    assert_eq!(port(&memory), 3);
    // Fewer than most, or a look in between that says otherwise, change nothing.
    let alone = [old.clone(), (3, own(0, "c", "b"))];
    let mut memory = after(&[&[(1, own(2, "a", ""))]]);
    for (claims, at) in [(&both, now), (&alone, later), (&both, later), (&alone, later + 3 * RESET_TIME)] {
        assert_eq!(memory.judge(&said(3, claims), at), Verdict::Stays);
    }
    assert_eq!(port(&memory), 1);
}

/// Two were promoted from the same master. The one that was seen first was followed for ever, though all others copied the other one, and
/// a client that looked later followed that.
#[test]
fn of_two_that_were_promoted_from_one_master_the_one_that_most_copy_is_the_master() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let (first, second) = ((2, own(0, "b", "a")), (3, own(1, "c", "a")));
    let mut memory = after(&[&[(1, own(2, "a", ""))], &[(2, own(0, "b", "a"))]]);
    let both = [first.clone(), second.clone()];
    for at in [now, later - Duration::from_millis(1)] {
        assert_eq!(memory.judge(&said(3, &both), at), Verdict::Stays);
    }
    is(&memory.judge(&said(3, &both), later), 3);
    for at in [later, later + RESET_TIME, later + 3 * RESET_TIME] {
        assert_eq!(memory.judge(&said(3, &both), at), Verdict::Stays);
        assert_eq!(memory.judge(&said(3, std::slice::from_ref(&first)), at), Verdict::Stays);
    }
    // The one whose place it has, which was started anew and is copied by those that were not told, counts only where all servers say so: a new client
    // takes it then, too.
    let restarted = [(1, own(1, "x", "a")), (2, own(0, "b", "a"))];
    let mut memory = after(&[&[(1, own(2, "a", ""))], &[(2, own(0, "b", "a"))]]);
    let (some, all) = (said(4, &restarted), said(3, &restarted));
    for said in [&some, &some, &some, &all] {
        assert_eq!(memory.judge(said, later), Verdict::Stays);
    }
    is(&memory.judge(&all, later + RESET_TIME), 1);
    assert_eq!(memory.judge(&all, later + 2 * RESET_TIME), Verdict::Stays);
    // Both within one look.
    let mut memory = after(&[&[(1, own(2, "a", ""))]]);
    is(&memory.judge(&said(3, &both), now), 3);
}

/// All clients went back to a master that had been superseded, because its successor did not say any more whose copy it was: after an hour without
/// replicas, or after a restart. Those that did not hear all servers stayed.
#[test]
fn a_superseded_master_that_most_copy_is_not_taken_though_its_successor_names_it_no_more() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let old = (1, own(1, "a", "x"));
    for (id, before) in [("c", ""), ("c", "b")] {
        let mut memory = after(&[std::slice::from_ref(&old), &[(2, own(0, "b", "a")), old.clone()]]);
        assert_eq!(port(&memory), 2);
        let both = [old.clone(), (2, own(0, id, before))];
        is(&memory.judge(&said(3, &both), now), 2);
        for at in [later, later + RESET_TIME] {
            assert_eq!(memory.judge(&said(3, &both), at), Verdict::Stays, "{before}");
        }
    }
}

/// The old master came back empty, and a replica that had not been told yet copied it: clients left the promoted one, which had their locks. And
/// they left a master that had never failed for a replica that was started anew and had replicas of its own, which no client asks.
#[test]
fn who_has_gone_on_from_nobody_is_no_successor_however_many_copy_it() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let empty = [(1, own(1, "z", "")), (2, own(0, "b", "a"))];
    let mut memory = after(&[&[(1, own(2, "a", ""))], &[(2, own(0, "b", "a"))]]);
    for at in [now, later, later + RESET_TIME] {
        assert_eq!(memory.judge(&copied(&empty, &["z"]), at), Verdict::Stays);
    }
    let anew = [(1, own(0, "a", "")), (2, own(9, "z", "y"))];
    let mut memory = after(&[&[(1, own(2, "a", ""))]]);
    for at in [now, later, later + RESET_TIME] {
        assert_eq!(memory.judge(&copied(&anew, &["a"]), at), Verdict::Stays);
    }
}

/// New clients went to the old master that had come back, because of two it was named first, and those that remember stayed at the promoted one.
#[test]
fn a_new_client_takes_none_of_two_masters_that_have_not_gone_on_from_each_other() {
    let now = Instant::now();
    let (back, empty) = ((1, own(0, "c", "a")), (1, own(0, "z", "")));
    let (promoted, healthy) = ((2, own(0, "b", "a")), (2, own(0, "a", "")));
    for pair in [[back, promoted.clone()], [empty.clone(), promoted], [empty, healthy]] {
        for claims in [pair.clone(), [pair[1].clone(), pair[0].clone()]] {
            let mut memory = Memory::default();
            assert_eq!(memory.judge(&copied(&claims, &[]), now), Verdict::Stays, "{claims:?}");
            assert!(memory.present().is_none());
        }
    }
    // One of them did not tell its history this time.
    let mute = [(1, own(5, "", "")), (2, own(0, "b", "a"))];
    assert_eq!(Memory::default().judge(&copied(&mute, &[]), now), Verdict::Stays);
    // Unless most copy one of them, and that one was promoted.
    let missed = [(1, own(2, "a", "")), (3, own(0, "c", "b"))];
    is(&Memory::default().judge(&copied(&missed, &["c"]), now), 3);
    // The other one may have been promoted, and started anew since without its data.
    let stray = [(1, own(0, "a", "")), (3, own(0, "z", ""))];
    assert_eq!(Memory::default().judge(&copied(&stray, &["a"]), now), Verdict::Stays);
    let doubtful = [(1, own(0, "z", "")), (2, own(0, "b", "a"))];
    assert_eq!(Memory::default().judge(&copied(&doubtful, &["z"]), now), Verdict::Stays);
}

/// A master that was cut off went on listing the replicas that had left it, and was named first: a new client stayed there for a minute.
#[test]
fn replicas_say_themselves_whom_they_copy() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let claims = [(1, own(2, "a", "")), (3, own(1, "c", "b"))];
    let mut memory = after(&[&[(1, own(2, "a", ""))]]);
    assert_eq!(memory.judge(&copied(&claims, &["c"]), now), Verdict::Stays);
    is(&memory.judge(&copied(&claims, &["c"]), later), 3);
}

/// Who insisted once, and was heard again when the time was over, was believed though nobody had insisted in between.
#[test]
fn a_doubt_lasts_only_from_one_look_to_the_next() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    // Sentinels that were set up anew, or look like it; servers that say themselves what they are.
    let sentinels = (after(&[&[(2, epoch(5))]]), [(1, epoch(0)), (1, epoch(0))]);
    let away = (after(&[&[(2, own(1, "a", ""))]]), [(1, own(1, "z", "y")), (3, own(0, "w", "v"))]);
    let copied = (after(&[&[(2, own(2, "a", ""))]]), [(2, own(0, "a", "")), (1, own(1, "c", "b"))]);
    for (memory, insist) in [sentinels, away, copied] {
        // In between nobody is heard, or the server that insists is not.
        let promised = said(3, &[(2, promise(5))]);
        let silence = Said { asked: 3, ..Said::default() };
        let is_counted = memory.present().is_some_and(|present| present.right == epoch(5));
        for between in [silence].into_iter().chain(is_counted.then_some(promised)) {
            let mut memory = memory.clone();
            assert_eq!(memory.judge(&said(3, &insist), now), Verdict::Stays);
            assert_eq!(memory.judge(&between, now), Verdict::Stays);
            assert_eq!(memory.judge(&said(3, &insist), later), Verdict::Stays, "{insist:?} {between:?}");
            is(&memory.judge(&said(3, &insist), later + RESET_TIME), 1);
        }
    }
}
