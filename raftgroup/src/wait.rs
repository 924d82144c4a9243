//! Waiting for commits: one slab of wakers per group, nothing allocated per wait once the slab has grown.
//!
//! A wait stands for an entry. It ends well when the commit index (for a produce) or the applied index (for commands and trims) reaches the
//! entry, and with an error when the group stops being able to tell. Waits lie in a queue by index, so that moving the commit index touches
//! only those that it ends. A future that is dropped leaves a mark, and its slot goes when the queue reaches it.
//!
//! Bound: [`limits::WAITS_PER_GROUP`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use engine::types::RaftIndex;
use slab::Slab;

use crate::api::ProduceError;
use crate::limits;

/// What a wait waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Committed,
    Applied,
}

#[derive(Debug)]
enum Slot {
    Waiting(Option<Waker>),
    Ended(Result<(), ProduceError>),
    /// The future is gone; the queue still names the slot.
    Abandoned,
}

#[derive(Debug, Default)]
pub(crate) struct Waits {
    slots: Slab<Slot>,
    committed: VecDeque<(RaftIndex, usize)>,
    applied: VecDeque<(RaftIndex, usize)>,
}

impl Waits {
    pub fn has_room(&self) -> bool {
        self.slots.len() < limits::WAITS_PER_GROUP
    }

    fn queue(&mut self, until: Until) -> &mut VecDeque<(RaftIndex, usize)> {
        match until {
            Until::Committed => &mut self.committed,
            Until::Applied => &mut self.applied,
        }
    }

    fn add(&mut self, until: Until, index: RaftIndex) -> usize {
        let key = self.slots.insert(Slot::Waiting(None));
        let queue = self.queue(until);
        if queue.back().is_none_or(|(last, _)| *last <= index) {
            queue.push_back((index, key));
        } else {
            // A repeat of a batch that is in flight waits for an entry further in front.
            let at = queue.partition_point(|(i, _)| *i <= index);
            queue.insert(at, (index, key));
        }
        key
    }

    /// Ends well all waits for entries up to `index`; their wakers are for the caller to wake once nothing is borrowed.
    pub fn end_up_to(&mut self, until: Until, index: RaftIndex, wakers: &mut Vec<Waker>) {
        while let Some((_, key)) = self.queue(until).pop_front_if(|(i, _)| *i <= index) {
            self.end(key, Ok(()), wakers);
        }
    }

    /// Ends all waits for entries above `index` with an error.
    pub fn fail_above(&mut self, index: RaftIndex, why: ProduceError, wakers: &mut Vec<Waker>) {
        for until in [Until::Committed, Until::Applied] {
            while let Some((_, key)) = self.queue(until).pop_back_if(|(i, _)| *i > index) {
                self.end(key, Err(why), wakers);
            }
        }
    }

    fn end(&mut self, key: usize, result: Result<(), ProduceError>, wakers: &mut Vec<Waker>) {
        match std::mem::replace(&mut self.slots[key], Slot::Ended(result)) {
            Slot::Waiting(waker) => wakers.extend(waker),
            Slot::Abandoned => drop(self.slots.remove(key)),
            Slot::Ended(_) => unreachable!("a queue names each wait once"),
        }
    }

