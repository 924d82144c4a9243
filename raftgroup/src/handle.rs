//! One group as its callers see it: synchronous calls, answers now or by a future.
//!
//! A call changes the state machine and marks the group dirty; the pump turns it soon after. Borrows of the machine end before anything of
//! the caller's runs, so a sink or watcher may call any method from within a callback.
//!
//! Bounds: [`limits::UNCOMMITTED_ENTRIES`], [`limits::UNCOMMITTED_BYTES`], [`limits::WAITS_PER_GROUP`].

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::task::Waker;

use bytes::Bytes;
use engine::batch::{ATTRIBUTE_LOG_APPEND_TIME, Batch, BatchHeader};
use engine::log::{Captured, Extent, LogError, ReplicaLog};
use engine::types::{EntryKind, GroupId, LeaderEpoch, Lsn, Offset, RaftIndex, ReplicaId, Term};
use indexmap::IndexMap;

use crate::api::{
    Acks, ActiveProducer, Appended, GroupSink, ProduceError, Produced, SubscriptionKey, Watcher,
};
use crate::codec;
use crate::group::{Effects, Machine, Taken};
use crate::held::Held;
use crate::limits;
use crate::producers::Stamp;
use crate::pump::Bell;
use crate::wait::{CommitWait, Until, Waits};

/// One replica of one group on this shard.
pub struct Group {
    id: GroupId,
    replica: ReplicaId,
    log: ReplicaLog,
    bell: Rc<Bell>,
    me: Weak<Group>,
    machine: RefCell<Machine<ReplicaLog>>,
    waits: Rc<RefCell<Waits>>,
    held: RefCell<Held>,
    watchers: RefCell<IndexMap<u64, Weak<dyn Watcher>, ahash::RandomState>>,
    next_key: Cell<u64>,
    /// The term that the last turn saw this replica lead in.
    led: Cell<Option<Term>>,
    /// The last trim proposed, so that retention does not propose it again while it is in flight.
    trimmed: Cell<Offset>,
    dirty: Cell<bool>,
    removed: Cell<bool>,
}

impl Group {
    pub(crate) fn new(
        id: GroupId,
        log: ReplicaLog,
        machine: Machine<ReplicaLog>,
        bell: Rc<Bell>,
    ) -> Rc<Group> {
        Rc::new_cyclic(|me| Group {
            id,
            replica: log.id(),
            trimmed: Cell::new(log.log_start_offset()),
            log,
            bell,
            me: me.clone(),
            machine: RefCell::new(machine),
            waits: Rc::default(),
            held: RefCell::default(),
            watchers: RefCell::new(IndexMap::with_hasher(ahash::RandomState::with_seeds(
                9, 10, 11, 12,
            ))),
            next_key: Cell::new(0),
            led: Cell::new(None),
            dirty: Cell::new(false),
            removed: Cell::new(false),
        })
    }

    pub fn id(&self) -> GroupId {
        self.id
    }

    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// Whether this replica leads and its term is durable (G1): it takes proposals.
    pub fn is_leader(&self) -> bool {
        !self.removed.get() && self.machine.borrow().is_leader()
    }

    /// Whether this replica leads and has committed an entry of its own term, so that its high watermark is the group's (G11).
    pub fn serves(&self) -> bool {
        !self.removed.get() && self.machine.borrow().serves()
    }

    pub fn term(&self) -> Term {
        self.machine.borrow().term()
    }

