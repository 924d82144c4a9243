//! The lives of logs on a simulated disk (built with `--cfg tailrace_sim`): they are trimmed, by hand and by retention, removed and made again under new ids,
//! roll through small segments and live in journals that begin small and grow, while the node is killed, loses its power, or has an operation of its disk fail
//! (which ends it, design §4).
//!
//! After every start, for each group:
//! - the log starts where it was last seen to start or later, at a place that somebody proposed; nothing below is readable (L9);
//! - every acknowledged batch that reaches above the start is where it was acknowledged, none is there twice, offsets are dense, and none comes back that was missing;
//! - retention by size left as much as it has to;
//! - a replica that was removed durably isn't back, one whose successor served neither; one whose removal was lost is whole (L1).
//!
//! `SIM_SEEDS` says how many seeds (default 40), `SIM_SEED` runs just one. Every run prints how often each fault fired.
#![cfg(tailrace_sim)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use engine::batch::{Batch, BatchHeader};
use engine::log::superblock::{SUPERBLOCK_BYTES, Superblock};
use engine::log::{LogError, LogPolicy, block};
use engine::rt;
use engine::rt::sim::{Faults, Outcome, SimConfig, Stop, World};
use engine::types::*;
use raftgroup::*;

mod sim_common;
use sim_common::node::{self, Node, PATIENCE};
use sim_common::*;

const GROUPS: i32 = 6;
const STARTS: u64 = 6;
/// The process ended because its disk failed.
const FAILED: i32 = 3;
const SMALL_JOURNAL_BYTES: u64 = 256 << 10;
const RETENTION_BYTES: u64 = 150 << 10;

/// How a group's log is shortened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Never,
    ByHand,
    BySize,
    ByTime,
    /// The whole replica goes, and another comes.
    Replaced,
    Everything,
}

fn way(n: i32) -> Way {
    use Way::*;
    [Never, ByHand, BySize, ByTime, Replaced, Everything][n as usize]
}

/// What the world outside knows of one replica.
#[derive(Default)]
struct Known {
    replica: ReplicaId,
    /// It has served, so it exists for good until it is removed.
    served: bool,
    next_id: u64,
    /// Acknowledged: id of the batch, where, and the offset after it.
    acknowledged: BTreeMap<u64, (Offset, Offset)>,
    /// Sent, and not in the log when it was read.
    missing: BTreeSet<u64>,
    /// Where the log was last seen to start; it never goes back.
    start: Offset,
    /// Starts that were proposed by hand.
    proposed: BTreeSet<Offset>,
}

#[derive(Default)]
struct Lives {
    now: Known,
    /// The one before, while it isn't known that its removal is durable.
    before: Option<Known>,
    /// Replicas that can't be back.
    gone: BTreeSet<ReplicaId>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    checked: u64,
    starts: u64,
    in_recovery: u64,
    moved_starts: u64,
    trims: u64,
    below: u64,
    removed: u64,
    removals_lost: u64,
    creations_lost: u64,
    grown: u64,
    cut_growing: u64,
    segments: u64,
    extents: u64,
    failed: u64,
    failed_at_start: u64,
}

#[derive(Default)]
struct Outside {
    groups: Vec<RefCell<Lives>>,
    counts: RefCell<Counts>,
    next_replica: Cell<u64>,
    failure: RefCell<Option<String>>,
}

impl Outside {
    fn count(&self, f: impl FnOnce(&mut Counts)) {
        f(&mut self.counts.borrow_mut());
    }

    fn new_replica(&self) -> ReplicaId {
        self.next_replica.set(self.next_replica.get() + 1);
        ReplicaId(self.next_replica.get())
    }

    fn failed(&self) -> bool {
        self.failure.borrow().is_some()
    }
}

/// What is drawn for one start.
#[derive(Clone, Copy, Debug)]
struct Plan {
    shards: u16,
    rounds: u64,
    close: bool,
    last: bool,
}

