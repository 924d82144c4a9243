//! The two alternating superblocks of a journal (L3): its size, where its live part begins and where each start of the process began to write.
//!
//! The newer valid one counts. A start's entry is durable before its first block, so a block of an earlier start that lies behind that
//! place, torn or not, is never read again.
//!
//! The list is bounded: where too many starts in a row left blocks and no checkpoint, the two oldest entries become one ([`Superblock::bound_epochs`]). What keeps
//! a discarded block out of such a stretch is the chain: at the first lsn of its second start the journal was read, synced before, and held no block of the first
//! that chained; and it got one of the second. Within a stretch boot epochs only go up. After a break nothing of the rest of it is believed.

use bytes::{BufMut, BytesMut};

use super::block::Seed;
use super::wire::{Reader, put_varint};
use crate::limits::BLOCK_BYTES;
use crate::types::{BootEpoch, Lsn};

/// Bytes of one superblock on disk.
pub const SUPERBLOCK_BYTES: usize = 16 << 10;
/// Where blocks begin.
pub const DATA_START: u64 = 2 * SUPERBLOCK_BYTES as u64;
/// Entries that one superblock can list.
pub const MAX_EPOCHS: usize = 400;

const MAGIC: u32 = u32::from_le_bytes(*b"TRS1");
const VERSION: u32 = 2;

/// A place in the chain of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainPoint {
    pub lsn: Lsn,
    pub position: u64,
    pub lap: u32,
    /// The CRC of the block before `lsn`.
    pub previous_crc: u32,
}

/// Where a start of the process began to write, or a run of them the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    pub boot_epoch: BootEpoch,
    /// The last start of the run.
    pub last: BootEpoch,
    pub at: ChainPoint,
}

impl EpochStart {
    pub fn of(boot_epoch: BootEpoch, at: ChainPoint) -> EpochStart {
        EpochStart {
            boot_epoch,
            last: boot_epoch,
            at,
        }
    }

