//! LZ4 frames as Kafka's clients can read them: one frame, version 1, independent blocks, no dictionary. Java's reader refuses dependent
//! blocks, so a batch with them would stop its consumers for good; it is refused here.

use std::cmp::Ordering;
use std::io::{self, Read};

use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};

use super::{Source, broken};

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

const FLAG_BLOCK_CHECKSUM: u8 = 0x10;
const FLAG_CONTENT_SIZE: u8 = 0x08;
const FLAG_CONTENT_CHECKSUM: u8 = 0x04;

pub struct Decoder {
    frame: FrameDecoder<Source>,
}

impl Decoder {
    pub fn new(source: Source) -> io::Result<Decoder> {
        check_frame(source.get_ref())?;
        Ok(Decoder {
            frame: FrameDecoder::new(source),
        })
    }

    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.frame.read(into)
    }
}

/// Bytes of the largest block that a frame may have when it is decompressed.
pub fn largest_block(bytes: &[u8]) -> io::Result<usize> {
    // Four kinds, from 64 KiB on, each four times as large; the decoder refuses others.
    match bytes.get(5).map(|descriptor| descriptor >> 4 & 7) {
        Some(kind @ 4..=7) => Ok(1 << (8 + 2 * usize::from(kind))),
        _ => Err(broken("an lz4 frame with blocks of no known size")),
    }
}

/// Walks over the blocks of a frame, without decompressing them: the decoder takes a frame that is cut between two blocks for a whole one,
/// and begins another frame behind the end of the first.
fn check_frame(bytes: &[u8]) -> io::Result<()> {
    if bytes.len() < 7 || bytes[..4] != MAGIC {
        return Err(broken("no lz4 frame"));
    }
    let flags = bytes[4];
    if flags >> 6 != 1 || flags & 0x20 == 0 || flags & 0x03 != 0 {
        return Err(broken(
            "an lz4 frame of another version, with dependent blocks or with a dictionary",
        ));
    }
    let cut = || broken("an lz4 frame that ends early");
    let optional = |flag, n| if flags & flag != 0 { n } else { 0 };
    let mut at = 7 + optional(FLAG_CONTENT_SIZE, 8);
    loop {
        let size: [u8; 4] = bytes
            .get(at..at + 4)
            .ok_or_else(cut)?
            .try_into()
            .expect("four bytes");
        // The highest bit says that the block is stored as it is.
        let size = (u32::from_le_bytes(size) & 0x7fff_ffff) as usize;
        at += 4;
        if size == 0 {
            break;
        }
        at += size + optional(FLAG_BLOCK_CHECKSUM, 4);
    }
    at += optional(FLAG_CONTENT_CHECKSUM, 4);
    match at.cmp(&bytes.len()) {
        Ordering::Less => Err(broken("bytes behind the lz4 frame")),
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(cut()),
    }
}

pub fn encoder(out: Vec<u8>) -> FrameEncoder<Vec<u8>> {
    let info = FrameInfo::new()
        .block_size(BlockSize::Max64KB)
        .block_mode(BlockMode::Independent);
    FrameEncoder::with_frame_info(info, out)
}
