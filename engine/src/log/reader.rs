//! Reading what has left memory: whole batches from segments, each with its CRC looked at before it is served.
//!
//! A read goes to one segment. It begins at a row of the sparse index, walks the frames to the asked offset and takes whole batches from there on, the
//! first one always. Where a frame is broken or a batch's CRC is wrong, the walk looks for the next sound batch: an offset inside the damage is
//! answered by its name ([`LogError::Damaged`]), one behind it is served. A batch in an extent (L7) is read when the walk comes to it.
//!
//! All memory is leased before it is read into, and belongs to the batches that are given out ([`super::readahead`]). A read waits for memory only while it holds none; later it
//! ends with what it has.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};

use super::extent::{self, Extent};
use super::frame::{self, Frame, Parsed};
use super::readahead::Patience;
use super::search::{Behind, FRAME_MAX_BYTES, behind, scan};
use super::segment::{IndexRow, Segment, row_for_offset};
use super::{LogError, files::Files};
use crate::batch::{Batch, BatchHeader};
use crate::limits::{COPY_OUT_BYTES, READ_AHEAD_MAX_BYTES, READ_AHEAD_MIN_BYTES};
use crate::memory::attach;
use crate::types::*;

/// A read that needs the disk.
pub struct PendingRead {
    pub(crate) files: Rc<Files>,
    pub(crate) group: GroupId,
    pub(crate) source: Source,
    pub(crate) from: Offset,
    pub(crate) max_bytes: usize,
    pub(crate) bound: Offset,
    /// The leader epochs from `from` on, by the table of terms: the CRC of a batch doesn't cover its own.
    pub(crate) epochs: Vec<(Offset, LeaderEpoch)>,
}

/// Where a read begins.
#[derive(Clone)]
pub(crate) enum Source {
    Segment(Rc<Segment>),
    Extent { directory: PathBuf, extent: Extent },
}

impl PendingRead {
    /// Bytes that the answer takes, about.
    pub fn bytes(&self) -> usize {
        match &self.source {
            Source::Segment(_) => self.max_bytes,
            Source::Extent { extent, .. } => extent.total_bytes(),
        }
    }

    /// Runs to the end, however large the first batch is. The batches hold their memory themselves.
    ///
    /// With patience it waits for memory: only for who holds none. What there is no memory for in time is not given, nor is a first batch above `largest` bytes.
    pub async fn run(self, patience: Patience, largest: usize) -> Result<Vec<Bytes>, LogError> {
        match &self.source {
            Source::Segment(segment) => {
                let found = self.run_in(segment, patience, largest).await;
                // Whatever a segment seemed to be that was being removed meanwhile: it isn't damage.
                match found {
                    Err(_) if segment.gone.get() => Err(LogError::Trimmed),
                    found => found,
                }
            }
            Source::Extent { directory, extent } => {
                self.read_extent(directory, extent, patience, largest).await
            }
        }
    }

    /// The batch of an extent, when it is the first.
    async fn read_extent(
        &self,
        directory: &Path,
        extent: &Extent,
        patience: Patience,
        largest: usize,
    ) -> Result<Vec<Bytes>, LogError> {
        if extent.total_bytes() > largest {
            return Ok(Vec::new());
        }
        let bytes = extent::memory_bytes(extent);
        let Some(memory) = self.files.reads.memory(bytes, patience).await else {
            return Ok(Vec::new());
        };
        match extent::read(&self.files, directory, extent, memory).await? {
            Some(batch) => Ok(vec![batch]),
            None => {
                let h = extent.header();
                let path = directory.join(extent.file.file_name());
                Err(self.damaged(&path, h.base_offset, h.next_offset()))
            }
        }
    }

    fn damaged(&self, path: &Path, from: Offset, to: Offset) -> LogError {
        self.files.damage_found(self.group, path, from, to);
        LogError::Damaged {
            group: self.group,
            from,
            to,
        }
    }

