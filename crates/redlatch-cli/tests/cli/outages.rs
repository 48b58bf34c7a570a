//! What a run says while its server is away, and when it is back.

use std::time::{Duration, Instant};

use redlatch_testkit::{net::ReservedPort, proxy::Proxy, server::RedisServer};

use crate::support::{Place, Running, eventually};

/// The shortest time after which anything is said again; a new look says who holds it at once.
const PERIOD: Duration = Duration::from_secs(10);

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
    // It closes each connection at once while the server is away.
    let proxy = Proxy::start(&server.url()).unwrap();
    let mut place = Place::on(&server);
    place.set_url(&proxy.url());
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
    server.kill9();
    let before = proxy.connections_accepted();
    until_told(&place, "holder", &format!("\"job\" of {owner}: the renewal is late"));
    for (_, file) in &waiters {
        until_told(&place, file, "the server cannot be asked at present");
    }
    let tries = proxy.connections_accepted() - before;
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
    let nobody = ReservedPort::new(0).unwrap();
    // It closes each connection at once.
    let proxy = Proxy::start(&format!("redis://127.0.0.1:{}", nobody.port())).unwrap();
    place.set_url(&proxy.url());
    let began = Instant::now();
    let run = telling(&place, "waiter", "-w 1h -- true");
    eventually("many tries", || (proxy.connections_accepted() > 15).then_some(()));
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.finish().status.code(), Some(143));
    let (text, minutes) = (place.read("waiter"), began.elapsed().as_secs() / 60);
    let told = u64::try_from(text.lines().count()).unwrap();
    assert!(text.contains("waiting for the server") && told <= 1 + minutes, "{text}");
}
