//! A whole run: topics made, threads started, progress printed, threads joined, topics deleted, the verdict.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use hdrhistogram::serialization::V2DeflateSerializer;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use crate::clock::{Clock, rfc3339};
use crate::control::{Cluster, Control};
use crate::error::Error;
use crate::hlog::IntervalLog;
use crate::limits;
use crate::little::{self, Samples};
use crate::machine;
use crate::measure::{Interval, Totals};
use crate::process::{self, Counters};
use crate::protocol::error_name;
use crate::result::{Broker, ErrorCount, FORMAT, Generator, IntervalFigures, Latency, RunResult};
use crate::worker::{Outcome, Plan, Shared, Worker};
use crate::workload::{Mode, Workload};

/// What a run is told beside its workload.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub bootstrap: String,
    pub workload: Workload,
    /// CPUs that the load's threads are pinned to, in turn; none for no pinning.
    pub cpus: Vec<usize>,
    /// The broker's process, if it runs on this machine.
    pub pid: Option<u32>,
    pub label: Option<String>,
    pub hlog: Option<PathBuf>,
    pub keep_topics: bool,
    /// No progress on standard error.
    pub quiet: bool,
}

/// How often the run looks whether it is to end, in milliseconds.
const LOOK_EVERY_MS: u64 = 20;
/// An early end lies so far ahead that every thread sees it before it comes.
const END_AHEAD_NS: u64 = 200_000_000;

/// Carries out a run. `stop` ends it early, with what was measured.
pub fn measure(options: &Options, stop: &AtomicBool) -> Result<RunResult, Error> {
    options.workload.check()?;
    if let Some(pid) = options.pid {
        process::read(pid)?;
    }
    let clock = Clock::start();
    let workload = &options.workload;
    let names: Vec<String> = (0..workload.topics.count)
        .map(|i| format!("bench-{}-{}-{i}", clock.wall_ms, std::process::id()))
        .collect();
    let mut control = Control::connect(&options.bootstrap, workload.load.consumers > 0)?;
    let cluster = control.create(&names, &workload.topics);
    let result = cluster.and_then(|cluster| load(options, stop, clock, cluster));
    if !options.keep_topics {
        // The control connection may have been idle for as long as the run took: brokers close such.
        let deleted =
            Control::connect(&options.bootstrap, false).and_then(|mut c| c.delete(&names));
        if let (Err(e), true) = (deleted, result.is_ok()) {
            eprintln!("bench: the run's topics stay: {e}");
        }
    }
    result
}

fn load(
    options: &Options,
    stop: &AtomicBool,
    clock: Clock,
    cluster: Cluster,
) -> Result<RunResult, Error> {
    let workload = Arc::new(options.workload.clone());
    let threads = workload.client.threads;
    let machine = machine::look(&options.cpus);
    let shared = Arc::new(Shared {
        end_ns: AtomicU64::new(u64::MAX),
        failed: AtomicBool::new(false),
        producing: AtomicU64::new(threads as u64),
        acknowledged: AtomicU64::new(0),
        consumed: AtomicU64::new(0),
    });
    let (sender, intervals) = channel();
    let plan = Plan {
        workload: workload.clone(),
        cluster: Arc::new(cluster),
        clock,
        pool: payload_pool(workload.load.record_bytes),
        shared: shared.clone(),
        intervals: sender,
        index: 0,
        threads,
        cpu: None,
    };
    let workers = (0..threads)
        .map(|index| {
            let cpu = (!options.cpus.is_empty()).then(|| options.cpus[index % options.cpus.len()]);
            Worker::connect(Plan {
                index,
                cpu,
                ..plan.clone()
            })
        })
        .collect::<Result<Vec<Worker>, Error>>()?;
    let cluster = plan.cluster.clone();
    drop(plan);

    let start_ns = clock.now_ns() + 10_000_000;
    let window = workload.window_ns(start_ns);
    shared.end_ns.store(window.1, Ordering::Relaxed);
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

    let mut watch = Watch {
        options,
        shared: &shared,
        clock,
        start_ns,
        window,
        figures: Vec::new(),
        merging: BTreeMap::new(),
        before: Vec::new(),
        after: Vec::new(),
        interrupted: false,
    };
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

/// Bytes that don't compress, long enough for a record to be cut out anywhere.
fn payload_pool(record_bytes: usize) -> Arc<[u8]> {
    let mut pool = vec![0; limits::PAYLOAD_POOL_BYTES + record_bytes];
    SmallRng::seed_from_u64(0x7461_696c_7261_6365).fill_bytes(&mut pool);
    pool.into()
}

/// The run as seen from outside its threads.
struct Watch<'a> {
    options: &'a Options,
    shared: &'a Shared,
    clock: Clock,
    start_ns: u64,
    window: (u64, u64),
    figures: Vec<IntervalFigures>,
    /// Intervals that not every thread has sent, with how many have.
    merging: BTreeMap<u64, (Interval, usize)>,
    /// Counters of the broker's process, if any, and of this one, at the window's ends, with the moment.
    before: Vec<(u64, Counters)>,
    after: Vec<(u64, Counters)>,
    interrupted: bool,
}

