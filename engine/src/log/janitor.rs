//! The background work of a shard's log: write-out, checkpoints, reclaim, growth of the journal, removal of files.
//!
//! One task on the background queue does all of it, one thing at a time, so that the disk never sees more than one background write (measured: parallel ones cost
//! the journal its tail). It yields between pieces. It sleeps while there is nothing to do.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;

use super::LogError;
use super::checkpoint::{self, Owner, ReplicaFrame};
use super::files::{aligned, io_error};
use super::shard::{Inner, Replica, Trash};
use super::writeout;
use crate::limits::*;
use crate::rt::{self, File, OpenOptions, Queue};
use crate::types::*;

/// A tail of at most this many bytes is carried rather than written out when the journal is reclaimed (L6).
const CARRY_BYTES: u64 = 32 << 10;
/// Checkpoints come at least this far apart; the shorter time when the journal is nearly full.
const CHECKPOINT_PAUSE: Duration = Duration::from_secs(1);
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// Changes of a checkpoint file beyond its base before a new base is begun, in bytes.
const CHANGES_BYTES: u64 = 1 << 20;
/// What a file shrinks by before it is unlinked: a big unlink costs the journal milliseconds.
const SHRINK_BYTES: u64 = 1 << 20;
const SHRINK_PAUSE: Duration = Duration::from_millis(2);

/// The journal grows when this part of it (one in so many) is live: early, so that nobody waits for zeros to be written.
pub(crate) const GROW_AT: u64 = 8;

pub(crate) fn start(inner: &Rc<Inner>) {
    let inner = inner.clone();
    rt::spawn(Queue::Background, async move {
        let mut janitor = Janitor {
            inner: inner.clone(),
            last_checkpoint: None,
            done: false,
        };
        if let Err(e) = janitor.run().await {
            inner.fail(e);
        }
        janitor.done();
        inner.closed.set(true);
        inner.durable.notify();
    })
    .detach();
}

struct Janitor {
    inner: Rc<Inner>,
    last_checkpoint: Option<rt::Instant>,
    /// The other shards don't wait for this one any more.
    done: bool,
}

impl Janitor {
    async fn run(&mut self) -> Result<(), LogError> {
        // Without the layer above there is nothing to capture.
        while self.inner.source.borrow().is_none() {
            if self.inner.closing.get() {
                return Ok(());
            }
            self.inner.janitor.notified().await;
        }
        loop {
            let notified = self.inner.janitor.notified();
            let worked = self.write_out_queued().await?;
            if self.inner.closing.get() {
                self.checkpoint(true).await?;
                return self.settle_last().await;
            }
            self.grow().await?;
            if self.checkpoint_due() {
                self.checkpoint(false).await?;
                continue;
            }
            if worked {
                continue;
            }
            if self.waits_for_pause() {
                rt::sleep(SHORT_PAUSE).await;
            } else {
                notified.await;
            }
        }
    }

    fn done(&mut self) {
        if !self.done {
            self.done = true;
            self.inner.covered.shard_done();
        }
    }

    /// Shards end one by one: those that still have to flush need the room in their journals that comes only when all have settled (L12).
    async fn settle_last(&mut self) -> Result<(), LogError> {
        self.done();
        let inner = self.inner.clone();
        while !inner.settled.get() && !inner.covered.all_done() && !inner.journal.borrow().failed()
        {
            rt::sleep(SHORT_PAUSE).await;
            if inner.reported.get() {
                self.settle().await?;
            } else {
                self.checkpoint(true).await?;
            }
        }
        Ok(())
    }

    /// Ordinary write-out of the replicas that have enough.
    async fn write_out_queued(&self) -> Result<bool, LogError> {
        let mut worked = false;
        while let Some(id) = { self.inner.write_queue.borrow_mut().pop_front() } {
            let Some(r) = self.inner.replica(id) else {
                continue;
            };
            r.borrow_mut().queued = false;
            worked |= self.write_out(&r, false).await?;
        }
        Ok(worked)
    }

