//! Faults on a single node, each named after its row of the fault table: what must hold when things break.

mod late;
mod network;
mod process;
mod refused;
mod server;

use std::time::Duration;

use redlatch::Client;
use redlatch_testkit::{leftovers::LeftoverCheck, proxy::Proxy, server::RedisServer};

use crate::fixture::{ms, quiet};

/// A server, a proxy before it, and a client that goes through the proxy.
pub(crate) struct Rig {
    pub(crate) server: RedisServer,
    pub(crate) proxy: Proxy,
    pub(crate) client: Client,
    pub(crate) direct: Client,
}

pub(crate) async fn rig(lease: Duration) -> Rig {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = quiet()
        .url(proxy.url())
        .watchdog_lease(lease)
        .response_timeout(ms(600))
        .connect_timeout(ms(2_500))
        // Long turns, so that waiting tasks are handed the lock however long its holder took.
        .turn_time(ms(60_000))
        .connect()
        .await
        .unwrap();
    let direct = quiet().url(server.url()).connect().await.unwrap();
    // The first call teaches the server the scripts, so that later calls are one command each.
    client.lock("warm").lock().await.unwrap().unlock().await.unwrap();
    Rig { server, proxy, client, direct }
}

pub(crate) async fn nothing_left(server: &RedisServer, part: &str) {
    LeftoverCheck::new(server, part).assert_clean_async(Duration::from_secs(8)).await;
}
