//! OffsetForLeaderEpoch, key 23, versions 2-4.
//!
//! Answers the largest epoch that is not above the asked one and the offset where it ends (G11); -1 and -1 where nothing is known. The replica id
//! that a client may give changes nothing.

use std::rc::Rc;

use engine::ring::Class;
use engine::rt;
use engine::types::LeaderEpoch;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::{Answer, by_owner};
use crate::limits;
use crate::request::{EpochAnswer, EpochQuery, ShardReply, ShardRequest};
use crate::schema;
use crate::shard::{Shard, check_epoch};

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: OffsetForLeaderEpochRequest = schema::decode(request, request.version)?;
    let mut answers = Vec::new();
    let mut queries = Vec::new();
    for topic in &asked.topics {
        let found = shard.view.topic(&topic.topic);
        for part in &topic.partitions {
            let known = found.as_ref().and_then(|t| {
                t.partition(part.partition)
                    .map(|p| (t.group(part.partition), p))
            });
            let error = match known {
                None => ErrorCode::UnknownTopicOrPartition,
                Some((_, p)) if !p.replicas.iter().any(|r| r.node == shard.node) => {
                    ErrorCode::NotLeaderOrFollower
                }
                Some((group, _)) => {
                    let query = EpochQuery {
                        group,
                        current_leader_epoch: part.current_leader_epoch,
                        epoch: part.leader_epoch,
                    };
                    queries.push((answers.len(), group, query));
                    ErrorCode::KafkaStorageError
                }
            };
            answers.push(refused(error));
            if answers.len().is_multiple_of(limits::FETCH_SLICE) {
                rt::yield_if_needed().await;
            }
        }
    }
    for (owner, places, queries) in by_owner(shard, queries) {
        let reply = shard
            .ask(owner, Class::Short, ShardRequest::Epochs(queries))
            .await;
        if let Ok(ShardReply::Epochs(got)) = reply {
            for (place, answer) in places.into_iter().zip(got) {
                answers[place] = answer;
            }
        }
    }
    Answer::encode(shard, request, &response(&asked, &answers), request.version).await
}

pub(crate) fn response(
    asked: &OffsetForLeaderEpochRequest,
    answers: &[EpochAnswer],
) -> OffsetForLeaderEpochResponse {
    let mut answers = answers.iter();
    let topics = asked.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().zip(&mut answers).map(|(part, a)| {
            EpochEndOffset::default()
                .with_partition(part.partition)
                .with_error_code(a.error.code())
                .with_leader_epoch(a.epoch)
                .with_end_offset(a.end_offset)
        });
        OffsetForLeaderTopicResult::default()
            .with_topic(topic.topic.clone())
            .with_partitions(partitions.collect())
    });
    OffsetForLeaderEpochResponse::default().with_topics(topics.collect())
}

pub(crate) fn refused(error: ErrorCode) -> EpochAnswer {
    EpochAnswer {
        error,
        epoch: -1,
        end_offset: -1,
    }
}

/// Answers for partitions of this shard.
pub async fn serve(shard: &Rc<Shard>, queries: &[EpochQuery]) -> Vec<EpochAnswer> {
    let serve = |query: &EpochQuery| {
        let group = shard.led(query.group)?;
        check_epoch(&group, query.current_leader_epoch)?;
        if query.epoch < 0 {
            return Ok(refused(ErrorCode::None));
        }
        let end = group.log().end_of_epoch(LeaderEpoch(query.epoch));
        Ok(
            end.map_or(refused(ErrorCode::None), |(epoch, offset)| EpochAnswer {
                error: ErrorCode::None,
                epoch: epoch.0,
                end_offset: offset.0,
            }),
        )
    };
    let mut answers = Vec::with_capacity(queries.len());
    for some in queries.chunks(limits::FETCH_SLICE) {
        answers.extend(some.iter().map(|q| serve(q).unwrap_or_else(refused)));
        rt::yield_if_needed().await;
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::offset_for_leader_epoch_request::{
        OffsetForLeaderPartition, OffsetForLeaderTopic,
    };
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        let asked =
            OffsetForLeaderEpochRequest::default().with_topics(vec![
                OffsetForLeaderTopic::default()
                    .with_partitions(vec![OffsetForLeaderPartition::default(); 2]),
            ]);
        let answers = [
            EpochAnswer {
                error: ErrorCode::None,
                epoch: 3,
                end_offset: 9,
            },
            refused(ErrorCode::FencedLeaderEpoch),
        ];
        for version in 2..=4 {
            let mut out = bytes::BytesMut::new();
            response(&asked, &answers)
                .encode(&mut out, version)
                .unwrap();
        }
    }
}
