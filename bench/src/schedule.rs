//! When each record is due: a pure function of the rate, the arrivals and a seed.
//!
//! The schedule is fixed before the run and never looks at the broker: latency counts from its moments, so that a stall is charged to
//! every record that it delayed. Two instances of one schedule give the same moments: the load follows one, the count of records in
//! flight (`little`) another.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::workload::Arrivals;

/// Moments of one producer, in nanoseconds of the run's clock, ascending, without end.
#[derive(Clone, Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    /// Mean distance of two records of this producer, in nanoseconds.
    distance_ns: f64,
    /// How many records of this producer more a nanosecond each nanosecond brings, and for how long; 0 for a constant rate.
    ramp: f64,
    ramp_ns: f64,
    start_ns: f64,
    /// The first record's moment, for constant arrivals.
    phase_ns: f64,
    count: u64,
    random: SmallRng,
    at_ns: f64,
    next_ns: u64,
}

impl Schedule {
    /// The part of producer `index` of `producers` in `rate` records a second, from `start_ns` on. Constant arrivals of several producers
    /// interleave evenly.
    pub fn new(
        arrivals: Arrivals,
        rate: f64,
        index: usize,
        producers: usize,
        seed: u64,
        start_ns: u64,
    ) -> Schedule {
        assert!(
            rate > 0.0 && index < producers,
            "a workload was checked before"
        );
        let distance_ns = producers as f64 * 1e9 / rate;
        let mut schedule = Schedule {
            arrivals,
            distance_ns,
            ramp: 0.0,
            ramp_ns: 0.0,
            start_ns: start_ns as f64,
            phase_ns: start_ns as f64 + index as f64 * 1e9 / rate,
            count: 0,
            random: SmallRng::seed_from_u64(
                seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ),
            at_ns: start_ns as f64,
            next_ns: 0,
        };
        schedule.next_ns = schedule.draw();
        schedule
    }

    /// The same, with a rate that goes evenly to `end_rate` within `ramp_ns` of its start and stays there. Nothing is taken yet.
    pub fn ramped(mut self, end_rate: f64, producers: usize, ramp_ns: u64) -> Schedule {
        assert!(self.count == 0, "the whole schedule is one");
        let (from, to) = (1.0 / self.distance_ns, end_rate / producers as f64 / 1e9);
        self.ramp_ns = ramp_ns.max(1) as f64;
        self.ramp = (to - from) / self.ramp_ns;
        self.next_ns = self.warped(self.next_ns as f64);
        self
    }

    /// The moment at which as many records are due under the ramp as at `at_ns` of the constant rate.
    fn warped(&self, at_ns: f64) -> u64 {
        if self.ramp == 0.0 {
            return at_ns as u64;
        }
        // n = from·t + ramp·t²/2, and at the ramp's end the rate stays.
        let from = 1.0 / self.distance_ns;
        let n = (at_ns - self.start_ns).max(0.0) * from;
        let to = from + self.ramp * self.ramp_ns;
        let at_end = (from + to) / 2.0 * self.ramp_ns;
        let t = if n >= at_end {
            self.ramp_ns + (n - at_end) / to
        } else {
            2.0 * n / (from + (from * from + 2.0 * self.ramp * n).max(0.0).sqrt())
        };
        (self.start_ns + t) as u64
    }

    fn draw(&mut self) -> u64 {
        match self.arrivals {
            // From the count, not from the moment before: no error adds up.
            Arrivals::Constant => (self.phase_ns + self.count as f64 * self.distance_ns) as u64,
            Arrivals::Poisson => {
                let uniform: f64 = self.random.random();
                self.at_ns += -(1.0 - uniform).ln() * self.distance_ns;
                self.at_ns as u64
            }
        }
    }

    /// The moment of the next record.
    pub fn peek(&self) -> u64 {
        self.next_ns
    }

    /// Takes the next record; its moment.
    pub fn take(&mut self) -> u64 {
        let due = self.next_ns;
        self.count += 1;
        let drawn = self.draw();
        self.next_ns = match self.ramp == 0.0 {
            true => drawn,
            // Rounding must not take a moment back.
            false => self.warped(drawn as f64).max(due),
        };
        due
    }

