//! What the crates above do with one replica's log: append, commit, read, trim. Finding by time is [`super::by_time`].
//!
//! Methods that aren't `async` are one synchronous step; the others wait for reads of segments.

use std::rc::Rc;

use bytes::Bytes;

use super::readahead::Patience;
use super::reader::{Source, segment_for};
use super::shard::{Discarded, Inner, Replica, Trash};
use super::{LogError, LogPolicy, PendingRead, Read};
use crate::limits::*;
use crate::types::*;

/// The log of one replica.
#[derive(Clone)]
pub struct ReplicaLog {
    pub(super) inner: Rc<Inner>,
    pub(super) state: Replica,
}

impl ReplicaLog {
    pub fn id(&self) -> ReplicaId {
        self.state.borrow().id
    }

    pub fn group(&self) -> GroupId {
        self.state.borrow().group
    }

    /// L1: hard state first, then entries; the entry at an index replaces everything from there on. Returns the commit that will hold the last of them:
    /// they are durable when `durable_lsn` has reached it. With nothing to write that is the commit of everything before.
    ///
    /// # Panics
    /// When an entry would replace a committed one, leave a gap or break the density of offsets.
    pub fn append(&self, hard_state: Option<HardState>, entries: &[Entry]) -> Lsn {
        let mut journal = self.inner.journal.borrow_mut();
        let bytes: usize = entries.iter().map(|e| e.data.len()).sum();
        self.inner
            .metrics
            .batches_appended
            .add(entries.len() as u64);
        self.inner.metrics.batch_bytes_appended.add(bytes as u64);
        self.state
            .borrow_mut()
            .append(&mut journal, hard_state, entries)
    }

    pub fn hard_state(&self) -> HardState {
        self.state.borrow().hard_state
    }

    pub fn first_index(&self) -> RaftIndex {
        self.state.borrow().first
    }

    pub fn last_index(&self) -> RaftIndex {
        self.state.borrow().last
    }

    /// The term of an entry of the log, or of the one right before it.
    pub fn term(&self, i: RaftIndex) -> Option<Term> {
        let s = self.state.borrow();
        if i.0 == 0 {
            return Some(Term(0));
        }
        if i > s.last || i.0 + 1 < s.first.0 {
            return None;
        }
        s.terms.term_of(i)
    }

    /// In memory for every entry above what is written out.
    pub fn header(&self, i: RaftIndex) -> Option<EntryHeader> {
        self.state.borrow().slot(i).map(|s| s.header)
    }

    /// `None` when the entry isn't in memory, or is damaged.
    pub fn bytes(&self, i: RaftIndex) -> Option<Bytes> {
        self.state.borrow().slot(i).and_then(|s| s.data.clone())
    }

    /// Everything up to `i` is committed, and applied by the caller: it becomes visible and may be written out (L5, L11).
    pub fn set_commit(&self, i: RaftIndex) {
        let mut s = self.state.borrow_mut();
        s.set_commit(i);
        if s.pending_bytes >= WRITE_OUT_BYTES as u64 && !s.queued {
            s.queued = true;
            self.inner.write_queue.borrow_mut().push_back(s.id);
            self.inner.janitor.notify();
        }
    }

    pub fn commit(&self) -> RaftIndex {
        self.state.borrow().commit
    }

    /// The offset after the last committed record.
    pub fn high_watermark(&self) -> Offset {
        self.state.borrow().high_watermark
    }

    pub fn log_start_offset(&self) -> Offset {
        self.state.borrow().log_start
    }

    /// The offset that the next batch gets.
    pub fn log_end_offset(&self) -> Offset {
        self.state.borrow().log_end
    }

    /// L9: a committed TrimPrefix was applied. Segments that lie wholly below go in the background.
    pub fn set_log_start(&self, start: Offset) {
        let mut s = self.state.borrow_mut();
        if start <= s.log_start {
            return;
        }
        s.log_start = start.min(s.high_watermark);
        s.frame_dirty = true;
        let gone = s.trim_segments();
        let first = s.first;
        let extents = s.extents.trim_to(first);
        let directory = self.inner.files.directory(s.group, s.id);
        let mut checkpoint = self.inner.checkpoint.borrow_mut();
        checkpoint
            .trash
            .extend(gone.into_iter().map(Discarded::trimmed));
        let paths = extents.iter().map(|f| directory.join(f.file_name()));
        checkpoint
            .trash
            .extend(paths.map(|p| Discarded::of(Trash::Extents(p))));
        self.inner.janitor.notify();
    }

