//! Long polls on the shard that owns the partitions: who waits, for how much, and what moved.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use engine::memory::{Leases, MemoryClass};
use engine::rt::{self, Queue};
use engine::types::GroupId;
use raftgroup::{Group, SubscriptionKey, Watcher};

use crate::limits;
use crate::request::{FetchReply, ShardRequest};
use crate::shard::{Map, Shard, map};

/// One fetch that waits. Groups tell it when they move; the caller tells it when it needs less.
pub struct Waiter {
    /// Groups that moved since they were looked at.
    moved: RefCell<Map<GroupId, ()>>,
    min_bytes: Cell<usize>,
    /// The caller is gone.
    cancelled: Cell<bool>,
    stirred: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Waiter {
    pub fn new() -> Rc<Waiter> {
        Rc::new(Waiter {
            moved: RefCell::new(map()),
            min_bytes: Cell::new(usize::MAX),
            cancelled: Cell::new(false),
            stirred: Cell::new(false),
            waker: RefCell::default(),
        })
    }

    /// The bytes to wait for: what the call said, or less if the caller has said so since.
    pub fn min_bytes(&self, asked: usize) -> usize {
        self.min_bytes.get().min(asked)
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    /// Waits until something moved or the caller spoke; gives what moved.
    pub async fn stirred(&self) -> Map<GroupId, ()> {
        poll_fn(|cx| {
            if self.stirred.replace(false) {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        self.moved.replace(map())
    }

    fn stir(&self) {
        self.stirred.set(true);
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Watcher for Waiter {
    fn moved(&self, group: GroupId) {
        // One entry per group and look.
        self.moved.borrow_mut().insert(group, ());
        self.stir();
    }
}

/// The subscriptions of one waiter; they end with it.
#[derive(Default)]
pub struct Subscriptions(Vec<(Rc<Group>, SubscriptionKey)>);

impl Subscriptions {
    pub fn add(&mut self, group: Rc<Group>, waiter: &Rc<Waiter>) {
        let weak: Weak<Waiter> = Rc::downgrade(waiter);
        let key = group.subscribe(weak);
        self.0.push((group, key));
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for (group, key) in self.0.drain(..) {
            group.unsubscribe(key);
        }
    }
}

/// The fetches that other shards (and this one, when a fetch touches several) have under way here, by caller and the caller's number.
pub struct Fetches {
    waiters: RefCell<Map<(usize, u64), Rc<Waiter>>>,
    /// Memory of answers that their callers have not written yet.
    leases: RefCell<Map<(usize, u64), Leases>>,
    next: Cell<u64>,
    /// Partitions of the fetches of this shard's connections.
    polled: Cell<usize>,
    /// This shard's fetches at others, by their numbers.
    asked: RefCell<Map<u64, Asked>>,
    /// Answers to other shards on their way into the rings: no more than those have connections.
    answers: RefCell<VecDeque<(usize, u64, Box<FetchReply>)>>,
    sending: Cell<bool>,
}

#[derive(Default)]
struct Asked {
    reply: Option<FetchReply>,
    waker: Option<Waker>,
}

/// A fetch at another shard, in the books until it is answered or given up.
pub struct Question<'a> {
    fetches: &'a Fetches,
    id: u64,
}

impl Question<'_> {
    pub async fn answered(&self) -> FetchReply {
        poll_fn(|cx| {
            let mut asked = self.fetches.asked.borrow_mut();
            let mine = asked
                .get_mut(&self.id)
                .expect("a question stays until it is dropped");
            match mine.reply.take() {
                Some(reply) => Poll::Ready(reply),
                None => {
                    mine.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.fetches.asked.borrow_mut().swap_remove(&self.id);
    }
}

/// A fetch that may wait, in the books.
pub struct Polling<'a> {
    shard: &'a Shard,
    parts: usize,
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        let polled = &self.shard.fetches.polled;
        polled.set(polled.get() - self.parts);
        let memory = self.shard.budget.meter(MemoryClass::Cache);
        memory.sub((self.parts * limits::LONG_POLL_PARTITION_BYTES) as u64);
    }
}

impl Default for Fetches {
    fn default() -> Fetches {
        Fetches {
            waiters: RefCell::new(map()),
            leases: RefCell::new(map()),
            next: Cell::new(0),
            polled: Cell::new(0),
            asked: RefCell::new(map()),
            answers: RefCell::default(),
            sending: Cell::new(false),
        }
    }
}

impl Fetches {
    /// Counts a fetch of this shard's connections that wants to wait. None: there are too many partitions that are waited for, so it may not.
    pub fn polls<'a>(&self, shard: &'a Shard, parts: usize) -> Option<Polling<'a>> {
        let polled = self.polled.get() + parts;
        if polled > limits::LONG_POLL_PARTITIONS {
            return None;
        }
        self.polled.set(polled);
        let memory = shard.budget.meter(MemoryClass::Cache);
        memory.add((parts * limits::LONG_POLL_PARTITION_BYTES) as u64);
        Some(Polling { shard, parts })
    }

    /// A number for a call of this shard.
    pub fn next_id(&self) -> u64 {
        let id = self.next.get();
        self.next.set(id + 1);
        id
    }

    /// Puts a fetch that goes to another shard into the books.
    pub fn ask(&self, id: u64) -> Question<'_> {
        self.asked.borrow_mut().insert(id, Asked::default());
        Question { fetches: self, id }
    }

    /// The answer of another shard. Whoever gave up has told that shard so.
    pub fn arrived(&self, id: u64, reply: FetchReply) {
        let mut asked = self.asked.borrow_mut();
        let Some(mine) = asked.get_mut(&id) else {
            return;
        };
        mine.reply = Some(reply);
        let waker = mine.waker.take();
        drop(asked);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Sends an answer to the shard that asked; never waits.
    pub fn answer(&self, shard: &Rc<Shard>, to: usize, id: u64, reply: FetchReply) {
        let mut answers = self.answers.borrow_mut();
        answers.push_back((to, id, Box::new(reply)));
        drop(answers);
        if self.sending.replace(true) {
            return;
        }
        let shard = shard.clone();
        rt::spawn(Queue::Latency, async move {
            let fetches = &shard.fetches;
            loop {
                let next = fetches.answers.borrow_mut().pop_front();
                let Some((to, id, reply)) = next else {
                    break;
                };
                shard.rpc.cast(to, ShardRequest::Fetched(id, reply)).await;
            }
            fetches.sending.set(false);
        })
        .detach();
    }

    pub fn register(&self, from: usize, call: u64) -> Rc<Waiter> {
        let waiter = Waiter::new();
        self.waiters
            .borrow_mut()
            .insert((from, call), waiter.clone());
        waiter
    }

    pub fn less(&self, from: usize, call: u64, min_bytes: usize) {
        if let Some(waiter) = self.waiters.borrow().get(&(from, call)) {
            waiter.min_bytes.set(min_bytes.min(waiter.min_bytes.get()));
            waiter.stir();
        }
    }

    /// All are answered with what there is.
    pub fn hurry(&self) {
        for waiter in self.waiters.borrow().values() {
            waiter.min_bytes.set(0);
            waiter.stir();
        }
    }

    pub fn done(&self, from: usize, call: u64) {
        let waiter = self.waiters.borrow_mut().swap_remove(&(from, call));
        if let Some(waiter) = waiter {
            waiter.cancelled.set(true);
            waiter.stir();
        }
        let lease = self.leases.borrow_mut().swap_remove(&(from, call));
        drop(lease);
    }

    /// The call is answered; `memory` is kept until the caller is done.
    pub fn answered(&self, from: usize, call: u64, memory: Option<Leases>) {
        self.waiters.borrow_mut().swap_remove(&(from, call));
        if let Some(memory) = memory {
            self.leases.borrow_mut().insert((from, call), memory);
        }
    }
}
