//! Room on the data directory's filesystem: how much there is, what is refused when it runs out, and the reserve (design §4, Faults).
//!
//! One [`Space`] for all shards of a process: numbers that any shard reads without waiting. Shard 0 looks at the filesystem, at least once a second and more often the
//! nearer the end is ([`watch`]); a write that finds no room says so at once ([`Space::ran_out`]). From high to low:
//!
//! - Below the *low-water mark* ([`low_water`], and on top of it what the journals hold, so that all of it can still be written out) batches and new topics are
//!   refused. Everything else goes on. Batches are taken again a quarter above the mark, without a restart.
//! - Below the *write-out floor* nothing is written out any more: what is left is for checkpoints and indexes, which let go of space and journal.
//! - When these find no room either, the *reserve*, a preallocated file, is given up, and made again when there is room.
//!
//! Invariants: only the journal's preallocated ring has to take writes on a full disk (elections, deletions, the log's start). Whoever flips `refusing` says so in
//! the log, once.

use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::LogError;
use super::files::io_error;
use super::shard::Inner;
use crate::limits::*;
use crate::rt::fs::Room;
use crate::rt::{self, File, OpenOptions, Queue};
use crate::types::ShardId;

/// Times between two looks at the filesystem; while batches are refused always the same.
const LOOK_SELDOM: Duration = Duration::from_secs(1);
const LOOK_OFTEN: Duration = Duration::from_millis(50);
const LOOK_REFUSING: Duration = Duration::from_millis(200);
/// Nobody fills a disk faster, in bytes a second: how soon the mark could be reached.
const FILL_BYTES_PER_SECOND: u64 = 1 << 30;
/// After a write found no room batches are refused for so long at least: a quota may say something else than the filesystem.
const HOLD: Duration = Duration::from_secs(2);

/// Free bytes below which batches are refused, without what the journals hold: a twentieth of the filesystem, within bounds.
pub(crate) fn low_water(total: u64) -> u64 {
    (total / 20)
        .clamp(LOW_WATER_MIN_BYTES, LOW_WATER_MAX_BYTES)
        .min(total / 4)
}

/// Free bytes that write-out leaves to checkpoints and indexes.
fn write_out_floor(total: u64) -> u64 {
    WRITE_OUT_FLOOR_BYTES.min(total / 64)
}

/// Bytes of the reserve file.
fn reserve_bytes(total: u64) -> u64 {
    RESERVE_BYTES.min(total / 32) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}

/// Whether batches are refused from now on, `live` being what the journals hold.
fn refuses(before: bool, room: Room, live: u64) -> bool {
    let mark = low_water(room.total);
    let mark = if before { mark + mark / 4 } else { mark };
    room.free < mark.saturating_add(live)
}

/// L3: whether a journal may take so many bytes more. Never the last of a disk: it leaves three quarters of what is free, and twice the mark.
pub(crate) fn leaves_enough(room: Room, growth: u64) -> bool {
    growth <= room.free / 4 && room.free - growth >= 2 * low_water(room.total)
}

/// How long until the next look.
fn pause(refusing: bool, room: Room, live: u64) -> Duration {
    if refusing {
        return LOOK_REFUSING;
    }
    let above = room
        .free
        .saturating_sub(low_water(room.total).saturating_add(live));
    let reached = Duration::from_millis(above.saturating_mul(1000) / FILL_BYTES_PER_SECOND);
    reached.clamp(LOOK_OFTEN, LOOK_SELDOM)
}

/// What the shards know of the disk.
#[derive(Debug)]
pub(crate) struct Space {
    data_dir: PathBuf,
    free: AtomicU64,
    total: AtomicU64,
    refusing: AtomicBool,
    /// Nanoseconds of the clock until which batches are refused whatever a look says.
    hold: AtomicU64,
    /// The reserve file is there.
    reserve: AtomicBool,
    /// What each shard's journal holds, in bytes.
    live: Box<[CachePadded<AtomicU64>]>,
}

/// The disk as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskState {
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Batches and new topics are refused for want of room.
    pub refusing: bool,
}

pub(crate) fn reserve_path(data_dir: &Path) -> PathBuf {
    data_dir.join("reserve")
}

