//! What a run says while its server is away, and when it is back.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use redlatch_testkit::server::RedisServer;

use crate::support::{Over, Place, Running, eventually};

/// The shortest time after which anything is said again; a new look says who holds it at once.
const PERIOD: Duration = Duration::from_secs(10);

/// A server that closes each connection at once, at the address of one that has ended.
struct Refusing<'a> {
    tries: &'a AtomicUsize,
    over: &'a AtomicBool,
}

impl Refusing<'_> {
    fn serve(&self, port: u16) {
        let listener = eventually("the port is free", || TcpListener::bind(("127.0.0.1", port)).ok());
        listener.set_nonblocking(true).unwrap();
        while !self.over.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok(_) => _ = self.tries.fetch_add(1, Ordering::Relaxed),
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// Starts a run whose messages go to a file of this name.
fn telling(place: &Place, file: &str, arguments: &str) -> Running {
    Running::spawn(place.shell(&format!("exec redlatch run job {arguments} 2> {file}")))
}

fn until_told(place: &Place, file: &str, what: &str) {
    eventually(what, || place.read(file).contains(what).then_some(()));
}

/// Every line is of one of these kinds, and none of a kind comes more often than at the beginning, at the end and once a period.
fn is_told(text: &str, kinds: &[&str], lasted: Duration) {
    let most = 2 + usize::try_from(lasted.as_secs() / PERIOD.as_secs()).unwrap();
    for kind in kinds {
        let told = text.lines().filter(|line| line.contains(kind)).count();
        assert!((1..=most).contains(&told), "{kind}: {told} of {most} lines in {lasted:?}: {text}");
    }
    let other = text.lines().find(|line| !kinds.iter().any(|kind| line.contains(kind)));
    assert_eq!(other, None, "{text}");
}

#[test]
fn an_outage_is_told_of_once_in_a_while_and_its_end_with_the_owner() {
    let server = RedisServer::builder().appendonly(true).start().unwrap();
    let place = Place::on(&server);
    let began = Instant::now();
    let command = "sh -c 'while [ ! -e job.end ]; do sleep 0.02; done'";
    let holder = telling(&place, "holder", &format!("--lease 20s --grace 300ms -v -- {command}"));
    until_told(&place, "holder", "is ours as");
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let waiters = ["", "-v"].map(|option| {
        let file = format!("waiter{option}");
        let waiter = telling(&place, &file, &format!("{option} -- true"));
        until_told(&place, &file, &format!("held by {owner}"));
        (waiter, file)
    });
    let (tries, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    server.kill9();
    thread::scope(|scope| {
        let _ends = Over(&over);
        scope.spawn(|| Refusing { tries: &tries, over: &over }.serve(server.port()));
        until_told(&place, "holder", &format!("\"job\" of {owner}: the renewal is late"));
        for (_, file) in &waiters {
            until_told(&place, file, "the server cannot be asked at present");
        }
    });
    let tries = tries.load(Ordering::Relaxed);
    assert!(tries > 30, "{tries} tries are no more than a few lines");
    server.restart().unwrap();
    until_told(&place, "holder", &format!("\"job\" of {owner}: renewed again, and held as before\n"));
    for (_, file) in &waiters {
        until_told(&place, file, "the server answers again\n");
    }
    // The one that looks has found out who holds it after the outage.
    eventually("the holder is named again", || {
        (place.read("waiter-v").matches(&owner).count() > 1).then_some(())
    });
    place.end("job");
    assert_eq!(holder.finish().status.code(), Some(0));
    let waited = waiters.map(|(waiter, file)| {
        assert_eq!(waiter.finish().status.code(), Some(0));
        file
    });
    let lasted = began.elapsed();
    let kinds = ["is ours as", "a renewal failed and is tried again", "the renewal is late", "renewed again"];
    is_told(&place.read("holder"), &kinds, lasted);
    let kinds = ["waiting for", "the server cannot be asked at present", "the server answers again"];
    is_told(&place.read(&waited[0]), &kinds, lasted);
    is_told(&place.read(&waited[1]), &[&kinds[..], &["is ours as"]].concat(), lasted);
}

#[test]
fn a_run_that_waits_for_a_server_at_its_start_says_so_once_and_not_for_each_try() {
    let mut place = Place::local();
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    place.set_url(&format!("redis://127.0.0.1:{port}"));
    let (tries, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let began = Instant::now();
    let run = thread::scope(|scope| {
        let _ends = Over(&over);
        scope.spawn(|| Refusing { tries: &tries, over: &over }.serve(port));
        let run = telling(&place, "waiter", "-w 1h -- true");
        eventually("many tries", || (tries.load(Ordering::Relaxed) > 15).then_some(()));
        run
    });
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.finish().status.code(), Some(143));
    let (text, minutes) = (place.read("waiter"), began.elapsed().as_secs() / 60);
    let told = u64::try_from(text.lines().count()).unwrap();
    assert!(text.contains("waiting for the server") && told <= 1 + minutes, "{text}");
}
