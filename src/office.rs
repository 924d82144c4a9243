//! The side office: one ordinary thread with a tokio runtime. It hears signals and serves the admin address: `/ready` and `/metrics`.
//!
//! Nothing here may affect correctness. It reaches the shards only by ring, through [`Source`], and never touches a partition. Bounds: an answer to
//! `/metrics` waits [`SCRAPE_TIMEOUT`] for the shards; [`SCRAPES_WAITING`] scrapes wait at one time; connections are bounded by [`crate::admin_door`].

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use engine::metrics::{Sample, Value};
use node::{Asked, Gate, Numbers};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::admin_door::Door;
use crate::exit::{Exit, Fatal};
use crate::fitness::once_free;

/// How long shards may take to give their numbers.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
const SCRAPES_WAITING: usize = 16;
/// Signals this close to the first are the first.
const ONE_PRESS: Duration = Duration::from_millis(200);

/// What the office needs from the node.
pub struct Desk {
    pub admin: Option<TcpListener>,
    pub ready: Arc<AtomicBool>,
    /// Opened by the first signal.
    pub stop: Gate,
}

#[derive(Clone)]
struct Shared {
    ready: Arc<AtomicBool>,
    stop: Gate,
    scrapes: mpsc::Sender<Asked>,
}

/// Opens the admin address, if there is one.
pub fn listen(addr: Option<SocketAddr>) -> Result<Option<TcpListener>, Fatal> {
    let Some(addr) = addr else {
        return Ok(None);
    };
    let listener = once_free(addr, "admin-addr", || {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    })?;
    Ok(Some(listener))
}

/// Starts the office on its thread, which lives as long as the process. `source` runs there: it answers scrapes, by ring.
pub fn open<F, Fut>(desk: Desk, source: F) -> Result<(), Fatal>
where
    F: FnOnce(mpsc::Receiver<Asked>) -> Fut + Send + 'static,
    Fut: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Fatal::new(Exit::Failure, format!("can't start the side office: {e}")))?;
    std::thread::Builder::new()
        .name("side-office".into())
        .spawn(move || runtime.block_on(work(desk, source)))
        .map_err(|e| Fatal::new(Exit::Failure, format!("can't start the side office: {e}")))?;
    Ok(())
}

