//! How many connections there may be: in all, from one address, and new ones a second.
//!
//! Shard 0 keeps count for all shards, so that the numbers are exact: a shard that has accepted a connection asks it, and tells it when a counted connection ends. Where nothing is limited nobody asks. As in
//! Kafka, too many in all, or too many a second, make the listeners wait, so that clients stand in the system's backlog; too many of one address are closed at once, and too many of one address a second are closed when
//! that second is over, so that they don't come back all the sooner. A listener asks about one connection at a time: so at most one of each shard waits.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use cluster::broker_config::BrokerConfig;
use cluster::quota::Key;
use engine::ring::Class;
use engine::rt;
use engine::types::ShardId;

use super::{Charge, Kind, Payer};
use crate::request::{ShardReply, ShardRequest};
use crate::shard::{Map, Shard, map};
use crate::sync::{Permit, Semaphore};

/// What a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is counted, if there is a limit to count for.
    Enter,
    /// Its address has as many as it may.
    TooMany,
    /// Its address opens too many a second: it goes after so many milliseconds.
    TooFast(u32),
}

/// What a node allows.
#[derive(Clone, Debug)]
pub struct Rules {
    in_all: Option<usize>,
    of_an_address: Option<usize>,
    overrides: Vec<(IpAddr, usize)>,
    a_second: Option<f64>,
}

impl Rules {
    pub fn new(broker: &BrokerConfig) -> Rules {
        let limit = |n: i32| (n < i32::MAX).then(|| usize::try_from(n).unwrap_or(0));
        Rules {
            in_all: limit(broker.max_connections),
            of_an_address: limit(broker.max_connections_per_ip),
            overrides: broker
                .max_connections_per_ip_overrides
                .iter()
                .map(|(ip, n)| (ip.to_canonical(), usize::try_from(*n).unwrap_or(0)))
                .collect(),
            a_second: limit(broker.max_connection_creation_rate).map(|n| n as f64),
        }
    }

    /// Whether connections are counted.
    fn count(&self) -> bool {
        self.in_all.is_some() || self.of_an_address.is_some() || !self.overrides.is_empty()
    }

    fn limit_of(&self, ip: IpAddr) -> Option<usize> {
        let own = self.overrides.iter().find(|(known, _)| *known == ip);
        own.map(|(_, n)| *n).or(self.of_an_address)
    }
}

/// The connections of the node, as shard 0 counts them.
pub struct Admission {
    rules: Rules,
    slots: Option<Semaphore>,
    book: RefCell<Book>,
}

#[derive(Default)]
struct Book {
    /// One for each connection, where they are limited in all.
    taken: Vec<Permit>,
    by_address: ByAddress,
}

/// Connections of each address that has some.
struct ByAddress(Map<IpAddr, usize>);

impl Default for ByAddress {
    fn default() -> ByAddress {
        ByAddress(map())
    }
}

impl ByAddress {
    /// Counts one more, unless there are as many as there may be.
    fn enter(&mut self, ip: IpAddr, limit: Option<usize>) -> bool {
        let has = self.0.get(&ip).copied().unwrap_or(0);
        if limit.is_some_and(|limit| has >= limit) {
            return false;
        }
        self.0.insert(ip, has + 1);
        true
    }

    fn leave(&mut self, ip: IpAddr) {
        if let Some(has) = self.0.get_mut(&ip) {
            *has -= 1;
            if *has == 0 {
                self.0.swap_remove(&ip);
            }
        }
    }
}

impl Admission {
    pub fn new(rules: Rules) -> Admission {
        Admission {
            slots: rules.in_all.map(Semaphore::new),
            rules,
            book: RefCell::default(),
        }
    }

    /// A connection has ended.
    pub fn leave(&self, ip: IpAddr) {
        let mut book = self.book.borrow_mut();
        book.by_address.leave(ip);
        let permit = book.taken.pop();
        // Whoever waits for it is woken, not run.
        drop(book);
        drop(permit);
    }
}

