//! The records inside a batch: walked one by one, never collected.
//!
//! A record is a varint length, attributes i8, timestamp delta (varlong), offset delta (varint), key and value (varint length, -1 is null),
//! and headers (varint count; each a key that is never null and a value). [`walk`] reads them from the bytes as they are or from a
//! decompressor, in slices of [`limits::CHECK_SLICE_BYTES`] between which it awaits `pause`, so that a large batch doesn't hold up its
//! shard. It allocates nothing per record. For a compressed batch it takes one window of a slice and what the codec needs (up to 128 MiB for zstd), leased from the
//! budget before any of it is made, and given back at the end of the walk ([`crate::codec::memory`]).
//!
//! A batch that passed holds exactly the announced number of records and not a byte more. Callers: [`crate::validate`] for what producers
//! send, ListOffsets for finding a record by its time.

use std::io;
use std::ops::ControlFlow;
use std::rc::Rc;

use bytes::Bytes;
use engine::batch::{BatchHeader, HEADER_BYTES};
use engine::memory::Budget;
use thiserror::Error;

use crate::codec::{Codec, Decompressor, memory};
use crate::limits;

/// What is wrong with a batch's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadRecords {
    #[error("the batch's compressed data is broken")]
    Codec,
    #[error("the batch is larger than the limit when decompressed")]
    TooLarge,
    #[error("the batch ends inside record {0}")]
    Short(i32),
    #[error("a length in record {0} is impossible")]
    Length(i32),
    #[error("a header of record {0} has no key")]
    HeaderKey(i32),
    #[error("bytes follow the batch's last record")]
    Trailing,
}

/// What a visitor is told of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The record's place in the batch, from 0.
    pub index: i32,
    pub offset_delta: i32,
    pub timestamp_delta: i64,
    pub has_key: bool,
}

/// Walks over the records of `batch`, a whole batch with `header` in front, and shows each to `visit` until that breaks off. At most
/// `limit` bytes are decompressed, with memory from `budget`. Gives the bytes that were walked over, as they are when decompressed.
pub async fn walk(
    header: &BatchHeader,
    batch: &Bytes,
    codec: Codec,
    limit: usize,
    budget: &Rc<Budget>,
    pause: &impl AsyncFn(),
    visit: impl FnMut(Record) -> ControlFlow<()>,
) -> Result<usize, BadRecords> {
    let records = batch.slice(HEADER_BYTES..);
    if codec == Codec::None {
        if records.len() > limit {
            return Err(BadRecords::TooLarge);
        }
        let mut input = Plain {
            bytes: &records,
            since_pause: 0,
        };
        walk_input(&mut input, header.record_count, pause, visit).await?;
        return Ok(records.len() - input.bytes.len());
    }
    let needed = memory::needed(codec, &records).map_err(|_| BadRecords::Codec)?;
    let _memory = memory::lease(budget, needed).await;
    let stream = Decompressor::new(codec, records).map_err(|_| BadRecords::Codec)?;
    let mut input = Stream {
        stream,
        window: vec![0; limits::CHECK_SLICE_BYTES],
        from: 0,
        to: 0,
        left: limit,
        since_pause: 0,
        ended: false,
    };
    walk_input(&mut input, header.record_count, pause, visit).await?;
    Ok(limit - input.left)
}

/// Bytes that come piece by piece.
trait Input {
    /// Makes `n` bytes (at most [`MOST_NEEDED`]) stand in the window, or fewer at the end.
    async fn need(&mut self, n: usize, pause: &impl AsyncFn()) -> Result<(), BadRecords>;
    fn window(&self) -> &[u8];
    /// Drops `n` bytes of the window.
    fn advance(&mut self, n: usize);
    /// Drops `n` bytes, in the window or not; `false` when there are fewer.
    async fn skip(&mut self, n: usize, pause: &impl AsyncFn()) -> Result<bool, BadRecords>;
}

