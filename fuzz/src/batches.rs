//! Batches that no producer sends: each is taken or refused, and what is taken is a good batch.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use cluster::TopicConfig;
use cluster::topic_config::{CompressionType, TimestampType};
use engine::batch::{Batch, reseal};
use engine::memory::Budget;
use kafka_api::validate::{Rules, check};

use crate::memory;
use crate::random::Random;

/// `max.decompressed.message.bytes`, and memory that checking a batch may take: what it may become, and the windows of its codec.
const LIMIT: i32 = 1 << 20;
const PEAK_BYTES: usize = 24 << 20;

const CODECS: [CompressionType; 7] = [
    CompressionType::Producer,
    CompressionType::Producer,
    CompressionType::Uncompressed,
    CompressionType::Gzip,
    CompressionType::Snappy,
    CompressionType::Lz4,
    CompressionType::Zstd,
];

fn finish<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(t) = future.as_mut().poll(&mut cx) {
            return t;
        }
    }
}

/// Draws of the topic's configuration, from the first bytes of an input; the batch follows.
pub const RULE_BYTES: usize = 5;

/// Takes [`RULE_BYTES`] and a batch; whether it was taken.
pub fn run(input: &[u8]) -> bool {
    let Some((rules, batch)) = input.split_at_checked(RULE_BYTES) else {
        return false;
    };
    let mut random = Random::new(rules);
    let mut batch = batch.to_vec();
    // Mostly with its length and CRC put right, or nothing behind the checksum would ever be looked at.
    if !random.one_in(10) && batch.len() >= 61 {
        let length = (batch.len() - 12) as i32;
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        batch[16] = 2;
        reseal(&mut batch);
    }
    let config = TopicConfig {
        max_decompressed_message_bytes: LIMIT,
        compression_type: *random.of(&CODECS),
        message_timestamp_type: if random.one_in(4) {
            TimestampType::LogAppendTime
        } else {
            TimestampType::CreateTime
        },
        ..TopicConfig::default()
    };
    let budget = Budget::new(1 << 30);
    let rules = Rules {
        config: &config,
        budget: &budget,
        now_ms: 2_000,
        zstd: !random.one_in(8),
        keys: random.one_in(8),
    };
    let bytes = batch.len();
    let (taken, peak) =
        memory::peak(|| finish(check(Some(Bytes::from(batch)), rules, &async || {})));
    assert!(peak <= PEAK_BYTES, "{peak} bytes for {bytes}");
    let Ok(batch) = taken else {
        return false;
    };
    let again = Batch::check(batch.bytes.clone()).expect("what is taken is a whole batch");
    assert_eq!(again.header, batch.header);
    assert!(batch.header.record_count > 0);
    // A broker that takes it over finds nothing to change any more.
    if config.message_timestamp_type == TimestampType::CreateTime {
        let rules = Rules {
            zstd: true,
            ..rules
        };
        let second = finish(check(Some(batch.bytes.clone()), rules, &async || {}))
            .expect("what was taken is taken again");
        assert_eq!(second.bytes, batch.bytes);
    }
    true
}
