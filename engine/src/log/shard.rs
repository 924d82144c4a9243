//! What the crates above call of a shard's log: opening, creating and removing replicas, durability.
//!
//! [`ShardLog`] and [`ReplicaLog`] are cheap handles. Every method that isn't `async` is one synchronous step; none of them waits.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::directory::Directory;
use super::extent::{ExtentFiles, ExtentWriters};
use super::files::{Files, io_error};
use super::handle::ReplicaLog;
use super::janitor::GROW_AT;
use super::journal::{Journal, Submission, write_error};
use super::notify::Notify;
use super::recovered::RecoveredReplica;
use super::recovery::{Covered, Orphan, RecoveredShard, journal_path};
use super::replica::ReplicaState;
use super::segment::Segment;
use super::space::{self, DiskState, Space};
use super::superblock::{ChainPoint, DATA_START, SUPERBLOCK_BYTES, Superblock};
use super::terms::TermTable;
use super::{LogError, Patience, StateSource, StoreConfig, block};
use crate::descriptors::divide;
use crate::limits::*;
use crate::memory::{Budget, Leases, MemoryClass, Meter};
use crate::metrics::ShardMetrics;
use crate::rt::{self, JournalFile, Queue};
use crate::types::*;

/// Between two looks for room at a start that waits for it.
const ROOM_PAUSE: Duration = Duration::from_millis(500);

type OnFailure = Rc<dyn Fn(&LogError)>;
pub(crate) type Replica = Rc<RefCell<ReplicaState>>;

/// What has been written out and is still in memory, oldest first.
#[derive(Default)]
pub(crate) struct Cache {
    pub queue: VecDeque<(ReplicaId, RaftIndex, u64)>,
}

/// Where the shard's checkpoints stand.
pub(crate) struct CheckpointState {
    pub generation: u64,
    pub sequence: u64,
    /// The file of this start that is being appended to.
    pub current: Option<PathBuf>,
    /// Bytes of the current file, and of its base.
    pub file_bytes: u64,
    pub base_bytes: u64,
    /// Replicas removed since the last checkpoint, and segments that no checkpoint will name any more.
    pub removed: Vec<Removal>,
    /// Replicas of earlier starts, of whose creation another journal may tell.
    pub restored: BTreeSet<ReplicaId>,
    /// Those of them that were removed: every base says so (L12).
    pub dead: Vec<ReplicaId>,
    pub trash: Vec<Discarded>,
    /// A file that a newer base stands for once the superblock vouches for that.
    pub replaced: Option<PathBuf>,
}

/// A replica that no checkpoint says to be removed.
pub(crate) struct Removal {
    pub id: ReplicaId,
    /// The first commit that it needs, should it be back.
    pub needs: Lsn,
}

/// Files that can go once a checkpoint that doesn't name them is synced.
pub(crate) enum Trash {
    Segment(Rc<Segment>),
    Extents(PathBuf),
    Directory(PathBuf),
}

/// Something that its replica has let go of.
pub(crate) struct Discarded {
    pub trash: Trash,
    /// The commit that removes the replica, if it is removed.
    pub removed_at: Option<Lsn>,
}

impl Discarded {
    /// A segment below the log's start.
    pub fn trimmed(segment: Rc<Segment>) -> Discarded {
        segment.gone.set(true);
        Discarded::of(Trash::Segment(segment))
    }

    /// Anything else that goes after the next checkpoint.
    pub fn of(trash: Trash) -> Discarded {
        Discarded {
            trash,
            removed_at: None,
        }
    }

    /// Part of a replica that commit `lsn` removes.
    pub fn removed(trash: Trash, lsn: Lsn) -> Discarded {
        if let Trash::Segment(s) = &trash {
            s.gone.set(true);
        }
        Discarded {
            trash,
            removed_at: Some(lsn),
        }
    }
}

/// How far the journal is on its way to its next size.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Growth {
    /// Nothing is begun.
    Idle,
    /// A task of its own writes zeros behind the ring's end.
    Filling,
    /// The file is zeros up to this size; the ring takes it once its live part isn't wrapped.
    Filled(u64),
    /// The disk has no room for it, as of then.
    Denied(rt::Instant),
}

