//! A value of one shard that tasks of that shard can wait on.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Wakes everybody who waits whenever [`Notify::notify`] is called. Waiters are as many as tasks that wait: one or two a shard.
#[derive(Default)]
pub(crate) struct Notify {
    round: Cell<u64>,
    wakers: RefCell<Vec<Waker>>,
}

impl Notify {
    pub fn notify(&self) {
        self.round.set(self.round.get() + 1);
        for waker in self.wakers.take() {
            waker.wake();
        }
    }

    /// Ends with the next call of `notify` after this one.
    pub fn notified(&self) -> Notified<'_> {
        Notified {
            notify: self,
            seen: self.round.get(),
        }
    }
}

pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    seen: u64,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.notify.round.get() != self.seen {
            return Poll::Ready(());
        }
        let mut wakers = self.notify.wakers.borrow_mut();
        if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
