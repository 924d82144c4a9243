//! A disk with a volatile write cache, in memory.
//!
//! Invariants:
//! - `read` answers the newest write, flushed or not, while the power is on.
//! - A flush takes time: `begin_flush` … `end_flush`. The latter makes durable every write that returned before the
//!   former, and no later one.
//! - `cut` forgets what was not flushed and refuses everything until `resume`.
//!   A write or flush that returned an error has promised nothing.
//!
//! Bounds: at most `size` bytes; blocks of 4 KiB that hold only zeroes take no memory.
//!
//! Called by `image` (the file that the kernel sees) and `main` (the switch).

use std::collections::{BTreeMap, HashMap, VecDeque};

/// What is cached, kept and lost as one piece, in bytes.
pub const BLOCK: usize = 4096;
/// The unit that a real disk writes whole, in bytes.
const SECTOR: usize = 512;

type Block = Box<[u8; BLOCK]>;
type Layer = BTreeMap<u64, Block>;

/// A flush under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flush(u64);

/// The power is off.
#[derive(Debug, PartialEq, Eq)]
pub struct PowerOff;

/// Counters since the start, and of the last cut.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counters {
    pub writes: u64,
    pub flushes: u64,
    pub cuts: u64,
    /// Blocks whose newest content was not flushed when the power was cut.
    pub unflushed_blocks: u64,
    /// Of these, blocks that reached the medium all the same, whole or torn.
    pub kept_blocks: u64,
}

/// Which unflushed blocks survive a cut.
#[derive(Debug, Clone, Copy)]
pub struct Mercy {
    /// Chance, in percent, that an unflushed block reaches the medium. Half of those are torn.
    pub percent: u64,
    pub seed: u64,
}

pub struct Disk {
    size: u64,
    power: bool,
    medium: HashMap<u64, Block>,
    cache: Layer,
    /// What the flushes under way will make durable, oldest first.
    flushing: VecDeque<(Flush, Layer)>,
    next_flush: u64,
    /// Flushes before this one were under way at a cut: they fail.
    oldest_valid: Flush,
    counters: Counters,
}

impl Disk {
    pub fn new(size: u64) -> Self {
        Disk {
            size,
            power: true,
            medium: HashMap::new(),
            cache: Layer::new(),
            flushing: VecDeque::new(),
            next_flush: 0,
            oldest_valid: Flush(0),
            counters: Counters::default(),
        }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Reads up to `length` bytes; fewer at the end of the disk.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, PowerOff> {
        if !self.power {
            return Err(PowerOff);
        }
        let end = offset.saturating_add(length as u64).min(self.size);
        let mut answer = vec![0; end.saturating_sub(offset) as usize];
        for piece in pieces(offset, answer.len()) {
            if let Some(block) = self.newest(piece.block) {
                answer[piece.at..piece.at + piece.length]
                    .copy_from_slice(&block[piece.from..piece.from + piece.length]);
            }
        }
        Ok(answer)
    }

    /// Writes into the cache; bytes past the end of the disk are dropped.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), PowerOff> {
        if !self.power {
            return Err(PowerOff);
        }
        self.counters.writes += 1;
        let room = self.size.saturating_sub(offset).min(data.len() as u64) as usize;
        for piece in pieces(offset, room) {
            if !self.cache.contains_key(&piece.block) {
                let older = self.newest(piece.block).cloned();
                self.cache
                    .insert(piece.block, older.unwrap_or_else(|| Box::new([0; BLOCK])));
            }
            let block = self.cache.get_mut(&piece.block).expect("put there above");
            block[piece.from..piece.from + piece.length]
                .copy_from_slice(&data[piece.at..piece.at + piece.length]);
        }
        Ok(())
    }

    /// Begins to make everything written so far durable.
    pub fn begin_flush(&mut self) -> Result<Flush, PowerOff> {
        if !self.power {
            return Err(PowerOff);
        }
        let flush = Flush(self.next_flush);
        self.next_flush += 1;
        self.flushing
            .push_back((flush, std::mem::take(&mut self.cache)));
        Ok(flush)
    }

    /// Ends a flush, and with it those that began before. Fails if the power went in between.
    pub fn end_flush(&mut self, flush: Flush) -> Result<(), PowerOff> {
        if !self.power || flush < self.oldest_valid {
            return Err(PowerOff);
        }
        self.counters.flushes += 1;
        while let Some((_, layer)) = self.flushing.pop_front_if(|(number, _)| *number <= flush) {
            for (number, block) in layer {
                self.settle(number, block);
            }
        }
        Ok(())
    }

    /// Cuts the power. Without mercy, every unflushed write is forgotten.
    pub fn cut(&mut self, mercy: Option<Mercy>) {
        self.power = false;
        self.counters.cuts += 1;
        self.oldest_valid = Flush(self.next_flush);
        let mut lost = Layer::new();
        for (_, layer) in self.flushing.drain(..) {
            lost.extend(layer);
        }
        lost.append(&mut self.cache);
        self.counters.unflushed_blocks = lost.len() as u64;
        self.counters.kept_blocks = 0;
        let Some(Mercy { percent, seed }) = mercy else {
            return;
        };
        let mut random = Random(seed);
        for (number, newer) in lost {
            if random.next() % 100 >= percent {
                continue;
            }
            self.counters.kept_blocks += 1;
            let mut block = self
                .medium
                .get(&number)
                .cloned()
                .unwrap_or_else(|| Box::new([0; BLOCK]));
            // Not block 0: ext4 checks its superblock before it replays its journal, and mounts no torn one.
            let torn = number != 0 && random.next().is_multiple_of(2);
            for sector in (0..BLOCK).step_by(SECTOR) {
                if !torn || random.next().is_multiple_of(2) {
                    block[sector..sector + SECTOR].copy_from_slice(&newer[sector..sector + SECTOR]);
                }
            }
            self.settle(number, block);
        }
    }

