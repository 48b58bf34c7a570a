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
        read(&mut self.connect(path, authorization))
    }

    /// Sends a form with the token, as another page would have a browser do.
    fn send(&self, path: &str, headers: &str, form: &str) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let (length, host) = (form.len(), format!("127.0.0.1:{}", self.port));
        let headers = headers.replace("HOST", &host);
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: {host}\r\nAuthorization: {BASIC}\r\n{headers}\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{form}"
        )
        .unwrap();
        read(&mut stream)
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

fn read(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { code, head: head.to_lowercase(), body: body.to_owned() }
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

const PAGES: [&str; 5] = ["/", "/blocking", "/clients", "/alarms", "/doctor"];

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

/// How many changes the server has counted.
fn writes(server: &RedisServer) -> String {
    let info = format!("{:?}", server.cmd(&["INFO", "persistence"]).unwrap());
    let (_, changes) = info.split_once("rdb_changes_since_last_save:").unwrap();
    changes.chars().take_while(char::is_ascii_digit).collect()
}

#[test]
fn the_page_of_checks_says_what_settings_endanger_and_writes_nothing() {
    let server = RedisServer::start().unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
    let place = Place::on(&server);
    let serve = Serve::start(&place, &["--interval", "100ms"]);
    let before = writes(&server);
    let page = serve.page("/doctor");
    assert!(page.contains(">problem</td><td>eviction</td>"), "{page}");
    assert!(page.contains("noeviction"), "the remedy: {page}");
    assert!(page.contains(">good</td>"), "{page}");
    assert!(!page.contains("live.js"), "a look makes connections, so a browser does not repeat it: {page}");
    assert_eq!(writes(&server), before);
    // The oracle counts.
    assert_eq!(place.code(["run", "job", "--", "true"]), 0);
    assert_ne!(writes(&server), before);
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

/// What a form on a page has in it, by the name of the field.
fn field(page: &str, name: &str) -> String {
    let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).unwrap_or_else(|| panic!("{page}"));
    rest.split('"').next().unwrap().to_owned()
}

#[test]
fn a_name_is_taken_from_the_holder_that_was_on_the_page_where_that_is_allowed() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let holder = place.holder("deploy", &["--lease", LEASE, "--report", "report"]);
    let owner = place.show("deploy")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let serve = Serve::start(&place, &["--interval", "100ms", "--allow-actions"]);
    let lock = format!("/lock?hex={}", hex("deploy"));
    let page = serve.until(&lock, &["Take it from"]);
    let (_, link) = page.split_once("href=\"/force").unwrap();
    let link = format!("/force{}", link.split('"').next().unwrap().replace("&amp;", "&"));
    let page = serve.page(&link);
    assert!(page.contains("holds it") && page.contains(&owner) && !page.contains("live.js"), "{page}");
    let [secret, held] = ["form", "owner"].map(|name| field(&page, name));
    assert_eq!((&held, field(&page, "hex")), (&owner, hex("deploy")));
    let form = |secret: &str, owner: &str, rest: &str| {
        let owner = owner.replace(':', "%3A");
        format!("form={secret}&hex={}&owner={owner}&by=anna&reason=it+hangs{rest}", hex("deploy"))
    };
    let own = "Origin: http://HOST\r\nSec-Fetch-Site: same-origin\r\n";
    let right = form(&secret, &owner, "&meant=yes");
    // What another page has a browser send, a guess, and what is not whole.
    for (headers, form, code) in [
        ("Origin: http://evil.example\r\n", right.clone(), 403),
        ("Sec-Fetch-Site: cross-site\r\n", right.clone(), 403),
        (own, form("", &owner, "&meant=yes"), 403),
        (own, form(TOKEN, &owner, "&meant=yes"), 403),
        (own, form(&secret, &owner, ""), 400),
        (own, form(&secret, "", "&meant=yes"), 400),
        (own, form(&secret, "1b671a64-40d5-491e-99b0-da01ff1f3341:7", "&meant=yes"), 409),
        (own, format!("{right}{}", "x".repeat(100_000)), 413),
    ] {
        let answer = serve.send("/force", headers, &form);
        assert_eq!(answer.code, code, "{headers} {form}: {answer:?}");
        assert_eq!(
            place.show("deploy")["holders"][0]["owner"],
            *owner,
            "{headers} {form}: nothing was changed"
        );
    }
    assert_eq!(serve.ask(&link, None).code, 401);
    let answer = serve.send("/force", own, &right);
    assert!(answer.code == 200 && answer.body.contains("was taken from"), "{answer:?}");
    let output = holder.finish();
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    assert!(both(&output).contains("forced free by anna: it hangs"), "{output:?}");
    let told = place.read("serve.told");
    assert!(
        told.contains("\"deploy\" was taken from") && told.contains("by anna; reason: it hangs"),
        "{told}"
    );
    // It is free by now, and what is known is looked at anew.
    let answer = serve.send("/force", own, &right);
    assert!(answer.code == 409 && answer.body.contains("nothing was changed"), "{answer:?}");
    serve.until(&lock, &["It is free now"]);
}

#[test]
fn nothing_can_be_changed_unless_that_is_allowed() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let _holder = place.holder("deploy", &["--lease", LEASE]);
    let serve = Serve::start(&place, &["--interval", "100ms"]);
    let lock = format!("/lock?hex={}", hex("deploy"));
    let page = serve.until(&lock, &["redlatch why deploy"]);
    assert!(!page.contains("/force") && !page.contains("<form"), "{page}");
    let owner = place.show("deploy")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let form = format!("form=&hex={}&owner={owner}&by=anna&reason=it+hangs&meant=yes", hex("deploy"));
    assert_eq!(serve.send("/force", "", &form).code, 404);
    assert_eq!(serve.ask(&format!("/force?hex={}", hex("deploy")), Some(BASIC)).code, 404);
    for path in PAGES.into_iter().chain(["/lock", "/metrics", "/events"]) {
        assert_eq!(serve.send(path, "", &form).code, 405, "{path}");
    }
    assert_eq!(place.show("deploy")["holders"][0]["owner"], *owner);
    place.end("deploy");
}
