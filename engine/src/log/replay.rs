//! Reading a journal back, block by block, from its tail to where it ends (L3, L4).
//!
//! The chain ends where the next block is neither behind the last one nor at the front of the ring. Whether that is a torn tail or damage is told by what
//! follows: damage is only what a later valid block of the same start vouches for, or what a later start has written behind. A torn tail is
//! cut; over damage the reading goes on, and the next block's directory says what was lost.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::LogError;
use super::block::{self, BlockHeader, HEADER_BYTES, MAX_BLOCK_BYTES, Seed};
use super::directory::Directory;
use super::files::io_error;
use super::superblock::{
    ChainPoint, DATA_START, EpochStart, SUPERBLOCK_BYTES, Superblock, SuperblockError,
};
use crate::limits::{BLOCK_BYTES, COMMITS_IN_FLIGHT};
use crate::rt::{File, OpenOptions};
use crate::types::*;

/// Bytes of one read of the journal.
pub(crate) const READ_BYTES: usize = 1 << 20;
/// How far behind a break a later block is looked for, in bytes: more than all commits that can be in flight.
const SEARCH_BYTES: u64 = (COMMITS_IN_FLIGHT as u64 + 1) * MAX_BLOCK_BYTES as u64;

/// What comes next in a journal.
#[derive(Debug)]
pub(crate) enum Step {
    Block {
        boot_epoch: BootEpoch,
        lsn: Lsn,
        records: Bytes,
    },
    /// Commits `first` to `last` were durable and can't be read. `directory` says what the last of them held.
    Damaged {
        boot_epoch: BootEpoch,
        first: Lsn,
        last: Lsn,
        directory: Option<Directory>,
    },
    End {
        torn: bool,
    },
}

pub(crate) struct JournalScan {
    pub path: PathBuf,
    pub superblock: Superblock,
    /// Blocks from the tail on that were read.
    pub live: Vec<ChainPoint>,
    /// Where the next block is expected; at the end, where this start begins to write.
    pub cursor: ChainPoint,
    file: File,
    seed: Seed,
    window: (u64, Bytes),
    /// The block before wasn't read, so that its CRC isn't known.
    unchained: bool,
    /// The start of the block before: within a run of starts they only go up.
    reached: BootEpoch,
}

fn found(
    bytes: &[u8],
    seed: Seed,
    position: u64,
    min_lsn: Lsn,
    boot_epoch: BootEpoch,
) -> Option<BlockHeader> {
    let h = block::plausible_header(bytes)?;
    if h.boot_epoch != boot_epoch || h.lsn <= min_lsn {
        return None;
    }
    block::verify(bytes, seed, position).map(|(h, _)| h)
}

impl JournalScan {
    /// Opens a journal to read it. `None` when it was never used: its first superblock never became durable.
    pub async fn open(path: &Path, seed: Seed) -> Result<Option<JournalScan>, LogError> {
        let cannot = |source| LogError::Io {
            what: "cannot open",
            path: path.to_owned(),
            source,
        };
        let file = File::open(path, OpenOptions::default())
            .await
            .map_err(cannot)?;
        // What a killed process had in flight may be readable and not durable; it counts from here on, so it is made so first.
        file.sync().await.map_err(io_error("cannot sync", path))?;
        let front = file
            .read_at(0, DATA_START as usize + BLOCK_BYTES)
            .await
            .map_err(io_error("cannot read", path))?;
        let mut newest: Option<Superblock> = None;
        for slot in front.chunks(SUPERBLOCK_BYTES).take(2) {
            match Superblock::decode(slot, seed) {
                Ok(s) if newest.as_ref().is_none_or(|n| n.sequence < s.sequence) => {
                    newest = Some(s)
                }
                Ok(_) | Err(SuperblockError::Invalid) => {}
                Err(SuperblockError::Foreign) => {
                    let why =
                        "this journal belongs to another data directory; put the right one back"
                            .into();
                    return Err(LogError::Format {
                        path: path.to_owned(),
                        why,
                    });
                }
                Err(SuperblockError::Version(v)) => {
                    let why = format!(
                        "journal format {v} is newer than this Tailrace knows; run the newer version"
                    );
                    return Err(LogError::Format {
                        path: path.to_owned(),
                        why,
                    });
                }
            }
        }
        let Some(superblock) = newest else {
            let unused = front.iter().skip(DATA_START as usize).all(|b| *b == 0);
            file.close().await.map_err(io_error("cannot close", path))?;
            if unused {
                return Ok(None);
            }
            let why = "both superblocks are damaged; restore this journal from a backup".into();
            return Err(LogError::Format {
                path: path.to_owned(),
                why,
            });
        };
        let length = file.len().await.map_err(io_error("cannot stat", path))?;
        if length < superblock.size {
            let why = format!(
                "{length} bytes are left of {}: it was cut; restore this journal from a backup",
                superblock.size
            );
            return Err(LogError::Format {
                path: path.to_owned(),
                why,
            });
        }
        Ok(Some(JournalScan {
            path: path.to_owned(),
            cursor: superblock.tail,
            superblock,
            live: Vec::new(),
            file,
            seed,
            window: (0, Bytes::new()),
            unchained: false,
            reached: BootEpoch(0),
        }))
    }

