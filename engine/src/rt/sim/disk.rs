//! The simulated disk: what a process sees, and what a power cut leaves.
//!
//! Everything exists twice: *visible*, as the page cache shows it, and *durable*. Between the two lies, for a file, the list of its changes since it was last
//! synced, and, for the whole disk, the list of changes of names. A sync makes a prefix of a file's changes durable. A power cut keeps, loses or tears each
//! unsynced write by itself (by 512-byte sectors or by blocks), decides on each change of length, and keeps a prefix of the unsynced changes of names. Blocks are shared between
//! the two views and zero blocks aren't stored, so that large files of zeros cost nothing.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rand::Rng;
use rand::rngs::SmallRng;

use super::{Faults, SimConfig, Stop};
use crate::limits::BLOCK_BYTES;

const SECTOR: usize = 512;

type Block = [u8; BLOCK_BYTES];

/// A file's bytes by block. An absent block is zeros.
#[derive(Clone, Default)]
pub struct Content {
    blocks: BTreeMap<u64, Rc<Block>>,
    pub len: u64,
}

/// A change of a file that isn't durable yet.
#[derive(Clone)]
enum Change {
    Write(Vec<(u64, Option<Rc<Block>>)>, u64),
    Len(u64),
}

#[derive(Clone, Default)]
struct Inode {
    visible: Content,
    durable: Content,
    pending: Vec<(u64, Change)>,
}

/// A node of the tree of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    File(u64),
    Dir(u64),
}

type Names = BTreeMap<String, Entry>;

/// One atomic change of names: what each (directory, name) is afterwards.
#[derive(Clone)]
struct NameChange {
    parts: Vec<(u64, String, Option<Entry>)>,
    /// Directories that have not been synced since.
    unsynced: Vec<u64>,
}

/// A write that is on its way.
struct InFlight {
    inode: u64,
    pos: u64,
    data: Vec<Option<Rc<Block>>>,
    durable: bool,
    begun: u64,
}

pub struct Disk {
    inodes: BTreeMap<u64, Inode>,
    visible: BTreeMap<u64, Names>,
    durable: BTreeMap<u64, Names>,
    names_pending: Vec<NameChange>,
    in_flight: BTreeMap<u64, InFlight>,
    next: u64,
}

const ROOT: u64 = 0;

impl Content {
    fn block(&self, n: u64) -> Option<&Rc<Block>> {
        self.blocks.get(&n)
    }

    fn set(&mut self, n: u64, block: Option<Rc<Block>>) {
        match block {
            Some(b) => self.blocks.insert(n, b),
            None => self.blocks.remove(&n),
        };
    }

    fn set_len(&mut self, len: u64) {
        if len < self.len {
            let size = BLOCK_BYTES as u64;
            drop(self.blocks.split_off(&len.div_ceil(size)));
            let rest = (len % size) as usize;
            if rest > 0
                && let Some(last) = self.blocks.get_mut(&(len / size))
            {
                Rc::make_mut(last)[rest..].fill(0);
            }
        }
        self.len = len;
    }

    pub fn read(&self, pos: u64, len: usize) -> Vec<u8> {
        let end = self.len.min(pos.saturating_add(len as u64));
        let mut bytes = vec![0; end.saturating_sub(pos) as usize];
        let mut at = pos;
        while at < end {
            let n = at / BLOCK_BYTES as u64;
            let skip = (at % BLOCK_BYTES as u64) as usize;
            let take = (BLOCK_BYTES - skip).min((end - at) as usize);
            if let Some(b) = self.block(n) {
                let to = (at - pos) as usize;
                bytes[to..to + take].copy_from_slice(&b[skip..skip + take]);
            }
            at += take as u64;
        }
        bytes
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write(blocks, end) => {
                for (n, b) in blocks {
                    self.set(*n, b.clone());
                }
                self.len = self.len.max(*end);
            }
            Change::Len(len) => self.set_len(*len),
        }
    }
}

