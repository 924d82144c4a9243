//! The files of a shard's replicas: directories, the few that are open, their indexes.
//!
//! At most [`OPEN_FILES`] segments are open; the one opened longest ago is closed first.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use bytes::Bytes;

use super::LogError;
use super::segment::{IndexRow, Segment, decode_index, index_path};
use crate::limits::{BLOCK_BYTES, OPEN_FILES};
use crate::metrics::ShardMetrics;
use crate::rt::{self, AlignedBuf, File, OpenOptions};
use crate::types::*;

/// Damaged ranges that a shard remembers to have told.
const RANGES_TOLD: usize = 10_000;

pub(crate) struct Files {
    pub data_dir: PathBuf,
    pub metrics: Rc<ShardMetrics>,
    /// Damaged ranges that were told.
    told: RefCell<BTreeSet<(GroupId, Offset)>>,
    open: RefCell<VecDeque<(Weak<Segment>, Rc<File>)>>,
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
    pub fn new(data_dir: PathBuf, metrics: Rc<ShardMetrics>) -> Rc<Files> {
        Rc::new(Files {
            data_dir,
            metrics,
            told: RefCell::default(),
            open: RefCell::default(),
        })
    }

    /// The directory of a replica's segments. Doesn't depend on the shard.
    pub fn directory(&self, group: GroupId, replica: ReplicaId) -> PathBuf {
        partitions_dir(&self.data_dir).join(format!("{group}-r{replica}"))
    }

    pub async fn open_segment(&self, segment: &Rc<Segment>) -> Result<Rc<File>, LogError> {
        if let Some(file) = self.opened(segment) {
            return Ok(file);
        }
        let options = OpenOptions {
            create: segment.fresh.get() || segment.meta.borrow().end == 0,
            write: true,
            ..OpenOptions::default()
        };
        let file = File::open(&segment.path, options)
            .await
            .map_err(io_error("cannot open", &segment.path))?;
        let file = Rc::new(file);
        // Somebody else may have opened it meanwhile; two descriptors do no harm.
        let mut open = self.open.borrow_mut();
        open.push_back((Rc::downgrade(segment), file.clone()));
        while open.len() > OPEN_FILES {
            open.pop_front();
        }
        Ok(file)
    }

    fn opened(&self, segment: &Rc<Segment>) -> Option<Rc<File>> {
        let open = self.open.borrow();
        let found = open
            .iter()
            .rev()
            .find(|(s, _)| std::ptr::eq(s.as_ptr(), Rc::as_ptr(segment)))?;
        Some(found.1.clone())
    }

    pub fn is_open(&self, segment: &Rc<Segment>) -> bool {
        self.opened(segment).is_some()
    }

    /// Lets go of a segment that is about to be removed.
    pub fn forget(&self, segment: &Rc<Segment>) {
        self.open
            .borrow_mut()
            .retain(|(s, _)| !std::ptr::eq(s.as_ptr(), Rc::as_ptr(segment)));
    }

    pub async fn read(
        &self,
        file: &File,
        path: &Path,
        position: u64,
        bytes: usize,
    ) -> Result<Bytes, LogError> {
        let read = file
            .read_at(position, bytes)
            .await
            .map_err(io_error("cannot read", path))?;
        self.metrics.fetch_bytes_from_disk.add(read.len() as u64);
        Ok(read)
    }

    /// Brings a sealed segment's index rows into memory. A rotten index file costs time, not data: the walk then begins at the segment's front.
    pub async fn load_rows(&self, segment: &Rc<Segment>) -> Result<(), LogError> {
        if segment.rows(|_| ()).is_some() {
            return Ok(());
        }
        let path = index_path(&segment.path);
        let rows = match read_whole(&path).await {
            Ok(bytes) => decode_index(&bytes),
            Err(_) => None,
        };
        let rows = rows.filter(|r| !r.is_empty() && segment.meta.borrow().holds(r));
        let rows = rows.unwrap_or_else(|| {
            tracing::warn!(path = %path.display(), "the index is damaged or missing; reads of this segment begin at its front");
            let m = segment.meta.borrow();
            vec![IndexRow {
                offset: m.base_offset,
                index: m.base_index,
                position: 0,
                max_timestamp: m.max_timestamp,
            }]
        });
        *segment.loaded_rows.borrow_mut() = Some(Rc::new(rows));
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
    let bytes = file.len().await?;
    let all = file.read_at(0, bytes as usize).await?;
    file.close().await?;
    Ok(all)
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