thread_local! {
    static OUTSIDE: RefCell<Option<Rc<Outside>>> = const { RefCell::new(None) };
}

/// An operation on the disk failed: the process ends.
fn give_up(outside: &Outside, e: &LogError) -> ! {
    *outside.failure.borrow_mut() = Some(e.to_string());
    rt::exit(FAILED)
}

async fn shard_main(id: ShardId, plan: Plan) {
    let outside = OUTSIDE
        .with_borrow(Clone::clone)
        .expect("set by the driver");
    let told = outside.clone();
    let on_failure = move |e: &LogError| {
        *told.failure.borrow_mut() = Some(e.to_string());
    };
    let node = match node::open(id, plan.shards, Rc::new(on_failure)).await {
        Ok(node) => node,
        Err(e) => give_up(&outside, &e),
    };
    let damaged = node.report.as_ref().map_or(0, |r| r.damaged_commits);
    assert_eq!(damaged, 0, "a crash damages nothing that was durable");
    ends_when_it_fails(&node, &outside);
    let mut mine = BTreeMap::new();
    for n in node.mine(GROUPS) {
        let g = take(&node, &outside, n);
        mine.insert(n, g);
    }
    for (n, g) in &mine {
        if !node::serves(&node, g, || outside.failed()).await {
            std::future::pending::<()>().await;
        }
        served(&outside, *n);
        check(g, &outside, *n).await;
    }
    outside.count(|c| c.starts += 1);
    if !plan.last {
        for _ in 0..plan.rounds {
            round(&node, &mut mine, &outside).await;
        }
    }
    if plan.close {
        node.log.close().await.expect("an end says nothing");
    }
    node::end().await;
}

/// As in a node: acknowledgements have stopped, everybody who waits is told, and soon after the process ends.
fn ends_when_it_fails(node: &Node, outside: &Rc<Outside>) {
    let (groups, outside) = (node.groups.clone(), outside.clone());
    let watching = async move {
        while !outside.failed() {
            rt::sleep(Duration::from_millis(1)).await;
        }
        groups.fail();
        rt::sleep(Duration::from_millis(rt::random_u64() % 20)).await;
        rt::exit(FAILED);
    };
    rt::spawn(rt::Queue::Latency, watching).detach();
}

/// The group as it was found, if it may be there so, or a new one.
fn take(node: &Node, outside: &Outside, n: i32) -> Rc<Group> {
    let found = node.groups.get(group(n));
    {
        let mut lives = outside.groups[n as usize].borrow_mut();
        let is = found.as_ref().map(|g| g.replica());
        if let Some(id) = is {
            assert!(
                !lives.gone.contains(&id),
                "group {n}: replica {id} was removed and is back"
            );
        }
        if is != Some(lives.now.replica) {
            assert!(
                !lives.now.served,
                "group {n}: replica {} has served and is lost, {is:?} is there",
                lives.now.replica
            );
            // It never came to be.
            let lost = std::mem::take(&mut lives.now).replica;
            if lost.0 > 0 {
                lives.gone.insert(lost);
                outside.count(|c| c.creations_lost += 1);
            }
            match lives.before.take() {
                Some(before) if is == Some(before.replica) => {
                    lives.now = before;
                    outside.count(|c| c.removals_lost += 1);
                }
                Some(before) => {
                    lives.gone.insert(before.replica);
                }
                None => {}
            }
            assert_eq!(is.unwrap_or_default(), lives.now.replica, "group {n}");
        }
    }
    let g = found.unwrap_or_else(|| create(node, outside, n));
    g.log().set_policy(policy(n));
    g
}

fn policy(n: i32) -> LogPolicy {
    let mut p = LogPolicy {
        segment_bytes: 24 << 10,
        ..LogPolicy::default()
    };
    match way(n) {
        Way::BySize | Way::Everything => p.retention_bytes = RETENTION_BYTES as i64,
        // Batches here are of 1970.
        Way::ByTime => p.retention_ms = 1000,
        _ => {}
    }
    p
}

