//! The program says what its oracle found. Runs are those of `scripts/stress`.

use std::{path::Path, process::Command};

fn check(args: &[&Path]) -> (Option<i32>, String, String) {
    let mut stress = Command::new(env!("CARGO_BIN_EXE_redlatch-stress"));
    let output = stress.arg("check").args(args).output().expect("the program runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn two_valid_holders_are_told_as_a_story_with_what_both_did() {
    let dir = tempfile::tempdir().unwrap();
    let first = "O t1 90 asks Plain plain0\nG 1 t1 plain0 X 1 a - renewed:1000 100\nE 1 5000000 unlocked\nO t1 5000001 unlocks plain0\n";
    std::fs::write(dir.path().join("p0g0.log"), first).unwrap();
    assert_eq!(check(&[dir.path()]), (Some(0), "1 holds, 0 lost, 0 violations\n".into(), String::new()));
    let second =
        "O t7 95 asks Plain plain0\nG 1 t7 plain0 X 1 b - renewed:1000 2000000\nE 1 3000000 lost:deleted\n";
    std::fs::write(dir.path().join("p1g0.log"), second).unwrap();
    std::fs::write(dir.path().join("faults.log"), "F 1000 process 1 is stopped\n").unwrap();
    let (code, told, _) = check(&[dir.path()]);
    assert_eq!(code, Some(1), "{told}");
    for part in
        ["two valid holders for 1.000 ms", "p0g0 t1", "p1g0 t7", "lost:deleted", "process 1 is stopped"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// Histories of other clients are files anywhere, and what is no history is not passed over.
#[test]
fn histories_of_any_client_are_judged_and_other_lines_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let one = file("one.history", "G 1 main sale P 2 a - fixed 100\nE 1 200 released\n");
    let two = file("two.history", "G 7 main sale P 2 b - fixed 150\nE 7 160 released\n");
    let few = [Path::new("--capacity"), Path::new("3"), &one, &two];
    assert_eq!(check(&[&one, &two]).0, Some(0), "nobody said how many there are");
    let (code, told, _) = check(&few);
    assert_eq!(code, Some(1));
    assert!(told.contains("4 permits of 3") && told.contains("two.history"), "{told}");
    let wrong = [
        "X 1",
        "G 1 main",
        "G 1 main sale ? 1 a - fixed 100",
        "G 1 main sale X 1 a none fixed 100",
        "E 9 200 released",
        "S 1",
        " ",
    ];
    for line in wrong {
        let bad = file("bad.history", &format!("G 2 main sale X 1 a - fixed 100\n{line}\n"));
        let (code, _, error) = check(&[&bad, &one]);
        assert_eq!(code, Some(2), "{line:?}");
        assert!(error.contains("bad.history, line 2"), "{line:?}: {error}");
    }
    let (code, _, error) = check(&[&dir.path().join("absent")]);
    assert!(code == Some(2) && error.contains("absent"), "{error}");
    assert_eq!(check(&[]).0, Some(2), "without files nothing was judged");
}
