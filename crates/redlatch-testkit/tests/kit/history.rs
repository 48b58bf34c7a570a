//! Histories that are right, and one wrong one for each thing that the checker must find.

use std::time::Instant;

use redlatch_testkit::history::{
    CheckId, CheckOptions, Event, Floors, Kind, Mode, Outcome, Recorder, check, merge,
};

const LOCK: &str = "jobs";

fn event(kind: Kind, owner: &str, op_id: u64, from: u64, to: u64) -> Event {
    Event::new(kind, LOCK, owner).op(1, op_id).span(from, to)
}

/// A grant, sent and answered at these times.
fn grant(owner: &str, op_id: u64, from: u64, to: u64) -> Event {
    event(Kind::AcquireRet, owner, op_id, from, to).outcome(Outcome::Ok)
}

fn release(owner: &str, op_id: u64, from: u64, to: u64) -> Event {
    event(Kind::ReleaseRet, owner, op_id, from, to).outcome(Outcome::Ok)
}

fn write_seen(owner: &str, at: u64, token: u64) -> Event {
    event(Kind::WriteSeen, owner, 0, at, at).outcome(Outcome::Ok).token(token)
}

#[track_caller]
fn assert_good(events: &[Event]) {
    check(events, &CheckOptions::default()).assert_ok();
}

#[track_caller]
fn assert_bad(events: &[Event], id: CheckId) {
    let verdict = check(events, &CheckOptions::default());
    assert_eq!(verdict.ids(), [id], "{verdict}");
    // The order of the events must not matter.
    let reversed: Vec<Event> = events.iter().rev().cloned().collect();
    assert_eq!(check(&reversed, &CheckOptions::default()).counts, verdict.counts);
}

#[test]
fn good_hand_offs_with_tokens_reentry_and_renewal() {
    let events = [
        grant("a", 1, 0, 10).token(1).depth(1).valid_until(100),
        grant("a", 2, 20, 30).token(1).depth(2).valid_until(120),
        event(Kind::RenewRet, "a", 3, 60, 70).outcome(Outcome::Ok).valid_until(160),
        release("a", 4, 80, 85).depth(1),
        release("a", 5, 130, 140).depth(0),
        // Asked long before, granted when a had begun to release.
        grant("b", 6, 15, 131).token(2).depth(1).valid_until(300),
        release("b", 7, 200, 210).depth(0),
        write_seen("a", 50, 1),
        write_seen("b", 150, 2),
        write_seen("b", 160, 2),
    ];
    assert_good(&events);
    let verdict = check(&events, &CheckOptions::default());
    assert_eq!((verdict.stats.grants, verdict.stats.contended), (3, 1));
}

#[test]
fn bad_1_two_owners_at_once() {
    let mut events = vec![grant("a", 1, 0, 10), release("a", 2, 100, 110), grant("b", 3, 50, 99)];
    assert_bad(&events, CheckId::C1);
    // An answer at the moment of the release is no overlap.
    events[2] = grant("b", 3, 50, 100);
    assert_good(&events);
}

#[test]
fn bad_2_overlap_hidden_behind_a_short_hold() {
    let events = [
        grant("a", 1, 0, 10),
        release("a", 2, 1000, 1010),
        grant("b", 3, 12, 20),
        release("b", 4, 30, 31),
        grant("c", 5, 400, 500),
    ];
    let verdict = check(&events, &CheckOptions::default());
    assert_eq!((verdict.ids(), verdict.counts[&CheckId::C1]), (vec![CheckId::C1], 2));
}

#[test]
fn bad_3_token_given_twice() {
    let events = [grant("a", 1, 0, 10).token(5), release("a", 2, 20, 21), grant("b", 3, 5, 30).token(5)];
    assert_bad(&events, CheckId::C3);
}

#[test]
fn bad_4_token_goes_down() {
    let events = |second_asked| {
        [grant("a", 1, 0, 10).token(9), release("a", 2, 20, 21), grant("b", 3, second_asked, 30).token(8)]
    };
    assert_bad(&events(25), CheckId::C3);
    // Asked at the same time: the order of the tokens is free.
    assert_good(&events(5));
}

#[test]
fn bad_5_reentry_changes_the_token() {
    let events = [grant("a", 1, 0, 10).token(1), grant("a", 2, 20, 30).token(2)];
    assert_bad(&events, CheckId::C3);
    let options = CheckOptions { reentry_draws_token: true, ..CheckOptions::default() };
    check(&events, &options).assert_ok();
}

