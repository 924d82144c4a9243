//! Letting go of what a checkpoint covers: the journal's tail, and what earlier starts left (L8, L12).

use std::path::PathBuf;

use bytes::BytesMut;

use super::Janitor;
use crate::log::LogError;
use crate::log::checkpoint::{self, Owner};
use crate::log::files::{io_error, write_whole};
use crate::rt;
use crate::types::*;

impl Janitor {
    /// L8, L12: the journal lets go of what the checkpoint covers.
    pub(super) async fn move_tail(&self) -> Result<(), LogError> {
        let inner = &self.inner;
        let sequence = inner.checkpoint.borrow().sequence;
        let needed = {
            let journal = inner.journal.borrow();
            let durable = journal.durable_lsn();
            let mut needed = durable.next();
            for r in inner.replicas.borrow().values() {
                let mut r = r.borrow_mut();
                let bytes = r.bytes_needed_from(durable);
                let first = bytes.into_iter().chain(r.dirty_since).min();
                needed = needed.min(first.unwrap_or(needed));
            }
            // What was removed since the checkpoint was made is said by the next one; until then the replica may be back, and needs what it had.
            let unsaid = inner.checkpoint.borrow();
            let unsaid = unsaid.removed.iter().map(|r| r.needs).min();
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

    pub(super) fn may_settle(&self) -> bool {
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
    pub(super) async fn settle(&self) -> Result<bool, LogError> {
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
            if !self.retire_orphans().await? {
                return Ok(false);
            }
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
            self.remove_file(&o.journal).await?;
            let dir = inner.cfg.journal_dir();
            rt::fs::sync_dir(dir)
                .await
                .map_err(io_error("cannot sync", dir))?;
            let path = checkpoint::path(&inner.cfg.data_dir, o.number, o.generation + 1);
            self.remove_checkpoints(vec![path]).await?;
        }
        inner.settled.set(true);
        inner.removal.notify();
        Ok(true)
    }

    /// A journal vouches for its shard's newest checkpoint. So that a crash between the removal of the two isn't taken for damage, an orphan first gets a base
    /// without replicas.
    /// `false` when the disk has no room for that.
    async fn retire_orphans(&self) -> Result<bool, LogError> {
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
            checkpoint::put_commit(
                &mut out,
                owner,
                generation + 1,
                sequence,
                checkpoint::RETIRED,
            );
            let path = checkpoint::path(&inner.cfg.data_dir, number, generation + 1);
            let written = self
                .with_reserve(async || {
                    write_whole(&path, &out)
                        .await
                        .map_err(io_error("cannot write", &path))
                })
                .await?;
            if written.is_none() {
                return Ok(false);
            }
            let dir = &inner.cfg.data_dir;
            rt::fs::sync_dir(dir)
                .await
                .map_err(io_error("cannot sync", dir))?;
        }
        Ok(true)
    }

    /// Oldest first, durably: one that came back without those after it would bring back what they say is removed.
    pub(super) async fn remove_checkpoints(&self, old: Vec<PathBuf>) -> Result<(), LogError> {
        let dir = &self.inner.cfg.data_dir;
        for path in old {
            self.remove_file(&path).await?;
            rt::fs::sync_dir(dir)
                .await
                .map_err(io_error("cannot sync", dir))?;
        }
        Ok(())
    }
}
