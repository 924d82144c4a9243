//! Little's law, checked in every run: records in flight = rate × mean latency.
//!
//! The left side is counted, not computed: at one random moment in each two milliseconds, how many records are due by the schedule (an instance
//! of its own) and not answered. The right side comes from the histogram. They agree only if no record was lost or counted twice, and if
//! latency really counts from the schedule: a harness that times from the moment of sending fails it as soon as the broker stalls.
//!
//! A window cuts through the records that are under way at its ends; what they spend outside is taken off exactly, so the law holds in
//! overload too, where in-flight grows without end.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::SAMPLE_EVERY_NS;
use crate::measure::Totals;
use crate::schedule::Schedule;

/// How many records are due by a moment.
#[derive(Clone, Debug)]
pub enum Due {
    /// Open loop: by the schedule.
    Scheduled(Vec<Schedule>),
    /// Closed loop: those made so far.
    Made(u64),
}

/// Counts the records in flight of one thread.
#[derive(Clone, Debug)]
pub struct Sampler {
    due: Due,
    completed: u64,
    begin_ns: u64,
    stratum: u64,
    next_ns: u64,
    random: SmallRng,
    samples: Samples,
}

/// Sums over the moments looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Samples {
    pub count: u64,
    sum: f64,
    /// Of the squares of the steps from sample to sample: their spread, whatever the trend.
    step_squares: f64,
    last: f64,
}

impl Sampler {
    pub fn new(due: Due, begin_ns: u64, seed: u64) -> Sampler {
        let mut sampler = Sampler {
            due,
            completed: 0,
            begin_ns,
            stratum: 0,
            next_ns: 0,
            random: SmallRng::seed_from_u64(seed),
            samples: Samples::default(),
        };
        sampler.draw();
        sampler
    }

    fn draw(&mut self) {
        let within: f64 = self.random.random();
        self.next_ns = self.begin_ns + ((self.stratum as f64 + within) * SAMPLE_EVERY_NS) as u64;
        self.stratum += 1;
    }

    /// Looks at every moment up to `now_ns` that lies before `end_ns`. Called before what happens at `now_ns` is counted.
    pub fn look(&mut self, now_ns: u64, end_ns: u64) {
        while self.next_ns < now_ns && self.next_ns < end_ns {
            let value = self.in_flight(self.next_ns) as f64;
            let samples = &mut self.samples;
            if samples.count > 0 {
                samples.step_squares += (value - samples.last).powi(2);
            }
            samples.last = value;
            samples.count += 1;
            samples.sum += value;
            self.draw();
        }
    }

    /// Records due by `now_ns` and not completed. Moments must not go back.
    pub fn in_flight(&mut self, now_ns: u64) -> u64 {
        let due = match &mut self.due {
            Due::Scheduled(schedules) => schedules.iter_mut().map(|s| s.advance_to(now_ns)).sum(),
            Due::Made(count) => *count,
        };
        due.saturating_sub(self.completed)
    }

    /// Records of a closed loop were made.
    pub fn made(&mut self, count: u64) {
        if let Due::Made(made) = &mut self.due {
            *made += count;
        }
    }

    pub fn completed(&mut self, count: u64) {
        self.completed += count;
    }

