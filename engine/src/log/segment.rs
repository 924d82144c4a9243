//! The segment files of a replica and their sparse indexes.
//!
//! A segment is named `<base offset>-<base index>-<generation>.log`; which files count is said by the replica's checkpoint (the manifest), never by the
//! directory. Only its first `end` bytes mean anything (L5): what lies behind may be old bytes whose own CRCs are right.
//! The sparse index has a row about every 64 KiB. Rows of a sealed segment lie in its `.index` file; those of the one being written are in memory
//! and in the checkpoint.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::{BufMut, BytesMut};

use super::lru::Use;
use super::readahead::Ranges;
use super::wire::{LARGEST, Reader, put_varint};
use crate::limits::INDEX_INTERVAL_BYTES;
use crate::memory::Lease;
use crate::rt::File;
use crate::types::*;

/// The first frame of a stretch of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexRow {
    pub offset: Offset,
    pub index: RaftIndex,
    pub position: u64,
    /// Largest timestamp of the stretch, up to the next row.
    pub max_timestamp: i64,
}

/// What a manifest says about a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    pub base_offset: Offset,
    pub base_index: RaftIndex,
    pub generation: u64,
    /// Bytes that count: the end of the last whole entry.
    pub end: u64,
    /// Bytes of the batches that its entries name in extent files.
    pub extent_bytes: u64,
    pub last_index: RaftIndex,
    pub next_offset: Offset,
    pub max_timestamp: i64,
    /// Wall clock of the first write, for rolling by age.
    pub created_ms: i64,
    pub sealed: bool,
    /// Rows of the sparse index; empty once they lie in an index file, which a sealed segment gets.
    pub rows: Vec<IndexRow>,
}

impl SegmentMeta {
    /// Bytes of the log that this stretch of it takes on the disk.
    pub fn bytes(&self) -> u64 {
        self.end + self.extent_bytes
    }

    /// What it says fits together.
    pub fn is_sound(&self) -> bool {
        self.base_index <= self.last_index.next()
            && self.base_offset <= self.next_offset
            && self.holds(&self.rows)
    }

    /// Whether these rows can be of this segment: they go up (deltas can't do otherwise) and stay inside of it.
    pub fn holds(&self, rows: &[IndexRow]) -> bool {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return true;
        };
        first.position == 0
            && first.offset == self.base_offset
            && first.index == self.base_index
            && last.position < self.end
            && last.offset <= self.next_offset
            && last.index <= self.last_index
    }
}

/// A segment of a live replica.
pub(crate) struct Segment {
    pub meta: RefCell<SegmentMeta>,
    pub path: PathBuf,
    /// Its descriptor, while it is open. [`super::files::Files`] opens and closes.
    pub file: RefCell<Option<(Rc<File>, Use)>>,
    /// Rows of a sealed segment that were read back from its index file, while there is room for them.
    pub loaded_rows: RefCell<Option<LoadedRows>>,
    /// What is in memory of it for readers.
    pub ranges: RefCell<Option<Box<Ranges>>>,
    /// Bytes that may have been written beyond the last sync; it is on the list of [`super::files::Files`] then.
    pub unsynced: Cell<bool>,
    /// Its directory entry hasn't been synced yet.
    pub fresh: Cell<bool>,
    /// The last entry noted names an extent.
    after_extent: Cell<bool>,
    /// A synced checkpoint of this start calls it sealed: no start writes to it again.
    pub said_sealed: Cell<bool>,
    /// Its replica lets go of it: reads that are under way may find it half gone.
    pub gone: Cell<bool>,
}

pub(crate) struct LoadedRows {
    pub rows: Rc<Vec<IndexRow>>,
    pub used: Use,
    pub _memory: Lease,
}

pub fn file_name(m: &SegmentMeta) -> String {
    format!(
        "{:020}-{:020}-{}.log",
        m.base_offset.0, m.base_index.0, m.generation
    )
}

pub fn index_path(segment: &Path) -> PathBuf {
    segment.with_extension("index")
}