    async fn run_in(
        &self,
        segment: &Rc<Segment>,
        patience: Patience,
        largest: usize,
    ) -> Result<Vec<Bytes>, LogError> {
        let find = |rows: &[IndexRow]| row_for_offset(rows, self.from);
        let row = self.files.rows(segment, find).await;
        let Some(row) = row else {
            return Ok(Vec::new());
        };
        let mut walk = Walk::new(self.from, self.max_bytes, self.bound);
        walk.expected = Some(row.offset);
        walk.epochs = self.epochs.clone();
        if let Some((directory, extent)) = self.walk(segment, &mut walk, row, patience).await? {
            return self
                .read_extent(&directory, &extent, patience, largest)
                .await;
        }
        match walk.damaged {
            Some(_) if walk.batches.is_empty() && segment.gone.get() => Err(LogError::Trimmed),
            Some((from, to)) if walk.batches.is_empty() => {
                let to = match to {
                    Some(to) => to,
                    None => self.offset_after(segment, row).await,
                };
                let to = to.max(Offset(from.0 + 1));
                Err(self.damaged(&segment.path, from, to))
            }
            _ => Ok(walk.batches),
        }
    }

    /// Where the log can be read again behind the stretch of `row`.
    async fn offset_after(&self, segment: &Rc<Segment>, row: IndexRow) -> Offset {
        let after = |rows: &[IndexRow]| rows.iter().find(|r| r.position > row.position).copied();
        let next = self.files.rows(segment, after).await;
        next.map_or_else(|| segment.meta.borrow().next_offset, |r| r.offset)
    }

    /// Walks from `row` on. Gives the extent of a first batch, and its directory; nothing is held any more then.
    async fn walk(
        &self,
        segment: &Rc<Segment>,
        walk: &mut Walk,
        row: IndexRow,
        patience: Patience,
    ) -> Result<Option<(PathBuf, Extent)>, LogError> {
        walk.end_offset = segment.meta.borrow().next_offset;
        let mut view = View {
            read: self,
            segment,
            end: segment.meta.borrow().end,
            want: self
                .max_bytes
                .clamp(READ_AHEAD_MIN_BYTES, READ_AHEAD_MAX_BYTES)
                .max(self.files.stream_bytes(segment, row.position)),
            position: row.position,
            buffer: Bytes::new(),
            behind: 0,
        };
        let mut need = frame::FRAME_PREFIX_BYTES;
        loop {
            let patience = if walk.batches.is_empty() {
                patience
            } else {
                Patience::Never
            };
            match view.fill(need, patience).await? {
                Filled::Yes => {}
                Filled::NoMemory => break,
                Filled::Short => {
                    // The file is shorter than the checkpoint says: what is missing is damage.
                    walk.damaged
                        .get_or_insert((walk.next_offset().max(self.from), None));
                    break;
                }
            }
            let mut at = 0;
            let last = view.buffer.len() as u64 == view.left();
            let step = walk.take(&view.buffer, &mut at, last);
            view.step_over(at);
            match step {
                Step::Done => break,
                Step::Extent { extent, bytes } => {
                    let directory = segment.path.parent();
                    let directory = directory.expect("a segment lies in a directory");
                    if walk.batches.is_empty() {
                        return Ok(Some((directory.to_owned(), *extent)));
                    }
                    let memory = self.files.reads.memory_now(extent::memory_bytes(&extent));
                    let Some(memory) = memory else { break };
                    let batch = extent::read(&self.files, directory, &extent, memory).await?;
                    if !walk.take_extent(&extent, batch) {
                        break;
                    }
                    view.step_over(bytes);
                    need = frame::FRAME_PREFIX_BYTES;
                }
                Step::More(bytes) => need = bytes,
            }
        }
        self.files
            .went(segment, row.position, view.position, view.end);
        let behind = view.behind;
        drop(view);
        self.copy_out(&mut walk.batches, behind);
        Ok(None)
    }

    /// A few bytes must not keep a large buffer in memory.
    fn copy_out(&self, batches: &mut [Bytes], behind: usize) {
        let bytes: usize = batches.iter().map(Bytes::len).sum();
        if bytes > COPY_OUT_BYTES || 2 * bytes >= behind {
            return;
        }
        let Some(memory) = self.files.reads.memory_now(bytes as u64) else {
            return;
        };
        let mut copy = BytesMut::with_capacity(bytes);
        batches.iter().for_each(|b| copy.extend_from_slice(b));
        let copy = attach(memory, copy);
        let mut at = 0;
        for b in batches {
            let end = at + b.len();
            *b = copy.slice(at..end);
            at = end;
        }
    }
}