pub(crate) struct Inner {
    pub cfg: Rc<StoreConfig>,
    pub shard: ShardId,
    pub boot_epoch: BootEpoch,
    pub directory_id: u64,
    pub journal: RefCell<Journal>,
    pub journal_file: Rc<JournalFile>,
    pub journal_path: PathBuf,
    pub replicas: RefCell<BTreeMap<ReplicaId, Replica>>,
    pub extent_writers: ExtentWriters,
    pub files: Rc<Files>,
    pub cache: RefCell<Cache>,
    pub cache_memory: Meter,
    large_memory: Meter,
    /// Entries that aren't written out. Their records on the way to the journal are counted by the journal itself.
    pub tail_memory: Meter,
    pub checkpoint: RefCell<CheckpointState>,
    pub covered: Arc<Covered>,
    pub space: Arc<Space>,
    pub growth: Cell<Growth>,
    pub old_checkpoints: RefCell<Vec<PathBuf>>,
    pub orphans: RefCell<Vec<Orphan>>,
    /// This shard's base of this start is synced.
    pub reported: Cell<bool>,
    /// The superblock vouches for it.
    pub vouched: Cell<bool>,
    /// Its older checkpoint files are removed.
    pub tidied: Cell<bool>,
    /// Every shard has come so far; only now tails move.
    pub settled: Cell<bool>,
    /// Replicas with enough to write out.
    pub write_queue: RefCell<VecDeque<ReplicaId>>,
    pub durable: Notify,
    pub janitor: Notify,
    /// What waits for its removal, files that have lost their names already apart.
    pub removals: RefCell<VecDeque<Trash>>,
    pub aside: RefCell<VecDeque<PathBuf>>,
    pub removal: Notify,
    /// The task that removes is at work.
    pub removing: Cell<bool>,
    /// Directories of replicas that are no more, as the start found them.
    pub strays: RefCell<Vec<String>>,
    pub closing: Cell<bool>,
    pub closed: Cell<bool>,
    pub metrics: Rc<ShardMetrics>,
    pub source: RefCell<Option<Rc<dyn StateSource>>>,
    pub on_failure: RefCell<Option<OnFailure>>,
    voucher_timer: Cell<bool>,
}

/// The log of one shard.
#[derive(Clone)]
pub struct ShardLog(pub(crate) Rc<Inner>);

/// A replica that an earlier start left. The bytes of entries above `state_at` are in memory.
pub struct Restored {
    pub id: ReplicaId,
    pub group: GroupId,
    pub hard_state: HardState,
    /// `state` has everything applied up to here.
    pub state_at: RaftIndex,
    pub state: Bytes,
    pub log: ReplicaLog,
}

impl Inner {
    /// Hands what waits to the disk, as far as there is room.
    pub fn submit(self: &Rc<Self>, voucher: bool) {
        self.journal
            .borrow_mut()
            .set_short_of_room(self.space.refusing());
        loop {
            let next = self.journal.borrow_mut().submit(voucher);
            let Some(submission) = next else { break };
            self.start(submission);
        }
        let (live, capacity, size) = {
            let journal = self.journal.borrow();
            (
                journal.live_bytes(),
                journal.capacity_bytes(),
                journal.superblock().size,
            )
        };
        self.metrics.journal_live_bytes.set(live);
        self.space.set_live(self.shard, live);
        let may_grow = live * GROW_AT > capacity
            && size < self.max_journal_bytes()
            && matches!(self.growth.get(), Growth::Idle | Growth::Filled(_));
        if live * 2 > capacity || may_grow || self.tail_part() > 0.5 {
            self.janitor.notify();
        }
    }

    fn start(self: &Rc<Self>, submission: Submission) {
        let Submission {
            lsn,
            position,
            block,
        } = submission;
        self.metrics.journal_bytes.add(block.len() as u64);
        let began = rt::now();
        let write = self.journal_file.write(position, block);
        let inner = self.clone();
        rt::spawn(Queue::Latency, async move {
            match write.await {
                Ok(_) => {
                    let took = began.elapsed();
                    inner.metrics.journal_commit_seconds.record(took);
                    inner.completed(lsn);
                }
                Err(e) => inner.fail(write_error(e, &inner.journal_path)),
            }
        })
        .detach();
    }

    fn completed(self: &Rc<Self>, lsn: Lsn) {
        self.metrics.journal_commits.increment();
        self.metrics.journal_syncs.set(self.journal_file.syncs());
        let moved = self.journal.borrow_mut().complete(lsn);
        if moved {
            self.durable.notify();
        }
        self.submit(false);
        self.arm_voucher();
    }

