//! `tailrace bench versus` on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{read_workload, stop_flag, write_json};
use crate::error::Error;
use crate::side::{Side, Start};
use crate::versus::{self, Comparison, Layout};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LayoutName {
    /// The broker on CPUs of its own, the load on others
    Split,
    /// Both wherever the system puts them
    Shared,
}

#[derive(Debug, Args)]
pub struct VersusArgs {
    /// Workload files, or names of those that come with it
    #[arg(required = true)]
    pub workloads: Vec<String>,
    /// Whom to compare with: kafka (as it is shipped), kafka-fsync (a flush on every message), or NAME=COMMAND, which starts a broker in the foreground; in
    /// it {dir}, {port} and {addr} stand for its data directory and address. May be repeated: all take turns
    #[arg(long = "peer", value_name = "BROKER", default_value = "kafka")]
    pub peers: Vec<String>,
    /// What ours is, as NAME=COMMAND [default: this program, serving]
    #[arg(long, value_name = "NAME=COMMAND")]
    pub ours: Option<String>,
    /// One more argument for this program as a broker; may be repeated
    #[arg(long = "ours-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub ours_args: Vec<String>,
    #[arg(long, value_enum, default_value_t = LayoutName::Split)]
    pub layout: LayoutName,
    /// In the split layout
    #[arg(long, value_name = "CPUS", value_delimiter = ',', default_value = "0")]
    pub broker_cpus: Vec<usize>,
    /// In the split layout
    #[arg(long, value_name = "CPUS", value_delimiter = ',', default_value = "1")]
    pub load_cpus: Vec<usize>,
    /// Rounds of each workload; a claim needs five
    #[arg(long, default_value_t = 5)]
    pub pairs: usize,
    /// Where the brokers' data goes, each in a new folder that is removed after its run
    #[arg(long, value_name = "DIR", default_value = "bench-data")]
    pub dir: PathBuf,
    /// The script that starts Apache Kafka
    #[arg(
        long,
        value_name = "FILE",
        default_value = "tests/peer/kafka-peer",
        env = "KAFKA_PEER"
    )]
    pub kafka_peer: PathBuf,
    /// How long the machine is left alone before and after each run, in seconds
    #[arg(long, default_value_t = 3.0)]
    pub settle_s: f64,
    /// A key of all workloads that is to differ, e.g. load.rate=20000; may be repeated
    #[arg(short, long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The share of the workloads' rates, e.g. 0.1
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Where everything goes, as JSON; it is whole after every round
    #[arg(short, long, value_name = "FILE", default_value = "versus.json")]
    pub output: PathBuf,
    /// No progress
    #[arg(short, long)]
    pub quiet: bool,
}

pub fn run(args: VersusArgs) -> Result<(), Error> {
    let wrong = |what: &str| Err(Error::Usage(what.into()));
    if !(1..=1_000).contains(&args.pairs) {
        return wrong("--pairs is between 1 and 1000");
    }
    if !(0.0..=3_600.0).contains(&args.settle_s) {
        return wrong("--settle-s is between 0 and 3600");
    }
    let layout = match args.layout {
        LayoutName::Split => Layout {
            name: "split".into(),
            broker_cpus: args.broker_cpus.clone(),
            load_cpus: args.load_cpus.clone(),
        },
        LayoutName::Shared => Layout {
            name: "shared".into(),
            broker_cpus: Vec::new(),
            load_cpus: Vec::new(),
        },
    };
    if layout
        .broker_cpus
        .iter()
        .any(|cpu| layout.load_cpus.contains(cpu))
    {
        return wrong("broker and load are on one CPU: that is neither split nor shared");
    }
    let ours = match &args.ours {
        Some(text) => Side::parse(text, &args.kafka_peer)?,
        None => this_program(args.layout, &args.ours_args)?,
    };
    let mut sides = vec![ours];
    for peer in &args.peers {
        sides.push(Side::parse(peer, &args.kafka_peer)?);
    }
    for (index, side) in sides.iter().enumerate() {
        if sides[..index].iter().any(|s| s.label == side.label) {
            return wrong(&format!("two brokers are called {}", side.label));
        }
        if let Start::Kafka { script, .. } = &side.start
            && !script.is_file()
        {
            return wrong(&format!(
                "{} isn't there: --kafka-peer says where it is",
                script.display()
            ));
        }
    }
    let workloads = args
        .workloads
        .iter()
        .map(|name| read_workload(name, &args.set, args.scale))
        .collect::<Result<Vec<_>, _>>()?;
    let comparison = Comparison {
        sides,
        workloads,
        layout,
        rounds: args.pairs,
        folder: args.dir,
        settle: Duration::from_secs_f64(args.settle_s),
        quiet: args.quiet,
    };
    let stop = stop_flag()?;
    let found = versus::run(&comparison, &stop, |versus| {
        write_json(&args.output, versus)
    })?;
    for compared in &found.workloads {
        println!("## {}, {} layout\n", compared.workload, found.layout.name);
        for verdict in &compared.verdicts {
            println!("{}", versus::table(verdict, &found.sides[0].label));
        }
    }
    let wrong = found.workloads.iter().flat_map(|w| &w.verdicts);
    let problems: Vec<String> = wrong.filter_map(|v| v.problem.clone()).collect();
    match (problems.is_empty(), found.interrupted) {
        (false, _) => Err(Error::NotAResult(problems)),
        (true, true) => Err(Error::Interrupted),
        (true, false) => Ok(()),
    }
}

/// This program as a broker.
fn this_program(layout: LayoutName, more: &[String]) -> Result<Side, Error> {
    let program = std::env::current_exe().map_err(Error::io("this program"))?;
    let mut words: Vec<String> = vec![program.display().to_string()];
    words.extend(
        [
            "serve",
            "--data-dir",
            "{dir}",
            "--kafka-addr",
            "{addr}",
            "--log",
            "warn",
        ]
        .map(Into::into),
    );
    if layout == LayoutName::Shared {
        words.push("--overprovisioned".into());
    }
    words.extend_from_slice(more);
    Ok(Side {
        label: "tailrace".into(),
        start: Start::Program(words),
    })
}
