//! Counts the memory that a thread has from the allocator, so that a target can say how much an input may cost.
//!
//! Unsafe: it is an allocator; everything is handed on to the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes that one thread may have at most: beyond that the process ends, before the machine does.
const LIMIT_BYTES: isize = 4 << 30;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) {
    // A thread that ends still frees.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

fn too_much(bytes: usize) -> bool {
    LIVE.try_with(|live| live.get().saturating_add_unsigned(bytes) > LIMIT_BYTES)
        .unwrap_or(false)
}

// SAFETY: every call goes to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if too_much(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if too_much(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What `f` answers, and the bytes that it had at once at most.
pub fn peak<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let answer = f();
    (answer, PEAK.get().saturating_sub(before) as usize)
}