/// Attributes, timestamp delta, offset delta and key length.
const MOST_NEEDED: usize = 1 + 10 + 5 + 5;

struct Plain<'a> {
    bytes: &'a [u8],
    since_pause: usize,
}

impl Plain<'_> {
    async fn breathe(&mut self, pause: &impl AsyncFn()) {
        if self.since_pause >= limits::CHECK_SLICE_BYTES {
            self.since_pause = 0;
            pause().await;
        }
    }
}

impl Input for Plain<'_> {
    async fn need(&mut self, _n: usize, pause: &impl AsyncFn()) -> Result<(), BadRecords> {
        self.breathe(pause).await;
        Ok(())
    }

    fn window(&self) -> &[u8] {
        self.bytes
    }

    fn advance(&mut self, n: usize) {
        self.since_pause += n;
        self.bytes = &self.bytes[n..];
    }

    async fn skip(&mut self, n: usize, _pause: &impl AsyncFn()) -> Result<bool, BadRecords> {
        // Skipping costs nothing, so it doesn't count towards the next pause.
        if n > self.bytes.len() {
            return Ok(false);
        }
        self.bytes = &self.bytes[n..];
        Ok(true)
    }
}

struct Stream {
    stream: Decompressor,
    window: Vec<u8>,
    from: usize,
    to: usize,
    /// Bytes that may still come out.
    left: usize,
    since_pause: usize,
    ended: bool,
}

impl Stream {
    /// Reads more into the window, which has room for it.
    async fn fill(&mut self, pause: &impl AsyncFn()) -> Result<(), BadRecords> {
        let n = match self.stream.read(&mut self.window[self.to..]) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(_) => return Err(BadRecords::Codec),
        };
        if n == 0 {
            self.ended = true;
            return Ok(());
        }
        self.left = self.left.checked_sub(n).ok_or(BadRecords::TooLarge)?;
        self.to += n;
        self.since_pause += n;
        if self.since_pause >= limits::CHECK_SLICE_BYTES {
            self.since_pause = 0;
            pause().await;
        }
        Ok(())
    }
}

impl Input for Stream {
    async fn need(&mut self, n: usize, pause: &impl AsyncFn()) -> Result<(), BadRecords> {
        while self.to - self.from < n && !self.ended {
            if self.window.len() - self.from < n || self.from == self.to {
                self.window.copy_within(self.from..self.to, 0);
                self.to -= self.from;
                self.from = 0;
            }
            self.fill(pause).await?;
        }
        Ok(())
    }

    fn window(&self) -> &[u8] {
        &self.window[self.from..self.to]
    }

    fn advance(&mut self, n: usize) {
        self.from += n;
    }

    async fn skip(&mut self, mut n: usize, pause: &impl AsyncFn()) -> Result<bool, BadRecords> {
        loop {
            let have = (self.to - self.from).min(n);
            self.from += have;
            n -= have;
            if n == 0 {
                return Ok(true);
            }
            if self.ended {
                return Ok(false);
            }
            self.from = 0;
            self.to = 0;
            self.fill(pause).await?;
        }
    }
}

/// Reads a zigzag varint of at most `most` bytes at the front of `bytes`: the value and the bytes it took.
fn varlong(bytes: &[u8], most: usize) -> Option<(i64, usize)> {
    let mut value = 0u64;
    for (i, byte) in bytes.iter().take(most).enumerate() {
        if i == 9 && *byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some(((value >> 1) as i64 ^ -((value & 1) as i64), i + 1));
        }
    }
    None
}

fn varint(bytes: &[u8]) -> Option<(i32, usize)> {
    let (value, n) = varlong(bytes, 5)?;
    i32::try_from(value).ok().map(|v| (v, n))
}

/// Reads a varint of the record at hand and takes it off what is left of the record.
fn take_varint<I: Input>(input: &mut I, left: &mut usize, index: i32) -> Result<i32, BadRecords> {
    let (value, n) = varint(input.window()).ok_or(if input.window().len() < 5 {
        BadRecords::Short(index)
    } else {
        BadRecords::Length(index)
    })?;
    input.advance(n);
    *left = left.checked_sub(n).ok_or(BadRecords::Length(index))?;
    Ok(value)
}

