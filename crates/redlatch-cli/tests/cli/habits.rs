//! What people expect who come from flock, cron and other commands.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
};

use redlatch_testkit::server::RedisServer;

use crate::support::{Place, both, finish, on_a_terminal};

#[test]
fn a_wait_without_a_unit_is_in_seconds() {
    let place = Place::local();
    let holder = place.holder("job", &[]);
    assert_eq!(place.code(["run", "job", "-w", "1", "--", "true"]), 75);
    assert_eq!(place.code(["run", "job", "-w", "0.2", "--", "true"]), 75);
    place.end("job");
    assert!(holder.finish().status.success());
    assert_eq!(place.code(["run", "job", "-w", "5", "--", "true"]), 0);
}

#[test]
fn a_script_can_be_given_as_for_flock() {
    let place = Place::local();
    let output = place.output(["run", "job", "-c", "echo $((1 + 1)); exit 3"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), b"2\n".as_slice()), "{output:?}");
    let output = place.output(["run", "job", "-c", "echo $1-$2", "--", "a", "b  c"]);
    assert_eq!(output.stdout, b"a-b c\n", "{output:?}");
    assert_eq!(place.code(["run", "job", "-c", "true", "--shell", "--", "false"]), 64);
}

#[test]
fn a_command_without_its_dashes_is_told_where_they_go() {
    let place = Place::local();
    for (line, told) in [
        (&["run", "x", "true"][..], "redlatch run x -- true"),
        (&["run", "-n", "x", "ls", "-l"][..], "redlatch run -n x -- ls -l"),
        (&["run", "x", "-w", "5", "sh", "-c", "a b"][..], "redlatch run x -w 5 -- sh -c 'a b'"),
    ] {
        let output = place.output(line);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        assert!(both(&output).contains(told), "{told}: {}", both(&output));
    }
    // Nothing to guess: there is only a name, or the dashes are there.
    for line in [&["run", "x"][..], &["run", "x", "--"][..], &["run", "x", "--nonsense", "--", "true"][..]] {
        assert!(!both(&place.output(line)).contains("put --"), "{line:?}");
    }
}

#[test]
fn a_wait_without_a_terminal_says_so_at_once() {
    let place = Place::local();
    let holder = place.holder("job", &[]);
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let mut waiter = place.start(["run", "job", "--", "true"]);
    let pid = std::fs::read_to_string(place.path("job.pid")).unwrap();
    // What holds it on this machine is named, so that nobody has to look it up.
    let working = format!("held by {owner} for sh (pid {})", pid.trim());
    waiter.until_told(&format!("waiting for \"job\" — {working}"));
    assert!(both(&place.output(["run", "job", "-n", "--", "true"])).contains(&working));
    assert_eq!(both(&place.output(["run", "job", "-q", "-w", "500ms", "--", "true"])), "");
    place.end("job");
    assert!(holder.finish().status.success());
    assert!(waiter.finish().status.success());
    // A gate says it, too.
    assert_eq!(place.code(["latch", "set", "gate", "1"]), 0);
    let output = place.output(["latch", "wait", "gate", "-w", "500ms"]);
    assert!(both(&output).contains("waiting for \"gate\" — closed, 1 left"), "{output:?}");
}

#[test]
fn a_user_who_did_not_wait_and_one_who_waited_in_vain_are_told_different_things() {
    let place = Place::local();
    let holder = place.holder("job", &[]);
    let at_once = both(&place.output(["run", "job", "-n", "--", "true"]));
    assert!(at_once.contains("wait with --wait"), "{at_once}");
    let in_vain = both(&place.output(["run", "job", "-w", "300ms", "--", "true"]));
    assert!(in_vain.contains("was busy for all of 300ms") && !in_vain.contains("wait with"), "{in_vain}");
    place.end("job");
    assert!(holder.finish().status.success());
}

#[test]
fn an_engine_may_be_told_never_to_exit() {
    let place = Place::local();
    for word in ["never", "forever"] {
        let dir = place.path("hand");
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        let line = ["engine", "run", "--dir", dir.to_str().unwrap(), "--name", word, "--idle-exit", word];
        let mut command = place.redlatch(line);
        command.stderr(std::process::Stdio::null());
        let mut engine = crate::support::Running::spawn(command);
        engine.until_printed("READY\n");
        engine.signal(rustix::process::Signal::TERM);
        assert_eq!(engine.finish().status.code(), Some(0), "{word}");
    }
}