    /// Writes what a replica has, as far as it goes.
    async fn write_out(&self, r: &Replica, forced: bool) -> Result<bool, LogError> {
        let mut worked = false;
        loop {
            let planned = r
                .borrow_mut()
                .plan_write(&self.inner.files, forced, rt::wall_clock_ms());
            self.seal_indexes(r).await?;
            let Some(mut plan) = planned else {
                return Ok(worked);
            };
            writeout::carry_out(&self.inner.files, &mut plan).await?;
            let (id, up_to, bytes) = {
                let mut r = r.borrow_mut();
                if r.removed {
                    return Ok(worked);
                }
                let (up_to, bytes) = r.finish_write(&plan);
                (r.id, up_to, bytes)
            };
            self.inner.cache_written(id, up_to, bytes);
            worked = true;
            rt::yield_if_needed().await;
        }
    }

    /// Index files of segments that were sealed since.
    async fn seal_indexes(&self, r: &Replica) -> Result<(), LogError> {
        loop {
            let sealed = {
                let r = r.borrow();
                let found = r.segments.iter().find(|s| {
                    let m = s.meta.borrow();
                    m.sealed && !m.rows.is_empty()
                });
                found.cloned()
            };
            let Some(segment) = sealed else { return Ok(()) };
            writeout::write_index(&segment).await?;
        }
    }

    /// L3: the journal grows while it isn't wrapped, zero-filled first, the new size durable before it is used.
    async fn grow(&self) -> Result<(), LogError> {
        let (size, next) = {
            let j = self.inner.journal.borrow();
            let size = j.superblock().size;
            let next = (size * 2).min(self.inner.max_journal_bytes());
            let busy = j.live_bytes() * GROW_AT > j.capacity_bytes();
            if !busy || next <= size || j.superblock_with_size(next).is_none() {
                return Ok(());
            }
            (size, next)
        };
        let path = &self.inner.journal_path;
        self.inner
            .journal_file
            .zero_fill(size, next)
            .await
            .map_err(io_error("cannot extend", path))?;
        let superblock = {
            let mut j = self.inner.journal.borrow_mut();
            let superblock = j.superblock_with_size(next);
            j.set_growing(superblock.is_some());
            superblock
        };
        // It may have wrapped meanwhile: then the zeros wait for the next time.
        if let Some(s) = superblock {
            self.inner.write_superblock(&s).await?;
            let mut j = self.inner.journal.borrow_mut();
            j.adopt(s);
            j.set_growing(false);
            drop(j);
            self.inner.metrics.journal_size_bytes.set(next);
            self.inner.submit(false);
        }
        Ok(())
    }

    fn wants_checkpoint(&self) -> bool {
        let j = self.inner.journal.borrow();
        let c = self.inner.checkpoint.borrow();
        let half = j.live_bytes() * 2 > j.capacity_bytes() || self.inner.tail_part() > 0.5;
        half || !self.inner.reported.get()
            || !self.inner.settled.get() && self.may_settle()
            || !c.trash.is_empty()
            || !c.removed.is_empty()
    }

    fn checkpoint_due(&self) -> bool {
        if !self.wants_checkpoint() {
            return false;
        }
        let j = self.inner.journal.borrow();
        let nearly_full =
            j.live_bytes() * 4 > j.capacity_bytes() * 3 || self.inner.tail_part() > 0.75;
        let pause = if nearly_full {
            SHORT_PAUSE
        } else {
            CHECKPOINT_PAUSE
        };
        self.last_checkpoint.is_none_or(|t| t.elapsed() >= pause)
    }

    fn waits_for_pause(&self) -> bool {
        // Another shard's last word doesn't wake this one.
        !self.inner.settled.get() || (self.wants_checkpoint() && !self.checkpoint_due())
    }

