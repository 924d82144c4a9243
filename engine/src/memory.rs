//! A shard's memory budget: who wants bytes takes a lease for them first, and waits in line while there are none.
//!
//! Each class of use has a part of the total for itself, so that no kind of work can starve another, and none waits for what another holds: a request
//! that waits for room in the log's tail can't deadlock with fetches. Within a class it is first come, first served: nobody overtakes, so large takes
//! aren't starved by small ones.
//!
//! Invariants: the bytes granted never exceed a class's cap, nor, since the caps add up to it, the total; a waiter that goes away gives up its place and
//! whatever it was granted. What could never be granted is refused. Waiters are bounded by the tasks of the shard. One budget per shard, `Rc`, not
//! `Send`; nothing here does I/O. Called by the connections (requests, partial frames), the log (tail, cache) and fetches.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryClass {
    /// Whole requests whose size is known, from before their body is read until they are answered.
    Requests,
    /// Frames that have begun to arrive and may never end.
    PartialFrames,
    /// The unflushed tail of the log: appended, not yet written out.
    Tail,
    /// The batch cache.
    Cache,
    /// Fetch answers and the reads behind them.
    Fetch,
}

impl MemoryClass {
    pub const ALL: [MemoryClass; CLASSES] = [
        MemoryClass::Requests,
        MemoryClass::PartialFrames,
        MemoryClass::Tail,
        MemoryClass::Cache,
        MemoryClass::Fetch,
    ];

    /// The class's cap in hundredths of the total.
    fn percent(self) -> u64 {
        match self {
            MemoryClass::Requests => 30,
            MemoryClass::PartialFrames => 15,
            MemoryClass::Tail => 25,
            MemoryClass::Cache => 15,
            MemoryClass::Fetch => 15,
        }
    }
}

const CLASSES: usize = 5;

/// Asked for more than the class can ever have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{asked} bytes were asked for, and this class of memory may hold {cap}: give the shard more memory"
)]
pub struct TooLarge {
    pub asked: u64,
    pub cap: u64,
}

/// See the module.
pub struct Budget {
    total: u64,
    classes: [RefCell<Class>; CLASSES],
}

struct Class {
    cap: u64,
    used: u64,
    line: VecDeque<Rc<Place>>,
}

/// A place in a class's line.
struct Place {
    bytes: u64,
    state: RefCell<Waiting>,
}

enum Waiting {
    InLine(Option<Waker>),
    Granted,
    Gone,
}

/// Bytes taken. Dropping it gives them back.
#[must_use = "dropping a lease gives the bytes back"]
pub struct Lease {
    budget: Rc<Budget>,
    class: MemoryClass,
    bytes: u64,
}

impl Budget {
    pub fn new(total_bytes: u64) -> Rc<Budget> {
        let classes = MemoryClass::ALL.map(|class| {
            RefCell::new(Class {
                cap: (u128::from(total_bytes) * u128::from(class.percent()) / 100) as u64,
                used: 0,
                line: VecDeque::new(),
            })
        });
        Rc::new(Budget {
            total: total_bytes,
            classes,
        })
    }

    /// Waits its turn: first come, first served within the class. Refuses what could never be granted. Dropping the future leaves the line.
    pub async fn take(self: &Rc<Self>, class: MemoryClass, bytes: u64) -> Result<Lease, TooLarge> {
        let cap = self.cap(class);
        if bytes > cap {
            return Err(TooLarge { asked: bytes, cap });
        }
        if let Some(lease) = self.try_take(class, bytes) {
            return Ok(lease);
        }
        let place = Rc::new(Place {
            bytes,
            state: RefCell::new(Waiting::InLine(None)),
        });
        self.class(class).borrow_mut().line.push_back(place.clone());
        let line = InLine {
            budget: self.clone(),
            class,
            place,
        };
        Ok(line.await)
    }

    /// Takes at once or not at all; doesn't overtake those who wait in its class.
    pub fn try_take(self: &Rc<Self>, class: MemoryClass, bytes: u64) -> Option<Lease> {
        let mut state = self.class(class).borrow_mut();
        if !state.line.is_empty() || !state.fits(bytes) {
            return None;
        }
        state.used += bytes;
        Some(Lease {
            budget: self.clone(),
            class,
            bytes,
        })
    }

