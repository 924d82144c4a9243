//! The shell of the group coordinators: where they live, what they are asked, and what makes them act.
//!
//! A group belongs to the partition of `__consumer_offsets` that its id hashes to, and its coordinator to the shard that owns this partition
//! ([`partition`]). A handler asks with [`Shard::ask_coordinator`] from any shard ([`calls`]); the topic is made when a coordinator is first looked
//! for ([`topic`]).
//!
//! Each shard runs [`Groups::run`]: it wakes the coordinators whose deadlines have passed, takes up partitions that this shard has come to lead and
//! gives up those that it doesn't lead any more, and has what is too old removed. Memory: what all coordinators of a shard keep is counted in the
//! budget ([`MemoryClass::Cache`]), half of that class at most.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use engine::memory::MemoryClass;
use engine::rt::{self, Queue};
use engine::types::GroupId;

use crate::coordinator::{Event, Name, Now, Settings, own};
use crate::limits;
use crate::shard::{Map, Shard, map};

pub mod calls;
pub mod partition;
mod rewrite;
pub mod topic;

use partition::Partition;

/// The coordinators of a shard.
pub struct Groups {
    pub(crate) calls: calls::Calls,
    partitions: RefCell<Map<GroupId, Rc<Partition>>>,
    /// Memory that all of them take.
    bytes: Cell<usize>,
    /// When the ticking task wakes.
    wakes_ms: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

impl Default for Groups {
    fn default() -> Groups {
        Groups {
            calls: calls::Calls::default(),
            partitions: RefCell::new(map()),
            bytes: Cell::new(0),
            wakes_ms: Cell::new(0),
            waker: RefCell::default(),
        }
    }
}

/// The time for coordinators.
pub(crate) fn now() -> Now {
    Now {
        ms: rt::now().0 / 1_000_000,
        wall_ms: rt::wall_clock_ms(),
    }
}

/// What ids of members are made of.
pub(crate) fn random() -> u128 {
    u128::from(rt::random_u64()) << 64 | u128::from(rt::random_u64())
}

impl Groups {
    /// Runs for ever; one task per shard.
    pub async fn run(shard: Rc<Shard>) {
        let groups = &shard.coordinators;
        let expiring = shard.clone();
        let _expiry = rt::spawn(Queue::Background, async move {
            loop {
                rt::sleep(limits::OFFSETS_RETENTION_CHECK).await;
                for partition in expiring.coordinators.all() {
                    partition.expire(&expiring).await;
                    partition.rewrite().await;
                }
            }
        });
        loop {
            groups.take_up(&shard);
            let now = now();
            for partition in groups.all() {
                if partition.next_deadline().is_some_and(|at| at <= now.ms) {
                    partition.drive(&shard, Event::Tick);
                    rt::yield_if_needed().await;
                }
            }
            let next = groups.all().iter().filter_map(|p| p.next_deadline()).min();
            let look = now.ms + limits::COORDINATOR_LOOK.as_millis() as u64;
            groups.wakes_ms.set(next.unwrap_or(look).min(look));
            groups.sleep().await;
        }
    }

    /// Sleeps until the earliest deadline.
    async fn sleep(&self) {
        loop {
            let left = self.wakes_ms.get().saturating_sub(now().ms);
            if left == 0 {
                return;
            }
            let mut first = true;
            let sooner = poll_fn(|cx| {
                if !std::mem::take(&mut first) {
                    return Poll::Ready(());
                }
                *self.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            });
            // Polled again: by the timer, or by somebody with an earlier deadline.
            let _ = rt::timeout(Duration::from_millis(left), sooner).await;
        }
    }

    /// A coordinator has a deadline.
    fn wake_by(&self, at_ms: u64) {
        if at_ms < self.wakes_ms.get() {
            self.wakes_ms.set(at_ms);
            let waker = self.waker.borrow_mut().take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn all(&self) -> Vec<Rc<Partition>> {
        self.partitions.borrow().values().cloned().collect()
    }

    /// Takes up the partitions that this shard leads, and gives up those that it doesn't.
    fn take_up(&self, shard: &Rc<Shard>) {
        for partition in self.all() {
            if !partition.is_led() {
                self.give_up(shard, &partition);
            }
        }
        let Some(topic) = shard.view.topic(topic::NAME) else {
            return;
        };
        for number in 0..topic.partitions.len() as i32 {
            let group = topic.group(number);
            if shard.owner(group) == shard.id {
                self.partition(shard, group);
            }
        }
    }

    /// The partition, if this shard leads it; it may have to be loaded first.
    fn partition(&self, shard: &Rc<Shard>, id: GroupId) -> Option<Rc<Partition>> {
        let found = self.partitions.borrow().get(&id).cloned();
        match found {
            Some(partition) if partition.is_led() && !partition.is_spent() => {
                return Some(partition);
            }
            Some(partition) => self.give_up(shard, &partition),
            None => {}
        }
        let group = shard.groups.get(id).filter(|g| g.serves())?;
        let partition = Partition::take(group, shard.groups.shard_log().largest_in_journal());
        self.partitions.borrow_mut().insert(id, partition.clone());
        partition.load(shard);
        Some(partition)
    }

    /// Forgets a partition's coordinator; who waits for it must look for another.
    pub(crate) fn give_up(&self, shard: &Rc<Shard>, partition: &Rc<Partition>) {
        let mut partitions = self.partitions.borrow_mut();
        let same = partitions
            .get(&partition.id())
            .is_some_and(|p| Rc::ptr_eq(p, partition));
        if same {
            partitions.swap_remove(&partition.id());
        }
        drop(partitions);
        partition.end(shard);
    }

    /// Counts what a coordinator's memory has become.
    fn count(&self, shard: &Shard, before: usize, after: usize) {
        self.bytes.set(self.bytes.get() - before + after);
        let meter = shard.budget.meter(MemoryClass::Cache);
        if after > before {
            meter.add((after - before) as u64);
        } else {
            meter.sub((before - after) as u64);
        }
    }

    /// What a coordinator goes by that has `bytes` now.
    fn memory_for(&self, shard: &Shard, bytes: usize) -> usize {
        let all = usize::try_from(shard.budget.cap(MemoryClass::Cache) / 2).unwrap_or(usize::MAX);
        all.saturating_sub(self.bytes.get() - bytes)
    }

    fn settings(shard: &Shard) -> Settings {
        shard.config.groups.clone()
    }

    /// A topic was deleted.
    pub(crate) fn topic_deleted(&self, shard: &Rc<Shard>, topic: &str) {
        let name: Name = own(topic);
        for partition in self.all() {
            partition.drive(shard, Event::TopicDeleted(name.clone()));
        }
    }
}
