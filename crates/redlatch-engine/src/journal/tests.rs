//! What the journal has after a crash, a change of its file, and damage.

use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::clock::{ManualClock, SteppedClock};

fn open_at(dir: &Path, boot_id: &str, clock: &(impl Clock + Clone + 'static)) -> (FileJournal, Recovered) {
    let boot = Boot { id: boot_id.to_owned(), is_vouched: false };
    FileJournal::open(&dir.join("j.journal"), &boot, Arc::new(clock.clone())).expect("a journal")
}

fn open(dir: &Path) -> (FileJournal, Recovered) {
    open_at(dir, "boot", &ManualClock::new(Duration::ZERO))
}

fn hold(key: &str, expires_at_ms: u64) -> Vec<Effect> {
    let key = key.as_bytes().to_vec();
    vec![
        Effect::HashSet { key: key.clone(), field: b"me".to_vec(), value: b"1".to_vec() },
        Effect::Expire { key, expires_at_ms: Some(expires_at_ms) },
    ]
}

fn holds(recovered: &Recovered, key: &str) -> bool {
    recovered
        .effects
        .iter()
        .any(|effect| matches!(effect, Effect::HashSet { key: found, .. } if found == key.as_bytes()))
}

/// Not a test of its own: the process that runs out of descriptors in the middle of a rewrite.
#[test]
fn helper_rewrites_without_descriptors() {
    let Some(dir) = std::env::var_os("REDLATCH_TEST_JOURNAL_DIR") else { return };
    let (mut journal, _) = open(Path::new(&dir));
    journal.rewrite(&[]).expect("a first file");
    let mut snapshot = hold("before", 1);
    journal.append(&snapshot).expect("room");
    let limit = getrlimit(Resource::Nofile);
    let next = File::open("/dev/null").expect("a descriptor").as_raw_fd();
    for more in 0..3 {
        let current = Some(u64::try_from(next).expect("a number") + more);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).expect("a lower limit");
        let rewritten = journal.rewrite(&snapshot);
        setrlimit(Resource::Nofile, limit).expect("the limit as it was");
        let after = hold(&format!("after-{more}"), 1);
        journal.append(&after).expect("room");
        snapshot.extend(after);
        println!("{more}: {rewritten:?}");
    }
    // What a crash leaves is what is in the file now.
    std::process::exit(0);
}

#[test]
fn what_is_confirmed_after_a_rewrite_without_descriptors_is_there_after_a_crash() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut helper = Command::new(std::env::current_exe().expect("a path"));
    helper.args(["journal::tests::helper_rewrites_without_descriptors", "--exact", "--nocapture"]);
    let ran = helper.env("REDLATCH_TEST_JOURNAL_DIR", dir.path()).output().expect("the helper runs");
    assert!(ran.status.success(), "{ran:?}");
    let (_, recovered) = open(dir.path());
    assert!(holds(&recovered, "before"));
    for after in ["after-0", "after-1", "after-2"] {
        assert!(holds(&recovered, after), "{after} was confirmed and is lost: {ran:?}");
    }
}

#[test]
fn a_snapshot_of_large_values_is_read_back_whole() {
    let dir = tempfile::tempdir().expect("a directory");
    let large = |n: u32| Effect::SetString {
        key: n.to_string().into_bytes(),
        value: vec![b'x'; 4 << 20],
        expires_at_ms: None,
    };
    let (mut journal, _) = open(dir.path());
    let snapshot: Vec<Effect> = (0..70).map(large).collect();
    journal.rewrite(&snapshot).expect("room");
    journal.append(&hold("later", 1)).expect("room");
    drop(journal);
    let (_, recovered) = open(dir.path());
    assert_eq!(recovered.effects.len(), snapshot.len() + 2);
    assert!(holds(&recovered, "later"));
}

