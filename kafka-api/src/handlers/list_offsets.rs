//! ListOffsets, key 2, versions 1-11 (11 has the bytes of 10).
//!
//! Timestamps: -1 the high watermark, -2 the log start, -3 the record with the greatest timestamp (from version 7), -4 the local log
//! start, which is the log start (8), -5 the last tiered offset (9) and -6 the first that waits to be tiered (11), which are both -1
//! without tiers; 0 and up the first record that is not older, found exactly, also inside compressed batches. A special timestamp below its
//! version is UNSUPPORTED_VERSION. Until a new leader has committed an entry of its own it doesn't know the high watermark for sure:
//! OFFSET_NOT_AVAILABLE, below version 5 LEADER_NOT_AVAILABLE (G11).

use std::ops::ControlFlow;
use std::rc::Rc;

use bytes::Bytes;
use engine::batch::{ATTRIBUTE_LOG_APPEND_TIME, BatchHeader};
use engine::log::LogError;
use engine::memory::Budget;
use engine::ring::Class;
use engine::rt;
use engine::types::{GroupId, Offset};
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};
use raftgroup::Group;

use crate::codec::Codec;
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::{Answer, by_owner, with_rows};
use crate::limits;
use crate::records;
use crate::request::{OffsetAnswer, OffsetQuery, ShardReply, ShardRequest};
use crate::schema;
use crate::shard::{Shard, check_epoch};
use crate::sync::join_all;