impl Segment {
    pub fn new(directory: &Path, meta: SegmentMeta, fresh: bool) -> Rc<Segment> {
        Rc::new(Segment {
            path: directory.join(file_name(&meta)),
            meta: RefCell::new(meta),
            file: RefCell::new(None),
            loaded_rows: RefCell::new(None),
            ranges: RefCell::new(None),
            unsynced: Cell::new(false),
            fresh: Cell::new(fresh),
            said_sealed: Cell::new(false),
            gone: Cell::new(false),
            after_extent: Cell::new(false),
        })
    }

    /// Notes a whole entry that was written at `position`, and names `extent_bytes` elsewhere.
    pub fn note(
        &self,
        h: &EntryHeader,
        position: u64,
        end: u64,
        extent_bytes: u64,
        max_timestamp: i64,
    ) {
        let mut m = self.meta.borrow_mut();
        // An extent is a stretch of its own: who looks for a time reads one at the most.
        let apart = self.after_extent.replace(extent_bytes > 0) || extent_bytes > 0;
        let begin = apart
            || m.rows
                .last()
                .is_none_or(|r| position >= r.position + INDEX_INTERVAL_BYTES);
        if begin {
            m.rows.push(IndexRow {
                offset: h.base_offset,
                index: h.index,
                position,
                max_timestamp,
            });
        } else if let Some(row) = m.rows.last_mut() {
            row.max_timestamp = row.max_timestamp.max(max_timestamp);
        }
        m.end = end;
        m.extent_bytes += extent_bytes;
        m.last_index = h.index;
        m.next_offset = h.next_offset;
        m.max_timestamp = m.max_timestamp.max(max_timestamp);
    }

    /// Somebody besides the list of open files holds its descriptor.
    pub fn is_held_open(&self) -> bool {
        let file = self.file.borrow();
        file.as_ref().is_some_and(|(f, _)| Rc::strong_count(f) > 1)
    }

    /// The rows are those of the manifest: no index file has them yet.
    pub fn rows_in_manifest(&self) -> bool {
        let m = self.meta.borrow();
        !m.rows.is_empty() || !m.sealed
    }
}

/// Where to begin reading for `offset`: the last row that starts at or before it.
pub fn row_for_offset(rows: &[IndexRow], offset: Offset) -> Option<IndexRow> {
    let after = rows.partition_point(|r| r.offset <= offset);
    // Several rows can share an offset (entries without records): the batch lies behind the last of them.
    after.checked_sub(1).map(|i| rows[i])
}

/// Rows for an index file or a checkpoint. Deltas of positions, offsets and indexes are small.
pub fn put_rows(out: &mut BytesMut, rows: &[IndexRow]) {
    put_varint(out, rows.len() as u64);
    put_some_rows(out, rows, 0..rows.len());
}

/// Some of the rows, behind those before them.
pub fn put_some_rows(out: &mut BytesMut, rows: &[IndexRow], some: Range<usize>) {
    let before = some.start.checked_sub(1).map(|i| rows[i]);
    let (mut offset, mut index, mut position) =
        before.map_or((0, 0, 0), |r| (r.offset.0, r.index.0, r.position));
    for r in &rows[some] {
        put_varint(out, (r.offset.0 - offset) as u64);
        put_varint(out, r.index.0 - index);
        put_varint(out, r.position - position);
        out.put_i64_le(r.max_timestamp);
        (offset, index, position) = (r.offset.0, r.index.0, r.position);
    }
}

pub fn rows(r: &mut Reader) -> Option<Vec<IndexRow>> {
    let n = r.count(11)?;
    let mut rows = Vec::with_capacity(n);
    let (mut offset, mut index, mut position) = (0i64, 0u64, 0u64);
    for _ in 0..n {
        offset += r.offset()?.0;
        index += r.number()?;
        position += r.number()?;
        if (offset as u64).max(index).max(position) > LARGEST {
            return None;
        }
        rows.push(IndexRow {
            offset: Offset(offset),
            index: RaftIndex(index),
            position,
            max_timestamp: r.i64()?,
        });
    }
    Some(rows)
}

const INDEX_MAGIC: u32 = u32::from_le_bytes(*b"TRI1");

