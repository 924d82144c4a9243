//! What a group knows of its log's unapplied end, and the state that follows from what is applied.
//!
//! The *tail* holds one small record per entry above the applied index: everything that applying it, counting it or taking it back needs,
//! so that neither reads the log. Truncation is one synchronous function (L10): it takes back entries, the next offset, the bytes in
//! flight and the producers' overlay together.
//!
//! Invariants: the tail is `applied + 1 ..= last`, without holes, offsets continuous; `next_offset` is what the next batch gets, what is in
//! flight included (G10). Bounds: `limits::UNCOMMITTED_ENTRIES` for a leader; for a follower what its leader may have uncommitted.
//! Pure. Called by [`crate::group`].

use std::collections::VecDeque;

use bytes::Bytes;
use engine::batch::BatchHeader;
use engine::log::Extent;
use engine::types::{Entry, EntryHeader, EntryKind, Offset, RaftIndex, Term};

use crate::codec;
use crate::limits;
use crate::producers::{Producers, Stamp};

/// An entry above the applied index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TailEntry {
    pub term: Term,
    pub kind: EntryKind,
    pub base_offset: Offset,
    pub next_offset: Offset,
    pub data_bytes: u32,
    /// The producer of a batch, -1 for none.
    pub producer_id: i64,
    /// The data of entries that are not batches: needed to apply them.
    pub service: Bytes,
}

/// Whether an entry's data is what its kind says; offsets are not looked at.
pub(crate) fn is_sound(entry: &Entry) -> bool {
    match entry.kind {
        EntryKind::Batch => header_of(entry)
            .is_some_and(|h| h.total_bytes == entry.data.len() && has_sound_offsets(&h)),
        EntryKind::Extent => header_of(entry).is_some_and(|h| has_sound_offsets(&h)),
        EntryKind::NoOp => entry.data.is_empty(),
        EntryKind::Config => {
            entry.data.len() <= limits::CONFIG_CHANGE_BYTES
                && codec::decode_change(&entry.data).is_ok()
        }
        EntryKind::TrimPrefix => codec::decode_trim(&entry.data).is_ok(),
        EntryKind::Command => entry.data.len() <= limits::COMMAND_BYTES,
    }
}

/// The header of an entry that holds records.
fn header_of(entry: &Entry) -> Option<BatchHeader> {
    match entry.kind {
        EntryKind::Batch => BatchHeader::parse(&entry.data).ok(),
        EntryKind::Extent => Extent::decode(&entry.data).map(|x| x.header()),
        _ => None,
    }
}

fn has_sound_offsets(h: &BatchHeader) -> bool {
    h.base_offset.0 >= 0 && h.last_offset_delta >= 0 && h.next_offset().0 < i64::MAX
}

/// The log above the applied index, and the producers.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub producers: Producers,
    tail: VecDeque<TailEntry>,
    applied: RaftIndex,
    applied_term: Term,
    commit: RaftIndex,
    /// The offset after the last committed record.
    high_watermark: Offset,
    next_offset: Offset,
    uncommitted_bytes: u64,
}

impl State {
    /// State applied to `applied`, whose entry has `term`; `next_offset` is that of the first batch above it.
    pub fn new(producers: Producers, applied: RaftIndex, term: Term, next_offset: Offset) -> State {
        State {
            producers,
            tail: VecDeque::new(),
            applied,
            applied_term: term,
            commit: applied,
            high_watermark: next_offset,
            next_offset,
            uncommitted_bytes: 0,
        }
    }

    pub fn applied(&self) -> RaftIndex {
        self.applied
    }

    pub fn last(&self) -> (RaftIndex, Term) {
        let index = RaftIndex(self.applied.0 + self.tail.len() as u64);
        (
            index,
            self.tail.back().map_or(self.applied_term, |e| e.term),
        )
    }

    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    pub fn commit(&self) -> RaftIndex {
        self.commit
    }

    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    pub fn uncommitted_bytes(&self) -> u64 {
        self.uncommitted_bytes
    }

    pub fn uncommitted_entries(&self) -> usize {
        (self.last().0.0 - self.commit.0) as usize
    }

    pub fn get(&self, index: RaftIndex) -> Option<&TailEntry> {
        let at = index.0.checked_sub(self.applied.0 + 1)?;
        self.tail.get(usize::try_from(at).ok()?)
    }