    /// How many records are due up to and with `now_ns`, none of them taken.
    pub fn advance_to(&mut self, now_ns: u64) -> u64 {
        while self.next_ns <= now_ns {
            self.take();
        }
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn moments(schedule: &mut Schedule, until_ns: u64) -> Vec<u64> {
        let mut found = Vec::new();
        while schedule.peek() < until_ns {
            found.push(schedule.take());
        }
        found
    }

    #[test]
    fn constant_arrivals_of_all_producers_interleave_evenly() {
        let mut all: Vec<u64> = (0..4)
            .flat_map(|i| {
                moments(
                    &mut Schedule::new(Arrivals::Constant, 1000.0, i, 4, 1, 0),
                    1_000_000_000,
                )
            })
            .collect();
        all.sort_unstable();
        assert_eq!(all.len(), 1000);
        assert!(all.windows(2).all(|w| w[1] - w[0] == 1_000_000));
    }

    #[test]
    fn a_constant_schedule_does_not_drift() {
        let mut schedule = Schedule::new(Arrivals::Constant, 3.0, 0, 1, 1, 0);
        for _ in 0..3 * 86_400 {
            schedule.take();
        }
        assert_eq!(schedule.peek(), 86_400_000_000_000);
    }

    /// Mean and variance of the distances, and the counts in windows, are those of a Poisson process.
    #[test]
    fn poisson_arrivals_have_the_statistics_of_their_name() {
        let (rate, seconds) = (10_000.0, 40);
        let mut schedule = Schedule::new(Arrivals::Poisson, rate, 0, 1, 7, 0);
        let all = moments(&mut schedule, seconds * 1_000_000_000);
        let expected = rate * seconds as f64;
        assert!((all.len() as f64 - expected).abs() < 5.0 * expected.sqrt());

        let gaps: Vec<f64> = all.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 100_000.0 - 1.0).abs() < 0.01, "mean {mean}");
        assert!(
            (variance.sqrt() / mean - 1.0).abs() < 0.02,
            "the deviation of an exponential is its mean"
        );
        let short = gaps.iter().filter(|g| **g < mean * 0.5).count() as f64 / gaps.len() as f64;
        assert!(
            (short - 0.3935).abs() < 0.01,
            "1 - e^-0.5 of them are under half the mean: {short}"
        );

        let mut windows = vec![0f64; 100 * seconds as usize];
        let last = windows.len() - 1;
        for at in &all {
            windows[((at / 10_000_000) as usize).min(last)] += 1.0;
        }
        let mean = windows.iter().sum::<f64>() / windows.len() as f64;
        let variance =
            windows.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / windows.len() as f64;
        assert!(
            (variance / mean - 1.0).abs() < 0.1,
            "counts vary as their mean: {}",
            variance / mean
        );
    }

    #[test]
    fn a_ramp_goes_evenly_to_its_end_and_stays_there() {
        for (from, to) in [(1_000.0, 3_000.0), (4_000.0, 400.0)] {
            for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
                let mut all = Vec::new();
                for index in 0..2 {
                    let schedule = Schedule::new(arrivals, from, index, 2, 3, 5);
                    let mut schedule = schedule.ramped(to, 2, 10_000_000_000);
                    all.extend(moments(&mut schedule, 12_000_000_005));
                }
                let within = |a: u64, b: u64| {
                    let inside = all
                        .iter()
                        .filter(|m| (a..b).contains(&(**m / 1_000_000_000)));
                    inside.count() as f64
                };
                for (a, b, expected) in [
                    (0, 10, (from + to) * 5.0),
                    (0, 5, (from * 0.75 + to * 0.25) * 5.0),
                    (10, 12, to * 2.0),
                ] {
                    let found = within(a, b);
                    let spread = match arrivals {
                        Arrivals::Constant => 4.0,
                        Arrivals::Poisson => 5.0 * expected.sqrt(),
                    };
                    assert!(
                        (found - expected).abs() < spread,
                        "{from} to {to}, {a} to {b} s: {found} of {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn producers_of_a_poisson_schedule_differ_and_repeat() {
        let first = |index, seed| Schedule::new(Arrivals::Poisson, 100.0, index, 4, seed, 0).peek();
        assert_eq!(first(0, 1), first(0, 1));
        assert_ne!(first(0, 1), first(1, 1));
        assert_ne!(first(0, 1), first(0, 2));
    }

    proptest! {
        #[test]
        fn moments_ascend_and_two_instances_agree(
            rate in 0.5f64..5e6, producers in 1usize..50, seed: u64, poisson: bool, start in 0u64..1_000_000_000, ramp in prop::option::of(0.5f64..5e6)
        ) {
            let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Constant };
            let mut one = Schedule::new(arrivals, rate, producers - 1, producers, seed, start);
            if let Some(to) = ramp { one = one.ramped(to, producers, 3_000_000_000); }
            let mut other = one.clone();
            let mut before = start;
            for n in 1..200 {
                let due = one.take();
                prop_assert!(due >= before);
                before = due;
                prop_assert!(other.advance_to(due) >= n);
            }
        }
    }
}
