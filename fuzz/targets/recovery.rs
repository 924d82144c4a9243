#![cfg_attr(tailrace_sim, no_main)]
#![allow(
    clippy::disallowed_methods,
    reason = "what libFuzzer's macro makes opens files"
)]

#[cfg(tailrace_sim)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::recovery::run(input);
});

// Not of this build; what the compiler puts in for coverage is defined there all the same.
#[cfg(not(tailrace_sim))]
use libfuzzer_sys as _;
#[cfg(not(tailrace_sim))]
fn main() {}
