//! Writing a checkpoint file (L8).

use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::BytesMut;

use super::Janitor;
use crate::limits::*;
use crate::log::LogError;
use crate::log::checkpoint::{self, Owner, ReplicaFrame};
use crate::log::files::{aligned, io_error};
use crate::log::segment::Segment;
use crate::log::shard::{Removal, Replica};
use crate::rt::{self, File, OpenOptions};
use crate::types::*;

/// Changes of a checkpoint file beyond its base before a new base is begun, in bytes.
const CHANGES_BYTES: u64 = 1 << 20;

/// Slices of preparing that one capture gets at most.
const PREPARE_SLICES: usize = 100_000;

/// A checkpoint that is being written.
struct Draft {
    owner: Owner,
    base: bool,
    generation: u64,
    sequence: u64,
    /// Where in the file it begins.
    start: u64,
    path: PathBuf,
    /// Replicas whose frames are in it, and since when they were dirty.
    captured: Vec<(Replica, Option<Lsn>)>,
    /// Segments that it is the first to call sealed.
    sealed: Vec<Rc<Segment>>,
    /// Replicas that it is the first to say are removed.
    removed: Vec<Removal>,
}

impl Janitor {
    /// `false` when the disk has no room for it, not even the reserve's: then nothing has changed.
    pub(super) async fn write_checkpoint(&self) -> Result<bool, LogError> {
        let written = self
            .with_reserve(async || {
                let mut draft = self.draft();
                match self.put(&mut draft).await {
                    Err(e) if e.is_full() => {
                        self.take_back(draft).await?;
                        Err(e)
                    }
                    result => result.map(|end| (draft, end)),
                }
            })
            .await?;
        let Some((draft, end)) = written else {
            return Ok(false);
        };
        draft.sealed.iter().for_each(|s| s.said_sealed.set(true));
        let mut c = self.inner.checkpoint.borrow_mut();
        for r in draft.removed {
            if c.restored.remove(&r.id) {
                c.dead.push(r.id);
            }
        }
        c.sequence = draft.sequence;
        c.file_bytes = end;
        if draft.base {
            c.base_bytes = end;
        }
        let path = draft.path;
        if let Some(old) = c.current.replace(path.clone()).filter(|p| *p != path) {
            if self.inner.tidied.get() {
                c.replaced = Some(old);
            } else {
                self.inner.old_checkpoints.borrow_mut().push(old);
            }
        }
        Ok(true)
    }

    fn draft(&self) -> Draft {
        let inner = &self.inner;
        let owner = Owner {
            directory_id: inner.directory_id,
            shard: u32::from(inner.shard.0),
        };
        let mut c = inner.checkpoint.borrow_mut();
        // The first checkpoint of a start is a base: it covers what other shards may have written before (L12).
        let base = !inner.reported.get() || c.file_bytes > 2 * c.base_bytes + CHANGES_BYTES;
        // A generation is used once, whatever becomes of the file; a sequence number counts once the file is synced.
        c.generation += u64::from(base);
        Draft {
            owner,
            base,
            generation: c.generation,
            sequence: c.sequence + 1,
            start: if base { 0 } else { c.file_bytes },
            path: checkpoint::path(&inner.cfg.data_dir, owner.shard, c.generation),
            captured: Vec::new(),
            sealed: Vec::new(),
            removed: Vec::new(),
        }
    }

    /// Writes and syncs it; where it ends.
    async fn put(&self, draft: &mut Draft) -> Result<u64, LogError> {
        let inner = &self.inner;
        let (owner, base, generation) = (draft.owner, draft.base, draft.generation);
        let path = draft.path.clone();
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
        let mut at = draft.start;
        if base {
            for id in &inner.checkpoint.borrow().dead {
                checkpoint::put_removed(&mut out, owner, generation, *id);
            }
        }
        let ids: Vec<ReplicaId> = inner.replicas.borrow().keys().copied().collect();
        for id in ids {
            let Some(r) = inner.replica(id) else { continue };
            self.prepare(&r, base).await;
            if r.borrow().removed {
                continue;
            }
            let since = r.borrow().dirty_since;
            if let Some(frame) = self.capture(&r, base) {
                // In one step with the capture: what is sealed from here on isn't in the frame.
                let newly = |s: &&Rc<Segment>| !s.said_sealed.get() && s.meta.borrow().sealed;
                draft
                    .sealed
                    .extend(r.borrow().segments.iter().filter(newly).cloned());
                draft.captured.push((r, since));
                let pause = async || rt::yield_if_needed().await;
                checkpoint::put_replica(&mut out, owner, generation, &frame, &pause).await;
            }
            if out.len() >= WRITE_OUT_BYTES {
                at = write_some(&file, &path, at, &mut out, false).await?;
            }
            rt::yield_if_needed().await;
        }
        // Last, and in one step with the commit: what is here of a replica that was removed meanwhile, or isn't any more, is the end of it, also if the record
        // of its end never becomes durable.
        draft.removed = std::mem::take(&mut inner.checkpoint.borrow_mut().removed);
        for r in &draft.removed {
            checkpoint::put_removed(&mut out, owner, generation, r.id);
        }
        checkpoint::put_commit(
            &mut out,
            owner,
            generation,
            draft.sequence,
            inner.boot_epoch,
        );
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
        Ok(at)
    }

    /// A checkpoint that found no room must not count, now or ever: what it says would be older than the one after it.
    async fn take_back(&self, draft: Draft) -> Result<(), LogError> {
        for (r, since) in draft.captured {
            let mut r = r.borrow_mut();
            r.frame_dirty = true;
            r.dirty_since = since.into_iter().chain(r.dirty_since).min();
        }
        self.inner
            .checkpoint
            .borrow_mut()
            .removed
            .extend(draft.removed);
        let path = &draft.path;
        if draft.base {
            match rt::fs::remove_file(path).await {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io_error("cannot remove", path)(e));
                }
                _ => {}
            }
            let dir = &self.inner.cfg.data_dir;
            return rt::fs::sync_dir(dir)
                .await
                .map_err(io_error("cannot sync", dir));
        }
        let options = OpenOptions {
            write: true,
            ..OpenOptions::default()
        };
        let file = File::open(path, options)
            .await
            .map_err(io_error("cannot open", path))?;
        file.set_len(draft.start)
            .await
            .map_err(io_error("cannot shrink", path))?;
        file.sync().await.map_err(io_error("cannot sync", path))?;
        file.close().await.map_err(io_error("cannot close", path))
    }

    /// A replica's frame, in one step with the seal that separates the records it reflects from those that come after.
    pub(super) fn capture(&self, r: &Replica, base: bool) -> Option<ReplicaFrame> {
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
}

impl Janitor {
    /// Has the layer above do in slices what a capture takes. What changes all the time is captured in one step at last.
    async fn prepare(&self, r: &Replica, base: bool) {
        let (id, dirty) = {
            let r = r.borrow();
            (r.id, r.frame_dirty)
        };
        let source = self.inner.source.borrow().clone();
        let Some(source) = source.filter(|_| base || dirty) else {
            return;
        };
        for _ in 0..PREPARE_SLICES {
            // It may be removed in between: then it isn't asked for any more.
            if r.borrow().removed || source.prepare(id) {
                return;
            }
            rt::yield_if_needed().await;
        }
    }
}

/// Writes the whole blocks of `out`, or all of it padded.
async fn write_some(
    file: &File,
    path: &Path,
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