/// Skips a field of `length` bytes (-1: null) of the record at hand.
async fn skip_field<I: Input>(
    input: &mut I,
    length: i32,
    left: &mut usize,
    index: i32,
    pause: &impl AsyncFn(),
) -> Result<(), BadRecords> {
    if length == -1 {
        return Ok(());
    }
    let length = usize::try_from(length).map_err(|_| BadRecords::Length(index))?;
    *left = left.checked_sub(length).ok_or(BadRecords::Length(index))?;
    if !input.skip(length, pause).await? {
        return Err(BadRecords::Short(index));
    }
    Ok(())
}

async fn walk_input<I: Input>(
    input: &mut I,
    count: i32,
    pause: &impl AsyncFn(),
    mut visit: impl FnMut(Record) -> ControlFlow<()>,
) -> Result<(), BadRecords> {
    for index in 0..count {
        input.need(5, pause).await?;
        let mut unbounded = usize::MAX;
        let length = take_varint(input, &mut unbounded, index)?;
        let mut left = usize::try_from(length).map_err(|_| BadRecords::Length(index))?;

        input.need(MOST_NEEDED, pause).await?;
        let window = input.window();
        let fixed = (|| {
            window.first()?;
            let (timestamp_delta, n) = varlong(&window[1..], 10)?;
            let (offset_delta, m) = varint(&window[1 + n..])?;
            Some((timestamp_delta, offset_delta, 1 + n + m))
        })();
        let Some((timestamp_delta, offset_delta, n)) = fixed else {
            return Err(if window.len() < MOST_NEEDED {
                BadRecords::Short(index)
            } else {
                BadRecords::Length(index)
            });
        };
        input.advance(n);
        left = left.checked_sub(n).ok_or(BadRecords::Length(index))?;

        let key = take_varint(input, &mut left, index)?;
        skip_field(input, key, &mut left, index, pause).await?;
        input.need(5, pause).await?;
        let value = take_varint(input, &mut left, index)?;
        skip_field(input, value, &mut left, index, pause).await?;
        input.need(5, pause).await?;
        let headers = take_varint(input, &mut left, index)?;
        // Each header takes two bytes at least.
        if usize::try_from(headers).map_or(true, |h| h > left / 2) {
            return Err(BadRecords::Length(index));
        }
        for _ in 0..headers {
            input.need(5, pause).await?;
            let key = take_varint(input, &mut left, index)?;
            if key < 0 {
                return Err(BadRecords::HeaderKey(index));
            }
            skip_field(input, key, &mut left, index, pause).await?;
            input.need(5, pause).await?;
            let value = take_varint(input, &mut left, index)?;
            skip_field(input, value, &mut left, index, pause).await?;
        }
        if left != 0 {
            return Err(BadRecords::Length(index));
        }
        let record = Record {
            index,
            offset_delta,
            timestamp_delta,
            has_key: key >= 0,
        };
        if visit(record).is_break() {
            return Ok(());
        }
    }
    input.need(1, pause).await?;
    if !input.window().is_empty() {
        return Err(BadRecords::Trailing);
    }
    Ok(())
}

/// Builds batches of real records, for tests here and elsewhere.
pub mod testing {
    use bytes::{Bytes, BytesMut};
    use engine::batch::{HEADER_BYTES, LENGTH_PREFIX_BYTES, reseal};

    use crate::codec::{Codec, Compressor, Target};

    /// One record: (timestamp delta, offset delta, key, value, headers).
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct TestRecord {
        pub timestamp_delta: i64,
        pub offset_delta: i32,
        pub key: Option<Vec<u8>>,
        pub value: Option<Vec<u8>>,
        pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    }

