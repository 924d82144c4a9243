//! The pump: one task per shard that turns every dirty group once per round and makes one journal batch of what they wrote.
//!
//! A round: groups whose records have become durable are dirty too; each dirty group is turned; then the log is told that the round is over
//! (`end_turn`). With nothing dirty the pump sleeps until a group rings or the durable position moves: idle groups don't tick, an idle shard runs nothing (G7).
//!
//! Retention runs beside it in the background: the leader of each group proposes the log start that the log asks for (L9).
//!
//! Bounds: a group is listed dirty once; it is listed once per journal commit that it waits for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use engine::log::ShardLog;
use engine::rt;
use engine::types::Lsn;

use crate::group::Effects;
use crate::groups::Groups;
use crate::handle::Group;
use crate::limits;

/// How groups reach the pump, and what they share.
pub(crate) struct Bell {
    log: ShardLog,
    dirty: RefCell<Vec<Rc<Group>>>,
    turn_asked: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    failed: Cell<bool>,
    led: Cell<usize>,
    rounds: Cell<u64>,
}

impl Bell {
    pub fn new(log: ShardLog) -> Bell {
        Bell {
            log,
            dirty: RefCell::default(),
            turn_asked: Cell::new(false),
            waker: RefCell::default(),
            failed: Cell::new(false),
            led: Cell::new(0),
            rounds: Cell::new(0),
        }
    }

    pub fn ring(&self, group: Rc<Group>) {
        self.dirty.borrow_mut().push(group);
        self.wake();
    }

    /// A round is wanted though no group is dirty.
    pub fn ring_for_turn(&self) {
        self.turn_asked.set(true);
        self.wake();
    }

    fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// L6: callers slow down from half full on; this is the wall behind that.
    pub fn log_has_room(&self) -> bool {
        self.log.pressure() < limits::REFUSE_PRESSURE
    }

    /// New batches are to be refused; whatever frees space goes on.
    pub fn disk_is_full(&self) -> bool {
        self.log.disk().refusing
    }

    /// Bytes of the largest entry that the log takes.
    pub fn largest_entry(&self) -> usize {
        self.log.max_entry_bytes()
    }

    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    pub fn fail(&self) {
        self.failed.set(true);
    }

    pub fn count_led(&self, before: bool, now: bool) {
        self.led
            .set(self.led.get() + usize::from(now) - usize::from(before));
    }

    pub fn led(&self) -> usize {
        self.led.get()
    }

    pub fn rounds(&self) -> u64 {
        self.rounds.get()
    }

    fn has_work(&self) -> bool {
        self.turn_asked.get() || !self.dirty.borrow().is_empty()
    }
}

pub(crate) async fn run(groups: Rc<Groups>) {
    let _retention = rt::spawn(rt::Queue::Background, retain(Rc::downgrade(&groups)));
    let log = groups.shard_log().clone();
    let mut waiting: VecDeque<(Lsn, Rc<Group>)> = VecDeque::new();
    let mut turning: Vec<Rc<Group>> = Vec::new();
    let mut fx = Effects::default();
    let mut wakers = Vec::new();
    loop {
        let durable = log.durable_lsn();
        while let Some((_, group)) = waiting.pop_front_if(|(lsn, _)| *lsn <= durable) {
            group.mark_dirty();
        }
        if !groups.bell().has_work() {
            sleep(&groups, durable).await;
            continue;
        }
        if groups.bell().has_failed() {
            // Acknowledgements and votes stop; the process is about to end.
            return;
        }
        groups.bell().turn_asked.set(false);
        groups.bell().rounds.set(groups.bell().rounds() + 1);
        std::mem::swap(&mut turning, &mut groups.bell().dirty.borrow_mut());
        let now_ms = rt::wall_clock_ms();
        for (n, group) in turning.drain(..).enumerate() {
            if let Some(lsn) = group.turn(durable, now_ms, groups.sink(), &mut fx, &mut wakers) {
                wait_for(&mut waiting, lsn, group);
            }
            if n % limits::GROUPS_PER_SLICE == limits::GROUPS_PER_SLICE - 1 {
                rt::yield_if_needed().await;
            }
        }
        log.end_turn();
        groups.become_source();
    }
}

/// Keeps `waiting` in the order of its commits; a new one is nearly always the newest.
fn wait_for(waiting: &mut VecDeque<(Lsn, Rc<Group>)>, lsn: Lsn, group: Rc<Group>) {
    if waiting.back().is_none_or(|(last, _)| *last <= lsn) {
        waiting.push_back((lsn, group));
    } else {
        let at = waiting.partition_point(|(l, _)| *l <= lsn);
        waiting.insert(at, (lsn, group));
    }
}

/// Until a group rings or the durable position passes `seen`.
async fn sleep(groups: &Groups, seen: Lsn) {
    let mut durable = pin!(groups.shard_log().durable_past(seen));
    poll_fn(|cx| {
        if groups.bell().has_work() {
            return Poll::Ready(());
        }
        *groups.bell().waker.borrow_mut() = Some(cx.waker().clone());
        durable.as_mut().poll(cx).map(|_| ())
    })
    .await;
}

async fn retain(groups: Weak<Groups>) {
    loop {
        let Some(interval) = groups.upgrade().map(|g| g.retention_interval()) else {
            return;
        };
        rt::sleep(interval).await;
        let Some(ids) = groups.upgrade().map(|g| g.ids()) else {
            return;
        };
        for (n, id) in ids.into_iter().enumerate() {
            let group = groups.upgrade().and_then(|g| g.get(id));
            if let Some(group) = group {
                group.retain(rt::wall_clock_ms());
            }
            if n % limits::GROUPS_PER_SLICE == limits::GROUPS_PER_SLICE - 1 {
                rt::yield_now().await;
            }
        }
    }
}
