//! What a journal holds: blocks, records, directories, superblocks.

use crate::decoders::{self, Kind};

const KINDS: [Kind; 4] = [
    Kind::Block,
    Kind::Records,
    Kind::Directory,
    Kind::Superblock,
];

pub fn run(input: &[u8]) -> bool {
    decoders::run(&KINDS, input)
}

pub fn seeds() -> Vec<Vec<u8>> {
    let sound = decoders::sound().into_iter();
    sound
        .filter_map(|(kind, bytes)| decoders::input(&KINDS, kind, &bytes))
        .collect()
}
