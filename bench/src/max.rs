//! `bench max`: the highest rate that holds, by bisection; a rate holds if most of its runs do.
//!
//! A run holds a rate if every record was acknowledged and every bound is kept. A run whose *generator* was late says nothing of the broker and is
//! made again; where that goes on, the search has met the instrument's own limit, and says so instead of blaming the broker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::{Clock, rfc3339};
use crate::error::Error;
use crate::machine::{self, Machine};
use crate::result::{Latency, RunResult};
use crate::run::{self, Options, ms};
use crate::slo::Slo;
use crate::workload::Workload;

/// The format's name. It changes when a reader of the old one would misread the new one.
pub const FORMAT: &str = "tailrace-bench-max/1";

/// What a search is told. Its workload's rate is where it begins.
#[derive(Clone, Debug)]
pub struct Question {
    pub options: Options,
    pub slos: Vec<Slo>,
    /// Rates beyond these aren't tried.
    pub lowest: f64,
    pub highest: f64,
    /// The search ends when what holds and what doesn't lie so near: 0.05 for 5 %.
    pub precision: f64,
    /// Runs of each rate; odd.
    pub repeats: usize,
    pub settle: Duration,
}

/// The answer, whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Max {
    /// "tailrace-bench-max/1"
    pub format: String,
    /// UTC.
    pub started: String,
    pub command: Vec<String>,
    pub version: String,
    pub machine: Machine,
    pub broker: String,
    pub label: Option<String>,
    pub slos: Vec<Slo>,
    /// At the rate that the search began with.
    pub workload: Workload,
    pub repeats: usize,
    pub precision: f64,
    pub steps: Vec<Step>,
    /// Records a second.
    pub highest_that_holds: Option<f64>,
    pub lowest_that_does_not: Option<f64>,
    pub limited_by: Limit,
    pub interrupted: bool,
}

/// What kept the rate from being higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The broker: a bound was missed, or records were.
    Broker,
    /// The instrument itself fell behind.
    Generator,
    /// The highest rate to try holds.
    Highest,
    /// It isn't known: the search was ended early.
    Unknown,
}

/// One rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    pub rate: f64,
    pub outcome: Outcome,
    pub runs: Vec<Try>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Holds,
    Misses,
    /// The generator fell behind: nothing is known of the broker.
    Late,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Try {
    pub outcome: Outcome,
    pub why: Vec<String>,
    pub records_per_s: f64,
    pub produce: Latency,
    pub end_to_end: Option<Latency>,
}

/// Bisection over rates: doubles or halves until there is one that holds and one that doesn't, then goes to the middle of their ratio.
#[derive(Clone, Debug)]
pub struct Search {
    first: f64,
    lowest: f64,
    highest: f64,
    precision: f64,
    holds: Option<f64>,
    misses: Option<f64>,
}

impl Search {
    pub fn new(first: f64, lowest: f64, highest: f64, precision: f64) -> Search {
        assert!(
            0.0 < lowest && lowest <= highest && precision > 0.0,
            "the question was checked"
        );
        Search {
            first: first.clamp(lowest, highest),
            lowest,
            highest,
            precision,
            holds: None,
            misses: None,
        }
    }

    /// The rate to try; none when the search has ended.
    pub fn next(&self) -> Option<f64> {
        match (self.holds, self.misses) {
            (None, None) => Some(self.first),
            (Some(holds), None) => (holds < self.highest).then(|| (holds * 2.0).min(self.highest)),
            (None, Some(misses)) => (misses > self.lowest).then(|| (misses / 2.0).max(self.lowest)),
            (Some(holds), Some(misses)) => {
                (misses / holds > 1.0 + self.precision).then(|| (holds * misses).sqrt())
            }
        }
    }

    /// A rate that `next` gave was tried.
    pub fn tried(&mut self, rate: f64, holds: bool) {
        match holds {
            true => self.holds = Some(rate),
            false => self.misses = Some(rate),
        }
    }
}

