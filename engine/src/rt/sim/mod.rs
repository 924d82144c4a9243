//! The simulated twin: the same code on a simulated clock, disk and network, everything drawn from one seed.
//!
//! A [`World`] is one machine: a disk that outlives the process, a clock, a network of its own. [`World::run`] runs a process on it (all shards on one
//! thread) until its main future ends, it exits, it is stuck, or the world stops it: by a kill, after which what was written but not synced is still there, or by a
//! power cut, after which each unsynced write is kept, lost or torn at 512-byte sectors or 4 KiB blocks, and unsynced names are back where they were.
//! Running again on the same world is the restart.
//!
//! - `exec`: tasks in an order drawn from the seed; time jumps to the next timer when nobody can run.
//! - `disk`: files, names, and what a crash leaves of them. `file`: the operations, with drawn latencies, so that writes in flight complete in any order.
//! - `net`: TCP between the tasks of the world.
//!
//! Two runs of one seed take the same steps: [`World::trace`] is a hash of all of them. Faults that fired are counted ([`Faults`]): a test that wants one
//! should see that it happened. A panic prints the seed.
//!
//! Thread-local state is allowed here: it says which world this thread runs.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this module is what the rest of the crate uses instead"
)]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::{Instant, Launch, Queue};
use crate::types::ShardId;

mod disk;
mod exec;
mod file;
mod net;
#[cfg(test)]
mod tests;

use exec::Executor;
pub use exec::{Task, sleep, spawn, yield_if_needed};
pub use file::{File, JournalFile, JournalWrite, fs};
pub use net::{TcpListener, TcpStream, check_port_free};

/// As on a large machine.
pub fn descriptors() -> u64 {
    1 << 20
}

/// A simulated machine is always fit.
pub fn probe() -> io::Result<()> {
    Ok(())
}

/// How a process is stopped from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `kill -9`: the operating system still has what was written.
    Kill,
    /// What was not synced is kept, lost or torn.
    PowerCut,
}

/// What may happen in a world.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Stops the process about when it begins its n-th disk operation, counted from 1 over all runs: before, amid or just after.
    pub stop_at_op: Option<(u64, Stop)>,
    /// The n-th disk operation fails with an I/O error; what it wrote is undefined.
    pub fail_op: Option<u64>,
    /// Bytes that all files together may take; what would take more fails for want of room. May be lowered below what is there.
    pub disk_bytes: Option<u64>,
    /// Whether a power cut may lose unsynced writes, tear them, and take back unsynced names.
    pub lose_writes: bool,
    pub tear_writes: bool,
    pub lose_names: bool,
    /// New journals are made so large at most, in bytes, so that they have to grow.
    pub new_journal_bytes: u64,
    /// Polls of rings before a consumer sleeps.
    pub spin_polls: u32,
    /// One in so many `yield_if_needed` yields.
    pub yield_one_in: u32,
    /// Steps after which a run is taken for endless, and panics.
    pub max_steps: u64,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            stop_at_op: None,
            fail_op: None,
            disk_bytes: None,
            lose_writes: true,
            tear_writes: true,
            lose_names: true,
            new_journal_bytes: u64::MAX,
            spin_polls: 2,
            yield_one_in: 4,
            max_steps: 20_000_000,
        }
    }
}

/// How often what was meant to happen did happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub kills: u64,
    pub power_cuts: u64,
    /// Unsynced writes that a power cut kept, lost and tore.
    pub writes_kept: u64,
    pub writes_lost: u64,
    pub writes_torn: u64,
    /// Journal writes among them: in flight at the cut.
    pub journal_writes_in_flight: u64,
    /// Creations, renames and removals that a power cut took back.
    pub names_lost: u64,
    /// Journal writes that completed before one begun earlier.
    pub reordered: u64,
    pub failed_ops: u64,
    /// Operations that found no room.
    pub no_room: u64,
    pub flipped_bits: u64,
    /// Writes, syncs and changes of names begun.
    pub disk_ops: u64,
    pub syncs: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    Done(T),
    /// The process called `rt::exit`.
    Exited(i32),
    Stopped(Stop),
    /// Nobody can ever run again: a deadlock or a lost wake-up.
    Stuck,
}

impl<T> Outcome<T> {
    pub fn done(self) -> Option<T> {
        match self {
            Outcome::Done(v) => Some(v),
            _ => None,
        }
    }
}

/// One simulated machine. Clones are the same one.
#[derive(Clone)]
pub struct World(Rc<Inner>);

