//! A start on a directory whose files were changed (built with `--cfg tailrace_sim`): it answers with what was written or an error that names what is wrong;
//! it never panics, never takes memory beyond what the files are large, never gets stuck.
//!
//! Directories come from the shipped log ([`image`]). They are changed as disks and people change them (bits, sectors, blocks from elsewhere or from before,
//! files cut, gone or put back from an older day): then every batch that is served is one that was written at its offset. Or they are
//! forged, with every checksum put right, so that what lies behind the checksums is reached: then only the rest is asked for.

use std::cell::OnceCell;

use crate::image::{self, Answer, Image};
use crate::random::Random;
use crate::{mangle, memory};

/// Memory that a start may take at once: so many times its files, and this many bytes besides.
pub const TIMES_FILES: usize = 8;
pub const BESIDES_BYTES: usize = 24 << 20;

thread_local! {
    static IMAGES: OnceCell<Vec<Image>> = const { OnceCell::new() };
}

/// Damages a directory by the draws of an input and starts on it; whether it was served.
pub fn run(input: &[u8]) -> bool {
    IMAGES.with(|images| {
        let images = images.get_or_init(|| (1..=6).map(image::make).collect());
        changed(images, &mut Random::new(input))
    })
}

fn changed(images: &[Image], random: &mut Random<'_>) -> bool {
    let image = random.of(images);
    let mut files = image.newest().clone();
    let (seed, shards) = (random.below(0x1_0000) as u64, 1 + random.below(3) as u16);
    let go_on = random.one_in(3);
    let mut forged = false;
    for _ in 0..1 + random.below(3) {
        forged |= mangle::mangle(random, &mut files, image);
    }
    let bytes: usize = files.values().map(|f| f.len()).sum();
    let (answer, peak) = memory::peak(|| image::start(&files, seed, shards, go_on));
    let allowed = TIMES_FILES * bytes + BESIDES_BYTES;
    assert!(peak <= allowed, "{peak} bytes for {bytes} of files");
    match answer {
        Answer::Refused(why) => {
            assert!(why.contains("/data"), "a refusal names a file: {why}");
            false
        }
        Answer::Served(served) => {
            if !forged {
                image::check(image, &served, false);
            }
            true
        }
    }
}
