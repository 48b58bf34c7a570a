//! The exhaustive search finds nothing in the scripts as they are, and finds what is wrong with a line changed. The whole of it is run by
//! `scripts/exhaust`.

use std::process::Command;

fn exhaust(args: &[&str]) -> (bool, String) {
    let mut stress = Command::new(env!("CARGO_BIN_EXE_redlatch-stress"));
    let output = stress.arg("exhaust").args(args).output().expect("the program runs");
    let told = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&told).into_owned())
}

#[test]
fn every_model_goes_through_what_happens_in_the_first_steps() {
    let (passed, told) = exhaust(&["--worlds", "3000"]);
    assert!(passed, "{told}");
    for model in
        ["plain", "transfer", "multi", "semaphore", "permits", "fair", "read-write", "read-write-java"]
    {
        assert!(told.lines().any(|line| line.starts_with(&format!("{model}: "))), "{model}: {told}");
    }
}

#[test]
fn a_lock_that_is_granted_while_it_is_held_is_found_and_told_as_a_story() {
    // `acquire` without the look at who holds.
    let (passed, told) = exhaust(&["--worlds", "3000", "--mutant", "1"]);
    assert!(passed, "{told}");
    assert!(told.contains("1 of 1 mutants found") && told.contains("Acquire (to"), "{told}");
}

#[test]
fn a_downgrade_that_ends_the_read_hold_is_found() {
    // `write_release` that takes the hash away though its owner reads.
    let list = include_str!("../src/exhaust/mutants.txt");
    let mutants = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut numbered = mutants.enumerate();
    let line = "read-write || write_release || if longest > 0 then || if false then";
    let (at, _) = numbered.find(|(_, mutant)| *mutant == line).expect("the mutant is in the list");
    let (passed, told) = exhaust(&["--worlds", "3000", "--mutant", &(at + 1).to_string()]);
    assert!(passed, "{told}");
    assert!(told.contains("1 of 1 mutants found"), "{told}");
}
