//! `ls` and `show` of every kind, on state that was put there by hand in the format of the wire.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    time::{SystemTime, UNIX_EPOCH},
};

use redlatch_testkit::server::RedisServer;
use serde_json::{Value, json};

use crate::support::{Place, Running, both};

const A: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:1";
const B: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:2";

/// A way to write keys by hand.
type Raw<'a> = &'a mut dyn FnMut(&[&[u8]]);

/// The local engine of a place, open to commands of others.
struct OpenEngine {
    socket: UnixStream,
    _engine: Running,
}

impl OpenEngine {
    fn start(place: &Place) -> Self {
        let mut engine = place.start(["engine", "run", "--compat"]);
        let mut ready = [0; 6];
        engine.child().stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        assert_eq!(&ready, b"READY\n");
        let socket = place.path("run/default.sock");
        OpenEngine { socket: UnixStream::connect(socket).unwrap(), _engine: engine }
    }

    fn run(&mut self, words: &[&[u8]]) {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.socket.write_all(&request).unwrap();
        let mut line = String::new();
        BufReader::new(&self.socket).read_line(&mut line).unwrap();
        assert!(line.starts_with([':', '+']), "{line}");
    }
}

fn write(raw: Raw<'_>, command: &str) {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    raw(&words);
}

fn in_ms(ms: u128) -> String {
    (SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() + ms).to_string()
}

fn every_kind(raw: Raw<'_>) {
    for command in [
        format!("HSET plain {A} 2"),
        "PEXPIRE plain 3600000".into(),
        "SET redisson_lock_token:{plain} 41".into(),
        format!("HSET queued {A} 1"),
        "PEXPIRE queued 3600000".into(),
        format!("RPUSH redisson_lock_queue:{{queued}} {B} evil\u{1b}[2J"),
        format!("ZADD redisson_lock_timeout:{{queued}} {} {B}", in_ms(7_230_000)),
        format!("RPUSH redisson_lock_queue:{{handed-over}} {B}"),
        format!("ZADD redisson_lock_timeout:{{handed-over}} {} {B}", in_ms(7_230_000)),
        format!("HSET rw mode read {A} 2 {B} 1"),
        "PEXPIRE rw 3600000".into(),
        format!("SET {{rw}}:{A}:rwlock_timeout:1 1 PX 3600000"),
        format!("SET {{rw}}:{B}:rwlock_timeout:1 1 PX 3600000"),
        format!("HSET writing mode write {A}:write 1"),
        "PEXPIRE writing 3600000".into(),
        "SET seats 4".into(),
        format!("ZADD {{seats}}:timeout {} 0123456789abcdef", in_ms(7_230_000)),
        "HSET api rate 20 interval 60000 type 0 keepAliveTime 0".into(),
        "SET {api}:value 20".into(),
        "SET count 3".into(),
        "SET text words".into(),
        "HSET app color red".into(),
    ] {
        write(raw, &command);
    }
}

