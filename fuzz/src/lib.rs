//! What is fuzzed: every decoder of bytes from a socket or a disk, as functions of bytes, for libFuzzer (`targets/`), for the tests of this
//! crate, and for whoever runs one input again. `tests/fuzz` builds and runs them.
//!
//! [`frames`] and [`batches`] are what clients send; [`journal`] and [`files`] each decoder of the disk by itself. [`recovery`] and [`segments`] are whole
//! directories on the simulated runtime (built with `--cfg tailrace_sim`): there the bytes are not the files but the draws of whoever
//! damages them ([`random`]). A target panics at what must not be; too much memory is such a thing ([`memory`]).
//!
//! Seeds lie in `corpus/<target>`, made of real encodings ([`seeds`]); what was found once lies there too and is run by the tests.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a harness, not code of a shard"
)]

pub mod memory;
pub mod random;
pub mod seeds;

#[cfg(not(tailrace_sim))]
pub mod batches;
#[cfg(not(tailrace_sim))]
mod decoders;
#[cfg(not(tailrace_sim))]
pub mod files;
#[cfg(not(tailrace_sim))]
pub mod frames;
#[cfg(not(tailrace_sim))]
pub mod journal;

#[cfg(tailrace_sim)]
pub mod image;
#[cfg(tailrace_sim)]
mod mangle;
#[cfg(tailrace_sim)]
pub mod recovery;
#[cfg(tailrace_sim)]
pub mod segments;

/// A target by its name: what it does with an input, and whether it was taken for good.
pub type Target = fn(&[u8]) -> bool;

/// All targets of this build.
#[cfg(not(tailrace_sim))]
pub const TARGETS: [(&str, Target); 4] = [
    ("frames", frames::run),
    ("batches", batches::run),
    ("journal", journal::run),
    ("files", files::run),
];
#[cfg(tailrace_sim)]
pub const TARGETS: [(&str, Target); 2] = [("recovery", recovery::run), ("segments", segments::run)];
