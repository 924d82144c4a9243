//! The codecs of record batches: gzip, snappy (written as one raw block, read in the framing of Java's library too), lz4 frames, zstd.
//!
//! Bound: what comes out of a batch is at most `limits::MAX_BATCH_BYTES`, whatever the batch says of itself.

use std::io::{self, Read, Write};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::MAX_BATCH_BYTES;

/// By its number in a batch's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    #[default]
    None = 0,
    Gzip = 1,
    Snappy = 2,
    Lz4 = 3,
    Zstd = 4,
}

/// How snappy-java's framing begins; a version and the lowest that reads it follow, then blocks with a length in front.
const SNAPPY_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const SNAPPY_HEADER_BYTES: usize = 16;

const BROKEN: &str = "a compressed batch that can't be read";

impl Codec {
    pub fn of_attributes(attributes: i16) -> Option<Codec> {
        Some(match attributes & 7 {
            0 => Codec::None,
            1 => Codec::Gzip,
            2 => Codec::Snappy,
            3 => Codec::Lz4,
            4 => Codec::Zstd,
            _ => return None,
        })
    }

    /// Compresses behind what `out` holds. Each codec at the level that Kafka's client has by default, but for lz4, which has one here.
    pub fn compress(self, bytes: &[u8], out: &mut Vec<u8>) {
        let done: io::Result<()> = (|| {
            match self {
                Codec::None => out.extend_from_slice(bytes),
                Codec::Gzip => {
                    let mut e = flate2::write::GzEncoder::new(out, flate2::Compression::default());
                    e.write_all(bytes)?;
                    e.finish()?;
                }
                Codec::Snappy => {
                    let start = out.len();
                    out.resize(start + snap::raw::max_compress_len(bytes.len()), 0);
                    let used = snap::raw::Encoder::new().compress(bytes, &mut out[start..])?;
                    out.truncate(start + used);
                }
                Codec::Lz4 => {
                    // Kafka's readers take independent blocks only.
                    let info = lz4_flex::frame::FrameInfo::new()
                        .block_mode(lz4_flex::frame::BlockMode::Independent)
                        .block_size(lz4_flex::frame::BlockSize::Max64KB);
                    let mut e = lz4_flex::frame::FrameEncoder::with_frame_info(info, out);
                    e.write_all(bytes)?;
                    e.finish()?;
                }
                Codec::Zstd => {
                    let mut e =
                        zstd::stream::write::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                    e.write_all(bytes)?;
                    e.finish()?;
                }
            }
            Ok(())
        })();
        done.expect("it is written to memory");
    }

    /// Decompresses into `out`, which is emptied before.
    pub fn decompress(self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
        out.clear();
        let read = |from: &mut dyn Read, out: &mut Vec<u8>| {
            from.take(MAX_BATCH_BYTES as u64 + 1)
                .read_to_end(out)
                .map(drop)
        };
        let done = match self {
            Codec::None => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            Codec::Gzip => read(&mut flate2::read::MultiGzDecoder::new(bytes), out),
            Codec::Snappy => return unsnap(bytes, out),
            Codec::Lz4 => read(&mut lz4_flex::frame::FrameDecoder::new(bytes), out),
            Codec::Zstd => {
                zstd::stream::read::Decoder::with_buffer(bytes).and_then(|mut d| read(&mut d, out))
            }
        };
        match done {
            Ok(()) if out.len() <= MAX_BATCH_BYTES => Ok(()),
            _ => Err(BROKEN),
        }
    }
}

fn unsnap(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
    let mut block = |block: &[u8]| {
        let size = snap::raw::decompress_len(block).map_err(|_| BROKEN)?;
        let start = out.len();
        if size > MAX_BATCH_BYTES - start {
            return Err(BROKEN);
        }
        out.resize(start + size, 0);
        let decompressed = snap::raw::Decoder::new().decompress(block, &mut out[start..]);
        decompressed.map(drop).map_err(|_| BROKEN)
    };
    if !bytes.starts_with(&SNAPPY_MAGIC) {
        return block(bytes);
    }
    let mut rest = bytes.get(SNAPPY_HEADER_BYTES..).ok_or(BROKEN)?;
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        block(behind.get(..length).ok_or(BROKEN)?)?;
        rest = &behind[length..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;
    use kafka_protocol::compression::{Compressor, Gzip, Lz4, Snappy, Zstd};
    use proptest::prelude::*;

    const ALL: [Codec; 5] = [
        Codec::None,
        Codec::Gzip,
        Codec::Snappy,
        Codec::Lz4,
        Codec::Zstd,
    ];

    #[test]
    fn what_another_library_compresses_is_read() {
        let text = b"until the tail is flat ".repeat(5_000);
        let mut out = bytes::BytesMut::new();
        macro_rules! put {
            ($with:ident) => {
                $with::compress(&mut out, |b| {
                    b.put_slice(&text);
                    Ok(())
                })
            };
        }
        for codec in ALL.into_iter().skip(1) {
            out.clear();
            match codec {
                Codec::Gzip => put!(Gzip),
                Codec::Snappy => put!(Snappy),
                Codec::Lz4 => put!(Lz4),
                _ => put!(Zstd),
            }
            .unwrap();
            let mut back = Vec::new();
            assert_eq!(codec.decompress(&out, &mut back), Ok(()), "{codec:?}");
            assert!(back == text, "{codec:?}");
        }
    }

    #[test]
    fn what_grows_beyond_the_bound_is_refused() {
        let zeros = vec![0; MAX_BATCH_BYTES + 1];
        for codec in [Codec::Gzip, Codec::Lz4, Codec::Zstd, Codec::Snappy] {
            let (mut bomb, mut out) = (Vec::new(), Vec::new());
            codec.compress(&zeros, &mut bomb);
            assert_eq!(codec.decompress(&bomb, &mut out), Err(BROKEN), "{codec:?}");
            assert!(out.len() <= MAX_BATCH_BYTES + 1);
        }
    }

    proptest! {
        #[test]
        fn what_is_compressed_comes_back(bytes in prop::collection::vec(0u8..4, 0..5_000)) {
            for codec in ALL {
                let (mut small, mut back) = (Vec::new(), vec![9]);
                codec.compress(&bytes, &mut small);
                prop_assert_eq!(codec.decompress(&small, &mut back), Ok(()));
                prop_assert_eq!(&back, &bytes);
                prop_assert_eq!(Codec::of_attributes(codec as i16 | 0x10), Some(codec));
            }
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), framed: bool) {
            let bytes = if framed { [&SNAPPY_MAGIC[..], &[0; 8], &bytes].concat() } else { bytes };
            for codec in ALL {
                let _ = codec.decompress(&bytes, &mut Vec::new());
            }
        }
    }
}