/// Carries out the search. `stop` ends it early, with what was found until then.
pub fn run(question: &Question, stop: &AtomicBool) -> Result<Max, Error> {
    let options = &question.options;
    let clock = Clock::start();
    let mut max = Max {
        format: FORMAT.into(),
        started: rfc3339(clock.wall_ms),
        command: std::env::args().collect(),
        version: env!("CARGO_PKG_VERSION").into(),
        machine: machine::look(&options.cpus),
        broker: options.bootstrap.clone(),
        label: options.label.clone(),
        slos: question.slos.clone(),
        workload: options.workload.clone(),
        repeats: question.repeats,
        precision: question.precision,
        steps: Vec::new(),
        highest_that_holds: None,
        lowest_that_does_not: None,
        limited_by: Limit::Unknown,
        interrupted: false,
    };
    let first = options.workload.load.rate;
    let mut search = Search::new(first, question.lowest, question.highest, question.precision);
    while let Some(rate) = search.next() {
        let Some(step) = step(question, rate, stop)? else {
            max.interrupted = true;
            return Ok(max);
        };
        let holds = step.outcome == Outcome::Holds;
        if !options.quiet {
            let outcome = if holds { "holds" } else { "doesn't hold" };
            eprintln!("{rate:.0} records/s: it {outcome}");
        }
        search.tried(rate, holds);
        match step.outcome {
            Outcome::Holds => max.highest_that_holds = Some(rate),
            outcome => {
                max.lowest_that_does_not = Some(rate);
                max.limited_by = match outcome {
                    Outcome::Late => Limit::Generator,
                    _ => Limit::Broker,
                };
            }
        }
        max.steps.push(step);
    }
    if max.lowest_that_does_not.is_none() {
        max.limited_by = Limit::Highest;
    }
    Ok(max)
}

/// Runs one rate until most of its runs agree; none if it was ended early.
fn step(question: &Question, rate: f64, stop: &AtomicBool) -> Result<Option<Step>, Error> {
    let mut options = question.options.clone();
    options.workload.load.rate = rate;
    let mut runs: Vec<Try> = Vec::new();
    loop {
        if let Some(outcome) = majority(&runs, question.repeats) {
            return Ok(Some(Step {
                rate,
                outcome,
                runs,
            }));
        }
        if !options.quiet {
            eprintln!("{rate:.0} records/s, run {}", runs.len() + 1);
        }
        let result = run::measure(&options, stop)?;
        if result.interrupted || !settle(question.settle, stop) {
            return Ok(None);
        }
        let (outcome, why) = judge(&result, rate, &question.slos);
        if !options.quiet {
            let told = if why.is_empty() {
                "holds".into()
            } else {
                why.join("; ")
            };
            eprintln!(
                "{rate:.0} records/s: p99 {} ms, {told}",
                ms(result.produce.p99)
            );
        }
        runs.push(Try {
            outcome,
            why,
            records_per_s: result.records_per_s,
            produce: result.produce,
            end_to_end: result.end_to_end,
        });
    }
}

fn settle(time: Duration, stop: &AtomicBool) -> bool {
    let until = Instant::now() + time;
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    !stop.load(Ordering::Relaxed)
}

/// What most of `repeats` runs say, as soon as it is certain. Late runs count for nothing, up to as many as there are to be runs.
fn majority(runs: &[Try], repeats: usize) -> Option<Outcome> {
    let of = |outcome| runs.iter().filter(|r| r.outcome == outcome).count();
    let most = repeats / 2 + 1;
    if of(Outcome::Holds) >= most {
        Some(Outcome::Holds)
    } else if of(Outcome::Misses) >= most {
        Some(Outcome::Misses)
    } else if of(Outcome::Late) > repeats {
        Some(Outcome::Late)
    } else {
        None
    }
}

/// What one run says of a rate, and why it doesn't hold.
fn judge(run: &RunResult, rate: f64, slos: &[Slo]) -> (Outcome, Vec<String>) {
    let mut why = Vec::new();
    for slo in slos {
        match slo.found(run) {
            Some(us) if us <= slo.at_most_us => {}
            Some(us) => why.push(format!("{slo}, but it was {} ms", ms(us))),
            None => why.push(format!("{slo}, but nothing was read")),
        }
    }
    if run.records_per_s < 0.98 * rate {
        why.push(format!(
            "{:.0} records/s were acknowledged",
            run.records_per_s
        ));
    }
    // What the broker did wrong is its own; what the instrument did wrong is nobody else's.
    if run.generator.fell_behind {
        return (Outcome::Late, run.problems.clone());
    }
    why.extend(run.problems.iter().cloned());
    match why.is_empty() {
        true => (Outcome::Holds, why),
        false => (Outcome::Misses, why),
    }
}

