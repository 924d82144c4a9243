//! One module per API key; its header says which versions it serves and what is special about it. [`work`] is the memory that a request takes meanwhile.

use std::hash::Hash;
use std::rc::Rc;

use ahash::RandomState;
use bytes::Bytes;
use engine::memory::{Lease, Leases, MemoryClass};
use engine::rt;
use engine::types::{GroupId, ShardId};
use indexmap::IndexSet;
use kafka_protocol::protocol::Encodable;

use crate::error::Malformed;
use crate::frame::{Request, finish};
use crate::limits;
use crate::refusals::{Errors, Refusals};
use crate::shard::Shard;
use crate::sync::Permit;
use crate::versions::ApiKey;
use work::Work;

pub mod alter_client_quotas;
pub mod alter_configs;
pub mod alter_replica_log_dirs;
pub mod api_versions;
pub(crate) mod auto_create;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_groups;
pub mod delete_records;
pub mod delete_topics;
pub mod describe_client_quotas;
pub mod describe_cluster;
pub mod describe_configs;
pub mod describe_groups;
pub mod describe_log_dirs;
pub mod describe_producers;
pub mod describe_topic_partitions;
pub mod elect_leaders;
pub mod fetch;
pub mod find_coordinator;
pub mod get_telemetry_subscriptions;
pub mod heartbeat;
pub mod incremental_alter_configs;
pub mod init_producer_id;
pub mod join_group;
pub mod leave_group;
pub mod list_config_resources;
pub mod list_groups;
pub mod list_offsets;
pub mod metadata;
pub mod offset_commit;
pub mod offset_delete;
pub mod offset_fetch;
pub mod offset_for_leader_epoch;
pub mod produce;
pub mod push_telemetry;
pub mod sync_group;
pub mod work;

/// An encoded answer and the memory that is held until it is written.
#[derive(Default)]
pub struct Answer {
    pub pieces: Vec<Bytes>,
    pub held: Vec<fetch::Held>,
    pub refusals: Refusals,
    /// For so long the client is throttled, in milliseconds: it used too much.
    pub throttle_ms: u32,
}

impl Answer {
    pub fn pieces(pieces: Vec<Bytes>) -> Answer {
        Answer {
            pieces,
            ..Answer::default()
        }
    }

    /// The same answer, in which these errors are told.
    pub fn telling(mut self, codes: impl IntoIterator<Item = i16>) -> Answer {
        codes.into_iter().for_each(|code| self.refusals.note(code));
        self
    }

    /// One piece, and the memory that it holds until it is written.
    pub fn held(piece: Bytes, memory: AnswerMemory) -> Answer {
        let mut held = Vec::new();
        if memory.lease.is_some() {
            held.push(fetch::Held::Answer { _memory: memory });
        }
        Answer {
            held,
            ..Answer::pieces(vec![piece])
        }
    }

    /// Encodes a message of the library, in the schema of `version`, once there is memory for it. An answer that its version has no room for is a
    /// defect of ours: it is logged and the connection closed.
    pub async fn encode<T: Encodable + Errors>(
        shard: &Shard,
        request: &Request,
        message: &T,
        version: i16,
    ) -> Result<Answer, Malformed> {
        let failed = |why: String| {
            tracing::error!(api = ?request.api.key, version, why, "an answer could not be encoded");
            Malformed::Answer
        };
        // Large ones are made, measured and encoded in a step each.
        rt::yield_if_needed().await;
        let size = message
            .compute_size(version)
            .map_err(|e| failed(e.to_string()))?;
        if size > limits::ANSWER_BYTES {
            return Err(failed(format!("it would take {size} bytes")));
        }
        let memory = memory_for(shard, size).await;
        rt::yield_if_needed().await;
        let mut out = request.answer(size);
        message
            .encode(&mut out, version)
            .map_err(|e| failed(e.to_string()))?;
        finish(&mut out, 0);
        Ok(Answer {
            refusals: Refusals::of(message),
            ..Answer::held(out.freeze(), memory)
        })
    }
}

/// What an answer holds until it is written; nothing if it is small.
#[derive(Default)]
pub struct AnswerMemory {
    lease: Option<Lease>,
    /// A very large one's turn.
    _turn: Option<Permit>,
}

impl AnswerMemory {
    /// Gives back what turned out not to be needed.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if let Some(lease) = &mut self.lease {
            lease.shrink_to(bytes as u64);
        }
    }
}

/// Waits for the memory of an answer, unless it is a small one. Very large ones come one at a time and are charged half of the class at most, so that the others
/// have the rest, however many of them wait and whether they are read or not. Called once for an answer, with no other memory of the class in hand, before
/// its bytes are made.
pub(crate) async fn memory_for(shard: &Shard, bytes: usize) -> AnswerMemory {
    if bytes <= limits::UNLEASED_ANSWER_BYTES {
        return AnswerMemory::default();
    }
    let class = MemoryClass::Answers;
    let (bytes, cap) = (bytes as u64, shard.budget.cap(class));
    let turn = match bytes > cap / limits::SHARE_OF_ANSWERS {
        true => Some(shard.large_answers.take().await),
        false => None,
    };
    let lease = shard.budget.take(class, bytes.min(cap / 2)).await;
    AnswerMemory {
        lease: Some(lease.expect("half of the class is not more than it has")),
        _turn: turn,
    }
}

/// The names that come again, in requests that must not name a thing twice.
pub(crate) fn repeated<'a, T: Hash + Eq + 'a>(
    names: impl Iterator<Item = &'a T>,
) -> IndexSet<&'a T, RandomState> {
    // Fixed seeds, as for every map of a shard.
    let set = || IndexSet::with_hasher(RandomState::with_seeds(5, 6, 7, 8));
    let (mut seen, mut twice) = (set(), set());
    for name in names {
        if !seen.insert(name) {
            twice.insert(name);
        }
    }
    twice
}

