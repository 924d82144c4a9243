//! Checkpoints (L8): what lets the journal go of its old blocks and a start begin without scanning segments.
//!
//! A checkpoint appends the frames of changed replicas and then a commit frame to the shard's file, and is synced; frames without their commit don't
//! count. When the changes outgrow the base, a new base (every replica) goes to a new file under the next generation. At a start the files are read in the order of
//! their generations, each on top of those before: an older one is removed only when every shard has a base of the present start (a replica that has
//! changed shards may have its only frame there), and nothing that it doesn't know of is let go of before that. A replica that was removed is named by every base for
//! as long as something may be left that still tells of its creation: the journals let go one by one, and the record of its end may go first.
//!
//! Frame, little-endian: magic u32, CRC-32C u32 of the rest seeded with data directory and shard, body length u32, kind u8, generation u64, body.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::{BufMut, Bytes, BytesMut};
use uuid::Uuid;

use super::extent::{self, ExtentFile};
use super::replica::{ReplicaState, WritePosition};
use super::segment::{self, SegmentMeta};
use super::terms::{TermRow, TermTable};
use super::wire::{LARGEST, Reader, put_varint};
use crate::limits::BLOCK_BYTES;
use crate::types::*;

const MAGIC: u32 = u32::from_le_bytes(*b"TRC3");
const FRAME_HEADER_BYTES: usize = 4 + 4 + 4 + 1 + 8;
/// What of a frame is put together before other tasks get a turn: rows of indexes and terms, bytes of states.
const ROWS_SLICE: usize = 1_000;
const SLICE_BYTES: usize = 64 << 10;
/// Largest body of a frame that a start accepts, in bytes.
const MAX_BODY_BYTES: usize = 256 << 20;

const REPLICA: u8 = 1;
const REMOVED: u8 = 2;
const COMMIT: u8 = 3;

/// What a checkpoint says of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaFrame {
    pub id: ReplicaId,
    pub group: GroupId,
    /// Every record of the replica before this point is reflected here: (boot epoch, lsn).
    pub captured: (BootEpoch, Lsn),
    pub hard_state: HardState,
    pub first: RaftIndex,
    pub log_start: Offset,
    pub written_out: RaftIndex,
    pub written_next_offset: Offset,
    pub write: (u64, u64),
    pub next_generation: u64,
    /// Rows up to `state_at`.
    pub terms: Vec<TermRow>,
    pub manifest: Vec<SegmentMeta>,
    pub extents: Vec<ExtentFile>,
    pub state_at: RaftIndex,
    /// The offset after entry `state_at`.
    pub state_next_offset: Offset,
    /// What the layer above needs to go on from `state_at`.
    pub state: Bytes,
    /// More of it, behind that: as it was captured, so that nobody copies it. A frame that was read has all of it in `state`.
    pub more_state: Vec<Bytes>,
}

impl ReplicaFrame {
    pub fn capture(
        r: &ReplicaState,
        captured: (BootEpoch, Lsn),
        state_at: RaftIndex,
        mut state: Vec<Bytes>,
    ) -> ReplicaFrame {
        assert!(r.written_out <= state_at, "what is written out is applied");
        let terms = r.terms.rows().iter().filter(|row| row.first <= state_at);
        let frame = ReplicaFrame {
            id: r.id,
            group: r.group,
            captured,
            hard_state: r.hard_state,
            first: r.first,
            log_start: r.log_start,
            written_out: r.written_out,
            written_next_offset: r.written_next_offset,
            write: (r.write.file, r.write.entry_end),
            next_generation: r.next_generation,
            terms: terms.copied().collect(),
            state_next_offset: r.next_offset_after(state_at),
            manifest: r.segments.iter().map(|s| s.meta.borrow().clone()).collect(),
            extents: r.extents.files.clone(),
            state_at,
            more_state: state.split_off(state.len().min(1)),
            state: state.pop().unwrap_or_default(),
        };
        assert!(frame.is_sound(), "a start takes what is written: {frame:?}");
        frame
    }

    pub fn write_position(&self) -> WritePosition {
        WritePosition {
            file: self.write.0,
            entry_end: self.write.1,
        }
    }

