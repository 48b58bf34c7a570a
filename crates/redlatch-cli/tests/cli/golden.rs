//! What the command prints of the kinds, to the byte: users have put it into files of theirs.

use crate::support::{Place, both};

/// What is printed in place of what the file has.
fn other_than(arguments: &[&str], file: &str, expected: &str) -> Option<String> {
    let output = Place::local().output(arguments);
    assert!(output.status.success(), "{}", both(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    let differs = printed != expected;
    differs.then(|| format!("tests/cli/golden/{file} is not what {arguments:?} prints:\n{printed}"))
}

/// All files are compared before one fails.
macro_rules! golden {
    ($($arguments:expr => $file:literal),+ $(,)?) => {
        let told = [$(other_than(&$arguments, $file, include_str!(concat!("golden/", $file)))),+];
        let told: Vec<String> = told.into_iter().flatten().collect();
        assert!(told.is_empty(), "{}", told.join("\n\n"));
    };
}

#[test]
fn rights_stay_as_they_were() {
    golden!(
        ["acl", "--prefix", "app:"] => "acl.txt",
        ["acl", "--prefix", "app:", "--redisson", "--cluster", "--acknowledged"] => "acl-redisson.txt",
    );
}

#[test]
fn the_help_names_the_kinds_as_it_did() {
    golden!(["acl", "--help"] => "acl-help.txt", ["ls", "--help"] => "ls-help.txt");
}
