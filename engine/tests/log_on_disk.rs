//! The log over the real runtime and a real directory: what is durable comes back, from memory, from segments, after every kind of start.
#![cfg(not(tailrace_sim))]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the test hands recovered parts from one thread to the others, and makes its own directories"
)]

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use engine::batch::{BatchHeader, reseal, testing};
use engine::log::{
    Captured, LogError, LogPolicy, Read, ReplicaLog, Restored, ShardLog, StateSource, StoreConfig,
    recover,
};
use engine::memory::Budget;
use engine::metrics::ShardMetrics;
use engine::rt::{self, Launch};
use engine::types::*;
use uuid::Uuid;

/// Says that everything committed is applied.
struct Applied(ShardLog);

impl StateSource for Applied {
    fn capture(&self, id: ReplicaId) -> Captured {
        Captured {
            applied: self
                .0
                .replica(id)
                .expect("asked of replicas that are here")
                .commit(),
            state: vec![Bytes::from_static(b"state")],
        }
    }
}

/// The same, and each answer takes so much of the shard's time. Counts the answers between two turns of another task.
struct Slow {
    applied: Applied,
    /// Slices of preparing, three for each capture.
    prepared: Cell<usize>,
    asked: Cell<usize>,
    since_turn: Cell<usize>,
    most: Cell<usize>,
}

const ANSWER: Duration = Duration::from_micros(40);

impl Slow {
    fn answer(&self) {
        let began = rt::now();
        while began.elapsed() < ANSWER {
            std::hint::spin_loop();
        }
        self.since_turn.set(self.since_turn.get() + 1);
        self.most.set(self.most.get().max(self.since_turn.get()));
    }
}

impl StateSource for Slow {
    fn capture(&self, id: ReplicaId) -> Captured {
        assert!(self.prepared.get().is_multiple_of(3), "it wasn't prepared");
        self.answer();
        self.asked.set(self.asked.get() + 1);
        self.applied.capture(id)
    }

    fn prepare(&self, _: ReplicaId) -> bool {
        self.answer();
        self.prepared.set(self.prepared.get() + 1);
        self.prepared.get().is_multiple_of(3)
    }
}

fn group(partition: i32) -> GroupId {
    GroupId {
        topic: TopicId(Uuid::from_u128(77)),
        partition,
    }
}

fn config(dir: &Path, shards: u16) -> StoreConfig {
    StoreConfig {
        data_dir: dir.to_owned(),
        journal_dir: None,
        shards,
        memory_per_shard: 128 << 20,
    }
}

/// The hard state of the term that everything is appended in, once.
fn elected(r: &ReplicaLog) -> Option<HardState> {
    let first = HardState {
        term: Term(1),
        ..HardState::default()
    };
    (r.hard_state().term != first.term).then_some(first)
}

struct Shard {
    dir: PathBuf,
    log: ShardLog,
    replicas: Vec<ReplicaLog>,
}

impl Shard {
    fn entry(&self, r: &ReplicaLog, records: i32, bytes: usize) -> Entry {
        let base = r.log_end_offset();
        let mut e = Entry {
            index: r.last_index().next(),
            term: Term(1),
            kind: EntryKind::Batch,
            base_offset: base,
            next_offset: Offset(base.0 + i64::from(records)),
            data: Bytes::new(),
        };
        e.data = testing::batch(records, bytes, None).stamped(base, LeaderEpoch(1));
        e
    }

    /// Appends to every replica, waits until it is durable, commits.
    async fn produce(&self, rounds: usize, records: i32, bytes: usize) {
        for _ in 0..rounds {
            let mut last = Lsn(0);
            for r in &self.replicas {
                let e = self.entry(r, records, bytes);
                last = r.append(elected(r), &[e]);
            }
            self.log.end_turn();
            while self.log.durable_lsn() < last {
                self.log.durable_past(self.log.durable_lsn()).await;
            }
            for r in &self.replicas {
                r.set_commit(r.last_index());
            }
        }
    }

    /// The same with every second batch in an extent (L7).
    async fn produce_large(&self, rounds: usize, records: i32, bytes: usize) {
        for round in 0..rounds {
            for r in &self.replicas {
                let mut e = self.entry(r, records, bytes);
                if round % 2 == 0 {
                    let batch = testing::batch(records, bytes, None);
                    let extent = r.put_extent(&batch).await.unwrap();
                    assert!(r.has_extent(&extent));
                    r.keep_extent(&extent, e.index);
                    e.kind = EntryKind::Extent;
                    e.data = extent.stamped(e.base_offset, LeaderEpoch(1)).encode();
                }
                let lsn = r.append(elected(r), &[e]);
                self.log.end_turn();
                while self.log.durable_lsn() < lsn {
                    self.log.durable_past(self.log.durable_lsn()).await;
                }
                r.set_commit(r.last_index());
            }
        }
    }

