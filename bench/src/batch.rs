//! Record batches, format v2 (KIP-98): built in one buffer without an allocation per record, and walked when they come back.
//!
//! A record's value begins with the moment it was due (nanoseconds of the run's clock, big endian) and a number; the rest is random bytes.
//! It has a key or none, and no headers.

use crate::codec::Codec;
use crate::workload::MIN_RECORD_BYTES;

/// Bytes before the first record.
pub const HEADER_BYTES: usize = 61;
/// Where the length counts from, and where the CRC begins.
const LENGTH_END: usize = 12;
const CRC_AT: usize = 17;
const CRC_FROM: usize = 21;
/// What a record has at most around its value: length, attributes, timestamp and offset deltas, key, value length, header count.
pub const RECORD_OVERHEAD: usize = 5 + 1 + 10 + 5 + 1 + 5 + 1;

/// A batch under construction or under way, of one partition. Its buffers are used again.
#[derive(Debug, Default)]
pub struct Batch {
    /// Index of the partition in the run's list.
    pub partition: usize,
    bytes: Vec<u8>,
    /// The compressed batch.
    packed: Vec<u8>,
    /// When each record was due.
    pub due_ns: Vec<u64>,
    /// How many batches its producer began before it.
    pub number: u64,
    /// Bytes of all its values.
    pub value_bytes: u64,
    /// Of an idempotent producer: its id and epoch, and the first record's sequence number.
    pub ids: Option<(i64, i16, i32)>,
    first_timestamp_ms: i64,
    max_timestamp_ms: i64,
}

impl Batch {
    /// Empties it for another partition.
    pub fn begin(&mut self, partition: usize) {
        self.partition = partition;
        self.bytes.clear();
        self.bytes.resize(HEADER_BYTES, 0);
        self.due_ns.clear();
        self.value_bytes = 0;
        self.ids = None;
    }

    /// Its size in bytes, before compression.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.due_ns.is_empty()
    }

    /// Adds a record; `rest` is its value behind due moment and number.
    pub fn push(
        &mut self,
        due_ns: u64,
        number: u64,
        wall_ms: u64,
        key: Option<&[u8]>,
        rest: &[u8],
    ) {
        let timestamp = (wall_ms + due_ns / 1_000_000) as i64;
        if self.due_ns.is_empty() {
            self.first_timestamp_ms = timestamp;
            self.max_timestamp_ms = timestamp;
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp);
        let (time_delta, offset_delta) = (
            timestamp - self.first_timestamp_ms,
            self.due_ns.len() as i64,
        );
        let value = MIN_RECORD_BYTES + rest.len();
        let length = 1
            + varint_len(time_delta)
            + varint_len(offset_delta)
            + key.map_or(1, |k| varint_len(k.len() as i64) + k.len())
            + varint_len(value as i64)
            + value
            + 1;
        let out = &mut self.bytes;
        put_varint(out, length as i64);
        out.push(0);
        put_varint(out, time_delta);
        put_varint(out, offset_delta);
        put_varint(out, key.map_or(-1, |k| k.len() as i64));
        out.extend_from_slice(key.unwrap_or(&[]));
        put_varint(out, value as i64);
        out.extend_from_slice(&due_ns.to_be_bytes());
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(rest);
        out.push(0);
        self.due_ns.push(due_ns);
        self.value_bytes += value as u64;
    }

    /// Compresses, writes the header and the CRC; the batch as it goes on the wire. It holds at least one record.
    pub fn seal(&mut self, codec: Codec) -> &[u8] {
        assert!(!self.due_ns.is_empty(), "an empty batch is never sent");
        let count = self.due_ns.len() as i32;
        let (id, epoch, sequence) = self.ids.unwrap_or((-1, -1, -1));
        let bytes = match codec {
            Codec::None => &mut self.bytes,
            _ => {
                self.packed.clear();
                self.packed.resize(HEADER_BYTES, 0);
                codec.compress(&self.bytes[HEADER_BYTES..], &mut self.packed);
                &mut self.packed
            }
        };
        let length = (bytes.len() - LENGTH_END) as i32;
        let mut at = 0;
        let header = &mut bytes[..HEADER_BYTES];
        let mut put = |bytes: &[u8]| {
            header[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&0i64.to_be_bytes()); // base offset: the broker's to give
        put(&length.to_be_bytes());
        put(&(-1i32).to_be_bytes()); // partition leader epoch
        put(&[2]); // magic
        put(&[0; 4]); // CRC, below
        put(&(codec as i16).to_be_bytes()); // attributes: the codec, create time
        put(&(count - 1).to_be_bytes());
        put(&self.first_timestamp_ms.to_be_bytes());
        put(&self.max_timestamp_ms.to_be_bytes());
        put(&id.to_be_bytes());
        put(&epoch.to_be_bytes());
        put(&sequence.to_be_bytes());
        put(&count.to_be_bytes());
        let crc = crc32c::crc32c(&bytes[CRC_FROM..]);
        bytes[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
        bytes
    }
}

/// A record of `rest` bytes behind its moment and its number, with a key of `key` bytes, takes at most so many bytes of a batch.
pub fn record_bound(rest: usize, key: usize) -> usize {
    MIN_RECORD_BYTES + rest + RECORD_OVERHEAD + key
}

/// Zigzag, then seven bits a byte.
fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn varint_len(value: i64) -> usize {
    let zigzag = ((value << 1) ^ (value >> 63)) as u64;
    (64 - (zigzag | 1).leading_zeros() as usize).div_ceil(7)
}

/// Reads a zigzag varint at `at` and moves behind it.
fn take_varint(bytes: &[u8], at: &mut usize) -> Option<i64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value >> 1) as i64 ^ -((value & 1) as i64));
        }
        shift += 7;
        if shift > 63 {
            return None;
        }
    }
}

