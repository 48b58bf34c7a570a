//! `redlatch serve`, asked over HTTP as a browser and Prometheus ask.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::Stdio,
};

use redlatch_testkit::{proxy::Proxy, server::RedisServer};

use crate::support::{LEASE, LIMIT, Place, Running, both, eventually, on_a_terminal};

const TOKEN: &str = "geheim";
/// The credentials `any:geheim`.
const BASIC: &str = "Basic YW55OmdlaGVpbQ==";

/// What came back.
#[derive(Debug)]
struct Answer {
    code: u16,
    /// In small letters.
    head: String,
    body: String,
}

/// A `serve` of one test.
pub(crate) struct Serve {
    _running: Running,
    port: u16,
}

impl Serve {
    pub(crate) fn start(place: &Place, options: &[&str]) -> Self {
        fs::write(place.path("token"), format!("{TOKEN}\n")).unwrap();
        let mut command = place
            .redlatch([&["serve", "--listen", "127.0.0.1:0", "--token-file", "token"], options].concat());
        let told = fs::File::create(place.path("serve.told")).unwrap();
        let child = command.stdout(Stdio::null()).stderr(told).spawn().unwrap();
        let running = Running::of(child);
        let port = eventually("its address", || port_told(&place.read("serve.told")));
        Serve { _running: running, port }
    }

    fn ask(&self, path: &str, authorization: Option<&str>) -> Answer {
        let mut stream = self.connect(path, authorization);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { code, head: head.to_lowercase(), body: body.to_owned() }
    }

    fn connect(&self, path: &str, authorization: Option<&str>) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let authorization =
            authorization.map(|value| format!("Authorization: {value}\r\n")).unwrap_or_default();
        // The older version has no chunks in its answers.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n{authorization}\r\n").unwrap();
        stream
    }

    /// A page, asked for with the token.
    #[track_caller]
    pub(crate) fn page(&self, path: &str) -> String {
        let answer = self.ask(path, Some(BASIC));
        assert_eq!(answer.code, 200, "{path}: {answer:?}");
        answer.body
    }

    /// Waits until a page has all of these in it.
    fn until(&self, path: &str, texts: &[&str]) -> String {
        eventually(&format!("{path} with {texts:?}"), || {
            let page = self.page(path);
            texts.iter().all(|text| page.contains(text)).then_some(page)
        })
    }
}

/// The port in what it tells.
fn port_told(told: &str) -> Option<u16> {
    let (_, rest) = told.split_once("127.0.0.1:")?;
    let (port, _) = rest.split_once('/')?;
    port.parse().ok()
}

fn hex(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

const PAGES: [&str; 4] = ["/", "/blocking", "/clients", "/alarms"];

#[test]
fn pages_show_who_holds_who_waits_and_what_is_wrong() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let _holder = place.holder("deploy", &["--lease", LEASE, "--why", "nightly import"]);
    let _waiter = place.start(["run", "deploy", "-w", "1h", "--", "true"]);
    server.cmd(&["HSET", "never", "1b671a64-40d5-491e-99b0-da01ff1f3341:7", "1"]).unwrap();
    let serve = Serve::start(&place, &["--interval", "100ms"]);
    let page = serve.until("/", &["because nightly import", ">deploy<", "1 problem", "2 of 2 names"]);
    assert!(page.contains(&format!("/lock?hex={}", hex("deploy"))), "{page}");
    serve.until("/blocking", &["&quot;deploy&quot; is held for", "waits since"]);
    serve.until("/clients", &["nightly import", "sh@", "true@"]);
    serve.until("/alarms", &["Problem: ", "lock state: &quot;never&quot;", "force-unlock frees it"]);
    let lock = format!("/lock?hex={}", hex("deploy"));
    serve.until(&lock, &["because nightly import", "redlatch why deploy", "Who waits"]);
    // The form of the first page.
    let filtered = serve.page("/?q=DEP&sort=name&reversed=1");
    assert!(filtered.contains("1 of 2 names") && filtered.contains("value=\"DEP\""), "{filtered}");
    assert!(filtered.contains("<option value=\"name\" selected>"), "{filtered}");
    assert!(serve.page("/?q=&sort=nonsense").contains("2 of 2 names"));
    let sorted = serve.page("/?sort=name");
    assert!(sorted.find(">deploy<") < sorted.find(">never<"), "{sorted}");
    let reversed = serve.page("/?sort=name&reversed=1");
    assert!(reversed.find(">deploy<") > reversed.find(">never<"), "{reversed}");
    place.end("deploy");
}

