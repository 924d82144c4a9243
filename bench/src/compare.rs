//! Runs of two brokers, made in turns, as ratios with their spread. What is claimed is the lower end.
//!
//! The n-th run of one side is set against the n-th of the other, as they were made in the same minutes. Only like is compared with like: every run must
//! be a result, and all must have the same workload. Under `CLAIM_PAIRS` pairs there are ratios but no claim.
//!
//! One kind of run that isn't a result counts for the other side: one that was overloaded, so that records of its were never answered or read.
//! They count with the time that they waited, so its latencies are lower bounds, and the ratios too.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::result::RunResult;

/// Pairs that a claim needs.
pub const CLAIM_PAIRS: usize = 5;

/// One figure: how many times better ours is, pair by pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    pub figure: String,
    /// Medians of both sides.
    pub ours: f64,
    pub theirs: f64,
    /// Above 1 where ours is better.
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// Of each pair, in the order in which they were made.
    pub pairs: Vec<f64>,
}

/// A figure of a run, and whether less is better.
type Figure = (&'static str, bool, fn(&RunResult) -> Option<f64>);

const FIGURES: [Figure; 12] = [
    ("p50 ms", true, |r| Some(r.produce.p50 / 1e3)),
    ("p99 ms", true, |r| Some(r.produce.p99 / 1e3)),
    ("p99.9 ms", true, |r| Some(r.produce.p99_9 / 1e3)),
    ("max ms", true, |r| Some(r.produce.max / 1e3)),
    ("end to end p50 ms", true, |r| {
        r.end_to_end.as_ref().map(|l| l.p50 / 1e3)
    }),
    ("end to end p99 ms", true, |r| {
        r.end_to_end.as_ref().map(|l| l.p99 / 1e3)
    }),
    ("records/s", false, |r| Some(r.records_per_s)),
    ("records per CPU s", false, |r| {
        r.process.as_ref().map(|p| p.records_per_cpu_s)
    }),
    ("MiB resident", true, |r| {
        r.process
            .as_ref()
            .map(|p| p.rss_bytes as f64 / f64::from(1 << 20))
    }),
    ("written ÷ produced", true, |r| {
        r.process.as_ref().and_then(|p| p.written_per_produced)
    }),
    ("device bytes ÷ produced", true, |r| {
        r.device.as_ref().map(|d| d.settled_per_produced)
    }),
    ("replay MB/s", false, |r| {
        r.replay.as_ref().map(|replay| replay.bytes_per_s / 1e6)
    }),
];

/// It couldn't keep up, and nothing else is wrong with it: what it was late with counts with the time that it waited.
pub fn is_overloaded(run: &RunResult) -> bool {
    let late = run.unfinished > 0 || run.unread.is_some_and(|n| n > 0);
    !run.valid
        && late
        && run.errors.is_empty()
        && !run.generator.fell_behind
        && run.little.holds
        && run.produce.count > 0
}

/// Sets pairs of runs against each other; a figure that a run doesn't have is left out.
pub fn compare(ours: &[&RunResult], theirs: &[&RunResult]) -> Result<Vec<Ratio>, Error> {
    if ours.len() != theirs.len() || ours.is_empty() {
        return Err(Error::Usage(format!(
            "runs come in pairs: there are {} and {}",
            ours.len(),
            theirs.len()
        )));
    }
    let usable = |run: &RunResult, theirs: bool| run.valid || theirs && is_overloaded(run);
    let sides = ours
        .iter()
        .map(|r| (r, false))
        .chain(theirs.iter().map(|r| (r, true)));
    for (run, theirs) in sides {
        if !usable(run, theirs) {
            let which = format!(
                "the run of {} against {}",
                run.started, run.broker.bootstrap
            );
            return Err(Error::NotAResult(
                std::iter::once(which)
                    .chain(run.problems.iter().cloned())
                    .collect(),
            ));
        }
        if run.interrupted || run.workload != ours[0].workload {
            return Err(Error::Usage(format!(
                "the run of {} was ended early, or has another workload than the first",
                run.started
            )));
        }
    }
    let found = FIGURES.iter().filter_map(|(figure, less_is_better, of)| {
        let ours: Vec<f64> = ours.iter().filter_map(|r| of(r)).collect();
        let theirs: Vec<f64> = theirs.iter().filter_map(|r| of(r)).collect();
        let whole = ours.len() == theirs.len()
            && !ours.is_empty()
            && ours.iter().chain(&theirs).all(|v| *v > 0.0);
        let better = |(a, b): (&f64, &f64)| if *less_is_better { b / a } else { a / b };
        let ratios: Vec<f64> = ours.iter().zip(&theirs).map(better).collect();
        whole.then(|| Ratio {
            figure: (*figure).into(),
            ours: median(&ours),
            theirs: median(&theirs),
            median: median(&ratios),
            low: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            high: ratios.iter().copied().fold(0.0, f64::max),
            pairs: ratios,
        })
    });
    Ok(found.collect())
}

/// Of at least one value.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// The comparison as a table in Markdown.
pub fn table(ratios: &[Ratio], pairs: usize, ours: &str, theirs: &str) -> String {
    let mut out = format!(
        "| {pairs} pairs | {ours} | {theirs} | times better: median | lowest to highest | claim |\n|---|---|---|---|---|---|\n"
    );
    for r in ratios {
        let claim = if pairs >= CLAIM_PAIRS {
            format!("{:.2}×", r.low)
        } else {
            "too few pairs".into()
        };
        out += &format!(
            "| {} | {} | {} | {:.2}× | {:.2}× to {:.2}× | {claim} |\n",
            r.figure,
            number(r.ours),
            number(r.theirs),
            r.median,
            r.low,
            r.high
        );
    }
    out
}

/// Three digits that count, or all before the point.
pub fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::a_run;

    /// Runs whose p99 is so many milliseconds.
    fn runs(base: &RunResult, p99_ms: &[f64]) -> Vec<RunResult> {
        let with = |ms: &f64| {
            let mut run = base.clone();
            (run.valid, run.produce.p99) = (true, ms * 1e3);
            run
        };
        p99_ms.iter().map(with).collect()
    }

    fn refs(runs: &[RunResult]) -> Vec<&RunResult> {
        runs.iter().collect()
    }

    #[test]
    fn a_peer_that_could_not_keep_up_counts_and_ours_does_not() {
        let mut base = a_run("x");
        // Whatever else this machine does.
        (base.generator.fell_behind, base.little.holds) = (false, true);
        let fine = runs(&base, &[1.0]);
        let mut late = runs(&base, &[50.0]);
        (late[0].valid, late[0].unfinished) = (false, 10);
        let ratios = compare(&refs(&fine), &refs(&late)).unwrap();
        assert_eq!(
            ratios.iter().find(|r| r.figure == "p99 ms").unwrap().low,
            50.0
        );
        assert!(compare(&refs(&late), &refs(&fine)).is_err());
        late[0].generator.fell_behind = true;
        assert!(compare(&refs(&fine), &refs(&late)).is_err());
    }

    #[test]
    fn the_claim_is_the_lowest_of_the_pairs() {
        let base = a_run("x");
        let ours = runs(&base, &[1.0, 1.0, 2.0, 1.0, 1.0]);
        let theirs = runs(&base, &[10.0, 8.0, 12.0, 9.0, 11.0]);
        let ratios = compare(&refs(&ours), &refs(&theirs)).unwrap();
        let p99 = ratios.iter().find(|r| r.figure == "p99 ms").unwrap();
        assert_eq!((p99.low, p99.median, p99.high), (6.0, 9.0, 11.0));
        assert_eq!((p99.ours, p99.theirs), (1.0, 10.0));
        let rate = ratios.iter().find(|r| r.figure == "records/s").unwrap();
        assert_eq!((rate.low, rate.high), (1.0, 1.0));
        assert!(
            table(&ratios, 5, "a", "b")
                .contains("| p99 ms | 1.00 | 10.00 | 9.00× | 6.00× to 11.00× | 6.00× |")
        );
        assert!(table(&ratios, 4, "a", "b").contains("too few pairs"));
    }

    #[test]
    fn only_like_is_compared_and_only_results() {
        let base = a_run("x");
        let ours = runs(&base, &[1.0, 1.0]);
        assert!(matches!(
            compare(&refs(&ours), &refs(&ours[..1])),
            Err(Error::Usage(_))
        ));
        assert!(matches!(compare(&[], &[]), Err(Error::Usage(_))));
        let mut other = ours.clone();
        other[1].workload.client.linger_ms = 1.0;
        assert!(matches!(
            compare(&refs(&ours), &refs(&other)),
            Err(Error::Usage(_))
        ));
        let mut invalid = ours.clone();
        (invalid[1].valid, invalid[1].problems) = (false, vec!["late".into()]);
        assert!(matches!(
            compare(&refs(&ours), &refs(&invalid)),
            Err(Error::NotAResult(_))
        ));
    }
}
