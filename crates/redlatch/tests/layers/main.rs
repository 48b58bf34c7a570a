//! The house is built in floors: each folder imports only from those below it, and no file imports one that imports it.
//!
//! The sources are parsed, and every path in them counts: those of `use`, those in expressions, and those in the tokens of macros. Each is
//! followed to the file that defines the item, through all re-exports on the way, so that no cycle hides behind a `mod.rs`. Tests do
//! not count (`#[cfg(test)]`, `tests.rs`).

mod cycles;
mod dependencies;
mod imports;
mod source;

use std::{
    collections::BTreeSet,
    panic::Location,
    path::{Path, PathBuf},
};

use crate::{
    cycles::{Cycle, cycles},
    imports::Imports,
    source::Sources,
};

/// A folder or file of `src`, and the line of the list that puts it where it is.
struct Floor {
    path: &'static str,
    line: u32,
}

#[track_caller]
fn floor(path: &'static str) -> Floor {
    Floor { path, line: Location::caller().line() }
}

/// What is directly in `src`: words that all floors use.
const WORDS: &str = "the words in src";

/// From the top to the bottom. A file imports from its own floor and from those below.
fn floors() -> Vec<Floor> {
    vec![
        floor("lib.rs"),
        floor("fuzzing.rs"),
        floor("blocking"),
        floor("operate"),
        floor("client"),
        floor("permits"),
        floor("locks"),
        floor("locks/shared"),
        floor("core"),
        floor("store"),
        floor("recipes"),
        floor("acl"),
        floor("config"),
        floor(WORDS),
        floor("kind"),
        floor("scripts"),
    ]
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn imports(root: &str) -> Imports {
    let imports = Imports::of(&Sources::read(&repository(), Path::new(root)));
    assert!(!imports.edges.is_empty(), "{root} was read");
    imports
}

/// The floor of a file, as its place in the list: the innermost folder that is in it.
fn floor_of(floors: &[Floor], file: &Path) -> Option<usize> {
    let inside = file.strip_prefix("crates/redlatch/src").ok()?;
    let place = |path: &Path| floors.iter().position(|floor| Path::new(floor.path) == path);
    let named = inside.ancestors().find_map(place);
    let is_word = inside.components().count() == 1;
    named.or_else(|| place(Path::new(WORDS)).filter(|_| is_word))
}

#[test]
fn no_floor_imports_from_one_above() {
    let (floors, imports) = (floors(), imports("crates/redlatch/src/lib.rs"));
    let mut wrong = Vec::new();
    for file in &imports.files {
        let Some(own) = floor_of(&floors, file) else {
            wrong.push(format!("{}: no floor has it", file.display()));
            continue;
        };
        for (other, import) in imports.edges.get(file).into_iter().flatten() {
            let Some(above) = floor_of(&floors, other).filter(|above| *above < own) else { continue };
            let (own, above) = (&floors[own], &floors[above]);
            wrong.push(format!(
                "{}:{}: `{}` goes up to {}\n    {}:{}: \"{}\" is above \"{}\" of line {}",
                file.display(),
                import.line,
                import.path,
                other.display(),
                file!(),
                above.line,
                above.path,
                own.path,
                own.line,
            ));
        }
    }
    for (at, floor) in floors.iter().enumerate() {
        let is_used = imports.files.iter().any(|file| floor_of(&floors, file) == Some(at));
        assert!(is_used, "{}:{}: \"{}\" has no files", file!(), floor.line, floor.path);
    }
    assert!(wrong.is_empty(), "{} imports go up a floor:\n{}", wrong.len(), wrong.join("\n"));
}

/// A cycle in words: each import with the line that it is on.
fn told(imports: &Imports, cycle: &Cycle) -> String {
    let step = |(at, file): (usize, &PathBuf)| {
        let next = &cycle[(at + 1) % cycle.len()];
        let import = imports.between(file, next).expect("it is part of the cycle");
        format!("{}:{}: `{}` imports {}", file.display(), import.line, import.path, next.display())
    };
    cycle.iter().enumerate().map(step).collect::<Vec<_>>().join("\n    ")
}

fn has_no_cycle(root: &str) {
    let imports = imports(root);
    let cycles: BTreeSet<Cycle> = cycles(&imports);
    let told: Vec<String> = cycles.iter().map(|cycle| told(&imports, cycle)).collect();
    assert!(told.is_empty(), "{} import cycles in {root}:\n{}", told.len(), told.join("\n\n"));
}

/// A script that goes over the connection that watches keys ends the watching of what it changes, without a word. So one file sends them, and
/// has the keys watched anew.
#[test]
fn one_file_of_the_core_sends_scripts() {
    let root = repository().join("crates/redlatch/src");
    let (mut folders, mut senders) = (vec![root.clone()], BTreeSet::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let file = path.strip_prefix(&root).unwrap().to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !file.starts_with("store") && !file.ends_with("tests.rs") {
                let mut text = std::fs::read_to_string(&path).unwrap();
                text.retain(|char| !char.is_whitespace());
                if ["run", "run_at", "run_apart", "run_acked"]
                    .iter()
                    .any(|way| text.contains(&format!("store.{way}(")))
                {
                    senders.insert(file);
                }
            }
        }
    }
    assert_eq!(senders, BTreeSet::from([PathBuf::from("core/send.rs")]));
}

