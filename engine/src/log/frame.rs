//! What lies in a segment: batches as on the wire, and between them *service frames* for everything else that takes a Raft index.
//!
//! A service frame begins like a batch (base offset i64, length i32 of what follows, leader epoch i32, magic u8; big-endian), so that one walk steps over
//! both; its magic is reserved. Then, little-endian: CRC-32C u32 of the rest, kind u8, index u64, term u64, data. A padding frame fills up a block
//! and takes no index; a damage frame stands for entries that were lost to rot (L13).

use bytes::{BufMut, Bytes, BytesMut};

use super::extent::Extent;
use crate::batch::{BatchHeader, HEADER_BYTES as BATCH_HEADER_BYTES, LENGTH_PREFIX_BYTES};
use crate::limits::BLOCK_BYTES;
use crate::types::*;

pub const SERVICE_MAGIC: u8 = 0x7e;
const PAD_KIND: u8 = 0xff;
const DAMAGED_KIND: u8 = 0xfe;
const SERVICE_HEADER_BYTES: usize = 17 + 4 + 1 + 8 + 8;
/// Bytes at the front of any frame that tell its length and magic.
pub const FRAME_PREFIX_BYTES: usize = 17;

/// The frame at the front of some bytes of a segment.
#[derive(Clone, Debug)]
pub enum Frame {
    Batch(BatchHeader),
    /// Takes an index, and is no batch.
    Service {
        total_bytes: usize,
    },
    /// A batch in an extent file (L7).
    Extent {
        extent: Extent,
        total_bytes: usize,
    },
    /// Entries `index..` up to `next_offset` that are lost.
    Damaged {
        next_offset: Offset,
        base_offset: Offset,
        total_bytes: usize,
    },
    Pad {
        total_bytes: usize,
    },
}

/// What the front of some bytes turned out to be.
pub enum Parsed {
    Frame(Frame),
    /// More bytes are needed: this many in all.
    Short(usize),
    /// No frame: rot, or not a place where one begins.
    Broken,
}

/// Parses the frame at the front of `bytes`. CRCs of batches are checked by the caller, those of service frames here.
pub fn parse(bytes: &[u8]) -> Parsed {
    if bytes.len() < FRAME_PREFIX_BYTES {
        return Parsed::Short(FRAME_PREFIX_BYTES);
    }
    let length = i32::from_be_bytes(bytes[8..12].try_into().expect("four bytes"));
    let Ok(length) = usize::try_from(length) else {
        return Parsed::Broken;
    };
    let total_bytes = length + LENGTH_PREFIX_BYTES;
    match bytes[16] {
        2 if total_bytes >= BATCH_HEADER_BYTES => {
            if bytes.len() < BATCH_HEADER_BYTES {
                return Parsed::Short(BATCH_HEADER_BYTES);
            }
            match BatchHeader::parse(bytes) {
                Ok(h) => Parsed::Frame(Frame::Batch(h)),
                Err(_) => Parsed::Broken,
            }
        }
        SERVICE_MAGIC if total_bytes >= SERVICE_HEADER_BYTES => {
            if bytes.len() < total_bytes {
                return Parsed::Short(total_bytes);
            }
            service(&bytes[..total_bytes]).map_or(Parsed::Broken, Parsed::Frame)
        }
        _ => Parsed::Broken,
    }
}

fn service(frame: &[u8]) -> Option<Frame> {
    let stored = u32::from_le_bytes(frame[17..21].try_into().expect("four bytes"));
    if crc32c::crc32c(&frame[21..]) != stored {
        return None;
    }
    let total_bytes = frame.len();
    match frame[21] {
        PAD_KIND => Some(Frame::Pad { total_bytes }),
        DAMAGED_KIND => Some(Frame::Damaged {
            base_offset: Offset(i64::from_be_bytes(
                frame[0..8].try_into().expect("eight bytes"),
            )),
            next_offset: Offset(i64::from_be_bytes(frame.get(38..46)?.try_into().ok()?)),
            total_bytes,
        }),
        kind => match EntryKind::from_u8(kind)? {
            EntryKind::Extent => Some(Frame::Extent {
                extent: Extent::decode(&frame[SERVICE_HEADER_BYTES..])?,
                total_bytes,
            }),
            _ => Some(Frame::Service { total_bytes }),
        },
    }
}