/// A whole index file: magic, CRC-32C of the rest, length, rows.
pub fn encode_index(meta_rows: &[IndexRow]) -> BytesMut {
    let mut body = BytesMut::new();
    put_rows(&mut body, meta_rows);
    let mut out = BytesMut::with_capacity(12 + body.len());
    out.put_u32_le(INDEX_MAGIC);
    out.put_u32_le(0);
    out.put_u32_le(body.len() as u32);
    out.put_slice(&body);
    let crc = crc32c::crc32c(&out[8..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out
}

pub fn decode_index(bytes: &[u8]) -> Option<Vec<IndexRow>> {
    let mut r = Reader::new(bytes);
    if r.u32()? != INDEX_MAGIC {
        return None;
    }
    let stored = r.u32()?;
    let length = r.u32()? as usize;
    let covered = bytes.get(8..12usize.checked_add(length)?)?;
    if crc32c::crc32c(covered) != stored {
        return None;
    }
    rows(&mut Reader::new(&covered[4..]))
}

/// All but the rows themselves, which follow ([`put_some_rows`]).
pub fn put_meta_front(out: &mut BytesMut, m: &SegmentMeta) {
    put_varint(out, m.base_offset.0 as u64);
    put_varint(out, m.base_index.0);
    put_varint(out, m.generation);
    put_varint(out, m.end);
    put_varint(out, m.extent_bytes);
    put_varint(out, m.last_index.0);
    put_varint(out, m.next_offset.0 as u64);
    out.put_i64_le(m.max_timestamp);
    out.put_i64_le(m.created_ms);
    out.put_u8(u8::from(m.sealed));
    put_varint(out, m.rows.len() as u64);
}

pub fn meta(r: &mut Reader) -> Option<SegmentMeta> {
    Some(SegmentMeta {
        base_offset: r.offset()?,
        base_index: r.index()?,
        generation: r.number()?,
        end: r.number()?,
        extent_bytes: r.number()?,
        last_index: r.index()?,
        next_offset: r.offset()?,
        max_timestamp: r.i64()?,
        created_ms: r.i64()?,
        sealed: r.u8()? != 0,
        rows: rows(r)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some_rows(n: u64) -> Vec<IndexRow> {
        (0..n)
            .map(|i| IndexRow {
                offset: Offset(10 + i as i64 * 3),
                index: RaftIndex(5 + i),
                position: i * 70_000,
                max_timestamp: -1 + i as i64,
            })
            .collect()
    }

    #[test]
    fn an_index_comes_back_and_rot_is_seen() {
        let rows = some_rows(40);
        let bytes = encode_index(&rows);
        assert_eq!(decode_index(&bytes), Some(rows));
        for at in 0..bytes.len() {
            let mut b = bytes.to_vec();
            b[at] ^= 4;
            assert_eq!(decode_index(&b), None, "byte {at}");
        }
    }

    #[test]
    fn a_row_is_found_for_every_offset() {
        let rows = some_rows(4);
        assert_eq!(row_for_offset(&rows, Offset(9)), None);
        assert_eq!(row_for_offset(&rows, Offset(10)), Some(rows[0]));
        assert_eq!(row_for_offset(&rows, Offset(12)), Some(rows[0]));
        assert_eq!(row_for_offset(&rows, Offset(13)), Some(rows[1]));
        assert_eq!(row_for_offset(&rows, Offset(9000)), Some(rows[3]));
    }

    #[test]
    fn a_manifest_entry_comes_back() {
        let mut m = SegmentMeta {
            base_offset: Offset(10),
            base_index: RaftIndex(5),
            generation: 2,
            end: 1 << 33,
            extent_bytes: 1 << 34,
            last_index: RaftIndex(77),
            next_offset: Offset(99),
            max_timestamp: -1,
            created_ms: 12345,
            sealed: false,
            rows: some_rows(3),
        };
        let mut out = BytesMut::new();
        put_meta_front(&mut out, &m);
        put_some_rows(&mut out, &m.rows, 0..m.rows.len());
        assert_eq!(meta(&mut Reader::new(&out)), Some(m.clone()));
        m.sealed = true;
        out.clear();
        put_meta_front(&mut out, &m);
        put_some_rows(&mut out, &m.rows, 0..m.rows.len());
        assert_eq!(meta(&mut Reader::new(&out)), Some(m));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode_index(&bytes);
            let _ = meta(&mut Reader::new(&bytes));
        }
    }
}
