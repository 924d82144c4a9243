//! Memory that a request takes while it is carried out, besides its frame and the bytes of its answer: what it is decoded into, and what is gathered for it.
//!
//! An element of an array is a byte or two on the wire and hundreds in memory, with its row of the answer; and a list of all there is is asked for with twenty bytes. So both are counted, in a class of their own
//! ([`MemoryClass::Work`]), from before the request is decoded until its answer is encoded. A small request takes no lease. Very large ones come one at a time and are charged half of the class at most, so that the
//! others have the rest, however long one waits for the memory of its answer. What is gathered isn't known before: it is leased as it grows, and where there is no room, whoever gathers lets go of everything,
//! waits for the turn of the very large ones, and begins anew ([`Work::anew`]).
//!
//! Nobody waits for it who holds memory that its holders wait for: a frame's lease is taken before, those of answers, reads and codecs after. Who waits for others, in a long poll or a rebalance, gives it back first.

use std::rc::Rc;

use engine::memory::{Budget, Leases, MemoryClass};
use engine::rt;

use crate::error::Malformed;
use crate::frame::Request;
use crate::limits;
use crate::schema;
use crate::sync::{Permit, Semaphore};

/// A shard's.
pub struct Room {
    budget: Rc<Budget>,
    /// Of very large ones.
    turns: Semaphore,
}

impl Room {
    pub fn new(budget: Rc<Budget>) -> Room {
        Room {
            budget,
            turns: Semaphore::new(1),
        }
    }

    fn cap(&self) -> u64 {
        self.budget.cap(MemoryClass::Work)
    }
}

/// See the module.
#[derive(Default)]
pub struct Work {
    leases: Leases,
    /// What is counted, and what of it is leased.
    bytes: u64,
    leased: u64,
    /// It is a very large one, whose turn it is.
    turn: Option<Permit>,
}

impl Work {
    /// Takes what a request will be decoded into, by the number of elements in it; waits in line if there is no room. Walks the request, unless it is read by hand and small.
    pub(crate) async fn begin(room: &Room, request: &mut Request) -> Result<Work, Malformed> {
        if schema::is_by_hand(request.api.key)
            && request.body.left() <= limits::UNWEIGHED_REQUEST_BYTES
        {
            return Ok(Work::default());
        }
        let elements = schema::check(request)?;
        request.checked = true;
        let work = Work::of(room, elements * limits::ELEMENT_BYTES).await;
        if work.leased > 0 {
            // A large one is decoded in one step.
            rt::yield_if_needed().await;
        }
        Ok(work)
    }

    async fn of(room: &Room, bytes: usize) -> Work {
        let mut work = Work {
            bytes: bytes as u64,
            ..Work::default()
        };
        if work.bytes > limits::UNLEASED_WORK_BYTES {
            work.take(room, work.bytes).await;
        }
        work
    }

    async fn take(&mut self, room: &Room, bytes: u64) {
        if bytes > room.cap() / limits::SHARE_OF_WORK {
            self.turn = Some(room.turns.take().await);
        }
        self.leased = bytes.min(room.cap() / 2);
        let lease = room.budget.take(MemoryClass::Work, self.leased).await;
        let lease = lease.expect("half of the class is not more than it has");
        self.leases.push(lease);
    }

    /// Counts what was gathered. `false` says that there is no room for it.
    #[must_use = "without room, what was gathered goes"]
    pub(crate) fn grow(&mut self, room: &Room, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        if self.turn.is_some() || self.bytes <= self.leased.max(limits::UNLEASED_WORK_BYTES) {
            return true;
        }
        let piece = (self.bytes - self.leased).max(limits::WORK_PIECE_BYTES);
        if self.leased + piece > room.cap() / 2 {
            return false;
        }
        let Some(lease) = room.budget.try_take(MemoryClass::Work, piece) else {
            return false;
        };
        self.leases.push(lease);
        self.leased += piece;
        true
    }

    /// Gives everything back and waits for the turn of a very large one, which has as much as it wants. The caller has let go of what it had gathered, and of what it had decoded.
    pub(crate) async fn anew(&mut self, room: &Room) {
        self.let_go();
        self.take(room, room.cap()).await;
    }

    /// Nothing of it is held any more, or it is counted elsewhere.
    pub(crate) fn let_go(&mut self) {
        *self = Work::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::testing::run;
    use crate::sync::poll_once;
    use std::pin::pin;

    /// The class has 20,000 elements.
    fn room() -> Room {
        Room::new(Budget::new(
            (100 * 20_000 * limits::ELEMENT_BYTES / 2) as u64,
        ))
    }

    fn used(room: &Room) -> usize {
        room.budget.used(MemoryClass::Work) as usize / limits::ELEMENT_BYTES
    }

    #[test]
    fn small_ones_are_free_and_large_ones_wait_for_each_other() {
        let room = room();
        let of = |n: usize| Work::of(&room, n * limits::ELEMENT_BYTES);
        let small = run(of(500));
        assert_eq!(used(&room), 0);
        let large = run(of(100_000));
        assert_eq!(used(&room), 10_000, "half of the class");
        run(async {
            let mut other = pin!(of(6_000));
            assert!(poll_once(&mut other).await.is_none(), "one at a time");
            let medium = [of(5_000).await, of(5_000).await];
            assert_eq!(used(&room), 20_000, "the others have the rest");
            let mut third = pin!(of(600));
            assert!(poll_once(&mut third).await.is_none());
            drop(medium);
            drop(third.await);
            drop(large);
            other.await;
        });
        drop(small);
        assert_eq!(used(&room), 0);
    }

    #[test]
    fn what_is_gathered_has_room_or_begins_anew_in_its_turn() {
        let room = room();
        let element = limits::ELEMENT_BYTES;
        let mut first = Work::default();
        assert!(first.grow(&room, 500 * element));
        assert_eq!(used(&room), 0);
        assert!(first.grow(&room, 9_000 * element));
        assert_eq!(used(&room), 9_500);
        assert!(!first.grow(&room, 9_000 * element), "more than its part");
        run(first.anew(&room));
        assert_eq!(used(&room), 10_000);
        assert!(first.grow(&room, 1_000_000 * element), "it is its turn");
        let mut second = Work::default();
        assert!(second.grow(&room, 9_000 * element));
        let mut third = Work::default();
        assert!(!third.grow(&room, 9_000 * element), "there is no room");
        run(async {
            let mut anew = pin!(third.anew(&room));
            assert!(poll_once(&mut anew).await.is_none());
            first.let_go();
            anew.await;
        });
        assert!(third.grow(&room, 1_000_000 * element));
        drop((second, third));
        assert_eq!(used(&room), 0);
    }
}