    /// L4: an empty commit vouches for the last one after a quiet while.
    fn arm_voucher(self: &Rc<Self>) {
        if self.voucher_timer.get() || !self.journal.borrow().wants_voucher() {
            return;
        }
        self.voucher_timer.set(true);
        let inner = self.clone();
        rt::spawn(Queue::Latency, async move {
            loop {
                let seen = inner.journal.borrow().durable_lsn();
                rt::sleep(Duration::from_millis(JOURNAL_IDLE_MS)).await;
                let (now, wanted, idle) = {
                    let j = inner.journal.borrow();
                    (j.durable_lsn(), j.wants_voucher(), j.waiting_bytes() == 0)
                };
                if wanted && now == seen {
                    inner.submit(true);
                    break;
                }
                if !wanted && idle && now == seen {
                    break;
                }
            }
            inner.voucher_timer.set(false);
            // A commit that came in the meantime may want its own.
            inner.arm_voucher();
        })
        .detach();
    }

    /// Design §4, Faults: nothing is acknowledged any more; whoever owns the process ends it.
    pub fn fail(&self, e: LogError) {
        let first = !self.journal.borrow().failed();
        self.journal.borrow_mut().fail();
        if first {
            tracing::error!(shard = %self.shard, error = %e, "the log failed; nothing more is acknowledged");
            let tell = self.on_failure.borrow().clone();
            if let Some(tell) = tell {
                tell(&e);
            }
        }
    }

    /// Makes a superblock durable, in both slots, one after the other.
    pub async fn write_superblock(&self, s: &Superblock) -> Result<(), LogError> {
        let bytes = s.encode(self.journal.borrow().seed());
        write_superblock(&self.journal_file, &self.journal_path, s.sequence, &bytes).await
    }

    pub fn replica(&self, id: ReplicaId) -> Option<Replica> {
        self.replicas.borrow().get(&id).cloned()
    }

    /// Moves what was written out from the tail's memory to the cache's, and makes room there.
    pub fn cache_written(&self, id: ReplicaId, up_to: RaftIndex, bytes: u64) {
        self.tail_memory.sub(bytes);
        self.cache_memory.add(bytes);
        self.cache.borrow_mut().queue.push_back((id, up_to, bytes));
        self.shrink_cache(0);
    }

    /// The oldest go until there is room for `bytes` more. The cache has what large frames leave of their memory.
    fn shrink_cache(&self, bytes: u64) {
        let (memory, large) = (&self.cache_memory, &self.large_memory);
        let cap = memory.cap() + large.cap().saturating_sub(large.used());
        while memory.used() + bytes > cap {
            let Some((id, up_to, freed)) = self.cache.borrow_mut().queue.pop_front() else {
                break;
            };
            memory.sub(freed);
            if let Some(r) = self.replica(id) {
                r.borrow_mut().evict_to(up_to);
            }
        }
    }

    /// How full the tail's memory is; above 1 when it is over.
    pub fn tail_part(&self) -> f32 {
        let waiting = self.journal.borrow().waiting_bytes() as u64;
        (self.tail_memory.used() + waiting) as f32 / self.tail_memory.cap() as f32
    }

    pub fn max_journal_bytes(&self) -> u64 {
        max_journal_bytes(&self.cfg)
    }
}

/// L3: the live journal is at most a quarter of the memory; a whole number of blocks.
fn max_journal_bytes(cfg: &StoreConfig) -> u64 {
    let quarter = cfg.memory_per_shard / 4 / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    quarter.clamp(JOURNAL_MIN_BYTES, JOURNAL_MAX_BYTES)
}

/// L6: the last of a journal is for the start that will have room on the disk for a checkpoint. One that has none leaves it alone, or a loop of restarts
/// would fill it with elections until nothing could ever be elected, written out and let go of again.
async fn wait_for_room(
    journal: &Journal,
    space: &Space,
    path: &std::path::Path,
) -> Result<(), LogError> {
    let mut told = false;
    while journal.live_bytes() > journal.capacity_bytes() / 16 * 15 && space.exhausted() {
        if !std::mem::replace(&mut told, true) {
            tracing::error!(path = %path.display(), "the disk is full and so is the journal: the start waits until some MiB of space are freed");
        }
        rt::sleep(ROOM_PAUSE).await;
        space.look().await?;
    }
    Ok(())
}

async fn write_superblock(
    file: &JournalFile,
    path: &std::path::Path,
    sequence: u64,
    bytes: &[u8],
) -> Result<(), LogError> {
    for copy in 0..2 {
        let slot = (sequence + copy) % 2 * SUPERBLOCK_BYTES as u64;
        file.write(slot, super::files::aligned(bytes))
            .await
            .map_err(io_error("cannot write the superblock of", path))?;
    }
    Ok(())
}

