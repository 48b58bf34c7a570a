//! What is logged for those who listen.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use redlatch::{Client, ErrorKind, LossReason, Wait};
use redlatch_testkit::server::RedisServer;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::fixture::{ms, soon};

/// Events as text: the message, and each field.
#[derive(Clone, Default)]
struct Heard {
    lines: Arc<Mutex<Vec<String>>>,
    /// What a line must have in it, and be a warning.
    only: Option<&'static str>,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let wanted = self.only.is_none() || *metadata.level() == Level::WARN;
        wanted && metadata.target().starts_with("redlatch")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        if self.only.is_none_or(|only| line.0.contains(only)) {
            self.lines.lock().unwrap().push(line.0);
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Heard {
    fn told(&self, of: &str) -> Vec<String> {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(of)).cloned().collect()
    }
}

#[tokio::test]
async fn a_wait_is_an_event_with_its_time_and_its_owner() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let client = Client::connect("memory:").await.unwrap();
    let held = client.lock("awaited").lock().await.unwrap();
    let (lock, owner) = (client.lock("awaited"), client.owner());
    assert!(lock.acquire().owner(&owner).wait(Wait::AtMost(ms(30))).await.unwrap().is_none());
    let lines = heard.told("an acquire has ended");
    let in_vain = lines.iter().find(|line| line.contains("acquired=false")).unwrap();
    let after = in_vain.split_once("after_ms=").unwrap().1.split(' ').next().unwrap();
    assert!(after.parse::<u64>().unwrap() >= 30, "{in_vain}");
    assert!(in_vain.contains(&owner.to_text()) && !in_vain.contains("error="), "{in_vain}");
    let refused = client.read_write_lock("awaited").write().lock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WrongLockKind, "{refused}");
    let lines = heard.told("an acquire has ended");
    let failed = lines.iter().find(|line| line.contains("error=")).unwrap();
    assert!(failed.contains("lock=awaited") && failed.contains("acquired=false"), "{failed}");
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn a_loss_is_an_event_with_lock_and_owner() {
    // The client's own thread finds it, so the whole process is listened to, and only to this.
    let heard = Heard { only: Some("lock=heard-to-be-lost"), ..Heard::default() };
    tracing::subscriber::set_global_default(heard.clone()).unwrap();
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(ms(900)).connect().await.unwrap();
    let guard = client.lock("heard-to-be-lost").lock().await.unwrap();
    let owner = guard.owner().to_text();
    server.cmd(&["DEL", "heard-to-be-lost"]).unwrap();
    let reason = soon("the loss", guard.lost()).await;
    assert_ne!(reason, LossReason::Expired);
    // The holder is told first, and by another thread.
    soon("the event", async {
        while heard.told("a lock was lost").is_empty() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    let lines = heard.told("a lock was lost");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&owner) && lines[0].contains("reason="), "{lines:?}");
}

/// Many waiters of a server that is down, and that comes back: one line for the outage and one for its end.
#[tokio::test]
async fn an_outage_and_its_end_are_one_line_each() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let held = client.lock("down").lock().await.unwrap();
    server.kill9();
    let waiters: Vec<_> = (0..8)
        .map(|number| {
            let lock = client.lock(format!("down-{number}"));
            async move { lock.lock().await.unwrap().unlock().await.unwrap() }
        })
        .collect();
    let told = async {
        while heard.told("cannot be asked at present").is_empty() {
            tokio::time::sleep(ms(5)).await;
        }
        // Those who wait for a time say at its end that they have met the outage, too.
        let others = (0..8).map(|number| {
            let lock = client.lock(format!("in-vain-{number}"));
            async move { assert!(lock.lock_for(ms(300)).await.is_err()) }
        });
        futures_util::future::join_all(others).await;
        server.restart().unwrap();
    };
    soon("the waiters' turns", async { tokio::join!(futures_util::future::join_all(waiters), told) }).await;
    assert_eq!(heard.told("cannot be asked at present").len(), 1, "{:?}", heard.told(""));
    assert_eq!(heard.told("the server answers again").len(), 1, "{:?}", heard.told(""));
    for number in 0..8 {
        let lock = format!("lock=down-{number} ");
        let of_lock = |event: &str| {
            heard.told(event).into_iter().filter(|line| line.contains(&lock)).collect::<Vec<_>>()
        };
        let [again, granted] = [of_lock("an acquire is answered again"), of_lock("an acquire has ended")];
        assert_eq!((again.len(), granted.len()), (1, 1), "{:?}", heard.told(""));
        let owner = again[0].split("owner=").nth(1).unwrap().split(' ').next().unwrap();
        assert!(owner.contains(':') && granted[0].contains(owner), "{again:?} {granted:?}");
    }
    drop(held);
}

#[tokio::test]
async fn an_acquire_is_an_event_with_its_owner() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let client = Client::connect("memory:").await.unwrap();
    let guard = client.lock("told").lock().await.unwrap();
    assert!(client.lock("told").try_lock().await.unwrap().is_none());
    let lines = heard.lines.lock().unwrap().clone();
    let of = |acquired: &str| {
        let all =
            lines.iter().filter(|line| line.contains("an acquire has ended") && line.contains("lock=told"));
        all.filter(|line| line.contains(acquired)).count()
    };
    assert_eq!((of("acquired=true"), of("acquired=false")), (1, 1), "{lines:?}");
    let owner = guard.owner().to_text();
    assert!(lines.iter().any(|line| line.contains("acquired=true") && line.contains(&owner)), "{lines:?}");
    guard.unlock().await.unwrap();
}