/// A file that no module names is compiled by nobody: tests in it never fail.
#[test]
fn every_file_is_named_by_a_module() {
    let mut folders = vec![repository().join("crates"), repository().join("benches")];
    let (mut seen, mut unnamed) = (0, Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let folder_name = folder.file_name().unwrap().to_str().unwrap();
            let is_root = matches!(&*stem, "main" | "lib" | "build")
                || matches!(folder_name, "tests" | "examples" | "bin" | "benches");
            if path.extension().is_none_or(|extension| extension != "rs") || is_root {
                continue;
            }
            seen += 1;
            let (name, place) = match &*stem {
                "mod" => (folder_name.to_owned(), folder.parent().unwrap()),
                _ => (stem, &*folder),
            };
            let beside = place.with_extension("rs");
            let parents =
                ["mod.rs", "main.rs", "lib.rs"].map(|file| place.join(file)).into_iter().chain([beside]);
            // Each test is a program of its own, and may name it.
            let programs = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
            let programs = programs.filter(|_| place.ends_with("tests"));
            let names = parents.chain(programs).filter_map(|file| std::fs::read_to_string(file).ok());
            if !names.into_iter().any(|text| text.contains(&format!("mod {name};"))) {
                unnamed.push(path);
            }
        }
    }
    assert!(seen > 500, "{seen} files");
    assert!(unnamed.is_empty(), "{unnamed:#?}");
}

#[test]
fn no_file_of_the_library_imports_one_that_imports_it() {
    has_no_cycle("crates/redlatch/src/lib.rs");
}

#[test]
fn no_file_of_the_engine_does() {
    has_no_cycle("crates/redlatch-engine/src/lib.rs");
}

#[test]
fn no_file_of_the_command_does() {
    has_no_cycle("crates/redlatch-cli/src/main.rs");
}

#[test]
fn no_file_of_the_testkit_does() {
    has_no_cycle("crates/redlatch-testkit/src/lib.rs");
}

#[test]
fn no_file_of_the_stress_does() {
    has_no_cycle("crates/redlatch-stress/src/main.rs");
}

#[test]
fn no_file_of_the_bars_does() {
    has_no_cycle("crates/redlatch-bars/src/main.rs");
}

#[test]
fn no_file_of_the_benchmarks_does() {
    has_no_cycle("benches/src/main.rs");
}

/// A crate of these files in a folder of its own: the imports that are found.
fn imports_of(files: &[(&str, &str)]) -> Imports {
    let folder = tempfile::tempdir().expect("a folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("its folder");
        std::fs::write(path, text).expect("the file");
    }
    Imports::of(&Sources::read(folder.path(), Path::new("lib.rs")))
}

#[test]
fn a_cycle_behind_re_exports_and_macros_is_found() {
    let imports = imports_of(&[
        ("lib.rs", "mod low; mod high; mod words;"),
        ("high/mod.rs", "mod inner; pub(crate) use inner::Thing as Other;"),
        ("high/inner.rs", "use crate::words::Word;\npub(crate) struct Thing(Word);"),
        ("words.rs", "pub(crate) use crate::low::Word;"),
        ("low.rs", "pub(crate) struct Word;\nmacro_rules! makes { () => { crate::high::Other } }"),
    ]);
    let files = |cycle: Cycle| cycle.iter().map(|file| file.display().to_string()).collect::<Vec<_>>();
    let found: Vec<_> = cycles(&imports).into_iter().map(files).collect();
    assert_eq!(found, [["high/inner.rs", "low.rs"]]);
    let import = imports.between(&"low.rs".into(), &"high/inner.rs".into()).expect("it is found");
    assert_eq!((import.line, import.path.as_str()), (2, "crate::high::Other"));
}

#[test]
fn tests_and_a_module_with_its_children_are_no_cycle() {
    let imports = imports_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod child; pub(crate) struct Top(child::Part);"),
        ("a/child.rs", "use super::Top;\npub(crate) struct Part;"),
        ("b.rs", "use crate::a::Top;\npub(crate) struct B;"),
        ("a/tests.rs", "this is not read"),
    ]);
    assert!(cycles(&imports).is_empty());
    let imports = imports_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "pub(crate) struct A;\n#[cfg(test)]\nmod tests { use crate::b::B; }"),
        ("b.rs", "use crate::a::A;\npub(crate) struct B(A);"),
    ]);
    assert!(cycles(&imports).is_empty() && imports.between(&"b.rs".into(), &"a.rs".into()).is_some());
}

#[test]
fn siblings_that_import_each_other_are_a_cycle() {
    let imports = imports_of(&[
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod one; mod two;"),
        ("a/one.rs", "use super::two::Two;\npub(crate) struct One;"),
        ("a/two.rs", "pub(crate) struct Two { one: Vec<super::one::One> }"),
    ]);
    assert_eq!(cycles(&imports).len(), 1);
}
