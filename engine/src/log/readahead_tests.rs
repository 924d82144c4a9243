//! Readers of segments against real (or simulated) files: what is read how often, and in how much memory.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make their own directories"
)]

use bytes::BytesMut;

use super::*;
use crate::batch::{BatchHeader, testing};
use crate::log::PendingRead;
use crate::log::files::tests::{files, on_a_shard};
use crate::log::reader::Source;
use crate::log::segment::SegmentMeta;
use crate::types::*;

/// Memory of a shard whose fetches have 14 hundredths of it.
const MEMORY: u64 = 256 << 20;

/// A segment of `count` batches of one record of `bytes` each.
async fn segment(files: &Files, count: i64, bytes: usize) -> Rc<Segment> {
    let meta = SegmentMeta {
        base_offset: Offset(0),
        base_index: RaftIndex(1),
        generation: 1,
        end: 0,
        last_index: RaftIndex(0),
        next_offset: Offset(0),
        max_timestamp: -1,
        created_ms: 0,
        sealed: false,
        extent_bytes: 0,
        rows: Vec::new(),
    };
    let segment = Segment::new(&files.data_dir, meta, true);
    let mut all = BytesMut::new();
    for i in 0..count {
        let batch = testing::batch(1, bytes, None).stamped(Offset(i), LeaderEpoch(1));
        let header = EntryHeader {
            index: RaftIndex(i as u64 + 1),
            term: Term(1),
            kind: EntryKind::Batch,
            base_offset: Offset(i),
            next_offset: Offset(i + 1),
            data_bytes: batch.len() as u32,
        };
        let position = all.len() as u64;
        all.extend_from_slice(&batch);
        segment.note(&header, position, all.len() as u64, 0, 0);
    }
    crate::log::files::write_whole(&segment.path, &all)
        .await
        .unwrap();
    segment
}

fn pending(files: &Rc<Files>, segment: &Rc<Segment>, from: i64, max_bytes: usize) -> PendingRead {
    let topic = TopicId(uuid::Uuid::from_u128(1));
    PendingRead {
        files: files.clone(),
        group: GroupId {
            topic,
            partition: 0,
        },
        source: Source::Segment(segment.clone()),
        from: Offset(from),
        max_bytes,
        bound: Offset(i64::MAX),
        epochs: Vec::new(),
    }
}

/// Reads from `from` on; the offset behind what came.
async fn read(files: &Rc<Files>, s: &Rc<Segment>, from: i64, max: usize) -> (Vec<Bytes>, i64) {
    let read = pending(files, s, from, max);
    let batches = read.run(Patience::Endless, usize::MAX).await.unwrap();
    let mut at = from;
    for b in &batches {
        let h = BatchHeader::parse(b).unwrap();
        assert_eq!(h.base_offset, Offset(at));
        at += 1;
    }
    (batches, at)
}

async fn replay(files: &Rc<Files>, segment: &Rc<Segment>, max_bytes: usize) {
    let end = segment.meta.borrow().next_offset.0;
    let mut at = 0;
    while at < end {
        let (_batches, next) = read(files, segment, at, max_bytes).await;
        assert!(next > at, "a read gives something");
        at = next;
        // What a client takes to come back.
        rt::sleep(Duration::from_micros(500)).await;
    }
}

#[test]
fn two_readers_read_the_file_once_and_seldom_wait_for_the_disk() {
    on_a_shard("two-readers", |dir| async move {
        for (bytes, max_bytes) in [(10_000, 100_000), (700, 30_000), (300_000, 1 << 20)] {
            let _ = rt::fs::create_dir_all(&dir).await;
            let files = files(&dir, 8, MEMORY);
            let count = (12 << 20) / bytes as i64;
            let segment = segment(&files, count, bytes).await;
            let second = rt::spawn(Queue::Latency, {
                let (files, segment) = (files.clone(), segment.clone());
                async move {
                    rt::sleep(Duration::from_millis(20)).await;
                    replay(&files, &segment, max_bytes).await;
                }
            });
            replay(&files, &segment, max_bytes).await;
            second.await;
            let length = segment.meta.borrow().end;
            let read = files.metrics.fetch_bytes_from_disk.get();
            assert!(
                read >= length && read < length + length / 50,
                "{read} of {length}"
            );
            let waits = files.metrics.fetch_reads_from_disk.get();
            let ahead = files.metrics.read_ahead_bytes.get();
            assert!(waits <= 6, "{waits} waits for batches of {bytes}");
            assert!(ahead > length * 4 / 5, "{ahead} of {length} read ahead");
            files.forget(&segment);
            assert_eq!(files.reads.budget.used(MemoryClass::Fetch), 0);
        }
    });
}

#[test]
fn a_reader_that_jumps_about_reads_what_it_asks_for() {
    on_a_shard("random", |dir| async move {
        let files = files(&dir, 8, MEMORY);
        let segment = segment(&files, 3000, 10_000).await;
        for i in 0..60 {
            let at = (i * 1237) % 3000;
            read(&files, &segment, at, 1).await;
        }
        rt::sleep(Duration::from_millis(20)).await;
        let bytes = files.metrics.fetch_bytes_from_disk.get();
        assert_eq!(files.metrics.read_ahead_bytes.get(), 0);
        // One read each of 64 KiB, and where the batch lies across two of them a second one.
        let most = 60 * 2 * (READ_AHEAD_MIN_BYTES + BLOCK_BYTES) as u64;
        assert!(bytes <= most, "{bytes}");
    });
}