fn create(node: &Node, outside: &Outside, n: i32) -> Rc<Group> {
    let replica = outside.new_replica();
    let mut lives = outside.groups[n as usize].borrow_mut();
    lives.now = Known {
        replica,
        ..Known::default()
    };
    node.groups
        .create(replica, group(n), &[replica])
        .expect("it is new")
}

/// It has committed something: so its creation is durable, and whatever was removed before.
fn served(outside: &Outside, n: i32) {
    let mut lives = outside.groups[n as usize].borrow_mut();
    lives.now.served = true;
    if let Some(before) = lives.before.take() {
        lives.gone.insert(before.replica);
    }
}

/// Every group gets a few batches at once; their acknowledgements are noted as they come. Some are trimmed, some replaced.
async fn round(node: &Node, mine: &mut BTreeMap<i32, Rc<Group>>, outside: &Rc<Outside>) {
    let mut waits = Vec::new();
    for (n, g) in mine.iter_mut() {
        if matches!(way(*n), Way::Replaced | Way::Everything) && rt::random_u64().is_multiple_of(25)
        {
            replace(node, outside, *n, g);
        }
        produce_some(g, outside, *n, &mut waits).await;
        if rt::random_u64().is_multiple_of(6) {
            trim(g, outside, *n).await;
        }
    }
    if rt::random_u64().is_multiple_of(4) {
        node.groups.retain_now();
    }
    for (n, replica, id, records, w) in waits {
        match rt::timeout(PATIENCE, w).await.expect("an answer comes") {
            Ok(a) => {
                let mut lives = outside.groups[n as usize].borrow_mut();
                assert_eq!(lives.now.replica, replica);
                let end = Offset(a.base_offset.0 + records);
                lives.now.acknowledged.insert(id, (a.base_offset, end));
                drop(lives);
                served(outside, n);
            }
            Err(ProduceError::Removed) => {}
            Err(ProduceError::Storage) if outside.failed() => {}
            Err(e) => panic!("group {n}: {e}"),
        }
    }
    for (n, g) in mine.iter() {
        let mut lives = outside.groups[*n as usize].borrow_mut();
        // What was seen of a log's start stays true.
        let start = g.log_start_offset();
        assert!(
            start >= lives.now.start,
            "group {n}: the log start goes back"
        );
        if start > lives.now.start {
            lives.now.start = start;
            outside.count(|c| c.moved_starts += 1);
        }
    }
    if rt::random_u64().is_multiple_of(3) {
        rt::sleep(Duration::from_millis(rt::random_u64() % 60)).await;
    }
}

type Wait = (i32, ReplicaId, u64, i64, CommitWait<Appended>);

async fn produce_some(g: &Rc<Group>, outside: &Rc<Outside>, n: i32, waits: &mut Vec<Wait>) {
    for _ in 0..rt::random_u64() % 4 {
        let id = {
            let mut lives = outside.groups[n as usize].borrow_mut();
            lives.now.next_id += 1;
            lives.now.next_id
        };
        let bytes = match rt::random_u64() % 6 {
            0 => rt::random_u64() % 9000,
            _ => rt::random_u64() % 900,
        };
        let records = 1 + (rt::random_u64() % 3) as i32;
        let batch = numbered(id, records, bytes as usize);
        let extent = rt::random_u64().is_multiple_of(12);
        outside.count(|c| c.extents += u64::from(extent));
        match produce(g, batch, extent).await {
            Ok(Produced::Wait(w)) => waits.push((n, g.replica(), id, i64::from(records), w)),
            Ok(Produced::Done(_)) => panic!("acks=all waits"),
            // A new replica doesn't lead yet.
            Err(ProduceError::Overloaded | ProduceError::NotLeader) => {}
            Err(ProduceError::Storage) if outside.failed() => {}
            Err(e) => panic!("group {n}: refused: {e:?}"),
        }
    }
}

