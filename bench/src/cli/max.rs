//! `tailrace bench max` on the command line.

use std::time::Duration;

use clap::Args;

use super::{RunArgs, options, stop_flag, write_json};
use crate::error::Error;
use crate::limits;
use crate::max::{self, Question};
use crate::slo::Slo;
use crate::workload::Mode;

#[derive(Debug, Args)]
pub struct MaxArgs {
    /// What must hold, e.g. p99=5ms or end-to-end.p99.9=20ms; may be repeated
    #[arg(long = "slo", value_name = "FIGURE=TIME", required = true)]
    pub slos: Vec<String>,
    /// The lowest rate to try, in records a second
    #[arg(long, default_value_t = 100.0)]
    pub lowest: f64,
    /// The highest rate to try
    #[arg(long, default_value_t = 10_000_000.0)]
    pub highest: f64,
    /// How near the answer is to be, as a share of it
    #[arg(long, default_value_t = 0.05)]
    pub precision: f64,
    /// Runs of each rate: most of them decide; odd
    #[arg(long, default_value_t = 3)]
    pub repeats: usize,
    /// How long the broker is left alone between runs, in seconds
    #[arg(long, default_value_t = 1.0)]
    pub settle_s: f64,
    #[command(flatten)]
    pub run: RunArgs,
}

pub fn run(args: MaxArgs) -> Result<(), Error> {
    let wrong = |what: &str| Err(Error::Usage(what.into()));
    let slos = args
        .slos
        .iter()
        .map(|s| Slo::parse(s))
        .collect::<Result<Vec<_>, _>>()?;
    let sane =
        0.1 <= args.lowest && args.lowest <= args.highest && args.highest <= limits::MAX_RATE;
    if !sane {
        return wrong("--lowest is above 0.1 and not over --highest");
    }
    if !(0.005..=1.0).contains(&args.precision) {
        return wrong("--precision is between 0.005 and 1");
    }
    if args.repeats.is_multiple_of(2) || args.repeats > 99 {
        return wrong("--repeats is odd, and under 100");
    }
    if !(0.0..=3_600.0).contains(&args.settle_s) {
        return wrong("--settle-s is between 0 and 3600");
    }
    if args.run.hlog.is_some() {
        return wrong("--hlog is of a single run");
    }
    let output = args.run.output.clone();
    let question = Question {
        options: options(args.run)?,
        slos,
        lowest: args.lowest,
        highest: args.highest,
        precision: args.precision,
        repeats: args.repeats,
        settle: Duration::from_secs_f64(args.settle_s),
    };
    let workload = &question.options.workload;
    if workload.load.mode != Mode::Open || workload.load.ramp_to.is_some() {
        return wrong("a search takes a workload of mode \"open\" with a constant rate");
    }
    if workload.load.consumers == 0 && question.slos.iter().any(|s| s.end_to_end) {
        return wrong("an end-to-end bound takes a workload with consumers");
    }
    let stop = stop_flag()?;
    let found = max::run(&question, &stop)?;
    if let Some(path) = &output {
        write_json(path, &found)?;
    }
    print!("{}", max::summary(&found));
    match found.interrupted {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}