impl ShardLog {
    /// Opens the log with what [`super::recover`] found, and starts its background work. `budget` is the shard's: the batch cache takes a part of it.
    pub async fn open(
        cfg: Rc<StoreConfig>,
        shard: ShardId,
        part: RecoveredShard,
        budget: Rc<Budget>,
        metrics: Rc<ShardMetrics>,
    ) -> Result<(ShardLog, Vec<Restored>), LogError> {
        let path = journal_path(&cfg, u32::from(shard.0));
        let never_used = part.journal.is_none()
            && rt::fs::exists(&path)
                .await
                .map_err(io_error("cannot look for", &path))?;
        if never_used {
            // Its making was cut short: nothing says how far it is zeros, or that its name is durable.
            rt::fs::remove_file(&path)
                .await
                .map_err(io_error("cannot remove", &path))?;
        }
        let file = JournalFile::open(&path, JOURNAL_START_BYTES.min(max_journal_bytes(&cfg)))
            .await
            .map_err(io_error("cannot open", &path))?;
        let seed = block::Seed {
            directory_id: part.node.directory_id,
            journal: u32::from(shard.0),
        };
        let (superblock, end, live, directory) = match part.journal {
            Some(j) => (j.superblock, j.end, j.live, j.last_directory),
            None => {
                let start = ChainPoint {
                    lsn: Lsn(1),
                    position: DATA_START,
                    lap: 0,
                    previous_crc: 0,
                };
                let size = file.len().await.map_err(io_error("cannot stat", &path))?;
                let new = Superblock {
                    sequence: 0,
                    size,
                    tail: start,
                    checkpoint_sequence: 0,
                    epochs: Vec::new(),
                };
                (new, start, Vec::new(), Directory::default())
            }
        };
        let journal = Journal::new(
            seed,
            part.node.boot_epoch,
            superblock,
            end,
            live,
            &directory,
        );
        wait_for_room(&journal, &part.space, &path).await?;
        // L3: this start is on record before its first block can be.
        let s = journal.superblock();
        write_superblock(&file, &path, s.sequence, &s.encode(seed)).await?;
        metrics.journal_size_bytes.set(s.size);

        let inner = Rc::new(Inner {
            shard,
            boot_epoch: part.node.boot_epoch,
            directory_id: part.node.directory_id,
            journal: RefCell::new(journal),
            journal_file: Rc::new(file),
            journal_path: path,
            replicas: RefCell::default(),
            extent_writers: ExtentWriters::default(),
            files: Files::new(
                cfg.data_dir.clone(),
                divide(rt::descriptors(), cfg.shards).map_or(OPEN_FILES_MIN, |d| d.segments),
                budget.clone(),
                metrics.clone(),
            ),
            cache: RefCell::default(),
            cache_memory: budget.meter(MemoryClass::Cache),
            large_memory: budget.meter(MemoryClass::LargeFrames),
            tail_memory: budget.meter(MemoryClass::Tail),
            checkpoint: RefCell::new(CheckpointState {
                generation: part.checkpoint.0,
                sequence: part.checkpoint.1,
                current: None,
                file_bytes: 0,
                base_bytes: 0,
                removed: Vec::new(),
                restored: part.replicas.iter().map(|r| r.frame.id).collect(),
                dead: part.dead,
                trash: Vec::new(),
                replaced: None,
            }),
            covered: part.covered,
            space: part.space,
            growth: Cell::new(Growth::Idle),
            old_checkpoints: RefCell::new(part.old_checkpoints),
            orphans: RefCell::new(part.orphans),
            reported: Cell::new(false),
            vouched: Cell::new(false),
            tidied: Cell::new(false),
            settled: Cell::new(false),
            write_queue: RefCell::default(),
            durable: Notify::default(),
            janitor: Notify::default(),
            removals: RefCell::default(),
            aside: RefCell::default(),
            removal: Notify::default(),
            removing: Cell::new(false),
            strays: RefCell::new(part.strays),
            closing: Cell::new(false),
            closed: Cell::new(false),
            metrics,
            source: RefCell::default(),
            on_failure: RefCell::default(),
            voucher_timer: Cell::new(false),
            cfg,
        });
        let weak = Rc::downgrade(&inner);
        inner.files.reads.shrink_cache_with(move |bytes| {
            if let Some(inner) = weak.upgrade() {
                inner.shrink_cache(bytes);
            }
        });
        let mut restored = Vec::with_capacity(part.replicas.len());
        for r in part.replicas {
            restored.push(inner.restore(r));
            rt::yield_if_needed().await;
        }
        super::janitor::start(&inner);
        if shard == ShardId(0) {
            space::watch(&inner);
        }
        Ok((ShardLog(inner), restored))
    }

