//! Ranges of segments on their way from the disk to readers: shared, read ahead for readers that go on, within limits, charged.
//!
//! A range is read once and kept for whoever comes to the same place: a second reader waits for the first one's read, or takes its buffer. A reader that goes on where
//! it left off gets ranges of double the size each time, from [`READ_AHEAD_MIN_BYTES`] to [`READ_AHEAD_MAX_BYTES`], and the range behind its own is read in the
//! background queue; one that jumps about gets what it asks for and nothing more. Ranges are kept by last use, within half of the budget's class for fetches, and let go
//! when somebody else waits for that memory. What was read ahead and nobody has come for yet takes at most half of that, so that many readers don't push out one another's.
//!
//! Memory is leased before a read and belongs to its buffer ([`crate::memory::attach`]). Only who holds no memory of the class waits for some: so nobody
//! waits for what another waiter holds. At most [`READS_IN_FLIGHT`] reads of a shard are at the disk, [`READ_AHEADS_IN_FLIGHT`] of them ahead of readers.
//!
//! The bytes of a segment below its end never change (L5). Called by [`super::reader`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;

use super::LogError;
use super::files::Files;
use super::lru::{Lru, Use};
use super::notify::Notify;
use super::segment::Segment;
use crate::limits::*;
use crate::memory::{Budget, Lease, Leases, Line, MemoryClass, attach};
use crate::rt::{self, Queue};

/// Readers of one segment whose places are remembered.
const STREAMS: usize = 8;
/// How far behind the place that a reader had come to its next read may begin: at a row of the index, in front of the batch that it goes on with.
const STEP_BACK_BYTES: u64 = INDEX_INTERVAL_BYTES + super::block::MAX_BLOCK_BYTES as u64;
/// Memory that buffers gave back is looked for this often by those who wait for it.
const LOOK: Duration = Duration::from_millis(5);

/// What a shard's segments share.
pub(crate) struct ReadAhead {
    pub(super) budget: Rc<Budget>,
    /// Ranges that are kept, each by its segment and where it begins.
    kept: RefCell<Lru<(Weak<Segment>, u64)>>,
    /// Bytes of those that nobody has come for.
    unread: Cell<u64>,
    /// A read has ended, well or not.
    arrived: Notify,
    pub(super) disk: Rc<Line>,
    ahead: Cell<usize>,
    /// Takes memory from the batch cache, as many bytes as asked for if it can.
    shrink_cache: RefCell<Option<Shrink>>,
}

type Shrink = Box<dyn Fn(u64)>;

/// What is known of a segment's readers and of the ranges in memory. Goes with the last range.
#[derive(Default)]
pub(crate) struct Ranges {
    kept: Vec<Range>,
    /// From, to: on their way.
    reading: Vec<(u64, u64)>,
    streams: VecDeque<Stream>,
}

struct Range {
    from: u64,
    bytes: Bytes,
    used: Use,
    unread: Cell<bool>,
}

impl Range {
    fn to(&self) -> u64 {
        self.from + self.bytes.len() as u64
    }

    fn has(&self, position: u64) -> bool {
        (self.from..self.to()).contains(&position)
    }
}

/// A reader that may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stream {
    end: u64,
    bytes: usize,
}

/// How long somebody waits for memory. Who holds memory of fetches never may: others may wait for just that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Never,
    AtMost(Duration),
    Endless,
}

/// Bytes from the place that was asked for.
pub(crate) struct Piece {
    pub bytes: Bytes,
    /// Bytes of the buffer that they keep in memory.
    pub behind: usize,
}

impl ReadAhead {
    pub fn new(budget: Rc<Budget>) -> ReadAhead {
        ReadAhead {
            budget,
            kept: RefCell::default(),
            unread: Cell::new(0),
            arrived: Notify::default(),
            disk: Line::new(READS_IN_FLIGHT),
            ahead: Cell::new(0),
            shrink_cache: RefCell::new(None),
        }
    }

    pub fn shrink_cache_with(&self, shrink: impl Fn(u64) + 'static) {
        *self.shrink_cache.borrow_mut() = Some(Box::new(shrink));
    }

    /// Bytes of ranges that are kept at most.
    fn cap(&self) -> u64 {
        self.budget.cap(MemoryClass::Fetch) / 2
    }