    /// Reads every replica from its start and checks that offsets are dense and bytes right.
    async fn check(&self, batches: usize, records: i32, bytes: usize) {
        for r in &self.replicas {
            let mut at = r.log_start_offset();
            let mut seen = 0;
            while at < r.high_watermark() {
                let got = r
                    .read_whole(at, 300_000, r.high_watermark())
                    .await
                    .unwrap()
                    .unwrap();
                assert!(
                    !got.is_empty(),
                    "a read below the high watermark gives something"
                );
                for b in got {
                    let h = BatchHeader::parse(&b).unwrap();
                    assert_eq!(h.base_offset, at);
                    assert_eq!(
                        b,
                        testing::batch(records, bytes, None).stamped(at, LeaderEpoch(1))
                    );
                    at = h.next_offset();
                    seen += 1;
                }
            }
            assert_eq!(seen, batches, "replica {}", r.id());
        }
    }
}

/// Goes up by 10 from batch to batch; of every eight the fourth is the newest by far.
fn time_of(offset: i64) -> i64 {
    1_000 + offset * 10 + if offset % 8 == 3 { 45 } else { 0 }
}

impl Shard {
    async fn check_times(&self, batches: i64) {
        let r = &self.replicas[0];
        let (start, bound) = (r.log_start_offset(), r.high_watermark());
        assert_eq!(bound, Offset(batches));
        let of =
            |batch: Option<Bytes>| batch.map(|b| BatchHeader::parse(&b).unwrap().base_offset.0);
        for ts in (0..time_of(batches)).step_by(if batches > 100 { 97 } else { 5 }) {
            let found = r.batch_by_timestamp(ts, start, bound).await.unwrap();
            let right = (start.0..batches).find(|o| time_of(*o) >= ts);
            assert_eq!(of(found), right, "time {ts}");
        }
        for from in [start.0, start.0 + 1, batches - 9, batches - 1, batches] {
            let found = r.batch_of_max_timestamp(Offset(from), bound).await.unwrap();
            let right = (from..batches).rev().max_by_key(|o| time_of(*o));
            assert_eq!(of(found), right, "the newest from {from} on");
        }
    }
}

/// What a start does, one after the other, on every shard.
#[derive(Clone, Debug)]
enum Do {
    Produce(usize, i32, usize),
    ProduceLarge(usize, i32, usize),
    Check(usize, i32, usize),
    /// These offsets and no others can't be read.
    CheckDamaged(Offset, Offset),
    Trim(Offset),
    RemoveSecond,
    /// The first replica goes, and its directory, while an extent of it is on its way.
    RemoveUnderExtent,
    /// So many batches of a record, with times that go up and down, by [`time_of`].
    ProduceTimes(usize, usize),
    /// Every time of so many batches finds the right one, and so does the newest.
    CheckTimes(usize),
    /// For a second there is no descriptor to be had, while segments, checkpoints and extents want some.
    WithoutDescriptors,
    /// Two batches for each replica, and a last checkpoint, in slices.
    CloseInSlices,
    /// Until the base of this start is vouched for.
    Settle,
    /// Of shard 0, to `copy`.
    CopyJournal,
    Close,
}

/// One start in this process: recovers on shard 0, runs the steps on each shard, and ends the process in the middle of whatever goes on in the background.
fn run(dir: &Path, shards: u16, replicas: u64, steps: Vec<Do>) {
    let parts = Arc::new(Mutex::new(None));
    let left = Arc::new(AtomicU16::new(shards));
    let cfg = config(dir, shards);
    let launch = Launch {
        shards,
        overprovisioned: true,
        cpus: None,
        seed: None,
    };
    rt::launch(launch, move |shard| {
        let (cfg, steps, parts, left) = (cfg.clone(), steps.clone(), parts.clone(), left.clone());
        async move {
            if shard.0 == 0 {
                let r = recover(&cfg).await.unwrap();
                *parts.lock().unwrap() = Some(r.shards.into_iter().map(Some).collect::<Vec<_>>());
            }
            let part = loop {
                if let Some(p) = parts.lock().unwrap().as_mut() {
                    break p[usize::from(shard.0)].take().unwrap();
                }
                rt::sleep(Duration::from_millis(1)).await;
            };
            let metrics = Rc::new(ShardMetrics::default());
            let budget = Budget::new(cfg.memory_per_shard);
            let (log, restored) =
                ShardLog::open(Rc::new(cfg.clone()), shard, part, budget, metrics)
                    .await
                    .unwrap();
            let mut logs: Vec<ReplicaLog> = restored.into_iter().map(|r: Restored| r.log).collect();
            for id in 1..=replicas {
                let mine = shard_of(group(id as i32), cfg.shards) == shard;
                if mine && log.replica(ReplicaId(id)).is_none() {
                    logs.push(
                        log.create(ReplicaId(id), group(id as i32), Bytes::from_static(b"new"))
                            .unwrap()
                            .0,
                    );
                }
            }
            for l in &logs {
                // A sole voter commits what is durable when it is elected again.
                l.set_commit(l.last_index());
                l.set_policy(LogPolicy {
                    segment_bytes: 1 << 20,
                    ..LogPolicy::default()
                });
            }
            log.set_on_failure(Rc::new(|e| panic!("the log failed: {e}")));
            log.set_state_source(Rc::new(Applied(log.clone())));
            let s = Shard {
                dir: cfg.data_dir.clone(),
                log,
                replicas: logs,
            };
            for step in steps {
                s.step(step).await;
            }
            if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                rt::exit(0);
            }
            std::future::pending::<()>().await;
        }
    })
    .unwrap();
}

