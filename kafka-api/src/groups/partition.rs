//! The coordinator of one partition on the shard that leads it: loaded, driven, given up.
//!
//! *Loading* reads the partition from its start to its high watermark in slices, yields between them, and lets other questions wait no longer than it
//! takes to tell them COORDINATOR_LOAD_IN_PROGRESS. Offsets that are damaged are passed over, with a line in the log that names them, and everything else is
//! served (L13). A partition that can't be loaded for another reason answers COORDINATOR_NOT_AVAILABLE, and is taken up anew after [`limits::GROUP_LOAD_AGAIN`], or when
//! its leader changes. *Driving* is one synchronous step: the coordinator takes an event, its answers go out, its records
//! enter the log in the order in which it wants them. One task waits for their commits, in that order, and drives the coordinator with each outcome; nothing
//! that depends on a record is told before it is committed. *Giving up*: a partition that isn't led any more loses its coordinator, with
//! everything that wasn't committed; who waits is told NOT_COORDINATOR.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use engine::batch::{Batch, BatchHeader};
use engine::line_limit::LineLimit;
use engine::log::{LogError, Patience, Read};
use engine::rt::{self, Instant, Queue};
use engine::types::{GroupId, Offset, Term};
use raftgroup::{Acks, Appended, CommitWait, Group, ProduceError, Produced};

use super::Groups;
use crate::coordinator::record::{self, Record, Records};
use crate::coordinator::{Coordinator, Effects, Event, Reply, Request, Token, WriteError, WriteId};
use crate::error::ErrorCode;
use crate::limits;
use crate::shard::{Map, Shard, map};

/// See the module.
pub struct Partition {
    pub(super) group: Rc<Group>,
    /// The term in which it was taken up.
    term: Term,
    /// Largest batch that its log takes, in bytes.
    largest: usize,
    stage: RefCell<Stage>,
    /// Writes whose outcome isn't told yet, in the order of the log.
    outcomes: RefCell<VecDeque<(WriteId, Outcome)>>,
    settling: Cell<bool>,
    /// Questions that the coordinator has not answered.
    open: RefCell<Map<Token, ()>>,
    /// Memory that is counted for it.
    bytes: Cell<usize>,
    /// It was given up.
    ended: Cell<bool>,
}

enum Stage {
    Loading,
    Active(Box<Coordinator>),
    /// It could not be loaded. It may be taken up anew from then on.
    Failed {
        again: Instant,
    },
}

/// What a load found that can't be read.
#[derive(Default)]
struct Lost {
    /// Stretches of offsets.
    stretches: u64,
    lines: LineLimit,
}

impl Lost {
    /// Goes past the offsets from `from` to `to`, the latter not included: what comes next.
    fn pass(&mut self, partition: GroupId, from: Offset, to: Offset, why: &str) -> Offset {
        let to = to.max(Offset(from.0 + 1));
        self.stretches += 1;
        if let Some(kept_back) = self.lines.pass(rt::now()) {
            tracing::error!(%partition, %from, %to, why, kept_back, "groups go on without what stood at these offsets (`to` not included)");
        }
        to
    }
}

enum Outcome {
    Known(Result<(), WriteError>),
    Wait(CommitWait<Appended>),
}

fn write_error(e: ProduceError) -> WriteError {
    match e {
        ProduceError::NotLeader | ProduceError::Removed | ProduceError::Storage => {
            WriteError::NotCoordinator
        }
        ProduceError::TooLarge => WriteError::TooLarge,
        _ => WriteError::Unavailable,
    }
}

impl Partition {
    pub(super) fn take(group: Rc<Group>, largest: usize) -> Rc<Partition> {
        Rc::new(Partition {
            term: group.term(),
            largest,
            group,
            stage: RefCell::new(Stage::Loading),
            outcomes: RefCell::default(),
            settling: Cell::new(false),
            open: RefCell::new(map()),
            bytes: Cell::new(0),
            ended: Cell::new(false),
        })
    }

    pub(super) fn id(&self) -> GroupId {
        self.group.id()
    }

    /// Whether this replica leads in the term in which it was taken up.
    pub(super) fn is_led(&self) -> bool {
        !self.ended.get() && self.group.is_leader() && self.group.term() == self.term
    }

    /// Whether its load failed so long ago that it is to be tried again.
    pub(super) fn is_spent(&self) -> bool {
        matches!(&*self.stage.borrow(), Stage::Failed { again } if *again <= rt::now())
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        match &*self.stage.borrow() {
            Stage::Active(c) => c.next_deadline(),
            _ => None,
        }
    }