    /// G11: the largest epoch ≤ the asked one, and where it ends.
    pub fn end_of_epoch(&self, e: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        let s = self.state.borrow();
        s.terms.end_of_epoch(e, s.log_end)
    }

    /// The epoch under which an offset was written.
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.state.borrow().terms.epoch_at(offset)
    }

    /// Whole batches from the one that holds `from` on, none reaching above `bound`, at most `max_bytes` of them but the first always.
    pub fn read(&self, from: Offset, max_bytes: usize, bound: Offset) -> Read {
        let s = self.state.borrow();
        if from < s.log_start || from > s.log_end {
            return Read::OutOfRange;
        }
        if from >= bound.min(s.log_end) {
            return Read::Ready(Vec::new());
        }
        let first = s
            .slots
            .partition_point(|slot| slot.header.next_offset <= from);
        let in_memory = s
            .slots
            .get(first)
            .is_some_and(|slot| slot.header.base_offset <= from);
        if !in_memory {
            let Some(segment) = segment_for(&s.segments, from) else {
                return Read::Ready(Vec::new());
            };
            return Read::Later(PendingRead {
                files: self.inner.files.clone(),
                group: s.group,
                source: Source::Segment(segment.clone()),
                from,
                max_bytes,
                bound,
                epochs: s.terms.epochs_from(from),
            });
        }
        if let Some(extent) = s.slots[first].extent() {
            if s.slots[first].header.next_offset > bound {
                return Read::Ready(Vec::new());
            }
            return Read::Later(PendingRead {
                files: self.inner.files.clone(),
                group: s.group,
                source: Source::Extent {
                    directory: self.inner.files.directory(s.group, s.id),
                    extent,
                },
                from,
                max_bytes,
                bound,
                epochs: Vec::new(),
            });
        }
        let mut batches = Vec::new();
        let mut room = max_bytes;
        for slot in s.slots.iter().skip(first) {
            let h = &slot.header;
            if h.next_offset > bound || h.kind == EntryKind::Extent {
                break;
            }
            if h.kind != EntryKind::Batch {
                continue;
            }
            let Some(data) = &slot.data else {
                if batches.is_empty() && h.next_offset > h.base_offset {
                    return Read::Damaged { to: h.next_offset };
                }
                if h.next_offset > h.base_offset {
                    break;
                }
                continue;
            };
            if !batches.is_empty() && data.len() > room {
                break;
            }
            room = room.saturating_sub(data.len());
            batches.push(data.clone());
        }
        let bytes: usize = batches.iter().map(Bytes::len).sum();
        self.inner.metrics.fetch_bytes_from_memory.add(bytes as u64);
        Read::Ready(batches)
    }

    /// Runs a read to its end, whichever way it goes. `None`: out of range.
    pub async fn read_whole(
        &self,
        from: Offset,
        max_bytes: usize,
        bound: Offset,
    ) -> Result<Option<Vec<Bytes>>, LogError> {
        match self.read(from, max_bytes, bound) {
            Read::Ready(batches) => Ok(Some(batches)),
            Read::Later(read) => read.run(Patience::Endless, usize::MAX).await.map(Some),
            Read::OutOfRange => Ok(None),
            Read::Damaged { to } => Err(LogError::Damaged {
                group: self.group(),
                from,
                to,
            }),
        }
    }

    /// Bytes of the log, about.
    pub fn size_bytes(&self) -> u64 {
        self.state.borrow().size_bytes()
    }

    pub fn set_policy(&self, p: LogPolicy) {
        self.state.borrow_mut().policy = p;
    }

    /// Where the log should start by time or size, if that is later than where it does; the leader proposes it as a TrimPrefix (L9).
    pub fn retention_start(&self, now_ms: i64) -> Option<Offset> {
        self.state.borrow().retention_start(now_ms)
    }
}
