//! A run as seen from outside its threads: intervals printed and kept, the window's ends, counters, faults, an early end; and the result at last.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use hdrhistogram::serialization::V2DeflateSerializer;

use crate::clock::{Clock, rfc3339};
use crate::device::{Device, DeviceCounters, DeviceFigures};
use crate::error::Error;
use crate::faults::Timeline;
use crate::hlog::IntervalLog;
use crate::limits;
use crate::little::{self, Samples};
use crate::machine;
use crate::measure::{Interval, Totals};
use crate::process::{self, Counters};
use crate::protocol::error_name;
use crate::result::{
    Backlog, Broker, ErrorCount, FORMAT, Generator, IntervalFigures, Latency, ReplayFigures,
    RunResult,
};
use crate::run::Options;
use crate::summary::{ms, problems};
use crate::worker::Shared;

/// How often the run looks whether it is to end, in milliseconds.
const LOOK_EVERY_MS: u64 = 20;
/// An early end lies so far ahead that every thread sees it before it comes.
const END_AHEAD_NS: u64 = 200_000_000;
/// A backlog is read up when so small a share of it is left.
const DRAINED: f64 = 0.01;

/// The run as seen from outside its threads.
pub struct Watch<'a> {
    options: &'a Options,
    shared: &'a Shared,
    clock: Clock,
    start_ns: u64,
    window: (u64, u64),
    figures: Vec<IntervalFigures>,
    /// Intervals that not every thread has sent, with how many have.
    merging: BTreeMap<u64, (Interval, usize)>,
    /// Counters of the broker's process, if one is named, and of this one, at the window's ends, with the moment; none for one that is gone.
    before: Vec<(u64, Option<Counters>)>,
    after: Vec<(u64, Option<Counters>)>,
    interrupted: bool,
    threads: usize,
    timeline: Timeline,
    device: Option<Device>,
    /// Of the device: before the load, at the window's ends.
    device_load: DeviceCounters,
    device_window: (Option<DeviceCounters>, Option<DeviceCounters>),
    /// Records that a replay is to read; when it had read how much.
    replay_records: Option<u64>,
    replay: Option<ReplayFigures>,
    backlog: Option<Backlog>,
    backlog_began_ns: u64,
}

