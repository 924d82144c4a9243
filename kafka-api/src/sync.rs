//! Waiting inside one shard: a fair semaphore and a bounded queue. Single-threaded; nothing here is a lock.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Polls a future once, without giving up the right to poll it on.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|cx| match Pin::new(&mut *future).poll(cx) {
        Poll::Ready(t) => Poll::Ready(Some(t)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Runs all futures at once; their outputs in their order.
pub async fn join_all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut all = true;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match Pin::new(future).poll(cx) {
                    Poll::Ready(t) => *output = Some(t),
                    Poll::Pending => all = false,
                }
            }
        }
        if all { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs
        .into_iter()
        .map(|o| o.expect("all futures have ended"))
        .collect()
}

/// A counter of permits with a fair line.
#[derive(Clone)]
pub struct Semaphore(Rc<Permits>);

struct Permits {
    free: Cell<usize>,
    line: RefCell<VecDeque<Rc<Place>>>,
}

#[derive(Default)]
struct Place {
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// One permit; dropping it gives it back.
pub struct Permit(Rc<Permits>);

impl Semaphore {
    pub fn new(permits: usize) -> Semaphore {
        Semaphore(Rc::new(Permits {
            free: Cell::new(permits),
            line: RefCell::default(),
        }))
    }

    /// Those in line.
    pub fn waiting(&self) -> usize {
        self.0.line.borrow().len()
    }

    /// Takes a permit, at once if there is one and nobody waits.
    pub async fn take(&self) -> Permit {
        let permits = &self.0;
        if permits.free.get() > 0 && permits.line.borrow().is_empty() {
            permits.free.set(permits.free.get() - 1);
            return Permit(permits.clone());
        }
        let place = Rc::new(Place::default());
        permits.line.borrow_mut().push_back(place.clone());
        let waiting = Waiting {
            permits: permits.clone(),
            place,
        };
        poll_fn(|cx| waiting.poll(cx)).await;
        // The permit is ours now, not the waiting line's to give back.
        waiting.place.granted.set(false);
        Permit(permits.clone())
    }
}

struct Waiting {
    permits: Rc<Permits>,
    place: Rc<Place>,
}

impl Waiting {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.place.granted.get() {
            return Poll::Ready(());
        }
        *self.place.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.place.granted.get() {
            // Granted, and nobody came for it.
            self.permits.release();
        } else {
            self.permits
                .line
                .borrow_mut()
                .retain(|p| !Rc::ptr_eq(p, &self.place));
        }
    }
}

impl Permits {
    fn release(&self) {
        let next = self.line.borrow_mut().pop_front();
        match next {
            Some(place) => {
                place.granted.set(true);
                if let Some(waker) = place.waker.borrow_mut().take() {
                    waker.wake();
                }
            }
            None => self.free.set(self.free.get() + 1),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A bounded queue between two tasks.
pub struct Pipe<T> {
    items: RefCell<VecDeque<T>>,
    room: usize,
    closed: Cell<bool>,
    pusher: RefCell<Option<Waker>>,
    popper: RefCell<Option<Waker>>,
}

impl<T> Pipe<T> {
    pub fn new(room: usize) -> Pipe<T> {
        Pipe {
            items: RefCell::default(),
            room,
            closed: Cell::new(false),
            pusher: RefCell::default(),
            popper: RefCell::default(),
        }
    }

    /// Waits for room; `false` when the queue is closed.
    pub async fn room(&self) -> bool {
        poll_fn(|cx| {
            if self.closed.get() {
                return Poll::Ready(false);
            }
            if self.items.borrow().len() < self.room {
                return Poll::Ready(true);
            }
            *self.pusher.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Appends an item. The one task that pushes has awaited [`Pipe::room`].
    pub fn push(&self, item: T) {
        self.items.borrow_mut().push_back(item);
        wake(&self.popper);
    }

    pub fn try_pop(&self) -> Option<T> {
        let item = self.items.borrow_mut().pop_front();
        if item.is_some() {
            wake(&self.pusher);
        }
        item
    }

    /// Waits for an item; `None` when the queue is closed and empty.
    pub async fn pop(&self) -> Option<T> {
        poll_fn(|cx| {
            if let Some(item) = self.try_pop() {
                return Poll::Ready(Some(item));
            }
            if self.closed.get() {
                return Poll::Ready(None);
            }
            *self.popper.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Nothing more will be pushed; what is in it can still be popped.
    pub fn close(&self) {
        self.closed.set(true);
        wake(&self.pusher);
        wake(&self.popper);
    }
}

fn wake(waker: &RefCell<Option<Waker>>) {
    let waker = waker.borrow_mut().take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn poll<F: Future>(f: Pin<&mut F>) -> Poll<F::Output> {
        f.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn permits_go_down_the_line_and_none_is_lost() {
        let s = Semaphore::new(1);
        let Poll::Ready(first) = poll(pin!(s.take())) else {
            panic!("there is a permit");
        };
        let mut second = pin!(s.take());
        assert!(poll(second.as_mut()).is_pending());
        {
            let mut leaves = pin!(s.take());
            assert!(poll(leaves.as_mut()).is_pending());
        }
        let mut granted_and_gone = Box::pin(s.take());
        assert!(poll(granted_and_gone.as_mut()).is_pending());
        drop(first);
        let Poll::Ready(second) = poll(second.as_mut()) else {
            panic!("it is the second's turn");
        };
        drop(second);
        drop(granted_and_gone);
        assert!(poll(pin!(s.take())).is_ready());
    }

    #[test]
    fn a_pipe_is_bounded_and_drains_after_its_end() {
        let p = Pipe::new(2);
        for i in 0..2 {
            assert_eq!(poll(pin!(p.room())), Poll::Ready(true));
            p.push(i);
        }
        assert!(poll(pin!(p.room())).is_pending());
        p.close();
        assert_eq!(poll(pin!(p.room())), Poll::Ready(false));
        assert_eq!(poll(pin!(p.pop())), Poll::Ready(Some(0)));
        assert_eq!(poll(pin!(p.pop())), Poll::Ready(Some(1)));
        assert_eq!(poll(pin!(p.pop())), Poll::Ready(None));
    }
}
