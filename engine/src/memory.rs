//! A shard's memory budget: who wants bytes takes a lease for them first, and waits in line while there are none.
//!
//! What is charged where, each by the memory that is really held (the backing buffer, not the slice that somebody uses):
//! - *Requests*: a whole request's frame, from before its body is read (a small one: from when it is whole) until it is answered.
//! - *PartialFrames*: what has arrived, and the next piece, of a frame that has a buffer of its own and isn't whole.
//! - *LargeFrames*: the same for frames of several MiB, until they are answered: apart, so that a slow one holds up none of the others. Large enough for one of 100 MiB
//!   in a shard of 256 MiB; what they leave is the batch cache's.
//! - *Tail*: entries that aren't written out yet, and their records on the way to the journal. Only counted ([`Meter`]): an append can't wait. Producers are slowed and
//!   then refused by how full it is, as by the journal.
//! - *Cache*: entries that are written out and still in memory, and what partitions and connections take by themselves. Counted; the oldest entries go when it is full, or
//!   when large frames come. A batch larger than the whole class of fetches borrows from both.
//! - *Fetch*: buffers that segments and extents are read into, taken before the read, with the buffer until its last slice is dropped ([`Lease::attach`]); and
//!   what answers hold of the log's memory, until it has left for the socket.
//! - *Answers*: what other requests are told, when it is more than a little: taken before it is made, until it has left for the socket.
//! - *Work*: what requests are decoded into, and what is gathered for their answers, before these are encoded: an element of an array is a byte on the wire and a hundred in memory.
//! - *Index*: rows of sealed segments' indexes.
//! - *Codecs*: what is decompressed into, and compressed again into, from before it begins until it is done. Who holds it waits for nothing. A window larger than the whole class is
//!   taken when all of it is free, and what it is larger by is counted with the cache.
//!
//! Each class of use has a part of the total for itself, so that no kind of work can starve another, and none waits for what another holds: a request
//! that waits for room in the log's tail can't deadlock with fetches. Within a class it is first come, first served: nobody overtakes, so large takes
//! aren't starved by small ones.
//!
//! Invariants: the bytes granted never exceed a class's cap (what is only counted may, by one append), nor, since the caps add up to it, the total; a waiter that goes away gives up its place and
//! whatever it was granted. What could never be granted is refused. Waiters are bounded by the tasks of the shard. One budget per shard, `Rc`, not
//! `Send`; nothing here does I/O. Called by the connections (requests, partial frames), the log (tail, cache), fetches, and whoever makes an answer.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use smallvec::SmallVec;

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryClass {
    /// Whole requests whose size is known, from before their body is read until they are answered.
    Requests,
    /// Frames that have begun to arrive and may never end.
    PartialFrames,
    /// Large requests, from their first byte until they are answered.
    LargeFrames,
    /// The unflushed tail of the log: appended, not yet written out.
    Tail,
    /// The batch cache.
    Cache,
    /// Fetch answers and the reads behind them.
    Fetch,
    /// Answers to other requests.
    Answers,
    /// Requests while they are carried out: what they are decoded into, and what is gathered for them.
    Work,
    /// Rows of sealed segments' indexes.
    Index,
    /// Windows and blocks of codecs at work.
    Codecs,
}

impl MemoryClass {
    pub const ALL: [MemoryClass; CLASSES] = [
        MemoryClass::Requests,
        MemoryClass::PartialFrames,
        MemoryClass::LargeFrames,
        MemoryClass::Tail,
        MemoryClass::Cache,
        MemoryClass::Fetch,
        MemoryClass::Answers,
        MemoryClass::Work,
        MemoryClass::Index,
        MemoryClass::Codecs,
    ];

    /// The class's cap in hundredths of the total.
    fn percent(self) -> u64 {
        match self {
            MemoryClass::Requests => 11,
            MemoryClass::PartialFrames => 5,
            MemoryClass::LargeFrames => 40,
            MemoryClass::Tail => 14,
            MemoryClass::Cache => 5,
            MemoryClass::Fetch => 14,
            MemoryClass::Answers => 4,
            MemoryClass::Work => 2,
            MemoryClass::Index => 2,
            MemoryClass::Codecs => 3,
        }
    }
}

