//! Large appends (L7): batches too large for the journal lie in extent files of their replica, each written and synced before its entry is proposed.
//!
//! The entry of such a batch ([`EntryKind::Extent`]) is small: where the bytes are, and the batch's header with its place in the log written into it. It goes through
//! Raft, the journal, checkpoints and segments like any other. So an extent that an entry names is whole on the disk, nothing ever waits behind one, and what
//! no entry names doesn't exist: a crash, a refused proposal or a truncation leaves bytes that go with their file.
//!
//! An extent file is named `<boot epoch>-<number>.extent`, lies beside the segments and is only ever appended to, by the start that made it: each extent begins on a block
//! and is padded to one. It goes when the log begins behind the last entry that may name it. A batch is read with the header of its entry in front; its CRC covers
//! all of the rest.
//!
//! Bounds: [`EXTENT_FILE_BYTES`] a file, [`EXTENT_WRITES`] written at one time by a shard, pieces of [`EXTENT_PIECE_BYTES`] written and [`EXTENT_READ_BYTES`] read. Called by the layer that takes
//! batches from clients, before it proposes, and by [`super::reader`].

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};

use super::files::{Files, io_error, partitions_dir};
use super::handle::ReplicaLog;
use super::notify::Notify;
use super::replica::ReplicaState;
use super::wire::Reader;
use super::{LogError, files};
use crate::batch::{Batch, BatchHeader, HEADER_BYTES};
use crate::limits::{
    BLOCK_BYTES, EXTENT_FILE_BYTES, EXTENT_PIECE_BYTES, EXTENT_READ_BYTES, EXTENT_WRITES,
    POPULATE_BYTES,
};
use crate::memory::{Leases, attach};
use crate::rt::{self, AlignedBuf, File, OpenOptions};
use crate::types::*;

/// Where a batch's CRC begins to count.
const CRC_FROM: usize = 21;

/// Names an extent file of a replica; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExtentFileId {
    pub boot_epoch: BootEpoch,
    /// Counted from 0 in each start.
    pub number: u64,
}

impl ExtentFileId {
    pub fn file_name(&self) -> String {
        format!("{}-{}{SUFFIX}", self.boot_epoch, self.number)
    }

    /// The extent file of this name, if it is one.
    pub fn of_name(name: &str) -> Option<ExtentFileId> {
        let (boot_epoch, number) = name.strip_suffix(SUFFIX)?.split_once('-')?;
        let id = ExtentFileId {
            boot_epoch: BootEpoch(boot_epoch.parse().ok()?),
            number: number.parse().ok()?,
        };
        (id.file_name() == name).then_some(id)
    }
}

const SUFFIX: &str = ".extent";

/// A batch in an extent file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub file: ExtentFileId,
    /// Where it begins in the file, a multiple of 4096.
    pub position: u64,
    /// The first bytes of the batch. Those in the file are as the client sent them, without a place in the log.
    front: [u8; HEADER_BYTES],
}

impl Extent {
    /// Bytes of one as the data of an entry.
    pub const ENCODED_BYTES: usize = 8 + 8 + 8 + HEADER_BYTES;

    fn new(file: ExtentFileId, position: u64, batch: &Batch) -> Extent {
        let front = batch.bytes[..HEADER_BYTES].try_into();
        Extent {
            file,
            position,
            front: front.expect("a batch has a header"),
        }
    }

    /// As the data of an entry: boot epoch u64, number u64, position u64, little-endian; the batch's header.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(Extent::ENCODED_BYTES);
        out.put_u64_le(self.file.boot_epoch.0);
        out.put_u64_le(self.file.number);
        out.put_u64_le(self.position);
        out.put_slice(&self.front);
        out.freeze()
    }

    /// `None` for bytes that no encoding gives.
    pub fn decode(bytes: &[u8]) -> Option<Extent> {
        let mut r = Reader::new(bytes);
        let file = ExtentFileId {
            boot_epoch: BootEpoch(r.long()?),
            number: r.long()?,
        };
        let position = r.long()?;
        let front: [u8; HEADER_BYTES] = r.take(HEADER_BYTES)?.try_into().ok()?;
        BatchHeader::parse(&front).ok()?;
        let sound = r.is_empty() && position.is_multiple_of(BLOCK_BYTES as u64);
        sound.then_some(Extent {
            file,
            position,
            front,
        })
    }

    pub fn header(&self) -> BatchHeader {
        BatchHeader::parse(&self.front).expect("the header was parsed when the extent was made")
    }

    /// Bytes of the batch.
    pub fn total_bytes(&self) -> usize {
        self.header().total_bytes
    }

    /// With its place in the log written into the header.
    pub fn stamped(&self, base_offset: Offset, epoch: LeaderEpoch) -> Extent {
        let mut e = *self;
        e.front[0..8].copy_from_slice(&base_offset.0.to_be_bytes());
        e.front[12..16].copy_from_slice(&epoch.0.to_be_bytes());
        e
    }
}

