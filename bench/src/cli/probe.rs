//! `tailrace bench probe` on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::write_json;
use crate::error::Error;
use crate::probe::{self, Probe};

#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// A directory on the disk that a broker's data is on; a file of 1 GiB is made in it and removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// CPUs that a broker would run on
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub broker_cpus: Vec<usize>,
    /// CPUs that its clients would run on
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub load_cpus: Vec<usize>,
    /// How long each figure is measured for, in seconds
    #[arg(long, default_value_t = 2.0)]
    pub each_s: f64,
    /// Operations a second of what is measured at a pace too
    #[arg(long, default_value_t = 1_000.0)]
    pub rate: f64,
    /// Where it goes, as JSON
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

pub fn run(args: ProbeArgs) -> Result<(), Error> {
    if !(0.01..=600.0).contains(&args.each_s) || !(1.0..=100_000.0).contains(&args.rate) {
        let why = "--each-s is between 0.01 and 600, --rate between 1 and 100000";
        return Err(Error::Usage(why.into()));
    }
    let found = probe::run(&Probe {
        folder: args.dir,
        broker_cpus: args.broker_cpus,
        load_cpus: args.load_cpus,
        each: Duration::from_secs_f64(args.each_s),
        pace: Duration::from_secs_f64(1.0 / args.rate),
    })?;
    if let Some(path) = &args.output {
        write_json(path, &found)?;
    }
    print!("{}", probe::summary(&found));
    Ok(())
}
