//! Whether the instrument can be trusted, tried on the null responder: its floor, and whether a stall of the broker shows.
//!
//! A responder that stalls for `s` in each of `n` places of a window `w` delays a share `f = n·s/w` of a steady schedule's records, by evenly spread
//! times up to `s`. So above 1 - f the latency at quantile q is `s·(1 - (1 - q)/f)`, whatever the rate. A harness that waits for the broker
//! before it sends (coordinated omission) sends nothing during the stall, and sees a handful of slow records instead: the check fails.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::Error;
use crate::null::{NullResponder, Stall};
use crate::result::RunResult;
use crate::run::{self, Options, ms};
use crate::workload::Workload;

/// What is tried. The default is what `tailrace bench self-check` does.
#[derive(Clone, Debug)]
pub struct SelfCheck {
    pub rate: f64,
    pub length_s: f64,
    pub stall_ms: u64,
    pub stall_every_s: f64,
    /// CPUs of the load, and of the responder.
    pub cpus: Vec<usize>,
    pub responder_cpu: Option<usize>,
    pub quiet: bool,
}

impl Default for SelfCheck {
    fn default() -> SelfCheck {
        SelfCheck {
            rate: 5_000.0,
            length_s: 15.0,
            stall_ms: 100,
            stall_every_s: 10.0,
            cpus: Vec::new(),
            responder_cpu: None,
            quiet: false,
        }
    }
}

/// Both runs, for whoever wants the figures.
#[derive(Debug)]
pub struct Outcome {
    pub floor: RunResult,
    pub stalled: RunResult,
    /// Quantile, latency that the stalls must cause and latency found, in microseconds.
    pub curve: Vec<(f64, f64, f64)>,
    pub problems: Vec<String>,
}

const WARM_UP_S: f64 = 1.0;
/// How far a point of the curve may lie under what the stalls cause, and over it (other work of the machine adds), in microseconds.
const UNDER_US: f64 = 10_000.0;
const OVER_US: f64 = 40_000.0;

pub fn run(check: &SelfCheck, stop: &AtomicBool) -> Result<Outcome, Error> {
    let mut workload = Workload::default();
    workload.load.rate = check.rate;
    workload.time.warm_up_s = WARM_UP_S;
    workload.time.length_s = check.length_s;
    workload.check()?;
    // The first stall lies a quarter of the distance behind the warm-up.
    let stall = Stall {
        first: Duration::from_secs_f64(WARM_UP_S + check.stall_every_s / 4.0),
        length: Duration::from_millis(check.stall_ms),
        every: Duration::from_secs_f64(check.stall_every_s),
    };
    let floor = measured(check, &workload, "floor", None, stop)?;
    let stalled = measured(check, &workload, "planted stall", Some(stall), stop)?;
    if floor.interrupted || stalled.interrupted {
        return Err(Error::SelfCheck(vec!["it was ended early".into()]));
    }
    let curve = curve(check, &stalled);
    let mut problems = Vec::new();
    for run in [&floor, &stalled] {
        problems.extend(
            run.problems
                .iter()
                .map(|p| format!("{}: {p}", run.workload.name)),
        );
        if (run.records_per_s / check.rate - 1.0).abs() > 0.02 {
            problems.push(format!(
                "{}: {:.0} records/s instead of {:.0}",
                run.workload.name, run.records_per_s, check.rate
            ));
        }
    }
    for (q, expected, found) in &curve {
        if *found < expected - UNDER_US || *found > expected + OVER_US {
            problems.push(format!(
                "p{} is {} ms where stalls of {} ms every {} s make {} ms",
                q * 100.0,
                ms(*found),
                check.stall_ms,
                check.stall_every_s,
                ms(*expected)
            ));
        }
    }
    Ok(Outcome {
        floor,
        stalled,
        curve,
        problems,
    })
}

fn measured(
    check: &SelfCheck,
    workload: &Workload,
    name: &str,
    stall: Option<Stall>,
    stop: &AtomicBool,
) -> Result<RunResult, Error> {
    let responder = NullResponder::start("127.0.0.1:0", stall, check.responder_cpu)?;
    if !check.quiet {
        eprintln!("{name}");
    }
    let options = Options {
        bootstrap: responder.address(),
        workload: Workload {
            name: name.into(),
            ..workload.clone()
        },
        cpus: check.cpus.clone(),
        label: Some("null responder".into()),
        quiet: check.quiet,
        ..Options::default()
    };
    run::measure(&options, stop)
}

/// Points of the curve: what the stalls within the window make, and what was found.
fn curve(check: &SelfCheck, stalled: &RunResult) -> Vec<(f64, f64, f64)> {
    let after_first = check.length_s - check.stall_every_s / 4.0 - check.stall_ms as f64 / 1e3;
    let stalls = if after_first < 0.0 {
        0.0
    } else {
        (after_first / check.stall_every_s).floor() + 1.0
    };
    let stall_us = check.stall_ms as f64 * 1e3;
    let share = stalls * check.stall_ms as f64 / 1e3 / check.length_s;
    let latency = &stalled.produce;
    [
        (0.99, latency.p99),
        (0.999, latency.p99_9),
        (0.9999, latency.p99_99),
        (1.0, latency.max),
    ]
    .into_iter()
    .map(|(q, found)| (q, (stall_us * (1.0 - (1.0 - q) / share)).max(0.0), found))
    .collect()
}

/// The check in a few lines, for people.
pub fn summary(outcome: &Outcome) -> String {
    let mut out = run::summary(&outcome.floor) + &run::summary(&outcome.stalled);
    out += "what the stalls must cause, and what was found:\n";
    for (q, expected, found) in &outcome.curve {
        let name = if *q == 1.0 {
            "max".into()
        } else {
            format!("p{}", q * 100.0)
        };
        out += &format!(
            "  {name:<7} {:>8} ms  {:>8} ms\n",
            ms(*expected),
            ms(*found)
        );
    }
    out
}
