//! Data directories that the shipped log made, with everything that was ever written into them, and what a start makes of such a directory.
//!
//! It all happens in a simulated world: a directory costs milliseconds, and a seed says everything. Entries are appended with terms that go up and now and then
//! replace what wasn't committed; replicas come and go; logs are trimmed; segments are small, so that many are sealed; some starts are cut, some end clean.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use engine::batch::{self, Batch, BatchHeader, HEADER_BYTES, testing};
use engine::log::{
    Captured, LogError, LogPolicy, ReplicaLog, Restored, ShardLog, StateSource, StoreConfig,
    recover,
};
use engine::memory::Budget;
use engine::metrics::ShardMetrics;
use engine::rt;
use engine::rt::sim::{Outcome, SimConfig, Stop, World};
use engine::types::*;
use uuid::Uuid;

use crate::random::Random;

pub const MEMORY_BYTES: u64 = 2 << 20;
const REPLICAS: u64 = 4;

/// Files by their path, shared until they are changed.
pub type Files = BTreeMap<PathBuf, Rc<Vec<u8>>>;

/// Every batch that was ever appended at an offset of a replica.
pub type Written = BTreeMap<(ReplicaId, Offset), BTreeSet<Bytes>>;

/// One directory at several times, the newest last.
pub struct Image {
    pub times: Vec<Files>,
    pub written: Written,
    pub directory_id: u64,
}

impl Image {
    pub fn newest(&self) -> &Files {
        self.times.last().expect("an image has its files")
    }
}

fn config(shards: u16) -> StoreConfig {
    StoreConfig {
        data_dir: PathBuf::from("/data"),
        journal_dir: None,
        shards,
        memory_per_shard: MEMORY_BYTES,
    }
}

fn group(id: ReplicaId) -> GroupId {
    GroupId {
        topic: TopicId(Uuid::from_u128(77)),
        partition: id.0 as i32,
    }
}

/// Says that everything committed is applied. It lets go of the log when the run ends: they hold one another.
struct Applied(std::cell::RefCell<Option<ShardLog>>);

impl StateSource for Applied {
    fn capture(&self, id: ReplicaId) -> Captured {
        let shard = self.0.borrow();
        let log = shard.as_ref().and_then(|log| log.replica(id));
        let log = log.expect("asked of replicas that are here");
        Captured {
            applied: log.commit(),
            state: vec![Bytes::from_static(b"state")],
        }
    }
}

/// A batch of its own: no two are the same.
fn numbered(number: u64, records: i32, record_bytes: usize) -> Batch {
    let mut b = BytesMut::from(&testing::batch(records, record_bytes.max(8), None).bytes[..]);
    b[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&number.to_le_bytes());
    batch::reseal(&mut b);
    Batch::check(b.freeze()).expect("a batch built here is valid")
}

struct Opened {
    logs: Vec<ShardLog>,
    replicas: Vec<Restored>,
}

async fn open(shards: u16) -> Result<Opened, LogError> {
    let cfg = Rc::new(config(shards));
    let found = recover(&cfg).await?;
    let (mut logs, mut replicas) = (Vec::new(), Vec::new());
    for (n, part) in found.shards.into_iter().enumerate() {
        let budget = Budget::new(MEMORY_BYTES);
        let metrics = Rc::new(ShardMetrics::default());
        let shard = ShardId(n as u16);
        let (log, restored) = ShardLog::open(cfg.clone(), shard, part, budget, metrics).await?;
        logs.push(log);
        replicas.extend(restored);
    }
    Ok(Opened { logs, replicas })
}

/// Everything becomes durable, or the log has failed.
async fn settle(logs: &[ShardLog], lsns: &[Lsn], failed: &Failed) {
    for (log, lsn) in logs.iter().zip(lsns) {
        log.end_turn();
        let began = rt::now();
        while log.durable_lsn() < *lsn && failed.borrow().is_none() {
            rt::sleep(std::time::Duration::from_micros(200)).await;
            let waited = began.elapsed();
            assert!(
                waited < std::time::Duration::from_secs(60),
                "what was appended isn't durable, pressure {}",
                log.pressure()
            );
            log.end_turn();
        }
    }
}

