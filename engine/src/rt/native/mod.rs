//! The runtime of a real process: one thread per shard, each with an executor ([`exec`]) and one io_uring ring ([`ring`]) for everything it waits for.
//!
//! The design began with glommio 0.9. It parks a shard although tasks could run, when a completion that wakes nobody comes at the wrong moment; between two shards that call each other that is
//! common, and nothing outside glommio prevents it. `docs/decisions/2026-11-30-executor.md` has the figures; the tests that drove it out are in `rt::tests`.
//!
//! Thread-local state is allowed here: a shard is its thread. `unsafe` in this file: plain system calls.
#![allow(
    clippy::disallowed_methods,
    reason = "this module is what the rest of the crate uses instead"
)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use super::Instant;

mod descriptors;
mod disk;
mod exec;
mod file;
pub mod fs;
mod helpers;
mod launch;
mod net;
mod ring;

pub use descriptors::descriptors;
pub use exec::{Task, sleep, spawn, yield_if_needed};
pub use file::{File, JournalFile, JournalWrite};
pub use helpers::{blocking, populate};
pub use launch::{launch, probe};
pub use net::{TcpListener, TcpStream, check_port_free};

/// About 20 µs: a poll of the rings with a turn of the task queue takes some 100 ns.
const RING_POLLS: u32 = 200;

thread_local! {
    static SHARD: RefCell<Option<Rc<exec::Shard>>> = const { RefCell::new(None) };
    static RANDOM: RefCell<Option<SmallRng>> = const { RefCell::new(None) };
    static POLLS: Cell<u32> = const { Cell::new(0) };
}

fn shard() -> Rc<exec::Shard> {
    SHARD.with_borrow(Clone::clone).expect(
        "tasks, timers, files and sockets exist on shards alone: call this inside rt::launch",
    )
}

/// While it lives, this thread is the shard.
struct Entered;

impl Entered {
    fn new(shard: Rc<exec::Shard>, seed: Option<u64>) -> Entered {
        POLLS.set(if shard.spins() { RING_POLLS } else { 0 });
        RANDOM.set(seed.map(SmallRng::seed_from_u64));
        SHARD.set(Some(shard));
        Entered
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Not within the borrow: dropping the shard waits for what the kernel still has.
        let shard = SHARD.take();
        drop(shard);
        RANDOM.set(None);
        POLLS.set(0);
    }
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

pub async fn yield_now() {
    futures_lite::future::yield_now().await;
}

pub fn spin_polls() -> u32 {
    POLLS.get()
}

pub fn exit(code: i32) -> ! {
    std::process::exit(code)
}
