//! Where bits flip, and what that may cost: the journals are read as a start reads them, with the engine's own decoders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use engine::log::LogError;
use engine::log::block::{self, BlockHeader, HEADER_BYTES, Seed};
use engine::log::record::{self, Record};
use engine::log::superblock::{DATA_START, SUPERBLOCK_BYTES, Superblock};
use engine::rt::sim::World;
use engine::types::*;

use super::Outside;
use super::sim_common::Draw;

/// A block of a journal that a start will want to read.
struct LiveBlock {
    position: u64,
    header: BlockHeader,
    bytes: Vec<u8>,
}

pub struct LiveJournal {
    path: PathBuf,
    superblock: Superblock,
    blocks: BTreeMap<Lsn, LiveBlock>,
}

fn node_copies(node: &[u8]) -> impl Iterator<Item = &[u8]> {
    node.chunks(4096)
        .filter(|slot| slot.len() > 28 && crc32c(&slot[8..28]) == slot[4..8])
}

fn seed_of(world: &World, path: &Path) -> Option<Seed> {
    let node = world.read_file(Path::new("/data/node"))?;
    let slot = node_copies(&node).next()?;
    Some(Seed {
        directory_id: u64::from_le_bytes(slot[12..20].try_into().expect("eight bytes")),
        journal: path.to_str()?.rsplit('-').next()?.parse().ok()?,
    })
}

fn journal(world: &World, path: &Path) -> Option<LiveJournal> {
    let seed = seed_of(world, path)?;
    let file = world.read_file(path)?;
    let superblock = file
        .chunks(SUPERBLOCK_BYTES)
        .take(2)
        .filter_map(|s| Superblock::decode(s, seed).ok())
        .max_by_key(|s| s.sequence)?;
    let mut blocks = BTreeMap::new();
    for position in (DATA_START..superblock.size.min(file.len() as u64)).step_by(4096) {
        let Some((header, _)) = block::verify(&file[position as usize..], seed, position) else {
            continue;
        };
        let ours = superblock.epoch_of(header.lsn).map(|e| e.boot_epoch);
        if header.lsn >= superblock.tail.lsn && ours == Some(header.boot_epoch) {
            let bytes = file[position as usize..][..header.used_bytes as usize].to_vec();
            blocks.insert(
                header.lsn,
                LiveBlock {
                    position,
                    header,
                    bytes,
                },
            );
        }
    }
    Some(LiveJournal {
        path: path.to_owned(),
        superblock,
        blocks,
    })
}

fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let mut crc = !0u32;
    for b in bytes {
        crc ^= u32::from(*b);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82F6_3B78 & 0u32.wrapping_sub(crc & 1));
        }
    }
    (!crc).to_le_bytes()
}

impl LiveJournal {
    /// Whether the directory of the block before is all that a flip here could lose besides the block, and that of this one is said elsewhere.
    fn stands_alone(&self, lsn: Lsn) -> bool {
        let last = *self.blocks.keys().next_back().expect("it holds `lsn`");
        let before = lsn <= self.superblock.tail.lsn || self.blocks.contains_key(&Lsn(lsn.0 - 1));
        before && (lsn == last || self.blocks.contains_key(&Lsn(lsn.0 + 1)))
    }

    /// Whether it isn't known from a later block or start that `lsn` was durable (L4).
    fn looks_torn(&self, lsn: Lsn) -> bool {
        let Some(newest) = self.superblock.epochs.last() else {
            return false;
        };
        let mut later = self.blocks.values().filter(|b| b.header.lsn > lsn);
        lsn >= newest.at.lsn && !later.any(|b| b.header.durable_lsn >= lsn)
    }
}

fn of_block(b: &LiveBlock, mut f: impl FnMut(usize, Record)) {
    let records = b.bytes[HEADER_BYTES + b.header.directory_bytes as usize..].to_vec();
    for (id, r) in record::records(records.into()).map(|r| r.expect("ours")) {
        f(id.0 as usize - 1, r);
    }
}

pub struct Driver {
    pub world: World,
    pub draw: Draw,
    pub outside: Rc<Outside>,
    pub flipped: Vec<(PathBuf, u64)>,
    /// What the next start may, and must, refuse over.
    pub may_refuse: Vec<&'static str>,
    pub must_refuse: bool,
    /// Blocks that a flip hit before the next start, with what their journal was like.
    pub blocks_hit: Vec<(LiveJournal, Lsn)>,
}