    /// Bytes of the class in use.
    pub fn used(&self, class: MemoryClass) -> u64 {
        self.class(class).borrow().used
    }

    /// Bytes that the class may hold.
    pub fn cap(&self, class: MemoryClass) -> u64 {
        self.class(class).borrow().cap
    }

    /// Bytes in use over all classes.
    pub fn used_total(&self) -> u64 {
        self.classes.iter().map(|c| c.borrow().used).sum()
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Those who wait in the class's line.
    pub fn waiting(&self, class: MemoryClass) -> usize {
        self.class(class).borrow().line.len()
    }

    fn class(&self, class: MemoryClass) -> &RefCell<Class> {
        &self.classes[class as usize]
    }

    fn give_back(&self, class: MemoryClass, bytes: u64) {
        let mut state = self.class(class).borrow_mut();
        assert!(state.used >= bytes, "more came back than was taken");
        state.used -= bytes;
        drop(state);
        self.serve(class);
    }

    /// Grants to the head of the line what fits now.
    fn serve(&self, class: MemoryClass) {
        let mut wake: smallvec::SmallVec<[Waker; 4]> = smallvec::SmallVec::new();
        let mut state = self.class(class).borrow_mut();
        while let Some(head) = state.line.front().cloned()
            && state.fits(head.bytes)
        {
            state.used += head.bytes;
            state.line.pop_front();
            if let Waiting::InLine(Some(waker)) = head.state.replace(Waiting::Granted) {
                wake.push(waker);
            }
        }
        drop(state);
        for waker in wake {
            waker.wake();
        }
    }
}

impl Class {
    fn fits(&self, bytes: u64) -> bool {
        self.used.checked_add(bytes).is_some_and(|n| n <= self.cap)
    }
}

impl Lease {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back all but `bytes`; does nothing if it has no more than that.
    pub fn shrink_to(&mut self, bytes: u64) {
        if bytes < self.bytes {
            let rest = self.bytes - bytes;
            self.bytes = bytes;
            self.budget.give_back(self.class, rest);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.give_back(self.class, self.bytes);
    }
}

struct InLine {
    budget: Rc<Budget>,
    class: MemoryClass,
    place: Rc<Place>,
}

impl Future for InLine {
    type Output = Lease;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Lease> {
        let mut state = self.place.state.borrow_mut();
        match &mut *state {
            Waiting::InLine(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Waiting::Granted => {
                *state = Waiting::Gone; // From here on the bytes are the lease's.
                Poll::Ready(Lease {
                    budget: self.budget.clone(),
                    class: self.class,
                    bytes: self.place.bytes,
                })
            }
            Waiting::Gone => panic!("a future is not polled after it was ready"),
        }
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        match self.place.state.replace(Waiting::Gone) {
            Waiting::Gone => {}
            Waiting::Granted => self.budget.give_back(self.class, self.place.bytes),
            Waiting::InLine(_) => {
                let mut class = self.budget.class(self.class).borrow_mut();
                class.line.retain(|p| !Rc::ptr_eq(p, &self.place));
                drop(class);
                self.budget.serve(self.class); // Those behind may fit where it didn't.
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};
    use proptest::prelude::*;

    use super::*;

    type Taking = Pin<Box<dyn Future<Output = Result<Lease, TooLarge>>>>;

    fn take(b: &Rc<Budget>, c: MemoryClass, n: u64) -> Taking {
        let b = b.clone();
        Box::pin(async move { b.take(c, n).await })
    }

    fn poll<T>(f: &mut Pin<Box<dyn Future<Output = T>>>) -> Option<T> {
        block_on(poll_once(f))
    }

    #[test]
    fn more_than_the_cap_is_refused_and_never_waits() {
        let b = Budget::new(1000);
        let e = poll(&mut take(&b, MemoryClass::Requests, 301))
            .unwrap()
            .err();
        assert_eq!(
            e,
            Some(TooLarge {
                asked: 301,
                cap: 300
            })
        );
        assert!(
            poll(&mut take(&b, MemoryClass::Requests, u64::MAX))
                .unwrap()
                .is_err()
        );
        assert_eq!(b.used_total(), 0);
    }

    #[test]
    fn first_come_first_served_within_a_class() {
        let b = Budget::new(1000);
        let held = b.try_take(MemoryClass::Requests, 250).unwrap();
        let mut large = take(&b, MemoryClass::Requests, 300);
        let mut small = take(&b, MemoryClass::Requests, 10);
        assert!(poll(&mut large).is_none());
        assert!(
            poll(&mut small).is_none(),
            "it would fit, but may not overtake"
        );
        assert!(b.try_take(MemoryClass::Requests, 10).is_none());
        assert!(
            b.try_take(MemoryClass::Fetch, 150).is_some(),
            "other classes go on"
        );
        drop(held);
        let large = poll(&mut large).unwrap().unwrap();
        assert!(poll(&mut small).is_none());
        drop(large);
        assert_eq!(poll(&mut small).unwrap().unwrap().bytes(), 10);
        assert_eq!((b.used_total(), b.waiting(MemoryClass::Requests)), (0, 0));
    }

    #[test]
    fn a_waiter_that_goes_away_makes_way_and_gives_back() {
        let b = Budget::new(1000);
        let held = b.try_take(MemoryClass::Requests, 250).unwrap();
        let mut large = take(&b, MemoryClass::Requests, 300);
        let mut small = take(&b, MemoryClass::Requests, 10);
        assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
        drop(large);
        let small = poll(&mut small).unwrap().unwrap();
        let mut granted = take(&b, MemoryClass::Requests, 100);
        assert!(poll(&mut granted).is_none());
        drop(held);
        drop(granted); // granted, but never polled again
        assert_eq!(b.used_total(), 10);
        drop(small);
        assert_eq!(b.used_total(), 0);
    }

    #[test]
    fn the_caps_add_up_to_the_total() {
        assert_eq!(
            MemoryClass::ALL.iter().map(|c| c.percent()).sum::<u64>(),
            100
        );
    }

    #[test]
    fn a_lease_shrinks() {
        let b = Budget::new(1000);
        let mut l = b.try_take(MemoryClass::Requests, 250).unwrap();
        l.shrink_to(100);
        l.shrink_to(290);
        assert_eq!((l.bytes(), b.used(MemoryClass::Requests)), (100, 100));
    }

    proptest! {
        /// Whatever is taken, dropped or given up: never more than the caps, nothing lost, and who fits alone is not left waiting for ever.
        #[test]
        fn never_more_than_there_is(ops in prop::collection::vec((0..3u8, 0..CLASSES, 0..60u64, 0..100usize), 1..200)) {
            let b = Budget::new(100);
            let mut leases: Vec<Lease> = Vec::new();
            let mut waiting: Vec<Taking> = Vec::new();
            for (op, class, bytes, pick) in ops {
                match op {
                    0 => waiting.push(take(&b, MemoryClass::ALL[class], bytes)),
                    1 if !leases.is_empty() => drop(leases.swap_remove(pick % leases.len())),
                    2 if !waiting.is_empty() => drop(waiting.swap_remove(pick % waiting.len())),
                    _ => {}
                }
                waiting.retain_mut(|w| match poll(w) {
                    Some(Ok(l)) => { leases.push(l); false }
                    Some(Err(_)) => false,
                    None => true,
                });
                let sum: u64 = leases.iter().map(Lease::bytes).sum();
                prop_assert_eq!(sum, b.used_total());
                prop_assert!(sum <= 100);
                for c in MemoryClass::ALL {
                    prop_assert!(b.used(c) <= b.cap(c));
                }
            }
            // When everything comes back, everybody is served in the end.
            let mut rounds = 0;
            while !waiting.is_empty() {
                leases.clear();
                waiting.retain_mut(|w| match poll(w) {
                    Some(Ok(l)) => { leases.push(l); false }
                    Some(Err(_)) => false,
                    None => true,
                });
                rounds += 1;
                prop_assert!(rounds < 1000);
            }
            leases.clear();
            prop_assert_eq!(b.used_total(), 0);
        }
    }
}
