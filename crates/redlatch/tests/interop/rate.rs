//! One rate for both languages: settings, counts and form are the same, and together they never exceed it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redlatch::{ErrorKind, Rate};
use redlatch_testkit::{
    redisson::{JavaThread, RedissonVersion},
    server::KeyContent,
};

use crate::bed::{Bed, LIMIT, ms, run, runtime};

const HOUR: Duration = Duration::from_secs(3_600);

fn try_acquire(java: &JavaThread, name: &str, permits: u32) -> bool {
    java.call("rate.tryAcquire", &[name, &permits.to_string()]).unwrap().as_bool().unwrap()
}

fn available(java: &JavaThread, name: &str) -> i64 {
    java.call("rate.available", &[name]).unwrap().as_i64().unwrap()
}

pub(crate) fn the_settings_are_seen_from_both_sides(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("settings"), bed.thread().thread);
    let limiter = bed.ours.rate_limiter(name.as_str());
    let config = || java.call("rate.config", &[&name]).unwrap().text().to_owned();
    assert!(java.call("rate.trySetRate", &[&name, "overall", "5", "3600000"]).unwrap().as_bool().unwrap());
    assert_eq!(run(limiter.config()).unwrap(), Some(Rate::per(5, HOUR)));
    assert!(!run(limiter.set_if_absent(Rate::per(9, HOUR))).unwrap());
    run(limiter.set(Rate::per(7, ms(60_000)).per_client())).unwrap();
    assert_eq!(config(), "client,7,60000");
    assert!(!java.call("rate.trySetRate", &[&name, "overall", "1", "1"]).unwrap().as_bool().unwrap());
    assert!(run(limiter.update(Rate::per(8, ms(60_000)))).unwrap());
    assert_eq!(config(), "overall,8,60000");
    java.call("rate.setRateKeepAlive", &[&name, "overall", "3", "1000", "90000"]).unwrap();
    assert_eq!(run(limiter.config()).unwrap(), Some(Rate::per(3, ms(1_000)).keep_alive(ms(90_000))));
    assert!(java.call("rate.updateRate", &[&name, "client", "4", "2000"]).unwrap().as_bool().unwrap());
    let rate = run(limiter.config()).unwrap().unwrap();
    assert_eq!((rate.permits(), rate.interval(), rate.is_per_client()), (4, ms(2_000), true));
}

pub(crate) fn what_one_side_takes_the_other_misses(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("counts"), bed.thread().thread);
    let limiter = bed.ours.rate_limiter(name.as_str());
    run(limiter.set(Rate::per(10, HOUR))).unwrap();
    assert!(try_acquire(&java, &name, 3));
    assert_eq!(run(limiter.available()).unwrap(), 7);
    run(limiter.acquire(4)).unwrap();
    assert_eq!(available(&java, &name), 3);
    assert!(!try_acquire(&java, &name, 4));
    assert!(!run(limiter.try_acquire(4)).unwrap());
    // Ours are given back in part, and Java reads what is left.
    assert_eq!(run(limiter.release(5)).unwrap(), 5);
    assert_eq!(available(&java, &name), 8);
    java.call("rate.release", &[&name, "1"]).unwrap();
    assert_eq!(run(limiter.available()).unwrap(), 9);
    assert!(java.call("rate.updateRate", &[&name, "overall", "20", "3600000"]).unwrap().as_bool().unwrap());
    assert_eq!(available(&java, &name), run(limiter.available()).unwrap());
    assert!(run(limiter.update(Rate::per(5, HOUR))).unwrap());
    assert_eq!(available(&java, &name), run(limiter.available()).unwrap());
    // Each client's own.
    run(limiter.set(Rate::per(2, HOUR).per_client())).unwrap();
    assert!(run(limiter.try_acquire(2)).unwrap() && try_acquire(&java, &name, 2));
    assert!(!run(limiter.try_acquire(1)).unwrap() && !try_acquire(&java, &name, 1));
    run(limiter.set(Rate::per(2, HOUR))).unwrap();
    assert!(try_acquire(&java, &name, 2), "a new start for Java too");
    assert!(!run(limiter.try_acquire(1)).unwrap());
}

/// What a rate limiter leaves on the server, with grants by their permits and without their ids and times. Our clients' own numbers of
/// free permits are less this rate.
fn left(bed: &Bed, name: &str, client: &str, own_less: i64) -> Vec<(String, String, bool)> {
    let dump = bed.server.keys_dump().unwrap();
    let ours = dump.into_iter().filter(|(key, _)| String::from_utf8_lossy(key).contains(name));
    ours.map(|(key, dump)| {
        let key = String::from_utf8(key).unwrap().replace(name, "N").replace(client, "ID");
        let content = match dump.content {
            KeyContent::SortedSet(members) => {
                let mut grants: Vec<_> = members
                    .iter()
                    .map(|(member, score)| {
                        assert_eq!(
                            (member.len(), member[0], score.len()),
                            (21, 16, 13),
                            "{member:?} {score:?}"
                        );
                        u32::from_le_bytes(member[17..].try_into().unwrap())
                    })
                    .collect();
                grants.sort_unstable();
                format!("{grants:?}")
            }
            KeyContent::String(free) if key.ends_with(":value:ID") => {
                let free: i64 = String::from_utf8(free).unwrap().parse().unwrap();
                (free + own_less).to_string()
            }
            other => format!("{other:?}"),
        };
        (key, content, dump.pttl_ms.is_some())
    })
    .collect()
}

