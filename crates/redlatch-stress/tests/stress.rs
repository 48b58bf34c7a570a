//! The program says what its oracle found. Runs are those of `scripts/stress`.

use std::{path::Path, process::Command};

fn judge(dir: &Path) -> (bool, String) {
    let mut stress = Command::new(env!("CARGO_BIN_EXE_redlatch-stress"));
    let output = stress.arg("judge").arg(dir).output().expect("the program runs");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn two_valid_holders_are_told_as_a_story_with_what_both_did() {
    let dir = tempfile::tempdir().unwrap();
    let first = "O t1 90 asks Plain plain0\nG 1 t1 plain0 X 1 a - renewed:1000 100\nE 1 5000000 unlocked\nO t1 5000001 unlocks plain0\n";
    std::fs::write(dir.path().join("p0g0.log"), first).unwrap();
    assert_eq!(judge(dir.path()), (true, String::new()));
    let second =
        "O t7 95 asks Plain plain0\nG 1 t7 plain0 X 1 b - renewed:1000 2000000\nE 1 3000000 lost:deleted\n";
    std::fs::write(dir.path().join("p1g0.log"), second).unwrap();
    std::fs::write(dir.path().join("faults.log"), "F 1000 process 1 is stopped\n").unwrap();
    let (passed, told) = judge(dir.path());
    assert!(!passed);
    for part in
        ["two valid holders for 1.000 ms", "p0g0 t1", "p1g0 t7", "lost:deleted", "process 1 is stopped"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
}
