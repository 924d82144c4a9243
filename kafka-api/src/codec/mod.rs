//! The codecs of record batches: gzip, snappy (raw and in the framing of Java's library), lz4 frames, zstd.
//!
//! [`Decompressor`] is a stream: it hands out decompressed bytes in pieces of at most [`limits::CHECK_SLICE_BYTES`], so that its caller can
//! bound what comes out and let other tasks run in between. It never reserves memory by a size that the data only declares: snappy blocks
//! are held against the greatest ratio that the format can have, zstd windows against [`ZSTD_WINDOW_LOG`]. What it needs is leased before it is made ([`memory`]).
//! Anything behind the end of the compressed data is refused; some clients would read it and others not.

use std::io::{self, Read, Write};

use bytes::Bytes;

use crate::limits;

mod lz4;
pub mod memory;
mod snappy;

/// Largest zstd window taken, as a power of two; the library's own bound, which its encoders reach at level 22.
pub const ZSTD_WINDOW_LOG: u32 = 27;

/// A codec, by its number in a batch's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum Codec {
    None = 0,
    Gzip = 1,
    Snappy = 2,
    Lz4 = 3,
    Zstd = 4,
}

impl Codec {
    pub fn from_attributes(bits: i16) -> Option<Codec> {
        Some(match bits & engine::batch::ATTRIBUTE_CODEC_MASK {
            0 => Codec::None,
            1 => Codec::Gzip,
            2 => Codec::Snappy,
            3 => Codec::Lz4,
            4 => Codec::Zstd,
            _ => return None,
        })
    }
}

/// A place in bytes that came from outside.
type Source = io::Cursor<Bytes>;

/// Decompresses one batch's records as a stream.
pub struct Decompressor(Inner);

enum Inner {
    Plain(Source),
    Gzip(Box<flate2::bufread::MultiGzDecoder<Source>>),
    Snappy(snappy::Decoder),
    Lz4(Box<lz4::Decoder>),
    Zstd(Box<zstd::stream::read::Decoder<'static, Source>>),
}

impl Decompressor {
    pub fn new(codec: Codec, bytes: Bytes) -> io::Result<Decompressor> {
        let source = io::Cursor::new(bytes);
        Ok(Decompressor(match codec {
            Codec::None => Inner::Plain(source),
            Codec::Gzip => Inner::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(source))),
            Codec::Snappy => Inner::Snappy(snappy::Decoder::new(source.into_inner())),
            Codec::Lz4 => Inner::Lz4(Box::new(lz4::Decoder::new(source)?)),
            Codec::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Inner::Zstd(Box::new(decoder))
            }
        }))
    }

    /// The next bytes, as many as fit into `into` or fewer; 0 at the end. Call it with at most a slice's worth of room.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        debug_assert!(into.len() <= limits::CHECK_SLICE_BYTES);
        match &mut self.0 {
            Inner::Plain(d) => d.read(into),
            Inner::Gzip(d) => d.read(into),
            Inner::Snappy(d) => d.read(into),
            Inner::Lz4(d) => d.read(into),
            Inner::Zstd(d) => d.read(into),
        }
    }
}

/// How a topic wants its batches, when not as they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub codec: Codec,
    /// The codec's own level; none for the codec's default. lz4 and snappy have one level here.
    pub level: Option<i32>,
}

/// Compresses a stream of records.
pub struct Compressor(Sink);

