//! Whose holds and permits are freed, and whose are left.

use super::*;

const ID: &[u8] = b"1b671a64-40d5-4ed1-a7c4-da01ff1f3341";

fn own() -> Line {
    Line::Own(ID.to_vec())
}

fn command() -> Line {
    Line::Command(ID.to_vec())
}

fn field(number: i64) -> Vec<u8> {
    [ID, format!(":{number}").as_bytes()].concat()
}

fn hold(field: &[u8]) -> Trace {
    let field = String::from_utf8(field.to_vec()).unwrap();
    Trace { key: b"x".to_vec(), field, place: TracePlace::Lock }
}

fn claims(lifelines: &Lifelines, field: &[u8]) -> bool {
    lifelines.is_claimed(ID, &hold(field))
}

fn permit_id(number: i64) -> Vec<u8> {
    [permit_mark(ID).unwrap(), number.to_be_bytes()].concat()
}

fn claims_permit(lifelines: &Lifelines, number: i64) -> bool {
    let field = permit_id(number).iter().map(|byte| format!("{byte:02x}")).collect();
    lifelines.is_claimed(ID, &Trace { key: b"{x}:timeout".to_vec(), field, place: TracePlace::Permit })
}

/// A process that has this number and has ended, as far as it is asked.
fn process(pid: i32) -> Process {
    let (process, ended) = Process::fake(pid);
    ended.set(true);
    process
}

#[test]
fn a_process_that_has_closed_everything_and_lives_keeps_what_it_holds() {
    let lifelines = Lifelines::default();
    lifelines.attended.set(true);
    let (process, ended) = Process::fake(7);
    assert!(lifelines.begin(ID, 0, Some(0), process).is_some());
    lifelines.end(&own(), true, 10);
    assert_eq!(due(&lifelines), None);
    assert_eq!(lifelines.dying().len(), 1, "its end is waited for");
    ended.set(true);
    assert_eq!(due(&lifelines), Some(Rite::Bury));
}

/// A client of process 7 with a lifeline, whose other connections are these.
fn alive(connections: &[u64]) -> Lifelines {
    let lifelines = Lifelines::default();
    lifelines.attended.set(true);
    for client in connections {
        lifelines.came(&User { pid: Some(7), client: *client });
    }
    assert!(lifelines.begin(ID, 0, Some(0), process(7)).is_some());
    lifelines
}

fn due(lifelines: &Lifelines) -> Option<Rite> {
    lifelines.next().map(|(_, rite)| rite)
}

#[test]
fn only_an_end_of_file_buries_and_only_after_the_last_request() {
    let lifelines = alive(&[1, 2]);
    assert_eq!(due(&lifelines), None);
    lifelines.end(&own(), true, 10);
    assert_eq!(due(&lifelines), None, "what it asked for may still be on its way");
    for client in [1, 2] {
        lifelines.went(&User { pid: Some(7), client });
    }
    assert_eq!(due(&lifelines), Some(Rite::Bury));
    // A process that was given the number meanwhile is another one.
    lifelines.came(&User { pid: Some(7), client: 10 });
    assert_eq!(due(&lifelines), Some(Rite::Bury));

    let lifelines = alive(&[]);
    lifelines.end(&own(), false, 10);
    assert_eq!(due(&lifelines), None, "the connection broke in another way");
    let lifelines = alive(&[]);
    lifelines.say_goodbye(&own());
    lifelines.end(&own(), true, 10);
    assert_eq!(due(&lifelines), None, "it has gone in order");
    assert!(lifelines.lives.borrow().is_empty());
}

#[test]
fn a_command_that_is_announced_is_waited_for() {
    let lifelines = alive(&[]);
    lifelines.expect_command(&own());
    lifelines.end(&own(), true, 10);
    assert_eq!(due(&lifelines), None, "its end of the lifeline may be on its way");
    assert_eq!(lifelines.begin_command(ID, 8), None, "that is another process");
    assert_eq!(lifelines.begin_command(ID, 7), Some(command()));
    assert_eq!(due(&lifelines), Some(Rite::Keep));
    lifelines.end(&command(), true, 12);
    assert_eq!(due(&lifelines), Some(Rite::Bury));
    // The other way round: the command is gone first, and its run lives.
    let lifelines = alive(&[]);
    lifelines.expect_command(&own());
    assert!(lifelines.begin_command(ID, 7).is_some());
    lifelines.end(&command(), true, 10);
    assert_eq!(due(&lifelines), None);
    lifelines.end(&own(), true, 10);
    assert_eq!(due(&lifelines), Some(Rite::Bury));
}