/// The bytes of a segment at the place that a walk has come to.
struct View<'a> {
    read: &'a PendingRead,
    segment: &'a Rc<Segment>,
    end: u64,
    /// How much to read at a time.
    want: usize,
    position: u64,
    /// From `position` on.
    buffer: Bytes,
    /// Bytes of all the buffers so far.
    behind: usize,
}

enum Filled {
    Yes,
    NoMemory,
    Short,
}

impl View<'_> {
    fn left(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }

    fn step_over(&mut self, bytes: usize) {
        self.position += bytes as u64;
        let _ = self.buffer.split_to(bytes);
    }

    /// Gets at least `need` bytes into the buffer, or all that are left. A frame that lies in two ranges is put together in a buffer of its own.
    async fn fill(&mut self, need: usize, patience: Patience) -> Result<Filled, LogError> {
        let files = &self.read.files;
        let need = usize::try_from(self.left()).unwrap_or(usize::MAX).min(need);
        while self.buffer.len() < need {
            let have = self.buffer.len();
            let at = self.position + have as u64;
            let now = if have == 0 { patience } else { Patience::Never };
            let piece = files
                .range(self.segment, at, self.want, self.end, now)
                .await?;
            let joined = match piece {
                Some(p) if p.bytes.is_empty() => return Ok(Filled::Short),
                Some(p) if have == 0 => {
                    self.behind += p.behind;
                    self.buffer = p.bytes;
                    continue;
                }
                Some(p) => self.join(&p.bytes, need),
                None => None,
            };
            match joined {
                Some(joined) => {
                    self.behind += joined.len();
                    self.buffer = joined;
                }
                None => {
                    // Nothing is held while it waits.
                    self.buffer = Bytes::new();
                    let all = files
                        .range_alone(self.segment, self.position, need, patience)
                        .await?;
                    let Some(all) = all else {
                        return Ok(Filled::NoMemory);
                    };
                    self.behind += all.len();
                    self.buffer = all;
                    if self.buffer.len() < need {
                        return Ok(Filled::Short);
                    }
                }
            }
        }
        Ok(Filled::Yes)
    }

    /// What is in the buffer and as much of `more` as is needed. `None`: there is no memory for it.
    fn join(&self, more: &Bytes, need: usize) -> Option<Bytes> {
        let more = &more[..more.len().min(need - self.buffer.len())];
        let bytes = self.buffer.len() + more.len();
        let memory = self.read.files.reads.memory_now(bytes as u64)?;
        let mut both = BytesMut::with_capacity(bytes);
        both.extend_from_slice(&self.buffer);
        both.extend_from_slice(more);
        Some(attach(memory, both))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Done,
    /// This many bytes, from the place reached, are needed for the next frame.
    More(usize),
    /// The frame at the place reached, so many bytes long, names this extent, which is wanted.
    Extent {
        extent: Box<Extent>,
        bytes: usize,
    },
}

/// Takes frames one after the other; pure.
struct Walk {
    from: Offset,
    bound: Offset,
    room: usize,
    batches: Vec<Bytes>,
    /// (from, to) of the damage that the asked offset lies in; `to` is `None` when no sound batch was found behind it.
    damaged: Option<(Offset, Option<Offset>)>,
    /// The offset that the next batch must have.
    expected: Option<Offset>,
    /// Where the leader epochs begin; none: not checked.
    epochs: Vec<(Offset, LeaderEpoch)>,
    /// What follows the segment's last batch, by its manifest.
    end_offset: Offset,
}

impl Walk {
    /// Begins at the log's first batch; elsewhere the caller says which offset to expect.
    fn new(from: Offset, max_bytes: usize, bound: Offset) -> Walk {
        Walk {
            from,
            bound,
            room: max_bytes,
            batches: Vec::new(),
            damaged: None,
            expected: None,
            epochs: Vec::new(),
            end_offset: Offset(0),
        }
    }

    fn next_offset(&self) -> Offset {
        self.expected.unwrap_or(Offset(0))
    }

