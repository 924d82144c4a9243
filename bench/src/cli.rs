//! The command line of `tailrace bench`.

mod max;
mod probe;
mod versus;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::error::Error;
use crate::null::{NullResponder, Stall};
use crate::report::Material;
use crate::result::RunResult;
use crate::run::{self, Options};
use crate::self_check::{self, SelfCheck};
use crate::workload::Workload;
use crate::{compare, report, result, shipped};
use max::MaxArgs;
use probe::ProbeArgs;
use versus::VersusArgs;

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Run a workload against a broker that speaks the Kafka protocol
    Run(RunArgs),
    /// Check the instrument itself: its floor, and whether a planted stall shows
    SelfCheck(SelfCheckArgs),
    /// A responder that acknowledges at once and keeps nothing
    NullResponder(NullArgs),
    /// Make one HTML page of result files
    Report(ReportArgs),
    /// Set runs of two brokers against each other, pair by pair
    Compare(CompareArgs),
    /// Find the highest rate that a broker holds
    Max(MaxArgs),
    /// Start brokers in turns, and tell how many times better this one is
    Versus(VersusArgs),
    /// Measure what this machine itself takes: a durable write, a round trip, reading its disk
    Probe(ProbeArgs),
    /// Print the workloads that come with it, or one of them
    Workloads { name: Option<String> },
    /// Print the JSON schema of result files, or those of `versus` and `max`
    Schema {
        #[arg(value_enum, default_value_t = SchemaOf::Run)]
        of: SchemaOf,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum SchemaOf {
    Run,
    Versus,
    Max,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// A workload file, or the name of one that comes with it
    pub workload: String,
    /// A key of the workload that is to differ, e.g. load.rate=20000; may be repeated
    #[arg(short, long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The share of the workload's rate, e.g. 0.1
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// The broker to start from
    #[arg(
        short,
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9092",
        env = "TAILRACE_BROKER"
    )]
    pub broker: String,
    /// CPUs to pin the load's threads to, e.g. 1 or 2,3
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// The broker's process, whose CPU, memory and writes are to be counted
    #[arg(long)]
    pub pid: Option<u32>,
    /// Where the broker keeps its data on this machine: what goes to the disk below it is to be counted
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// What the broker is called in the result
    #[arg(long)]
    pub label: Option<String>,
    /// Where the result goes, as JSON
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Where the interval log goes, in HdrHistogram's format
    #[arg(long, value_name = "FILE")]
    pub hlog: Option<PathBuf>,
    /// Whose client carries the load
    #[arg(long, value_enum, default_value_t)]
    pub client: run::ClientKind,
    /// Leave the run's topics
    #[arg(long)]
    pub keep_topics: bool,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct SelfCheckArgs {
    /// Records a second
    #[arg(long, default_value_t = SelfCheck::default().rate)]
    pub rate: f64,
    /// What counts of each of the two runs, in seconds
    #[arg(long, default_value_t = SelfCheck::default().length_s)]
    pub length_s: f64,
    /// How long the responder stalls, in milliseconds
    #[arg(long, default_value_t = SelfCheck::default().stall_ms)]
    pub stall_ms: u64,
    /// How often, in seconds
    #[arg(long, default_value_t = SelfCheck::default().stall_every_s)]
    pub stall_every_s: f64,
    /// CPUs to pin the load's threads to
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// The CPU to pin the responder to
    #[arg(long, value_name = "CPU")]
    pub responder_cpu: Option<usize>,
    /// Where both results go, as JSON
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct NullArgs {
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:19292")]
    pub listen: String,
    /// The CPU to pin it to
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Answer nothing for so long, in milliseconds
    #[arg(long, default_value_t = 0)]
    pub stall_ms: u64,
    /// How often, in seconds
    #[arg(long, default_value_t = 10.0)]
    pub stall_every_s: f64,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Result files of `run`, and of `versus`
    #[arg(required = true)]
    pub results: Vec<PathBuf>,
    /// Where the page goes
    #[arg(short, long, value_name = "FILE", default_value = "bench.html")]
    pub output: PathBuf,
    /// Where the percentile curves go, as SVG; of a comparison, those of its first workload
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Result files of the one side, in the order in which they were made
    #[arg(long, required = true, num_args = 1..)]
    pub ours: Vec<PathBuf>,
    /// Result files of the other, made in turns with the first
    #[arg(long, required = true, num_args = 1..)]
    pub theirs: Vec<PathBuf>,
}

/// Carries out a command.
pub fn run(command: BenchCommand) -> Result<(), Error> {
    match command {
        BenchCommand::Run(args) => run_workload(args),
        BenchCommand::SelfCheck(args) => check(args),
        BenchCommand::NullResponder(args) => respond(&args),
        BenchCommand::Report(args) => report(&args),
        BenchCommand::Compare(args) => compare(&args),
        BenchCommand::Workloads { name } => workloads(name.as_deref()),
        BenchCommand::Max(args) => max::run(args),
        BenchCommand::Versus(args) => versus::run(args),
        BenchCommand::Probe(args) => probe::run(args),
        BenchCommand::Schema { of } => {
            let schema = match of {
                SchemaOf::Run => result::schema(),
                SchemaOf::Max => crate::max::schema(),
                SchemaOf::Versus => crate::versus::schema(),
            };
            print!("{schema}");
            Ok(())
        }
    }
}

/// A flag that the first ctrl-C or SIGTERM raises; the second ends the process at once.
fn stop_flag() -> Result<Arc<AtomicBool>, Error> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, flag.clone())
            .map_err(Error::io("a signal"))?;
        signal_hook::flag::register(signal, flag.clone()).map_err(Error::io("a signal"))?;
    }
    Ok(flag)
}

