//! What a shard counts. Plain cells, written by the shard alone; a snapshot of them travels by ring to whoever publishes them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

/// A number that only goes up (or, for gauges, is set), owned by one shard.
#[derive(Debug, Default)]
pub struct Counter(Cell<u64>);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.set(self.0.get().wrapping_add(n));
    }

    pub fn increment(&self) {
        self.add(1);
    }

    pub fn set(&self, n: u64) {
        self.0.set(n);
    }

    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// Counters of one name, told apart by a label. Its values are words of the program, so their number is bounded; one that was never counted isn't shown.
#[derive(Debug, Default)]
pub struct Labelled(RefCell<BTreeMap<&'static str, u64>>);

impl Labelled {
    pub fn add(&self, value: &'static str, n: u64) {
        *self.0.borrow_mut().entry(value).or_default() += n;
    }

    pub fn get(&self, value: &str) -> u64 {
        self.0.borrow().get(value).copied().unwrap_or_default()
    }
}

/// Buckets of a [`Histogram`], the one for what is longer than all bounds included.
const BUCKETS: usize = 42;
/// Upper bound of a histogram's first bucket, in microseconds.
const FIRST_US: u64 = 16;

/// How long things took, counted in buckets of which two make a doubling, from 16 µs to 16 s: a percentile read from them is less than 1.5 times off.
#[derive(Debug)]
pub struct Histogram {
    counts: [Cell<u64>; BUCKETS],
    sum_us: Cell<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: [const { Cell::new(0) }; BUCKETS],
            sum_us: Cell::new(0),
        }
    }
}

/// Upper bound of a bucket in microseconds: 16, 24, 32, 48, 64 ...
fn bound_us(bucket: usize) -> u64 {
    let doubled = FIRST_US << (bucket / 2);
    doubled + doubled / 2 * (bucket as u64 % 2)
}

impl Histogram {
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = match us {
            0..=FIRST_US => 0,
            _ => {
                // Doublings of the first bound that are below it, and whether it is above the half between that and the next.
                let octave = (us - 1).ilog2() - FIRST_US.ilog2();
                let half = FIRST_US << octave;
                2 * octave as usize + 1 + usize::from(us > half + half / 2)
            }
        };
        let count = &self.counts[bucket.min(BUCKETS - 1)];
        count.set(count.get().wrapping_add(1));
        self.sum_us.set(self.sum_us.get().wrapping_add(us));
    }

    fn times(&self) -> Times {
        Times {
            sum_us: self.sum_us.get(),
            counts: self.counts.iter().map(Cell::get).collect(),
        }
    }
}

/// A [`Histogram`] as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times {
    pub sum_us: u64,
    counts: Box<[u64]>,
}

impl Times {
    /// Upper bound of each bucket in microseconds and how many are in it alone; what is longer than all has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let last = self.counts.len() - 1;
        let bound = move |n| (n < last).then(|| bound_us(n));
        let counts = self.counts.iter().enumerate();
        counts.map(move |(n, count)| (bound(n), *count))
    }
}

