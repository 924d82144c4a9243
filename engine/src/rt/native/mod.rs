//! The runtime of a real process: glommio for tasks, timers and sockets, [`disk`] for files.
//!
//! Steps round glommio 0.9, each with a test in `rt::tests`:
//! - No `DmaFile` is ever opened: if the first one of a process is new and empty, every later DMA read fails; its polled ring runs a core at 100 %; and its
//!   buffers can't become `Bytes` without a copy. Files go through our own ring.
//! - It parks a shard although tasks could run, when an event that wakes nobody comes at the wrong moment: see [`guard`]. Foreign wakes of tasks in a
//!   `Latency::Matters` queue cause such events all the time, so the latency queue is set apart by its shares alone.
//! - `preempt_timer` is 1 ms (default 100 ms).
//! - A TCP stream has no "readable" of its own: a read into an empty buffer is one (`net`).
//! - Only a task of glommio's reactor can wait for a descriptor; the ring's eventfd is wrapped as a `UnixStream` for that (`disk`).
//! - Its listeners take no backlog and lack SO_REUSEADDR: we make the socket and hand it over (`net`).
//!
//! Thread-local state is allowed here: a shard is its thread. `unsafe` appears in `clock_ns` and `random_seed`, as plain system calls.
#![allow(
    clippy::disallowed_methods,
    reason = "this module is what the rest of the crate uses instead"
)]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use glommio::{Latency, Shares, TaskQueueHandle};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use super::{Instant, Queue};

mod disk;
mod file;
pub mod fs;
mod guard;
mod launch;
mod net;

pub use file::{File, JournalFile, JournalWrite};
pub use launch::launch;
pub use net::{TcpListener, TcpStream, check_port_free};

/// CPU shares of the two queues: under load the background gets about a twentieth.
const LATENCY_SHARES: usize = 1000;
const BACKGROUND_SHARES: usize = 50;
/// How soon I/O is looked at while tasks keep the shard busy.
const PREEMPT: Duration = Duration::from_millis(1);
/// How long an idle shard polls before its thread sleeps (pinned shards only).
const SPIN_BEFORE_PARK: Duration = Duration::from_micros(100);
/// About 20 µs: a poll of the rings with a turn of the task queue takes some 130 ns.
const RING_POLLS: u32 = 150;

thread_local! {
    static SHARD: RefCell<Option<Rc<Shard>>> = const { RefCell::new(None) };
    static RANDOM: RefCell<Option<SmallRng>> = const { RefCell::new(None) };
    static POLLS: Cell<u32> = const { Cell::new(0) };
}

/// What a shard's thread knows of itself.
struct Shard {
    latency: TaskQueueHandle,
    background: TaskQueueHandle,
    disk: Rc<disk::Disk>,
    activity: Rc<guard::Activity>,
}

/// Makes this thread's executor a shard. Called inside the executor.
fn enter(spin: bool) -> std::io::Result<()> {
    let executor = glommio::executor();
    let latency = executor.create_task_queue(
        Shares::Static(LATENCY_SHARES),
        Latency::NotImportant,
        "latency",
    );
    let background = executor.create_task_queue(
        Shares::Static(BACKGROUND_SHARES),
        Latency::NotImportant,
        "background",
    );
    let disk = disk::Disk::new(spin)?;
    POLLS.set(if spin { RING_POLLS } else { 0 });
    let activity = Rc::new(guard::Activity::default());
    let guard = glommio::spawn_local_into(guard::guard(activity.clone()), latency);
    guard.map_err(std::io::Error::from)?.detach();
    SHARD.set(Some(Rc::new(Shard {
        latency,
        background,
        disk,
        activity,
    })));
    Ok(())
}

/// Takes the shard's state away again. The disk waits for what the kernel still has when its last user is gone.
fn leave() {
    SHARD.set(None);
    RANDOM.set(None);
    POLLS.set(0);
}

fn shard() -> Rc<Shard> {
    SHARD.with_borrow(Clone::clone).expect(
        "tasks, timers, files and sockets exist on shards alone: call this inside rt::launch",
    )
}

pub fn now() -> Instant {
    Instant(clock_ns(libc::CLOCK_MONOTONIC))
}

pub fn wall_clock_ms() -> i64 {
    (clock_ns(libc::CLOCK_REALTIME) / 1_000_000) as i64
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec, which is ours.
    let r = unsafe { libc::clock_gettime(clock, &mut t) };
    assert_eq!(r, 0, "the two clocks exist on every Linux");
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

pub fn random_u64() -> u64 {
    RANDOM.with_borrow_mut(|r| {
        r.get_or_insert_with(|| SmallRng::seed_from_u64(random_seed()))
            .next_u64()
    })
}

fn random_seed() -> u64 {
    let mut seed = [0u8; 8];
    // SAFETY: fills eight bytes, which are ours.
    let n = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    assert_eq!(n, 8, "small reads of the system's randomness are whole");
    u64::from_ne_bytes(seed)
}

pub async fn sleep(d: Duration) {
    glommio::timer::sleep(d).await;
}

/// Sleeps what is left of `d` since `begun`.
async fn sleep_rest(d: Duration, begun: Instant) {
    let spent = begun.elapsed();
    if spent < d {
        sleep(d - spent).await;
    }
}

pub struct Task<T>(glommio::Task<T>);

impl<T: 'static> Task<T> {
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

pub fn spawn<T: 'static>(q: Queue, f: impl Future<Output = T> + 'static) -> Task<T> {
    let shard = shard();
    let queue = match q {
        Queue::Latency => shard.latency,
        Queue::Background => shard.background,
    };
    let task = glommio::spawn_local_into(guard::Watched::new(shard.activity.clone(), f), queue);
    Task(task.expect("a shard's queues live as long as it does"))
}

pub async fn yield_now() {
    futures_lite::future::yield_now().await;
}

pub async fn yield_if_needed() {
    glommio::yield_if_needed().await;
}

pub async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    glommio::executor().spawn_blocking(f).await
}

pub fn spin_polls() -> u32 {
    POLLS.get()
}

pub fn exit(code: i32) -> ! {
    std::process::exit(code)
}
