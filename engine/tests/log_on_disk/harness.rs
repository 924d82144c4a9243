//! What the tests of the log on a real disk have in common: starts in processes of their own, and what is done in one.

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
pub struct Applied(ShardLog);

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
pub struct Slow {
    applied: Applied,
    /// Slices of preparing, three for each capture.
    prepared: Cell<usize>,
    asked: Cell<usize>,
    since_turn: Cell<usize>,
    most: Cell<usize>,
}

pub const ANSWER: Duration = Duration::from_micros(40);

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

pub fn group(partition: i32) -> GroupId {
    GroupId {
        topic: TopicId(Uuid::from_u128(77)),
        partition,
    }
}

pub fn config(dir: &Path, shards: u16) -> StoreConfig {
    StoreConfig {
        data_dir: dir.to_owned(),
        journal_dir: None,
        shards,
        memory_per_shard: 128 << 20,
    }
}

/// The hard state of the term that everything is appended in, once.
pub fn elected(r: &ReplicaLog) -> Option<HardState> {
    let first = HardState {
        term: Term(1),
        ..HardState::default()
    };
    (r.hard_state().term != first.term).then_some(first)
}

pub struct Shard {
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
pub fn time_of(offset: i64) -> i64 {
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
pub enum Do {
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
pub fn run(dir: &Path, shards: u16, replicas: u64, steps: Vec<Do>) {
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
pub fn limit_descriptors(to: u64) -> u64 {
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
pub fn start(dir: &Path, shards: u16, replicas: u64, steps: Vec<Do>) {
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

pub fn temp(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("log-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