    /// Stands for several starts.
    pub fn is_run(&self) -> bool {
        self.last > self.boot_epoch
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub sequence: u64,
    /// Bytes of the file that the ring uses.
    pub size: u64,
    /// The first block that is still needed (or will be written).
    pub tail: ChainPoint,
    /// The checkpoint that covers everything before the tail. It was synced, so a start that can't read it has damaged files before it.
    pub checkpoint_sequence: u64,
    /// In order; the first one covers `tail`.
    pub epochs: Vec<EpochStart>,
}

fn put_point(out: &mut BytesMut, p: &ChainPoint) {
    put_varint(out, p.lsn.0);
    put_varint(out, p.position);
    put_varint(out, u64::from(p.lap));
    out.put_u32_le(p.previous_crc);
}

fn point(r: &mut Reader) -> Option<ChainPoint> {
    Some(ChainPoint {
        lsn: Lsn(r.number()?),
        position: r.number()?,
        lap: u32::try_from(r.varint()?).ok()?,
        previous_crc: r.u32()?,
    })
}

impl Superblock {
    /// A whole superblock, ready to be written to slot `sequence % 2`.
    pub fn encode(&self, seed: Seed) -> Vec<u8> {
        assert!(
            self.epochs.len() <= MAX_EPOCHS,
            "the epochs fit a superblock"
        );
        let mut out = BytesMut::new();
        out.put_u32_le(MAGIC);
        out.put_u32_le(0);
        out.put_u32_le(VERSION);
        out.put_u32_le(0);
        out.put_u64_le(seed.directory_id);
        out.put_u32_le(seed.journal);
        put_varint(&mut out, self.sequence);
        put_varint(&mut out, self.size);
        put_point(&mut out, &self.tail);
        put_varint(&mut out, self.checkpoint_sequence);
        put_varint(&mut out, self.epochs.len() as u64);
        for e in &self.epochs {
            put_varint(&mut out, e.boot_epoch.0);
            put_varint(&mut out, e.last.0 - e.boot_epoch.0);
            put_point(&mut out, &e.at);
        }
        let used = out.len() as u32;
        out[12..16].copy_from_slice(&used.to_le_bytes());
        let crc = crc32c::crc32c(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        assert!(
            out.len() <= SUPERBLOCK_BYTES,
            "a superblock has room for its epochs"
        );
        let mut whole = out.to_vec();
        whole.resize(SUPERBLOCK_BYTES, 0);
        whole
    }

    /// The superblock in `bytes`, if it is one of this journal.
    pub fn decode(bytes: &[u8], seed: Seed) -> Result<Superblock, SuperblockError> {
        let mut r = Reader::new(bytes);
        let no = SuperblockError::Invalid;
        if r.u32().ok_or(no)? != MAGIC {
            return Err(no);
        }
        let stored = r.u32().ok_or(no)?;
        let version = r.u32().ok_or(no)?;
        let used = r.u32().ok_or(no)? as usize;
        let body = bytes.get(8..used).filter(|b| b.len() > 8).ok_or(no)?;
        if crc32c::crc32c(body) != stored {
            return Err(no);
        }
        if version != VERSION {
            return Err(SuperblockError::Version(version));
        }
        let mut r = Reader::new(&bytes[16..used]);
        let theirs = Seed {
            directory_id: r.u64().ok_or(no)?,
            journal: r.u32().ok_or(no)?,
        };
        if theirs != seed {
            return Err(SuperblockError::Foreign);
        }
        Self::body(&mut r).ok_or(no)
    }

    fn body(r: &mut Reader) -> Option<Superblock> {
        let sequence = r.number()?;
        let size = r.number()?;
        let tail = point(r)?;
        let checkpoint_sequence = r.number()?;
        let n = r.count(8)?;
        let mut epochs = Vec::with_capacity(n);
        for _ in 0..n {
            let boot_epoch = BootEpoch(r.number()?);
            let more = r.number()?;
            epochs.push(EpochStart {
                boot_epoch,
                last: BootEpoch(boot_epoch.0.checked_add(more)?),
                at: point(r)?,
            });
        }
        let ordered = epochs.windows(2).all(|w| {
            let (a, b): (&EpochStart, &EpochStart) = (&w[0], &w[1]);
            a.last < b.boot_epoch && a.at.lsn <= b.at.lsn
        });
        let in_ring = |p: &ChainPoint| {
            let inside = p.position >= DATA_START && p.position <= size;
            inside && p.position.is_multiple_of(BLOCK_BYTES as u64) && p.lsn > Lsn(0)
        };
        let covers_tail = epochs.first().is_some_and(|e| e.at.lsn <= tail.lsn);
        let sound = ordered
            && size.is_multiple_of(BLOCK_BYTES as u64)
            && in_ring(&tail)
            && epochs.iter().all(|e| in_ring(&e.at))
            && covers_tail;
        sound.then_some(Superblock {
            sequence,
            size,
            tail,
            checkpoint_sequence,
            epochs,
        })
    }

    /// Drops the starts that left no block at or behind the tail: empty ones, and those whose blocks all lie before it.
    pub fn prune_epochs(&mut self) {
        let mut kept: Vec<EpochStart> = Vec::with_capacity(self.epochs.len());
        for (i, e) in self.epochs.iter().enumerate() {
            let end = self.epochs.get(i + 1).map(|next| next.at.lsn);
            let needed = match end {
                None => true,
                Some(end) => end > e.at.lsn && end > self.tail.lsn,
            };
            if needed {
                kept.push(*e);
            }
        }
        self.epochs = kept;
    }

    /// Makes room for one more entry: the oldest become one. The newest never takes part: it is the start that writes.
    pub fn bound_epochs(&mut self) {
        while self.epochs.len() > MAX_EPOCHS {
            let second = self.epochs.remove(1);
            self.epochs[0].last = second.last;
        }
    }

    /// The start that wrote `lsn`: the last that began at or before it.
    pub fn epoch_of(&self, lsn: Lsn) -> Option<&EpochStart> {
        self.epochs.iter().rev().find(|e| e.at.lsn <= lsn)
    }
}

/// Why bytes are not a superblock of this journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockError {
    /// Torn, rotten or never written.
    Invalid,
    /// Sound, but of another data directory or another shard's journal.
    Foreign,
    /// Written by a version of Tailrace that this one doesn't know.
    Version(u32),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEED: Seed = Seed {
        directory_id: 5,
        journal: 1,
    };

