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
mod tests {
    use super::*;
    use crate::records::testing::*;
    use engine::types::Offset;
    use proptest::prelude::*;

    const NOW: i64 = 1_764_000_000_000;
    const CODECS: [Codec; 5] = [
        Codec::None,
        Codec::Gzip,
        Codec::Snappy,
        Codec::Lz4,
        Codec::Zstd,
    ];

    fn with(config: &TopicConfig, bytes: Bytes) -> Result<Batch, Refusal> {
        let rules = Rules {
            config,
            budget: &room(),
            now_ms: NOW,
            zstd: true,
            keys: false,
        };
        run(check(Some(bytes), rules, &async || {}))
    }

    fn code(config: &TopicConfig, bytes: Bytes) -> ErrorCode {
        with(config, bytes).map_or_else(|r| r.code, |_| ErrorCode::None)
    }

    fn patched(batch: &Bytes, at: usize, with: &[u8]) -> Bytes {
        let mut b = batch.to_vec();
        b[at..at + with.len()].copy_from_slice(with);
        reseal(&mut b);
        b.into()
    }

    #[test]
    fn good_batches_pass_with_their_own_bytes() {
        let config = TopicConfig::default();
        for codec in CODECS {
            let bytes = batch(codec, 50, 100, NOW - 1_000);
            let checked = with(&config, bytes.clone()).unwrap();
            assert_eq!(
                checked.bytes.as_ptr(),
                bytes.as_ptr(),
                "{codec:?} was copied"
            );
        }
    }

