//! What is logged for those who listen.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use redlatch::Client;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Events as text: the message, and each field.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("redlatch")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn an_acquire_is_an_event_with_its_owner() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let client = Client::connect("memory:").await.unwrap();
    let guard = client.lock("told").lock().await.unwrap();
    assert!(client.lock("told").try_lock().await.unwrap().is_none());
    let lines = heard.0.lock().unwrap().clone();
    let of = |acquired: &str| {
        let all =
            lines.iter().filter(|line| line.contains("an acquire has ended") && line.contains("lock=told"));
        all.filter(|line| line.contains(acquired)).count()
    };
    assert_eq!((of("acquired=true"), of("acquired=false")), (1, 1), "{lines:?}");
    let owner = guard.owner().to_string();
    assert!(lines.iter().any(|line| line.contains("acquired=true") && line.contains(&owner)), "{lines:?}");
    guard.unlock().await.unwrap();
}
