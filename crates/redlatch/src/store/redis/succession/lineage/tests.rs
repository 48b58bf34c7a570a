use super::{super::*, *};

fn addr(port: u16) -> Addr {
    Addr::Tcp { host: "h".into(), port }
}

/// A master: its port, its history, and that which it has gone on from.
type Master<'a> = (u16, &'a str, &'a str);

fn claim((port, id, before): Master<'_>, run: Option<&str>) -> Claim {
    let before = (!before.is_empty()).then(|| before.to_owned());
    let run = run.map(str::to_owned);
    let history = (!id.is_empty()).then(|| History { id: id.to_owned(), before, run });
    Claim { addr: addr(port), right: Right::Own { history }, by: Voice::at(addr(port)), amid: false }
}

/// What these say, and the replicas, of so many servers.
fn heard(asked: usize, masters: &[Master<'_>], replicas: &[(u16, &str)]) -> Said {
    Said {
        claims: masters.iter().map(|master| claim(*master, None)).collect(),
        replicas: replicas
            .iter()
            .map(|(port, id)| Replica {
                addr: addr(*port),
                history: (!id.is_empty()).then(|| id.to_string()),
                run: None,
                is_in_sync: true,
            })
            .collect(),
        refused: Vec::new(),
        asked,
        answered: masters.len() + replicas.len(),
    }
}

/// A client that has heard this, one look after the other.
fn after(looks: &[Said]) -> Memory {
    let mut memory = Memory::default();
    for said in looks {
        memory.judge(said, Instant::now());
    }
    memory
}

#[track_caller]
fn is(verdict: &Verdict, wanted: u16) {
    let Verdict::Is(claim) = verdict else { panic!("{verdict:?}") };
    assert_eq!(claim.addr, addr(wanted));
}

fn port(memory: &Memory) -> Option<u16> {
    memory.present().map(|claim| match claim.addr {
        Addr::Tcp { port, .. } => port,
        Addr::Unix(_) => unreachable!("all have ports"),
    })
}

/// Two looks that cannot tell which one counts, and none does.
#[track_caller]
fn is_contested(memory: &mut Memory, said: &Said) {
    assert_eq!(memory.judge(said, Instant::now()), Verdict::Stays, "one look may be amid a change");
    assert_eq!(memory.judge(said, Instant::now()), Verdict::Nobody);
    assert_eq!(port(memory), None);
    assert_eq!(memory.judge(said, Instant::now()), Verdict::Stays, "that is told once");
}

/// The old one goes on claiming, with the replicas that were not told yet.
#[test]
fn who_has_gone_on_from_the_master_is_the_master_however_many_copy_the_old_one() {
    let now = Instant::now();
    let both = heard(3, &[(1, "a", ""), (2, "b", "a")], &[(3, "a")]);
    is(&Memory::default().judge(&both, now), 2);
    let mut memory = after(&[heard(3, &[(1, "a", "")], &[(2, "a"), (3, "a")])]);
    is(&memory.judge(&both, now), 2);
    // The old one has copied from it, and was promoted.
    is(&memory.judge(&heard(3, &[(1, "c", "b"), (2, "b", "a")], &[]), now), 1);
}

/// Clients were at the old one for good though its successor was back.
#[test]
fn a_master_that_was_superseded_is_taken_by_nobody_however_long_its_successor_is_away() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let old = heard(3, &[(1, "a", "")], &[(3, "a")]);
    let both = heard(3, &[(1, "a", ""), (2, "b", "a")], &[(3, "a")]);
    // One that was there before, and one that came when the other had been promoted.
    for mut memory in [after(&[heard(3, &[(1, "a", "")], &[]), both.clone()]), after(&[both])] {
        for at in [now, later, later + RESET_TIME] {
            assert_eq!(memory.judge(&old, at), Verdict::Stays);
            assert_eq!(port(&memory), Some(2));
        }
    }
}

