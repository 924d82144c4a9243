//! A replica as a start puts it together: its checkpoint frame, and on top of that what the journals hold, record by record (L1, L4, L13).
//!
//! Pure. Lost entries keep their slots without bytes. When all records are in, [`RecoveredReplica::finish`] checks that the entries follow one another.
//! Called by [`super::recovery`].

use std::collections::VecDeque;

use bytes::Bytes;

use super::checkpoint::ReplicaFrame;
use super::directory::Run;
use super::replay::READ_BYTES;
use super::replica::Slot;
use crate::types::*;

/// An entry's bytes lie in a window of [`READ_BYTES`] that was read of the journal. One smaller than half of it is copied: it must not keep the whole window in memory.
const COPIED_BELOW_BYTES: usize = READ_BYTES / 2;

fn slot_of(entry: &Entry, lsn: Lsn) -> Slot {
    let mut slot = Slot::of(entry, lsn);
    if entry.data.len() < COPIED_BELOW_BYTES {
        slot.data = Some(Bytes::copy_from_slice(&entry.data));
    }
    slot
}

/// A replica put together from its checkpoint frame and the journals.
pub(crate) struct RecoveredReplica {
    pub frame: ReplicaFrame,
    pub slots: VecDeque<Slot>,
    pub commit: RaftIndex,
    /// The journal that the slots' lsns belong to.
    pub journal: u32,
    /// It isn't known what it lost; the start that lost it.
    pub suspect: Option<BootEpoch>,
    /// Its segments are gone, with their directory.
    pub lost_directory: bool,
    /// Entries were missing when a later one was found.
    hole: Option<BootEpoch>,
    /// The term in the checkpoint frame: what was begun to be written out by then isn't of a later one.
    frame_term: Term,
}

impl RecoveredReplica {
    pub fn of_frame(frame: ReplicaFrame, journal: u32) -> RecoveredReplica {
        RecoveredReplica {
            commit: frame.written_out.max(frame.hard_state.commit),
            frame_term: frame.hard_state.term,
            frame,
            slots: VecDeque::new(),
            journal,
            suspect: None,
            lost_directory: false,
            hole: None,
        }
    }

    pub fn created(
        id: ReplicaId,
        group: GroupId,
        state: Bytes,
        at: (BootEpoch, Lsn),
        journal: u32,
    ) -> RecoveredReplica {
        let frame = ReplicaFrame {
            id,
            group,
            captured: at,
            hard_state: HardState::default(),
            first: RaftIndex(1),
            log_start: Offset(0),
            written_out: RaftIndex(0),
            written_next_offset: Offset(0),
            write: (0, 0),
            next_generation: 1,
            terms: Vec::new(),
            manifest: Vec::new(),
            extents: Vec::new(),
            state_at: RaftIndex(0),
            state_next_offset: Offset(0),
            state,
            more_state: Vec::new(),
        };
        RecoveredReplica::of_frame(frame, journal)
    }

    pub fn last(&self) -> RaftIndex {
        self.slots
            .back()
            .map_or(self.frame.written_out, |s| s.header.index)
    }

    pub fn log_end(&self) -> Offset {
        self.slots
            .back()
            .map_or(self.frame.written_next_offset, |s| s.header.next_offset)
    }

    fn truncate_from(&mut self, index: RaftIndex) {
        while self.slots.back().is_some_and(|s| s.header.index >= index) {
            self.slots.pop_back();
        }
    }

    fn slot_mut(&mut self, index: RaftIndex) -> Option<&mut Slot> {
        let first = self.slots.front()?.header.index;
        self.slots
            .get_mut(usize::try_from(index.0.checked_sub(first.0)?).ok()?)
    }

    /// Entries between the last one and `index` that must have been there and aren't.
    pub fn missing_before(&self, index: RaftIndex) -> u64 {
        index.0.saturating_sub(self.last().next().0)
    }

