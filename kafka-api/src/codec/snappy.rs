//! Snappy as Kafka's clients write it: either one raw block, or the framing of snappy-java (a 16 byte header, then blocks with an i32
//! length in front of each). Java's reader takes both, so we do.

use std::io;

use bytes::Bytes;

use super::broken;

/// Magic, version 1, compatible with version 1.
const HEADER: [u8; 16] = [
    0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1,
];
const MAGIC_BYTES: usize = 8;
/// Bytes that we put into one block; snappy-java's default.
const BLOCK_BYTES: usize = 32 << 10;
/// The format makes at most 64 bytes of 3.
const GREATEST_RATIO: usize = 22;

pub struct Decoder {
    source: Bytes,
    /// Where the next block begins.
    at: usize,
    framed: bool,
    block: Vec<u8>,
    given: usize,
}

impl Decoder {
    pub fn new(source: Bytes) -> Decoder {
        let framed = is_framed(&source);
        Decoder {
            at: if framed { HEADER.len() } else { 0 },
            source,
            framed,
            block: Vec::new(),
            given: 0,
        }
    }

    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.given == self.block.len() {
            if self.at == self.source.len() && self.at > 0 {
                return Ok(0);
            }
            self.next_block()?;
        }
        let n = into.len().min(self.block.len() - self.given);
        into[..n].copy_from_slice(&self.block[self.given..self.given + n]);
        self.given += n;
        Ok(n)
    }

    fn next_block(&mut self) -> io::Result<()> {
        let Some(Block {
            compressed,
            used,
            size,
        }) = block(&self.source[self.at..], self.framed)?
        else {
            self.at += HEADER.len();
            return Ok(());
        };
        self.block.clear();
        self.block.resize(size, 0);
        snap::raw::Decoder::new()
            .decompress(compressed, &mut self.block)
            .map_err(|_| broken("a broken snappy block"))?;
        self.given = 0;
        self.at += used;
        Ok(())
    }
}

struct Block<'a> {
    compressed: &'a [u8],
    /// Bytes of it with its length.
    used: usize,
    /// Bytes when it is decompressed, as it declares, within what the format can hold.
    size: usize,
}

/// The block at the front of `rest`. None where another header stands: a stream may have been put together of several.
fn block(rest: &[u8], framed: bool) -> io::Result<Option<Block<'_>>> {
    let (compressed, used) = if framed {
        if rest.len() >= HEADER.len() && rest[..MAGIC_BYTES] == HEADER[..MAGIC_BYTES] {
            return Ok(None);
        }
        let length = rest
            .first_chunk::<4>()
            .map(|l| i32::from_be_bytes(*l))
            .ok_or_else(|| broken("a snappy block's length is cut off"))?;
        let length = usize::try_from(length)
            .ok()
            .filter(|l| *l > 0 && *l <= rest.len() - 4)
            .ok_or_else(|| broken("a snappy block ends behind its batch"))?;
        (&rest[4..4 + length], 4 + length)
    } else {
        (rest, rest.len())
    };
    let size = snap::raw::decompress_len(compressed).map_err(|_| broken("no snappy block"))?;
    if size > compressed.len().saturating_mul(GREATEST_RATIO) {
        return Err(broken("a snappy block declares more than it can hold"));
    }
    Ok(Some(Block {
        compressed,
        used,
        size,
    }))
}

/// Bytes of the largest block of a stream when it is decompressed.
pub fn largest_block(bytes: &[u8]) -> io::Result<usize> {
    let framed = is_framed(bytes);
    let (mut at, mut most) = (if framed { HEADER.len() } else { 0 }, 0);
    while at < bytes.len() {
        match block(&bytes[at..], framed)? {
            Some(block) => {
                most = most.max(block.size);
                at += block.used;
            }
            None => at += HEADER.len(),
        }
    }
    Ok(most)
}

fn is_framed(bytes: &[u8]) -> bool {
    bytes.len() >= HEADER.len() && bytes[..MAGIC_BYTES] == HEADER[..MAGIC_BYTES]
}

pub struct Encoder {
    out: Vec<u8>,
    pending: Vec<u8>,
    snap: snap::raw::Encoder,
}

impl Encoder {
    pub fn new(mut out: Vec<u8>) -> Encoder {
        out.extend_from_slice(&HEADER);
        Encoder {
            out,
            pending: Vec::with_capacity(BLOCK_BYTES),
            snap: snap::raw::Encoder::new(),
        }
    }

    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = bytes.len().min(BLOCK_BYTES - self.pending.len());
            self.pending.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if self.pending.len() == BLOCK_BYTES {
                self.block()?;
            }
        }
        Ok(())
    }

    fn block(&mut self) -> io::Result<()> {
        let start = self.out.len();
        let most = snap::raw::max_compress_len(self.pending.len());
        self.out.resize(start + 4 + most, 0);
        let n = self
            .snap
            .compress(&self.pending, &mut self.out[start + 4..])
            .map_err(|_| broken("a block that snappy cannot compress"))?;
        self.out[start..start + 4].copy_from_slice(&(n as i32).to_be_bytes());
        self.out.truncate(start + 4 + n);
        self.pending.clear();
        Ok(())
    }

    pub fn written(&self) -> usize {
        self.out.len()
    }

    pub fn finish(mut self) -> io::Result<Vec<u8>> {
        if !self.pending.is_empty() {
            self.block()?;
        }
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_declares_too_much_reserves_nothing() {
        // A varint of 2^31 and five bytes.
        let bomb = Bytes::from_static(&[0x80, 0x80, 0x80, 0x80, 0x08, 0, 0, 0, 0, 0]);
        assert!(Decoder::new(bomb).read(&mut [0; 16]).is_err());
    }

    #[test]
    fn the_greatest_ratio_passes() {
        let zeros = vec![0u8; 1 << 20];
        let raw = snap::raw::Encoder::new().compress_vec(&zeros).unwrap();
        let mut d = Decoder::new(raw.into());
        let mut piece = [1u8; 4096];
        let mut n = 0;
        loop {
            match d.read(&mut piece).unwrap() {
                0 => break,
                m => n += m,
            }
        }
        assert_eq!(n, zeros.len());
    }

    #[test]
    fn nothing_at_all_is_no_block() {
        assert!(Decoder::new(Bytes::new()).read(&mut [0; 16]).is_err());
    }
}
