//! The log over the real runtime and a real directory: what is durable comes back, from memory, from segments, after every kind of start.
#![cfg(not(tailrace_sim))]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the test hands recovered parts from one thread to the others, and makes its own directories"
)]

mod harness;
mod lost;

use std::path::{Path, PathBuf};

use engine::types::*;

use harness::*;

#[test]
fn what_is_durable_comes_back_from_the_journal() {
    let dir = temp("journal");
    start(
        &dir,
        1,
        3,
        vec![Do::Produce(50, 3, 20), Do::Check(50, 3, 20)],
    );
    for round in 1..4 {
        start(
            &dir,
            1,
            3,
            vec![Do::Check(50 * round, 3, 20), Do::Produce(50, 3, 20)],
        );
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn segments_checkpoints_and_a_clean_end() {
    let dir = temp("segments");
    // 60 MiB through a journal of 32: it must let go of old blocks, and memory of old batches.
    start(
        &dir,
        1,
        2,
        vec![
            Do::Produce(300, 10, 10_000),
            Do::Check(300, 10, 10_000),
            Do::Close,
        ],
    );
    start(
        &dir,
        1,
        2,
        vec![Do::Check(300, 10, 10_000), Do::Produce(300, 10, 10_000)],
    );
    start(&dir, 1, 2, vec![Do::Check(600, 10, 10_000)]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Replica 1's files whose names end in `suffix`, first to last.
fn paths(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let replica = dir.join("partitions").join(format!("{}-r1", group(1)));
    let entries = std::fs::read_dir(replica).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.retain(|p| p.to_string_lossy().ends_with(suffix));
    paths.sort();
    paths
}

/// The index is a shortcut: without it, or with a rotten one, a time finds the same batch.
#[test]
fn a_time_is_found_without_an_index() {
    let dir = temp("times");
    // 5 MiB in segments of 1 MiB, in stretches of about six batches.
    let steps = vec![
        Do::ProduceTimes(500, 10_000),
        Do::CheckTimes(500),
        Do::Close,
    ];
    start(&dir, 1, 1, steps);
    start(&dir, 1, 1, vec![Do::CheckTimes(500)]);
    let indexes = paths(&dir, ".index");
    assert!(indexes.len() >= 3);
    std::fs::remove_file(&indexes[0]).unwrap();
    for index in &indexes[1..] {
        let mut bytes = std::fs::read(index).unwrap();
        bytes[20] ^= 1;
        std::fs::write(index, bytes).unwrap();
    }
    start(&dir, 1, 1, vec![Do::CheckTimes(500)]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// What lies below the log's start, in the middle of a segment, has no time any more.
#[test]
fn the_newest_is_one_that_can_be_read() {
    let dir = temp("newest");
    start(&dir, 1, 1, vec![Do::ProduceTimes(60, 10_000), Do::Close]);
    for from in [30, 55, 59] {
        // From memory and, behind the next start, from the segment.
        let steps = vec![
            Do::CheckTimes(60),
            Do::Trim(Offset(from)),
            Do::CheckTimes(60),
            Do::Close,
        ];
        start(&dir, 1, 1, steps);
    }
    start(&dir, 1, 1, vec![Do::CheckTimes(60)]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// No descriptor is no failed disk: segments, checkpoints and extents wait for one, and all goes on.
#[test]
fn files_wait_for_descriptors() {
    let dir = temp("descriptors");
    let steps = vec![
        Do::Produce(150, 10, 10_000),
        Do::WithoutDescriptors,
        Do::Produce(150, 10, 10_000),
        Do::Check(322, 10, 10_000),
        Do::Close,
    ];
    start(&dir, 1, 2, steps);
    start(&dir, 1, 2, vec![Do::Check(322, 10, 10_000)]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// L8: the frames of 300 replicas are put together in slices under 200 µs.
#[test]
fn l8_a_checkpoint_is_written_in_slices() {
    let dir = temp("slices");
    start(&dir, 1, 300, vec![Do::CloseInSlices]);
    start(&dir, 1, 300, vec![Do::Check(2, 3, 20)]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// L12: the journals of a start with another number of shards are read by all, go on where they have a shard, and go when they are covered.
#[test]
fn l12_another_number_of_shards() {
    let dir = temp("shards");
    start(&dir, 1, 6, vec![Do::Produce(40, 2, 3000)]);
    for (round, shards) in [2u16, 3, 1, 2].into_iter().enumerate() {
        start(
            &dir,
            shards,
            6,
            vec![
                Do::Check(40 * (round + 1), 2, 3000),
                Do::Produce(40, 2, 3000),
            ],
        );
    }
    start(&dir, 1, 6, vec![Do::Check(200, 2, 3000), Do::Close]);
    assert!(
        !dir.join("journal-1").exists(),
        "journals of shards that are no more go once they are covered"
    );
    start(&dir, 1, 6, vec![Do::Check(200, 2, 3000)]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_trimmed_log_starts_later_and_a_removed_one_is_gone() {
    let dir = temp("trim");
    let steps = vec![
        Do::Produce(300, 10, 1_000),
        Do::Trim(Offset(2000)),
        Do::RemoveSecond,
        Do::Close,
    ];
    start(&dir, 1, 2, steps);
    start(&dir, 1, 0, vec![Do::Check(100, 10, 1_000)]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Files of replica 1 whose names end in `suffix`.
fn files(dir: &Path, suffix: &str) -> usize {
    let replica = dir.join("partitions").join(format!("{}-r1", group(1)));
    let names = std::fs::read_dir(replica).unwrap();
    let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n.ends_with(suffix)).count()
}

/// L7: what is large is written once, beside the journal, and goes with the log's start.
#[test]
fn l7_large_appends_lie_in_extents_and_go_with_the_log() {
    let dir = temp("extents");
    // L7: 200 extents of 40 KB, a file for each MiB of them.
    let steps = vec![
        Do::ProduceLarge(400, 10, 4_000),
        Do::Check(400, 10, 4_000),
        Do::Close,
    ];
    start(&dir, 1, 1, steps);
    assert_eq!(files(&dir, ".extent"), 8);
    // Segments are counted with the extents that they name: of a MiB, half is in extents.
    assert!(files(&dir, ".log") >= 15);
    start(
        &dir,
        1,
        1,
        vec![
            Do::Check(400, 10, 4_000),
            Do::ProduceLarge(100, 10, 4_000),
            Do::Check(500, 10, 4_000),
        ],
    );
    // This start knows of the last two files from the journal alone.
    let steps = vec![
        Do::Check(500, 10, 4_000),
        Do::Trim(Offset(4500)),
        Do::ProduceLarge(2, 10, 4_000),
        Do::Check(52, 10, 4_000),
        Do::Close,
    ];
    start(&dir, 1, 1, steps);
    assert!(
        files(&dir, ".extent") <= 4,
        "{} extent files are left of 11",
        files(&dir, ".extent")
    );
    start(&dir, 1, 1, vec![Do::Check(52, 10, 4_000)]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_damaged_extent_is_named_and_what_follows_is_served() {
    let dir = temp("extent-damage");
    start(&dir, 1, 1, vec![Do::ProduceLarge(6, 10, 4_000)]);
    let replica = dir.join("partitions").join(format!("{}-r1", group(1)));
    let path = replica.join("1-0.extent");
    let mut bytes = std::fs::read(&path).unwrap();
    // The second extent begins on the block behind the first one's 40,061 bytes.
    bytes[40_960 + 20_000] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    start(
        &dir,
        1,
        1,
        vec![Do::CheckDamaged(Offset(20), Offset(30)), Do::Close],
    );
    start(&dir, 1, 1, vec![Do::CheckDamaged(Offset(20), Offset(30))]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_replica_that_goes_while_its_extent_is_written_is_no_failure() {
    let dir = temp("extent-removed");
    start(&dir, 1, 1, vec![Do::Close]);
    // Where its directory would be nothing can be made.
    let replica = dir.join("partitions").join(format!("{}-r1", group(1)));
    std::fs::write(replica, b"in the way").unwrap();
    start(&dir, 1, 1, vec![Do::RemoveUnderExtent]);
    std::fs::remove_dir_all(dir).unwrap();
}
