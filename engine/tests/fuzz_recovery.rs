//! A start on a directory whose files were changed (built with `--cfg tailrace_sim`): it answers with what was written or an error that names what is wrong;
//! it never panics, never takes memory beyond what the files are large, never gets stuck.
//!
//! Directories come from the shipped log ([`image`]). They are changed as disks and people change them (bits, sectors, blocks from elsewhere or from before,
//! files cut, gone or put back from an older day): then every batch that is served is one that was written at its offset. Or they are
//! forged, with every checksum put right, so that what lies behind the checksums is reached: then only the rest is asked for.
#![cfg(tailrace_sim)]

mod fuzz;
#[path = "fuzz/image.rs"]
mod image;
#[allow(
    dead_code,
    reason = "what is only for segments has a target of its own"
)]
#[path = "fuzz/mangle.rs"]
mod mangle;
#[path = "fuzz/memory.rs"]
mod memory;

use image::{Answer, Image};

/// Memory that a start may take at once: so many times its files, and this many bytes besides.
const TIMES_FILES: usize = 8;
const BESIDES_BYTES: usize = 24 << 20;

#[test]
fn a_changed_directory_is_recovered_or_refused() {
    let images: Vec<Image> = (1..=6).map(image::make).collect();
    // Refused, served, and served with something named: all must happen, or the target is blind.
    let mut kinds = [0u64; 3];
    fuzz::drive(
        fuzz::fuzz_test!("a_changed_directory_is_recovered_or_refused"),
        |random| {
            let image = random.of(&images);
            let mut files = image.newest().clone();
            let mut forged = false;
            for _ in 0..1 + random.below(3) {
                forged |= mangle::mangle(random, &mut files, image);
            }
            let bytes: usize = files.values().map(|f| f.len()).sum();
            let (seed, shards) = (random.next(), 1 + random.below(3) as u16);
            let go_on = random.one_in(3);
            image::tell(image, &files);
            let (answer, peak) = memory::peak(|| image::start(&files, seed, shards, go_on));
            let allowed = TIMES_FILES * bytes + BESIDES_BYTES;
            assert!(peak <= allowed, "{peak} bytes for {bytes} of files");
            match answer {
                Answer::Refused(why) => {
                    kinds[0] += 1;
                    assert!(why.contains("/data"), "a refusal names a file: {why}")
                }
                Answer::Served(served) if !forged => {
                    kinds[1 + usize::from(served.named > 0)] += 1;
                    image::check(image, &served, false);
                }
                Answer::Served(_) => {}
            }
        },
    );
    if kinds.iter().sum::<u64>() > 300 {
        assert!(
            kinds.iter().all(|n| *n > 0),
            "the target is blind: {kinds:?}"
        );
    }
}

/// Nothing is changed, nothing is found: else the target above is blind.
#[test]
fn an_unchanged_directory_is_served_whole() {
    for seed in 1..=6 {
        let image = image::make(seed);
        let Answer::Served(served) = image::start(image.newest(), seed, 2, true) else {
            panic!("image {seed} is refused");
        };
        assert!(served.batches.len() > 100, "{}", served.batches.len());
        assert_eq!(
            (served.named, served.gaps, served.failed),
            (0, vec![], None)
        );
    }
}