#[test]
fn what_lies_behind_damage_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut journal, _) = open(dir.path());
    journal.rewrite(&[]).expect("room");
    journal.append(&hold("first", 1)).expect("room");
    let from = journal.len as usize;
    journal.append(&hold("second", 1)).expect("room");
    let to = journal.len as usize;
    journal.append(&hold("third", 1)).expect("room");
    drop(journal);
    let path = dir.path().join("j.journal");
    let whole = std::fs::read(&path).expect("a journal");
    for at in from..to {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        std::fs::write(&path, &damaged).expect("a damaged journal");
        let (_, recovered) = open(dir.path());
        assert!(holds(&recovered, "first") && holds(&recovered, "third"), "byte {at} of {from}..{to}");
    }
}

/// A journal with three holds, and where the record of the second one lies.
fn three_holds(dir: &Path, clock: &ManualClock, lease_ms: u64) -> (Vec<u8>, std::ops::Range<usize>) {
    let (mut journal, _) = open_at(dir, "boot", clock);
    journal.rewrite(&[]).expect("room");
    let ends_at_ms = clock.boot_ms() + lease_ms;
    journal.append(&hold("first", ends_at_ms)).expect("room");
    let from = journal.len as usize;
    journal.append(&hold("second", ends_at_ms)).expect("room");
    let to = journal.len as usize;
    journal.append(&hold("third", ends_at_ms)).expect("room");
    (std::fs::read(dir.join("j.journal")).expect("a journal"), from..to)
}

#[test]
fn what_may_be_missing_is_waited_for_as_long_as_the_longest_lease() {
    let dir = tempfile::tempdir().expect("a directory");
    let (clock, anew) = (ManualClock::new(Duration::ZERO), ManualClock::new(Duration::ZERO));
    clock.advance(Duration::from_secs(60));
    let (whole, second) = three_holds(dir.path(), &clock, 30_000);
    let path = dir.path().join("j.journal");
    let waits = |bytes: &[u8], boot_id: &str| {
        std::fs::write(&path, bytes).expect("a journal");
        let clock = if boot_id == "boot" { &clock } else { &anew };
        let (journal, recovered) = open_at(dir.path(), boot_id, clock);
        assert_eq!(journal.wait_until_ms, recovered.wait_until_ms);
        recovered.wait_until_ms.saturating_sub(clock.boot_ms())
    };
    assert_eq!(waits(&whole, "boot"), 0, "nothing is missing");
    for cut in [whole.len() - 1, second.end + 3, second.end, second.start + 9] {
        assert_eq!(waits(&whole[..cut], "boot"), 0, "cut at {cut}: nobody was told of half a record");
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xA5;
        let left_ms = waits(&damaged, "boot");
        assert!((30_000..=60_000).contains(&left_ms), "byte {at}: {left_ms} ms");
        assert_eq!(waits(&damaged, "another"), 0, "byte {at}: holders ended with the machine");
    }
    std::fs::remove_file(&path).expect("it was there");
    let (_, recovered) = open_at(dir.path(), "boot", &clock);
    assert!(recovered.wait_until_ms >= clock.boot_ms() + 30_000, "a journal that is gone");
    // Nobody knows how long, if the file that says it is gone as well.
    let mut damaged = whole.clone();
    damaged[second.start + 10] ^= 1;
    std::fs::write(&path, &damaged).expect("a journal");
    std::fs::remove_file(dir.path().join("j.leases")).expect("it was there");
    assert_eq!(open_at(dir.path(), "boot", &clock).1.wait_until_ms, u64::MAX);
}

#[test]
fn a_wait_whose_record_is_damaged_is_no_shorter() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::new(Duration::ZERO);
    let (mut damaged, second) = three_holds(dir.path(), &clock, 30_000);
    let path = dir.path().join("j.journal");
    damaged[second.start + 10] ^= 1;
    std::fs::write(&path, &damaged).expect("a journal");
    let (mut journal, recovered) = open_at(dir.path(), "boot", &clock);
    journal.rewrite(&[]).expect("room");
    drop(journal);
    let mut again = std::fs::read(&path).expect("a journal");
    // The record of the wait is the last one.
    let last = again.len() - 1;
    again[last] ^= 1;
    std::fs::write(&path, &again).expect("a journal");
    clock.advance(Duration::from_secs(1));
    let (_, after) = open_at(dir.path(), "boot", &clock);
    assert!(after.wait_until_ms >= recovered.wait_until_ms, "{} ms", after.wait_until_ms);
}