fn options(args: RunArgs) -> Result<Options, Error> {
    Ok(Options {
        bootstrap: args.broker,
        workload: read_workload(&args.workload, &args.set, args.scale)?,
        cpus: args.cpus,
        pid: args.pid,
        data_dir: args.data_dir,
        label: args.label,
        hlog: args.hlog,
        keep_topics: args.keep_topics,
        quiet: args.quiet,
        client: args.client,
        end_after: None,
    })
}

fn run_workload(args: RunArgs) -> Result<(), Error> {
    let output = args.output.clone();
    let options = options(args)?;
    let stop = stop_flag()?;
    let result = run::measure(&options, &stop)?;
    if let Some(path) = &output {
        write_json(path, &result)?;
    }
    print!("{}", run::summary(&result));
    if result.valid {
        return Ok(());
    }
    Err(Error::NotAResult(result.problems))
}

fn write_json(path: &PathBuf, value: &impl serde::Serialize) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::Usage(format!("the result can't be written: {e}")))?
        + "\n";
    // Whole at any time: a reader sees the old one or the new one. A pipe can't be replaced.
    let written = match path.exists() && !path.is_file() {
        true => std::fs::write(path, text),
        false => {
            let new = path.with_added_extension("new");
            std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path))
        }
    };
    written.map_err(Error::io(path.display().to_string()))
}

/// A file, or a shipped workload, with single keys replaced, at a share of its rate.
fn read_workload(name: &str, set: &[String], scale: f64) -> Result<Workload, Error> {
    let text = match shipped(name) {
        Some(text) => text.to_owned(),
        None => std::fs::read_to_string(name).map_err(Error::io(format!(
            "no workload is called {name}, and the file"
        )))?,
    };
    let mut table: toml::Table = text
        .parse()
        .map_err(|e| Error::Usage(format!("{name}: {e}")))?;
    for setting in set {
        replace(&mut table, setting)?;
    }
    let workload = Workload::parse(&table.to_string()).map(|w| w.scaled(scale));
    let checked = workload.and_then(|w| w.check().map(|()| w));
    checked.map_err(|e| match e {
        Error::Usage(what) => Error::Usage(format!("{name}: {what}")),
        other => other,
    })
}

/// Sets one key, `section.key=value`; a value that isn't TOML is a string.
fn replace(table: &mut toml::Table, setting: &str) -> Result<(), Error> {
    let wrong = || Error::Usage(format!("--set {setting}: it takes section.key=value"));
    let (path, value) = setting.split_once('=').ok_or_else(wrong)?;
    let parsed: Result<toml::Table, _> = format!("value = {value}").parse();
    let value = match parsed {
        Ok(mut t) => t.remove("value").ok_or_else(wrong)?,
        Err(_) => toml::Value::String(value.to_owned()),
    };
    let mut keys: Vec<&str> = path.split('.').collect();
    let last = keys.pop().ok_or_else(wrong)?;
    let mut at = table;
    for key in keys {
        let next = at
            .entry(key)
            .or_insert_with(|| toml::Value::Table(toml::Table::new()));
        at = next.as_table_mut().ok_or_else(wrong)?;
    }
    at.insert(last.to_owned(), value);
    Ok(())
}

fn check(args: SelfCheckArgs) -> Result<(), Error> {
    let check = SelfCheck {
        rate: args.rate,
        length_s: args.length_s,
        stall_ms: args.stall_ms,
        stall_every_s: args.stall_every_s,
        cpus: args.cpus,
        responder_cpu: args.responder_cpu,
        quiet: args.quiet,
    };
    let stop = stop_flag()?;
    let outcome = self_check::run(&check, &stop)?;
    if let Some(path) = &args.output {
        write_json(path, &[&outcome.floor, &outcome.stalled])?;
    }
    print!("{}", self_check::summary(&outcome));
    if outcome.problems.is_empty() {
        println!("the instrument passes");
        return Ok(());
    }
    Err(Error::SelfCheck(outcome.problems))
}