    pub fn set_state_source(&self, s: Rc<dyn StateSource>) {
        *self.0.source.borrow_mut() = Some(s);
        self.0.janitor.notify();
    }

    /// What to do when the log failed: acknowledgements have stopped, the process must end with its own code.
    pub fn set_on_failure(&self, f: Rc<dyn Fn(&LogError)>) {
        *self.0.on_failure.borrow_mut() = Some(f);
    }

    /// A new replica with an empty log. It exists once the returned commit is durable.
    pub fn create(
        &self,
        id: ReplicaId,
        group: GroupId,
        state: Bytes,
    ) -> Result<(ReplicaLog, Lsn), LogError> {
        if self.0.replicas.borrow().contains_key(&id) {
            return Err(LogError::Exists(id));
        }
        let mut r = ReplicaState::new(id, group);
        r.tail_memory = Some(self.0.tail_memory.clone());
        let lsn = self.0.journal.borrow_mut().put_created(id, group, &state);
        r.journaled(lsn);
        let state = Rc::new(RefCell::new(r));
        self.0.replicas.borrow_mut().insert(id, state.clone());
        self.0.cache_memory.add(REPLICA_BYTES);
        let log = ReplicaLog {
            inner: self.0.clone(),
            state,
        };
        Ok((log, lsn))
    }

    /// Ends a replica, for good once the returned commit is durable or a checkpoint has said so. Its files go in the background after that.
    pub fn remove(&self, id: ReplicaId) -> Lsn {
        let mut journal = self.0.journal.borrow_mut();
        let Some(r) = self.0.replicas.borrow_mut().remove(&id) else {
            return journal.open_lsn();
        };
        self.0.cache_memory.sub(REPLICA_BYTES);
        let lsn = journal.put_removed(id);
        let mut r = r.borrow_mut();
        r.removed = true;
        let mut checkpoint = self.0.checkpoint.borrow_mut();
        let bytes = r.bytes_needed_from(journal.durable_lsn());
        let needs = bytes.into_iter().chain(r.dirty_since).min();
        checkpoint.removed.push(Removal {
            id,
            needs: needs.unwrap_or(lsn).min(lsn),
        });
        let segments = std::mem::take(&mut r.segments);
        checkpoint.trash.extend(
            segments
                .into_iter()
                .map(|s| Discarded::removed(Trash::Segment(s), lsn)),
        );
        let directory = Trash::Directory(self.0.files.directory(r.group, id));
        checkpoint.trash.push(Discarded::removed(directory, lsn));
        r.drop_slots();
        self.0.janitor.notify();
        lsn
    }

    pub fn replica(&self, id: ReplicaId) -> Option<ReplicaLog> {
        let state = self.0.replica(id)?;
        Some(ReplicaLog {
            inner: self.0.clone(),
            state,
        })
    }

    /// What is waiting becomes a journal commit as soon as there is room in flight. The pump calls it once per turn.
    pub fn end_turn(&self) {
        self.0.submit(false);
    }

    /// Everything up to this commit is durable (L2).
    pub fn durable_lsn(&self) -> Lsn {
        self.0.journal.borrow().durable_lsn()
    }

    /// Waits until `durable_lsn` is past `seen`.
    pub async fn durable_past(&self, seen: Lsn) -> Lsn {
        loop {
            let now = self.durable_lsn();
            if now > seen {
                return now;
            }
            self.0.durable.notified().await;
        }
    }

    /// How full the live journal or the tail's memory is, whichever is fuller, from 0 to 1, counting what waits for the journal; above 1 when more waits than
    /// fits. Produce is slowed from a half on (L6).
    pub fn pressure(&self) -> f32 {
        let journal = self.0.journal.borrow();
        let taken = journal.live_bytes() + journal.waiting_bytes() as u64;
        // What it may still grow by doesn't count: who fills it faster than zeros are written would come to its end at full speed.
        let part = taken as f32 / journal.capacity_bytes() as f32;
        drop(journal);
        part.max(self.0.tail_part())
    }

    /// What is known of the disk; batches must be refused when it says so.
    pub fn disk(&self) -> DiskState {
        self.0.space.state()
    }

