//! What the other files hold: the frames of segments, indexes, checkpoints, the node file.

use crate::decoders::{self, Kind};

const KINDS: [Kind; 4] = [Kind::Frames, Kind::Index, Kind::Checkpoint, Kind::Node];

pub fn run(input: &[u8]) -> bool {
    decoders::run(&KINDS, input)
}

pub fn seeds() -> Vec<Vec<u8>> {
    let sound = decoders::sound().into_iter();
    sound
        .filter_map(|(kind, bytes)| decoders::input(&KINDS, kind, &bytes))
        .collect()
}
