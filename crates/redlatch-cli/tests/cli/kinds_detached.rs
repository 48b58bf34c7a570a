//! `lock`, `unlock`, `renew` and `force-unlock` for locks of every kind.

use redlatch_testkit::server::RedisServer;
use serde_json::{Value, json};

use crate::support::{GRACE, LEASE, Place, both, finish};

const KINDS: [(&str, &[&str]); 5] = [
    ("lock", &[]),
    ("fair", &["--fair"]),
    ("read", &["-s"]),
    ("write", &["-x"]),
    ("permits", &["--permits", "1"]),
];

fn take(place: &Place, name: &str, options: &[&str], lease: &str) -> Value {
    let taken = place.output([&["lock", name, "--lease", lease, "-o", "json"], options].concat());
    assert!(taken.status.success(), "{taken:?}");
    serde_json::from_slice(&taken.stdout).unwrap()
}

fn ttl_ms(place: &Place, name: &str) -> u64 {
    let shown = place.show(name);
    let permit = shown["permits"][0]["ttl_ms"].as_u64();
    permit.or_else(|| shown["ttl_ms"].as_u64()).unwrap()
}

fn is_free(place: &Place, name: &str) -> bool {
    let shown = place.show(name);
    shown["kind"] == "free" || shown["kind"] == "counter"
}

fn detached(place: &Place) {
    for (kind, options) in KINDS {
        for named in [false, true] {
            let given: &[&str] = if named { &["--kind", kind] } else { &[] };
            let taken = take(place, kind, options, "1m");
            assert_eq!((&taken["kind"], &taken["lease_ms"]), (&json!(kind), &json!(60_000)));
            let owner = taken["owner"].as_str().unwrap();
            let renew = ["renew", kind, "--owner", owner, "--lease", "10m"];
            assert_eq!(place.code([&renew, given].concat()), 0, "{kind}");
            assert!(ttl_ms(place, kind) > 60_000, "{kind}: {}", place.show(kind));
            let unlock = [&["unlock", kind, "--owner", owner], given].concat();
            assert_eq!(place.code(&unlock), 0, "{kind}");
            assert!(is_free(place, kind), "{kind}: {}", place.show(kind));
            assert_eq!(place.code(&unlock), 80, "{kind} cannot be given back twice");
            assert_eq!(place.code([&renew, given].concat()), 80, "{kind} is not there to be renewed");
        }
    }
}

fn forced(place: &Place) {
    for (kind, options) in KINDS {
        for named in [false, true] {
            let given: &[&str] = if named { &["--kind", kind] } else { &[] };
            let lease = ["--lease", LEASE, "--grace", GRACE];
            let tag = format!("{kind}-{named}");
            let holder = place.holder_as(&tag, &[kind], &[options, &lease].concat());
            let shown = place.show(kind);
            let owner = shown["permits"][0]["id"].as_str().or_else(|| shown["holders"][0]["owner"].as_str());
            let owner = owner.unwrap();
            let other = match kind {
                "permits" => "00ff00ff00ff00ff00ff00ff00ff00ff",
                _ => "1b671a64-40d5-491e-99b0-da01ff1f3341:7",
            };
            let force = |owner: &str| {
                let line = ["force-unlock", kind, "--owner", owner, "--reason", "test", "--yes"];
                place.output([&line, given].concat())
            };
            let wrong = force(other);
            assert_eq!(wrong.status.code(), Some(80), "{kind}: {wrong:?}");
            let still = [&place.show(kind), &shown]
                .map(|shown| (shown["holders"][0]["owner"].clone(), shown["permits"][0]["id"].clone()));
            assert_eq!(still[0], still[1], "{kind}: another's hold is left alone");
            let right = force(owner);
            assert_eq!(right.status.code(), Some(0), "{kind}: {right:?}");
            assert!(is_free(place, kind), "{kind}: {}", place.show(kind));
            let output = holder.finish();
            assert_eq!(output.status.code(), Some(80), "{kind}: {output:?}");
        }
    }
}

#[test]
fn detached_holds_of_every_kind_on_the_local_engine() {
    detached(&Place::local());
}

#[test]
fn detached_holds_of_every_kind_on_redis() {
    let server = RedisServer::start().unwrap();
    detached(&Place::on(&server));
}

#[test]
fn forced_unlocks_of_every_kind_on_the_local_engine() {
    forced(&Place::local());
}

#[test]
fn forced_unlocks_of_every_kind_on_redis() {
    let server = RedisServer::start().unwrap();
    forced(&Place::on(&server));
}

#[test]
fn exported_holds_know_their_kind() {
    let place = Place::local();
    for (kind, options) in KINDS {
        let options = options.join(" ");
        let script = format!(
            "set -e
            eval \"$(redlatch lock {kind} {options} --lease 1m --export)\"
            redlatch renew {kind} --lease 2m
            echo $REDLATCH_KIND
            redlatch unlock {kind}"
        );
        let output = finish(place.shell(&script));
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{kind}\n"));
        assert!(is_free(&place, kind));
    }
}

#[test]
fn an_owner_of_another_kind_is_a_usage_error() {
    let place = Place::local();
    let taken = take(&place, "pool", &["--permits", "2"], "1m");
    let id = taken["owner"].as_str().unwrap();
    let output = place.output(["unlock", "pool", "--owner", id, "--kind", "fair"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(both(&output).contains("--kind permits"), "{output:?}");
    assert_eq!(place.code(["unlock", "pool", "--owner", id]), 0);
}
