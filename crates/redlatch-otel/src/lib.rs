//! Metrics of [Redlatch](redlatch) clients through [OpenTelemetry](opentelemetry), for whatever reader and exporter the program's meter has.
//!
//! | instrument | type, unit | attributes | it answers |
//! |---|---|---|---|
//! | `redlatch.acquires` | counter | kind, class, outcome | how often, and with what outcome: granted, passed, reentered, busy, failed, cancelled |
//! | `redlatch.acquire.duration` | histogram, s | kind, class | how long an acquire takes, whatever its outcome |
//! | `redlatch.waiting` | up-down counter | kind, class | how many acquires are under way now |
//! | `redlatch.held` | up-down counter | kind, class | how many holds there are now |
//! | `redlatch.hold.duration` | histogram, s | kind, class | how long holds last |
//! | `redlatch.holds.ended` | counter | kind, class, end | how they end: given_back, detached, or lost: expired, deleted, taken_over, forced, shutdown. Alert on the lost ones |
//! | `redlatch.renewal.margin` | histogram, s | – | what is left of a lease when its renewal is confirmed: trouble before a loss |
//! | `redlatch.renewals.failed` | counter | – | holds whose renewal failed and is tried again |
//! | `redlatch.keeper.lag` | histogram, s | – | how late the background thread runs: a starved process |
//! | `redlatch.calls` | counter | script, outcome | calls of scripts: answered, refused, unknown, left |
//! | `redlatch.call.duration` | histogram, s | script | the server and the network |
//! | `redlatch.interruptions` | counter | – | connections that ended, and changes of the server |
//!
//! `kind` is one of eight words, `script` one of about 60. `class` is made of the name by [`Classes`]: `order:4711` is `order:*`, and there are at
//! most [`CLASSES_MAX`](redlatch::observe::CLASSES_MAX) and `other` of each kind, so that a name is never an attribute, and a process has fewer than
//! 1,000 series of names. OpenTelemetry's own limit of 2,000 sets of attributes for each instrument holds besides (its specification, *cardinality
//! limits*).
//!
//! The crate follows OpenTelemetry's API, which has no version 1 yet: a new version of that API is a new version of this crate, and none of
//! `redlatch`, which has a trait of its own ([`Observer`]).
//!
//! # Example
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
//! use std::sync::Arc;
//!
//! // The program's own meter provider has been set before, as for its other metrics.
//! let meter = opentelemetry::global::meter("orders");
//! let client = redlatch::Client::builder()
//!     .url("memory:")
//!     .observer(Arc::new(redlatch_otel::Recorder::new(&meter)))
//!     .connect()
//!     .await?;
//! client.lock("order:4711").lock().await?.unlock().await?;
//! # Ok(()) }
//! ```

use std::time::Duration;

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Histogram, Meter, UpDownCounter},
};
use redlatch::observe::{Classes, Event, Observer, Subject};

/// Upper bounds of buckets for durations, in seconds: 100 µs to 60 s. A view of the program's meter provider may set others.
pub const BUCKETS: [f64; 14] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 20.0, 30.0, 60.0];

/// Counts what clients do. One can be shared by several clients, whose counts are added.
#[derive(Debug)]
pub struct Recorder {
    classes: Classes,
    acquires: Counter<u64>,
    acquire_duration: Histogram<f64>,
    waiting: UpDownCounter<i64>,
    held: UpDownCounter<i64>,
    hold_duration: Histogram<f64>,
    holds_ended: Counter<u64>,
    renewal_margin: Histogram<f64>,
    renewals_failed: Counter<u64>,
    keeper_lag: Histogram<f64>,
    calls: Counter<u64>,
    call_duration: Histogram<f64>,
    interruptions: Counter<u64>,
}

impl Recorder {
    /// A recorder whose instruments are of this meter.
    pub fn new(meter: &Meter) -> Self {
        let count = |name, what| meter.u64_counter(name).with_description(what).build();
        let level = |name, what| meter.i64_up_down_counter(name).with_description(what).build();
        let times = |name, what| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(what);
            histogram.with_boundaries(BUCKETS.to_vec()).build()
        };
        Recorder {
            classes: Classes::default(),
            acquires: count("redlatch.acquires", "Acquires that have ended, by outcome"),
            acquire_duration: times("redlatch.acquire.duration", "How long acquires took"),
            waiting: level("redlatch.waiting", "Acquires that are under way"),
            held: level("redlatch.held", "Holds of this process"),
            hold_duration: times("redlatch.hold.duration", "How long holds lasted"),
            holds_ended: count("redlatch.holds.ended", "Holds that are over, by how they ended"),
            renewal_margin: times(
                "redlatch.renewal.margin",
                "What was left of leases when their renewal was confirmed",
            ),
            renewals_failed: count(
                "redlatch.renewals.failed",
                "Holds whose renewal failed and is tried again",
            ),
            keeper_lag: times("redlatch.keeper.lag", "How late the background thread ran"),
            calls: count("redlatch.calls", "Calls of scripts, by outcome"),
            call_duration: times("redlatch.call.duration", "How long calls of scripts took"),
            interruptions: count(
                "redlatch.interruptions",
                "Connections that ended and changes of the server",
            ),
        }
    }

    /// The attributes of what an event is about.
    fn about(&self, subject: &Subject<'_>) -> [KeyValue; 2] {
        let class = self.classes.of(subject.kind, subject.name);
        [KeyValue::new("kind", subject.kind), KeyValue::new("class", class)]
    }
}

fn with([kind, class]: [KeyValue; 2], key: &'static str, word: &'static str) -> [KeyValue; 3] {
    [kind, class, KeyValue::new(key, word)]
}

fn record(histogram: &Histogram<f64>, time: Duration, attributes: &[KeyValue]) {
    histogram.record(time.as_secs_f64(), attributes);
}

impl Observer for Recorder {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::AcquireBegan { subject } => self.waiting.add(1, &self.about(subject)),
            Event::AcquireEnded { subject, outcome, after } => {
                let about = self.about(subject);
                self.waiting.add(-1, &about);
                record(&self.acquire_duration, *after, &about);
                self.acquires.add(1, &with(about, "outcome", outcome.word()));
            }
            Event::HoldBegan { subject } => self.held.add(1, &self.about(subject)),
            Event::HoldEnded { subject, end, after } => {
                let about = self.about(subject);
                self.held.add(-1, &about);
                record(&self.hold_duration, *after, &about);
                self.holds_ended.add(1, &with(about, "end", end.word()));
            }
            Event::Renewed { left, .. } => record(&self.renewal_margin, *left, &[]),
            Event::RenewalFailed { holds } => self.renewals_failed.add(*holds as u64, &[]),
            Event::KeeperLate { by } => record(&self.keeper_lag, *by, &[]),
            Event::CallEnded { script, outcome, after } => {
                let script = KeyValue::new("script", *script);
                record(&self.call_duration, *after, std::slice::from_ref(&script));
                self.calls.add(1, &[script, KeyValue::new("outcome", outcome.word())]);
            }
            Event::Interrupted => self.interruptions.add(1, &[]),
            // What a later version tells is not counted by this one.
            _ => {}
        }
    }
}