fn replace(node: &Node, outside: &Outside, n: i32, g: &mut Rc<Group>) {
    let served = outside.groups[n as usize].borrow().now.served;
    if !served {
        return;
    }
    node.groups.remove(group(n));
    outside.count(|c| c.removed += 1);
    {
        let mut lives = outside.groups[n as usize].borrow_mut();
        lives.before = Some(std::mem::take(&mut lives.now));
    }
    *g = create(node, outside, n);
    g.log().set_policy(policy(n));
}

async fn trim(g: &Group, outside: &Outside, n: i32) {
    if !matches!(way(n), Way::ByHand | Way::Everything) {
        return;
    }
    let (start, end) = (g.log_start_offset().0, g.high_watermark().0);
    let to = Offset(start + (rt::random_u64() % (end - start + 1) as u64) as i64);
    let wait = match g.propose_trim(to) {
        Ok(wait) => wait,
        Err(ProduceError::NotLeader | ProduceError::Overloaded) => return,
        Err(ProduceError::Storage) if outside.failed() => return,
        Err(e) => panic!("group {n}: trim to {to}: {e:?}"),
    };
    let replica = g.replica();
    outside.groups[n as usize]
        .borrow_mut()
        .now
        .proposed
        .insert(to);
    outside.count(|c| c.trims += 1);
    if rt::random_u64().is_multiple_of(2) {
        return; // Not waited for.
    }
    match rt::timeout(PATIENCE, wait).await.expect("an answer comes") {
        Ok(at) => {
            assert!(
                at >= to && g.log_start_offset() >= to,
                "group {n}: trimmed to {to}"
            );
            let mut lives = outside.groups[n as usize].borrow_mut();
            assert_eq!(lives.now.replica, replica);
            lives.now.start = lives.now.start.max(to);
        }
        Err(ProduceError::Storage) if outside.failed() => {}
        Err(e) => panic!("group {n}: trim to {to}: {e:?}"),
    }
}

async fn check(g: &Rc<Group>, outside: &Rc<Outside>, n: i32) {
    let (start, end) = (g.log_start_offset(), g.high_watermark());
    {
        let lives = outside.groups[n as usize].borrow();
        let k = &lives.now;
        assert!(
            start >= k.start,
            "group {n}: the log starts at {start}, and {} was seen",
            k.start
        );
        let retained = matches!(way(n), Way::BySize | Way::ByTime | Way::Everything);
        assert!(
            start == k.start || retained || k.proposed.contains(&start),
            "group {n}: nobody asked for {start}: {:?}",
            k.proposed
        );
    }
    if start > Offset(0) {
        let below = [Offset(0), Offset(start.0 - 1), Offset(start.0 / 2)];
        for at in below {
            let read = g.log().read_whole(at, 1 << 20, end).await;
            assert!(
                matches!(read, Ok(None)),
                "group {n}: {at} lies below {start} and is answered"
            );
            outside.count(|c| c.below += 1);
        }
    }
    let (found, bytes) = read_all(g, n, start, end).await;
    let mut lives = outside.groups[n as usize].borrow_mut();
    let k = &mut lives.now;
    k.start = start;
    let mut checked = 0;
    for (id, (base, next)) in &k.acknowledged {
        if *next <= start {
            assert!(
                !found.contains_key(id),
                "group {n}: batch {id} lies below the start"
            );
            continue;
        }
        assert_eq!(
            found.get(id),
            Some(base),
            "group {n}: acknowledged batch {id} at {base} of {start} to {end}"
        );
        checked += 1;
    }
    if let Some(id) = found.keys().find(|id| k.missing.contains(id)) {
        panic!("group {n}: batch {id} was cut and is back");
    }
    k.acknowledged.retain(|_, (_, next)| *next > start);
    let missing: Vec<u64> = (1..=k.next_id)
        .filter(|id| !found.contains_key(id))
        .collect();
    k.missing.extend(missing);
    if way(n) == Way::BySize && start > Offset(0) {
        assert!(
            bytes >= RETENTION_BYTES / 2,
            "group {n}: retention left {bytes} bytes"
        );
    }
    drop(lives);
    outside.count(|c| c.checked += checked);
}

