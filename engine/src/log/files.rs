//! The files of a shard's replicas: directories, the few that are open, the rows of their indexes, what has to be synced.
//!
//! Open segments and rows of sealed segments' indexes are kept by last use, each within a limit: descriptors in number ([`crate::descriptors`]), rows in bytes (the
//! budget's class for indexes). A segment in use by a reader or by write-out isn't closed under it; such ones pass the limit at worst, by as many as there are reads and
//! writes at one time. Rows that the class has no room for at all are read for each use. Called by write-out, readers and the janitor.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use bytes::{Bytes, BytesMut};

use super::LogError;
use super::lru::Lru;
use super::readahead::ReadAhead;
use super::segment::{IndexRow, LoadedRows, Segment, decode_index, index_path};
use crate::limits::{BLOCK_BYTES, WHOLE_FILE_PIECE_BYTES};
use crate::memory::{Budget, MemoryClass};
use crate::metrics::ShardMetrics;
use crate::rt::{self, AlignedBuf, File, OpenOptions};
use crate::types::*;

/// Damaged ranges that a shard remembers to have told.
const RANGES_TOLD: usize = 10_000;

pub(crate) struct Files {
    pub data_dir: PathBuf,
    pub metrics: Rc<ShardMetrics>,
    budget: Rc<Budget>,
    pub reads: ReadAhead,
    /// Segments that this shard keeps open at most.
    open_files: u64,
    /// Damaged ranges that were told.
    told: RefCell<BTreeSet<(GroupId, Offset)>>,
    open: RefCell<Lru<Weak<Segment>>>,
    opening: Cell<u64>,
    rows: RefCell<Lru<Weak<Segment>>>,
    /// Segments with bytes that no sync has covered.
    unsynced: RefCell<Vec<Rc<Segment>>>,
}

pub(crate) fn io_error<'a>(
    what: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> LogError + 'a {
    move |source| LogError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

impl Files {
    pub fn new(
        data_dir: PathBuf,
        open_files: usize,
        budget: Rc<Budget>,
        metrics: Rc<ShardMetrics>,
    ) -> Rc<Files> {
        assert!(open_files > 0, "a segment is open while it is read");
        Rc::new(Files {
            data_dir,
            metrics,
            reads: ReadAhead::new(budget.clone()),
            budget,
            open_files: open_files as u64,
            told: RefCell::default(),
            open: RefCell::default(),
            opening: Cell::new(0),
            rows: RefCell::default(),
            unsynced: RefCell::default(),
        })
    }

    /// The directory of a replica's segments. Doesn't depend on the shard.
    pub fn directory(&self, group: GroupId, replica: ReplicaId) -> PathBuf {
        partitions_dir(&self.data_dir).join(directory_name(group, replica))
    }

    /// The segment's file, opened if it isn't. It stays open at least as long as the caller holds it.
    pub async fn open_segment(&self, segment: &Rc<Segment>) -> Result<Rc<File>, LogError> {
        if let Some(file) = self.opened(segment) {
            return Ok(file);
        }
        let options = OpenOptions {
            create: segment.fresh.get() || segment.meta.borrow().end == 0,
            write: true,
            ..OpenOptions::default()
        };
        self.opening.set(self.opening.get() + 1);
        self.close_oldest();
        let opened = File::open(&segment.path, options).await;
        self.opening.set(self.opening.get() - 1);
        let file = Rc::new(opened.map_err(io_error("cannot open", &segment.path))?);
        // Somebody else may have opened it meanwhile.
        if let Some(file) = self.opened(segment) {
            return Ok(file);
        }
        let used = self.open.borrow_mut().add(Rc::downgrade(segment), 1);
        *segment.file.borrow_mut() = Some((file.clone(), used));
        self.count_open();
        Ok(file)
    }

    fn opened(&self, segment: &Segment) -> Option<Rc<File>> {
        let mut held = segment.file.borrow_mut();
        let (file, used) = held.as_mut()?;
        *used = self.open.borrow_mut().touch(*used);
        Some(file.clone())
    }

    /// Closes those used longest ago, as many as are too many, but none that somebody holds.
    fn close_oldest(&self) {
        let mut open = self.open.borrow_mut();
        let over = (open.cost() + self.opening.get()).saturating_sub(self.open_files);
        let idle: Vec<_> = open
            .oldest_first()
            .filter(|(_, s)| s.upgrade().is_none_or(|s| !s.is_held_open()))
            .map(|(at, _)| at)
            .take(over as usize)
            .collect();
        for at in idle {
            if let Some((segment, _)) = open.remove(at)
                && let Some(segment) = segment.upgrade()
            {
                segment.file.borrow_mut().take();
            }
        }
        drop(open);
        self.count_open();
    }

