//! DescribeTopicPartitions, key 75, version 0.
//!
//! Topics page by page (KIP-966), from the shard's own copy, in the order of their names, each once: all of them when none is named. A page has at most
//! [`limits::DESCRIBED_PARTITIONS`] partitions, fewer if the client asks for fewer, one at least; where it ends the cursor says where to go on. A cursor with a negative partition,
//! or at a topic that isn't among the named ones, is INVALID_REQUEST for every topic. Followers that lack records never lead, so that nothing is told of
//! eligible leaders beyond the replicas in sync. There are no authorizations yet: every operation is allowed.

use std::collections::BTreeSet;
use std::rc::Rc;

use cluster::topic_name;
use cluster::view::Topic;
use engine::rt;
use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::{
    DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::faces::Faces;
use crate::frame::Request;
use crate::handlers::Answer;
use crate::handlers::describe_cluster::OPERATIONS_NOT_TOLD;
use crate::handlers::work::Work;
use crate::limits;
use crate::schema;
use crate::shard::Shard;

/// READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS as bits: what a topic can allow.
pub(crate) const TOPIC_OPERATIONS: i32 = 3576;

/// Names that are looked at before other tasks get a turn.
const SLICE: usize = 256;

/// A topic of the answer, and the partitions to tell of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece<T> {
    pub topic: T,
    pub from: usize,
    pub to: usize,
}

/// Where a page ends: the topic and the partition that the next one begins with.
pub(crate) type Next<T> = Option<(T, usize)>;

pub async fn handle(
    shard: &Rc<Shard>,
    request: &Request,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let response = loop {
        let asked: DescribeTopicPartitionsRequest = schema::decode(request, request.version)?;
        if bad_cursor(&asked) {
            let topics = asked.topics.iter();
            let topics = topics.map(|t| missing(t.name.clone(), ErrorCode::InvalidRequest));
            break DescribeTopicPartitionsResponse::default().with_topics(topics.collect());
        }
        let bytes = page_limit(&asked) * limits::DESCRIBED_PARTITION_BYTES;
        if work.grow(&shard.work, bytes) {
            break page(shard, &asked).await;
        }
        drop(asked);
        work.anew(&shard.work).await;
    };
    Answer::encode(shard, request, &response, request.version).await
}

pub(crate) fn bad_cursor(asked: &DescribeTopicPartitionsRequest) -> bool {
    let Some(cursor) = &asked.cursor else {
        return false;
    };
    let named = asked.topics.is_empty() || asked.topics.iter().any(|t| t.name == cursor.topic_name);
    cursor.partition_index < 0 || !named
}

/// Partitions of a page, at most.
pub(crate) fn page_limit(asked: &DescribeTopicPartitionsRequest) -> usize {
    usize::try_from(asked.response_partition_limit)
        .unwrap_or(0)
        .clamp(1, limits::DESCRIBED_PARTITIONS)
}

/// What a page can be of: what is named, or all there is, from the cursor on, in the order of names. Not more than a page: of all topics those behind its end are not looked at.
async fn from_the_cursor(
    shard: &Shard,
    asked: &DescribeTopicPartitionsRequest,
    limit: usize,
) -> Vec<(TopicName, Option<Rc<Topic>>)> {
    let from = asked.cursor.as_ref().map(|c| &**c.topic_name);
    if asked.topics.is_empty() {
        // Each has a partition at least, but what the cursor leaves of the first may be none; one more says where the next page begins.
        let topics = shard.view.topics_from(from.unwrap_or_default(), limit + 2);
        let named = |topic: Rc<Topic>| (name_of(&topic), Some(topic));
        return topics.into_iter().map(named).collect();
    }
    let mut names = BTreeSet::new();
    for (i, topic) in asked.topics.iter().enumerate() {
        if from.is_none_or(|from| &**topic.name >= from) {
            names.insert(&topic.name);
        }
        if i % SLICE == SLICE - 1 {
            rt::yield_if_needed().await;
        }
    }
    let mut topics = Vec::with_capacity(names.len());
    for name in names {
        topics.push((name.clone(), shard.view.topic(name)));
        if topics.len().is_multiple_of(SLICE) {
            rt::yield_if_needed().await;
        }
    }
    topics
}

async fn page(
    shard: &Shard,
    asked: &DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let limit = page_limit(asked);
    let topics = from_the_cursor(shard, asked, limit).await;
    let first = match &asked.cursor {
        Some(c)
            if topics
                .first()
                .is_some_and(|(name, _)| *name == c.topic_name) =>
        {
            usize::try_from(c.partition_index).unwrap_or(0)
        }
        _ => 0,
    };
    let counts = topics.into_iter().map(|(name, topic)| {
        let partitions = topic.as_ref().map_or(0, |t| t.partitions.len());
        ((name, topic), partitions)
    });
    let (pieces, next) = cut(counts, first, limit);
    let next = next.map(|((name, _), partition)| {
        Cursor::default()
            .with_topic_name(name)
            .with_partition_index(partition as i32)
    });
    let faces = shard.faces();
    let mut rows = Vec::with_capacity(pieces.len());
    for piece in pieces {
        rows.push(told(piece, &faces));
        rt::yield_if_needed().await;
    }
    DescribeTopicPartitionsResponse::default()
        .with_topics(rows)
        .with_next_cursor(next)
}

