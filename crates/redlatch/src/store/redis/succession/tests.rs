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
    Said { claims: claims.iter().enumerate().map(claim).collect(), asked, answered: claims.len() }
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
    // Whoever sets them up anew leaves them with smaller epochs.
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
    // The same server in a smaller epoch is no other master.
    let mut memory = after(&[&[(2, epoch(5))]]);
    for at in [now, later] {
        assert_eq!(memory.judge(&said(1, &[(2, epoch(0))]), at), Verdict::Stays);
    }
    is(&memory.judge(&said(1, &[(1, epoch(1))]), later), 1);
}

#[test]
fn a_later_epoch_of_the_same_server_is_a_change_that_was_missed() {
    let now = Instant::now();
    let mut memory = after(&[&[(1, epoch(4))]]);
    is(&memory.judge(&said(1, &[(1, epoch(6))]), now), 1);
    let mut memory = after(&[&[(1, epoch(-1))]]);
    assert_eq!(memory.judge(&said(1, &[(1, epoch(6))]), now), Verdict::Stays);
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
    assert_eq!(others(&mut memory, &[(2, epoch(6))]), Verdict::Stays);
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

fn own(replicas: usize, id: &str, before: &str) -> Right {
    let before = (!before.is_empty()).then(|| before.to_owned());
    let history = (!id.is_empty()).then(|| History { id: id.to_owned(), before });
    Right::Own { replicas, history }
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
    // A restart without memory of its own is no change of masters.
    let mut memory = after(&[&[(1, own(1, "a", ""))]]);
    assert_eq!(memory.judge(&said(3, &[(1, own(0, "n", "")), (3, own(9, "z", "y"))]), now), Verdict::Stays);
    is(&memory.judge(&said(3, &[(1, own(0, "n", "")), (2, own(0, "b", "a"))]), now), 2);
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