pub(super) struct Inner {
    seed: u64,
    config: RefCell<SimConfig>,
    rng: RefCell<SmallRng>,
    clock_ns: Cell<u64>,
    wall_offset_ms: Cell<i64>,
    trace: Cell<u64>,
    faults: Cell<Faults>,
    executor: Executor,
    disk: RefCell<disk::Disk>,
    writes: RefCell<file::Writes>,
    net: RefCell<net::Net>,
    /// Set when the process is being stopped: nothing has an effect any more.
    stopped: Cell<Option<Stop>>,
    /// What a `launch` inside `enter` ended with.
    ended: Cell<Option<Ended>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Exited(i32),
    Stopped(Stop),
    Stuck,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Inner>>> = const { RefCell::new(None) };
    /// For code outside every world.
    static OUTSIDE: RefCell<SmallRng> = RefCell::new(SmallRng::seed_from_u64(0));
}

/// 2026-01-01, in milliseconds since the epoch.
const WALL_START_MS: i64 = 1_767_225_600_000;

impl World {
    pub fn new(seed: u64, config: SimConfig) -> World {
        World(Rc::new(Inner {
            seed,
            config: RefCell::new(config),
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            clock_ns: Cell::new(1_000_000_000),
            wall_offset_ms: Cell::new(WALL_START_MS),
            trace: Cell::new(seed),
            faults: Cell::default(),
            executor: Executor::default(),
            disk: RefCell::new(disk::Disk::new()),
            writes: RefCell::default(),
            net: RefCell::default(),
            stopped: Cell::new(None),
            ended: Cell::new(None),
        }))
    }

    /// Runs a process whose main task is `main` (on shard 0). When that ends, the others are dropped.
    pub fn run<F, Fut>(&self, main: F) -> Outcome<Fut::Output>
    where
        F: FnOnce() -> Fut,
        Fut: Future + 'static,
        Fut::Output: 'static,
    {
        let _inside = Inside::enter(&self.0);
        match self.0.run(main) {
            Ok(v) => Outcome::Done(v),
            Err(e) => e.outcome(),
        }
    }

    /// Calls ordinary code in the world, such as a whole start-up that calls `rt::launch`.
    pub fn enter<T>(&self, f: impl FnOnce() -> T) -> Outcome<T> {
        let _inside = Inside::enter(&self.0);
        self.0.ended.set(None);
        let v = f();
        match self.0.ended.take() {
            None => Outcome::Done(v),
            Some(e) => e.outcome(),
        }
    }

    /// Stops the running process at once: no task is polled again. Call it from inside `run`, or between runs to lose what isn't synced.
    pub fn stop(&self, how: Stop) {
        if CURRENT.with_borrow(Option::is_some) {
            self.0.stopped.set(Some(how));
        } else {
            self.0.settle(how);
        }
    }

    /// The world that this code runs in.
    pub fn current() -> World {
        World(current())
    }

    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Changes what may happen from now on.
    pub fn configure(&self, f: impl FnOnce(&mut SimConfig)) {
        f(&mut self.0.config.borrow_mut());
    }

    pub fn faults(&self) -> Faults {
        self.0.faults.get()
    }

    /// A hash of every step so far.
    pub fn trace(&self) -> u64 {
        self.0.trace.get()
    }

    pub fn now(&self) -> Instant {
        Instant(self.0.clock_ns.get())
    }

    /// Somebody sets the clock.
    pub fn jump_wall_clock(&self, ms: i64) {
        self.0.wall_offset_ms.set(self.0.wall_offset_ms.get() + ms);
    }

    /// The file's bytes as a process would read them.
    pub fn read_file(&self, path: &Path) -> Option<Vec<u8>> {
        self.0.disk.borrow().read_whole(path)
    }

    /// Puts a file there, durably, with the directories above it.
    pub fn put_file(&self, path: &Path, bytes: &[u8]) {
        self.0.disk.borrow_mut().put(path, bytes);
    }

    /// Bytes that files take, in whole blocks.
    pub fn used_bytes(&self) -> u64 {
        self.0.disk.borrow().used_bytes()
    }

    /// Every file, sorted.
    pub fn files(&self) -> Vec<std::path::PathBuf> {
        self.0.disk.borrow().files()
    }

    /// Flips a bit of a file at rest. False when the file is shorter or isn't there.
    pub fn flip_bit(&self, path: &Path, bit: u64) -> bool {
        let flipped = self.0.disk.borrow_mut().flip_bit(path, bit);
        if flipped {
            self.0.count(|f| f.flipped_bits += 1);
        }
        flipped
    }
}