/// A client that had missed one of two promotions went back to the first master at once when the server between them was not heard in one look.
#[test]
fn a_master_that_was_superseded_is_not_taken_though_the_one_between_is_not_heard() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let all = heard(3, &[(1, "a", ""), (2, "b", "a"), (3, "c", "b")], &[]);
    let mut memory = after(&[heard(3, &[(1, "a", "")], &[]), all]);
    assert_eq!(port(&memory), Some(3));
    let soon = later - Duration::from_millis(1);
    for at in [now, soon] {
        assert_eq!(memory.judge(&heard(3, &[(1, "a", ""), (3, "c", "b")], &[]), at), Verdict::Stays);
        assert_eq!(memory.judge(&heard(3, &[(1, "a", "")], &[]), at), Verdict::Stays);
    }
    // It has ended, as its machine says.
    let ended = Said { refused: vec![addr(2)], ..heard(3, &[(1, "a", ""), (3, "c", "b")], &[]) };
    for at in [later + RESET_TIME, later + 3 * RESET_TIME] {
        assert_eq!(memory.judge(&ended, at), Verdict::Stays);
    }
    assert_eq!(port(&memory), Some(3));
    // As long as it is only silent it may copy the first one.
    is_contested(&mut memory, &heard(3, &[(1, "a", ""), (3, "c", "b")], &[]));
}

/// One that was promoted and then had no replica for an hour, or was started anew, names its parent no more. Clients that did not know took it for a
/// stranger, and left it for the one that it had superseded.
#[test]
fn a_successor_that_names_its_parent_no_more_is_left_for_nobody() {
    let now = Instant::now();
    let promoted =
        || after(&[heard(2, &[(1, "a", "x")], &[]), heard(2, &[(1, "a", "x"), (2, "b", "a")], &[])]);
    // Those that know stay as long as no others say anything else.
    let restarted = heard(2, &[(1, "a", "x"), (2, "c", "b")], &[]);
    let mut memory = promoted();
    is(&memory.judge(&restarted, now), 2);
    assert_eq!(memory.judge(&restarted, now), Verdict::Stays);
    // The others use none, be they new or there before.
    assert_eq!(Memory::default().judge(&restarted, now), Verdict::Stays);
    is_contested(&mut after(&[heard(2, &[(1, "a", "x")], &[])]), &restarted);
    // If most copy the old one, nobody uses any: a client that cannot know might use that.
    let left = heard(3, &[(1, "a", "x"), (2, "c", "b")], &[(3, "a")]);
    let mut memory = promoted();
    is(&memory.judge(&restarted, now), 2);
    is_contested(&mut memory, &left);
    // A new name without a parent, of the same process.
    let told = |id: &str, before: &str| Said {
        claims: vec![claim((1, "a", "x"), Some("r")), claim((2, id, before), Some("s"))],
        answered: 2,
        ..heard(2, &[], &[])
    };
    let mut memory = after(&[told("b", "a")]);
    is(&memory.judge(&told("c", ""), now), 2);
    assert_eq!(memory.judge(&told("c", ""), now), Verdict::Stays);
    assert_eq!(port(&memory), Some(2));
}

#[test]
fn none_of_several_masters_counts_that_have_not_gone_on_from_each_other() {
    let now = Instant::now();
    // Started anew with its data or without them, and a promoted one; two that were promoted from the same one.
    for other in [(1, "c", "a"), (1, "z", ""), (3, "d", "a")] {
        let both = heard(3, &[other, (2, "b", "a")], &[]);
        assert_eq!(Memory::default().judge(&both, now), Verdict::Stays);
        for first in [other, (2, "b", "a")] {
            let mut memory = after(&[heard(3, &[first], &[])]);
            is_contested(&mut memory, &both);
            // One of them is a replica now.
            for (left, copy) in [(other, (2, "b", "a")), ((2, "b", "a"), other)] {
                let mut memory = memory.clone();
                is(&memory.judge(&heard(3, &[left], &[(copy.0, left.1)]), now), left.0);
                assert_eq!(port(&memory), Some(left.0));
            }
        }
    }
    // One that does not tell its history.
    is_contested(&mut after(&[heard(2, &[(1, "", "")], &[])]), &heard(2, &[(1, "", ""), (2, "b", "a")], &[]));
}