/// The bytes as blocks; the last one is padded with zeros.
fn blocks_of(bytes: &[u8]) -> Vec<Option<Rc<Block>>> {
    let block = |chunk: &[u8]| {
        if chunk.iter().all(|b| *b == 0) {
            return None;
        }
        let mut b = [0; BLOCK_BYTES];
        b[..chunk.len()].copy_from_slice(chunk);
        Some(Rc::new(b))
    };
    bytes.chunks(BLOCK_BYTES).map(block).collect()
}

impl Disk {
    pub fn new() -> Disk {
        let roots: BTreeMap<u64, Names> = [(ROOT, Names::new())].into();
        Disk {
            inodes: BTreeMap::new(),
            visible: roots.clone(),
            durable: roots,
            names_pending: Vec::new(),
            in_flight: BTreeMap::new(),
            next: 1,
        }
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    // ---- files ----

    pub fn content(&self, inode: u64) -> &Content {
        &self.inodes[&inode].visible
    }

    /// Whole blocks of all files that have a name; what is on its way to lengthen one counts.
    pub fn used_bytes(&self) -> u64 {
        let mut used = 0;
        for names in self.visible.values() {
            for entry in names.values() {
                if let Entry::File(f) = entry {
                    used += self.end_of(*f).next_multiple_of(BLOCK_BYTES as u64);
                }
            }
        }
        used
    }

    /// Bytes that a file takes more when it reaches to `end`.
    pub fn grows_by(&self, inode: u64, end: u64) -> u64 {
        end.saturating_sub(self.end_of(inode).next_multiple_of(BLOCK_BYTES as u64))
    }

    /// Where the file ends once all that is on its way has arrived.
    fn end_of(&self, inode: u64) -> u64 {
        let coming = self.in_flight.values().filter(|w| w.inode == inode);
        let ends = coming.map(|w| w.pos + (w.data.len() * BLOCK_BYTES) as u64);
        ends.max().unwrap_or(0).max(self.inodes[&inode].visible.len)
    }

    fn inode(&mut self, inode: u64) -> &mut Inode {
        self.inodes
            .get_mut(&inode)
            .expect("an open file's inode stays")
    }

    /// A write leaves for the disk.
    pub fn begin_write(&mut self, inode: u64, pos: u64, bytes: &[u8], durable: bool) -> u64 {
        let begun = self.id();
        let op = InFlight {
            inode,
            pos,
            data: blocks_of(bytes),
            durable,
            begun,
        };
        self.in_flight.insert(begun, op);
        begun
    }

    /// It has arrived. True if one begun earlier on the same journal is still on its way.
    pub fn end_write(&mut self, op: u64) -> bool {
        let Some(w) = self.in_flight.remove(&op) else {
            return false;
        };
        let overtook = w.durable
            && self
                .in_flight
                .values()
                .any(|o| o.durable && o.inode == w.inode && o.begun < w.begun);
        let change = change(&w);
        let seq = self.id();
        let inode = self.inode(w.inode);
        inode.visible.apply(&change);
        if w.durable {
            // What lies under it and isn't durable yet can't come back over it.
            for (_, older) in &mut inode.pending {
                if let (Change::Write(blocks, _), Change::Write(new, _)) = (older, &change) {
                    blocks.retain(|(n, _)| !new.iter().any(|(m, _)| m == n));
                }
            }
            inode.durable.apply(&change);
        } else {
            inode.pending.push((seq, change));
        }
        overtook
    }

    pub fn set_len(&mut self, inode: u64, len: u64) {
        let seq = self.id();
        let inode = self.inode(inode);
        inode.visible.set_len(len);
        inode.pending.push((seq, Change::Len(len)));
    }

    /// Everything that has happened so far is what a sync that begins now makes durable.
    pub fn mark(&mut self) -> u64 {
        self.id()
    }

    pub fn sync(&mut self, inode: u64, mark: u64) {
        let inode = self.inode(inode);
        let later = inode.pending.partition_point(|(seq, _)| *seq <= mark);
        for (_, change) in inode.pending.drain(..later) {
            inode.durable.apply(&change);
        }
    }

    // ---- names ----

    /// The directory that holds the path's last name, and that name.
    fn parent(&self, path: &Path) -> io::Result<(u64, String)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let dir = self.dir(path.parent().unwrap_or(Path::new("")))?;
        Ok((dir, name.to_string_lossy().into_owned()))
    }

