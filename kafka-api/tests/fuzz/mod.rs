//! A small fuzzer: good inputs, changed at random, for `FUZZ_SECONDS` (default 2). A panic prints the input that caused it; `FUZZ_SEED`
//! repeats a run. It runs on an ordinary thread, so it asks the system for the time.
#![allow(clippy::disallowed_methods)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// xorshift64*.
pub struct Random(u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
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
                let edge = EDGES[random.below(EDGES.len())].to_be_bytes();
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

/// Runs `target` on changed inputs until the time is up.
pub fn run(corpus: &[Vec<u8>], mut target: impl FnMut(&mut Random, Vec<u8>)) {
    let seconds = std::env::var("FUZZ_SECONDS").map_or(2, |s| s.parse().expect("whole seconds"));
    let seed = std::env::var("FUZZ_SEED").map_or_else(
        |_| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.map_or(1, |d| d.as_nanos() as u64) | 1
        },
        |s| s.parse().expect("a number"),
    );
    let mut random = Random(seed);
    let began = Instant::now();
    let mut executions = 0u64;
    while began.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..200 {
            let mut input = corpus[random.below(corpus.len())].clone();
            let other = &corpus[random.below(corpus.len())];
            change(&mut random, &mut input, other);
            let shown = input.clone();
            let outcome = catch_unwind(AssertUnwindSafe(|| target(&mut random, input)));
            if let Err(panic) = outcome {
                eprintln!("FUZZ_SEED={seed}, execution {executions}, input {shown:02x?}");
                std::panic::resume_unwind(panic);
            }
            executions += 1;
        }
    }
    println!("SHOW executions={executions}");
}