    /// `last`: nothing lies behind `buffer`.
    fn take(&mut self, buffer: &Bytes, at: &mut usize, last: bool) -> Step {
        loop {
            let rest = &buffer[*at..];
            if rest.is_empty() {
                if !last {
                    return Step::More(frame::FRAME_PREFIX_BYTES);
                }
                // Frames that don't belong here can fill the place of batches: a segment that ends too early is damaged.
                if self.batches.is_empty() && self.from < self.end_offset {
                    self.damaged = Some((self.next_offset(), Some(self.end_offset)));
                }
                return Step::Done;
            }
            let step = match frame::parse(rest) {
                Parsed::Frame(Frame::Batch(h)) if h.total_bytes <= rest.len() => {
                    let end = *at + h.total_bytes;
                    match self.batch(&h, buffer.slice(*at..end)) {
                        Taken::Next => {
                            *at = end;
                            continue;
                        }
                        Taken::Stop => return Step::Done,
                        Taken::Broken | Taken::Wanted => None,
                    }
                }
                Parsed::Frame(Frame::Batch(h)) if h.total_bytes > FRAME_MAX_BYTES => None,
                Parsed::Frame(Frame::Batch(h)) => {
                    if !self.batches.is_empty() && h.total_bytes > self.room {
                        return Step::Done;
                    }
                    Some(h.total_bytes)
                }
                Parsed::Frame(Frame::Damaged {
                    base_offset,
                    next_offset,
                    total_bytes,
                }) => {
                    // The offset at its front has no CRC.
                    let base_offset = self.expected.unwrap_or(base_offset);
                    if next_offset > self.from && base_offset < next_offset {
                        self.damaged = Some((base_offset, Some(next_offset)));
                        return Step::Done;
                    }
                    self.expected = Some(next_offset);
                    *at += total_bytes;
                    continue;
                }
                Parsed::Frame(Frame::Extent {
                    extent,
                    total_bytes,
                }) => match self.extent(&extent.header()) {
                    Taken::Next => {
                        *at += total_bytes;
                        continue;
                    }
                    Taken::Stop => return Step::Done,
                    Taken::Wanted => {
                        return Step::Extent {
                            extent: Box::new(extent),
                            bytes: total_bytes,
                        };
                    }
                    Taken::Broken => None,
                },
                Parsed::Frame(Frame::Service { total_bytes, .. } | Frame::Pad { total_bytes }) => {
                    *at += total_bytes;
                    continue;
                }
                Parsed::Short(n) => (n <= FRAME_MAX_BYTES).then_some(n),
                Parsed::Broken => None,
            };
            match step {
                Some(needed) if !last => return Step::More(needed),
                // Broken, or a length that reaches beyond the end.
                _ => match self.resync(buffer, at, last) {
                    Resync::Found => {}
                    Resync::Stop => return Step::Done,
                    Resync::More(bytes) => return Step::More(bytes),
                },
            }
        }
    }

    fn batch(&mut self, h: &BatchHeader, bytes: Bytes) -> Taken {
        if self.expected.is_some_and(|e| e != h.base_offset) {
            return Taken::Broken;
        }
        if !self.batches.is_empty() && bytes.len() > self.room {
            return Taken::Stop;
        }
        // Before anything in it is believed, and also when it is stepped over: with a wrong length the walk would lose its way.
        if Batch::check(bytes.clone()).is_err() {
            return Taken::Broken;
        }
        if h.next_offset() > self.bound {
            return Taken::Stop;
        }
        if h.next_offset() <= self.from {
            self.expected = Some(h.next_offset());
            return Taken::Next;
        }
        if !self.epoch_is_right(h) {
            return Taken::Broken;
        }
        self.expected = Some(h.next_offset());
        self.room = self.room.saturating_sub(bytes.len());
        self.batches.push(bytes);
        Taken::Next
    }

    /// Whether a batch in an extent is the next one that is wanted.
    fn extent(&mut self, h: &BatchHeader) -> Taken {
        if self.expected.is_some_and(|e| e != h.base_offset) || !self.epoch_is_right(h) {
            return Taken::Broken;
        }
        if h.next_offset() <= self.from {
            self.expected = Some(h.next_offset());
            return Taken::Next;
        }
        let no_room = !self.batches.is_empty() && h.total_bytes > self.room;
        if no_room || h.next_offset() > self.bound {
            return Taken::Stop;
        }
        Taken::Wanted
    }

    /// Takes what was read of a wanted extent; `None` is damage. `false`: the walk ends here.
    fn take_extent(&mut self, extent: &Extent, batch: Option<Bytes>) -> bool {
        let h = extent.header();
        let Some(batch) = batch else {
            if self.batches.is_empty() {
                self.damaged = Some((h.base_offset, Some(h.next_offset())));
            }
            return false;
        };
        self.expected = Some(h.next_offset());
        self.room = self.room.saturating_sub(batch.len());
        self.batches.push(batch);
        true
    }

