//! What may happen to the files of a data directory, and what somebody may make of them who knows the formats.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use engine::log::block::{self, HEADER_BYTES, Seed};
use engine::log::superblock::{DATA_START, SUPERBLOCK_BYTES, Superblock};
use engine::types::*;

use crate::image::{Files, Image};
use crate::random::Random;

const BLOCK: usize = 4096;

fn kind(path: &Path) -> &'static str {
    let name = path.to_string_lossy();
    for (part, kind) in [
        ("/journal-", "journal"),
        ("/checkpoint-", "checkpoint"),
        (".log", "segment"),
        (".index", "index"),
        (".extent", "extent"),
        ("/node", "node"),
    ] {
        if name.contains(part) {
            return kind;
        }
    }
    "other"
}

/// A file to change: journals most often, since most lies behind them.
fn choose(random: &mut Random<'_>, files: &Files, wanted: Option<&str>) -> Option<PathBuf> {
    let drawn = match random.below(12) {
        0..5 => "journal",
        5..8 => "checkpoint",
        8 | 9 => "segment",
        10 if random.one_in(2) => "index",
        10 => "extent",
        _ => "node",
    };
    let wanted = wanted.unwrap_or(drawn);
    let of_kind: Vec<&PathBuf> = files.keys().filter(|p| kind(p) == wanted).collect();
    (!of_kind.is_empty()).then(|| (*random.of(&of_kind)).clone())
}

/// A place that holds something: zeros are most of a journal.
fn place(random: &mut Random<'_>, bytes: &[u8]) -> usize {
    for _ in 0..20 {
        let at = random.below(bytes.len());
        let block = at / BLOCK * BLOCK;
        let end = bytes.len().min(block + BLOCK);
        if bytes[block..end].iter().any(|b| *b != 0) {
            // Mostly where the structure is.
            return match random.below(3) {
                0 => (block + random.below(80)).min(bytes.len() - 1),
                _ => at,
            };
        }
    }
    0
}

/// Changes one thing. `true` when checksums were put right over it, or bytes were moved to where no checksum tells that they don't belong.
pub fn mangle(random: &mut Random<'_>, files: &mut Files, image: &Image) -> bool {
    if random.one_in(2) {
        return forge(random, files, image);
    }
    let Some(path) = choose(random, files, None) else {
        return false;
    };
    let older: Vec<&Rc<Vec<u8>>> = image.times.iter().filter_map(|t| t.get(&path)).collect();
    let bytes = Rc::make_mut(files.get_mut(&path).expect("a file that is there"));
    let at = place(random, bytes);
    match random.below(12) {
        _ if bytes.is_empty() => {}
        0..3 => bytes[at] ^= 1 << random.below(8),
        3 => {
            let end = bytes.len().min(at + 1 + random.below(600));
            for b in &mut bytes[at..end] {
                *b = random.any() as u8;
            }
        }
        4 => {
            let sector = [512, BLOCK, 16 * BLOCK][random.below(3)];
            let from = at / sector * sector;
            let end = bytes.len().min(from + sector);
            bytes[from..end].fill(0);
        }
        // A block of the same file lies where it doesn't belong.
        5 => {
            let (from, to) = (random.below(bytes.len()) / BLOCK, at / BLOCK);
            let n = (1 + random.below(8)) * BLOCK;
            let piece =
                bytes[(from * BLOCK).min(bytes.len())..bytes.len().min(from * BLOCK + n)].to_vec();
            let end = bytes.len().min(to * BLOCK + piece.len());
            bytes[to * BLOCK..end].copy_from_slice(&piece[..end - to * BLOCK]);
        }
        // Blocks are as they were before: writes that were lost.
        6 | 7 if !older.is_empty() => {
            let old = *random.of(&older);
            let sector = [512, BLOCK, 64 * BLOCK][random.below(3)];
            let from = at / sector * sector;
            let end = bytes.len().min(from + sector).min(old.len());
            if from < end {
                bytes[from..end].copy_from_slice(&old[from..end]);
            }
        }
        8 => {
            let cut = if random.one_in(2) {
                at
            } else {
                at / BLOCK * BLOCK
            };
            bytes.truncate(cut);
        }
        9 => {
            let more = random.below(3 * BLOCK);
            let fill = if random.one_in(2) {
                0
            } else {
                random.any() as u8
            };
            bytes.resize(bytes.len() + more, fill);
        }
        10 if !older.is_empty() => *bytes = (**random.of(&older)).to_vec(),
        _ => {
            files.remove(&path);
        }
    }
    false
}

