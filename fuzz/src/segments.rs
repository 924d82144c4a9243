//! Segments and their indexes, changed, under the log that reads them (built with `--cfg tailrace_sim`).
//!
//! Every batch that is served is one that was written at its offset; what can't be served is answered by an error that names the offsets or the file, and what lies
//! around it is served. Indexes are forged too, with their checksum put right: then a read may miss, but serves nothing wrong either.

use std::cell::OnceCell;

use crate::image::{self, Answer, Image};
use crate::random::Random;
use crate::recovery::{BESIDES_BYTES, TIMES_FILES};
use crate::{mangle, memory};

thread_local! {
    static IMAGES: OnceCell<Vec<Image>> = const { OnceCell::new() };
}

/// Damages segments by the draws of an input, starts, and reads everything; whether nothing was named as damaged.
pub fn run(input: &[u8]) -> bool {
    IMAGES.with(|images| {
        let images = images.get_or_init(|| (11..=16).map(image::make).collect());
        changed(images, &mut Random::new(input))
    })
}

fn changed(images: &[Image], random: &mut Random<'_>) -> bool {
    let image = random.of(images);
    let mut files = image.newest().clone();
    let (seed, shards) = (random.below(0x1_0000) as u64, 1 + random.below(3) as u16);
    let forged = random.one_in(4);
    for _ in 0..1 + random.below(3) {
        mangle::mangle_segment(random, &mut files, forged);
    }
    let bytes: usize = files.values().map(|f| f.len()).sum();
    let (answer, peak) = memory::peak(|| image::start(&files, seed, shards, false));
    let allowed = TIMES_FILES * bytes + BESIDES_BYTES;
    assert!(peak <= allowed, "{peak} bytes for {bytes} of files");
    let served = match answer {
        Answer::Served(served) => served,
        Answer::Refused(why) => panic!("a start looks at no segment: {why}"),
    };
    image::check(image, &served, forged);
    served.named == 0
}
