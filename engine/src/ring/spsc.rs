//! One bounded ring between two threads, and the doorbell that wakes who sleeps.
//!
//! Invariants: positions only grow; `head <= tail <= head + capacity`; slots in `head..tail` hold messages that the consumer alone may take, the others
//! are the producer's. A producer's messages become visible when it publishes them, in order, all at once.
//!
//! `unsafe`: access to the slots, justified by the positions. Checked with loom (`engine/tests/loom.rs`). Used by `mesh`.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::task::Waker;

use crossbeam_utils::CachePadded;

use super::sync::{Arc, AtomicBool, AtomicUsize, AtomicWaker, Ordering, UnsafeCell, fence};

struct Ring<M> {
    /// Messages taken so far, written by the consumer.
    head: CachePadded<AtomicUsize>,
    /// Messages published so far, written by the producer.
    tail: CachePadded<AtomicUsize>,
    /// The producer waits for room.
    room: CachePadded<Doorbell>,
    slots: Box<[UnsafeCell<MaybeUninit<M>>]>,
}

// SAFETY: a slot is accessed by one side at a time (see the module), and the messages themselves may change threads.
unsafe impl<M: Send> Sync for Ring<M> {}
// SAFETY: as above.
unsafe impl<M: Send> Send for Ring<M> {}

/// A ring for `capacity` messages.
pub fn ring<M: Send>(capacity: usize) -> (Producer<M>, Consumer<M>) {
    assert!(capacity > 0, "a ring has room for a message");
    let ring = Arc::new(Ring {
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
        room: CachePadded::new(Doorbell::new()),
        slots: (0..capacity)
            .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
            .collect(),
    });
    let producer = Producer {
        ring: ring.clone(),
        tail: Cell::new(0),
        published: Cell::new(0),
        head: Cell::new(0),
    };
    let consumer = Consumer {
        ring,
        head: Cell::new(0),
        tail: Cell::new(0),
        told: Cell::new(0),
    };
    (producer, consumer)
}

/// The sending half. One thread at a time.
pub struct Producer<M> {
    ring: Arc<Ring<M>>,
    /// Messages written, published or not.
    tail: Cell<usize>,
    published: Cell<usize>,
    /// The consumer's position when last looked at.
    head: Cell<usize>,
}

impl<M> Producer<M> {
    /// Puts a message in, unpublished. Gives it back when there is no room.
    pub fn push(&self, message: M) -> Result<(), M> {
        if !self.has_room() {
            return Err(message);
        }
        let tail = self.tail.get();
        self.ring.slots[tail % self.ring.slots.len()].with_mut(|slot| {
            // SAFETY: `tail` is not yet published and not below `head + capacity`, so the slot is the producer's, and it is empty.
            unsafe { (*slot).write(message) };
        });
        self.tail.set(tail + 1);
        Ok(())
    }

    pub fn has_room(&self) -> bool {
        let capacity = self.ring.slots.len();
        if self.tail.get() - self.head.get() < capacity {
            return true;
        }
        // Acquire: the consumer is done with the slots it let go of.
        self.head.set(self.ring.head.load(Ordering::Acquire));
        self.tail.get() - self.head.get() < capacity
    }

    /// Whether messages wait to be published.
    pub fn is_dirty(&self) -> bool {
        self.tail.get() != self.published.get()
    }

    /// Makes what was pushed visible. The caller then rings the consumer's doorbell.
    pub fn publish(&self) {
        self.published.set(self.tail.get());
        // Release: the slots are written.
        self.ring.tail.store(self.tail.get(), Ordering::Release);
    }

    /// Rung by the consumer after it has made room, if armed.
    pub fn room(&self) -> &Doorbell {
        &self.ring.room
    }
}

/// The receiving half. One thread at a time.
pub struct Consumer<M> {
    ring: Arc<Ring<M>>,
    head: Cell<usize>,
    /// The producer's position when last looked at.
    tail: Cell<usize>,
    /// The position when the producer was last told of room.
    told: Cell<usize>,
}

impl<M> Consumer<M> {
    pub fn pop(&self) -> Option<M> {
        if self.is_empty() {
            return None;
        }
        let head = self.head.get();
        let message = self.ring.slots[head % self.ring.slots.len()].with(|slot| {
            // SAFETY: `head < tail`: the slot was written and published, and it is ours until `head` moves; it is read once.
            unsafe { (*slot).assume_init_read() }
        });
        self.head.set(head + 1);
        // Release: the slot has been read.
        self.ring.head.store(head + 1, Ordering::Release);
        Some(message)
    }