#[test]
fn what_is_kept_and_what_is_given_out_stay_within_the_class() {
    on_a_shard("class", |dir| async move {
        // 573 KiB for fetches.
        let files = files(&dir, 8, 4 << 20);
        let segment = segment(&files, 400, 30_000).await;
        let budget = files.reads.budget.clone();
        let tasks: Vec<_> = (0..12)
            .map(|n| {
                let (files, segment, budget) = (files.clone(), segment.clone(), budget.clone());
                rt::spawn(Queue::Latency, async move {
                    let mut at = n * 5;
                    for round in 0..20 {
                        let (batches, next) = read(&files, &segment, at, 200_000).await;
                        assert!(next > at, "a read that waits gives something");
                        let cap = budget.cap(MemoryClass::Fetch);
                        assert!(budget.used(MemoryClass::Fetch) <= cap);
                        // A client that takes its time.
                        rt::sleep(Duration::from_millis(round % 3)).await;
                        drop(batches);
                        at = next;
                    }
                })
            })
            .collect();
        for t in tasks {
            t.await;
        }
        files.forget(&segment);
        assert_eq!(budget.used(MemoryClass::Fetch), 0);
    });
}

#[test]
fn who_has_no_patience_gets_what_there_is_memory_for() {
    on_a_shard("patience", |dir| async move {
        let files = files(&dir, 8, 4 << 20);
        let segment = segment(&files, 400, 30_000).await;
        let cap = files.reads.budget.cap(MemoryClass::Fetch);
        let held = files.reads.memory(cap, Patience::Never).await.unwrap();
        let begun = rt::now();
        for patience in [Patience::Never, Patience::AtMost(Duration::from_millis(30))] {
            let read = pending(&files, &segment, 0, 100_000);
            assert!(read.run(patience, usize::MAX).await.unwrap().is_empty());
        }
        assert!(begun.elapsed() >= Duration::from_millis(30));
        drop(held);
        let read = pending(&files, &segment, 0, 100_000);
        assert_eq!(
            read.run(Patience::Never, usize::MAX).await.unwrap().len(),
            3
        );
    });
}

#[test]
fn more_than_the_whole_class_is_granted_when_it_is_free() {
    on_a_shard("large", |dir| async move {
        let files = files(&dir, 8, 4 << 20);
        let budget = files.reads.budget.clone();
        let small = files.reads.memory(1000, Patience::Never).await.unwrap();
        let large = rt::spawn(Queue::Latency, {
            let files = files.clone();
            async move {
                files
                    .reads
                    .memory(3 << 20, Patience::Endless)
                    .await
                    .unwrap()
            }
        });
        rt::sleep(Duration::from_millis(10)).await;
        assert_eq!(budget.waiting(MemoryClass::Fetch), 1);
        assert!(files.reads.memory_now(1).is_none(), "nobody overtakes");
        // It comes back with the buffer that it was for, as it does from another shard.
        drop(attach(small, vec![1u8; 1000]));
        let large = large.await;
        let (fetch, cache) = (MemoryClass::Fetch, MemoryClass::Cache);
        assert_eq!(budget.used(fetch), budget.cap(fetch));
        assert_eq!(
            budget.used(cache),
            budget.cap(cache),
            "the rest is borrowed"
        );
        drop(large);
        assert_eq!(budget.used_total(), 0);
    });
}

#[test]
fn a_few_bytes_keep_no_large_buffer() {
    on_a_shard("few", |dir| async move {
        let files = files(&dir, 8, MEMORY);
        let segment = segment(&files, 1000, 1000).await;
        let (batches, _) = read(&files, &segment, 500, 5000).await;
        while files.reads.drop_oldest() {}
        let used = files.reads.budget.used(MemoryClass::Fetch);
        let given: usize = batches.iter().map(Bytes::len).sum();
        assert_eq!(used, given as u64);
    });
}

#[test]
fn a_stream_grows_while_its_reader_goes_on() {
    let mut streams = VecDeque::new();
    let k = 1024;
    assert_eq!(note_stream(&mut streams, 0, 100 * k), None);
    // It begins a little before the place that it came to.
    let s = note_stream(&mut streams, 60 * k, 200 * k).unwrap();
    assert_eq!((s.end, s.bytes), (200 * k, 200 << 10));
    // Another reader, far away.
    assert_eq!(note_stream(&mut streams, 90_000 * k, 90_100 * k), None);
    // Nothing new.
    assert_eq!(note_stream(&mut streams, 150 * k, 200 * k), None);
    for _ in 0..9 {
        let end = streams.back().unwrap().end;
        note_stream(&mut streams, end, end + 1).unwrap();
    }
    assert_eq!(streams.back().unwrap().bytes, READ_AHEAD_MAX_BYTES);
    for i in 0..100 {
        note_stream(&mut streams, i * 100_000_000, i * 100_000_000 + 10);
        assert!(streams.len() <= STREAMS);
    }
}