    fn epoch_is_right(&self, h: &BatchHeader) -> bool {
        let after = self
            .epochs
            .partition_point(|(start, _)| *start <= h.base_offset);
        after
            .checked_sub(1)
            .is_none_or(|i| self.epochs[i].1 == h.leader_epoch)
    }

    /// Goes to the next sound batch behind a broken frame. The walk ends here when batches were found already, the asked offset lies in the
    /// damage, or nothing sound follows.
    fn resync(&mut self, buffer: &Bytes, at: &mut usize, last: bool) -> Resync {
        let lost_from = self.next_offset();
        if !self.batches.is_empty() {
            return Resync::Stop;
        }
        // A sound one may lie behind what has been read, though not further than the broken frame and it are long.
        let have = buffer.len() - *at;
        let more = !last && have < 2 * FRAME_MAX_BYTES;
        let sound = match behind(buffer, *at, lost_from) {
            Behind::Sound(p, base) => Some((p, base)),
            Behind::Unread if more => return Resync::More(have * 2),
            Behind::Unread | Behind::Broken => scan(buffer, *at + 1, lost_from),
        };
        match sound {
            Some((p, base)) if base <= self.from => {
                *at = p;
                self.expected = Some(base);
                Resync::Found
            }
            None if more => Resync::More(have * 2),
            found => {
                self.damaged = Some((lost_from, found.map(|(_, base)| base)));
                Resync::Stop
            }
        }
    }
}

enum Resync {
    Found,
    Stop,
    /// This many bytes from the place reached.
    More(usize),
}

enum Taken {
    Next,
    Stop,
    /// Its bytes must be read.
    Wanted,
    Broken,
}

