//! A journal commit as it lies on disk (design §4, L3).
//!
//! A block begins on a 4 KiB boundary and is a whole number of them long: a header of 64 bytes, the directory of the commit before (L4), the records.
//! Its CRC-32C starts from a seed of node, journal and position, so that bytes that belong to another journal or to another place are no block;
//! it covers everything used but itself. The chain is `lsn`, which goes up by one, and the CRC of the block before.
//!
//! Layout, little-endian: magic u32 @0, CRC u32 @4, boot epoch u64 @8, lsn u64 @16, durable lsn u64 @24, CRC of the block before u32 @32, lap u32 @36,
//! bytes of the block u32 @40, used bytes u32 @44, directory bytes u32 @48, zeros to 64.

use crate::limits::{BLOCK_BYTES, COMMIT_BYTES};
use crate::types::{BootEpoch, Lsn};

pub const HEADER_BYTES: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"TRJ1");

/// Largest block, in bytes: a commit's records, its directory and the rounding.
pub const MAX_BLOCK_BYTES: usize = 2 * COMMIT_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    pub boot_epoch: BootEpoch,
    pub lsn: Lsn,
    /// The journal's `durable_lsn` when this block was handed to the disk.
    pub durable_lsn: Lsn,
    pub previous_crc: u32,
    pub lap: u32,
    /// Bytes of the whole block on disk, a multiple of 4096.
    pub block_bytes: u32,
    /// Bytes that mean something, header included.
    pub used_bytes: u32,
    pub directory_bytes: u32,
}

/// What a block's CRC starts from: whose journal it is and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The data directory's own random number.
    pub directory_id: u64,
    pub journal: u32,
}

impl Seed {
    fn at(&self, position: u64) -> u32 {
        let mut bytes = [0u8; 20];
        bytes[..8].copy_from_slice(&self.directory_id.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.journal.to_le_bytes());
        bytes[12..].copy_from_slice(&position.to_le_bytes());
        crc32c::crc32c(&bytes)
    }
}

/// Bytes on disk of a block that uses `used` bytes.
pub fn block_bytes(used: usize) -> usize {
    used.next_multiple_of(BLOCK_BYTES)
}

/// Writes the header into `block` and returns its CRC.
///
/// # Panics
/// When the header's lengths aren't those of `block`: they are ours.
pub fn seal(block: &mut [u8], h: &BlockHeader, seed: Seed, position: u64) -> u32 {
    assert_eq!(
        block.len(),
        h.block_bytes as usize,
        "a block is sealed whole"
    );
    assert!(h.used_bytes as usize <= block.len() && h.used_bytes as usize >= HEADER_BYTES);
    block[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    block[8..16].copy_from_slice(&h.boot_epoch.0.to_le_bytes());
    block[16..24].copy_from_slice(&h.lsn.0.to_le_bytes());
    block[24..32].copy_from_slice(&h.durable_lsn.0.to_le_bytes());
    block[32..36].copy_from_slice(&h.previous_crc.to_le_bytes());
    block[36..40].copy_from_slice(&h.lap.to_le_bytes());
    block[40..44].copy_from_slice(&h.block_bytes.to_le_bytes());
    block[44..48].copy_from_slice(&h.used_bytes.to_le_bytes());
    block[48..52].copy_from_slice(&h.directory_bytes.to_le_bytes());
    block[52..HEADER_BYTES].fill(0);
    let crc = crc32c::crc32c_append(seed.at(position), &block[8..h.used_bytes as usize]);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// The header at the front of `bytes` if its lengths make sense. Its CRC hasn't been looked at: it may be anything.
pub fn plausible_header(bytes: &[u8]) -> Option<BlockHeader> {
    let header = bytes.get(..HEADER_BYTES)?;
    let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let u64_at =
        |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    if u32_at(0) != MAGIC {
        return None;
    }
    let h = BlockHeader {
        boot_epoch: BootEpoch(u64_at(8)),
        lsn: Lsn(u64_at(16)),
        durable_lsn: Lsn(u64_at(24)),
        previous_crc: u32_at(32),
        lap: u32_at(36),
        block_bytes: u32_at(40),
        used_bytes: u32_at(44),
        directory_bytes: u32_at(48),
    };
    let (block, used, directory) = (
        h.block_bytes as usize,
        h.used_bytes as usize,
        h.directory_bytes as usize,
    );
    let sound = used >= HEADER_BYTES
        && block <= MAX_BLOCK_BYTES
        && block == block_bytes(used)
        && directory <= used - HEADER_BYTES;
    sound.then_some(h)
}

/// The header and CRC of the whole block at the front of `bytes`, if it is one that was written to `position` of this journal.
pub fn verify(bytes: &[u8], seed: Seed, position: u64) -> Option<(BlockHeader, u32)> {
    let h = plausible_header(bytes)?;
    let used = bytes.get(..h.used_bytes as usize)?;
    let stored = u32::from_le_bytes(used[4..8].try_into().expect("four bytes"));
    let computed = crc32c::crc32c_append(seed.at(position), &used[8..]);
    (stored == computed).then_some((h, stored))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEED: Seed = Seed {
        directory_id: 77,
        journal: 3,
    };

    fn sealed(position: u64) -> Vec<u8> {
        let mut block = vec![7u8; 4096];
        let h = BlockHeader {
            boot_epoch: BootEpoch(2),
            lsn: Lsn(9),
            durable_lsn: Lsn(7),
            previous_crc: 5,
            lap: 1,
            block_bytes: 4096,
            used_bytes: 300,
            directory_bytes: 20,
        };
        seal(&mut block, &h, SEED, position);
        assert_eq!(verify(&block, SEED, position).unwrap().0, h);
        block
    }

    #[test]
    fn l3_a_block_is_only_valid_where_it_was_written() {
        let block = sealed(8192);
        assert!(verify(&block, SEED, 12288).is_none());
        assert!(verify(&block, Seed { journal: 4, ..SEED }, 8192).is_none());
        let other = Seed {
            directory_id: 78,
            ..SEED
        };
        assert!(verify(&block, other, 8192).is_none());
    }

    #[test]
    fn every_flipped_bit_that_is_used_is_seen() {
        let block = sealed(0);
        for bit in 0..300 * 8 {
            let mut b = block.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&b, SEED, 0).is_none(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if bytes.len() > 4 {
                bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            }
            let _ = verify(&bytes, SEED, 0);
        }
    }
}
