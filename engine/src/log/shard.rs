//! What the crates above call: a shard's log and its replicas.
//!
//! [`ShardLog`] and [`ReplicaLog`] are cheap handles. Every method that isn't `async` is one synchronous step; none of them waits.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::directory::Directory;
use super::files::{Files, io_error};
use super::janitor::GROW_AT;
use super::journal::{Journal, Submission, write_error};
use super::notify::Notify;
use super::reader::segment_for;
use super::recovered::RecoveredReplica;
use super::recovery::{Covered, Orphan, RecoveredShard, journal_path};
use super::replica::ReplicaState;
use super::segment::Segment;
use super::superblock::{ChainPoint, DATA_START, SUPERBLOCK_BYTES, Superblock};
use super::terms::TermTable;
use super::{LogError, LogPolicy, PendingRead, Read, StateSource, StoreConfig, block};
use crate::limits::*;
use crate::memory::Budget;
use crate::metrics::ShardMetrics;
use crate::rt::{self, JournalFile, Queue};
use crate::types::*;

type OnFailure = Rc<dyn Fn(&LogError)>;
pub(crate) type Replica = Rc<RefCell<ReplicaState>>;

/// What has been written out and is still in memory, oldest first.
#[derive(Default)]
pub(crate) struct Cache {
    pub queue: VecDeque<(ReplicaId, RaftIndex, u64)>,
    pub bytes: u64,
    pub cap_bytes: u64,
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
    pub removed: Vec<(ReplicaId, Lsn)>,
    pub trash: Vec<Trash>,
    /// A file that a newer base stands for once the superblock vouches for that.
    pub replaced: Option<PathBuf>,
}