    async fn put(&self, out: &mut BytesMut, pause: &impl AsyncFn()) {
        put_varint(out, self.id.0);
        out.put_u128_le(self.group.topic.0.as_u128());
        out.put_u32_le(self.group.partition as u32);
        for v in [
            self.captured.0.0,
            self.captured.1.0,
            self.hard_state.term.0,
            self.hard_state.vote,
            self.hard_state.commit.0,
            self.first.0,
            self.log_start.0 as u64,
            self.written_out.0,
            self.written_next_offset.0 as u64,
            self.write.0,
            self.write.1,
            self.next_generation,
            self.state_at.0,
            self.state_next_offset.0 as u64,
        ] {
            put_varint(out, v);
        }
        put_varint(out, self.terms.len() as u64);
        for rows in self.terms.chunks(ROWS_SLICE) {
            for row in rows {
                put_varint(out, row.term.0);
                put_varint(out, row.first.0);
                put_varint(out, row.start.0 as u64);
            }
            pause().await;
        }
        put_varint(out, self.manifest.len() as u64);
        for m in &self.manifest {
            segment::put_meta_front(out, m);
            for at in (0..m.rows.len()).step_by(ROWS_SLICE) {
                let end = (at + ROWS_SLICE).min(m.rows.len());
                segment::put_some_rows(out, &m.rows, at..end);
                pause().await;
            }
        }
        pause().await;
        extent::put_files(out, &self.extents);
        let state = || std::iter::once(&self.state).chain(&self.more_state);
        put_varint(out, state().map(Bytes::len).sum::<usize>() as u64);
        for piece in state().flat_map(|s| s.chunks(SLICE_BYTES)) {
            out.put_slice(piece);
            pause().await;
        }
    }

    /// Bytes that it takes, about, so that what is put is never moved.
    fn room(&self) -> usize {
        let rows: usize = self.manifest.iter().map(|m| 64 + 24 * m.rows.len()).sum();
        let state: usize = self.more_state.iter().map(Bytes::len).sum();
        256 + rows + 16 * self.terms.len() + 24 * self.extents.len() + self.state.len() + state
    }

    fn get(bytes: &[u8]) -> Option<ReplicaFrame> {
        let mut r = Reader::new(bytes);
        let id = ReplicaId(r.varint()?);
        let topic = TopicId(Uuid::from_u128(r.u128()?));
        let partition = r.u32()? as i32;
        let captured = (BootEpoch(r.number()?), Lsn(r.number()?));
        let hard_state = HardState {
            term: r.term()?,
            vote: r.varint()?,
            commit: r.index()?,
        };
        let first = r.index()?;
        let log_start = r.offset()?;
        let written_out = r.index()?;
        let written_next_offset = r.offset()?;
        let write = (r.number()?, r.number()?);
        let next_generation = r.number()?;
        let state_at = r.index()?;
        let state_next_offset = r.offset()?;
        let rows = r.count(3)?;
        let mut terms = Vec::with_capacity(rows);
        for _ in 0..rows {
            terms.push(TermRow {
                term: r.term()?,
                first: r.index()?,
                start: r.offset()?,
            });
        }
        TermTable::from_rows(terms.clone())?;
        let segments = r.count(25)?;
        let mut manifest = Vec::with_capacity(segments);
        for _ in 0..segments {
            manifest.push(segment::meta(&mut r)?);
        }
        let extents = extent::get_files(&mut r)?;
        let state_bytes = r.count(1)?;
        let state = Bytes::copy_from_slice(r.take(state_bytes)?);
        let whole = r.is_empty();
        let frame = ReplicaFrame {
            id,
            group: GroupId { topic, partition },
            captured,
            hard_state,
            first,
            log_start,
            written_out,
            written_next_offset,
            write,
            next_generation,
            terms,
            manifest,
            extents,
            state_at,
            state_next_offset,
            state,
            more_state: Vec::new(),
        };
        (whole && frame.is_sound()).then_some(frame)
    }

    /// What it says fits together: write-out goes on from here without asking again.
    fn is_sound(&self) -> bool {
        let follow = self.manifest.windows(2).all(|w| {
            let (a, b) = (&w[0], &w[1]);
            a.sealed
                && a.next_offset == b.base_offset
                && a.last_index.next() == b.base_index
                && a.generation < b.generation
        });
        let ends = self.manifest.last().is_none_or(|m| {
            m.next_offset == self.written_next_offset
                && m.last_index == self.written_out
                && m.generation < self.next_generation
                && (m.sealed || m.end <= self.write.1)
        });
        let (file, entry_end) = self.write;
        follow
            && ends
            && entry_end <= file
            && file.is_multiple_of(BLOCK_BYTES as u64)
            && self.written_out <= self.state_at
            && self.written_next_offset <= self.state_next_offset
            && self.first <= self.written_out.next()
            && self
                .terms
                .last()
                .is_none_or(|row| row.term <= self.hard_state.term)
            && self.manifest.iter().all(SegmentMeta::is_sound)
    }
}

