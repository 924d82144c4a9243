//! Keeping a partition of `__consumer_offsets` small while nothing compacts it.
//!
//! Its topic carries cleanup.policy=compact: of each key only the newest record counts. Until there is a cleaner, the coordinator does it by hand. When
//! the log is much larger than what is in force, it writes everything in force behind the log's end, then moves the log's start to where that
//! began (a TrimPrefix entry, L9): what is before says nothing that isn't said again behind.
//!
//! Commits go on meanwhile. A record that is written again just behind the one that replaced it would bring the older back; so a group is written when no
//! write is under way, and all its records enter the log in one step.

use std::rc::Rc;
use std::time::Duration;

use engine::rt;

use super::partition::Partition;
use crate::coordinator::Coordinator;
use crate::limits;

/// Looks at a coordinator that is never without a write, before it is left for another time.
const PATIENCE: u32 = 1_000;

impl Partition {
    /// Rewrites the log if that pays.
    pub(super) async fn rewrite(self: &Rc<Self>) {
        let size = self.group.log().size_bytes();
        let Some(kept) = self.read(|c| c.bytes() as u64) else {
            return;
        };
        if size < limits::GROUP_REWRITE_BYTES || size < kept.saturating_mul(4) {
            return;
        }
        let from = self.group.log_end_offset();
        if self.rewrite_all().await.is_none() {
            return;
        }
        tracing::info!(partition = %self.id(), bytes = size, kept, "groups are written anew");
        // Refused: the next look does it.
        if let Ok(trimmed) = self.group.propose_trim(from) {
            let _ = trimmed.await;
        }
    }

    async fn rewrite_all(&self) -> Option<()> {
        // Groups that come later are behind `from` already.
        for name in self.read(Coordinator::names)? {
            self.quiet().await?;
            let records = self.read(|c| c.records_of(&name, rt::wall_clock_ms()))?;
            let mut waits = Vec::new();
            for some in records.chunks(limits::GROUP_REWRITE_RECORDS) {
                waits.push(self.append(some).ok()?);
            }
            for wait in waits.into_iter().flatten() {
                wait.await.ok()?;
            }
        }
        Some(())
    }

    /// Waits until no write is under way.
    async fn quiet(&self) -> Option<()> {
        for _ in 0..PATIENCE {
            if self.read(Coordinator::writing)? == 0 {
                return Some(());
            }
            rt::sleep(Duration::from_millis(1)).await;
        }
        None
    }
}