fn listed(place: &Place, arguments: &[&str]) -> String {
    let output = place.output([&["ls"], arguments].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn names(place: &Place, arguments: &[&str]) -> Vec<String> {
    listed(place, &[arguments, &["-o", "name"]].concat()).lines().map(str::to_owned).collect()
}

fn kinds(place: &Place, raw: Raw<'_>) {
    every_kind(raw);
    let usual = ["api", "handed-over", "plain", "queued", "rw", "seats", "writing"];
    assert_eq!(names(place, &[]), usual);
    assert_eq!(
        names(place, &["--all"]),
        ["api", "count", "handed-over", "plain", "queued", "rw", "seats", "writing"],
        "numbers are shown when they are asked for, helper keys never"
    );
    for (kind, expected) in [
        ("lock", &["plain"][..]),
        ("fair", &["handed-over", "queued"]),
        ("read-write", &["rw", "writing"]),
        ("permits", &["seats"]),
        ("counter", &["count"]),
        ("semaphore", &["count"]),
        ("latch", &["count"]),
        ("rate-limiter", &["api"]),
        ("lock,permits", &["plain", "seats"]),
    ] {
        assert_eq!(names(place, &["--kind", kind]), expected, "{kind}");
    }
    assert_eq!(names(place, &["--all", "*e*"]), ["handed-over", "queued", "seats"]);
    assert_eq!(place.code(["ls", "--all", "--kind", "lock"]), 64);
    assert_eq!(place.code(["ls", "--kind", "spoon"]), 64);

    let lines = listed(place, &["--all"]);
    let line = |name: &str| -> Vec<String> {
        let line = lines.lines().find(|line| line.starts_with(&format!("{name}\t")));
        line.unwrap_or_else(|| panic!("{name} in {lines}")).split('\t').map(str::to_owned).collect()
    };
    // NAME KIND OWNER HOLDS TTL WAITERS VALUE
    assert_eq!(line("queued")[5], "2");
    assert_eq!(line("handed-over"), ["handed-over", "fair", "-", "-", "-", "1", "-"]);
    assert_eq!(line("rw")[2..4], [format!("{A},{B}").replace(',', ", "), "3 read".into()]);
    assert_eq!(line("writing")[3], "1 write");
    assert_eq!(line("seats"), ["seats", "permits", "-", "1", "-", "-", "4"]);
    assert_eq!(line("api"), ["api", "rate-limiter", "-", "-", "-", "-", "20 in 1m00s"]);
    assert_eq!(line("count"), ["count", "counter", "-", "-", "-", "-", "3"]);
    let wide = listed(place, &["plain", "-o", "wide"]);
    assert_eq!(wide.trim_end().split('\t').nth(7), Some("41"), "the token: {wide}");
}

fn details(place: &Place, raw: Raw<'_>) {
    every_kind(raw);
    let queued = place.show("queued");
    assert_eq!((&queued["kind"], &queued["waiting"]), (&json!("fair"), &json!(2)));
    assert_eq!(queued["holders"], json!([{"owner": A, "holds": 1, "mode": "exclusive"}]));
    let waiters = queued["waiters"].as_array().unwrap();
    assert_eq!((&waiters[0]["owner"], &waiters[0]["position"]), (&json!(B), &json!(1)));
    assert!((3_600_000..=7_230_000).contains(&waiters[0]["stale_in_ms"].as_u64().unwrap()), "{queued}");
    assert_eq!((&waiters[1]["position"], &waiters[1]["stale_in_ms"]), (&json!(2), &Value::Null));
    let free = place.show("handed-over");
    assert_eq!(
        (&free["kind"], &free["holders"], &free["ttl_ms"]),
        (&json!("fair"), &json!([]), &Value::Null)
    );
    assert_eq!(free["waiters"][0]["owner"], B, "free, but waited for");

    let rw = place.show("rw");
    let holder = &rw["holders"][0];
    assert_eq!((&holder["owner"], &holder["mode"], &holder["holds"]), (&json!(A), &json!("read"), &json!(2)));
    assert!(
        holder["lasting_ms"][0].as_u64().unwrap() > 1_800_000 && holder["lasting_ms"][1].is_null(),
        "{rw}"
    );
    assert_eq!(place.show("writing")["holders"][0]["owner"], format!("{A}:write"));

    let seats = place.show("seats");
    assert_eq!((&seats["value"], &seats["permits_in_use"]), (&json!(4), &json!(1)));
    assert_eq!(seats["permits"][0]["id"], "30313233343536373839616263646566");
    assert!(seats["permits"][0]["ttl_ms"].as_u64().unwrap() > 3_600_000, "{seats}");
    let rule = json!({"rate": 20, "interval_ms": 60_000, "per_client": false, "keep_alive_ms": null});
    assert_eq!(place.show("api")["rate"], rule);
    assert_eq!((&place.show("count")["value"], &place.show("count")["kind"]), (&json!(3), &json!("counter")));
    assert_eq!(place.show("text")["kind"], "other");

    let words = |name: &str| both(&place.output(["show", name]));
    let text = words("queued");
    assert!(text.contains(&format!("1. {B} (given up in 2h00m)")), "{text}");
    assert!(text.contains("2. evil\\x1b[2J (without a deadline)") && !text.contains('\u{1b}'), "{text}");
    let text = words("rw");
    assert!(text.contains("holds     3 read\n") && text.contains("run out)"), "{text}");
    assert!(
        words("seats").contains("permits   30313233343536373839616263646566 (2h00m)\n"),
        "{}",
        words("seats")
    );
    // Another verb's semaphore is not taken apart.
    assert_eq!(place.code(["sem", "delete", "seats"]), 64);
    assert_eq!(place.show("seats")["value"], 4);
}

#[test]
fn every_kind_is_listed_on_the_local_engine() {
    let place = Place::local();
    let mut engine = OpenEngine::start(&place);
    kinds(&place, &mut |words| engine.run(words));
}

#[test]
fn every_kind_is_listed_on_redis() {
    let server = RedisServer::start().unwrap();
    kinds(&Place::on(&server), &mut |words| drop(server.cmd(words).unwrap()));
}

#[test]
fn every_kind_is_shown_on_the_local_engine() {
    let place = Place::local();
    let mut engine = OpenEngine::start(&place);
    details(&place, &mut |words| engine.run(words));
}

#[test]
fn every_kind_is_shown_on_redis() {
    let server = RedisServer::start().unwrap();
    details(&Place::on(&server), &mut |words| drop(server.cmd(words).unwrap()));
}

#[test]
fn names_of_every_kind_cannot_rewrite_the_screen() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let evil = b"\x1b[2Jx\n\xff";
    let field = [b"1b671a64-40d5-491e-99b0-da01ff1f3341:1", &b"\x1b[2J"[..]].concat();
    server.cmd(&[b"HSET", &[b"h", &evil[..]].concat()[..], b"mode", b"\x1b[2J", &field, b"1"]).unwrap();
    let queue = [b"redisson_lock_queue:{q", &evil[..], b"}"].concat();
    server.cmd(&[b"RPUSH", &queue[..], b"\x1b[2Jx"]).unwrap();
    server.cmd(&[b"SET", &[b"s", &evil[..]].concat()[..], b"5"]).unwrap();
    let permits = [b"{s", &evil[..], b"}:timeout"].concat();
    server.cmd(&[b"ZADD", &permits[..], b"922337203685477", b"\x1b[2Jid"]).unwrap();
    server.cmd(&[b"SET", &[b"c", &evil[..]].concat()[..], b"5"]).unwrap();
    for format in ["table", "wide", "json", "ndjson", "name"] {
        let output = place.output(["ls", "--all", "-o", format]);
        assert!(output.status.success(), "{output:?}");
        let text = both(&output);
        assert!(text.matches("[2Jx").count() >= 4, "{format}: {text:?}");
        assert!(!text.contains('\u{1b}'), "{format}: {text:?}");
    }
}
