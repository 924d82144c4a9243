//! `__consumer_offsets`: its name, which partition a group belongs to, and how it comes to be.

use std::rc::Rc;

use cluster::controller::NewTopic;
use cluster::{Refusal, view};
use engine::types::GroupId;

use crate::error::ErrorCode;
use crate::handlers::metadata;
use crate::request::{ControllerCall, ControllerReply};
use crate::shard::Shard;

pub const NAME: &str = "__consumer_offsets";

/// Kafka's `offsets.topic.num.partitions`.
pub const PARTITIONS: i32 = 50;

/// Topics that only the broker writes to.
pub const INTERNAL: [&str; 3] = [NAME, "__transaction_state", "__share_group_state"];

/// The partition of a group, as Kafka and all its clients compute it: the hash of Java's strings, without its sign, by the number of partitions.
pub fn partition_of(group: &str, partitions: usize) -> i32 {
    let hash = group
        .encode_utf16()
        .fold(0i32, |h, c| h.wrapping_mul(31).wrapping_add(i32::from(c)));
    // The smallest integer has no absolute value: Kafka takes 0 for it.
    let hash = hash.checked_abs().unwrap_or(0);
    hash % i32::try_from(partitions).unwrap_or(i32::MAX).max(1)
}

/// What the topic is made like.
pub fn new() -> NewTopic {
    let config = |name: &str, value: &str| (name.to_string(), Some(value.to_string()));
    NewTopic {
        name: NAME.to_string(),
        partitions: PARTITIONS,
        replication_factor: -1,
        configs: vec![
            config("cleanup.policy", "compact"),
            config("compression.type", "producer"),
            config("segment.bytes", "104857600"),
        ],
        internal: true,
        ..NewTopic::default()
    }
}

/// The topic; made now if it isn't there.
pub async fn get(shard: &Rc<Shard>) -> Result<Rc<view::Topic>, ErrorCode> {
    if let Some(topic) = shard.view.topic(NAME) {
        return Ok(topic);
    }
    match shard.ask_controller(ControllerCall::Create(new())).await {
        Some(ControllerReply::Created(Ok(_))) => {}
        // Somebody else was first, which is as good.
        Some(ControllerReply::Created(Err(e))) if e.refusal == Refusal::TopicAlreadyExists => {}
        Some(ControllerReply::Created(Err(e))) => {
            tracing::warn!(why = %e.message, "{NAME} could not be created");
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        _ => return Err(ErrorCode::CoordinatorNotAvailable),
    }
    metadata::wait_for_leaders(shard, NAME).await;
    shard
        .view
        .topic(NAME)
        .ok_or(ErrorCode::CoordinatorNotAvailable)
}

/// The partition of a group, if this node has it.
pub fn local_partition(shard: &Shard, group: &str) -> Option<GroupId> {
    let topic = shard.view.topic(NAME)?;
    let number = partition_of(group, topic.partitions.len());
    let here = |p: &cluster::metadata::Partition| p.replicas.iter().any(|r| r.node == shard.node);
    topic.partition(number).filter(|p| here(p))?;
    Some(topic.group(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `Utils.abs(group.hashCode()) % 50` gives.
    #[test]
    fn groups_hash_as_in_java() {
        for (group, partition) in [
            ("", 0),
            ("a", 47),
            ("test", 48),
            ("console-consumer-1", 24),
            // The hash of this one is the smallest integer.
            ("polygenelubricants", 0),
        ] {
            assert_eq!(partition_of(group, 50), partition, "{group}");
        }
        assert_eq!(partition_of("\u{1f600}", 50), 49);
    }
}
