//! Accounts that may not do everything, and functions in place of scripts.

use redlatch::{ErrorKind, ScriptMode, ShardedPubSub, Unlocked};

use super::{allow, builder, client, masters, names_at, refused};
use crate::fixture::soon;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_may_not_ask_who_has_what_learns_it_from_redirections() {
    let cluster = masters();
    allow(&cluster, "-cluster");
    let client = client(&cluster).await;
    let name = "learned";
    for name in (0..3).flat_map(|master| names_at(&cluster, master, "n", 2)) {
        client.lock(name).lock().await.unwrap().unlock().await.unwrap();
    }
    let guard = client.lock(name).lock().await.unwrap();
    let slot = cluster.slot_of(name);
    cluster.move_slot(slot, (cluster.owner_of(slot).unwrap() + 1) % 3).unwrap();
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let before: u64 = cluster.nodes().iter().map(|node| refused(node, "MOVED")).sum();
    client.lock(name).lock().await.unwrap().unlock().await.unwrap();
    assert_eq!(cluster.nodes().iter().map(|node| refused(node, "MOVED")).sum::<u64>(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_serve_a_cluster_too() {
    let cluster = masters();
    let error = builder(&cluster).scripts(ScriptMode::Functions).connect().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FunctionMissing, "{error}");
    client(&cluster).await.load_functions().await.unwrap();
    for mode in [ShardedPubSub::Auto, ShardedPubSub::Compat] {
        let client = builder(&cluster).scripts(ScriptMode::Functions).sharded(mode).connect().await.unwrap();
        for master in 0..3 {
            let name = names_at(&cluster, master, "function", 1).remove(0);
            let lock = client.lock(name.as_str());
            let guard = lock.lock().await.unwrap();
            assert_eq!(client.list(Some(name.as_str()), 10).await.unwrap().len(), 1);
            let waiter = {
                let lock = lock.clone();
                tokio::spawn(async move { lock.lock().await })
            };
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
            soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
        }
    }
    let slot = cluster.slot_of("moved function");
    let from = cluster.owner_of(slot).unwrap();
    let client = builder(&cluster).scripts(ScriptMode::Functions).connect().await.unwrap();
    let step = cluster.begin_move(slot, (from + 1) % 3).unwrap();
    client.lock("moved function").try_lock().await.unwrap().expect("free").unlock().await.unwrap();
    step.finish().unwrap();
    client.lock("moved function").try_lock().await.unwrap().expect("free").unlock().await.unwrap();
}
