//! What a run leaves: one JSON file, whose schema is published as `docs/bench-result.schema.json` and made from these types.

use base64::Engine;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device::DeviceFigures;
use crate::faults::FaultDone;
use crate::little::Little;
use crate::machine::Machine;
use crate::measure::Interval;
use crate::process::ProcessFigures;
use crate::workload::Workload;

/// The format's name. It changes when a reader of the old one would misread the new one.
pub const FORMAT: &str = "tailrace-bench-result/1";

/// One run. Latencies are in microseconds; they count from the moment at which a record was due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunResult {
    /// "tailrace-bench-result/1"
    pub format: String,
    /// When the load began, UTC.
    pub started: String,
    /// Whether the figures may be used; if not, why.
    pub valid: bool,
    pub problems: Vec<String>,
    /// It was ended before its time; what was measured until then is here.
    pub interrupted: bool,
    pub command: Vec<String>,
    /// The version of the instrument.
    pub version: String,
    pub machine: Machine,
    pub broker: Broker,
    /// "own", or a library with its version.
    pub client: String,
    /// The whole configuration, defaults included.
    pub workload: Workload,
    /// What counted, in seconds.
    pub window_s: f64,
    /// Records a second acknowledged within the window, and bytes of their values.
    pub records_per_s: f64,
    pub bytes_per_s: f64,
    /// From the scheduled moment to the acknowledgement. Records without one count with the time that they waited.
    pub produce: Latency,
    /// From the scheduled moment until a consumer had the record.
    pub end_to_end: Option<Latency>,
    /// Records due in the window that were refused or never answered.
    pub unfinished: u64,
    /// Acknowledged records that no consumer got.
    pub unread: Option<u64>,
    pub errors: Vec<ErrorCount>,
    pub requests: u64,
    pub batches: u64,
    /// Of these, sent again.
    pub retried_batches: u64,
    pub generator: Generator,
    pub little: Little,
    pub intervals: Vec<IntervalFigures>,
    /// What the broker's process used, if one was named.
    pub process: Option<ProcessFigures>,
    /// What the load itself used.
    pub load_process: ProcessFigures,
    /// What went to the disk that holds the broker's data, if that was named.
    pub device: Option<DeviceFigures>,
    /// Of consumers that began behind.
    pub backlog: Option<Backlog>,
    pub replay: Option<ReplayFigures>,
    /// The timeline as it happened.
    pub faults: Vec<FaultDone>,
}

/// What had piled up when the consumers began, and how long it took them until a hundredth of it was left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Backlog {
    pub records: u64,
    pub drained_s: Option<f64>,
}

/// What was read from the beginning beside the load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReplayFigures {
    /// Of batches, as they came.
    pub bytes: u64,
    pub seconds: f64,
    pub bytes_per_s: f64,
    /// It was read to its end.
    pub whole: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Broker {
    pub bootstrap: String,
    pub cluster_id: Option<String>,
    pub nodes: usize,
    /// What the caller says that it is.
    pub label: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorCount {
    pub code: i16,
    pub name: String,
    pub records: u64,
}

/// A distribution of latencies, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    pub count: u64,
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
    /// The curve: quantile (below 1) and latency, ten points per halving of what is left above.
    pub curve: Vec<(f64, f64)>,
    /// The histogram itself: HdrHistogram V2, deflated, base64; in nanoseconds.
    pub histogram: String,
}

/// How well the instrument kept its own schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Generator {
    /// From the scheduled moment until the record was made, in microseconds, where the broker wasn't what it waited for.
    pub lag_p50: f64,
    pub lag_p99: f64,
    pub lag_p99_9: f64,
    pub lag_max: f64,
    /// Records that waited unmade because the broker was behind and the buffer full.
    pub held_back: u64,
    /// The run isn't a result: its latencies are the instrument's own.
    pub fell_behind: bool,
}

/// One second, by the moment of the answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IntervalFigures {
    /// Its end, in seconds from the beginning of the load.
    pub at_s: f64,
    pub warm_up: bool,
    pub records_per_s: f64,
    pub p50: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub max: f64,
    pub end_to_end_p99: Option<f64>,
    /// Of all groups together.
    pub consumed_per_s: f64,
    /// Records due and not answered at its end.
    pub in_flight: u64,
    pub errors: u64,
}