#[test]
fn config_show_shows_a_context_whose_password_file_is_missing() {
    let place = Place::local();
    let text = "[contexts.prod]\nurl = \"redis://prod.example\"\npassword_file = \"absent\"\n";
    fs::write(place.path("c.toml"), text).unwrap();
    let output = place.output(["config", "show", "--config", "c.toml", "--context", "prod"]);
    let told = both(&output);
    assert_eq!(output.status.code(), Some(78), "{told}");
    assert!(told.contains("url\tredis://prod.example\t") && told.contains("lease\t30s\tdefault"), "{told}");
    assert!(told.contains("problem\tcannot read the password file"), "{told}");
    // Every other verb needs it.
    assert_eq!(place.code(["ls", "--config", "c.toml", "--context", "prod"]), 78);
}

#[test]
fn a_wait_with_a_limit_outlasts_a_server_that_is_down_at_the_start() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    server.kill9();
    let mut run = place.start(["run", "job", "-w", "25s", "-v", "--", "echo", "mine"]);
    run.until_told("waiting for the server");
    server.restart().unwrap();
    let output = run.finish();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), b"mine\n".as_slice()),
        "{output:?}"
    );
    server.kill9();
    assert_eq!(place.code(["run", "job", "-w", "300ms", "--", "true"]), 69);
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 69);
}

#[test]
fn an_engine_that_fails_once_is_started_again() {
    let place = Place::local();
    let script = format!(
        "#!/bin/sh\n[ -e {tried} ] || {{ touch {tried}; exit 1; }}\nexec '{redlatch}' \"$@\"\n",
        tried = place.word("tried"),
        redlatch = env!("CARGO_BIN_EXE_redlatch")
    );
    fs::write(place.path("engine.text"), script).unwrap();
    let engine = place.copy_program(place.path("engine.text"), "engine.sh");
    let mut command = place.redlatch(["run", "job", "-n", "--", "true"]);
    command.env("REDLATCH_ENGINE_BIN", engine);
    let output = finish(command);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(place.path("tried").exists());
}

#[test]
fn looking_at_what_is_not_there_is_no_failure() {
    let place = Place::local();
    for line in [
        &["show", "x", "-o", "json"][..],
        &["sem", "show", "x", "-o", "json"][..],
        &["latch", "show", "x", "-o", "json"][..],
        &["rate", "show", "x", "-o", "json"][..],
    ] {
        let output = place.output(line);
        assert_eq!(output.status.code(), Some(0), "{line:?}: {output:?}");
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(shown["exists"] == false || shown["kind"] == "free", "{line:?}: {shown}");
    }
}

#[test]
fn cron_hears_nothing_of_a_run_that_went_well() {
    let place = Place::local();
    let noisy = "echo out; echo err >&2; exit";
    let run =
        |code: &str| place.output(["run", "job", "--quiet-unless-failed", "-c", &format!("{noisy} {code}")]);
    assert_eq!(both(&run("0")), "");
    let failed = run("3");
    assert_eq!(failed.status.code(), Some(3));
    assert_eq!(both(&failed), "out\nerr\n", "in the order in which it was written");
    // Without a word of its own a failure would send no mail.
    let silent = place.output(["run", "job", "--quiet-unless-failed", "-c", "kill -9 $$"]);
    assert_eq!(silent.status.code(), Some(137));
    assert_eq!(both(&silent), "redlatch: the command under \"job\" printed nothing and ended with 137\n");
    // What the run itself has to say about a failure is said as well.
    let holder = place.holder("job", &[]);
    let busy = place.output(["run", "job", "--quiet-unless-failed", "-w", "500ms", "--", "true"]);
    assert!(busy.status.code() == Some(75) && both(&busy).contains("busy"), "{busy:?}");
    assert!(!both(&busy).contains("waiting for"), "{busy:?}");
    place.end("job");
    assert!(holder.finish().status.success());
}

/// Another user who made files with the names that were to come kept a cron job from being run.
#[test]
fn the_names_of_kept_output_cannot_be_taken_before() {
    let place = Place::local();
    let taken = "for i in $(seq 0 40); do touch $TMPDIR/redlatch-$$-$i; done";
    let run = "exec redlatch run job --quiet-unless-failed -c 'echo out; exit 3'";
    let output = finish(place.shell(&format!("{taken}; {run}")));
    assert_eq!((output.status.code(), both(&output)), (Some(3), "out\n".into()), "{output:?}");
}

