//! Record batches, format v2 (KIP-98): the header, its checks and the two fields that a broker writes.
//!
//! Only headers and CRCs are looked at here; records and codecs belong to the layer that talks to clients. Bytes come from outside:
//! every function takes any input and answers with a [`BatchError`].
//!
//! Layout, big-endian: base offset i64 @0, batch length i32 @8 (of what follows it), leader epoch i32 @12, magic i8 @16, CRC-32C u32 @17
//! (over everything from 21 on), attributes i16 @21, last offset delta i32 @23, base timestamp i64 @27, max timestamp i64 @35,
//! producer id i64 @43, producer epoch i16 @51, base sequence i32 @53, record count i32 @57, records @61. The base offset and the leader epoch
//! lie outside the CRC, so that a broker can set them without touching the rest.

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::types::{LeaderEpoch, Offset};

/// Bytes of a v2 batch before its records.
pub const HEADER_BYTES: usize = 61;
/// Bytes before the batch length starts to count.
pub const LENGTH_PREFIX_BYTES: usize = 12;

const CRC_FROM: usize = 21;

pub const ATTRIBUTE_CODEC_MASK: i16 = 0x07;
pub const ATTRIBUTE_LOG_APPEND_TIME: i16 = 0x08;
pub const ATTRIBUTE_TRANSACTIONAL: i16 = 0x10;
pub const ATTRIBUTE_CONTROL: i16 = 0x20;
pub const ATTRIBUTE_DELETE_HORIZON: i16 = 0x40;

/// Why bytes are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BatchError {
    #[error("{0} bytes are too few for a record batch")]
    Short(usize),
    #[error("batch length {length} does not fit the {have} bytes at hand")]
    Length { length: i32, have: usize },
    #[error("record batch format {0}, only format 2 is taken")]
    Magic(i8),
    #[error("CRC-32C is {computed:#010x}, the batch says {stored:#010x}")]
    Crc { stored: u32, computed: u32 },
}

/// The fixed part of a record batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    pub base_offset: Offset,
    /// Length of the whole batch in bytes, the 12 bytes before the length field's reach included.
    pub total_bytes: usize,
    pub leader_epoch: LeaderEpoch,
    pub crc: u32,
    pub attributes: i16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: i32,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has N bytes")
}

impl BatchHeader {
    /// Parses the header at the front of `bytes`, which may hold more than one batch or end inside the first.
    pub fn parse(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        if bytes.len() < HEADER_BYTES {
            // A foreign magic is told apart first: older formats have shorter headers.
            if bytes.len() > 16 && bytes[16] != 2 {
                return Err(BatchError::Magic(bytes[16] as i8));
            }
            return Err(BatchError::Short(bytes.len()));
        }
        if bytes[16] != 2 {
            return Err(BatchError::Magic(bytes[16] as i8));
        }
        let length = i32::from_be_bytes(field(bytes, 8));
        let total = usize::try_from(length)
            .ok()
            .map(|l| l + LENGTH_PREFIX_BYTES)
            .filter(|t| *t >= HEADER_BYTES)
            .ok_or(BatchError::Length {
                length,
                have: bytes.len(),
            })?;
        Ok(BatchHeader {
            base_offset: Offset(i64::from_be_bytes(field(bytes, 0))),
            total_bytes: total,
            leader_epoch: LeaderEpoch(i32::from_be_bytes(field(bytes, 12))),
            crc: u32::from_be_bytes(field(bytes, 17)),
            attributes: i16::from_be_bytes(field(bytes, 21)),
            last_offset_delta: i32::from_be_bytes(field(bytes, 23)),
            base_timestamp: i64::from_be_bytes(field(bytes, 27)),
            max_timestamp: i64::from_be_bytes(field(bytes, 35)),
            producer_id: i64::from_be_bytes(field(bytes, 43)),
            producer_epoch: i16::from_be_bytes(field(bytes, 51)),
            base_sequence: i32::from_be_bytes(field(bytes, 53)),
            record_count: i32::from_be_bytes(field(bytes, 57)),
        })
    }

    /// The offset after the batch's last record. Saturates: a batch that would pass `i64::MAX` is refused by the checks above.
    pub fn next_offset(&self) -> Offset {
        Offset(
            self.base_offset
                .0
                .saturating_add(i64::from(self.last_offset_delta))
                .saturating_add(1),
        )
    }

    pub fn codec(&self) -> i16 {
        self.attributes & ATTRIBUTE_CODEC_MASK
    }

    pub fn is_transactional(&self) -> bool {
        self.attributes & ATTRIBUTE_TRANSACTIONAL != 0
    }

    pub fn is_control(&self) -> bool {
        self.attributes & ATTRIBUTE_CONTROL != 0
    }

    pub fn has_producer(&self) -> bool {
        self.producer_id >= 0
    }

    /// The sequence number of the last record, wrapping from `i32::MAX` to 0 as producers do.
    pub fn last_sequence(&self) -> i32 {
        add_sequence(self.base_sequence, self.last_offset_delta)
    }
}

/// `sequence + n`, wrapping from `i32::MAX` to 0.
pub fn add_sequence(sequence: i32, n: i32) -> i32 {
    let sum = i64::from(sequence) + i64::from(n);
    (sum % (i64::from(i32::MAX) + 1)) as i32
}

/// One whole batch whose length, format and CRC are right.
#[derive(Clone, Debug)]
pub struct Batch {
    pub header: BatchHeader,
    pub bytes: Bytes,
}

