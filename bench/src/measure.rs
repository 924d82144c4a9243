//! What a thread of the load counts: latencies by record, errors, how late its own generator was.
//!
//! Invariants: a record counts in the totals if it was due within the window, whenever its answer comes; intervals count by the moment of the answer.
//! A record that never gets an answer counts with the time that it has waited so far: leaving it out would flatter the broker.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::limits;

/// Nanoseconds from 1 to an hour, three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, limits::MAX_LATENCY_NS, limits::SIGNIFICANT_DIGITS)
        .expect("the bounds are constants that fit")
}

/// One interval of one thread, sent to whoever prints.
#[derive(Clone, Debug)]
pub struct Interval {
    /// How many intervals came before it.
    pub index: u64,
    /// `limits::INTERVAL_NS`, less for the last.
    pub length_ns: u64,
    pub produce: Histogram<u64>,
    pub end_to_end: Histogram<u64>,
    pub errors: u64,
    /// Records due and not answered at its end.
    pub in_flight: u64,
}

impl Interval {
    pub fn new(index: u64) -> Interval {
        Interval {
            index,
            length_ns: limits::INTERVAL_NS,
            produce: histogram(),
            end_to_end: histogram(),
            errors: 0,
            in_flight: 0,
        }
    }

    /// Adds what another thread saw in the same interval.
    pub fn merge(&mut self, other: &Interval) {
        assert_eq!(
            self.index, other.index,
            "intervals of one moment are merged"
        );
        self.produce
            .add(&other.produce)
            .expect("all histograms have the same bounds");
        self.end_to_end
            .add(&other.end_to_end)
            .expect("all histograms have the same bounds");
        self.length_ns = self.length_ns.max(other.length_ns);
        self.errors += other.errors;
        self.in_flight += other.in_flight;
    }
}

/// The sums of a run, or of one thread of it.
#[derive(Clone, Debug)]
pub struct Totals {
    /// From the scheduled moment to the acknowledgement, in nanoseconds.
    pub produce: Histogram<u64>,
    /// From the scheduled moment until a consumer has it.
    pub end_to_end: Histogram<u64>,
    /// From the scheduled moment until the generator made the record, where the broker's back-pressure wasn't what held it.
    pub lag: Histogram<u64>,
    /// Records that were made late because `buffer-bytes` was full.
    pub held_back: u64,
    /// Records acknowledged within the window, whenever they were due.
    pub acknowledged_in_window: u64,
    /// Bytes of their values.
    pub bytes_in_window: u64,
    /// The same of the whole load.
    pub acknowledged_bytes: u64,
    /// Records due within the window without an acknowledgement, or refused.
    pub unfinished: u64,
    pub errors: BTreeMap<i16, u64>,
    pub requests: u64,
    pub batches: u64,
    /// Batches sent again.
    pub retried: u64,
    /// Latencies of the records in `produce`, and what of all records' time under way falls in the window: exact, for Little's law.
    pub latency_sum_ns: u128,
    pub overlap_sum_ns: u128,
}

impl Default for Totals {
    fn default() -> Totals {
        Totals {
            produce: histogram(),
            end_to_end: histogram(),
            lag: histogram(),
            held_back: 0,
            acknowledged_in_window: 0,
            bytes_in_window: 0,
            acknowledged_bytes: 0,
            unfinished: 0,
            errors: BTreeMap::new(),
            requests: 0,
            batches: 0,
            retried: 0,
            latency_sum_ns: 0,
            overlap_sum_ns: 0,
        }
    }
}

impl Totals {
    pub fn merge(&mut self, other: &Totals) {
        for (into, from) in [
            (&mut self.produce, &other.produce),
            (&mut self.end_to_end, &other.end_to_end),
            (&mut self.lag, &other.lag),
        ] {
            into.add(from).expect("all histograms have the same bounds");
        }
        self.held_back += other.held_back;
        self.acknowledged_in_window += other.acknowledged_in_window;
        self.bytes_in_window += other.bytes_in_window;
        self.acknowledged_bytes += other.acknowledged_bytes;
        self.unfinished += other.unfinished;
        self.requests += other.requests;
        self.batches += other.batches;
        self.retried += other.retried;
        self.latency_sum_ns += other.latency_sum_ns;
        self.overlap_sum_ns += other.overlap_sum_ns;
        for (code, count) in &other.errors {
            *self.errors.entry(*code).or_default() += count;
        }
    }
}

/// The counts of one thread while it runs.
pub struct Recorder {
    /// First moment that counts, and the first that doesn't any more.
    pub window_ns: (u64, u64),
    pub interval: Interval,
    pub totals: Totals,
}

impl Recorder {
    pub fn new(window_ns: (u64, u64)) -> Recorder {
        Recorder {
            window_ns,
            interval: Interval::new(0),
            totals: Totals::default(),
        }
    }

    fn counts(&self, due_ns: u64) -> bool {
        (self.window_ns.0..self.window_ns.1).contains(&due_ns)
    }

    fn overlap(&mut self, due_ns: u64, now_ns: u64) {
        let (begin, end) = self.window_ns;
        self.totals.overlap_sum_ns += u128::from(now_ns.min(end).saturating_sub(due_ns.max(begin)));
    }