/// Whose frames these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub directory_id: u64,
    pub shard: u32,
}

impl Owner {
    fn seed(&self) -> u32 {
        let mut bytes = [0u8; 12];
        bytes[..8].copy_from_slice(&self.directory_id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.shard.to_le_bytes());
        crc32c::crc32c(&bytes)
    }
}

pub fn path(data_dir: &Path, shard: u32, generation: u64) -> PathBuf {
    data_dir.join(format!("checkpoint-{shard}-{generation}"))
}

/// The generations of a shard's files among the names of a directory, oldest first.
pub fn generations(names: &[String], shard: u32) -> Vec<u64> {
    let prefix = format!("checkpoint-{shard}-");
    let mut found: Vec<u64> = names
        .iter()
        .filter_map(|n| n.strip_prefix(&prefix)?.parse().ok())
        .filter(|g| *g <= LARGEST)
        .collect();
    found.sort_unstable();
    found
}

/// Where the frame begins, for [`end_frame`].
fn begin_frame(out: &mut BytesMut, generation: u64, kind: u8) -> usize {
    let at = out.len();
    out.put_u32_le(MAGIC);
    out.put_u64_le(0);
    out.put_u8(kind);
    out.put_u64_le(generation);
    at
}

/// Gives the frame at `at` its length; what its CRC covers begins eight bytes behind it.
fn measure_frame(out: &mut BytesMut, at: usize) {
    let length = out.len() - at - FRAME_HEADER_BYTES;
    let length = u32::try_from(length).expect("a frame's body is bounded");
    out[at + 8..at + 12].copy_from_slice(&length.to_le_bytes());
}