fn forge(random: &mut Random<'_>, files: &mut Files, image: &Image) -> bool {
    match random.below(12) {
        0..4 => forge_block(random, files, image),
        4..6 => forge_superblock(random, files, image),
        6..9 => forge_checkpoint(random, files, image),
        9 => forge_index(random, files),
        10 => forge_node(random, files),
        _ => move_file(random, files),
    };
    true
}

fn number_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    name.split('-').nth(1)?.parse().ok()
}

/// Overwrites a little-endian number, or anything.
fn change_field(random: &mut Random<'_>, bytes: &mut [u8]) {
    if bytes.is_empty() {
        return;
    }
    if random.one_in(2) {
        let width = [1, 4, 8][random.below(3)].min(bytes.len());
        let at = random.below(bytes.len() + 1 - width);
        let mut near = [0; 8];
        near[..width].copy_from_slice(&bytes[at..at + width]);
        let value = random.edge(u64::from_le_bytes(near)).to_le_bytes();
        bytes[at..at + width].copy_from_slice(&value[..width]);
    } else {
        let (at, n) = (random.below(bytes.len()), 1 + random.below(10));
        let end = bytes.len().min(at + n);
        // A varint that is as large as can be, or bytes.
        match random.below(3) {
            0 => bytes[at..end].fill(0xff),
            1 => bytes[at] = random.any() as u8,
            _ => bytes[at] ^= 1 << random.below(8),
        }
    }
}

/// A block of a journal, changed and sealed again; the blocks behind it are chained to it, when `chained`.
fn forge_block(random: &mut Random<'_>, files: &mut Files, image: &Image) -> Option<()> {
    let path = choose(random, files, Some("journal"))?;
    let seed = Seed {
        directory_id: image.directory_id,
        journal: number_of(&path)?,
    };
    let bytes = Rc::make_mut(files.get_mut(&path)?);
    let positions: Vec<usize> = (DATA_START as usize..bytes.len().saturating_sub(BLOCK))
        .step_by(BLOCK)
        .filter(|p| {
            let found = block::verify(&bytes[*p..], seed, *p as u64);
            found.is_some_and(|(h, _)| p + h.block_bytes as usize <= bytes.len())
        })
        .collect();
    if positions.is_empty() {
        return None;
    }
    let at = if random.one_in(2) {
        positions[positions.len() - 1 - random.below(positions.len().min(6))]
    } else {
        *random.of(&positions)
    };
    let (mut h, _) = block::verify(&bytes[at..], seed, at as u64)?;
    let (old_bytes, before) = (h.block_bytes as usize, bytes[at + 4..at + 8].to_vec());
    let used = h.used_bytes as usize;
    let mut block = bytes[at..at + old_bytes].to_vec();
    let directory = HEADER_BYTES..HEADER_BYTES + h.directory_bytes as usize;
    let records = directory.end..used;
    match random.below(8) {
        0 => h.lsn = Lsn(random.edge(h.lsn.0)),
        1 => h.durable_lsn = Lsn(random.edge(h.durable_lsn.0)),
        2 => h.boot_epoch = BootEpoch(random.edge(h.boot_epoch.0)),
        3 => h.lap = random.edge(u64::from(h.lap)) as u32,
        4 => h.directory_bytes = random.below(used - HEADER_BYTES + 1) as u32,
        5 => change_field(random, &mut block[directory]),
        6 => change_field(random, &mut block[records]),
        _ => {
            // More or fewer records: one is there twice, or goes.
            let piece = records.start + random.below(records.len().max(1));
            let end = used.min(piece + random.below(100));
            let repeated = block[piece.min(used)..end].to_vec();
            let room = (old_bytes - used).min(repeated.len());
            block[used..used + room].copy_from_slice(&repeated[..room]);
            h.used_bytes = (used + room) as u32;
            if block::block_bytes(h.used_bytes as usize) != old_bytes {
                h.used_bytes = used as u32;
            }
        }
    }
    let crc = block::seal(&mut block, &h, seed, at as u64);
    bytes[at..at + old_bytes].copy_from_slice(&block);
    if random.one_in(3) {
        return Some(());
    }
    // What followed it follows it still.
    let (mut old, mut new) = (u32::from_le_bytes(before.try_into().ok()?), crc);
    for _ in 0..64 {
        let next = positions.iter().find_map(|p| {
            let (h, crc) = block::verify(&bytes[*p..], seed, *p as u64)?;
            (*p != at && h.previous_crc == old).then_some((*p, h, crc))
        });
        let Some((p, mut h, crc)) = next else { break };
        h.previous_crc = new;
        let end = p + h.block_bytes as usize;
        (old, new) = (crc, block::seal(&mut bytes[p..end], &h, seed, p as u64));
    }
    Some(())
}