/// Nanoseconds of a histogram as microseconds.
pub fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl Latency {
    /// Of nothing.
    pub fn none() -> Latency {
        Latency::of(&crate::measure::histogram())
    }

    pub fn of(histogram: &Histogram<u64>) -> Latency {
        let at = |q| us(histogram.value_at_quantile(q));
        let points = histogram
            .iter_quantiles(10)
            .map(|v| (v.quantile_iterated_to(), us(v.value_iterated_to())));
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(histogram, &mut bytes)
            .expect("it is written to memory, and its counts fit");
        Latency {
            count: histogram.len(),
            mean: if histogram.is_empty() {
                0.0
            } else {
                histogram.mean() / 1e3
            },
            min: if histogram.is_empty() {
                0.0
            } else {
                us(histogram.min())
            },
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: us(histogram.max()),
            curve: points.filter(|p| p.0 < 1.0).collect(),
            histogram: base64::engine::general_purpose::STANDARD.encode(bytes),
        }
    }
}

impl Generator {
    /// The verdict on the generator: at none of the percentiles may its own lag exceed `limits::GENERATOR_LAG_NS`, unless it is less than a quarter
    /// of the latency at the same percentile.
    pub fn judge(lag: &Histogram<u64>, latency: &Histogram<u64>, held_back: u64) -> Generator {
        let late = |q: f64| {
            let allowed = crate::limits::GENERATOR_LAG_NS.max(latency.value_at_quantile(q) / 4);
            lag.value_at_quantile(q) > allowed
        };
        let at = |q| us(lag.value_at_quantile(q));
        Generator {
            lag_p50: at(0.5),
            lag_p99: at(0.99),
            lag_p99_9: at(0.999),
            lag_max: us(lag.max()),
            held_back,
            fell_behind: [0.5, 0.99, 0.999].into_iter().any(late),
        }
    }
}

impl IntervalFigures {
    /// Of an interval `seconds` long that ended at `at_s`.
    pub fn of(interval: &Interval, at_s: f64, seconds: f64, warm_up: bool) -> IntervalFigures {
        let at = |q| us(interval.produce.value_at_quantile(q));
        let consumed = &interval.end_to_end;
        IntervalFigures {
            at_s,
            warm_up,
            records_per_s: interval.produce.len() as f64 / seconds,
            p50: at(0.5),
            p99: at(0.99),
            p99_9: at(0.999),
            max: us(interval.produce.max()),
            end_to_end_p99: (!consumed.is_empty()).then(|| us(consumed.value_at_quantile(0.99))),
            consumed_per_s: consumed.len() as f64 / seconds,
            in_flight: interval.in_flight,
            errors: interval.errors,
        }
    }
}

/// The schema of `RunResult`, as it is published.
pub fn schema() -> String {
    let schema = schemars::schema_for!(RunResult);
    serde_json::to_string_pretty(&schema).expect("a schema is plain JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::histogram;
    use hdrhistogram::serialization::Deserializer;

    #[test]
    fn the_published_schema_is_that_of_the_types() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../docs/bench-result.schema.json"
        );
        let published = std::fs::read_to_string(path).unwrap();
        assert!(
            published == schema(),
            "make it again: tailrace bench schema > docs/bench-result.schema.json"
        );
    }

    #[test]
    fn a_distribution_is_told_whole() {
        let mut h = histogram();
        (1..=10_000u64).for_each(|n| h.record(n * 1_000).unwrap());
        let told = Latency::of(&h);
        assert!((told.p50 / 5_000.0 - 1.0).abs() < 0.001, "{}", told.p50);
        assert!((told.p99_9 / 9_990.0 - 1.0).abs() < 0.001);
        assert!((told.mean / 5_000.5 - 1.0).abs() < 0.001);
        assert!(
            told.curve
                .windows(2)
                .all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1)
        );
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(&told.histogram)
            .unwrap();
        let again: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
        assert_eq!(again, h);
        assert_eq!(Latency::of(&histogram()).count, 0);
    }

    #[test]
    fn a_generator_that_fell_behind_is_said_to() {
        let of = |values: &[(u64, u64)]| {
            let mut h = histogram();
            values.iter().for_each(|(v, n)| h.record_n(*v, *n).unwrap());
            h
        };
        let ms = 1_000_000;
        let quick = of(&[(ms / 5, 10_000)]);
        assert!(!Generator::judge(&of(&[(ms / 10, 10_000)]), &quick, 0).fell_behind);
        assert!(Generator::judge(&of(&[(ms / 10, 9_000), (2 * ms, 1_000)]), &quick, 0).fell_behind);
        let slow = of(&[(20 * ms, 10_000)]);
        assert!(!Generator::judge(&of(&[(ms / 10, 9_000), (2 * ms, 1_000)]), &slow, 0).fell_behind);
        assert!(Generator::judge(&of(&[(6 * ms, 10_000)]), &slow, 0).fell_behind);
    }
}
