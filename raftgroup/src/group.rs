//! One replica of one group: a state machine around raft's `RawNode` in asynchronous-persist mode (design §5).
//!
//! Calls change it ([`Machine::produce`] here, [`Machine::step`] and what else comes from peers in [`crate::peers`]); [`Machine::turn`] then hands its records to the log and
//! gives the [`Effects`]: messages to send, commands to apply, what moved. No I/O happens here; time, randomness and the durable position
//! are passed in. The pump ([`crate::pump`]) owns the machines of a shard and turns them.
//!
//! The way of an entry: `step(MsgPropose)` → Ready → `Store::append` → `advance_append_async` → its commit of the journal is durable →
//! `on_persist_ready` → raft's commit index moves → applied.
//!
//! Rules kept here: L1 (a hard state that changes only the commit index makes no record), L2 (Ready n is persisted, and its messages go,
//! when all records of Readies ≤ n are durable, also when n wrote nothing), L9 (the log start moves by applying), L10, G1, G2, G5, G6, G8
//! (pre-vote, check-quorum), G10, G11.

use std::collections::VecDeque;

use bytes::Bytes;
use engine::batch::BatchHeader;
use engine::types::{
    Entry, EntryKind, HardState, LeaderEpoch, Lsn, Offset, RaftIndex, ReplicaId, Term,
};
use raft::eraftpb::{
    ConfState, Entry as RaftEntry, HardState as RaftHardState, Message, MessageType,
};
use raft::{RawNode, StateRole};

use crate::api::ProduceError;
use crate::codec;
use crate::limits;
use crate::producers::{Stamp, Verdict};
use crate::random::Random;
use crate::state::State;
use crate::storage::{self, Fetch, Storage};
use crate::store::Store;

/// G11: a term is Kafka's leader epoch, so it must fit one.
pub(crate) const TERM_MAX: u64 = i32::MAX as u64;

/// A committed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub index: RaftIndex,
    pub term: Term,
    pub data: Bytes,
}

/// What a turn asks of the shell. Reused from turn to turn.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// The newest journal commit that this turn's records went into: turn again when it is durable.
    pub written: Option<Lsn>,
    /// May be sent at once (G1, L2).
    pub messages: Vec<Message>,
    pub commands: Vec<Command>,
    /// Term and leader, when what may be told of them changed.
    pub leadership: Option<(Term, Option<ReplicaId>)>,
    /// The high watermark, the leadership or the log start moved.
    pub moved: bool,
    /// Old entries that a follower lacks.
    pub fetches: Vec<Fetch>,
    /// Room for the entries of one Ready.
    entries: Vec<Entry>,
}

impl Effects {
    pub fn clear(&mut self) {
        self.written = None;
        self.messages.clear();
        self.commands.clear();
        self.leadership = None;
        self.moved = false;
        self.fetches.clear();
    }
}

/// A batch that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub base_offset: Offset,
    /// The max timestamp of the batch as it lies in the log.
    pub timestamp: i64,
    /// The entry to wait for; None when it is committed already.
    pub pending: Option<RaftIndex>,
}

/// A Ready that is not known to be durable yet.
struct Unpersisted {
    number: u64,
    /// The commit of the newest record of this Ready or an earlier one.
    lsn: Lsn,
    /// The term of the hard state it wrote.
    term: Option<Term>,
    messages: Vec<Message>,
}

pub(crate) struct Machine<S: Store> {
    pub(crate) id: ReplicaId,
    pub(crate) node: RawNode<Storage<S>>,
    state: State,
    conf: ConfState,
    random: Random,
    /// Term, role and election timeout of the last draw (G5).
    drawn: (u64, StateRole, usize),
    /// Term and vote of the last hard state given to the log.
    journaled: (u64, u64),
    durable_term: Term,
    unpersisted: VecDeque<Unpersisted>,
    last_lsn: Lsn,
    /// A leader's messages that wait for its term to be durable (G1).
    held: Vec<Message>,
    /// What the shell was told of term and leader.
    announced: (Term, Option<ReplicaId>),
    /// An entry of this leader's own term is committed (G11).
    serves: bool,
}

