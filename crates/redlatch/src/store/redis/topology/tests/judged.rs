//! Which of two pictures counts, and what stays of the last one.

use super::*;

/// A picture in which this server has the first half of the slots at one epoch and that one the second half at another.
fn halves(first: (u16, u64), second: (u16, u64)) -> Layout {
    let [one, two] = [first, second].map(|(port, epoch)| (at(port), port.to_string(), epoch));
    let entry = |(addr, id, _): &(Addr, String, u64), from, to| {
        let Addr::Tcp { host, port } = addr else { panic!("{addr}") };
        let node = Reply::Array(vec![
            Reply::Bytes(host.as_bytes().to_vec()),
            Reply::Int(i64::from(*port)),
            bytes(id),
        ]);
        Reply::Array(vec![Reply::Int(from), Reply::Int(to), node])
    };
    let runs = Reply::Array(vec![entry(&one, 0, 8_191), entry(&two, 8_192, 16_383)]);
    let line =
        |(_, id, epoch): &(Addr, String, u64)| format!("{id} 127.0.0.1:1@2 master - 0 0 {epoch} connected\n");
    let epochs = bytes(&(line(&one) + &line(&two)));
    let mut layout = Layout::read(&runs, &at(1)).unwrap().with_epochs(&epochs);
    layout.ids.insert("id".to_owned());
    layout
}

fn bytes(text: &str) -> Reply {
    Reply::Bytes(text.as_bytes().to_vec())
}

/// A master that was stopped tells the picture from before its failover when it goes on, and the client went back to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_from_before_a_failover_is_not_believed() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    let owner = |slot| topology.owner(slot).unwrap().addr.clone();
    assert_eq!(topology.install(halves((1, 1), (2, 2)), By::Insistence), Judged::Believed);
    assert_eq!(topology.install(halves((3, 4), (2, 2)), By::Epochs), Judged::Believed);
    let incarnation = topology.incarnation(7);
    assert_eq!(topology.install(halves((1, 1), (2, 2)), By::Epochs), Judged::OutOfDate);
    assert_eq!((owner(7), topology.incarnation(7)), (at(3), incarnation));
    // What is known of epochs stays when a node may not tell them, and when it tells earlier ones.
    let mut untold = halves((3, 4), (2, 2));
    untold.epochs.clear();
    assert_eq!(topology.install(untold, By::Epochs), Judged::Believed);
    assert_eq!(topology.install(halves((3, 3), (2, 2)), By::Epochs), Judged::Believed);
    assert_eq!(topology.install(halves((1, 3), (2, 2)), By::Epochs), Judged::OutOfDate);
    assert_eq!(topology.install(halves((1, 5), (2, 2)), By::Epochs), Judged::Believed);
    assert_eq!((owner(7), owner(9_000)), (at(1), at(2)));
    assert_eq!(topology.install(halves((3, 4), (2, 2)), By::Insistence), Judged::Believed);
    assert_eq!(owner(7), at(3));
}

/// A node that had just joined told of few masters. The others lost their slots and the epochs that were known of them, and a picture from
/// before a failover was believed then: a client that knew the new master was granted its locks at the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_that_lacks_a_master_takes_no_slot_and_no_epoch_from_it() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    let owner = |slot| topology.owner(slot).map(|owner| owner.addr.clone());
    assert_eq!(topology.install(halves((1, 1), (2, 2)), By::Insistence), Judged::Believed);
    let mut after = halves((3, 4), (2, 2));
    after.replicas = vec![(at(5), Some(at(3))), (at(6), Some(at(2))), (at(7), Some(at(2)))];
    assert_eq!(topology.install(after, By::Epochs), Judged::Believed);
    let incarnation = topology.incarnation(7);
    let mut partial = halves((3, 4), (2, 2));
    partial.runs.remove(0);
    partial.epochs.remove(&at(3));
    // Nor does it know all replicas of the other: `ReplicaAck::all()` was content with those that it knows.
    partial.replicas = vec![(at(6), Some(at(2)))];
    assert_eq!(topology.install(partial.clone(), By::Epochs), Judged::Believed);
    assert_eq!((owner(7), owner(9_000)), (Some(at(3)), Some(at(2))));
    assert_eq!(topology.uncovered(), 0);
    assert_eq!((topology.replicas_of(&at(3)), topology.replicas_of(&at(2))), (1, 2));
    // A redirection named it by a host name, and none was counted.
    let Addr::Tcp { port, .. } = at(2) else { unreachable!() };
    assert_eq!(topology.replicas_of(&Addr::Tcp { host: "node.example".into(), port }), 2);
    assert_eq!(topology.incarnation(7), incarnation, "nothing has changed");
    assert_eq!(topology.install(halves((1, 1), (2, 2)), By::Epochs), Judged::OutOfDate);
    assert_eq!(owner(7), Some(at(3)));
    // What most masters insist on is taken as it is.
    assert_eq!(topology.install(partial, By::Insistence), Judged::Believed);
    assert_eq!(owner(7), None);
    topology.close();
}