impl<'a> Watch<'a> {
    pub fn new(
        options: &'a Options,
        shared: &'a Shared,
        clock: Clock,
        timeline: Timeline,
        device: Option<Device>,
        replay_records: Option<u64>,
    ) -> Result<Watch<'a>, Error> {
        // The set-up's writes aren't the load's.
        let device_load = match &device {
            Some(device) => device.settled()?.unwrap_or_default(),
            None => DeviceCounters::default(),
        };
        Ok(Watch {
            options,
            shared,
            clock,
            start_ns: 0,
            window: (0, 0),
            figures: Vec::new(),
            merging: BTreeMap::new(),
            before: Vec::new(),
            after: Vec::new(),
            interrupted: false,
            threads: 0,
            timeline,
            device,
            device_load,
            device_window: (None, None),
            replay_records,
            replay: None,
            backlog: None,
            backlog_began_ns: 0,
        })
    }

    /// The load begins at a moment, on so many threads.
    pub fn begin(&mut self, start_ns: u64, threads: usize) {
        self.start_ns = start_ns;
        self.threads = threads;
        self.window = self.options.workload.window_ns(start_ns);
        self.shared.end_ns.store(self.window.1, Ordering::Relaxed);
    }

    /// Prints and keeps intervals until all threads have ended.
    pub fn follow(
        &mut self,
        intervals: &Receiver<Interval>,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
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
        let threads = self.threads;
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
        self.end_of_window()?;
        drop(log);
        file.flush().map_err(Error::io(&name))
    }

    /// Notes what is due at this moment: the window's ends, an early end.
    fn look(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        let now = self.clock.now_ns();
        let ahead = now + END_AHEAD_NS;
        let enough = self
            .options
            .end_after
            .is_some_and(|n| count(&self.shared.acknowledged) >= n);
        let asked = stop.load(Ordering::Relaxed) && !self.interrupted;
        if (asked || enough) && ahead < self.window.1 {
            self.interrupted = asked;
            self.window.1 = ahead;
            self.shared.end_ns.store(ahead, Ordering::Relaxed);
        }
        if self.before.is_empty() && now >= self.window.0 {
            self.before = self.counters()?;
            self.device_window.0 = self.device.as_ref().and_then(Device::read);
        }
        if now >= self.window.1 {
            self.end_of_window()?;
        } else if now >= self.start_ns {
            let at_s = (now - self.start_ns) as f64 / 1e9;
            for said in self.timeline.look(at_s) {
                if !self.options.quiet {
                    eprintln!("{at_s:>6.0} s {said}");
                }
            }
        }
        self.look_at_backlog(now);
        self.look_at_replay(now);
        Ok(())
    }

    fn end_of_window(&mut self) -> Result<(), Error> {
        if self.after.is_empty() {
            self.after = self.counters()?;
            self.device_window.1 = self.device.as_ref().and_then(Device::read);
        }
        Ok(())
    }

    /// What had piled up when the consumers began, and when it was gone.
    fn look_at_backlog(&mut self, now: u64) {
        let load = &self.options.workload.load;
        let begin = self.start_ns + (load.consumers_begin_s * 1e9) as u64;
        if load.consumers == 0 || load.consumers_begin_s == 0.0 || now < begin {
            return;
        }
        let groups = load.consumer_groups as u64;
        let read = count(&self.shared.consumed);
        let unread = (count(&self.shared.acknowledged) * groups).saturating_sub(read);
        match &mut self.backlog {
            None => {
                self.backlog_began_ns = now;
                self.backlog = Some(Backlog {
                    records: unread,
                    drained_s: None,
                });
            }
            Some(backlog) if backlog.drained_s.is_none() => {
                if unread as f64 <= backlog.records as f64 * DRAINED {
                    backlog.drained_s = Some((now - self.backlog_began_ns) as f64 / 1e9);
                }
            }
            Some(_) => {}
        }
    }

    fn look_at_replay(&mut self, now: u64) {
        let (Some(replay), Some(records)) = (&self.options.workload.replay, self.replay_records)
        else {
            return;
        };
        let begin = self.start_ns + (replay.begin_s * 1e9) as u64;
        if now < begin || self.replay.as_ref().is_some_and(|r| r.whole) {
            return;
        }
        let seconds = ((now - begin) as f64 / 1e9).max(1e-3);
        let bytes = count(&self.shared.replayed_bytes);
        self.replay = Some(ReplayFigures {
            bytes,
            seconds,
            bytes_per_s: bytes as f64 / seconds,
            whole: count(&self.shared.replayed) >= records,
        });
    }

    fn counters(&self) -> Result<Vec<(u64, Option<Counters>)>, Error> {
        let pids = self.options.pid.into_iter().chain([std::process::id()]);
        // A timeline may end the broker.
        let may_go = !self.options.workload.faults.is_empty();
        let read = |pid| match process::read(pid) {
            Err(_) if may_go => Ok((self.clock.now_ns(), None)),
            read => Ok((self.clock.now_ns(), Some(read?))),
        };
        pids.map(read).collect()
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

    fn device_figures(&mut self, totals: &Totals) -> Result<Option<DeviceFigures>, Error> {
        let (Some(device), (Some(before), Some(after))) = (&self.device, self.device_window) else {
            return Ok(None);
        };
        let Some(settled) = device.settled()? else {
            return Ok(None);
        };
        let (window, load) = ((before, after), (self.device_load, settled));
        Ok(Some(device.figures(
            window,
            load,
            totals.acknowledged_bytes,
        )))
    }

    pub fn result(
        mut self,
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
            let groups = workload.load.consumer_groups as u64;
            let read = count(&self.shared.consumed);
            (count(&self.shared.acknowledged) * groups).saturating_sub(read)
        });
        let device = self.device_figures(totals)?;
        let faults = self.timeline.finish();
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
            let to = *self.after.get(index)?;
            // A run that was ended before its window began has no other reading.
            let from = self.before.get(index).copied().unwrap_or(to);
            let seconds = to.0.saturating_sub(from.0) as f64 / 1e9;
            let (from, to) = (from.1?, to.1?);
            let bytes = totals.bytes_in_window;
            Some(process::figures(pid, from, to, seconds, records, bytes))
        };
        let own = usize::from(self.options.pid.is_some());
        let load_process = figures(std::process::id(), own).expect("this process is there");
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
            client: self.options.client.name(workload)?,
            workload: workload.clone(),
            window_s,
            records_per_s: per_s(records as f64),
            bytes_per_s: per_s(totals.bytes_in_window as f64),
            produce: Latency::of(&totals.produce),
            end_to_end: consumers.then(|| Latency::of(&totals.end_to_end)),
            unfinished: totals.unfinished,
            unread,
            errors,
            requests: totals.requests,
            batches: totals.batches,
            retried_batches: totals.retried,
            generator,
            little,
            process: self.options.pid.and_then(|pid| figures(pid, 0)),
            load_process,
            device,
            backlog: self.backlog,
            replay: self.replay,
            faults,
            intervals: self.figures,
        };
        result.problems = problems(&result);
        result.valid = result.problems.is_empty();
        Ok(result)
    }
}

fn count(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
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