    pub fn resume(&mut self) {
        self.power = true;
    }

    fn newest(&self, number: u64) -> Option<&Block> {
        self.cache
            .get(&number)
            .or_else(|| {
                let layers = self.flushing.iter().rev();
                layers.filter_map(|(_, layer)| layer.get(&number)).next()
            })
            .or_else(|| self.medium.get(&number))
    }

    fn settle(&mut self, number: u64, block: Block) {
        if block.iter().all(|byte| *byte == 0) {
            self.medium.remove(&number);
        } else {
            self.medium.insert(number, block);
        }
    }
}

/// The part of a transfer that lies in one block.
struct Piece {
    block: u64,
    /// Where it begins in the block.
    from: usize,
    /// Where it begins in the caller's buffer.
    at: usize,
    length: usize,
}

fn pieces(offset: u64, length: usize) -> impl Iterator<Item = Piece> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == length {
            return None;
        }
        let position = offset + at as u64;
        let from = (position % BLOCK as u64) as usize;
        let piece = Piece {
            block: position / BLOCK as u64,
            from,
            at,
            length: (BLOCK - from).min(length - at),
        };
        at += piece.length;
        Some(piece)
    })
}

/// splitmix64: a cut with the same seed keeps the same blocks.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn flush(disk: &mut Disk) {
        let flush = disk.begin_flush().unwrap();
        disk.end_flush(flush).unwrap();
    }

    #[test]
    fn a_flush_covers_what_was_written_before_it_began() {
        let mut disk = Disk::new(SIZE);
        disk.write(0, &[1; 4096]).unwrap();
        let first = disk.begin_flush().unwrap();
        disk.write(0, &[2; 2048]).unwrap();
        disk.write(8192, &[3; 10]).unwrap();
        let second = disk.begin_flush().unwrap();
        assert_eq!(disk.read(2047, 2).unwrap(), [2, 1]);
        disk.end_flush(first).unwrap();
        disk.cut(None);
        disk.resume();
        assert_eq!(disk.end_flush(second), Err(PowerOff));
        assert_eq!(disk.read(0, 4096).unwrap(), [1; 4096]);
        assert_eq!(disk.read(8192, 1).unwrap(), [0]);
    }

    #[test]
    fn a_flush_ends_those_before_it() {
        let mut disk = Disk::new(SIZE);
        disk.write(0, &[1; 10]).unwrap();
        let first = disk.begin_flush().unwrap();
        disk.write(0, &[2; 5]).unwrap();
        let second = disk.begin_flush().unwrap();
        disk.end_flush(second).unwrap();
        disk.end_flush(first).unwrap();
        disk.cut(None);
        disk.resume();
        assert_eq!(disk.read(4, 2).unwrap(), [2, 1]);
    }

    #[test]
    fn reads_the_newest_write_across_blocks() {
        let mut disk = Disk::new(SIZE);
        disk.write(4000, &[1; 200]).unwrap();
        flush(&mut disk);
        disk.write(4096, &[2; 4]).unwrap();
        let read = disk.read(3999, 202).unwrap();
        assert_eq!(read[0], 0);
        assert_eq!(read[1..97], [1; 96]);
        assert_eq!(read[97..101], [2; 4]);
        assert_eq!(read[101..201], [1; 100]);
        assert_eq!(read[201], 0);
    }

    #[test]
    fn a_cut_forgets_what_was_not_flushed() {
        let mut disk = Disk::new(SIZE);
        disk.write(0, &[1; 8192]).unwrap();
        flush(&mut disk);
        disk.write(0, &[2; 4096]).unwrap();
        disk.cut(None);
        assert_eq!(disk.read(0, 1), Err(PowerOff));
        assert_eq!(disk.write(0, &[3]), Err(PowerOff));
        assert_eq!(disk.begin_flush(), Err(PowerOff));
        disk.resume();
        assert_eq!(disk.read(0, 8192).unwrap(), [1; 8192]);
        assert_eq!(disk.counters().unflushed_blocks, 1);
    }

    #[test]
    fn mercy_keeps_some_blocks_and_tears_some() {
        let mut disk = Disk::new(SIZE);
        disk.write(0, &vec![7; SIZE as usize]).unwrap();
        disk.cut(Some(Mercy {
            percent: 50,
            seed: 1,
        }));
        disk.resume();
        let read = disk.read(0, SIZE as usize).unwrap();
        let whole = read
            .chunks(BLOCK)
            .filter(|b| b.iter().all(|x| *x == 7))
            .count();
        let gone = read
            .chunks(BLOCK)
            .filter(|b| b.iter().all(|x| *x == 0))
            .count();
        let torn = read.len() / BLOCK - whole - gone;
        assert!(
            whole > 30 && gone > 80 && torn > 30,
            "{whole} {gone} {torn}"
        );
    }

    #[test]
    fn ends_at_its_size_and_forgets_zeroes() {
        let mut disk = Disk::new(8192);
        disk.write(8000, &[9; 400]).unwrap();
        flush(&mut disk);
        assert_eq!(disk.read(8000, 400).unwrap(), vec![9; 192]);
        assert_eq!(disk.read(9000, 10).unwrap(), Vec::<u8>::new());
        disk.write(4096, &[0; 4096]).unwrap();
        flush(&mut disk);
        assert!(disk.medium.is_empty());
    }
}