    pub async fn close(self) -> Result<(), LogError> {
        self.file
            .close()
            .await
            .map_err(io_error("cannot close", &self.path))
    }

    /// The start that a step belongs to, this journal being read up to behind it.
    pub fn epoch_of(&self, step: &Step) -> BootEpoch {
        match step {
            Step::Block { boot_epoch, .. } | Step::Damaged { boot_epoch, .. } => *boot_epoch,
            // The end comes when all that was written before the last start has been read, in other journals too.
            Step::End { .. } => self
                .superblock
                .epoch_of(self.cursor.lsn)
                .map_or(self.reached, |e| e.boot_epoch),
        }
    }

    /// Bytes at a position: a slice of the window, which moves there if it must.
    async fn bytes(&mut self, position: u64, length: usize) -> Result<Bytes, LogError> {
        let have = |w: &(u64, Bytes)| {
            position >= w.0 && position + length as u64 <= w.0 + w.1.len() as u64
        };
        if !have(&self.window) {
            let left = self.superblock.size.saturating_sub(position) as usize;
            let ask = length.max(READ_BYTES).min(left);
            let read = self
                .file
                .read_at(position, ask)
                .await
                .map_err(io_error("cannot read", &self.path))?;
            self.window = (position, read);
        }
        let start = (position - self.window.0) as usize;
        let end = (start + length).min(self.window.1.len());
        Ok(self.window.1.slice(start.min(end)..end))
    }

    /// The valid block at a position, whatever its place in the chain.
    async fn block_at(
        &mut self,
        position: u64,
    ) -> Result<Option<(BlockHeader, u32, Bytes)>, LogError> {
        if position + BLOCK_BYTES as u64 > self.superblock.size {
            return Ok(None);
        }
        let front = self.bytes(position, HEADER_BYTES).await?;
        let Some(h) = block::plausible_header(&front) else {
            return Ok(None);
        };
        let whole = self.bytes(position, h.used_bytes as usize).await?;
        Ok(block::verify(&whole, self.seed, position).map(|(h, crc)| (h, crc, whole)))
    }

    pub async fn next(&mut self) -> Result<Step, LogError> {
        let Some(epoch) = self.superblock.epoch_of(self.cursor.lsn).copied() else {
            return Ok(Step::End { torn: false });
        };
        if epoch.at.lsn == self.cursor.lsn {
            self.cursor = epoch.at;
            self.unchained = false;
        }
        let here = (self.cursor.position, self.cursor.lap);
        let front = (DATA_START, self.cursor.lap.wrapping_add(1));
        for (position, lap) in [here, front] {
            let Some((h, crc, whole)) = self.block_at(position).await? else {
                continue;
            };
            let chained = self.unchained || h.previous_crc == self.cursor.previous_crc;
            let epochs = epoch.boot_epoch.max(self.reached)..=epoch.last;
            if epochs.contains(&h.boot_epoch) && h.lsn == self.cursor.lsn && h.lap == lap && chained
            {
                self.live.push(ChainPoint {
                    lsn: h.lsn,
                    position,
                    lap,
                    previous_crc: h.previous_crc,
                });
                self.cursor = ChainPoint {
                    lsn: h.lsn.next(),
                    position: position + u64::from(h.block_bytes),
                    lap,
                    previous_crc: crc,
                };
                self.unchained = false;
                self.reached = h.boot_epoch;
                let records =
                    whole.slice(HEADER_BYTES + h.directory_bytes as usize..h.used_bytes as usize);
                return Ok(Step::Block {
                    boot_epoch: h.boot_epoch,
                    lsn: h.lsn,
                    records,
                });
            }
        }
        self.broken(epoch).await
    }

