//! A whole run: topics made, threads started, progress printed, threads joined, topics deleted, the verdict.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use crate::clock::Clock;
use crate::control::{Cluster, Control};
use crate::device::Device;
use crate::error::Error;
use crate::faults::{self, About, Timeline};
use crate::limits;
use crate::machine;
use crate::measure::Totals;
use crate::process;
use crate::records::payload_pool;
use crate::result::{Broker, RunResult};
use crate::watch::Watch;
use crate::worker::{Outcome, Plan, Share, Shared, Worker};
use crate::workload::{Mode, Topics, Workload};

pub use crate::summary::{ms, summary};

/// What a run is told beside its workload.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub bootstrap: String,
    pub workload: Workload,
    /// CPUs that the load's threads are pinned to, in turn; none for no pinning.
    pub cpus: Vec<usize>,
    /// The broker's process, if it runs on this machine.
    pub pid: Option<u32>,
    /// Where the broker keeps its data, if it runs on this machine: the disk below it is looked at.
    pub data_dir: Option<PathBuf>,
    pub label: Option<String>,
    pub hlog: Option<PathBuf>,
    pub keep_topics: bool,
    /// No progress on standard error.
    pub quiet: bool,
    /// Whose client carries the load.
    pub client: ClientKind,
    /// The run ends when so many records are acknowledged.
    pub end_after: Option<u64>,
}

/// Clients that can carry a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ClientKind {
    /// The instrument's own: few allocations, one thread
    #[default]
    Own,
    /// What an application sees; in builds with the feature librdkafka
    Librdkafka,
}

impl ClientKind {
    /// Its name and version in results, or why it can't be had.
    pub fn name(self, workload: &Workload) -> Result<String, Error> {
        match self {
            ClientKind::Own => Ok("own".into()),
            #[cfg(feature = "librdkafka")]
            ClientKind::Librdkafka if workload.replay.is_none() => Ok(crate::librdkafka::version()),
            #[cfg(feature = "librdkafka")]
            ClientKind::Librdkafka => Err(Error::Usage(format!(
                "{}: librdkafka replays nothing",
                workload.name
            ))),
            #[cfg(not(feature = "librdkafka"))]
            ClientKind::Librdkafka => Err(Error::Usage(format!(
                "{}: this build has no librdkafka: it takes cargo build --features librdkafka",
                workload.name
            ))),
        }
    }
}

/// A thread of the load before it runs.
enum Loader {
    Own(Box<Worker>),
    #[cfg(feature = "librdkafka")]
    Librdkafka(Box<crate::librdkafka::Session>),
}

impl Loader {
    fn connect(kind: ClientKind, plan: Plan) -> Result<Loader, Error> {
        Ok(match kind {
            ClientKind::Own => Loader::Own(Box::new(Worker::connect(plan)?)),
            #[cfg(feature = "librdkafka")]
            ClientKind::Librdkafka => {
                Loader::Librdkafka(Box::new(crate::librdkafka::Session::connect(plan)?))
            }
            #[cfg(not(feature = "librdkafka"))]
            ClientKind::Librdkafka => unreachable!("`name` refused it"),
        })
    }

    fn run(self, start_ns: u64) -> Result<Outcome, Error> {
        match self {
            Loader::Own(worker) => worker.run(start_ns),
            #[cfg(feature = "librdkafka")]
            Loader::Librdkafka(session) => session.run(start_ns),
        }
    }
}

