//! Wire facts of the latch: key and messages after each step (`docs/protocol.md`, latch).

use redlatch_testkit::{assert_keyspace, server::KeyContent};

use crate::{
    fixture::{ms, soon},
    wire::{alone, heard},
};

fn told(payloads: &[&str]) -> Vec<(String, String)> {
    let channel = "redisson_countdownlatch__channel__{l}";
    payloads.iter().map(|payload| (channel.to_owned(), (*payload).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_of_a_latch_leaves_the_documented_key_and_message() {
    let (server, client) = alone().await;
    let latch = client.count_down_latch("l");
    let messages = heard(&server, async {
        assert!(latch.set_if_absent(2).await.unwrap());
        assert_keyspace!(server, tolerance_ms = 1_000, [("l", KeyContent::string("2"), None)]);
        assert!(!latch.set_if_absent(7).await.unwrap());
    })
    .await;
    assert_eq!(messages, told(&["1"]), "a new count closes the gate");
    let messages = heard(&server, async {
        latch.count_down().await.unwrap();
        assert_keyspace!(server, tolerance_ms = 1_000, [("l", KeyContent::string("1"), None)]);
    })
    .await;
    assert_eq!(messages, told(&[]));
    let messages = heard(&server, async {
        latch.count_down().await.unwrap();
        assert_keyspace!(server, tolerance_ms = 1_000, []);
        latch.count_down().await.unwrap();
        assert_keyspace!(server, tolerance_ms = 1_000, []);
    })
    .await;
    assert_eq!(messages, told(&["0"]), "the last step opens it, further ones do nothing");
    latch.set_if_absent(2).await.unwrap();
    let messages = heard(&server, async {
        assert!(latch.delete().await.unwrap());
        assert_keyspace!(server, tolerance_ms = 1_000, []);
        assert!(!latch.delete().await.unwrap());
    })
    .await;
    assert_eq!(messages, told(&["0"]), "C1: what opens the gate, and nothing that closes it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_counts_left_by_others_do_not_lock_anybody_out() {
    let (server, client) = alone().await;
    let latch = client.count_down_latch("l");
    // C2: Redisson stores a count of 0.
    for odd in ["0", "-4"] {
        server.cmd(&["SET", "l", odd]).unwrap();
        soon("an open latch", latch.wait()).await.unwrap();
        assert_eq!(latch.count().await.unwrap(), 0);
        let messages = heard(&server, async {
            assert_eq!(latch.count_down().await.unwrap(), 0);
        })
        .await;
        assert_eq!(messages, told(&[]));
        assert_keyspace!(server, tolerance_ms = 1_000, []);
    }
    // A count that disappears without a message.
    latch.set_if_absent(1).await.unwrap();
    let waiting = latch.clone();
    let waiter = tokio::spawn(async move { waiting.wait().await });
    tokio::time::sleep(ms(50)).await;
    server.cmd(&["DEL", "l"]).unwrap();
    soon("the poll", waiter).await.unwrap().unwrap();
}
