//! Making room in the journal: write-out of committed tails, copies of small ones, syncs of segments, and growth of the ring (L3, L5, L6).

use std::time::Duration;

use super::{GROW_AT, Janitor, SHORT_PAUSE};
use crate::log::LogError;
use crate::log::files::io_error;
use crate::log::shard::{Growth, Inner, Replica};
use crate::log::space::leaves_enough;
use crate::log::writeout;
use crate::rt::{self, Queue};
use crate::types::*;

/// A tail of at most this many bytes is carried rather than written out when the journal is reclaimed (L6).
const CARRY_BYTES: u64 = 32 << 10;
/// How long a journal waits that was refused more room.
const GROW_AGAIN: Duration = Duration::from_secs(5);

impl Janitor {
    /// Ordinary write-out of the replicas that have enough.
    pub(super) async fn write_out_queued(&self) -> Result<bool, LogError> {
        let mut worked = false;
        while self.inner.space.may_write_out() {
            let Some(id) = self.inner.write_queue.borrow_mut().pop_front() else {
                break;
            };
            let Some(r) = self.inner.replica(id) else {
                continue;
            };
            r.borrow_mut().queued = false;
            worked |= self.write_out(&r, false).await?;
            if !self.inner.space.may_write_out() {
                // It comes first when there is room again.
                r.borrow_mut().queued = true;
                self.inner.write_queue.borrow_mut().push_front(id);
            }
        }
        Ok(worked)
    }

    /// Writes what a replica has, as far as it goes. Where the disk has no room it stays in memory and in the journal.
    pub(super) async fn write_out(&self, r: &Replica, forced: bool) -> Result<bool, LogError> {
        let mut worked = false;
        while self.inner.space.may_write_out() {
            let planned = r
                .borrow_mut()
                .plan_write(&self.inner.files, forced, rt::wall_clock_ms());
            self.seal_indexes(r).await?;
            let Some(mut plan) = planned else {
                return Ok(worked);
            };
            if let Err(e) = writeout::carry_out(&self.inner.files, &mut plan).await {
                r.borrow_mut().abandon_write();
                self.unless_full(e)?;
                return Ok(worked);
            }
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
        Ok(worked)
    }

    /// An error that is only want of room is noted and passes (design §4, Faults): nothing was claimed of what was to be written.
    pub(super) fn unless_full(&self, e: LogError) -> Result<(), LogError> {
        if !e.is_full() {
            return Err(e);
        }
        tracing::debug!(error = %e, "a write of the background found no room");
        self.inner.space.ran_out();
        Ok(())
    }

    /// Does what lets go of space or journal: when the disk has no room for it the reserve is given up. `None`: not even so.
    pub(super) async fn with_reserve<T>(
        &self,
        mut write: impl AsyncFnMut() -> Result<T, LogError>,
    ) -> Result<Option<T>, LogError> {
        if self.inner.space.exhausted() {
            return Ok(None);
        }
        loop {
            match write().await {
                Ok(done) => return Ok(Some(done)),
                Err(e) => self.unless_full(e)?,
            }
            if !self.inner.space.give_up_reserve().await? {
                return Ok(None);
            }
        }
    }

    /// Index files of segments that were sealed since.
    pub(super) async fn seal_indexes(&self, r: &Replica) -> Result<(), LogError> {
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
            let written = self
                .with_reserve(async || writeout::write_index(&segment).await)
                .await?;
            if written.is_none() {
                // Its rows stay in memory and in the checkpoint's frame.
                return Ok(());
            }
        }
    }

    /// L3: the journal grows while it isn't wrapped, zero-filled first, the new size durable before it is used. The zeros are written by a task of their own: write-out and checkpoints, which keep the ring
    /// from filling up meanwhile, don't wait for them.
    pub(super) async fn grow(&self) -> Result<(), LogError> {
        let inner = &self.inner;
        match inner.growth.get() {
            Growth::Filling => return Ok(()),
            Growth::Filled(size) => return self.take_size(size).await,
            Growth::Denied(t) if t.elapsed() < GROW_AGAIN => return Ok(()),
            Growth::Denied(_) | Growth::Idle => {}
        }
        let (size, next) = {
            let j = inner.journal.borrow();
            let size = j.superblock().size;
            let next = (size * 2).min(inner.max_journal_bytes());
            let busy = j.live_bytes() * GROW_AT > j.capacity_bytes();
            if !busy || next <= size || inner.closing.get() {
                return Ok(());
            }
            (size, next)
        };
        inner.growth.set(Growth::Filling);
        let inner = inner.clone();
        rt::spawn(Queue::Background, async move {
            let growth = match room_to_grow(&inner, size, next).await {
                Ok(true) => Growth::Filled(next),
                Ok(false) => Growth::Denied(rt::now()),
                Err(e) => {
                    inner.fail(e);
                    Growth::Denied(rt::now())
                }
            };
            inner.growth.set(growth);
            inner.janitor.notify();
        })
        .detach();
        Ok(())
    }

    /// Gives the ring what was filled with zeros. While its live part is wrapped they wait.
    async fn take_size(&self, size: u64) -> Result<(), LogError> {
        let superblock = {
            let mut j = self.inner.journal.borrow_mut();
            let superblock = j.superblock_with_size(size);
            j.set_growing(superblock.is_some());
            superblock
        };
        let Some(s) = superblock else { return Ok(()) };
        self.inner.write_superblock(&s).await?;
        self.inner.growth.set(Growth::Idle);
        let mut j = self.inner.journal.borrow_mut();
        j.adopt(s);
        j.set_growing(false);
        drop(j);
        self.inner.metrics.journal_size_bytes.set(size);
        self.inner.submit(false);
        Ok(())
    }

    /// Nobody writes into the journal's file any more.
    pub(super) async fn growth_ended(&self) {
        while matches!(self.inner.growth.get(), Growth::Filling) {
            rt::sleep(SHORT_PAUSE).await;
        }
    }

    /// L6: makes every block before `target` unneeded, once the returned commit, which holds the last of what was carried, is durable.
    pub(super) async fn free(&self, target: Lsn, may_carry: bool) -> Result<Option<Lsn>, LogError> {
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
    pub(super) async fn durable_or_stalled(&self, lsn: Lsn) -> bool {
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
    pub(super) fn carry(&self, r: &Replica, may_carry: &mut u64) -> Option<Lsn> {
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
}

/// Extends the journal's file with zeros, if that leaves enough of the disk to others.
async fn room_to_grow(inner: &Inner, size: u64, next: u64) -> Result<bool, LogError> {
    let (path, dir) = (&inner.journal_path, inner.cfg.journal_dir());
    let room = rt::fs::room(dir)
        .await
        .map_err(io_error("cannot look at the disk of", dir))?;
    if inner.space.refusing() || !leaves_enough(room, next - size) {
        return Ok(false);
    }
    let Err(e) = inner.journal_file.zero_fill(size, next).await else {
        return Ok(true);
    };
    // Others took it meanwhile. What of it was had must not be lost to them as well.
    let e = io_error("cannot extend", path)(e);
    if !e.is_full() {
        return Err(e);
    }
    inner
        .journal_file
        .give_back(size)
        .await
        .map_err(io_error("cannot shrink", path))?;
    Ok(false)
}