    fn poll(&mut self, key: usize, cx: &Context<'_>) -> Poll<Result<(), ProduceError>> {
        match &mut self.slots[key] {
            Slot::Ended(result) => {
                let result = *result;
                self.slots.remove(key);
                Poll::Ready(result)
            }
            Slot::Waiting(waker) => {
                match waker {
                    Some(w) => w.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            Slot::Abandoned => unreachable!("an abandoned wait has no future"),
        }
    }

    fn abandon(&mut self, key: usize) {
        match &mut self.slots[key] {
            Slot::Ended(_) => drop(self.slots.remove(key)),
            slot => *slot = Slot::Abandoned,
        }
    }
}

/// Ends with `T` when the entry that it stands for is committed, or applied where that was asked for. Dropping it is fine at any time.
#[must_use = "dropping it does not take the proposal back"]
pub struct CommitWait<T> {
    waits: Rc<RefCell<Waits>>,
    /// None once it has ended.
    key: Option<usize>,
    value: Option<T>,
}

impl<T> CommitWait<T> {
    pub(crate) fn new(
        waits: &Rc<RefCell<Waits>>,
        until: Until,
        index: RaftIndex,
        value: T,
    ) -> CommitWait<T> {
        CommitWait {
            key: Some(waits.borrow_mut().add(until, index)),
            waits: waits.clone(),
            value: Some(value),
        }
    }

    /// One that has ended already.
    pub(crate) fn ready(waits: &Rc<RefCell<Waits>>, value: T) -> CommitWait<T> {
        CommitWait {
            key: None,
            waits: waits.clone(),
            value: Some(value),
        }
    }
}

impl<T> fmt::Debug for CommitWait<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommitWait")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

// The value is only moved out, never pinned.
impl<T> Unpin for CommitWait<T> {}

impl<T> Future for CommitWait<T> {
    type Output = Result<T, ProduceError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some(key) = this.key {
            match this.waits.borrow_mut().poll(key, cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(result) => {
                    this.key = None;
                    if let Err(why) = result {
                        return Poll::Ready(Err(why));
                    }
                }
            }
        }
        let value = this
            .value
            .take()
            .expect("a future is not polled after its end");
        Poll::Ready(Ok(value))
    }
}

impl<T> Drop for CommitWait<T> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.waits.borrow_mut().abandon(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll<T>(w: &mut CommitWait<T>, count: &Arc<Count>) -> Poll<Result<T, ProduceError>> {
        let waker = Waker::from(count.clone());
        Pin::new(w).poll(&mut Context::from_waker(&waker))
    }

    fn wake(waits: &Rc<RefCell<Waits>>, f: impl FnOnce(&mut Waits, &mut Vec<Waker>)) {
        let mut wakers = Vec::new();
        f(&mut waits.borrow_mut(), &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    #[test]
    fn a_commit_ends_what_it_covers_and_no_more() {
        let waits = Rc::new(RefCell::new(Waits::default()));
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let mut all: Vec<_> = [3u64, 5, 4, 9]
            .iter()
            .map(|i| CommitWait::new(&waits, Until::Committed, RaftIndex(*i), *i))
            .collect();
        for w in &mut all {
            assert!(poll(w, &count).is_pending());
        }
        wake(&waits, |w, out| {
            w.end_up_to(Until::Committed, RaftIndex(4), out);
        });
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert_eq!(poll(&mut all[0], &count), Poll::Ready(Ok(3)));
        assert!(poll(&mut all[1], &count).is_pending());
        assert_eq!(poll(&mut all[2], &count), Poll::Ready(Ok(4)));
        wake(&waits, |w, out| {
            w.fail_above(RaftIndex(5), ProduceError::NotLeader, out);
        });
        assert_eq!(
            poll(&mut all[3], &count),
            Poll::Ready(Err(ProduceError::NotLeader))
        );
        assert!(poll(&mut all[1], &count).is_pending());
        drop(all);
        wake(&waits, |w, out| {
            w.end_up_to(Until::Committed, RaftIndex(5), out);
        });
        assert!(waits.borrow().slots.is_empty());
    }

    #[test]
    fn a_dropped_wait_leaves_nothing_behind() {
        let waits = Rc::new(RefCell::new(Waits::default()));
        let before = CommitWait::new(&waits, Until::Applied, RaftIndex(1), ());
        let after = CommitWait::new(&waits, Until::Applied, RaftIndex(1), ());
        drop(before);
        wake(&waits, |w, out| {
            w.end_up_to(Until::Committed, RaftIndex(7), out);
        });
        assert_eq!(waits.borrow().slots.len(), 2);
        wake(&waits, |w, out| {
            w.end_up_to(Until::Applied, RaftIndex(1), out);
        });
        drop(after);
        assert!(waits.borrow().slots.is_empty());
        drop(CommitWait::ready(&waits, 7));
    }
}
