//! A workload: what is sent, how fast, by whom. A TOML file; unknown keys are refused, and so is what isn't built.

mod sections;

pub use sections::{Fault, Keys, Records, Replay, Signal, Sizes};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::codec::Codec;
use crate::error::Error;
use crate::limits;

/// The whole of a workload file. Every section and key has a default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Workload {
    /// What the run is called.
    pub name: String,
    pub topics: Topics,
    pub load: Load,
    pub records: Records,
    pub client: Client,
    pub time: Time,
    /// In any order; each has its moment.
    pub faults: Vec<Fault>,
    pub replay: Option<Replay>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Topics {
    /// How many topics, made for the run and deleted after it.
    pub count: usize,
    /// Partitions of each topic.
    pub partitions: i32,
    pub replication: i16,
    /// Topic configs that the broker is asked to set.
    pub configs: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Load {
    pub mode: Mode,
    /// Records a second of all producers together; of mode "open" only.
    pub rate: f64,
    /// The rate at the end, which is gone to evenly from the load's beginning on; constant if not given.
    pub ramp_to: Option<f64>,
    pub arrivals: Arrivals,
    /// Length of a record's value in bytes; values are random bytes.
    pub record_bytes: usize,
    pub producers: usize,
    /// Of each group; 0 for none. In a group each partition is read by one consumer.
    pub consumers: usize,
    /// Every group reads everything. Partitions are dealt out evenly, without the broker's coordinator.
    pub consumer_groups: usize,
    /// When consumers begin to read, in seconds from the load's beginning: what was sent before is their backlog.
    pub consumers_begin_s: f64,
    /// Of the arrivals.
    pub seed: u64,
}

/// When records are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// On a schedule, whatever the broker does. Latency counts from the scheduled moment.
    Open,
    /// Each producer has one record under way: the next is made when it is acknowledged. Closed loop.
    OneAtATime,
    /// As fast as the broker takes them, `max-in-flight` requests under way. Closed loop.
    FlatOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    Constant,
    Poisson,
}

/// Settings of the client, as a Kafka client has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Client {
    pub acks: Acks,
    pub linger_ms: f64,
    /// A batch is sent when another record doesn't fit; a record that is larger alone is a batch alone.
    pub batch_bytes: usize,
    pub max_in_flight: usize,
    pub max_request_bytes: usize,
    /// What a producer holds for a broker that is behind, in bytes; beyond it records keep their scheduled moment and wait unmade.
    pub buffer_bytes: usize,
    /// Of records without a key.
    pub partitioner: Partitioner,
    pub codec: Codec,
    /// Batches carry a producer id and sequence numbers, which the broker checks.
    pub idempotence: bool,
    /// What a broker refuses for a while is sent again, lost connections are made again, leaders that move are followed. Without it a refused
    /// record makes a run no result, and a lost connection ends it.
    pub retry: bool,
    /// Threads of the load; producers are dealt out over them.
    pub threads: usize,
    /// Threads that only read; 0 to let the producers' threads do it. If not given: one where the load has a CPU more than `threads`, else none.
    pub consumer_threads: Option<usize>,
    /// How long before a record is due the thread polls instead of sleeping, in microseconds.
    pub spin_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Acks {
    /// Committed.
    #[serde(rename = "all")]
    All,
    /// In the leader's memory.
    #[serde(rename = "1")]
    Leader,
}