impl Shard {
    async fn step(&self, step: Do) {
        match step {
            Do::Produce(rounds, records, bytes) => self.produce(rounds, records, bytes).await,
            Do::ProduceLarge(rounds, records, bytes) => {
                self.produce_large(rounds, records, bytes).await;
            }
            Do::Check(batches, records, bytes) => self.check(batches, records, bytes).await,
            Do::CheckDamaged(from, to) => {
                let r = &self.replicas[0];
                let (mut at, end) = (r.log_start_offset(), r.high_watermark());
                let mut damaged = Vec::new();
                while at < end {
                    match r.read_whole(at, 300_000, end).await {
                        Ok(got) => {
                            let last = got.unwrap().pop().unwrap();
                            at = BatchHeader::parse(&last).unwrap().next_offset();
                        }
                        Err(LogError::Damaged { from, to, .. }) => {
                            assert_eq!(from, at);
                            damaged.push((from, to));
                            at = to;
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
                assert_eq!(damaged, vec![(from, to)]);
            }
            Do::Trim(start) => {
                let r = &self.replicas[0];
                r.set_log_start(start);
                assert!(matches!(
                    r.read(Offset(start.0 - 1), 100, r.high_watermark()),
                    Read::OutOfRange
                ));
            }
            Do::RemoveUnderExtent => {
                let r = &self.replicas[0];
                let batch = testing::batch(10, 4_000, None);
                // Polled by hand: of a disk that answers later nothing is seen before the replica has gone. One that answers at once, as it may, is asked again.
                let gone = loop {
                    let mut putting = pin!(r.put_extent(&batch));
                    match poll_fn(|cx| Poll::Ready(putting.as_mut().poll(cx))).await {
                        Poll::Pending => {
                            self.log.remove(r.id());
                            break putting.await;
                        }
                        Poll::Ready(answer) => assert!(answer.is_err(), "{answer:?}"),
                    }
                };
                assert!(matches!(gone, Err(LogError::Removed)), "{gone:?}");
            }
            Do::ProduceTimes(batches, bytes) => {
                let r = &self.replicas[0];
                for _ in 0..batches {
                    let mut e = self.entry(r, 1, bytes);
                    let mut batch = e.data.to_vec();
                    batch[35..43].copy_from_slice(&time_of(e.base_offset.0).to_be_bytes());
                    reseal(&mut batch);
                    e.data = batch.into();
                    let lsn = r.append(elected(r), &[e]);
                    self.log.end_turn();
                    while self.log.durable_lsn() < lsn {
                        self.log.durable_past(self.log.durable_lsn()).await;
                    }
                    r.set_commit(r.last_index());
                }
            }
            Do::CheckTimes(batches) => self.check_times(batches as i64).await,
            Do::WithoutDescriptors => {
                let before = limit_descriptors(3);
                let given_back = Rc::new(Cell::new(false));
                let later = rt::spawn(rt::Queue::Latency, {
                    let given_back = given_back.clone();
                    async move {
                        rt::sleep(Duration::from_secs(1)).await;
                        given_back.set(true);
                        limit_descriptors(before);
                    }
                });
                self.produce(20, 10, 10_000).await;
                self.produce_large(2, 10, 10_000).await;
                assert!(given_back.get(), "an extent was opened with no descriptor");
                later.await;
            }
            Do::RemoveSecond => {
                self.log.remove(self.replicas[1].id());
                self.log.end_turn();
            }
            Do::CloseInSlices => {
                let slow = Rc::new(Slow {
                    applied: Applied(self.log.clone()),
                    prepared: Cell::new(0),
                    asked: Cell::new(0),
                    since_turn: Cell::new(0),
                    most: Cell::new(0),
                });
                self.log.set_state_source(slow.clone());
                let turns = slow.clone();
                let latency = rt::spawn(rt::Queue::Latency, async move {
                    loop {
                        turns.since_turn.set(0);
                        rt::sleep(ANSWER / 2).await;
                    }
                });
                // Whatever is captured from here on, by this checkpoint or one before: every replica is.
                self.produce(2, 3, 20).await;
                self.log.close().await.unwrap();
                drop(latency);
                let (asked, all) = (slow.asked.get(), self.replicas.len());
                assert!(asked >= all, "{asked} of {all} frames");
                assert!(slow.prepared.get() >= 3 * all);
                // Who is woken amid a slice may have another one in front: the background's part of the turns.
                let waited = ANSWER * slow.most.get() as u32;
                let slices = 2 * Duration::from_micros(200);
                assert!(waited <= slices, "others waited for {waited:?} of it");
            }
            Do::Settle => rt::sleep(Duration::from_secs(3)).await,
            Do::CopyJournal => {
                let dir = &self.dir;
                std::fs::copy(dir.join("journal-0"), dir.join("copy")).unwrap();
            }
            Do::Close => self.log.close().await.unwrap(),
        }
    }
}

/// Sets the soft limit; what it was. What is open stays open.
fn limit_descriptors(to: u64) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes one rlimit, which is ours.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let before = std::mem::replace(&mut limit.rlim_cur, to);
    // SAFETY: reads one rlimit, which is ours.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!((got, set), (0, 0));
    before
}

/// One start in a process of its own, which ends like a kill.
fn start(dir: &Path, shards: u16, replicas: u64, steps: Vec<Do>) {
    // SAFETY: the child runs nothing but what follows, and ends with `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        // The harness keeps what a test prints for its end, which never comes here.
        std::panic::set_hook(Box::new(|panic| {
            let text = format!("{panic}\n");
            // SAFETY: the text is there while it is written.
            unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
        }));
        let ran = std::panic::catch_unwind(|| run(dir, shards, replicas, steps));
        let code = if ran.is_ok() { 0 } else { 1 };
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the start ended with status {status:#x}"
    );
}

fn temp(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("log-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

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

/// Why a start refuses.
fn refusal(dir: &Path, shards: u16) -> String {
    let said = Arc::new(Mutex::new(String::new()));
    let (cfg, told) = (config(dir, shards), said.clone());
    let launch = Launch {
        shards: 1,
        overprovisioned: true,
        cpus: None,
        seed: None,
    };
    rt::launch(launch, move |_| {
        let (cfg, told) = (cfg.clone(), told.clone());
        async move {
            if let Err(e) = recover(&cfg).await {
                *told.lock().unwrap() = e.to_string();
            }
        }
    })
    .unwrap();
    let said = said.lock().unwrap();
    assert!(!said.is_empty(), "it starts");
    said.clone()
}

/// Batches may have been acknowledged that only the journal held, also where no checkpoint knows of a replica yet.
#[test]
fn a_journal_that_was_used_must_be_there() {
    let dir = temp("lost-journal");
    let (journal, aside) = (dir.join("journal-1"), dir.join("aside"));
    start(&dir, 2, 0, vec![Do::Settle]);
    std::fs::copy(&journal, &aside).unwrap();
    std::fs::remove_file(&journal).unwrap();
    assert!(refusal(&dir, 2).contains("is missing"));
    // Nor with fewer shards: what it held may be another's.
    assert!(refusal(&dir, 1).contains("is missing"));
    let length = std::fs::metadata(&aside).unwrap().len();
    std::fs::write(&journal, vec![0u8; length as usize]).unwrap();
    assert!(refusal(&dir, 2).contains("is empty"));
    std::fs::copy(&aside, &journal).unwrap();
    start(&dir, 2, 0, vec![Do::Settle]);
    std::fs::copy(&aside, &journal).unwrap();
    assert!(refusal(&dir, 2).contains("is from before"));
    std::fs::remove_dir_all(dir).unwrap();
}

/// L13: what a checkpoint knows of and no journal has is lost by name, and its offsets aren't given out again.
#[test]
fn entries_that_a_checkpoint_knows_of_and_no_journal_has_are_named() {
    let dir = temp("older-journal");
    start(
        &dir,
        1,
        1,
        vec![
            Do::Produce(50, 3, 20),
            Do::Settle,
            Do::CopyJournal,
            Do::Produce(50, 3, 20),
            Do::Close,
        ],
    );
    std::fs::rename(dir.join("copy"), dir.join("journal-0")).unwrap();
    let lost = Do::CheckDamaged(Offset(150), Offset(300));
    start(&dir, 1, 1, vec![lost.clone(), Do::Produce(50, 3, 20), lost]);
    std::fs::remove_dir_all(dir).unwrap();
}
