//! The runtime seam: tasks, time, randomness, files and sockets of a shard (design §2).
//!
//! This is the one place that asks the operating system for any of them. Its types are newtypes over one of two private implementations, chosen at
//! compile time:
//!
//! - `native` (the default): a small executor per shard on an io_uring ring of its own, for files, sockets, timers and sleep.
//! - `sim` (`--cfg tailrace_sim`): one thread, simulated clock, disk and network, everything drawn from one seed; see `sim`.
//!
//! A shard is a thread with an executor; what is spawned on it stays on it. Except for [`now`], [`wall_clock_ms`], [`random_u64`], [`spin_polls`] and
//! [`probe`], everything here must be called on a shard. An ordinary [`std::task::Waker`] of a task may be woken from any thread.
//!
//! No operation on a file fails for want of a descriptor: it waits for one.
//!
//! Bounds: `limits::DISK_OPS_IN_FLIGHT` operations on files with the kernel per shard, more wait in line; `limits::JOURNAL_WRITES_IN_FLIGHT`.
//!
//! Read: this file (tasks, time), `file` and `fs`, `net`, then `native` or `sim`.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;

use crate::types::ShardId;

mod buf;
mod file;
pub mod fs;
mod net;

#[cfg(not(tailrace_sim))]
mod native;
#[cfg(not(tailrace_sim))]
use native as imp;

#[cfg(tailrace_sim)]
pub mod sim;
#[cfg(tailrace_sim)]
use sim as imp;

#[cfg(test)]
mod tests;

pub use buf::AlignedBuf;
pub use file::{File, JournalFile, JournalWrite, OpenOptions};
pub use net::{TcpListener, TcpStream, check_port_free};

/// A point on the shard's monotonic clock, in nanoseconds. The same clock for all shards of a process.
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
        Instant(self.0.saturating_add(nanoseconds(d)))
    }
}

/// Nanoseconds of a duration, at most `u64::MAX` (584 years).
fn nanoseconds(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

pub fn now() -> Instant {
    imp::now()
}

/// Milliseconds since the Unix epoch. Jumps when somebody sets the clock.
pub fn wall_clock_ms() -> i64 {
    imp::wall_clock_ms()
}

/// Not for secrets.
pub fn random_u64() -> u64 {
    imp::random_u64()
}

pub async fn sleep(d: Duration) {
    imp::sleep(d).await;
}

/// A [`timeout`] ended first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time is up")]
pub struct Elapsed;

/// Drops `f` if it hasn't ended after `d`. What is ready at that moment still counts.
pub async fn timeout<F: Future>(d: Duration, f: F) -> Result<F::Output, Elapsed> {
    let mut f = pin!(f);
    let mut end = pin!(imp::sleep(d));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = f.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        end.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}

/// Which of the shard's two task queues a task runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Connections, Raft, the journal.
    Latency,
    /// Segment write-out, retention, recovery: gets far fewer shares of the CPU and should yield often.
    Background,
}

/// A running task. Dropping it cancels it: its future is dropped soon after, at whatever await it stands.
#[must_use = "dropping a task cancels it"]
pub struct Task<T>(imp::Task<T>);

impl<T: 'static> Task<T> {
    /// Lets it run to its end by itself.
    pub fn detach(self) {
        self.0.detach();
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(cx)
    }
}

/// Starts a task on this shard.
pub fn spawn<T: 'static>(q: Queue, f: impl Future<Output = T> + 'static) -> Task<T> {
    Task(imp::spawn(q, f))
}

/// Lets the other tasks that can run have a turn.
pub async fn yield_now() {
    imp::yield_now().await;
}

/// Cheap: yields only when I/O or a fairer share is due. Long loops call it.
pub async fn yield_if_needed() {
    imp::yield_if_needed().await;
}

/// Runs blocking code on a helper thread of the shard. For seldom things; in the simulation it runs at once.
pub async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    imp::blocking(f).await
}

/// Has memory made for the next `bytes` of room in `buffer`, on a helper thread, so that the shard doesn't wait for it at the first touch: a large page is
/// cleared whole then, which takes 0.1 ms, and several where a hypervisor has to find the memory first (docs/measured.md).
pub async fn populate(buffer: BytesMut, bytes: usize) -> BytesMut {
    imp::populate(buffer, bytes).await
}

/// Polls that a consumer of rings makes before it sleeps: about 20 µs' worth on a pinned shard, none where spinning is not wanted.
pub fn spin_polls() -> u32 {
    imp::spin_polls()
}

/// Descriptors that the process may have open, once [`launch`] has raised the limit.
pub fn descriptors() -> u64 {
    imp::descriptors()
}

/// Ends the process (in the simulation: the simulated one) at once.
pub fn exit(code: i32) -> ! {
    imp::exit(code)
}

/// The oldest Linux that shards run on.
pub const OLDEST_LINUX: &str = "5.15";

/// Whether this machine gives shards what they wait in; for a process that wants to know before it begins. The error is the system's own, as it came.
pub fn probe() -> io::Result<()> {
    imp::probe()
}

/// How the shards of a process are started.
#[derive(Clone, Debug)]
pub struct Launch {
    pub shards: u16,
    /// Neither pins nor spins: for machines that others use too, and for tests.
    pub overprovisioned: bool,
    /// The CPUs to pin to, one per shard; by default the first ones this process may use.
    pub cpus: Option<Vec<usize>>,
    /// Seed of [`random_u64`], for tests; by default from the system.
    pub seed: Option<u64>,
}

/// Starts the shards, each on a thread of its own, and returns when every shard's future has ended.
///
/// Raises the limits on locked memory and open files as far as it may. Errors say what to do about them.
/// A panic on a shard ends the process with code 101, since the others would wait for it for ever; with one shard it is handed to the caller.
pub fn launch<F, Fut>(l: Launch, make: F) -> io::Result<()>
where
    F: Fn(ShardId) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    imp::launch(l, make)
}