    /// L1: replaces everything from its index on.
    pub fn append(&mut self, entry: &Entry, at: (BootEpoch, Lsn)) {
        if entry.index <= self.frame.written_out {
            // Written out, so committed as it is there; but what followed it when it was appended is gone.
            self.slots.clear();
            return;
        }
        self.truncate_from(entry.index);
        self.fill_hole(entry, at.0);
        self.slots.push_back(slot_of(entry, at.1));
    }

    /// L6: a second copy, which replaces nothing.
    pub fn carry(&mut self, entry: &Entry, at: (BootEpoch, Lsn)) {
        if entry.index <= self.frame.written_out {
            return;
        }
        match self.slot_mut(entry.index) {
            Some(slot) if slot.header.term == entry.term => *slot = slot_of(entry, at.1),
            _ => self.append(entry, at),
        }
    }

    /// Entries that must have been there and aren't (L13). Copies that were carried later may still fill the hole: the tail is free to lie between the first
    /// copies of a replica's entries.
    fn fill_hole(&mut self, next: &Entry, boot_epoch: BootEpoch) {
        if self.last().next() < next.index {
            self.hole = self.hole.max(Some(boot_epoch));
            self.lose(
                self.last().next(),
                next.index.prev(),
                next.term,
                next.base_offset,
                Lsn(0),
            );
        }
    }

    /// Puts slots without bytes for entries that were durable and are lost; the first of them takes all their offsets.
    fn lose(
        &mut self,
        first: RaftIndex,
        last: RaftIndex,
        term: Term,
        next_offset: Offset,
        lsn: Lsn,
    ) {
        let mut base_offset = self.log_end();
        for index in first.0..=last.0 {
            self.slots.push_back(Slot {
                header: EntryHeader {
                    index: RaftIndex(index),
                    term,
                    kind: EntryKind::Batch,
                    base_offset,
                    next_offset: next_offset.max(base_offset),
                    data_bytes: 0,
                },
                lsn,
                max_timestamp: -1,
                extent_bytes: 0,
                data: None,
            });
            base_offset = next_offset.max(base_offset);
        }
    }

    /// The entries of a run that was durable, and the hard state after it. Those that another commit holds too are not lost: an index and a term name one
    /// entry, wherever it lies (L4).
    pub fn lose_run(&mut self, run: &Run, at: (BootEpoch, Lsn)) -> u64 {
        // A frame that was captured later knows a later hard state.
        if at >= self.frame.captured {
            self.frame.hard_state = run.hard_state;
        }
        self.commit = self.commit.max(run.hard_state.commit);
        let mut first = run.first.max(self.frame.written_out.next());
        while first <= run.last
            && self
                .slot_mut(first)
                .is_some_and(|s| s.header.term == run.term)
        {
            first = first.next();
        }
        if first > run.last {
            return 0;
        }
        self.truncate_from(first);
        // Entries before the run that are missing too belong to the same damage.
        let first = self.last().next().min(first);
        self.lose(first, run.last, run.term, run.next_offset, at.1);
        run.last.0 + 1 - first.0
    }

    /// Entries up to here were durable when the frame was captured.
    pub fn lost_below_state(&self) -> u64 {
        self.frame.state_at.0.saturating_sub(self.last().0)
    }

    /// L13: their offsets aren't given out again, as the frame says where they end.
    pub fn lose_below_state(&mut self) {
        let first = self.last().next();
        if first > self.frame.state_at {
            return;
        }
        let (at, end) = (self.frame.state_at, self.frame.state_next_offset);
        let found = self.slots.back().map_or(Term(0), |s| s.header.term);
        let term = self.frame.terms.last().map_or(found, |row| row.term);
        self.hole = self.hole.max(Some(self.frame.captured.0));
        self.commit = self.commit.max(at);
        self.lose(first, at, term.max(found), end, Lsn(0));
    }

    /// L5: a segment may end in the front of the entry that was to be written next. If that one is lost, or was cut and another has its index, nothing can
    /// follow there: the segment ends before it, and the next write-out begins another.
    fn leave_what_was_begun(&mut self) {
        let (file, entry_end) = self.frame.write;
        let next = self.frame.written_out.next();
        let is_here = self.slots.front().is_some_and(|s| {
            s.header.index == next && s.header.term <= self.frame_term && s.data.is_some()
        });
        if file > entry_end
            && !is_here
            && let Some(active) = self.frame.manifest.last_mut()
        {
            active.sealed = true;
        }
    }

