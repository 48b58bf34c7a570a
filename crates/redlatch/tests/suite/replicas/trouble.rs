//! Replica acknowledgement when answers get lost, servers change, and callers go away.

use std::{future::IntoFuture, time::Duration};

use redlatch::{
    Client, ErrorKind, Lease, Unlocked,
    scripts::{self, Script},
};
use redlatch_testkit::{
    cancel::{DropMoment, poll_n_then_drop_at},
    leftovers::LeftoverCheck,
    proxy::{Action, Gate, Match},
};

use super::{FACES, LONG, all, at_least, in_sync, numbers, rig, rig_with, waits};
use crate::{
    fixture::{SOON, ms, soon},
    kinds::{AnyLock, Face},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_the_server_has_forgotten_is_sent_again_and_still_confirmed() {
    let rig = rig(1).await;
    let client = rig.client().await;
    for n in 0..3 {
        rig.master.flush_scripts().unwrap();
        let lock = client.lock(format!("n{n}"));
        let guard = lock.acquire().replica_ack(all()).await.unwrap().unwrap();
        assert_eq!(numbers(&guard), (1, 1));
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_dies_before_it_is_waited_for_is_missing() {
    let rig = rig(2).await;
    let client = rig.client().await;
    let lock = client.lock("n");
    let ack = all().within(ms(2_000));
    lock.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.unwrap();
    let gate = Gate::new();
    let rule = rig.proxy.rule(Match::command("ROLE"), Action::HoldReplyUntilReleased(gate.clone()));
    let asking = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().replica_ack(ack).await.map(|_| ()) }
    });
    rig.proxy.wait_fired(rule, 1, SOON).await.unwrap();
    rig.replicas[0].kill9();
    in_sync(&rig.master, 1).await;
    gate.release();
    let error = soon("the shortfall", asking).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    assert!(error.to_string().contains(" of 2 "), "{error}");
    assert!(!rig.exists("n"));
    // The master has given it up, so that all are one now.
    let guard = lock.acquire().replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(numbers(&guard), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_demoted_in_between_confirms_nothing() {
    let rig = rig(1).await;
    let client = Client::builder().url(rig.proxy.url()).response_timeout(ms(2_000)).connect().await.unwrap();
    let lock = client.lock("n");
    lock.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.unwrap();
    let gate = Gate::new();
    let rule = rig.proxy.rule(Match::command("ROLE").nth(1), Action::HoldReplyUntilReleased(gate.clone()));
    let asking = tokio::spawn(async move { lock.acquire().replica_ack(all()).await.map(|_| ()) });
    rig.proxy.wait_fired(rule, 1, SOON).await.unwrap();
    // A master that nobody answers at: it is a replica at once, and keeps what it has.
    let nobody = rig.replicas[0].port().to_string();
    rig.replicas[0].kill9();
    rig.master.cmd(&["REPLICAOF", "127.0.0.1", &nobody]).unwrap();
    gate.release();
    let error = soon("the refusal", asking).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    // What it left is removed as soon as the server can be written to again.
    rig.master.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
    soon("the undoing", async {
        while rig.exists("n") {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_of_the_replicas_is_asked_for_again_by_the_same_owner() {
    let rig = rig(1).await;
    for face in FACES {
        let client = rig.client().await;
        let lock = AnyLock::new(face, &client, "lost");
        lock.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.unwrap();
        rig.proxy.clear_rules();
        let rule = rig.proxy.rule(Match::command("WAIT").nth(1), Action::CloseAfterRequest);
        let owner = client.owner();
        let asked = lock.acquire().owner(&owner).replica_ack(all());
        let guard = soon("the second answer", asked.into_future()).await.unwrap().unwrap();
        assert_eq!(rig.proxy.fired(rule), 1, "{face:?}");
        assert_eq!(numbers(&guard), (1, 1));
        assert_eq!(lock.hold_count(&owner).await.unwrap(), 1, "{face:?}");
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        assert!(!rig.exists("lost"));
        client.shutdown(ms(5_000)).await;
    }
}

/// A connection that has written nothing has nothing to wait for, so every repeat has to write, even one that changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_reaches_the_replicas_again() {
    // Otherwise the server's own messages to its replicas would look like a write.
    let rig = rig_with(1, &[("repl-ping-replica-period", "3600")]).await;
    let offset = || {
        let role = format!("{:?}", rig.master.cmd(&["INFO", "replication"]).unwrap());
        let (_, rest) = role.split_once("master_repl_offset:").unwrap();
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()
    };
    let run = |script: &Script, keys: &[&str], args: &[&str]| {
        let count = keys.len().to_string();
        let call = [&["EVAL", script.source(), &count], keys, args].concat();
        let reply = format!("{:?}", rig.master.cmd(&call).unwrap());
        assert!(reply.starts_with("array([int(7), int(1)"), "{}: {reply}", script.name());
    };
    rig.master.cmd(&["SET", "p", "5"]).unwrap();
    // The second lease is shorter, or is none, so that there is nothing to change.
    let never = "922337203685477";
    let id = "0123456789abcdef";
    let fair = |lease| ["7", "me", lease, "0", "0", "ch", "publish", "300000", "0"];
    /// A script, its keys, and the arguments of the first call and of the repeat.
    type Twice<'a> = (&'a Script, &'a [&'a str], [Vec<&'a str>; 2]);
    let calls: [Twice<'_>; 6] = [
        (&scripts::ACQUIRE, &["a"], ["60000", "30000"].map(|lease| vec!["7", "me", lease, "0"])),
        (&scripts::FAIR_ACQUIRE, &["f", "fq", "ft"], ["60000", "30000"].map(|lease| fair(lease).to_vec())),
        (&scripts::READ_ACQUIRE, &["r", "{r}:"], ["60000", "30000"].map(|lease| vec!["7", "me", lease, "0"])),
        (
            &scripts::WRITE_ACQUIRE,
            &["w", "{w}:"],
            ["60000", "30000"].map(|lease| vec!["7", "me", lease, "0"]),
        ),
        (&scripts::PERMIT_TAKE, &["p", "pt"], [never; 2].map(|lease| vec!["7", id, lease, "ch", "publish"])),
        (&scripts::ACQUIRE_ALL, &["m", "n"], ["60000", "30000"].map(|lease| vec!["7", "me", lease, "0"])),
    ];
    for (script, keys, [first, again]) in calls {
        run(script, keys, &first);
        let before = offset();
        run(script, keys, &again);
        assert!(offset() > before, "a repeat of {} writes nothing", script.name());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_request_is_confirmed_by_replicas_that_have_it_and_by_no_others() {
    let rig = rig(1).await;
    for face in FACES {
        let client = rig.client().await;
        let lock = AnyLock::new(face, &client, "again");
        lock.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.unwrap();
        rig.proxy.clear_rules();
        rig.proxy.rule(Match::command("WAIT").nth(1), Action::CloseBeforeRequest);
        rig.replicas[0].pause().unwrap();
        let asked = lock.acquire().replica_ack(all().within(ms(100)));
        let error = soon("the shortfall", asked.into_future()).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotReplicated, "{face:?}: {error}");
        assert!(!rig.exists("again"), "{face:?}");
        rig.replicas[0].resume().unwrap();
        client.shutdown(ms(5_000)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_for_replicas_hold_up_nobody_else() {
    let rig = rig(1).await;
    let client = rig.client().await;
    rig.replicas[0].pause().unwrap();
    // More than there are connections for them.
    let waiting: Vec<_> = (0..12)
        .map(|n| {
            let lock = client.lock(format!("slow{n}"));
            tokio::spawn(async move {
                let ack = all();
                let guard = lock.acquire().lease(Lease::Fixed(4 * LONG)).replica_ack(ack).await;
                guard.unwrap().unwrap()
            })
        })
        .collect();
    rig.proxy.wait_for(SOON, |log| log.requests().filter(|wait| waits(wait)).count() >= 8).await.unwrap();
    for n in 0..50 {
        let guard = soon("another lock", client.lock(format!("quick{n}")).lock()).await.unwrap();
        soon("its release", guard.unlock()).await.unwrap();
    }
    assert!(waiting.iter().all(|task| !task.is_finished()), "all of that came before any confirmation");
    let connections = rig.proxy.with_log(|log| {
        let of_wait = log.requests().filter(|wait| waits(wait)).map(|wait| wait.connection);
        let of_others =
            log.requests().filter(|request| request.args.iter().any(|arg| arg.starts_with(b"quick")));
        let of_others: Vec<u64> = of_others.map(|request| request.connection).collect();
        let of_wait: Vec<u64> = of_wait.collect();
        assert!(of_wait.iter().all(|connection| !of_others.contains(connection)));
        of_wait.len()
    });
    assert_eq!(connections, 8);
    rig.replicas[0].resume().unwrap();
    for task in waiting {
        let guard = soon("the confirmation", task).await.unwrap();
        assert_eq!(numbers(&guard), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_acquire_is_undone_before_the_replicas_have_answered() {
    let rig = rig(1).await;
    let client = rig.client().await;
    rig.replicas[0].pause().unwrap();
    let lock = client.lock("n");
    let task = tokio::spawn(async move {
        let ack = all();
        lock.acquire().lease(Lease::Fixed(4 * LONG)).replica_ack(ack).await.map(|_| ())
    });
    rig.proxy.wait_for(SOON, |log| log.requests().any(waits)).await.unwrap();
    assert!(rig.exists("n"));
    task.abort();
    soon("the undoing", async {
        while rig.exists("n") || client.stats().background_jobs > 0 {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    // Its connection is not used for others: they would have to wait for its answer first.
    let lock = client.lock("m");
    let next = lock.acquire().replica_ack(all().within(ms(60)).keep_on_shortfall());
    let next = soon("the next answer", next.into_future()).await.unwrap().unwrap();
    assert_eq!(numbers(&next), (0, 1));
    rig.replicas[0].resume().unwrap();
    let again = client.lock("n").acquire().replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(numbers(&again), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_dropped_acquires_with_replicas_leave_nothing() {
    let rig = rig(1).await;
    let client = rig.client().await;
    rig.proxy.latency(ms(0), ms(4), 7);
    let one = async |round: usize, face: Face| {
        let lock = AnyLock::new(face, &client, format!("sweep-{round}"));
        // Two of these ask for more than there is, so that giving back is dropped as well.
        let ack = if round.is_multiple_of(3) { at_least(2).within(ms(5)) } else { all() };
        let work = async {
            if let Ok(guard) = lock.acquire().replica_ack(ack).await {
                guard.unwrap().unlock().await.unwrap();
            }
        };
        let moment =
            if (round / 10).is_multiple_of(2) { DropMoment::AfterPoll } else { DropMoment::AtWakeUp };
        let outcome = tokio::time::timeout(ms(500), poll_n_then_drop_at(work, round % 10, moment)).await;
        !matches!(outcome, Ok(Some(())))
    };
    let mut dropped = 0;
    // The counter of a fenced lock stays, as it has to.
    let faces: Vec<Face> = FACES.into_iter().filter(|face| *face != Face::Fenced).collect();
    for lap in 0..20 {
        let face = faces[lap % faces.len()];
        let rounds = (0..20).map(|n| one(lap * 20 + n, face));
        dropped +=
            futures_util::future::join_all(rounds).await.into_iter().filter(|dropped| *dropped).count();
    }
    assert!(dropped > 100, "only {dropped} were dropped");
    soon("quiet", async {
        while client.stats().names + client.stats().background_jobs > 0 {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    LeftoverCheck::new(&rig.master, "sweep").assert_clean_async(Duration::from_secs(8)).await;
}