    /// L8: segments and directories synced, checkpoint synced, tail moved; then files that nothing names any more go.
    async fn checkpoint(&mut self, last: bool) -> Result<(), LogError> {
        let inner = self.inner.clone();
        // Memory is freed by writing out alone; small entries take more of it than of the journal.
        let memory = inner.tail_part() > 0.5;
        let target = {
            let j = inner.journal.borrow();
            let keep = j.capacity_bytes() / if memory { 32 } else { 8 };
            if last {
                j.open_lsn()
            } else {
                j.lsn_behind(keep).unwrap_or(j.durable_lsn())
            }
        };
        if let Some(carried) = self.free(target, !memory).await?
            && !self.durable_or_stalled(carried).await
        {
            // The copies can't get into the journal before it lets go of something: write everything out instead.
            let everything = inner.journal.borrow().open_lsn();
            self.free(everything, false).await?;
        }
        inner.files.sync_written().await?;
        let trash = std::mem::take(&mut inner.checkpoint.borrow_mut().trash);
        self.write_checkpoint().await?;
        self.move_tail().await?;
        self.last_checkpoint = Some(rt::now());
        inner.metrics.checkpoints.increment();
        self.remove(trash).await
    }

    /// L6: makes every block before `target` unneeded, once the returned commit, which holds the last of what was carried, is durable.
    async fn free(&self, target: Lsn, may_carry: bool) -> Result<Option<Lsn>, LogError> {
        let ids: Vec<ReplicaId> = self.inner.replicas.borrow().keys().copied().collect();
        let mut may_carry = if may_carry {
            self.inner.journal.borrow().capacity_bytes() / 8
        } else {
            0
        };
        let mut carried = None;
        let holds = |r: &Replica| r.borrow().bytes_from().is_some_and(|lsn| lsn <= target);
        for id in ids {
            let Some(r) = self.inner.replica(id) else {
                continue;
            };
            if !holds(&r) {
                continue;
            }
            if r.borrow().pending_bytes > CARRY_BYTES {
                self.write_out(&r, false).await?;
            }
            if holds(&r) {
                match self.carry(&r, &mut may_carry) {
                    Some(lsn) => carried = Some(lsn),
                    None => {
                        self.write_out(&r, true).await?;
                    }
                }
            }
            self.inner.submit(false);
            rt::yield_if_needed().await;
        }
        Ok(carried)
    }

    /// Waits until a commit is durable; `false` when the journal has no room for it.
    async fn durable_or_stalled(&self, lsn: Lsn) -> bool {
        loop {
            let notified = self.inner.durable.notified();
            {
                let j = self.inner.journal.borrow();
                if j.durable_lsn() >= lsn {
                    return true;
                }
                if j.stalled() || j.failed() {
                    return false;
                }
            }
            notified.await;
        }
    }

    /// Writes a small tail into the journal again, where there is room for it.
    fn carry(&self, r: &Replica, may_carry: &mut u64) -> Option<Lsn> {
        let mut r = r.borrow_mut();
        let mut j = self.inner.journal.borrow_mut();
        let from = r.written_out.next();
        let skip = (from.0 - r.slots_first().0) as usize;
        let tail: u64 = r.slots.iter().skip(skip).map(|s| s.charged_bytes()).sum();
        let room = j
            .capacity_bytes()
            .saturating_sub(j.live_bytes() + j.waiting_bytes() as u64);
        if tail > *may_carry || tail > 4 * CARRY_BYTES || room < j.capacity_bytes() / 4 {
            return None;
        }
        // A damaged entry can't be carried; write-out leaves its mark in the segment.
        if r.slots.iter().skip(skip).any(|s| s.data.is_none()) {
            return None;
        }
        *may_carry -= tail;
        r.carry(&mut j);
        Some(j.open_lsn())
    }