#[test]
fn what_others_may_count_on_is_left_out() {
    let lifelines = alive(&[1]);
    let (its, other) = (User { pid: Some(7), client: 1 }, User { pid: Some(8), client: 2 });
    let mut known = Vec::new();
    let fields: Vec<Vec<u8>> = (1..=5).map(field).collect();
    let args: Vec<&[u8]> = fields.iter().map(Vec::as_slice).collect();
    lifelines.note_owners(&its, &mut known, &args);
    assert!(fields.iter().all(|field| claims(&lifelines, field)), "its own use changes nothing");
    lifelines.note_owners(&other, &mut Vec::new(), &args[1..2]);
    lifelines.spare(&own(), 4);
    lifelines.end(&own(), true, 10);
    // A process that has the number of the dead one, and uses an owner of it.
    lifelines.note_owners(&User { pid: Some(7), client: 11 }, &mut Vec::new(), &args[4..]);
    let claimed: Vec<bool> = fields.iter().map(|field| claims(&lifelines, field)).collect();
    assert_eq!(claimed, [true, false, true, false, false]);
    let write = [ID, b":3:write"].concat();
    assert!(claims(&lifelines, &write) && !claims(&lifelines, b"mode"));
}

#[test]
fn permits_that_others_may_count_on_are_left_out() {
    let lifelines = alive(&[1]);
    let (its, other) = (User { pid: Some(7), client: 1 }, User { pid: Some(8), client: 2 });
    let two = [permit_id(1), permit_id(2)].concat();
    let mut known = Vec::new();
    lifelines.note_owners(&its, &mut known, &[&two, &two]);
    assert_eq!(known, ID, "whose connection it is");
    assert!(claims_permit(&lifelines, 1) && claims_permit(&lifelines, 2), "its own use changes nothing");
    lifelines.note_owners(&other, &mut Vec::new(), &[&two[PERMIT_BYTES..]]);
    lifelines.spare(&own(), 3);
    let claimed: Vec<bool> = (1..=4).map(|number| claims_permit(&lifelines, number)).collect();
    assert_eq!(claimed, [true, false, false, true]);
    lifelines.forget(ID);
    assert!(lifelines.marks.borrow().is_empty());
}

#[test]
fn no_permit_is_claimed_that_was_taken_before_the_lifeline_was_there() {
    for (next, claimed) in [(Some(5), [false, true]), (None, [false, false])] {
        let lifelines = Lifelines::default();
        lifelines.attended.set(true);
        assert!(lifelines.begin(ID, 0, next, process(7)).is_some());
        assert_eq!([4, 5].map(|number| claims_permit(&lifelines, number)), claimed, "{next:?}");
    }
}

#[test]
fn nothing_is_claimed_that_is_older_than_the_lifeline_or_was_used_before() {
    let lifelines = Lifelines::default();
    assert!(lifelines.begin(ID, 3, Some(3), process(7)).is_none(), "nobody sees to the dead");
    lifelines.attended.set(true);
    assert!(lifelines.begin(ID, 3, Some(3), process(7)).is_some());
    assert!(!claims(&lifelines, &field(2)) && claims(&lifelines, &field(3)));
    for (pid, claimed) in [(7, true), (8, false)] {
        let lifelines = Lifelines::default();
        lifelines.attended.set(true);
        let user = User { pid: Some(pid), client: 1 };
        lifelines.note_owners(&user, &mut Vec::new(), &[&field(1)]);
        assert!(lifelines.begin(ID, 0, Some(0), process(7)).is_some());
        assert_eq!(claims(&lifelines, &field(1)), claimed, "used by process {pid}");
    }
    // Two lifelines under one id cannot be told apart.
    assert!(lifelines.begin(ID, 3, Some(3), process(9)).is_some());
    assert!(!claims(&lifelines, &field(3)));
}

#[test]
fn clients_that_nobody_knows_to_be_dead_are_forgotten_when_there_are_too_many() {
    let lifelines = alive(&[]);
    lifelines.expect_command(&own());
    assert!(lifelines.begin_command(ID, 7).is_some());
    lifelines.end(&own(), true, 1);
    lifelines.go_on_with(ID, Vec::new());
    let more = LIVES_MAX as u64 + 10;
    for n in 2..more {
        let id = format!("1b671a64-40d5-4ed1-a7c4-{n:012}").into_bytes();
        let line = lifelines.begin(&id, 0, Some(0), process(8)).unwrap();
        // Its command never comes.
        lifelines.expect_command(&line);
        lifelines.end(&line, true, n);
    }
    assert_eq!(lifelines.lives.borrow().len(), LIVES_MAX);
    assert!(lifelines.lives.borrow().contains_key(ID), "a command that goes on is not forgotten");
    let newest = format!("1b671a64-40d5-4ed1-a7c4-{:012}", more - 1).into_bytes();
    assert!(lifelines.lives.borrow().contains_key(&newest));
}
