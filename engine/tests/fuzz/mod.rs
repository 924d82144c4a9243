//! A small fuzzer: good inputs, changed at random, for `FUZZ_SECONDS` (default 2).
//!
//! Every execution has a seed of its own. What a target finds (a panic, too much memory) is printed with the command that runs that one execution
//! again, once for each place in the code; the run goes on, and fails at its end. An execution that takes longer than a minute ends the process.
//! It runs on ordinary threads, so it asks the system for the time.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    dead_code,
    reason = "a harness, not code of a shard; no target uses all of it"
)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest time of one execution, in seconds.
const EXECUTION_SECONDS: u64 = 60;
/// Executions between two looks at the clock.
const ROUND: u64 = 16;

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Seeds that follow one another must not draw alike.
        let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Random((z ^ (z >> 31)) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    /// A number at which arithmetic goes wrong, or one near `near`, or any.
    pub fn edge(&mut self, near: u64) -> u64 {
        const EDGES: [u64; 14] = [
            0,
            1,
            0x7f,
            0xffff,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            1 << 32,
            1 << 40,
            1 << 62,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.below(4) {
            0 | 1 => *self.of(&EDGES),
            2 => near.wrapping_add(self.below(9) as u64).wrapping_sub(4),
            _ => self.next() >> self.below(64),
        }
    }
}

/// Numbers at which decoders go wrong.
const EDGES: [u32; 10] = [
    0,
    1,
    0x7f,
    0x80,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffe,
    0xffff_ffff,
];

/// Changes `input` a little: flips, edge numbers, cuts, repeats, and pieces of another input.
pub fn change(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(4) {
        let at = random.below(input.len());
        match random.below(8) {
            _ if input.is_empty() => input.extend_from_slice(other),
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = random.next() as u8,
            2 => {
                let edge = EDGES[random.below(EDGES.len())];
                let edge = if random.one_in(2) {
                    edge.to_be_bytes()
                } else {
                    edge.swap_bytes().to_be_bytes()
                };
                let width = [1, 2, 4][random.below(3)].min(input.len() - at);
                input[at..at + width].copy_from_slice(&edge[4 - width..]);
            }
            // A varint of the greatest number.
            3 => {
                let n = (1 + random.below(10)).min(input.len() - at);
                input[at..at + n].fill(0xff);
            }
            4 => input.truncate(at),
            5 => {
                let end = (at + 1 + random.below(32)).min(input.len());
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            6 => {
                let end = (at + 1 + random.below(16)).min(input.len());
                input.drain(at..end);
            }
            _ => {
                let from = random.below(other.len());
                let end = (from + 1 + random.below(32)).min(other.len());
                input.splice(at..at, other[from..end].iter().copied());
            }
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a whole number"))
}

thread_local! {
    /// An execution is under way: its panics are told by [`drive`].
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Where the last panic of this thread came from.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Panics of the executions are told by [`drive`], in its own words.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info: &PanicHookInfo| {
            if !INSIDE.get() {
                return usual(info);
            }
            let place = info
                .location()
                .map_or_else(String::new, |l| format!("{}:{}", l.file(), l.line()));
            let message = info.payload_as_str().unwrap_or("a panic");
            PANICKED.set(Some(format!("{place}: {message}")));
        }));
    });
}

/// Prints the execution that runs when it doesn't come to an end.
fn watch(now: Arc<(AtomicU64, AtomicU64, AtomicBool)>, again: String) {
    std::thread::spawn(move || {
        let (mut seen, mut since) = (0, Instant::now());
        while !now.2.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
            let executed = now.1.load(Ordering::Relaxed);
            if executed != seen {
                (seen, since) = (executed, Instant::now());
            }
            if since.elapsed() > Duration::from_secs(EXECUTION_SECONDS) {
                let seed = now.0.load(Ordering::Relaxed);
                eprintln!(
                    "an execution takes longer than {EXECUTION_SECONDS} s; again with FUZZ_SEED={seed} {again}"
                );
                std::process::abort();
            }
        }
    });
}

/// How to run one test again: [`fuzz_test!`] says it. A file of tests holds one target, which is shown under the file's name.
pub struct Test {
    pub package: &'static str,
    pub file: &'static str,
    pub name: &'static str,
}

/// The [`Test`] that is called `$name`, in the file that this is written in.
macro_rules! fuzz_test {
    ($name:literal) => {
        $crate::fuzz::Test {
            package: env!("CARGO_PKG_NAME"),
            file: env!("CARGO_CRATE_NAME"),
            name: $name,
        }
    };
}
pub(crate) use fuzz_test;

/// Runs `target` on changed inputs until the time is up, or once with `FUZZ_SEED`.
pub fn run(test: Test, corpus: &[Vec<u8>], mut target: impl FnMut(&mut Random, Vec<u8>)) {
    drive(test, |random| {
        let mut input = random.of(corpus).clone();
        let other = random.of(corpus);
        change(random, &mut input, other);
        target(random, input);
    });
}

/// Calls `target` until the time is up, or once with `FUZZ_SEED`.
///
/// # Panics
/// At the end, when anything was found.
pub fn drive(test: Test, mut target: impl FnMut(&mut Random)) {
    let seconds = number("FUZZ_SECONDS").unwrap_or(2);
    let alone = number("FUZZ_SEED");
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = alone.unwrap_or(now.map_or(1, |d| d.as_nanos() as u64));
    let build = if cfg!(tailrace_sim) {
        "RUSTFLAGS='--cfg tailrace_sim' CARGO_TARGET_DIR=target-sim "
    } else {
        ""
    };
    let again = format!(
        "{build}cargo test --profile ci -p {} --test {} {}",
        test.package, test.file, test.name
    );
    quiet_panics();
    let at = Arc::new((AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false)));
    watch(at.clone(), again.clone());
    let began = Instant::now();
    let (mut executions, mut finds) = (0u64, BTreeMap::<String, u64>::new());
    while executions == 0 || (alone.is_none() && began.elapsed() < Duration::from_secs(seconds)) {
        for _ in 0..if alone.is_some() { 1 } else { ROUND } {
            let seed = first.wrapping_add(executions);
            at.0.store(seed, Ordering::Relaxed);
            INSIDE.set(true);
            let outcome = catch_unwind(AssertUnwindSafe(|| target(&mut Random::new(seed))));
            INSIDE.set(false);
            if outcome.is_err() {
                let text = PANICKED.take().unwrap_or_else(|| "a panic".into());
                let place = text.split(": ").next().unwrap_or_default();
                let n = finds.entry(place.to_owned()).or_default();
                *n += 1;
                if *n == 1 {
                    eprintln!(
                        "FOUND by {}: {text}\n  again with FUZZ_SEED={seed} {again}",
                        test.name
                    );
                }
            }
            executions += 1;
            at.1.store(executions, Ordering::Relaxed);
        }
    }
    at.2.store(true, Ordering::Relaxed);
    let n = finds.len();
    let target = test.file.trim_start_matches("fuzz_");
    println!(
        "SHOW executions={executions} finds={n} {target}_executions={executions} {target}_finds={n}"
    );
    assert!(finds.is_empty(), "{} found: {finds:#?}", test.name);
}