fn respond(args: &NullArgs) -> Result<(), Error> {
    if args.stall_every_s.is_nan() || args.stall_every_s <= 0.0 || args.stall_every_s > 86_400.0 {
        return Err(Error::Usage(
            "--stall-every-s is above 0 and at most a day".into(),
        ));
    }
    let every = Duration::from_secs_f64(args.stall_every_s);
    let stall = (args.stall_ms > 0).then(|| Stall {
        first: every / 4,
        length: Duration::from_millis(args.stall_ms),
        every,
    });
    let stop = stop_flag()?;
    let responder = NullResponder::start(&args.listen, stall, args.cpu)?;
    eprintln!("answering on {}", responder.address());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Reads a result file, of a format that this version knows.
fn read_file(path: &Path, material: &mut Material) -> Result<(), Error> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(Error::io(&name))?;
    let wrong = |e: serde_json::Error| Error::Usage(format!("{name}: {e}"));
    let value: serde_json::Value = serde_json::from_str(&text).map_err(wrong)?;
    match value.get("format").and_then(|f| f.as_str()) {
        Some(result::FORMAT) => {
            let run = serde_json::from_value(value).map_err(wrong)?;
            material.runs.push(run);
        }
        Some(crate::versus::FORMAT) => {
            let versus = serde_json::from_value(value).map_err(wrong)?;
            material.comparisons.push(versus);
        }
        other => {
            let format = other.unwrap_or("no format at all");
            return Err(Error::Usage(format!("{name} is of {format}")));
        }
    }
    Ok(())
}

/// Reads results of single runs.
fn read_results(paths: &[PathBuf]) -> Result<Vec<RunResult>, Error> {
    let mut material = Material::default();
    for path in paths {
        read_file(path, &mut material)?;
    }
    if !material.comparisons.is_empty() {
        return Err(Error::Usage("it takes results of single runs".into()));
    }
    Ok(material.runs)
}

fn compare(args: &CompareArgs) -> Result<(), Error> {
    let (ours, theirs) = (read_results(&args.ours)?, read_results(&args.theirs)?);
    fn refs(runs: &[RunResult]) -> Vec<&RunResult> {
        runs.iter().collect()
    }
    let ratios = compare::compare(&refs(&ours), &refs(&theirs))?;
    let name = |runs: &[RunResult]| {
        let broker = &runs[0].broker;
        broker
            .label
            .clone()
            .unwrap_or_else(|| broker.bootstrap.clone())
    };
    print!(
        "{}",
        compare::table(&ratios, ours.len(), &name(&ours), &name(&theirs))
    );
    Ok(())
}

fn report(args: &ReportArgs) -> Result<(), Error> {
    let mut material = Material::default();
    for path in &args.results {
        read_file(path, &mut material)?;
    }
    let write = |path: &PathBuf, text: String| {
        std::fs::write(path, text).map_err(Error::io(path.display().to_string()))
    };
    write(&args.output, report::page(&material))?;
    args.svg
        .as_ref()
        .map_or(Ok(()), |path| write(path, report::curves(&material)))
}

fn workloads(name: Option<&str>) -> Result<(), Error> {
    match name {
        None => crate::SHIPPED.iter().for_each(|(name, text)| {
            let first = text
                .lines()
                .next()
                .unwrap_or("")
                .trim_start_matches('#')
                .trim();
            println!("{name:<18} {first}");
        }),
        Some(name) => match shipped(name) {
            Some(text) => print!("{text}"),
            None => return Err(Error::Usage(format!("no workload is called {name}"))),
        },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Mode;

    #[test]
    fn single_keys_are_replaced_and_checked() {
        let set = |s: &[&str]| {
            read_workload(
                "latency-12",
                &s.iter().map(|s| s.to_string()).collect::<Vec<_>>(),
                1.0,
            )
        };
        let w = set(&[
            "load.rate=77",
            "load.mode=open",
            "topics.configs.retention.ms=\"5\"",
            "client.linger-ms=2",
        ]);
        assert!(
            matches!(w, Err(Error::Usage(_))),
            "a dot in a config's name makes a table"
        );
        let w = set(&["load.rate=77", "load.mode=open", "client.linger-ms=2"]).unwrap();
        assert_eq!(
            (w.load.rate, w.load.mode, w.client.linger_ms),
            (77.0, Mode::Open, 2.0)
        );
        for wrong in ["load.rate", "load.rat=5", "load.rate=x", "name.x=5"] {
            assert!(matches!(set(&[wrong]), Err(Error::Usage(_))), "{wrong}");
        }
        let half = read_workload("latency-12", &[], 0.5).unwrap();
        assert_eq!(
            (half.load.rate, half.name.as_str()),
            (2_500.0, "latency-12 × 0.5")
        );
        assert!(read_workload("latency-12", &[], 0.0).is_err());
        assert!(matches!(
            read_workload("/nowhere", &[], 1.0),
            Err(Error::Io { .. })
        ));
    }
}
