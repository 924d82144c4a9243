//! Operations on the simulated disk: when they happen, which of them fail, and where the process is stopped.
//!
//! Each takes a drawn time; those of a journal are independent of each other, so they complete in any order. A write goes on when its future is dropped; the other
//! operations happen when their time has come, if somebody still waits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::exec::Event;
use super::{Inner, current, sleep};
use crate::limits::{BLOCK_BYTES, WRITE_OUT_BYTES};
use crate::rt::{AlignedBuf, OpenOptions};

/// What a new name may take, in bytes.
const NAME_BYTES: u64 = BLOCK_BYTES as u64;
/// Pieces in which a new journal is zero-filled, in bytes.
const ZERO_START_BYTES: u64 = 1 << 20;

/// Writes on their way, by their number.
pub type Writes = BTreeMap<u64, Rc<RefCell<Waiting>>>;

/// A write that somebody may wait for.
pub struct Waiting {
    buf: Option<AlignedBuf>,
    fails: Option<io::ErrorKind>,
    done: bool,
    waker: Option<Waker>,
}

/// Counts an operation that changes the disk. `Err` if this is the one that fails; the process may be stopped during the time it takes.
fn begin(world: &Rc<Inner>, kind: u64, takes_ns: u64) -> io::Result<()> {
    let config = world.config.borrow();
    let mut faults = world.faults.get();
    faults.disk_ops += 1;
    world.mix(kind);
    world.mix(faults.disk_ops);
    if let Some((n, how)) = config.stop_at_op
        && n == faults.disk_ops
    {
        // Before it has any effect, amid, or right after, before anybody knows.
        let at = match world.draw(4) {
            0 => 0,
            1 => takes_ns,
            _ => world.draw(takes_ns + 1),
        };
        world
            .executor
            .at(world.clock_ns.get() + at, Event::Stop(how));
    }
    let fails = config.fail_op == Some(faults.disk_ops);
    faults.failed_ops += u64::from(fails);
    world.faults.set(faults);
    if fails {
        Err(io::Error::other("simulated I/O error"))
    } else {
        Ok(())
    }
}

/// Room left on the disk, in bytes.
fn free_bytes(world: &Rc<Inner>) -> u64 {
    match world.config.borrow().disk_bytes {
        None => u64::MAX,
        Some(all) => all.saturating_sub(world.disk.borrow().used_bytes()),
    }
}

/// Takes no room: only asks whether so much is there.
fn has_room(world: &Rc<Inner>, bytes: u64) -> io::Result<()> {
    if bytes == 0 || bytes <= free_bytes(world) {
        return Ok(());
    }
    world.count(|f| f.no_room += 1);
    Err(io::ErrorKind::StorageFull.into())
}

/// A time for something that usually takes so long, now and then much longer.
fn time(world: &Rc<Inner>, usual_us: u64) -> u64 {
    let usual = usual_us * 1000;
    let t = usual / 2 + world.draw(usual);
    match world.draw(200) {
        0 => t * 100,
        1..10 => t * 8,
        _ => t,
    }
}

async fn delay(ns: u64) {
    sleep(Duration::from_nanos(ns)).await;
}

/// An operation that changes the disk at the end of its time.
async fn change<T>(
    kind: u64,
    usual_us: u64,
    f: impl FnOnce(&mut super::disk::Disk) -> io::Result<T>,
) -> io::Result<T> {
    let world = current();
    if world.is_stopped() {
        return pending().await;
    }
    let t = time(&world, usual_us);
    let begun = begin(&world, kind, t);
    delay(t).await;
    begun?;
    f(&mut world.disk.borrow_mut())
}

/// The event of a write that has arrived.
pub fn written(world: &Rc<Inner>, op: u64) {
    let Some(waiting) = world.writes.borrow_mut().remove(&op) else {
        return;
    };
    let mut w = waiting.borrow_mut();
    let arrives = w.fails.is_none() || world.draw(2) == 0;
    if arrives && world.disk.borrow_mut().end_write(op) {
        world.count(|f| f.reordered += 1);
    }
    w.done = true;
    let waker = w.waker.take();
    drop(w);
    if let Some(w) = waker {
        w.wake();
    }
}