impl<S: Store> Machine<S> {
    /// Takes a replica over from its log: at creation with nothing in it, at start with what was recovered. `state` is applied to `applied`.
    pub fn new(
        id: ReplicaId,
        store: S,
        state: codec::GroupState,
        applied: RaftIndex,
        seed: u64,
        now_ms: i64,
    ) -> Result<Machine<S>, String> {
        let last = store.last_index();
        if applied > last || applied < store.first_index().prev() {
            return Err(format!(
                "its state is of entry {applied}, its log is {} to {last}",
                store.first_index()
            ));
        }
        let term_at = |i: RaftIndex| match i {
            RaftIndex(0) => Ok(Term(0)),
            i => store
                .term(i)
                .ok_or_else(|| format!("entry {i} has no term")),
        };
        let found = store.hard_state();
        let decides_alone = decides_alone(id, &state.conf, &store, applied, last);
        // L1: commit = min(last index, max(commit found, ...)); what the state was applied to is committed. A sole voter is a majority: all that it has on its disk is.
        let commit = match decides_alone {
            true => last,
            false => found.commit.max(applied).min(last),
        };
        let term = found.term.max(term_at(last)?);
        if term.0 > TERM_MAX {
            return Err(format!("term {term} is above what a leader epoch can be"));
        }
        let conf = state.conf;
        let hard_state = RaftHardState {
            term: term.0,
            vote: if term == found.term { found.vote } else { 0 },
            commit: commit.0,
            ..RaftHardState::default()
        };
        let journaled = (hard_state.term, hard_state.vote);

        let first = store.header(applied.next());
        let next_offset = first.map_or_else(|| store.log_end_offset(), |h| h.base_offset);
        let mut tail = State::new(state.producers, applied, term_at(applied)?, next_offset);
        let mut index = applied.next();
        while index <= last {
            if !take_over(&store, index, &mut tail, now_ms) {
                return Err(format!("entry {index} is not what its header says"));
            }
            index = index.next();
        }

        let config = raft::Config {
            id: id.0,
            applied: applied.0,
            election_tick: limits::ELECTION_TICKS_MIN,
            min_election_tick: limits::ELECTION_TICKS_MIN,
            max_election_tick: limits::ELECTION_TICKS_MAX,
            heartbeat_tick: limits::HEARTBEAT_TICKS,
            max_size_per_msg: limits::APPEND_MESSAGE_BYTES,
            max_inflight_msgs: limits::APPENDS_IN_FLIGHT,
            // G8.
            check_quorum: true,
            pre_vote: true,
            // G6: raft sees committed entries without their data, so it cannot count what is uncommitted; `produce` does.
            max_uncommitted_size: raft::NO_LIMIT,
            max_committed_size_per_ready: limits::COMMITTED_HEADERS_BYTES,
            ..raft::Config::default()
        };
        let log = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, Storage::new(store, hard_state, conf.clone()), &log)
            .map_err(|e| e.to_string())?;
        let mut machine = Machine {
            id,
            node,
            state: tail,
            conf,
            random: Random::new(seed),
            drawn: (u64::MAX, StateRole::Follower, 0),
            journaled,
            durable_term: term,
            unpersisted: VecDeque::new(),
            last_lsn: Lsn(0),
            held: Vec::new(),
            announced: (term, None),
            serves: false,
        };
        machine.advance_commit();
        machine.draw_election_timeout();
        Ok(machine)
    }

    pub fn store(&self) -> &S {
        self.node.store().store()
    }

    pub fn term(&self) -> Term {
        Term(self.node.raft.term)
    }

    pub fn leader(&self) -> Option<ReplicaId> {
        self.announced.1
    }

    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.term()
            .leader_epoch()
            .expect("G11: a term that does not fit a leader epoch is never entered")
    }

    /// Leads, and the term is durable (G1).
    pub fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader && self.durable_term >= self.term()
    }

    /// Leads and has committed an entry of its own term (G11).
    pub fn serves(&self) -> bool {
        self.serves && self.is_leader()
    }

    pub fn commit(&self) -> RaftIndex {
        self.state.commit()
    }

    pub fn applied(&self) -> RaftIndex {
        self.state.applied()
    }

    pub fn conf(&self) -> &ConfState {
        &self.conf
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// Forgets producers that have not written for a day.
    pub fn expire_producers(&mut self, now_ms: i64) -> usize {
        self.state.producers.expire(now_ms)
    }

    /// Takes a batch into the log: dedupe (G10), stamp, propose (G2). `room` is asked only before something is written; `make` gives the entry at its place in the log.
    pub fn produce(
        &mut self,
        header: &BatchHeader,
        now_ms: i64,
        room: impl FnOnce(Option<&Stamp>) -> Result<(), ProduceError>,
        make: impl FnOnce(Offset, LeaderEpoch) -> (EntryKind, Bytes),
    ) -> Result<Taken, ProduceError> {
        if let Some(taken) = self.taken_before(header)? {
            return Ok(taken);
        }
        let stamp = Stamp::of(header);
        let records = i64::from(header.last_offset_delta) + 1;
        let base_offset = self.state.next_offset();
        if records <= 0 || base_offset.0.checked_add(records).is_none() {
            return Err(ProduceError::OffsetOutOfRange);
        }
        if !self.has_room() {
            return Err(ProduceError::Overloaded);
        }
        room(self.begins(header).as_ref())?;
        let (kind, bytes) = make(base_offset, self.leader_epoch());
        let data_bytes = bytes.len();
        let index = self.propose(kind, bytes)?;
        let term = self.term();
        self.state
            .push_batch(term, kind, records, data_bytes, stamp.as_ref(), now_ms);
        Ok(Taken {
            base_offset,
            timestamp: header.max_timestamp,
            pending: Some(index),
        })
    }

    /// The stamp of a batch whose producer nothing is known of: any sequence would begin it.
    pub fn begins(&self, header: &BatchHeader) -> Option<Stamp> {
        Stamp::of(header).filter(|s| !self.state.producers.knows(s.id))
    }

    #[cfg(test)]
    pub fn produce_batch(
        &mut self,
        batch: &engine::batch::Batch,
        now_ms: i64,
        room: bool,
    ) -> Result<Taken, ProduceError> {
        let room = |_: Option<&Stamp>| room.then_some(()).ok_or(ProduceError::Overloaded);
        self.produce(&batch.header, now_ms, room, |base_offset, epoch| {
            (EntryKind::Batch, batch.stamped(base_offset, epoch))
        })
    }

    /// G10: where a batch lies that was taken before; an error for one that would be refused as things stand.
    pub fn taken_before(&self, header: &BatchHeader) -> Result<Option<Taken>, ProduceError> {
        if !self.is_leader() {
            return Err(ProduceError::NotLeader);
        }
        let Some(stamp) = Stamp::of(header) else {
            return Ok(None);
        };
        match self.state.producers.check(&stamp) {
            Verdict::Append => Ok(None),
            Verdict::Refuse(why) => Err(why),
            Verdict::Repeat {
                base_offset,
                timestamp,
                pending,
            } => Ok(Some(Taken {
                base_offset,
                timestamp,
                pending: pending.filter(|i| *i > self.commit()),
            })),
        }
    }

    /// Proposes a command or a trim; gives its index.
    pub fn propose_service(
        &mut self,
        kind: EntryKind,
        data: Bytes,
    ) -> Result<RaftIndex, ProduceError> {
        assert!(
            matches!(kind, EntryKind::Command | EntryKind::TrimPrefix),
            "other kinds have their own ways"
        );
        if !self.is_leader() {
            return Err(ProduceError::NotLeader);
        }
        if !self.has_room() {
            return Err(ProduceError::Overloaded);
        }
        let index = self.propose(kind, data.clone())?;
        self.state.push_service(self.term(), kind, data);
        Ok(index)
    }

    fn has_room(&self) -> bool {
        self.state.uncommitted_entries() < limits::UNCOMMITTED_ENTRIES
            && self.state.uncommitted_bytes() < limits::UNCOMMITTED_BYTES
    }

    /// G2: proposes with `step`, so that the bytes pass uncopied, and only as leader. The caller moves offset and producer state now that it
    /// succeeded.
    fn propose(&mut self, kind: EntryKind, data: Bytes) -> Result<RaftIndex, ProduceError> {
        let (last, _) = self.state.last();
        let entry = RaftEntry {
            data,
            context: storage::context_of(kind),
            ..RaftEntry::default()
        };
        let mut m = Message::default();
        m.set_msg_type(MessageType::MsgPropose);
        m.from = self.id.0;
        m.set_entries(vec![entry].into());
        // Dropped: a leadership transfer is under way, or this replica is no member any more.
        self.node.step(m).map_err(|_| ProduceError::NotLeader)?;
        let index = RaftIndex(self.node.raft.raft_log.last_index());
        assert_eq!(
            index,
            last.next(),
            "a leader's proposal is the entry behind its last one"
        );
        Ok(index)
    }

    /// Hands what is new to the log and collects what follows, also from what has become durable.
    pub fn turn(&mut self, durable: Lsn, now_ms: i64, fx: &mut Effects) {
        loop {
            let released = self.release(durable, fx);
            self.absorb(now_ms);
            if self.must_campaign() {
                let _ = self.node.campaign();
                self.absorb(now_ms);
            }
            self.draw_election_timeout();
            if self.node.has_ready() {
                self.take_ready(fx);
            } else if !released {
                break;
            }
        }
        if self.advance_commit() {
            fx.moved = true;
        }
        self.let_go_of_held(fx);
        self.announce(fx);
        fx.fetches.append(&mut self.node.store().take_wanted());
    }

    /// L2: Readies whose records, and those of all before them, are durable.
    fn release(&mut self, durable: Lsn, fx: &mut Effects) -> bool {
        let mut number = None;
        while let Some(ready) = self.unpersisted.pop_front_if(|r| r.lsn <= durable) {
            number = Some(ready.number);
            if let Some(term) = ready.term {
                self.durable_term = term;
            }
            fx.messages.extend(ready.messages);
        }
        if let Some(number) = number {
            self.node.on_persist_ready(number);
        }
        number.is_some()
    }

    /// G1: a sole voter is its own majority at once, so it must have nothing that a power cut could take back. Others wait for ticks.
    fn must_campaign(&self) -> bool {
        self.conf.voters == [self.id.0]
            && self.conf.voters_outgoing.is_empty()
            && self.node.raft.state != StateRole::Leader
            && self.node.raft.term < TERM_MAX
            && self.unpersisted.is_empty()
            && !self.node.has_ready()
    }

    /// Brings the tail up to raft's log: its own empty entry, or what a leader sent, which may replace what was there.
    pub(crate) fn absorb(&mut self, now_ms: i64) {
        let raft_log = &self.node.raft.raft_log;
        let Some(newest) = raft_log.unstable.entries.last() else {
            return;
        };
        if self.state.last() == (RaftIndex(newest.index), Term(newest.term)) {
            return;
        }
        for e in &raft_log.unstable.entries {
            let index = RaftIndex(e.index);
            if self.state.get(index).is_some_and(|t| t.term.0 == e.term) {
                continue;
            }
            if index <= self.state.last().0 {
                self.state.truncate(index);
            }
            let entry = as_entry(e).expect("entries are checked before they are stepped");
            assert!(
                self.state.push_placed(&entry, now_ms),
                "G2: a sound entry begins at the end of the log before it"
            );
        }
        let newest = (RaftIndex(newest.index), Term(newest.term));
        if self.state.last().0 > newest.0 {
            self.state.truncate(newest.0.next());
        }
    }

    fn take_ready(&mut self, fx: &mut Effects) {
        let mut ready = self.node.ready();
        assert!(
            ready.snapshot().is_empty(),
            "snapshot messages are not stepped"
        );
        // L1: hard state first, then entries; none for a moved commit index alone.
        let changed = ready
            .hs()
            .filter(|hs| (hs.term, hs.vote) != self.journaled)
            .map(|hs| HardState {
                term: Term(hs.term),
                vote: hs.vote,
                commit: RaftIndex(hs.commit),
            });
        fx.entries.clear();
        for e in ready.take_entries() {
            let index = RaftIndex(e.index);
            let tail = self
                .state
                .get(index)
                .expect("the tail covers raft's log before a Ready is taken");
            fx.entries.push(Entry {
                index,
                term: Term(e.term),
                kind: tail.kind,
                base_offset: tail.base_offset,
                next_offset: tail.next_offset,
                data: if tail.kind.is_batch() {
                    e.data
                } else {
                    tail.service.clone()
                },
            });
        }
        if changed.is_some() || !fx.entries.is_empty() {
            self.last_lsn = self.store().append(changed, &fx.entries);
            fx.written = Some(self.last_lsn);
            fx.entries.clear();
        }
        if let Some(hs) = changed {
            self.journaled = (hs.term.0, hs.vote);
        }
        self.held.extend(ready.take_messages());
        self.unpersisted.push_back(Unpersisted {
            number: ready.number(),
            lsn: self.last_lsn,
            term: changed.map(|hs| hs.term),
            messages: ready.take_persisted_messages(),
        });
        let committed = ready.take_committed_entries();
        self.node.advance_append_async(ready);
        self.let_go_of_held(fx);
        if let Some(last) = committed.last() {
            if self.advance_commit() {
                fx.moved = true;
            }
            let last = last.index;
            // The log may write out, and a checkpoint may count as applied, what it is told is committed: so it is told of that what is
            // applied, here in one step. With several voters that may be less than what is committed, while the own disk lags.
            self.store().set_commit(RaftIndex(last));
            for e in committed {
                self.apply(RaftIndex(e.index), fx);
            }
            self.node.advance_apply_to(last);
        }
    }

    /// G1: as leader too, nothing is sent before the term's hard state is durable.
    fn let_go_of_held(&mut self, fx: &mut Effects) {
        if self.node.raft.state != StateRole::Leader {
            self.held.clear();
        } else if self.durable_term >= self.term() {
            fx.messages.append(&mut self.held);
        }
    }

    /// Takes raft's commit index over. Acknowledgements and visibility go by it (G6, L11), not by what is applied.
    fn advance_commit(&mut self) -> bool {
        let commit = RaftIndex(self.node.raft.raft_log.committed);
        let moved = commit > self.state.commit();
        if moved {
            self.state.set_commit(commit);
        }
        moved
    }

    fn apply(&mut self, index: RaftIndex, fx: &mut Effects) {
        let entry = self.state.apply(index);
        match entry.kind {
            EntryKind::Batch | EntryKind::Extent | EntryKind::NoOp => {}
            EntryKind::TrimPrefix => {
                let start = codec::decode_trim(&entry.service)
                    .expect("service entries are checked before they enter the log");
                let start = start.min(entry.base_offset);
                if start > self.store().log_start_offset() {
                    self.store().set_log_start(start);
                    fx.moved = true;
                }
            }
            EntryKind::Command => fx.commands.push(Command {
                index,
                term: entry.term,
                data: entry.service,
            }),
            EntryKind::Config => {
                let change = codec::decode_change(&entry.service)
                    .expect("service entries are checked before they enter the log");
                match self.node.apply_conf_change(&change) {
                    Ok(conf) => self.conf = conf,
                    // Every replica refuses it alike.
                    Err(e) => {
                        tracing::warn!(replica = %self.id, %index, "configuration change refused: {e}")
                    }
                }
            }
        }
    }

    /// Tells of term and leader; of an own leadership only when the term is durable (G1).
    fn announce(&mut self, fx: &mut Effects) {
        let raft = &self.node.raft;
        let leads = raft.state == StateRole::Leader;
        self.serves = leads && (self.serves || raft.commit_to_current_term());
        if leads && self.durable_term < self.term() {
            return;
        }
        let leader = Some(ReplicaId(raft.leader_id)).filter(|l| l.0 != raft::INVALID_ID);
        let now = (self.term(), leader);
        if now != self.announced {
            self.announced = now;
            fx.leadership = Some(now);
            fx.moved = true;
        }
    }

    /// G5: raft draws election timeouts from a thread's generator. After every change of term or role ours is put in place of it.
    pub(crate) fn draw_election_timeout(&mut self) {
        let raft = &mut self.node.raft;
        if (self.drawn.0, self.drawn.1) != (raft.term, raft.state) {
            let range = limits::ELECTION_TICKS_MAX - limits::ELECTION_TICKS_MIN;
            let ticks = limits::ELECTION_TICKS_MIN + self.random.below(range as u64) as usize;
            self.drawn = (raft.term, raft.state, ticks);
        }
        if raft.randomized_election_timeout() != self.drawn.2 {
            raft.set_randomized_election_timeout(self.drawn.2);
        }
    }
}