fn put_frame(
    out: &mut BytesMut,
    owner: Owner,
    generation: u64,
    kind: u8,
    body: impl FnOnce(&mut BytesMut),
) {
    let at = begin_frame(out, generation, kind);
    body(out);
    measure_frame(out, at);
    let crc = crc32c::crc32c_append(owner.seed(), &out[at + 8..]);
    out[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
}

/// L8: in slices of [`ROWS_SLICE`] rows and [`SLICE_BYTES`], with `pause` between them.
pub async fn put_replica(
    out: &mut BytesMut,
    owner: Owner,
    generation: u64,
    frame: &ReplicaFrame,
    pause: &impl AsyncFn(),
) {
    out.reserve(frame.room());
    let at = begin_frame(out, generation, REPLICA);
    frame.put(out, pause).await;
    measure_frame(out, at);
    let mut crc = owner.seed();
    for piece in out[at + 8..].chunks(SLICE_BYTES) {
        crc = crc32c::crc32c_append(crc, piece);
        pause().await;
    }
    out[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
}

/// The same in one step, for who has the time.
pub fn put_replica_at_once(
    out: &mut BytesMut,
    owner: Owner,
    generation: u64,
    frame: &ReplicaFrame,
) {
    let put = put_replica(out, owner, generation, frame, &async || {});
    futures_lite::future::block_on(put);
}

pub fn put_removed(out: &mut BytesMut, owner: Owner, generation: u64, id: ReplicaId) {
    put_frame(out, owner, generation, REMOVED, |out| put_varint(out, id.0));
}

/// Makes what was put before it count. `sequence` goes up by one a checkpoint of the shard, across generations and starts. `by` is the start that writes it:
/// the shard's journal knows that start, and is needed. [`RETIRED`] says that the shard is no more, and needs none.
pub fn put_commit(out: &mut BytesMut, owner: Owner, generation: u64, sequence: u64, by: BootEpoch) {
    put_frame(out, owner, generation, COMMIT, |out| {
        put_varint(out, sequence);
        put_varint(out, by.0);
    });
}

/// In place of the start that wrote a checkpoint: the last one of a shard that is no more.
pub const RETIRED: BootEpoch = BootEpoch(0);

/// What a shard's checkpoint files say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Of the newest file with a commit.
    pub generation: u64,
    /// Of the newest commit; 0 for none.
    pub sequence: u64,
    /// All of them.
    pub sequences: Vec<u64>,
    /// The start that wrote the newest commit, or [`RETIRED`].
    pub by: BootEpoch,
    pub replicas: BTreeMap<ReplicaId, ReplicaFrame>,
    /// Those that were removed. Ids are never reused: whatever else speaks of them is older.
    pub removed: BTreeSet<ReplicaId>,
}

/// Reads a checkpoint file on top of those of older generations: everything up to its last commit frame.
///
/// Padding between checkpoints is zeros up to the next block.
pub fn load(bytes: &[u8], owner: Owner, into: &mut Loaded) {
    let mut at = 0;
    let mut generation = None;
    let mut waiting: Vec<(ReplicaId, Option<ReplicaFrame>)> = Vec::new();
    while let Some((kind, g, body, end)) = frame_at(bytes, at, owner) {
        if *generation.get_or_insert(g) != g {
            break;
        }
        match kind {
            REPLICA => {
                let Some(f) = ReplicaFrame::get(body) else {
                    break;
                };
                waiting.push((f.id, Some(f)));
            }
            REMOVED => {
                let Some(id) = Reader::new(body).varint() else {
                    break;
                };
                waiting.push((ReplicaId(id), None));
            }
            COMMIT => {
                let mut r = Reader::new(body);
                let (Some(sequence), Some(by)) = (r.number(), r.number()) else {
                    break;
                };
                for (id, frame) in waiting.drain(..) {
                    match frame {
                        Some(f) => into.replicas.insert(id, f),
                        None => {
                            into.removed.insert(id);
                            into.replicas.remove(&id)
                        }
                    };
                }
                into.generation = g;
                into.sequence = sequence;
                into.sequences.push(sequence);
                into.by = BootEpoch(by);
            }
            _ => break,
        }
        at = end;
        if kind == COMMIT {
            at = at.next_multiple_of(crate::limits::BLOCK_BYTES);
        }
    }
}

fn frame_at(bytes: &[u8], at: usize, owner: Owner) -> Option<(u8, u64, &[u8], usize)> {
    let mut r = Reader::new(bytes.get(at..)?);
    if r.u32()? != MAGIC {
        return None;
    }
    let stored = r.u32()?;
    let length = r.u32()? as usize;
    if length > MAX_BODY_BYTES {
        return None;
    }
    let kind = r.u8()?;
    let generation = r.u64()?;
    let body = r.take(length)?;
    let end = at + FRAME_HEADER_BYTES + length;
    let crc = crc32c::crc32c_append(owner.seed(), &bytes[at + 8..end]);
    (crc == stored).then_some((kind, generation, body, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWNER: Owner = Owner {
        directory_id: 9,
        shard: 1,
    };

    fn frame(id: u64, written: u64) -> ReplicaFrame {
        ReplicaFrame {
            id: ReplicaId(id),
            group: GroupId {
                topic: TopicId(Uuid::from_u128(5)),
                partition: id as i32,
            },
            captured: (BootEpoch(2), Lsn(written)),
            hard_state: HardState {
                term: Term(3),
                vote: 1,
                commit: RaftIndex(written),
            },
            first: RaftIndex(1),
            log_start: Offset(0),
            written_out: RaftIndex(written),
            written_next_offset: Offset(written as i64 * 2),
            write: (8192, 5000),
            next_generation: 3,
            terms: vec![TermRow {
                term: Term(3),
                first: RaftIndex(1),
                start: Offset(0),
            }],
            manifest: vec![SegmentMeta {
                base_offset: Offset(0),
                base_index: RaftIndex(1),
                generation: 2,
                end: 5000,
                extent_bytes: 70_000,
                last_index: RaftIndex(written),
                next_offset: Offset(written as i64 * 2),
                max_timestamp: 7,
                created_ms: 1,
                sealed: false,
                rows: vec![],
            }],
            extents: vec![ExtentFile {
                id: extent::ExtentFileId {
                    boot_epoch: BootEpoch(2),
                    number: 1,
                },
                last_index: RaftIndex(written),
            }],
            state_at: RaftIndex(written + 2),
            state_next_offset: Offset(written as i64 * 2 + 3),
            state: Bytes::from_static(b"opaque"),
            more_state: Vec::new(),
        }
    }

    fn checkpoint(
        generation: u64,
        sequence: u64,
        frames: &[ReplicaFrame],
        removed: &[u64],
    ) -> Vec<u8> {
        let mut out = BytesMut::new();
        for f in frames {
            put_replica_at_once(&mut out, OWNER, generation, f);
        }
        for id in removed {
            put_removed(&mut out, OWNER, generation, ReplicaId(*id));
        }
        put_commit(&mut out, OWNER, generation, sequence, BootEpoch(2));
        let mut out = out.to_vec();
        out.resize(out.len().next_multiple_of(4096), 0);
        out
    }

    fn loaded(files: &[&[u8]]) -> Loaded {
        let mut l = Loaded::default();
        for f in files {
            load(f, OWNER, &mut l);
        }
        l
    }

    fn frames(l: &Loaded) -> Vec<ReplicaFrame> {
        l.replicas.values().cloned().collect()
    }

    #[test]
    fn the_last_commit_counts() {
        let mut file = checkpoint(4, 10, &[frame(1, 5), frame(2, 5), frame(3, 5)], &[]);
        file.extend(checkpoint(4, 11, &[frame(1, 9)], &[3]));
        let whole = file.len();
        file.extend(&checkpoint(4, 12, &[frame(2, 50)], &[]));
        let l = loaded(&[&file]);
        assert_eq!((l.generation, l.sequence, l.by), (4, 12, BootEpoch(2)));
        assert_eq!(frames(&l), vec![frame(1, 9), frame(2, 50)]);
        // A torn third checkpoint leaves the second.
        for cut in whole..file.len() - 4000 {
            let l = loaded(&[&file[..cut]]);
            if l.sequence == 11 {
                assert_eq!(frames(&l), vec![frame(1, 9), frame(2, 5)]);
            }
        }
        let mut other = Loaded::default();
        load(&file, Owner { shard: 2, ..OWNER }, &mut other);
        assert_eq!(other, Loaded::default());
    }

    /// What is put together in many slices, with a state of many pieces, is read as one.
    #[test]
    fn l8_a_large_frame_is_put_in_slices() {
        let mut large = frame(1, 1 << 20);
        let piece = |n: usize| Bytes::from(vec![n as u8; 10_000 * n]);
        large.state = Bytes::from(vec![9; 30_000]);
        large.more_state = (0..20).map(piece).collect();
        large.manifest[0].end = 1 << 30;
        large.write = (1 << 30, 1 << 30);
        let row = |i: u64| segment::IndexRow {
            offset: Offset(i as i64),
            index: RaftIndex(1 + i),
            position: i << 10,
            max_timestamp: i as i64,
        };
        large.manifest[0].rows = (0..20_500).map(row).collect();
        let slices = std::cell::Cell::new(0);
        let pause = async || slices.set(slices.get() + 1);
        let mut out = BytesMut::new();
        let put = put_replica(&mut out, OWNER, 4, &large, &pause);
        futures_lite::future::block_on(put);
        assert!(out.capacity() < out.len() + out.len() / 2);
        put_commit(&mut out, OWNER, 4, 10, BootEpoch(3));
        // 2 MB of states and their CRC, and the rows.
        assert!(slices.get() > 85, "{} slices", slices.get());
        let found = frames(&loaded(&[&out])).remove(0);
        let whole: Vec<u8> = std::iter::once(&large.state)
            .chain(&large.more_state)
            .flatten()
            .copied()
            .collect();
        let expected = ReplicaFrame {
            state: whole.into(),
            more_state: Vec::new(),
            ..large
        };
        assert!(found == expected, "it comes back");
    }

    #[test]
    fn a_newer_base_lies_on_top_of_what_it_doesnt_speak_of() {
        let old = checkpoint(2, 3, &[frame(1, 1), frame(7, 1), frame(8, 1)], &[]);
        let new = checkpoint(3, 9, &[frame(1, 4)], &[8]);
        let l = loaded(&[&old, &new]);
        assert_eq!((l.generation, l.sequence), (3, 9));
        assert_eq!(frames(&l), vec![frame(1, 4), frame(7, 1)]);
        // A base without its commit says nothing.
        assert_eq!(
            frames(&loaded(&[&old, &new[..60]])),
            frames(&loaded(&[&old]))
        );
    }

    proptest! {
        #[test]
        fn rot_never_gives_a_wrong_frame(at in 0usize..4096, flip in 1u8..=255) {
            let mut file = checkpoint(4, 10, &[frame(1, 5), frame(2, 5)], &[]);
            let sound = loaded(&[&file]);
            file[at] ^= flip;
            let l = loaded(&[&file]);
            prop_assert!(l == sound || l == Loaded::default());
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = ReplicaFrame::get(&bytes);
            load(&bytes, OWNER, &mut Loaded::default());
        }
    }
}