/// Takes topics until there are `limit` partitions; of the first one only those from `first` on.
pub(crate) fn cut<T: Clone>(
    topics: impl Iterator<Item = (T, usize)>,
    first: usize,
    limit: usize,
) -> (Vec<Piece<T>>, Next<T>) {
    let mut pieces = Vec::new();
    let mut left = limit;
    for (i, (topic, partitions)) in topics.enumerate() {
        if left == 0 {
            return (pieces, Some((topic, 0)));
        }
        let from = if i == 0 { first.min(partitions) } else { 0 };
        let to = partitions.min(from + left);
        left -= to - from;
        pieces.push(Piece {
            topic: topic.clone(),
            from,
            to,
        });
        if to < partitions {
            return (pieces, Some((topic, to)));
        }
    }
    (pieces, None)
}

fn name_of(topic: &Topic) -> TopicName {
    StrBytes::from_string(topic.name.to_string()).into()
}

pub(crate) fn missing(name: TopicName, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic::default()
        .with_name(Some(name))
        .with_error_code(error.code())
        .with_topic_authorized_operations(OPERATIONS_NOT_TOLD)
}

pub(crate) fn told(
    piece: Piece<(TopicName, Option<Rc<Topic>>)>,
    faces: &Faces,
) -> DescribeTopicPartitionsResponseTopic {
    let (name, topic) = piece.topic;
    let Some(topic) = topic else {
        let error = match topic_name::check(&name) {
            Ok(()) => ErrorCode::UnknownTopicOrPartition,
            Err(_) => ErrorCode::InvalidTopic,
        };
        return missing(name, error).with_topic_authorized_operations(TOPIC_OPERATIONS);
    };
    let partitions = (piece.from..piece.to).map(|p| partition(&topic, p, faces));
    DescribeTopicPartitionsResponseTopic::default()
        .with_name(Some(name))
        .with_topic_id(topic.id.0)
        .with_is_internal(topic.name.starts_with("__"))
        .with_partitions(partitions.collect())
        .with_topic_authorized_operations(TOPIC_OPERATIONS)
}

fn partition(topic: &Topic, p: usize, faces: &Faces) -> DescribeTopicPartitionsResponsePartition {
    let broker = |node| faces.of(node, topic.group(p as i32));
    let replicas = topic.partitions[p].replicas.iter();
    let replicas: Vec<_> = replicas.map(|r| broker(r.node).into()).collect();
    let leader = topic.leader(p as i32);
    let node = leader.and_then(|l| l.node);
    let error = match node {
        Some(_) => ErrorCode::None,
        None => ErrorCode::LeaderNotAvailable,
    };
    DescribeTopicPartitionsResponsePartition::default()
        .with_error_code(error.code())
        .with_partition_index(p as i32)
        .with_leader_id(node.map_or(-1, broker).into())
        .with_leader_epoch(leader.map_or(-1, |l| l.epoch().0))
        .with_isr_nodes(replicas.clone())
        .with_replica_nodes(replicas)
        .with_eligible_leader_replicas(Some(Vec::new()))
        .with_last_known_elr(Some(Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;
    use proptest::prelude::*;

    fn sizes(
        topics: &[usize],
        first: usize,
        limit: usize,
    ) -> (Vec<(usize, usize, usize)>, Next<usize>) {
        let (pieces, next) = cut(topics.iter().copied().enumerate(), first, limit);
        let pieces = pieces.into_iter().map(|p| (p.topic, p.from, p.to));
        (pieces.collect(), next)
    }

    #[test]
    fn a_page_ends_where_its_partitions_do() {
        assert_eq!(sizes(&[4], 0, 2), (vec![(0, 0, 2)], Some((0, 2))));
        assert_eq!(sizes(&[4], 1, 3), (vec![(0, 1, 4)], None));
        assert_eq!(sizes(&[4], 9, 3), (vec![(0, 4, 4)], None));
        // Full with the end of a topic: the next page begins with the next topic.
        assert_eq!(sizes(&[3, 1], 0, 3), (vec![(0, 0, 3)], Some((1, 0))));
        // What isn't there takes no room.
        assert_eq!(
            sizes(&[0, 0, 1], 0, 1),
            (vec![(0, 0, 0), (1, 0, 0), (2, 0, 1)], None)
        );
    }

    #[test]
    fn answers_can_be_encoded() {
        let response = DescribeTopicPartitionsResponse::default()
            .with_topics(vec![missing(
                StrBytes::from_static_str("t").into(),
                ErrorCode::UnknownTopicOrPartition,
            )])
            .with_next_cursor(Some(Cursor::default()));
        let mut out = bytes::BytesMut::new();
        response.encode(&mut out, 0).unwrap();
    }

    proptest! {
        #[test]
        fn pages_together_are_everything(topics in proptest::collection::vec(0usize..6, 0..8), limit in 1usize..7) {
            let mut seen = Vec::new();
            let (mut topic, mut first) = (0, 0);
            loop {
                let (pieces, next) = sizes(&topics[topic..], first, limit);
                prop_assert!(pieces.iter().map(|(_, from, to)| to - from).sum::<usize>() <= limit);
                for (t, from, to) in pieces {
                    seen.extend((from..to).map(|p| (topic + t, p)));
                }
                match next {
                    Some((t, p)) => (topic, first) = (topic + t, p),
                    None => break,
                }
            }
            let all: Vec<_> = topics.iter().enumerate().flat_map(|(t, n)| (0..*n).map(move |p| (t, p))).collect();
            prop_assert_eq!(seen, all);
        }
    }
}
