//! What zsh and fish themselves make of a line when Tab is pressed.

use std::{fs, io::Write, process::Command};

use crate::support::{Place, Running, both, eventually, finish, on_a_terminal};

/// What a session of zsh begins with. A key of its own says what stands in the line.
const ZSHRC: &str = r#"
PS1='ready> '
autoload -Uz compinit && compinit -u -d ./dump
source <(redlatch completions zsh)
shows() { print -r -- "$BUFFER" > line.new; command mv line.new line; BUFFER= }
zle -N shows
bindkey '^G' shows
"#;

/// A session of zsh, in which keys are pressed.
struct Zsh<'a> {
    place: &'a Place,
    terminal: Running,
}

impl<'a> Zsh<'a> {
    fn start(place: &'a Place) -> Self {
        fs::write(place.path(".zshrc"), ZSHRC).unwrap();
        let mut terminal = on_a_terminal(place, "zsh -d -i");
        terminal.env("ZDOTDIR", place.path(""));
        let mut terminal = Running::spawn(terminal);
        terminal.until_printed("ready> ");
        Zsh { place, terminal }
    }

    /// The line after Tab.
    fn completed(&mut self, line: &str) -> String {
        let keyboard = self.terminal.child().stdin.as_mut().unwrap();
        keyboard.write_all(format!("{line}\t\x07").as_bytes()).unwrap();
        let shown = self.place.path("line");
        let told = eventually("the line is shown", || fs::read_to_string(&shown).ok());
        fs::remove_file(shown).unwrap();
        told.strip_suffix('\n').unwrap().to_owned()
    }
}

/// What fish offers for a line.
fn offered_by_fish(place: &Place, line: &str) -> Vec<String> {
    let mut fish = Command::new("fish");
    fish.args(["--no-config", "-c", "redlatch completions fish | source; complete -C $argv[1]", line]);
    place.surround(&mut fish);
    let output = finish(fish);
    assert!(output.stderr.is_empty(), "{}", both(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split('\t').next().map(str::to_owned)).collect()
}

/// Names, one of which would be a command if it were not quoted, and contexts.
fn place() -> Place {
    let place = Place::local();
    let config = place.path("config/redlatch");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), "[contexts.prod]\nurl = \"local:prod\"\n[contexts.test]\n")
        .unwrap();
    for name in ["order:eu:7", "job$(touch ran) x", "a-lock"] {
        assert_eq!(place.code(["lock", name, "--lease", "5m"]), 0);
    }
    assert_eq!(place.code(["lock", "of-prod", "--lease", "5m", "--context", "prod"]), 0);
    assert_eq!(place.code(["sem", "set", "b-semaphore", "2"]), 0);
    place
}

#[test]
fn zsh_completes_names_contexts_verbs_and_commands() {
    let place = place();
    let mut zsh = Zsh::start(&place);
    for (typed, completed) in [
        ("redlatch show ord", "redlatch show order:eu:7 "),
        ("redlatch show order:e", "redlatch show order:eu:7 "),
        ("redlatch -q run -w 5 a", "redlatch -q run -w 5 a-lock "),
        ("redlatch --context pr", "redlatch --context prod "),
        ("redlatch --context prod show o", "redlatch --context prod show of-prod "),
        ("redlatch force", "redlatch force-unlock "),
        ("redlatch demo-w", "redlatch demo-w"),
        ("redlatch sem acquire b", "redlatch sem acquire b-semaphore "),
        ("redlatch run x --on-lost w", "redlatch run x --on-lost warn "),
        ("redlatch run x --on-los", "redlatch run x --on-lost="),
        ("redlatch run x -- mkfif", "redlatch run x -- mkfifo "),
        ("redlatch show job", r"redlatch show job\$\(touch\ ran\)\ x "),
    ] {
        assert_eq!(zsh.completed(typed), completed, "{typed}");
    }
    assert!(!place.path("ran").exists());
}

#[test]
fn fish_completes_names_contexts_verbs_and_commands() {
    let place = place();
    for (typed, offered) in [
        ("redlatch show ord", "order:eu:7"),
        ("redlatch show order:e", "order:eu:7"),
        ("redlatch -q run -w 5 a", "a-lock"),
        ("redlatch --context pr", "prod"),
        ("redlatch --context prod show o", "of-prod"),
        ("redlatch force", "force-unlock"),
        ("redlatch sem acquire b", "b-semaphore"),
        ("redlatch run x --on-lost w", "warn"),
        ("redlatch show job", "job$(touch ran) x"),
    ] {
        assert_eq!(offered_by_fish(&place, typed), [offered], "{typed}");
    }
    assert!(offered_by_fish(&place, "redlatch run x -- mkfif").contains(&"mkfifo".to_owned()));
    assert!(offered_by_fish(&place, "redlatch demo-w").is_empty());
    assert!(!place.path("ran").exists());
}
