//! What callers of a group see besides the group itself: acknowledgement levels, answers, errors, and the two traits through which a
//! group talks to what lies above it.

use bytes::Bytes;
use engine::log::LogError;
use engine::types::{GroupId, Offset, RaftIndex, ReplicaId, Term};
use thiserror::Error;

use crate::wait::CommitWait;

/// How much must have happened before a produce is answered (design §4, Acks).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Never answered (`acks=0`).
    None,
    /// In the leader's memory (`acks=1`).
    Leader,
    /// Committed (`acks=all`).
    All,
}

/// An idempotent producer as a group remembers it: its last batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveProducer {
    pub id: i64,
    pub epoch: i16,
    pub last_sequence: i32,
    /// The greatest timestamp of the batch.
    pub last_timestamp: i64,
}

/// Where a batch lies, as Produce answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub base_offset: Offset,
    /// The batch's time if the broker set it (LogAppendTime), else -1.
    pub log_append_time_ms: i64,
    pub log_start_offset: Offset,
}

/// The answer to a produce that was taken.
#[derive(Debug)]
pub enum Produced {
    /// Answer when this ends.
    Wait(CommitWait<Appended>),
    /// Answer now: `acks` 0 or 1, or a repeat of a batch that is committed already.
    Done(Appended),
}

/// Why a proposal was not taken, or will not commit as far as this replica can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProduceError {
    #[error("this replica does not lead the group")]
    NotLeader,
    #[error("the group is not on this shard any more")]
    Removed,
    #[error("the sequence number is not the next one")]
    OutOfOrderSequence,
    #[error("the producer epoch is older than the one known")]
    InvalidProducerEpoch,
    #[error("the batch was written before, too long ago to tell its offset")]
    DuplicateSequence,
    #[error("nothing is known of the producer")]
    UnknownProducer,
    #[error("the offset is beyond the high watermark")]
    OffsetOutOfRange,
    #[error("the batch is larger than the log takes")]
    TooLarge,
    /// Too much is in flight, or the journal is full: try again later.
    #[error("the log cannot take more at the moment")]
    Overloaded,
    /// The disk is nearly full: nothing was appended, and the same may be tried again until there is room.
    #[error("the disk is nearly full")]
    DiskFull,
    /// The log failed; the process is about to end.
    #[error("the log failed")]
    Storage,
}

/// Why a group could not be created or taken over from the log.
#[derive(Debug, Error)]
pub enum GroupError {
    #[error("group {0} is on this shard already")]
    Exists(GroupId),
    #[error("{group}: {why}")]
    State { group: GroupId, why: &'static str },
    #[error("{group}: {why}")]
    Raft { group: GroupId, why: String },
    #[error(transparent)]
    Log(#[from] LogError),
}

/// What the groups of a shard tell the layer above. Called from the pump, one call after the other, while no group is borrowed: the
/// sink may read, propose, create and remove. It must not block.
pub trait GroupSink {
    /// A replica of this shard knows of a new leader or that there is none. Its own leadership is told only when the term is durable (G1).
    fn leader_changed(&self, group: GroupId, term: Term, leader_replica: Option<ReplicaId>);
    /// A committed command, in log order, each once per start of the process above the state that was restored.
    fn command_applied(&self, group: GroupId, index: RaftIndex, term: Term, command: Bytes);
    /// The sink's state of this group as of the last command that it was given, in pieces, one behind the other; empty if it keeps none.
    fn snapshot_state(&self, group: GroupId) -> Vec<Bytes>;
    /// Does a slice of what [`GroupSink::snapshot_state`] would have to do now (L8); `true`: nothing is left.
    fn prepare_snapshot(&self, _group: GroupId) -> bool {
        true
    }
    /// Takes over what [`GroupSink::snapshot_state`] gave in an earlier life, before any command above it.
    fn restore_state(&self, group: GroupId, state: Bytes);
}

/// Somebody who waits for a group to move: a fetch, mostly.
pub trait Watcher {
    /// The high watermark, the leadership or the log start moved, or the group was removed. Called synchronously; must not call back
    /// into the group except to read.
    fn moved(&self, group: GroupId);
}

/// Names a subscription of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionKey(pub(crate) u64);
