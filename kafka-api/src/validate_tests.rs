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
