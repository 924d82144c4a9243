//! Sections of a workload file that most workloads leave out: what records are like, what happens meanwhile, a replay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Load, MIN_RECORD_BYTES, refuse, within};
use crate::error::Error;
use crate::limits;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Records {
    pub sizes: Sizes,
    /// Bounds of what "uniform" and "lognormal" draw, in bytes of a value.
    pub smallest_bytes: usize,
    pub largest_bytes: usize,
    /// Of "lognormal": the deviation of the logarithm.
    pub sigma: f64,
    /// The share of each value that compresses away, 0 to 1.
    pub compressible: f64,
    pub keys: Keys,
    /// How many different keys there are.
    pub key_count: u64,
    /// Of "zipf": a key's share falls with its rank to this power.
    pub zipf_exponent: f64,
}

/// Lengths of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// `load.record-bytes`.
    Fixed,
    /// Any length between the bounds alike.
    Uniform,
    /// `load.record-bytes` is the median.
    Lognormal,
}

/// 16 byte keys; a keyed record goes to the partition that Kafka's clients give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Keys {
    None,
    Uniform,
    Zipf,
}

impl Default for Records {
    fn default() -> Records {
        Records {
            sizes: Sizes::Fixed,
            smallest_bytes: MIN_RECORD_BYTES,
            largest_bytes: 64 << 10,
            sigma: 1.0,
            compressible: 0.0,
            keys: Keys::None,
            key_count: 100_000,
            zipf_exponent: 0.99,
        }
    }
}

impl Records {
    pub(super) fn check(&self) -> Result<(), Error> {
        let (small, large) = (self.smallest_bytes, self.largest_bytes);
        within("records.smallest-bytes", small, MIN_RECORD_BYTES, large)?;
        within(
            "records.largest-bytes",
            large,
            small,
            limits::MAX_RECORD_BYTES,
        )?;
        within("records.sigma", self.sigma, 0.0, 10.0)?;
        within("records.compressible", self.compressible, 0.0, 1.0)?;
        within("records.key-count", self.key_count, 1, 1 << 40)?;
        within("records.zipf-exponent", self.zipf_exponent, 0.01, 10.0)
    }
}

/// Something that happens to the broker at a moment of the run: a signal, a command, or both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Fault {
    /// Seconds from the beginning of the load, warm-up included.
    pub at_s: f64,
    /// Sent to the broker's process, which must be named for the run.
    #[serde(default)]
    pub signal: Option<Signal>,
    /// Run by the shell, with BENCH_BROKER, BENCH_PID and BENCH_DATA_DIR in its environment as far as they are known.
    #[serde(default)]
    pub command: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Signal {
    Kill,
    Term,
    Stop,
    Cont,
}

impl Fault {
    pub(super) fn check(&self) -> Result<(), Error> {
        within("faults.at-s", self.at_s, 0.0, limits::MAX_RUN_S)?;
        if self.signal.is_none() && self.command.is_none() {
            return refuse("a fault has a signal or a command");
        }
        Ok(())
    }
}

/// Topics of their own that are filled before the load, and read from the beginning beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Replay {
    /// Bytes of values to be there before the load begins. They are of `load.record-bytes`, sent in large batches.
    pub bytes: u64,
    pub partitions: i32,
    pub consumers: usize,
    /// When they begin to read, in seconds from the beginning of the load.
    pub begin_s: f64,
    /// Run by the shell between filling and load, e.g. to have the caches dropped. As of a fault.
    pub before: Option<String>,
}

impl Default for Replay {
    fn default() -> Replay {
        Replay {
            bytes: 1 << 30,
            partitions: 12,
            consumers: 1,
            begin_s: 10.0,
            before: None,
        }
    }
}

impl Replay {
    pub(super) fn check(&self, load: &Load) -> Result<(), Error> {
        within(
            "replay.bytes",
            self.bytes,
            load.record_bytes as u64,
            1 << 50,
        )?;
        within("replay.partitions", self.partitions, 1, 10_000)?;
        within("replay.consumers", self.consumers, 1, limits::MAX_CLIENTS)?;
        within("replay.begin-s", self.begin_s, 0.0, limits::MAX_RUN_S)
    }
}
