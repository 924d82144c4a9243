//! Moving committed entries from memory into segments (L5).
//!
//! A plan is made in one synchronous step, carried out by at most one task of the shard, and noted in one synchronous step. Ordinary write-out
//! ends on a 4 KiB boundary, in the middle of an entry if need be: what lies behind the last boundary stays in memory and in the journal, so that no block
//! is ever written twice. A forced one pads.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;

use super::files::{Files, io_error};
use super::frame;
use super::replica::{ReplicaState, WritePosition};
use super::segment::{Segment, SegmentMeta};
use super::{LogError, files};
use crate::limits::{BLOCK_BYTES, WRITE_OUT_BYTES};
use crate::rt::{self, AlignedBuf};
use crate::types::*;

/// One whole entry of a plan.
struct PlannedEntry {
    header: EntryHeader,
    position: u64,
    end: u64,
    max_timestamp: i64,
    frame_bytes: u64,
    extent_bytes: u64,
    charged_bytes: u64,
}

pub(crate) struct WritePlan {
    pub segment: Rc<Segment>,
    /// Where the bytes go, a multiple of 4096; how many, likewise.
    position: u64,
    bytes: u64,
    /// What is written there, first to last; the last piece may reach further than `bytes`.
    frames: VecDeque<Bytes>,
    entries: Vec<PlannedEntry>,
    padded: bool,
}

impl ReplicaState {
    /// Whether the segment being written is to be left for a new one before `stored_bytes` more.
    fn wants_roll(&self, stored_bytes: u64, now_ms: i64) -> bool {
        let Some(active) = self.segments.last() else {
            return true;
        };
        let m = active.meta.borrow();
        if m.sealed {
            return true;
        }
        let full = m.end > 0 && m.bytes().saturating_add(stored_bytes) > self.policy.segment_bytes;
        let old = m.end > 0 && now_ms.saturating_sub(m.created_ms) >= self.policy.segment_ms;
        full || old
    }

    /// What the next write would be. `None` when nothing is to be written: no committed entry, or less than a block that isn't forced.
    /// Seals the old segment (its index is the caller's to write) and opens a new one where it must.
    pub fn plan_write(&mut self, files: &Files, forced: bool, now_ms: i64) -> Option<WritePlan> {
        let next = self.slot(self.written_out.next())?;
        if next.header.index > self.commit {
            return None;
        }
        let (first_header, first_bytes) = (next.header, next.stored_bytes());
        if self.wants_roll(first_bytes, now_ms) {
            self.start_segment(files, first_header, now_ms);
        }
        let segment = self.segments.last().expect("a segment was started").clone();
        let room = self.policy.segment_bytes.max(first_bytes);
        let mut extent_bytes = segment.meta.borrow().extent_bytes;
        let mut at = self.write.entry_end;
        let mut skip = self.write.file - self.write.entry_end;
        let (mut frames, mut entries) = (VecDeque::new(), Vec::new());
        let mut index = self.written_out.next();
        let mut full = false;
        while index <= self.commit && at < self.write.file + WRITE_OUT_BYTES as u64 {
            let slot = self
                .slot(index)
                .expect("entries above the written-out index are in memory");
            let frame_bytes = slot.frame_bytes();
            if !entries.is_empty() && at + slot.stored_bytes() + extent_bytes > room {
                full = true;
                break;
            }
            let frame = frame::of_entry(&slot.header, slot.data.as_ref());
            assert_eq!(
                frame.len() as u64,
                frame_bytes,
                "a frame is as long as planned"
            );
            let skipped = skip.min(frame_bytes);
            skip -= skipped;
            frames.push_back(frame.slice(skipped as usize..));
            entries.push(PlannedEntry {
                header: slot.header,
                position: at,
                end: at + frame_bytes,
                max_timestamp: slot.max_timestamp,
                frame_bytes,
                extent_bytes: u64::from(slot.extent_bytes),
                charged_bytes: slot.charged_bytes(),
            });
            extent_bytes += u64::from(slot.extent_bytes);
            at += frame_bytes;
            index = index.next();
        }
        // The last block of a segment is padded too: nothing will ever fill it up.
        let padded = full || (forced && index > self.commit);
        let mut end = at / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if padded {
            let next_offset = entries
                .last()
                .map_or(self.written_next_offset, |e| e.header.next_offset);
            let pad = frame::padding(at, next_offset);
            end = at + pad.len() as u64;
            frames.push_back(pad);
        }
        self.writing = end > self.write.file;
        self.writing.then(|| WritePlan {
            segment,
            position: self.write.file,
            bytes: end - self.write.file,
            frames,
            entries,
            padded,
        })
    }

