//! `redlatch rate`: rates that scripts of all processes keep to.

use std::time::{Duration, Instant};

use redlatch_testkit::server::RedisServer;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Place, both, eventually};

fn shown(place: &Place) -> Value {
    let output = place.output(["rate", "show", "mails", "-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn each_verb(place: &Place) {
    for verb in [
        &["rate", "acquire", "mails"][..],
        &["rate", "delete", "mails"],
        &["rate", "set", "mails", "3", "--per", "1h", "--update"],
    ] {
        let refused = place.output(verb);
        assert_eq!(refused.status.code(), Some(80), "nobody has set a rate: {refused:?}");
        assert!(both(&refused).contains("mails"), "{refused:?}");
    }
    assert_eq!(place.code(["rate", "set", "mails", "3", "--per", "1h", "--if-absent"]), 0);
    assert_eq!(place.code(["rate", "set", "mails", "9", "--per", "1h", "--if-absent"]), 0);
    let state = shown(place);
    assert_eq!((&state["schema"], &state["permits"], &state["available"]), (&1.into(), &3.into(), &3.into()));
    assert_eq!((&state["interval_ms"], &state["per_client"]), (&3_600_000.into(), &false.into()));
    assert!(state["keep_alive_ms"].is_null());

    assert_eq!(place.code(["rate", "acquire", "mails", "2"]), 0);
    let busy = place.output(["rate", "acquire", "mails", "2", "-n"]);
    assert_eq!(busy.status.code(), Some(75), "{busy:?}");
    assert!(both(&busy).contains("fewer than 2"), "{busy:?}");
    let begin = Instant::now();
    assert_eq!(place.code(["rate", "acquire", "mails", "2", "-w", "20m"]), 75);
    assert!(begin.elapsed() < Duration::from_secs(10), "it is known at once that 20 minutes are too short");
    assert_eq!(place.code(["rate", "acquire", "mails", "2", "-n", "-E", "3"]), 3);
    assert_eq!(place.code(["rate", "acquire", "mails", "2", "--if-busy", "skip"]), 0);
    assert_eq!(place.code(["rate", "acquire", "mails"]), 0);
    assert_eq!(place.code(["rate", "acquire", "mails", "4", "-n"]), 64, "more than the rate");

    assert_eq!(place.code(["rate", "set", "mails", "5", "--per", "1h", "--update"]), 0);
    assert_eq!(shown(place)["available"], 2, "what was taken is remembered");
    let set = ["rate", "set", "mails", "5", "--per", "1m", "--per-client", "--keep-alive", "1h"];
    assert_eq!(place.code(set), 0);
    let state = shown(place);
    assert_eq!((&state["available"], &state["per_client"]), (&5.into(), &true.into()));
    assert_eq!(state["keep_alive_ms"], 3_600_000);
    let plain = both(&place.output(["rate", "show", "mails"]));
    assert!(plain.contains("each client") && plain.contains("1m00s"), "{plain}");
    assert_eq!(place.code(["rate", "delete", "mails"]), 0);
    assert_eq!(shown(place)["exists"], false);
}

#[test]
fn each_verb_on_the_local_engine() {
    each_verb(&Place::local());
}

#[test]
fn each_verb_on_redis() {
    let server = RedisServer::start().unwrap();
    each_verb(&Place::on(&server));
}

#[test]
fn a_waiting_acquire_passes_when_the_interval_is_over() {
    let place = Place::local();
    assert_eq!(place.code(["rate", "set", "mails", "1", "--per", "700ms"]), 0);
    let begin = Instant::now();
    for _ in 0..3 {
        assert_eq!(place.code(["rate", "acquire", "mails"]), 0);
    }
    assert!(begin.elapsed() >= Duration::from_millis(1_400), "{:?}", begin.elapsed());
}

#[test]
fn an_interrupted_acquire_takes_nothing() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    assert_eq!(place.code(["rate", "set", "mails", "2", "--per", "1h"]), 0);
    assert_eq!(place.code(["rate", "acquire", "mails"]), 0);
    let calls = || server.command_count("zrange").unwrap();
    let before = calls();
    let waiting = place.start(["rate", "acquire", "mails", "2"]);
    eventually("it has asked", || (calls() > before).then_some(()));
    waiting.signal(Signal::TERM);
    let ended = waiting.finish();
    assert_eq!(ended.status.code(), Some(143), "{ended:?}");
    assert_eq!(shown(&place)["available"], 1);
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let place = Place::local();
    for arguments in [
        &["rate", "set", "mails", "0", "--per", "1m"][..],
        &["rate", "set", "mails", "5"],
        &["rate", "set", "mails", "5", "--per", "0s"],
        &["rate", "set", "mails", "5", "--per", "1m", "--keep-alive", "30s"],
        &["rate", "set", "mails", "5", "--per", "1m", "--update", "--if-absent"],
        &["rate", "acquire", "mails", "0"],
    ] {
        let refused = place.output(arguments);
        assert_eq!(refused.status.code(), Some(64), "{arguments:?}: {refused:?}");
    }
}