impl Ended {
    fn outcome<T>(self) -> Outcome<T> {
        match self {
            Ended::Exited(code) => Outcome::Exited(code),
            Ended::Stopped(how) => Outcome::Stopped(how),
            Ended::Stuck => Outcome::Stuck,
        }
    }
}

impl Inner {
    fn run<F, Fut>(self: &Rc<Self>, main: F) -> Result<Fut::Output, Ended>
    where
        F: FnOnce() -> Fut,
        Fut: Future + 'static,
        Fut::Output: 'static,
    {
        self.mix(0x52);
        self.stopped.set(None);
        let result = exec::run(self, main);
        if result.is_err() {
            self.ended.set(result.as_ref().err().copied());
        }
        // From here on nothing that a dropped future still does has an effect.
        let how = self.stopped.get().unwrap_or(Stop::Kill);
        self.stopped.set(Some(how));
        self.executor.clear();
        drop(self.writes.take());
        self.net.borrow_mut().clear();
        self.settle(how);
        self.stopped.set(None);
        result
    }

    /// What the disk is like after a stop.
    fn settle(&self, how: Stop) {
        let config = self.config.borrow().clone();
        let mut faults = self.faults.get();
        match how {
            Stop::Kill => faults.kills += 1,
            Stop::PowerCut => faults.power_cuts += 1,
        }
        let mut rng = self.rng.borrow_mut();
        self.disk
            .borrow_mut()
            .settle(how, &config, &mut rng, &mut faults);
        self.faults.set(faults);
    }

    fn count(&self, f: impl FnOnce(&mut Faults)) {
        let mut faults = self.faults.get();
        f(&mut faults);
        self.faults.set(faults);
    }

    /// Takes a step into the trace.
    fn mix(&self, v: u64) {
        let h = (self.trace.get() ^ v).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.trace.set(h ^ (h >> 29));
    }

    fn draw(&self, below: u64) -> u64 {
        self.rng.borrow_mut().random_range(0..below)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "the simulated world's seed was {} ({:?})",
                self.seed,
                self.config.borrow()
            );
        }
    }
}

/// While it lives, this thread runs the world.
struct Inside(Option<Rc<Inner>>);

impl Inside {
    fn enter(world: &Rc<Inner>) -> Inside {
        Inside(CURRENT.replace(Some(world.clone())))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

fn current() -> Rc<Inner> {
    CURRENT
        .with_borrow(Clone::clone)
        .expect("tasks, timers, files and sockets exist in a world alone: call this inside World::run or rt::launch")
}

pub fn now() -> Instant {
    Instant(CURRENT.with_borrow(|w| w.as_ref().map_or(0, |w| w.clock_ns.get())))
}

pub fn wall_clock_ms() -> i64 {
    CURRENT.with_borrow(|w| {
        w.as_ref().map_or(WALL_START_MS, |w| {
            w.wall_offset_ms.get() + (w.clock_ns.get() / 1_000_000) as i64
        })
    })
}

pub fn random_u64() -> u64 {
    CURRENT.with_borrow(|w| match w {
        Some(w) => w.rng.borrow_mut().next_u64(),
        None => OUTSIDE.with_borrow_mut(RngCore::next_u64),
    })
}

pub async fn yield_now() {
    futures_lite::future::yield_now().await;
}

pub async fn populate(buffer: BytesMut, _bytes: usize) -> BytesMut {
    blocking(|| buffer).await
}

pub async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let delay = 1_000 + current().draw(50_000);
    sleep(Duration::from_nanos(delay)).await;
    f()
}

pub fn spin_polls() -> u32 {
    CURRENT.with_borrow(|w| w.as_ref().map_or(0, |w| w.config.borrow().spin_polls))
}

/// Carries an `exit` through the stack of the task that called it.
struct Exit(i32);

pub fn exit(code: i32) -> ! {
    std::panic::resume_unwind(Box::new(Exit(code)))
}

/// All shards on this thread: in the world that is entered, or in a fresh one.
pub fn launch<F, Fut>(l: Launch, make: F) -> io::Result<()>
where
    F: Fn(ShardId) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    if l.shards == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a node needs at least one shard",
        ));
    }
    let world = CURRENT
        .with_borrow(Clone::clone)
        .unwrap_or_else(|| World::new(l.seed.unwrap_or(0), SimConfig::default()).0);
    let _inside = Inside::enter(&world);
    let result = world.run(move || async move {
        let shards: Vec<_> = (0..l.shards)
            .map(|i| spawn(Queue::Latency, make(ShardId(i))))
            .collect();
        for s in shards {
            s.await;
        }
    });
    result.map_err(|e| io::Error::other(format!("the simulated process ended: {e:?}")))
}