    fn dir(&self, path: &Path) -> io::Result<u64> {
        let mut at = ROOT;
        for part in parts(path) {
            at = match self.visible[&at].get(&part) {
                Some(Entry::Dir(d)) => *d,
                Some(Entry::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                None => return Err(io::ErrorKind::NotFound.into()),
            };
        }
        Ok(at)
    }

    fn lookup(&self, path: &Path) -> io::Result<Entry> {
        if parts(path).next().is_none() {
            return Ok(Entry::Dir(ROOT));
        }
        let (dir, name) = self.parent(path)?;
        self.visible[&dir]
            .get(&name)
            .copied()
            .ok_or(io::ErrorKind::NotFound.into())
    }

    fn change(&mut self, parts: Vec<(u64, String, Option<Entry>)>) {
        let mut unsynced: Vec<u64> = Vec::new();
        for (dir, name, entry) in &parts {
            let names = self
                .visible
                .get_mut(dir)
                .expect("changed directories exist");
            match entry {
                Some(e) => names.insert(name.clone(), *e),
                None => names.remove(name),
            };
            if !unsynced.contains(dir) {
                unsynced.push(*dir);
            }
        }
        self.names_pending.push(NameChange { parts, unsynced });
    }

    /// The file's inode. `create`: make it if it isn't there; `new`: it must not be there.
    pub fn open(&mut self, path: &Path, create: bool, new: bool) -> io::Result<u64> {
        let (dir, name) = self.parent(path)?;
        match self.visible[&dir].get(&name) {
            Some(_) if new => Err(io::ErrorKind::AlreadyExists.into()),
            Some(Entry::File(f)) => Ok(*f),
            Some(Entry::Dir(_)) => Err(io::ErrorKind::IsADirectory.into()),
            None if create || new => {
                let inode = self.id();
                self.inodes.insert(inode, Inode::default());
                self.change(vec![(dir, name, Some(Entry::File(inode)))]);
                Ok(inode)
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut at = ROOT;
        for part in parts(path) {
            at = match self.visible[&at].get(&part) {
                Some(Entry::Dir(d)) => *d,
                Some(Entry::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                None => {
                    let dir = self.id();
                    self.visible.insert(dir, Names::new());
                    self.durable.insert(dir, Names::new());
                    self.change(vec![(at, part, Some(Entry::Dir(dir)))]);
                    dir
                }
            };
        }
        Ok(())
    }

    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let entry = self.lookup(from)?;
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        if (from_dir, &from_name) == (to_dir, &to_name) {
            return Ok(());
        }
        if matches!(self.visible[&to_dir].get(&to_name), Some(Entry::Dir(d)) if !self.visible[d].is_empty())
        {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        self.change(vec![
            (from_dir, from_name, None),
            (to_dir, to_name, Some(entry)),
        ]);
        Ok(())
    }

    pub fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        match self.lookup(path)? {
            Entry::Dir(_) => Err(io::ErrorKind::IsADirectory.into()),
            Entry::File(_) => {
                let (dir, name) = self.parent(path)?;
                self.change(vec![(dir, name, None)]);
                Ok(())
            }
        }
    }

    pub fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        match self.lookup(path)? {
            Entry::File(_) => Err(io::ErrorKind::NotADirectory.into()),
            Entry::Dir(d) if !self.visible[&d].is_empty() => {
                Err(io::ErrorKind::DirectoryNotEmpty.into())
            }
            Entry::Dir(_) => {
                let (dir, name) = self.parent(path)?;
                self.change(vec![(dir, name, None)]);
                Ok(())
            }
        }
    }

    pub fn read_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let dir = self.dir(path)?;
        Ok(self.visible[&dir].keys().cloned().collect())
    }

    pub fn exists(&self, path: &Path) -> bool {
        self.lookup(path).is_ok()
    }

    /// A change that touches two directories is durable when both have been synced.
    pub fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let dir = self.dir(path)?;
        let mut done: Vec<(u64, String)> = Vec::new();
        // From the newest back: what is made durable takes older changes of the same names with it.
        for change in self.names_pending.iter_mut().rev() {
            change.unsynced.retain(|d| *d != dir);
            let under = change
                .parts
                .iter()
                .any(|(d, n, _)| done.iter().any(|(e, m)| (d, n) == (e, m)));
            if change.unsynced.is_empty() || under {
                change.unsynced.clear();
                done.extend(change.parts.iter().map(|(d, n, _)| (*d, n.clone())));
            }
        }
        let (durable, pending) = std::mem::take(&mut self.names_pending)
            .into_iter()
            .partition(|c| c.unsynced.is_empty());
        self.names_pending = pending;
        for change in durable {
            self.make_durable(change);
        }
        Ok(())
    }