impl Watch<'_> {
    /// Prints and keeps intervals until all threads have ended.
    fn follow(&mut self, intervals: &Receiver<Interval>, stop: &AtomicBool) -> Result<(), Error> {
        let path = self.options.hlog.clone();
        let name = path
            .as_ref()
            .map(|p| p.display().to_string())
            .unwrap_or_default();
        let mut file: Box<dyn Write> = match &path {
            Some(path) => Box::new(BufWriter::new(
                File::create(path).map_err(Error::io(&name))?,
            )),
            None => Box::new(std::io::sink()),
        };
        let mut serializer = V2DeflateSerializer::new();
        let mut log = IntervalLog::begin(
            &mut file,
            &mut serializer,
            self.clock.wall_ms,
            self.start_ns,
        )
        .map_err(Error::io(&name))?;
        let threads = self.options.workload.client.threads;
        let mut write = |watch: &mut Self, interval: Interval| {
            watch.show(&interval);
            match path {
                Some(_) => log.append(&interval).map_err(Error::io(&name)),
                None => Ok(()),
            }
        };
        loop {
            match intervals.recv_timeout(Duration::from_millis(LOOK_EVERY_MS)) {
                Ok(interval) => {
                    let index = interval.index;
                    let slot = self
                        .merging
                        .entry(index)
                        .or_insert_with(|| (Interval::new(index), 0));
                    if slot.1 == 0 {
                        slot.0.length_ns = interval.length_ns;
                    }
                    slot.0.merge(&interval);
                    slot.1 += 1;
                    if slot.1 == threads
                        && let Some((whole, _)) = self.merging.remove(&index)
                    {
                        write(self, whole)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look(stop)?;
        }
        for (interval, _) in std::mem::take(&mut self.merging).into_values() {
            write(self, interval)?;
        }
        if self.after.is_empty() {
            self.after = self.counters()?;
        }
        drop(log);
        file.flush().map_err(Error::io(&name))
    }

    /// Notes what is due at this moment: the window's ends, an early end.
    fn look(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let now = self.clock.now_ns();
        if stop.load(Ordering::Relaxed) && !self.interrupted && now + END_AHEAD_NS < self.window.1 {
            self.interrupted = true;
            self.window.1 = now + END_AHEAD_NS;
            self.shared.end_ns.store(self.window.1, Ordering::Relaxed);
        }
        if self.before.is_empty() && now >= self.window.0 {
            self.before = self.counters()?;
        }
        if self.after.is_empty() && now >= self.window.1 {
            self.after = self.counters()?;
        }
        Ok(())
    }

    fn counters(&self) -> Result<Vec<(u64, Counters)>, Error> {
        let pids = self.options.pid.into_iter().chain([std::process::id()]);
        pids.map(|pid| Ok((self.clock.now_ns(), process::read(pid)?)))
            .collect()
    }

    fn show(&mut self, interval: &Interval) {
        let end_s = (interval.index * limits::INTERVAL_NS + interval.length_ns) as f64 / 1e9;
        let seconds = interval.length_ns as f64 / 1e9;
        let end_ns = self.start_ns + (end_s * 1e9) as u64;
        let warm_up = end_ns <= self.window.0;
        let figures = IntervalFigures::of(interval, end_s, seconds, warm_up);
        // The last is the rest of a second, often nothing but the wait for the last answers.
        if seconds < 0.5 && figures.records_per_s == 0.0 {
            return;
        }
        if !self.options.quiet {
            eprintln!("{}", progress(&figures));
        }
        if self.figures.len() < limits::MAX_INTERVALS {
            self.figures.push(figures);
        }
    }

    fn result(
        self,
        machine: machine::Machine,
        broker: Broker,
        totals: &Totals,
        samples: &[Samples],
    ) -> Result<RunResult, Error> {
        let workload = &self.options.workload;
        let window_ns = self.window.1.saturating_sub(self.window.0);
        let window_s = window_ns as f64 / 1e9;
        let per_s = |n: f64| if window_s > 0.0 { n / window_s } else { 0.0 };
        let consumers = workload.load.consumers > 0;
        let unread = consumers.then(|| {
            let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
            of(&self.shared.acknowledged).saturating_sub(of(&self.shared.consumed))
        });
        let records = totals.acknowledged_in_window;
        let generator = Generator::judge(&totals.lag, &totals.produce, totals.held_back);
        let little = little::check(samples, totals, window_ns.max(1));
        let errors: Vec<ErrorCount> = totals
            .errors
            .iter()
            .map(|(code, records)| ErrorCount {
                code: *code,
                name: error_name(*code),
                records: *records,
            })
            .collect();
        let figures = |pid: u32, index: usize| {
            let (from, to) = (self.before.get(index), self.after.get(index));
            let (from, to) = from
                .zip(to)
                .map_or((self.after[index], self.after[index]), |(a, b)| (*a, *b));
            let seconds = to.0.saturating_sub(from.0) as f64 / 1e9;
            process::figures(
                pid,
                from.1,
                to.1,
                seconds,
                records,
                workload.load.record_bytes,
            )
        };
        let mut result = RunResult {
            format: FORMAT.into(),
            started: rfc3339(self.clock.wall_ms + self.start_ns / 1_000_000),
            valid: true,
            problems: Vec::new(),
            interrupted: self.interrupted,
            command: std::env::args().collect(),
            version: env!("CARGO_PKG_VERSION").into(),
            machine,
            broker,
            workload: workload.clone(),
            window_s,
            records_per_s: per_s(records as f64),
            bytes_per_s: per_s(records as f64 * workload.load.record_bytes as f64),
            produce: Latency::of(&totals.produce),
            end_to_end: consumers.then(|| Latency::of(&totals.end_to_end)),
            unfinished: totals.unfinished,
            unread,
            errors,
            requests: totals.requests,
            batches: totals.batches,
            generator,
            little,
            process: self.options.pid.map(|pid| figures(pid, 0)),
            load_process: figures(std::process::id(), usize::from(self.options.pid.is_some())),
            intervals: self.figures,
        };
        result.problems = problems(&result);
        result.valid = result.problems.is_empty();
        Ok(result)
    }
}

/// Why the figures of a run must not be used.
fn problems(result: &RunResult) -> Vec<String> {
    let mut found = Vec::new();
    let generator = &result.generator;
    if result.produce.count == 0 {
        found.push("nothing was measured".into());
    }
    for error in &result.errors {
        found.push(format!(
            "{} records were refused: {}",
            error.records, error.name
        ));
    }
    let refused: u64 = result.errors.iter().map(|e| e.records).sum();
    if result.unfinished > refused {
        found.push(format!(
            "{} records were never answered",
            result.unfinished - refused
        ));
    }
    if let Some(unread @ 1..) = result.unread {
        found.push(format!("{unread} acknowledged records reached no consumer"));
    }
    if result.workload.load.mode == Mode::Open && generator.fell_behind {
        found.push(format!(
            "the generator fell behind its schedule: p50 {:.0}, p99 {:.0}, p99.9 {:.0} µs late",
            generator.lag_p50, generator.lag_p99, generator.lag_p99_9
        ));
    }
    let little = &result.little;
    if !little.holds {
        found.push(format!(
            "Little's law doesn't hold: {:.2} records in flight were counted, {:.2} follow from rate and latency",
            little.in_flight, little.from_latency
        ));
    }
    found
}

/// One line of progress.
fn progress(f: &IntervalFigures) -> String {
    let consumed = f
        .end_to_end_p99
        .map(|p99| format!("  read p99 {}", ms(p99)))
        .unwrap_or_default();
    format!(
        "{:>6.0} s{} {:>9.0}/s  p50 {}  p99 {}  max {} ms{consumed}  in flight {}  errors {}",
        f.at_s,
        if f.warm_up { " warm-up" } else { "" },
        f.records_per_s,
        ms(f.p50),
        ms(f.p99),
        ms(f.max),
        f.in_flight,
        f.errors
    )
}

/// Microseconds as milliseconds, three digits that count.
pub fn ms(us: f64) -> String {
    let ms = us / 1e3;
    match ms {
        m if m < 10.0 => format!("{m:.3}"),
        m if m < 100.0 => format!("{m:.2}"),
        m => format!("{m:.1}"),
    }
}

/// A run in a few lines, for people.
pub fn summary(r: &RunResult) -> String {
    let line = |name: &str, l: &Latency| {
        format!(
            "{name:<12} p50 {}  p90 {}  p99 {}  p99.9 {}  p99.99 {}  max {} ms\n",
            ms(l.p50),
            ms(l.p90),
            ms(l.p99),
            ms(l.p99_9),
            ms(l.p99_99),
            ms(l.max)
        )
    };
    let mut out = format!(
        "{}: {:.0} records/s, {:.2} MB/s over {:.1} s{}\n",
        if r.workload.name.is_empty() {
            "run"
        } else {
            &r.workload.name
        },
        r.records_per_s,
        r.bytes_per_s / 1e6,
        r.window_s,
        if r.interrupted { ", ended early" } else { "" }
    );
    out += &line("produce", &r.produce);
    if let Some(consumed) = &r.end_to_end {
        out += &line("end to end", consumed);
    }
    if r.workload.load.mode == Mode::Open {
        out += &format!(
            "generator    late by p50 {}  p99 {}  p99.9 {}  max {} ms; {} records held back by the broker\n",
            ms(r.generator.lag_p50),
            ms(r.generator.lag_p99),
            ms(r.generator.lag_p99_9),
            ms(r.generator.lag_max),
            r.generator.held_back
        );
    }
    out += &format!(
        "Little's law {:.2} in flight counted, {:.2} from rate × latency: {}\n",
        r.little.in_flight,
        r.little.from_latency,
        if r.little.holds {
            "holds"
        } else {
            "DOESN'T HOLD"
        }
    );
    for (name, p) in [
        ("broker", r.process.as_ref()),
        ("load", Some(&r.load_process)),
    ] {
        let Some(p) = p else { continue };
        let written = match p.written_per_produced {
            Some(ratio) if name == "broker" => {
                format!(", {ratio:.2} bytes written per byte produced")
            }
            _ => String::new(),
        };
        out += &format!(
            "{name:<12} {:.2} CPU s, {:.0} records per CPU s, {} MiB resident, {} context switches{written}\n",
            p.user_cpu_s + p.system_cpu_s,
            p.records_per_cpu_s,
            p.rss_bytes >> 20,
            p.voluntary_switches + p.involuntary_switches
        );
    }
    out
}
