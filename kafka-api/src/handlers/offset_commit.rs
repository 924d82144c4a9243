//! OffsetCommit, key 8, versions 2-10.
//!
//! Answered when the offsets are committed to `__consumer_offsets`. Versions 2 to 4 may say how long they are kept; from 6 on an offset has the leader
//! epoch of what was read, from 7 on a static member its name; from 10 on topics go by id. A partition that isn't there is
//! UNKNOWN_TOPIC_OR_PARTITION, and the others are committed. A group that isn't there and a generation that is: ILLEGAL_GENERATION, from 9 on
//! GROUP_ID_NOT_FOUND. More offsets than [`limits::COMMITTED_OFFSETS`] are INVALID_COMMIT_OFFSET_SIZE.
//!
//! The request is read by hand: the library doesn't know version 10.

use std::rc::Rc;

use engine::rt;
use engine::types::TopicId;
use kafka_protocol::messages::OffsetCommitResponse;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use uuid::Uuid;

use crate::coordinator::requests::{Commit, CommitOffset, Membership};
use crate::coordinator::{self, Name, Reply};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::limits;
use crate::shard::Shard;

/// A request as it was read.
#[derive(Debug)]
pub struct OffsetCommitRequest {
    pub who: Membership,
    pub retention_ms: Option<i64>,
    pub topics: Vec<TopicCommits>,
}

#[derive(Debug)]
pub struct TopicCommits {
    /// Empty from version 10 on.
    pub name: Name,
    pub id: Uuid,
    pub partitions: Vec<PartitionCommit>,
}

#[derive(Debug)]
pub struct PartitionCommit {
    pub partition: i32,
    pub offset: i64,
    pub leader_epoch: i32,
    pub metadata: Name,
}

impl OffsetCommitRequest {
    pub fn read(request: &Request) -> Result<OffsetCommitRequest, Malformed> {
        let (version, flexible) = (request.version, request.flexible());
        let mut r = request.body.clone();
        let group = r.string(flexible)?;
        let generation = r.i32()?;
        let member = r.string(flexible)?;
        let instance = if version >= 7 {
            r.nullable_string(flexible)?
        } else {
            None
        };
        let retention_ms = if version <= 4 { Some(r.i64()?) } else { None };
        let mut topics = Vec::new();
        for _ in 0..r.array(flexible, 3)? {
            let (name, id) = if version >= 10 {
                (Name::default(), r.uuid()?)
            } else {
                (r.string(flexible)?, Uuid::nil())
            };
            let mut partitions = Vec::new();
            for _ in 0..r.array(flexible, 13)? {
                partitions.push(PartitionCommit {
                    partition: r.i32()?,
                    offset: r.i64()?,
                    leader_epoch: if version >= 6 { r.i32()? } else { -1 },
                    metadata: r.nullable_string(flexible)?.unwrap_or_default(),
                });
                r.skip_tags(flexible)?;
            }
            r.skip_tags(flexible)?;
            topics.push(TopicCommits {
                name,
                id,
                partitions,
            });
        }
        r.skip_tags(flexible)?;
        Ok(OffsetCommitRequest {
            who: Membership {
                group,
                member,
                instance,
                generation,
            },
            retention_ms: retention_ms.filter(|ms| *ms != -1),
            topics,
        })
    }
}

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let mut asked = OffsetCommitRequest::read(request)?;
    // A topic that is there has no row without partitions; one that isn't has its row, as in Kafka.
    asked.topics.retain(|t| {
        let is_there = match request.version {
            10.. => shard.view.topic_by_id(TopicId(t.id)).is_some(),
            _ => shard.view.topic(&t.name).is_some(),
        };
        !t.partitions.is_empty() || !is_there
    });
    let mut answers = Vec::new();
    let mut places = Vec::new();
    let mut offsets = Vec::new();
    for topic in &asked.topics {
        let (found, unknown) = if request.version >= 10 {
            let found = shard.view.topic_by_id(TopicId(topic.id));
            (found, ErrorCode::UnknownTopicId)
        } else {
            (
                shard.view.topic(&topic.name),
                ErrorCode::UnknownTopicOrPartition,
            )
        };
        for part in &topic.partitions {
            let error = match &found {
                None => unknown,
                Some(t) if t.partition(part.partition).is_none() => {
                    ErrorCode::UnknownTopicOrPartition
                }
                Some(t) => {
                    places.push(answers.len());
                    offsets.push(CommitOffset {
                        topic: if topic.name.is_empty() {
                            coordinator::own(&t.name)
                        } else {
                            topic.name.clone()
                        },
                        topic_id: t.id.0,
                        partition: part.partition,
                        offset: part.offset,
                        leader_epoch: part.leader_epoch,
                        metadata: part.metadata.clone(),
                    });
                    ErrorCode::None
                }
            };
            answers.push(error);
            if answers.len().is_multiple_of(limits::FETCH_SLICE) {
                rt::yield_if_needed().await;
            }
        }
    }
    if offsets.len() > limits::COMMITTED_OFFSETS {
        // No batch holds them; the coordinator would find out in one long step.
        for place in places {
            answers[place] = ErrorCode::InvalidCommitOffsetSize;
        }
    } else if !offsets.is_empty() {
        let commit = Commit {
            who: asked.who.clone(),
            retention_ms: asked.retention_ms,
            no_group: if request.version >= 9 {
                ErrorCode::GroupIdNotFound
            } else {
                ErrorCode::IllegalGeneration
            },
            offsets,
        };
        let asked = coordinator::Request::Commit(Box::new(commit));
        let group = match &asked {
            coordinator::Request::Commit(c) => c.who.group.clone(),
            _ => unreachable!("it was just made"),
        };
        match shard.ask_coordinator(&group, asked).await {
            Reply::Committed(errors) => {
                for (place, error) in places.into_iter().zip(errors) {
                    answers[place] = error;
                }
            }
            Reply::Refused(error) => {
                for place in places {
                    answers[place] = error;
                }
            }
            other => unreachable!("a commit is not answered with {other:?}"),
        }
    }
    let response = response(&asked, &answers, request.version);
    Answer::encode(shard, request, &response, request.version).await
}

pub(crate) fn response(
    asked: &OffsetCommitRequest,
    answers: &[ErrorCode],
    version: i16,
) -> OffsetCommitResponse {
    let mut answers = answers.iter();
    let topics = asked.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().zip(&mut answers);
        let partitions = partitions.map(|(part, error)| {
            OffsetCommitResponsePartition::default()
                .with_partition_index(part.partition)
                .with_error_code(error.code())
        });
        let row = OffsetCommitResponseTopic::default().with_partitions(partitions.collect());
        if version >= 10 {
            row.with_topic_id(topic.id)
        } else {
            row.with_name(topic.name.clone().into())
        }
    });
    OffsetCommitResponse::default().with_topics(topics.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{self, Frame};
    use crate::testing;
    use crate::versions::ApiKey;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn requests_are_read_and_answers_fit_every_version() {
        for version in 2..=10 {
            let Ok(Frame::Request(r)) = frame::parse(testing::frame(ApiKey::OffsetCommit, version))
            else {
                panic!("a good frame");
            };
            let asked = OffsetCommitRequest::read(&r).unwrap();
            assert_eq!(&*asked.who.group, "group");
            assert_eq!(asked.topics[0].partitions[0].offset, 42);
            assert_eq!(asked.topics[0].name.is_empty(), version >= 10);
            let mut out = bytes::BytesMut::new();
            response(&asked, &[ErrorCode::None], version)
                .encode(&mut out, version)
                .unwrap();
        }
    }
}
