//! What an exporter would get of a client.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use opentelemetry::{KeyValue, metrics::MeterProvider};
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter, PeriodicReader, SdkMeterProvider,
    data::{AggregatedMetrics, MetricData},
};
use redlatch::{
    Client, LockName,
    observe::{Event, HoldEnd, Observer, Outcome, Subject},
};
use redlatch_otel::{BUCKETS, Recorder};

/// An exporter that keeps what it gets, and a recorder before it.
struct Bed {
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
    recorder: Arc<Recorder>,
}

impl Bed {
    fn new() -> Bed {
        let exporter = InMemoryMetricExporter::default();
        // It exports when it is flushed.
        let reader =
            PeriodicReader::builder(exporter.clone()).with_interval(Duration::from_secs(3_600)).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let recorder = Arc::new(Recorder::new(&provider.meter("test")));
        Bed { provider, exporter, recorder }
    }

    /// Each series with its value; of histograms how many values they have.
    fn series(&self) -> BTreeMap<String, i64> {
        self.provider.force_flush().unwrap();
        let mut found = BTreeMap::new();
        for resource in self.exporter.get_finished_metrics().unwrap() {
            for metric in resource.scope_metrics().flat_map(|scope| scope.metrics()) {
                let mut add = |attributes: Vec<&KeyValue>, value: i64| {
                    let mut words: Vec<_> =
                        attributes.iter().map(|pair| format!("{}={}", pair.key, pair.value)).collect();
                    words.sort_unstable();
                    found
                        .insert(format!("{}{{{}}} {}", metric.name(), words.join(","), metric.unit()), value);
                };
                match metric.data() {
                    AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                        assert!(sum.is_monotonic(), "{}", metric.name());
                        sum.data_points()
                            .for_each(|point| add(point.attributes().collect(), point.value() as i64));
                    }
                    AggregatedMetrics::I64(MetricData::Sum(sum)) => {
                        sum.data_points().for_each(|point| add(point.attributes().collect(), point.value()));
                    }
                    AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                        histogram.data_points().for_each(|point| {
                            assert_eq!(point.bounds().collect::<Vec<_>>(), BUCKETS);
                            add(point.attributes().collect(), point.count() as i64);
                        });
                    }
                    other => panic!("{}: {other:?}", metric.name()),
                }
            }
        }
        found
    }
}

#[tokio::test]
async fn a_lock_that_is_taken_and_given_back_is_counted_under_its_class() {
    let bed = Bed::new();
    let client = Client::builder().url("memory:").observer(bed.recorder.clone()).connect().await.unwrap();
    let guard = client.lock("order:4711").lock().await.unwrap();
    assert!(client.lock("order:4711").try_lock().await.unwrap().is_none());
    client.lock("order:4712").lock().await.unwrap().detach();
    guard.unlock().await.unwrap();
    let series = bed.series();
    for (name, value) in [
        ("redlatch.acquires{class=order:*,kind=lock,outcome=granted} ", 2),
        ("redlatch.acquires{class=order:*,kind=lock,outcome=busy} ", 1),
        ("redlatch.acquire.duration{class=order:*,kind=lock} s", 3),
        ("redlatch.waiting{class=order:*,kind=lock} ", 0),
        ("redlatch.held{class=order:*,kind=lock} ", 0),
        ("redlatch.hold.duration{class=order:*,kind=lock} s", 2),
        ("redlatch.holds.ended{class=order:*,end=given_back,kind=lock} ", 1),
        ("redlatch.holds.ended{class=order:*,end=detached,kind=lock} ", 1),
        ("redlatch.calls{outcome=answered,script=acquire} ", 2),
    ] {
        assert_eq!(series.get(name), Some(&value), "{name} in {series:#?}");
    }
    assert!(!series.keys().any(|name| name.contains("4711")), "a name is no attribute: {series:#?}");
}

#[test]
fn what_is_about_no_name_is_counted() {
    let bed = Bed::new();
    let name = LockName::new("a").unwrap();
    let subject = Subject::new("lock", &name);
    for event in [
        Event::Renewed { subject, left: Duration::from_secs(9) },
        Event::RenewalFailed { holds: 3 },
        Event::KeeperLate { by: Duration::from_millis(30) },
        Event::Interrupted,
    ] {
        bed.recorder.observe(&event);
    }
    let series = bed.series();
    let expected = [
        ("redlatch.interruptions{} ", 1),
        ("redlatch.keeper.lag{} s", 1),
        ("redlatch.renewal.margin{} s", 1),
        ("redlatch.renewals.failed{} ", 3),
    ];
    assert_eq!(series, BTreeMap::from(expected.map(|(name, value)| (name.to_owned(), value))));
}

/// Each name is words, of which no part looks like an identifier.
#[test]
fn a_hundred_thousand_random_names_have_at_most_a_thousand_series() {
    let bed = Bed::new();
    let after = Duration::from_millis(1);
    for n in 0u32..100_000 {
        let word: String = n.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
        let name = LockName::new(format!("{word}:{word}")).unwrap();
        let kind = ["lock", "fair", "read", "write", "permits", "semaphore", "rate", "latch"][n as usize % 8];
        let subject = Subject::new(kind, &name);
        bed.recorder.observe(&Event::AcquireBegan { subject });
        for outcome in [Outcome::Granted, Outcome::Busy, Outcome::Failed, Outcome::Cancelled] {
            bed.recorder.observe(&Event::AcquireEnded { subject, outcome, after });
        }
        bed.recorder.observe(&Event::HoldBegan { subject });
        bed.recorder.observe(&Event::HoldEnded { subject, end: HoldEnd::GivenBack, after });
    }
    let series = bed.series();
    assert!((500..=1_000).contains(&series.len()), "{} series", series.len());
    assert!(!series.keys().any(|name| name.contains("otel")), "no instrument overflows: {series:#?}");
}
