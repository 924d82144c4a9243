//! The state of one replica's log in memory, and everything that changes it in one synchronous step.
//!
//! ```text
//!   first            written_out        commit        last
//!     |----- segments ----|---- memory and journal -----|
//!                 |------------- slots -----------------|
//! ```
//! `slots` always reach from `written_out + 1` to `last`; in front of that they are the batch cache, and may reach further back.
//!
//! Invariants, asserted: indexes of slots have no gaps; `written_out <= commit <= last`; nothing at or below `commit` is ever replaced.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;

use super::LogPolicy;
use super::extent::{Extent, ExtentFiles};
use super::frame;
use super::journal::{Journal, RunSlot};
use super::segment::Segment;
use super::terms::TermTable;
use crate::batch::BatchHeader;
use crate::memory::Meter;
use crate::types::*;

/// An entry in memory.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub header: EntryHeader,
    /// The commit that holds it.
    pub lsn: Lsn,
    /// -1 for everything without records.
    pub max_timestamp: i64,
    /// Bytes of its batch in an extent file.
    pub extent_bytes: u32,
    /// `None`: durable once, damaged now; it keeps its slot (L13).
    pub data: Option<Bytes>,
}

impl Slot {
    pub fn of(e: &Entry, lsn: Lsn) -> Slot {
        let (max_timestamp, extent_bytes) = match e.kind {
            EntryKind::Batch => (
                BatchHeader::parse(&e.data).map_or(-1, |h| h.max_timestamp),
                0,
            ),
            EntryKind::Extent => Extent::decode(&e.data).map_or((-1, 0), |x| {
                (x.header().max_timestamp, x.total_bytes() as u32)
            }),
            _ => (-1, 0),
        };
        Slot {
            header: e.header(),
            lsn,
            max_timestamp,
            extent_bytes,
            data: Some(e.data.clone()),
        }
    }

    pub fn frame_bytes(&self) -> u64 {
        frame::bytes_of_entry(&self.header, self.data.is_none())
    }

    /// Bytes on the disk once it is written out.
    pub fn stored_bytes(&self) -> u64 {
        self.frame_bytes() + u64::from(self.extent_bytes)
    }

    /// The extent that it names.
    pub fn extent(&self) -> Option<Extent> {
        let data = self.data.as_ref()?;
        (self.header.kind == EntryKind::Extent).then(|| Extent::decode(data))?
    }

    /// Memory that it is charged for, in bytes.
    pub fn charged_bytes(&self) -> u64 {
        self.data.as_ref().map_or(0, |d| d.len() as u64) + SLOT_OVERHEAD_BYTES
    }
}

/// What an entry in memory costs besides its data.
const SLOT_OVERHEAD_BYTES: u64 = 160;

/// Where write-out stands in the segment being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WritePosition {
    /// Everything before it is written; a multiple of 4096.
    pub file: u64,
    /// The end of the last whole entry, at most `file`. What lies between is the front of the next entry.
    pub entry_end: u64,
}

pub(crate) struct ReplicaState {
    pub id: ReplicaId,
    pub group: GroupId,
    pub hard_state: HardState,
    /// The first index that the log still has.
    pub first: RaftIndex,
    pub last: RaftIndex,
    pub commit: RaftIndex,
    pub log_start: Offset,
    pub log_end: Offset,
    pub high_watermark: Offset,
    pub terms: TermTable,
    pub slots: VecDeque<Slot>,
    pub written_out: RaftIndex,
    /// The offset after `written_out`.
    pub written_next_offset: Offset,
    pub write: WritePosition,
    /// Oldest first; the last one is written to unless it is sealed.
    pub segments: Vec<Rc<Segment>>,
    pub next_generation: u64,
    pub extents: ExtentFiles,
    /// Frame bytes of committed entries above `written_out`, about.
    pub pending_bytes: u64,
    /// Bytes of the extents that those name.
    pub pending_extent_bytes: u64,
    /// The first record since the last captured checkpoint frame.
    pub dirty_since: Option<Lsn>,
    /// Something that a checkpoint says has changed.
    pub frame_dirty: bool,
    pub run: RunSlot,
    pub removed: bool,
    /// A plan's bytes are on their way to the last segment.
    pub writing: bool,
    /// In the shard's write queue.
    pub queued: bool,
    pub policy: LogPolicy,
    /// Counts the memory of entries above `written_out`, over all replicas of the shard.
    pub tail_memory: Option<Meter>,
    /// Copies that may not be durable yet.
    carried: Option<Box<Carried>>,
}