    fn make_durable(&mut self, change: NameChange) {
        for (dir, name, entry) in change.parts {
            let names = self.durable.entry(dir).or_default();
            match entry {
                Some(e) => names.insert(name, e),
                None => names.remove(&name),
            };
        }
    }

    // ---- what tests do ----

    pub fn read_whole(&self, path: &Path) -> Option<Vec<u8>> {
        match self.lookup(path).ok()? {
            Entry::File(f) => {
                let c = &self.inodes[&f].visible;
                Some(c.read(0, c.len as usize))
            }
            Entry::Dir(_) => None,
        }
    }

    pub fn put(&mut self, path: &Path, bytes: &[u8]) {
        let made = self
            .create_dir_all(path.parent().unwrap_or(Path::new("")))
            .and_then(|()| self.open(path, true, false));
        let inode = made.expect("a test's path is one of a file");
        let content = Content {
            blocks: (0..)
                .zip(blocks_of(bytes))
                .filter_map(|(n, b)| Some((n, b?)))
                .collect(),
            len: bytes.len() as u64,
        };
        let i = self.inode(inode);
        i.visible = content.clone();
        i.durable = content;
        i.pending.clear();
        for change in std::mem::take(&mut self.names_pending) {
            self.make_durable(change);
        }
    }

    pub fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut dirs = vec![(ROOT, PathBuf::from("/"))];
        while let Some((dir, path)) = dirs.pop() {
            for (name, entry) in &self.visible[&dir] {
                match entry {
                    Entry::File(_) => found.push(path.join(name)),
                    Entry::Dir(d) => dirs.push((*d, path.join(name))),
                }
            }
        }
        found.sort();
        found
    }

    pub fn flip_bit(&mut self, path: &Path, bit: u64) -> bool {
        let Ok(Entry::File(f)) = self.lookup(path) else {
            return false;
        };
        let inode = self.inode(f);
        let (byte, mask) = (bit / 8, 1u8 << (bit % 8));
        if byte >= inode.visible.len {
            return false;
        }
        let (n, at) = (
            byte / BLOCK_BYTES as u64,
            (byte % BLOCK_BYTES as u64) as usize,
        );
        for content in [&mut inode.visible, &mut inode.durable] {
            let block = content
                .blocks
                .entry(n)
                .or_insert_with(|| Rc::new([0; BLOCK_BYTES]));
            Rc::make_mut(block)[at] ^= mask;
        }
        true
    }

    // ---- stops ----

    /// The process is gone. Writes on their way arrive or don't; after a power cut the visible state is what was durable and what luck kept.
    pub fn settle(
        &mut self,
        how: Stop,
        config: &SimConfig,
        rng: &mut SmallRng,
        faults: &mut Faults,
    ) {
        for (_, w) in std::mem::take(&mut self.in_flight) {
            let change = change(&w);
            faults.journal_writes_in_flight += u64::from(w.durable && how == Stop::PowerCut);
            let seq = self.id();
            let inode = self.inode(w.inode);
            match how {
                Stop::Kill => {
                    if rng.random() {
                        inode.visible.apply(&change);
                        inode.pending.push((seq, change));
                    }
                }
                Stop::PowerCut => inode.pending.push((seq, change)),
            }
        }
        if how == Stop::Kill {
            return;
        }
        for inode in self.inodes.values_mut() {
            for (_, change) in std::mem::take(&mut inode.pending) {
                survive(&mut inode.durable, change, config, rng, faults);
            }
            inode.visible = inode.durable.clone();
        }
        let pending = std::mem::take(&mut self.names_pending);
        let kept = match config.lose_names && !pending.is_empty() {
            true => rng.random_range(0..=pending.len()),
            false => pending.len(),
        };
        faults.names_lost += (pending.len() - kept) as u64;
        for change in pending.into_iter().take(kept) {
            self.make_durable(change);
        }
        self.visible = self.durable.clone();
        self.forget_unnamed();
    }

    /// Files without a name are gone for good once nobody has them open.
    fn forget_unnamed(&mut self) {
        let mut named = Vec::new();
        let mut dirs = vec![ROOT];
        let mut seen = vec![ROOT];
        while let Some(dir) = dirs.pop() {
            for entry in self.visible[&dir].values() {
                match entry {
                    Entry::File(f) => named.push(*f),
                    Entry::Dir(d) => {
                        dirs.push(*d);
                        seen.push(*d);
                    }
                }
            }
        }
        self.inodes.retain(|id, _| named.contains(id));
        self.visible.retain(|id, _| seen.contains(id));
        self.durable.retain(|id, _| seen.contains(id));
    }
}

