//! What a soak tells at a small scale. Full runs are those of `scripts/soak`.

use std::{collections::BTreeSet, process::Command};

/// Whether the program said that all came back, and what it printed.
fn soak(store: &str, args: &[&str]) -> (bool, String) {
    let mut soak = Command::new(env!("CARGO_BIN_EXE_redlatch-stress"));
    let output =
        soak.args(["soak", "--scale", "0.0005", "--parts", "2", "--store", store]).args(args).output();
    let output = output.expect("the program runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{}: {told}",
        String::from_utf8_lossy(&output.stderr)
    );
    (output.status.success(), told)
}

/// What is counted, by the tables of the loads.
fn names(told: &str, only_red: bool) -> BTreeSet<String> {
    let lines =
        told.lines().filter(|line| line.starts_with("  ") && !line.trim_start().starts_with("before"));
    let red = lines.filter(|line| !only_red || line.ends_with("RED"));
    red.map(|line| line.chars().skip(2).take(26).collect::<String>().trim().to_owned()).collect()
}

fn all_comes_back(store: &str) {
    let (passed, told) = soak(store, &[]);
    assert!(passed, "{told}");
    assert!(told.contains("did not come back: nothing"), "{told}");
    for load in ["Names: 500 ", "Pairs: 500 ", "Grants: 50 ", "Clients: 2 ", "Holds: 4 "] {
        assert!(told.contains(load), "{load}: {told}");
    }
}

/// With everything kept that a load could leave behind, each figure is seen to differ; but those that this version of the library gives
/// no cause to.
fn each_leak_is_found(store: &str, never: &[&str]) {
    let leaks = ["guard", "client", "waiter", "task", "memory"].map(|leak| ["--leak", leak]);
    let args = [["--load", "pairs"], ["--patience", "0"]].iter().chain(&leaks).flatten().copied();
    let (passed, told) = soak(store, &args.collect::<Vec<_>>());
    assert!(!passed, "{told}");
    let never: BTreeSet<String> = never.iter().map(|name| (*name).to_owned()).collect();
    let (all, red) = (names(&told, false), names(&told, true));
    assert!(all.len() > 9, "{told}");
    assert_eq!(red, &all - &never, "{told}");
}

#[test]
fn all_comes_back_on_a_server() {
    all_comes_back("redis");
}

#[test]
fn all_comes_back_on_the_local_engine() {
    all_comes_back("local");
}

#[test]
fn all_comes_back_in_one_process() {
    all_comes_back("memory");
}

#[test]
fn each_leak_on_a_server_is_found() {
    // Changes are watched by key, and messages come by channel.
    each_leak_is_found("redis", &["server: patterns", "server: tracked prefixes"]);
}

#[test]
fn each_leak_on_the_local_engine_is_found() {
    each_leak_is_found("local", &[]);
}

#[test]
fn each_leak_in_one_process_is_found() {
    each_leak_is_found("memory", &[]);
}
