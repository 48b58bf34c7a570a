//! What the program gives the library to call may panic. That costs no lock, and no loss goes untold.

use redlatch::Client;
use redlatch_testkit::server::RedisServer;
use tokio::runtime::Handle;

use crate::{
    fixture::{ms, renewed, soon},
    watched::until_watched,
};

/// A log that cannot be written.
struct Broken;

impl tracing::Subscriber for Broken {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("redlatch") && *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        assert!(std::thread::panicking(), "the log cannot be written");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// The background work told of its panic in the same log, and ended with that.
#[tokio::test]
async fn a_log_that_panics_costs_no_lock_and_no_loss_goes_untold() {
    let _broken = tracing::subscriber::set_default(Broken);
    // It works on this thread, which has the log.
    let client = Client::builder()
        .url("memory:")
        .watchdog_lease(ms(900))
        .background_on(Handle::current())
        .connect()
        .await
        .unwrap();
    let short = client.lock("short").lock_with_lease(ms(200)).await.unwrap();
    let long = client.lock("long").lock().await.unwrap();
    soon("the loss", short.lost()).await;
    renewed(4, async || {
        assert!(long.is_valid());
        client.lock("long").remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    soon("the next hold", client.lock("short").lock()).await.unwrap().unlock().await.unwrap();
    let later = client.lock("later").lock_with_lease(ms(200)).await.unwrap();
    soon("its loss", later.lost()).await;
}

/// The look at all of them ended with the log of the first loss, and the others were to be told by their renewals.
#[tokio::test]
async fn a_log_that_panics_at_one_loss_leaves_no_other_untold_until_its_renewal() {
    let server = RedisServer::start().unwrap();
    let _broken = tracing::subscriber::set_default(Broken);
    let builder = Client::builder().url(server.url()).watchdog_lease(ms(600_000));
    let client = builder.background_on(Handle::current()).connect().await.unwrap();
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(client.lock(name).lock().await.unwrap());
    }
    until_watched(&[&server], 3).await;
    server.cmd(&["FLUSHALL"]).unwrap();
    for guard in &guards {
        soon("the loss", guard.lost()).await;
    }
}
