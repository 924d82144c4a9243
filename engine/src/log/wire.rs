//! Reading and writing the little-endian numbers of our on-disk formats. A [`Reader`] takes any bytes and never reads past their end.

use bytes::{BufMut, BytesMut};

use crate::types::{Offset, RaftIndex, Term};

/// The largest index, term, offset, position, lsn and boot epoch that is believed. We never write one that comes near; below it, sums of a few can't overflow.
pub const LARGEST: u64 = 1 << 60;

/// A cursor over bytes from the disk. Every getter answers `None` when too little is left.
#[derive(Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(n)?;
        let part = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(part)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|a| a[0])
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// A LEB128 number of at most ten bytes.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A varint that counts something of ours, at most [`LARGEST`].
    pub fn number(&mut self) -> Option<u64> {
        self.varint().filter(|n| *n <= LARGEST)
    }

    pub fn index(&mut self) -> Option<RaftIndex> {
        self.number().map(RaftIndex)
    }

    /// A term that has a leader epoch: no other is ever entered (G11).
    pub fn term(&mut self) -> Option<Term> {
        self.varint().and_then(entered)
    }

    /// The same as eight bytes.
    pub fn long_term(&mut self) -> Option<Term> {
        self.u64().and_then(entered)
    }

    pub fn offset(&mut self) -> Option<Offset> {
        self.number().map(|n| Offset(n as i64))
    }

    /// A [`Reader::number`] as eight bytes.
    pub fn long(&mut self) -> Option<u64> {
        self.u64().filter(|n| *n <= LARGEST)
    }

    /// A count that the rest of the bytes could hold at `each` bytes an element; anything larger is a lie.
    pub fn count(&mut self, each: usize) -> Option<usize> {
        let n = usize::try_from(self.varint()?).ok()?;
        (n.checked_mul(each)? <= self.remaining()).then_some(n)
    }
}

fn entered(term: u64) -> Option<Term> {
    Term(term).leader_epoch().map(|_| Term(term))
}

/// Writes `value` as LEB128.
pub fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_come_back(v in any::<u64>()) {
            let mut out = BytesMut::new();
            put_varint(&mut out, v);
            let mut r = Reader::new(&out);
            prop_assert_eq!(r.varint(), Some(v));
            prop_assert!(r.is_empty());
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            let mut r = Reader::new(&bytes);
            let _ = r.varint();
            let _ = r.count(3);
            let _ = r.u64();
            let _ = r.take(usize::MAX);
        }
    }
}