    /// Memory for a read or an answer, if it is there at once. Ranges that are only kept make way.
    pub fn memory_now(&self, bytes: u64) -> Option<Leases> {
        let mine = bytes.min(self.budget.cap(MemoryClass::Fetch));
        loop {
            if let Some(lease) = self.budget.try_take(MemoryClass::Fetch, mine) {
                return Some(self.borrow_rest(lease, bytes - mine));
            }
            if self.budget.waiting(MemoryClass::Fetch) > 0 || !self.drop_oldest() {
                return None;
            }
        }
    }

    /// Waits for memory, first come, first served. Only for who holds none of it. More than the whole class is granted when all of the class is free.
    pub async fn memory(&self, bytes: u64, patience: Patience) -> Option<Leases> {
        if let Some(leases) = self.memory_now(bytes) {
            return Some(leases);
        }
        let until = match patience {
            Patience::Never => return None,
            Patience::AtMost(d) => Some(rt::now() + d),
            Patience::Endless => None,
        };
        let mine = bytes.min(self.budget.cap(MemoryClass::Fetch));
        let mut taken = pin!(self.budget.take(MemoryClass::Fetch, mine));
        loop {
            match rt::timeout(LOOK, taken.as_mut()).await {
                Ok(lease) => {
                    let lease = lease.expect("no more than the class's cap is asked for");
                    return Some(self.borrow_rest(lease, bytes - mine));
                }
                Err(rt::Elapsed) if until.is_some_and(|at| at <= rt::now()) => return None,
                Err(rt::Elapsed) => {
                    while self.drop_oldest() {}
                    self.budget.collect(MemoryClass::Fetch);
                }
            }
        }
    }

    /// What a batch takes beyond the class is the batch cache's and that of large frames, as far as that goes.
    fn borrow_rest(&self, lease: Lease, mut rest: u64) -> Leases {
        let mut leases = Leases::from_iter([lease]);
        if rest == 0 {
            return leases;
        }
        if let Some(shrink) = &*self.shrink_cache.borrow() {
            shrink(rest);
        }
        for class in [MemoryClass::LargeFrames, MemoryClass::Cache] {
            let free = self
                .budget
                .cap(class)
                .saturating_sub(self.budget.used(class));
            if let Some(lease) = self.budget.try_take(class, rest.min(free)) {
                rest -= lease.bytes();
                leases.push(lease);
            }
        }
        leases
    }

    /// Lets go of the range used longest ago; `false` when there is none.
    fn drop_oldest(&self) -> bool {
        let mut kept = self.kept.borrow_mut();
        let Some((oldest, _)) = kept.oldest_first().next() else {
            return false;
        };
        if let Some(((segment, from), _)) = kept.remove(oldest)
            && let Some(segment) = segment.upgrade()
        {
            let mut ranges = segment.ranges.borrow_mut();
            if let Some(r) = ranges.as_mut() {
                if let Some(at) = r.kept.iter().position(|r| r.from == from) {
                    self.came_for(&r.kept.swap_remove(at));
                }
                if r.kept.is_empty() && r.reading.is_empty() {
                    *ranges = None;
                }
            }
        }
        true
    }

    /// The range counts as read, if it didn't.
    fn came_for(&self, range: &Range) {
        if range.unread.replace(false) {
            self.unread
                .set(self.unread.get() - range.bytes.len() as u64);
        }
    }

    /// What is kept from `position` on.
    fn find(&self, segment: &Segment, position: u64, end: u64) -> Option<Piece> {
        let mut ranges = segment.ranges.borrow_mut();
        let kept = &mut ranges.as_mut()?.kept;
        let range = kept.iter_mut().rfind(|r| r.has(position))?;
        range.used = self.kept.borrow_mut().touch(range.used);
        self.came_for(range);
        let to = range.to().min(end);
        Some(Piece {
            bytes: range
                .bytes
                .slice((position - range.from) as usize..(to - range.from) as usize),
            behind: range.bytes.len(),
        })
    }

    fn keep(&self, segment: &Rc<Segment>, from: u64, bytes: &Bytes, unread: bool) {
        let length = bytes.len() as u64;
        if length == 0 || length > self.cap() {
            return;
        }
        while self.kept.borrow().cost() + length > self.cap() && self.drop_oldest() {}
        let mut ranges = segment.ranges.borrow_mut();
        let ranges = ranges.get_or_insert_default();
        if ranges.kept.iter().any(|r| r.from == from) {
            return;
        }
        let used = self
            .kept
            .borrow_mut()
            .add((Rc::downgrade(segment), from), length);
        if unread {
            self.unread.set(self.unread.get() + length);
        }
        ranges.kept.push(Range {
            from,
            bytes: bytes.clone(),
            used,
            unread: Cell::new(unread),
        });
    }