impl Batch {
    /// Takes `bytes` as exactly one batch.
    pub fn check(bytes: Bytes) -> Result<Batch, BatchError> {
        let header = BatchHeader::parse(&bytes)?;
        if header.total_bytes != bytes.len() {
            return Err(BatchError::Length {
                length: (header.total_bytes - LENGTH_PREFIX_BYTES) as i32,
                have: bytes.len(),
            });
        }
        let computed = crc32c::crc32c(&bytes[CRC_FROM..]);
        if computed != header.crc {
            return Err(BatchError::Crc {
                stored: header.crc,
                computed,
            });
        }
        Ok(Batch { header, bytes })
    }

    /// The batch with its place in the log written into it: one copy, which is the one that the log, the caches and the sockets then share.
    pub fn stamped(&self, base_offset: Offset, leader_epoch: LeaderEpoch) -> Bytes {
        let mut copy = BytesMut::from(&self.bytes[..]);
        stamp(&mut copy, base_offset, leader_epoch);
        copy.freeze()
    }
}

/// Writes base offset and leader epoch into the front of a batch.
///
/// # Panics
/// When `batch` is shorter than a header; callers hold a parsed batch.
pub fn stamp(batch: &mut [u8], base_offset: Offset, leader_epoch: LeaderEpoch) {
    assert!(
        batch.len() >= HEADER_BYTES,
        "only a parsed batch is stamped"
    );
    batch[..8].copy_from_slice(&base_offset.0.to_be_bytes());
    batch[12..16].copy_from_slice(&leader_epoch.0.to_be_bytes());
}

/// Computes the CRC of a whole batch again and writes it, for batches that the broker itself changed.
pub fn reseal(batch: &mut [u8]) {
    assert!(
        batch.len() >= HEADER_BYTES,
        "only a parsed batch is resealed"
    );
    let crc = crc32c::crc32c(&batch[CRC_FROM..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

/// The whole batches at the front of `bytes`, without looking at their CRCs; ends at the first that is cut off or is no batch.
pub fn whole_batches(bytes: &Bytes) -> impl Iterator<Item = (BatchHeader, Bytes)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let header = BatchHeader::parse(&bytes[at..]).ok()?;
        let end = at
            .checked_add(header.total_bytes)
            .filter(|e| *e <= bytes.len())?;
        let one = bytes.slice(at..end);
        at = end;
        Some((header, one))
    })
}

/// Builds batches for tests, here and in the crates above.
pub mod testing {
    use super::*;

    /// A valid batch of `records` opaque records of `record_bytes` each; not decodable as Kafka records.
    pub fn batch(records: i32, record_bytes: usize, producer: Option<(i64, i16, i32)>) -> Batch {
        assert!(records > 0, "a batch has records");
        let mut b = vec![0u8; HEADER_BYTES + records as usize * record_bytes];
        let length = (b.len() - LENGTH_PREFIX_BYTES) as i32;
        b[8..12].copy_from_slice(&length.to_be_bytes());
        b[12..16].copy_from_slice(&(-1i32).to_be_bytes());
        b[16] = 2;
        b[23..27].copy_from_slice(&(records - 1).to_be_bytes());
        let (id, epoch, sequence) = producer.unwrap_or((-1, -1, -1));
        b[43..51].copy_from_slice(&id.to_be_bytes());
        b[51..53].copy_from_slice(&epoch.to_be_bytes());
        b[53..57].copy_from_slice(&sequence.to_be_bytes());
        b[57..61].copy_from_slice(&records.to_be_bytes());
        for (i, byte) in b[HEADER_BYTES..].iter_mut().enumerate() {
            *byte = (i % 251) as u8;
        }
        reseal(&mut b);
        Batch::check(b.into()).expect("a batch built here is valid")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_stamped_batch_keeps_its_crc() {
        let batch = testing::batch(3, 40, Some((9, 1, 5)));
        let stamped = Batch::check(batch.stamped(Offset(77), LeaderEpoch(4))).unwrap();
        assert_eq!(stamped.header.base_offset, Offset(77));
        assert_eq!(stamped.header.next_offset(), Offset(80));
        assert_eq!(stamped.header.leader_epoch, LeaderEpoch(4));
        assert_eq!(stamped.header.crc, batch.header.crc);
        assert_eq!(stamped.header.last_sequence(), 7);
    }

    #[test]
    fn sequences_wrap_to_zero() {
        assert_eq!(add_sequence(i32::MAX, 1), 0);
        assert_eq!(add_sequence(i32::MAX - 1, 3), 1);
    }

    #[test]
    fn every_flipped_bit_behind_the_epoch_is_seen() {
        let batch = testing::batch(2, 20, None);
        for bit in 16 * 8..batch.bytes.len() * 8 {
            let mut bytes = batch.bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Batch::check(bytes.into()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn batches_split_where_they_end() {
        let one = testing::batch(1, 10, None).bytes;
        let two = testing::batch(4, 10, None).bytes;
        let mut all = BytesMut::new();
        all.extend_from_slice(&one);
        all.extend_from_slice(&two);
        all.extend_from_slice(&one[..30]);
        let found: Vec<_> = whole_batches(&all.freeze()).map(|(_, b)| b).collect();
        assert_eq!(found, vec![one, two]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Batch::check(bytes.clone().into());
            let _ = whole_batches(&bytes.into()).count();
        }
    }
}