    fn latency(&mut self, due_ns: u64, now_ns: u64) {
        let latency = now_ns.saturating_sub(due_ns);
        self.totals.produce.saturating_record(latency);
        self.totals.latency_sum_ns += u128::from(latency);
    }

    pub fn acknowledged(&mut self, due_ns: u64, now_ns: u64) {
        self.interval
            .produce
            .saturating_record(now_ns.saturating_sub(due_ns));
        self.overlap(due_ns, now_ns);
        if self.counts(now_ns) {
            self.totals.acknowledged_in_window += 1;
        }
        if self.counts(due_ns) {
            self.latency(due_ns, now_ns);
        }
    }

    /// Bytes of values that were acknowledged.
    pub fn acknowledged_bytes(&mut self, bytes: u64, now_ns: u64) {
        self.totals.acknowledged_bytes += bytes;
        if self.counts(now_ns) {
            self.totals.bytes_in_window += bytes;
        }
    }

    pub fn refused(&mut self, due_ns: u64, now_ns: u64, error: i16) {
        self.interval.errors += 1;
        *self.totals.errors.entry(error).or_default() += 1;
        self.unfinished(due_ns, now_ns);
    }

    /// A record that has no acknowledgement and gets none any more.
    pub fn unfinished(&mut self, due_ns: u64, now_ns: u64) {
        self.overlap(due_ns, now_ns);
        if self.counts(due_ns) {
            self.totals.unfinished += 1;
            self.latency(due_ns, now_ns);
        }
    }

    pub fn consumed(&mut self, due_ns: u64, now_ns: u64) {
        let latency = now_ns.saturating_sub(due_ns);
        self.interval.end_to_end.saturating_record(latency);
        if self.counts(due_ns) {
            self.totals.end_to_end.saturating_record(latency);
        }
    }

    /// A record was made at `now_ns`; `held` when the broker was what it waited for.
    pub fn made(&mut self, due_ns: u64, now_ns: u64, held: bool) {
        if !self.counts(due_ns) {
            return;
        }
        if held {
            self.totals.held_back += 1;
        } else {
            self.totals
                .lag
                .saturating_record(now_ns.saturating_sub(due_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Threads share nothing; what they counted apart is what one would have counted.
        #[test]
        fn merged_histograms_are_the_histogram_of_all(
            one in prop::collection::vec(1u64..10_000_000_000, 1..200),
            other in prop::collection::vec(1u64..10_000_000_000, 1..200),
        ) {
            let record = |values: &[u64]| {
                let mut recorder = Recorder::new((0, u64::MAX));
                values.iter().for_each(|v| recorder.acknowledged(5, 5 + v));
                recorder
            };
            let mut merged = record(&one);
            let second = record(&other);
            merged.totals.merge(&second.totals);
            merged.interval.merge(&second.interval);
            let all: Vec<u64> = one.iter().chain(&other).copied().collect();
            let whole = record(&all);
            prop_assert_eq!(&merged.totals.produce, &whole.totals.produce);
            prop_assert_eq!(&merged.interval.produce, &whole.interval.produce);
            prop_assert_eq!(merged.totals.latency_sum_ns, all.iter().map(|v| u128::from(*v)).sum::<u128>());
        }

        /// Percentiles are those of the sorted list, within the three digits that a histogram keeps.
        #[test]
        fn percentiles_are_those_computed_by_hand(values in prop::collection::vec(1u64..10_000_000_000, 1..2000), q in 0.0f64..1.0) {
            let mut recorder = Recorder::new((0, u64::MAX));
            values.iter().for_each(|v| recorder.acknowledged(0, *v));
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let rank = ((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
            let found = recorder.totals.produce.value_at_quantile(q);
            let near = |rank: usize| (found as f64 / sorted[rank.clamp(1, sorted.len()) - 1] as f64 - 1.0).abs() <= 0.001;
            // The quantile is a float: on an edge between two ranks either is right.
            prop_assert!(near(rank) || near(rank + 1) || near(rank - 1), "{found} at {q}");
        }
    }

    #[test]
    fn the_window_decides_by_the_scheduled_moment() {
        let mut recorder = Recorder::new((100, 200));
        recorder.acknowledged(99, 150);
        recorder.acknowledged(100, 250);
        recorder.acknowledged(199, 1199);
        recorder.acknowledged(200, 201);
        recorder.refused(150, 160, 6);
        let totals = recorder.totals;
        assert_eq!(totals.produce.len(), 3);
        assert_eq!(totals.produce.max(), 1000);
        assert_eq!(totals.acknowledged_in_window, 1);
        assert_eq!(totals.unfinished, 1);
        assert_eq!(totals.errors[&6], 1);
        assert_eq!(totals.overlap_sum_ns, 50 + 100 + 1 + 10);
        assert_eq!(recorder.interval.produce.len(), 4);
    }

    #[test]
    fn an_hour_is_the_most_and_nothing_panics_beyond() {
        let mut recorder = Recorder::new((0, u64::MAX));
        recorder.acknowledged(0, u64::MAX);
        recorder.acknowledged(10, 5);
        assert_eq!(recorder.totals.produce.len(), 2);
    }
}