    pub fn is_empty(&self) -> bool {
        if self.head.get() != self.tail.get() {
            return false;
        }
        // Acquire: the slots up to there are written.
        self.tail.set(self.ring.tail.load(Ordering::Acquire));
        self.head.get() == self.tail.get()
    }

    /// Wakes a producer that waits for room, if enough was taken since the last time: half of the ring, or all there was. True if one waited.
    pub fn tell_room(&self) -> bool {
        let taken = self.head.get() - self.told.get();
        if taken == 0 || (taken < self.ring.slots.len() / 2 && !self.is_empty()) {
            return false;
        }
        self.told.set(self.head.get());
        fence(Ordering::SeqCst); // See `Doorbell`.
        self.ring.room.ring()
    }
}

impl<M> Drop for Consumer<M> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
        fence(Ordering::SeqCst); // See `Doorbell`.
        self.ring.room.ring();
    }
}

impl<M> Drop for Ring<M> {
    fn drop(&mut self) {
        // The consumer took what was there when it went; here is what was published later.
        let mut at = self.head.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Acquire);
        while at != tail {
            let slot = &self.slots[at % self.slots.len()];
            // SAFETY: both halves are gone, and slots in `head..tail` hold messages.
            slot.with_mut(|s| unsafe { (*s).assume_init_drop() });
            at += 1;
        }
    }
}

impl<M> Drop for Producer<M> {
    fn drop(&mut self) {
        self.publish(); // So that nothing is leaked.
    }
}

/// Wakes one sleeping task, from any thread.
///
/// Who waits *arms* it, then looks again whether there is still nothing, then sleeps. Who makes what is waited for does so, and then rings. Between the
/// two steps both sides have a SeqCst fence: either the sleeper sees what was made, or the ringer sees that it is armed.
pub struct Doorbell {
    armed: AtomicBool,
    waker: AtomicWaker,
}

impl Doorbell {
    pub fn new() -> Doorbell {
        Doorbell {
            armed: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        }
    }

    /// Before the last look. The fence is part of it.
    pub fn arm(&self, waker: &Waker) {
        register(&self.waker, waker);
        self.arm_again();
    }

    /// Arms it without a change of the waker.
    pub fn arm_again(&self) {
        self.armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    /// After the fence that follows what was made. True if it was armed.
    pub fn ring(&self) -> bool {
        if !self.armed.load(Ordering::Relaxed) || !self.armed.swap(false, Ordering::AcqRel) {
            return false;
        }
        self.waker.wake();
        true
    }
}

#[cfg(not(loom))]
fn register(cell: &AtomicWaker, waker: &Waker) {
    cell.register(waker);
}

#[cfg(loom)]
fn register(cell: &AtomicWaker, waker: &Waker) {
    cell.register_by_ref(waker);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_seen_before_it_is_published_and_order_is_kept() {
        let (p, c) = ring(4);
        for i in 0..4 {
            p.push(i).unwrap();
        }
        assert_eq!(p.push(9), Err(9));
        assert!(c.pop().is_none() && p.is_dirty());
        p.publish();
        assert!(!p.is_dirty());
        assert_eq!((c.pop(), c.pop()), (Some(0), Some(1)));
        p.push(4).unwrap();
        assert_eq!((c.pop(), c.pop(), c.pop()), (Some(2), Some(3), None));
        p.publish();
        assert_eq!(c.pop(), Some(4));
    }

    #[test]
    fn messages_that_nobody_took_are_dropped_once() {
        struct Counted(Arc<AtomicUsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        for producer_first in [true, false] {
            let dropped = Arc::new(AtomicUsize::new(0));
            let (p, c) = ring(8);
            for i in 0..6 {
                assert!(p.push(Counted(dropped.clone())).is_ok());
                if i == 3 {
                    p.publish();
                    drop(c.pop());
                }
            }
            if producer_first {
                drop(p);
                drop(c);
            } else {
                drop(c);
                drop(p);
            }
            assert_eq!(dropped.load(Ordering::Relaxed), 6);
        }
    }

    #[test]
    fn a_waiting_producer_is_told_after_half_or_all() {
        let (p, c) = ring(4);
        let waker = futures_lite::future::block_on(std::future::poll_fn(|cx| {
            std::task::Poll::Ready(cx.waker().clone())
        }));
        for i in 0..4 {
            p.push(i).unwrap();
        }
        p.publish();
        p.room().arm(&waker);
        c.pop();
        assert!(!c.tell_room(), "one of four");
        c.pop();
        assert!(c.tell_room(), "two of four");
        p.room().arm(&waker);
        c.pop();
        assert!(!c.tell_room());
        c.pop();
        assert!(c.tell_room());
        assert!(!c.tell_room(), "told already");
    }
}