    /// There is no valid block `cursor.lsn`: L4.
    async fn broken(&mut self, epoch: EpochStart) -> Result<Step, LogError> {
        let boot_epoch = epoch.last;
        let lost = self.cursor.lsn;
        let later_start = self
            .superblock
            .epochs
            .iter()
            .find(|e| e.at.lsn > lost)
            .copied();
        // In a run of starts a block behind the break may be one that was discarded: the next entry is where it goes on.
        let (next, vouched) = match epoch.is_run() {
            true => (None, false),
            false => self.search(boot_epoch).await?,
        };
        if !vouched && later_start.is_none() {
            let position = self.cursor.position;
            let torn = self
                .bytes(position, HEADER_BYTES)
                .await?
                .iter()
                .any(|b| *b != 0);
            return Ok(Step::End { torn });
        }
        let next = next.filter(|(_, h, _)| later_start.is_none_or(|s| h.lsn < s.at.lsn));
        let (last, directory) = match (next, later_start) {
            (Some((position, h, directory)), _) => {
                self.cursor = ChainPoint {
                    lsn: h.lsn,
                    position,
                    lap: h.lap,
                    previous_crc: h.previous_crc,
                };
                self.unchained = true;
                (Lsn(h.lsn.0 - 1), directory)
            }
            (None, Some(start)) => {
                // The first block of a start repeats the directory of the last one before it.
                let directory = self.directory_at_start(&start).await?;
                self.cursor = start.at;
                (Lsn(start.at.lsn.0 - 1), directory)
            }
            (None, None) => unreachable!("vouched by a block that was found"),
        };
        Ok(Step::Damaged {
            boot_epoch,
            first: lost,
            last,
            directory,
        })
    }

    async fn directory_at_start(
        &mut self,
        start: &EpochStart,
    ) -> Result<Option<Directory>, LogError> {
        for position in [start.at.position, DATA_START] {
            if let Some((h, _, whole)) = self.block_at(position).await?
                && h.boot_epoch == start.boot_epoch
                && h.lsn == start.at.lsn
            {
                return Ok(Directory::decode(
                    &whole[HEADER_BYTES..HEADER_BYTES + h.directory_bytes as usize],
                ));
            }
        }
        Ok(None)
    }

    /// The valid block of this start with the lowest lsn behind the break, and whether any of them vouches for the lost one.
    #[allow(clippy::type_complexity)]
    async fn search(
        &mut self,
        boot_epoch: BootEpoch,
    ) -> Result<(Option<(u64, BlockHeader, Option<Directory>)>, bool), LogError> {
        let lost = self.cursor.lsn;
        let (mut lowest, mut vouched) = (None::<(u64, BlockHeader, Option<Directory>)>, false);
        let size = self.superblock.size;
        let from = self.cursor.position;
        // What doesn't fit behind the break lies at the front of the ring.
        let wrapped = (from + SEARCH_BYTES).saturating_sub(size);
        let ranges = [
            (from, size.min(from + SEARCH_BYTES)),
            (DATA_START, from.min(DATA_START + wrapped)),
        ];
        for (start, end) in ranges {
            let mut position = start;
            while position + BLOCK_BYTES as u64 <= end {
                let front = self.bytes(position, HEADER_BYTES).await?;
                let hit = block::plausible_header(&front)
                    .filter(|h| h.boot_epoch == boot_epoch && h.lsn > lost);
                if let Some(h) = hit {
                    let whole = self.bytes(position, h.used_bytes as usize).await?;
                    if let Some(h) = found(&whole, self.seed, position, lost, boot_epoch) {
                        vouched |= h.durable_lsn >= lost;
                        if lowest.as_ref().is_none_or(|(_, l, _)| h.lsn < l.lsn) {
                            let directory = Directory::decode(
                                &whole[HEADER_BYTES..HEADER_BYTES + h.directory_bytes as usize],
                            );
                            lowest = Some((position, h, directory));
                        }
                    }
                }
                position += BLOCK_BYTES as u64;
            }
        }
        Ok((lowest, vouched))
    }
}