impl Shard {
    /// Whether a connection needs leave to enter.
    pub(crate) fn limits_connections(&self) -> bool {
        let rules = &self.admission.rules;
        rules.count()
            || rules.a_second.is_some()
            || self.view.any_quota(Key::ConnectionCreationRate)
    }

    /// Asks shard 0 for leave for a connection that was accepted. Waits while there are too many in all.
    pub(crate) async fn ask_to_enter(self: &Rc<Self>, ip: IpAddr) -> Verdict {
        let request = ShardRequest::Enter(ip);
        match self.ask(ShardId(0), Class::Waiter, request).await {
            Ok(ShardReply::Entered(verdict)) => verdict,
            // It is ending the process.
            _ => Verdict::TooMany,
        }
    }

    /// Tells shard 0 that a connection that was let in has ended.
    pub(crate) fn left(self: &Rc<Self>, ip: IpAddr) {
        if !self.admission.rules.count() {
            return;
        }
        if self.id == ShardId(0) {
            self.admission.leave(ip);
            return;
        }
        let shard = self.clone();
        rt::spawn(rt::Queue::Latency, async move {
            shard.rpc.cast(0, ShardRequest::Left(ip)).await;
        })
        .detach();
    }

    /// On shard 0: waits until there is room in all, and decides.
    pub(crate) async fn let_in(&self, ip: IpAddr) -> Verdict {
        let rules = &self.admission.rules;
        let charge = |kind, client: Option<Box<str>>, limit| Charge {
            payer: Payer { user: None, client },
            kind,
            amount: 1.0,
            limit,
        };
        if let Some(limit) = rules.a_second {
            let wait_ms = self.enter(charge(Kind::Accepted, None, limit));
            rt::sleep(Duration::from_millis(u64::from(wait_ms))).await;
        }
        let permit = match &self.admission.slots {
            Some(slots) => Some(slots.take().await),
            None => None,
        };
        let limit = self.view.quotas().connection_rate(ip);
        if let Some(limit) = limit {
            let address = ip.to_string().into_boxed_str();
            let wait_ms = self.enter(charge(Kind::Connected, Some(address), limit));
            if wait_ms > 0 {
                return Verdict::TooFast(wait_ms);
            }
        }
        if !rules.count() {
            return Verdict::Enter;
        }
        let mut book = self.admission.book.borrow_mut();
        if !book.by_address.enter(ip, rules.limit_of(ip)) {
            return Verdict::TooMany;
        }
        book.taken.extend(permit);
        Verdict::Enter
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, n])
    }

    #[test]
    fn an_address_has_its_own_limit_or_that_of_all() {
        let rules = Rules::new(&BrokerConfig {
            max_connections_per_ip: 2,
            max_connections_per_ip_overrides: vec![(ip(9), 0)],
            ..BrokerConfig::default()
        });
        assert!(rules.count() && rules.in_all.is_none() && rules.a_second.is_none());
        assert_eq!(rules.limit_of(ip(1)), Some(2));
        assert_eq!(rules.limit_of(ip(9)), Some(0));
        assert!(!Rules::new(&BrokerConfig::default()).count());
    }

    proptest! {
        /// Whatever comes and goes: no address has more than its limit, and nothing is remembered of those that have none.
        #[test]
        fn no_address_passes_its_limit(steps in prop::collection::vec((0u8..4, any::<bool>()), 0..200), limit in 0usize..4) {
            let mut book = ByAddress::default();
            let mut has = [0usize; 4];
            for (n, enters) in steps {
                let at = usize::from(n);
                if enters {
                    let entered = book.enter(ip(n), Some(limit));
                    prop_assert_eq!(entered, has[at] < limit);
                    has[at] += usize::from(entered);
                } else if has[at] > 0 {
                    book.leave(ip(n));
                    has[at] -= 1;
                }
                prop_assert_eq!(book.0.len(), has.iter().filter(|n| **n > 0).count());
            }
        }
    }
}
