//! Where memory comes from: mimalloc, but for large blocks, which are the system's own mappings.
//!
//! mimalloc keeps what is freed for a while. For blocks of many MiB (large requests and batches) that while is long enough for the process to have several times
//! what is in use: the memory budget would count bytes that were given back long ago. A mapping goes at once. Blocks below [`MAPPED_BYTES`] come and go by the
//! thousand, and keeping them is what mimalloc is for (docs/decisions/2026-11-30-allocator.md).
//!
//! What mimalloc has is made of small pages: in large ones 10,000 partitions took half as much again, and the first touch of each held up its shard.
//!
//! A node gives back what mimalloc keeps from a thread beside the shards ([`give_back_beside_the_shards`]), so that no shard does it amid its work, and so
//! that it happens on a node that has gone quiet too.
//!
//! `unsafe`: an allocator is.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_long};
use std::io;
use std::ptr::null_mut;
use std::time::Duration;

use mimalloc::MiMalloc;

/// Blocks from this size on are mapped, in bytes.
const MAPPED_BYTES: usize = 4 << 20;
/// What a mapping is aligned to at least.
const PAGE_BYTES: usize = 4096;
/// A large page. Mappings begin at one and are made of them: 50 MiB in small ones took 50 ms to fill and 12 to give back, in large ones 10 and 0.2.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// `mi_option_allow_thp` in `mimalloc.h` of the version that the lock file pins.
const ALLOW_LARGE_PAGES: c_int = 43;
/// `mi_option_purge_delay`, in the same place, in milliseconds.
const PURGE_DELAY: c_int = 15;
/// So long that no shard ever finds memory that is due.
const NEVER_MS: c_long = 24 * 3600 * 1000;
/// How often a node gives back what is free. What is used again and again is there for that long at least.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(5);
/// Below the shards: with a core to share it has a tenth of it.
const NICENESS: c_int = 10;
/// `PR_THP_DISABLE_EXCEPT_ADVISED` in `linux/prctl.h`, from Linux 6.18 on.
const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;

unsafe extern "C" {
    fn mi_process_init();
    fn mi_option_set(option: c_int, value: c_long);
    fn mi_thread_init();
    fn mi_collect(force: bool);
}

/// Before the first block is made, and with it mimalloc's first arena, which keeps what was set then.
#[used]
#[unsafe(link_section = ".init_array.00098")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    // SAFETY: both may be called at any time. Were the option set first, mimalloc would take the large pages from the whole process.
    unsafe {
        mi_process_init();
        mi_option_set(ALLOW_LARGE_PAGES, 0);
    }
    // Where the system gives large pages to everybody: only to who asks, as `map` does. An older system refuses, and goes on as it did.
    // SAFETY: changes nothing but where large pages are used.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, EXCEPT_ADVISED, 0, 0) };
}

/// Starts the thread that gives the system what is free, for as long as the process lives.
///
/// # Errors
/// When there can't be another thread.
pub fn give_back_beside_the_shards() -> io::Result<()> {
    // SAFETY: may be called at any time, from any thread.
    unsafe { mi_option_set(PURGE_DELAY, NEVER_MS) };
    let work = || {
        // SAFETY: changes this thread alone. Where the system refuses, it has the priority of all.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
        loop {
            std::thread::sleep(GIVE_BACK_EVERY);
            give_back();
        }
    };
    std::thread::Builder::new()
        .name("give-back".into())
        .spawn(work)
        .map(drop)
}

/// What no thread has in use any more goes back, at most 4 MiB with one call of the system, so that a shard that maps memory meanwhile waits for no more.
fn give_back() {
    // SAFETY: both may be called from any thread, as often as one likes. The second looks at this thread's own blocks, which without the first it may not
    // have any of yet, and then does nothing, and at what all have given up.
    unsafe {
        mi_thread_init();
        mi_collect(true);
    }
}

pub struct Allocator;

fn is_mapped(layout: Layout) -> bool {
    layout.size() >= MAPPED_BYTES && layout.align() <= PAGE_BYTES
}

fn whole_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES)
}

