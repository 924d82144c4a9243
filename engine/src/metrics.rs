//! What a shard counts. Plain cells, written by the shard alone; a snapshot of them travels by ring to whoever publishes them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

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

macro_rules! shard_metrics {
    ($($(#[doc = $doc:literal])* $name:ident: $kind:ident $(by $label:ident)?,)*) => {
        /// All counters of one shard.
        #[derive(Debug, Default)]
        pub struct ShardMetrics {
            $($(#[doc = $doc])* pub $name: shard_metrics!(@type $($label)?),)*
        }

        impl ShardMetrics {
            /// Every number, in a fixed order of names; those of one name follow one another.
            pub fn snapshot(&self) -> Vec<Sample> {
                let mut all = Vec::new();
                $({
                    let one = |label, value| Sample {
                        name: stringify!($name),
                        help: concat!($($doc),*).trim_ascii(),
                        kind: Kind::$kind,
                        label,
                        value,
                    };
                    shard_metrics!(@put self.$name, all, one $(, $label)?);
                })*
                all
            }
        }
    };
    (@type) => { Counter };
    (@type $label:ident) => { Labelled };
    (@put $from:expr, $all:ident, $one:ident) => { $all.push($one(None, $from.get())) };
    (@put $from:expr, $all:ident, $one:ident, $label:ident) => {
        for (value, n) in $from.0.borrow().iter() {
            $all.push($one(Some((stringify!($label), *value)), *n));
        }
    };
}

/// Whether a number only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

/// One number of a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    /// A label's name and value, where there is one.
    pub label: Option<(&'static str, &'static str)>,
    pub value: u64,
}

shard_metrics! {
    /// Kafka requests answered by this shard's connections
    requests: Counter,
    /// Open client connections
    connections: Gauge,
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
            .map(|s| (s.label, s.value))
            .collect();
        assert_eq!(
            of_refusals,
            [(Some(("error", "A")), 1), (Some(("error", "B")), 5)]
        );
        assert!(
            all.iter()
                .any(|s| s.name == "requests" && s.label.is_none())
        );
    }
}