/// Walks the batches of a fetched partition: `record(offset, due moment)` for each record from `from` on. Returns the offset behind the last
/// whole batch, or what is wrong. An incomplete batch at the end is what a broker may send; control batches are passed over. `scratch` is for
/// what is decompressed.
pub fn walk(
    bytes: &[u8],
    from: i64,
    scratch: &mut Vec<u8>,
    mut record: impl FnMut(i64, u64),
) -> Result<i64, &'static str> {
    let (mut at, mut next) = (0, from);
    while let Some(header) = bytes.get(at..at + HEADER_BYTES) {
        let length = i32::from_be_bytes(array(&header[8..12]));
        let end = usize::try_from(length)
            .ok()
            .filter(|l| *l >= HEADER_BYTES - LENGTH_END)
            .map(|l| at + LENGTH_END + l)
            .ok_or("a batch of impossible length")?;
        let Some(batch) = bytes.get(at..end) else {
            break;
        };
        if header[16] != 2 {
            return Err("a batch that isn't of format v2");
        }
        if crc32c::crc32c(&batch[CRC_FROM..])
            != u32::from_be_bytes(array(&header[CRC_AT..CRC_FROM]))
        {
            return Err("a batch whose CRC doesn't match");
        }
        let attributes = i16::from_be_bytes(array(&header[21..23]));
        let base = i64::from_be_bytes(array(&header[..8]));
        let last = base.saturating_add(i64::from(i32::from_be_bytes(array(&header[23..27]))));
        if attributes & 0x20 == 0 {
            let count = i32::from_be_bytes(array(&header[57..61]));
            let records = match Codec::of_attributes(attributes) {
                Some(Codec::None) => &batch[HEADER_BYTES..],
                Some(codec) => {
                    codec.decompress(&batch[HEADER_BYTES..], scratch)?;
                    &scratch[..]
                }
                None => return Err("a batch of a codec that doesn't exist"),
            };
            walk_records(records, count, base, |offset, due| {
                if offset >= from {
                    record(offset, due);
                }
            })?;
        }
        // A batch may end before what was asked for; that is allowed, and no step back.
        next = next.max(last.saturating_add(1));
        at = end;
    }
    Ok(next)
}

