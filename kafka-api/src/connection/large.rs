//! Frames that have a buffer of their own, and the memory for them.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::memory::{Lease, Leases, MemoryClass, TooLarge};
use engine::rt;

use super::{Connection, End, lease, read_some};
use crate::handlers::produce::sieve::{Sieve, Unsifted};
use crate::limits;
use crate::shard::Shard;

/// The class of memory for a frame that has a buffer of its own.
pub(super) fn class_of(shard: &Shard, length: usize) -> MemoryClass {
    let half = shard.budget.cap(MemoryClass::PartialFrames) / 2;
    if length as u64 > limits::LARGE_FRAME_BYTES.min(half) {
        MemoryClass::LargeFrames
    } else {
        MemoryClass::PartialFrames
    }
}

/// Reads the rest of a frame that doesn't fit the shared buffer.
///
/// Its memory is taken before its first byte: several that hold some and wait for one another's would end only by being cut off. That of a large one, which may
/// be all there is, is taken piece by piece as it arrives. When it is whole it counts as a request, but a large one stays in its class. Who waits too
/// long has the most incomplete frame cut off. The frame is no larger than its class ([`too_large`]).
pub(super) async fn read_large(
    shard: &Shard,
    connection: &Connection,
    begun: BytesMut,
    length: usize,
) -> Result<(Bytes, Leases), End> {
    // A MiB a second is the least that a client must manage, after a moment of grace.
    let due = rt::now() + limits::PARTIAL_FRAME + Duration::from_micros(length as u64);
    connection.frame_due.set(Some(due));
    let class = class_of(shard, length);
    let piece = if class == MemoryClass::LargeFrames {
        limits::LARGE_LEASE_BYTES
    } else {
        length
    };
    let mut leases = Leases::new();
    let mut leased = 0;
    // Reserved, not touched: it becomes memory as bytes arrive.
    let mut frame = BytesMut::new();
    let mut full = false;
    while frame.len() < length {
        if frame.len() == leased {
            let left = length - leased;
            let piece = piece.min(left);
            let lease = piece_of_frame(shard, class, piece, left, leased == 0);
            connection.wants_memory.set(true);
            leases.push(connection.off_the_clock(lease).await?);
            connection.wants_memory.set(false);
            leased += piece;
            let first = frame.capacity() == 0;
            if first {
                frame.reserve(length);
            }
            // Before anything is copied there: the first touch would have the shard clear a large page.
            if class == MemoryClass::LargeFrames {
                let room = leased - frame.len();
                frame = connection.off_the_clock(rt::populate(frame, room)).await;
            }
            if first {
                frame.extend_from_slice(&begun);
            }
        }
        connection.missing.set((class, length - frame.len()));
        if full {
            rt::yield_if_needed().await;
        } else if !connection.readable().await? {
            return Err(End::Left);
        }
        let room = (leased - frame.len()).min(limits::READ_MAX_BYTES);
        full = read_some(shard, connection, &mut frame, room)? == room;
    }
    connection.missing.set((class, 0));
    connection.frame_due.set(None);
    if class == MemoryClass::PartialFrames {
        let whole = lease(shard, MemoryClass::Requests, length).await?;
        leases.clear();
        leases.push(whole);
    }
    Ok((frame.freeze(), leases))
}

/// What a frame's class of memory is short of, if it could never hold the frame.
pub(super) fn too_large(shard: &Shard, length: usize) -> Option<TooLarge> {
    let (asked, cap) = (length as u64, shard.budget.cap(class_of(shard, length)));
    (asked > cap).then_some(TooLarge { asked, cap })
}

/// Reads a Produce request that can't be kept, so that it can be answered like any other batch that is too large: without its records, which are thrown away as they arrive. Any other request of
/// that size ends the connection.
pub(super) async fn sift_too_large(
    shard: &Shard,
    connection: &Connection,
    begun: BytesMut,
    too_large: TooLarge,
) -> Result<(Bytes, Leases), End> {
    let length = too_large.asked;
    let due = rt::now() + limits::PARTIAL_FRAME + Duration::from_micros(length);
    connection.frame_due.set(Some(due));
    let memory = lease(shard, MemoryClass::Requests, limits::SIFTED_BYTES);
    let memory = connection.off_the_clock(memory).await?;
    let mut sieve = Sieve::default();
    let mut left = length as usize - begun.len();
    let mut piece = begun;
    let mut full = false;
    loop {
        let taken = sieve.take(piece.split().freeze());
        taken.map_err(|unsifted| match unsifted {
            Unsifted::Malformed(error) => End::from(error),
            Unsifted::Other => End::from(too_large),
        })?;
        if left == 0 {
            break;
        }
        if full {
            rt::yield_if_needed().await;
        } else if !connection.readable().await? {
            return Err(End::Left);
        }
        let room = left.min(limits::READ_MAX_BYTES);
        let n = read_some(shard, connection, &mut piece, room)?;
        full = n == room;
        left -= n;
    }
    connection.frame_due.set(None);
    Ok((sieve.finish()?, Leases::from_iter([memory])))
}

/// Takes memory for the next piece of a frame that misses `missing` bytes.
async fn piece_of_frame(
    shard: &Shard,
    class: MemoryClass,
    bytes: usize,
    missing: usize,
    first: bool,
) -> Result<Lease, TooLarge> {
    let mut taken = pin!(lease(shard, class, bytes));
    let lease = loop {
        match rt::timeout(limits::LEASE_PATIENCE, taken.as_mut()).await {
            Ok(lease) => break lease?,
            Err(rt::Elapsed) => shard.connections.shed(class, missing, first),
        }
    };
    if class == MemoryClass::LargeFrames {
        shard.groups.shard_log().make_room();
    }
    Ok(lease)
}
