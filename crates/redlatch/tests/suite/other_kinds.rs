//! One name that locks of several kinds use in one process: what a grant of the one says of the holds of the others.

use redlatch::{Client, Guard, LossReason};
use redlatch_testkit::server::RedisServer;

use crate::fixture::soon;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Fair,
    Read,
    Write,
}

const KINDS: [Kind; 4] = [Kind::Plain, Kind::Fair, Kind::Read, Kind::Write];

async fn hold(client: &Client, name: &str, kind: Kind) -> Guard {
    let both = client.read_write_lock(name);
    let held = async {
        match kind {
            Kind::Plain => client.lock(name).lock().await,
            Kind::Fair => client.fair_lock(name).lock().await,
            Kind::Read => both.read().lock().await.map(redlatch::AnyGuard::into_guard),
            Kind::Write => both.write().lock().await.map(redlatch::AnyGuard::into_guard),
        }
    };
    soon("the hold", held).await.unwrap()
}

/// Both guards were valid until the first one's hold was looked at, up to a third of the lease later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_one_kind_shows_that_a_hold_of_another_kind_is_gone() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    for first in KINDS {
        for second in KINDS.into_iter().filter(|second| *second != first) {
            let name = format!("{first:?} and {second:?}");
            let gone = hold(&client, &name, first).await;
            server.cmd(&["DEL", &name]).unwrap();
            let held = hold(&client, &name, second).await;
            let by = held.owner().to_text();
            assert_eq!(gone.loss(), Some(LossReason::TakenOver { by }), "{name}");
            assert!(!gone.is_valid() && held.is_valid(), "{name}");
            soon("the end", held.unlock()).await.unwrap();
        }
    }
}

/// A writer that reads besides has two holds of two kinds, and so has a reader that was a writer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_of_two_kinds_that_one_owner_has_end_each_other_not() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let both = client.read_write_lock("x");
    let writing = soon("the write hold", both.write().lock()).await.unwrap();
    let reading = soon("the read hold", writing.read()).await.unwrap();
    assert!(writing.is_valid() && reading.is_valid());
    soon("the end of reading", reading.unlock()).await.unwrap();
    let downgraded = soon("the downgrade", writing.downgrade()).await.unwrap();
    let beside = soon("another reader", both.read().lock()).await.unwrap();
    assert!(downgraded.is_valid() && beside.is_valid());
}