/// An extent file that entries of the log may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentFile {
    pub id: ExtentFileId,
    /// No entry above this one names it, but for those that are still to be appended to the one being written.
    pub last_index: RaftIndex,
}

/// The extent file that a replica writes to.
#[derive(Clone)]
pub(crate) struct ActiveExtents {
    id: ExtentFileId,
    /// Bytes given to extents so far, those being written included.
    end: u64,
    /// Its name is durable.
    named: Rc<Cell<bool>>,
}

/// The extent files of a replica.
#[derive(Default)]
pub(crate) struct ExtentFiles {
    pub files: Vec<ExtentFile>,
    /// In a box: most replicas have none.
    active: Option<Box<ActiveExtents>>,
    made: u64,
}

impl ExtentFiles {
    pub fn of_manifest(files: Vec<ExtentFile>) -> ExtentFiles {
        ExtentFiles {
            files,
            ..ExtentFiles::default()
        }
    }

    /// An entry at `index` names the file.
    pub fn note(&mut self, id: ExtentFileId, index: RaftIndex) {
        match self.files.iter_mut().rfind(|f| f.id == id) {
            Some(f) => f.last_index = f.last_index.max(index),
            None => self.files.push(ExtentFile {
                id,
                last_index: index,
            }),
        }
    }

    pub fn has(&self, id: ExtentFileId) -> bool {
        self.files.iter().any(|f| f.id == id)
    }

    /// Takes out the files that only entries below `first` can name.
    pub fn trim_to(&mut self, first: RaftIndex) -> Vec<ExtentFileId> {
        let gone: Vec<_> = self.files.iter().filter(|f| f.last_index < first).collect();
        let gone: Vec<_> = gone.into_iter().map(|f| f.id).collect();
        self.files.retain(|f| f.last_index >= first);
        if self.active.as_ref().is_some_and(|a| !self.has(a.id)) {
            self.active = None;
        }
        gone
    }
}

impl ReplicaState {
    /// Room for an extent of `bytes`, in the active file or a new one.
    fn place_extent(&mut self, boot_epoch: BootEpoch, bytes: u64) -> (ActiveExtents, u64) {
        let full = EXTENT_FILE_BYTES.min(self.policy.segment_bytes);
        // The entry will have this index or a later one: its file stays until then.
        let index = self.last.next();
        let x = &mut self.extents;
        x.active.take_if(|a| a.end >= full);
        if x.active.is_none() {
            let id = ExtentFileId {
                boot_epoch,
                number: x.made,
            };
            x.made += 1;
            x.active = Some(Box::new(ActiveExtents {
                id,
                end: 0,
                named: Rc::default(),
            }));
        }
        let active = x.active.as_mut().expect("one is there now");
        let position = active.end;
        active.end += bytes.next_multiple_of(BLOCK_BYTES as u64);
        let active = ActiveExtents::clone(active);
        x.note(active.id, index);
        self.frame_dirty = true;
        (active, position)
    }
}

/// How many tasks of a shard write extents.
#[derive(Default)]
pub(crate) struct ExtentWriters {
    writing: Cell<usize>,
    left: Notify,
}

struct Turn<'a>(&'a ExtentWriters);

impl ExtentWriters {
    async fn turn(&self) -> Turn<'_> {
        while self.writing.get() >= EXTENT_WRITES {
            self.left.notified().await;
        }
        self.writing.set(self.writing.get() + 1);
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.writing.set(self.0.writing.get() - 1);
        self.0.left.notify();
    }
}

impl ReplicaLog {
    /// L7: writes a batch to an extent; durable when this ends, also by its name. Nothing is in the log before the extent is proposed.
    pub async fn put_extent(&self, batch: &Batch) -> Result<Extent, LogError> {
        let _turn = self.inner.extent_writers.turn().await;
        if self.state.borrow().removed {
            return Err(LogError::Removed);
        }
        let written = self.write_extent(batch).await;
        // Its files may have gone while it was written: that is no failure of the disk. If they are still there they go soon.
        if self.state.borrow().removed {
            return Err(LogError::Removed);
        }
        written
    }