/// One that shows two is the first again when the last one was long ago.
#[test]
fn one_look_that_shows_two_is_taken_for_a_change() {
    let now = Instant::now();
    let both = heard(3, &[(1, "c", "a"), (2, "b", "a")], &[]);
    let mut memory = after(&[heard(3, &[(2, "b", "a")], &[])]);
    for n in 1..4 {
        let at = now + n * RESET_TIME;
        assert_eq!(memory.judge(&both, at), Verdict::Stays);
        assert_eq!(memory.judge(&heard(3, &[(2, "b", "a")], &[(1, "b")]), at), Verdict::Stays);
    }
    assert_eq!(port(&memory), Some(2));
}

/// A former master that is started anew is no reason to stop, where most copy the present one.
#[test]
fn who_is_used_and_copied_by_most_counts_beside_a_stranger() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    for stranger in [(1, "c", "a"), (1, "z", ""), (1, "z", "y")] {
        let both = heard(3, &[stranger, (2, "b", "a")], &[(3, "b")]);
        let mut memory = after(&[heard(3, &[(2, "b", "a")], &[])]);
        for at in [now, later, later + RESET_TIME] {
            assert_eq!(memory.judge(&both, at), Verdict::Stays);
        }
        assert_eq!(port(&memory), Some(2));
        // Who uses the stranger stops, and who uses none waits.
        is_contested(&mut after(&[heard(3, &[stranger], &[])]), &both);
        assert_eq!(Memory::default().judge(&both, now), Verdict::Stays);
    }
    // Most of all servers of the URL, not of those that answer.
    is_contested(
        &mut after(&[heard(4, &[(2, "b", "a")], &[])]),
        &heard(4, &[(1, "z", ""), (2, "b", "a")], &[(3, "b")]),
    );
}

/// The old master came back, empty or with what it had saved, and a replica that had not been told yet copied it: clients left the promoted
/// one, which had their locks.
#[test]
fn a_stranger_leads_nobody_away_however_many_copy_it() {
    let now = Instant::now();
    for stranger in [(1, "z", ""), (1, "c", "a"), (1, "z", "y")] {
        let both = heard(3, &[stranger, (2, "b", "a")], &[(3, stranger.1)]);
        is_contested(&mut after(&[heard(3, &[(2, "b", "a")], &[])]), &both);
        assert_eq!(Memory::default().judge(&both, now), Verdict::Stays, "nor a new client");
    }
    // Who is known to have gone on from all others is none, and leads them in one step.
    let all = heard(4, &[(1, "a", ""), (3, "c", "b")], &[(2, "c"), (4, "c")]);
    is_contested(&mut after(&[heard(4, &[(1, "a", "")], &[])]), &all);
    // Others may be at the other one, and leave it meanwhile.
    let mut memory = after(&[heard(4, &[(1, "a", "")], &[]), heard(4, &[(2, "b", "a")], &[])]);
    is_contested(&mut memory, &all);
    let later = Instant::now() + RESET_TIME;
    assert_eq!(
        memory.judge(&heard(4, &[(1, "a", ""), (3, "c", "b")], &[(2, "a"), (4, "a")]), now),
        Verdict::Stays
    );
    assert_eq!(memory.judge(&all, later), Verdict::Stays, "one look said something else");
    is(&memory.judge(&all, later + RESET_TIME), 3);
}

