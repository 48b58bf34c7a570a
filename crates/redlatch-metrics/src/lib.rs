//! Metrics of [Redlatch](redlatch) clients through the [`metrics`] facade, for whatever exporter the program has installed.
//!
//! | metric | type, unit | labels | it answers |
//! |---|---|---|---|
//! | `redlatch_acquires_total` | counter | kind, class, outcome | how often, and with what outcome: granted, passed, reentered, busy, failed, cancelled |
//! | `redlatch_acquire_duration_seconds` | histogram, s | kind, class | how long an acquire takes, whatever its outcome |
//! | `redlatch_waiting` | gauge | kind, class | how many acquires are under way now |
//! | `redlatch_held` | gauge | kind, class | how many holds there are now |
//! | `redlatch_hold_duration_seconds` | histogram, s | kind, class | how long holds last |
//! | `redlatch_holds_ended_total` | counter | kind, class, end | how they end: given_back, detached, or lost: expired, deleted, taken_over, forced, shutdown. Alert on the lost ones |
//! | `redlatch_renewal_margin_seconds` | histogram, s | – | what is left of a lease when its renewal is confirmed: trouble before a loss |
//! | `redlatch_renewals_failed_total` | counter | – | holds whose renewal failed and is tried again |
//! | `redlatch_keeper_lag_seconds` | histogram, s | – | how late the background thread runs: a starved process |
//! | `redlatch_calls_total` | counter | script, outcome | calls of scripts: answered, refused, unknown, left |
//! | `redlatch_call_duration_seconds` | histogram, s | script | the server and the network |
//! | `redlatch_interruptions_total` | counter | – | connections that ended, and changes of the server |
//!
//! `kind` is one of eight words, `script` one of about 60. `class` is made of the name by [`Classes`](redlatch::observe::Classes): `order:4711` is `order:*`, and there are
//! at most [`CLASSES_MAX`](redlatch::observe::CLASSES_MAX) and `other` a kind. So a process has at most about 5,000 series, with histograms of 14 buckets.
//! [`BUCKETS`] has such buckets, for exporters that want them.
//!
//! # Example
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
//! use std::sync::Arc;
//!
//! let client = redlatch::Client::builder()
//!     .url("memory:")
//!     .observer(Arc::new(redlatch_metrics::Recorder::new()))
//!     .connect()
//!     .await?;
//! client.lock("order:4711").lock().await?.unlock().await?;
//! # Ok(()) }
//! ```

mod keys;

use metrics::{Counter, Gauge, Histogram, Key, Level, Metadata, Unit, counter, histogram, with_recorder};
use redlatch::observe::{Event, Observer};

use keys::Keys;

/// Upper bounds of buckets for durations, in seconds: 100 µs to 60 s.
pub const BUCKETS: [f64; 14] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 20.0, 30.0, 60.0];

/// Counts what clients do. One can be shared by several clients, whose counts are added.
#[derive(Debug, Default)]
pub struct Recorder {
    keys: Keys,
}

impl Recorder {
    /// A recorder that uses the program's metrics recorder, and says there what each metric is. Install that one first.
    pub fn new() -> Self {
        describe();
        Recorder::default()
    }
}

static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

// The series is asked for each time: an exporter may have forgotten one that was idle.
fn counter(key: &Key) -> Counter {
    with_recorder(|recorder| recorder.register_counter(key, &METADATA))
}

fn gauge(key: &Key) -> Gauge {
    with_recorder(|recorder| recorder.register_gauge(key, &METADATA))
}

fn histogram(key: &Key) -> Histogram {
    with_recorder(|recorder| recorder.register_histogram(key, &METADATA))
}

impl Observer for Recorder {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::AcquireBegan { subject } => gauge(&self.keys.of(subject).waiting).increment(1),
            Event::AcquireEnded { subject, outcome, after } => {
                let keys = self.keys.of(subject);
                gauge(&keys.waiting).decrement(1);
                histogram(&keys.acquire_duration).record(*after);
                counter(&keys.acquires.with(outcome.word())).increment(1);
            }
            Event::HoldBegan { subject } => gauge(&self.keys.of(subject).held).increment(1),
            Event::HoldEnded { subject, end, after } => {
                let keys = self.keys.of(subject);
                gauge(&keys.held).decrement(1);
                histogram(&keys.hold_duration).record(*after);
                counter(&keys.holds_ended.with(end.word())).increment(1);
            }
            Event::Renewed { left, .. } => histogram!("redlatch_renewal_margin_seconds").record(*left),
            Event::RenewalFailed { holds } => {
                counter!("redlatch_renewals_failed_total").increment(*holds as u64);
            }
            Event::KeeperLate { by } => histogram!("redlatch_keeper_lag_seconds").record(*by),
            Event::CallEnded { script, outcome, after } => {
                let keys = self.keys.of_script(script);
                histogram(&keys.duration).record(*after);
                counter(&keys.calls.with(outcome.word())).increment(1);
            }
            Event::Interrupted => counter!("redlatch_interruptions_total").increment(1),
            // What a later version tells is not counted by this one.
            _ => {}
        }
    }
}

/// Says what each metric is, as the table of the crate does.
fn describe() {
    use metrics::{describe_counter as count, describe_gauge as level, describe_histogram as times};

    count!("redlatch_acquires_total", "Acquires that have ended, by outcome");
    times!("redlatch_acquire_duration_seconds", Unit::Seconds, "How long acquires took");
    level!("redlatch_waiting", "Acquires that are under way");
    level!("redlatch_held", "Holds of this process");
    times!("redlatch_hold_duration_seconds", Unit::Seconds, "How long holds lasted");
    count!("redlatch_holds_ended_total", "Holds that are over, by how they ended");
    times!(
        "redlatch_renewal_margin_seconds",
        Unit::Seconds,
        "What was left of leases when their renewal was confirmed"
    );
    count!("redlatch_renewals_failed_total", "Holds whose renewal failed and is tried again");
    times!("redlatch_keeper_lag_seconds", Unit::Seconds, "How late the background thread ran");
    count!("redlatch_calls_total", "Calls of scripts, by outcome");
    times!("redlatch_call_duration_seconds", Unit::Seconds, "How long calls of scripts took");
    count!("redlatch_interruptions_total", "Connections that ended and changes of the server");
}
