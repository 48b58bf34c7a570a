//! What the command prints of the kinds, to the byte: users have put it into files of theirs.

use crate::support::{Place, both};

#[track_caller]
fn prints(arguments: &[&str], file: &str, expected: &str) {
    let output = Place::local().output(arguments);
    assert!(output.status.success(), "{}", both(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed == expected, "tests/cli/golden/{file} is not what {arguments:?} prints:\n{printed}");
}

macro_rules! golden {
    ($arguments:expr, $file:literal) => {
        prints(&$arguments, $file, include_str!(concat!("golden/", $file)))
    };
}

#[test]
fn rights_stay_as_they_were() {
    golden!(["acl", "--prefix", "app:"], "acl.txt");
    golden!(["acl", "--prefix", "app:", "--redisson", "--cluster", "--acknowledged"], "acl-redisson.txt");
}

#[test]
fn the_help_names_the_kinds_as_it_did() {
    golden!(["acl", "--help"], "acl-help.txt");
    golden!(["ls", "--help"], "ls-help.txt");
}
