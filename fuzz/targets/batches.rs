#![cfg_attr(not(tailrace_sim), no_main)]

#[cfg(not(tailrace_sim))]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::batches::run(input);
});

#[cfg(tailrace_sim)]
fn main() {}
