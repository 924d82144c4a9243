//! Things in the order of their last use, each with a cost: what was used longest ago goes first.
//!
//! Plain data. The owner keeps the [`Use`] of each thing beside it, tells every use and takes what it wants to be rid of; the sum of the costs is the owner's bound
//! to keep. Every step costs O(log n). Used for open files, rows of indexes and ranges that were read ahead.

use std::collections::BTreeMap;

/// When a thing was last used; names it in its [`Lru`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use(u64);

#[derive(Debug)]
pub(crate) struct Lru<T> {
    order: BTreeMap<Use, (T, u64)>,
    next: u64,
    cost: u64,
}

impl<T> Default for Lru<T> {
    fn default() -> Lru<T> {
        Lru {
            order: BTreeMap::new(),
            next: 0,
            cost: 0,
        }
    }
}

impl<T> Lru<T> {
    /// Costs of all that is in it.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    #[must_use = "nothing else names it"]
    pub fn add(&mut self, item: T, cost: u64) -> Use {
        let at = Use(self.next);
        self.next += 1;
        self.cost += cost;
        self.order.insert(at, (item, cost));
        at
    }

    /// It is used now; the returned name replaces the one given.
    #[must_use = "the old name names nothing"]
    pub fn touch(&mut self, at: Use) -> Use {
        match self.remove(at) {
            Some((item, cost)) => self.add(item, cost),
            None => at,
        }
    }

    pub fn remove(&mut self, at: Use) -> Option<(T, u64)> {
        let gone = self.order.remove(&at)?;
        self.cost -= gone.1;
        Some(gone)
    }

    /// From the one used longest ago on.
    pub fn oldest_first(&self) -> impl Iterator<Item = (Use, &T)> {
        self.order.iter().map(|(at, (item, _))| (*at, item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list in which every use moves a thing to the end.
        #[test]
        fn the_order_is_that_of_the_last_uses(ops in prop::collection::vec((0..3u8, 0..8usize, 0..50u64), 1..100)) {
            let mut lru = Lru::default();
            let mut list: Vec<(u32, u64, Use)> = Vec::new();
            let mut name = 0;
            for (op, pick, cost) in ops {
                let pick = pick % list.len().max(1);
                match op {
                    0 => {
                        list.push((name, cost, lru.add(name, cost)));
                        name += 1;
                    }
                    1 if !list.is_empty() => {
                        let (n, c, at) = list.remove(pick);
                        list.push((n, c, lru.touch(at)));
                    }
                    2 if !list.is_empty() => {
                        let (n, c, at) = list.remove(pick);
                        prop_assert_eq!(lru.remove(at), Some((n, c)));
                        prop_assert_eq!(lru.remove(at), None);
                    }
                    _ => {}
                }
                let order: Vec<_> = lru.oldest_first().map(|(at, n)| (at, *n)).collect();
                let expected: Vec<_> = list.iter().map(|(n, _, at)| (*at, *n)).collect();
                prop_assert_eq!(order, expected);
                prop_assert_eq!(lru.cost(), list.iter().map(|(_, c, _)| c).sum::<u64>());
            }
        }
    }
}