/// Two masters were restarted at each other's addresses. The picture of the first that was there lacked the other, whose slots stayed at an address with
/// the first one's epoch, and each right picture was out of date for that. Epochs are a node's, wherever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masters_that_swap_their_addresses_keep_their_own_epochs() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    let owner = |slot| topology.owner(slot).map(|owner| owner.addr.clone());
    let swapped = || {
        let mut layout = halves((2, 1), (1, 2));
        layout.nodes = [(at(2), "1".to_owned()), (at(1), "2".to_owned())].into_iter().collect();
        layout
    };
    assert_eq!(topology.install(halves((1, 1), (2, 2)), By::Insistence), Judged::Believed);
    let mut partial = swapped();
    partial.runs.remove(0);
    partial.epochs.remove(&at(2));
    partial.nodes.remove(&at(2));
    for _ in 0..2 {
        assert_eq!(topology.install(partial.clone(), By::Epochs), Judged::Believed);
        assert_eq!(
            (owner(7), owner(9_000)),
            (Some(at(1)), Some(at(1))),
            "nobody has said that it has no master"
        );
    }
    let mut older = halves((3, 0), (1, 2));
    older.nodes.insert(at(1), "2".to_owned());
    assert_eq!(topology.install(older, By::Epochs), Judged::OutOfDate, "its epoch is remembered");
    assert_eq!(topology.install(swapped(), By::Epochs), Judged::Believed);
    assert_eq!((owner(7), owner(9_000)), (Some(at(2)), Some(at(1))));
    // At once, and what was known of the one is not the other's.
    assert_eq!(topology.install(halves((1, 1), (2, 2)), By::Epochs), Judged::Believed);
    assert_eq!(topology.install(swapped(), By::Epochs), Judged::Believed);
    let epochs = |port| topology.table().epochs.get(&at(port)).copied();
    assert_eq!((epochs(2), epochs(1)), (Some(1), Some(2)));
    topology.close();
}

/// `ReplicaAck::all()` was content with no replica at a master that had just taken over, because the others had not turned to it yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replicas_of_a_master_count_at_the_one_that_takes_over() {
    let server = node();
    for is_redirected in [false, true] {
        let (topology, _first) = open(&server).await;
        topology.closed.cancel();
        let mut before = halves((1, 1), (2, 2));
        before.replicas = vec![(at(6), Some(at(2))), (at(7), Some(at(2))), (at(5), Some(at(1)))];
        assert_eq!(topology.install(before, By::Insistence), Judged::Believed);
        let count = || [1, 2, 6].map(|port| topology.replicas_of(&at(port)));
        if is_redirected {
            topology.moved(9_000, &at(2), &at(6));
            assert_eq!(count(), [1, 2, 1]);
        }
        assert_eq!(topology.install(halves((1, 1), (6, 3)), By::Epochs), Judged::Believed);
        assert_eq!(count(), [0, 0, 1], "the master that stays has lost its replica");
        assert_eq!(topology.install(halves((1, 1), (6, 3)), By::Epochs), Judged::Believed);
        assert_eq!(count(), [0, 0, 1]);
        topology.close();
    }
}

/// Only what the master of a slot says gives it away at once: a node that was away sends calls to the masters that it knew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_master_of_a_slot_gives_it_away() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    let owner = |slot| topology.owner(slot).unwrap().addr.clone();
    topology.install(halves((1, 1), (2, 2)), By::Insistence);
    topology.moved(7, &at(2), &at(3));
    assert_eq!(owner(7), at(1));
    topology.moved(7, &at(1), &at(3));
    assert_eq!(owner(7), at(3));
    // Others have not heard of it yet, and the rest of what they say counts.
    assert_eq!(topology.install(halves((1, 1), (4, 3)), By::Epochs), Judged::Believed);
    assert_eq!((owner(7), owner(9_000)), (at(3), at(4)));
    if let Some(told) = topology.table.write().unwrap().told.get_mut(&7) {
        told.at -= pictures::TOLD_TIME;
    }
    assert_eq!(topology.install(halves((1, 1), (4, 3)), By::Epochs), Judged::OutOfDate);
    assert_eq!(owner(7), at(3));
}