fn walk_records(
    batch: &[u8],
    count: i32,
    base: i64,
    mut record: impl FnMut(i64, u64),
) -> Result<(), &'static str> {
    const TORN: &str = "a record that doesn't fit its batch";
    let mut at = 0;
    for _ in 0..count {
        let length = take_varint(batch, &mut at)
            .and_then(|l| usize::try_from(l).ok())
            .ok_or(TORN)?;
        let end = at
            .checked_add(length)
            .filter(|e| *e <= batch.len())
            .ok_or(TORN)?;
        at += 1; // attributes
        take_varint(batch, &mut at).ok_or(TORN)?;
        let delta = take_varint(batch, &mut at).ok_or(TORN)?;
        let key = take_varint(batch, &mut at).ok_or(TORN)?;
        at = at.checked_add(key.max(0) as usize).ok_or(TORN)?;
        take_varint(batch, &mut at).ok_or(TORN)?;
        let due = at
            .checked_add(8)
            .filter(|e| *e <= end)
            .ok_or("a record that this run didn't send")?;
        record(
            base.saturating_add(delta),
            u64::from_be_bytes(array(&batch[at..due])),
        );
        at = end;
    }
    Ok(())
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the slice has the array's length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use kafka_protocol::records::RecordBatchDecoder;
    use proptest::prelude::*;

    fn build(records: &[(u64, Vec<u8>)]) -> Batch {
        let mut batch = Batch::default();
        batch.begin(0);
        for (number, (due, rest)) in records.iter().enumerate() {
            batch.push(*due, number as u64, 1_700_000_000_000, None, rest);
        }
        batch.seal(Codec::None);
        batch
    }

    fn walk(bytes: &[u8], from: i64, record: impl FnMut(i64, u64)) -> Result<i64, &'static str> {
        super::walk(bytes, from, &mut Vec::new(), record)
    }

    proptest! {
        /// A decoder that isn't ours reads back what was put in, CRC looked at.
        #[test]
        fn batches_are_what_the_protocol_says(
            records in prop::collection::vec((0u64..100_000_000_000_000, prop::collection::vec(any::<u8>(), 0..300)), 1..40)
        ) {
            let batch = build(&records);
            let mut bytes = Bytes::copy_from_slice(&batch.bytes);
            let set = RecordBatchDecoder::decode(&mut bytes).unwrap();
            prop_assert!(bytes.is_empty());
            prop_assert_eq!(set.records.len(), records.len());
            for (n, (found, (due, rest))) in set.records.iter().zip(&records).enumerate() {
                let value = found.value.as_ref().unwrap();
                prop_assert_eq!(&value[..8], due.to_be_bytes());
                prop_assert_eq!(&value[8..16], (n as u64).to_be_bytes());
                prop_assert_eq!(&value[16..], &rest[..]);
                prop_assert_eq!(found.key.as_ref(), None);
                prop_assert_eq!(found.offset, n as i64);
                prop_assert_eq!(found.timestamp, (1_700_000_000_000 + due / 1_000_000) as i64);
            }
            let mut walked = Vec::new();
            prop_assert_eq!(walk(&batch.bytes, 0, |offset, due| walked.push((offset, due))), Ok(records.len() as i64));
            let expected: Vec<(i64, u64)> = records.iter().enumerate().map(|(n, r)| (n as i64, r.0)).collect();
            prop_assert_eq!(walked, expected);
        }

        /// The same with keys, producer ids and each codec.
        #[test]
        fn keyed_and_compressed_batches_too(
            records in prop::collection::vec((0u64..100_000_000_000_000, any::<[u8; 16]>(), prop::collection::vec(0u8..3, 0..300)), 1..40),
            codec in 0i16..5, id in 0i64..1 << 40, sequence in 0i32..i32::MAX
        ) {
            let codec = Codec::of_attributes(codec).unwrap();
            let mut batch = Batch::default();
            batch.begin(0);
            batch.ids = Some((id, 3, sequence));
            for (due, key, rest) in &records {
                batch.push(*due, 1, 1_700_000_000_000, Some(key), rest);
            }
            prop_assert_eq!(batch.value_bytes, records.iter().map(|r| 16 + r.2.len() as u64).sum::<u64>());
            let wire = batch.seal(codec).to_vec();
            let set = RecordBatchDecoder::decode(&mut Bytes::copy_from_slice(&wire)).unwrap();
            prop_assert_eq!(set.records.len(), records.len());
            for (n, (found, (due, key, rest))) in set.records.iter().zip(&records).enumerate() {
                let value = found.value.as_ref().unwrap();
                prop_assert_eq!(&value[..8], due.to_be_bytes());
                prop_assert_eq!(&value[16..], &rest[..]);
                prop_assert_eq!(&found.key.as_ref().unwrap()[..], &key[..]);
                prop_assert_eq!((found.producer_id, found.producer_epoch), (id, 3));
                prop_assert_eq!(found.sequence, sequence.wrapping_add(n as i32));
            }
            let mut walked = Vec::new();
            prop_assert_eq!(walk(&wire, 0, |_, due| walked.push(due)), Ok(records.len() as i64));
            prop_assert_eq!(walked, records.iter().map(|r| r.0).collect::<Vec<_>>());
        }

        #[test]
        fn overhead_is_an_upper_bound(due in 0u64..u64::MAX / 2, size in 0usize..70_000, key in 0usize..64) {
            let mut batch = Batch::default();
            batch.begin(0);
            batch.push(0, 0, 0, None, &[]);
            let before = batch.len();
            let key = vec![1; key];
            batch.push(due, 1, 0, (!key.is_empty()).then_some(&key[..]), &vec![7; size]);
            prop_assert!(batch.len() - before <= record_bound(size, key.len()));
        }

        /// Bytes from a socket: no panic, whatever they are.
        #[test]
        fn walking_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = walk(&bytes, 0, |_, _| {});
        }

        /// The same with a header that is right and a body that isn't.
        #[test]
        fn walking_torn_records_never_panics(body in prop::collection::vec(any::<u8>(), 0..100), count: i32) {
            let mut batch = build(&[(1, vec![])]);
            batch.bytes.truncate(HEADER_BYTES);
            batch.bytes.extend_from_slice(&body);
            let length = (batch.bytes.len() - LENGTH_END) as i32;
            batch.bytes[8..12].copy_from_slice(&length.to_be_bytes());
            batch.bytes[57..61].copy_from_slice(&count.to_be_bytes());
            let crc = crc32c::crc32c(&batch.bytes[CRC_FROM..]);
            batch.bytes[CRC_AT..CRC_FROM].copy_from_slice(&crc.to_be_bytes());
            let _ = walk(&batch.bytes, 0, |_, _| {});
        }
    }

    #[test]
    fn a_flipped_bit_is_seen_and_a_cut_batch_waits() {
        let batch = build(&[(5, vec![1; 50]), (6, vec![2; 50])]);
        let mut flipped = batch.bytes.clone();
        flipped[90] ^= 1;
        assert!(walk(&flipped, 0, |_, _| {}).is_err());
        let mut two = batch.bytes.clone();
        two.extend_from_slice(&batch.bytes[..100]);
        assert_eq!(walk(&two, 0, |_, _| {}), Ok(2));
    }

    #[test]
    fn records_before_the_asked_offset_are_passed_over() {
        let batch = build(&[(5, vec![]), (6, vec![]), (7, vec![])]);
        let mut seen = Vec::new();
        assert_eq!(
            walk(&batch.bytes, 2, |offset, due| seen.push((offset, due))),
            Ok(3)
        );
        assert_eq!(seen, [(2, 7)]);
    }
}
