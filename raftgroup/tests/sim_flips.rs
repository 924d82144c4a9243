//! Bits that flip at rest, under the shipped log, recovery and pump on a simulated disk (built with `--cfg tailrace_sim`).
//!
//! A seed draws several starts of one node. Between two of them a bit or two flip in a journal block, a segment, a checkpoint, an index, a
//! superblock or the node file. After every start each acknowledged batch is served right or its offsets are answered with an error that names
//! them, nothing else is answered so, the same goes for what is found by time, and production goes on. A start may refuse only over a checkpoint, or over both copies of a
//! superblock or of the node file, and names the file; the file is then put back. A flip in a commit that no later block vouches for can't be told from a torn
//! tail (L4): such flips are counted apart, and what the commits from there on held isn't asked for any more.
//!
//! Not drawn: flips in two neighbouring commits, which lose a directory together with the commit that it speaks of (L4).
//!
//! `SIM_SEEDS` says how many seeds (default 40), `SIM_SEED` runs just one. Every run prints how often each kind of flip happened.
#![cfg(tailrace_sim)]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use engine::batch::{Batch, BatchHeader};
use engine::log::{LogError, LogPolicy};
use engine::rt;
use engine::rt::sim::{Outcome, SimConfig, Stop, World};
use engine::types::*;
use raftgroup::*;

#[path = "sim_common/damage.rs"]
mod damage;
mod sim_common;
use damage::Driver;
use sim_common::*;

const GROUPS: i32 = 4;
const STARTS: u64 = 7;
const REFUSED: i32 = 3;

/// What the world outside knows of a group.
#[derive(Default)]
struct Known {
    /// CRC and number of records of each batch sent; its id is its place.
    sent: Vec<(u32, i64)>,
    acknowledged: BTreeMap<Offset, u64>,
    /// Offsets of batches that a flip hit.
    hit: BTreeSet<Offset>,
    /// Where a segment was hit that can't be walked any more: all of the group may be.
    hit_anywhere: bool,
    /// From here on a flip looked like a torn tail; until the next start has been checked.
    excused_from: Option<Offset>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    in_journal: u64,
    in_segments: u64,
    in_checkpoints: u64,
    in_indexes: u64,
    in_superblocks: u64,
    in_node_files: u64,
    lookalikes: u64,
    refused: u64,
    named: u64,
    damaged_commits: u64,
    checked: u64,
    starts: u64,
    after_damage: u64,
    by_time: u64,
}

#[derive(Default)]
struct Outside {
    groups: Vec<RefCell<Known>>,
    counts: RefCell<Counts>,
    refusal: RefCell<Option<LogError>>,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    shards: u16,
    rounds: u64,
    close: bool,
    /// Idle at the end, so that the last commit is vouched for.
    quiet: bool,
}

thread_local! {
    /// What the shards share in the test.
    static OUTSIDE: RefCell<Option<Rc<Outside>>> = const { RefCell::new(None) };
}

async fn shard_main(id: ShardId, plan: Plan) {
    let outside = OUTSIDE
        .with_borrow(Clone::clone)
        .expect("set by the driver");
    let failed = |e: &LogError| panic!("the log failed: {e}");
    let node = match node::open(id, plan.shards, Rc::new(failed)).await {
        Ok(node) => node,
        Err(e) => {
            *outside.refusal.borrow_mut() = Some(e);
            rt::exit(REFUSED);
        }
    };
    let damaged = node.report.as_ref().map_or(0, |r| r.damaged_commits);
    outside.counts.borrow_mut().damaged_commits += damaged;
    let (log, groups) = (&node.log, &node.groups);
    let mut mine = Vec::new();
    for n in node.mine(GROUPS) {
        let replica = ReplicaId(n as u64 + 1);
        let g = match groups.get(group(n)) {
            Some(g) => g,
            None => groups.create(replica, group(n), &[replica]).expect("new"),
        };
        g.log().set_policy(LogPolicy {
            segment_bytes: 150 << 10,
            ..LogPolicy::default()
        });
        mine.push((n, g));
    }
    for (n, g) in &mine {
        node::serves(&node, g, || false).await;
        check(g, &outside, *n).await;
    }
    outside.counts.borrow_mut().starts += 1;
    for _ in 0..plan.rounds {
        round(&mine, &outside).await;
    }
    if plan.quiet {
        rt::sleep(Duration::from_millis(60)).await;
    }
    if plan.close {
        log.close().await.expect("a clean end");
    }
    node::end().await;
}