#[test]
fn bad_6_resource_accepts_a_stale_write() {
    assert_bad(&[write_seen("a", 10, 1), write_seen("b", 20, 2), write_seen("a", 30, 1)], CheckId::C4);
    assert_bad(&[write_seen("a", 10, 1), write_seen("b", 20, 1)], CheckId::C4);
    let refused = write_seen("a", 30, 1).outcome(Outcome::No);
    assert_good(&[write_seen("a", 10, 1), write_seen("b", 20, 2), refused]);
}

#[test]
fn bad_7_writer_among_readers() {
    let read = |owner, op, from, to| grant(owner, op, from, to).mode(Mode::Read);
    let mut events = vec![
        read("a", 1, 0, 10),
        read("b", 2, 0, 12),
        release("b", 3, 90, 91).mode(Mode::Read),
        release("a", 4, 40, 41).mode(Mode::Read),
        grant("c", 5, 0, 50).mode(Mode::Write),
        release("c", 6, 95, 96).mode(Mode::Write),
    ];
    assert_bad(&events, CheckId::C5);
    events[4] = grant("c", 5, 0, 90).mode(Mode::Write);
    assert_good(&events);
    // A reader comes while the writer holds; the writer itself may read.
    events.push(read("c", 7, 91, 92));
    assert_good(&events);
    events.push(read("d", 8, 91, 92));
    assert_bad(&events, CheckId::C5);
    // An upgrade beside another reader, while the reader that reaches furthest is the writer itself.
    let upgrade = [
        read("a", 1, 0, 10),
        read("b", 2, 0, 11),
        grant("b", 3, 12, 20).mode(Mode::Write),
        release("b", 4, 30, 31).mode(Mode::Write),
        release("a", 5, 50, 51).mode(Mode::Read),
        release("b", 6, 90, 91).mode(Mode::Read),
    ];
    assert_bad(&upgrade, CheckId::C5);
}

#[test]
fn bad_8_more_permits_than_there_are() {
    let permit = |event: Event, count| event.mode(Mode::Permit).permits(count);
    let mut events = vec![
        event(Kind::Capacity, "", 1, 0, 1).permits(3),
        permit(grant("a", 2, 5, 10), 2),
        permit(grant("b", 3, 5, 12), 1),
        permit(release("a", 4, 20, 21), 1),
        permit(grant("c", 5, 5, 20), 1),
        permit(grant("d", 6, 30, 40), 1),
    ];
    assert_bad(&events, CheckId::C6);
    events[2] = permit(grant("b", 3, 5, 12), 1).valid_until(39);
    assert_good(&events);
    events.push(event(Kind::Capacity, "", 7, 50, 60).permits(1));
    events.push(permit(grant("e", 8, 61, 70), 1));
    assert_bad(&events, CheckId::C6);
}

#[test]
fn bad_9_depths() {
    let unheld = [grant("a", 1, 0, 10), release("a", 2, 20, 21), release("a", 3, 30, 31)];
    assert_bad(&unheld, CheckId::C7);
    let miscounted = [grant("a", 1, 0, 10).depth(1), grant("a", 2, 20, 21).depth(3)];
    assert_bad(&miscounted, CheckId::C7);
    // With an acquire of unknown end, a second release may be right.
    let maybe = [
        grant("a", 1, 0, 10),
        event(Kind::AcquireRet, "a", 2, 11, 12).outcome(Outcome::Unknown),
        release("a", 3, 20, 21),
        release("a", 4, 30, 31),
    ];
    assert_good(&maybe);
}

#[test]
fn bad_10_overtaken_in_the_queue() {
    let fair = |event: Event| event.mode(Mode::Fair);
    let mut events = vec![
        fair(event(Kind::Queued, "a", 1, 0, 10)),
        fair(grant("b", 2, 11, 20)),
        fair(release("b", 3, 30, 31)),
        fair(grant("a", 1, 0, 40)),
    ];
    assert_bad(&events, CheckId::C8);
    events.push(fair(event(Kind::PlaceLost, "a", 1, 15, 15)));
    assert_good(&events);
    // Asked before a was queued for certain.
    assert_good(&[events[0].clone(), fair(grant("b", 2, 9, 20)), events[2].clone(), events[3].clone()]);
}

