//! For the fuzz targets alone (the crate `fuzz/`): the decoders of bytes from the disk that nobody outside calls, with something sound to begin with.
//!
//! Each takes any bytes and answers; what it answers is looked at here for what the log relies on. Nothing of this is part of what the crate offers.

use bytes::{Bytes, BytesMut};
use uuid::Uuid;

use super::checkpoint::{self, Loaded, Owner, ReplicaFrame};
use super::frame::{self, Parsed};
use super::node_file::NodeFile;
use super::segment::{self, IndexRow, SegmentMeta};
use super::terms::TermRow;
use crate::types::*;

const OWNER: Owner = Owner {
    directory_id: 77,
    shard: 3,
};

/// What a checkpoint's frames start their CRC from here.
pub const CHECKPOINT_OWNER: (u64, u32) = (OWNER.directory_id, OWNER.shard);

fn rows(n: u64) -> Vec<IndexRow> {
    let row = |i| IndexRow {
        offset: Offset(10 + 3 * i as i64),
        index: RaftIndex(5 + i),
        position: i * 70_000,
        max_timestamp: 1_700_000_000_000 + i as i64,
    };
    (0..n).map(row).collect()
}

/// Checkpoint files of several shapes.
pub fn checkpoints() -> Vec<Vec<u8>> {
    let frame = |id: u64, segments: u64| {
        let last = RaftIndex(5 + 10 * segments - 1);
        let meta = |i: u64| SegmentMeta {
            base_offset: Offset(10 + 30 * i as i64),
            base_index: RaftIndex(5 + 10 * i),
            generation: i + 1,
            end: 800_000,
            extent_bytes: 0,
            last_index: RaftIndex(5 + 10 * (i + 1) - 1),
            next_offset: Offset(10 + 30 * (i as i64 + 1)),
            max_timestamp: 1_700_000_000_000,
            created_ms: 1_700_000_000_000,
            sealed: i + 1 < segments,
            rows: if i == 0 && segments == 1 {
                rows(10)
            } else {
                Vec::new()
            },
        };
        ReplicaFrame {
            id: ReplicaId(id),
            group: GroupId {
                topic: TopicId(Uuid::from_u128(u128::from(id) << 60)),
                partition: id as i32,
            },
            captured: (BootEpoch(3), Lsn(1000 + id)),
            hard_state: HardState {
                term: Term(4),
                vote: id,
                commit: last,
            },
            first: RaftIndex(5),
            log_start: Offset(10),
            written_out: last,
            written_next_offset: Offset(10 + 30 * segments as i64),
            write: (802_816, 800_000),
            next_generation: segments + 1,
            terms: vec![
                TermRow {
                    term: Term(1),
                    first: RaftIndex(1),
                    start: Offset(0),
                },
                TermRow {
                    term: Term(4),
                    first: RaftIndex(6),
                    start: Offset(13),
                },
            ],
            manifest: (0..segments).map(meta).collect(),
            extents: Vec::new(),
            state_at: last,
            state_next_offset: Offset(10 + 30 * segments as i64),
            state: Bytes::from(vec![id as u8; 100]),
            more_state: Vec::new(),
        }
    };
    let file = |frames: &[ReplicaFrame], removed: &[u64]| {
        let mut out = BytesMut::new();
        for f in frames {
            checkpoint::put_replica_at_once(&mut out, OWNER, 5, f);
        }
        for id in removed {
            checkpoint::put_removed(&mut out, OWNER, 5, ReplicaId(*id));
        }
        checkpoint::put_commit(&mut out, OWNER, 5, 9, BootEpoch(3));
        out.resize(out.len().next_multiple_of(4096), 0);
        out.to_vec()
    };
    vec![
        file(&[frame(1, 1)], &[]),
        file(&[frame(1, 3), frame(2, 1), frame(9, 2)], &[4, 5]),
        file(&[], &[1]),
    ]
}

/// Reads a checkpoint file; the number of its last checkpoint.
pub fn checkpoint(bytes: &[u8]) -> u64 {
    let mut loaded = Loaded::default();
    checkpoint::load(bytes, OWNER, &mut loaded);
    for f in loaded.replicas.values() {
        // What was taken is written again as it is.
        let mut out = BytesMut::new();
        checkpoint::put_replica_at_once(&mut out, OWNER, 1, f);
        checkpoint::put_commit(&mut out, OWNER, 1, 1, BootEpoch(3));
        let mut again = Loaded::default();
        checkpoint::load(&out, OWNER, &mut again);
        assert_eq!(again.replicas.get(&f.id), Some(f), "a frame comes back");
    }
    loaded.sequence
}

/// Index files.
pub fn indexes() -> Vec<Vec<u8>> {
    [1, 7, 40]
        .map(|n| segment::encode_index(&rows(n)).to_vec())
        .to_vec()
}

/// Reads an index file; its rows go up.
pub fn index(bytes: &[u8]) -> Option<usize> {
    let rows = segment::decode_index(bytes)?;
    let up = rows.windows(2).all(|w| {
        w[0].offset <= w[1].offset && w[0].index <= w[1].index && w[0].position <= w[1].position
    });
    assert!(up, "rows go up");
    for offset in [0, 12, 40, i64::MAX] {
        if let Some(row) = segment::row_for_offset(&rows, Offset(offset)) {
            assert!(row.offset <= Offset(offset));
        }
    }
    Some(rows.len())
}

/// A copy of the node file.
pub fn node_file() -> Vec<u8> {
    let node = NodeFile {
        directory_id: 77,
        boot_epoch: BootEpoch(12),
    };
    node.encode().to_vec()
}

/// Reads a copy of the node file; the start after it has a number.
pub fn node(bytes: &[u8]) -> Option<u64> {
    NodeFile::decode(bytes).map(|(_, node)| node.boot_epoch.0 + 1)
}

/// Service frames and paddings of a segment.
pub fn frames() -> Vec<Vec<u8>> {
    let header = |kind, data: usize| EntryHeader {
        index: RaftIndex(7),
        term: Term(3),
        kind,
        base_offset: Offset(20),
        next_offset: Offset(20),
        data_bytes: data as u32,
    };
    let command = Bytes::from_static(b"a command of the metadata group");
    vec![
        frame::of_entry(&header(EntryKind::NoOp, 0), Some(&Bytes::new())).to_vec(),
        frame::of_entry(&header(EntryKind::Command, command.len()), Some(&command)).to_vec(),
        frame::of_entry(&header(EntryKind::Batch, 100), None).to_vec(),
        frame::padding(3000, Offset(9)).to_vec(),
    ]
}

/// Steps over the frames at the front of a segment's bytes; how many there are.
pub fn walk(bytes: &[u8]) -> usize {
    let (mut at, mut seen) = (0, 0);
    while let Parsed::Frame(f) = frame::parse(&bytes[at.min(bytes.len())..]) {
        let length = match f {
            frame::Frame::Batch(h) => h.total_bytes,
            frame::Frame::Service { total_bytes }
            | frame::Frame::Extent { total_bytes, .. }
            | frame::Frame::Damaged { total_bytes, .. }
            | frame::Frame::Pad { total_bytes } => total_bytes,
        };
        assert!(length > 0, "a walk goes on");
        at += length;
        seen += 1;
    }
    seen
}