/// Every group gets a few batches at once; their acknowledgements are noted as they come.
async fn round(mine: &[(i32, Rc<Group>)], outside: &Rc<Outside>) {
    let mut waits = Vec::new();
    for (n, g) in mine {
        for _ in 0..rt::random_u64() % 4 {
            let large = rt::random_u64().is_multiple_of(4);
            let bytes = rt::random_u64() % if large { 12_000 } else { 300 };
            let records = 1 + (rt::random_u64() % 3) as i32;
            let mut k = outside.groups[*n as usize].borrow_mut();
            let id = k.sent.len() as u64;
            let batch = numbered(id, records, bytes as usize);
            k.sent.push((crc_of(&batch.bytes), i64::from(records)));
            match g.produce(batch, Acks::All, rt::wall_clock_ms()) {
                Ok(Produced::Wait(w)) => waits.push((*n, id, w)),
                Ok(Produced::Done(_)) => panic!("acks=all waits"),
                Err(ProduceError::Overloaded) => {}
                Err(e) => panic!("refused: {e:?}"),
            }
        }
    }
    for (n, id, w) in waits {
        let a = w.await.expect("a sole voter commits");
        let mut k = outside.groups[n as usize].borrow_mut();
        let before = k.acknowledged.insert(a.base_offset, id);
        assert!(before.is_none(), "group {n}: {} given twice", a.base_offset);
        if !k.hit.is_empty() {
            outside.counts.borrow_mut().after_damage += 1;
        }
    }
    if rt::random_u64().is_multiple_of(3) {
        rt::sleep(Duration::from_millis(rt::random_u64() % 30)).await;
    }
}

fn crc_of(batch: &[u8]) -> u32 {
    u32::from_be_bytes(batch[17..21].try_into().expect("four bytes"))
}

/// One read. `Err`: up to where the offsets from `at` on are named as damaged.
async fn read(g: &Group, n: i32, at: Offset, max: usize) -> Result<Vec<Batch>, Offset> {
    let found = g.log().read_whole(at, max, g.high_watermark()).await;
    let batches = match found {
        Ok(Some(batches)) => batches,
        Ok(None) => panic!("group {n}: {at} is out of range"),
        Err(LogError::Damaged {
            group: named,
            from,
            to,
        }) => {
            assert_eq!(named, group(n));
            assert!(
                from <= at && at < to,
                "group {n}: {at} isn't in {from} to {to}"
            );
            return Err(to);
        }
        Err(e) => panic!("group {n}: reading {at}: {e}"),
    };
    assert!(
        !batches.is_empty(),
        "group {n}: a read at {at} gives something"
    );
    let sound = batches
        .into_iter()
        .map(|b| Batch::check(b).expect("what is read is sound"));
    Ok(sound.collect())
}

