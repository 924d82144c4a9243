//! `bench versus`: brokers started in turns, each on fresh data, under one workload and one client's settings; ratios with their spread.
//!
//! A round is one run of every side, one behind the other, so that what changes on the machine over the minutes meets all of them. The first side
//! is ours; it is set against each other one. A round in which the *instrument* was late on either side is made again, whole, and the file keeps
//! its reason: nothing is left out because of what the broker did. Bound: at most as many rounds more as were asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::{Clock, rfc3339};
use crate::compare::{self, CLAIM_PAIRS, Ratio};
use crate::error::Error;
use crate::machine::{self, Machine};
use crate::result::RunResult;
use crate::run::{self, Options};
use crate::side::{Side, SideInfo, stay_on};
use crate::workload::Workload;

/// The format's name. It changes when a reader of the old one would misread the new one.
pub const FORMAT: &str = "tailrace-bench-versus/1";

/// What a comparison is told.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Ours first.
    pub sides: Vec<Side>,
    pub workloads: Vec<Workload>,
    pub layout: Layout,
    pub rounds: usize,
    /// Where data directories are made; a new folder in it, which goes in the end.
    pub folder: PathBuf,
    /// How long the machine is left alone between two brokers.
    pub settle: Duration,
    pub quiet: bool,
}

/// Who runs where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Layout {
    /// "split" where broker and load have CPUs of their own, "shared" where both may use all.
    pub name: String,
    pub broker_cpus: Vec<usize>,
    pub load_cpus: Vec<usize>,
}

/// One comparison, whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Versus {
    /// "tailrace-bench-versus/1"
    pub format: String,
    /// UTC.
    pub started: String,
    pub command: Vec<String>,
    pub version: String,
    pub machine: Machine,
    pub layout: Layout,
    /// Ours first.
    pub sides: Vec<SideInfo>,
    pub workloads: Vec<Compared>,
    /// It was ended before its time; whole rounds until then are here.
    pub interrupted: bool,
}

/// All rounds of one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compared {
    pub workload: String,
    /// Each with one run a side, in the order of the sides.
    pub rounds: Vec<Vec<RunResult>>,
    /// Why rounds were made again.
    pub repeated: Vec<String>,
    /// What ended it early, other than being told to.
    pub problem: Option<String>,
    pub verdicts: Vec<Verdict>,
}

/// Ours against one other side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    pub theirs: String,
    pub pairs: usize,
    /// There are enough pairs for the lowest ratios to be claimed.
    pub claim: bool,
    /// In how many pairs theirs couldn't keep up: their latencies are then lower bounds.
    pub overloaded: usize,
    pub ratios: Vec<Ratio>,
    /// Why there are no ratios.
    pub problem: Option<String>,
}

/// Carries out a comparison. `stop` ends it early. `keep` is given what there is after every round: a file that is whole at any time.
pub fn run(
    comparison: &Comparison,
    stop: &AtomicBool,
    keep: impl Fn(&Versus) -> Result<(), Error>,
) -> Result<Versus, Error> {
    stay_on(&comparison.layout.load_cpus)?;
    let clock = Clock::start();
    let work = comparison.folder.join(format!(
        "bench-versus-{}-{}",
        clock.wall_ms,
        std::process::id()
    ));
    let name = work.display().to_string();
    fs::create_dir_all(&work).map_err(Error::io(&name))?;
    let mut versus = Versus {
        format: FORMAT.into(),
        started: rfc3339(clock.wall_ms),
        command: std::env::args().collect(),
        version: env!("CARGO_PKG_VERSION").into(),
        machine: machine::look(&comparison.layout.load_cpus),
        layout: comparison.layout.clone(),
        sides: comparison.sides.iter().map(Side::info).collect(),
        workloads: Vec::new(),
        interrupted: false,
    };
    let mut failed = None;
    for workload in &comparison.workloads {
        versus.workloads.push(Compared {
            workload: workload.name.clone(),
            rounds: Vec::new(),
            repeated: Vec::new(),
            problem: None,
            verdicts: Vec::new(),
        });
        match rounds(comparison, workload, &work, stop, &mut versus, &keep) {
            Ok(()) => {}
            Err(Error::Interrupted) => {
                versus.interrupted = true;
                break;
            }
            Err(error) => {
                let last = versus.workloads.last_mut().expect("it was pushed");
                last.problem = Some(error.to_string());
                failed = Some(error);
                break;
            }
        }
    }
    keep(&versus)?;
    // What a broker left is kept when it failed: its log may say why.
    if !matches!(
        failed,
        Some(Error::Broker(_) | Error::Lost(_) | Error::Io { .. })
    ) {
        fs::remove_dir_all(&work).map_err(Error::io(&name))?;
    }
    failed.map_or(Ok(versus), Err)
}