#[test]
fn bad_11_loss_without_notice_or_with_a_late_one() {
    let held = grant("a", 1, 0, 10).valid_until(100);
    let later = || event(Kind::Heal, "", 9, 500, 500);
    assert_bad(&[held.clone(), later()], CheckId::C11);
    let notice = |at| event(Kind::LostNotice, "a", 2, at, at);
    assert_good(&[held.clone(), notice(100), later()]);
    assert_bad(&[held.clone(), notice(105), later()], CheckId::C11);
    let lenient = CheckOptions { notice_late_max_ns: 5, ..CheckOptions::default() };
    let verdict = check(&[held.clone(), notice(105), later()], &lenient);
    verdict.assert_ok();
    assert_eq!(verdict.stats.notice_late_ns, 5);
    // Stopped over its deadline: the notice is due when it goes on.
    let pause = |kind, at| event(kind, "", 3, at, at).err("pause");
    let paused =
        |at| [held.clone(), pause(Kind::FaultOn, 90), pause(Kind::FaultOff, 200), notice(at), later()];
    assert_good(&paused(200));
    assert_bad(&paused(201), CheckId::C11);
    assert_good(&[held.clone(), event(Kind::Crash, "", 4, 50, 50), later()]);
    let renewal = event(Kind::RenewRet, "a", 5, 110, 120).outcome(Outcome::Ok).valid_until(600);
    assert_bad(&[held, notice(100), renewal, later()], CheckId::C11);
}

#[test]
fn bad_12_leftovers_unknown_ends_and_floors() {
    let options = CheckOptions { leftovers: vec!["key jobs".into()], ..CheckOptions::default() };
    assert_eq!(check(&[], &options).ids(), [CheckId::C14]);

    let unknown = event(Kind::AcquireRet, "a", 1, 0, 10).outcome(Outcome::Unknown);
    assert_bad(std::slice::from_ref(&unknown), CheckId::C15);
    assert_bad(&[unknown.clone(), grant("b", 2, 0, 5), release("b", 3, 6, 7)], CheckId::C15);
    assert_bad(&[event(Kind::AcquireCall, "a", 1, 0, 0)], CheckId::C15);
    let evidence = [
        event(Kind::ReleaseRet, "a", 2, 20, 30).outcome(Outcome::No),
        grant("a", 2, 20, 30),
        grant("b", 2, 20, 30),
        event(Kind::SeenFree, "", 2, 20, 30),
        event(Kind::SeenFree, "a", 2, 20, 30),
    ];
    for evidence in evidence {
        assert_good(&[unknown.clone(), evidence]);
    }

    let floors = Floors {
        grants: 2,
        contended: 1,
        faults: [("reset".to_owned(), 1)].into(),
        control_failed: Some(false),
    };
    let options = CheckOptions { floors, ..CheckOptions::default() };
    let verdict = check(&[grant("a", 1, 0, 1)], &options);
    assert_eq!((verdict.ids(), verdict.counts[&CheckId::C16]), (vec![CheckId::C16], 4));
}

#[test]
fn recorded_lines_come_back_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().join("1"), dir.path().join("2")];
    let mut recorded = Vec::new();
    for (proc, path) in (1..).zip(&paths) {
        let recorder = Recorder::with_file("run", proc, path).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let event = Event::new(Kind::AcquireRet, "l", "o").outcome(Outcome::Ok).token(3);
                        recorder.record(event.op(0, recorder.next_op_id()));
                    }
                });
            }
        });
        recorded.extend(recorder.events());
    }
    // What a killed process leaves.
    let cut = [std::fs::read(&paths[1]).unwrap(), b"{\"run\":\"ru".to_vec()].concat();
    std::fs::write(&paths[1], cut).unwrap();
    let merged = merge(&paths).unwrap();
    recorded.sort_by_key(|event| event.t_ret_ns);
    assert_eq!(merged, recorded);
    assert_eq!(merged.len(), 400);
    assert!(merged.iter().all(|event| event.run == "run" && event.proc > 0));
    std::fs::write(&paths[0], "nonsense\n").unwrap();
    assert!(merge(&paths).unwrap_err().to_string().contains("line 1"));
}

/// Sweeps, not searches: a long history takes no longer than reading it.
#[test]
fn a_long_history_is_checked_whole() {
    let mut events = Vec::new();
    for n in 0..50_000_u64 {
        let (lock, owner, at) =
            (format!("lock-{}", n % 100), format!("owner:{}", n % 1000 + n / 100 * 1000), n * 100);
        let op = |event: Event, id| event.op((n % 50) as u32, id);
        events.push(op(
            Event::new(Kind::AcquireRet, &lock, &owner)
                .span(at, at + 10)
                .outcome(Outcome::Ok)
                .token(n)
                .depth(1)
                .valid_until(at + 9_000),
            2 * n,
        ));
        events.push(op(
            Event::new(Kind::ReleaseRet, &lock, &owner)
                .span(at + 5_000, at + 5_010)
                .outcome(Outcome::Ok)
                .depth(0),
            2 * n + 1,
        ));
    }
    let started = Instant::now();
    let verdict = check(&events, &CheckOptions::default());
    println!("checked {} events in {:?}", events.len(), started.elapsed());
    verdict.assert_ok();
}
