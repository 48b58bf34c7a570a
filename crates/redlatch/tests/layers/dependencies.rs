//! Where the packages come from on which ours depend, and under which licences they are.

use std::process::Command;

use crate::repository;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The licences that `deny.toml` allows.
fn allowed() -> Vec<String> {
    let text = std::fs::read_to_string(repository().join("deny.toml")).unwrap();
    let (_, list) = text.split_once("allow = [").expect("the list of licences");
    let (list, _) = list.split_once(']').unwrap();
    let quoted = list.split('"').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

/// Whether a licence expression can be met: of each part that has to be met, one of its choices is allowed.
fn is_met(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    expression.split(" AND ").all(|part| {
        let choices = part.trim().trim_start_matches('(').trim_end_matches(')');
        choices.split(" OR ").any(|licence| allowed.iter().any(|known| known == licence.trim()))
    })
}

#[test]
fn every_package_is_of_the_registry_and_under_a_licence_that_is_allowed() {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(repository())
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let found: serde_json::Value = serde_json::from_slice(&cargo.stdout).unwrap();
    let allowed = allowed();
    let packages = found["packages"].as_array().unwrap();
    let others: Vec<_> = packages.iter().filter(|package| !package["source"].is_null()).collect();
    assert!(others.len() > 100, "the packages of others are seen");
    let wrong: Vec<String> = others
        .iter()
        .filter(|package| {
            package["source"] != REGISTRY
                || !package["license"].as_str().is_some_and(|text| is_met(text, &allowed))
        })
        .map(|package| format!("{} {} {}", package["name"], package["source"], package["license"]))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_licence_is_met_by_one_choice_of_each_part() {
    let allowed = ["MIT".to_owned(), "Unicode-3.0".to_owned()];
    for met in ["MIT", "GPL-3.0/MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_met(met, &allowed), "{met}");
    }
    for not in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0 OR ISC", ""] {
        assert!(!is_met(not, &allowed), "{not}");
    }
}