impl Space {
    /// Looks for the first time. The data directory must be there.
    pub async fn open(data_dir: &Path, shards: u16) -> Result<Space, LogError> {
        let path = reserve_path(data_dir);
        let reserve = rt::fs::exists(&path)
            .await
            .map_err(io_error("cannot look for", &path))?;
        let space = Space {
            data_dir: data_dir.to_owned(),
            free: AtomicU64::new(0),
            total: AtomicU64::new(0),
            refusing: AtomicBool::new(false),
            hold: AtomicU64::new(0),
            reserve: AtomicBool::new(reserve),
            live: (0..shards).map(|_| CachePadded::default()).collect(),
        };
        space.look().await?;
        Ok(space)
    }

    /// Asks the filesystem.
    pub async fn look(&self) -> Result<(), LogError> {
        let room = rt::fs::room(&self.data_dir)
            .await
            .map_err(io_error("cannot look at the disk of", &self.data_dir))?;
        self.free.store(room.free, Ordering::Relaxed);
        self.total.store(room.total, Ordering::Relaxed);
        let held = rt::now().0 < self.hold.load(Ordering::Relaxed);
        let before = self.refusing();
        if before && held {
            return Ok(());
        }
        self.refuse(refuses(before, room, self.live_bytes()));
        Ok(())
    }

    fn room(&self) -> Room {
        Room {
            free: self.free.load(Ordering::Relaxed),
            total: self.total.load(Ordering::Relaxed),
        }
    }

    pub fn state(&self) -> DiskState {
        let room = self.room();
        DiskState {
            free_bytes: room.free,
            total_bytes: room.total,
            refusing: self.refusing(),
        }
    }

    fn live_bytes(&self) -> u64 {
        self.live.iter().map(|l| l.load(Ordering::Relaxed)).sum()
    }

    pub fn set_live(&self, shard: ShardId, bytes: u64) {
        self.live[usize::from(shard.0)].store(bytes, Ordering::Relaxed);
    }

    /// Batches and new topics are to be refused.
    pub fn refusing(&self) -> bool {
        self.refusing.load(Ordering::Relaxed)
    }

    fn refuse(&self, refuse: bool) {
        if self.refusing.swap(refuse, Ordering::Relaxed) == refuse {
            return;
        }
        let room = self.room();
        let mark = low_water(room.total).saturating_add(self.live_bytes());
        let (free_mib, mark_mib) = (room.free >> 20, mark >> 20);
        let dir = self.data_dir.display();
        if refuse {
            tracing::error!(
                "the disk of {dir} is nearly full: {free_mib} MiB are free, {mark_mib} MiB must be. Produce and new topics are refused; reading, deleting and retention go on. \
                 Free space there, delete topics or shorten their retention; producing then goes on by itself"
            );
        } else {
            tracing::info!(
                "the disk of {dir} has room again: {free_mib} MiB are free; produce and new topics are taken"
            );
        }
    }

    /// A write found no room.
    pub fn ran_out(&self) {
        let until = rt::now() + HOLD;
        self.hold.store(until.0, Ordering::Relaxed);
        self.free.store(0, Ordering::Relaxed);
        self.refuse(true);
    }

    /// There is more than what is kept for checkpoints and indexes.
    pub fn may_write_out(&self) -> bool {
        let room = self.room();
        room.free >= write_out_floor(room.total)
    }

    /// Not even a checkpoint has a chance.
    pub fn exhausted(&self) -> bool {
        let room = self.room();
        !self.reserve.load(Ordering::Relaxed) && room.free < write_out_floor(room.total) / 16
    }

    /// Frees the reserve. `false` when it is gone already.
    pub async fn give_up_reserve(&self) -> Result<bool, LogError> {
        if !self.reserve.swap(false, Ordering::Relaxed) {
            return Ok(false);
        }
        let path = reserve_path(&self.data_dir);
        match rt::fs::remove_file(&path).await {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(io_error("cannot remove", &path)(e))
            }
            _ => {
                tracing::warn!("the reserve of disk space is used up for checkpoints and indexes");
                Ok(true)
            }
        }
    }

    /// Makes the reserve if it isn't there and leaves the mark alone.
    async fn make_reserve(&self) -> Result<(), LogError> {
        let room = self.room();
        let bytes = reserve_bytes(room.total);
        let enough = room.free >= low_water(room.total).saturating_add(self.live_bytes() + bytes);
        if bytes == 0 || self.refusing() || !enough || self.reserve.load(Ordering::Relaxed) {
            return Ok(());
        }
        let path = reserve_path(&self.data_dir);
        match allocate(&path, bytes).await {
            Ok(()) => {
                self.reserve.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(e) => {
                let e = io_error("cannot reserve space in", &path)(e);
                // Nothing depends on it yet.
                let _ = rt::fs::remove_file(&path).await;
                if e.is_full() { Ok(()) } else { Err(e) }
            }
        }
    }
}