pub(crate) fn each_step_leaves_the_same_keys(version: RedissonVersion) {
    let bed = Bed::of(version);
    let java = bed.thread().thread;
    let (theirs, mine) = (bed.name("java-steps"), bed.name("rust-steps"));
    let limiter = bed.ours.rate_limiter(mine.as_str());
    let id = java.call("id", &[]).unwrap().text().to_owned();
    for (mode, keep_alive) in [("overall", 0_u64), ("client", 0), ("overall", 7_200_000)] {
        let mut rate = Rate::per(6, HOUR);
        if mode == "client" {
            rate = rate.per_client();
        }
        if keep_alive > 0 {
            rate = rate.keep_alive(ms(keep_alive));
            let args = [theirs.as_str(), mode, "6", "3600000", &keep_alive.to_string()];
            java.call("rate.setRateKeepAlive", &args).unwrap();
        } else {
            java.call("rate.setRate", &[&theirs, mode, "6", "3600000"]).unwrap();
        }
        run(limiter.set(rate)).unwrap();
        let same = |step: &str| {
            assert_eq!(
                left(&bed, &theirs, &id, 0),
                left(&bed, &mine, bed.ours.id(), 6),
                "Java against ours after {step}, {mode} {keep_alive}"
            );
        };
        same("set");
        for permits in [2, 3] {
            assert!(try_acquire(&java, &theirs, permits) && run(limiter.try_acquire(permits)).unwrap());
            same("a grant");
        }
        assert!(!try_acquire(&java, &theirs, 2) && !run(limiter.try_acquire(2)).unwrap());
        same("a refusal");
        // Deleted in between, because a change of the mode leaves the keys of the other mode behind in Java and not here.
        let gone = java.call("rate.delete", &[&theirs]).unwrap().as_bool().unwrap();
        assert!(gone && run(limiter.delete()).unwrap());
        assert_eq!((left(&bed, &theirs, &id, 0), left(&bed, &mine, bed.ours.id(), 6)), (vec![], vec![]));
    }
}

pub(crate) fn both_sides_together_never_exceed_the_rate(version: RedissonVersion) {
    const RATE: usize = 5;
    const INTERVAL: Duration = Duration::from_millis(250);
    let bed = Bed::of(version);
    let name = bed.name("together");
    let limiter = bed.ours.rate_limiter(name.as_str());
    run(limiter.set(Rate::per(RATE as u32, INTERVAL))).unwrap();
    let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ours: Vec<_> = [&bed.ours, &bed.ours_too]
        .map(|client| {
            let limiter = client.rate_limiter(name.as_str());
            runtime().spawn(async move {
                let mut grants = Vec::new();
                while grants.len() < 15 {
                    let sent = wall();
                    if limiter.try_acquire(1).await.unwrap() {
                        grants.push((sent, wall()));
                    } else {
                        tokio::time::sleep(ms(4)).await;
                    }
                }
                grants
            })
        })
        .into();
    let mut grants = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let java = bed.thread().thread;
                let name = &name;
                scope.spawn(move || {
                    let mut grants = Vec::new();
                    while grants.len() < 15 {
                        let sent = wall();
                        if try_acquire(&java, name, 1) {
                            grants.push((sent, wall()));
                        } else {
                            std::thread::sleep(ms(4));
                        }
                    }
                    grants
                })
            })
            .collect();
        for thread in threads {
            grants.extend(thread.join().unwrap());
        }
    });
    for task in ours {
        grants.extend(run(task).unwrap());
    }
    assert_eq!(grants.len(), 60);
    grants.sort_by_key(|(_, received)| *received);
    // Java reads its clock before it sends, so a window may be short by what a request takes there.
    let tolerance = ms(40);
    for window in grants.windows(RATE + 1) {
        let sent = window.iter().map(|(sent, _)| *sent).min().unwrap();
        let span = window[RATE].1 - sent;
        assert!(span + tolerance >= INTERVAL, "{span:?} for {} grants", RATE + 1);
    }
}

pub(crate) fn each_side_waits_for_the_others_permits(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("waits"), bed.thread().thread);
    let limiter = bed.ours.rate_limiter(name.as_str());
    run(limiter.set(Rate::per(2, ms(600)))).unwrap();
    let begin = std::time::Instant::now();
    assert!(try_acquire(&java, &name, 2));
    run(limiter.acquire(2)).unwrap();
    assert!(begin.elapsed() >= ms(590), "{:?}", begin.elapsed());
    let waiting = java.send("rate.tryAcquireWait", &[&name, "1", "10000"]).unwrap();
    let reply = waiting.wait(LIMIT).unwrap();
    assert!(reply.as_bool().unwrap());
    assert!(begin.elapsed() >= ms(1_180), "{:?}", begin.elapsed());
}

/// The older release writes members of another form. It is told apart, and nothing is reckoned from it.
pub(crate) fn what_another_form_leaves_is_refused(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("older"), bed.thread().thread);
    let limiter = bed.ours.rate_limiter(name.as_str());
    assert!(java.call("rate.trySetRate", &[&name, "overall", "5", "3600000"]).unwrap().as_bool().unwrap());
    assert_eq!(run(limiter.config()).unwrap(), Some(Rate::per(5, HOUR)));
    assert!(try_acquire(&java, &name, 2));
    let before = bed.server.keys_dump().unwrap();
    for error in [run(limiter.try_acquire(1)).unwrap_err(), run(limiter.available()).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        assert!(error.to_string().contains("3.17"), "{error}");
    }
    let after = bed.server.keys_dump().unwrap();
    for (key, dump) in before.iter().filter(|(key, _)| String::from_utf8_lossy(key).contains(&name)) {
        assert_eq!(after[key].content, dump.content);
    }
}
