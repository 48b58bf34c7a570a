//! `run` with locks of every kind: readers and writers, turns, permits, several names at once.

use redlatch_testkit::server::RedisServer;
use rustix::process::Signal;
use serde_json::json;

use crate::support::{GRACE, LEASE, Place, Running, both, eventually, finish, is_alive};

/// A test body on the local engine and on Redis.
macro_rules! on_both {
    ($($(#[$attribute:meta])* $body:ident: $local:ident, $redis:ident;)*) => {$(
        $(#[$attribute])*
        #[test]
        fn $local() {
            $body(&Place::local());
        }

        $(#[$attribute])*
        #[test]
        fn $redis() {
            let server = RedisServer::start().unwrap();
            $body(&Place::on(&server));
        }
    )*};
}

on_both! {
    sides: readers_run_together_and_exclude_writers_on_the_local_engine, readers_run_together_and_exclude_writers_on_redis;
    turns: fair_runs_go_in_the_order_of_asking_on_the_local_engine, fair_runs_go_in_the_order_of_asking_on_redis;
    permits: as_many_run_at_once_as_there_are_permits_on_the_local_engine, as_many_run_at_once_as_there_are_permits_on_redis;
    never_more: never_more_run_than_there_are_permits_on_the_local_engine, never_more_run_than_there_are_permits_on_redis;
    all_or_nothing: several_names_are_held_all_or_not_at_all_on_the_local_engine, several_names_are_held_all_or_not_at_all_on_redis;
    any_order: several_names_in_any_order_do_not_block_each_other_on_the_local_engine, several_names_in_any_order_do_not_block_each_other_on_redis;
    loss: the_loss_of_one_name_stops_the_command_on_the_local_engine, the_loss_of_one_name_stops_the_command_on_redis;
}

fn done(holder: Running) {
    let output = holder.finish();
    assert!(output.status.success(), "{output:?}");
}

fn refused(place: &Place, arguments: &[&str], words: &[&str]) {
    let output = place.output(arguments);
    let text = both(&output);
    assert_eq!(output.status.code(), Some(64), "{arguments:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing for {arguments:?}: {text}");
    }
}

fn sides(place: &Place) {
    let one = place.holder_as("one", &["doc"], &["--shared"]);
    let two = place.holder_as("two", &["doc"], &["-s", "-n"]);
    assert_eq!(place.code(["run", "doc", "-x", "-n", "--", "true"]), 75);
    let mut writer = place.start(["run", "doc", "--exclusive", "-w", "30s", "--", "echo", "written"]);
    place.end("one");
    done(one);
    assert_eq!(place.code(["run", "doc", "-x", "-n", "--", "true"]), 75, "one reader is left");
    assert!(writer.is_running());
    place.end("two");
    done(two);
    let written = writer.finish();
    assert_eq!((written.status.code(), &*written.stdout), (Some(0), &b"written\n"[..]), "{written:?}");

    let writer = place.holder_as("writer", &["doc"], &["-x"]);
    assert_eq!(place.code(["run", "doc", "-s", "-n", "--", "true"]), 75);
    assert_eq!(place.code(["run", "doc", "-x", "-n", "--", "true"]), 75);
    place.end("writer");
    done(writer);
    assert_eq!(place.show("doc")["kind"], "free");
}

fn turns(place: &Place) {
    let holder = place.holder("job", &["--fair"]);
    let runs: Vec<_> = (1..=4)
        .map(|turn: u64| {
            let script = format!("echo {turn} >> {}", place.word("log"));
            let run = place.start(["run", "job", "--fair", "--", "sh", "-c", &script]);
            eventually("it stands in line", || (place.show("job")["waiting"] == turn).then_some(()));
            run
        })
        .collect();
    assert_eq!(place.code(["run", "job", "--fair", "-n", "--", "true"]), 75, "nobody overtakes");
    place.end("job");
    done(holder);
    runs.into_iter().for_each(done);
    assert_eq!(place.read("log"), "1\n2\n3\n4\n");
    assert_eq!(place.show("job")["kind"], "free");
}

fn permits(place: &Place) {
    let options = ["--permits", "3", "--lease", LEASE, "--grace", GRACE];
    let [one, two, three] = ["one", "two", "three"].map(|tag| place.holder_as(tag, &["pool"], &options));
    let full = place.output(["run", "pool", "--permits", "3", "-n", "--", "true"]);
    assert_eq!(full.status.code(), Some(75), "{full:?}");
    assert!(both(&full).contains("3 permits"), "{full:?}");
    refused(place, &["run", "pool", "--permits", "2", "--", "true"], &["--permits 3", "sem add", "-1"]);

    let command = place.pid("one");
    one.signal(Signal::KILL);
    let next = place.output(["run", "pool", "--permits", "3", "-w", "25s", "--", "echo", "in"]);
    assert_eq!(
        (next.status.code(), &*next.stdout),
        (Some(0), &b"in\n"[..]),
        "the permit comes back: {next:?}"
    );
    eventually("the command of the killed run ends", || (!is_alive(command)).then_some(()));
    drop(one);

    place.end("two");
    done(two);
    assert_eq!(place.code(["sem", "add", "pool", "-1"]), 0);
    assert_eq!(
        place.code(["run", "pool", "--permits", "2", "-n", "--", "true"]),
        0,
        "what the text said helps"
    );
    let rest = place.holder_as("rest", &["pool"], &["--permits", "2"]);
    let mut waiting = place.start(["run", "pool", "--permits", "2", "-v", "-w", "25s", "--", "echo", "more"]);
    waiting.until_told("2 permits taken");
    assert_eq!(place.code(["sem", "add", "pool", "1"]), 0);
    assert_eq!(waiting.finish().stdout, b"more\n", "it is woken by the one that is added");
    for (tag, holder) in [("rest", rest), ("three", three)] {
        place.end(tag);
        done(holder);
    }
}

/// Each run leaves a file while it is inside, and counts those that it sees.
fn never_more(place: &Place) {
    let script = format!(
        "cd {inside} || exit 1; : > $$; set -- *; echo $# >> {log}; sleep 0.03; rm $$",
        inside = place.word("inside"),
        log = place.word("log")
    );
    std::fs::create_dir(place.path("inside")).unwrap();
    let runs: Vec<_> = (0..9)
        .map(|_| place.start(["run", "pool", "--permits", "2", "-w", "25s", "--", "sh", "-c", &script]))
        .collect();
    runs.into_iter().for_each(done);
    let seen: Vec<u32> = place.read("log").lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(seen.len(), 9);
    assert!(seen.iter().all(|inside| *inside <= 2), "{seen:?}");
}

fn all_or_nothing(place: &Place) {
    let holder = place.holder("b", &[]);
    let busy = place.output(["run", "a", "b", "c", "-n", "--", "true"]);
    assert_eq!(busy.status.code(), Some(75), "{busy:?}");
    assert!(both(&busy).contains("\"b\" is busy"), "{busy:?}");
    for name in ["a", "c"] {
        assert_eq!(place.show(name)["kind"], "free");
    }
    let mut waiting = place.start(["run", "c", "b", "a", "-w", "30s", "--", "echo", "all"]);
    for name in ["a", "c"] {
        let other = ["run", name, "-w", "25s", "--", "true"];
        assert_eq!(place.code(other), 0, "nothing is kept while b is waited for");
    }
    assert!(waiting.is_running());
    place.end("b");
    done(holder);
    assert_eq!(waiting.finish().stdout, b"all\n");

    let holder = place.holder_as("all", &["a", "b", "c"], &[]);
    for name in ["a", "b", "c"] {
        assert_eq!(place.code(["run", name, "-n", "--", "true"]), 75);
    }
    place.end("all");
    done(holder);
    for name in ["a", "b", "c"] {
        assert_eq!(place.show(name)["kind"], "free");
    }
}

fn any_order(place: &Place) {
    let script = format!(
        "mkdir {inside} || echo clash >> {log}; echo turn >> {log}; sleep 0.02; rmdir {inside}",
        inside = place.word("inside"),
        log = place.word("log")
    );
    let orders = [["a", "b"], ["b", "a"], ["b", "c"], ["c", "b"], ["b", "a"], ["a", "b"]];
    let runs: Vec<_> = orders
        .map(|[one, other]| place.start(["run", one, other, "-w", "28s", "--", "sh", "-c", &script]))
        .into();
    for run in runs {
        done(run);
    }
    assert_eq!(place.read("log"), "turn\n".repeat(6), "all of them need b");
}

fn loss(place: &Place) {
    let holder =
        place.holder_as("all", &["a", "b", "c"], &["--lease", LEASE, "--grace", GRACE, "--report", "report"]);
    let owner = place.show("b")["holders"][0]["owner"].as_str().unwrap().to_owned();
    assert_eq!(place.code(["force-unlock", "b", "--owner", &owner, "--reason", "test", "--yes"]), 0);
    let output = holder.finish();
    assert_eq!(output.status.code(), Some(80), "{output:?}");
    assert!(both(&output).contains("is lost: \"b\": "), "it says which, and why: {output:?}");
    assert!(!is_alive(place.pid("all")));
    let report = place.report("report");
    assert_eq!((&report["outcome"], &report["exit_code"]), (&json!("lost"), &json!(80)));
    assert_eq!(report["released"], false);
    for name in ["a", "b", "c"] {
        assert_eq!(place.show(name)["kind"], "free", "the others are given back");
    }
}

#[test]
fn a_lost_hold_of_any_kind_stops_the_command() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    for (name, keys, options) in [
        ("r", &["r"][..], &["-s"][..]),
        ("w", &["w"], &["-x", "--fenced"]),
        ("f", &["f"], &["--fair"]),
        ("p", &["p", "{p}:timeout"], &["--permits", "2"]),
    ] {
        let holder = place
            .holder(name, &[options, &["--lease", LEASE, "--grace", GRACE, "--report", "report"]].concat());
        server.cmd(&[&["DEL"], keys].concat()).unwrap();
        let output = holder.finish();
        assert_eq!(output.status.code(), Some(80), "{name}: {output:?}");
        assert!(!is_alive(place.pid(name)));
        assert_eq!(place.report("report")["outcome"], "lost", "{name}");
    }
}

#[test]
fn contradictions_are_refused_with_a_remedy() {
    let place = Place::local();
    let run = |options: &[&str], words: &[&str]| {
        refused(&place, &[&["run", "a"], options, &["--", "true"]].concat(), words);
    };
    run(&["-s", "-x"], &["--shared", "--exclusive", "give one"]);
    run(&["-s", "--fair"], &["--fair", "leave out"]);
    run(&["-x", "--fair"], &["--fair", "leave out"]);
    run(&["-s", "--permits", "2"], &["--permits", "leave out"]);
    run(&["--fair", "--permits", "2"], &["--fair", "--permits", "leave out"]);
    run(&["--fenced", "--permits", "2"], &["--fenced", "leave out"]);
    run(&["--fenced", "-s"], &["--fenced", "leave out"]);
    run(&["--permits", "0"], &["--permits"]);
    run(&["b", "--fair"], &["several names", "one name"]);
    run(&["b", "--permits", "2"], &["several names", "one name"]);
    run(&["b", "a"], &["\"a\"", "twice"]);
    refused(&place, &["lock", "a", "-s", "-x", "--lease", "1m"], &["give one"]);
}

#[test]
fn one_name_is_one_kind_of_lock() {
    let place = Place::local();
    let reader = place.holder_as("reader", &["doc"], &["-s"]);
    refused(&place, &["run", "doc", "-n", "--", "true"], &["read-write", "--shared", "--exclusive"]);
    refused(&place, &["run", "doc", "other", "-n", "--", "true"], &["doc"]);
    place.end("reader");
    done(reader);
    let plain = place.holder("job", &[]);
    refused(&place, &["run", "job", "-s", "-n", "--", "true"], &["plain lock", "--shared"]);
    refused(&place, &["run", "job", "-x", "-n", "--", "true"], &["plain lock", "--exclusive"]);
    place.end("job");
    done(plain);
}

#[test]
fn the_command_and_the_report_see_the_kind() {
    let place = Place::local();
    let seen = |options: &[&str]| {
        let script = "echo $REDLATCH_KIND; echo \"$REDLATCH_NAME\"; echo \"${REDLATCH_TOKEN-none}\"; echo \"$REDLATCH_OWNER\"";
        let file = place.path("report");
        let rest = ["--report", file.to_str().unwrap(), "--", "sh", "-c", script];
        let output = place.output([&["run"], options, &rest].concat());
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        (text.lines().map(str::to_owned).collect::<Vec<_>>(), place.report("report"))
    };
    for (options, kind) in [
        (&["--fair"][..], "fair"),
        (&["-s"], "read"),
        (&["-x"], "write"),
        (&["--permits", "2"], "permits"),
        (&[], "lock"),
    ] {
        let (seen, report) = seen(&[&[kind], options].concat());
        assert_eq!(seen[..3], [kind, kind, "none"], "{report}");
        assert_eq!((&report["kind"], &report["name"]), (&json!(kind), &json!(kind)));
        assert_eq!(report["owner"], seen[3].as_str());
        assert_eq!(report["holds"][0]["owner"], seen[3].as_str());
        assert_eq!((&report["outcome"], &report["released"]), (&json!("completed"), &json!(true)));
    }
    for options in [&["t", "--fair", "--fenced"][..], &["u", "-x", "--fenced"]] {
        let (seen, report) = seen(options);
        assert_eq!(seen[2], report["token"].to_string());
    }
    let (seen, report) = seen(&["b", "a", "--fenced"]);
    assert_eq!(seen[..3], ["lock", "b", "a"], "one line for each name");
    let tokens = [&report["holds"][0]["token"], &report["holds"][1]["token"]];
    assert_eq!(seen[3..5], tokens.map(|token| token.to_string()));
    assert_eq!((&report["names"], &report["name"]), (&json!(["b", "a"]), &json!(null)));
    assert_eq!((&report["owner"], &report["token"]), (&json!(null), &json!(null)));
}

#[test]
fn nested_runs_enter_with_the_outer_one_whatever_the_kind() {
    let place = Place::local();
    for (outer, inner) in [
        ("job --fair", "job --fair"),
        ("job -s", "job -s"),
        ("job -x", "job -x"),
        ("job -x", "job -s"),
        ("a b", "b a"),
        ("a b", "b"),
        ("a", "a b"),
        ("a b", "b c"),
        ("doc x -x", "x doc -s"),
    ] {
        let script = format!("redlatch run {outer} -n -- redlatch run {inner} -n -- echo inside");
        let output = finish(place.shell(&script));
        assert_eq!(output.stdout, b"inside\n", "{script}: {output:?}");
        for name in ["job", "a", "b", "c", "doc", "x"] {
            assert_eq!(place.show(name)["kind"], "free", "{script}: {name} is given back");
        }
    }
    let output = finish(place.shell("redlatch run job -s -- redlatch run job -x -- true"));
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(both(&output).contains("--exclusive"), "a reader would wait for itself: {output:?}");
    let output =
        finish(place.shell("redlatch run p --permits 2 -- redlatch run p --permits 2 -n -- echo in"));
    assert_eq!(output.stdout, b"in\n", "another permit: {output:?}");
    assert!(both(&output).contains("takes another"), "{output:?}");
}

#[test]
fn at_least_keeps_a_hold_of_any_kind() {
    let place = Place::local();
    for (names, options) in [
        (&["r"][..], &["-s"][..]),
        (&["w"], &["-x"]),
        (&["f"], &["--fair"]),
        (&["p"], &["--permits", "1"]),
        (&["a", "b"], &[]),
    ] {
        let command = ["--at-least", "10m", "--", "true"];
        assert_eq!(place.code([&["run"], names, options, &command].concat()), 0);
        for name in names {
            let shown = place.show(name);
            let ttl_ms = shown["permits"][0]["ttl_ms"].as_u64().or_else(|| shown["ttl_ms"].as_u64());
            assert!((60_001..=600_000).contains(&ttl_ms.unwrap()), "the rest of the 10 minutes: {shown}");
        }
        let again = if options == ["-s"] { &["-x"][..] } else { options };
        assert_eq!(place.code([&["run"], names, again, &["-n", "--", "true"]].concat()), 75, "{names:?}");
    }
}

#[test]
fn permits_are_made_anew_by_a_command_that_finds_none() {
    let place = Place::local();
    assert_eq!(place.code(["run", "pool", "--permits", "5", "--", "true"]), 0);
    assert_eq!(place.show("pool")["value"], 5);
    refused(&place, &["run", "pool", "--permits", "4", "--", "true"], &["5 permits", "not 4"]);
    assert_eq!(place.code(["sem", "delete", "pool"]), 0);
    assert_eq!(place.code(["run", "pool", "--permits", "4", "--", "true"]), 0);
    assert_eq!(place.show("pool")["value"], 4);
}