    async fn write_checkpoint(&self) -> Result<(), LogError> {
        let inner = &self.inner;
        let owner = Owner {
            directory_id: inner.directory_id,
            shard: u32::from(inner.shard.0),
        };
        let (base, generation, sequence, start) = {
            let mut c = inner.checkpoint.borrow_mut();
            // The first checkpoint of a start is a base: it covers what other shards may have written before (L12).
            let base = !inner.reported.get() || c.file_bytes > 2 * c.base_bytes + CHANGES_BYTES;
            c.generation += u64::from(base);
            c.sequence += 1;
            (
                base,
                c.generation,
                c.sequence,
                if base { 0 } else { c.file_bytes },
            )
        };
        let path = checkpoint::path(&inner.cfg.data_dir, owner.shard, generation);
        let options = OpenOptions {
            create: true,
            truncate: base,
            write: true,
            ..OpenOptions::default()
        };
        let file = File::open(&path, options)
            .await
            .map_err(io_error("cannot open", &path))?;

        let mut out = BytesMut::new();
        let mut at = start;
        // In a base too: an older file may still speak of them.
        let durable = inner.journal.borrow().durable_lsn();
        let (removed, later): (Vec<_>, Vec<_>) = {
            let mut c = inner.checkpoint.borrow_mut();
            std::mem::take(&mut c.removed)
                .into_iter()
                .partition(|(_, lsn)| *lsn <= durable)
        };
        // A removal that isn't durable could come back; it waits for the next checkpoint, and its record with it.
        inner.checkpoint.borrow_mut().removed.extend(later);
        for (id, _) in removed {
            checkpoint::put_removed(&mut out, owner, generation, id);
        }
        let ids: Vec<ReplicaId> = inner.replicas.borrow().keys().copied().collect();
        for id in ids {
            let Some(r) = inner.replica(id) else { continue };
            if let Some(frame) = self.capture(&r, base) {
                checkpoint::put_replica(&mut out, owner, generation, &frame);
            }
            if out.len() >= WRITE_OUT_BYTES {
                at = write_some(&file, &path, at, &mut out, false).await?;
            }
            rt::yield_if_needed().await;
        }
        checkpoint::put_commit(&mut out, owner, generation, sequence);
        at = write_some(&file, &path, at, &mut out, true).await?;
        file.sync().await.map_err(io_error("cannot sync", &path))?;
        inner.metrics.background_syncs.increment();
        file.close()
            .await
            .map_err(io_error("cannot close", &path))?;
        if base {
            let dir = &inner.cfg.data_dir;
            rt::fs::sync_dir(dir)
                .await
                .map_err(io_error("cannot sync", dir))?;
        }
        let mut c = inner.checkpoint.borrow_mut();
        c.file_bytes = at;
        if base {
            c.base_bytes = at;
        }
        if let Some(old) = c.current.replace(path.clone()).filter(|p| *p != path) {
            if inner.tidied.get() {
                c.replaced = Some(old);
            } else {
                inner.old_checkpoints.borrow_mut().push(old);
            }
        }
        Ok(())
    }

    /// A replica's frame, in one step with the seal that separates the records it reflects from those that come after.
    fn capture(&self, r: &Replica, base: bool) -> Option<ReplicaFrame> {
        let (id, dirty) = {
            let r = r.borrow();
            (r.id, r.frame_dirty)
        };
        if !base && !dirty {
            return None;
        }
        // Nothing is borrowed while the layer above answers.
        let source = self.inner.source.borrow().clone()?;
        let captured = source.capture(id);
        let mut state = r.borrow_mut();
        let mut journal = self.inner.journal.borrow_mut();
        assert!(
            captured.applied <= state.commit,
            "only committed entries are applied"
        );
        let reflected = (self.inner.boot_epoch, journal.seal_open());
        let frame = ReplicaFrame::capture(&state, reflected, captured.applied, captured.state);
        state.dirty_since = None;
        state.frame_dirty = false;
        Some(frame)
    }

