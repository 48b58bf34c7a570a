//! What is offered when Tab is pressed.

use std::{fs, process::Command};

use crate::support::{Place, both, finish};

/// What bash offers for a line, which it takes apart at blanks and colons as its line editor does.
fn offered(place: &Place, line: &str) -> Vec<String> {
    let script = format!(
        "compopt() {{ :; }}; source <(redlatch completions bash); COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; \
         mapfile -t COMP_WORDS < <(sed 's/ /\\n/g; s/:/\\n:\\n/g' <<<\"$COMP_LINE\"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         $(complete -p redlatch | sed 's/.*-F \\([^ ]*\\).*/\\1/') redlatch \"${{COMP_WORDS[COMP_CWORD]}}\" \
         \"${{COMP_WORDS[COMP_CWORD-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]);
    place.surround(&mut bash);
    let output = finish(bash);
    assert!(output.stderr.is_empty(), "{}", both(&output));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn completions_know_names_contexts_and_commands() {
    let place = Place::local();
    let config = place.path("config/redlatch");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), "[contexts.prod]\nurl = \"local:prod\"\n[contexts.pre]\n").unwrap();
    assert_eq!(place.code(["lock", "order", "--lease", "5m"]), 0);
    assert_eq!(place.code(["lock", "other", "--lease", "5m"]), 0);
    assert_eq!(place.code(["lock", "of-prod", "--lease", "5m", "--context", "prod"]), 0);
    assert_eq!(offered(&place, "redlatch show ord"), ["order"]);
    assert_eq!(offered(&place, "redlatch -q --url local: run -w 5 o"), ["order", "other"]);
    assert_eq!(offered(&place, "redlatch --context prod show o"), ["of-prod"]);
    assert_eq!(offered(&place, "redlatch --context pr"), ["pre", "prod"]);
    assert!(offered(&place, "redlatch run x -- mkfif").contains(&"mkfifo".into()));
    assert_eq!(offered(&place, "redlatch force"), ["force-unlock"]);
    let verbs = offered(&place, "redlatch ");
    assert!(verbs.contains(&"run".into()) && !verbs.iter().any(|verb| verb.starts_with("__")), "{verbs:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = both(&place.output(["completions", shell]));
        assert!(!script.contains("demo-worker") && script.contains("redlatch __complete --"), "{shell}");
    }
}

#[test]
fn completions_offer_the_rest_of_a_name_with_colons() {
    let place = Place::local();
    assert_eq!(place.code(["lock", "order:eu:7", "--lease", "5m"]), 0);
    assert_eq!(offered(&place, "redlatch show ord"), ["order:eu:7"]);
    // Bash puts what is offered in the place of what follows the last colon.
    assert_eq!(offered(&place, "redlatch show order:e"), ["eu:7"]);
    assert_eq!(offered(&place, "redlatch show order:eu:"), ["7"]);
}

#[test]
fn a_name_that_is_offered_is_a_word_and_no_command() {
    let place = Place::local();
    for name in ["job$(touch ran)", "job two words", "job;touch ran"] {
        assert_eq!(place.code(["lock", name, "--lease", "5m"]), 0);
    }
    let words = offered(&place, "redlatch show job");
    assert_eq!(words.len(), 3, "{words:?}");
    let line = format!("for word in {}; do redlatch show \"$word\" -o name; done", words.join(" "));
    let output = finish(place.shell(&line));
    assert_eq!(both(&output), "job two words\njob$(touch ran)\njob;touch ran\n");
    assert!(!place.path("ran").exists());
}

#[test]
fn completions_offer_the_values_of_an_option_and_the_names_of_each_kind() {
    let place = Place::local();
    assert_eq!(place.code(["lock", "a-lock", "--lease", "5m"]), 0);
    assert_eq!(place.code(["sem", "set", "a-semaphore", "2"]), 0);
    assert_eq!(place.code(["rate", "set", "a-rate", "2", "--per", "1m"]), 0);
    assert_eq!(offered(&place, "redlatch sem acquire a"), ["a-semaphore"]);
    assert_eq!(offered(&place, "redlatch latch wait a"), ["a-semaphore"], "a latch is a bare number, too");
    assert_eq!(offered(&place, "redlatch rate acquire a"), ["a-rate"]);
    assert_eq!(offered(&place, "redlatch run x --on-lost "), ["term", "kill", "warn"]);
    assert!(!offered(&place, "redlatch run x --report a").contains(&"a-lock".into()));
    // The second word of `rate set` is a number.
    assert!(!offered(&place, "redlatch rate set a-rate a").contains(&"a-rate".into()));
}