    /// The leader as far as this replica knows; itself only once its term is durable.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.machine.borrow().leader()
    }

    /// The current term as Kafka clients see it.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.machine.borrow().leader_epoch()
    }

    pub fn log(&self) -> &ReplicaLog {
        &self.log
    }

    /// The offset after the last committed record: what clients see up to (L11).
    pub fn high_watermark(&self) -> Offset {
        self.machine.borrow().state().high_watermark()
    }

    /// The idempotent producers whose batches are remembered, by id.
    pub fn producers(&self) -> Vec<ActiveProducer> {
        self.machine.borrow().state().producers.active()
    }

    pub fn log_start_offset(&self) -> Offset {
        self.log.log_start_offset()
    }

    pub fn log_end_offset(&self) -> Offset {
        self.log.log_end_offset()
    }

    /// Takes one batch, whose records the caller has checked, into the log: recognises repeats (G10), writes base offset and leader epoch into
    /// the one copy made, proposes it. `now_ms` is the wall clock, for forgetting producers.
    pub fn produce(&self, batch: Batch, acks: Acks, now_ms: i64) -> Result<Produced, ProduceError> {
        self.usable()?;
        let taken = self.machine.borrow_mut().produce(
            &batch.header,
            now_ms,
            |begins| {
                // It would wait for room that never comes.
                if batch.bytes.len() > self.bell.largest_entry() {
                    return Err(ProduceError::TooLarge);
                }
                self.room(begins, now_ms)
            },
            |base_offset, epoch| (EntryKind::Batch, batch.stamped(base_offset, epoch)),
        );
        let taken = self.judged(taken, &batch.header, now_ms)?;
        self.answer(taken, &batch.header, acks)
    }

    /// L7: [`Group::produce`] for a batch above `ShardLog::largest_in_journal`, whose bytes are in an extent already.
    pub fn produce_extent(
        &self,
        extent: Extent,
        acks: Acks,
        now_ms: i64,
    ) -> Result<Produced, ProduceError> {
        self.usable()?;
        let header = extent.header();
        let taken = self.machine.borrow_mut().produce(
            &header,
            now_ms,
            |begins| {
                // Trimmed while it waited, with its file: the client sends the batch again.
                if !self.log.has_extent(&extent) {
                    return Err(ProduceError::Overloaded);
                }
                self.room(begins, now_ms)
            },
            |base_offset, epoch| {
                let stamped = extent.stamped(base_offset, epoch);
                (EntryKind::Extent, stamped.encode())
            },
        );
        let taken = self.judged(taken, &header, now_ms)?;
        if let Some(index) = taken.pending {
            self.log.keep_extent(&extent, index);
        }
        self.answer(taken, &header, acks)
    }

    /// Writes a batch to an extent, to be proposed with [`Group::produce_extent`]. `None`: this very batch was taken before, and [`Group::produce`] says where. A batch that
    /// would be refused is refused here, before anything is written.
    pub async fn put_extent(
        &self,
        batch: &Batch,
        now_ms: i64,
    ) -> Result<Option<Extent>, ProduceError> {
        self.usable()?;
        let mut taken = self.machine.borrow().taken_before(&batch.header);
        if let Ok(None) = taken {
            let begins = self.machine.borrow().begins(&batch.header);
            taken = self.room(begins.as_ref(), now_ms).map(|()| None);
        }
        if taken
            .map_err(|e| self.refusal(e, &batch.header, now_ms))?
            .is_some()
        {
            return Ok(None);
        }
        match self.log.put_extent(batch).await {
            Ok(extent) => Ok(Some(extent)),
            Err(LogError::Removed) => Err(ProduceError::Removed),
            Err(e) if e.is_full() => {
                Err(self.refusal(ProduceError::DiskFull, &batch.header, now_ms))
            }
            Err(e) => {
                self.log.fail(e);
                Err(ProduceError::Storage)
            }
        }
    }

    /// G10: the verdict on a batch, remembered for what its producer has in flight behind it.
    fn judged(
        &self,
        taken: Result<Taken, ProduceError>,
        header: &BatchHeader,
        now_ms: i64,
    ) -> Result<Taken, ProduceError> {
        let taken = taken.map_err(|e| self.refusal(e, header, now_ms))?;
        if let Some(stamp) = Stamp::of(header) {
            self.held.borrow_mut().taken(&stamp);
        }
        Ok(taken)
    }

    fn refusal(&self, e: ProduceError, header: &BatchHeader, now_ms: i64) -> ProduceError {
        let Some(stamp) = Stamp::of(header) else {
            return e;
        };
        let mut held = self.held.borrow_mut();
        if e == ProduceError::OutOfOrderSequence {
            return held.behind(&stamp, now_ms).unwrap_or(e);
        }
        held.refused(&stamp, e, now_ms);
        e
    }

    /// Asked only for what isn't written already: repeats are answered on a full disk as well. `begins`: the batch would be its producer's first here, unless
    /// one before it was refused. (Of a known producer nothing is missing before a batch that is in order.)
    fn room(&self, begins: Option<&Stamp>, now_ms: i64) -> Result<(), ProduceError> {
        if let Some(why) = begins.and_then(|s| self.held.borrow().behind(s, now_ms)) {
            return Err(why);
        }
        if self.bell.disk_is_full() {
            return Err(ProduceError::DiskFull);
        }
        if self.waits.borrow().has_room() && self.bell.log_has_room() {
            Ok(())
        } else {
            Err(ProduceError::Overloaded)
        }
    }

    fn answer(
        &self,
        taken: Taken,
        header: &BatchHeader,
        acks: Acks,
    ) -> Result<Produced, ProduceError> {
        let appended = Appended {
            base_offset: taken.base_offset,
            log_append_time_ms: if header.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0 {
                taken.timestamp
            } else {
                -1
            },
            log_start_offset: self.log.log_start_offset(),
        };
        let Some(index) = taken.pending else {
            return Ok(Produced::Done(appended));
        };
        self.mark_dirty();
        match acks {
            // L11: only the acknowledgement is early; raft is told nothing.
            Acks::None | Acks::Leader => Ok(Produced::Done(appended)),
            Acks::All => self
                .wait(Until::Committed, index, appended)
                .map(Produced::Wait),
        }
    }

    /// Proposes a command. The wait ends when it is committed and the sink has been given it.
    pub fn propose_command(&self, data: Bytes) -> Result<CommitWait<RaftIndex>, ProduceError> {
        if data.len() > limits::COMMAND_BYTES.min(self.bell.largest_entry()) {
            return Err(ProduceError::TooLarge);
        }
        let index = self.propose(EntryKind::Command, data)?;
        self.wait(Until::Applied, index, index)
    }

    /// Proposes that the log start at `start` (L9). The wait ends with the log start when that is applied; at once if it is no move.
    pub fn propose_trim(&self, start: Offset) -> Result<CommitWait<Offset>, ProduceError> {
        self.usable()?;
        if !self.is_leader() {
            return Err(ProduceError::NotLeader);
        }
        if start > self.high_watermark() {
            return Err(ProduceError::OffsetOutOfRange);
        }
        if start <= self.log.log_start_offset() {
            return Ok(CommitWait::ready(&self.waits, self.log.log_start_offset()));
        }
        let index = self.propose(EntryKind::TrimPrefix, codec::encode_trim(start))?;
        self.trimmed.set(start.max(self.trimmed.get()));
        self.wait(Until::Applied, index, start)
    }

    /// Retention: forgets producers that are gone, and proposes what the log says should go, if this replica leads and has not proposed it yet.
    pub(crate) fn retain(&self, now_ms: i64) {
        self.machine.borrow_mut().expire_producers(now_ms);
        self.held.borrow_mut().expire(now_ms);
        if !self.serves() {
            self.trimmed.set(Offset(0));
            return;
        }
        let start = self.log.retention_start(now_ms);
        if let Some(start) = start.filter(|s| *s > self.trimmed.get()) {
            // Refused: the next look proposes it again.
            drop(self.propose_trim(start));
        }
    }

    fn propose(&self, kind: EntryKind, data: Bytes) -> Result<RaftIndex, ProduceError> {
        self.usable()?;
        if !self.waits.borrow().has_room() {
            return Err(ProduceError::Overloaded);
        }
        let index = self.machine.borrow_mut().propose_service(kind, data)?;
        self.mark_dirty();
        Ok(index)
    }

    fn wait<T>(
        &self,
        until: Until,
        index: RaftIndex,
        value: T,
    ) -> Result<CommitWait<T>, ProduceError> {
        if !self.waits.borrow().has_room() {
            // Only a flood of repeats gets here: proposals asked for room before.
            return Err(ProduceError::Overloaded);
        }
        Ok(CommitWait::new(&self.waits, until, index, value))
    }

    fn usable(&self) -> Result<(), ProduceError> {
        if self.removed.get() {
            return Err(ProduceError::Removed);
        }
        if self.bell.has_failed() {
            return Err(ProduceError::Storage);
        }
        Ok(())
    }

    /// `w` is told of every move from now on, until it is unsubscribed or gone.
    pub fn subscribe(&self, w: Weak<dyn Watcher>) -> SubscriptionKey {
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        self.watchers.borrow_mut().insert(key, w);
        SubscriptionKey(key)
    }

    pub fn unsubscribe(&self, k: SubscriptionKey) {
        self.watchers.borrow_mut().swap_remove(&k.0);
    }

    /// Asks the pump for a turn.
    pub(crate) fn mark_dirty(&self) {
        if !self.dirty.replace(true) {
            let me = self.me.upgrade().expect("a group that is called is alive");
            self.bell.ring(me);
        }
    }

    /// One turn of the machine, and everybody who must hear of it. Gives the journal commit to turn again after.
    pub(crate) fn turn(
        &self,
        durable: Lsn,
        now_ms: i64,
        sink: &dyn GroupSink,
        fx: &mut Effects,
        wakers: &mut Vec<Waker>,
    ) -> Option<Lsn> {
        self.dirty.set(false);
        if self.removed.get() {
            return None;
        }
        fx.clear();
        let (commit, applied, leads) = {
            let mut machine = self.machine.borrow_mut();
            machine.turn(durable, now_ms, fx);
            let leads = machine.is_leader().then(|| machine.term());
            (machine.commit(), machine.applied(), leads)
        };
        let written = fx.written;
        // One-voter groups have nobody to send to, and groups with more are not created before there is a transport.
        fx.messages.clear();
        fx.fetches.clear();
        for command in fx.commands.drain(..) {
            sink.command_applied(self.id, command.index, command.term, command.data);
        }
        if let Some((term, leader)) = fx.leadership {
            sink.leader_changed(self.id, term, leader);
        }
        let moved = fx.moved;
        let led = self.led.replace(leads);
        self.bell.count_led(led.is_some(), leads.is_some());
        {
            let mut waits = self.waits.borrow_mut();
            waits.end_up_to(Until::Committed, commit, wakers);
            waits.end_up_to(Until::Applied, applied, wakers);
            if led.is_some() && led != leads {
                waits.fail_above(commit, ProduceError::NotLeader, wakers);
            }
        }
        wakers.drain(..).for_each(Waker::wake);
        if moved {
            self.tell_watchers();
        }
        written
    }

    fn tell_watchers(&self) {
        // From the end: a watcher that unsubscribes itself or others moves only those into its place that were told already.
        let mut at = self.watchers.borrow().len();
        while at > 0 {
            at -= 1;
            let found = self
                .watchers
                .borrow()
                .get_index(at)
                .map(|(k, w)| (*k, w.upgrade()));
            match found {
                None => {}
                Some((_, Some(w))) => w.moved(self.id),
                Some((key, None)) => drop(self.watchers.borrow_mut().swap_remove(&key)),
            }
        }
    }

    /// What the log keeps for this group (L8).
    pub(crate) fn capture(&self, mut sink: Vec<Bytes>) -> Captured {
        let machine = self.machine.borrow();
        let sink_bytes = sink.iter().map(Bytes::len).sum();
        let front = codec::encode_front(machine.conf(), &machine.state().producers, sink_bytes);
        sink.insert(0, front);
        Captured {
            applied: machine.applied(),
            state: sink,
        }
    }

    /// Ends every wait with `why`.
    pub(crate) fn fail(&self, why: ProduceError) {
        let mut wakers = Vec::new();
        self.waits
            .borrow_mut()
            .fail_above(RaftIndex(0), why, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    #[cfg(test)]
    pub(crate) fn machine(&self) -> std::cell::RefMut<'_, Machine<ReplicaLog>> {
        self.machine.borrow_mut()
    }

    pub(crate) fn remove(&self) {
        self.removed.set(true);
        self.bell.count_led(self.led.take().is_some(), false);
        self.fail(ProduceError::Removed);
        self.tell_watchers();
    }
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