    /// L8, L12: the journal lets go of what the checkpoint covers.
    async fn move_tail(&self) -> Result<(), LogError> {
        let inner = &self.inner;
        let sequence = inner.checkpoint.borrow().sequence;
        let needed = {
            let journal = inner.journal.borrow();
            let mut needed = journal.durable_lsn().next();
            for r in inner.replicas.borrow().values() {
                let r = r.borrow();
                let first = r.bytes_from().into_iter().chain(r.dirty_since).min();
                needed = needed.min(first.unwrap_or(needed));
            }
            // What was removed while the checkpoint was made is said by the next one; until then the record is all there is.
            let unsaid = inner
                .checkpoint
                .borrow()
                .removed
                .iter()
                .map(|(_, lsn)| *lsn)
                .min();
            needed = needed.min(unsaid.unwrap_or(needed));
            needed
        };
        // Lsn 0 stands for what other journals hold: this shard's base stands alone when none is left.
        if needed > Lsn(0) && !inner.reported.get() {
            inner.reported.set(true);
            inner.covered.base_done();
        }
        if !self.settle().await? {
            return Ok(());
        }
        let superblock = inner
            .journal
            .borrow()
            .superblock_with_tail(needed, sequence);
        if let Some(s) = superblock {
            inner.write_superblock(&s).await?;
            inner.journal.borrow_mut().adopt(s);
            inner.submit(false);
        }
        let replaced = inner.checkpoint.borrow_mut().replaced.take();
        self.remove_checkpoints(replaced.into_iter().collect())
            .await
    }

    fn may_settle(&self) -> bool {
        let c = &self.inner.covered;
        if self.inner.tidied.get() {
            c.all_files()
        } else if self.inner.vouched.get() {
            c.all_vouched()
        } else {
            c.all_bases()
        }
    }

    /// L12: what earlier starts wrote may be another shard's now. First every shard has a base of this start, then the superblocks vouch for those, then all
    /// older checkpoint files go, and only then may journals let go. `true` when that has come.
    async fn settle(&self) -> Result<bool, LogError> {
        let inner = &self.inner;
        if inner.settled.get() {
            return Ok(true);
        }
        if !inner.covered.all_bases() {
            return Ok(false);
        }
        if !inner.vouched.get() {
            let superblock = {
                let sequence = inner.checkpoint.borrow().sequence;
                inner.journal.borrow().superblock_with_checkpoint(sequence)
            };
            if let Some(s) = superblock {
                inner.write_superblock(&s).await?;
                inner.journal.borrow_mut().adopt(s);
            }
            inner.vouched.set(true);
            inner.covered.base_vouched();
        }
        if !inner.covered.all_vouched() {
            return Ok(false);
        }
        if !inner.tidied.get() {
            self.retire_orphans().await?;
            let old = std::mem::take(&mut *inner.old_checkpoints.borrow_mut());
            self.remove_checkpoints(old).await?;
            inner.tidied.set(true);
            inner.covered.files_removed();
        }
        if !inner.covered.all_files() {
            return Ok(false);
        }
        let orphans = std::mem::take(&mut *inner.orphans.borrow_mut());
        for o in orphans {
            shrink_and_remove(&o.journal).await?;
            let dir = inner.cfg.journal_dir();
            rt::fs::sync_dir(dir)
                .await
                .map_err(io_error("cannot sync", dir))?;
            let path = checkpoint::path(&inner.cfg.data_dir, o.number, o.generation + 1);
            self.remove_checkpoints(vec![path]).await?;
        }
        inner.settled.set(true);
        Ok(true)
    }

    /// A journal vouches for its shard's newest checkpoint. So that a crash between the removal of the two isn't taken for damage, an orphan first gets a base
    /// without replicas.
    async fn retire_orphans(&self) -> Result<(), LogError> {
        let inner = &self.inner;
        let orphans: Vec<_> = inner
            .orphans
            .borrow()
            .iter()
            .map(|o| (o.number, o.generation, o.sequence))
            .collect();
        for (number, generation, sequence) in orphans {
            let owner = Owner {
                directory_id: inner.directory_id,
                shard: number,
            };
            let mut out = BytesMut::new();
            checkpoint::put_commit(&mut out, owner, generation + 1, sequence);
            let path = checkpoint::path(&inner.cfg.data_dir, number, generation + 1);
            super::files::write_whole(&path, &out)
                .await
                .map_err(io_error("cannot write", &path))?;
            let dir = &inner.cfg.data_dir;
            rt::fs::sync_dir(dir)
                .await
                .map_err(io_error("cannot sync", dir))?;
        }
        Ok(())
    }