fn map(bytes: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let bytes = whole_pages(bytes);
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing of ours.
    let all = unsafe { libc::mmap(null_mut(), bytes + LARGE_PAGE_BYTES, access, kind, -1, 0) };
    if all == libc::MAP_FAILED {
        return null_mut();
    }
    let before = all.cast::<u8>().align_offset(LARGE_PAGE_BYTES);
    // SAFETY: the block lies inside the mapping, and what is given back are the rest's whole pages, which nobody has seen.
    unsafe {
        let block = all.cast::<u8>().add(before);
        if before > 0 {
            libc::munmap(all, before);
        }
        if before < LARGE_PAGE_BYTES {
            libc::munmap(block.add(bytes).cast(), LARGE_PAGE_BYTES - before);
        }
        // Where the system has no large pages to give, small ones do.
        libc::madvise(block.cast(), bytes, libc::MADV_HUGEPAGE);
        block
    }
}

// SAFETY: a block belongs to mimalloc or to the system by its layout alone, which every call about it is given; each keeps to the trait's contract. A new
// mapping is zeros.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_mapped(layout) {
            // SAFETY: mapped by `map` with this very size, and nobody uses it any more.
            let done = unsafe { libc::munmap(block.cast(), whole_pages(layout.size())) };
            debug_assert_eq!(done, 0, "a mapping of ours can be given back");
            return;
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that fits a layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_mapped(layout), is_mapped(new)) {
            // SAFETY: the caller's promises are passed on.
            (false, false) => unsafe { MiMalloc.realloc(block, layout, size) },
            (true, true) => {
                let (old, new) = (whole_pages(layout.size()), whole_pages(size));
                // SAFETY: a mapping of ours, of this size.
                let moved = unsafe { libc::mremap(block.cast(), old, new, libc::MREMAP_MAYMOVE) };
                if moved == libc::MAP_FAILED {
                    return null_mut();
                }
                moved.cast()
            }
            // SAFETY: two blocks that don't overlap, each at least as long as what is copied; the old one is the caller's to give.
            _ => unsafe {
                let to = self.alloc(new);
                if !to.is_null() {
                    std::ptr::copy_nonoverlapping(block, to, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                to
            },
        }
    }
}

#[cfg(test)]
mod tests {
    /// The tests' own allocator is the binary's.
    #[test]
    fn blocks_grow_and_shrink_across_the_size_at_which_they_are_mapped() {
        let mut v: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        for size in [3 << 20, 5 << 20, 60 << 20, 4 << 20, (4 << 20) - 1, 1000] {
            v.resize(size, 7);
            v.shrink_to_fit();
            assert!(v[..1000].iter().enumerate().all(|(i, b)| *b == i as u8));
            assert!(v[1000..].iter().all(|b| *b == 7));
        }
        assert!(vec![0u8; 9 << 20].iter().all(|b| *b == 0));
    }

    /// Whether large pages are asked for where `at` is.
    fn asks_for_large_pages(at: *const u8) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            if let Some((from, to)) = range
                && let (Ok(from), Ok(to)) = (
                    usize::from_str_radix(from, 16),
                    usize::from_str_radix(to, 16),
                )
            {
                inside = (from..to).contains(&at.addr());
            }
            if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.split(' ').any(|f| f == "hg");
            }
        }
        panic!("{at:?} is in no mapping");
    }

    #[test]
    fn large_pages_are_for_large_blocks() {
        let (small, large) = (vec![1u8; 3 << 20], vec![1u8; 9 << 20]);
        assert!(!asks_for_large_pages(small.as_ptr()));
        assert!(asks_for_large_pages(large.as_ptr()));
    }

    fn resident() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    /// By another thread than the one that had it, which does nothing meanwhile.
    #[test]
    fn what_is_free_is_given_back_from_beside() {
        // SAFETY: as in `give_back_beside_the_shards`.
        unsafe { super::mi_option_set(super::PURGE_DELAY, super::NEVER_MS) };
        let undisturbed = (0..20).any(|_| {
            let before = resident();
            let blocks: Vec<_> = (0..256).map(|_| vec![1u8; 1 << 20]).collect();
            let with = resident();
            drop(blocks);
            let kept = resident();
            std::thread::spawn(super::give_back).join().unwrap();
            with > before + (200 << 20)
                && kept > before + (150 << 20)
                && resident() < before + (100 << 20)
        });
        assert!(
            undisturbed,
            "256 MiB stay resident after they were given back"
        );
    }

    #[test]
    fn a_large_block_is_given_back_at_once() {
        // Other tests of this process take and give memory meanwhile: one turn that they don't disturb is enough.
        let undisturbed = (0..20).any(|_| {
            let before = resident();
            let block = vec![1u8; 256 << 20];
            let with = resident();
            drop(block);
            with > before + (200 << 20) && resident() < before + (100 << 20)
        });
        assert!(undisturbed, "256 MiB stay resident after they were freed");
    }
}