enum Sink {
    Plain(Vec<u8>),
    Gzip(Box<flate2::write::GzEncoder<Vec<u8>>>),
    Snappy(Box<snappy::Encoder>),
    Lz4(Box<lz4_flex::frame::FrameEncoder<Vec<u8>>>),
    Zstd(Box<zstd::stream::write::Encoder<'static, Vec<u8>>>),
}

impl Compressor {
    /// Writes behind what `out` already holds. `content` is the number of bytes that will be written: zstd reserves no more than it needs for so many (at its highest
    /// levels it would take most of a GiB for a stream of any length).
    pub fn new(target: Target, out: Vec<u8>, content: u64) -> io::Result<Compressor> {
        Ok(Compressor(match target.codec {
            Codec::None => Sink::Plain(out),
            Codec::Gzip => {
                let level = match target.level {
                    Some(l @ 0..=9) => flate2::Compression::new(l as u32),
                    _ => flate2::Compression::default(),
                };
                Sink::Gzip(Box::new(flate2::write::GzEncoder::new(out, level)))
            }
            Codec::Snappy => Sink::Snappy(Box::new(snappy::Encoder::new(out))),
            Codec::Lz4 => Sink::Lz4(Box::new(lz4::encoder(out))),
            Codec::Zstd => {
                let level = target.level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL);
                let mut encoder = zstd::stream::write::Encoder::new(out, level)?;
                encoder.set_pledged_src_size(Some(content))?;
                Sink::Zstd(Box::new(encoder))
            }
        }))
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            Sink::Plain(out) => out.write_all(bytes),
            Sink::Gzip(e) => e.write_all(bytes),
            Sink::Snappy(e) => e.write(bytes),
            Sink::Lz4(e) => e.write_all(bytes),
            Sink::Zstd(e) => e.write_all(bytes),
        }
    }

    /// Bytes that stand in the output so far, with what was there before.
    pub fn written(&self) -> usize {
        match &self.0 {
            Sink::Plain(out) => out.len(),
            Sink::Gzip(e) => e.get_ref().len(),
            Sink::Snappy(e) => e.written(),
            Sink::Lz4(e) => e.get_ref().len(),
            Sink::Zstd(e) => e.get_ref().len(),
        }
    }

    pub fn finish(self) -> io::Result<Vec<u8>> {
        match self.0 {
            Sink::Plain(out) => Ok(out),
            Sink::Gzip(e) => e.finish(),
            Sink::Snappy(e) => e.finish(),
            Sink::Lz4(e) => e.finish().map_err(io::Error::from),
            Sink::Zstd(e) => e.finish(),
        }
    }
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BufMut;
    use proptest::prelude::*;

    const ALL: [Codec; 5] = [
        Codec::None,
        Codec::Gzip,
        Codec::Snappy,
        Codec::Lz4,
        Codec::Zstd,
    ];

    fn compress(codec: Codec, bytes: &[u8]) -> Bytes {
        let target = Target { codec, level: None };
        let mut c = Compressor::new(target, Vec::new(), bytes.len() as u64).unwrap();
        for piece in bytes.chunks(1 << 16) {
            c.write(piece).unwrap();
        }
        c.finish().unwrap().into()
    }

    /// Decompresses up to `limit` bytes; what came out and whether it ended well.
    fn decompress(codec: Codec, bytes: Bytes, limit: usize) -> (Vec<u8>, io::Result<()>) {
        let mut out = Vec::new();
        let mut d = match Decompressor::new(codec, bytes) {
            Ok(d) => d,
            Err(e) => return (out, Err(e)),
        };
        let mut piece = [0; 8192];
        loop {
            match d.read(&mut piece) {
                Ok(0) => return (out, Ok(())),
                Ok(n) => out.extend_from_slice(&piece[..n]),
                Err(e) => return (out, Err(e)),
            }
            if out.len() > limit {
                return (out, Err(broken("over the limit")));
            }
        }
    }

    #[test]
    fn what_the_library_of_clients_compresses_is_read() {
        use kafka_protocol::compression::{Compressor as _, Gzip, Lz4, Snappy, Zstd};
        let text = b"the tail of the latency curve ".repeat(500);
        let mut out = bytes::BytesMut::new();
        macro_rules! put {
            ($with:ident) => {
                $with::compress(&mut out, |b| {
                    b.put_slice(&text);
                    Ok(())
                })
            };
        }
        for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            out.clear();
            match codec {
                Codec::Gzip => put!(Gzip),
                Codec::Snappy => put!(Snappy),
                Codec::Lz4 => put!(Lz4),
                _ => put!(Zstd),
            }
            .unwrap();
            let (back, end) = decompress(codec, out.clone().freeze(), 1 << 20);
            end.unwrap_or_else(|e| panic!("{codec:?}: {e}"));
            assert_eq!(back, text, "{codec:?}");
        }
    }

    #[test]
    fn cut_streams_and_trailing_bytes_are_refused() {
        let text: Vec<u8> = (0..200_000u32)
            .flat_map(|i| (i / 7).to_le_bytes())
            .collect();
        for codec in ALL.into_iter().skip(1) {
            let whole = compress(codec, &text);
            assert!(
                decompress(codec, whole.clone(), 1 << 21).1.is_ok(),
                "{codec:?}"
            );
            for cut in [1, 5, whole.len() / 2, whole.len() - 1] {
                let (out, end) = decompress(codec, whole.slice(..cut), 1 << 21);
                assert!(
                    end.is_err() || out.len() < text.len(),
                    "{codec:?} cut at {cut}"
                );
                assert!(end.is_err(), "{codec:?} cut at {cut}");
            }
            let mut more = whole.to_vec();
            more.extend_from_slice(b"garbage behind the end");
            assert!(
                decompress(codec, more.into(), 1 << 21).1.is_err(),
                "{codec:?}"
            );
        }
    }

    #[test]
    fn bombs_stop_at_the_limit() {
        let zeros = vec![0u8; 16 << 20];
        for codec in ALL.into_iter().skip(1) {
            let bomb = compress(codec, &zeros);
            let (out, end) = decompress(codec, bomb, 1 << 20);
            assert!(end.is_err());
            assert!(out.len() <= (1 << 20) + 8192, "{codec:?}: {}", out.len());
        }
    }

    #[test]
    fn a_zstd_window_of_2_gib_is_refused() {
        // Frame header: magic, descriptor without a content size, window descriptor 21 << 3 (2^31).
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3];
        frame.extend_from_slice(&[0x01, 0x00, 0x00]);
        assert!(decompress(Codec::Zstd, frame.into(), 1 << 20).1.is_err());
    }

    proptest! {
        #[test]
        fn every_codec_gives_back_what_it_took(which in 0usize..5, length in 0usize..200_000, seed: u32) {
            let codec = ALL[which];
            let bytes: Vec<u8> = (0..length as u32).map(|i| (i.wrapping_mul(seed) >> 13) as u8 & 15).collect();
            let (back, end) = decompress(codec, compress(codec, &bytes), 1 << 20);
            prop_assert!(end.is_ok());
            prop_assert_eq!(back, bytes);
        }

        #[test]
        fn any_bytes_are_answered(which in 0usize..5, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decompress(ALL[which], bytes.into(), 1 << 20);
        }

        #[test]
        fn any_flip_is_answered(which in 1usize..5, at in any::<prop::sample::Index>(), with: u8) {
            let codec = ALL[which];
            let mut bytes = compress(codec, &b"0123456789".repeat(100)).to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= with;
            let _ = decompress(codec, bytes.into(), 1 << 20);
        }
    }
}