#[test]
fn the_leases_of_permits_are_waited_for_as_well() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::new(Duration::from_secs(1_000_000));
    let member = |key: &str, lease_ms: u64| Effect::SortedSet {
        key: key.as_bytes().to_vec(),
        member: b"id".to_vec(),
        score: (clock.unix_us() / 1000 + lease_ms) as f64,
    };
    let path = dir.path().join("j.journal");
    let waits_for = |change: Effect, by_rewrite: bool| {
        let _none_before = (std::fs::remove_file(&path), std::fs::remove_file(path.with_extension("leases")));
        let (mut journal, _) = open_at(dir.path(), "boot", &clock);
        journal.rewrite(&[]).expect("room");
        let changes = [hold("lock", clock.boot_ms() + 1_000), vec![change]].concat();
        if by_rewrite { journal.rewrite(&changes) } else { journal.append(&changes) }.expect("room");
        drop(journal);
        let mut damaged = std::fs::read(&path).expect("a journal");
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        std::fs::write(&path, &damaged).expect("a damaged journal");
        open_at(dir.path(), "boot", &clock).1.wait_until_ms - clock.boot_ms()
    };
    for by_rewrite in [false, true] {
        for key in ["{sem}:timeout", "{tag}sem:timeout"] {
            let left_ms = waits_for(member(key, 40_000), by_rewrite);
            assert!((40_000..=80_000).contains(&left_ms), "{key}: {left_ms} ms");
        }
        // Permits without an end have no lease, and the others are no leases either.
        for change in [
            Effect::SortedSet {
                key: b"{sem}:timeout".to_vec(),
                member: b"id".to_vec(),
                score: 922_337_203_685_477.0,
            },
            member("redisson_lock_timeout:{fair}", 40_000),
            member("{rate}:permits", 40_000),
        ] {
            let left_ms = waits_for(change.clone(), by_rewrite);
            assert!((1_000..=2_000).contains(&left_ms), "{change:?}: {left_ms} ms");
        }
    }
}

#[test]
fn the_wait_outlasts_further_starts_and_ends_in_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::new(Duration::ZERO);
    let (mut damaged, second) = three_holds(dir.path(), &clock, 30_000);
    damaged[second.start + 10] ^= 1;
    std::fs::write(dir.path().join("j.journal"), &damaged).expect("a journal");
    let (mut journal, recovered) = open_at(dir.path(), "boot", &clock);
    journal.rewrite(&recovered.effects).expect("room");
    drop(journal);
    clock.advance(Duration::from_secs(1));
    let (mut journal, again) = open_at(dir.path(), "boot", &clock);
    assert_eq!(again.wait_until_ms, recovered.wait_until_ms, "the next start waits no shorter and no longer");
    journal.rewrite(&recovered.effects).expect("room");
    drop(journal);
    clock.advance(Duration::from_secs(60));
    let (mut journal, over) = open_at(dir.path(), "boot", &clock);
    assert!(over.wait_until_ms < clock.boot_ms());
    journal.rewrite(&[]).expect("room");
    drop(journal);
    assert_eq!(open_at(dir.path(), "boot", &clock).1.wait_until_ms, 0, "it is forgotten");
}

#[test]
fn a_script_that_changes_much_counts_as_a_whole() {
    let dir = tempfile::tempdir().expect("a directory");
    let large = |n: u8| Effect::SetString { key: vec![n], value: vec![b'x'; 3 << 20], expires_at_ms: None };
    let (mut journal, _) = open(dir.path());
    journal.rewrite(&[]).expect("room");
    let before = journal.len as usize;
    let effects: Vec<Effect> = (0..5).map(large).collect();
    journal.append(&effects).expect("room");
    drop(journal);
    let path = dir.path().join("j.journal");
    let whole = std::fs::read(&path).expect("a journal");
    assert_eq!(open(dir.path()).1.effects, effects);
    for cut in [before + 9, before + (4 << 20), whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).expect("a shorter journal");
        let (_, recovered) = open(dir.path());
        assert!(recovered.effects.is_empty(), "cut at {cut}: {} changes of 5", recovered.effects.len());
        assert_eq!(recovered.wait_until_ms, 0);
    }
}