fn forge_superblock(random: &mut Random<'_>, files: &mut Files, image: &Image) -> Option<()> {
    let path = choose(random, files, Some("journal"))?;
    let seed = Seed {
        directory_id: image.directory_id,
        journal: number_of(&path)?,
    };
    let bytes = Rc::make_mut(files.get_mut(&path)?);
    let slot = random.below(2);
    let place = slot * SUPERBLOCK_BYTES..(slot + 1) * SUPERBLOCK_BYTES;
    let mut s = Superblock::decode(bytes.get(place.clone())?, seed).ok()?;
    s.sequence += u64::from(random.one_in(2));
    let mut whole = None;
    match random.below(8) {
        0 => s.sequence = random.edge(s.sequence),
        1 => s.size = random.edge(s.size),
        2 => s.checkpoint_sequence = random.edge(s.checkpoint_sequence),
        3 => {
            let point = match random.below(s.epochs.len() + 1) {
                0 => &mut s.tail,
                n => &mut s.epochs[n - 1].at,
            };
            match random.below(4) {
                0 => point.lsn = Lsn(random.edge(point.lsn.0)),
                1 => point.position = random.edge(point.position),
                2 => point.lap = random.edge(u64::from(point.lap)) as u32,
                _ => point.previous_crc ^= 1,
            }
        }
        4 => {
            let n = random.below(s.epochs.len());
            let e = &mut s.epochs[n];
            e.boot_epoch = BootEpoch(random.edge(e.boot_epoch.0));
            e.last = e.last.max(e.boot_epoch);
        }
        5 => {
            let n = random.below(s.epochs.len());
            s.epochs.remove(n);
        }
        6 => {
            let last = *s.epochs.last()?;
            while s.epochs.len() < 399 {
                let mut next = last;
                next.boot_epoch.0 += s.epochs.len() as u64;
                next.last = next.boot_epoch;
                s.epochs.push(next);
            }
        }
        _ => {
            let mut raw = s.encode(seed);
            let used = u32::from_le_bytes(raw[12..16].try_into().ok()?) as usize;
            change_field(random, &mut raw[28..used]);
            reseal(&mut raw, 8..used);
            whole = Some(raw);
        }
    }
    let whole = whole.unwrap_or_else(|| s.encode(seed));
    bytes[place].copy_from_slice(&whole);
    let other = (1 - slot) * SUPERBLOCK_BYTES;
    // The file may have been cut between the two.
    let other = bytes.get_mut(other..other + SUPERBLOCK_BYTES);
    if let Some(other) = other.filter(|_| random.one_in(2)) {
        other.copy_from_slice(&whole);
    }
    Some(())
}

