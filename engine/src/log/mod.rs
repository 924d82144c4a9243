//! The log of a shard: signatures, filled in step by step.
#![allow(unused_variables)]
use std::path::PathBuf;
use std::rc::Rc;

use bytes::Bytes;
use thiserror::Error;

use crate::memory::Budget;
use crate::metrics::ShardMetrics;
use crate::types::*;

#[derive(Debug, Error)]
pub enum LogError {
    #[error("{what} {path}: {source}")]
    Io {
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path}: {why}")]
    Format { path: PathBuf, why: String },
    #[error("{group}: offsets {from} to {to} are damaged on disk")]
    Damaged {
        group: GroupId,
        from: Offset,
        to: Offset,
    },
    #[error("the replica is not here any more")]
    Removed,
}

pub struct Captured {
    pub applied: RaftIndex,
    pub state: Bytes,
}
pub trait StateSource {
    fn capture(&self, replica: ReplicaId) -> Captured;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPolicy {
    pub segment_bytes: u64,
    pub segment_ms: i64,
    /// -1: no limit.
    pub retention_ms: i64,
    /// -1: no limit.
    pub retention_bytes: i64,
}

pub struct StoreConfig {
    pub data_dir: PathBuf,
    pub journal_dir: Option<PathBuf>,
    pub shards: u16,
    pub memory_per_shard: u64,
}

pub struct RecoveredShard(());
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    pub replicas: u64,
    pub entries: u64,
    pub journal_bytes: u64,
    pub damaged_ranges: u64,
    pub torn_tails: u64,
}
pub struct Recovery {
    pub boot_epoch: BootEpoch,
    pub report: RecoveryReport,
    pub shards: Vec<RecoveredShard>,
}
pub async fn recover(cfg: &StoreConfig) -> Result<Recovery, LogError> {
    todo!()
}

pub struct Restored {
    pub id: ReplicaId,
    pub group: GroupId,
    pub hard_state: HardState,
    pub state_at: RaftIndex,
    pub state: Bytes,
    pub log: ReplicaLog,
}

#[derive(Clone)]
pub struct ShardLog(Rc<()>);

impl ShardLog {
    pub async fn open(
        cfg: Rc<StoreConfig>,
        shard: ShardId,
        part: RecoveredShard,
        budget: Rc<Budget>,
        metrics: Rc<ShardMetrics>,
    ) -> Result<(ShardLog, Vec<Restored>), LogError> {
        todo!()
    }
    pub fn set_state_source(&self, s: Rc<dyn StateSource>) {
        todo!()
    }
    /// What to do when the log failed: acknowledgements stop, the process must end.
    pub fn set_on_failure(&self, f: Rc<dyn Fn(&LogError)>) {
        todo!()
    }
    pub fn create(
        &self,
        id: ReplicaId,
        group: GroupId,
        state: Bytes,
    ) -> Result<(ReplicaLog, Lsn), LogError> {
        todo!()
    }
    pub fn remove(&self, id: ReplicaId) -> Lsn {
        todo!()
    }
    pub fn replica(&self, id: ReplicaId) -> Option<ReplicaLog> {
        todo!()
    }
    pub fn end_turn(&self) {
        todo!()
    }
    pub fn durable_lsn(&self) -> Lsn {
        todo!()
    }
    pub async fn durable_past(&self, seen: Lsn) -> Lsn {
        todo!()
    }
    /// 0 to 1: how full the live journal is.
    pub fn pressure(&self) -> f32 {
        todo!()
    }
    /// Writes out, checkpoints and stops the background work: the clean end of a run.
    pub async fn close(&self) -> Result<(), LogError> {
        todo!()
    }
}

pub enum Read {
    Ready(Vec<Bytes>),
    Later(PendingRead),
    OutOfRange,
}
pub struct PendingRead(());
impl PendingRead {
    pub async fn run(self) -> Result<Vec<Bytes>, LogError> {
        todo!()
    }
}

#[derive(Clone)]
pub struct ReplicaLog(Rc<()>);

impl ReplicaLog {
    pub fn id(&self) -> ReplicaId {
        todo!()
    }
    pub fn group(&self) -> GroupId {
        todo!()
    }
    pub fn append(&self, hard_state: Option<HardState>, entries: &[Entry]) -> Lsn {
        todo!()
    }
    pub fn hard_state(&self) -> HardState {
        todo!()
    }
    pub fn first_index(&self) -> RaftIndex {
        todo!()
    }
    pub fn last_index(&self) -> RaftIndex {
        todo!()
    }
    pub fn term(&self, i: RaftIndex) -> Option<Term> {
        todo!()
    }
    pub fn header(&self, i: RaftIndex) -> Option<EntryHeader> {
        todo!()
    }
    pub fn bytes(&self, i: RaftIndex) -> Option<Bytes> {
        todo!()
    }
    pub fn set_commit(&self, i: RaftIndex) {
        todo!()
    }
    pub fn commit(&self) -> RaftIndex {
        todo!()
    }
    pub fn high_watermark(&self) -> Offset {
        todo!()
    }
    pub fn log_start_offset(&self) -> Offset {
        todo!()
    }
    pub fn log_end_offset(&self) -> Offset {
        todo!()
    }
    pub fn set_log_start(&self, start: Offset) {
        todo!()
    }
    pub fn end_of_epoch(&self, e: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        todo!()
    }
    pub fn read(&self, from: Offset, max_bytes: usize, bound: Offset) -> Read {
        todo!()
    }
    pub async fn batch_by_timestamp(
        &self,
        ts: i64,
        bound: Offset,
    ) -> Result<Option<Bytes>, LogError> {
        todo!()
    }
    pub async fn batch_of_max_timestamp(&self, bound: Offset) -> Result<Option<Bytes>, LogError> {
        todo!()
    }
    pub fn size_bytes(&self) -> u64 {
        todo!()
    }
    pub fn set_policy(&self, p: LogPolicy) {
        todo!()
    }
    /// Where the log should start by retention, if that is later than where it does; the leader proposes it as a TrimPrefix (L9).
    pub fn retention_start(&self, now_ms: i64) -> Option<Offset> {
        todo!()
    }
}