#[test]
fn a_change_that_a_kill_tore_between_its_parts_takes_no_part_in_what_comes_after() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut journal, _) = open(dir.path());
    journal.rewrite(&[]).expect("room");
    journal.append(&hold("before", 1)).expect("room");
    let before = journal.len as usize;
    let large = |n: u8| Effect::SetString { key: vec![n], value: vec![b'x'; 3 << 20], expires_at_ms: None };
    let mut torn = vec![Effect::Delete { key: b"before".to_vec() }];
    torn.extend((0..5).map(large));
    journal.append(&torn).expect("room");
    drop(journal);
    let path = dir.path().join("j.journal");
    let whole = std::fs::read(&path).expect("a journal");
    let mut ends = Vec::new();
    let mut rest = &whole[before..];
    while let Some((_, after)) = codec::decode(rest) {
        ends.push(whole.len() - after.len());
        rest = after;
    }
    assert!(ends.len() > 3, "it is in several parts: {ends:?}");
    let cuts = ends[..ends.len() - 1].iter().flat_map(|end| [*end, end + 3, end + 1000]);
    for cut in cuts {
        std::fs::write(&path, &whole[..cut]).expect("a shorter journal");
        let (mut journal, recovered) = open(dir.path());
        assert!(recovered.is_current && recovered.wait_until_ms == 0);
        assert_eq!(recovered.effects, hold("before", 1), "cut at {cut}: nobody was told of the rest");
        journal.append(&hold("later", 1)).expect("room");
        drop(journal);
        let (_, recovered) = open(dir.path());
        let both = [hold("before", 1), hold("later", 1)].concat();
        assert_eq!(recovered.effects, both, "cut at {cut}: what was confirmed, and no more");
    }
    // A file from before that was mended: a bound is the beginning of another change.
    let mut older = whole[..ends[0]].to_vec();
    codec::encode(&Record::Bound { key: b"counter".to_vec(), bound: 7 }, &mut older);
    codec::encode(&Record::Changes(&hold("later", 1)), &mut older);
    std::fs::write(&path, &older).expect("a journal");
    let recovered = open(dir.path()).1;
    assert!(holds(&recovered, "later") && !recovered.effects.contains(&torn[0]));
}

#[test]
fn a_crash_in_the_middle_of_a_rewrite_leaves_the_old_file_or_the_new_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut journal, _) = open(dir.path());
    journal.rewrite(&hold("held", 1)).expect("room");
    drop(journal);
    let whole = std::fs::read(dir.path().join("j.journal")).expect("a journal");
    for len in 0..=whole.len() {
        std::fs::write(dir.path().join("j.new"), &whole[..len]).expect("half of the next one");
        let (mut journal, recovered) = open(dir.path());
        assert!(holds(&recovered, "held") && recovered.wait_until_ms == 0);
        journal.rewrite(&recovered.effects).expect("room");
        assert!(!dir.path().join("j.new").exists());
    }
}

fn token(value: i64) -> Vec<Effect> {
    let value = value.to_string().into_bytes();
    vec![Effect::SetString { key: [COUNTER_PREFIX, b"n"].concat(), value, expires_at_ms: None }]
}

fn last_token(recovered: &Recovered) -> i64 {
    let mut tokens = recovered.effects.iter().filter_map(|effect| match effect {
        Effect::SetString { key, value, .. } if key.starts_with(COUNTER_PREFIX) => parse_int(value),
        _ => None,
    });
    tokens.next_back().expect("a counter")
}

/// How much of the journal a power cut leaves at least: all up to the clean end, and each bound with what is before it.
fn synced(journal: &[u8], closed: usize) -> usize {
    let (mut rest, mut synced) = (&journal[closed..], closed);
    while let Some((record, after)) = codec::decode(rest) {
        if matches!(record, Record::Bound { .. }) {
            synced = journal.len() - after.len();
        }
        rest = after;
    }
    synced
}

