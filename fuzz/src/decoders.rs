//! Every decoder of bytes from the disk by itself: blocks, records, directories and superblocks of a journal ([`super::journal`]); checkpoints, indexes, the node file,
//! the frames of a segment ([`super::files`]).
//!
//! Mostly with the checksum put right again, or nothing behind it would ever be looked at. What is taken must be what the encoder writes.

use bytes::{Bytes, BytesMut};
use engine::batch::testing;
use engine::log::block::{self, BlockHeader, HEADER_BYTES, Seed};
use engine::log::directory::{Directory, Run};
use engine::log::door;
use engine::log::record;
use engine::log::superblock::{ChainPoint, DATA_START, EpochStart, Superblock};
use engine::types::*;
use uuid::Uuid;

use crate::memory;

const SEED: Seed = Seed {
    directory_id: 77,
    journal: 3,
};
/// Memory that decoding may take: so many times the input, and this many bytes besides.
const TIMES_INPUT: usize = 32;
const BESIDES_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Block,
    Records,
    Directory,
    Superblock,
    Checkpoint,
    Index,
    Node,
    Frames,
}

fn group(n: i32) -> GroupId {
    GroupId {
        topic: TopicId(Uuid::from_u128(9)),
        partition: n,
    }
}

fn records() -> Bytes {
    let mut out = BytesMut::new();
    let hard_state = HardState {
        term: Term(3),
        vote: 1,
        commit: RaftIndex(4),
    };
    record::put_created(&mut out, ReplicaId(1), group(1), b"state");
    record::put_hard_state(&mut out, ReplicaId(1), &hard_state);
    for i in 0..3 {
        let base = Offset(10 + 2 * i);
        let entry = Entry {
            index: RaftIndex(5 + i as u64),
            term: Term(3),
            kind: EntryKind::Batch,
            base_offset: base,
            next_offset: Offset(base.0 + 2),
            data: testing::batch(2, 20, None).stamped(base, LeaderEpoch(3)),
        };
        record::put_entry(&mut out, ReplicaId(1), RaftIndex(4), &entry, i == 2);
    }
    record::put_removed(&mut out, ReplicaId(2));
    out.freeze()
}

fn directory() -> Bytes {
    let run = |replica, first| Run {
        replica: ReplicaId(replica),
        term: Term(3),
        first: RaftIndex(first),
        last: RaftIndex(first + 6),
        next_offset: Offset(40),
        hard_state: HardState {
            term: Term(3),
            vote: 1,
            commit: RaftIndex(first),
        },
    };
    let directory = Directory {
        runs: vec![run(1, 5), run(2, 900)],
        created: vec![(ReplicaId(4), group(4), Bytes::from_static(b"state"))],
        removed: vec![ReplicaId(5)],
    };
    directory.encode()
}

fn sealed() -> Vec<u8> {
    let (directory, records) = (directory(), records());
    let used = HEADER_BYTES + directory.len() + records.len();
    let mut block = vec![0; block::block_bytes(used)];
    block[HEADER_BYTES..HEADER_BYTES + directory.len()].copy_from_slice(&directory);
    block[HEADER_BYTES + directory.len()..used].copy_from_slice(&records);
    let h = BlockHeader {
        boot_epoch: BootEpoch(2),
        lsn: Lsn(9),
        durable_lsn: Lsn(7),
        previous_crc: 5,
        lap: 1,
        block_bytes: block.len() as u32,
        used_bytes: used as u32,
        directory_bytes: directory.len() as u32,
    };
    block::seal(&mut block, &h, SEED, 8192);
    block
}

fn superblock() -> Vec<u8> {
    let at = |lsn: u64| ChainPoint {
        lsn: Lsn(lsn),
        position: DATA_START + lsn * 4096,
        lap: 2,
        previous_crc: 99,
    };
    let start = |boot_epoch, lsn| EpochStart::of(BootEpoch(boot_epoch), at(lsn));
    let s = Superblock {
        sequence: 8,
        size: 1 << 25,
        tail: at(10),
        checkpoint_sequence: 4,
        epochs: vec![start(2, 7), start(4, 12), start(5, 12)],
    };
    s.encode(SEED)
}

