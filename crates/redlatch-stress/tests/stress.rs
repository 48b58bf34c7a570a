//! The stress runs, and says so when there is nothing to say. Long runs are those of `scripts/stress`.

use std::process::Command;

#[test]
fn a_short_round_in_one_process_finds_nothing() {
    let mut stress = Command::new(env!("CARGO_BIN_EXE_redlatch-stress"));
    stress.args(["run", "--minutes", "0.05", "--seed", "1", "--store", "memory", "--mix", "all", "--round", "2"]);
    let output = stress.output().expect("the program runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("violations: {}"), "{told}");
}
