//! DeleteRecords, key 21, versions 0-2.
//!
//! Moves the start of a partition's log: a committed TrimPrefix entry (L9), so that no failover brings deleted records back. -1 stands for the high watermark; an offset above
//! it, or another negative one, is OFFSET_OUT_OF_RANGE; one at or below the log's start changes nothing and is answered with the start as it is. Nothing is deleted from internal topics
//! (INVALID_TOPIC). The answer waits, for as long as the client says, until the move is
//! committed; files go later.

use std::rc::Rc;
use std::time::Duration;

use engine::ring::Class;
use engine::rt;
use engine::types::Offset;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use raftgroup::{CommitWait, ProduceError};

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::{Answer, by_owner, with_rows};
use crate::limits;
use crate::request::{ShardReply, ShardRequest, TrimCall, TrimQuery};
use crate::schema;
use crate::shard::Shard;
use crate::sync::join_all;

const HIGH_WATERMARK: i64 = -1;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: DeleteRecordsRequest = schema::decode(request, request.version)?;
    let mut answers: Vec<Result<i64, ErrorCode>> = Vec::new();
    let mut queries = Vec::new();
    for topic in &asked.topics {
        let found = shard.view.topic(&topic.name);
        for part in &topic.partitions {
            let known = found.as_ref().and_then(|t| {
                let partition = t.partition(part.partition_index)?;
                Some((t, t.group(part.partition_index), partition))
            });
            let error = match known {
                None => ErrorCode::UnknownTopicOrPartition,
                Some((t, ..)) if crate::groups::topic::INTERNAL.contains(&&*t.name) => {
                    ErrorCode::InvalidTopic
                }
                Some((.., p)) if !p.replicas.iter().any(|r| r.node == shard.node) => {
                    ErrorCode::NotLeaderOrFollower
                }
                Some((_, group, _)) => {
                    let offset = part.offset;
                    queries.push((answers.len(), group, TrimQuery { group, offset }));
                    ErrorCode::KafkaStorageError
                }
            };
            answers.push(Err(error));
            if answers.len().is_multiple_of(limits::FETCH_SLICE) {
                rt::yield_if_needed().await;
            }
        }
    }
    let timeout_ms = asked.timeout_ms.max(0) as u32;
    let mut places = Vec::new();
    let mut calls = Vec::new();
    for (owner, at, queries) in by_owner(shard, queries) {
        let call = ShardRequest::Trim(TrimCall {
            queries,
            timeout_ms,
        });
        let shard = shard.clone();
        places.push(at);
        calls.push(Box::pin(async move {
            shard.ask(owner, Class::Append, call).await
        }));
    }
    for (places, reply) in places.into_iter().zip(join_all(calls).await) {
        if let Ok(ShardReply::Trim(got)) = reply {
            for (place, answer) in places.into_iter().zip(got) {
                answers[place] = answer;
            }
        }
    }
    Answer::encode(shard, request, &response(&asked, &answers), request.version).await
}

pub(crate) fn response(
    asked: &DeleteRecordsRequest,
    answers: &[Result<i64, ErrorCode>],
) -> DeleteRecordsResponse {
    let mut answers = answers.iter();
    let topics = with_rows(&asked.topics, |t| t.partitions.is_empty());
    let topics = topics.map(|topic| {
        let partitions = topic.partitions.iter().zip(&mut answers).map(|(part, a)| {
            let row =
                DeleteRecordsPartitionResult::default().with_partition_index(part.partition_index);
            match a {
                Ok(start) => row.with_low_watermark(*start),
                Err(code) => row.with_low_watermark(-1).with_error_code(code.code()),
            }
        });
        DeleteRecordsTopicResult::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    DeleteRecordsResponse::default().with_topics(topics.collect())
}

/// Moves starts of logs of this shard: for each query the start that came of it.
pub async fn serve(shard: &Shard, call: TrimCall) -> Vec<Result<i64, ErrorCode>> {
    let wait = Duration::from_millis(u64::from(call.timeout_ms)).min(limits::PRODUCE_WAIT);
    // All are proposed before one is awaited.
    let mut begun = Vec::with_capacity(call.queries.len());
    for some in call.queries.chunks(limits::FETCH_SLICE) {
        begun.extend(some.iter().map(|query| begin(shard, query)));
        rt::yield_if_needed().await;
    }
    let mut answers = Vec::with_capacity(begun.len());
    let deadline = rt::now() + wait;
    for moved in begun {
        let answer = match moved {
            Ok(moved) => {
                let left = deadline.saturating_duration_since(rt::now());
                match rt::timeout(left, moved).await {
                    Ok(Ok(start)) => Ok(start.0),
                    Ok(Err(e)) => Err(code(e)),
                    Err(rt::Elapsed) => Err(ErrorCode::RequestTimedOut),
                }
            }
            Err(code) => Err(code),
        };
        answers.push(answer);
        rt::yield_if_needed().await;
    }
    answers
}

fn begin(shard: &Shard, query: &TrimQuery) -> Result<CommitWait<Offset>, ErrorCode> {
    let group = shard.led(query.group)?;
    if !group.serves() {
        // It doesn't know the high watermark yet (G11); clients look for the leader again, and find it here.
        return Err(ErrorCode::NotLeaderOrFollower);
    }
    let start = match query.offset {
        HIGH_WATERMARK => group.high_watermark(),
        offset if offset < 0 => return Err(ErrorCode::OffsetOutOfRange),
        offset => Offset(offset),
    };
    group.propose_trim(start).map_err(code)
}

fn code(e: ProduceError) -> ErrorCode {
    match e {
        ProduceError::OffsetOutOfRange => ErrorCode::OffsetOutOfRange,
        ProduceError::NotLeader | ProduceError::Removed => ErrorCode::NotLeaderOrFollower,
        ProduceError::Overloaded => ErrorCode::RequestTimedOut,
        _ => ErrorCode::KafkaStorageError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::delete_records_request::{
        DeleteRecordsPartition, DeleteRecordsTopic,
    };
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        let asked = DeleteRecordsRequest::default().with_topics(vec![
            DeleteRecordsTopic::default()
                .with_partitions(vec![DeleteRecordsPartition::default(); 2]),
            DeleteRecordsTopic::default(),
        ]);
        for version in 0..=2 {
            let response = response(&asked, &[Ok(7), Err(ErrorCode::OffsetOutOfRange)]);
            assert_eq!(response.topics.len(), 1, "not the one without partitions");
            let parts = &response.topics[0].partitions;
            assert_eq!((parts[0].low_watermark, parts[0].error_code), (7, 0));
            assert_eq!((parts[1].low_watermark, parts[1].error_code), (-1, 1));
            let mut out = bytes::BytesMut::new();
            response.encode(&mut out, version).unwrap();
        }
    }
}