/// Where the first copies of carried entries lie, as long as the second ones may be lost (L6).
struct Carried {
    /// In order of their indexes. No more than one tail that may be carried.
    first: Vec<(RaftIndex, Lsn)>,
    /// The commit with the last of the second copies.
    last: Lsn,
}

impl ReplicaState {
    pub fn new(id: ReplicaId, group: GroupId) -> ReplicaState {
        ReplicaState {
            id,
            group,
            hard_state: HardState::default(),
            first: RaftIndex(1),
            last: RaftIndex(0),
            commit: RaftIndex(0),
            log_start: Offset(0),
            log_end: Offset(0),
            high_watermark: Offset(0),
            terms: TermTable::default(),
            slots: VecDeque::new(),
            written_out: RaftIndex(0),
            written_next_offset: Offset(0),
            write: WritePosition::default(),
            segments: Vec::new(),
            next_generation: 1,
            extents: ExtentFiles::default(),
            pending_bytes: 0,
            pending_extent_bytes: 0,
            dirty_since: None,
            frame_dirty: true,
            run: RunSlot::default(),
            removed: false,
            writing: false,
            queued: false,
            policy: LogPolicy::default(),
            tail_memory: None,
            carried: None,
        }
    }

    /// Index of the first slot; `last + 1` when there is none.
    pub fn slots_first(&self) -> RaftIndex {
        self.slots
            .front()
            .map_or(self.last.next(), |s| s.header.index)
    }

    pub fn slot(&self, index: RaftIndex) -> Option<&Slot> {
        let at = index.0.checked_sub(self.slots_first().0)?;
        self.slots.get(usize::try_from(at).ok()?)
    }

    /// The offset after an entry that is in memory or the last one written out.
    pub fn next_offset_after(&self, index: RaftIndex) -> Offset {
        if index == self.written_out {
            return self.written_next_offset;
        }
        let slot = self.slot(index);
        let slot = slot.expect("entries above the written-out index are in memory");
        slot.header.next_offset
    }

    /// L1: hard state first, then entries; an entry replaces everything from its index on.
    pub fn append(
        &mut self,
        journal: &mut Journal,
        hard_state: Option<HardState>,
        entries: &[Entry],
    ) -> Lsn {
        if let Some(h) = hard_state {
            let only_commit = h.term == self.hard_state.term && h.vote == self.hard_state.vote;
            self.hard_state = h;
            // A change of the commit index alone makes no record; the replica's next one carries it (L1).
            if !only_commit {
                let lsn =
                    journal.put_hard_state(self.id, &h, self.last, self.log_end, &mut self.run);
                self.journaled(lsn);
            }
        }
        for e in entries {
            assert!(e.index > self.commit, "a committed entry is never replaced");
            assert!(e.index <= self.last.next(), "entries have no gaps");
            if e.index <= self.last {
                self.truncate_from(e.index);
            }
            assert_eq!(e.base_offset, self.log_end, "offsets are dense");
            let lsn = journal.put_entry(self.id, e, &self.hard_state, false, &mut self.run);
            self.journaled(lsn);
            self.push(Slot::of(e, lsn));
        }
        journal.open_lsn()
    }

    /// Notes that a record of this replica went into commit `lsn`.
    pub fn journaled(&mut self, lsn: Lsn) {
        self.dirty_since.get_or_insert(lsn);
        self.frame_dirty = true;
    }

    /// Adds an entry behind the last one.
    pub fn push(&mut self, slot: Slot) {
        let h = &slot.header;
        assert_eq!(h.index, self.last.next(), "entries have no gaps");
        self.terms.note(h.index, h.term, h.base_offset);
        if let Some(extent) = slot.extent() {
            self.extents.note(extent.file, h.index);
        }
        self.last = h.index;
        self.log_end = h.next_offset;
        if let Some(m) = &self.tail_memory {
            m.add(slot.charged_bytes());
        }
        if self.slots.capacity() == 0 {
            // Most replicas are idle and have one.
            self.slots.reserve_exact(1);
        }
        self.slots.push_back(slot);
    }

