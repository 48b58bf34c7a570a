//! What an observer costs: pairs of clients without one, with one that does nothing, and with each of the two that count.

use std::{sync::Arc, time::Duration};

use metrics_exporter_prometheus::PrometheusBuilder;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use redlatch::{
    Client, Lock,
    observe::{Event, Observer},
};

use super::pair::ours;
use crate::{
    bed::{Bed, locks},
    outcome::Outcome,
    proc::cpu_ns,
    report::{Bar, Report, Samples, median},
};

const TASKS: [usize; 2] = [1, 64];
const TASKS_MAX: usize = 64;
/// By their keys and in words.
const OBSERVERS: [(&str, &str); 4] = [
    ("nobody", "no observer"),
    ("idle", "an observer that does nothing"),
    ("metrics", "redlatch-metrics, to Prometheus"),
    ("otel", "redlatch-otel, to its SDK"),
];

struct Idle;

impl Observer for Idle {
    fn observe(&self, _event: &Event<'_>) {}
}

pub(crate) struct Observed {
    _clients: Vec<Client>,
    locks: Vec<Vec<Lock>>,
    /// Collects when it is told to.
    _provider: SdkMeterProvider,
}

impl Observed {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Observed> {
        PrometheusBuilder::new().set_buckets(&redlatch_metrics::BUCKETS)?.install_recorder()?;
        let reader = PeriodicReader::builder(InMemoryMetricExporter::default())
            .with_interval(Duration::from_secs(3_600))
            .build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let observers: [Option<Arc<dyn Observer>>; 4] = [
            None,
            Some(Arc::new(Idle)),
            Some(Arc::new(redlatch_metrics::Recorder::new())),
            Some(Arc::new(redlatch_otel::Recorder::new(&provider.meter("bench")))),
        ];
        let mut observed = Observed { _clients: Vec::new(), locks: Vec::new(), _provider: provider };
        for (observer, (key, _)) in observers.into_iter().zip(OBSERVERS) {
            let client = bed.observed_client(&bed.server.url(), observer).await?;
            observed.locks.push(locks(&client, &format!("observed:{key}"), TASKS_MAX));
            observed._clients.push(client);
        }
        for tasks in TASKS {
            for locks in &observed.locks {
                ours(locks, bed, tasks).await?;
            }
        }
        Ok(observed)
    }

    pub(crate) async fn round(&mut self, bed: &Bed, round: usize, samples: &mut Samples) -> Outcome<()> {
        for tasks in TASKS {
            let mut rates = OBSERVERS.map(|_| Vec::with_capacity(bed.slices));
            let (mut counts, mut cpu) = (OBSERVERS.map(|_| 0), OBSERVERS.map(|_| 0));
            for slice in 0..bed.slices {
                for turn in 0..OBSERVERS.len() {
                    let at = (turn + slice + round) % OBSERVERS.len();
                    let before = cpu_ns(std::process::id())?;
                    let rate = ours(&self.locks[at], bed, tasks).await?;
                    cpu[at] += cpu_ns(std::process::id())? - before;
                    counts[at] += rate.count;
                    rates[at].push(rate.per_second());
                }
            }
            for (at, (key, _)) in OBSERVERS.iter().enumerate() {
                samples.push(format!("observed.{tasks}.{key}.cpu"), cpu[at] as f64 / 1e3 / counts[at] as f64);
                samples.push(format!("observed.{tasks}.{key}"), median(&rates[at]));
            }
        }
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        for tasks in TASKS {
            let plural = if tasks == 1 { "task" } else { "tasks" };
            for (key, words) in OBSERVERS {
                let (what, key) = (format!("{tasks} {plural}: {words}"), format!("observed.{tasks}.{key}"));
                report.line("observed", &what, &key, "pairs/s", None);
                report.line(
                    "observed",
                    format!("{what}, processor time here"),
                    &format!("{key}.cpu"),
                    "µs a pair",
                    None,
                );
            }
            let nobody = format!("observed.{tasks}.nobody");
            for (key, words) in &OBSERVERS[1..] {
                // What one that does nothing costs is for comparison: each event is made, and its clock is asked.
                let bar = (tasks == 1 && *key != "idle").then_some(Bar::AtLeast(0.95));
                let what = format!("{tasks} {plural}: {words} over none");
                report.ratio("observed", what, (&format!("observed.{tasks}.{key}"), &nobody), bar);
            }
        }
    }
}