/// An entry of raft's as the log takes it, except for its offsets; None if it is not one that this crate makes.
pub(crate) fn as_entry(e: &RaftEntry) -> Option<Entry> {
    let kind = storage::kind_of(e)?;
    let entry = Entry {
        index: RaftIndex(e.index),
        term: Term(e.term),
        kind,
        base_offset: Offset(0),
        next_offset: Offset(0),
        data: storage::data_of(e),
    };
    crate::state::is_sound(&entry).then_some(entry)
}

/// A sole voter, and nothing in its log changes that. Else what it has on its disk would be committed by an entry of its new term alone; where the journal has no room for that entry, nothing
/// could be written out to make room for it.
fn decides_alone<S: Store>(
    id: ReplicaId,
    conf: &ConfState,
    store: &S,
    applied: RaftIndex,
    last: RaftIndex,
) -> bool {
    let mut above = (applied.0 + 1..=last.0).map(RaftIndex);
    conf.voters == [id.0]
        && conf.voters_outgoing.is_empty()
        && above.all(|i| store.header(i).is_some_and(|h| h.kind != EntryKind::Config))
}

/// Adds the entry at `index` of a log found at start to the tail; false if it is not sound.
fn take_over<S: Store>(store: &S, index: RaftIndex, tail: &mut State, now_ms: i64) -> bool {
    let Some(header) = store.header(index) else {
        return false;
    };
    if header.base_offset != tail.next_offset() {
        return false;
    }
    let Some(data) = store.bytes(index) else {
        // L13: a damaged batch keeps its place, and a damaged trim only keeps more. Without its command or change the state is not known.
        match header.kind {
            EntryKind::Batch | EntryKind::Extent => tail.push_damaged(&header, now_ms),
            EntryKind::NoOp | EntryKind::TrimPrefix => {
                tail.push_service(header.term, EntryKind::NoOp, Bytes::new());
            }
            EntryKind::Command | EntryKind::Config => return false,
        }
        return true;
    };
    let entry = Entry {
        index,
        term: header.term,
        kind: header.kind,
        base_offset: header.base_offset,
        next_offset: header.next_offset,
        data,
    };
    tail.push_placed(&entry, now_ms)
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