impl Driver {
    fn flip(&mut self, path: &Path, byte: u64) {
        let bit = byte * 8 + self.draw.below(8);
        assert!(self.world.flip_bit(path, bit), "the byte is there");
        self.flipped.push((path.to_owned(), bit));
    }

    fn one_of(&mut self, wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
        let files = self.world.files();
        let all: Vec<_> = files
            .into_iter()
            .filter(|p| p.to_str().is_some_and(&wanted))
            .filter(|p| self.world.read_file(p).is_some_and(|b| !b.is_empty()))
            .collect();
        (!all.is_empty()).then(|| all[self.draw.below(all.len() as u64) as usize].clone())
    }

    fn in_journal(&mut self) -> Option<()> {
        let path = self.one_of(|p| p.contains("/journal-"))?;
        let j = journal(&self.world, &path)?;
        let lsns: Vec<Lsn> = j.blocks.keys().copied().collect();
        let reach = if self.draw.below(6) == 0 {
            3
        } else {
            lsns.len() as u64
        };
        let back = self.draw.below(reach.max(1)) as usize;
        let lsn = *lsns.get(lsns.len().checked_sub(1 + back)?)?;
        let near =
            |(other, l): &(LiveJournal, Lsn)| other.path == j.path && l.0.abs_diff(lsn.0) < 2;
        if !j.stands_alone(lsn) || self.blocks_hit.iter().any(near) {
            return None;
        }
        let b = &j.blocks[&lsn];
        let (directory, used) = (u64::from(b.header.directory_bytes), b.bytes.len() as u64);
        let records_at = HEADER_BYTES as u64 + directory;
        let places = [
            (0, 64.min(HEADER_BYTES as u64 - 12)),
            (HEADER_BYTES as u64, directory),
            (records_at, used - records_at),
        ];
        let (from, length) = places[self.draw.below(3) as usize];
        let byte = b.position
            + if length == 0 {
                8
            } else {
                from + self.draw.below(length)
            };
        of_block(b, |n, r| {
            let (Record::Append { entry, .. } | Record::Carry { entry, .. }) = r else {
                return;
            };
            let mut k = self.outside.groups[n].borrow_mut();
            k.hit.insert(entry.base_offset);
        });
        if std::env::var_os("SIM_SEED").is_some() {
            println!(
                "flip at {byte} in {lsn} of {path:?}: {:?}, blocks {:?} to {:?}, {:?}",
                b.header,
                lsns.first(),
                lsns.last(),
                j.superblock
            );
            of_block(b, |n, r| println!("  {n}: {r:?}"));
        }
        self.flip(&path, byte);
        self.outside.counts.borrow_mut().in_journal += 1;
        self.blocks_hit.push((j, lsn));
        Some(())
    }

    fn in_segment(&mut self) -> Option<()> {
        let path = self.one_of(|p| p.ends_with(".log"))?;
        let bytes = self.world.read_file(&path)?;
        let byte = self.draw.below(bytes.len() as u64);
        let directory = path.parent()?.file_name()?.to_str()?;
        let n = directory.rsplit("-r").next()?.parse::<usize>().ok()? - 1;
        let mut k = self.outside.groups[n].borrow_mut();
        let mut at = 0u64;
        loop {
            let Some(front) = bytes.get(at as usize..at as usize + 17) else {
                k.hit_anywhere = true;
                break;
            };
            let length = i32::from_be_bytes(front[8..12].try_into().expect("four bytes"));
            let end = at + 12 + length.max(0) as u64;
            if length <= 0 || !matches!(front[16], 2 | 0x7e) {
                k.hit_anywhere = true;
                break;
            }
            if byte < end {
                if front[16] == 2 {
                    let base = i64::from_be_bytes(front[..8].try_into().expect("eight bytes"));
                    k.hit.insert(Offset(base));
                }
                break;
            }
            at = end;
        }
        drop(k);
        self.flip(&path, byte);
        self.outside.counts.borrow_mut().in_segments += 1;
        Some(())
    }

    fn in_whole_file(&mut self, checkpoint: bool) -> Option<()> {
        let path = self.one_of(|p| match checkpoint {
            true => p.contains("/checkpoint-"),
            false => p.ends_with(".index"),
        })?;
        let bytes = self.world.read_file(&path)?;
        let used: Vec<u64> = (0..)
            .zip(&bytes)
            .filter(|(_, b)| **b != 0)
            .map(|(i, _)| i)
            .collect();
        let byte = *used.get(self.draw.below(used.len().max(1) as u64) as usize)?;
        self.flip(&path, byte);
        let mut counts = self.outside.counts.borrow_mut();
        if checkpoint {
            counts.in_checkpoints += 1;
            self.may_refuse.push("checkpoint-");
        } else {
            counts.in_indexes += 1;
        }
        Some(())
    }