    /// Lost entries take the offsets between the sound ones around them: the first in a row takes all of them.
    fn settle_lost(&mut self) {
        let mut offset = self.frame.written_next_offset;
        let mut i = 0;
        while i < self.slots.len() {
            if self.slots[i].data.is_some() {
                offset = self.slots[i].header.next_offset;
                i += 1;
                continue;
            }
            let lost = self.slots.iter().skip(i).take_while(|s| s.data.is_none());
            let next = i + lost.count();
            let end = match self.slots.get(next) {
                Some(sound) => sound.header.base_offset,
                None => self.slots[next - 1].header.next_offset,
            };
            for s in self.slots.range_mut(i..next) {
                s.header.base_offset = offset;
                s.header.next_offset = end.max(offset);
                offset = s.header.next_offset;
            }
            i = next;
        }
    }

    /// L1 and L13: commit is within the log, and at least what was written out. `false` when entries contradict one another, which no crash leaves.
    pub fn finish(&mut self, now: BootEpoch) -> bool {
        self.settle_lost();
        self.leave_what_was_begun();
        if self.hole.is_some() && self.slots.iter().any(|s| s.data.is_none()) {
            tracing::error!(group = %self.frame.group, replica = %self.frame.id, "entries are missing from the journals");
            self.suspect = self.suspect.max(self.hole);
        }
        if let Some(lost_in) = self.suspect {
            // L4: a term that was voted in may be lost; a sole voter goes on above all that can have been. Each start holds one election.
            let found = self.slots.back().map_or(Term(0), |s| s.header.term);
            let above = found.max(self.frame.hard_state.term).0 + (now.0 - lost_in.0) + 1;
            if Term(above).leader_epoch().is_none() {
                return false;
            }
            self.frame.hard_state.term = Term(above);
            self.frame.hard_state.vote = 0;
        }
        self.commit = self.commit.clamp(self.frame.written_out, self.last());
        self.frame.hard_state.commit = self.commit;
        let before = self
            .frame
            .terms
            .iter()
            .rfind(|row| row.first <= self.frame.written_out);
        let mut term = before.map_or(Term(0), |row| row.term);
        let (mut index, mut offset) = (self.frame.written_out, self.frame.written_next_offset);
        self.slots.iter().all(|s| {
            let h = &s.header;
            let follows = h.term >= term
                && h.index == index.next()
                && h.base_offset == offset
                && h.next_offset >= offset;
            (term, index, offset) = (h.term, h.index, h.next_offset);
            follows
        }) && term <= self.frame.hard_state.term
    }

