//! Finding batches by time, for ListOffsets.
//!
//! The sparse index says which stretches may hold what is looked for; these are walked batch by batch, in reads of [`INDEX_INTERVAL_BYTES`]. An index that rotted or is missing is one
//! stretch, its whole segment: the answer takes longer and is the same. A stretch that can't be read is an error that names its offsets, never a later answer.
//!
//! What is looked through may move meanwhile: entries leave memory, the log's start goes up. Each step therefore asks anew where an offset lies, in memory or in which segment.

use std::ops::ControlFlow;
use std::rc::Rc;

use bytes::Bytes;

use super::LogError;
use super::handle::ReplicaLog;
use super::reader::segment_for;
use super::replica::Slot;
use super::segment::{IndexRow, Segment};
use crate::batch::BatchHeader;
use crate::limits::INDEX_INTERVAL_BYTES;
use crate::types::*;

/// Where an offset lies.
enum Place {
    /// So many slots of the memory end at or below it; from there on all is in memory.
    Memory(usize),
    /// In this segment, whose batches end at the offset.
    Segment(Rc<Segment>, Offset),
    Nowhere,
}

/// Offsets whose batches are to be looked at, from the first to the one behind the last, and the largest time of them.
struct Stretch {
    from: Offset,
    to: Offset,
    max_timestamp: i64,
}

impl ReplicaLog {
    /// The first batch with offsets at or above `from` and the log's start, below `bound`, whose largest timestamp is at least `ts`.
    pub async fn batch_by_timestamp(
        &self,
        ts: i64,
        from: Offset,
        bound: Offset,
    ) -> Result<Option<Bytes>, LogError> {
        let mut at = from;
        loop {
            at = at.max(self.log_start_offset());
            let (segment, end) = match self.place(at, bound) {
                Place::Nowhere => return Ok(None),
                Place::Memory(first) => return self.slot_by_timestamp(ts, first, bound).await,
                Place::Segment(segment, end) => (segment, end),
            };
            if segment.meta.borrow().max_timestamp >= ts {
                for s in self.stretches(&segment, at).await {
                    if s.max_timestamp < ts {
                        continue;
                    }
                    let mut found = None;
                    let look = |h: &BatchHeader, bytes: &Bytes| {
                        if h.max_timestamp < ts {
                            return ControlFlow::Continue(());
                        }
                        found = Some(bytes.clone());
                        ControlFlow::Break(())
                    };
                    self.walk(s.from, s.to, bound, look).await?;
                    if found.is_some() {
                        return Ok(found);
                    }
                }
            }
            at = end;
        }
    }

    /// The first batch of those with the largest timestamp, with offsets at or above `from` and the log's start, below `bound`. That time may be of a record below `from`, of
    /// the batch that `from` lies in.
    pub async fn batch_of_max_timestamp(
        &self,
        from: Offset,
        bound: Offset,
    ) -> Result<Option<Bytes>, LogError> {
        let from = from.max(self.log_start_offset());
        let largest = self.max_timestamp(from, bound).await?;
        if largest < 0 {
            return Ok(None);
        }
        let found = self.batch_by_timestamp(largest, from, bound).await?;
        if found.is_none() && self.log_start_offset() > from {
            return Err(LogError::Trimmed);
        }
        Ok(found)
    }