    /// In one copy of a superblock or of the node file; sometimes in both.
    fn in_copies(&mut self, node: bool) -> Option<()> {
        let path = self.one_of(|p| match node {
            true => p.ends_with("/node"),
            false => p.contains("/journal-"),
        })?;
        let bytes = self.world.read_file(&path)?;
        let (copy_bytes, used) = match node {
            true => (4096, 28),
            false => (SUPERBLOCK_BYTES as u64, u64::from(bytes[12])),
        };
        let first = self.draw.below(2);
        let both = self.draw.below(6) == 0;
        let copies = if both { 2 } else { 1 };
        // One that rots where the other was torn by a crash, or rotted before, is both.
        let sound = match node {
            true => node_copies(&bytes).count(),
            false => {
                let seed = seed_of(&self.world, &path)?;
                let copies = bytes.chunks(SUPERBLOCK_BYTES).take(2);
                copies
                    .filter(|s| Superblock::decode(s, seed).is_ok())
                    .count()
            }
        };
        if sound < 2 {
            return None;
        }
        for copy in 0..copies {
            let byte = (first + copy) % 2 * copy_bytes + self.draw.below(used.max(16));
            self.flip(&path, byte);
        }
        let mut counts = self.outside.counts.borrow_mut();
        match node {
            true => counts.in_node_files += copies,
            false => counts.in_superblocks += copies,
        }
        if both {
            self.must_refuse = true;
            self.may_refuse.push(if node { "node" } else { "journal-" });
        }
        Some(())
    }

    pub fn flips(&mut self) {
        self.flipped.clear();
        self.may_refuse.clear();
        self.must_refuse = false;
        self.blocks_hit.clear();
        for _ in 0..1 + u64::from(self.draw.below(3) == 0) {
            let _ = match self.draw.below(12) {
                0..5 => self.in_journal(),
                5..8 => self.in_segment(),
                8 => self.in_whole_file(true),
                9 => self.in_whole_file(false),
                10 => self.in_copies(false),
                _ => self.in_copies(true),
            };
            if self.must_refuse {
                break;
            }
        }
        for (before, lsn) in std::mem::take(&mut self.blocks_hit) {
            let now = journal(&self.world, &before.path);
            if !now.as_ref().unwrap_or(&before).looks_torn(lsn) {
                continue;
            }
            self.outside.counts.borrow_mut().lookalikes += 1;
            for b in before.blocks.range(lsn..).map(|(_, b)| b) {
                of_block(b, |n, r| {
                    let mut k = self.outside.groups[n].borrow_mut();
                    let from = match r {
                        Record::Append { entry, .. } | Record::Carry { entry, .. } => {
                            // What another journal holds behind it tells of the hole.
                            k.hit.insert(entry.base_offset);
                            entry.base_offset
                        }
                        Record::Created { .. } => Offset(0),
                        _ => return,
                    };
                    k.excused_from = Some(k.excused_from.map_or(from, |e| e.min(from)));
                });
            }
        }
    }

    /// The named file is put back from a backup.
    pub fn refused(&mut self, seed: u64) {
        let e = self.outside.refusal.take().expect("it said why");
        let text = e.to_string();
        let allowed = self.may_refuse.iter().any(|name| text.contains(name));
        assert!(
            allowed && matches!(e, LogError::Format { .. }),
            "refused: {text}, after flips in {:?}",
            self.flipped
        );
        self.outside.counts.borrow_mut().refused += 1;
        let of_kind: Vec<_> = self.may_refuse.clone();
        let world = self.world.clone();
        self.flipped.retain(|(path, bit)| {
            let back = path
                .file_name()
                .and_then(|n| n.to_str())
                .is_some_and(|n| of_kind.iter().any(|k| n.starts_with(k) && text.contains(k)))
                && (!path.to_string_lossy().contains("/journal-") || bit / 8 < DATA_START);
            if back {
                world.flip_bit(path, *bit);
            }
            !back
        });
        assert!(!self.may_refuse.is_empty(), "seed {seed}");
        self.must_refuse = false;
    }
}
