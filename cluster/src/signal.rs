//! Waiting, within one shard, for a condition that synchronous code makes true. No timers: callers put their own deadline round it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Whom to wake when something changed. Waiters are bounded by what they wait for (commands in flight, one publisher).
#[derive(Default)]
pub(crate) struct Signal {
    waiting: RefCell<Vec<Waker>>,
}

impl Signal {
    /// Has every waiter look again.
    pub fn notify(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for waker in waiting {
            waker.wake();
        }
    }

    /// Waits until `ready` gives something. It is asked now and after every [`Signal::notify`].
    pub async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| match ready() {
            Some(value) => Poll::Ready(value),
            None => {
                let mut waiting = self.waiting.borrow_mut();
                if !waiting.iter().any(|w| w.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }
}