/// Files that can go once a checkpoint that doesn't name them is synced.
pub(crate) enum Trash {
    Segment(Rc<Segment>),
    Directory(PathBuf),
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
    pub files: Rc<Files>,
    pub cache: RefCell<Cache>,
    pub checkpoint: RefCell<CheckpointState>,
    pub covered: Arc<Covered>,
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

/// The log of one replica.
#[derive(Clone)]
pub struct ReplicaLog {
    inner: Rc<Inner>,
    state: Replica,
}

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
        let may_grow = live * GROW_AT > capacity && size < self.max_journal_bytes();
        if live * 2 > capacity || may_grow {
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
        let write = self.journal_file.write(position, block);
        let inner = self.clone();
        rt::spawn(Queue::Latency, async move {
            match write.await {
                Ok(_) => inner.completed(lsn),
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

    /// Charges what was written out to the cache and makes room.
    pub fn cache_written(&self, id: ReplicaId, up_to: RaftIndex, bytes: u64) {
        let mut cache = self.cache.borrow_mut();
        cache.queue.push_back((id, up_to, bytes));
        cache.bytes += bytes;
        while cache.bytes > cache.cap_bytes {
            let Some((id, up_to, bytes)) = cache.queue.pop_front() else {
                break;
            };
            cache.bytes -= bytes;
            if let Some(r) = self.replica(id) {
                r.borrow_mut().evict_to(up_to);
            }
        }
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
            files: Files::new(cfg.data_dir.clone(), metrics.clone()),
            cache: RefCell::new(Cache {
                cap_bytes: budget.cap(crate::memory::MemoryClass::Cache),
                ..Cache::default()
            }),
            checkpoint: RefCell::new(CheckpointState {
                generation: part.checkpoint.0,
                sequence: part.checkpoint.1,
                current: None,
                file_bytes: 0,
                base_bytes: 0,
                removed: Vec::new(),
                trash: Vec::new(),
                replaced: None,
            }),
            covered: part.covered,
            old_checkpoints: RefCell::new(part.old_checkpoints),
            orphans: RefCell::new(part.orphans),
            reported: Cell::new(false),
            vouched: Cell::new(false),
            tidied: Cell::new(false),
            settled: Cell::new(false),
            write_queue: RefCell::default(),
            durable: Notify::default(),
            janitor: Notify::default(),
            closing: Cell::new(false),
            closed: Cell::new(false),
            metrics,
            source: RefCell::default(),
            on_failure: RefCell::default(),
            voucher_timer: Cell::new(false),
            cfg,
        });
        let mut restored = Vec::with_capacity(part.replicas.len());
        for r in part.replicas {
            restored.push(inner.restore(r));
            rt::yield_if_needed().await;
        }
        super::janitor::start(&inner);
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
        let lsn = self.0.journal.borrow_mut().put_created(id, group, &state);
        r.journaled(lsn);
        let state = Rc::new(RefCell::new(r));
        self.0.replicas.borrow_mut().insert(id, state.clone());
        let log = ReplicaLog {
            inner: self.0.clone(),
            state,
        };
        Ok((log, lsn))
    }

    /// Ends a replica. Its files go in the background, once the returned commit is durable.
    pub fn remove(&self, id: ReplicaId) -> Lsn {
        let mut journal = self.0.journal.borrow_mut();
        let Some(r) = self.0.replicas.borrow_mut().remove(&id) else {
            return journal.open_lsn();
        };
        let lsn = journal.put_removed(id);
        let mut r = r.borrow_mut();
        r.removed = true;
        let mut checkpoint = self.0.checkpoint.borrow_mut();
        checkpoint.removed.push((id, lsn));
        let segments = std::mem::take(&mut r.segments);
        checkpoint
            .trash
            .extend(segments.into_iter().map(Trash::Segment));
        checkpoint
            .trash
            .push(Trash::Directory(self.0.files.directory(r.group, id)));
        r.slots.clear();
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

    /// How full the live journal is, from 0 to 1, counting what waits for it; above 1 when more waits than fits. Produce is slowed from a half on (L6).
    pub fn pressure(&self) -> f32 {
        let journal = self.0.journal.borrow();
        let taken = journal.live_bytes() + journal.waiting_bytes() as u64;
        // What it may still grow by counts only while it can grow.
        let room = if journal.can_grow() {
            self.0.max_journal_bytes()
        } else {
            journal.capacity_bytes()
        };
        taken as f32 / room as f32
    }

    /// Memory that batches take, in bytes, about: the tails that aren't written out, and the batch cache. Looks at every replica.
    pub fn memory_bytes(&self) -> u64 {
        let tails: u64 = self
            .0
            .replicas
            .borrow()
            .values()
            .map(|r| r.borrow().pending_bytes)
            .sum();
        tails + self.0.cache.borrow().bytes
    }

    /// Bytes of the largest entry that the journal takes. Larger ones must be refused before they are appended.
    pub fn max_entry_bytes(&self) -> usize {
        let capacity = self.0.journal.borrow().capacity_bytes() as usize;
        (capacity / 4).min(block::MAX_BLOCK_BYTES / 8 * 5)
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
        Ok(())
    }
}

impl Inner {
    fn restore(self: &Rc<Self>, r: RecoveredReplica) -> Restored {
        let RecoveredReplica {
            frame,
            slots,
            commit,
            ..
        } = r;
        let mut s = ReplicaState::new(frame.id, frame.group);
        let directory = self.files.directory(frame.group, frame.id);
        s.hard_state = frame.hard_state;
        s.first = frame.first;
        s.log_start = frame.log_start;
        s.written_out = frame.written_out;
        s.written_next_offset = frame.written_next_offset;
        s.write = frame.write_position();
        s.next_generation = frame.next_generation;
        s.segments = frame
            .manifest
            .iter()
            .map(|m| Segment::new(&directory, m.clone(), m.end == 0))
            .collect();
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

impl ReplicaLog {
    pub fn id(&self) -> ReplicaId {
        self.state.borrow().id
    }

    pub fn group(&self) -> GroupId {
        self.state.borrow().group
    }

    /// L1: hard state first, then entries; the entry at an index replaces everything from there on. Returns the commit that will hold the last of them:
    /// they are durable when `durable_lsn` has reached it. With nothing to write that is the commit of everything before.
    ///
    /// # Panics
    /// When an entry would replace a committed one, leave a gap or break the density of offsets.
    pub fn append(&self, hard_state: Option<HardState>, entries: &[Entry]) -> Lsn {
        let mut journal = self.inner.journal.borrow_mut();
        let bytes: usize = entries.iter().map(|e| e.data.len()).sum();
        self.inner
            .metrics
            .batches_appended
            .add(entries.len() as u64);
        self.inner.metrics.batch_bytes_appended.add(bytes as u64);
        self.state
            .borrow_mut()
            .append(&mut journal, hard_state, entries)
    }

    pub fn hard_state(&self) -> HardState {
        self.state.borrow().hard_state
    }

    pub fn first_index(&self) -> RaftIndex {
        self.state.borrow().first
    }

    pub fn last_index(&self) -> RaftIndex {
        self.state.borrow().last
    }

    /// The term of an entry of the log, or of the one right before it.
    pub fn term(&self, i: RaftIndex) -> Option<Term> {
        let s = self.state.borrow();
        if i.0 == 0 {
            return Some(Term(0));
        }
        if i > s.last || i.0 + 1 < s.first.0 {
            return None;
        }
        s.terms.term_of(i)
    }

    /// In memory for every entry above what is written out.
    pub fn header(&self, i: RaftIndex) -> Option<EntryHeader> {
        self.state.borrow().slot(i).map(|s| s.header)
    }

    /// `None` when the entry isn't in memory, or is damaged.
    pub fn bytes(&self, i: RaftIndex) -> Option<Bytes> {
        self.state.borrow().slot(i).and_then(|s| s.data.clone())
    }

    /// Everything up to `i` is committed, and applied by the caller: it becomes visible and may be written out (L5, L11).
    pub fn set_commit(&self, i: RaftIndex) {
        let mut s = self.state.borrow_mut();
        s.set_commit(i);
        if s.pending_bytes >= WRITE_OUT_BYTES as u64 && !s.queued {
            s.queued = true;
            self.inner.write_queue.borrow_mut().push_back(s.id);
            self.inner.janitor.notify();
        }
    }

    pub fn commit(&self) -> RaftIndex {
        self.state.borrow().commit
    }

    /// The offset after the last committed record.
    pub fn high_watermark(&self) -> Offset {
        self.state.borrow().high_watermark
    }

    pub fn log_start_offset(&self) -> Offset {
        self.state.borrow().log_start
    }

    /// The offset that the next batch gets.
    pub fn log_end_offset(&self) -> Offset {
        self.state.borrow().log_end
    }

    /// L9: a committed TrimPrefix was applied. Segments that lie wholly below go in the background.
    pub fn set_log_start(&self, start: Offset) {
        let mut s = self.state.borrow_mut();
        if start <= s.log_start {
            return;
        }
        s.log_start = start.min(s.high_watermark);
        s.frame_dirty = true;
        let gone = s.trim_segments();
        let mut checkpoint = self.inner.checkpoint.borrow_mut();
        checkpoint
            .trash
            .extend(gone.into_iter().map(Trash::Segment));
        self.inner.janitor.notify();
    }

    /// G11: the largest epoch ≤ the asked one, and where it ends.
    pub fn end_of_epoch(&self, e: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        let s = self.state.borrow();
        s.terms.end_of_epoch(e, s.log_end)
    }

    /// The epoch under which an offset was written.
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.state.borrow().terms.epoch_at(offset)
    }

    /// Whole batches from the one that holds `from` on, none reaching above `bound`, at most `max_bytes` of them but the first always.
    pub fn read(&self, from: Offset, max_bytes: usize, bound: Offset) -> Read {
        let s = self.state.borrow();
        if from < s.log_start || from > s.log_end {
            return Read::OutOfRange;
        }
        if from >= bound.min(s.log_end) {
            return Read::Ready(Vec::new());
        }
        let first = s
            .slots
            .partition_point(|slot| slot.header.next_offset <= from);
        let in_memory = s
            .slots
            .get(first)
            .is_some_and(|slot| slot.header.base_offset <= from);
        if !in_memory {
            let Some(segment) = segment_for(&s.segments, from) else {
                return Read::Ready(Vec::new());
            };
            return Read::Later(PendingRead {
                files: self.inner.files.clone(),
                group: s.group,
                segment: segment.clone(),
                from,
                max_bytes,
                bound,
                epochs: s.terms.epochs_from(from),
            });
        }
        let mut batches = Vec::new();
        let mut room = max_bytes;
        for slot in s.slots.iter().skip(first) {
            let h = &slot.header;
            if h.next_offset > bound {
                break;
            }
            if h.kind != EntryKind::Batch {
                continue;
            }
            let Some(data) = &slot.data else {
                if batches.is_empty() && h.next_offset > h.base_offset {
                    return Read::Damaged { to: h.next_offset };
                }
                if h.next_offset > h.base_offset {
                    break;
                }
                continue;
            };
            if !batches.is_empty() && data.len() > room {
                break;
            }
            room = room.saturating_sub(data.len());
            batches.push(data.clone());
        }
        let bytes: usize = batches.iter().map(Bytes::len).sum();
        self.inner.metrics.fetch_bytes_from_memory.add(bytes as u64);
        Read::Ready(batches)
    }

    /// Runs a read to its end, whichever way it goes. `None`: out of range.
    pub async fn read_whole(
        &self,
        from: Offset,
        max_bytes: usize,
        bound: Offset,
    ) -> Result<Option<Vec<Bytes>>, LogError> {
        match self.read(from, max_bytes, bound) {
            Read::Ready(batches) => Ok(Some(batches)),
            Read::Later(read) => read.run().await.map(Some),
            Read::OutOfRange => Ok(None),
            Read::Damaged { to } => Err(LogError::Damaged {
                group: self.group(),
                from,
                to,
            }),
        }
    }

    /// The first batch at or above the log's start, below `bound`, whose largest timestamp is at least `ts`.
    pub async fn batch_by_timestamp(
        &self,
        ts: i64,
        bound: Offset,
    ) -> Result<Option<Bytes>, LogError> {
        let segments: Vec<_> = self.state.borrow().segments.clone();
        for segment in segments {
            if segment.meta.borrow().max_timestamp < ts {
                continue;
            }
            self.inner.files.load_rows(&segment).await?;
            let rows = segment.rows(|rows| {
                rows.iter()
                    .filter(|r| r.max_timestamp >= ts)
                    .copied()
                    .collect::<Vec<_>>()
            });
            for row in rows.unwrap_or_default() {
                let start = self.state.borrow().log_start;
                if let Some(found) = self
                    .scan_for(row.offset.max(start), bound, |h| h.max_timestamp >= ts)
                    .await?
                {
                    return Ok(Some(found));
                }
            }
        }
        let s = self.state.borrow();
        let found = s.slots.iter().find(|slot| {
            slot.max_timestamp >= ts
                && slot.header.next_offset > s.log_start
                && slot.header.next_offset <= bound
                && slot.data.is_some()
        });
        Ok(found.and_then(|slot| slot.data.clone()))
    }

    /// The first batch of those with the largest timestamp below `bound`.
    pub async fn batch_of_max_timestamp(&self, bound: Offset) -> Result<Option<Bytes>, LogError> {
        let largest = {
            let s = self.state.borrow();
            let on_disk = s
                .segments
                .iter()
                .map(|seg| seg.meta.borrow().max_timestamp)
                .max();
            let visible = s
                .slots
                .iter()
                .filter(|slot| slot.header.next_offset <= bound);
            visible.map(|slot| slot.max_timestamp).max().max(on_disk)
        };
        match largest {
            Some(ts) if ts >= 0 => self.batch_by_timestamp(ts, bound).await,
            _ => Ok(None),
        }
    }

    /// The first batch from `from` on for which `wanted` holds, looking through one stretch of the index.
    async fn scan_for(
        &self,
        from: Offset,
        bound: Offset,
        wanted: impl Fn(&crate::batch::BatchHeader) -> bool,
    ) -> Result<Option<Bytes>, LogError> {
        let mut at = from;
        let mut looked = 0u64;
        // A row's stretch ends one batch after its interval at the latest.
        while looked <= 2 * INDEX_INTERVAL_BYTES {
            let Some(batches) = self
                .read_whole(at, INDEX_INTERVAL_BYTES as usize, bound)
                .await?
            else {
                return Ok(None);
            };
            if batches.is_empty() {
                return Ok(None);
            }
            for bytes in batches {
                let Ok(h) = crate::batch::BatchHeader::parse(&bytes) else {
                    return Ok(None);
                };
                if wanted(&h) {
                    return Ok(Some(bytes));
                }
                looked += bytes.len() as u64;
                at = h.next_offset();
            }
        }
        Ok(None)
    }

    /// Bytes of the log, about.
    pub fn size_bytes(&self) -> u64 {
        self.state.borrow().size_bytes()
    }

    pub fn set_policy(&self, p: LogPolicy) {
        self.state.borrow_mut().policy = p;
    }

    /// Where the log should start by time or size, if that is later than where it does; the leader proposes it as a TrimPrefix (L9).
    pub fn retention_start(&self, now_ms: i64) -> Option<Offset> {
        self.state.borrow().retention_start(now_ms)
    }
}