    /// The segment is about to be removed.
    pub fn forget(&self, segment: &Segment) {
        let ranges = segment.ranges.borrow_mut().take();
        for range in ranges.map_or(Vec::new(), |r| r.kept) {
            self.came_for(&range);
            self.kept.borrow_mut().remove(range.used);
        }
    }
}

/// A read on its way, in the segment's books until it ends, however it does.
struct Reading {
    files: Rc<Files>,
    segment: Rc<Segment>,
    range: (u64, u64),
}

impl Reading {
    fn begin(files: &Rc<Files>, segment: &Rc<Segment>, from: u64, bytes: usize) -> Reading {
        let range = (from, from + bytes as u64);
        let mut ranges = segment.ranges.borrow_mut();
        ranges.get_or_insert_default().reading.push(range);
        Reading {
            files: files.clone(),
            segment: segment.clone(),
            range,
        }
    }

    /// The bytes, fewer where the file ends.
    async fn run(self, memory: Leases, ahead: bool) -> Result<Bytes, LogError> {
        let (from, to) = self.range;
        let file = self.files.open_segment(&self.segment).await?;
        let path = &self.segment.path;
        let read = self.files.read(&file, path, from, (to - from) as usize);
        let bytes = attach(memory, read.await?);
        let metrics = &self.files.metrics;
        if ahead {
            metrics.read_ahead_bytes.add(bytes.len() as u64);
        } else {
            metrics.fetch_reads_from_disk.increment();
        }
        if from + bytes.len() as u64 == to {
            let reads = &self.files.reads;
            reads.keep(&self.segment, from, &bytes, ahead);
        }
        Ok(bytes)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(ranges) = self.segment.ranges.borrow_mut().as_mut()
            && let Some(at) = ranges.reading.iter().position(|r| *r == self.range)
        {
            ranges.reading.swap_remove(at);
        }
        self.files.reads.arrived.notify();
    }
}

/// Memory that a read of so many bytes takes: its buffer is whole blocks.
fn buffer_bytes(bytes: usize) -> u64 {
    (bytes + 2 * BLOCK_BYTES) as u64
}

impl Files {
    /// Bytes of a segment from `position` on, at least one and about `want`, none behind `end`. Empty: the file is shorter than that. `None`: there is no memory for as long
    /// as the caller waits for it.
    pub async fn range(
        self: &Rc<Self>,
        segment: &Rc<Segment>,
        position: u64,
        want: usize,
        end: u64,
        patience: Patience,
    ) -> Result<Option<Piece>, LogError> {
        assert!(position < end, "there are bytes to be read");
        let bytes = range_bytes(position, want, end);
        loop {
            let arrived = self.reads.arrived.notified();
            if let Some(piece) = self.reads.find(segment, position, end) {
                return Ok(Some(piece));
            }
            if being_read(segment, position) {
                arrived.await;
                continue;
            }
            let asked = buffer_bytes(bytes);
            let memory = match self.reads.memory_now(asked) {
                Some(memory) => memory,
                None => {
                    let Some(memory) = self.reads.memory(asked, patience).await else {
                        return Ok(None);
                    };
                    let kept = self.reads.find(segment, position, end).is_some();
                    if kept || being_read(segment, position) {
                        continue; // Another reader was faster.
                    }
                    memory
                }
            };
            let reading = Reading::begin(self, segment, position, bytes);
            let bytes = reading.run(memory, false).await?;
            let behind = bytes.len();
            return Ok(Some(Piece { bytes, behind }));
        }
    }

    /// Exactly `bytes` (fewer where the file ends), in a buffer that is nobody else's. For who holds no memory: it is waited for.
    pub async fn range_alone(
        &self,
        segment: &Rc<Segment>,
        position: u64,
        bytes: usize,
        patience: Patience,
    ) -> Result<Option<Bytes>, LogError> {
        let Some(memory) = self.reads.memory(buffer_bytes(bytes), patience).await else {
            return Ok(None);
        };
        let file = self.open_segment(segment).await?;
        let read = self.read(&file, &segment.path, position, bytes).await?;
        Ok(Some(attach(memory, read)))
    }