    /// L10: entries, next offset, term table and index roll back together. (The uncommitted producer state is the caller's.)
    pub fn truncate_from(&mut self, index: RaftIndex) {
        assert!(
            index > self.commit,
            "only uncommitted entries are truncated"
        );
        while self.slots.back().is_some_and(|s| s.header.index >= index) {
            if let Some(gone) = self.slots.pop_back() {
                self.log_end = gone.header.base_offset;
                if let Some(m) = &self.tail_memory {
                    m.sub(gone.charged_bytes());
                }
            }
        }
        self.last = index.prev();
        self.terms.truncate_from(index);
        self.frame_dirty = true;
    }

    /// Everything up to `index` is committed and applied.
    pub fn set_commit(&mut self, index: RaftIndex) {
        assert!(
            index <= self.last,
            "only entries that are here are committed"
        );
        if index <= self.commit {
            return;
        }
        let (mut frames, mut extents) = (0, 0);
        for slot in (self.commit.0 + 1..=index.0).filter_map(|i| self.slot(RaftIndex(i))) {
            frames += slot.frame_bytes();
            extents += u64::from(slot.extent_bytes);
        }
        self.pending_bytes += frames;
        self.pending_extent_bytes += extents;
        let slot = self
            .slot(index)
            .expect("entries above the written-out index are in memory");
        self.high_watermark = slot.header.next_offset;
        self.commit = index;
        self.hard_state.commit = index;
    }

    /// The first journal commit that holds bytes which nothing else does, once all that was put into the journal is durable.
    pub fn bytes_from(&self) -> Option<Lsn> {
        self.slot(self.written_out.next()).map(|s| s.lsn)
    }

    /// The same for a crash now: a copy that isn't durable holds nothing (L6).
    pub fn bytes_needed_from(&mut self, durable: Lsn) -> Option<Lsn> {
        self.carried = self.carried.take().filter(|c| c.last > durable);
        let first = self.carried.as_ref().and_then(|c| {
            let left = c.first.iter().find(|(index, _)| *index > self.written_out);
            left.map(|(_, lsn)| *lsn)
        });
        self.bytes_from().into_iter().chain(first).min()
    }

    /// L6: the whole tail that isn't written out goes into the journal again, in one step, so that the older copy can go.
    pub fn carry(&mut self, journal: &mut Journal) {
        let from = self.written_out.next().0 - self.slots_first().0;
        let mut run = self.run;
        let hard_state = self.hard_state;
        let id = self.id;
        let durable = journal.durable_lsn();
        let before = self.carried.take().filter(|c| c.last > durable);
        // Carried twice before the second copy was durable: the first one counts still.
        let first_copy = |index: RaftIndex, lsn: Lsn| {
            let known = before.as_ref().and_then(|c| {
                let at = c.first.binary_search_by_key(&index, |(i, _)| *i).ok()?;
                Some(c.first[at].1)
            });
            known.unwrap_or(lsn)
        };
        let mut carried = Vec::new();
        let mut first = None;
        for slot in self.slots.iter_mut().skip(from as usize) {
            // A damaged entry has no bytes to carry: its place in the checkpoint is what is left of it.
            let Some(data) = &slot.data else { continue };
            let h = &slot.header;
            let entry = Entry {
                index: h.index,
                term: h.term,
                kind: h.kind,
                base_offset: h.base_offset,
                next_offset: h.next_offset,
                data: data.clone(),
            };
            carried.push((h.index, first_copy(h.index, slot.lsn)));
            slot.lsn = journal.put_entry(id, &entry, &hard_state, true, &mut run);
            first.get_or_insert(slot.lsn);
        }
        self.carried = first.map(|_| {
            Box::new(Carried {
                first: carried,
                last: journal.open_lsn(),
            })
        });
        self.run = run;
        if let Some(lsn) = first {
            self.journaled(lsn);
        }
    }

    /// Drops cached slots up to `index`, which must be written out. Returns the bytes that were charged for them.
    pub fn evict_to(&mut self, index: RaftIndex) -> u64 {
        assert!(
            index <= self.written_out,
            "only what is written out leaves memory"
        );
        let mut freed = 0;
        while self.slots.front().is_some_and(|s| s.header.index <= index) {
            freed += self.slots.pop_front().map_or(0, |s| s.charged_bytes());
        }
        freed
    }