/// Epochs that a person has reset contradict what is known for ever.
#[tokio::test]
async fn what_most_masters_insist_on_is_believed_after_a_while() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    topology.install(halves((1, 1), (2, 5)), By::Insistence);
    let against = |said: &[u16]| said.iter().map(|port| (at(*port), halves((2, 3), (1, 1)))).collect();
    let begin = Instant::now();
    let after = |times| begin + times * pictures::INSISTED_TIME;
    assert_eq!(topology.insisted(against(&[1]), &[], after(0)), None, "half of them");
    assert_eq!(topology.insisted(against(&[1, 2]), &[], after(1)), None, "since now");
    assert_eq!(topology.scan_interval(), pictures::CONTRADICTION_INTERVAL);
    // A slot that moves elsewhere begins nothing anew.
    let moved = |said: &[u16]| {
        let mut moved = halves((2, 3), (1, 1));
        moved.runs.push((16_000..=16_000, at(3)));
        moved.epochs.insert(at(3), 9);
        said.iter().map(|port| (at(*port), moved.clone())).collect()
    };
    assert!(topology.insisted(moved(&[1, 2]), &[], after(2)).is_some());
    // Of two that agree in the rest the one that has heard of it is taken over, whichever comes first.
    for first in [1, 2] {
        let mut both: Vec<(Addr, Layout)> = against(&[first]);
        both.extend(moved(&[3 - first]));
        for flip in [false, true] {
            if flip {
                both.reverse();
            }
            assert_eq!(topology.insisted(both.clone(), &[], after(1)), None, "since now");
            let taken = topology.insisted(both.clone(), &[], after(2)).unwrap();
            assert_eq!(taken.epochs.get(&at(3)), Some(&9));
        }
    }
    assert_eq!(topology.insisted(against(&[1, 2]), &[], after(1)), None, "since now");
    assert_eq!(topology.insisted(against(&[1]), &[], after(2)), None, "not in each look");
    assert_eq!(topology.insisted(against(&[1, 2]), &[], after(2)), None);
    let taken = topology.insisted(against(&[1, 2]), &[], after(3)).unwrap();
    // A master that loses its slots to a later epoch is refused nothing.
    assert_eq!(topology.install(taken, By::Insistence), Judged::Believed);
    assert_eq!(topology.table().refused, SeededMap::from_iter([(at(2), 5)]));
    topology.close();
}

/// A master was lost for good, and its slots were given to another one by hand, with an earlier epoch. The lost one says nothing any more, so that
/// of two masters, and of three of which two were lost, most never insisted.
#[tokio::test]
async fn what_all_insist_on_who_are_left_is_believed_after_a_while() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    topology.install(halves((1, 5), (2, 2)), By::Insistence);
    let mut mended = halves((2, 2), (2, 2));
    mended.epochs = SeededMap::from_iter([(at(2), 2)]);
    assert_eq!(topology.install(mended.clone(), By::Epochs), Judged::OutOfDate);
    let begin = Instant::now();
    let late = begin + pictures::INSISTED_TIME;
    assert_eq!(topology.insisted(vec![(at(2), mended.clone())], &[], begin), None, "since now");
    assert_eq!(topology.insisted(vec![(at(2), mended.clone())], &[], late), Some(mended.clone()));
    // One that was cut off names the others as well, who do not say so.
    let before = halves((1, 1), (2, 2));
    for now in [begin, late] {
        assert_eq!(topology.insisted(vec![(at(1), before.clone())], &[], now), None);
    }
    // Nor if another node says something else.
    for now in [begin, late] {
        let against = vec![(at(2), mended.clone()), (at(7), before.clone())];
        assert_eq!(topology.insisted(against, &[], now), None);
    }
}