type Failed = Rc<std::cell::RefCell<Option<String>>>;

/// Ends what a run holds.
struct Sources(Vec<Rc<Applied>>);

impl Drop for Sources {
    fn drop(&mut self) {
        for source in &self.0 {
            source.0.take();
        }
    }
}

fn watch(logs: &[ShardLog]) -> (Failed, Sources) {
    let (failed, mut sources) = (Failed::default(), Vec::new());
    for log in logs {
        let failed = failed.clone();
        log.set_on_failure(Rc::new(move |e| *failed.borrow_mut() = Some(e.to_string())));
        let source = Rc::new(Applied(Some(log.clone()).into()));
        sources.push(source.clone());
        log.set_state_source(source);
    }
    (failed, Sources(sources))
}

/// All shards end clean, side by side, or one fails, which ends the process.
async fn end_all(logs: &[ShardLog], failed: &Failed) {
    let left = Rc::new(std::cell::Cell::new(logs.len()));
    for log in logs {
        let (log, left) = (log.clone(), left.clone());
        let end = async move {
            log.close().await.expect("an end says nothing");
            left.set(left.get() - 1);
        };
        rt::spawn(rt::Queue::Latency, end).detach();
    }
    let began = rt::now();
    while left.get() > 0 && failed.borrow().is_none() {
        rt::sleep(std::time::Duration::from_millis(1)).await;
        let waited = began.elapsed();
        assert!(waited < std::time::Duration::from_secs(60), "no end comes");
    }
}

/// Makes a directory: several starts, each followed by a look at its files.
pub fn make(seed: u64) -> Image {
    let mut random = Random::seeded(seed);
    let world = World::new(seed, SimConfig::default());
    let written = Rc::new(std::cell::RefCell::new(Written::new()));
    let mut times = Vec::new();
    let mut next_id = REPLICAS + 1;
    let mut ids: Vec<ReplicaId> = (1..=REPLICAS).map(ReplicaId).collect();
    for start in 0..4 {
        let shards = 1 + random.below(3) as u16;
        let close = random.one_in(3);
        let rounds = 20 + random.below(80);
        if start > 0 && random.one_in(2) {
            // One goes and another comes.
            let at = random.below(ids.len());
            ids[at] = ReplicaId(next_id);
            next_id += 1;
        }
        let (ids, written, mut random) =
            (ids.clone(), written.clone(), Random::seeded(random.any()));
        let ended = world.run(move || async move {
            let opened = open(shards).await.expect("a directory of ours opens");
            let (failed, _sources) = watch(&opened.logs);
            let mut work = Work::new(opened, &ids, written);
            for _ in 0..rounds {
                work.round(&mut random, &failed).await;
            }
            if close {
                end_all(&work.logs, &failed).await;
            }
            assert_eq!(*failed.borrow(), None);
        });
        assert_eq!(ended, Outcome::Done(()));
        world.stop(Stop::Kill);
        times.push(files(&world));
    }
    let node = &times[0][Path::new("/data/node")];
    let directory_id = u64::from_le_bytes(node[12..20].try_into().expect("eight bytes"));
    let written = written.borrow().clone();
    Image {
        times,
        written,
        directory_id,
    }
}

fn files(world: &World) -> Files {
    let read = |p: PathBuf| world.read_file(&p).map(|bytes| (p, Rc::new(bytes)));
    world.files().into_iter().filter_map(read).collect()
}

struct Work {
    logs: Vec<ShardLog>,
    /// With the shard and the term in which it appends.
    replicas: Vec<(usize, ReplicaLog, Term)>,
    written: Rc<std::cell::RefCell<Written>>,
}

