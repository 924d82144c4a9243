//! The background work of a shard's log: write-out, checkpoints, reclaim, growth of the journal, removal of files.
//!
//! One task on the background queue does all of it but the last and the zeros that a journal grows by, one thing at a time, so that the disk sees one background write at a time (measured: parallel ones cost
//! the journal its tail). Zeros come beside them, paced, some times in a journal's life: write-out that waited for them would stand still for seconds. It yields between pieces. It sleeps while there is nothing to do.
//!
//! Here: what comes when. [`reclaim`] makes room in the journal, [`checkpointing`] writes checkpoint files, [`settling`] lets go of what they cover,
//! [`removal`] removes files.

use std::rc::Rc;
use std::time::Duration;

use super::LogError;
use super::shard::Inner;
use crate::rt::{self, Queue};

mod checkpointing;
mod reclaim;
mod removal;
mod settling;

/// Checkpoints come at least this far apart; the shorter time when the journal is nearly full.
const CHECKPOINT_PAUSE: Duration = Duration::from_secs(1);
const SHORT_PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at a disk without room.
const FULL_PAUSE: Duration = Duration::from_millis(200);

/// The journal grows when this part of it (one in so many) is live: early, so that nobody waits for zeros to be written.
pub(crate) const GROW_AT: u64 = 8;

pub(crate) fn start(inner: &Rc<Inner>) {
    removal::start(inner);
    let inner = inner.clone();
    rt::spawn(Queue::Background, async move {
        let mut janitor = Janitor {
            inner: inner.clone(),
            last_checkpoint: None,
            done: false,
        };
        match janitor.run().await {
            Ok(()) => janitor.last_removals().await,
            Err(e) => inner.fail(e),
        }
        janitor.growth_ended().await;
        janitor.done();
        inner.closed.set(true);
        inner.removal.notify();
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
            if !self.inner.space.may_write_out() {
                // Nobody tells of room; shard 0, which looks for all, may have ended.
                rt::sleep(FULL_PAUSE).await;
                self.inner.space.look().await?;
            } else if self.waits_for_pause() {
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

    fn wants_checkpoint(&self) -> bool {
        if self.inner.space.exhausted() {
            // No checkpoint, but what may go without one.
            return !self.inner.checkpoint.borrow().trash.is_empty();
        }
        let j = self.inner.journal.borrow();
        let c = self.inner.checkpoint.borrow();
        // What can't be written out can't be let go of.
        let half = j.live_bytes() * 2 > j.capacity_bytes() || self.inner.tail_part() > 0.5;
        let half = half && self.inner.space.may_write_out();
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
        let nearly_full = nearly_full && self.inner.space.may_write_out();
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
        self.last_checkpoint = Some(rt::now());
        if inner.space.exhausted() {
            self.dispose_early();
            return Ok(());
        }
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
        let discarded = inner.checkpoint.borrow().trash.len();
        if !self.write_checkpoint().await? {
            self.dispose_early();
            return Ok(());
        }
        self.move_tail().await?;
        self.last_checkpoint = Some(rt::now());
        inner.metrics.checkpoints.increment();
        self.dispose(discarded);
        Ok(())
    }
}