    fn count_open(&self) {
        let open = self.open.borrow().cost();
        self.metrics.segment_files_open.set(open);
    }

    pub fn is_open(&self, segment: &Segment) -> bool {
        segment.file.borrow().is_some()
    }

    /// Lets go of a segment that is about to be removed.
    pub fn forget(&self, segment: &Segment) {
        if let Some((_, used)) = segment.file.borrow_mut().take() {
            self.open.borrow_mut().remove(used);
        }
        if let Some(loaded) = segment.loaded_rows.borrow_mut().take() {
            self.rows.borrow_mut().remove(loaded.used);
        }
        self.reads.forget(segment);
        segment.unsynced.set(false);
        self.count_open();
        self.count_rows();
    }

    /// A read from disk, in its turn. Its memory is the caller's to have.
    pub async fn read(
        &self,
        file: &File,
        path: &Path,
        position: u64,
        bytes: usize,
    ) -> Result<Bytes, LogError> {
        let _turn = self.reads.disk.take(1).await;
        let read = file
            .read_at(position, bytes)
            .await
            .map_err(io_error("cannot read", path))?;
        self.metrics.fetch_bytes_from_disk.add(read.len() as u64);
        Ok(read)
    }

    /// Looks at a segment's index rows; those of a sealed one are read from its index file first. A rotten index file costs time, not data: the walk then
    /// begins at the segment's front.
    pub async fn rows<T>(&self, segment: &Rc<Segment>, look: impl FnOnce(&[IndexRow]) -> T) -> T {
        if segment.rows_in_manifest() {
            return look(&segment.meta.borrow().rows);
        }
        if let Some(rows) = self.loaded_rows(segment) {
            return look(&rows);
        }
        let path = index_path(&segment.path);
        let rows = match read_whole(&path).await {
            Ok(bytes) => decode_index(&bytes),
            Err(_) => None,
        };
        let rows = rows.filter(|r| !r.is_empty() && segment.meta.borrow().holds(r));
        let rows = Rc::new(rows.unwrap_or_else(|| {
            if !segment.gone.get() {
                tracing::warn!(path = %path.display(), "the index is damaged or missing; reads of this segment begin at its front");
            }
            let m = segment.meta.borrow();
            vec![IndexRow {
                offset: m.base_offset,
                index: m.base_index,
                position: 0,
                max_timestamp: m.max_timestamp,
            }]
        }));
        self.keep_rows(segment, &rows);
        look(&rows)
    }

    fn loaded_rows(&self, segment: &Segment) -> Option<Rc<Vec<IndexRow>>> {
        let mut loaded = segment.loaded_rows.borrow_mut();
        let loaded = loaded.as_mut()?;
        loaded.used = self.rows.borrow_mut().touch(loaded.used);
        Some(loaded.rows.clone())
    }

    /// Keeps rows for the next reader, in place of those used longest ago.
    fn keep_rows(&self, segment: &Rc<Segment>, rows: &Rc<Vec<IndexRow>>) {
        let bytes = (rows.capacity() * size_of::<IndexRow>()) as u64;
        if segment.loaded_rows.borrow().is_some() || bytes > self.budget.cap(MemoryClass::Index) {
            return;
        }
        let mut lru = self.rows.borrow_mut();
        let memory = loop {
            if let Some(memory) = self.budget.try_take(MemoryClass::Index, bytes) {
                break memory;
            }
            let Some((oldest, _)) = lru.oldest_first().next() else {
                return;
            };
            if let Some((gone, _)) = lru.remove(oldest)
                && let Some(gone) = gone.upgrade()
            {
                gone.loaded_rows.borrow_mut().take();
            }
        };
        *segment.loaded_rows.borrow_mut() = Some(LoadedRows {
            rows: rows.clone(),
            used: lru.add(Rc::downgrade(segment), bytes),
            _memory: memory,
        });
        drop(lru);
        self.count_rows();
    }

    fn count_rows(&self) {
        let bytes = self.rows.borrow().cost();
        self.metrics.index_bytes.set(bytes);
    }

    /// Bytes were written to the segment; the next [`Files::sync_written`] covers them.
    pub fn note_written(&self, segment: &Rc<Segment>) {
        if !segment.unsynced.replace(true) {
            self.unsynced.borrow_mut().push(segment.clone());
        }
    }

