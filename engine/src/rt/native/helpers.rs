//! A shard's helper threads, for what can only be done by blocking: names of files, truncation, the last close of a file.
//!
//! Started with the first such thing. They run on any CPU that the process may use, not on the shard's. Bound: what tasks wait for.

#![allow(
    clippy::disallowed_types,
    reason = "the helpers share their queue's receiving end; that lock is theirs alone, never a shard's"
)]

use std::future::poll_fn;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use atomic_waker::AtomicWaker;

use super::launch::Affinity;
use super::shard;

/// Threads per shard.
const HELPERS: usize = 2;

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