    /// How much a reader that begins at `from` is read at a time, as things are.
    pub fn stream_bytes(&self, segment: &Segment, from: u64) -> usize {
        let ranges = segment.ranges.borrow();
        let mut streams = ranges.iter().flat_map(|r| &r.streams);
        streams
            .find(|s| s.goes_on(from))
            .map_or(READ_AHEAD_MIN_BYTES, |s| s.bytes)
    }

    /// A read began at `from` and came to `to`; `end` is the segment's. If it went on with an earlier one, the range behind it is read in the background.
    pub fn went(self: &Rc<Self>, segment: &Rc<Segment>, from: u64, to: u64, end: u64) {
        let next = {
            let mut ranges = segment.ranges.borrow_mut();
            note_stream(&mut ranges.get_or_insert_default().streams, from, to)
        };
        if let Some(stream) = next {
            self.read_ahead(segment, stream, end);
        }
    }

    fn read_ahead(self: &Rc<Self>, segment: &Rc<Segment>, stream: Stream, end: u64) {
        let reads = &self.reads;
        let from = covered_to(segment, stream.end);
        let is_enough = from >= end || from - stream.end >= stream.bytes as u64;
        if is_enough || reads.ahead.get() >= READ_AHEADS_IN_FLIGHT {
            return;
        }
        let bytes = range_bytes(from, stream.bytes, end);
        if reads.unread.get() + bytes as u64 > reads.cap() / 2 {
            return;
        }
        let Some(lease) = reads
            .budget
            .try_take(MemoryClass::Fetch, buffer_bytes(bytes))
        else {
            return;
        };
        let reading = Reading::begin(self, segment, from, bytes);
        let files = self.clone();
        reads.ahead.set(reads.ahead.get() + 1);
        rt::spawn(Queue::Background, async move {
            let read = reading.run(Leases::from_iter([lease]), true).await;
            files.reads.ahead.set(files.reads.ahead.get() - 1);
            if let Err(e) = read {
                // Whoever wants these bytes will read them, and be told.
                tracing::debug!(error = %e, "reading ahead failed");
            }
        })
        .detach();
    }
}

impl Stream {
    fn goes_on(&self, from: u64) -> bool {
        from <= self.end && self.end - from <= STEP_BACK_BYTES
    }
}

/// Notes where a reader is; gives its stream if it has gone on with one.
fn note_stream(streams: &mut VecDeque<Stream>, from: u64, to: u64) -> Option<Stream> {
    let known = streams.iter().position(|s| s.goes_on(from));
    let known = known.and_then(|at| streams.remove(at));
    let goes_on = known.filter(|s| to > s.end);
    // At least what the reader takes at a time.
    let taken = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
    let at_least = taken.clamp(READ_AHEAD_MIN_BYTES, READ_AHEAD_MAX_BYTES);
    let stream = match (known, goes_on) {
        (_, Some(s)) => Stream {
            end: to,
            bytes: (2 * s.bytes).clamp(at_least, READ_AHEAD_MAX_BYTES),
        },
        // The same place again.
        (Some(s), None) => s,
        (None, None) => Stream {
            end: to,
            bytes: at_least,
        },
    };
    if streams.len() >= STREAMS {
        streams.pop_front();
    }
    streams.push_back(stream);
    goes_on.map(|_| stream)
}

/// What to read from `position` on: about `want`, up to a block's end, so that the next range begins with a block.
fn range_bytes(position: u64, want: usize, end: u64) -> usize {
    let block = BLOCK_BYTES as u64;
    let to = (position + want as u64).next_multiple_of(block).min(end);
    (to - position) as usize
}

fn being_read(segment: &Segment, position: u64) -> bool {
    let ranges = segment.ranges.borrow();
    let mut reading = ranges.iter().flat_map(|r| &r.reading);
    reading.any(|(from, to)| (*from..*to).contains(&position))
}

/// Up to where everything from `position` on is in memory or on its way there.
fn covered_to(segment: &Segment, position: u64) -> u64 {
    let ranges = segment.ranges.borrow();
    let Some(ranges) = ranges.as_ref() else {
        return position;
    };
    let mut at = position;
    loop {
        let kept = ranges.kept.iter().map(|r| (r.from, r.to()));
        let mut all = kept.chain(ranges.reading.iter().copied());
        match all.find(|(from, to)| (*from..*to).contains(&at)) {
            Some((_, to)) => at = to,
            None => return at,
        }
    }
}

#[cfg(test)]
#[path = "readahead_tests.rs"]
mod tests;
