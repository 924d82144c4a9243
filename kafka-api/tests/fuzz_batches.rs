//! Batches that no producer sends: each is taken or refused, and what is taken is a good batch.

#[path = "../../engine/tests/fuzz/mod.rs"]
mod fuzz;

use std::future::Future;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use cluster::TopicConfig;
use cluster::topic_config::{CompressionType, TimestampType};
use engine::batch::{Batch, reseal};
use kafka_api::testing;
use kafka_api::validate::{Rules, check};

const LIMIT: i32 = 1 << 20;

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(t) = future.as_mut().poll(&mut cx) {
            return t;
        }
    }
}

#[test]
fn changed_batches_are_taken_or_refused() {
    let corpus: Vec<Vec<u8>> = testing::batches().iter().map(|b| b.to_vec()).collect();
    let codecs = [
        CompressionType::Producer,
        CompressionType::Producer,
        CompressionType::Uncompressed,
        CompressionType::Gzip,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ];
    let mut taken = 0u64;
    fuzz::run(
        fuzz::fuzz_test!("changed_batches_are_taken_or_refused"),
        &corpus,
        |random, mut input| {
            // Mostly with its length and CRC put right, or nothing behind the checksum would ever be looked at.
            if random.below(10) > 0 && input.len() >= 61 {
                let length = (input.len() - 12) as i32;
                input[8..12].copy_from_slice(&length.to_be_bytes());
                input[16] = 2;
                reseal(&mut input);
            }
            let config = TopicConfig {
                max_decompressed_message_bytes: LIMIT,
                compression_type: codecs[random.below(codecs.len())],
                message_timestamp_type: if random.below(4) == 0 {
                    TimestampType::LogAppendTime
                } else {
                    TimestampType::CreateTime
                },
                ..TopicConfig::default()
            };
            let rules = Rules {
                config: &config,
                now_ms: 2_000,
                zstd: random.below(8) > 0,
                keys: random.below(8) == 0,
            };
            if let Ok(batch) = run(check(Some(Bytes::from(input)), rules, &async || {})) {
                taken += 1;
                let again =
                    Batch::check(batch.bytes.clone()).expect("what is taken is a whole batch");
                assert_eq!(again.header, batch.header);
                assert!(batch.header.record_count > 0);
                // A broker that takes it over finds nothing to change any more.
                if config.message_timestamp_type == TimestampType::CreateTime {
                    let rules = Rules {
                        zstd: true,
                        ..rules
                    };
                    let second = run(check(Some(batch.bytes.clone()), rules, &async || {}))
                        .expect("what was taken is taken again");
                    assert_eq!(second.bytes, batch.bytes);
                }
            }
        },
    );
    assert!(
        taken > 0,
        "no changed batch was ever good: the fuzzing is blind"
    );
}