#[test]
fn nobody_sees_anything_without_the_token() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    assert!(place.output(["lock", "verborgen", "--lease", "10m"]).status.success());
    let serve = Serve::start(&place, &[]);
    let closed = PAGES.into_iter().chain(["/metrics", "/events", "/lock?hex=766572626f7267656e"]);
    for path in closed {
        for wrong in [None, Some("Bearer geheim2"), Some("Bearer"), Some("Basic Z2VoZWlt"), Some("geheim")] {
            let answer = serve.ask(path, wrong);
            assert_eq!(answer.code, 401, "{path} {wrong:?}: {answer:?}");
            assert!(answer.head.contains("www-authenticate: basic"), "{answer:?}");
            assert!(!answer.body.contains("verborgen") && !answer.body.contains(TOKEN), "{answer:?}");
        }
        if path != "/events" {
            for right in [BASIC, "Bearer geheim"] {
                assert_eq!(serve.ask(path, Some(right)).code, 200, "{path} {right}");
            }
        }
    }
    for open in ["/healthz", "/style.css", "/live.js"] {
        let answer = serve.ask(open, None);
        assert!(answer.code == 200 && !answer.body.contains("verborgen"), "{open}: {answer:?}");
    }
    assert_eq!(serve.ask("/nothing", Some(BASIC)).code, 404);
    assert!(!place.read("serve.told").contains(TOKEN), "{}", place.read("serve.told"));
}

#[test]
fn nothing_from_elsewhere_is_loaded_and_no_answer_is_kept() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    assert!(place.output(["lock", "name", "--lease", "10m"]).status.success());
    let serve = Serve::start(&place, &[]);
    for path in PAGES.into_iter().chain(["/lock?hex=6e616d65", "/style.css", "/nothing", "/healthz"]) {
        for authorization in [None, Some(BASIC)] {
            let answer = serve.ask(path, authorization);
            let policy = "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self';";
            for header in [
                policy,
                "frame-ancestors 'none'",
                "x-content-type-options: nosniff",
                "cache-control: no-store",
            ] {
                assert!(answer.head.contains(header), "{path} {header}: {answer:?}");
            }
            for attribute in ["href=\"", "src=\"", "action=\""] {
                for place in answer.body.split(attribute).skip(1) {
                    assert!(place.starts_with('/') && !place.starts_with("//"), "{path}: {place}");
                }
            }
            for inline in ["<style", " style=", " onclick=", "<script>", "javascript:"] {
                assert!(!answer.body.contains(inline), "{path}: {inline}");
            }
        }
    }
}

#[test]
fn names_of_an_attacker_stay_names() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let names = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "\u{202e}evil",
        "a\x1b[2Jb",
        "' onmouseover='x",
    ];
    for name in names {
        let lock = place.output(["lock", name, "--lease", "10m"]);
        assert!(lock.status.success(), "{lock:?}");
    }
    let serve = Serve::start(&place, &["--interval", "50ms"]);
    let page = serve.until("/", &["5 of 5 names"]);
    assert!(page.contains("&lt;script&gt;alert(1)") && page.contains("\\u{202e}evil"), "{page}");
    let filters = ["/?q=%22%3E%3Cimg+src%3Dx%3E", "/?q=%3Cscript%3E"].map(str::to_owned);
    let each = names.map(|name| format!("/lock?hex={}", hex(name)));
    let paths = filters.into_iter().chain(each).chain(PAGES.map(str::to_owned));
    for path in paths {
        let page = serve.page(&path);
        for evil in ["<script>", "<img", "\u{202e}", "\x1b"] {
            assert!(!page.contains(evil), "{path}: {evil:?} in {page}");
        }
    }
    let metrics = serve.page("/metrics");
    assert!(!metrics.contains(['\u{202e}', '\x1b']), "{metrics}");
    for nonsense in ["", "zz", "abc", "6", &"61".repeat(100_000)] {
        let answer = serve.ask(&format!("/lock?hex={nonsense}"), Some(BASIC));
        assert!([400, 414, 431].contains(&answer.code), "{answer:?}");
    }
}

