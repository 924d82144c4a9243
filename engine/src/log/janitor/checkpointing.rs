//! Writing a checkpoint file (L8).

use std::path::Path;

use bytes::BytesMut;

use super::Janitor;
use crate::limits::*;
use crate::log::LogError;
use crate::log::checkpoint::{self, Owner, ReplicaFrame};
use crate::log::files::{aligned, io_error};
use crate::log::shard::Replica;
use crate::rt::{self, File, OpenOptions};
use crate::types::*;

/// Changes of a checkpoint file beyond its base before a new base is begun, in bytes.
const CHANGES_BYTES: u64 = 1 << 20;

impl Janitor {
    pub(super) async fn write_checkpoint(&self) -> Result<(), LogError> {
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
