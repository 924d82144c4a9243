//! Memory for direct I/O.
//!
//! Invariants: the start is 4096-aligned, the allocation is a multiple of 4096 bytes and fully initialised, and it stays where it is
//! when the owner moves. `unsafe` is used for the allocation alone. Used by the log for what it writes, by `rt` for what it reads.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;

use crate::limits::BLOCK_BYTES;

/// An owned buffer whose start is 4096-aligned and whose memory ends on a multiple of 4096 too.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: the buffer owns its memory alone, as a `Box<[u8]>` would.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference only gives `&[u8]`.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBuf {
        let capacity = len.max(1).next_multiple_of(BLOCK_BYTES);
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout(capacity)) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout(capacity));
        };
        AlignedBuf {
            start,
            len,
            capacity,
        }
    }

    /// A copy of `bytes`, with zeros up to the next multiple of 4096.
    pub fn padded_copy_of(bytes: &[u8]) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(bytes.len().next_multiple_of(BLOCK_BYTES));
        buf[..bytes.len()].copy_from_slice(bytes);
        buf
    }

    /// Bytes that fit without another allocation: a multiple of 4096.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length within the capacity. What comes into view are old bytes of this buffer, or zeros.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity, "a buffer's length is in its capacity");
        self.len = len;
    }

    /// The same memory as `Bytes`, without copying.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    #[cfg_attr(tailrace_sim, allow(dead_code))]
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` bytes from `start` on are ours and were initialised when allocated.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated by `zeroed` with this very layout; `capacity` never changes.
        unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} of {} bytes)", self.len, self.capacity)
    }
}

fn layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, BLOCK_BYTES)
        .expect("a buffer is smaller than the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_and_capacity_are_aligned_and_bytes_share_the_memory() {
        for len in [0, 1, 4095, 4096, 4097, 1 << 20] {
            let mut buf = AlignedBuf::zeroed(len);
            assert_eq!(buf.len(), len);
            assert!(buf.capacity() >= len && buf.capacity().is_multiple_of(4096));
            assert_eq!(buf.as_mut_ptr() as usize % 4096, 0);
            assert!(buf.iter().all(|b| *b == 0));
            buf.fill(7);
            let start = buf.as_ptr();
            let bytes = buf.into_bytes();
            assert_eq!(bytes.as_ptr(), start);
            assert!(bytes.iter().all(|b| *b == 7));
        }
    }

    #[test]
    fn a_copy_is_padded_with_zeros() {
        let buf = AlignedBuf::padded_copy_of(&[1; 5000]);
        assert_eq!(buf.len(), 8192);
        assert!(buf[..5000].iter().all(|b| *b == 1) && buf[5000..].iter().all(|b| *b == 0));
    }
}
