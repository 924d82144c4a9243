//! The journal of a shard (design §4): a zero-filled ring of blocks, each one commit of whatever the shard's replicas had waiting.
//!
//! Records are put into the *open* commit in the order in which replicas append them (L1). [`Journal::submit`] hands commits to the disk, a few at a
//! time, each a direct write that is synced by itself. `durable_lsn` ends the longest unbroken run of completed commits (L2): one that completes
//! early releases nothing.
//!
//! Where the ring has no room for the next block behind the head, the block goes to the front and the lap goes up: the reader of a chain looks in both
//! places, and the chain (lsn, CRC of the block before, boot epoch) says which one is meant.
//!
//! Bounds: a commit's records are at most [`COMMIT_BYTES`] unless a single record is larger; [`COMMITS_IN_FLIGHT`] commits are on their way.

use std::collections::VecDeque;
use std::io;

use bytes::{Bytes, BytesMut};

use super::block::{self, BlockHeader, HEADER_BYTES, Seed};
use super::directory::{Directory, Run};
use super::record;
use super::superblock::{ChainPoint, DATA_START, EpochStart, Superblock};
use crate::limits::{BLOCK_BYTES, COMMIT_BYTES, COMMITS_IN_FLIGHT};
use crate::rt::AlignedBuf;
use crate::types::*;

/// Runs that a commit's directory names at most (about 30 bytes each; a created replica counts as two).
const DIRECTORY_RUNS: usize = 8192;

/// Records that will go into one block.
struct Commit {
    lsn: Lsn,
    records: BytesMut,
    directory: Directory,
    /// Holds new batches or commands.
    bulk: bool,
}

impl Commit {
    fn new(lsn: Lsn) -> Commit {
        Commit {
            lsn,
            records: BytesMut::new(),
            directory: Directory::default(),
            bulk: false,
        }
    }
}

/// Where a live block begins.
#[derive(Clone, Copy)]
struct BlockStart {
    lsn: Lsn,
    point: ChainPoint,
}

/// A block ready for the disk.
pub(crate) struct Submission {
    pub lsn: Lsn,
    pub position: u64,
    pub block: AlignedBuf,
}

/// The journal's decisions; the shell in [`super::shard`] carries its submissions to the file.
pub(crate) struct Journal {
    seed: Seed,
    boot_epoch: BootEpoch,
    superblock: Superblock,
    /// Where the next block goes, unless it has to wrap.
    head: ChainPoint,
    open: Commit,
    closed: VecDeque<Commit>,
    previous_directory: Bytes,
    /// Submitted and not yet durable in order: whether each has completed, the first belongs to `durable_lsn + 1`.
    in_flight: VecDeque<bool>,
    not_completed: usize,
    durable_lsn: Lsn,
    /// Every block from the tail on.
    live: VecDeque<BlockStart>,
    /// The last submitted block held records, and no later block vouches for it yet (L4).
    unvouched: bool,
    failed: bool,
    /// The ring is about to become longer: it must not wrap meanwhile (L3).
    growing: bool,
    short_of_room: bool,
}

