//! Segments and their indexes, changed, under the log that reads them (built with `--cfg tailrace_sim`).
//!
//! Every batch that is served is one that was written at its offset; what can't be served is answered by an error that names the offsets or the file, and what lies
//! around it is served. Indexes are forged too, with their checksum put right: then a read may miss, but serves nothing wrong either.
#![cfg(tailrace_sim)]

mod fuzz;
#[path = "fuzz/image.rs"]
mod image;
#[path = "fuzz/mangle.rs"]
#[allow(dead_code, reason = "segments and indexes alone are changed here")]
mod mangle;
#[path = "fuzz/memory.rs"]
mod memory;

use image::{Answer, Image};

/// Memory that a start and the reads may take at once: so many times the files, and this many bytes besides.
const TIMES_FILES: usize = 8;
const BESIDES_BYTES: usize = 24 << 20;

#[test]
fn changed_segments_are_read_or_named() {
    let images: Vec<Image> = (11..=16).map(image::make).collect();
    fuzz::drive(
        fuzz::fuzz_test!("changed_segments_are_read_or_named"),
        |random| {
            let image = random.of(&images);
            let mut files = image.newest().clone();
            let forged = random.one_in(4);
            for _ in 0..1 + random.below(3) {
                mangle::mangle_segment(random, &mut files, forged);
            }
            let bytes: usize = files.values().map(|f| f.len()).sum();
            let (seed, shards) = (random.next(), 1 + random.below(3) as u16);
            image::tell(image, &files);
            let (answer, peak) = memory::peak(|| image::start(&files, seed, shards, false));
            let allowed = TIMES_FILES * bytes + BESIDES_BYTES;
            assert!(peak <= allowed, "{peak} bytes for {bytes} of files");
            let served = match answer {
                Answer::Served(served) => served,
                Answer::Refused(why) => panic!("a start looks at no segment: {why}"),
            };
            image::check(image, &served, forged);
        },
    );
}