async fn work<F, Fut>(desk: Desk, source: F)
where
    F: FnOnce(mpsc::Receiver<Asked>) -> Fut,
    Fut: Future<Output = ()>,
{
    let (scrapes, asked) = mpsc::channel(SCRAPES_WAITING);
    let signals = hear_signals(desk.stop.clone());
    let shared = Shared {
        ready: desk.ready,
        stop: desk.stop,
        scrapes,
    };
    let http = async move {
        if let Some(listener) = desk.admin {
            let app = Router::new()
                .route("/ready", get(ready))
                .route("/metrics", get(metrics))
                .with_state(shared);
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => {
                    if let Err(e) = axum::serve(Door::new(listener), app).await {
                        tracing::error!("the admin address is closed: {e}");
                    }
                }
                Err(e) => tracing::error!("the admin address can't be served: {e}"),
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::join!(signals, http, source(asked));
}

/// The first signal asks the shards to stop, the second ends the process.
async fn hear_signals(stop: Gate) {
    let (Ok(mut term), Ok(mut int)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("signals can't be heard: stop this process with SIGKILL");
        return;
    };
    let mut next = async || {
        tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        }
    };
    let name = next().await;
    tracing::info!("{name}: shutting down; a second signal ends the process at once");
    stop.arrive();
    // One press can come as two signals: `timeout` and some supervisors signal the process and then its group.
    let one_press = tokio::time::Instant::now() + ONE_PRESS;
    let mut name = next().await;
    while tokio::time::Instant::now() < one_press {
        name = next().await;
    }
    tracing::warn!("{name} again: ending at once");
    std::process::exit(Exit::Forced as i32);
}

async fn ready(State(shared): State<Shared>) -> (StatusCode, &'static str) {
    if shared.ready.load(Ordering::Acquire) && !shared.stop.is_open() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let (to, from) = oneshot::channel();
    let numbers = async {
        shared.scrapes.send(to).await.ok()?;
        from.await.ok()
    };
    match tokio::time::timeout(SCRAPE_TIMEOUT, numbers).await {
        Ok(Some(numbers)) => (
            [(
                header::CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            exposition(numbers),
        )
            .into_response(),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "the shards don't answer\n").into_response(),
    }
}

/// The numbers in the text format of OpenMetrics: `tailrace_<name>{shard="n"}`.
fn exposition(numbers: Numbers) -> String {
    let mut registry = Registry::with_prefix("tailrace");
    registry.register_collector(Box::new(Shards(numbers)));
    let mut out = String::new();
    text::encode(&mut out, &registry).expect("writing to a string doesn't fail");
    out
}

#[derive(Debug)]
struct Shards(Numbers);

impl Collector for Shards {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        // By name, in the order of the first shard that has it: some have labels that others lack.
        let mut names: Vec<&Sample> = Vec::new();
        for sample in self.0.iter().flatten() {
            if !names.iter().any(|known| known.name == sample.name) {
                names.push(sample);
            }
        }
        for sample in names {
            let kind = match sample.value {
                Value::Counter(_) => MetricType::Counter,
                Value::Gauge(_) => MetricType::Gauge,
                Value::Histogram(_) => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(sample.name, sample.help, None, kind)?;
            for (shard, samples) in self.0.iter().enumerate() {
                for found in samples.iter().filter(|s| s.name == sample.name) {
                    let mut labels = vec![("shard", shard.to_string())];
                    labels.extend(found.label.map(|(name, value)| (name, value.to_owned())));
                    let mut one = metric.encode_family(&labels)?;
                    match &found.value {
                        Value::Counter(value) => ConstCounter::new(*value).encode(one)?,
                        Value::Gauge(value) => {
                            let value = i64::try_from(*value).unwrap_or(i64::MAX);
                            ConstGauge::new(value).encode(one)?;
                        }
                        Value::Histogram(times) => {
                            let seconds = |us| us as f64 / 1e6;
                            let buckets: Vec<_> = times
                                .buckets()
                                .map(|(bound, count)| (bound.map_or(f64::INFINITY, seconds), count))
                                .collect();
                            let count = buckets.iter().map(|(_, count)| count).sum();
                            let sum = seconds(times.sum_us);
                            one.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_openmetrics() {
        let sample = |value| Sample {
            name: "requests",
            help: "Kafka requests",
            label: None,
            value: Value::Counter(value),
        };
        let gauge = |value| Sample {
            name: "groups",
            help: "Raft groups",
            label: None,
            value: Value::Gauge(value),
        };
        let refused = |error, value| Sample {
            name: "refusals",
            help: "Errors",
            label: Some(("error", error)),
            value: Value::Counter(value),
        };
        let text = exposition(vec![
            vec![sample(3), gauge(1), refused("BAD", 7)],
            vec![sample(4), gauge(2), refused("BAD", 8), refused("WORSE", 9)],
        ]);
        assert_eq!(
            text,
            "# HELP tailrace_requests Kafka requests\n\
             # TYPE tailrace_requests counter\n\
             tailrace_requests_total{shard=\"0\"} 3\n\
             tailrace_requests_total{shard=\"1\"} 4\n\
             # HELP tailrace_groups Raft groups\n\
             # TYPE tailrace_groups gauge\n\
             tailrace_groups{shard=\"0\"} 1\n\
             tailrace_groups{shard=\"1\"} 2\n\
             # HELP tailrace_refusals Errors\n\
             # TYPE tailrace_refusals counter\n\
             tailrace_refusals_total{shard=\"0\",error=\"BAD\"} 7\n\
             tailrace_refusals_total{shard=\"1\",error=\"BAD\"} 8\n\
             tailrace_refusals_total{shard=\"1\",error=\"WORSE\"} 9\n\
             # EOF\n"
        );
    }
    #[test]
    fn times_become_a_histogram_in_seconds() {
        let metrics = engine::metrics::ShardMetrics::default();
        metrics.produce_seconds.record(Duration::from_micros(20));
        metrics.produce_seconds.record(Duration::from_micros(40));
        metrics.produce_seconds.record(Duration::from_secs(60));
        let text = exposition(vec![metrics.snapshot()]);
        for line in [
            "# TYPE tailrace_produce_seconds histogram",
            "tailrace_produce_seconds_sum{shard=\"0\"} 60.00006",
            "tailrace_produce_seconds_count{shard=\"0\"} 3",
            "tailrace_produce_seconds_bucket{le=\"0.000016\",shard=\"0\"} 0",
            "tailrace_produce_seconds_bucket{le=\"0.000024\",shard=\"0\"} 1",
            "tailrace_produce_seconds_bucket{le=\"0.000048\",shard=\"0\"} 2",
            "tailrace_produce_seconds_bucket{le=\"+Inf\",shard=\"0\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