fn parts(path: &Path) -> impl Iterator<Item = String> + '_ {
    path.components().filter_map(|c| match c {
        Component::Normal(n) => Some(n.to_string_lossy().into_owned()),
        _ => None,
    })
}

fn change(w: &InFlight) -> Change {
    let first = w.pos / BLOCK_BYTES as u64;
    let blocks = (first..).zip(w.data.iter().cloned()).collect();
    Change::Write(blocks, w.pos + (w.data.len() * BLOCK_BYTES) as u64)
}

/// What a power cut makes of one unsynced change.
fn survive(
    durable: &mut Content,
    change: Change,
    config: &SimConfig,
    rng: &mut SmallRng,
    faults: &mut Faults,
) {
    let (mut blocks, end) = match change {
        Change::Len(len) => {
            if !config.lose_writes || rng.random() {
                durable.set_len(len);
            }
            return;
        }
        Change::Write(blocks, end) => (blocks, end),
    };
    if blocks.is_empty() {
        return; // All of it was overwritten durably.
    }
    match rng.random_range(0..3) {
        0 if config.lose_writes => {
            faults.writes_lost += 1;
            return;
        }
        1 if config.tear_writes => {
            faults.writes_torn += 1;
            let by_sector: bool = rng.random();
            blocks.retain_mut(|(n, b)| {
                if by_sector {
                    *b = Some(torn(durable.block(*n), b.as_ref(), rng));
                    true
                } else {
                    rng.random()
                }
            });
        }
        _ => faults.writes_kept += 1,
    }
    // The bytes may be there and the new length not.
    let longer = end > durable.len;
    let end = if longer && config.lose_writes && rng.random() {
        durable.len
    } else {
        end.max(durable.len)
    };
    blocks.retain(|(n, _)| n * (BLOCK_BYTES as u64) < end);
    for (n, b) in blocks {
        durable.set(n, b);
    }
    durable.len = end;
}

fn torn(old: Option<&Rc<Block>>, new: Option<&Rc<Block>>, rng: &mut SmallRng) -> Rc<Block> {
    let zeros = [0; BLOCK_BYTES];
    let mut block = *old.map_or(&zeros, |b| b);
    let new = new.map_or(&zeros, |b| b);
    for (to, from) in block.chunks_mut(SECTOR).zip(new.chunks(SECTOR)) {
        if rng.random() {
            to.copy_from_slice(from);
        }
    }
    Rc::new(block)
}