async fn check(g: &Rc<Group>, outside: &Rc<Outside>, n: i32) {
    let (mut found, mut named) = (BTreeMap::new(), Vec::new());
    let mut at = g.log_start_offset();
    assert_eq!(at, Offset(0), "nothing trims");
    let end = g.high_watermark();
    while at < end {
        let batches = match read(g, n, at, 1 + (rt::random_u64() % 60_000) as usize).await {
            Ok(batches) => batches,
            Err(to) => {
                named.push((at, to));
                at = to;
                continue;
            }
        };
        for b in batches {
            let h: BatchHeader = b.header;
            let id = id_of(&b.bytes);
            assert_eq!(h.base_offset, at, "group {n}: offsets are dense");
            let k = outside.groups[n as usize].borrow();
            let sent = k.sent[id as usize];
            assert_eq!(
                sent.0,
                crc_of(&b.bytes),
                "group {n}: batch {id} is as it was sent"
            );
            assert_eq!(
                g.log().epoch_at(at),
                Some(h.leader_epoch),
                "group {n}: the epoch of {at}"
            );
            let before = found.insert(at, id);
            assert!(before.is_none());
            at = h.next_offset();
        }
    }
    let ids: BTreeSet<u64> = found.values().copied().collect();
    assert_eq!(ids.len(), found.len(), "group {n}: a batch is there twice");
    let some: Vec<Offset> = {
        let mut k = outside.groups[n as usize].borrow_mut();
        let excused = k.excused_from.take();
        let mut gone = Vec::new();
        for (offset, id) in &k.acknowledged {
            let is_named = named.iter().any(|(from, to)| from <= offset && offset < to);
            if is_named {
                assert!(
                    k.hit_anywhere || k.hit.contains(offset),
                    "group {n}: batch {id} at {offset} is named as damaged, and nothing hit it; named {named:?}, hit {:?}",
                    k.hit
                );
                outside.counts.borrow_mut().named += 1;
                continue;
            }
            if found.get(offset) == Some(id) {
                continue;
            }
            assert!(
                excused.is_some_and(|from| *offset >= from),
                "group {n}: acknowledged batch {id} at {offset} of {end} is neither served nor named; there: {:?}",
                found.get(offset)
            );
            gone.push(*offset);
        }
        for offset in gone {
            k.acknowledged.remove(&offset);
            k.hit.remove(&offset);
        }
        outside.counts.borrow_mut().checked += k.acknowledged.len() as u64;
        k.acknowledged.keys().copied().collect()
    };
    by_time(g, n, &found, &named, outside).await;
    // Each offset by itself, however the read before it went.
    for _ in 0..12.min(some.len()) {
        let offset = some[(rt::random_u64() % some.len() as u64) as usize];
        let one = read(g, n, offset, 1).await;
        let served = one.is_ok_and(|b| b[0].header.base_offset == offset);
        assert_eq!(
            served,
            found.contains_key(&offset),
            "group {n}: {offset} alone"
        );
    }
}

/// The first batch of those that can be read which isn't older, or a damaged stretch by its name.
async fn by_time(
    g: &Group,
    n: i32,
    found: &BTreeMap<Offset, u64>,
    named: &[(Offset, Offset)],
    outside: &Outside,
) {
    let log = g.log();
    let end = g.high_watermark();
    let right =
        |answer: Result<Option<bytes::Bytes>, LogError>, wanted: Option<Offset>, what: &str| {
            match answer {
                Ok(batch) => {
                    let at = batch.map(|b| Batch::check(b).expect("sound").header.base_offset);
                    assert_eq!(at, wanted, "group {n}: {what}");
                    outside.counts.borrow_mut().by_time += 1;
                }
                Err(LogError::Damaged { from, to, .. }) => {
                    let told = named.iter().any(|(f, t)| *f < to && from < *t);
                    assert!(told, "group {n}: {what}: {from} to {to} aren't damaged");
                }
                Err(e) => panic!("group {n}: {what}: {e}"),
            }
        };
    let sent = outside.groups[n as usize].borrow().sent.len() as u64;
    for _ in 0..8.min(sent) {
        let ts = time_of(rt::random_u64() % (sent + 4));
        let from = Offset((rt::random_u64() % (end.0 as u64 + 1)) as i64);
        let from = if rt::random_u64().is_multiple_of(2) {
            from
        } else {
            Offset(0)
        };
        // The batch that `from` lies in counts.
        let records = |id: u64| outside.groups[n as usize].borrow().sent[id as usize].1;
        let mut all = found.iter().filter(|(o, id)| o.0 + records(**id) > from.0);
        let wanted = all.find(|(_, id)| time_of(**id) >= ts).map(|(o, _)| *o);
        let wanted = wanted.filter(|_| from < end);
        let answer = log.batch_by_timestamp(ts, from, end).await;
        right(answer, wanted, &format!("time {ts} from {from} on"));
    }
    let newest = found.iter().rev().max_by_key(|(_, id)| time_of(**id));
    let answer = log.batch_of_max_timestamp(Offset(0), end).await;
    right(answer, newest.map(|(o, _)| *o), "the newest");
}