impl Acks {
    pub fn wire(self) -> i16 {
        match self {
            Acks::All => -1,
            Acks::Leader => 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Partitioner {
    /// The next record goes to the next partition.
    RoundRobin,
    /// A partition is kept until its batch is full or sent, then the next, as Kafka's client does with null keys.
    Sticky,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Time {
    /// The load before what counts, in seconds.
    pub warm_up_s: f64,
    /// What counts, in seconds.
    pub length_s: f64,
    /// How long outstanding records are waited for after the end, in seconds.
    pub drain_s: f64,
}

impl Default for Topics {
    fn default() -> Topics {
        Topics {
            count: 1,
            partitions: 12,
            replication: 1,
            configs: Default::default(),
        }
    }
}

impl Default for Load {
    fn default() -> Load {
        Load {
            mode: Mode::Open,
            rate: 5_000.0,
            ramp_to: None,
            arrivals: Arrivals::Constant,
            record_bytes: 1024,
            producers: 1,
            consumers: 0,
            consumer_groups: 1,
            consumers_begin_s: 0.0,
            seed: 1,
        }
    }
}

impl Default for Client {
    fn default() -> Client {
        Client {
            acks: Acks::All,
            linger_ms: 0.0,
            batch_bytes: 16 << 10,
            max_in_flight: 5,
            max_request_bytes: 1 << 20,
            buffer_bytes: 32 << 20,
            partitioner: Partitioner::RoundRobin,
            codec: Codec::None,
            idempotence: false,
            retry: false,
            threads: 1,
            consumer_threads: None,
            spin_us: 0,
        }
    }
}

impl Default for Time {
    fn default() -> Time {
        Time {
            warm_up_s: 5.0,
            length_s: 30.0,
            drain_s: 10.0,
        }
    }
}

/// The smallest record: its scheduled moment and its number.
pub const MIN_RECORD_BYTES: usize = 16;

impl Workload {
    pub fn parse(text: &str) -> Result<Workload, Error> {
        let workload: Workload = toml::from_str(text).map_err(|e| Error::Usage(e.to_string()))?;
        workload.check()?;
        Ok(workload)
    }

    /// Refuses what is out of bounds or contradicts itself.
    pub fn check(&self) -> Result<(), Error> {
        let Workload {
            topics,
            load,
            records,
            client,
            time,
            ..
        } = self;
        within("topics.count", topics.count, 1, limits::MAX_PARTITIONS)?;
        within(
            "topics.partitions",
            topics.partitions as i64,
            1,
            limits::MAX_PARTITIONS as i64,
        )?;
        within(
            "partitions of all topics",
            self.partitions(),
            1,
            limits::MAX_PARTITIONS,
        )?;
        within("topics.replication", topics.replication, 1, 99)?;
        within(
            "load.record-bytes",
            load.record_bytes,
            MIN_RECORD_BYTES,
            limits::MAX_RECORD_BYTES,
        )?;
        within("load.producers", load.producers, 1, limits::MAX_CLIENTS)?;
        within("load.consumers", load.consumers, 0, limits::MAX_CLIENTS)?;
        within(
            "load.consumer-groups",
            load.consumer_groups,
            1,
            limits::MAX_CLIENTS,
        )?;
        within(
            "consumers of all groups",
            self.consumers(),
            0,
            limits::MAX_CLIENTS,
        )?;
        within(
            "load.consumers-begin-s",
            load.consumers_begin_s,
            0.0,
            limits::MAX_RUN_S,
        )?;
        if load.mode == Mode::Open {
            within("load.rate", load.rate, 0.1, limits::MAX_RATE)?;
            if let Some(end) = load.ramp_to {
                within("load.ramp-to", end, 0.1, limits::MAX_RATE)?;
            }
        } else if load.ramp_to.is_some() {
            return refuse("load.ramp-to is of mode \"open\": a closed loop has no rate");
        }
        records.check()?;
        self.faults.iter().try_for_each(Fault::check)?;
        if let Some(replay) = &self.replay {
            replay.check(load)?;
        }
        if load.mode != Mode::Open && client.linger_ms != 0.0 {
            return refuse("client.linger-ms is of mode \"open\": a closed loop sends what it has");
        }
        within("client.linger-ms", client.linger_ms, 0.0, 60_000.0)?;
        within(
            "client.batch-bytes",
            client.batch_bytes,
            1,
            limits::MAX_RECORD_BYTES,
        )?;
        within("client.max-in-flight", client.max_in_flight, 1, 1_000)?;
        within(
            "client.max-request-bytes",
            client.max_request_bytes,
            1,
            limits::MAX_FRAME_BYTES,
        )?;
        within(
            "client.buffer-bytes",
            client.buffer_bytes,
            self.record_bounds().1,
            limits::MAX_BUFFER_BYTES / load.producers,
        )?;
        within("client.threads", client.threads, 1, limits::MAX_THREADS)?;
        within(
            "client.consumer-threads",
            client.consumer_threads.unwrap_or(0),
            0,
            limits::MAX_THREADS,
        )?;
        if client.idempotence && (client.acks != Acks::All || client.max_in_flight > 5) {
            return refuse(
                "client.idempotence takes acks \"all\" and a max-in-flight of at most 5",
            );
        }
        within("client.spin-us", client.spin_us, 0, 1_000_000)?;
        within("time.warm-up-s", time.warm_up_s, 0.0, limits::MAX_RUN_S)?;
        within("time.length-s", time.length_s, 0.1, limits::MAX_RUN_S)?;
        within("time.drain-s", time.drain_s, 0.0, 3_600.0)
    }

    /// Partitions of all topics together.
    pub fn partitions(&self) -> usize {
        self.topics
            .count
            .saturating_mul(self.topics.partitions.max(0) as usize)
    }

    /// Consumers of all groups together.
    pub fn consumers(&self) -> usize {
        self.load
            .consumers
            .saturating_mul(self.load.consumer_groups)
    }

    /// Bytes of the shortest and of the longest value.
    pub fn record_bounds(&self) -> (usize, usize) {
        match self.records.sizes {
            Sizes::Fixed => (self.load.record_bytes, self.load.record_bytes),
            _ => (self.records.smallest_bytes, self.records.largest_bytes),
        }
    }

    /// The same load at a share of its size: rates, and what is replayed. Partitions, clients and records stay as they are.
    pub fn scaled(mut self, factor: f64) -> Workload {
        self.load.rate *= factor;
        self.load.ramp_to = self.load.ramp_to.map(|rate| rate * factor);
        if let Some(replay) = &mut self.replay {
            replay.bytes = (replay.bytes as f64 * factor) as u64;
        }
        if factor != 1.0 {
            self.name = format!("{} × {factor}", self.name);
        }
        self
    }

    /// The moments between which a record must be scheduled to count, in nanoseconds of the run's clock, given its start.
    pub fn window_ns(&self, start_ns: u64) -> (u64, u64) {
        let begin = start_ns + (self.time.warm_up_s * 1e9) as u64;
        (begin, begin + (self.time.length_s * 1e9) as u64)
    }
}

fn refuse(why: impl Into<String>) -> Result<(), Error> {
    Err(Error::Usage(why.into()))
}

fn within<T: PartialOrd + std::fmt::Display>(
    what: &str,
    value: T,
    low: T,
    high: T,
) -> Result<(), Error> {
    // A NaN is in no range.
    if value >= low && value <= high {
        return Ok(());
    }
    refuse(format!(
        "{what} is {value}: it must lie between {low} and {high}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default_workload() {
        assert_eq!(Workload::parse("").unwrap(), Workload::default());
    }

    #[test]
    fn unknown_keys_and_values_are_refused_wherever_they_are() {
        for text in [
            "nmae = \"x\"",
            "[topics]\npartition = 3",
            "[load]\nramp = 3",
            "[load]\nmode = \"half-open\"",
            "[client]\nidempotence = 1",
            "[client]\ncodec = \"brotli\"",
            "[records]\nkeys = \"some\"",
            "[[faults]]\nat-s = 5\nsignal = \"HUP\"",
            "[replay]\nbyte = 5",
            "[client]\nacks = \"0\"",
            "[client]\nacks = 1",
            "[time]\nlength = 3",
            "[faults]\nkill = 60",
        ] {
            assert!(
                matches!(Workload::parse(text), Err(Error::Usage(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        for text in [
            "[load]\nrate = 0",
            "[load]\nrate = nan",
            "[load]\nrate = inf",
            "[load]\nrecord-bytes = 15",
            "[load]\nproducers = 0",
            "[topics]\npartitions = 0",
            "[topics]\npartitions = 100000\ncount = 100000",
            "[time]\nlength-s = 0",
            "[time]\nwarm-up-s = -1",
            "[load]\nmode = \"flat-out\"\n[client]\nlinger-ms = 1",
            "[load]\nmode = \"flat-out\"\nramp-to = 5",
            "[load]\nconsumers = 100\nconsumer-groups = 100",
            "[client]\nidempotence = true\nacks = \"1\"",
            "[client]\nidempotence = true\nmax-in-flight = 6",
            "[records]\nsizes = \"uniform\"\nsmallest-bytes = 20\nlargest-bytes = 19",
            "[records]\ncompressible = 1.5",
            "[records]\nkeys = \"zipf\"\nkey-count = 0",
            "[[faults]]\nat-s = 5",
            "[[faults]]\nat-s = -1\ncommand = \"true\"",
        ] {
            assert!(
                matches!(Workload::parse(text), Err(Error::Usage(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn every_shipped_workload_is_one() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/workloads");
        let mut count = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let workload = Workload::parse(&std::fs::read_to_string(&path).unwrap());
            let workload = workload.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_eq!(
                Some(workload.name.as_str()),
                path.file_stem().and_then(|s| s.to_str())
            );
            let again = Workload::parse(&toml::to_string(&workload).unwrap()).unwrap();
            assert_eq!(workload, again, "what is written down reads back");
            assert!(crate::shipped(&workload.name).is_some());
            assert_eq!(workload.clone().scaled(1.0), workload);
            count += 1;
        }
        assert_eq!(count, crate::SHIPPED.len());
    }
}