    async fn write_extent(&self, batch: &Batch) -> Result<Extent, LogError> {
        let bytes = batch.bytes.len() as u64;
        let (active, position) = {
            let mut state = self.state.borrow_mut();
            state.place_extent(self.inner.boot_epoch, bytes)
        };
        let directory = self.directory();
        let path = directory.join(active.id.file_name());
        if let Err(e) = write(&path, position, &batch.bytes).await {
            if e.is_full() {
                self.inner.space.ran_out();
                self.give_back(&active, position, &path).await;
            }
            return Err(e);
        }
        if !active.named.get() {
            let parent = partitions_dir(&self.inner.cfg.data_dir);
            for dir in [&directory, &parent] {
                rt::fs::sync_dir(dir)
                    .await
                    .map_err(io_error("cannot sync", dir))?;
            }
            active.named.set(true);
        }
        self.inner.metrics.extents_written.increment();
        self.inner.metrics.extent_bytes_written.add(bytes);
        Ok(Extent::new(active.id, position, batch))
    }

    /// An extent found no room. What of it arrived is given back, unless another lies behind it already: then it goes with the file.
    async fn give_back(&self, active: &ActiveExtents, position: u64, path: &Path) {
        let options = OpenOptions {
            write: true,
            ..OpenOptions::default()
        };
        let Ok(file) = File::open(path, options).await else {
            return;
        };
        // From this step on nobody writes behind it: what comes next begins another file.
        let last = self
            .state
            .borrow_mut()
            .extents
            .active
            .take_if(|a| a.id == active.id && a.end == active.end)
            .is_some();
        if last && file.set_len(position).await.is_err() {
            tracing::debug!(path = %path.display(), "what was written of an extent stays until its file goes");
        }
        let _ = file.close().await;
    }

    /// What happened to an extent can't be told from a log that failed (design §4, Faults).
    pub fn fail(&self, e: LogError) {
        self.inner.fail(e);
    }

    /// Whether an extent can still be proposed: the log may have moved beyond its file meanwhile.
    pub fn has_extent(&self, extent: &Extent) -> bool {
        self.state.borrow().extents.has(extent.file)
    }

    /// The extent was proposed at `index`: its file stays as long as that entry. Called in the same step as [`ReplicaLog::has_extent`].
    pub fn keep_extent(&self, extent: &Extent, index: RaftIndex) {
        self.state.borrow_mut().extents.note(extent.file, index);
    }

    pub(super) fn directory(&self) -> PathBuf {
        let s = self.state.borrow();
        self.inner.files.directory(s.group, s.id)
    }
}

async fn write(path: &Path, position: u64, bytes: &Bytes) -> Result<(), LogError> {
    let directory = path.parent().expect("an extent file lies in a directory");
    rt::fs::create_dir_all(directory)
        .await
        .map_err(io_error("cannot create", directory))?;
    let options = OpenOptions {
        create: true,
        write: true,
        ..OpenOptions::default()
    };
    let file = File::open(path, options)
        .await
        .map_err(io_error("cannot open", path))?;
    let mut at = position;
    for piece in bytes.chunks(EXTENT_PIECE_BYTES) {
        let buf: AlignedBuf = files::aligned(piece);
        let length = buf.len() as u64;
        file.write_at(at, buf)
            .await
            .map_err(io_error("cannot write", path))?;
        at += length;
        rt::yield_if_needed().await;
    }
    file.sync().await.map_err(io_error("cannot sync", path))?;
    file.close().await.map_err(io_error("cannot close", path))
}

/// Memory that [`read`] needs: the batch and a piece of it.
pub(crate) fn memory_bytes(extent: &Extent) -> u64 {
    (extent.total_bytes() + EXTENT_READ_BYTES) as u64
}

