//! Open files and index rows within their limits, against real (or simulated) files.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make their own directories"
)]

use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::log::segment::{SegmentMeta, encode_index};
use crate::rt::Launch;

pub fn on_a_shard<F, Fut>(name: &str, f: F)
where
    F: Fn(PathBuf) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let dir = std::env::temp_dir().join(format!("tailrace-files-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let l = Launch {
        shards: 1,
        overprovisioned: true,
        cpus: None,
        seed: Some(1),
    };
    let inside = dir.clone();
    rt::launch(l, move |_| {
        let (dir, f) = (inside.clone(), f.clone());
        async move {
            rt::fs::create_dir_all(&dir).await.unwrap();
            rt::timeout(Duration::from_secs(60), f(dir)).await.unwrap();
        }
    })
    .unwrap();
    let _ = std::fs::remove_dir_all(&dir);
}

pub fn files(dir: &Path, open: usize, memory: u64) -> Rc<Files> {
    let metrics = Rc::new(ShardMetrics::default());
    Files::new(dir.to_owned(), open, Budget::new(memory), metrics)
}

/// A new segment; with `sealed` its rows lie in an index file.
fn segment(dir: &Path, n: u64, sealed: bool) -> Rc<Segment> {
    let meta = SegmentMeta {
        base_offset: Offset(0),
        base_index: RaftIndex(1),
        generation: n,
        end: 0,
        last_index: RaftIndex(0),
        next_offset: Offset(0),
        max_timestamp: -1,
        created_ms: 0,
        sealed,
        extent_bytes: 0,
        rows: Vec::new(),
    };
    Segment::new(dir, meta, true)
}

#[test]
fn many_segments_take_few_descriptors_and_those_in_use_stay_open() {
    on_a_shard("open", |dir| async move {
        let files = files(&dir, 8, 1 << 20);
        let segments: Vec<_> = (0..200).map(|n| segment(&dir, n, false)).collect();
        let mut held = Vec::new();
        for (n, s) in segments.iter().enumerate() {
            let file = files.open_segment(s).await.unwrap();
            file.write_at(0, aligned(&[n as u8; 4096])).await.unwrap();
            if n % 50 == 0 {
                held.push((s.clone(), file));
            }
            assert!(files.metrics.segment_files_open.get() <= 8);
            let open = segments.iter().filter(|s| files.is_open(s)).count();
            assert_eq!(open as u64, files.metrics.segment_files_open.get());
        }
        assert!(held.iter().all(|(s, _)| files.is_open(s)));
        // Used again and again, it is never the one used longest ago.
        for (n, s) in segments.iter().enumerate() {
            files.open_segment(&segments[7]).await.unwrap();
            let file = files.open_segment(s).await.unwrap();
            assert_eq!(file.read_at(100, 1).await.unwrap()[0], n as u8);
            assert!(files.is_open(&segments[7]));
        }
        // Readers of many at once pass the limit only while they read.
        let mut all = Vec::new();
        for s in &segments[..20] {
            all.push(files.open_segment(s).await.unwrap());
        }
        assert!(segments[..20].iter().all(|s| files.is_open(s)));
        drop(all);
        drop(held);
        files.open_segment(&segments[101]).await.unwrap();
        assert!(files.metrics.segment_files_open.get() <= 8);
        for s in &segments {
            files.forget(s);
        }
        assert_eq!(files.metrics.segment_files_open.get(), 0);
    });
}

#[test]
fn a_segment_that_two_open_at_once_is_open_once() {
    on_a_shard("twice", |dir| async move {
        let files = files(&dir, 8, 1 << 20);
        let s = segment(&dir, 1, false);
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let (files, s) = (files.clone(), s.clone());
                rt::spawn(rt::Queue::Latency, async move {
                    files.open_segment(&s).await.unwrap()
                })
            })
            .collect();
        for t in tasks {
            t.await;
        }
        assert_eq!(files.metrics.segment_files_open.get(), 1);
    });
}