    /// A large frame has taken memory that the batch cache may have had.
    pub fn make_room(&self) {
        self.0.shrink_cache(0);
    }

    /// Memory for what an answer holds of the log, if it is there at once.
    pub fn memory_now(&self, bytes: u64) -> Option<Leases> {
        self.0.files.reads.memory_now(bytes)
    }

    /// The same, waited for: only for who holds none.
    pub async fn memory(&self, bytes: u64, patience: Patience) -> Option<Leases> {
        self.0.files.reads.memory(bytes, patience).await
    }

    /// Bytes of the largest entry that the journal takes. Larger ones must be refused before they are appended.
    pub fn max_entry_bytes(&self) -> usize {
        let capacity = self.0.journal.borrow().capacity_bytes() as usize;
        (capacity / 4).min(block::MAX_BLOCK_BYTES / 8 * 5)
    }

    /// L7: batches of more bytes than this are proposed as extents; the same on every shard of a node. A small journal takes no large entries.
    pub fn largest_in_journal(&self) -> usize {
        let start = JOURNAL_START_BYTES.min(self.0.max_journal_bytes()) - DATA_START;
        LARGE_APPEND_BYTES.min(start as usize / 4)
    }

    /// Makes a last checkpoint and stops the background work: the clean end of a run. Nothing may be appended any more.
    pub async fn close(&self) -> Result<(), LogError> {
        self.0.submit(false);
        while !self.0.journal.borrow().failed() && self.0.journal.borrow().waiting_bytes() > 0 {
            self.0.durable.notified().await;
        }
        self.0.closing.set(true);
        self.0.janitor.notify();
        while !self.0.closed.get() {
            self.0.durable.notified().await;
        }
        // L4: the last commit may be the only copy of all that was carried. Without one that vouches for it, damage to it would pass for a torn tail.
        let vouched = async {
            loop {
                let notified = self.0.durable.notified();
                self.0.submit(true);
                if self.0.journal.borrow().failed() || self.0.journal.borrow().is_vouched() {
                    return;
                }
                notified.await;
            }
        };
        if rt::timeout(Duration::from_millis(CLOSE_VOUCH_MS), vouched)
            .await
            .is_err()
        {
            tracing::warn!(shard = %self.0.shard, "the journal's last commit isn't vouched for");
        }
        Ok(())
    }
}

impl Inner {
    fn restore(self: &Rc<Self>, r: RecoveredReplica) -> Restored {
        let lost_directory = r.lost_directory;
        let RecoveredReplica {
            frame,
            slots,
            commit,
            ..
        } = r;
        let mut s = ReplicaState::new(frame.id, frame.group);
        s.tail_memory = Some(self.tail_memory.clone());
        let directory = self.files.directory(frame.group, frame.id);
        s.hard_state = frame.hard_state;
        s.first = frame.first;
        s.log_start = frame.log_start;
        s.written_out = frame.written_out;
        s.written_next_offset = frame.written_next_offset;
        s.write = frame.write_position();
        s.next_generation = frame.next_generation;
        s.extents = ExtentFiles::of_manifest(frame.extents.clone());
        s.segments = frame
            .manifest
            .iter()
            .map(|m| Segment::new(&directory, m.clone(), m.end == 0))
            .collect();
        if lost_directory {
            // Reads of it answer an error; what comes goes into a new one.
            s.seal_active();
            for lost in &s.segments {
                lost.meta.borrow_mut().rows.clear();
            }
        }
        s.terms = TermTable::from_rows(frame.terms.clone())
            .expect("a frame's rows were checked when it was read");
        // Rows between the written-out index and `state_at` are in the frame; entries above it make their own.
        s.terms.truncate_from(frame.written_out.next());
        s.last = frame.written_out;
        s.log_end = frame.written_next_offset;
        s.high_watermark = frame.written_next_offset;
        s.commit = frame.written_out;
        for slot in slots {
            s.push(slot);
        }
        s.set_commit(commit);
        s.dirty_since = Some(Lsn(0));
        let id = frame.id;
        let state = Rc::new(RefCell::new(s));
        self.replicas.borrow_mut().insert(id, state.clone());
        self.cache_memory.add(REPLICA_BYTES);
        let hard_state = state.borrow().hard_state;
        Restored {
            id,
            group: frame.group,
            hard_state,
            state_at: frame.state_at.min(commit),
            state: frame.state,
            log: ReplicaLog {
                inner: self.clone(),
                state,
            },
        }
    }
}