#[test]
fn metrics_have_classes_and_no_names() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    for order in ["order:4711", "order:4712", "migration"] {
        assert!(place.output(["lock", order, "--lease", "10m"]).status.success());
    }
    server.cmd(&["HSET", "order:4713", "1b671a64-40d5-491e-99b0-da01ff1f3341:7", "1"]).unwrap();
    let serve = Serve::start(&place, &[]);
    let answer = serve.ask("/metrics", Some("Bearer geheim"));
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{answer:?}");
    for line in [
        "redlatch_server_up 1",
        "redlatch_server_names{kind=\"lock\",class=\"order:*\"} 3",
        "redlatch_server_names{kind=\"lock\",class=\"migration\"} 1",
        "redlatch_server_names_without_ttl{kind=\"lock\",class=\"order:*\"} 1",
        "redlatch_server_waiters{kind=\"lock\",class=\"order:*\"} 0",
        "redlatch_server_alarms{check=\"lock state\",severity=\"problem\"} 1",
        "# TYPE redlatch_server_hold_age_max_seconds gauge",
    ] {
        assert!(answer.body.lines().any(|found| found == line), "{line}: {}", answer.body);
    }
    assert!(!answer.body.contains("471"), "{}", answer.body);
}

#[test]
fn a_server_that_is_away_is_told_of_on_every_page() {
    let server = RedisServer::builder().appendonly(true).start().unwrap();
    let place = Place::on(&server);
    assert!(place.output(["lock", "job", "--lease", "10m"]).status.success());
    let serve = Serve::start(&place, &["--interval", "50ms"]);
    serve.until("/", &[">job<"]);
    assert_eq!(serve.ask("/healthz", None).code, 200);
    server.kill9();
    for path in PAGES {
        serve.until(path, &["This is what was seen"]);
    }
    assert!(serve.page("/").contains(">job<"), "what was seen stays");
    let health = serve.ask("/healthz", None);
    assert_eq!((health.code, health.body.as_str()), (503, "the server cannot be asked\n"));
    assert!(serve.page("/metrics").contains("redlatch_server_up 0\n"));
    server.restart().unwrap();
    eventually("it is seen again", || (serve.ask("/healthz", None).code == 200).then_some(()));
}

#[test]
fn however_many_look_the_server_is_asked_once_in_an_interval() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let mut place = Place::on(&server);
    place.set_url(&proxy.url());
    let serve = Serve::start(&place, &["--interval", "1h"]);
    serve.page("/");
    let asked = proxy.count("EVALSHA");
    assert!(asked > 0);
    for _ in 0..5 {
        PAGES.into_iter().chain(["/metrics"]).for_each(|path| _ = serve.page(path));
    }
    assert_eq!(proxy.count("EVALSHA"), asked);
}

#[test]
fn a_page_hears_when_the_server_was_looked_at_again() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let serve = Serve::start(&place, &["--interval", "50ms"]);
    let mut stream = serve.connect("/events", Some(BASIC));
    let mut read = Vec::new();
    let mut byte = [0];
    while String::from_utf8_lossy(&read).matches("event: look").count() < 3 {
        let is_read = stream.read(&mut byte).unwrap() == 1 && read.len() < 10_000;
        assert!(is_read, "{}", String::from_utf8_lossy(&read));
        read.push(byte[0]);
    }
    assert!(String::from_utf8_lossy(&read).to_lowercase().contains("content-type: text/event-stream"));
}

#[test]
fn the_token_is_told_on_a_terminal_only() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let output = place.output(["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(both(&output).contains("--token-file"), "{output:?}");
    fs::write(place.path("empty"), "\n").unwrap();
    for file in ["empty", "absent"] {
        let output = place.output(["serve", "--token-file", file]);
        assert_eq!(output.status.code(), Some(78), "{output:?}");
    }
    let mut terminal = Running::spawn(on_a_terminal(&place, "redlatch serve --listen 127.0.0.1:0"));
    terminal.until_printed("http://redlatch:");
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    fs::write(place.path("token"), TOKEN).unwrap();
    let taken = format!("127.0.0.1:{}", server.port());
    let output = place.output(["serve", "--token-file", "token", "--listen", &taken]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(both(&output).contains(&taken), "{output:?}");
}
