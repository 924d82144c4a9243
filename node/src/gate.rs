//! A gate between threads: opens when enough have arrived, then stays open. Made of atomics, since shards wait at it.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use atomic_waker::AtomicWaker;

/// Cheap to clone. At most one task of each shard waits at a time.
#[derive(Clone)]
pub struct Gate(Arc<Inner>);

struct Inner {
    needed: usize,
    arrived: AtomicUsize,
    /// One per shard.
    wakers: Vec<AtomicWaker>,
}

impl Gate {
    /// Opens at the `needed`th arrival; tasks of `shards` shards may wait.
    pub fn new(shards: u16, needed: u16) -> Gate {
        Gate(Arc::new(Inner {
            needed: usize::from(needed),
            arrived: AtomicUsize::new(0),
            wakers: (0..shards).map(|_| AtomicWaker::new()).collect(),
        }))
    }

    pub fn arrive(&self) {
        self.0.arrived.fetch_add(1, Ordering::AcqRel);
        if self.is_open() {
            for waker in &self.0.wakers {
                waker.wake();
            }
        }
    }

    pub fn is_open(&self) -> bool {
        self.0.arrived.load(Ordering::Acquire) >= self.0.needed
    }

    pub async fn opened(&self, shard: usize) {
        poll_fn(|cx| {
            // Registered before looking: an arrival between the two wakes us.
            self.0.wakers[shard].register(cx.waker());
            if self.is_open() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "the test plays the threads of shards"
)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_opens_at_the_last_arrival_and_wakes_all() {
        let gate = Gate::new(2, 3);
        let waiters: Vec<_> = (0..2)
            .map(|shard| {
                let gate = gate.clone();
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .build()
                        .unwrap();
                    runtime.block_on(gate.opened(shard));
                    gate.is_open()
                })
            })
            .collect();
        gate.arrive();
        gate.arrive();
        assert!(!gate.is_open());
        std::thread::sleep(std::time::Duration::from_millis(10));
        gate.arrive();
        for waiter in waiters {
            assert!(waiter.join().unwrap());
        }
    }
}
