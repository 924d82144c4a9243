//! The log of a shard (design §4): the journal, the segments of every replica, checkpoints, and how a start puts them together.
//!
//! A replica's records go into the shard's one journal and stay in memory; acknowledgements wait for the journal's `durable_lsn`. In the background committed
//! entries are written out to segments, and checkpoints let the journal go of its old blocks. Readers take from memory what is there and from segments what isn't.
//!
//! Reading order: [`record`] and [`block`] (what a commit looks like), [`journal`] (how commits are made), [`replica`] (a log in memory), [`writeout`], [`segment`],
//! [`extent`] and [`reader`] (on disk), [`checkpoint`] and [`janitor`] (letting go), [`space`] (a disk that fills), [`replay`], [`recovered`] and [`recovery`] (coming back), [`shard`], [`handle`] and [`by_time`] (what the crates above call).
//!
//! Bounds are in [`crate::limits`]. All state of a shard is changed by synchronous functions; tasks do the waiting.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use thiserror::Error;

use crate::types::*;

pub mod block;
mod by_time;
mod checkpoint;
pub mod directory;
mod extent;
mod files;
mod frame;
mod handle;
mod janitor;
mod journal;
mod lru;
mod node_file;
mod notify;
mod readahead;
mod reader;
pub mod record;
mod recovered;
mod recovery;
mod replay;
mod replica;
mod search;
mod segment;
mod shard;
mod space;
pub mod superblock;
mod terms;
mod wire;
mod writeout;

/// What the fuzz targets need of the inside: decoders of bytes from the disk, and encoders that make something to decode.
#[doc(hidden)]
pub mod door;

pub use extent::Extent;
pub use handle::ReplicaLog;
pub use readahead::Patience;
pub use reader::PendingRead;
pub use recovery::{RecoveredShard, Recovery, RecoveryReport, recover};
pub use shard::{Restored, ShardLog};
pub use space::DiskState;

/// What can go wrong with the log.
#[derive(Debug, Error)]
pub enum LogError {
    #[error("{what} {path}: {source}")]
    Io {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// What lies on disk isn't what this Tailrace can go on from; the text says what to do.
    #[error("{path}: {why}")]
    Format { path: PathBuf, why: String },
    /// These offsets were durable once and can't be read; everything around them can.
    #[error("{group}: offsets {from} to {to} (not included) are damaged on disk")]
    Damaged {
        group: GroupId,
        from: Offset,
        to: Offset,
    },
    /// The log's start has moved above what was asked for, while it was being read.
    #[error("what was to be read lies below the log's start by now")]
    Trimmed,
    #[error("the replica is not here any more")]
    Removed,
    #[error("replica {0} exists already")]
    Exists(ReplicaId),
}

impl LogError {
    /// There was no room for it: what was to be written isn't, and may be tried again.
    pub fn is_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, LogError::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }
}

/// The state of the layer above at one point of a replica's log.
pub struct Captured {
    /// The index up to which `state` has everything applied: the replica's commit index as last told by `set_commit`.
    pub applied: RaftIndex,
    /// In pieces, one behind the other.
    pub state: Vec<Bytes>,
}

/// Asked for a replica's state when a checkpoint is made. Synchronous; may read the log, must not change it.
pub trait StateSource {
    fn capture(&self, replica: ReplicaId) -> Captured;
    /// Does a slice of what a capture would have to do now, under 200 µs of it (L8); `true`: nothing is left. Called again and again before a capture, with other tasks in between.
    fn prepare(&self, _replica: ReplicaId) -> bool {
        true
    }
}

/// What a topic's configuration says about its logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPolicy {
    pub segment_bytes: u64,
    pub segment_ms: i64,
    /// -1: no limit.
    pub retention_ms: i64,
    /// -1: no limit.
    pub retention_bytes: i64,
}

impl Default for LogPolicy {
    /// Kafka's defaults, without retention: only a topic's own configuration may delete.
    fn default() -> LogPolicy {
        LogPolicy {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 3600 * 1000,
            retention_ms: -1,
            retention_bytes: -1,
        }
    }
}

/// Where and how large.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    pub data_dir: PathBuf,
    /// A directory of its own for the journals, if not the data directory.
    pub journal_dir: Option<PathBuf>,
    pub shards: u16,
    /// Memory that each shard may use, in bytes; the live journal takes at most a quarter of it (L3).
    pub memory_per_shard: u64,
}

impl StoreConfig {
    pub fn journal_dir(&self) -> &Path {
        self.journal_dir.as_deref().unwrap_or(&self.data_dir)
    }
}

/// An answer to a read.
pub enum Read {
    /// Whole batches from memory. Empty: nothing between the asked offset and the bound.
    Ready(Vec<Bytes>),
    /// The disk has to be asked.
    Later(PendingRead),
    /// Below the log's start or above its end.
    OutOfRange,
    /// These offsets are lost; what follows `to` can be read.
    Damaged { to: Offset },
}