    /// L8: makes durable what was written to segments, and the names of new ones.
    pub async fn sync_written(&self) -> Result<(), LogError> {
        let segments = std::mem::take(&mut *self.unsynced.borrow_mut());
        let mut directories = BTreeSet::new();
        for s in segments {
            // Cleared first: a write that comes while the sync runs sets it again.
            // One that its replica has let go of is named by nothing that is to come, and may be removed already.
            if !s.unsynced.replace(false) || s.gone.get() {
                continue;
            }
            let file = self.open_segment(&s).await?;
            file.sync()
                .await
                .map_err(io_error("cannot sync", &s.path))?;
            self.metrics.background_syncs.increment();
            if s.fresh.replace(false) {
                directories.extend(s.path.parent().map(Path::to_owned));
            }
            rt::yield_if_needed().await;
        }
        if directories.is_empty() {
            return Ok(());
        }
        directories.insert(partitions_dir(&self.data_dir));
        // From below upwards.
        for directory in directories.iter().rev() {
            rt::fs::sync_dir(directory)
                .await
                .map_err(io_error("cannot sync", directory))?;
            self.metrics.background_syncs.increment();
            rt::yield_if_needed().await;
        }
        Ok(())
    }

    /// Told once for each range: readers come back.
    pub fn damage_found(&self, group: GroupId, path: &Path, from: Offset, to: Offset) {
        let mut told = self.told.borrow_mut();
        if told.len() >= RANGES_TOLD || !told.insert((group, from)) {
            return;
        }
        self.metrics.damaged_ranges.increment();
        tracing::error!(%group, %from, %to, path = %path.display(), "these offsets are damaged on disk and can't be served");
    }
}

/// The name of a replica's directory.
pub(crate) fn directory_name(group: GroupId, replica: ReplicaId) -> String {
    format!("{group}-r{replica}")
}

/// Whose directory this is, if it is a replica's.
pub(crate) fn replica_of_directory(name: &str) -> Option<(GroupId, ReplicaId)> {
    let (group, replica) = name.rsplit_once("-r")?;
    let (topic, partition) = group.split_once('-')?;
    let group = GroupId {
        topic: TopicId(uuid::Uuid::try_parse(topic).ok()?),
        partition: partition.parse().ok()?,
    };
    let replica = ReplicaId(replica.parse().ok()?);
    // Written the way that we write it.
    (directory_name(group, replica) == name).then_some((group, replica))
}

/// Files that are being removed; a start removes what is left of them.
pub(crate) const TRASH_PREFIX: &str = "trash-";

pub(crate) fn partitions_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("partitions")
}

/// A whole file, for small ones.
pub(crate) async fn read_whole(path: &Path) -> std::io::Result<Bytes> {
    read(path, false).await
}

/// The same, synced first: what a killed process wrote without a sync is believed only once no power cut can take it back.
pub(crate) async fn read_whole_synced(path: &Path) -> std::io::Result<Bytes> {
    read(path, true).await
}

async fn read(path: &Path, sync: bool) -> std::io::Result<Bytes> {
    let file = File::open(path, OpenOptions::default()).await?;
    if sync {
        file.sync().await?;
    }
    let length = file.len().await?;
    let all = read_pieces(&file, length).await?;
    file.close().await?;
    Ok(all)
}

/// One piece is given as it was read; several are put together.
async fn read_pieces(file: &File, length: u64) -> std::io::Result<Bytes> {
    if length <= WHOLE_FILE_PIECE_BYTES {
        return file.read_at(0, length as usize).await;
    }
    let mut all = BytesMut::new();
    while (all.len() as u64) < length {
        let at = all.len() as u64;
        let piece = (length - at).min(WHOLE_FILE_PIECE_BYTES);
        let read = file.read_at(at, piece as usize).await?;
        if read.is_empty() {
            break;
        }
        if all.is_empty() {
            all.reserve(usize::try_from(length).unwrap_or(usize::MAX));
        }
        all.extend_from_slice(&read);
        rt::yield_if_needed().await;
    }
    Ok(all.freeze())
}

/// Writes a whole file, padded with zeros to a block, and syncs it; its directory is the caller's.
pub(crate) async fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let options = OpenOptions {
        create: true,
        truncate: true,
        write: true,
        ..OpenOptions::default()
    };
    let file = File::open(path, options).await?;
    let mut position = 0;
    for piece in bytes.chunks(crate::limits::WRITE_OUT_BYTES) {
        file.write_at(position, aligned(piece)).await?;
        position += piece.len() as u64;
        rt::yield_if_needed().await;
    }
    file.sync().await?;
    file.close().await
}

/// A copy of `bytes` that ends on a block.
pub(crate) fn aligned(bytes: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(bytes.len().next_multiple_of(BLOCK_BYTES));
    buf[..bytes.len()].copy_from_slice(bytes);
    buf
}

#[cfg(test)]
#[path = "files_tests.rs"]
pub(crate) mod tests;
