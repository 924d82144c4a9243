//! What crosses the rings between shards: questions about partitions to the shard that owns them, changes of the metadata to shard 0 and
//! from it, and news. Plain data; payloads are `Bytes` and are not copied.

use std::net::IpAddr;
use std::sync::Arc;

use cluster::Refused;
use cluster::controller::{
    AlterTopic, CreatedTopic, NewPartitions, NewTopic, ProducerIds, TopicRef,
};
use cluster::metadata::Change;
use cluster::topic_config::ConfigChange;
use cluster::view::Announcement;
use engine::batch::Batch;
use engine::log::Extent;
use engine::metrics::Sample;
use engine::ring::Credits;
use engine::types::{GroupId, TopicId};
use raftgroup::Acks;
use smallvec::SmallVec;

use crate::coordinator;
use crate::error::ErrorCode;
use crate::handlers::describe_producers::Told as Producers;
use crate::handlers::fetch::wire::PartAnswer as Fetched;
use crate::handlers::produce::wire::PartAnswer as Appended;
use crate::quotas::Charge;
use crate::quotas::admission::Verdict;

/// Calls that one shard may have under way at another, by class.
pub const CREDITS: Credits = Credits {
    short: 256,
    append: 1024,
    // Nothing is called so: long polls, like questions to coordinators, are cast and hold nothing of a ring while they wait.
    waiter: 1,
};

/// See the module. One that is marked *cast* has no answer.
#[derive(Debug)]
pub enum ShardRequest {
    /// Batches for partitions of this shard, in order.
    Produce(ProduceCall),
    /// Write a large batch to an extent of this shard's partition (L7); it is produced by name afterwards.
    PutExtent(GroupId, Batch),
    /// Cast: read partitions of this shard; answered by [`ShardRequest::Fetched`] when enough is there or time is up.
    Fetch(FetchCall),
    /// Cast: the answer to a fetch of this shard, by its number.
    Fetched(u64, Box<FetchReply>),
    /// Cast: the caller needs only this much more; 0 is "answer now".
    FetchLess {
        call: u64,
        min_bytes: usize,
    },
    /// Cast: the caller has written what the call gave it, or wants nothing of it any more.
    FetchDone {
        call: u64,
    },
    Offsets(Vec<OffsetQuery>),
    Epochs(Vec<EpochQuery>),
    Trim(TrimCall),
    /// Bytes of the logs of these groups, or of all.
    LogSizes(Option<Vec<GroupId>>),
    /// The producers that these groups remember.
    Producers(Vec<GroupId>),
    /// To shard 0.
    Controller(ControllerCall),
    /// From shard 0: the metadata changed.
    Changes(Arc<[Change]>),
    /// Cast: who leads what.
    Leaders(Arc<[Announcement]>),
    Metrics,
    /// Cast: a question to the coordinator of a partition of this shard, and its number; answered by [`ShardRequest::GroupAnswer`].
    Group(GroupId, coordinator::Token, coordinator::Request),
    /// To shard 0: may a connection of this address come in?
    Enter(IpAddr),
    /// Cast to shard 0: a connection that was let in has ended.
    Left(IpAddr),
    /// To the shard that keeps a payer's books.
    Charge(Box<Charge>),
    /// Cast: the answer to a question of this shard.
    GroupAnswer(coordinator::Token, coordinator::Reply),
}

#[derive(Debug)]
pub enum ShardReply {
    Produce(SmallVec<[Appended; 1]>),
    PutExtent(Result<Body, ErrorCode>),
    Offsets(Vec<OffsetAnswer>),
    Epochs(Vec<EpochAnswer>),
    /// For each query the log start that came of it.
    Trim(Vec<Result<i64, ErrorCode>>),
    /// Of those that are here.
    LogSizes(Vec<(GroupId, u64)>),
    Producers(Vec<Producers>),
    Controller(ControllerReply),
    Entered(Verdict),
    /// For how many milliseconds.
    Throttled(u32),
    Done,
    Metrics(Vec<Sample>),
}

/// A batch on its way into a log.
#[derive(Debug)]
pub enum Body {
    Whole(Batch),
    /// Its bytes are on the disk of the partition's owner.
    Extent(Box<Extent>),
}

#[derive(Debug)]
pub struct ProduceCall {
    pub parts: SmallVec<[(GroupId, Body); 1]>,
    pub acks: Acks,
    /// After this long the answer is REQUEST_TIMED_OUT, so that a partition without quorum holds no credit for ever.
    pub timeout_ms: u32,
}

#[derive(Debug)]
pub struct FetchCall {
    /// The caller's number for this call.
    pub id: u64,
    /// In the client's order.
    pub queries: SmallVec<[FetchQuery; 1]>,
    pub max_bytes: usize,
    pub min_bytes: usize,
    pub max_wait_ms: u32,
    /// The fetch touches this shard alone.
    pub alone: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct FetchQuery {
    pub group: GroupId,
    pub offset: i64,
    /// -1: not said.
    pub current_leader_epoch: i32,
    /// -1: not said.
    pub last_fetched_epoch: i32,
    pub max_bytes: usize,
}

#[derive(Debug)]
pub struct FetchReply {
    /// One for each query, in their order.
    pub parts: SmallVec<[Fetched; 1]>,
    /// The owner holds memory for it until it is told [`ShardRequest::FetchDone`].
    pub leased: bool,
}

/// ListOffsets for one partition. `timestamp` is one of the special ones or a time.
#[derive(Clone, Copy, Debug)]
pub struct OffsetQuery {
    pub group: GroupId,
    pub current_leader_epoch: i32,
    pub timestamp: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetAnswer {
    pub error: ErrorCode,
    pub timestamp: i64,
    pub offset: i64,
    pub leader_epoch: i32,
}

/// OffsetForLeaderEpoch for one partition.
#[derive(Clone, Copy, Debug)]
pub struct EpochQuery {
    pub group: GroupId,
    pub current_leader_epoch: i32,
    pub epoch: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochAnswer {
    pub error: ErrorCode,
    pub epoch: i32,
    pub end_offset: i64,
}

/// DeleteRecords: move the starts of logs (L9).
#[derive(Debug)]
pub struct TrimCall {
    pub queries: Vec<TrimQuery>,
    /// After this long the answer is REQUEST_TIMED_OUT; the move may still happen.
    pub timeout_ms: u32,
}

/// `offset` is the new start; -1 is the high watermark.
#[derive(Clone, Copy, Debug)]
pub struct TrimQuery {
    pub group: GroupId,
    pub offset: i64,
}

/// What shard 0 is asked to change.
#[derive(Debug)]
pub enum ControllerCall {
    Create(NewTopic),
    Delete(TopicRef),
    Alter(AlterTopic),
    AlterDefaults {
        change: ConfigChange,
        validate_only: bool,
    },
    AddPartitions(NewPartitions),
    ProducerIds,
    AlterQuotas(Vec<cluster::quota::Change>),
}

#[derive(Debug)]
pub enum ControllerReply {
    Created(Result<CreatedTopic, Refused>),
    Deleted(Result<(String, TopicId), Refused>),
    Altered(Result<(), Refused>),
    /// How many the topic has now.
    PartitionsAdded(Result<i32, Refused>),
    ProducerIds(Result<ProducerIds, Refused>),
    QuotasAltered(Result<(), Refused>),
}
