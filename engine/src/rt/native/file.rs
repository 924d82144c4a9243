//! [`File`] and [`JournalFile`] on the shard's ring.

use std::cell::Cell;
use std::ffi::CString;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;

use super::descriptors::when_free;
use super::ring::{Completion, Durable, Handle, Kind, Outcome, Ring, status};
use super::{disk, shard};
use crate::limits::{BLOCK_BYTES, WRITE_OUT_BYTES};
use crate::rt::{AlignedBuf, OpenOptions};

/// Longest read, in bytes.
const READ_BYTES: usize = 1 << 30;
/// Shortest time between two pieces of zeros written in the background: 128 KiB each makes at most about 200 MB/s.
const ZERO_PACE: Duration = Duration::from_micros(640);
/// Pieces in which a new journal is zero-filled while the start waits for it, in bytes.
const ZERO_START_BYTES: usize = 1 << 20;

pub struct File {
    ring: Rc<Ring>,
    handle: Rc<Handle>,
}

impl File {
    pub async fn open(path: &Path, o: OpenOptions) -> io::Result<File> {
        let ring = shard().ring.clone();
        let mut flags = if o.write {
            libc::O_RDWR
        } else {
            libc::O_RDONLY
        };
        if o.create || o.create_new {
            flags |= libc::O_CREAT;
        }
        if o.create_new {
            flags |= libc::O_EXCL;
        }
        if o.truncate {
            flags |= libc::O_TRUNC;
        }
        let fd = open(&ring, path, flags).await?;
        let handle = Rc::new(ring.handle(fd));
        Ok(File { ring, handle })
    }

    pub async fn read_at(&self, pos: u64, len: usize) -> io::Result<Bytes> {
        read_at(&self.ring, &self.handle, pos, len).await
    }

    pub async fn write_at(&self, pos: u64, buf: AlignedBuf) -> io::Result<AlignedBuf> {
        let kind = Kind::Write {
            pos,
            durable: Durable::No,
        };
        give_back(
            self.ring
                .run(Some(self.handle.clone()), kind, Some(buf), None)
                .await,
        )
    }

    pub async fn sync(&self) -> io::Result<()> {
        sync(&self.ring, &self.handle).await
    }

    pub async fn len(&self) -> io::Result<u64> {
        len(&self.handle)
    }

    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        set_len(&self.handle, len).await
    }

    pub async fn allocate(&self, pos: u64, len: u64) -> io::Result<()> {
        allocate(&self.ring, &self.handle, pos, len).await
    }

    pub async fn close(self) -> io::Result<()> {
        let File { ring: _, handle } = self;
        // Another descriptor of the same open file: the last of the two to be closed does the work, and that is the helper's.
        // Where there is none the work is this thread's: closing is what gives descriptors back.
        let last = handle.second();
        drop(handle);
        if let Ok(last) = last {
            super::blocking(move || drop(last)).await;
        }
        Ok(())
    }
}

pub struct JournalFile {
    ring: Rc<Ring>,
    handle: Rc<Handle>,
    syncs: Rc<Cell<u64>>,
}

impl JournalFile {
    pub async fn open(path: &Path, size_if_new: u64) -> io::Result<JournalFile> {
        let ring = shard().ring.clone();
        let fd = open(&ring, path, libc::O_RDWR | libc::O_CREAT).await?;
        let device = status(&fd)?.st_dev;
        let durable = super::blocking(move || disk::durable(device)).await;
        let handle = Rc::new(ring.journal_handle(fd, durable));
        let journal = JournalFile {
            ring,
            handle,
            syncs: Rc::new(Cell::new(0)),
        };
        if journal.len().await? == 0 && size_if_new > 0 {
            journal
                .zero(0, size_if_new, ZERO_START_BYTES, Duration::ZERO)
                .await?;
            if let Some(dir) = path.parent() {
                super::fs::sync_dir(dir).await?;
            }
        }
        Ok(journal)
    }

    pub fn write(&self, pos: u64, buf: AlignedBuf) -> JournalWrite {
        JournalWrite {
            completion: self.ring.journal_write(self.handle.clone(), pos, buf),
            syncs: self.syncs.clone(),
        }
    }

    pub async fn read_at(&self, pos: u64, len: usize) -> io::Result<Bytes> {
        read_at(&self.ring, &self.handle, pos, len).await
    }

    pub async fn len(&self) -> io::Result<u64> {
        len(&self.handle)
    }