    /// Adds the entry behind the last one; gives it its offsets. `stamp` and `records` are those of a batch.
    pub fn push_batch(
        &mut self,
        term: Term,
        kind: EntryKind,
        records: i64,
        data_bytes: usize,
        stamp: Option<&Stamp>,
        now_ms: i64,
    ) {
        let base_offset = self.next_offset;
        let index = self.last().0.next();
        if let Some(stamp) = stamp {
            self.producers.push(index, stamp, base_offset, now_ms);
        }
        self.next_offset = Offset(base_offset.0 + records);
        self.push(TailEntry {
            term,
            kind,
            base_offset,
            next_offset: self.next_offset,
            data_bytes: data_bytes as u32,
            producer_id: stamp.map_or(-1, |s| s.id),
            service: Bytes::new(),
        });
    }

    /// Adds a batch whose bytes are damaged on disk: it keeps its place (L13), and nothing is known of its producer.
    pub fn push_damaged(&mut self, header: &EntryHeader, now_ms: i64) {
        let records = header.next_offset.0 - header.base_offset.0;
        let data_bytes = header.data_bytes as usize;
        let kind = EntryKind::Batch;
        self.push_batch(header.term, kind, records, data_bytes, None, now_ms);
    }

    pub fn push_service(&mut self, term: Term, kind: EntryKind, data: Bytes) {
        self.push(TailEntry {
            term,
            kind,
            base_offset: self.next_offset,
            next_offset: self.next_offset,
            data_bytes: data.len() as u32,
            producer_id: -1,
            service: data,
        });
    }

    fn push(&mut self, entry: TailEntry) {
        self.uncommitted_bytes += u64::from(entry.data_bytes);
        if self.tail.capacity() == 0 {
            // Most groups are idle and never have more than one.
            self.tail.reserve_exact(1);
        }
        self.tail.push_back(entry);
    }

    /// Adds an entry that somebody else placed: a follower's, or one found in the log at start. False, and nothing added, if it is not sound
    /// or does not begin at the log's end (G2).
    #[must_use]
    pub fn push_placed(&mut self, entry: &Entry, now_ms: i64) -> bool {
        if !is_sound(entry) {
            return false;
        }
        if !entry.kind.is_batch() {
            self.push_service(entry.term, entry.kind, entry.data.clone());
            return true;
        }
        let Some(header) = header_of(entry) else {
            return false;
        };
        if header.base_offset != self.next_offset {
            return false;
        }
        self.push_batch(
            entry.term,
            entry.kind,
            header.next_offset().0 - header.base_offset.0,
            entry.data.len(),
            Stamp::of(&header).as_ref(),
            now_ms,
        );
        true
    }

    /// L10: takes back every entry from `from` on, with all that followed from it.
    ///
    /// # Panics
    /// When `from` is committed.
    pub fn truncate(&mut self, from: RaftIndex) {
        assert!(
            from > self.commit,
            "a committed entry is never cut off (L5)"
        );
        while self.last().0 >= from {
            let index = self.last().0;
            let entry = self
                .tail
                .pop_back()
                .expect("an index above the applied one is in the tail");
            if entry.producer_id >= 0 {
                self.producers.take_back(index, entry.producer_id);
            }
            self.uncommitted_bytes -= u64::from(entry.data_bytes);
            self.next_offset = entry.base_offset;
        }
    }

    /// Moves the commit index, which never goes back.
    pub fn set_commit(&mut self, commit: RaftIndex) {
        assert!(
            commit <= self.last().0,
            "only what is in the log is committed"
        );
        while self.commit < commit {
            self.commit = self.commit.next();
            let entry = self
                .get(self.commit)
                .expect("an entry is in the tail until it is applied, and commits before that");
            let (bytes, next_offset) = (entry.data_bytes, entry.next_offset);
            self.uncommitted_bytes -= u64::from(bytes);
            self.high_watermark = next_offset;
        }
    }

    /// The next committed entry was applied: takes it out of the tail and moves its batch from the overlay to the committed state.
    pub fn apply(&mut self, index: RaftIndex) -> TailEntry {
        assert_eq!(index, self.applied.next(), "entries are applied in order");
        assert!(index <= self.commit, "only committed entries are applied");
        let entry = self
            .tail
            .pop_front()
            .expect("a committed entry is in the tail until it is applied");
        if entry.producer_id >= 0 {
            self.producers.apply(index, entry.producer_id);
        }
        self.applied = index;
        self.applied_term = entry.term;
        entry
    }
}