/// A client that used none, because most servers copied a master that it knew to be superseded, went to the successor when a replica was started
/// anew. Others were at the old one, where they had locks.
#[test]
fn a_replica_that_is_started_anew_leads_nobody_away() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let masters = [(1, "a", ""), (3, "d", "c")];
    let all = heard(3, &masters, &[(2, "a")]);
    let knows = || {
        let mut memory = after(&[
            heard(3, &[(1, "a", "")], &[]),
            heard(3, &[(3, "b", "a")], &[(1, "b")]),
            heard(3, &[(3, "c", "b")], &[(1, "c")]),
        ]);
        is_contested(&mut memory, &all);
        memory
    };
    let refuses = Said { refused: vec![addr(2)], ..heard(3, &masters, &[]) };
    let mut anew = heard(3, &masters, &[(2, "new")]);
    anew.replicas[0].is_in_sync = false;
    for away in [&refuses, &anew, &heard(3, &masters, &[(2, "")])] {
        let mut memory = knows();
        for at in [now, later, later + RESET_TIME] {
            assert_eq!(memory.judge(away, at), Verdict::Stays, "{away:?}");
        }
    }
    // One that copies the successor has decided, and those at the old master have ten seconds to leave it.
    let mut memory = knows();
    let follows = heard(3, &masters, &[(2, "d")]);
    assert_eq!(memory.judge(&follows, now), Verdict::Stays);
    is(&memory.judge(&follows, later), 3);
}

/// The heir of a master that had ended handed over to another one. What the dead one had said last counted on, because all copied what had gone on
/// from it: clients used none for ten seconds, or for good where one more server had ended.
#[test]
fn a_master_that_is_away_is_forgotten_when_the_others_copy_its_heir() {
    let now = Instant::now();
    let later = now + 2 * RESET_TIME;
    let ends = |servers: &[u16], said: Said| Said {
        refused: servers.iter().map(|port| addr(*port)).collect(),
        ..said
    };
    let copied = heard(4, &[(2, "b", "a")], &[(3, "b"), (4, "b")]);
    let mut memory = after(&[heard(4, &[(1, "a", "")], &[(2, "a"), (3, "a"), (4, "a")])]);
    is(&memory.judge(&ends(&[1], copied.clone()), now), 2);
    assert_eq!(memory.judge(&ends(&[1], copied), later), Verdict::Stays);
    is(&memory.judge(&ends(&[1, 4], heard(4, &[(3, "c", "b")], &[(2, "c")])), later), 3);
}

/// One of two names of a replica led nowhere for a client, which counted it as a fourth server: two of four were not most, and it stayed at the successor of a
/// master that was most servers' for all others.
#[test]
fn a_name_that_leads_nowhere_is_no_server_that_speaks_for_another_one() {
    let masters = [(1, "a", ""), (3, "c", "b")];
    let all = Said { refused: vec![addr(4)], ..heard(4, &masters, &[(2, "a")]) };
    let copied = heard(4, &[(3, "b", "a")], &[(1, "b"), (2, "b")]);
    let mut memory = after(&[
        heard(4, &[(1, "a", "")], &[(2, "a"), (3, "a")]),
        copied,
        heard(4, &[(3, "c", "b")], &[(1, "c"), (2, "c")]),
    ]);
    assert_eq!(port(&memory), Some(3));
    is_contested(&mut memory, &all);
}

/// The remembered word of a server that had ended hid a master that was up, for those clients only that had heard it: they went to the next one, and others
/// stayed.
#[test]
fn a_word_that_is_remembered_and_followed_hides_no_master() {
    let now = Instant::now();
    let replicas = [(4, "a"), (5, "a")];
    let mut memory = after(&[
        heard(5, &[(1, "a", "")], &[(2, "a"), (3, "b"), (4, "a"), (5, "a")]),
        heard(5, &[(1, "a", ""), (2, "b", "a")], &[(3, "b"), (4, "a"), (5, "a")]),
    ]);
    assert_eq!(port(&memory), Some(2));
    let both = Said { refused: vec![addr(2)], ..heard(5, &[(1, "a", ""), (3, "c", "b")], &replicas) };
    for verdict in [Verdict::Stays, Verdict::Nobody, Verdict::Stays] {
        assert_eq!(memory.judge(&both, now), verdict);
    }
    let mut other = after(&[heard(5, &[(1, "a", "")], &[(2, "a"), (3, "b"), (4, "a"), (5, "a")])]);
    assert_eq!(other.judge(&both, now), Verdict::Stays);
    assert_eq!(port(&other), Some(1), "which most copy");
}

