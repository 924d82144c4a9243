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
    /// Rows of sealed segments' indexes.
    Index,
}

impl MemoryClass {
    pub const ALL: [MemoryClass; CLASSES] = [
        MemoryClass::Requests,
        MemoryClass::PartialFrames,
        MemoryClass::Tail,
        MemoryClass::Cache,
        MemoryClass::Fetch,
        MemoryClass::Index,
    ];

    /// The class's cap in hundredths of the total.
    fn percent(self) -> u64 {
        match self {
            MemoryClass::Requests => 30,
            MemoryClass::PartialFrames => 15,
            MemoryClass::Tail => 25,
            MemoryClass::Cache => 13,
            MemoryClass::Fetch => 15,
            MemoryClass::Index => 2,
        }
    }
}

const CLASSES: usize = 6;

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
    lines: [Rc<Line>; CLASSES],
}

/// Bytes taken. Dropping it gives them back.
#[must_use = "dropping a lease gives the bytes back"]
pub struct Lease(Share);

impl Budget {
    pub fn new(total_bytes: u64) -> Rc<Budget> {
        let cap = |class: MemoryClass| {
            (u128::from(total_bytes) * u128::from(class.percent()) / 100) as u64
        };
        Rc::new(Budget {
            total: total_bytes,
            lines: MemoryClass::ALL.map(|class| Line::new(cap(class))),
        })
    }

    /// Waits its turn: first come, first served within the class. Refuses what could never be granted. Dropping the future leaves the line.
    pub async fn take(self: &Rc<Self>, class: MemoryClass, bytes: u64) -> Result<Lease, TooLarge> {
        let cap = self.cap(class);
        if bytes > cap {
            return Err(TooLarge { asked: bytes, cap });
        }
        Ok(Lease(self.line(class).take(bytes).await))
    }

    /// Takes at once or not at all; doesn't overtake those who wait in its class.
    pub fn try_take(self: &Rc<Self>, class: MemoryClass, bytes: u64) -> Option<Lease> {
        self.line(class).try_take(bytes).map(Lease)
    }

    /// Bytes of the class in use.
    pub fn used(&self, class: MemoryClass) -> u64 {
        self.line(class).state.borrow().used
    }

    /// Bytes that the class may hold.
    pub fn cap(&self, class: MemoryClass) -> u64 {
        self.line(class).cap
    }

    /// Bytes in use over all classes.
    pub fn used_total(&self) -> u64 {
        MemoryClass::ALL.iter().map(|&c| self.used(c)).sum()
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Those who wait in the class's line.
    pub fn waiting(&self, class: MemoryClass) -> usize {
        self.line(class).state.borrow().waiting.len()
    }

    fn line(&self, class: MemoryClass) -> &Rc<Line> {
        &self.lines[class as usize]
    }
}

impl Lease {
    pub fn bytes(&self) -> u64 {
        self.0.units
    }

    /// Gives back all but `bytes`; does nothing if it has no more than that.
    pub fn shrink_to(&mut self, bytes: u64) {
        if bytes < self.0.units {
            let rest = self.0.units - bytes;
            self.0.units = bytes;
            self.0.line.give_back(rest);
        }
    }
}

/// Units of something for which tasks of one thread wait in line.
pub(crate) struct Line {
    cap: u64,
    state: RefCell<LineState>,
}

struct LineState {
    used: u64,
    waiting: VecDeque<Rc<Place>>,
}

/// A place in a line.
struct Place {
    units: u64,
    state: RefCell<Waiting>,
}

enum Waiting {
    InLine(Option<Waker>),
    Granted,
    Gone,
}

/// Units taken from a [`Line`]. Dropping it gives them back.
pub(crate) struct Share {
    line: Rc<Line>,
    units: u64,
}

impl Line {
    pub(crate) fn new(cap: u64) -> Rc<Line> {
        Rc::new(Line {
            cap,
            state: RefCell::new(LineState {
                used: 0,
                waiting: VecDeque::new(),
            }),
        })
    }

    /// The caller has made sure that there can ever be that many.
    pub(crate) async fn take(self: &Rc<Self>, units: u64) -> Share {
        assert!(
            units <= self.cap,
            "what can never be granted is not waited for"
        );
        if let Some(share) = self.try_take(units) {
            return share;
        }
        let place = Rc::new(Place {
            units,
            state: RefCell::new(Waiting::InLine(None)),
        });
        self.state.borrow_mut().waiting.push_back(place.clone());
        InLine {
            line: self.clone(),
            place,
        }
        .await
    }

    pub(crate) fn try_take(self: &Rc<Self>, units: u64) -> Option<Share> {
        let mut state = self.state.borrow_mut();
        if !state.waiting.is_empty() || !state.fits(self.cap, units) {
            return None;
        }
        state.used += units;
        Some(Share {
            line: self.clone(),
            units,
        })
    }

    fn give_back(&self, units: u64) {
        let mut state = self.state.borrow_mut();
        assert!(state.used >= units, "more came back than was taken");
        state.used -= units;
        drop(state);
        self.serve();
    }

    /// Grants to the head of the line what fits now.
    fn serve(&self) {
        let mut wake: smallvec::SmallVec<[Waker; 4]> = smallvec::SmallVec::new();
        let mut state = self.state.borrow_mut();
        while let Some(head) = state.waiting.front().cloned()
            && state.fits(self.cap, head.units)
        {
            state.used += head.units;
            state.waiting.pop_front();
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

impl LineState {
    fn fits(&self, cap: u64, units: u64) -> bool {
        self.used.checked_add(units).is_some_and(|n| n <= cap)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.line.give_back(self.units);
    }
}

struct InLine {
    line: Rc<Line>,
    place: Rc<Place>,
}

impl Future for InLine {
    type Output = Share;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Share> {
        let mut state = self.place.state.borrow_mut();
        match &mut *state {
            Waiting::InLine(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Waiting::Granted => {
                *state = Waiting::Gone; // From here on the units are the share's.
                Poll::Ready(Share {
                    line: self.line.clone(),
                    units: self.place.units,
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
            Waiting::Granted => self.line.give_back(self.place.units),
            Waiting::InLine(_) => {
                let mut state = self.line.state.borrow_mut();
                state.waiting.retain(|p| !Rc::ptr_eq(p, &self.place));
                drop(state);
                self.line.serve(); // Those behind may fit where it didn't.
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