    /// Reads the coordinator, if it is loaded.
    pub(super) fn read<T>(&self, f: impl FnOnce(&Coordinator) -> T) -> Option<T> {
        match &*self.stage.borrow() {
            Stage::Active(c) => Some(f(c)),
            _ => None,
        }
    }

    /// Loads it: at once where there is nothing to read, else in a task of its own.
    pub(super) fn load(self: &Rc<Self>, shard: &Rc<Shard>) {
        let coordinator = Coordinator::new(Groups::settings(shard));
        if self.group.log_start_offset() >= self.group.high_watermark() {
            return self.begin(shard, coordinator);
        }
        let (partition, shard) = (self.clone(), shard.clone());
        rt::spawn(Queue::Latency, async move {
            let began = rt::now();
            match partition.replay(coordinator).await {
                Ok(coordinator) => {
                    tracing::debug!(
                        partition = %partition.id(),
                        groups = coordinator.len(),
                        ms = began.elapsed().as_millis() as u64,
                        "groups are loaded"
                    );
                    partition.begin(&shard, coordinator);
                }
                Err(why) => {
                    if partition.is_led() {
                        tracing::error!(partition = %partition.id(), %why, again_s = limits::GROUP_LOAD_AGAIN.as_secs(), "groups can't be loaded; they are tried again");
                        let again = rt::now() + limits::GROUP_LOAD_AGAIN;
                        *partition.stage.borrow_mut() = Stage::Failed { again };
                    }
                }
            }
        })
        .detach();
    }

    fn begin(self: &Rc<Self>, shard: &Rc<Shard>, mut coordinator: Coordinator) {
        if self.ended.get() {
            return;
        }
        let effects = coordinator.loaded(super::now());
        let after = coordinator.bytes();
        *self.stage.borrow_mut() = Stage::Active(Box::new(coordinator));
        shard
            .coordinators
            .count(shard, self.bytes.replace(after), after);
        self.carry_out(shard, effects);
    }

    /// Reads the partition's records in slices.
    async fn replay(&self, mut coordinator: Coordinator) -> Result<Coordinator, String> {
        let bound = self.group.high_watermark();
        let mut at = self.group.log_start_offset();
        let (mut records, mut lost) = (0usize, Lost::default());
        while at < bound {
            let read = self.group.log().read(at, limits::GROUP_LOAD_BYTES, bound);
            let read = match read {
                Read::Ready(batches) => Ok(batches),
                Read::Later(read) => {
                    let patience = Patience::AtMost(limits::FETCH_MEMORY_WAIT);
                    read.run(patience, usize::MAX).await
                }
                Read::OutOfRange => Ok(Vec::new()),
                Read::Damaged { to } => Err(LogError::Damaged {
                    group: self.id(),
                    from: at,
                    to,
                }),
            };
            if !self.is_led() {
                return Err("it isn't led here any more".into());
            }
            let batches = match read {
                Ok(batches) => batches,
                Err(LogError::Damaged { to, .. }) => {
                    at = lost.pass(self.id(), at, to, "they are damaged on disk");
                    rt::yield_if_needed().await;
                    continue;
                }
                Err(LogError::Trimmed) => Vec::new(),
                Err(e) => return Err(e.to_string()),
            };
            if batches.is_empty() {
                // Trimmed meanwhile, or no memory for it yet.
                at = at.max(self.group.log_start_offset());
                rt::sleep(Duration::from_millis(10)).await;
                continue;
            }
            for batch in batches {
                let header = BatchHeader::parse(&batch).map_err(|e| e.to_string())?;
                let next = at.max(header.next_offset());
                if let Err(e) = take_over(&mut coordinator, &batch, &mut records).await {
                    lost.pass(self.id(), header.base_offset.max(at), next, &e.to_string());
                }
                at = next;
            }
            rt::yield_if_needed().await;
        }
        if lost.stretches > 0 {
            let partition = self.id();
            tracing::error!(%partition, stretches = lost.stretches, "groups are loaded, without some of their offsets: consumers may read again what they have read, or begin anew");
        }
        Ok(coordinator)
    }

    /// One step of the coordinator, and what follows from it. Nothing if it isn't there.
    pub(super) fn drive(self: &Rc<Self>, shard: &Rc<Shard>, event: Event) {
        let (effects, after, next) = {
            let mut stage = self.stage.borrow_mut();
            let Stage::Active(coordinator) = &mut *stage else {
                return;
            };
            let memory = shard.coordinators.memory_for(shard, self.bytes.get());
            coordinator.set_memory(memory);
            let effects = coordinator.handle(event, super::now(), &mut super::random);
            (effects, coordinator.bytes(), coordinator.next_deadline())
        };
        shard
            .coordinators
            .count(shard, self.bytes.replace(after), after);
        if let Some(next) = next {
            shard.coordinators.wake_by(next);
        }
        self.carry_out(shard, effects);
    }