macro_rules! shard_metrics {
    ($($(#[doc = $doc:literal])* $name:ident: $kind:ident $(by $label:ident)?,)*) => {
        /// All counters of one shard.
        #[derive(Debug, Default)]
        pub struct ShardMetrics {
            $($(#[doc = $doc])* pub $name: shard_metrics!(@type $kind $($label)?),)*
        }

        impl ShardMetrics {
            /// Every number, in a fixed order of names; those of one name follow one another.
            pub fn snapshot(&self) -> Vec<Sample> {
                let mut all = Vec::new();
                $({
                    let one = |label, value| Sample {
                        name: stringify!($name),
                        help: concat!($($doc),*).trim_ascii(),
                        label,
                        value,
                    };
                    shard_metrics!(@put self.$name, all, one, $kind $($label)?);
                })*
                all
            }
        }
    };
    (@type Histogram) => { Histogram };
    (@type $kind:ident) => { Counter };
    (@type $kind:ident $label:ident) => { Labelled };
    (@put $from:expr, $all:ident, $one:ident, Histogram) => {
        $all.push($one(None, Value::Histogram($from.times())))
    };
    (@put $from:expr, $all:ident, $one:ident, $kind:ident) => { $all.push($one(None, Value::$kind($from.get()))) };
    (@put $from:expr, $all:ident, $one:ident, $kind:ident $label:ident) => {
        for (value, n) in $from.0.borrow().iter() {
            $all.push($one(Some((stringify!($label), *value)), Value::$kind(*n)));
        }
    };
}

/// What a sample says, and of which kind it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Only grows.
    Counter(u64),
    Gauge(u64),
    Histogram(Times),
}

/// One number of a snapshot, or one histogram.
#[derive(Clone, Debug)]
pub struct Sample {
    pub name: &'static str,
    pub help: &'static str,
    /// A label's name and value, where there is one.
    pub label: Option<(&'static str, &'static str)>,
    pub value: Value,
}

shard_metrics! {
    /// Kafka requests answered by this shard's connections
    requests: Counter,
    /// Open client connections
    connections: Gauge,
    /// Seconds from having a whole Produce request to having its answer, batches checked, appended and durable
    produce_seconds: Histogram,
    /// Requests handed to another shard over a ring
    cross_shard_hops: Counter,
    /// Connections refused because their address has, or opens, too many
    refused_connections: Counter,
    /// Requests whose client was told to wait because of a quota
    throttled_requests: Counter,
    /// Bytes read from clients
    bytes_in: Counter,
    /// Bytes written to clients
    bytes_out: Counter,
    /// Record batches appended
    batches_appended: Counter,
    /// Bytes of record batches appended
    batch_bytes_appended: Counter,
    /// Journal commits completed
    journal_commits: Counter,
    /// Journal writes that were synced by themselves
    journal_syncs: Counter,
    /// Seconds from handing a commit to the disk to knowing it durable
    journal_commit_seconds: Histogram,
    /// Bytes written to the journal, padding included
    journal_bytes: Counter,
    /// Bytes of the journal that only a checkpoint can free
    journal_live_bytes: Gauge,
    /// Size of the journal file in bytes
    journal_size_bytes: Gauge,
    /// Bytes free on the filesystem of the data directory
    disk_free_bytes: Gauge,
    /// 1 while produce and new topics are refused because the disk is nearly full
    disk_full: Gauge,
    /// Batches written to extent files
    extents_written: Counter,
    /// Bytes of batches written to extent files
    extent_bytes_written: Counter,
    /// Bytes written out to segments
    segment_bytes_written: Counter,
    /// Syncs of segments, directories and checkpoints
    background_syncs: Counter,
    /// Checkpoints completed
    checkpoints: Counter,
    /// Bytes that fetches took from memory
    fetch_bytes_from_memory: Counter,
    /// Bytes that fetches took from segments
    fetch_bytes_from_disk: Counter,
    /// Reads of segments that fetches waited for
    fetch_reads_from_disk: Counter,
    /// Bytes of segments read ahead of fetches, part of those that fetches took from segments
    read_ahead_bytes: Counter,
    /// Segment files open
    segment_files_open: Gauge,
    /// Rows of sealed segments' indexes in memory, in bytes
    index_bytes: Gauge,
    /// Raft groups on this shard
    groups: Gauge,
    /// Groups that this shard leads
    groups_led: Gauge,
    /// Memory in use, of the shard's budget, in bytes
    memory_used_bytes: Gauge,
    /// The shard's memory budget in bytes
    memory_budget_bytes: Gauge,
    /// Damaged ranges found in the log
    damaged_ranges: Counter,
    /// Requests refused because they could not be parsed
    malformed_requests: Counter,
    /// Errors told to clients, one for each topic, partition or other part of a request that was refused
    refusals: Counter by error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_every_label_that_was_counted() {
        let metrics = ShardMetrics::default();
        metrics.refusals.add("B", 2);
        metrics.refusals.add("A", 1);
        metrics.refusals.add("B", 3);
        assert_eq!(metrics.refusals.get("B"), 5);
        let all = metrics.snapshot();
        let of_refusals: Vec<_> = all
            .iter()
            .filter(|s| s.name == "refusals")
            .map(|s| (s.label, s.value.clone()))
            .collect();
        assert_eq!(
            of_refusals,
            [
                (Some(("error", "A")), Value::Counter(1)),
                (Some(("error", "B")), Value::Counter(5))
            ]
        );
        assert!(
            all.iter()
                .any(|s| s.name == "requests" && s.label.is_none())
        );
    }
    #[test]
    fn a_time_is_in_the_bucket_that_its_bounds_say() {
        for us in [
            0,
            1,
            16,
            17,
            24,
            25,
            32,
            33,
            48,
            1_000,
            12_345_678,
            16_777_216,
            16_777_217,
            u64::MAX,
        ] {
            let histogram = Histogram::default();
            histogram.record(Duration::from_micros(us));
            let times = histogram.times();
            assert_eq!(times.sum_us, us);
            let mut below = 0;
            for (bound, count) in times.buckets() {
                let bound = bound.unwrap_or(u64::MAX);
                let within = us <= bound && (us > below || below == 0);
                assert_eq!(count, u64::from(within), "{us} µs, up to {bound} µs");
                below = bound;
            }
        }
        let last = Histogram::default().times();
        let bounds: Vec<_> = last.buckets().map(|(bound, _)| bound).collect();
        assert_eq!(bounds[..4], [Some(16), Some(24), Some(32), Some(48)]);
        assert_eq!(bounds[40..], [Some(16 << 20), None]);
    }
}