    pub fn put_varlong(out: &mut Vec<u8>, value: i64) {
        let mut v = ((value << 1) ^ (value >> 63)) as u64;
        while v >= 0x80 {
            out.push(v as u8 | 0x80);
            v >>= 7;
        }
        out.push(v as u8);
    }

    fn put_field(out: &mut Vec<u8>, field: Option<&[u8]>) {
        match field {
            None => put_varlong(out, -1),
            Some(f) => {
                put_varlong(out, f.len() as i64);
                out.extend_from_slice(f);
            }
        }
    }

    pub fn encode_records(records: &[TestRecord]) -> Vec<u8> {
        let mut out = Vec::new();
        for r in records {
            let mut body = vec![0];
            put_varlong(&mut body, r.timestamp_delta);
            put_varlong(&mut body, i64::from(r.offset_delta));
            put_field(&mut body, r.key.as_deref());
            put_field(&mut body, r.value.as_deref());
            put_varlong(&mut body, r.headers.len() as i64);
            for (k, v) in &r.headers {
                put_field(&mut body, Some(k));
                put_field(&mut body, v.as_deref());
            }
            put_varlong(&mut out, body.len() as i64);
            out.extend_from_slice(&body);
        }
        out
    }

    /// A batch around `records` (already encoded, not yet compressed), sealed.
    pub fn seal(codec: Codec, records: &[u8], count: i32, timestamps: (i64, i64)) -> Bytes {
        let mut b = vec![0u8; HEADER_BYTES];
        b[12..16].copy_from_slice(&(-1i32).to_be_bytes());
        b[16] = 2;
        b[21..23].copy_from_slice(&(codec as i16).to_be_bytes());
        b[23..27].copy_from_slice(&(count - 1).to_be_bytes());
        b[27..35].copy_from_slice(&timestamps.0.to_be_bytes());
        b[35..43].copy_from_slice(&timestamps.1.to_be_bytes());
        b[43..51].copy_from_slice(&(-1i64).to_be_bytes());
        b[51..53].copy_from_slice(&(-1i16).to_be_bytes());
        b[53..57].copy_from_slice(&(-1i32).to_be_bytes());
        b[57..61].copy_from_slice(&count.to_be_bytes());
        let target = Target { codec, level: None };
        let mut c = Compressor::new(target, b, records.len() as u64).expect("a compressor");
        c.write(records).expect("memory takes everything");
        finish(c.finish().expect("memory takes everything"))
    }

    /// Writes length and CRC of a batch made or changed by hand.
    pub fn finish(mut batch: Vec<u8>) -> Bytes {
        let length = (batch.len() - LENGTH_PREFIX_BYTES) as i32;
        batch[8..12].copy_from_slice(&length.to_be_bytes());
        reseal(&mut batch);
        BytesMut::from(&batch[..]).freeze()
    }

    /// A good batch of `count` records of `value_bytes` each, one millisecond apart from `base_timestamp` on.
    pub fn batch(codec: Codec, count: i32, value_bytes: usize, base_timestamp: i64) -> Bytes {
        let records: Vec<_> = (0..count)
            .map(|i| TestRecord {
                timestamp_delta: i64::from(i),
                offset_delta: i,
                key: Some(i.to_be_bytes().to_vec()),
                value: Some(vec![b'a' + (i % 26) as u8; value_bytes]),
                headers: vec![(b"h".to_vec(), None)],
            })
            .collect();
        let last = base_timestamp + i64::from(count) - 1;
        seal(
            codec,
            &encode_records(&records),
            count,
            (base_timestamp, last),
        )
    }

    /// A budget in which there is room for everything.
    pub fn room() -> std::rc::Rc<engine::memory::Budget> {
        engine::memory::Budget::new(64 << 30)
    }