    pub async fn zero_fill(&self, from: u64, to: u64) -> io::Result<()> {
        self.zero(from, to, WRITE_OUT_BYTES, ZERO_PACE).await
    }

    pub async fn give_back(&self, len: u64) -> io::Result<()> {
        set_len(&self.handle, len).await
    }

    pub fn syncs(&self) -> u64 {
        self.syncs.get()
    }

    async fn zero(&self, from: u64, to: u64, piece: usize, pace: Duration) -> io::Result<()> {
        if from >= to {
            return Ok(());
        }
        // The length changes once, here: writes that extend a file lock out the commits in flight, those into allocated space don't.
        allocate(&self.ring, &self.handle, from, to - from).await?;
        let mut buf = AlignedBuf::zeroed(piece);
        let mut pos = from;
        while pos < to {
            let begun = super::now();
            buf.set_len((to - pos).min(piece as u64) as usize);
            let n = buf.len() as u64;
            let kind = Kind::Write {
                pos,
                durable: Durable::No,
            };
            buf = give_back(
                self.ring
                    .run(Some(self.handle.clone()), kind, Some(buf), None)
                    .await,
            )?;
            pos += n;
            let spent = begun.elapsed();
            if spent < pace {
                super::sleep(pace - spent).await;
            }
        }
        sync(&self.ring, &self.handle).await
    }
}

pub struct JournalWrite {
    completion: Completion,
    syncs: Rc<Cell<u64>>,
}

impl Future for JournalWrite {
    type Output = io::Result<AlignedBuf>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = give_back(ready!(Pin::new(&mut self.completion).poll(cx)));
        if result.is_ok() {
            self.syncs.set(self.syncs.get() + 1);
        }
        Poll::Ready(result)
    }
}

async fn open(ring: &Rc<Ring>, path: &Path, flags: i32) -> io::Result<OwnedFd> {
    let c_path = CString::new(path.as_os_str().as_bytes())?;
    let flags = flags | libc::O_CLOEXEC | libc::O_DIRECT;
    let opened = when_free(Some(path), async || {
        let open = Kind::Open { flags };
        ring.run(None, open, None, Some(c_path.clone())).await.0
    });
    match opened.await {
        Ok(Outcome::Opened(fd)) => Ok(fd),
        Ok(Outcome::Bytes(_)) => unreachable!("an open gives a descriptor"),
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "{}: this filesystem has no direct I/O (O_DIRECT): put the data on ext4 or XFS ({e})",
                path.display()
            ),
        )),
        Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
    }
}

async fn read_at(ring: &Rc<Ring>, handle: &Rc<Handle>, pos: u64, len: usize) -> io::Result<Bytes> {
    assert!(len <= READ_BYTES, "a read is at most 1 GiB");
    if len == 0 {
        return Ok(Bytes::new());
    }
    let block = BLOCK_BYTES as u64;
    let start = pos - pos % block;
    let skip = (pos - start) as usize;
    let buf = AlignedBuf::zeroed((skip + len).next_multiple_of(BLOCK_BYTES));
    let kind = Kind::Read { pos: start };
    let (result, buf) = ring.run(Some(handle.clone()), kind, Some(buf), None).await;
    let Outcome::Bytes(n) = result? else {
        unreachable!("a read gives bytes")
    };
    let end = n.min(skip + len);
    let bytes = buf.expect("a read gives its buffer back").into_bytes();
    Ok(bytes.slice(skip.min(end)..end))
}

fn give_back((result, buf): (io::Result<Outcome>, Option<AlignedBuf>)) -> io::Result<AlignedBuf> {
    result.map(|_| buf.expect("a write gives its buffer back"))
}

async fn sync(ring: &Rc<Ring>, handle: &Rc<Handle>) -> io::Result<()> {
    ring.run(Some(handle.clone()), Kind::Sync, None, None)
        .await
        .0
        .map(|_| ())
}

async fn set_len(handle: &Rc<Handle>, len: u64) -> io::Result<()> {
    let second = when_free(None, async || handle.second()).await?;
    super::blocking(move || second.set_len(len)).await
}

async fn allocate(ring: &Rc<Ring>, handle: &Rc<Handle>, pos: u64, len: u64) -> io::Result<()> {
    let kind = Kind::Allocate { pos, len };
    match ring.run(Some(handle.clone()), kind, None, None).await.0 {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(()),
        other => other.map(|_| ()),
    }
}

fn len(handle: &Handle) -> io::Result<u64> {
    handle.len()
}
