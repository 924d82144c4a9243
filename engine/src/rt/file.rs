//! Files by direct I/O, and the journal's file.
//!
//! Invariants: a buffer that the kernel may still use is never freed or handed back, also when the future that waits for it is dropped;
//! writes are whole or an error; positions and lengths of writes are multiples of 4096. A failed write or sync is reported, never tried again.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::{AlignedBuf, imp};
use crate::limits::BLOCK_BYTES;

/// How [`File::open`] opens. Without `write` the file can only be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    pub create: bool,
    /// Fails if the file exists.
    pub create_new: bool,
    pub truncate: bool,
    pub write: bool,
}

/// A file read and written by direct I/O. Share it in an `Rc`: all methods but `close` take `&self`.
pub struct File(imp::File);

impl File {
    pub async fn open(path: &Path, o: OpenOptions) -> io::Result<File> {
        imp::File::open(path, o).await.map(File)
    }

    /// Any position and length (at most 1 GiB); short at the end of the file. The memory behind the answer is rounded out to 4096 bytes.
    pub async fn read_at(&self, pos: u64, len: usize) -> io::Result<Bytes> {
        self.0.read_at(pos, len).await
    }

    /// Whole or an error; gives the buffer back. Not durable before [`File::sync`].
    pub async fn write_at(&self, pos: u64, buf: AlignedBuf) -> io::Result<AlignedBuf> {
        assert_aligned(pos, &buf);
        self.0.write_at(pos, buf).await
    }

    /// fdatasync: the bytes and the length are durable; the name is only after `fs::sync_dir`.
    pub async fn sync(&self) -> io::Result<()> {
        self.0.sync().await
    }

    pub async fn len(&self) -> io::Result<u64> {
        self.0.len().await
    }

    pub async fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len().await? == 0)
    }

    /// Cuts the file or extends it with a hole.
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len).await
    }

    /// Reserves space (and extends the file over it), where the filesystem can; elsewhere nothing happens.
    pub async fn allocate(&self, pos: u64, len: u64) -> io::Result<()> {
        self.0.allocate(pos, len).await
    }

    /// Closes off the shard's thread: the last close of an unlinked file frees its blocks, which can take milliseconds.
    pub async fn close(self) -> io::Result<()> {
        self.0.close().await
    }
}

/// A journal file: every write is durable when its future ends. Several writes may be in flight; they may complete in any order.
pub struct JournalFile(imp::JournalFile);

/// A journal write under way. [`JournalFile::write`] started it and it goes on when this is dropped.
pub struct JournalWrite(imp::JournalWrite);

impl Future for JournalWrite {
    type Output = io::Result<AlignedBuf>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl JournalFile {
    /// Opens or creates. A new (or empty) file is zero-filled to `size_if_new` and synced, and so is its directory.
    pub async fn open(path: &Path, size_if_new: u64) -> io::Result<JournalFile> {
        assert!(size_if_new.is_multiple_of(BLOCK_BYTES as u64));
        imp::JournalFile::open(path, size_if_new)
            .await
            .map(JournalFile)
    }

    /// Starts a write.
    pub fn write(&self, pos: u64, buf: AlignedBuf) -> JournalWrite {
        assert_aligned(pos, &buf);
        JournalWrite(self.0.write(pos, buf))
    }

    /// Any position and length (at most 1 GiB); short at the end of the file.
    pub async fn read_at(&self, pos: u64, len: usize) -> io::Result<Bytes> {
        self.0.read_at(pos, len).await
    }

    pub async fn len(&self) -> io::Result<u64> {
        self.0.len().await
    }

    pub async fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len().await? == 0)
    }

    /// Writes zeros in pieces sized and paced for the background (128 KiB, at most about 200 MB/s); durable when it returns. May extend the file.
    pub async fn zero_fill(&self, from: u64, to: u64) -> io::Result<()> {
        assert!(from.is_multiple_of(BLOCK_BYTES as u64) && to.is_multiple_of(BLOCK_BYTES as u64));
        self.0.zero_fill(from, to).await
    }

    /// Gives back what a [`JournalFile::zero_fill`] that failed had taken beyond `len`, which is no shorter than what is used.
    pub async fn give_back(&self, len: u64) -> io::Result<()> {
        self.0.give_back(len).await
    }

    /// Journal writes completed so far: each was synced by itself.
    pub fn syncs(&self) -> u64 {
        self.0.syncs()
    }
}

fn assert_aligned(pos: u64, buf: &AlignedBuf) {
    assert!(
        pos.is_multiple_of(BLOCK_BYTES as u64)
            && buf.len().is_multiple_of(BLOCK_BYTES)
            && !buf.is_empty(),
        "direct writes are aligned: {} bytes at {pos}",
        buf.len()
    );
}