    /// Polls a future once; what it gave, if it is done.
    pub fn poll_once<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut cx) {
            std::task::Poll::Ready(t) => Some(t),
            std::task::Poll::Pending => None,
        }
    }

    /// Runs a future that never waits for anything but its own pauses.
    pub fn run<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        loop {
            if let std::task::Poll::Ready(t) = future.as_mut().poll(&mut cx) {
                return t;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    const CODECS: [Codec; 5] = [
        Codec::None,
        Codec::Gzip,
        Codec::Snappy,
        Codec::Lz4,
        Codec::Zstd,
    ];

    fn walk_all(batch: &Bytes, limit: usize) -> Result<Vec<Record>, BadRecords> {
        let header = BatchHeader::parse(batch).unwrap();
        let codec = Codec::from_attributes(header.attributes).unwrap();
        let mut seen = Vec::new();
        let budget = room();
        let walked = walk(&header, batch, codec, limit, &budget, &async || {}, |r| {
            seen.push(r);
            ControlFlow::Continue(())
        });
        run(walked)?;
        assert_eq!(budget.used_total(), 0);
        Ok(seen)
    }

    #[test]
    fn records_of_the_library_are_walked() {
        use kafka_protocol::records as k;
        for (codec, compression) in [
            (Codec::None, k::Compression::None),
            (Codec::Gzip, k::Compression::Gzip),
            (Codec::Snappy, k::Compression::Snappy),
            (Codec::Lz4, k::Compression::Lz4),
            (Codec::Zstd, k::Compression::Zstd),
        ] {
            let records: Vec<_> = (0..300)
                .map(|i| k::Record {
                    transactional: false,
                    control: false,
                    partition_leader_epoch: -1,
                    producer_id: -1,
                    producer_epoch: -1,
                    timestamp_type: k::TimestampType::Creation,
                    offset: i,
                    sequence: i as i32,
                    timestamp: 1_000 + i * 3,
                    delete_horizon: false,
                    key: (i % 3 != 0).then(|| Bytes::from_static(b"key")),
                    value: (i % 5 != 0).then(|| vec![i as u8; i as usize].into()),
                    headers: [(
                        kafka_protocol::protocol::StrBytes::from_static_str("h"),
                        (i % 2 == 0).then(|| Bytes::from_static(b"v")),
                    )]
                    .into_iter()
                    .collect(),
                })
                .collect();
            let mut out = bytes::BytesMut::new();
            let options = k::RecordEncodeOptions {
                version: 2,
                compression,
            };
            k::RecordBatchEncoder::encode(&mut out, &records, &options).unwrap();
            let batch = out.freeze();
            let header = BatchHeader::parse(&batch).unwrap();
            assert_eq!(header.codec(), codec as i16);
            assert_eq!(header.record_count, 300);
            let seen = walk_all(&batch, 1 << 20).unwrap();
            assert_eq!(seen.len(), 300);
            for (i, r) in seen.iter().enumerate() {
                assert_eq!(r.offset_delta, i as i32);
                assert_eq!(
                    header.base_timestamp + r.timestamp_delta,
                    1_000 + i as i64 * 3
                );
                assert_eq!(r.has_key, i % 3 != 0);
            }
        }
    }

    #[test]
    fn bombs_stop_at_the_limit_and_pause_on_the_way() {
        for codec in CODECS {
            let batch = batch(codec, 10, 1 << 20, 0);
            assert_eq!(
                walk_all(&batch, 1 << 20),
                Err(BadRecords::TooLarge),
                "{codec:?}"
            );
            assert_eq!(walk_all(&batch, 11 << 20).unwrap().len(), 10);
            if codec == Codec::None {
                continue;
            }
            let pauses = Cell::new(0);
            let header = BatchHeader::parse(&batch).unwrap();
            let pause = async || pauses.set(pauses.get() + 1);
            let budget = room();
            let walked = walk(&header, &batch, codec, 11 << 20, &budget, &pause, |_| {
                ControlFlow::Continue(())
            });
            assert!(run(walked).unwrap() > 10 << 20);
            assert_eq!(budget.used_total(), 0);
            assert!(pauses.get() >= 100, "{codec:?}: {}", pauses.get());
        }
    }

    /// A batch of one record whose bytes are given.
    fn one(record: &[u8]) -> Bytes {
        seal(Codec::None, record, 1, (0, 0))
    }

    #[test]
    fn impossible_lengths_are_named() {
        let good = encode_records(&[TestRecord::default()]);
        assert_eq!(walk_all(&one(&good), 1 << 20).unwrap().len(), 1);
        // Record length, attributes, timestamp delta, offset delta, key, value, headers.
        let cases: [(&[u8], BadRecords); 11] = [
            (&[], BadRecords::Short(0)),
            (&[1, 0, 0, 0, 1, 1, 0], BadRecords::Length(0)),
            (&[200, 1, 0, 0, 0, 1, 1, 0], BadRecords::Length(0)),
            (&[12, 0, 0, 0, 3, 1, 0], BadRecords::Length(0)),
            (&[12, 0, 0, 0, 1, 3, 0], BadRecords::Length(0)),
            (&[12, 0, 0, 0, 40, 1, 0], BadRecords::Length(0)),
            (&[12, 0, 0, 0, 1, 1, 1], BadRecords::Length(0)),
            (&[12, 0, 0, 0, 1, 1, 20], BadRecords::Length(0)),
            (&[16, 0, 0, 0, 1, 1, 2, 1, 1], BadRecords::HeaderKey(0)),
            (&[10, 0, 0, 0, 1, 1, 0], BadRecords::Length(0)),
            (&[12, 0, 0, 0, 1, 1, 0, 9], BadRecords::Trailing),
        ];
        for (bytes, want) in cases {
            assert_eq!(walk_all(&one(bytes), 1 << 20), Err(want), "{bytes:?}");
        }
        let overlong = [
            22, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0, 1, 1, 0, 0, 0, 0,
            0, 0, 0, 0, 0,
        ];
        assert_eq!(
            walk_all(&one(&overlong), 1 << 20),
            Err(BadRecords::Length(0))
        );
    }

    fn record() -> impl Strategy<Value = TestRecord> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..60);
        (
            any::<i64>(),
            any::<i32>(),
            proptest::option::of(bytes()),
            proptest::option::of(bytes()),
            proptest::collection::vec((bytes(), proptest::option::of(bytes())), 0..4),
        )
            .prop_map(
                |(timestamp_delta, offset_delta, key, value, headers)| TestRecord {
                    timestamp_delta,
                    offset_delta,
                    key,
                    value,
                    headers,
                },
            )
    }

    proptest! {
        #[test]
        fn good_records_are_walked(records in proptest::collection::vec(record(), 0..30), which in 0usize..5) {
            let batch = seal(CODECS[which], &encode_records(&records), records.len() as i32, (0, 0));
            let seen = walk_all(&batch, 1 << 20).unwrap();
            let want: Vec<_> = records.iter().enumerate().map(|(i, r)| Record {
                index: i as i32,
                offset_delta: r.offset_delta,
                timestamp_delta: r.timestamp_delta,
                has_key: r.key.is_some(),
            }).collect();
            prop_assert_eq!(seen, want);
        }

        #[test]
        fn a_cut_is_seen(records in proptest::collection::vec(record(), 1..20), which in 0usize..5, at in any::<prop::sample::Index>()) {
            let encoded = encode_records(&records);
            let cut = at.index(encoded.len());
            let batch = seal(CODECS[which], &encoded[..cut], records.len() as i32, (0, 0));
            prop_assert!(walk_all(&batch, 1 << 20).is_err());
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300), count in 0i32..100, which in 0usize..5) {
            let _ = walk_all(&seal(CODECS[which], &bytes, count, (0, 0)), 1 << 20);
            // The same as raw data of the codec, which is seldom any.
            let mut batch = seal(Codec::None, &bytes, count, (0, 0)).to_vec();
            batch[22] = which as u8;
            let _ = walk_all(&finish(batch), 1 << 20);
        }
    }
}
