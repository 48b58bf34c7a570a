//! What a Prometheus server would read of a client.

use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusBuilder;
use redlatch::{
    Client, LockName,
    observe::{Event, Observer, Outcome},
};
use redlatch_metrics::{BUCKETS, Recorder};

/// Runs with a recorder of its own, and returns what it renders.
fn rendered(work: impl AsyncFnOnce(Client), observer: impl FnOnce() -> Arc<dyn Observer>) -> String {
    let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS).unwrap().build_recorder();
    let handle = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let builder = Client::builder().url("memory:").observer(observer());
            // On this thread, which has the recorder.
            let client = builder.background_on(tokio::runtime::Handle::current()).connect().await.unwrap();
            work(client).await;
        });
    });
    handle.render()
}

fn recorder() -> Arc<dyn Observer> {
    Arc::new(Recorder::new())
}

#[test]
fn a_lock_that_is_taken_and_given_back_is_counted_under_its_class() {
    let text = rendered(
        async |client| {
            let guard = client.lock("order:4711").lock().await.unwrap();
            assert!(client.lock("order:4711").try_lock().await.unwrap().is_none());
            client.lock("order:4712").lock().await.unwrap().detach();
            guard.unlock().await.unwrap();
        },
        recorder,
    );
    for line in [
        r#"redlatch_acquires_total{kind="lock",class="order:*",outcome="granted"} 2"#,
        r#"redlatch_acquires_total{kind="lock",class="order:*",outcome="busy"} 1"#,
        r#"redlatch_acquire_duration_seconds_count{kind="lock",class="order:*"} 3"#,
        r#"redlatch_waiting{kind="lock",class="order:*"} 0"#,
        r#"redlatch_held{kind="lock",class="order:*"} 0"#,
        r#"redlatch_holds_ended_total{kind="lock",class="order:*",end="given_back"} 1"#,
        r#"redlatch_holds_ended_total{kind="lock",class="order:*",end="detached"} 1"#,
        r#"redlatch_calls_total{script="acquire",outcome="answered"} 2"#,
        "# HELP redlatch_held Holds of this process",
        "# TYPE redlatch_acquire_duration_seconds histogram",
    ] {
        assert!(text.contains(line), "{line}\nis not in\n{text}");
    }
    assert!(!text.contains("4711"), "a name is no label\n{text}");
}

/// Each name is words, of which no part looks like an identifier.
#[test]
fn a_million_random_names_have_at_most_five_thousand_series() {
    let text = rendered(
        async |_| {
            let recorder = Recorder::new();
            let after = std::time::Duration::from_millis(1);
            for n in 0u32..1_000_000 {
                let word: String =
                    n.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
                let name = LockName::new(format!("{word}:{word}")).unwrap();
                let kind = ["lock", "fair", "read", "write", "permits", "semaphore", "rate", "latch"]
                    [n as usize % 8];
                let subject = redlatch::observe::Subject::new(kind, &name);
                recorder.observe(&Event::AcquireBegan { subject });
                for outcome in [Outcome::Granted, Outcome::Busy, Outcome::Failed, Outcome::Cancelled] {
                    recorder.observe(&Event::AcquireEnded { subject, outcome, after });
                }
                recorder.observe(&Event::HoldBegan { subject });
                recorder.observe(&Event::HoldEnded {
                    subject,
                    end: redlatch::observe::HoldEnd::GivenBack,
                    after,
                });
            }
        },
        recorder,
    );
    let series = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count();
    assert!((1_000..=5_000).contains(&series), "{series} series");
}
