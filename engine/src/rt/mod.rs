//! The runtime seam: tasks, time, randomness, files and sockets of a shard. The one place that asks the operating system for them.
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use crate::types::ShardId;

pub mod fs;

/// A point on the shard's monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    pub fn saturating_duration_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
    pub fn elapsed(self) -> Duration {
        now().saturating_duration_since(self)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

pub fn now() -> Instant {
    todo!()
}
/// Milliseconds since the Unix epoch; may jump.
pub fn wall_clock_ms() -> i64 {
    todo!()
}
pub fn random_u64() -> u64 {
    todo!()
}
pub async fn sleep(d: Duration) {
    let _ = d;
    todo!()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time is up")]
pub struct Elapsed;

pub async fn timeout<F: Future>(d: Duration, f: F) -> Result<F::Output, Elapsed> {
    let _ = (d, f);
    todo!()
}

/// Where a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    Latency,
    Background,
}

/// A running task. Dropping it cancels it.
#[must_use = "dropping a task cancels it"]
pub struct Task<T>(std::marker::PhantomData<T>);

impl<T: 'static> Task<T> {
    /// Lets it run to its end by itself.
    pub fn detach(self) {
        todo!()
    }
}

impl<T> Future for Task<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<T> {
        todo!()
    }
}

pub fn spawn<T: 'static>(q: Queue, f: impl Future<Output = T> + 'static) -> Task<T> {
    let _ = (q, f);
    todo!()
}
pub async fn yield_now() {
    todo!()
}
pub async fn yield_if_needed() {
    todo!()
}
pub fn exit(code: i32) -> ! {
    let _ = code;
    todo!()
}

/// How the shards of a process are started.
#[derive(Clone, Debug)]
pub struct Launch {
    pub shards: u16,
    /// Neither pins nor spins.
    pub overprovisioned: bool,
    /// The CPUs to pin to, one per shard; by default the first ones this process may use.
    pub cpus: Option<Vec<usize>>,
    /// Seed of `random_u64`, for tests; by default from the system.
    pub seed: Option<u64>,
}

/// Starts the shards, each on a thread of its own, and returns when every shard's future has ended.
pub fn launch<F, Fut>(l: Launch, make: F) -> io::Result<()>
where
    F: Fn(ShardId) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let _ = (l, make);
    todo!()
}

/// Memory for direct I/O: its start is 4096-aligned and so is what lies behind its end.
pub struct AlignedBuf {
    v: Vec<u8>,
}

impl AlignedBuf {
    pub fn zeroed(len: usize) -> AlignedBuf {
        AlignedBuf { v: vec![0; len] }
    }
    /// Without copying.
    pub fn into_bytes(self) -> Bytes {
        self.v.into()
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.v
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.v
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    pub create: bool,
    pub create_new: bool,
    pub truncate: bool,
    pub write: bool,
}

/// A file read and written by direct I/O. Cheap to share in an `Rc`; all methods take `&self`.
pub struct File(());

impl File {
    pub async fn open(path: &Path, o: OpenOptions) -> io::Result<File> {
        let _ = (path, o);
        todo!()
    }
    /// Any position and length; short at the end of the file.
    pub async fn read_at(&self, pos: u64, len: usize) -> io::Result<Bytes> {
        let _ = (pos, len);
        todo!()
    }
    /// Whole or an error; gives the buffer back. Position and length are multiples of 4096.
    pub async fn write_at(&self, pos: u64, buf: AlignedBuf) -> io::Result<AlignedBuf> {
        let _ = (pos, buf);
        todo!()
    }
    /// fdatasync.
    pub async fn sync(&self) -> io::Result<()> {
        todo!()
    }
    pub async fn len(&self) -> io::Result<u64> {
        todo!()
    }
    pub async fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len().await? == 0)
    }
    pub async fn set_len(&self, len: u64) -> io::Result<()> {
        let _ = len;
        todo!()
    }
    pub async fn allocate(&self, pos: u64, len: u64) -> io::Result<()> {
        let _ = (pos, len);
        todo!()
    }
    pub async fn close(self) -> io::Result<()> {
        todo!()
    }
}

/// A journal file: every write is durable when its future ends. Several writes may be in flight.
pub struct JournalFile(());

/// A journal write under way. It was started by [`JournalFile::write`] and goes on when this is dropped.
pub struct JournalWrite(());

impl Future for JournalWrite {
    type Output = io::Result<AlignedBuf>;
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        todo!()
    }
}

impl JournalFile {
    /// Opens or creates. A new file is zero-filled to `size_if_new` and synced, its directory too.
    pub async fn open(path: &Path, size_if_new: u64) -> io::Result<JournalFile> {
        let _ = (path, size_if_new);
        todo!()
    }
    /// Starts a write; position and length are multiples of 4096.
    pub fn write(&self, pos: u64, buf: AlignedBuf) -> JournalWrite {
        let _ = (pos, buf);
        todo!()
    }
    /// Any position and length; short at the end of the file.
    pub async fn read_at(&self, pos: u64, len: usize) -> io::Result<Bytes> {
        let _ = (pos, len);
        todo!()
    }
    pub async fn len(&self) -> io::Result<u64> {
        todo!()
    }
    pub async fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len().await? == 0)
    }
    /// Writes zeros in background-sized pieces; synced when it returns. May extend the file.
    pub async fn zero_fill(&self, from: u64, to: u64) -> io::Result<()> {
        let _ = (from, to);
        todo!()
    }
    /// Writes that were synced by themselves so far.
    pub fn syncs(&self) -> u64 {
        todo!()
    }
}

/// Listens with SO_REUSEPORT, so that every shard can have one on the same port.
pub struct TcpListener(());

impl TcpListener {
    pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
        let _ = addr;
        todo!()
    }
    pub async fn accept(&self) -> io::Result<TcpStream> {
        todo!()
    }
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        todo!()
    }
}

/// A connection. Clones are the same connection: one task reads, another writes.
#[derive(Clone)]
pub struct TcpStream(());

impl TcpStream {
    pub async fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
        let _ = addr;
        todo!()
    }
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        todo!()
    }
    /// Waits for bytes or the end without holding a buffer.
    pub async fn readable(&self) -> io::Result<()> {
        todo!()
    }
    /// `WouldBlock` when there is nothing, 0 at the end.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let _ = buf;
        todo!()
    }
    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let _ = buf;
        todo!()
    }
    pub async fn write_all_vectored(&self, parts: &[Bytes]) -> io::Result<()> {
        let _ = parts;
        todo!()
    }
    /// Ends both directions; waiting tasks of every clone wake up.
    pub fn shutdown(&self) {
        todo!()
    }
}
