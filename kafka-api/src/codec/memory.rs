//! The memory that a batch makes a codec use, read from the compressed bytes before a decoder is made, and leased from the budget's class for it
//! ([`MemoryClass::Codecs`]).
//!
//! What is counted is what gets touched. A zstd window is reserved as large as its frame says, up to 128 MiB: zstd's own bound, which is what Kafka's clients take, and
//! which its producers do ask for at level 22, however small the batch. Of that window only as much is touched as comes out of the frame, at most what its blocks' headers allow for.
//! So a small batch with a large window is charged for what it holds, and one that would fill its window for all of it.
//!
//! Not more of them run at once than fit: [`lease`] waits in the class's line, and who was served waits for nothing more. Called by whoever makes a [`super::Decompressor`] of bytes
//! that clients sent.

use std::io;
use std::rc::Rc;

use engine::memory::{Budget, Lease, MemoryClass, Meter};

use super::{Codec, Target, ZSTD_WINDOW_LOG, broken, lz4, snappy};
use crate::limits;

/// What every decoder and its reader take: windows of the caller, tables, the state of a library, in bytes.
const FIXED: u64 = 4 * limits::CHECK_SLICE_BYTES as u64;
/// Largest block of zstd when it is decompressed, in bytes; two more of them lie beside the window.
const ZSTD_BLOCK: u64 = 128 << 10;
const ZSTD_MAGIC: u32 = 0xfd2f_b528;
const ZSTD_SKIPPABLE: u32 = 0x184d_2a50;

/// Bytes that it takes to decompress `bytes`. An error where they are no stream of the codec, as far as its headers tell.
pub fn needed(codec: Codec, bytes: &[u8]) -> io::Result<u64> {
    Ok(FIXED
        + match codec {
            Codec::None | Codec::Gzip => 0,
            Codec::Snappy => snappy::largest_block(bytes)? as u64,
            Codec::Lz4 => lz4::largest_block(bytes)? as u64 * 2,
            Codec::Zstd => zstd_window(bytes)? + 2 * ZSTD_BLOCK,
        })
}

/// Bytes that it takes to compress `content` bytes, about: zstd's tables grow with its level and with what it compresses, up to some eighteen times that.
pub fn to_compress(target: Target, content: u64) -> u64 {
    let of_content = content.min(1 << ZSTD_WINDOW_LOG).next_power_of_two();
    match target.codec {
        Codec::Zstd if target.level.unwrap_or(0) > 12 => of_content * 18,
        Codec::Zstd => of_content * 4,
        _ => FIXED,
    }
}

/// Memory of a codec at work, given back when it is dropped.
#[must_use = "dropping it gives the bytes back"]
pub struct Held {
    _lease: Lease,
    over: Option<(Meter, u64)>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((meter, bytes)) = self.over.take() {
            meter.sub(bytes);
        }
    }
}