/// Where each batch from `start` on is, by its id, and their bytes.
async fn read_all(g: &Group, n: i32, start: Offset, end: Offset) -> (BTreeMap<u64, Offset>, u64) {
    let (mut found, mut bytes, mut at) = (BTreeMap::new(), 0, start);
    while at < end {
        let max = 1 + (rt::random_u64() % 60_000) as usize;
        let batches = g.log().read_whole(at, max, end).await;
        let batches = match batches {
            Ok(Some(batches)) => batches,
            Ok(None) => panic!("group {n}: {at} of {start} to {end} is out of range"),
            Err(e) => panic!("group {n}: {at} of {start} to {end}: {e}"),
        };
        assert!(
            !batches.is_empty(),
            "group {n}: a read at {at} below {end} gives something"
        );
        for b in batches {
            let b = Batch::check(b).expect("what is read is sound");
            let h: BatchHeader = b.header;
            // The start may lie inside of the first.
            let dense = h.base_offset == at || at == start && h.base_offset < at;
            assert!(
                dense && h.next_offset() > at,
                "group {n}: offsets are dense"
            );
            let before = found.insert(id_of(&b.bytes), h.base_offset);
            assert!(
                before.is_none(),
                "group {n}: batch {} is there twice",
                id_of(&b.bytes)
            );
            bytes += b.bytes.len() as u64;
            at = h.next_offset();
        }
    }
    (found, bytes)
}

/// What a stop left: journals that have grown, or were about to; segments.
fn look(
    world: &World,
    outside: &Outside,
    grown: &mut BTreeSet<PathBuf>,
    segments: &mut BTreeSet<PathBuf>,
) {
    let Some(node) = world.read_file(&PathBuf::from("/data/node")) else {
        return;
    };
    let directory_id = node
        .get(12..20)
        .map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
    for path in world.files() {
        let name = path.to_string_lossy().into_owned();
        if name.ends_with(".log") {
            segments.insert(path.clone());
        }
        let number = name
            .strip_prefix("/data/journal-")
            .and_then(|n| n.parse().ok());
        let (Some(journal), Some(directory_id)) = (number, directory_id) else {
            continue;
        };
        let seed = block::Seed {
            directory_id,
            journal,
        };
        let bytes = world.read_file(&path).expect("it is listed");
        let newest = bytes
            .chunks(SUPERBLOCK_BYTES)
            .take(2)
            .filter_map(|s| Superblock::decode(s, seed).ok())
            .max_by_key(|s| s.sequence);
        let Some(s) = newest else { continue };
        if s.size > SMALL_JOURNAL_BYTES {
            grown.insert(path);
        }
        outside.count(|c| c.cut_growing += u64::from(bytes.len() as u64 > s.size));
    }
}

