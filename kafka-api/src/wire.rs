//! Kafka's primitive types, read and written by hand where a request is hot or not trusted yet.
//!
//! [`Reader`] never allocates by a count it read: arrays are bounded by [`limits::ARRAY_ELEMENTS`] per request and by the bytes that are
//! left, tagged fields by [`limits::TAGGED_FIELDS`]. Strings and byte fields are slices of the frame, uncopied.

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::error::Malformed;
use crate::limits;

/// Reads a request. Every failure is a [`Malformed`], after which the reader is of no more use.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
    at: usize,
    elements: usize,
    tags: usize,
}

impl Reader {
    pub fn new(bytes: Bytes) -> Reader {
        Reader {
            bytes,
            at: 0,
            elements: limits::ARRAY_ELEMENTS,
            tags: limits::TAGGED_FIELDS,
        }
    }

    #[cfg(test)]
    pub fn whole(&self) -> &Bytes {
        &self.bytes
    }

    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// What has not been read yet.
    pub fn rest(&self) -> Bytes {
        self.bytes.slice(self.at..)
    }

    /// Elements of arrays that were announced so far.
    pub fn elements_seen(&self) -> usize {
        limits::ARRAY_ELEMENTS - self.elements
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let end = self.at + N;
        let Some(slice) = self.bytes.get(self.at..end) else {
            return Err(Malformed::Short(end - self.bytes.len()));
        };
        self.at = end;
        Ok(slice.try_into().expect("the slice has N bytes"))
    }

    pub fn skip(&mut self, n: usize) -> Result<(), Malformed> {
        if n > self.left() {
            return Err(Malformed::Short(n - self.left()));
        }
        self.at += n;
        Ok(())
    }

    pub fn i8(&mut self) -> Result<i8, Malformed> {
        Ok(i8::from_be_bytes(self.take()?))
    }

    pub fn i16(&mut self) -> Result<i16, Malformed> {
        Ok(i16::from_be_bytes(self.take()?))
    }

    pub fn i32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.take()?))
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_be_bytes(self.take()?))
    }

    pub fn uuid(&mut self) -> Result<Uuid, Malformed> {
        Ok(Uuid::from_bytes(self.take()?))
    }

    /// An unsigned varint of at most five bytes, the fifth at most 15.
    pub fn uvarint(&mut self) -> Result<u32, Malformed> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let [byte] = self.take()?;
            if shift == 28 && byte > 0x0f {
                return Err(Malformed::Varint);
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed::Varint)
    }

    /// A length: compact (varint of length + 1, 0 is null) or i16/i32 (-1 is null).
    pub fn length(&mut self, flexible: bool, wide: bool) -> Result<Option<usize>, Malformed> {
        let length = if flexible {
            i64::from(self.uvarint()?) - 1
        } else if wide {
            i64::from(self.i32()?)
        } else {
            i64::from(self.i16()?)
        };
        match length {
            -1 => Ok(None),
            n if n < 0 => Err(Malformed::Length(n)),
            n => Ok(Some(n as usize)),
        }
    }

    fn slice(&mut self, n: usize) -> Result<Bytes, Malformed> {
        if n > self.left() {
            return Err(Malformed::Short(n - self.left()));
        }
        let slice = self.bytes.slice(self.at..self.at + n);
        self.at += n;
        Ok(slice)
    }

    pub fn nullable_string(&mut self, flexible: bool) -> Result<Option<StrBytes>, Malformed> {
        match self.length(flexible, false)? {
            None => Ok(None),
            Some(n) => StrBytes::try_from(self.slice(n)?)
                .map(Some)
                .map_err(|_| Malformed::Utf8),
        }
    }

    pub fn string(&mut self, flexible: bool) -> Result<StrBytes, Malformed> {
        self.nullable_string(flexible)?.ok_or(Malformed::Null)
    }

    pub fn skip_string(&mut self, flexible: bool) -> Result<(), Malformed> {
        let n = self.length(flexible, false)?.unwrap_or(0);
        self.skip(n)
    }

    /// A string's bytes, whatever they are.
    pub fn nullable_raw_string(&mut self, flexible: bool) -> Result<Option<Bytes>, Malformed> {
        match self.length(flexible, false)? {
            None => Ok(None),
            Some(n) => self.slice(n).map(Some),
        }
    }

    pub fn nullable_bytes(&mut self, flexible: bool) -> Result<Option<Bytes>, Malformed> {
        match self.length(flexible, true)? {
            None => Ok(None),
            Some(n) => self.slice(n).map(Some),
        }
    }

    pub fn skip_bytes(&mut self, flexible: bool) -> Result<(), Malformed> {
        let n = self.length(flexible, true)?.unwrap_or(0);
        self.skip(n)
    }

    /// The count of an array whose elements take at least `smallest` bytes each.
    pub fn nullable_array(
        &mut self,
        flexible: bool,
        smallest: usize,
    ) -> Result<Option<usize>, Malformed> {
        let Some(n) = self.length(flexible, true)? else {
            return Ok(None);
        };
        if n > self.elements {
            return Err(Malformed::Elements);
        }
        let needed = n * smallest.max(1);
        if needed > self.left() {
            return Err(Malformed::Short(needed - self.left()));
        }
        self.elements -= n;
        Ok(Some(n))
    }

    pub fn array(&mut self, flexible: bool, smallest: usize) -> Result<usize, Malformed> {
        self.nullable_array(flexible, smallest)?
            .ok_or(Malformed::Null)
    }

    /// Reads the tagged fields of a flexible structure: `known` gets each tag with a reader that holds exactly that field.
    pub fn tags(
        &mut self,
        flexible: bool,
        mut known: impl FnMut(u32, &mut Reader) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        if !flexible {
            return Ok(());
        }
        let n = self.uvarint()? as usize;
        if n > self.tags {
            return Err(Malformed::Tags);
        }
        self.tags -= n;
        let mut last = None;
        for _ in 0..n {
            let tag = self.uvarint()?;
            if last.is_some_and(|last| tag <= last) {
                return Err(Malformed::Tags);
            }
            last = Some(tag);
            let size = self.uvarint()? as usize;
            let mut field = Reader {
                bytes: self.slice(size)?,
                at: 0,
                elements: self.elements,
                tags: self.tags,
            };
            known(tag, &mut field)?;
            self.elements = field.elements;
            self.tags = field.tags;
        }
        Ok(())
    }

    pub fn skip_tags(&mut self, flexible: bool) -> Result<(), Malformed> {
        self.tags(flexible, |_, _| Ok(()))
    }
}