/// The answer in words.
pub fn summary(max: &Max) -> String {
    let slos: Vec<String> = max.slos.iter().map(Slo::to_string).collect();
    let slos = slos.join(", ");
    let mut out = match max.highest_that_holds {
        Some(rate) => format!("{rate:.0} records/s hold {slos}\n"),
        None => format!("no rate that was tried holds {slos}\n"),
    };
    if let Some(rate) = max.lowest_that_does_not {
        out += &format!("{rate:.0} records/s don't\n");
    }
    out += match max.limited_by {
        Limit::Broker => "",
        Limit::Generator => "the instrument was the limit: the broker may do more\n",
        Limit::Highest => "that was the highest rate to try: the broker may do more\n",
        Limit::Unknown => "the search was ended early\n",
    };
    out
}

/// The schema of `Max`, as it is published.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Max);
    serde_json::to_string_pretty(&schema).expect("a schema is plain JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::a_run;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the broker can: the answer lies within the precision of it, or at the ends of what is tried; and it doesn't take long.
        #[test]
        fn the_search_finds_the_rate(can in 1.0f64..1e7, first in 1.0f64..1e7, precision in 0.01f64..0.5) {
            let (lowest, highest) = (10.0, 1e6);
            let mut search = Search::new(first, lowest, highest, precision);
            let mut tries = 0;
            while let Some(rate) = search.next() {
                prop_assert!((lowest..=highest).contains(&rate));
                search.tried(rate, rate <= can);
                tries += 1;
                prop_assert!(tries < 40);
            }
            match (search.holds, search.misses) {
                (Some(holds), Some(misses)) => prop_assert!(holds <= can && can < misses && misses / holds <= 1.0 + precision),
                (Some(holds), None) => prop_assert!(holds == highest && can >= highest),
                (None, Some(misses)) => prop_assert!(misses == lowest && can < lowest),
                (None, None) => prop_assert!(false, "something was tried"),
            }
        }
    }

    #[test]
    fn most_runs_decide_and_late_ones_do_not() {
        let run = a_run("x");
        let tries = |outcomes: &[Outcome]| -> Vec<Try> {
            let one = |outcome: &Outcome| Try {
                outcome: *outcome,
                why: vec![],
                records_per_s: 0.0,
                produce: run.produce.clone(),
                end_to_end: None,
            };
            outcomes.iter().map(one).collect()
        };
        use Outcome::{Holds, Late, Misses};
        for (runs, expected) in [
            (&[][..], None),
            (&[Holds], None),
            (&[Holds, Holds], Some(Holds)),
            (&[Misses, Holds, Misses], Some(Misses)),
            (&[Late, Late, Late], None),
            (&[Late, Late, Holds, Holds], Some(Holds)),
            (&[Late, Late, Late, Late], Some(Late)),
        ] {
            assert_eq!(majority(&tries(runs), 3), expected, "{runs:?}");
        }
    }

    #[test]
    fn a_run_holds_only_if_all_is_well() {
        let mut run = a_run("x");
        (run.valid, run.problems, run.records_per_s) = (true, vec![], 1_000.0);
        run.generator.fell_behind = false;
        run.produce.p99 = 4_000.0;
        let slos = [Slo::parse("p99=5ms").unwrap()];
        assert_eq!(judge(&run, 1_000.0, &slos).0, Outcome::Holds);
        assert_eq!(
            judge(&run, 1_100.0, &slos).0,
            Outcome::Misses,
            "not at that rate"
        );
        let mut slow = run.clone();
        slow.produce.p99 = 5_001.0;
        assert_eq!(judge(&slow, 1_000.0, &slos).0, Outcome::Misses);
        slow.generator.fell_behind = true;
        assert_eq!(judge(&slow, 1_000.0, &slos).0, Outcome::Late);
        let mut lost = run.clone();
        lost.problems.push("5 records were refused".into());
        assert_eq!(judge(&lost, 1_000.0, &slos).0, Outcome::Misses);
        let unread = [Slo::parse("end-to-end.p99=5ms").unwrap()];
        assert_eq!(judge(&run, 1_000.0, &unread).0, Outcome::Misses);
    }

    #[test]
    fn the_published_schema_is_that_of_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/bench-max.schema.json");
        let published = std::fs::read_to_string(path).unwrap();
        assert!(
            published == schema(),
            "make it again: tailrace bench schema max > docs/bench-max.schema.json"
        );
    }
}
