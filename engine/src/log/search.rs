//! The search for the next sound batch behind a broken frame of a segment.
//!
//! Pure; takes any bytes. What a client put into a batch may look like batches: where the broken frame says that it ends is asked first, and the search byte by byte, for
//! when that is broken too, is bounded by [`SCAN_BYTES`]. Called by the walk of [`super::reader`].

use bytes::Bytes;

use super::block::MAX_BLOCK_BYTES;
use super::frame::{self, Frame, Parsed};
use crate::batch::{Batch, BatchHeader, HEADER_BYTES, LENGTH_PREFIX_BYTES};
use crate::types::*;

/// No frame is longer: it came through one commit of the journal. A length beyond that is rot.
pub(super) const FRAME_MAX_BYTES: usize = MAX_BLOCK_BYTES;
/// Bytes of which a search takes the CRC at most: what is searched may have been made to look like headers.
const SCAN_BYTES: usize = 64 << 20;

/// What lies where a broken frame says that it ends.
pub(super) enum Behind {
    /// The next sound batch, with nothing but sound frames before it.
    Sound(usize, Offset),
    Unread,
    Broken,
}

/// Mostly the length of a broken frame is right. It is asked first: what a client put into its batch may look like a batch too, and is none.
pub(super) fn behind(buffer: &Bytes, at: usize, lost_from: Offset) -> Behind {
    let length = buffer.get(at + 8..at + LENGTH_PREFIX_BYTES);
    let length = length.map_or(0, |l| i32::from_be_bytes(l.try_into().expect("four bytes")));
    let total = usize::try_from(length).unwrap_or(0) + LENGTH_PREFIX_BYTES;
    if !(frame::FRAME_PREFIX_BYTES..=FRAME_MAX_BYTES).contains(&total) {
        return Behind::Broken;
    }
    let mut p = at + total;
    loop {
        let Some(rest) = buffer.get(p..) else {
            return Behind::Unread;
        };
        match frame::parse(rest) {
            Parsed::Frame(Frame::Batch(h)) if h.total_bytes > FRAME_MAX_BYTES => {
                return Behind::Broken;
            }
            Parsed::Frame(Frame::Batch(h)) if h.total_bytes > rest.len() => return Behind::Unread,
            Parsed::Frame(Frame::Batch(_) | Frame::Extent { .. }) => {
                let base = sound_batch_at(buffer, p).filter(|base| *base >= lost_from);
                return base.map_or(Behind::Broken, |base| Behind::Sound(p, base));
            }
            Parsed::Frame(
                Frame::Service { total_bytes }
                | Frame::Pad { total_bytes }
                | Frame::Damaged { total_bytes, .. },
            ) => p += total_bytes,
            Parsed::Short(n) if n <= FRAME_MAX_BYTES => return Behind::Unread,
            Parsed::Short(_) | Parsed::Broken => return Behind::Broken,
        }
    }
}

/// Looks for the next sound batch, byte by byte, for as long as the work is bounded.
pub(super) fn scan(buffer: &Bytes, from: usize, lost_from: Offset) -> Option<(usize, Offset)> {
    let mut checked = 0;
    for p in from..(buffer.len() + 1).saturating_sub(HEADER_BYTES) {
        if buffer[p + 16] == 2 {
            checked +=
                BatchHeader::parse(&buffer[p..]).map_or(0, |h| h.total_bytes.min(buffer.len() - p));
        }
        if checked > SCAN_BYTES {
            return None;
        }
        if let Some(base) = sound_batch_at(buffer, p).filter(|base| *base >= lost_from) {
            return Some((p, base));
        }
    }
    None
}

/// The base offset of the sound batch, or the sound name of one in an extent, that begins at `p`.
fn sound_batch_at(buffer: &Bytes, p: usize) -> Option<Offset> {
    match buffer[p + 16] {
        2 => {
            let h = BatchHeader::parse(&buffer[p..]).ok()?;
            let end = p
                .checked_add(h.total_bytes)
                .filter(|e| *e <= buffer.len())?;
            let sound = Batch::check(buffer.slice(p..end)).is_ok();
            sound.then_some(h.base_offset)
        }
        frame::SERVICE_MAGIC => match frame::parse(&buffer[p..]) {
            Parsed::Frame(Frame::Extent { extent, .. }) => Some(extent.header().base_offset),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::testing;

    #[test]
    fn looking_for_a_sound_batch_ends() {
        // A megabyte of headers, each of which says that it is a megabyte long.
        let header = &testing::batch(1, 1 << 20, None).bytes[..HEADER_BYTES];
        let bytes = Bytes::from(header.repeat((2 << 20) / HEADER_BYTES));
        assert_eq!(scan(&bytes, 1, Offset(0)), None);
    }
}