impl Work {
    fn new(opened: Opened, ids: &[ReplicaId], written: Rc<std::cell::RefCell<Written>>) -> Work {
        let shards = opened.logs.len() as u16;
        let mut replicas = Vec::new();
        for r in &opened.replicas {
            let shard = usize::from(shard_of(r.group, shards).0);
            if !ids.contains(&r.id) {
                opened.logs[shard].remove(r.id);
                continue;
            }
            r.log.set_commit(r.log.last_index());
            let term = Term(r.log.hard_state().term.0 + 1);
            replicas.push((shard, r.log.clone(), term));
        }
        for id in ids {
            let shard = usize::from(shard_of(group(*id), shards).0);
            let log = &opened.logs[shard];
            if log.replica(*id).is_none() {
                let new = log.create(*id, group(*id), Bytes::from_static(b"new"));
                replicas.push((shard, new.expect("it is new").0, Term(1)));
            }
        }
        for (_, log, term) in &replicas {
            log.set_policy(LogPolicy {
                segment_bytes: 100 << 10,
                ..LogPolicy::default()
            });
            let hard_state = HardState {
                term: *term,
                vote: log.id().0,
                commit: log.commit(),
            };
            log.append(Some(hard_state), &[]);
        }
        Work {
            logs: opened.logs,
            replicas,
            written,
        }
    }

    fn entry(
        &self,
        random: &mut Random<'_>,
        log: &ReplicaLog,
        index: RaftIndex,
        base: Offset,
        term: Term,
    ) -> Entry {
        let kind = match random.below(12) {
            0 => EntryKind::NoOp,
            1 => EntryKind::Command,
            _ => EntryKind::Batch,
        };
        let (mut next_offset, mut data) = (base, Bytes::new());
        match kind {
            EntryKind::Batch => {
                let records = 1 + random.below(4) as i32;
                let large = random.one_in(8);
                let bytes = random.below(if large { 8000 } else { 200 });
                next_offset = Offset(base.0 + i64::from(records));
                let epoch = term.leader_epoch().unwrap_or(LeaderEpoch(i32::MAX));
                data = numbered(random.any(), records, bytes).stamped(base, epoch);
                let mut written = self.written.borrow_mut();
                written
                    .entry((log.id(), base))
                    .or_default()
                    .insert(data.clone());
            }
            EntryKind::Command => data = Bytes::from(vec![7; random.below(60)]),
            _ => {}
        }
        Entry {
            index,
            term,
            kind,
            base_offset: base,
            next_offset,
            data,
        }
    }

    async fn round(&mut self, random: &mut Random<'_>, failed: &Failed) {
        let mut lsns = vec![Lsn(0); self.logs.len()];
        for i in 0..self.replicas.len() {
            let (shard, log, mut term) = self.replicas[i].clone();
            // A new leader replaces what wasn't committed.
            let conflict = random.one_in(8) && log.last_index() > log.commit();
            let (mut index, mut base) = (log.last_index().next(), log.log_end_offset());
            if conflict {
                term = Term(term.0 + 1);
                self.replicas[i].2 = term;
                index = log.commit().next();
                base = log.high_watermark();
                let hard_state = HardState {
                    term,
                    vote: 0,
                    commit: log.commit(),
                };
                log.append(Some(hard_state), &[]);
            }
            for _ in 0..random.below(4) {
                let mut e = self.entry(random, &log, index, base, term);
                // A large one lies in an extent (L7).
                if e.kind == EntryKind::Batch && random.one_in(10) {
                    let batch = Batch::check(e.data.clone()).expect("built here");
                    let Ok(extent) = log.put_extent(&batch).await else {
                        break;
                    };
                    let epoch = batch.header.leader_epoch;
                    e.kind = EntryKind::Extent;
                    e.data = extent.stamped(base, epoch).encode();
                    log.keep_extent(&extent, index);
                }
                (index, base) = (e.index.next(), e.next_offset);
                lsns[shard] = log.append(None, &[e]);
            }
        }
        if random.one_in(3) {
            self.logs.iter().for_each(ShardLog::end_turn);
            return;
        }
        settle(&self.logs, &lsns, failed).await;
        for (_, log, _) in &self.replicas {
            if random.one_in(4) {
                continue;
            }
            log.set_commit(log.last_index());
            if random.one_in(60) {
                let end = log.high_watermark().0;
                log.set_log_start(Offset(random.below(end as usize + 1) as i64));
            }
        }
        if random.one_in(8) {
            rt::sleep(std::time::Duration::from_millis(random.below(1500) as u64)).await;
        }
    }
}