/// A name in the URL came to lead to another server, which the others copy by now, or the client's account was missing at the server that had been promoted. The former
/// master alone claimed, and clients stayed with it for good, beside those at the other one.
#[test]
fn a_master_that_most_servers_have_left_for_one_that_is_not_heard_is_left() {
    let known = || after(&[heard(3, &[(1, "a", "")], &[(2, "a"), (3, "a")])]);
    let one = |replicas: &[(u16, &str)]| heard(3, &[(1, "a", "")], replicas);
    for left in [one(&[(2, "b"), (3, "b")]), one(&[(3, "b")])] {
        is_contested(&mut known(), &left);
        assert_eq!(Memory::default().judge(&left, Instant::now()), Verdict::Stays);
        // What it copies is not known until it is in sync.
        let mut anew = left;
        anew.replicas.iter_mut().for_each(|replica| replica.is_in_sync = false);
        let mut memory = known();
        for _ in 0..3 {
            assert_eq!(memory.judge(&anew, Instant::now()), Verdict::Stays);
            assert_eq!(port(&memory), Some(1));
        }
    }
    // Most servers, and not what the master has gone on from.
    let few = heard(5, &[(1, "a", "")], &[(2, "a"), (3, "b")]);
    let parent = heard(3, &[(1, "a", "x")], &[(2, "x"), (3, "x")]);
    for said in [few, parent] {
        let mut memory = after(std::slice::from_ref(&said));
        assert_eq!(memory.judge(&said, Instant::now()), Verdict::Stays);
        assert_eq!(port(&memory), Some(1));
    }
}

/// A replica that came and went kept clients at different masters: each second look could tell, and one that cannot is excused.
#[test]
fn looks_that_can_tell_excuse_none_that_cannot() {
    let now = Instant::now();
    let masters = [(1, "a", ""), (3, "c", "b")];
    let (with, without) = (heard(3, &masters, &[(2, "a")]), heard(3, &masters, &[]));
    let mut memory = after(&[heard(3, &[(1, "a", "")], &[(2, "a")])]);
    for (said, verdict) in [
        (&with, Verdict::Stays),
        (&without, Verdict::Stays),
        (&with, Verdict::Stays),
        (&without, Verdict::Nobody),
    ] {
        assert_eq!(memory.judge(said, now), verdict);
    }
}

/// It copied the one that it had superseded, and went by another name when its first one was gone: the client was stuck for good.
#[test]
fn a_master_gives_its_place_up_by_another_name() {
    let by = |claims: Vec<Claim>, replicas: Vec<Replica>| Said {
        answered: claims.len() + replicas.len(),
        claims,
        replicas,
        ..heard(3, &[], &[])
    };
    let two = vec![claim((1, "b", "a"), Some("r")), claim((2, "b", "a"), Some("r"))];
    let copy = |port| Replica {
        addr: addr(port),
        history: Some("a".into()),
        run: Some("r".into()),
        is_in_sync: true,
    };
    let mut memory = after(&[by(two, vec![])]);
    assert_eq!(port(&memory), Some(1));
    let refused = Said { refused: vec![addr(1)], ..by(vec![claim((3, "a", ""), Some("s"))], vec![copy(2)]) };
    is(&memory.judge(&refused, Instant::now()), 3);
}