    #[test]
    fn the_shape_must_be_one_whole_batch_of_format_2() {
        let config = TopicConfig::default();
        let good = batch(Codec::None, 3, 10, NOW);
        let rules = Rules {
            config: &config,
            budget: &room(),
            now_ms: NOW,
            zstd: true,
            keys: false,
        };
        for none in [None, Some(Bytes::new())] {
            let refused = run(check(none, rules, &async || {})).unwrap_err();
            assert_eq!(refused.code, ErrorCode::InvalidRecord);
        }
        let mut two = good.to_vec();
        two.extend_from_slice(&good);
        assert_eq!(code(&config, two.into()), ErrorCode::InvalidRecord);
        for magic in [0, 1, 3] {
            let mut b = good.to_vec();
            b[16] = magic;
            assert_eq!(code(&config, b.into()), ErrorCode::InvalidRecord);
        }
        for cut in [1, 20, 61, good.len() - 1] {
            assert_eq!(code(&config, good.slice(..cut)), ErrorCode::InvalidRecord);
        }
        let mut flipped = good.to_vec();
        *flipped.last_mut().unwrap() ^= 1;
        assert_eq!(code(&config, flipped.into()), ErrorCode::CorruptMessage);
        let mut huge = good.to_vec();
        huge[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
        assert_eq!(code(&config, huge.into()), ErrorCode::InvalidRecord);
        let mut negative = good.to_vec();
        negative[8..12].copy_from_slice(&(-5i32).to_be_bytes());
        assert_eq!(code(&config, negative.into()), ErrorCode::CorruptMessage);
    }

    #[test]
    fn what_is_no_batch_is_known_before_anything_else() {
        let good = batch(Codec::Zstd, 3, 10, NOW);
        let told = |records, zstd| shape(records, zstd).map_err(|r| r.code);
        assert_eq!(told(Some(good.clone()), true), Ok(()));
        let newer = Err(ErrorCode::UnsupportedCompressionType);
        assert_eq!(told(Some(good.clone()), false), newer);
        assert_eq!(told(None, true), Err(ErrorCode::InvalidRecord));
        let two = Bytes::from([&good[..], &good[..]].concat());
        assert_eq!(told(Some(two), true), Err(ErrorCode::InvalidRecord));
        // The rest is looked at later.
        let mut flipped = good.to_vec();
        *flipped.last_mut().unwrap() ^= 1;
        assert_eq!(told(Some(flipped.into()), true), Ok(()));
    }

    #[test]
    fn of_several_faults_the_first_is_told() {
        let good = batch(Codec::None, 3, 100, NOW);
        let mut config = TopicConfig::default();
        let miscounted = patched(&good, 57, &4i32.to_be_bytes());
        assert_eq!(code(&config, miscounted.clone()), ErrorCode::InvalidRecord);
        config.max_message_bytes = 100;
        assert_eq!(
            code(&config, miscounted.clone()),
            ErrorCode::MessageTooLarge
        );
        let displaced = patched(&miscounted, 0, &7i64.to_be_bytes());
        assert_eq!(code(&config, displaced), ErrorCode::InvalidRecord);
        config.max_message_bytes = 1 << 20;
        let mut corrupt = miscounted.to_vec();
        *corrupt.last_mut().unwrap() ^= 1;
        assert_eq!(code(&config, corrupt.into()), ErrorCode::CorruptMessage);
    }

    #[test]
    fn headers_that_no_client_may_send_are_invalid() {
        let config = TopicConfig::default();
        let good = batch(Codec::None, 3, 10, NOW);
        let cases: [(usize, &[u8]); 14] = [
            (0, &7i64.to_be_bytes()),
            (57, &0i32.to_be_bytes()),
            (57, &(-1i32).to_be_bytes()),
            (57, &4i32.to_be_bytes()),
            (23, &(-1i32).to_be_bytes()),
            (23, &i32::MAX.to_be_bytes()),
            (21, &ATTRIBUTE_CONTROL.to_be_bytes()),
            (21, &ATTRIBUTE_TRANSACTIONAL.to_be_bytes()),
            (21, &ATTRIBUTE_DELETE_HORIZON.to_be_bytes()),
            (21, &0x80i16.to_be_bytes()),
            (21, &5i16.to_be_bytes()),
            (21, &6i16.to_be_bytes()),
            (21, &7i16.to_be_bytes()),
            (43, &9i64.to_be_bytes()),
        ];
        for (at, bytes) in cases {
            assert_eq!(
                code(&config, patched(&good, at, bytes)),
                ErrorCode::InvalidRecord,
                "{bytes:?} at {at}"
            );
        }
        // Both counts raised together: the records run out.
        let more = patched(
            &patched(&good, 57, &9i32.to_be_bytes()),
            23,
            &8i32.to_be_bytes(),
        );
        assert_eq!(code(&config, more), ErrorCode::InvalidRecord);
        // A leader epoch is the broker's to set; whatever the client sent is written over.
        let mut epoch = good.to_vec();
        epoch[12..16].copy_from_slice(&77i32.to_be_bytes());
        assert_eq!(code(&config, epoch.into()), ErrorCode::None);
    }

    #[test]
    fn zstd_needs_version_7() {
        let config = TopicConfig::default();
        let rules = Rules {
            config: &config,
            budget: &room(),
            now_ms: NOW,
            zstd: false,
            keys: false,
        };
        let bytes = batch(Codec::Zstd, 3, 10, NOW);
        let refused = run(check(Some(bytes), rules, &async || {})).unwrap_err();
        assert_eq!(refused.code, ErrorCode::UnsupportedCompressionType);
    }

    #[test]
    fn sizes_are_bounded() {
        let small = TopicConfig {
            max_message_bytes: 500,
            ..TopicConfig::default()
        };
        assert_eq!(
            code(&small, batch(Codec::None, 10, 100, NOW)),
            ErrorCode::MessageTooLarge
        );
        let segment = TopicConfig {
            segment_bytes: 500,
            ..TopicConfig::default()
        };
        assert_eq!(
            code(&segment, batch(Codec::None, 10, 100, NOW)),
            ErrorCode::RecordListTooLarge
        );
        let bounded = TopicConfig {
            max_decompressed_message_bytes: 1 << 20,
            ..TopicConfig::default()
        };
        for codec in &CODECS[1..] {
            let bomb = batch(*codec, 3, 1 << 20, NOW);
            assert!(bomb.len() < 1 << 20);
            assert_eq!(
                code(&bounded, bomb),
                ErrorCode::MessageTooLarge,
                "{codec:?}"
            );
        }
    }

    #[test]
    fn a_topic_codec_is_honoured() {
        for wanted in [
            (CompressionType::Uncompressed, Codec::None),
            (CompressionType::Gzip, Codec::Gzip),
            (CompressionType::Snappy, Codec::Snappy),
            (CompressionType::Lz4, Codec::Lz4),
            (CompressionType::Zstd, Codec::Zstd),
        ] {
            let config = TopicConfig {
                compression_type: wanted.0,
                ..TopicConfig::default()
            };
            for codec in CODECS {
                let bytes = batch(codec, 500, 300, NOW);
                let got = with(&config, bytes.clone()).unwrap();
                assert_eq!(got.header.codec(), wanted.1 as i16);
                assert_eq!(got.header.record_count, 500);
                // What is stored is what a producer of that codec could have sent, with the same records.
                let plain = TopicConfig {
                    compression_type: CompressionType::Uncompressed,
                    ..TopicConfig::default()
                };
                let sent = with(&plain, bytes).unwrap();
                let stored = with(&plain, got.bytes.clone()).unwrap();
                assert_eq!(sent.bytes, stored.bytes, "{codec:?} to {wanted:?}");
                Batch::check(got.bytes).unwrap();
            }
        }
    }

    #[test]
    fn a_copy_in_another_codec_stops_at_its_limit() {
        let config = TopicConfig {
            compression_type: CompressionType::Uncompressed,
            ..TopicConfig::default()
        };
        let bomb = batch(Codec::Zstd, 4, 16 << 20, NOW);
        assert!(bomb.len() < 1 << 17);
        let pauses = std::cell::Cell::new(0);
        let pause = async || pauses.set(pauses.get() + 1);
        let rules = |budget| Rules {
            config: &config,
            budget,
            now_ms: NOW,
            zstd: true,
            keys: false,
        };
        let budget = room();
        let refused = run(check(Some(bomb), rules(&budget), &pause)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::MessageTooLarge);
        // 64 MiB were looked at in slices of 64 KiB; the copy ended at 1 MiB.
        assert!(
            (1_024..1_024 + 64).contains(&pauses.get()),
            "{}",
            pauses.get()
        );
        assert_eq!(budget.used_total(), 0);
    }

    #[test]
    fn a_batch_waits_until_there_is_memory_for_its_codec() {
        let config = TopicConfig::default();
        let budget = Budget::new(256 << 20);
        let held = run(memory::lease(&budget, 128 << 20));
        let rules = Rules {
            config: &config,
            budget: &budget,
            now_ms: NOW,
            zstd: true,
            keys: false,
        };
        for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            let bytes = batch(codec, 3, 100, NOW);
            let pause = async || {};
            let mut checked = Box::pin(check(Some(bytes), rules, &pause));
            assert!(poll_once(checked.as_mut()).is_none(), "{codec:?}");
        }
        let plain = batch(Codec::None, 3, 100, NOW);
        run(check(Some(plain), rules, &async || {})).unwrap();
        drop(held);
        let bytes = batch(Codec::Zstd, 3, 100, NOW);
        run(check(Some(bytes), rules, &async || {})).unwrap();
        assert_eq!(budget.used_total(), 0);
    }