fn rounds(
    comparison: &Comparison,
    workload: &Workload,
    work: &Path,
    stop: &AtomicBool,
    versus: &mut Versus,
    keep: &impl Fn(&Versus) -> Result<(), Error>,
) -> Result<(), Error> {
    let say = |text: String| {
        if !comparison.quiet {
            eprintln!("{text}");
        }
    };
    let began = Instant::now();
    let mut made = 0;
    while versus.workloads.last().expect("there is one").rounds.len() < comparison.rounds {
        let done = versus.workloads.last().expect("there is one").rounds.len();
        if made == 2 * comparison.rounds {
            let why = "the instrument was late in half of the rounds: the machine is too busy";
            return Err(Error::NotAResult(vec![why.into()]));
        }
        let mut round = Vec::new();
        for (index, side) in comparison.sides.iter().enumerate() {
            let left = match made {
                0 => String::new(),
                _ => {
                    let each = began.elapsed().as_secs_f64() / made as f64;
                    let minutes = each * (comparison.rounds - done) as f64 / 60.0;
                    format!(", about {minutes:.0} min left")
                }
            };
            say(format!(
                "{}: round {} of {}, {}{left}",
                workload.name,
                done + 1,
                comparison.rounds,
                side.label
            ));
            let (result, version) = turn(comparison, workload, side, work, stop)?;
            versus.sides[index].version = version.or(versus.sides[index].version.take());
            if result.interrupted || stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            say(run::summary(&result).trim_end().to_owned());
            round.push(result);
        }
        made += 1;
        let compared = versus.workloads.last_mut().expect("there is one");
        let late = round.iter().find(|r| r.generator.fell_behind);
        if let Some(late) = late {
            let label = late.broker.label.as_deref().unwrap_or("");
            let why = format!("beside {label}: {}", late.problems.join("; "));
            say(format!("the round is made again: {why}"));
            compared.repeated.push(why);
            continue;
        }
        compared.rounds.push(round);
        compared.verdicts = verdicts(&comparison.sides, &compared.rounds);
        for verdict in &compared.verdicts {
            say(table(verdict, &comparison.sides[0].label));
        }
        keep(versus)?;
    }
    Ok(())
}

/// One run of one side, on a broker of its own.
fn turn(
    comparison: &Comparison,
    workload: &Workload,
    side: &Side,
    work: &Path,
    stop: &AtomicBool,
) -> Result<(RunResult, Option<String>), Error> {
    let broker = side.start(work, &comparison.layout.broker_cpus, stop)?;
    wait(comparison.settle, stop)?;
    let options = Options {
        bootstrap: broker.address.clone(),
        workload: workload.clone(),
        cpus: comparison.layout.load_cpus.clone(),
        pid: Some(broker.pid),
        data_dir: Some(broker.data_dir.clone()),
        label: Some(side.label.clone()),
        keep_topics: true,
        quiet: comparison.quiet,
        ..Options::default()
    };
    let result = run::measure(&options, stop)?;
    let version = broker.version.clone();
    broker.end()?;
    // What the broker left for later, and the removal of its files, must not meet the next one.
    settle_disk(work);
    wait(comparison.settle, stop)?;
    Ok((result, version))
}

fn settle_disk(folder: &Path) {
    if let Some(device) = crate::device::Device::of(folder) {
        let _ = device.settled();
    }
}