    /// From here on the lsns are another journal's: what is in memory so far belongs to no block of it.
    pub fn moved_to(&mut self, journal: u32) {
        if self.journal != journal {
            self.journal = journal;
            for s in &mut self.slots {
                s.lsn = Lsn(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::replica::tests::{batch_entry, replica};

    fn recovered() -> RecoveredReplica {
        let r = replica();
        RecoveredReplica::created(r.id, r.group, Bytes::new(), at(1), 0)
    }

    fn at(lsn: u64) -> (BootEpoch, Lsn) {
        (BootEpoch(1), Lsn(lsn))
    }

    fn run(term: u64, first: u64, last: u64, next_offset: i64) -> Run {
        Run {
            replica: ReplicaId(1),
            term: Term(term),
            first: RaftIndex(first),
            last: RaftIndex(last),
            next_offset: Offset(next_offset),
            hard_state: HardState {
                term: Term(term),
                vote: 1,
                commit: RaftIndex(last),
            },
        }
    }

    fn places(r: &RecoveredReplica) -> Vec<(u64, i64, i64, bool)> {
        let of = |s: &Slot| {
            let h = &s.header;
            let (base, next) = (h.base_offset.0, h.next_offset.0);
            (h.index.0, base, next, s.data.is_some())
        };
        r.slots.iter().map(of).collect()
    }

    #[test]
    fn l4_what_a_lost_commit_repeated_is_not_lost() {
        let mut r = recovered();
        r.append(&batch_entry(1, 1, 0, 2), at(1));
        r.append(&batch_entry(2, 1, 2, 2), at(1));
        assert_eq!(r.lose_run(&run(1, 1, 3, 5), at(2)), 1);
        assert!(r.finish(BootEpoch(2)));
        assert_eq!(
            places(&r),
            vec![(1, 0, 2, true), (2, 2, 4, true), (3, 4, 5, false)]
        );
    }

    #[test]
    fn a_small_entry_keeps_no_window_of_the_journal() {
        let mut r = recovered();
        let window = Bytes::from(vec![7; READ_BYTES]);
        let mut entry = batch_entry(1, 1, 0, 2);
        for data in [window.slice(100..200), window.slice(..READ_BYTES / 2)] {
            entry.data = data.clone();
            r.append(&entry, at(1));
            r.carry(&entry, at(2));
            let kept = r.slots[0].data.as_ref().unwrap();
            assert_eq!(*kept, data);
            let shared = kept.as_ptr() == data.as_ptr();
            assert_eq!(shared, data.len() >= COPIED_BELOW_BYTES);
        }
    }

    #[test]
    fn lost_entries_take_the_offsets_between_sound_ones() {
        let mut r = recovered();
        assert_eq!(r.lose_run(&run(1, 1, 4, 8), at(2)), 4);
        // A copy of the third comes later in the journal.
        r.carry(&batch_entry(3, 1, 4, 2), at(3));
        assert!(r.finish(BootEpoch(2)));
        assert_eq!(
            places(&r),
            vec![
                (1, 0, 4, false),
                (2, 4, 4, false),
                (3, 4, 6, true),
                (4, 6, 8, false)
            ]
        );
    }

    #[test]
    fn a_frame_captured_later_knows_the_hard_state() {
        let mut r = recovered();
        r.frame.captured = at(9);
        r.frame.hard_state.term = Term(5);
        r.lose_run(&run(1, 1, 0, 0), at(2));
        assert_eq!(r.frame.hard_state.term, Term(5));
        r.lose_run(&run(6, 1, 0, 0), at(9));
        assert_eq!(r.frame.hard_state.term, Term(6));
    }

    #[test]
    fn l4_a_suspect_goes_on_above_every_term_that_can_have_been() {
        let mut r = recovered();
        r.append(&batch_entry(1, 3, 0, 2), at(1));
        r.append(&batch_entry(4, 4, 9, 2), (BootEpoch(2), Lsn(3)));
        assert!(r.finish(BootEpoch(5)));
        // Lost in start 2, found 4, and starts 3, 4 and 5 may each have held an election.
        assert_eq!(r.frame.hard_state.term, Term(4 + 3 + 1));
        assert_eq!(r.frame.hard_state.vote, 0);
    }

    #[test]
    fn l5_a_segment_ends_before_what_was_begun_and_is_lost() {
        let sealed = |term: u64| {
            let mut r = recovered();
            r.frame.write = (8192, 5000);
            r.frame_term = Term(2);
            r.frame.manifest.push(crate::log::segment::SegmentMeta {
                base_offset: Offset(0),
                base_index: RaftIndex(1),
                generation: 1,
                end: 5000,
                extent_bytes: 0,
                last_index: RaftIndex(0),
                next_offset: Offset(0),
                max_timestamp: -1,
                created_ms: 0,
                sealed: false,
                rows: vec![],
            });
            r.append(&batch_entry(1, term, 0, 2), at(1));
            r.frame.hard_state.term = Term(term);
            assert!(r.finish(BootEpoch(2)));
            r.frame.manifest[0].sealed
        };
        assert!(!sealed(2));
        // Another entry under its index: of a later term.
        assert!(sealed(3));
    }
}