    #[test]
    fn append_times_are_stamped() {
        let config = TopicConfig {
            message_timestamp_type: TimestampType::LogAppendTime,
            ..TopicConfig::default()
        };
        // Times that CreateTime would refuse are fine.
        let got = with(&config, batch(Codec::Gzip, 3, 10, i64::MAX - 10)).unwrap();
        assert_eq!(got.header.max_timestamp, NOW);
        assert_ne!(got.header.attributes & ATTRIBUTE_LOG_APPEND_TIME, 0);
        Batch::check(got.bytes).unwrap();
        // A client may not claim it.
        let good = batch(Codec::None, 3, 10, NOW);
        let claimed = patched(&good, 21, &ATTRIBUTE_LOG_APPEND_TIME.to_be_bytes());
        let refused = with(&TopicConfig::default(), claimed).unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidTimestamp);
        assert_eq!(refused.records.len(), 3);
    }

    #[test]
    fn times_out_of_bounds_refuse_the_batch_and_name_the_records() {
        let config = TopicConfig {
            message_timestamp_before_max_ms: 1_000,
            message_timestamp_after_max_ms: 1_000,
            ..TopicConfig::default()
        };
        // Records 0 and 1 are too old, 2 to 4 are not.
        let refused = with(&config, batch(Codec::None, 5, 10, NOW - 1_002)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidTimestamp);
        let named: Vec<_> = refused.records.iter().map(|r| r.0).collect();
        assert_eq!(named, [0, 1]);
        assert_eq!(
            code(&config, batch(Codec::None, 3, 10, NOW + 999)),
            ErrorCode::InvalidTimestamp
        );
        let no_time = encode_records(&[TestRecord::default()]);
        assert_eq!(
            code(&config, seal(Codec::None, &no_time, 1, (-1, -1))),
            ErrorCode::None
        );
        let open = TopicConfig::default();
        for (extreme, config) in [
            (i64::MIN, &config),
            (i64::MAX, &config),
            (i64::MIN, &open),
            (i64::MAX, &open),
        ] {
            let record = TestRecord {
                timestamp_delta: 5,
                ..TestRecord::default()
            };
            let bytes = seal(
                Codec::None,
                &encode_records(&[record]),
                1,
                (extreme, extreme),
            );
            assert_eq!(code(config, bytes), ErrorCode::InvalidTimestamp);
        }
    }

    #[test]
    fn a_wrong_max_timestamp_is_put_right() {
        let good = batch(Codec::Lz4, 4, 10, NOW);
        let lies = patched(&good, 35, &i64::MAX.to_be_bytes());
        let got = with(&TopicConfig::default(), lies).unwrap();
        assert_eq!(got.header.max_timestamp, NOW + 3);
        assert_eq!(got.bytes, good);
    }

    #[test]
    fn keys_are_demanded_where_records_are_found_by_them() {
        let records: Vec<_> = (0..4)
            .map(|i| TestRecord {
                offset_delta: i,
                key: (i % 2 == 0).then(|| b"k".to_vec()),
                ..TestRecord::default()
            })
            .collect();
        let bytes = seal(Codec::Zstd, &encode_records(&records), 4, (NOW, NOW));
        let config = TopicConfig::default();
        let rules = Rules {
            config: &config,
            budget: &room(),
            now_ms: NOW,
            zstd: true,
            keys: true,
        };
        let refused = run(check(Some(bytes), rules, &async || {})).unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidRecord);
        let named: Vec<_> = refused.records.iter().map(|r| r.0).collect();
        assert_eq!(named, [1, 3]);
    }

    #[test]
    fn offset_deltas_count_up_from_0() {
        for deltas in [[1, 2], [0, 2], [0, 0], [1, 0]] {
            let records = deltas.map(|offset_delta| TestRecord {
                offset_delta,
                ..TestRecord::default()
            });
            let bytes = seal(Codec::None, &encode_records(&records), 2, (NOW, NOW));
            assert_eq!(
                code(&TopicConfig::default(), bytes),
                ErrorCode::InvalidRecord,
                "{deltas:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = with(&TopicConfig::default(), bytes.into());
        }

        #[test]
        fn any_change_of_a_good_batch_is_answered(which in 0usize..5, at in any::<prop::sample::Index>(), with_byte: u8, seal_again: bool) {
            let mut bytes = batch(CODECS[which], 20, 30, NOW).to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= with_byte;
            if seal_again {
                reseal(&mut bytes);
            }
            if let Ok(batch) = with(&TopicConfig::default(), bytes.into()) {
                prop_assert_eq!(batch.header.base_offset, Offset(0));
                prop_assert!(Batch::check(batch.bytes).is_ok());
            }
        }
    }
}
