//! A shard's helper threads, for what can only be done by blocking: names of files, truncation, the last close of a file.
//!
//! `unsafe`: one system call. Started with the first such thing. They run on any CPU that the process may use, not on the shard's. Bound: what tasks wait for.

#![allow(
    clippy::disallowed_types,
    reason = "the helpers share their queue's receiving end; that lock is theirs alone, never a shard's"
)]

use std::future::poll_fn;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use atomic_waker::AtomicWaker;
use bytes::BytesMut;

use super::launch::Affinity;
use super::shard;

/// Threads per shard.
const HELPERS: usize = 2;
/// What memory is mapped in, in bytes, if not in more.
const PAGE_BYTES: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

pub struct Helpers {
    jobs: Sender<Job>,
}

impl Helpers {
    fn start() -> Helpers {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        let anywhere = Affinity::of_process();
        for _ in 0..HELPERS {
            let queue = queue.clone();
            // They end when the shard drops the sender.
            std::thread::Builder::new()
                .name("shard-helper".to_owned())
                .spawn(move || {
                    if let Some(a) = anywhere {
                        a.apply();
                    }
                    while let Some(job) = next(&queue) {
                        job();
                    }
                })
                .expect("a shard needs threads to help it: raise the limit on threads");
        }
        Helpers { jobs }
    }
}

fn next(queue: &Mutex<Receiver<Job>>) -> Option<Job> {
    queue.lock().ok()?.recv().ok()
}

pub async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let waker = Arc::new(AtomicWaker::new());
    let done = waker.clone();
    let job: Job = Box::new(move || {
        // If it panics the sender is dropped, which the shard sees.
        let _wake = WakeLast(done);
        let _ = sender.send(f());
        drop(sender);
    });
    let shard = shard();
    let sent = shard
        .helpers
        .borrow_mut()
        .get_or_insert_with(Helpers::start)
        .jobs
        .send(job);
    drop(shard);
    assert!(sent.is_ok(), "helpers live as long as their shard");
    poll_fn(|cx| {
        waker.register(cx.waker());
        match receiver.try_recv() {
            Ok(v) => Poll::Ready(v),
            Err(std::sync::mpsc::TryRecvError::Empty) => Poll::Pending,
            Err(std::sync::mpsc::TryRecvError::Disconnected) => panic!("blocking code panicked"),
        }
    })
    .await
}

struct WakeLast(Arc<AtomicWaker>);

impl Drop for WakeLast {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// Linux before 5.14 doesn't know the request: then the memory is made at the first touch after all.
pub async fn populate(mut buffer: BytesMut, bytes: usize) -> BytesMut {
    blocking(move || {
        let room = buffer.spare_capacity_mut();
        let length = bytes.min(room.len());
        let before = room.as_ptr().addr() % PAGE_BYTES;
        let start = room.as_mut_ptr().cast::<u8>().wrapping_sub(before);
        // SAFETY: whole pages of memory that this process may write, at least a byte of each ours; their content stays.
        unsafe { libc::madvise(start.cast(), before + length, libc::MADV_POPULATE_WRITE) };
        buffer
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::{self, Launch};

    /// Pages of `bytes` from `at` on that are in memory.
    fn resident(at: usize, bytes: usize) -> usize {
        let start = at.next_multiple_of(PAGE_BYTES);
        let mut pages = vec![0u8; (at + bytes - start) / PAGE_BYTES];
        let length = pages.len() * PAGE_BYTES;
        // SAFETY: writes a byte for each page, which are ours.
        let done = unsafe { libc::mincore(start as *mut _, length, pages.as_mut_ptr()) };
        assert_eq!(done, 0);
        pages.iter().filter(|p| **p & 1 == 1).count()
    }

    #[test]
    fn memory_is_made_before_it_is_touched() {
        let l = Launch {
            shards: 1,
            overprovisioned: true,
            cpus: None,
            seed: None,
        };
        rt::launch(l, |_| async {
            let mut buffer = BytesMut::with_capacity(32 << 20);
            buffer.extend_from_slice(&[7; 10_000]);
            let at = buffer.as_ptr().addr();
            // What the allocator kept of other tests' memory may be there already.
            let unused = (at + 10_000).next_multiple_of(PAGE_BYTES);
            let length = (at + (32 << 20) - unused) / PAGE_BYTES * PAGE_BYTES;
            // SAFETY: whole pages of the buffer's room, which holds nothing yet.
            let given_back =
                unsafe { libc::madvise(unused as *mut _, length, libc::MADV_DONTNEED) };
            assert_eq!(given_back, 0);
            assert!(
                resident(at, 32 << 20) < 10,
                "nothing but what was written is there"
            );
            let mut buffer = rt::populate(buffer, 24 << 20).await;
            assert!(resident(at, 24 << 20) >= 24 * 256 - 1);
            assert!(buffer.iter().all(|b| *b == 7) && buffer.len() == 10_000);
            // More than there is room for.
            buffer = rt::populate(buffer, 64 << 20).await;
            assert_eq!(resident(at, 32 << 20), 32 * 256 - 1);
            assert_eq!((buffer.as_ptr().addr(), buffer.len()), (at, 10_000));
        })
        .unwrap();
    }
}