/// The newest version that the library knows; 11 has the same bytes.
const KNOWN: i16 = 10;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let version = request.version.min(KNOWN);
    let asked: ListOffsetsRequest = schema::decode(request, version)?;
    let mut answers = Vec::new();
    let mut queries = Vec::new();
    for topic in &asked.topics {
        let found = shard.view.topic(&topic.name);
        for part in &topic.partitions {
            let known = found.as_ref().and_then(|t| {
                t.partition(part.partition_index)
                    .map(|p| (t.group(part.partition_index), p))
            });
            let error = match known {
                _ if !served(part.timestamp, request.version) => ErrorCode::UnsupportedVersion,
                None => ErrorCode::UnknownTopicOrPartition,
                Some((_, p)) if !p.replicas.iter().any(|r| r.node == shard.node) => {
                    ErrorCode::NotLeaderOrFollower
                }
                Some((group, _)) => {
                    let query = OffsetQuery {
                        group,
                        current_leader_epoch: part.current_leader_epoch,
                        timestamp: part.timestamp,
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
    let mut all_places = Vec::new();
    let mut calls = Vec::new();
    for (owner, places, queries) in by_owner(shard, queries) {
        let shard = shard.clone();
        all_places.push(places);
        calls.push(Box::pin(async move {
            let question = ShardRequest::Offsets(queries);
            shard.ask(owner, Class::Short, question).await
        }));
    }
    for (places, reply) in all_places.into_iter().zip(join_all(calls).await) {
        if let Ok(ShardReply::Offsets(got)) = reply {
            for (place, answer) in places.into_iter().zip(got) {
                answers[place] = answer;
            }
        }
    }
    let response = response(&asked, &answers, request.version);
    Answer::encode(shard, request, &response, version).await
}

pub(crate) fn served(timestamp: i64, version: i16) -> bool {
    match timestamp {
        MAX_TIMESTAMP => version >= 7,
        EARLIEST_LOCAL => version >= 8,
        LATEST_TIERED => version >= 9,
        EARLIEST_PENDING_UPLOAD => version >= 11,
        t => t >= EARLIEST,
    }
}

pub(crate) fn response(
    asked: &ListOffsetsRequest,
    answers: &[OffsetAnswer],
    version: i16,
) -> ListOffsetsResponse {
    let mut answers = answers.iter();
    let topics = with_rows(&asked.topics, |t| t.partitions.is_empty());
    let topics = topics.map(|topic| {
        let partitions = topic.partitions.iter().zip(&mut answers).map(|(part, a)| {
            let error = match a.error {
                ErrorCode::OffsetNotAvailable if version < 5 => ErrorCode::LeaderNotAvailable,
                e => e,
            };
            ListOffsetsPartitionResponse::default()
                .with_partition_index(part.partition_index)
                .with_error_code(error.code())
                .with_timestamp(a.timestamp)
                .with_offset(a.offset)
                .with_leader_epoch(if version >= 4 { a.leader_epoch } else { -1 })
        });
        ListOffsetsTopicResponse::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    ListOffsetsResponse::default().with_topics(topics.collect())
}

pub(crate) fn refused(error: ErrorCode) -> OffsetAnswer {
    OffsetAnswer {
        error,
        timestamp: -1,
        offset: -1,
        leader_epoch: -1,
    }
}

/// Answers for partitions of this shard.
pub async fn serve(shard: &Rc<Shard>, queries: Vec<OffsetQuery>) -> Vec<OffsetAnswer> {
    let mut answers = Vec::with_capacity(queries.len());
    for query in queries {
        let answer = match shard.led(query.group) {
            Ok(group) => find(shard, &group, &query).await.unwrap_or_else(refused),
            Err(code) => refused(code),
        };
        answers.push(answer);
        // Most are found in memory, without a wait.
        if answers.len().is_multiple_of(limits::FETCH_SLICE) {
            rt::yield_if_needed().await;
        }
    }
    answers
}

async fn find(
    shard: &Shard,
    group: &Group,
    query: &OffsetQuery,
) -> Result<OffsetAnswer, ErrorCode> {
    check_epoch(group, query.current_leader_epoch)?;
    let at = |timestamp, offset: Offset, leader_epoch| OffsetAnswer {
        error: ErrorCode::None,
        timestamp,
        offset: offset.0,
        leader_epoch,
    };
    match query.timestamp {
        EARLIEST | EARLIEST_LOCAL => {
            let start = group.log_start_offset();
            let epoch = group.log().epoch_at(start).map_or(-1, |e| e.0);
            return Ok(at(-1, start, epoch));
        }
        LATEST_TIERED | EARLIEST_PENDING_UPLOAD => return Ok(at(-1, Offset(-1), -1)),
        _ => {}
    }
    if !group.serves() {
        return Err(ErrorCode::OffsetNotAvailable);
    }
    let bound = group.high_watermark();
    let found = match query.timestamp {
        LATEST => return Ok(at(-1, bound, group.leader_epoch().0)),
        MAX_TIMESTAMP => newest(shard, group, bound).await,
        timestamp => first_from(shard, group, timestamp, bound).await,
    };
    match found {
        Ok(Some((timestamp, offset, epoch))) => Ok(at(timestamp, offset, epoch)),
        Ok(None) => Ok(refused(ErrorCode::None)),
        // Retention was faster: the client asks again.
        Err(Unread::Log(LogError::Trimmed)) => Err(ErrorCode::OffsetNotAvailable),
        Err(why) => Err(storage_error(shard, group.id(), &why)),
    }
}

/// Timestamp, offset and leader epoch of a record.
type Found = (i64, Offset, i32);

/// Why what was looked for can't be told.
#[derive(Debug, thiserror::Error)]
enum Unread {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("{0}")]
    Batch(&'static str),
}

/// The first record that is not older.
async fn first_from(
    shard: &Shard,
    group: &Group,
    timestamp: i64,
    bound: Offset,
) -> Result<Option<Found>, Unread> {
    let log = group.log();
    let mut from = group.log_start_offset();
    while let Some(batch) = log.batch_by_timestamp(timestamp, from, bound).await? {
        let start = group.log_start_offset();
        let found = record_at(&batch, timestamp, start, &shard.budget).await;
        if let Some(found) = found.map_err(Unread::Batch)? {
            return Ok(Some(found));
        }
        // What made the batch look late enough lies below the log's start.
        from = header(&batch).map_err(Unread::Batch)?.next_offset();
    }
    Ok(None)
}

/// The first of the newest records.
async fn newest(shard: &Shard, group: &Group, bound: Offset) -> Result<Option<Found>, Unread> {
    let log = group.log();
    let start = group.log_start_offset();
    let Some(batch) = log.batch_of_max_timestamp(start, bound).await? else {
        return Ok(None);
    };
    let h = header(&batch).map_err(Unread::Batch)?;
    let start = group.log_start_offset();
    let first = record_at(&batch, MAX_TIMESTAMP, start, &shard.budget).await;
    let first = first.map_err(Unread::Batch)?;
    if h.base_offset >= start {
        return Ok(first);
    }
    // The log starts amid the batch, and its newest record may be gone.
    let Some(batch) = log.batch_of_max_timestamp(h.next_offset(), bound).await? else {
        return Ok(first);
    };
    let second = record_at(
        &batch,
        MAX_TIMESTAMP,
        group.log_start_offset(),
        &shard.budget,
    )
    .await;
    let second = second.map_err(Unread::Batch)?;
    let time = |found: &Option<Found>| found.map(|(timestamp, ..)| timestamp);
    Ok(if time(&second) > time(&first) {
        second
    } else {
        first
    })
}

fn storage_error(shard: &Shard, group: GroupId, why: impl std::fmt::Display) -> ErrorCode {
    if let Some(kept_back) = shard.failed_reads.pass(rt::now()) {
        tracing::warn!(%group, error = %why, kept_back, "offsets could not be read");
    }
    ErrorCode::KafkaStorageError
}

fn header(batch: &Bytes) -> Result<BatchHeader, &'static str> {
    BatchHeader::parse(batch).map_err(|_| "a stored batch has no header")
}

/// The first record of a stored batch that is not older than `timestamp`, or the first of its newest ones, from offset `start` on.
async fn record_at(
    batch: &Bytes,
    timestamp: i64,
    start: Offset,
    budget: &Rc<Budget>,
) -> Result<Option<Found>, &'static str> {
    let header = header(batch)?;
    let codec = Codec::from_attributes(header.attributes).ok_or("a stored batch has no codec")?;
    let epoch = header.leader_epoch.0;
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0 {
        // All its records have the one time.
        let first = header.base_offset.max(start);
        let there = first < header.next_offset();
        return Ok(there.then_some((header.max_timestamp, first, epoch)));
    }
    // The newest of a whole batch is known; of a part it is whatever comes last in time.
    let newest_of_part = timestamp == MAX_TIMESTAMP && header.base_offset < start;
    let mut wanted = match timestamp {
        MAX_TIMESTAMP if newest_of_part => i64::MIN,
        MAX_TIMESTAMP => header.max_timestamp,
        t => t,
    };
    let mut found = None;
    let visit = |record: records::Record| {
        let time = header.base_timestamp.saturating_add(record.timestamp_delta);
        let offset = header
            .base_offset
            .0
            .saturating_add(i64::from(record.offset_delta));
        if time >= wanted && offset >= start.0 {
            found = Some((time, Offset(offset), epoch));
            if !newest_of_part {
                return ControlFlow::Break(());
            }
            wanted = time.saturating_add(1);
        }
        ControlFlow::Continue(())
    };
    // It was checked when it was produced, against a limit that may have been changed since.
    let pause = async || rt::yield_if_needed().await;
    records::walk(&header, batch, codec, usize::MAX, budget, &pause, visit)
        .await
        .map_err(|_| "a stored batch's records cannot be read")?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::testing;
    use engine::batch::{Batch, reseal};
    use engine::types::LeaderEpoch;
    use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
    use kafka_protocol::protocol::{Encodable, StrBytes};

    fn find_in(batch: &Bytes, timestamp: i64, start: i64) -> Option<(i64, i64, i32)> {
        testing::run(record_at(batch, timestamp, Offset(start), &testing::room()))
            .unwrap()
            .map(|(t, o, e)| (t, o.0, e))
    }

    #[test]
    fn records_are_found_exactly_in_every_codec() {
        for codec in [
            Codec::None,
            Codec::Gzip,
            Codec::Snappy,
            Codec::Lz4,
            Codec::Zstd,
        ] {
            // Times 1000 to 1099 at offsets 500 to 599.
            let made = testing::batch(codec, 100, 50, 1_000);
            let stored = Batch::check(made)
                .unwrap()
                .stamped(Offset(500), LeaderEpoch(3));
            assert_eq!(find_in(&stored, 0, 0), Some((1_000, 500, 3)));
            assert_eq!(find_in(&stored, 1_042, 0), Some((1_042, 542, 3)));
            assert_eq!(find_in(&stored, 1_042, 550), Some((1_050, 550, 3)));
            assert_eq!(find_in(&stored, 1_100, 0), None);
            assert_eq!(find_in(&stored, MAX_TIMESTAMP, 0), Some((1_099, 599, 3)));
            assert_eq!(find_in(&stored, MAX_TIMESTAMP, 550), Some((1_099, 599, 3)));
            assert_eq!(find_in(&stored, MAX_TIMESTAMP, 600), None);
        }
    }

    #[test]
    fn append_time_is_one_for_all_records() {
        let mut made = testing::batch(Codec::None, 3, 50, 1_000).to_vec();
        made[22] |= ATTRIBUTE_LOG_APPEND_TIME as u8;
        made[35..43].copy_from_slice(&7_000i64.to_be_bytes());
        reseal(&mut made);
        let stored = Batch::check(made.into())
            .unwrap()
            .stamped(Offset(10), LeaderEpoch(1));
        assert_eq!(find_in(&stored, 5_000, 0), Some((7_000, 10, 1)));
        assert_eq!(find_in(&stored, 5_000, 11), Some((7_000, 11, 1)));
        assert_eq!(find_in(&stored, 5_000, 13), None);
    }

    #[test]
    fn special_timestamps_have_their_versions() {
        for (timestamp, from) in [
            (-1, 1),
            (-2, 1),
            (-3, 7),
            (-4, 8),
            (-5, 9),
            (-6, 11),
            (0, 1),
        ] {
            for version in 1..=11 {
                assert_eq!(served(timestamp, version), version >= from);
            }
        }
        assert!(!served(-7, 11) && !served(i64::MIN, 11));
    }

    #[test]
    fn answers_fit_every_version() {
        let asked = ListOffsetsRequest::default().with_topics(vec![
            ListOffsetsTopic::default()
                .with_name(StrBytes::from_static_str("t").into())
                .with_partitions(vec![ListOffsetsPartition::default(); 2]),
            ListOffsetsTopic::default(),
        ]);
        let answers = [
            OffsetAnswer {
                error: ErrorCode::None,
                timestamp: 5,
                offset: 6,
                leader_epoch: 7,
            },
            refused(ErrorCode::OffsetNotAvailable),
        ];
        for version in 1..=11 {
            let response = response(&asked, &answers, version);
            assert_eq!(response.topics.len(), 1, "not the one without partitions");
            let code = response.topics[0].partitions[1].error_code;
            assert_eq!(code, if version < 5 { 5 } else { 78 });
            let mut out = bytes::BytesMut::new();
            response.encode(&mut out, version.min(KNOWN)).unwrap();
        }
    }
}