    fn start_segment(&mut self, files: &Files, first: EntryHeader, now_ms: i64) {
        self.seal_active();
        let meta = SegmentMeta {
            base_offset: first.base_offset,
            base_index: first.index,
            generation: self.next_generation,
            end: 0,
            extent_bytes: 0,
            last_index: first.index.prev(),
            next_offset: first.base_offset,
            max_timestamp: -1,
            created_ms: now_ms,
            sealed: false,
            rows: Vec::new(),
        };
        self.next_generation += 1;
        let directory = files.directory(self.group, self.id);
        self.segments.push(Segment::new(&directory, meta, true));
        // What an entry had begun in the old segment lies behind that one's end and means nothing.
        self.write = WritePosition::default();
        self.frame_dirty = true;
    }

    /// No more is written to the last segment.
    pub fn seal_active(&mut self) {
        if let Some(active) = self.segments.last() {
            active.meta.borrow_mut().sealed = true;
            self.frame_dirty = true;
        }
    }

    /// The plan's bytes found no room: it is as if it had never been made. What of them arrived lies behind all that is claimed and is written over.
    pub fn abandon_write(&mut self) {
        self.writing = false;
    }

    /// The plan's bytes are in the file (not yet synced). Returns, for the cache, the last entry and the bytes charged for what was written.
    pub fn finish_write(&mut self, plan: &WritePlan) -> (RaftIndex, u64) {
        self.writing = false;
        let file_end = plan.position + plan.bytes;
        let mut charged = 0;
        for e in &plan.entries {
            if e.end > file_end {
                break;
            }
            plan.segment.note(
                &e.header,
                e.position,
                e.end,
                e.extent_bytes,
                e.max_timestamp,
            );
            self.written_out = e.header.index;
            self.written_next_offset = e.header.next_offset;
            self.write.entry_end = e.end;
            self.pending_bytes = self.pending_bytes.saturating_sub(e.frame_bytes);
            self.pending_extent_bytes = self.pending_extent_bytes.saturating_sub(e.extent_bytes);
            charged += e.charged_bytes;
        }
        self.write.file = file_end;
        if plan.padded {
            self.write.entry_end = file_end;
        }
        assert!(self.write.entry_end <= self.write.file);
        assert!(
            self.written_out <= self.commit,
            "L5: only committed entries are written out"
        );
        self.frame_dirty = true;
        (self.written_out, charged)
    }
}

/// Writes a plan, at most [`WRITE_OUT_BYTES`] at a time.
pub(crate) async fn carry_out(files: &Files, plan: &mut WritePlan) -> Result<(), LogError> {
    let path = plan.segment.path.clone();
    if plan.segment.fresh.get() && !files.is_open(&plan.segment) {
        let directory = path.parent().expect("a segment lies in a directory");
        rt::fs::create_dir_all(directory)
            .await
            .map_err(io_error("cannot create", directory))?;
    }
    let file = files.open_segment(&plan.segment).await?;
    files.note_written(&plan.segment);
    let mut written = 0;
    while written < plan.bytes {
        let piece = (plan.bytes - written).min(WRITE_OUT_BYTES as u64);
        let mut buf = AlignedBuf::zeroed(piece as usize);
        fill(&mut buf, &mut plan.frames);
        file.write_at(plan.position + written, buf)
            .await
            .map_err(io_error("cannot write", &path))?;
        written += piece;
        files.metrics.segment_bytes_written.add(piece);
        rt::yield_if_needed().await;
    }
    Ok(())
}

fn fill(buf: &mut [u8], frames: &mut VecDeque<Bytes>) {
    let mut at = 0;
    while at < buf.len() {
        let Some(front) = frames.front_mut() else {
            break;
        };
        let n = front.len().min(buf.len() - at);
        buf[at..at + n].copy_from_slice(&front.split_to(n));
        at += n;
        if front.is_empty() {
            frames.pop_front();
        }
    }
    assert_eq!(at, buf.len(), "a plan has the bytes it says");
}