/// Little-endian CRC-32C of a range, into the four bytes from 4 on.
fn reseal(bytes: &mut [u8], from: usize, used: usize, seed: u32) {
    if used <= bytes.len() && from <= used && bytes.len() >= 8 {
        let crc = crc32c::crc32c_append(seed, &bytes[from..used]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 4).map_or(0, |b| {
        u32::from_le_bytes(b.try_into().expect("four bytes")) as usize
    })
}

fn put_right(kind: Kind, bytes: &mut [u8]) {
    match kind {
        Kind::Block => {
            if let Some(h) = block::plausible_header(bytes)
                && h.block_bytes as usize == bytes.len()
            {
                block::seal(bytes, &h, SEED, 8192);
            }
        }
        Kind::Superblock => reseal(bytes, 8, u32_at(bytes, 12), 0),
        Kind::Index => reseal(bytes, 8, 12 + u32_at(bytes, 8), 0),
        Kind::Node => reseal(bytes, 8, 28, 0),
        Kind::Checkpoint => {
            let (directory_id, shard) = door::CHECKPOINT_OWNER;
            let mut owner = directory_id.to_le_bytes().to_vec();
            owner.extend_from_slice(&shard.to_le_bytes());
            let seed = crc32c::crc32c(&owner);
            let mut at = 0;
            while at + 21 <= bytes.len() && bytes[at..at + 4] == *b"TRC2" {
                let end = at + 21 + u32_at(bytes, at + 8);
                if end > bytes.len() {
                    break;
                }
                reseal(&mut bytes[at..end], 8, end - at, seed);
                at = end;
            }
        }
        Kind::Frames => {
            let mut at = 0;
            while at + 39 <= bytes.len() {
                let length = i32::from_be_bytes(bytes[at + 8..at + 12].try_into().expect("four"));
                let end = at + 12 + length.max(0) as usize;
                if bytes[at + 16] != 0x7e || end > bytes.len() || end < at + 39 {
                    break;
                }
                let crc = crc32c::crc32c(&bytes[at + 21..end]);
                bytes[at + 17..at + 21].copy_from_slice(&crc.to_le_bytes());
                at = end;
            }
        }
        Kind::Records | Kind::Directory => {}
    }
}

/// Whether it was taken.
fn decode(kind: Kind, bytes: &[u8]) -> bool {
    match kind {
        Kind::Block => {
            let Some((h, _)) = block::verify(bytes, SEED, 8192) else {
                return false;
            };
            let records_at = HEADER_BYTES + h.directory_bytes as usize;
            let directory = Directory::decode(&bytes[HEADER_BYTES..records_at]);
            let records = Bytes::copy_from_slice(&bytes[records_at..h.used_bytes as usize]);
            directory.is_some() && record::records(records).all(|r| r.is_ok())
        }
        Kind::Records => record::records(Bytes::copy_from_slice(bytes)).all(|r| r.is_ok()),
        Kind::Directory => {
            let Some(d) = Directory::decode(bytes) else {
                return false;
            };
            assert_eq!(Directory::decode(&d.encode()), Some(d));
            true
        }
        Kind::Superblock => {
            let Ok(mut s) = Superblock::decode(bytes, SEED) else {
                return false;
            };
            s.prune_epochs();
            let start = s.epoch_of(s.tail.lsn);
            assert!(start.is_some(), "some start covers the tail");
            true
        }
        Kind::Checkpoint => door::checkpoint(bytes) > 0,
        Kind::Index => door::index(bytes).is_some(),
        Kind::Node => door::node(bytes).is_some(),
        Kind::Frames => door::walk(bytes) > 0,
    }
}

/// Something sound of every kind.
pub fn sound() -> Vec<(Kind, Vec<u8>)> {
    let mut all = vec![
        (Kind::Block, sealed()),
        (Kind::Records, records().to_vec()),
        (Kind::Directory, directory().to_vec()),
        (Kind::Superblock, superblock()),
        (Kind::Node, door::node_file()),
    ];
    all.extend(
        door::checkpoints()
            .into_iter()
            .map(|b| (Kind::Checkpoint, b)),
    );
    all.extend(door::indexes().into_iter().map(|b| (Kind::Index, b)));
    let frames = door::frames();
    all.push((Kind::Frames, frames.concat()));
    all.extend(frames.into_iter().map(|b| (Kind::Frames, b)));
    all
}

/// The input of `kinds` that stands for these bytes: a first byte says the kind, and whether checksums are put right; see [`run`].
pub fn input(kinds: &[Kind], kind: Kind, bytes: &[u8]) -> Option<Vec<u8>> {
    let place = kinds.iter().position(|k| *k == kind)?;
    Some([&[place as u8][..], bytes].concat())
}

/// Decodes an input that is one of `kinds`; whether it was taken. From 128 on its first byte leaves the checksums as they are.
pub fn run(kinds: &[Kind], input: &[u8]) -> bool {
    let Some((first, bytes)) = input.split_first() else {
        return false;
    };
    let kind = kinds[usize::from(first % 128) % kinds.len()];
    let mut bytes = bytes.to_vec();
    if *first < 128 {
        put_right(kind, &mut bytes);
    }
    let (good, peak) = memory::peak(|| decode(kind, &bytes));
    let allowed = TIMES_INPUT * bytes.len() + BESIDES_BYTES;
    assert!(
        peak <= allowed,
        "{kind:?}: {peak} bytes for {}",
        bytes.len()
    );
    good
}