/// Writes Kafka's primitive types at the end of a buffer.
pub trait Writer {
    fn put_uvarint(&mut self, value: u32);
    fn put_str(&mut self, value: &str, flexible: bool);
    fn put_nullable_str(&mut self, value: Option<&str>, flexible: bool);
    fn put_array(&mut self, count: usize, flexible: bool);
    fn put_bytes_length(&mut self, length: usize, flexible: bool);
    fn put_no_tags(&mut self, flexible: bool);
}

impl Writer for BytesMut {
    fn put_uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.put_u8(value as u8);
    }

    fn put_str(&mut self, value: &str, flexible: bool) {
        if flexible {
            self.put_uvarint(value.len() as u32 + 1);
            self.put_slice(value.as_bytes());
        } else {
            // Longer strings cannot be written; what we write is names, addresses and messages of our own.
            let mut end = value.len().min(i16::MAX as usize);
            while !value.is_char_boundary(end) {
                end -= 1;
            }
            self.put_i16(end as i16);
            self.put_slice(&value.as_bytes()[..end]);
        }
    }

    fn put_nullable_str(&mut self, value: Option<&str>, flexible: bool) {
        match value {
            Some(value) => self.put_str(value, flexible),
            None if flexible => self.put_uvarint(0),
            None => self.put_i16(-1),
        }
    }

    fn put_array(&mut self, count: usize, flexible: bool) {
        if flexible {
            self.put_uvarint(count as u32 + 1);
        } else {
            self.put_i32(count as i32);
        }
    }

    fn put_bytes_length(&mut self, length: usize, flexible: bool) {
        self.put_array(length, flexible);
    }

    fn put_no_tags(&mut self, flexible: bool) {
        if flexible {
            self.put_u8(0);
        }
    }
}

/// Bytes that an unsigned varint takes.
pub fn uvarint_bytes(value: u32) -> usize {
    match value {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x1f_ffff => 3,
        0x20_0000..=0xfff_ffff => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn huge_counts_are_refused_before_anything_is_reserved() {
        let mut r = Reader::new(Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff, 1, 2]));
        assert_eq!(r.array(false, 1), Err(Malformed::Elements));
        let mut r = Reader::new(Bytes::from_static(&[0, 0, 0, 3, 1, 2]));
        assert_eq!(r.array(false, 1), Err(Malformed::Short(1)));
        let mut r = Reader::new(Bytes::from_static(&[0xff, 0xff, 0xff, 0xfe, 1, 2]));
        assert_eq!(r.array(false, 1), Err(Malformed::Length(-2)));
    }

    #[test]
    fn overlong_varints_are_refused() {
        for bad in [
            &[0x80u8, 0x80, 0x80, 0x80, 0x80, 0x80, 0][..],
            &[0xff, 0xff, 0xff, 0xff, 0x1f],
        ] {
            let mut r = Reader::new(Bytes::copy_from_slice(bad));
            assert_eq!(r.uvarint(), Err(Malformed::Varint));
        }
        let mut r = Reader::new(Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x0f]));
        assert_eq!(r.uvarint(), Ok(u32::MAX));
    }

    #[test]
    fn tags_ascend_and_are_bounded() {
        let twice = Bytes::from_static(&[2, 1, 0, 1, 0]);
        assert_eq!(Reader::new(twice).skip_tags(true), Err(Malformed::Tags));
        let many = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x07]);
        assert_eq!(Reader::new(many).skip_tags(true), Err(Malformed::Tags));
    }

    proptest! {
        #[test]
        fn varints_come_back(value: u32) {
            let mut b = BytesMut::new();
            b.put_uvarint(value);
            prop_assert_eq!(b.len(), uvarint_bytes(value));
            prop_assert_eq!(Reader::new(b.freeze()).uvarint(), Ok(value));
        }

        #[test]
        fn strings_come_back(value: Option<String>, flexible: bool) {
            let mut b = BytesMut::new();
            b.put_nullable_str(value.as_deref(), flexible);
            let back = Reader::new(b.freeze()).nullable_string(flexible).unwrap();
            prop_assert_eq!(back.as_deref(), value.as_deref());
        }
    }
}
