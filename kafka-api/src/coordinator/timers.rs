//! Deadlines of a coordinator, by what they are for: set, moved and cancelled by key, taken in order of time.
//!
//! One deadline per key. Bound: one for each member or pending member, and two for each group.

use std::collections::BTreeSet;

use super::Name;
use crate::shard::{Map, map};

/// What a deadline is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// The members of a group have had their time to join.
    Join(Name),
    /// The members of a group have had their time to fetch their assignments.
    Sync(Name),
    /// A member, or one that was only given its id, was not heard of. Group, then member.
    Session(Name, Name),
}

/// See the module. Times are milliseconds of a clock that never goes back.
#[derive(Debug)]
pub struct Timers {
    at: Map<Timer, u64>,
    order: BTreeSet<(u64, Timer)>,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            at: map(),
            order: BTreeSet::new(),
        }
    }
}

impl Timers {
    /// Sets a deadline, in place of the key's earlier one.
    pub fn set(&mut self, timer: Timer, at_ms: u64) {
        if let Some(before) = self.at.insert(timer.clone(), at_ms) {
            self.order.remove(&(before, timer.clone()));
        }
        self.order.insert((at_ms, timer));
    }

    pub fn cancel(&mut self, timer: &Timer) {
        if let Some(at) = self.at.swap_remove(timer) {
            self.order.remove(&(at, timer.clone()));
        }
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<u64> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes the earliest deadline if it has passed.
    pub fn take_due(&mut self, now_ms: u64) -> Option<Timer> {
        if self.next()? > now_ms {
            return None;
        }
        let (_, timer) = self.order.pop_first()?;
        self.at.swap_remove(&timer);
        Some(timer)
    }

    pub fn len(&self) -> usize {
        self.at.len()
    }

    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_the_last_word_counts() {
        let mut t = Timers::default();
        let join = |g: &str| Timer::Join(g.to_string().into());
        t.set(join("a"), 30);
        t.set(join("b"), 20);
        t.set(join("a"), 10);
        t.set(join("c"), 5);
        t.cancel(&join("c"));
        assert_eq!(t.next(), Some(10));
        assert_eq!(t.take_due(9), None);
        assert_eq!(t.take_due(25), Some(join("a")));
        assert_eq!(t.take_due(25), Some(join("b")));
        assert_eq!(t.take_due(25), None);
        assert!(t.is_empty() && t.order.is_empty());
    }
}
