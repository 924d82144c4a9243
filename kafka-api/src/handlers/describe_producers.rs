//! DescribeProducers, key 61, version 0.
//!
//! The idempotent producers that a partition remembers, with epoch, last sequence and the greatest timestamp of their last batch. Only the leader tells. Without transactions there is
//! neither a coordinator's epoch nor an open transaction: both are -1. A name that no topic can have is
//! INVALID_TOPIC. An answer ends at [`limits::DESCRIBED_PRODUCERS`] of a shard: what is asked for beyond that is INVALID_REQUEST.

use std::rc::Rc;

use cluster::topic_name;
use engine::ring::Class;
use engine::rt;
use engine::types::GroupId;
use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse};
use kafka_protocol::protocol::StrBytes;
use raftgroup::ActiveProducer;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::work::Work;
use crate::handlers::{Answer, by_owner};
use crate::limits;
use crate::request::{ShardReply, ShardRequest};
use crate::schema;
use crate::shard::Shard;
use crate::sync::join_all;

/// What became of one partition.
pub type Told = Result<Vec<ActiveProducer>, ErrorCode>;

pub async fn handle(
    shard: &Rc<Shard>,
    request: &Request,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let response = loop {
        let asked: DescribeProducersRequest = schema::decode(request, request.version)?;
        match gather(shard, &asked, work).await {
            Some(answers) => break response(&asked, answers),
            None => {
                drop(asked);
                work.anew(&shard.work).await;
            }
        }
    };
    Answer::encode(shard, request, &response, request.version).await
}

/// The producers of each partition that is asked for; nothing where there is no memory for them.
async fn gather(
    shard: &Rc<Shard>,
    asked: &DescribeProducersRequest,
    work: &mut Work,
) -> Option<Vec<Told>> {
    let mut answers: Vec<Told> = Vec::new();
    let mut queries = Vec::new();
    for topic in &asked.topics {
        let found = shard.view.topic(&topic.name);
        let missing = match topic_name::check(&topic.name) {
            Ok(()) => ErrorCode::UnknownTopicOrPartition,
            Err(_) => ErrorCode::InvalidTopic,
        };
        for index in &topic.partition_indexes {
            let known = found.as_ref().and_then(|t| {
                let partition = t.partition(*index)?;
                Some((t.group(*index), partition))
            });
            let error = match known {
                None => missing,
                Some((_, p)) if !p.replicas.iter().any(|r| r.node == shard.node) => {
                    ErrorCode::NotLeaderOrFollower
                }
                Some((group, _)) => {
                    queries.push((answers.len(), group, group));
                    ErrorCode::KafkaStorageError
                }
            };
            answers.push(Err(error));
            if answers.len().is_multiple_of(limits::FETCH_SLICE) {
                rt::yield_if_needed().await;
            }
        }
    }
    let mut places = Vec::new();
    let mut calls = Vec::new();
    for (owner, at, groups) in by_owner(shard, queries) {
        let shard = shard.clone();
        places.push(at);
        calls.push(Box::pin(async move {
            let question = ShardRequest::Producers(groups);
            shard.ask(owner, Class::Short, question).await
        }));
    }
    for (places, reply) in places.into_iter().zip(join_all(calls).await) {
        if let Ok(ShardReply::Producers(got)) = reply {
            let producers = got.iter().flatten().map(Vec::len).sum::<usize>();
            if !work.grow(&shard.work, producers * limits::PRODUCER_BYTES) {
                return None;
            }
            for (place, answer) in places.into_iter().zip(got) {
                answers[place] = answer;
            }
        }
    }
    Some(answers)
}

pub(crate) fn response(
    asked: &DescribeProducersRequest,
    answers: Vec<Told>,
) -> DescribeProducersResponse {
    let mut answers = answers.into_iter();
    let topics = asked.topics.iter().map(|topic| {
        let indexes = topic.partition_indexes.iter().zip(&mut answers);
        let partitions = indexes.map(|(index, told)| {
            let row = PartitionResponse::default()
                .with_partition_index(*index)
                .with_error_message(None);
            match told {
                Ok(active) => row.with_active_producers(active.iter().map(state).collect()),
                Err(code) => row
                    .with_error_code(code.code())
                    .with_error_message(Some(StrBytes::from_static_str(message(code)))),
            }
        });
        TopicResponse::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    DescribeProducersResponse::default().with_topics(topics.collect())
}

fn message(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::UnknownTopicOrPartition => "There is no such partition.",
        ErrorCode::InvalidTopic => "No topic can have this name.",
        ErrorCode::NotLeaderOrFollower => "Another broker leads the partition.",
        ErrorCode::InvalidRequest => "That is too much for one answer; ask for fewer partitions.",
        _ => "The partition can't be read.",
    }
}

fn state(p: &ActiveProducer) -> ProducerState {
    ProducerState::default()
        .with_producer_id(p.id.into())
        .with_producer_epoch(i32::from(p.epoch))
        .with_last_sequence(p.last_sequence)
        .with_last_timestamp(p.last_timestamp)
        .with_coordinator_epoch(-1)
        .with_current_txn_start_offset(-1)
}

/// Answers for partitions of this shard.
pub async fn serve(shard: &Shard, groups: &[GroupId]) -> Vec<Told> {
    let mut told = Vec::with_capacity(groups.len());
    let mut producers = 0;
    for id in groups {
        told.push(match shard.led(*id) {
            _ if producers >= limits::DESCRIBED_PRODUCERS => Err(ErrorCode::InvalidRequest),
            Ok(group) => Ok(group.producers()),
            Err(code) => Err(code),
        });
        producers += told.last().map_or(0, |t| t.as_ref().map_or(0, Vec::len));
        rt::yield_if_needed().await;
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::describe_producers_request::TopicRequest;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_can_be_encoded() {
        let asked = DescribeProducersRequest::default().with_topics(vec![
            TopicRequest::default().with_partition_indexes(vec![0, 7]),
        ]);
        let active = ActiveProducer {
            id: 5,
            epoch: 1,
            last_sequence: 9,
            last_timestamp: 1_000,
        };
        let answers = vec![Ok(vec![active]), Err(ErrorCode::UnknownTopicOrPartition)];
        let response = response(&asked, answers);
        let parts = &response.topics[0].partitions;
        assert_eq!(parts[0].active_producers[0].last_sequence, 9);
        assert_eq!((parts[1].partition_index, parts[1].error_code), (7, 3));
        let mut out = bytes::BytesMut::new();
        response.encode(&mut out, 0).unwrap();
    }
}