/// The topics that an answer has rows for: one without partitions is left out, as Kafka does with these keys.
pub(crate) fn with_rows<T>(topics: &[T], empty: impl Fn(&T) -> bool) -> impl Iterator<Item = &T> {
    topics.iter().filter(move |t| !empty(t))
}

/// Sorts queries by the shard that owns their groups, each with its place in the answer.
pub(crate) fn by_owner<Q>(
    shard: &Shard,
    queries: Vec<(usize, GroupId, Q)>,
) -> Vec<(ShardId, Vec<usize>, Vec<Q>)> {
    let mut sorted: Vec<(ShardId, Vec<usize>, Vec<Q>)> = Vec::new();
    for (place, group, query) in queries {
        let owner = shard.owner(group);
        let at = sorted.iter().position(|s| s.0 == owner).unwrap_or_else(|| {
            sorted.push((owner, Vec::new(), Vec::new()));
            sorted.len() - 1
        });
        sorted[at].1.push(place);
        sorted[at].2.push(query);
    }
    sorted
}

/// Answers any request but Produce, which the connection begins by itself.
/// Each handler's future is allocated for the request: a connection that waits for one takes no memory for it.
/// `memory` is what the frame holds, and [`work`] what the request is decoded into. Those that may wait for long, for records or for other members, give both back once they have read the frame and let
/// go of it.
pub async fn dispatch(
    shard: &Rc<Shard>,
    request: &mut Request,
    memory: &mut Leases,
) -> Result<Answer, Malformed> {
    let work = &mut Work::begin(&shard.work, request).await?;
    match request.api.key {
        ApiKey::Produce => unreachable!("the connection begins Produce by itself"),
        ApiKey::Fetch => Box::pin(fetch::handle(shard, request, memory, work)).await,
        ApiKey::ListOffsets => Box::pin(list_offsets::handle(shard, request)).await,
        ApiKey::OffsetCommit => Box::pin(offset_commit::handle(shard, request)).await,
        ApiKey::OffsetFetch => Box::pin(offset_fetch::handle(shard, request, work)).await,
        ApiKey::FindCoordinator => Box::pin(find_coordinator::handle(shard, request)).await,
        ApiKey::JoinGroup => Box::pin(join_group::handle(shard, request, memory, work)).await,
        ApiKey::Heartbeat => Box::pin(heartbeat::handle(shard, request)).await,
        ApiKey::LeaveGroup => Box::pin(leave_group::handle(shard, request)).await,
        ApiKey::SyncGroup => Box::pin(sync_group::handle(shard, request, memory, work)).await,
        ApiKey::DescribeGroups => Box::pin(describe_groups::handle(shard, request, work)).await,
        ApiKey::ListGroups => Box::pin(list_groups::handle(shard, request, work)).await,
        ApiKey::DeleteGroups => Box::pin(delete_groups::handle(shard, request)).await,
        ApiKey::OffsetDelete => Box::pin(offset_delete::handle(shard, request)).await,
        ApiKey::Metadata => Box::pin(metadata::handle(shard, request)).await,
        ApiKey::ApiVersions => Box::pin(api_versions::handle(shard, request)).await,
        ApiKey::CreateTopics => Box::pin(create_topics::handle(shard, request, work)).await,
        ApiKey::DeleteTopics => Box::pin(delete_topics::handle(shard, request)).await,
        ApiKey::InitProducerId => Box::pin(init_producer_id::handle(shard, request)).await,
        ApiKey::OffsetForLeaderEpoch => {
            Box::pin(offset_for_leader_epoch::handle(shard, request)).await
        }
        ApiKey::DescribeConfigs => Box::pin(describe_configs::handle(shard, request)).await,
        ApiKey::IncrementalAlterConfigs => {
            Box::pin(incremental_alter_configs::handle(shard, request)).await
        }
        ApiKey::AlterConfigs => Box::pin(alter_configs::handle(shard, request)).await,
        ApiKey::AlterReplicaLogDirs => {
            Box::pin(alter_replica_log_dirs::handle(shard, request)).await
        }
        ApiKey::DescribeLogDirs => Box::pin(describe_log_dirs::handle(shard, request, work)).await,
        ApiKey::ElectLeaders => Box::pin(elect_leaders::handle(shard, request, work)).await,
        ApiKey::DescribeProducers => {
            Box::pin(describe_producers::handle(shard, request, work)).await
        }
        ApiKey::GetTelemetrySubscriptions => {
            Box::pin(get_telemetry_subscriptions::handle(shard, request)).await
        }
        ApiKey::PushTelemetry => Box::pin(push_telemetry::handle(shard, request)).await,
        ApiKey::DeleteRecords => Box::pin(delete_records::handle(shard, request)).await,
        ApiKey::CreatePartitions => Box::pin(create_partitions::handle(shard, request)).await,
        ApiKey::DescribeClientQuotas => {
            Box::pin(describe_client_quotas::handle(shard, request, work)).await
        }
        ApiKey::AlterClientQuotas => Box::pin(alter_client_quotas::handle(shard, request)).await,
        ApiKey::DescribeCluster => Box::pin(describe_cluster::handle(shard, request)).await,
        ApiKey::ListConfigResources => {
            Box::pin(list_config_resources::handle(shard, request, work)).await
        }
        ApiKey::DescribeTopicPartitions => {
            Box::pin(describe_topic_partitions::handle(shard, request, work)).await
        }
    }
}