#[test]
fn rows_of_sealed_segments_stay_within_their_memory() {
    on_a_shard("rows", |dir| async move {
        // Two hundredths: 20,480 bytes, which is room for six segments' 100 rows each.
        let files = files(&dir, 8, 1 << 20);
        let room = files.budget.cap(MemoryClass::Index);
        let mut segments = Vec::new();
        for n in 0..40 {
            let count = if n == 39 { 1000 } else { 100 };
            let s = segment(&dir, n, true);
            {
                let mut m = s.meta.borrow_mut();
                m.base_offset = Offset(n as i64);
                m.end = count as u64 * 70_000;
                m.last_index = RaftIndex(count as u64);
                m.next_offset = Offset(count * 10 + n as i64);
            }
            let rows: Vec<_> = (0..count)
                .map(|i| IndexRow {
                    offset: Offset(i * 10 + n as i64),
                    index: RaftIndex(i as u64 + 1),
                    position: i as u64 * 70_000,
                    max_timestamp: i,
                })
                .collect();
            let path = index_path(&s.path);
            write_whole(&path, &encode_index(&rows)).await.unwrap();
            segments.push(s);
        }
        let loaded = |s: &Rc<Segment>| s.loaded_rows.borrow().is_some();
        for round in 0..3 {
            for (n, s) in segments.iter().enumerate() {
                // The first is asked for all the time.
                files.rows(&segments[0], |rows| rows.len()).await;
                let (first, count) = files.rows(s, |rows| (rows[0].offset, rows.len())).await;
                let expected = if n == 39 { 1000 } else { 100 };
                assert_eq!((first, count), (Offset(n as i64), expected));
                assert!(loaded(&segments[0]), "round {round}, {n}");
                let used = files.budget.used(MemoryClass::Index);
                assert!(used <= room && used == files.metrics.index_bytes.get());
                let there = segments.iter().filter(|s| loaded(s)).count() as u64;
                assert_eq!(used, there * 3200);
            }
        }
        assert!(
            !loaded(&segments[39]),
            "what the class has no room for is not kept"
        );
        for s in &segments {
            files.forget(s);
        }
        assert_eq!(files.budget.used(MemoryClass::Index), 0);
    });
}

#[test]
fn a_sync_covers_what_was_written_and_nothing_else() {
    on_a_shard("sync", |dir| async move {
        let files = files(&dir, 8, 1 << 20);
        rt::fs::create_dir_all(&partitions_dir(&dir)).await.unwrap();
        let home = partitions_dir(&dir).join("p");
        rt::fs::create_dir_all(&home).await.unwrap();
        let segments: Vec<_> = (0..20).map(|n| segment(&home, n, false)).collect();
        for s in [&segments[3], &segments[4], &segments[3]] {
            files.open_segment(s).await.unwrap();
            files.note_written(s);
        }
        files.sync_written().await.unwrap();
        // Two segments, and two directories for their names.
        assert_eq!(files.metrics.background_syncs.get(), 4);
        assert!(!segments[3].fresh.get() && segments[5].fresh.get());
        files.note_written(&segments[3]);
        files.sync_written().await.unwrap();
        assert_eq!(files.metrics.background_syncs.get(), 5);
        // What is removed before its sync needs none.
        files.note_written(&segments[4]);
        files.forget(&segments[4]);
        files.sync_written().await.unwrap();
        assert_eq!(files.metrics.background_syncs.get(), 5);
    });
}

#[test]
fn a_large_file_is_read_in_pieces() {
    on_a_shard("pieces", |dir| async move {
        let path = dir.join("checkpoint");
        let length = 2 * WHOLE_FILE_PIECE_BYTES as usize + 4096;
        let bytes: Vec<u8> = (0..length).map(|i| (i / 4096) as u8).collect();
        write_whole(&path, &bytes).await.unwrap();
        assert!(read_whole_synced(&path).await.unwrap() == bytes);
        write_whole(&path, &[]).await.unwrap();
        assert!(read_whole(&path).await.unwrap().is_empty());
    });
}
