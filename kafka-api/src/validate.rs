//! What a leader checks of a produced batch before it enters the log, and the little it may change.
//!
//! A partition's part of a Produce request must be exactly one batch of format 2 with the right CRC, made by a client (no control bit, no
//! delete horizon, base offset 0), whose records all parse, number what the header says and have the offset deltas 0, 1, 2, ... What is
//! wrong is told with Kafka's codes: CORRUPT_MESSAGE (retriable) for bytes whose CRC or length is damaged, INVALID_RECORD for what no retry
//! will make right, MESSAGE_TOO_LARGE so that clients split, INVALID_TIMESTAMP with the records it concerns. All or nothing: one bad
//! record refuses the batch.
//!
//! The batch's bytes are kept unless the topic stamps append times, wants another codec, or the header's max timestamp isn't that of its
//! records; then there is one new copy with its CRC made anew, never longer than max.message.bytes while it is made. Everything runs in slices (see [`crate::records`]), with what codecs
//! take leased from the budget ([`crate::codec::memory`]).

use std::borrow::Cow;
use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;

use bytes::Bytes;
use cluster::topic_config::{CompressionType, TimestampType, TopicConfig};
use engine::batch::{
    ATTRIBUTE_CODEC_MASK, ATTRIBUTE_CONTROL, ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL, Batch, BatchError, BatchHeader, HEADER_BYTES, LENGTH_PREFIX_BYTES,
    reseal,
};
use engine::memory::Budget;

use crate::codec::{Codec, Compressor, Decompressor, Target, memory};
use crate::error::ErrorCode;
use crate::limits;
use crate::records::{self, BadRecords};

const ATTRIBUTES_AT: usize = 21;
const MAX_TIMESTAMP_AT: usize = 35;
/// "No timestamp": exempt from the bounds.
const NO_TIMESTAMP: i64 = -1;

/// What a batch must keep to.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    pub config: &'a TopicConfig,
    /// Where codecs take their memory from.
    pub budget: &'a Rc<Budget>,
    pub now_ms: i64,
    /// Whether the request's version knows zstd (7 and up).
    pub zstd: bool,
    /// Whether every record needs a key (compacted topics).
    pub keys: bool,
}

/// Why a batch is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: ErrorCode,
    pub message: Cow<'static, str>,
    /// Index and reason of single records, at most [`limits::RECORD_ERRORS`].
    pub records: Vec<(i32, &'static str)>,
}