/// All verbs that the help names.
fn verbs(place: &Place) -> Vec<String> {
    let help = both(&place.output(["--help"]));
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let verbs = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let verbs: Vec<String> =
        verbs.filter(|verb| !verb.is_empty() && *verb != "help").map(str::to_owned).collect();
    assert!(verbs.len() > 10 && verbs.contains(&"run".to_owned()), "{help}");
    verbs
}

#[test]
fn the_help_of_a_verb_leads_with_its_own_options() {
    let place = Place::local();
    let help = both(&place.output(["run", "--help"]));
    assert!(help.contains("--max-hold") && !help.contains("--address-map"), "{help}");
    for verb in verbs(&place) {
        let help = both(&place.output([verb.as_str(), "--help"]));
        let common = ["--address-map", "--sentinel-password-file"];
        assert!(!common.iter().any(|option| help.contains(option)), "{verb}: {help}");
        assert!(help.contains("`redlatch --help` lists the common options"), "{verb}: {help}");
    }
    let all = both(&place.output(["--help"]));
    assert!(all.contains("--address-map"), "{all}");
    // They are hidden and not gone.
    assert_eq!(place.code(["run", "job", "-q", "--url", "local:", "--", "true"]), 0);
}

#[test]
fn man_pages_say_how_a_verb_is_called() {
    let place = Place::local();
    fs::create_dir(place.path("man")).unwrap();
    assert_eq!(place.code(["man", "man"]), 0);
    let page = place.read("man/redlatch-run.1");
    let synopsis = page.split(".SH SYNOPSIS").nth(1).unwrap().split(".SH").next().unwrap();
    let words: String =
        synopsis.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "").replace("\\-", "-");
    assert!(words.contains("redlatch run [OPTIONS] NAME... -- CMD..."), "{words}");
    for verb in verbs(&place) {
        let page = place.read(&format!("man/redlatch-{verb}.1"));
        let synopsis = page.split(".SH SYNOPSIS").nth(1).unwrap().split(".SH").next().unwrap();
        assert!(
            synopsis.contains("redlatch") && synopsis.contains(&verb.replace('-', "\\-")),
            "{verb}: {synopsis}"
        );
    }
    assert!(!page.contains("address") && place.read("man/redlatch.1").contains("address"), "{page}");
    assert!(!place.path("man/redlatch-__demo-worker.1").exists());
}

#[test]
fn a_list_on_a_terminal_fits_it() {
    let place = Place::local();
    let long = format!("order:{}", "x".repeat(120));
    assert_eq!(place.code(["lock", &long, "--lease", "5m"]), 0);
    for columns in [60, 40, 20] {
        let line = format!("sh -c 'stty cols {columns}; NO_COLOR=1 redlatch ls'");
        let output = finish(on_a_terminal(&place, &line));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().map(|line| line.trim_end_matches('\r')).collect();
        assert!(lines[0].starts_with("NAME") && lines[0].contains("KIND"), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= columns), "{columns}: {text}");
        assert!(
            lines[1].starts_with("order") && lines[1].contains('…') && lines[1].contains("lock"),
            "{text}"
        );
    }
    let piped = place.output(["ls"]);
    assert!(both(&piped).starts_with(&format!("{long}\tlock\t")), "{piped:?}");
}

#[test]
fn a_header_is_coloured_where_colours_are_wanted() {
    let place = Place::local();
    assert_eq!(place.code(["lock", "job", "--lease", "5m"]), 0);
    for (setting, coloured) in [
        ("TERM=xterm", true),
        ("TERM=xterm NO_COLOR=", true),
        ("TERM=xterm NO_COLOR=1", false),
        ("TERM=dumb", false),
    ] {
        let output = finish(on_a_terminal(&place, &format!("env -u NO_COLOR {setting} redlatch ls")));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.contains("\x1b[1mNAME"), coloured, "{setting}: {text}");
        assert!(text.contains("NAME"), "{text}");
    }
    assert!(!both(&place.output(["ls"])).contains('\x1b'), "a pipe has no colours and no header");
}

#[test]
fn a_watched_list_shows_what_changes() {
    let place = Place::local();
    let mut watch = place.start(["ls", "--watch", "100ms", "-o", "name"]);
    assert_eq!(place.code(["lock", "first", "--lease", "5m"]), 0);
    watch.until_printed("first\n");
    assert_eq!(place.code(["lock", "second", "--lease", "5m"]), 0);
    watch.until_printed("second\n");
    watch.signal(rustix::process::Signal::INT);
    assert_eq!(watch.finish().status.signal(), Some(2));
}