/// A master that had been frozen and forgotten came back when its slots had been given away by hand, with an earlier epoch. It showed clients from before what they knew, and took its
/// slots again from those that had moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_master_that_comes_back_takes_nothing_from_what_most_insist_on() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    topology.install(halves((1, 5), (2, 2)), By::Insistence);
    let owner = |slot| topology.owner(slot).unwrap().addr.clone();
    let mended = halves((2, 2), (4, 2));
    assert_eq!(topology.install(mended.clone(), By::Epochs), Judged::OutOfDate);
    // It is heard itself in each look.
    let begin = Instant::now();
    let late = begin + pictures::INSISTED_TIME;
    let against = |by: &[u16]| by.iter().map(|port| (at(*port), mended.clone())).collect::<Vec<_>>();
    let own = [at(1)];
    for now in [begin, late] {
        assert_eq!(topology.insisted(against(&[2]), &own, now), None, "half of those that are known");
    }
    topology.install(halves((1, 5), (4, 2)), By::Epochs);
    // One that has taken over, and that the others have not heard of yet, looks like that: they are given the time to hear.
    assert_eq!(topology.insisted(against(&[1, 4]), &own, begin), None, "since now");
    assert_eq!(topology.insisted(against(&[1, 4]), &[], late), None, "it was heard in an earlier look");
    let much_later = begin + pictures::INSISTED_BESIDE_TIME;
    assert_eq!(topology.insisted(against(&[1, 4]), &own, much_later), Some(mended.clone()));
    // Another node that still names it is no such one.
    assert_eq!(topology.insisted(against(&[1, 4]), &[at(7)], begin), None);
    assert_eq!(topology.insisted(against(&[1, 4]), &[at(7)], late), Some(mended.clone()));
    assert_eq!(topology.install(mended.clone(), By::Insistence), Judged::Believed);
    assert_eq!((owner(7), owner(9_000)), (at(2), at(4)));
    // What it says now takes nothing back, unless it has got a later epoch.
    assert_eq!(topology.install(mended, By::Epochs), Judged::Believed);
    assert_eq!(topology.install(halves((1, 5), (4, 2)), By::Epochs), Judged::OutOfDate);
    // Nor when another one has been lost since.
    topology.install(halves((2, 2), (6, 9)), By::Epochs);
    topology.install(halves((2, 2), (4, 3)), By::Insistence);
    assert_eq!(topology.install(halves((1, 5), (4, 3)), By::Epochs), Judged::OutOfDate);
    assert_eq!(topology.install(halves((2, 2), (6, 9)), By::Epochs), Judged::OutOfDate);
    assert_eq!(topology.install(halves((1, 6), (4, 3)), By::Epochs), Judged::Believed);
    assert_eq!(owner(7), at(1));
    topology.close();
}

/// A look asked twelve nodes at most, so that of more than 24 masters most never insisted, and who knew the epochs of before was granted nothing for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_masters_of_a_large_cluster_are_heard() {
    const MASTERS: u16 = 30;
    let ports: Arc<std::sync::OnceLock<Vec<u16>>> = Arc::default();
    let are_reset = Arc::new(AtomicBool::new(false));
    let nodes = std::array::from_fn::<_, { MASTERS as usize }, _>(|at| {
        let (ports, are_reset) = (ports.clone(), are_reset.clone());
        let server = FakeServer::start(move |request| {
            let Some(ports) = ports.get().filter(|_| request[0].eq_ignore_ascii_case(b"cluster")) else {
                return FakeReply::Default;
            };
            // After the reset the first one has lost its slots to the second, and does not know it.
            let is_reset = are_reset.load(Ordering::SeqCst) && at > 0;
            if !request[1].eq_ignore_ascii_case(b"slots") {
                let epoch = if is_reset { 1 } else { 10 };
                let line = |port| format!("{port} 127.0.0.1:{port}@2 master - 0 0 {epoch} connected\n");
                return FakeReply::Reply(resp::bulk(ports.iter().map(line).collect::<String>()));
            }
            let runs: Vec<_> = (0..MASTERS)
                .map(|run| {
                    let port = ports[usize::from(if is_reset { run.max(1) } else { run })];
                    let node =
                        [resp::bulk("127.0.0.1"), resp::integer(port.into()), resp::bulk(port.to_string())];
                    let slots = [run * 500, if run + 1 == MASTERS { 16_383 } else { run * 500 + 499 }];
                    let [from, to] = slots.map(|slot| resp::integer(slot.into()));
                    resp::array(&[from, to, resp::array(&node)])
                })
                .collect();
            FakeReply::Reply(resp::array(&runs))
        });
        server.unwrap()
    });
    let port = |server: &FakeServer| server.url().rsplit(':').next().unwrap().parse().unwrap();
    ports.set(nodes.iter().map(port).collect()).unwrap();
    let (topology, _first) = open(&nodes[0]).await;
    let asked = nodes.iter().filter(|node| node.count("CLUSTER") > 0).count();
    assert!(asked * 2 > nodes.len(), "before the first lock: {asked}");
    topology.closed.cancel();
    topology.scan().await;
    assert_eq!(topology.scan_interval(), Duration::from_secs(5), "nothing is contradicted");
    are_reset.store(true, Ordering::SeqCst);
    // Each look, whether the first one is asked in it or not.
    for _ in 0..8 {
        topology.scan().await;
        assert_eq!(topology.scan_interval(), pictures::CONTRADICTION_INTERVAL, "most insist");
    }
    topology.close();
}
