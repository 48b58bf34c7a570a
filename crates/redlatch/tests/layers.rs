//! The folders of the library are floors, and each imports only from below.
//!
//! What a file names after `crate::` counts, in an import and elsewhere. Tests inside of files and comments do not. What is named
//! through the root of the crate (`crate::Guard`) is a name that users have, for the floor `blocking` and the sets.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// From the top to the ground: a floor is a folder or a file of `src`.
const FLOORS: &[&str] = &[
    "blocking",
    "operate",
    "client",
    "permits",
    "locks",
    "core",
    "store",
    "recipes",
    "acl",
    "replica_ack",
    "config",
    "call",
    "scripts",
    "owner",
    "keys",
    "finding",
    "call_hook",
    "backoff",
    "jitter",
    "randomness",
    "error",
    "name",
    "fork",
];
/// Who may name what users name.
const NAMING_THE_ROOT: &[&str] = &["blocking", "locks"];

fn files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") && !path.ends_with("tests.rs") {
            into.push(path);
        }
    }
}

/// The code of a file with its comments blanked, up to its tests; lines keep their numbers.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The first names after each `crate::` that is not a macro's own `$crate`, with the numbers of their lines.
fn named(code: &str) -> Vec<(usize, String)> {
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let line = |at: usize| code[..at].matches('\n').count() + 1;
    let mut all = Vec::new();
    for (at, found) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|before| before == '$' || before == '_' || before.is_alphanumeric()) {
            continue;
        }
        let rest = at + found.len();
        let Some(inside) = code[rest..].strip_prefix('{') else {
            all.push((line(at), word(&code[rest..])));
            continue;
        };
        let (mut depth, mut begins) = (0, true);
        for (offset, c) in inside.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if begins && !c.is_whitespace() => {
                    begins = false;
                    all.push((line(rest + 1 + offset), word(&inside[offset..])));
                }
                _ => {}
            }
        }
    }
    all
}

fn floor(name: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| *floor == name)
}

/// What contradicts the order of the floors in a file, in words.
fn offences(path: &str, text: &str) -> Vec<String> {
    let of = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    let Some(here) = floor(of) else { return vec![format!("{path}: `{of}` is on no floor of FLOORS")] };
    let wrong = |(line, name): (usize, String)| match floor(&name) {
        Some(there) if there < here => Some(format!(
            "{path}:{line} imports `{name}` (floor {there} of FLOORS), which is above `{of}` (floor {here})"
        )),
        Some(_) => None,
        None if NAMING_THE_ROOT.contains(&of) => None,
        None => Some(format!("{path}:{line} names `{name}` through the root of the crate")),
    };
    named(&code(text)).into_iter().filter_map(wrong).collect()
}

#[test]
fn each_floor_imports_only_from_below() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    for file in all {
        let path = file.strip_prefix(&src).unwrap().to_string_lossy().replace('\\', "/");
        if path != "lib.rs" {
            seen.insert(path.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned());
            wrong.extend(offences(&path, &fs::read_to_string(&file).unwrap()));
        }
    }
    assert!(wrong.is_empty(), "an import goes up:\n{}", wrong.join("\n"));
    let listed: BTreeSet<String> = FLOORS.iter().map(ToString::to_string).collect();
    assert_eq!(seen, listed, "FLOORS lists each floor once");
}

#[test]
fn an_import_that_goes_up_is_told_with_both_places() {
    let text = "use crate::{\n    keys::Keys,\n    locks::{Lock, shared},\n};\n// crate::blocking\nfn f() { crate::client::new() }\n#[cfg(test)]\nmod tests { use crate::blocking::Lock; }\n";
    let wrong = offences("core/wait.rs", text);
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong[0].starts_with("core/wait.rs:3 imports `locks` (floor 4"), "{wrong:?}");
    assert!(wrong[1].starts_with("core/wait.rs:6 imports `client` (floor 2"), "{wrong:?}");
    assert_eq!(offences("core/wait.rs", "use crate::Guard;").len(), 1);
    assert_eq!(offences("house/wait.rs", "").len(), 1);
    assert!(offences("locks/lock.rs", "use crate::{core::Core, Guard}; $crate::blocking::x();").is_empty());
}
