#![cfg_attr(tailrace_sim, no_main)]

#[cfg(tailrace_sim)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::segments::run(input);
});

#[cfg(not(tailrace_sim))]
fn main() {}