    fn carry_out(self: &Rc<Self>, shard: &Rc<Shard>, effects: Effects) {
        for (token, reply) in effects.answers {
            self.open.borrow_mut().swap_remove(&token);
            shard.coordinators.calls.answer(shard, token, reply);
        }
        if effects.writes.is_empty() {
            return;
        }
        for write in effects.writes {
            let outcome = match self.append(&write.records) {
                Ok(Some(wait)) => Outcome::Wait(wait),
                Ok(None) => Outcome::Known(Ok(())),
                Err(e) => Outcome::Known(Err(e)),
            };
            self.outcomes.borrow_mut().push_back((write.id, outcome));
        }
        if !self.settling.replace(true) {
            let (partition, shard) = (self.clone(), shard.clone());
            rt::spawn(
                Queue::Latency,
                async move { partition.settle(&shard).await },
            )
            .detach();
        }
    }

    /// Puts records into the log; `None` when nothing has to be waited for.
    pub(super) fn append(
        &self,
        records: &[Record],
    ) -> Result<Option<CommitWait<Appended>>, WriteError> {
        let now_ms = rt::wall_clock_ms();
        let bytes = record::batch(records, now_ms);
        if bytes.len() > self.largest {
            return Err(WriteError::TooLarge);
        }
        if !self.is_led() {
            return Err(WriteError::NotCoordinator);
        }
        let batch = Batch::check(bytes).expect("a batch made here is one");
        match self.group.produce(batch, Acks::All, now_ms) {
            Ok(Produced::Wait(wait)) => Ok(Some(wait)),
            Ok(Produced::Done(_)) => Ok(None),
            Err(e) => Err(write_error(e)),
        }
    }

    /// Tells the coordinator what became of its writes, in their order.
    async fn settle(self: Rc<Self>, shard: &Rc<Shard>) {
        loop {
            let next = self.outcomes.borrow_mut().pop_front();
            let Some((id, outcome)) = next else {
                break;
            };
            let result = match outcome {
                Outcome::Known(result) => result,
                Outcome::Wait(wait) => wait.await.map(|_| ()).map_err(write_error),
            };
            if self.ended.get() {
                return;
            }
            self.drive(shard, Event::Written(id, result));
            if result == Err(WriteError::NotCoordinator) {
                return shard.coordinators.give_up(shard, &self);
            }
        }
        self.settling.set(false);
    }

    /// It isn't this shard's any more: who waits looks for another coordinator.
    pub(super) fn end(self: &Rc<Self>, shard: &Rc<Shard>) {
        self.ended.set(true);
        *self.stage.borrow_mut() = Stage::Failed { again: rt::now() };
        shard.coordinators.count(shard, self.bytes.replace(0), 0);
        self.outcomes.borrow_mut().clear();
        let open: Vec<Token> = self.open.borrow_mut().drain(..).map(|(t, ())| t).collect();
        for token in open {
            let reply = Reply::Refused(ErrorCode::NotCoordinator);
            shard.coordinators.calls.answer(shard, token, reply);
        }
    }

    pub(super) async fn expire(self: &Rc<Self>, shard: &Rc<Shard>) {
        loop {
            self.drive(shard, Event::Expire);
            rt::yield_now().await;
            if self.read(Coordinator::expires_more) != Some(true) {
                break;
            }
        }
    }
}

/// Takes a batch's records over. Those before one that can't be read count.
async fn take_over(
    coordinator: &mut Coordinator,
    batch: &Bytes,
    records: &mut usize,
) -> Result<(), record::BadRecord> {
    for record in Records::of(batch)? {
        coordinator.replay(&record?, rt::wall_clock_ms())?;
        *records += 1;
        if records.is_multiple_of(limits::GROUP_LOAD_SLICE) {
            rt::yield_if_needed().await;
        }
    }
    Ok(())
}

impl Groups {
    /// A question to a coordinator of this shard. Never waits.
    pub(crate) fn ask(&self, shard: &Rc<Shard>, id: GroupId, token: Token, request: Request) {
        let refuse = |error| self.calls.answer(shard, token, Reply::Refused(error));
        let Some(partition) = self.partition(shard, id) else {
            return refuse(ErrorCode::NotCoordinator);
        };
        let refused = match &*partition.stage.borrow() {
            Stage::Loading => Some(ErrorCode::CoordinatorLoadInProgress),
            Stage::Failed { .. } => Some(ErrorCode::CoordinatorNotAvailable),
            Stage::Active(_) => None,
        };
        if let Some(error) = refused {
            return refuse(error);
        }
        partition.open.borrow_mut().insert(token, ());
        partition.drive(shard, Event::Request(token, request));
    }
}
