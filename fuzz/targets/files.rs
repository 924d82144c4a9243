#![cfg_attr(not(tailrace_sim), no_main)]
#![allow(
    clippy::disallowed_methods,
    reason = "what libFuzzer's macro makes opens files"
)]

#[cfg(not(tailrace_sim))]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::files::run(input);
});

// Not of this build; what the compiler puts in for coverage is defined there all the same.
#[cfg(tailrace_sim)]
use libfuzzer_sys as _;
#[cfg(tailrace_sim)]
fn main() {}