/// Waits in line for `bytes`. Only for who holds none of this class.
pub async fn lease(budget: &Rc<Budget>, bytes: u64) -> Held {
    let cap = budget.cap(MemoryClass::Codecs);
    let lease = budget
        .take(MemoryClass::Codecs, bytes.min(cap))
        .await
        .expect("no more than the class has is asked for");
    let over = (bytes > cap).then(|| {
        let meter = budget.meter(MemoryClass::Cache);
        meter.add(bytes - cap);
        (meter, bytes - cap)
    });
    Held {
        _lease: lease,
        over,
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// The most that any of the frames touches of its window.
fn zstd_window(mut bytes: &[u8]) -> io::Result<u64> {
    let mut most = 0;
    while !bytes.is_empty() {
        let magic = little_endian(take(&mut bytes, 4)?) as u32;
        if magic & !0xf == ZSTD_SKIPPABLE {
            let size = little_endian(take(&mut bytes, 4)?) as usize;
            take(&mut bytes, size)?;
        } else if magic == ZSTD_MAGIC {
            most = most.max(zstd_frame(&mut bytes)?);
        } else {
            return Err(broken("no zstd frame"));
        }
    }
    Ok(most)
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> io::Result<&'a [u8]> {
    let (taken, rest) = bytes
        .split_at_checked(n)
        .ok_or_else(|| broken("a zstd frame that ends early"))?;
    *bytes = rest;
    Ok(taken)
}

/// Goes past one frame: the smaller of its window and what can come out of its blocks.
fn zstd_frame(bytes: &mut &[u8]) -> io::Result<u64> {
    let descriptor = take(bytes, 1)?[0];
    let single = descriptor & 0x20 != 0;
    let mut window = 0;
    if !single {
        let byte = take(bytes, 1)?[0];
        let base = 1u64 << (10 + (byte >> 3));
        window = base + base / 8 * u64::from(byte & 7);
    }
    take(bytes, [0, 1, 2, 4][usize::from(descriptor & 3)])?;
    let size_bytes = match descriptor >> 6 {
        0 => usize::from(single),
        flag => 1 << flag,
    };
    let size = little_endian(take(bytes, size_bytes)?);
    if single {
        window = if size_bytes == 2 { size + 256 } else { size };
    }
    if window > 1 << ZSTD_WINDOW_LOG {
        return Err(broken("a zstd window above 128 MiB"));
    }
    let mut out = 0u64;
    loop {
        let header = little_endian(take(bytes, 3)?);
        let length = header >> 3;
        let (stored, comes_out) = match header >> 1 & 3 {
            0 => (length, length),
            1 => (1, length),
            2 => (length, ZSTD_BLOCK),
            _ => return Err(broken("a zstd block of no known kind")),
        };
        take(bytes, stored as usize)?;
        out = out.saturating_add(comes_out);
        if header & 1 == 1 {
            break;
        }
    }
    if descriptor & 4 != 0 {
        take(bytes, 4)?;
    }
    Ok(window.min(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Compressor;
    use crate::records::testing::poll_once;
    use proptest::prelude::*;
    use std::io::Write;

    /// As a producer writes: a stream whose length nobody knows beforehand.
    fn streamed(level: i32, bytes: &[u8]) -> Vec<u8> {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level).unwrap();
        encoder.write_all(bytes).unwrap();
        encoder.flush().unwrap();
        encoder.finish().unwrap()
    }

    /// A window of 128 MiB, and `blocks` blocks of 128 KiB each of one byte.
    fn bomb(blocks: usize) -> Vec<u8> {
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3];
        for n in 1..=blocks {
            let header = (131_072u32 << 3) | 2 | u32::from(n == blocks);
            frame.extend_from_slice(&header.to_le_bytes()[..3]);
            frame.push(b'x');
        }
        frame
    }

    #[test]
    fn a_window_is_charged_for_what_can_be_in_it() {
        // Level 22 asks for 2^27, whatever it compresses.
        let small = streamed(22, &b"tailrace".repeat(1_000));
        assert_eq!(small[4] & 0x20, 0);
        assert_eq!(small[5], 17 << 3);
        let needs = |bytes: &[u8]| needed(Codec::Zstd, bytes).unwrap() - FIXED - 2 * ZSTD_BLOCK;
        assert!(needs(&small) <= 2 * ZSTD_BLOCK);
        assert_eq!(needs(&bomb(8)), 1 << 20);
        assert_eq!(needs(&bomb(1_024)), 128 << 20);
        assert_eq!(needs(&bomb(5_000)), 128 << 20);
        // The largest of several frames.
        let mut both = small.clone();
        both.extend_from_slice(&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 7, 7]);
        both.extend_from_slice(&bomb(16));
        both.extend_from_slice(&small);
        assert_eq!(needs(&both), 2 << 20);
        assert_eq!(
            zstd::stream::decode_all(&both[..]).unwrap().len(),
            16_000 + (2 << 20)
        );
        let mut larger = bomb(1);
        larger[5] = 17 << 3 | 1;
        assert!(needed(Codec::Zstd, &larger).is_err());
        assert!(needed(Codec::Zstd, b"").is_ok());
        // A raw block of snappy that declares 2^20; blocks of lz4 of 4 MiB.
        let raw = snap::raw::Encoder::new()
            .compress_vec(&[0; 1 << 20])
            .unwrap();
        assert_eq!(needed(Codec::Snappy, &raw).unwrap() - FIXED, 1 << 20);
        let lz4 = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x70, 0x73, 0, 0, 0, 0];
        assert_eq!(needed(Codec::Lz4, &lz4).unwrap() - FIXED, 8 << 20);
    }

    #[test]
    fn no_more_run_at_once_than_fit() {
        let budget = Budget::new(256 << 20);
        let cap = budget.cap(MemoryClass::Codecs);
        let take = |bytes| {
            let budget = budget.clone();
            Box::pin(async move { lease(&budget, bytes).await })
        };
        let mut large: Vec<_> = (0..100).map(|_| take(128 << 20)).collect();
        let first = poll_once(large[0].as_mut()).unwrap();
        for waiting in &mut large[1..] {
            assert!(poll_once(waiting.as_mut()).is_none());
        }
        assert_eq!(budget.used_total(), 128 << 20);
        assert_eq!(budget.used(MemoryClass::Codecs), cap);
        drop(first);
        let second = poll_once(large[1].as_mut()).unwrap();
        drop(large);
        drop(second);
        assert_eq!(budget.used_total(), 0);
    }

    proptest! {
        #[test]
        fn what_a_codec_made_is_understood(which in 0usize..5, level in 1i32..19, length in 0usize..300_000, seed: u32) {
            let codec = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd][which];
            let bytes: Vec<u8> = (0..length as u32).map(|i| (i.wrapping_mul(seed) >> 13) as u8 & 15).collect();
            let target = Target { codec, level: None };
            let mut c = Compressor::new(target, Vec::new(), length as u64).unwrap();
            c.write(&bytes).unwrap();
            prop_assert!(needed(codec, &c.finish().unwrap()).is_ok());
            let frame = streamed(level, &bytes);
            let needs = needed(Codec::Zstd, &frame).unwrap() - FIXED - 2 * ZSTD_BLOCK;
            // Never less than what comes out of it, up to its window, which is 8 MiB at these levels.
            prop_assert!(needs >= (length as u64).min(1 << 23));
            prop_assert!(needs <= 1 << 23);
            // The strongest levels cut a block in many, of which each is charged as if it were whole.
            if level < 13 {
                prop_assert!(needs <= 2 * ZSTD_BLOCK + length as u64, "{needs}");
            }
        }

        #[test]
        fn any_bytes_are_answered(which in 0usize..5, bytes in prop::collection::vec(any::<u8>(), 0..300), head: bool) {
            let codec = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd][which];
            let mut all = if head { ZSTD_MAGIC.to_le_bytes().to_vec() } else { Vec::new() };
            all.extend_from_slice(&bytes);
            // What a decoder makes something of was understood here, and no window is larger than was said.
            let needs = needed(codec, &all);
            if codec == Codec::Zstd && needs.is_err() {
                let read = zstd::stream::decode_all(&all[..]);
                prop_assert!(read.is_err() || all.is_empty());
            }
        }
    }
}