fn write(inode: u64, pos: u64, buf: AlignedBuf, durable: bool) -> Write {
    let world = current();
    let waiting = Rc::new(RefCell::new(Waiting {
        buf: None,
        fails: None,
        done: false,
        waker: None,
    }));
    if !world.is_stopped() {
        let size_us = (buf.len() >> 13) as u64; // 8 KiB a microsecond
        let t = time(&world, size_us + if durable { 80 } else { 35 });
        world.mix(pos);
        let broken = begin(&world, 1 + u64::from(durable), t).is_err();
        let more = world.disk.borrow().grows_by(inode, pos + buf.len() as u64);
        let full = has_room(&world, more).is_err();
        // Of what doesn't fit, as much may arrive as does.
        let fits = if full {
            (buf.len() as u64 - more.min(buf.len() as u64)) as usize
        } else {
            buf.len()
        };
        let op = world
            .disk
            .borrow_mut()
            .begin_write(inode, pos, &buf[..fits], durable);
        waiting.borrow_mut().fails = match (broken, full) {
            (true, _) => Some(io::ErrorKind::Other),
            (_, true) => Some(io::ErrorKind::StorageFull),
            _ => None,
        };
        world.writes.borrow_mut().insert(op, waiting.clone());
        world
            .executor
            .at(world.clock_ns.get() + t, Event::Written(op));
        if durable {
            world.count(|f| f.syncs += 1);
        }
    }
    waiting.borrow_mut().buf = Some(buf);
    Write(waiting)
}

struct Write(Rc<RefCell<Waiting>>);

impl Future for Write {
    type Output = io::Result<AlignedBuf>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut w = self.0.borrow_mut();
        if !w.done {
            w.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let buf = w
            .buf
            .take()
            .expect("a future is not polled after it was ready");
        Poll::Ready(match w.fails {
            None => Ok(buf),
            Some(io::ErrorKind::StorageFull) => Err(io::ErrorKind::StorageFull.into()),
            Some(_) => Err(io::Error::other("simulated I/O error")),
        })
    }
}

async fn read_at(inode: u64, pos: u64, len: usize) -> io::Result<Bytes> {
    let world = current();
    if world.is_stopped() {
        return pending().await;
    }
    world.mix(pos ^ len as u64);
    delay(time(&world, 40 + (len >> 13) as u64)).await;
    Ok(world.disk.borrow().content(inode).read(pos, len).into())
}

async fn sync(inode: u64) -> io::Result<()> {
    let world = current();
    let mark = world.disk.borrow_mut().mark();
    world.count(|f| f.syncs += 1);
    change(3, 150, |d| {
        d.sync(inode, mark);
        Ok(())
    })
    .await
}

async fn open(path: &Path, o: OpenOptions) -> io::Result<u64> {
    let with_path = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let world = current();
    if o.create || o.create_new {
        let new = !world.disk.borrow().exists(path);
        has_room(&world, if new { NAME_BYTES } else { 0 }).map_err(with_path)?;
        change(4, 30, |d| d.open(path, o.create, o.create_new))
            .await
            .map_err(with_path)
    } else {
        delay(time(&world, 10)).await;
        world
            .disk
            .borrow_mut()
            .open(path, false, false)
            .map_err(with_path)
    }
}

fn len(inode: u64) -> u64 {
    current().disk.borrow().content(inode).len
}

async fn allocate(inode: u64, end: u64) -> io::Result<()> {
    let world = current();
    let more = world.disk.borrow().grows_by(inode, end);
    if let Err(full) = has_room(&world, more) {
        // As on ext4: what could be had may be kept.
        let length = len(inode);
        let part = world.draw(2) * (free_bytes(&world) / 2);
        let part = length.next_multiple_of(BLOCK_BYTES as u64)
            + part / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if part > length {
            world.disk.borrow_mut().set_len(inode, part);
        }
        return Err(full);
    }
    change(5, 20, |d| {
        if d.content(inode).len < end {
            d.set_len(inode, end);
        }
        Ok(())
    })
    .await
}

pub struct File {
    inode: u64,
    write: bool,
}

impl File {
    pub async fn open(path: &Path, o: OpenOptions) -> io::Result<File> {
        let inode = open(path, o).await?;
        if o.truncate {
            change(6, 20, |d| {
                d.set_len(inode, 0);
                Ok(())
            })
            .await?;
        }
        Ok(File {
            inode,
            write: o.write,
        })
    }

    pub async fn read_at(&self, pos: u64, len: usize) -> io::Result<Bytes> {
        read_at(self.inode, pos, len).await
    }

    pub async fn write_at(&self, pos: u64, buf: AlignedBuf) -> io::Result<AlignedBuf> {
        if !self.write {
            return Err(io::Error::other("the file was opened for reading"));
        }
        write(self.inode, pos, buf, false).await
    }

    pub async fn sync(&self) -> io::Result<()> {
        sync(self.inode).await
    }

    pub async fn len(&self) -> io::Result<u64> {
        Ok(len(self.inode))
    }

    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        change(7, 50, |d| {
            d.set_len(self.inode, len);
            Ok(())
        })
        .await
    }

    pub async fn allocate(&self, pos: u64, len: u64) -> io::Result<()> {
        allocate(self.inode, pos + len).await
    }

    pub async fn close(self) -> io::Result<()> {
        delay(10_000).await;
        Ok(())
    }
}