/// CRC-32C of a range, into the four bytes from 4 on.
fn reseal(bytes: &mut [u8], covered: std::ops::Range<usize>) {
    let crc = crc32c::crc32c(&bytes[covered]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Frames of a checkpoint: changed, there twice, or gone.
fn forge_checkpoint_bytes(
    random: &mut Random<'_>,
    bytes: &mut Vec<u8>,
    directory_id: u64,
    shard: u32,
) {
    let mut seed = [0u8; 12];
    seed[..8].copy_from_slice(&directory_id.to_le_bytes());
    seed[8..].copy_from_slice(&shard.to_le_bytes());
    let seed = crc32c::crc32c(&seed);
    let mut frames = Vec::new();
    let mut at = 0;
    while at + 21 <= bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().expect("four bytes"));
        let end = at + 21 + length as usize;
        if bytes[at..at + 4] != *b"TRC2" || end > bytes.len() {
            // Padding up to the next checkpoint.
            at = (at + 1).next_multiple_of(BLOCK);
            continue;
        }
        frames.push(at..end);
        at = end;
    }
    if frames.is_empty() {
        return;
    }
    let chosen = random.of(&frames).clone();
    let start = chosen.start;
    match random.below(6) {
        0 => {
            let copy = bytes[chosen].to_vec();
            bytes.splice(start..start, copy);
        }
        1 => {
            bytes.drain(chosen);
        }
        _ => {
            // The kind and generation seldom, the body mostly.
            let from = if random.one_in(8) { 8 } else { 21 };
            change_field(random, &mut bytes[start + from..chosen.end]);
            let crc = crc32c::crc32c_append(seed, &bytes[start + 8..chosen.end]);
            bytes[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

fn forge_checkpoint(random: &mut Random<'_>, files: &mut Files, image: &Image) -> Option<()> {
    let path = choose(random, files, Some("checkpoint"))?;
    let shard = number_of(&path)?;
    let bytes = Rc::make_mut(files.get_mut(&path)?);
    forge_checkpoint_bytes(random, bytes, image.directory_id, shard);
    Some(())
}

fn forge_index(random: &mut Random<'_>, files: &mut Files) -> Option<()> {
    let path = choose(random, files, Some("index"))?;
    let bytes = Rc::make_mut(files.get_mut(&path)?);
    let used = 12 + u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?) as usize;
    if used > bytes.len() {
        return None;
    }
    change_field(random, &mut bytes[8..used]);
    reseal(bytes, 8..used);
    Some(())
}

fn forge_node(random: &mut Random<'_>, files: &mut Files) -> Option<()> {
    let bytes = Rc::make_mut(files.get_mut(Path::new("/data/node"))?);
    let first = random.below(2);
    for copy in 0..1 + random.below(2) {
        let slot = bytes.get_mut((first + copy) % 2 * BLOCK..)?;
        change_field(random, slot.get_mut(8..28)?);
        reseal(slot, 8..28);
    }
    Some(())
}

/// A file under another's name, or under a name that is no file of ours.
fn move_file(random: &mut Random<'_>, files: &mut Files) -> Option<()> {
    let from = choose(random, files, None)?;
    let bytes = files.get(&from)?.clone();
    let to = match random.below(4) {
        0 => choose(random, files, Some(kind(&from)))?,
        1 => PathBuf::from(format!("/data/journal-{}", random.edge(7))),
        2 => PathBuf::from(format!(
            "/data/checkpoint-{}-{}",
            random.edge(1) as u32,
            random.edge(3)
        )),
        _ => PathBuf::from(format!(
            "/data/checkpoint-{}-{}",
            random.below(3),
            random.edge(3)
        )),
    };
    if random.one_in(2) {
        files.remove(&from);
    }
    files.insert(to, bytes);
    Some(())
}

/// A segment or an index: one thing changed, as a disk does it; or an index that is forged.
pub fn mangle_segment(random: &mut Random<'_>, files: &mut Files, forged: bool) {
    if forged && random.one_in(2) {
        forge_index(random, files);
        return;
    }
    let wanted = match random.below(8) {
        0 => "index",
        1 => "extent",
        _ => "segment",
    };
    let Some(path) = choose(random, files, Some(wanted)) else {
        return;
    };
    let bytes = Rc::make_mut(files.get_mut(&path).expect("a file that is there"));
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(10) {
        0..4 => bytes[at] ^= 1 << random.below(8),
        4 => {
            let sector = [512, BLOCK][random.below(2)];
            let from = at / sector * sector;
            let end = bytes.len().min(from + sector);
            bytes[from..end].fill(0);
        }
        // The fields at the front of a frame.
        5 | 6 => {
            let frame = frames(bytes).nth(random.below(40)).unwrap_or(0);
            let end = bytes.len().min(frame + 61);
            let field = &mut bytes[frame.min(end)..end];
            if field.len() > 17 {
                let from = [0, 8, 12, 16, 17][random.below(5)];
                let edge = (random.edge(100) as u32).to_be_bytes();
                field[from..from + 4].copy_from_slice(&edge);
            }
        }
        // A frame lies where another was.
        7 => {
            let all: Vec<usize> = frames(bytes).collect();
            let (from, to) = (*random.of(&all), *random.of(&all));
            let n = (1 + random.below(3000)).min(bytes.len() - from.max(to));
            bytes.copy_within(from..from + n, to);
        }
        8 => bytes.truncate(at),
        _ => {
            files.remove(&path);
        }
    }
}

/// Where the frames of a segment begin; at least one.
fn frames(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let at = next?;
        next = bytes
            .get(at + 8..at + 12)
            .map(|l| i32::from_be_bytes(l.try_into().expect("four bytes")))
            .filter(|l| *l > 0)
            .map(|l| at + 12 + l as usize)
            .filter(|n| n + 17 < bytes.len());
        Some(at)
    })
}