/// The last segment that begins at or before `offset`.
pub(crate) fn segment_for(segments: &[Rc<Segment>], offset: Offset) -> Option<&Rc<Segment>> {
    // Several segments can begin at one offset when the earlier ones hold no batch: the last of them holds it.
    let after = segments.partition_point(|s| s.meta.borrow().base_offset <= offset);
    after.checked_sub(1).map(|i| &segments[i])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::testing;
    use proptest::prelude::*;

    /// Ten batches of two records each, from offset 0.
    fn log() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for i in 0..10 {
            starts.push(bytes.len());
            bytes.extend_from_slice(
                &testing::batch(2, 40 + i, None).stamped(Offset(i as i64 * 2), LeaderEpoch(1)),
            );
        }
        (bytes, starts)
    }

    fn read(bytes: &[u8], from: i64) -> (Vec<i64>, Option<(i64, Option<i64>)>) {
        let mut walk = Walk::new(Offset(from), 1 << 20, Offset(20));
        let mut at = 0;
        assert_eq!(
            walk.take(&Bytes::copy_from_slice(bytes), &mut at, true),
            Step::Done
        );
        let offsets = walk
            .batches
            .iter()
            .map(|b| BatchHeader::parse(b).unwrap().base_offset.0);
        (
            offsets.collect(),
            walk.damaged.map(|(a, b)| (a.0, b.map(|b| b.0))),
        )
    }

    #[test]
    fn damage_is_named_and_what_lies_around_it_is_served() {
        let (sound, starts) = log();
        for bit in starts[4] * 8..starts[5] * 8 {
            let mut bytes = sound.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The leader epoch has no CRC of its own; it says nothing about the records.
            if (starts[4] + 12..starts[4] + 16).contains(&(bit / 8)) {
                continue;
            }
            assert_eq!(read(&bytes, 0).0, vec![0, 2, 4, 6], "bit {bit}");
            let (served, damaged) = read(&bytes, 8);
            assert_eq!(
                (served, damaged),
                (vec![], Some((8, Some(10)))),
                "bit {bit}"
            );
            assert_eq!(read(&bytes, 10).0, vec![10, 12, 14, 16, 18], "bit {bit}");
        }
    }

    #[test]
    fn an_epoch_that_the_table_of_terms_doesnt_say_is_damage() {
        let (mut bytes, starts) = log();
        bytes[starts[4] + 15] ^= 2;
        let mut walk = Walk::new(Offset(0), 1 << 20, Offset(20));
        walk.epochs = vec![(Offset(0), LeaderEpoch(1))];
        walk.take(&bytes.clone().into(), &mut 0, true);
        assert_eq!(walk.batches.len(), 4);
        walk.from = Offset(8);
        walk.batches.clear();
        walk.expected = None;
        walk.take(&bytes.into(), &mut 0, true);
        assert_eq!(walk.damaged, Some((Offset(8), Some(Offset(10)))));
    }

    /// A batch whose only record is a whole batch, of the offset that `base` says.
    fn nested(base: i64) -> Vec<u8> {
        let inner = testing::batch(1, 40, None).stamped(Offset(base), LeaderEpoch(1));
        let outer = testing::batch(2, inner.len() / 2 + 50, None);
        let mut bytes = outer.stamped(Offset(base), LeaderEpoch(1)).to_vec();
        bytes[80..80 + inner.len()].copy_from_slice(&inner);
        crate::batch::reseal(&mut bytes);
        bytes
    }

    #[test]
    fn what_a_client_put_into_a_batch_is_never_taken_for_one() {
        let (mut bytes, starts) = log();
        let batch = nested(8);
        bytes.splice(starts[4]..starts[5], batch.iter().copied());
        assert_eq!(read(&bytes, 8).0, vec![8, 10, 12, 14, 16, 18]);
        for byte in [21, 30, 57, 70, batch.len() - 1] {
            let mut bytes = bytes.clone();
            bytes[starts[4] + byte] ^= 1;
            assert_eq!(
                read(&bytes, 8),
                (vec![], Some((8, Some(10)))),
                "byte {byte}"
            );
            assert_eq!(read(&bytes, 10).0, vec![10, 12, 14, 16, 18], "byte {byte}");
        }
    }

    #[test]
    fn what_follows_damage_is_looked_for_behind_the_buffer_too() {
        let (mut bytes, starts) = log();
        bytes[starts[4] + 70] ^= 1;
        let mut walk = Walk::new(Offset(10), 1 << 20, Offset(20));
        let mut at = 0;
        // Nothing behind the damaged batch has been read yet.
        let front = Bytes::copy_from_slice(&bytes[..starts[5] + 10]);
        let step = walk.take(&front, &mut at, false);
        assert!(matches!(step, Step::More(n) if n > front.len() - at));
        let rest = Bytes::copy_from_slice(&bytes[at..]);
        assert_eq!(walk.take(&rest, &mut 0, true), Step::Done);
        assert_eq!((walk.batches.len(), walk.damaged), (5, None));
    }

    #[test]
    fn a_length_that_no_frame_has_is_damage_and_not_read() {
        let (mut bytes, starts) = log();
        bytes[starts[4] + 8] ^= 0x40;
        let mut walk = Walk::new(Offset(10), 1 << 20, Offset(20));
        walk.take(&bytes.into(), &mut 0, false);
        assert_eq!(walk.batches.len(), 5);
    }

    #[test]
    fn the_first_batch_is_always_whole() {
        let (bytes, _) = log();
        let mut walk = Walk::new(Offset(5), 1, Offset(20));
        walk.take(&bytes.into(), &mut 0, true);
        assert_eq!(walk.batches.len(), 1);
        assert_eq!(
            BatchHeader::parse(&walk.batches[0]).unwrap().base_offset,
            Offset(4)
        );
    }

    #[test]
    fn l11_nothing_at_or_above_the_bound_is_served() {
        let (bytes, _) = log();
        let mut walk = Walk::new(Offset(0), 1 << 20, Offset(7));
        walk.take(&bytes.into(), &mut 0, true);
        assert_eq!(walk.batches.len(), 3);
    }

    proptest! {
        #[test]
        fn a_wrong_batch_is_never_served(at in 0usize..1000, value in any::<u8>(), from in 0i64..20) {
            let (sound, _) = log();
            let mut bytes = sound.clone();
            let at = at % bytes.len();
            bytes[at] = value;
            let mut walk = Walk::new(Offset(from), 1 << 20, Offset(20));
            walk.take(&Bytes::from(bytes), &mut 0, true);
            for b in walk.batches {
                let b = Batch::check(b).unwrap();
                prop_assert!(b.header.next_offset().0 > from || value == sound[at]);
            }
        }
    }
}