/// The start after a clean end had not rewritten the journal, and took the bound from before that end for its own. So what it handed out was not on disk,
/// and nothing said so: after a power cut the mark of the clean end was the last record again.
#[test]
fn a_token_that_was_handed_out_after_a_clean_end_is_not_handed_out_again_after_a_power_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("j.journal");
    let (mut journal, _) = open(dir.path());
    journal.rewrite(&[]).expect("room");
    journal.append(&token(5)).expect("room");
    journal.close().expect("room");
    let closed = std::fs::metadata(&file).expect("a journal").len() as usize;
    // No bound is skipped by an end in order.
    let (mut journal, recovered) = open(dir.path());
    assert_eq!(last_token(&recovered), 5);
    journal.append(&token(6)).expect("room");
    journal.append(&token(7)).expect("room");
    drop(journal);
    let whole = std::fs::read(&file).expect("a journal");
    std::fs::write(&file, &whole[..synced(&whole, closed)]).expect("the power cut");
    assert!(last_token(&open(dir.path()).1) >= 7);
    // Damage may hide what was handed out before the clean end as well.
    let mut damaged = whole[..closed].to_vec();
    let value = damaged.iter().rposition(|byte| *byte == b'5').expect("the value");
    damaged[value] ^= 0xFF;
    std::fs::write(&file, &damaged).expect("damage");
    assert!(last_token(&open(dir.path()).1) > 7);
}

/// An engine that may not read which run of the machine it is took that for another one, and dropped what was held.
#[test]
fn where_the_system_does_not_say_which_run_it_is_what_was_held_stays() {
    for (before, after) in [("boot", ""), ("", "boot"), ("", "")] {
        let dir = tempfile::tempdir().expect("a directory");
        let clock = ManualClock::new(Duration::from_secs(1_000));
        let (mut journal, _) = open_at(dir.path(), before, &clock);
        journal.rewrite(&[]).expect("a first file");
        journal.append(&hold("x", clock.boot_ms() + 30_000)).expect("room");
        let ends = |recovered: &Recovered| {
            let found = recovered.effects.iter().find_map(|effect| match effect {
                Effect::Expire { expires_at_ms, .. } => *expires_at_ms,
                _ => None,
            });
            found.expect("it is held")
        };
        let (_, same) = open_at(dir.path(), after, &clock);
        assert!(!same.other_boot && holds(&same, "x"), "{before:?} and then {after:?}");
        assert_eq!(ends(&same), clock.boot_ms() + 30_000);
        // It was another run after all, whose clock has begun anew: nobody waits for the end by the old one.
        let anew = ManualClock::new(Duration::from_secs(1));
        let (_, other) = open_at(dir.path(), after, &anew);
        let left_ms = ends(&other) - anew.boot_ms();
        assert!((30_000..=60_000).contains(&left_ms), "{before:?} and then {after:?}: {left_ms} ms");
        // Damage is waited for.
        let path = dir.path().join("j.journal");
        let mut bytes = std::fs::read(&path).expect("a journal");
        let at = bytes.len() / 2;
        bytes[at] ^= 0xA5;
        std::fs::write(&path, bytes).expect("a journal");
        assert!(open_at(dir.path(), after, &clock).1.wait_until_ms > clock.boot_ms());
    }
}

