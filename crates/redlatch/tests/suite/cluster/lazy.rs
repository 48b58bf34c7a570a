//! First calls of clients that have not seen the cluster yet.

use redlatch::{ErrorKind, Lease, LockKind, ShardedPubSub};

use super::{builder, home, masters, names_at};
use crate::fixture::ms;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_call_publishes_the_way_that_the_cluster_wants() {
    let cluster = masters();
    let holder = builder(&cluster).connect().await.unwrap();
    for (mode, commands) in [
        (ShardedPubSub::Auto, &["spublish"][..]),
        (ShardedPubSub::Off, &["publish"]),
        (ShardedPubSub::Compat, &["publish", "spublish"]),
    ] {
        for name in ["alpha", "beta", "gamma"] {
            let lazy = || builder(&cluster).sharded(mode).connect_lazy().unwrap();
            let counts = || -> Vec<u64> {
                commands.iter().map(|command| home(&cluster, name).command_count(command).unwrap()).collect()
            };
            let before = counts();
            let guard = holder.lock(name).lock_with_lease(ms(60_000)).await.unwrap();
            assert!(lazy().lock(name).force_unlock().await.unwrap());
            drop(guard);
            let semaphore = lazy().semaphore(name.to_owned() + "-s");
            assert!(semaphore.set_if_absent(1, None).await.unwrap());
            semaphore.delete().await.unwrap();
            assert!(counts().iter().zip(&before).all(|(now, then)| now > then), "{mode:?} {name}");
            // Permits are taken with the command to publish with, and last beyond the first call.
            let client = lazy();
            let permits = client.permit_semaphore(name.to_owned() + "-p");
            assert_eq!(
                permits.try_acquire().await.map(|_| ()).unwrap_err().kind(),
                ErrorKind::NotInitialised
            );
            assert!(permits.set_if_absent(1).await.unwrap());
            let permit = lazy().permit_semaphore(name.to_owned() + "-p");
            let permit = permit.request().lease(Lease::Renewed).await.unwrap().expect("one is free");
            permit.release().await.unwrap();
            permits.delete().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_listing_looks_at_every_master() {
    let cluster = masters();
    let holder = builder(&cluster).connect().await.unwrap();
    let mut guards = Vec::new();
    for master in 0..3 {
        let name = names_at(&cluster, master, "n", 1).remove(0);
        guards.push(holder.lock(name).lock().await.unwrap());
    }
    let lazy = builder(&cluster).connect_lazy().unwrap();
    assert_eq!(lazy.list_kinds(&[LockKind::Lock], None, 100).await.unwrap().len(), 3);
    for guard in guards {
        guard.unlock().await.unwrap();
    }
}