async fn allocate(path: &Path, bytes: u64) -> std::io::Result<()> {
    let options = OpenOptions {
        create: true,
        write: true,
        ..OpenOptions::default()
    };
    let file = File::open(path, options).await?;
    file.allocate(0, bytes).await?;
    file.close().await
}

/// Looks at the disk until the log is closed. Shard 0 runs it for all.
pub(crate) fn watch(inner: &Rc<Inner>) {
    let inner = Rc::downgrade(inner);
    rt::spawn(Queue::Background, async move {
        if let Err(e) = look_on(&inner).await
            && let Some(inner) = inner.upgrade()
        {
            inner.fail(e);
        }
    })
    .detach();
}

async fn look_on(inner: &Weak<Inner>) -> Result<(), LogError> {
    loop {
        let Some(space) = inner
            .upgrade()
            .filter(|i| !i.closed.get())
            .map(|i| i.space.clone())
        else {
            return Ok(());
        };
        // The start has looked already, and has better things to do than to make a reserve.
        rt::sleep(pause(space.refusing(), space.room(), space.live_bytes())).await;
        space.look().await?;
        space.make_reserve().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn room(free_mib: u64, total_mib: u64) -> Room {
        Room {
            free: free_mib * MIB,
            total: total_mib * MIB,
        }
    }

    #[test]
    fn the_mark_follows_the_size_of_the_disk() {
        assert_eq!(low_water(4 << 40), LOW_WATER_MAX_BYTES);
        assert_eq!(low_water(10 << 30), (10 << 30) / 20);
        assert_eq!(low_water(300 * MIB), LOW_WATER_MIN_BYTES);
        assert_eq!(low_water(40 * MIB), 10 * MIB);
    }

    #[test]
    fn what_the_journals_hold_must_fit_too_and_the_end_lies_above_the_beginning() {
        // The mark of 1000 MiB is 50.
        assert!(!refuses(false, room(50, 1000), 0));
        assert!(refuses(false, room(49, 1000), 0));
        assert!(refuses(false, room(79, 1000), 30 * MIB));
        assert!(refuses(true, room(62, 1000), 0));
        assert!(!refuses(true, room(63, 1000), 0));
    }

    #[test]
    fn l3_a_journal_never_takes_the_last_of_a_disk() {
        assert!(leaves_enough(room(200, 220), 32 * MIB));
        assert!(!leaves_enough(room(200, 220), 64 * MIB));
        assert!(!leaves_enough(room(90, 220), 32 * MIB));
    }

    #[test]
    fn looks_come_more_often_near_the_end() {
        assert_eq!(pause(false, room(500_000, 1_000_000), 0), LOOK_SELDOM);
        assert_eq!(pause(false, room(55, 1000), 0), LOOK_OFTEN);
        assert_eq!(pause(true, room(10, 1000), 0), LOOK_REFUSING);
        let between = pause(false, room(600, 1000), 0);
        assert!(between > LOOK_OFTEN && between < LOOK_SELDOM, "{between:?}");
    }

    proptest! {
        #[test]
        fn the_marks_are_in_order(total in 1u64..1 << 45, free in 0u64..1 << 45, live in 0u64..1 << 33) {
            let floor = write_out_floor(total);
            prop_assert!(floor <= low_water(total) && low_water(total) <= total / 4);
            prop_assert!(reserve_bytes(total) <= total / 32);
            let room = Room { free: free.min(total), total };
            // Whoever is refused isn't taken again at the same moment.
            prop_assert!(!refuses(false, room, live) || refuses(true, room, live));
            if leaves_enough(room, live) {
                let left = Room { free: room.free - live, total };
                prop_assert!(!refuses(false, left, 0));
            }
        }
    }
}