fn run_seed(seed: u64) -> (Counts, Faults, u64) {
    let _replay = Replay(seed);
    let loud = std::env::var_os("SIM_SEED").is_some();
    let world = World::new(
        seed,
        SimConfig {
            new_journal_bytes: if seed.is_multiple_of(3) {
                u64::MAX
            } else {
                SMALL_JOURNAL_BYTES
            },
            ..SimConfig::default()
        },
    );
    let outside = Rc::new(Outside {
        groups: (0..GROUPS).map(|_| RefCell::default()).collect(),
        ..Outside::default()
    });
    let (mut grown, mut segments) = (BTreeSet::new(), BTreeSet::new());
    let mut draws = Draw(seed);
    let mut draw = |below| draws.below(below);
    for start in 0..=STARTS {
        let last = start == STARTS;
        let plan = Plan {
            shards: 1 + draw(3) as u16,
            rounds: 10 + draw(120),
            close: draw(4) == 0,
            last,
        };
        let ops = world.faults().disk_ops;
        let how = if draw(4) == 0 {
            Stop::Kill
        } else {
            Stop::PowerCut
        };
        let reach = match draw(6) {
            0 | 1 => 40,
            2 => 300,
            _ => 2500,
        };
        let at = ops + 1 + draw(reach);
        // Mostly a stop; sometimes the disk fails instead, or soon before.
        let fails = (!last && draw(4) == 0).then(|| at.saturating_sub(draw(3)).max(ops + 1));
        let stop = (!last && (fails.is_none() || draw(2) == 0)).then_some((at, how));
        world.configure(|c| {
            c.stop_at_op = stop;
            c.fail_op = fails;
        });
        if loud {
            println!(
                "start {start}: {plan:?}, stop {stop:?}, fails {fails:?}, files {:?}",
                world.files()
            );
        }
        let (before, failed_before) = (outside.counts.borrow().starts, world.faults().failed_ops);
        outside.failure.take();
        OUTSIDE.set(Some(outside.clone()));
        let ended = node::launch(&world, plan.shards, move |id| shard_main(id, plan));
        let failed = world.faults().failed_ops - failed_before;
        let early = outside.counts.borrow().starts == before;
        if loud {
            println!(
                "  {ended:?}, failed {failed}, {:?}",
                outside.failure.borrow()
            );
        }
        if outside.failed() {
            let why = outside.failure.borrow().clone();
            assert_eq!(failed, 1, "the log failed and the disk had not: {why:?}");
        }
        match ended {
            // One that fails while it ends has ended.
            Outcome::Done(()) => outside.count(|c| c.failed += u64::from(outside.failed())),
            Outcome::Stopped(_) => outside.count(|c| c.in_recovery += u64::from(early)),
            Outcome::Exited(FAILED) => outside.count(|c| {
                c.failed += 1;
                c.failed_at_start += u64::from(early);
            }),
            other => panic!("seed {seed}: {other:?}"),
        }
        look(&world, &outside, &mut grown, &mut segments);
    }
    outside.count(|c| {
        c.grown = grown.len() as u64;
        c.segments = segments.len() as u64;
    });
    OUTSIDE.take();
    (*outside.counts.borrow(), world.faults(), world.trace())
}

#[test]
fn logs_are_trimmed_removed_and_grow_and_lose_nothing() {
    let (seeds, alone) = seeds();
    let mut sum: BTreeMap<&str, u64> = BTreeMap::new();
    for &seed in &seeds {
        let (c, f, trace) = run_seed(seed);
        // Two runs of a seed take the same steps.
        let again = seed % 10 == 1;
        if again {
            assert_eq!(run_seed(seed).2, trace, "seed {seed} isn't repeatable");
        }
        for (name, n) in [
            ("lives_checked", c.checked),
            ("lives_starts", c.starts),
            ("lives_stops_in_recovery", c.in_recovery),
            ("moved_log_starts", c.moved_starts),
            ("trims", c.trims),
            ("reads_below_start", c.below),
            ("replicas_removed", c.removed),
            ("removals_lost", c.removals_lost),
            ("creations_lost", c.creations_lost),
            ("journals_grown", c.grown),
            ("cuts_while_growing", c.cut_growing),
            ("segments", c.segments),
            ("lives_extents", c.extents),
            ("failed_operations", f.failed_ops),
            ("ended_by_failures", c.failed),
            ("failures_at_start", c.failed_at_start),
            ("lives_kills", f.kills),
            ("lives_power_cuts", f.power_cuts),
            ("lives_writes_lost", f.writes_lost),
            ("lives_writes_torn", f.writes_torn),
            ("lives_names_lost", f.names_lost),
            ("lives_repeated", u64::from(again)),
        ] {
            *sum.entry(name).or_default() += n;
        }
    }
    let words: Vec<String> = sum.iter().map(|(name, n)| format!("{name}={n}")).collect();
    println!("SHOW lives_seeds={} {}", seeds.len(), words.join(" "));
    if !alone {
        for (name, n) in sum {
            assert!(n > 0, "{name} never happened");
        }
    }
}