    /// The replica is removed: all entries go.
    pub fn drop_slots(&mut self) {
        let tail = (self.slots.iter()).filter(|s| s.header.index > self.written_out);
        let bytes: u64 = tail.map(Slot::charged_bytes).sum();
        if let Some(m) = &self.tail_memory {
            m.sub(bytes);
        }
        self.slots.clear();
    }

    /// Drops the segments that lie wholly below the log's start and are no longer written to.
    pub fn trim_segments(&mut self) -> Vec<Rc<Segment>> {
        let start = self.log_start;
        // Nothing of the segment being written is left either: the next batch begins another. Not while a write is under way: what it brings lies above the start.
        let last_gone = !self.writing
            && self
                .segments
                .last()
                .is_some_and(|s| s.meta.borrow().next_offset <= start);
        if last_gone {
            self.seal_active();
        }
        let keep = self
            .segments
            .iter()
            .position(|s| {
                let m = s.meta.borrow();
                m.next_offset > start || !m.sealed
            })
            .unwrap_or(self.segments.len());
        let gone: Vec<_> = self.segments.drain(..keep).collect();
        if !gone.is_empty() {
            let first = self.segments.first().map(|s| s.meta.borrow().base_index);
            self.first = first.unwrap_or(self.written_out.next()).max(self.first);
            self.terms.trim_to(self.first);
            self.frame_dirty = true;
        }
        gone
    }

    /// L9: where the log should start by the policy, if later than it does. Whole segments, the one being written last of all.
    pub fn retention_start(&self, now_ms: i64) -> Option<Offset> {
        let p = &self.policy;
        let mut start = self.log_start;
        let mut left = self.size_bytes();
        for s in &self.segments {
            let m = s.meta.borrow();
            let active = !m.sealed && self.written_out < self.last;
            let old = p.retention_ms >= 0
                && m.max_timestamp >= 0
                && now_ms.saturating_sub(m.max_timestamp) > p.retention_ms;
            let over = p.retention_bytes >= 0
                && left.saturating_sub(m.bytes()) >= p.retention_bytes as u64
                && m.sealed;
            if !(over || old && !active) {
                break;
            }
            left = left.saturating_sub(m.bytes());
            start = m.next_offset;
        }
        let on_disk_gone = self
            .segments
            .last()
            .is_none_or(|s| s.meta.borrow().next_offset <= start);
        if on_disk_gone && self.unflushed_is_older_than(p.retention_ms, now_ms) {
            start = self.high_watermark;
        }
        (start > self.log_start).then_some(start)
    }

    /// Whether every entry that isn't written out is committed and outlived. A small log may never get to a segment.
    fn unflushed_is_older_than(&self, retention_ms: i64, now_ms: i64) -> bool {
        let skip = (self.written_out.next().0 - self.slots_first().0) as usize;
        let newest = self.slots.iter().skip(skip).map(|s| s.max_timestamp).max();
        let old = newest.is_some_and(|ts| ts >= 0 && now_ms.saturating_sub(ts) > retention_ms);
        retention_ms >= 0 && self.commit == self.last && old
    }