fn wait(time: Duration, stop: &AtomicBool) -> Result<(), Error> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Ours, the first side, against each other one.
pub fn verdicts(sides: &[Side], rounds: &[Vec<RunResult>]) -> Vec<Verdict> {
    let of = |side: usize| -> Vec<&RunResult> { rounds.iter().map(|r| &r[side]).collect() };
    let against = |(index, side): (usize, &Side)| {
        let (ours, theirs) = (of(0), of(index));
        let compared = compare::compare(&ours, &theirs);
        let (ratios, problem) = match compared {
            Ok(ratios) => (ratios, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Verdict {
            theirs: side.label.clone(),
            pairs: rounds.len(),
            claim: rounds.len() >= CLAIM_PAIRS && problem.is_none(),
            overloaded: theirs.iter().filter(|r| compare::is_overloaded(r)).count(),
            ratios,
            problem,
        }
    };
    sides.iter().enumerate().skip(1).map(against).collect()
}

/// A verdict as a table in Markdown, with what must be said beside it.
pub fn table(verdict: &Verdict, ours: &str) -> String {
    if let Some(problem) = &verdict.problem {
        return format!("{ours} against {}: {problem}\n", verdict.theirs);
    }
    let mut out = compare::table(&verdict.ratios, verdict.pairs, ours, &verdict.theirs);
    if verdict.overloaded > 0 {
        out += &format!(
            "\n{} couldn't keep up in {} of {} runs: its latencies are lower bounds.\n",
            verdict.theirs, verdict.overloaded, verdict.pairs
        );
    }
    out
}

/// The schema of `Versus`, as it is published.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Versus);
    serde_json::to_string_pretty(&schema).expect("a schema is plain JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::a_run;
    use crate::side::Start;

    fn side(label: &str) -> Side {
        Side {
            label: label.into(),
            start: Start::Shell("true".into()),
        }
    }

    #[test]
    fn each_other_side_is_set_against_ours() {
        let base = a_run("x");
        let run = |ms: f64| {
            let mut run = base.clone();
            (run.valid, run.produce.p99) = (true, ms * 1e3);
            run
        };
        let rounds: Vec<Vec<RunResult>> =
            (0..5).map(|_| vec![run(1.0), run(3.0), run(0.5)]).collect();
        let verdicts = verdicts(&[side("a"), side("b"), side("c")], &rounds);
        let p99 = |v: &Verdict| v.ratios.iter().find(|r| r.figure == "p99 ms").unwrap().low;
        assert_eq!((p99(&verdicts[0]), p99(&verdicts[1])), (3.0, 0.5));
        assert!(verdicts.iter().all(|v| v.claim && v.pairs == 5));
        assert!(table(&verdicts[0], "a").contains("| 5 pairs | a | b |"));
    }

    #[test]
    fn the_published_schema_is_that_of_the_types() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../docs/bench-versus.schema.json"
        );
        let published = fs::read_to_string(path).unwrap();
        assert!(
            published == schema(),
            "make it again: tailrace bench schema versus > docs/bench-versus.schema.json"
        );
    }

    /// The null responder of this crate's binary isn't at hand: a broker that ends at once ends the comparison with its words, and the file has it.
    #[test]
    fn a_broker_that_fails_ends_it_and_the_file_says_why() {
        let folder = std::env::temp_dir().join(format!("bench-versus-{}", std::process::id()));
        let comparison = Comparison {
            sides: vec![
                Side {
                    label: "a".into(),
                    start: Start::Shell("sh -c 'echo broken; exit 1'".into()),
                },
                side("b"),
            ],
            workloads: vec![Workload::default()],
            layout: Layout {
                name: "shared".into(),
                broker_cpus: vec![],
                load_cpus: vec![],
            },
            rounds: 1,
            folder: folder.clone(),
            settle: Duration::ZERO,
            quiet: true,
        };
        let kept = std::cell::RefCell::new(None);
        let keep = |v: &Versus| {
            *kept.borrow_mut() = Some(v.clone());
            Ok(())
        };
        let error = run(&comparison, &AtomicBool::new(false), keep).unwrap_err();
        assert!(error.to_string().contains("broken"), "{error}");
        let kept = kept.into_inner().unwrap();
        assert!(
            kept.workloads[0]
                .problem
                .as_ref()
                .unwrap()
                .contains("broken")
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