/// One server under two names changed the master each ten seconds.
#[test]
fn a_server_with_two_names_is_one() {
    let now = Instant::now();
    let said = Said {
        claims: vec![claim((1, "a", ""), Some("r")), claim((2, "a", ""), Some("r"))],
        answered: 2,
        ..heard(2, &[], &[])
    };
    let mut memory = after(std::slice::from_ref(&said));
    assert_eq!(port(&memory), Some(1));
    assert_eq!(memory.judge(&said, now), Verdict::Stays);
    // Two servers with one history are two: one was made from the other's data.
    let said = Said {
        claims: vec![claim((1, "a", ""), Some("r")), claim((2, "a", ""), Some("s"))],
        answered: 2,
        ..heard(2, &[], &[])
    };
    is_contested(&mut memory, &said);
}

/// A client whose name of the master was gone used no other name of it, though it heard it there, and was stuck for good.
#[test]
fn a_master_is_used_by_its_other_name_when_the_one_is_gone() {
    let now = Instant::now();
    for replicas in [&[][..], &[(3, "a")]] {
        let by = |names: &[u16]| Said {
            claims: names.iter().map(|name| claim((*name, "a", ""), Some("r"))).collect(),
            answered: names.len() + replicas.len(),
            ..heard(3, &[], replicas)
        };
        let mut memory = after(&[by(&[1, 2])]);
        assert_eq!(port(&memory), Some(1));
        is(&memory.judge(&by(&[2]), now), 2);
        assert_eq!(memory.judge(&by(&[1, 2]), now), Verdict::Stays);
    }
}

/// A server that was slow for a moment led clients that used none back to the one that they had used, beside those at the other one.
#[test]
fn a_server_that_is_not_heard_for_a_moment_counts_as_it_spoke_last() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let soon = later - Duration::from_millis(1);
    let (one, other) = (heard(3, &[(1, "c", "a")], &[(3, "b")]), heard(3, &[(2, "b", "a")], &[(3, "b")]));
    let both = heard(3, &[(1, "c", "a"), (2, "b", "a")], &[(3, "b")]);
    let mut used = after(&[heard(3, &[(1, "a", "")], &[])]);
    is_contested(&mut used, &both);
    let mut new = after(std::slice::from_ref(&both));
    for memory in [&mut used, &mut new] {
        for (said, at) in [(&one, now), (&other, now), (&one, soon)] {
            assert_eq!(memory.judge(said, at), Verdict::Stays);
            assert_eq!(port(memory), None);
        }
    }
    // The one that is not heard any more is copied, and so it counts on. The other one is the master when it has been away for long enough.
    let mut memory = used.clone();
    for at in [later, later + RESET_TIME, later + 3 * RESET_TIME] {
        assert_eq!(memory.judge(&one, at), Verdict::Stays);
    }
    let mut memory = used;
    assert_eq!(memory.judge(&other, soon), Verdict::Stays);
    is(&memory.judge(&other, soon + RESET_TIME), 2);
}

#[test]
fn a_master_that_nobody_has_followed_is_taken_when_the_known_one_stays_away() {
    let (now, later) = (Instant::now(), Instant::now() + RESET_TIME);
    let stranger = |answered| Said { answered, ..heard(3, &[(3, "z", "y")], &[]) };
    let known = || {
        let mut memory = Memory::default();
        memory.judge(&heard(3, &[(1, "a", "")], &[]), now);
        memory
    };
    let mut memory = known();
    for (answered, at) in [(2, now), (1, later), (1, later + RESET_TIME)] {
        assert_ne!(memory.judge(&stranger(answered), at), Verdict::Is(claim((3, "z", "y"), None)));
        assert_ne!(port(&memory), Some(3), "most servers have to be heard, and for a while");
    }
    is(&memory.judge(&stranger(2), later + RESET_TIME), 3);
    // When the other one is back it cannot be told which of them counts.
    let both = heard(3, &[(1, "a", ""), (3, "z", "y")], &[]);
    for verdict in [Verdict::Stays, Verdict::Nobody] {
        assert_eq!(memory.judge(&both, later + 3 * RESET_TIME), verdict);
    }
    // Not while a replica says that it copies the known one.
    let mut memory = known();
    for at in [now, later, later + RESET_TIME] {
        memory.judge(&heard(3, &[(3, "z", "y")], &[(2, "a")]), at);
        assert_ne!(port(&memory), Some(3));
    }
    // Where its machine says that there is none, the others are all there are.
    let mut memory = known();
    let alone = Said { refused: vec![addr(1)], ..heard(2, &[(2, "", "")], &[]) };
    assert_ne!(memory.judge(&alone, now), Verdict::Is(claim((2, "", ""), None)));
    is(&memory.judge(&alone, later), 2);
}