    /// Bytes of the log that clients could read: segments and the tail in memory.
    pub fn size_bytes(&self) -> u64 {
        let segments: u64 = self.segments.iter().map(|s| s.meta.borrow().bytes()).sum();
        segments + self.pending_bytes + self.pending_extent_bytes
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::batch::testing;
    use crate::log::block::Seed;
    use crate::log::superblock::{ChainPoint, DATA_START, Superblock};
    use uuid::Uuid;

    pub fn journal() -> Journal {
        let start = ChainPoint {
            lsn: Lsn(1),
            position: DATA_START,
            lap: 0,
            previous_crc: 0,
        };
        let superblock = Superblock {
            sequence: 1,
            size: 1 << 22,
            tail: start,
            checkpoint_sequence: 0,
            epochs: vec![],
        };
        let seed = Seed {
            directory_id: 1,
            journal: 0,
        };
        Journal::new(
            seed,
            BootEpoch(1),
            superblock,
            start,
            vec![],
            &super::super::directory::Directory::default(),
        )
    }

    pub fn replica() -> ReplicaState {
        let topic = TopicId(Uuid::from_u128(3));
        ReplicaState::new(
            ReplicaId(1),
            GroupId {
                topic,
                partition: 0,
            },
        )
    }

    pub fn batch_entry(index: u64, term: u64, base: i64, records: i32) -> Entry {
        let base_offset = Offset(base);
        Entry {
            index: RaftIndex(index),
            term: Term(term),
            kind: EntryKind::Batch,
            base_offset,
            next_offset: Offset(base + i64::from(records)),
            data: testing::batch(records, 10, None).stamped(base_offset, LeaderEpoch(term as i32)),
        }
    }

    #[test]
    fn l1_l10_an_entry_replaces_everything_from_its_index_on() {
        let (mut r, mut j) = (replica(), journal());
        r.append(
            &mut j,
            None,
            &[
                batch_entry(1, 1, 0, 2),
                batch_entry(2, 1, 2, 3),
                batch_entry(3, 1, 5, 1),
            ],
        );
        r.set_commit(RaftIndex(1));
        // Terms at one index may go 1, 2, 1; offsets, table and last go back together.
        r.append(&mut j, None, &[batch_entry(2, 2, 2, 7)]);
        assert_eq!((r.last, r.log_end), (RaftIndex(2), Offset(9)));
        assert_eq!(r.terms.term_of(RaftIndex(2)), Some(Term(2)));
        assert_eq!(r.high_watermark, Offset(2));
        r.append(&mut j, None, &[batch_entry(3, 2, 9, 1)]);
        assert_eq!(r.terms.rows().len(), 2);
    }

    #[test]
    #[should_panic(expected = "never replaced")]
    fn a_committed_entry_is_never_replaced() {
        let (mut r, mut j) = (replica(), journal());
        r.append(&mut j, None, &[batch_entry(1, 1, 0, 2)]);
        r.set_commit(RaftIndex(1));
        r.append(&mut j, None, &[batch_entry(1, 2, 0, 2)]);
    }

    #[test]
    fn l1_a_commit_index_alone_makes_no_record() {
        let (mut r, mut j) = (replica(), journal());
        let mut h = HardState {
            term: Term(1),
            vote: 1,
            commit: RaftIndex(0),
        };
        r.append(&mut j, Some(h), &[]);
        let waiting = j.waiting_bytes();
        assert!(waiting > 0);
        h.commit = RaftIndex(0);
        r.append(&mut j, Some(h), &[]);
        assert_eq!(j.waiting_bytes(), waiting);
    }

    #[test]
    fn l6_what_is_carried_needs_only_the_newer_commit() {
        let (mut r, mut j) = (replica(), journal());
        r.append(
            &mut j,
            None,
            &[batch_entry(1, 1, 0, 2), batch_entry(2, 1, 2, 3)],
        );
        let first = r.bytes_from().unwrap();
        let next = j.seal_open();
        r.carry(&mut j);
        assert!(next > first);
        assert_eq!(r.bytes_from(), Some(next));
        assert_eq!(r.last, RaftIndex(2));
    }

    #[test]
    fn l6_the_older_copy_counts_until_the_newer_one_is_durable() {
        let (mut r, mut j) = (replica(), journal());
        r.append(&mut j, None, &[batch_entry(1, 1, 0, 2)]);
        let first = r.bytes_from().unwrap();
        let second = j.seal_open();
        r.append(&mut j, None, &[batch_entry(2, 1, 2, 3)]);
        j.seal_open();
        r.carry(&mut j);
        assert!(first < second && second < r.bytes_from().unwrap());
        assert_eq!(r.bytes_needed_from(second), Some(first));
        j.seal_open();
        // Once more, before the copies are durable.
        r.carry(&mut j);
        let copies = r.bytes_from().unwrap();
        assert!(copies > second);
        assert_eq!(r.bytes_needed_from(second), Some(first));
        // What was written out needs no copy.
        r.set_commit(RaftIndex(1));
        r.written_out = RaftIndex(1);
        assert_eq!(r.bytes_needed_from(second), Some(second));
        assert_eq!(r.bytes_needed_from(copies), Some(copies));
    }
}