/// Carries out a run. `stop` ends it early, with what was measured.
pub fn measure(options: &Options, stop: &AtomicBool) -> Result<RunResult, Error> {
    options.workload.check()?;
    if let Some(pid) = options.pid {
        process::read(pid)?;
    }
    let mut options = options.clone();
    options.client.name(&options.workload)?;
    let threads = reading_threads(&options);
    options.workload.client.consumer_threads = Some(threads);
    let clock = Clock::start();
    let names = |kind: &str, count: usize| -> Vec<String> {
        let (wall_ms, pid) = (clock.wall_ms, std::process::id());
        let name = |i| format!("bench-{kind}{wall_ms}-{pid}-{i}");
        (0..count).map(name).collect()
    };
    let live = names("", options.workload.topics.count);
    let old = names("replay-", usize::from(options.workload.replay.is_some()));
    let result = set_up(&options, stop, clock, &live, &old);
    if !options.keep_topics {
        // The control connection may have been idle for as long as the run took: brokers close such.
        let all: Vec<String> = live.into_iter().chain(old).collect();
        let deleted = Control::connect(&options.bootstrap, false).and_then(|mut c| c.delete(&all));
        if let (Err(e), true) = (deleted, result.is_ok()) {
            eprintln!("bench: the run's topics stay: {e}");
        }
    }
    result
}

/// Threads that only read: as the workload says, or one where the load has a CPU for it.
fn reading_threads(options: &Options) -> usize {
    let workload = &options.workload;
    if workload.consumers() == 0 && workload.replay.is_none() {
        return 0;
    }
    if options.client == ClientKind::Librdkafka {
        // Each is polled by a thread of its own.
        return workload.consumers();
    }
    let cpus = match options.cpus.len() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        named => named,
    };
    let spare = usize::from(cpus > workload.client.threads);
    workload.client.consumer_threads.unwrap_or(spare)
}

/// Makes the topics, fills those that are replayed, carries the load.
fn set_up(
    options: &Options,
    stop: &AtomicBool,
    clock: Clock,
    live: &[String],
    old: &[String],
) -> Result<RunResult, Error> {
    let workload = &options.workload;
    let reads = workload.consumers() > 0 || workload.replay.is_some();
    let mut control = Control::connect(&options.bootstrap, reads)?;
    let cluster = control.create(live, &workload.topics)?;
    let replay = match &workload.replay {
        Some(replay) => {
            let topics = Topics {
                partitions: replay.partitions,
                replication: workload.topics.replication,
                ..Topics::default()
            };
            let cluster = control.create(old, &topics)?;
            let filled = fill(options, stop, clock, &cluster, replay.bytes)?;
            if let Some(command) = &replay.before {
                let mut shell = faults::shell(command, &about(options));
                let status = shell.status().map_err(Error::io(command))?;
                if !status.success() {
                    return Err(Error::Usage(format!("{command}: {status}")));
                }
            }
            Some((cluster, filled))
        }
        None => None,
    };
    // While topics were filled the connection was idle.
    let ids = match workload.client.idempotence {
        true => {
            let mut control = Control::connect(&options.bootstrap, false)?;
            control.producer_ids(workload.load.producers)?
        }
        false => Vec::new(),
    };
    load(options, stop, clock, cluster, replay, ids)
}

fn about(options: &Options) -> About {
    About {
        broker: options.bootstrap.clone(),
        pid: options.pid,
        data_dir: options.data_dir.clone(),
    }
}

/// Fills topics with at least so many bytes of values; how many records that took.
fn fill(
    options: &Options,
    stop: &AtomicBool,
    clock: Clock,
    cluster: &Cluster,
    bytes: u64,
) -> Result<u64, Error> {
    let mut workload = Workload {
        name: "fill".into(),
        ..Workload::default()
    };
    workload.topics.partitions = cluster.partitions.len() as i32;
    workload.load.mode = Mode::FlatOut;
    workload.load.record_bytes = options.workload.load.record_bytes;
    workload.records.compressible = options.workload.records.compressible;
    workload.client.batch_bytes = 256 << 10;
    workload.client.codec = options.workload.client.codec;
    workload.time.warm_up_s = 0.0;
    workload.time.length_s = limits::MAX_RUN_S;
    workload.time.drain_s = 60.0;
    workload.client.consumer_threads = Some(0);
    let options = Options {
        bootstrap: options.bootstrap.clone(),
        cpus: options.cpus.clone(),
        quiet: options.quiet,
        end_after: Some(bytes.div_ceil(options.workload.load.record_bytes as u64)),
        workload,
        ..Options::default()
    };
    if !options.quiet {
        eprintln!("filling {} MB to replay", bytes / 1_000_000);
    }
    let result = load(&options, stop, clock, cluster.clone(), None, Vec::new())?;
    if result.interrupted {
        return Err(Error::NotAResult(vec![
            "it was ended before the load began".into(),
        ]));
    }
    if result.unfinished > 0 {
        return Err(Error::NotAResult(result.problems));
    }
    // Every record made was acknowledged, and every acknowledgement is in the window.
    Ok(result.produce.count)
}