    /// Oldest first, durably: one that came back without those after it would bring back what they say is removed.
    async fn remove_checkpoints(&self, old: Vec<PathBuf>) -> Result<(), LogError> {
        let dir = &self.inner.cfg.data_dir;
        for path in old {
            shrink_and_remove(&path).await?;
            rt::fs::sync_dir(dir)
                .await
                .map_err(io_error("cannot sync", dir))?;
        }
        Ok(())
    }

    /// Files that no checkpoint names any more.
    async fn remove(&self, trash: Vec<Trash>) -> Result<(), LogError> {
        for t in trash {
            match t {
                Trash::Segment(s) => {
                    self.inner.files.forget(&s);
                    shrink_and_remove(&s.path).await?;
                    shrink_and_remove(&super::segment::index_path(&s.path)).await?;
                }
                Trash::Extents(path) => shrink_and_remove(&path).await?,
                Trash::Directory(d) => {
                    if rt::fs::exists(&d)
                        .await
                        .map_err(io_error("cannot look for", &d))?
                    {
                        // Files that a crash left unnamed go with it.
                        for name in rt::fs::read_dir(&d)
                            .await
                            .map_err(io_error("cannot list", &d))?
                        {
                            shrink_and_remove(&d.join(name)).await?;
                        }
                        rt::fs::remove_dir(&d)
                            .await
                            .map_err(io_error("cannot remove", &d))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Writes the whole blocks of `out`, or all of it padded.
async fn write_some(
    file: &File,
    path: &std::path::Path,
    at: u64,
    out: &mut BytesMut,
    all: bool,
) -> Result<u64, LogError> {
    let whole = if all {
        out.len()
    } else {
        out.len() / BLOCK_BYTES * BLOCK_BYTES
    };
    let part = out.split_to(whole);
    let mut at = at;
    for piece in part.chunks(WRITE_OUT_BYTES) {
        let buf = aligned(piece);
        let length = buf.len() as u64;
        file.write_at(at, buf)
            .await
            .map_err(io_error("cannot write", path))?;
        at += length;
        rt::yield_if_needed().await;
    }
    Ok(at)
}

/// A big file is never unlinked at once. First it gets a name that nobody reads: a file that is half gone must not be taken for a whole one.
async fn shrink_and_remove(path: &std::path::Path) -> Result<(), LogError> {
    if !rt::fs::exists(path)
        .await
        .map_err(io_error("cannot look for", path))?
    {
        return Ok(());
    }
    let directory = path.parent().expect("a file lies in a directory");
    let trash = directory.join(format!(
        "{}{:016x}",
        super::files::TRASH_PREFIX,
        rt::random_u64()
    ));
    rt::fs::rename(path, &trash)
        .await
        .map_err(io_error("cannot rename", path))?;
    rt::fs::sync_dir(directory)
        .await
        .map_err(io_error("cannot sync", directory))?;
    let options = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let file = File::open(&trash, options)
        .await
        .map_err(io_error("cannot open", &trash))?;
    let mut length = file.len().await.map_err(io_error("cannot stat", &trash))?;
    while length > SHRINK_BYTES {
        length -= SHRINK_BYTES;
        file.set_len(length)
            .await
            .map_err(io_error("cannot shrink", &trash))?;
        rt::sleep(SHRINK_PAUSE).await;
    }
    file.close()
        .await
        .map_err(io_error("cannot close", &trash))?;
    rt::fs::remove_file(&trash)
        .await
        .map_err(io_error("cannot remove", &trash))
}