pub struct JournalFile {
    inode: u64,
    syncs: Rc<std::cell::Cell<u64>>,
}

impl JournalFile {
    pub async fn open(path: &Path, size_if_new: u64) -> io::Result<JournalFile> {
        let o = OpenOptions {
            create: true,
            write: true,
            ..OpenOptions::default()
        };
        let journal = JournalFile {
            inode: open(path, o).await?,
            syncs: Rc::default(),
        };
        if len(journal.inode) == 0 && size_if_new > 0 {
            let size = size_if_new.min(current().config.borrow().new_journal_bytes);
            journal.zero(0, size, ZERO_START_BYTES).await?;
            if let Some(dir) = path.parent() {
                fs::sync_dir(dir).await?;
            }
        }
        Ok(journal)
    }

    pub fn write(&self, pos: u64, buf: AlignedBuf) -> JournalWrite {
        JournalWrite {
            write: write(self.inode, pos, buf, true),
            syncs: self.syncs.clone(),
        }
    }

    pub async fn read_at(&self, pos: u64, len: usize) -> io::Result<Bytes> {
        read_at(self.inode, pos, len).await
    }

    pub async fn len(&self) -> io::Result<u64> {
        Ok(len(self.inode))
    }

    pub async fn zero_fill(&self, from: u64, to: u64) -> io::Result<()> {
        self.zero(from, to, WRITE_OUT_BYTES as u64).await
    }

    pub async fn give_back(&self, len: u64) -> io::Result<()> {
        change(7, 50, |d| {
            d.set_len(self.inode, len);
            Ok(())
        })
        .await
    }

    pub fn syncs(&self) -> u64 {
        self.syncs.get()
    }

    async fn zero(&self, from: u64, to: u64, piece: u64) -> io::Result<()> {
        if from >= to {
            return Ok(());
        }
        allocate(self.inode, to).await?;
        let mut pos = from;
        while pos < to {
            let n = piece.min(to - pos);
            write(self.inode, pos, AlignedBuf::zeroed(n as usize), false).await?;
            pos += n;
        }
        sync(self.inode).await
    }
}

pub struct JournalWrite {
    write: Write,
    syncs: Rc<std::cell::Cell<u64>>,
}

impl Future for JournalWrite {
    type Output = io::Result<AlignedBuf>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.write).poll(cx);
        if let Poll::Ready(Ok(_)) = &polled {
            self.syncs.set(self.syncs.get() + 1);
        }
        polled
    }
}

/// Names.
pub mod fs {
    use super::{
        NAME_BYTES, Path, PathBuf, change, current, delay, free_bytes, has_room, io, time,
    };
    use crate::rt::fs::Room;

    pub async fn room(path: &Path) -> io::Result<Room> {
        let world = current();
        delay(time(&world, 10)).await;
        if !world.disk.borrow().exists(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let total = world.config.borrow().disk_bytes.unwrap_or(1 << 40);
        Ok(Room {
            free: free_bytes(&world).min(total),
            total,
        })
    }

    pub async fn create_dir_all(path: &Path) -> io::Result<()> {
        let world = current();
        let new = !world.disk.borrow().exists(path);
        has_room(&world, if new { NAME_BYTES } else { 0 })?;
        change(10, 40, |d| d.create_dir_all(path)).await
    }

    pub async fn rename(from: &Path, to: &Path) -> io::Result<()> {
        change(11, 40, |d| d.rename(from, to)).await
    }

    pub async fn remove_file(path: &Path) -> io::Result<()> {
        change(12, 60, |d| d.remove_file(path)).await
    }

    pub async fn remove_dir(path: &Path) -> io::Result<()> {
        change(13, 40, |d| d.remove_dir(path)).await
    }

    pub async fn read_dir(path: &Path) -> io::Result<Vec<String>> {
        let world = current();
        delay(time(&world, 20)).await;
        let names = world.disk.borrow().read_dir(path);
        names.map_err(|e| {
            io::Error::new(e.kind(), format!("{}: {e}", PathBuf::from(path).display()))
        })
    }

    pub async fn sync_dir(path: &Path) -> io::Result<()> {
        current().count(|f| f.syncs += 1);
        change(14, 150, |d| d.sync_dir(path)).await
    }

    pub async fn exists(path: &Path) -> io::Result<bool> {
        let world = current();
        delay(time(&world, 10)).await;
        let exists = world.disk.borrow().exists(path);
        Ok(exists)
    }
}