fn run_seed(seed: u64) -> (Counts, u64) {
    let _replay = Replay(seed);
    let outside = Rc::new(Outside {
        groups: (0..GROUPS).map(|_| RefCell::default()).collect(),
        ..Outside::default()
    });
    let mut d = Driver {
        world: World::new(seed, SimConfig::default()),
        draw: Draw(seed),
        outside: outside.clone(),
        flipped: Vec::new(),
        may_refuse: Vec::new(),
        must_refuse: false,
        blocks_hit: Vec::new(),
    };
    let loud = std::env::var_os("SIM_SEED").is_some();
    for start in 0..=STARTS {
        let plan = Plan {
            shards: 1 + d.draw.below(3) as u16,
            rounds: if start == STARTS {
                0
            } else {
                20 + d.draw.below(100)
            },
            close: d.draw.below(5) == 0,
            quiet: d.draw.below(2) == 0,
        };
        let stop = (d.draw.below(3) == 0 && start < STARTS).then(|| {
            let how = if d.draw.below(2) == 0 {
                Stop::Kill
            } else {
                Stop::PowerCut
            };
            (200 + d.draw.below(1500), how)
        });
        for attempt in 0..4 {
            assert!(attempt < 3, "it starts once the file is back");
            let ops = d.world.faults().disk_ops;
            d.world
                .configure(|c| c.stop_at_op = stop.map(|(n, how)| (ops + n, how)));
            if loud {
                println!(
                    "start {start}: {plan:?}, stop {stop:?}, flipped {:?}, files {:?}",
                    d.flipped,
                    d.world.files()
                );
            }
            OUTSIDE.set(Some(outside.clone()));
            let ended = node::launch(&d.world, plan.shards, move |id| shard_main(id, plan));
            match ended {
                Outcome::Exited(REFUSED) => {
                    d.refused(seed);
                    continue;
                }
                Outcome::Done(()) | Outcome::Stopped(_) => {}
                other => panic!("{other:?}"),
            }
            assert!(!d.must_refuse, "both copies are damaged, and it starts");
            break;
        }
        if start < STARTS {
            d.flips();
        }
    }
    (*outside.counts.borrow(), d.world.trace())
}

#[test]
fn l4_l13_what_rots_is_named_and_nothing_else_goes() {
    let (seeds, alone) = seeds();
    let mut sum = Counts::default();
    let mut repeated = 0;
    for &seed in &seeds {
        let (c, trace) = run_seed(seed);
        // Two runs of a seed take the same steps.
        if seed % 10 == 1 {
            assert_eq!(run_seed(seed).1, trace, "seed {seed} isn't repeatable");
            repeated += 1;
        }
        sum.in_journal += c.in_journal;
        sum.in_segments += c.in_segments;
        sum.in_checkpoints += c.in_checkpoints;
        sum.in_indexes += c.in_indexes;
        sum.in_superblocks += c.in_superblocks;
        sum.in_node_files += c.in_node_files;
        sum.lookalikes += c.lookalikes;
        sum.refused += c.refused;
        sum.named += c.named;
        sum.damaged_commits += c.damaged_commits;
        sum.checked += c.checked;
        sum.starts += c.starts;
        sum.after_damage += c.after_damage;
        sum.by_time += c.by_time;
    }
    let shown = [
        ("flips_in_journal", sum.in_journal),
        ("flips_in_segments", sum.in_segments),
        ("flips_in_checkpoints", sum.in_checkpoints),
        ("flips_in_indexes", sum.in_indexes),
        ("flips_in_superblocks", sum.in_superblocks),
        ("flips_in_node_files", sum.in_node_files),
        ("damaged_commits", sum.damaged_commits),
        ("named", sum.named),
        ("refused", sum.refused),
        ("torn_tail_lookalikes", sum.lookalikes),
        ("acknowledged_after_damage", sum.after_damage),
        ("acknowledged_checked", sum.checked),
        ("found_by_time", sum.by_time),
        ("starts_checked", sum.starts),
        ("repeated", repeated),
    ];
    let flips: u64 = shown[..6].iter().map(|(_, n)| n).sum();
    let words: Vec<String> = shown
        .iter()
        .map(|(name, n)| format!("{name}={n}"))
        .collect();
    println!(
        "SHOW flip_seeds={} bit_flips={flips} {}",
        seeds.len(),
        words.join(" ")
    );
    if !alone {
        for (name, n) in shown {
            assert!(n > 0, "{name} never happened");
        }
    }
}
