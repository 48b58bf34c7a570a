//! What is said while the local engine's journal is damaged, or cannot be written.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use redlatch::{Client, ErrorKind};
use serde_json::Value;

use crate::support::{LIMIT, Place, both};

fn file(place: &Place, ending: &str) -> PathBuf {
    let entries = fs::read_dir(place.path("run")).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().find(|path| path.extension().is_some_and(|found| found == ending)).unwrap()
}

/// The second of three holds is lost; the others are intact.
fn damaged() -> Place {
    let place = Place::local();
    let mut ends = Vec::new();
    for name in ["first", "lost", "third"] {
        assert_eq!(place.code(["lock", name, "--lease", "10m"]), 0);
        ends.push(usize::try_from(file(&place, "journal").metadata().unwrap().len()).unwrap());
    }
    assert_eq!(place.code(["engine", "stop", "--force"]), 0);
    let journal = file(&place, "journal");
    let mut bytes = fs::read(&journal).unwrap();
    // The name of a key is in its record as it is.
    let at = bytes[ends[0]..ends[1]].windows(4).position(|part| part == b"lost").expect("the hold is there");
    bytes[ends[0] + at] ^= 0x55;
    fs::write(&journal, bytes).unwrap();
    assert_eq!(place.code(["engine", "start"]), 0);
    place
}

#[track_caller]
fn tells_of_recovery(output: &Output) {
    let text = both(output);
    assert!(text.contains("journal damaged") && text.contains("nothing is granted for "), "{text}");
}

#[test]
fn everybody_who_looks_at_an_engine_that_waits_out_what_it_lost_is_told_for_how_long() {
    let place = damaged();
    let status = place.output(["engine", "status", "-o", "json"]);
    tells_of_recovery(&status);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let left_ms = status["recovering_ms"].as_u64().unwrap();
    // What is noted of leases is their length, rounded up to a power of two.
    assert!((1..=1 << 20).contains(&left_ms), "{status}");
    let listed = place.output(["ls"]);
    assert!(listed.status.success() && both(&listed).contains("third"), "{listed:?}");
    tells_of_recovery(&listed);
    tells_of_recovery(&place.output(["show", "lost"]));
    let doctor = place.output(["doctor"]);
    assert_eq!(doctor.status.code(), Some(78), "{doctor:?}");
    tells_of_recovery(&doctor);

    let whole = Place::local();
    assert_eq!(whole.code(["lock", "first", "--lease", "10m"]), 0);
    for line in [&["engine", "status"][..], &["ls"], &["show", "first"], &["doctor"]] {
        let text = both(&whole.output(line));
        assert!(!text.contains("damaged"), "{line:?}: {text}");
    }
}

#[test]
fn everybody_who_is_granted_nothing_by_an_engine_that_waits_out_what_it_lost_is_told_for_how_long() {
    let place = damaged();
    for line in [
        &["lock", "lost", "--lease", "1m", "--no-wait"][..],
        &["lock", "lost", "--lease", "1m", "--wait", "300ms"],
        &["lock", "free", "--lease", "1m", "--no-wait"],
        &["lock", "free", "--lease", "1m", "--fair", "--wait", "300ms"],
        &["lock", "free", "--lease", "1m", "--shared", "--wait", "300ms"],
        &["lock", "free", "--lease", "1m", "--exclusive", "--wait", "300ms"],
        &["run", "lost", "--wait", "300ms", "--", "touch", "ran"],
        &["run", "pool", "--permits", "3", "--no-wait", "--", "touch", "ran"],
        &["sem", "set", "numbers", "3"],
        &["latch", "set", "latch", "3"],
    ] {
        let output = place.output(line);
        assert_eq!(output.status.code(), Some(69), "{line:?}: {output:?}");
        tells_of_recovery(&output);
    }
    assert!(!place.path("ran").exists());
    // It says so while it waits, too, and not that the lock is free.
    let mut waits = place.start(["run", "lost", "--", "touch", "ran"]);
    waits.until_told("journal damaged");
    assert!(waits.is_running());
    // What is intact is as busy as ever.
    let busy = place.output(["lock", "third", "--lease", "1m", "--no-wait"]);
    assert_eq!(busy.status.code(), Some(75), "{busy:?}");
    assert!(both(&busy).contains("held by"), "{busy:?}");
}

/// A file system that is full but for what is kept free in a file; it goes with the value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Only root can mount one. For other users these tests say so and check nothing.
    fn at(dir: &Path) -> Option<SmallDisk> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not checked: only root can mount a file system");
            return None;
        }
        fs::create_dir(dir).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k,mode=700", "small"]).arg(dir);
        assert!(mount.status().unwrap().success(), "{mount:?}");
        Some(SmallDisk(dir.to_owned()))
    }

    fn fill(&self) {
        let mut filler = File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&[0; 4096]).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_named_to_users_of_the_library_and_of_the_command() {
    let place = Place::local();
    let Some(disk) = SmallDisk::at(&place.path("run")) else { return };
    let builder = Client::builder().url("local:").engine_binary(env!("CARGO_BIN_EXE_redlatch"));
    let client = builder.engine_dir(place.path("run")).connect().await.unwrap();
    let held = client.lock("held").lock().await.unwrap();
    disk.fill();
    // What is left of the last page of the journal is written first.
    let mut taken = Vec::new();
    let error = loop {
        assert!(taken.len() < 1_000, "a full disk has room for them");
        match client.lock(format!("n{}", taken.len())).try_lock().await {
            Ok(guard) => taken.push(guard.expect("it is free")),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ServerBusy, "{error}");
    assert!(error.to_string().contains("No space left"), "{error}");
    let timed = client.lock("timed").lock_for(std::time::Duration::from_millis(300)).await;
    let error = timed.map(drop).expect_err("there is no room");
    assert!(error.to_string().contains("No space left"), "{error}");
    for line in [
        &["lock", "x", "--lease", "1m", "--no-wait"][..],
        &["lock", "x", "--lease", "1m", "--wait", "300ms"],
        &["run", "x", "--wait", "300ms", "--", "touch", "ran"],
        &["doctor"],
    ] {
        let output = place.output(line);
        assert!(!output.status.success() && both(&output).contains("No space left"), "{line:?}: {output:?}");
    }
    assert!(!place.path("ran").exists());
    disk.empty();
    let lock = client.lock("x");
    drop(tokio::time::timeout(LIMIT, lock.lock()).await.expect("there is room again").unwrap());
    assert!(held.is_valid());
    drop((held, taken));
    client.shutdown(LIMIT).await;
    // Before the file system goes.
    assert_eq!(place.code(["engine", "stop", "--force"]), 0);
}