/// Writes a sealed segment's index file, synced, and lets go of the rows in memory.
pub(crate) async fn write_index(segment: &Rc<Segment>) -> Result<(), LogError> {
    let bytes = super::segment::encode_index(&segment.meta.borrow().rows);
    let path = super::segment::index_path(&segment.path);
    files::write_whole(&path, &bytes)
        .await
        .map_err(io_error("cannot write", &path))?;
    let directory = path.parent().expect("a segment lies in a directory");
    rt::fs::sync_dir(directory)
        .await
        .map_err(io_error("cannot sync", directory))?;
    segment.meta.borrow_mut().rows = Vec::new();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::replica::tests::{batch_entry, journal, replica};
    use crate::memory::Budget;
    use crate::metrics::ShardMetrics;
    use proptest::prelude::*;

    /// Carries plans out against a `Vec`, and checks that no block is ever written twice.
    fn write(r: &mut ReplicaState, files: &Files, disk: &mut Vec<Vec<u8>>, forced: bool) -> bool {
        let Some(mut plan) = r.plan_write(files, forced, 0) else {
            return false;
        };
        disk.resize(r.segments.len(), Vec::new());
        let file = disk.last_mut().unwrap();
        assert_eq!(
            plan.position as usize,
            file.len(),
            "writes follow one another"
        );
        assert_eq!(plan.bytes % BLOCK_BYTES as u64, 0);
        let mut buf = vec![0; plan.bytes as usize];
        fill(&mut buf, &mut plan.frames);
        file.extend_from_slice(&buf);
        r.finish_write(&plan);
        true
    }

    /// The batches that lie in segments, first to last.
    fn batches(r: &ReplicaState, disk: &[Vec<u8>]) -> Vec<Bytes> {
        let mut found = Vec::new();
        for (segment, bytes) in r.segments.iter().zip(disk) {
            let m = segment.meta.borrow();
            let mut at = 0;
            while at < m.end as usize {
                match frame::parse(&bytes[at..]) {
                    frame::Parsed::Frame(frame::Frame::Batch(h)) => {
                        found.push(Bytes::copy_from_slice(&bytes[at..at + h.total_bytes]));
                        at += h.total_bytes;
                    }
                    frame::Parsed::Frame(frame::Frame::Pad { total_bytes }) => at += total_bytes,
                    _ => panic!("only batches and padding are here"),
                }
            }
        }
        found
    }

    proptest! {
        /// Raft replaces what isn't committed at will, and of what is in segments nothing: that holds the committed entries, each once, in order.
        #[test]
        fn l5_nothing_uncommitted_is_ever_written_out(
            steps in proptest::collection::vec((1i32..60, 0u64..4, 0u64..4, any::<bool>()), 1..60),
            segment_bytes in 3000u64..60_000,
        ) {
            let files = Files::new("/nowhere".into(), 8, Budget::new(1 << 20), Rc::new(ShardMetrics::default()));
            let (mut r, mut j) = (replica(), journal());
            r.policy.segment_bytes = segment_bytes;
            let (mut disk, mut log) = (Vec::new(), Vec::<Entry>::new());
            for (term, (records, back, ahead, forced)) in steps.into_iter().enumerate() {
                // A new leader's entry replaces up to three that aren't committed.
                let at = (log.len() as u64).saturating_sub(back).max(r.commit.0);
                log.truncate(at as usize);
                let base = log.last().map_or(0, |e| e.next_offset.0);
                let e = batch_entry(at + 1, term as u64 + 1, base, records);
                r.append(&mut j, None, std::slice::from_ref(&e));
                log.push(e);
                r.set_commit(RaftIndex((r.commit.0 + ahead).min(r.last.0)));
                while write(&mut r, &files, &mut disk, forced) {}
                prop_assert!(r.written_out <= r.commit, "uncommitted entries are written out");
            }
            let committed = r.commit;
            while write(&mut r, &files, &mut disk, true) {}
            prop_assert_eq!(r.written_out, committed, "uncommitted entries are written out, or committed ones aren't");
            let sent: Vec<Bytes> = log[..committed.0 as usize].iter().map(|e| e.data.clone()).collect();
            prop_assert_eq!(batches(&r, &disk), sent);
        }

        /// L5: write-out goes in index order and no block is written twice.
        #[test]
        fn segments_hold_every_written_entry_once_and_in_order(
            sizes in proptest::collection::vec((1i32..400, any::<bool>()), 1..60),
            segment_bytes in 3000u64..60_000,
        ) {
            let files = Files::new("/nowhere".into(), 8, Budget::new(1 << 20), Rc::new(ShardMetrics::default()));
            let (mut r, mut j) = (replica(), journal());
            r.policy.segment_bytes = segment_bytes;
            let mut disk = Vec::new();
            let mut sent = Vec::new();
            for (i, (records, forced)) in sizes.iter().enumerate() {
                let e = batch_entry(i as u64 + 1, 1, r.log_end.0, *records);
                r.append(&mut j, None, std::slice::from_ref(&e));
                r.set_commit(e.index);
                sent.push(e.data.clone());
                while write(&mut r, &files, &mut disk, *forced) {}
            }
            while write(&mut r, &files, &mut disk, true) {}
            prop_assert_eq!(r.written_out, r.last);
            prop_assert_eq!(batches(&r, &disk), sent);
        }
    }
}
