//! `redlatch top` on a real terminal, whose screen is read as a person reads it.

use std::{
    io::{Read, Write},
    num::NonZero,
    process::ExitStatus,
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use redlatch_testkit::server::RedisServer;
use rustix::process::Signal;

use crate::support::{LEASE, Place, Running, both, eventually, is_alive, on_a_terminal};

/// How many columns and lines the terminal has.
const SIZE: (u16, u16) = (80, 24);

/// The command, which says who it is first.
const TOP: &str = "sh -c 'echo $$ > top.pid; exec redlatch top --interval 100ms'";

/// What a terminal shows, and what was sent to it.
struct Seen {
    parser: vt100::Parser,
    raw: Vec<u8>,
}

/// A `top` on a terminal of its own.
pub(crate) struct Top {
    running: Running,
    seen: Arc<Mutex<Seen>>,
    pid: i32,
}

impl Top {
    pub(crate) fn start(place: &Place, options: &str) -> Self {
        let (columns, lines) = SIZE;
        Self::start_by(place, &format!("stty cols {columns} rows {lines}; exec {options} {TOP}"))
    }

    /// Started by a shell that runs this script.
    fn start_by(place: &Place, script: &str) -> Self {
        let (columns, lines) = SIZE;
        // That of an earlier one.
        _ = std::fs::remove_file(place.path("top.pid"));
        std::fs::write(place.path("shell.sh"), script).unwrap();
        let mut running = Running::spawn(on_a_terminal(place, "bash shell.sh"));
        let mut output = running.child().stdout.take().unwrap();
        let [lines, columns] = [lines, columns].map(|count| NonZero::new(count).unwrap());
        let parser = vt100::Parser::new(lines, columns, 0);
        let seen = Arc::new(Mutex::new(Seen { parser, raw: Vec::new() }));
        let reader = Arc::clone(&seen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let mut seen = reader.lock().unwrap();
                seen.parser.process(&bytes[..count]);
                seen.raw.extend(&bytes[..count]);
            }
        });
        let pid = place.pid("top");
        Top { running, seen, pid }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    pub(crate) fn screen(&self) -> String {
        self.seen().parser.screen().contents()
    }

    /// Waits until the screen shows all of these.
    #[track_caller]
    pub(crate) fn until(&self, texts: &[&str]) -> String {
        let shows = || {
            let screen = self.screen();
            texts.iter().all(|text| screen.contains(text)).then_some(screen)
        };
        let place = std::panic::Location::caller();
        let deadline = std::time::Instant::now() + crate::support::LIMIT;
        loop {
            if let Some(screen) = shows() {
                return screen;
            }
            assert!(std::time::Instant::now() < deadline, "{place}: never {texts:?}:\n{}", self.screen());
            thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    fn until_without(&self, text: &str) {
        eventually(&format!("no {text:?}"), || (!self.screen().contains(text)).then_some(()));
    }

    pub(crate) fn press(&mut self, keys: &str) {
        let input = self.running.child().stdin.as_mut().unwrap();
        input.write_all(keys.as_bytes()).and_then(|()| input.flush()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_raw(self.pid).unwrap(), signal).unwrap();
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    }

    /// Waits for its end, and for everything it has sent.
    pub(crate) fn end(mut self) -> (ExitStatus, Vec<u8>) {
        eventually("its end", || (!is_alive(self.pid)).then_some(()));
        let status = eventually("the end of the terminal", || self.running.child().try_wait().unwrap());
        eventually("the reader's end", || (Arc::strong_count(&self.seen) == 1).then_some(()));
        let raw = self.seen().raw.clone();
        (status, raw)
    }
}

/// Whether the terminal is as it was: the other screen is left and the cursor is shown.
fn is_given_back(raw: &[u8]) -> bool {
    let text = String::from_utf8_lossy(raw);
    let last = |what: &str| text.rfind(what);
    last("\x1b[?1049l") > last("\x1b[?1049h") && last("\x1b[?25h") > last("\x1b[?25l")
}

fn server() -> RedisServer {
    RedisServer::builder().appendonly(true).start().unwrap()
}

#[test]
fn names_waiters_and_clients_are_shown_and_a_key_ends_it() {
    let server = server();
    let place = Place::on(&server);
    let holder = place.holder("deploy", &["--lease", LEASE, "--why", "nightly import"]);
    let waiter = place.start(["run", "deploy", "--", "true"]);
    let mut top = Top::start(&place, "");
    top.until(&["deploy", "lock", "sh@", "1 name, 1 waited for", "NAME", "HELD BY"]);
    top.press("2");
    top.until(&["\"deploy\" is held for", "nightly import", "waits since"]);
    top.press("3");
    top.until(&["CLIENT", "LIVES", "sh@", "true@", "nightly import"]);
    top.press("1\r");
    top.until(&["owner", "waiters", "because nightly import", "redlatch why deploy"]);
    top.press("?");
    top.until(&["take the selected name from its holder"]);
    top.press("\x1b");
    top.until(&["redlatch why deploy"]);
    place.end("deploy");
    assert!(holder.finish().status.success() && waiter.finish().status.success());
    top.until(&["\"deploy\" is free now"]);
    top.press("1");
    top.until(&["nothing is held"]);
    top.press("q");
    let (status, raw) = top.end();
    assert_eq!(status.code(), Some(0));
    assert!(is_given_back(&raw), "{:?}", String::from_utf8_lossy(&raw));
}

#[test]
fn a_lock_is_taken_and_its_holder_is_told_why() {
    let server = server();
    let place = Place::on(&server);
    let holder = place.holder("deploy", &["--lease", LEASE, "--grace", "300ms"]);
    let mut top = Top::start(&place, "");
    top.until(&["deploy", "lock"]);
    top.press("f");
    top.until(&["Take \"deploy\"", "The holder is told"]);
    top.press("stuck since noon\r");
    top.until(&["because stuck since noon", "Type yes"]);
    top.press("no\r");
    top.until(&["nothing was changed"]);
    assert_eq!(place.show("deploy")["holders"].as_array().unwrap().len(), 1);
    top.press("f");
    top.until(&["The holder is told"]);
    top.press("stuck since noon\ryes\r");
    top.until(&["\"deploy\" was taken from"]);
    let output = holder.finish();
    assert_eq!(output.status.code(), Some(80), "{output:?}");
    assert!(both(&output).contains("stuck since noon"), "{output:?}");
    top.press("\x03");
    assert_eq!(top.end().0.code(), Some(0));
}

#[test]
fn a_circle_of_waits_is_shown_on_every_page() {
    let server = server();
    let place = Place::on(&server);
    let outer = |name: &str, other: &str| {
        // Each asks for the other's name once both are held.
        let script = format!(
            "touch {name}.held; while [ ! -e a.held ] || [ ! -e b.held ]; do sleep 0.02; done; exec redlatch run {other} -w 1h -- true"
        );
        place.start(["run", name, "--lease", LEASE, "--", "sh", "-c", &script])
    };
    let runs = [outer("a", "b"), outer("b", "a")];
    let mut top = Top::start(&place, "");
    let screen = top.until(&["deadlock: "]);
    assert!(!screen.contains("perhaps"), "{screen}");
    assert!(
        screen.contains("\"a\" waits for \"b\" waits for \"a\"")
            || screen.contains("\"b\" waits for \"a\" waits for \"b\""),
        "{screen}"
    );
    top.press("2");
    top.until(&["deadlock: ", "\"a\" is held", "\"b\" is held", "as above"]);
    for run in &runs {
        run.signal(Signal::TERM);
    }
    runs.into_iter().for_each(|run| _ = run.finish());
    top.until_without("deadlock");
}

#[test]
fn a_server_that_is_away_is_told_of_and_what_was_seen_stays() {
    let server = server();
    let place = Place::on(&server);
    let lock = place.output(["lock", "job", "--lease", "10m"]);
    assert!(lock.status.success(), "{lock:?}");
    let top = Top::start(&place, "");
    top.until(&["job"]);
    server.kill9();
    top.until(&["job", "as of "]);
    server.restart().unwrap();
    top.until_without("as of ");
    top.until(&["job"]);
}

#[test]
fn signals_end_it_or_stop_it_and_the_terminal_is_given_back() {
    let server = server();
    let place = Place::on(&server);
    for signal in [Signal::TERM, Signal::HUP] {
        let top = Top::start(&place, "");
        top.until(&["nothing is held"]);
        top.signal(signal);
        let (status, raw) = top.end();
        // The code of `script`: 128 and the signal.
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{status:?}");
        assert!(is_given_back(&raw), "{:?}", String::from_utf8_lossy(&raw));
    }
}

#[test]
fn it_is_stopped_by_a_key_and_goes_on() {
    let server = server();
    let place = Place::on(&server);
    let (columns, lines) = SIZE;
    // A shell with job control, as a person has one.
    let script = format!(
        "stty cols {columns} rows {lines}; set -m; {TOP}; echo $? > shell; while [ ! -e shell.end ]; do sleep 0.02; done; fg; exit $?"
    );
    let mut top = Top::start_by(&place, &script);
    top.until(&["nothing is held"]);
    top.press("\x1a");
    eventually("it is stopped", || top.is_stopped().then_some(()));
    eventually("the shell has the terminal", || place.read("shell").ends_with('\n').then_some(()));
    // What it has sent before it stopped may still be on its way here.
    eventually("the terminal is given back", || is_given_back(&top.seen().raw).then_some(()));
    let lock = place.output(["lock", "meanwhile", "--lease", "10m"]);
    assert!(lock.status.success(), "{lock:?}");
    place.end("shell");
    top.until(&["meanwhile"]);
    top.press("q");
    let (status, raw) = top.end();
    assert_eq!(status.code(), Some(0));
    assert!(is_given_back(&raw), "{:?}", String::from_utf8_lossy(&raw));
}

#[test]
fn names_of_an_attacker_do_nothing_to_the_screen_and_without_colours_there_are_none() {
    let server = server();
    let mut place = Place::on(&server);
    place.set_url(&server.url());
    for name in ["\x1b]0;pwned\x07\x1b[2J", "\u{202e}evil", "deploy"] {
        let lock = place.output(["lock", name, "--lease", "10m"]);
        assert!(lock.status.success(), "{lock:?}");
    }
    let mut top = Top::start(&place, "env NO_COLOR=1");
    top.until(&["deploy", "\\x1b]0;pwned", "\\u{202e}evil"]);
    top.press("2");
    top.until(&["nobody waits"]);
    top.press("q");
    let (_, raw) = top.end();
    let text = String::from_utf8_lossy(&raw);
    assert!(!text.contains("\x1b]0;") && !text.contains('\u{202e}'), "{text:?}");
    for colour in ["\x1b[38;", "\x1b[31m", "\x1b[33m", "\x1b[91m"] {
        assert!(!text.contains(colour), "{text:?}");
    }
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let place = Place::local();
    let output = place.output(["top"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(both(&output).contains("redlatch ls --watch"), "{output:?}");
}