    /// The largest timestamp of the batches with offsets at or above `from`; below 0: there is none.
    async fn max_timestamp(&self, from: Offset, bound: Offset) -> Result<i64, LogError> {
        let mut largest = -1;
        // What `from` lies amid: its largest time may be of what is below.
        let mut amid = Vec::new();
        let mut at = from;
        loop {
            let (segment, end) = match self.place(at, bound) {
                Place::Nowhere => break,
                Place::Memory(first) => {
                    let s = self.state.borrow();
                    let slots = s.slots.iter().skip(first);
                    let visible = slots.filter(|slot| slot.header.next_offset <= bound);
                    largest = visible
                        .map(|slot| slot.max_timestamp)
                        .fold(largest, i64::max);
                    break;
                }
                Place::Segment(segment, end) => (segment, end),
            };
            let (begins, max) = {
                let m = segment.meta.borrow();
                (m.base_offset, m.max_timestamp)
            };
            if begins >= at {
                largest = largest.max(max);
            } else if max > largest {
                for s in self.stretches(&segment, at).await {
                    if s.from > at {
                        largest = largest.max(s.max_timestamp);
                    } else {
                        amid.push(s);
                    }
                }
            }
            at = end;
        }
        for s in amid {
            if s.max_timestamp > largest {
                let look = |h: &BatchHeader, _: &Bytes| {
                    largest = largest.max(h.max_timestamp);
                    ControlFlow::Continue(())
                };
                self.walk(s.from, s.to, bound, look).await?;
            }
        }
        Ok(largest)
    }

    fn place(&self, at: Offset, bound: Offset) -> Place {
        let s = self.state.borrow();
        if at >= bound {
            return Place::Nowhere;
        }
        let first = s
            .slots
            .partition_point(|slot| slot.header.next_offset <= at);
        let slot = s.slots.get(first);
        if slot.is_some_and(|slot| slot.header.base_offset <= at) {
            return Place::Memory(first);
        }
        let Some(segment) = segment_for(&s.segments, at) else {
            return Place::Nowhere;
        };
        let end = segment.meta.borrow().next_offset;
        if end <= at {
            return Place::Nowhere;
        }
        Place::Segment(segment.clone(), end)
    }

    async fn slot_by_timestamp(
        &self,
        ts: i64,
        first: usize,
        bound: Offset,
    ) -> Result<Option<Bytes>, LogError> {
        let found = {
            let s = self.state.borrow();
            let late = |slot: &&Slot| {
                slot.max_timestamp >= ts && slot.header.next_offset <= bound && slot.data.is_some()
            };
            match s.slots.iter().skip(first).find(late) {
                None => return Ok(None),
                Some(slot) if slot.header.kind == EntryKind::Batch => return Ok(slot.data.clone()),
                Some(slot) => slot.header.base_offset,
            }
        };
        let batches = self.read_whole(found, 1, bound).await?;
        Ok(batches.and_then(|b| b.into_iter().next()))
    }

    /// The stretches of a segment's index that reach above `from`.
    async fn stretches(&self, segment: &Rc<Segment>, from: Offset) -> Vec<Stretch> {
        let look = |rows: &[IndexRow]| {
            let end = segment.meta.borrow().next_offset;
            let ends = rows.iter().skip(1).map(|r| r.offset).chain([end]);
            let stretches = rows.iter().zip(ends).map(|(r, to)| Stretch {
                from: r.offset.max(from),
                to,
                max_timestamp: r.max_timestamp,
            });
            stretches.filter(|s| s.from < s.to).collect()
        };
        self.inner.files.rows(segment, look).await
    }

    /// Shows the batches with offsets from `from` to `to` (not included) until `look` breaks.
    async fn walk(
        &self,
        from: Offset,
        to: Offset,
        bound: Offset,
        mut look: impl FnMut(&BatchHeader, &Bytes) -> ControlFlow<()>,
    ) -> Result<(), LogError> {
        let mut at = from;
        while at < to.min(bound) {
            at = at.max(self.log_start_offset());
            let read = self.read_whole(at, INDEX_INTERVAL_BYTES as usize, bound);
            let Some(batches) = read.await? else {
                return Err(LogError::Trimmed);
            };
            // Only a batch that isn't whole below the bound is left.
            if batches.is_empty() {
                return Ok(());
            }
            for bytes in batches {
                let h = BatchHeader::parse(&bytes).expect("what is read was checked");
                if look(&h, &bytes).is_break() {
                    return Ok(());
                }
                at = h.next_offset();
            }
            crate::rt::yield_if_needed().await;
        }
        Ok(())
    }
}