/// Containers of one run of the machine have boot ids of their own: an engine in one that was started anew dropped what the others held.
#[test]
fn another_boot_id_drops_nothing_unless_the_clocks_say_that_the_machine_was_started_anew() {
    let started = Duration::from_secs(1_000_000);
    let seconds = |more: u64| started + Duration::from_secs(more);
    // The clocks of the second engine: where its wall clock began, and how long it has been running.
    let cases = [
        ("a container that was started anew", seconds(0), 20, false),
        (
            "and the wall clock was set ahead by less than the machine has been running",
            seconds(900),
            20,
            false,
        ),
        ("or was set back", seconds(0) - Duration::from_secs(5_000), 20, false),
        ("a machine that has been running for less time", seconds(0), 5, true),
        ("one that was started after the journal was written", seconds(1_100), 20, true),
    ];
    for (case, wall, running_s, is_another) in cases {
        let dir = tempfile::tempdir().expect("a directory");
        let clock = ManualClock::new(started);
        let (mut journal, _) = open_at(dir.path(), "one", &clock);
        journal.rewrite(&[]).expect("a first file");
        // What was noted at the start is not the last that is known.
        clock.advance(Duration::from_secs(10));
        journal.append(&hold("x", clock.boot_ms() + 30_000)).expect("room");
        let later = ManualClock::new(wall);
        later.advance(Duration::from_secs(running_s));
        let (_, recovered) = open_at(dir.path(), "two", &later);
        assert_eq!(recovered.other_boot, is_another, "{case}");
        assert!(holds(&recovered, "x"), "{case}: what is dropped is dropped by the engine");
        // The same where nothing but the file of the leases is left.
        std::fs::remove_file(dir.path().join("j.journal")).expect("it was there");
        let (_, recovered) = open_at(dir.path(), "two", &later);
        assert_eq!(recovered.wait_until_ms > later.boot_ms(), !recovered.other_boot, "{case}");
    }
}

/// A permit ends by the time that scripts are told. An engine that began after a step of the wall clock gave one to another holder while
/// the first one's lease was running.
#[test]
fn an_engine_goes_on_with_the_time_of_the_one_before_it_after_a_step_of_the_wall_clock() {
    let start = Duration::from_secs(1_000_000);
    let cases = [
        ("by the journal", "one", "one", false),
        ("where the journal is gone, by the file of the leases", "one", "one", true),
        ("in another container", "one", "two", false),
        ("where the system does not say which run it is", "", "", false),
    ];
    for (case, before, after, is_gone) in cases {
        let dir = tempfile::tempdir().expect("a directory");
        let wall = SteppedClock::new(start);
        let (mut journal, first) = open_at(dir.path(), before, &wall);
        journal.rewrite(&[]).expect("a first file");
        journal.append(&hold("x", wall.boot_ms() + 30_000)).expect("room");
        for _ in 0..3 {
            wall.step(Duration::from_secs(60));
            wall.clock.advance(Duration::from_secs(20));
            if is_gone {
                std::fs::remove_file(dir.path().join("j.journal")).expect("it was there");
            }
            let (mut journal, next) = open_at(dir.path(), after, &wall);
            assert_eq!(next.clock.unix_us(), first.clock.unix_us(), "{case}");
            assert_eq!(next.clock.wall_us(), wall.unix_us(), "{case}");
            // An engine writes its journal anew when it starts.
            journal.rewrite(&next.effects).expect("room");
        }
    }
}

/// The time of an earlier run of the machine means nothing in this one.
#[test]
fn an_engine_of_another_run_of_the_machine_takes_the_wall_clock() {
    for (before, after) in [("one", "two"), ("", "")] {
        let dir = tempfile::tempdir().expect("a directory");
        let wall = SteppedClock::new(Duration::from_secs(1_000_000));
        wall.clock.advance(Duration::from_secs(100));
        let (mut journal, _) = open_at(dir.path(), before, &wall);
        journal.rewrite(&[]).expect("a first file");
        let later = ManualClock::new(Duration::from_secs(2_000_000));
        let (_, recovered) = open_at(dir.path(), after, &later);
        assert_eq!(recovered.clock.unix_us(), later.unix_us(), "{before:?} and then {after:?}");
    }
}

/// Journals of earlier releases say nothing of the time that scripts were told.
#[test]
fn a_note_of_the_clocks_without_the_time_of_scripts_is_read() {
    let note =
        |began_us| codec::Record::Clock(ClockNote { boot_us: 7, wall_us: 11, boot_began_us: began_us });
    for began_us in [None, Some(-5)] {
        let mut bytes = Vec::new();
        codec::encode(&note(began_us), &mut bytes);
        let found = Found::read(&bytes);
        assert_eq!(
            found.noted.map(|noted| (noted.boot_us, noted.wall_us, noted.boot_began_us)),
            Some((7, 11, began_us))
        );
        for cut in 1..bytes.len() {
            let found = Found::read(&bytes[..cut]);
            assert_eq!((found.damaged_bytes, found.noted), (0, None), "a note that was cut at {cut}");
        }
    }
}