const CLASSES: usize = 10;

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

    /// Counts what the class's owner bounds by other means than waiting.
    pub fn meter(&self, class: MemoryClass) -> Meter {
        Meter(self.line(class).clone())
    }

    /// Takes back what buffers that were dropped since held, wherever they were dropped, and serves who waits for it. Those who wait should call it now and then.
    pub fn collect(&self, class: MemoryClass) {
        self.line(class).collect();
    }

    /// Bytes of the class in use.
    pub fn used(&self, class: MemoryClass) -> u64 {
        let line = self.line(class);
        line.state.borrow().used - line.returned.load(Ordering::Acquire)
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

/// Leases that one buffer needs.
pub type Leases = SmallVec<[Lease; 2]>;

/// Bytes that give their leases back when the last slice of them is dropped, on whatever thread that is.
pub fn attach<T: AsRef<[u8]> + Send + 'static>(leases: Leases, bytes: T) -> Bytes {
    let mut charges = SmallVec::new();
    for mut lease in leases {
        let units = std::mem::take(&mut lease.0.units);
        charges.push((lease.0.line.returned.clone(), units));
    }
    Bytes::from_owner(Attached { bytes, charges })
}

struct Attached<T> {
    bytes: T,
    charges: SmallVec<[(Arc<AtomicU64>, u64); 2]>,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Attached<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl<T> Drop for Attached<T> {
    fn drop(&mut self) {
        for (returned, units) in &self.charges {
            returned.fetch_add(*units, Ordering::Release);
        }
    }
}

/// Counts bytes of a class without asking for them.
#[derive(Clone)]
pub struct Meter(Rc<Line>);

impl Meter {
    pub fn add(&self, bytes: u64) {
        self.0.state.borrow_mut().used += bytes;
    }

    pub fn sub(&self, bytes: u64) {
        self.0.give_back(bytes);
    }

    pub fn used(&self) -> u64 {
        self.0.collect();
        self.0.state.borrow().used
    }

    pub fn cap(&self) -> u64 {
        self.0.cap
    }
}

/// Units of something for which tasks of one thread wait in line.
pub(crate) struct Line {
    cap: u64,
    state: RefCell<LineState>,
    /// Units of buffers that were dropped, perhaps on another thread, and aren't taken off `used` yet.
    returned: Arc<AtomicU64>,
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
            returned: Arc::default(),
        })
    }

    fn collect(&self) {
        let returned = self.returned.swap(0, Ordering::AcqRel);
        if returned > 0 {
            self.give_back(returned);
        }
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
        self.collect();
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
        let mut wake: SmallVec<[Waker; 4]> = SmallVec::new();
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
        let e = poll(&mut take(&b, MemoryClass::Requests, 111))
            .unwrap()
            .err();
        assert_eq!(
            e,
            Some(TooLarge {
                asked: 111,
                cap: 110
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
        let held = b.try_take(MemoryClass::Requests, 85).unwrap();
        let mut large = take(&b, MemoryClass::Requests, 110);
        let mut small = take(&b, MemoryClass::Requests, 10);
        assert!(poll(&mut large).is_none());
        assert!(
            poll(&mut small).is_none(),
            "it would fit, but may not overtake"
        );
        assert!(b.try_take(MemoryClass::Requests, 10).is_none());
        assert!(
            b.try_take(MemoryClass::Fetch, 140).is_some(),
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
        let held = b.try_take(MemoryClass::Requests, 85).unwrap();
        let mut large = take(&b, MemoryClass::Requests, 110);
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
    #[allow(clippy::disallowed_methods)] // another thread is what it is about
    fn a_buffer_holds_its_lease_until_its_last_slice_goes() {
        let b = Budget::new(1000);
        let leases = Leases::from_iter([
            b.try_take(MemoryClass::Fetch, 100).unwrap(),
            b.try_take(MemoryClass::Cache, 30).unwrap(),
        ]);
        let whole = attach(leases, vec![7u8; 130]);
        let slice = whole.slice(3..5);
        drop(whole);
        let used = || (b.used(MemoryClass::Fetch), b.used(MemoryClass::Cache));
        assert_eq!(used(), (100, 30));
        let mut waiting = take(&b, MemoryClass::Fetch, 100);
        assert!(poll(&mut waiting).is_none());
        std::thread::spawn(move || drop(slice)).join().unwrap();
        assert_eq!(used(), (0, 0));
        b.collect(MemoryClass::Fetch);
        assert_eq!(poll(&mut waiting).unwrap().unwrap().bytes(), 100);
    }

    #[test]
    fn what_is_counted_takes_room_and_never_waits() {
        let b = Budget::new(1000);
        let tail = b.meter(MemoryClass::Tail);
        tail.add(200);
        assert_eq!((b.used_total(), tail.used(), tail.cap()), (200, 200, 140));
        assert!(b.try_take(MemoryClass::Tail, 1).is_none());
        tail.sub(199);
        assert!(b.try_take(MemoryClass::Tail, 1).is_some());
    }

    #[test]
    fn a_lease_shrinks() {
        let b = Budget::new(1000);
        let mut l = b.try_take(MemoryClass::Requests, 105).unwrap();
        l.shrink_to(100);
        l.shrink_to(120);
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