/// Reads the batch of an extent into `memory`. `None`: it is not what was written.
pub(crate) async fn read(
    files: &Files,
    directory: &Path,
    extent: &Extent,
    memory: Leases,
) -> Result<Option<Bytes>, LogError> {
    let path = directory.join(extent.file.file_name());
    let file = File::open(&path, OpenOptions::default())
        .await
        .map_err(io_error("cannot open", &path))?;
    let total = extent.total_bytes();
    // Nobody reserves memory for a length that a damaged file only pretends to have.
    let length = file.len().await.map_err(io_error("cannot stat", &path))?;
    if extent.position.saturating_add(total as u64) > length {
        return Ok(None);
    }
    let mut out = BytesMut::with_capacity(total);
    let mut crc = 0;
    while out.len() < total {
        if total >= 2 * POPULATE_BYTES && out.len().is_multiple_of(POPULATE_BYTES) {
            out = rt::populate(out, POPULATE_BYTES).await;
        }
        let piece = (total - out.len()).min(EXTENT_READ_BYTES);
        let position = extent.position + out.len() as u64;
        let read = files.read(&file, &path, position, piece).await?;
        if read.len() < piece {
            return Ok(None);
        }
        let from = if out.is_empty() {
            out.put_slice(&extent.front);
            out.put_slice(&read[HEADER_BYTES..]);
            CRC_FROM
        } else {
            let from = out.len();
            out.put_slice(&read);
            from
        };
        crc = crc32c::crc32c_append(crc, &out[from..]);
        rt::yield_if_needed().await;
    }
    file.close()
        .await
        .map_err(io_error("cannot close", &path))?;
    Ok((crc == extent.header().crc).then(|| attach(memory, out)))
}

/// For a manifest.
pub(crate) fn put_files(out: &mut BytesMut, files: &[ExtentFile]) {
    super::wire::put_varint(out, files.len() as u64);
    for f in files {
        for v in [f.id.boot_epoch.0, f.id.number, f.last_index.0] {
            super::wire::put_varint(out, v);
        }
    }
}

pub(crate) fn get_files(r: &mut Reader) -> Option<Vec<ExtentFile>> {
    let n = r.count(3)?;
    let mut files = Vec::with_capacity(n);
    for _ in 0..n {
        files.push(ExtentFile {
            id: ExtentFileId {
                boot_epoch: BootEpoch(r.number()?),
                number: r.number()?,
            },
            last_index: r.index()?,
        });
    }
    Some(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::testing;
    use proptest::prelude::*;

    fn id(number: u64) -> ExtentFileId {
        ExtentFileId {
            boot_epoch: BootEpoch(3),
            number,
        }
    }

    #[test]
    fn an_extent_comes_back_with_its_place_in_the_log() {
        let batch = testing::batch(3, 40, Some((9, 1, 5)));
        let extent = Extent::new(id(2), 8192, &batch).stamped(Offset(77), LeaderEpoch(4));
        let back = Extent::decode(&extent.encode()).unwrap();
        assert_eq!(back, extent);
        let h = back.header();
        assert_eq!(
            (h.base_offset, h.leader_epoch),
            (Offset(77), LeaderEpoch(4))
        );
        assert_eq!(
            (h.crc, h.total_bytes),
            (batch.header.crc, batch.bytes.len())
        );
    }

    #[test]
    fn a_file_goes_when_no_entry_can_name_it_any_more() {
        let mut x = ExtentFiles::default();
        x.note(id(0), RaftIndex(4));
        x.note(id(1), RaftIndex(9));
        x.note(id(0), RaftIndex(6));
        assert_eq!(x.trim_to(RaftIndex(6)), vec![]);
        assert_eq!(x.trim_to(RaftIndex(7)), vec![id(0)]);
        assert!(!x.has(id(0)) && x.has(id(1)));
    }

    #[test]
    fn a_file_that_is_written_to_stays_for_the_entry_that_is_to_come() {
        let mut r = super::super::replica::tests::replica();
        let mut j = super::super::replica::tests::journal();
        let (active, position) = r.place_extent(BootEpoch(3), 5000);
        assert_eq!(position, 0);
        for i in 1..=3 {
            let e = super::super::replica::tests::batch_entry(i, 1, i as i64 - 1, 1);
            r.append(&mut j, None, &[e]);
        }
        // Proposed behind three others; the first of them is trimmed before it is appended.
        r.extents.note(active.id, RaftIndex(4));
        assert_eq!(r.extents.trim_to(RaftIndex(2)), vec![]);
        assert_eq!(r.place_extent(BootEpoch(3), 1).1, 8192);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(mut bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if bytes.len() > 40 {
                bytes[40] = 2;
            }
            let _ = Extent::decode(&bytes);
            let _ = get_files(&mut Reader::new(&bytes));
        }
    }
}