#[test]
fn a_master_that_is_a_replica_now_has_given_its_place_up() {
    let now = Instant::now();
    let known = || after(&[heard(3, &[(1, "a", "")], &[]), heard(3, &[(1, "a", ""), (2, "b", "a")], &[])]);
    is(&known().judge(&heard(3, &[(1, "a", "")], &[(2, "a")]), now), 1);
    // Whatever it copies by now, and though it does not tell.
    let mut not_yet = heard(3, &[(1, "a", "")], &[(2, "b")]);
    not_yet.replicas[0].is_in_sync = false;
    is(&known().judge(&not_yet, now), 1);
    is(&known().judge(&heard(3, &[(1, "a", "")], &[(2, "")]), now), 1);
    // Who has gone on from that one counts.
    is(&known().judge(&heard(3, &[(1, "a", ""), (3, "c", "a")], &[(2, "a")]), now), 3);
}

#[test]
fn a_master_with_a_new_history_is_a_new_master() {
    let now = Instant::now();
    let one = |id: &str, before: &str| heard(1, &[(1, id, before)], &[]);
    let mut memory = after(&[one("a", "")]);
    is(&memory.judge(&one("c", "b"), now), 1);
    assert_eq!(memory.judge(&one("c", "b"), now), Verdict::Stays);
    // An answer without a history hides no change.
    for _ in 0..2 {
        assert_eq!(memory.judge(&one("", ""), now), Verdict::Stays);
        assert_eq!(memory.judge(&one("c", "b"), now), Verdict::Stays);
    }
    assert_eq!(memory.judge(&one("", ""), now), Verdict::Stays);
    is(&memory.judge(&one("d", "c"), now), 1);
    // One that tells its history for the first time may have begun it since.
    let mut memory = after(&[one("", "")]);
    assert_eq!(memory.judge(&one("", ""), now), Verdict::Stays);
    is(&memory.judge(&one("a", ""), now), 1);
    // However many there were, each counts once.
    for n in 0..3 * HISTORIES_MAX {
        let claims = one(&format!("n{n}"), "");
        is(&memory.judge(&claims, now), 1);
        assert_eq!(memory.judge(&claims, now), Verdict::Stays);
    }
}

#[test]
fn lineage_is_bounded_and_has_no_circles() {
    let mut lineage = Lineage::default();
    for (child, parent) in [("b", "a"), ("c", "b"), ("a", "c"), ("a", "a"), ("c", "x")] {
        lineage.learn(child, parent);
    }
    assert!(lineage.goes_on_from("c", "a") && !lineage.goes_on_from("a", "c"));
    assert!(!lineage.goes_on_from("a", "a") && !lineage.goes_on_from("c", "x"));
    for n in 0..2 * PARENTS_MAX {
        lineage.learn(&format!("n{}", n + 1), &format!("n{n}"));
    }
    assert_eq!(lineage.0.len(), PARENTS_MAX);
    let last = format!("n{}", 2 * PARENTS_MAX);
    assert!(lineage.goes_on_from(&last, &format!("n{}", PARENTS_MAX + 1)));
    assert!(!lineage.goes_on_from(&last, "n0"), "what is forgotten makes a server count less");
}
