//! The protocol's primitive types in versions without compact fields, read with every length checked, written into a growing buffer.

/// What came isn't what the protocol says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads an answer from its front.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        if count > self.0.len() {
            return Err(Malformed);
        }
        let (head, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.bytes(N)?.try_into().expect("N bytes were taken"))
    }

    pub fn i8(&mut self) -> Result<i8, Malformed> {
        Ok(i8::from_be_bytes(self.array()?))
    }

    pub fn i16(&mut self) -> Result<i16, Malformed> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub fn i32(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub fn i64(&mut self) -> Result<i64, Malformed> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// A length prefix: -1 for null, anything else below 0 is malformed.
    fn length(&mut self, length: i64) -> Result<Option<&'a [u8]>, Malformed> {
        match length {
            -1 => Ok(None),
            l => self
                .bytes(usize::try_from(l).map_err(|_| Malformed)?)
                .map(Some),
        }
    }

    pub fn nullable_string(&mut self) -> Result<Option<&'a str>, Malformed> {
        let length = self.i16()?;
        self.length(i64::from(length))?
            .map(|b| std::str::from_utf8(b).map_err(|_| Malformed))
            .transpose()
    }

    pub fn string(&mut self) -> Result<&'a str, Malformed> {
        self.nullable_string()?.ok_or(Malformed)
    }

    pub fn nullable_bytes(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let length = self.i32()?;
        self.length(i64::from(length))
    }

    /// The count of an array, null as empty; each element takes at least `element` bytes of what is left.
    pub fn count(&mut self, element: usize) -> Result<usize, Malformed> {
        match self.i32()? {
            -1 => Ok(0),
            n => usize::try_from(n)
                .ok()
                .filter(|n| n.saturating_mul(element.max(1)) <= self.0.len())
                .ok_or(Malformed),
        }
    }
}

/// Writes a request; the frame's length is put in front when it is whole.
pub struct Frame<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Frame<'a> {
    /// Begins a request with a header of version 1 behind what `out` holds.
    pub fn begin(out: &'a mut Vec<u8>, key: i16, version: i16, correlation: i32) -> Frame<'a> {
        let start = out.len();
        let mut frame = Frame { out, start };
        frame
            .i32(0)
            .i16(key)
            .i16(version)
            .i32(correlation)
            .string("tailrace-bench");
        frame
    }

    pub fn end(self) {
        let length = (self.out.len() - self.start - 4) as i32;
        self.out[self.start..self.start + 4].copy_from_slice(&length.to_be_bytes());
    }

    pub fn i8(&mut self, value: i8) -> &mut Self {
        self.out.push(value as u8);
        self
    }

    pub fn i16(&mut self, value: i16) -> &mut Self {
        self.out.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn i32(&mut self, value: i32) -> &mut Self {
        self.out.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.out.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// At most 32,767 bytes: topic names and the like.
    pub fn string(&mut self, value: &str) -> &mut Self {
        self.i16(value.len() as i16);
        self.out.extend_from_slice(value.as_bytes());
        self
    }

    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.i32(value.len() as i32);
        self.out.extend_from_slice(value);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_lie_are_malformed() {
        assert_eq!(Reader(&[0, 5, b'a']).string(), Err(Malformed));
        assert_eq!(Reader(&[0xff, 0xfe]).nullable_string(), Err(Malformed));
        assert_eq!(Reader(&[0xff, 0xff]).nullable_string(), Ok(None));
        assert_eq!(
            Reader(&[0x7f, 0xff, 0xff, 0xff, 0]).count(1),
            Err(Malformed)
        );
        assert_eq!(Reader(&[0, 0, 0, 2, 1, 1]).count(1), Ok(2));
        assert_eq!(Reader(&[0, 0, 0, 2, 1, 1]).count(2), Err(Malformed));
    }

    #[test]
    fn a_frame_knows_its_length() {
        let mut out = vec![9];
        let mut frame = Frame::begin(&mut out, 3, 5, 7);
        frame.i32(1);
        frame.end();
        assert_eq!(out.len(), 1 + 4 + 2 + 2 + 4 + 2 + 14 + 4);
        assert_eq!(out[1..5], (out.len() as i32 - 5).to_be_bytes());
    }
}