fn load(
    options: &Options,
    stop: &AtomicBool,
    clock: Clock,
    cluster: Cluster,
    replay: Option<(Cluster, u64)>,
    ids: Vec<(i64, i16)>,
) -> Result<RunResult, Error> {
    let workload = Arc::new(options.workload.clone());
    let threads = workload.client.threads;
    let shares = Share::deal(
        &workload,
        threads,
        workload.client.consumer_threads.unwrap_or(0),
    );
    let machine = machine::look(&options.cpus);
    let timeline = Timeline::new(&workload.faults, about(options))?;
    let device = options.data_dir.as_ref().and_then(|dir| Device::of(dir));
    let shared = Arc::new(Shared::new(shares.len()));
    let (sender, intervals) = channel();
    let (replay, replayed) = replay.unzip();
    let plan = Plan {
        workload: workload.clone(),
        cluster: Arc::new(cluster),
        clock,
        pool: payload_pool(workload.record_bounds().1, workload.records.compressible),
        shared: shared.clone(),
        intervals: sender,
        replay: replay.map(Arc::new),
        ids: ids.into(),
        index: 0,
        share: Share::default(),
        cpu: None,
    };
    let workers = shares
        .into_iter()
        .enumerate()
        .map(|(index, share)| {
            let cpu = (!options.cpus.is_empty()).then(|| options.cpus[index % options.cpus.len()]);
            let plan = Plan {
                index,
                share,
                cpu,
                ..plan.clone()
            };
            Loader::connect(options.client, plan)
        })
        .collect::<Result<Vec<Loader>, Error>>()?;
    let cluster = plan.cluster.clone();
    drop(plan);

    let mut watch = Watch::new(options, &shared, clock, timeline, device, replayed)?;
    let start_ns = clock.now_ns() + 10_000_000;
    watch.begin(start_ns, workers.len());
    let handles = workers
        .into_iter()
        .map(|worker| {
            std::thread::Builder::new()
                .name("bench-load".into())
                .spawn(move || worker.run(start_ns))
                .map_err(Error::io("a thread"))
        })
        .collect::<Result<Vec<_>, Error>>();
    let handles = handles.inspect_err(|_| shared.failed.store(true, Ordering::Relaxed))?;
    let watched = watch.follow(&intervals, stop);
    if watched.is_err() {
        shared.failed.store(true, Ordering::Relaxed);
    }
    let outcomes = join(handles)?;
    watched?;
    let mut totals = Totals::default();
    let mut samples = Vec::new();
    for outcome in outcomes {
        totals.merge(&outcome.totals);
        samples.push(outcome.samples);
    }
    let broker = Broker {
        bootstrap: options.bootstrap.clone(),
        cluster_id: cluster.cluster_id.clone(),
        nodes: cluster.brokers.len(),
        label: options.label.clone(),
    };
    watch.result(machine, broker, &totals, &samples)
}

fn join(handles: Vec<JoinHandle<Result<Outcome, Error>>>) -> Result<Vec<Outcome>, Error> {
    let ended: Vec<_> = handles
        .into_iter()
        .map(|h| {
            h.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
        .collect();
    ended.into_iter().collect()
}