    fn at(lsn: u64) -> ChainPoint {
        ChainPoint {
            lsn: Lsn(lsn),
            position: DATA_START + lsn * 4096,
            lap: 2,
            previous_crc: 99,
        }
    }

    fn example() -> Superblock {
        let start = |boot_epoch, lsn| EpochStart::of(BootEpoch(boot_epoch), at(lsn));
        Superblock {
            sequence: 8,
            size: 1 << 25,
            tail: at(10),
            checkpoint_sequence: 4,
            epochs: vec![start(1, 3), start(2, 7), start(4, 12), start(5, 12)],
        }
    }

    #[test]
    fn it_comes_back_and_knows_its_journal() {
        let s = example();
        let bytes = s.encode(SEED);
        assert_eq!(Superblock::decode(&bytes, SEED), Ok(s));
        let foreign = Seed { journal: 2, ..SEED };
        assert_eq!(
            Superblock::decode(&bytes, foreign),
            Err(SuperblockError::Foreign)
        );
    }

    #[test]
    fn l3_starts_without_live_blocks_are_dropped() {
        let mut s = example();
        s.prune_epochs();
        let left: Vec<u64> = s.epochs.iter().map(|e| e.boot_epoch.0).collect();
        // 1 ended before the tail; 4 wrote nothing.
        assert_eq!(left, vec![2, 5]);
        assert_eq!(s.epoch_of(Lsn(11)).unwrap().boot_epoch, BootEpoch(2));
        assert_eq!(s.epoch_of(Lsn(12)).unwrap().boot_epoch, BootEpoch(5));
    }

    #[test]
    fn a_full_list_fits() {
        let mut s = example();
        s.epochs = (0..MAX_EPOCHS as u64)
            .map(|i| EpochStart {
                boot_epoch: BootEpoch(u64::MAX / 2 + i * (1 << 20)),
                last: BootEpoch(u64::MAX / 2 + i * (1 << 20) + (1 << 20) - 1),
                at: ChainPoint {
                    lsn: Lsn(1 << 50),
                    position: 1 << 40,
                    lap: u32::MAX,
                    previous_crc: u32::MAX,
                },
            })
            .collect();
        assert_eq!(s.encode(SEED).len(), SUPERBLOCK_BYTES);
    }

    #[test]
    fn however_many_starts_leave_blocks_the_list_is_bounded() {
        let mut s = example();
        s.tail = at(1);
        s.epochs.clear();
        for start in 1..3 * MAX_EPOCHS as u64 {
            s.epochs.push(EpochStart::of(BootEpoch(start), at(start)));
            s.prune_epochs();
            s.bound_epochs();
            let back = Superblock::decode(&s.encode(SEED), SEED).unwrap();
            assert_eq!(back, s);
            // Every start is still known, and the writing one has its entry to itself.
            assert_eq!(s.epochs[0].boot_epoch, BootEpoch(1));
            let last = s.epochs.last().unwrap();
            assert!(last.boot_epoch == BootEpoch(start) && !last.is_run());
            assert!(
                s.epochs
                    .windows(2)
                    .all(|w| w[0].last.0 + 1 == w[1].boot_epoch.0)
            );
        }
        assert!(s.epochs[0].is_run() && s.epochs.len() == MAX_EPOCHS);
    }

    /// The CRC of no bytes is 0, and so can be what stands for it.
    #[test]
    fn one_that_says_it_is_shorter_than_its_head_is_refused() {
        let mut bytes = example().encode(SEED);
        bytes[4..8].fill(0);
        for used in 0..16 {
            bytes[12] = used;
            assert!(Superblock::decode(&bytes, SEED).is_err());
        }
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_refused(at in 0usize..80, flip in 1u8..=255) {
            let mut bytes = example().encode(SEED);
            bytes[at] ^= flip;
            prop_assert!(Superblock::decode(&bytes, SEED).is_err());
        }
    }
}