impl Journal {
    /// Continues a journal at `end`, behind a commit that held `last_directory`, as a start that has `boot_epoch`. The superblock that this leaves in [`Journal::superblock`] must be durable
    /// before the first submission is written.
    pub fn new(
        seed: Seed,
        boot_epoch: BootEpoch,
        mut superblock: Superblock,
        end: ChainPoint,
        live: Vec<ChainPoint>,
        last_directory: &Directory,
    ) -> Journal {
        superblock.epochs.push(EpochStart::of(boot_epoch, end));
        superblock.prune_epochs();
        superblock.bound_epochs();
        superblock.sequence += 1;
        let live = live
            .into_iter()
            .map(|point| BlockStart {
                lsn: point.lsn,
                point,
            })
            .collect();
        Journal {
            seed,
            boot_epoch,
            superblock,
            head: end,
            open: Commit::new(end.lsn),
            closed: VecDeque::new(),
            previous_directory: last_directory.encode(),
            in_flight: VecDeque::new(),
            not_completed: 0,
            durable_lsn: Lsn(end.lsn.0 - 1),
            live,
            unvouched: false,
            failed: false,
            growing: false,
            short_of_room: false,
        }
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub fn seed(&self) -> Seed {
        self.seed
    }

    pub fn durable_lsn(&self) -> Lsn {
        self.durable_lsn
    }

    /// The lsn of the commit that the next record goes into.
    pub fn open_lsn(&self) -> Lsn {
        self.open.lsn
    }

    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Nothing is durable any more from here on (design §4, Faults).
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Something waits, nothing is in flight, and there is no room for it in the ring: only reclaim helps.
    pub fn stalled(&self) -> bool {
        let waiting = self.closed.front().unwrap_or(&self.open);
        let used = HEADER_BYTES + self.previous_directory.len() + waiting.records.len();
        !waiting.records.is_empty()
            && self.not_completed == 0
            && self
                .place(block::block_bytes(used) as u64, waiting.bulk)
                .is_none()
    }

    /// Bytes from the tail to the head.
    pub fn live_bytes(&self) -> u64 {
        let (head, tail) = (self.head.position, self.superblock.tail.position);
        if head >= tail && self.head.lap == self.superblock.tail.lap {
            head - tail
        } else {
            (self.superblock.size - tail) + (head - DATA_START)
        }
    }

    pub fn capacity_bytes(&self) -> u64 {
        self.superblock.size - DATA_START
    }

    /// Bytes of records that wait for room in flight or on the disk.
    pub fn waiting_bytes(&self) -> usize {
        self.open.records.len() + self.closed.iter().map(|c| c.records.len()).sum::<usize>()
    }

    /// Closes the open commit if it holds anything, so that what comes next has a later lsn than everything so far. Returns that lsn.
    pub fn seal_open(&mut self) -> Lsn {
        if !self.open.records.is_empty() {
            let next = Commit::new(Lsn(self.open.lsn.0 + 1));
            self.closed
                .push_back(std::mem::replace(&mut self.open, next));
        }
        self.open.lsn
    }

    fn room_for(&mut self, record_bytes: usize) {
        // In a small ring a commit is a small part of it: else what wraps would leave no room.
        let limit = COMMIT_BYTES.min(self.capacity_bytes() as usize / 8);
        let directory = &self.open.directory;
        let named = directory.runs.len() + 2 * directory.created.len() + directory.removed.len();
        if self.open.records.len() + record_bytes > limit || named >= DIRECTORY_RUNS {
            self.seal_open();
        }
    }

    pub fn put_created(&mut self, replica: ReplicaId, group: GroupId, state: &Bytes) -> Lsn {
        self.room_for(64 + state.len());
        record::put_created(&mut self.open.records, replica, group, state);
        self.open
            .directory
            .created
            .push((replica, group, state.clone()));
        self.open.lsn
    }

    pub fn put_removed(&mut self, replica: ReplicaId) -> Lsn {
        self.room_for(64);
        record::put_removed(&mut self.open.records, replica);
        self.open.directory.removed.push(replica);
        self.open.lsn
    }

    /// `log_end` is the offset that the replica's next batch gets; `slot` remembers the replica's run in the open commit.
    pub fn put_hard_state(
        &mut self,
        replica: ReplicaId,
        h: &HardState,
        last: RaftIndex,
        log_end: Offset,
        slot: &mut RunSlot,
    ) -> Lsn {
        self.room_for(64);
        record::put_hard_state(&mut self.open.records, replica, h);
        self.open.directory.runs.push(Run {
            replica,
            term: h.term,
            first: last.next(),
            last,
            next_offset: log_end,
            hard_state: *h,
        });
        *slot = RunSlot(self.open.lsn, self.open.directory.runs.len() - 1);
        self.open.lsn
    }

    pub fn put_entry(
        &mut self,
        replica: ReplicaId,
        e: &Entry,
        hard_state: &HardState,
        carried: bool,
        slot: &mut RunSlot,
    ) -> Lsn {
        self.room_for(record::APPEND_OVERHEAD_BYTES + e.data.len());
        record::put_entry(
            &mut self.open.records,
            replica,
            hard_state.commit,
            e,
            carried,
        );
        self.open.bulk |= !carried && (e.kind.is_batch() || e.kind == EntryKind::Command);
        let runs = &mut self.open.directory.runs;
        let extends = slot.0 == self.open.lsn && {
            let run = &runs[slot.1];
            run.last.next() == e.index && (run.term == e.term || run.last < run.first)
        };
        if extends {
            let run = &mut runs[slot.1];
            run.term = e.term;
            run.last = e.index;
            run.next_offset = e.next_offset;
            run.hard_state = *hard_state;
        } else {
            runs.push(Run {
                replica,
                term: e.term,
                first: e.index,
                last: e.index,
                next_offset: e.next_offset,
                hard_state: *hard_state,
            });
            *slot = RunSlot(self.open.lsn, runs.len() - 1);
        }
        self.open.lsn
    }

    /// An empty commit would vouch for the last one (L4).
    pub fn wants_voucher(&self) -> bool {
        self.unvouched
            && !self.failed
            && self.not_completed == 0
            && self.closed.is_empty()
            && self.open.records.is_empty()
    }

    /// Nothing waits or is on its way, and the last commit with records has one behind it that vouches for it.
    pub fn is_vouched(&self) -> bool {
        !self.unvouched
            && self.not_completed == 0
            && self.closed.is_empty()
            && self.open.records.is_empty()
    }

    /// The next block for the disk, if something waits, there is room in flight and in the ring. With `voucher` an empty commit is made
    /// when nothing waits.
    pub fn submit(&mut self, voucher: bool) -> Option<Submission> {
        // Counted up to the durable one, not only what hasn't completed: L4 relies on how far apart a commit and the first that vouches for it can lie.
        if self.failed || self.in_flight.len() >= COMMITS_IN_FLIGHT {
            return None;
        }
        let empty = self.closed.is_empty() && self.open.records.is_empty();
        if empty && !(voucher && self.wants_voucher()) {
            return None;
        }
        let waiting = self.closed.front().unwrap_or(&self.open);
        let used = HEADER_BYTES + self.previous_directory.len() + waiting.records.len();
        let block_bytes = block::block_bytes(used);
        assert!(
            block_bytes <= block::MAX_BLOCK_BYTES,
            "a start reads no larger block"
        );
        let (position, lap) = self.place(block_bytes as u64, waiting.bulk)?;

        let commit = self.closed.pop_front().unwrap_or_else(|| {
            let next = Commit::new(Lsn(self.open.lsn.0 + 1));
            std::mem::replace(&mut self.open, next)
        });
        assert_eq!(
            commit.lsn, self.head.lsn,
            "commits leave in the order of their lsn"
        );
        let mut block = AlignedBuf::zeroed(block_bytes);
        let records_at = HEADER_BYTES + self.previous_directory.len();
        block[HEADER_BYTES..records_at].copy_from_slice(&self.previous_directory);
        block[records_at..used].copy_from_slice(&commit.records);
        let header = BlockHeader {
            boot_epoch: self.boot_epoch,
            lsn: commit.lsn,
            durable_lsn: self.durable_lsn,
            previous_crc: self.head.previous_crc,
            lap,
            block_bytes: block_bytes as u32,
            used_bytes: used as u32,
            directory_bytes: self.previous_directory.len() as u32,
        };
        let crc = block::seal(&mut block, &header, self.seed, position);
        let point = ChainPoint {
            lsn: commit.lsn,
            position,
            lap,
            previous_crc: self.head.previous_crc,
        };
        self.live.push_back(BlockStart {
            lsn: commit.lsn,
            point,
        });
        self.head = ChainPoint {
            lsn: Lsn(commit.lsn.0 + 1),
            position: position + block_bytes as u64,
            lap,
            previous_crc: crc,
        };
        self.previous_directory = commit.directory.encode();
        self.unvouched = !commit.records.is_empty();
        self.in_flight.push_back(false);
        self.not_completed += 1;
        Some(Submission {
            lsn: commit.lsn,
            position,
            block,
        })
    }

    /// Where a block of `bytes` can go without touching a live one; `None` when only reclaim can make room (L6).
    fn place(&self, bytes: u64, bulk: bool) -> Option<(u64, u32)> {
        // An eighth of the ring is kept for what makes room: elections, without which nothing is committed and so nothing written out, and copies (L6).
        let kept = match (bulk, self.short_of_room) {
            (false, _) => 0,
            (true, false) => self.capacity_bytes() / 8,
            (true, true) => self.capacity_bytes() / 16,
        };
        let (head, tail, size) = (&self.head, &self.superblock.tail, self.superblock.size);
        // The head never meets the tail from behind: equal positions mean an empty ring.
        let wrapped = head.lap != tail.lap;
        let (position, lap, skipped) = if wrapped || head.position + bytes <= size {
            (head.position, head.lap, 0)
        } else {
            // What is left behind the head is lost for this lap.
            (DATA_START, head.lap.wrapping_add(1), size - head.position)
        };
        let behind_tail = lap != tail.lap;
        if behind_tail && position + bytes >= tail.position || skipped > 0 && self.growing {
            return None;
        }
        let left = self.live_bytes() + skipped + bytes + kept <= self.capacity_bytes();
        left.then_some((position, lap))
    }

    /// The write of `lsn` is on the disk. Returns whether `durable_lsn` moved.
    pub fn complete(&mut self, lsn: Lsn) -> bool {
        let at = (lsn.0 - self.durable_lsn.0 - 1) as usize;
        assert!(!self.in_flight[at], "a commit completes once");
        self.in_flight[at] = true;
        self.not_completed -= 1;
        if self.failed {
            return false;
        }
        let before = self.durable_lsn;
        while self.in_flight.front() == Some(&true) {
            self.in_flight.pop_front();
            self.durable_lsn.0 += 1;
        }
        self.durable_lsn != before
    }

    /// Everything before `lsn` is covered by a synced checkpoint: the superblock that lets go of it. It must be durable before
    /// [`Journal::adopt`] makes the space free. `None` when it says so already.
    pub fn superblock_with_tail(&self, lsn: Lsn, checkpoint_sequence: u64) -> Option<Superblock> {
        assert!(
            lsn <= self.durable_lsn.next(),
            "only durable blocks are let go of"
        );
        if lsn <= self.superblock.tail.lsn {
            return self.superblock_with_checkpoint(checkpoint_sequence);
        }
        let tail = match self.live.iter().find(|b| b.lsn >= lsn) {
            Some(b) => b.point,
            None => self.head,
        };
        let mut next = self.superblock.clone();
        next.sequence += 1;
        next.tail = tail;
        next.checkpoint_sequence = checkpoint_sequence;
        next.prune_epochs();
        Some(next)
    }

    /// The superblock that vouches for a synced checkpoint and lets go of nothing.
    pub fn superblock_with_checkpoint(&self, sequence: u64) -> Option<Superblock> {
        if sequence == self.superblock.checkpoint_sequence {
            return None;
        }
        let mut next = self.superblock.clone();
        next.sequence += 1;
        next.checkpoint_sequence = sequence;
        Some(next)
    }

    /// L3: the ring grows only while its live part hasn't wrapped.
    fn can_grow(&self) -> bool {
        self.head.lap == self.superblock.tail.lap
    }

    /// The disk is nearly full: no new batches come, and those that wait may take half of what is kept, so that what frees space doesn't wait behind them.
    pub fn set_short_of_room(&mut self, short: bool) {
        self.short_of_room = short;
    }

    pub fn set_growing(&mut self, growing: bool) {
        self.growing = growing;
    }

    /// The superblock that gives the ring `size` bytes, which must be zeros on disk already. Only while the live part hasn't wrapped (L3).
    pub fn superblock_with_size(&self, size: u64) -> Option<Superblock> {
        if !self.can_grow() || size <= self.superblock.size {
            return None;
        }
        let mut next = self.superblock.clone();
        next.sequence += 1;
        next.size = size;
        Some(next)
    }

    /// `superblock` is durable now.
    pub fn adopt(&mut self, superblock: Superblock) {
        assert!(
            superblock.sequence > self.superblock.sequence,
            "superblocks go forward"
        );
        while self
            .live
            .front()
            .is_some_and(|b| b.lsn < superblock.tail.lsn)
        {
            self.live.pop_front();
        }
        self.superblock = superblock;
    }

    /// The newest lsn whose block begins at least `bytes` before the head, to say how far a reclaim has to go; `None` when less is live.
    pub fn lsn_behind(&self, bytes: u64) -> Option<Lsn> {
        let mut behind = 0;
        for pair in self.live.iter().rev().zip(self.live.iter().rev().skip(1)) {
            let (newer, older) = pair;
            behind += newer
                .point
                .position
                .saturating_sub(older.point.position)
                .max(BLOCK_BYTES as u64);
            if behind >= bytes {
                return Some(older.lsn);
            }
        }
        None
    }
}

/// A replica's newest run in the open commit's directory: (commit, place).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunSlot(Lsn, usize);

impl Lsn {
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

/// What went wrong with a journal's file.
pub(crate) fn write_error(source: io::Error, path: &std::path::Path) -> super::LogError {
    super::LogError::Io {
        what: "cannot write the journal",
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of 256 blocks with `tail` free ones before its tail and `head` behind its head.
    fn ring(tail: u64, head: u64) -> Journal {
        let block = BLOCK_BYTES as u64;
        let size = DATA_START + 256 * block;
        let at = |lsn, position| ChainPoint {
            lsn: Lsn(lsn),
            position,
            lap: 3,
            previous_crc: 0,
        };
        let superblock = Superblock {
            sequence: 1,
            size,
            tail: at(7, DATA_START + tail * block),
            checkpoint_sequence: 0,
            epochs: vec![],
        };
        let seed = Seed {
            directory_id: 1,
            journal: 0,
        };
        let (end, live) = (at(9, size - head * block), vec![superblock.tail]);
        Journal::new(
            seed,
            BootEpoch(2),
            superblock,
            end,
            live,
            &Directory::default(),
        )
    }

    /// Blocks that can be written, one by one, before there is no room.
    fn fill(j: &mut Journal, blocks: u64, bulk: bool) -> u64 {
        let bytes = blocks * BLOCK_BYTES as u64;
        let mut written = 0;
        while let Some((position, lap)) = j.place(bytes, bulk) {
            j.head.position = position + bytes;
            j.head.lap = lap;
            written += blocks;
        }
        written
    }

    /// Whatever the size of batches, and wherever the ring ends: without room for elections nothing would be committed after a start, and so nothing ever be
    /// written out.
    #[test]
    fn l6_batches_leave_room_for_elections() {
        for short in [false, true] {
            for blocks in 1..=32 {
                for (tail, head) in [(0, 256), (40, 15), (40, 30), (100, 1), (200, 20), (20, 0)] {
                    let mut j = ring(tail, head);
                    j.set_short_of_room(short);
                    fill(&mut j, blocks, true);
                    let kept = if short { 256 / 16 } else { 256 / 8 };
                    // The head never meets the tail.
                    let room = fill(&mut j, 1, false) + 1;
                    assert!(
                        room >= kept.min(tail + head),
                        "{room} of {kept} blocks, batches of {blocks}, tail {tail}, head {head}"
                    );
                }
            }
        }
    }
}