    pub fn samples(&self) -> Samples {
        self.samples
    }
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Little {
    /// Records in flight, counted.
    pub in_flight: f64,
    /// The same from the latencies: rate × mean, less what the window cuts off.
    pub from_latency: f64,
    /// Records a second that were due in the window.
    pub rate_per_s: f64,
    pub mean_latency_us: f64,
    pub samples: u64,
    /// How far the two may lie apart: 5 % and four standard errors of the samples.
    pub tolerance: f64,
    pub holds: bool,
}

pub fn check(threads: &[Samples], totals: &Totals, window_ns: u64) -> Little {
    let mean = |s: &Samples| {
        if s.count == 0 {
            0.0
        } else {
            s.sum / s.count as f64
        }
    };
    let error_squared = |s: &Samples| {
        let n = s.count.max(2) as f64;
        s.step_squares / 2.0 / (n - 1.0) / n
    };
    let in_flight: f64 = threads.iter().map(mean).sum();
    let standard_error = threads.iter().map(error_squared).sum::<f64>().sqrt();
    let histogram = &totals.produce;
    let cut_off = totals.overlap_sum_ns as f64 - totals.latency_sum_ns as f64;
    let mean_latency_ns = if histogram.is_empty() {
        0.0
    } else {
        histogram.mean()
    };
    let from_latency = (histogram.len() as f64 * mean_latency_ns + cut_off) / window_ns as f64;
    let tolerance = 0.05 * in_flight.max(from_latency) + 4.0 * standard_error + 0.01;
    Little {
        in_flight,
        from_latency,
        rate_per_s: histogram.len() as f64 * 1e9 / window_ns as f64,
        mean_latency_us: mean_latency_ns / 1e3,
        samples: threads.iter().map(|s| s.count).sum(),
        tolerance,
        holds: (in_flight - from_latency).abs() <= tolerance,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Recorder;
    use crate::workload::Arrivals;

    const WINDOW: (u64, u64) = (1_000_000_000, 6_000_000_000);

    /// Serves a schedule with one server and says what the law says; `from` makes of (due, sent) the moment that latency counts from.
    fn run(
        arrivals: Arrivals,
        rate: f64,
        service_ns: impl Fn(u64) -> u64,
        from: impl Fn(u64, u64) -> u64,
        lose: u64,
    ) -> Little {
        let schedule = Schedule::new(arrivals, rate, 0, 1, 3, 0);
        let mut sampler = Sampler::new(Due::Scheduled(vec![schedule.clone()]), WINDOW.0, 9);
        let mut recorder = Recorder::new(WINDOW);
        let (mut load, mut free, mut n) = (schedule, 0, 0);
        while load.peek() < WINDOW.1 {
            let due = load.take();
            let sent = due.max(free);
            free = sent + service_ns(sent);
            sampler.look(free, WINDOW.1);
            sampler.completed(1);
            n += 1;
            if lose == 0 || n % lose != 0 {
                recorder.acknowledged(from(due, sent), free);
            }
        }
        sampler.look(u64::MAX, WINDOW.1);
        check(&[sampler.samples()], &recorder.totals, WINDOW.1 - WINDOW.0)
    }

    fn stalls(sent: u64) -> u64 {
        // 100 ms at every second.
        let into = sent % 1_000_000_000;
        if into < 100_000_000 {
            100_000_000 - into
        } else {
            50_000
        }
    }

    #[test]
    fn it_holds_for_steady_bursty_stalling_and_overloaded_servers() {
        let due = |due: u64, _sent: u64| due;
        for (arrivals, rate, service) in [
            (Arrivals::Constant, 1_000.0, 200_000),
            (Arrivals::Poisson, 5_000.0, 150_000),
            (Arrivals::Poisson, 5_000.0, 190_000),
            (Arrivals::Constant, 5_000.0, 250_000),
        ] {
            let little = run(arrivals, rate, |_| service, due, 0);
            assert!(little.holds, "{little:?}");
            assert!(
                little.tolerance < 0.2 * little.in_flight + 0.02,
                "a tolerance that says something: {little:?}"
            );
        }
        let little = run(Arrivals::Constant, 5_000.0, stalls, due, 0);
        assert!(little.holds && little.in_flight > 10.0, "{little:?}");
    }

    #[test]
    fn it_breaks_when_latency_counts_from_the_sending() {
        assert!(!run(Arrivals::Constant, 5_000.0, stalls, |_, sent| sent, 0).holds);
        assert!(!run(Arrivals::Poisson, 5_000.0, |_| 150_000, |_, sent| sent, 0).holds);
    }

    #[test]
    fn it_breaks_when_records_are_lost_from_the_count() {
        assert!(!run(Arrivals::Poisson, 5_000.0, |_| 150_000, |due, _| due, 4).holds);
    }
}