fn refuse<T>(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Result<T, Refusal> {
    Err(Refusal {
        code,
        message: message.into(),
        records: Vec::new(),
    })
}

fn invalid<T>(message: impl Into<Cow<'static, str>>) -> Result<T, Refusal> {
    refuse(ErrorCode::InvalidRecord, message)
}

/// Checks one partition's records. `pause` is awaited between slices of work.
pub async fn check(
    records: Option<Bytes>,
    rules: Rules<'_>,
    pause: &impl AsyncFn(),
) -> Result<Batch, Refusal> {
    // In Kafka's order: of several things that are wrong, clients are told the same one.
    let (header, bytes) = one_batch(records)?;
    check_zstd(Codec::from_attributes(header.attributes), rules.zstd)?;
    if header.base_offset.0 != 0 {
        return invalid("A produced batch's base offset is 0.");
    }
    if bytes.len() > rules.config.max_message_bytes as usize {
        return refuse(
            ErrorCode::MessageTooLarge,
            format!(
                "The batch is {} bytes, max.message.bytes is {}.",
                bytes.len(),
                rules.config.max_message_bytes
            ),
        );
    }
    check_crc(&header, &bytes, pause).await?;
    let codec = check_header(&header)?;
    let found = check_records(&header, &bytes, codec, rules, pause).await?;
    let batch = rewrite(header, bytes, codec, found, rules, pause).await?;
    if batch.bytes.len() > rules.config.segment_bytes as usize {
        return refuse(
            ErrorCode::RecordListTooLarge,
            "The batch is larger than segment.bytes.",
        );
    }
    Ok(batch)
}

/// Whether they are one batch at all, and in a codec that the request's version knows.
pub fn shape(records: Option<Bytes>, zstd: bool) -> Result<(), Refusal> {
    let (header, _) = one_batch(records)?;
    check_zstd(Codec::from_attributes(header.attributes), zstd)
}

fn check_zstd(codec: Option<Codec>, zstd: bool) -> Result<(), Refusal> {
    if codec == Some(Codec::Zstd) && !zstd {
        return refuse(
            ErrorCode::UnsupportedCompressionType,
            "zstd needs version 7 of Produce.",
        );
    }
    Ok(())
}

fn one_batch(records: Option<Bytes>) -> Result<(BatchHeader, Bytes), Refusal> {
    let Some(bytes) = records.filter(|b| !b.is_empty()) else {
        return invalid("A partition's records are exactly one batch; there is none.");
    };
    let header = match BatchHeader::parse(&bytes) {
        Ok(header) => header,
        Err(e @ BatchError::Length { .. }) => {
            return refuse(ErrorCode::CorruptMessage, e.to_string());
        }
        Err(e) => return invalid(e.to_string()),
    };
    if header.total_bytes > bytes.len() {
        return invalid("The batch ends behind the partition's records.");
    }
    if header.total_bytes < bytes.len() {
        return invalid("A partition's records are exactly one batch; there is more.");
    }
    Ok((header, bytes))
}

fn check_header(header: &BatchHeader) -> Result<Codec, Refusal> {
    const KNOWN: i16 = ATTRIBUTE_CODEC_MASK
        | ATTRIBUTE_LOG_APPEND_TIME
        | ATTRIBUTE_TRANSACTIONAL
        | ATTRIBUTE_CONTROL
        | ATTRIBUTE_DELETE_HORIZON;
    let Some(codec) = Codec::from_attributes(header.attributes) else {
        return invalid("The batch's codec is unknown.");
    };
    if header.is_control() {
        return invalid("Clients do not write control batches.");
    }
    if header.is_transactional() {
        return invalid("Transactions are not supported yet.");
    }
    if header.attributes & ATTRIBUTE_DELETE_HORIZON != 0 || header.attributes & !KNOWN != 0 {
        return invalid("The batch has attributes that clients do not set.");
    }
    if header.record_count <= 0
        || i64::from(header.last_offset_delta) + 1 != i64::from(header.record_count)
    {
        return invalid("The batch's count and last offset delta do not fit.");
    }
    if header.has_producer() && (header.base_sequence < 0 || header.producer_epoch < 0) {
        return invalid("An idempotent producer's batch needs a sequence and an epoch.");
    }
    Ok(codec)
}

async fn check_crc(
    header: &BatchHeader,
    bytes: &Bytes,
    pause: &impl AsyncFn(),
) -> Result<(), Refusal> {
    // 1 MiB takes about a tenth of a millisecond.
    const SLICE: usize = 1 << 20;
    let mut computed = 0;
    for (i, slice) in bytes[ATTRIBUTES_AT..].chunks(SLICE).enumerate() {
        if i > 0 {
            pause().await;
        }
        computed = crc32c::crc32c_append(computed, slice);
    }
    if computed != header.crc {
        return refuse(
            ErrorCode::CorruptMessage,
            "The batch's CRC does not fit its bytes.",
        );
    }
    Ok(())
}

/// What the walk over a batch's records found.
struct Found {
    max_timestamp: i64,
    /// Bytes of the records when they are decompressed.
    bytes: usize,
}

/// Walks over the records.
async fn check_records(
    header: &BatchHeader,
    bytes: &Bytes,
    codec: Codec,
    rules: Rules<'_>,
    pause: &impl AsyncFn(),
) -> Result<Found, Refusal> {
    const NO_KEY: &str = "Records of a compacted topic need a key.";
    const TIME: &str = "The record's timestamp is out of the topic's bounds.";
    const TIME_TYPE: &str = "Clients do not set the append time.";
    let config = rules.config;
    let create_time = config.message_timestamp_type == TimestampType::CreateTime;
    let claims_append_time = header.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0;
    let mut max_timestamp = i64::MIN;
    let mut bad_delta = None;
    let mut bad = Vec::new();
    let mut bad_time = false;
    let visit = |record: records::Record| {
        if record.offset_delta != record.index {
            bad_delta = Some(record.index);
            return ControlFlow::Break(());
        }
        let timestamp = header.base_timestamp.checked_add(record.timestamp_delta);
        max_timestamp = max_timestamp.max(timestamp.unwrap_or(i64::MIN));
        let why = if rules.keys && !record.has_key {
            NO_KEY
        } else if claims_append_time {
            bad_time = true;
            TIME_TYPE
        } else if create_time && !timestamp.is_some_and(|t| time_is_allowed(t, rules)) {
            bad_time = true;
            TIME
        } else {
            return ControlFlow::Continue(());
        };
        if bad.len() < limits::RECORD_ERRORS {
            bad.push((record.index, why));
        }
        ControlFlow::Continue(())
    };
    let limit = config.max_decompressed_message_bytes as usize;
    let walked = records::walk(header, bytes, codec, limit, rules.budget, pause, visit).await;
    let bytes = match walked {
        Ok(bytes) => bytes,
        Err(e @ BadRecords::TooLarge) => {
            return refuse(ErrorCode::MessageTooLarge, e.to_string());
        }
        Err(e) => return invalid(e.to_string()),
    };
    if let Some(index) = bad_delta {
        return invalid(format!("Record {index} has another offset delta."));
    }
    if !bad.is_empty() {
        return Err(Refusal {
            code: if bad_time {
                ErrorCode::InvalidTimestamp
            } else {
                ErrorCode::InvalidRecord
            },
            message: bad[0].1.into(),
            records: bad,
        });
    }
    Ok(Found {
        max_timestamp,
        bytes,
    })
}

fn time_is_allowed(timestamp: i64, rules: Rules<'_>) -> bool {
    if timestamp == NO_TIMESTAMP {
        return true;
    }
    let Some(age) = rules.now_ms.checked_sub(timestamp) else {
        return false;
    };
    let config = rules.config;
    age <= config.message_timestamp_before_max_ms
        && age.saturating_neg() <= config.message_timestamp_after_max_ms
}

/// What the topic wants its batches to be, if not what they are.
fn target(codec: Codec, config: &TopicConfig) -> Option<Target> {
    let (wanted, level) = match config.compression_type {
        CompressionType::Producer => return None,
        CompressionType::Uncompressed => (Codec::None, None),
        CompressionType::Gzip => (Codec::Gzip, Some(config.compression_gzip_level)),
        CompressionType::Snappy => (Codec::Snappy, None),
        CompressionType::Lz4 => (Codec::Lz4, Some(config.compression_lz4_level)),
        CompressionType::Zstd => (Codec::Zstd, Some(config.compression_zstd_level)),
    };
    (wanted != codec).then_some(Target {
        codec: wanted,
        level,
    })
}

/// Makes the batch what the topic wants, with one copy at most.
async fn rewrite(
    header: BatchHeader,
    bytes: Bytes,
    codec: Codec,
    found: Found,
    rules: Rules<'_>,
    pause: &impl AsyncFn(),
) -> Result<Batch, Refusal> {
    let append_time = rules.config.message_timestamp_type == TimestampType::LogAppendTime;
    let (attributes, max_timestamp) = if append_time {
        (header.attributes | ATTRIBUTE_LOG_APPEND_TIME, rules.now_ms)
    } else {
        (header.attributes, found.max_timestamp)
    };
    let target = target(codec, rules.config);
    if target.is_none() && attributes == header.attributes && max_timestamp == header.max_timestamp
    {
        return Ok(Batch { header, bytes });
    }
    let mut copy = match target {
        None => bytes.to_vec(),
        Some(target) => match recompress(&bytes, codec, target, found.bytes, rules, pause).await {
            Ok(Some(copy)) => copy,
            Ok(None) => {
                return refuse(
                    ErrorCode::MessageTooLarge,
                    "The batch is larger than max.message.bytes in the topic's codec.",
                );
            }
            Err(_) => {
                return refuse(
                    ErrorCode::UnknownServerError,
                    "The batch could not be compressed again.",
                );
            }
        },
    };
    let codec = target.map_or(codec, |t| t.codec);
    let attributes = attributes & !ATTRIBUTE_CODEC_MASK | codec as i16;
    let length = (copy.len() - LENGTH_PREFIX_BYTES) as i32;
    copy[8..12].copy_from_slice(&length.to_be_bytes());
    copy[ATTRIBUTES_AT..ATTRIBUTES_AT + 2].copy_from_slice(&attributes.to_be_bytes());
    copy[MAX_TIMESTAMP_AT..MAX_TIMESTAMP_AT + 8].copy_from_slice(&max_timestamp.to_be_bytes());
    reseal(&mut copy);
    let header =
        BatchHeader::parse(&copy).expect("the header was a good one before it was changed");
    Ok(Batch {
        header,
        bytes: copy.into(),
    })
}

/// Header (not yet changed) and records in another codec; none as soon as they are more than max.message.bytes. The records were walked before, so they
/// decompress, to `content` bytes.
async fn recompress(
    bytes: &Bytes,
    from: Codec,
    to: Target,
    content: usize,
    rules: Rules<'_>,
    pause: &impl AsyncFn(),
) -> io::Result<Option<Vec<u8>>> {
    let most = rules.config.max_message_bytes as usize;
    let records = bytes.slice(HEADER_BYTES..);
    // One lease for both ways: who holds one doesn't wait for another.
    let needed = memory::needed(from, &records)?
        + memory::to_compress(to, content as u64)
        + content.min(most) as u64;
    let _memory = memory::lease(rules.budget, needed).await;
    let mut input = Decompressor::new(from, records)?;
    let mut output = Compressor::new(to, bytes[..HEADER_BYTES].to_vec(), content as u64)?;
    let mut window = vec![0; limits::CHECK_SLICE_BYTES];
    let mut since_pause = 0;
    loop {
        let n = input.read(&mut window)?;
        if n == 0 {
            let copy = output.finish()?;
            return Ok((copy.len() <= most).then_some(copy));
        }
        output.write(&window[..n])?;
        if output.written() > most {
            return Ok(None);
        }
        since_pause += n;
        if since_pause >= limits::CHECK_SLICE_BYTES {
            since_pause = 0;
            pause().await;
        }
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
