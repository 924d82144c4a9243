//! The request to stop, from the thread that hears signals to the shards.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use atomic_waker::AtomicWaker;

/// Asked once, heard by every shard. Cheap to clone.
#[derive(Clone)]
pub struct Stop(Arc<Inner>);

struct Inner {
    asked: AtomicBool,
    /// One per shard: each has one task that waits.
    wakers: Vec<AtomicWaker>,
}

impl Stop {
    pub fn new(shards: u16) -> Stop {
        Stop(Arc::new(Inner {
            asked: AtomicBool::new(false),
            wakers: (0..shards).map(|_| AtomicWaker::new()).collect(),
        }))
    }

    /// Asks every shard to stop.
    pub fn ask(&self) {
        self.0.asked.store(true, Ordering::Release);
        for waker in &self.0.wakers {
            waker.wake();
        }
    }

    pub fn is_asked(&self) -> bool {
        self.0.asked.load(Ordering::Acquire)
    }

    /// Waits until somebody asks. One task per shard.
    pub async fn asked(&self, shard: usize) {
        poll_fn(|cx| {
            // Registered before looking: an ask between the two wakes us.
            self.0.wakers[shard].register(cx.waker());
            if self.is_asked() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}