fn put_service(
    out: &mut BytesMut,
    kind: u8,
    base: Offset,
    index: RaftIndex,
    term: Term,
    data: &[u8],
) {
    let at = out.len();
    out.put_i64(base.0);
    out.put_i32((SERVICE_HEADER_BYTES - LENGTH_PREFIX_BYTES + data.len()) as i32);
    out.put_i32(-1);
    out.put_u8(SERVICE_MAGIC);
    out.put_u32_le(0);
    out.put_u8(kind);
    out.put_u64_le(index.0);
    out.put_u64_le(term.0);
    out.put_slice(data);
    let crc = crc32c::crc32c(&out[at + 21..]);
    out[at + 17..at + 21].copy_from_slice(&crc.to_le_bytes());
}

/// An entry as it lies in a segment. `data` is `None` for an entry whose bytes are lost.
pub fn of_entry(h: &EntryHeader, data: Option<&Bytes>) -> Bytes {
    let mut out = BytesMut::new();
    match (h.kind, data) {
        (_, None) => {
            let next = h.next_offset.0.to_be_bytes();
            put_service(
                &mut out,
                DAMAGED_KIND,
                h.base_offset,
                h.index,
                h.term,
                &next,
            );
        }
        (EntryKind::Batch, Some(data)) => return data.clone(),
        (kind, Some(data)) => {
            put_service(&mut out, kind as u8, h.base_offset, h.index, h.term, data)
        }
    }
    out.freeze()
}

/// Bytes that [`of_entry`] will give.
pub fn bytes_of_entry(h: &EntryHeader, damaged: bool) -> u64 {
    match h.kind {
        _ if damaged => SERVICE_HEADER_BYTES as u64 + 8,
        EntryKind::Batch => u64::from(h.data_bytes),
        _ => SERVICE_HEADER_BYTES as u64 + u64::from(h.data_bytes),
    }
}

/// A frame that fills up from `position` to the end of a block. Empty when `position` is one.
pub fn padding(position: u64, next_offset: Offset) -> Bytes {
    let over = (position % BLOCK_BYTES as u64) as usize;
    if over == 0 {
        return Bytes::new();
    }
    let mut gap = BLOCK_BYTES - over;
    if gap < SERVICE_HEADER_BYTES {
        gap += BLOCK_BYTES;
    }
    let mut out = BytesMut::new();
    let zeros = vec![0u8; gap - SERVICE_HEADER_BYTES];
    put_service(
        &mut out,
        PAD_KIND,
        next_offset,
        RaftIndex(0),
        Term(0),
        &zeros,
    );
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::testing;
    use proptest::prelude::*;

    fn header(kind: EntryKind, data: &Bytes) -> EntryHeader {
        EntryHeader {
            index: RaftIndex(7),
            term: Term(3),
            kind,
            base_offset: Offset(20),
            next_offset: Offset(22),
            data_bytes: data.len() as u32,
        }
    }

    #[test]
    fn batches_lie_as_they_are_and_the_rest_is_framed() {
        let batch = testing::batch(2, 30, None).bytes;
        let h = header(EntryKind::Batch, &batch);
        assert_eq!(of_entry(&h, Some(&batch)), batch);
        let command = Bytes::from_static(b"create a topic");
        let h = header(EntryKind::Command, &command);
        let framed = of_entry(&h, Some(&command));
        assert_eq!(framed.len() as u64, bytes_of_entry(&h, false));
        let Parsed::Frame(Frame::Service { total_bytes }) = parse(&framed) else {
            panic!("a service frame parses");
        };
        assert_eq!(total_bytes, framed.len());
        let lost = of_entry(&header(EntryKind::Batch, &batch), None);
        let Parsed::Frame(Frame::Damaged {
            base_offset,
            next_offset,
            ..
        }) = parse(&lost)
        else {
            panic!("a damage frame parses");
        };
        assert_eq!((base_offset, next_offset), (Offset(20), Offset(22)));
    }

    #[test]
    fn padding_ends_on_a_block() {
        for position in 0..2 * BLOCK_BYTES as u64 {
            let pad = padding(position, Offset(1));
            assert_eq!((position + pad.len() as u64) % BLOCK_BYTES as u64, 0);
            if !pad.is_empty() {
                assert!(
                    matches!(parse(&pad), Parsed::Frame(Frame::Pad { total_bytes }) if total_bytes == pad.len())
                );
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), magic in prop_oneof![Just(2u8), Just(SERVICE_MAGIC)]) {
            if bytes.len() > 16 {
                bytes[16] = magic;
            }
            let _ = parse(&bytes);
        }
    }
}