/// What a start made of a directory.
pub enum Answer {
    /// The batches that were served, by replica and offset, and the ranges that were named as damaged.
    Served(Served),
    Refused(String),
}

#[derive(Default)]
pub struct Served {
    pub batches: BTreeMap<(ReplicaId, Offset), Bytes>,
    pub named: u64,
    /// Reads that gave nothing below the end, or an I/O error.
    pub gaps: Vec<String>,
    /// What the log said when it gave up.
    pub failed: Option<String>,
}

/// Starts on these files and reads everything; then appends, makes checkpoints and ends clean, when `go_on`.
pub fn start(files: &Files, seed: u64, shards: u16, go_on: bool) -> Answer {
    let world = World::new(
        seed,
        SimConfig {
            max_steps: 3_000_000,
            ..SimConfig::default()
        },
    );
    for (path, bytes) in files {
        world.put_file(path, bytes);
    }
    let ended = world.run(move || async move {
        let opened = match open(shards).await {
            Ok(opened) => opened,
            Err(e) => return Answer::Refused(e.to_string()),
        };
        let mut served = Served::default();
        for r in &opened.replicas {
            r.log.set_commit(r.log.last_index());
            read_all(&r.log, &mut served).await;
        }
        if go_on {
            let (failed, _sources) = watch(&opened.logs);
            let logs = opened.logs.clone();
            let mut random = Random::seeded(seed);
            let ids: Vec<ReplicaId> = opened.replicas.iter().map(|r| r.id).collect();
            let mut work = Work::new(opened, &ids, Rc::default());
            for _ in 0..3 {
                work.round(&mut random, &failed).await;
            }
            end_all(&logs, &failed).await;
            served.failed = failed.borrow().clone();
        }
        Answer::Served(served)
    });
    match ended {
        Outcome::Done(answer) => answer,
        other => panic!("the start ended so: {:?}", other.done().is_some()),
    }
}

async fn read_all(log: &ReplicaLog, served: &mut Served) {
    let id = log.id();
    let mut at = log.log_start_offset();
    let end = log.high_watermark();
    while at < end {
        let max = 1 + (rt::random_u64() % 100_000) as usize;
        match log.read_whole(at, max, end).await {
            Ok(Some(batches)) if !batches.is_empty() => {
                for b in batches {
                    let h = BatchHeader::parse(&b).expect("what is served is a batch");
                    assert!(h.next_offset() > at, "reading goes on");
                    at = h.next_offset();
                    // What is read holds the memory that other reads wait for.
                    let copy = Bytes::copy_from_slice(&b);
                    served.batches.insert((id, h.base_offset), copy);
                }
            }
            Err(LogError::Damaged { from, to, .. }) => {
                assert!(from <= at && at < to, "damage is where it was met");
                served.named += 1;
                at = to;
            }
            Ok(_) => {
                served
                    .gaps
                    .push(format!("replica {id}: nothing at {at} of {end}"));
                break;
            }
            Err(e) => {
                served
                    .gaps
                    .push(format!("replica {id}: {at} of {end}: {e}"));
                break;
            }
        }
    }
}

/// What is served was written there; what isn't, is named by an error.
pub fn check(image: &Image, served: &Served, forged: bool) {
    for (place, batch) in &served.batches {
        let known = image.written.get(place);
        assert!(
            known.is_some_and(|w| w.contains(batch)),
            "what is served at {place:?} was never written there"
        );
    }
    if !forged {
        let silent = served.gaps.iter().find(|g| !g.contains("/data"));
        assert!(silent.is_none(), "an answer without an error: {silent:?}");
    }
}
