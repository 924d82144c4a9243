//! The shipped log, recovery and pump on a simulated disk that loses and tears what isn't synced (built with `--cfg tailrace_sim`).
//!
//! A seed draws several starts of one node, with one to three shards; producers append numbered batches with acks=all; each start ends in a power cut or a kill at a
//! drawn disk operation, recovery's own included, or clean. After every start each log is read from its start: offsets are dense, every acknowledged batch
//! is where it was acknowledged, none is there twice, and none comes back that a reader once found missing.
//!
//! `SIM_SEEDS` says how many seeds (default 40), `SIM_SEED` runs just one. Every run prints how often each fault fired.
#![cfg(tailrace_sim)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use engine::batch::{Batch, BatchHeader};
use engine::log::{LogPolicy, RecoveredShard, ShardLog, StoreConfig, recover};
use engine::memory::Budget;
use engine::metrics::ShardMetrics;
use engine::rt::sim::{Outcome, SimConfig, Stop, World};
use engine::rt::{self, Launch};
use engine::types::*;
use raftgroup::*;

mod sim_common;
use sim_common::*;

const GROUPS: i32 = 5;
const STARTS: u64 = 5;

/// What the world outside knows of a group.
#[derive(Default)]
struct Known {
    next_id: u64,
    /// Acknowledged: id of the batch and where.
    acknowledged: BTreeMap<u64, Offset>,
    /// Sent, and not in the log when it was read after a start.
    missing: BTreeSet<u64>,
}

#[derive(Default)]
struct Outside {
    groups: Vec<RefCell<Known>>,
    checked: RefCell<u64>,
    starts_checked: RefCell<u64>,
    running: Cell<u16>,
    extents: Cell<u64>,
}

/// What is drawn for one start.
#[derive(Clone, Copy, Debug)]
struct Plan {
    shards: u16,
    rounds: u64,
    close: bool,
    check_only: bool,
}

type Parts = Rc<RefCell<Option<Vec<Option<RecoveredShard>>>>>;

thread_local! {
    /// All shards of a simulated process run on one thread; this is what they share in the test.
    static PARTS: RefCell<Option<(Parts, Rc<Outside>)>> = const { RefCell::new(None) };
}

async fn shard_main(id: ShardId, plan: Plan) {
    let (parts, outside) = PARTS.with_borrow(|p| p.clone()).expect("set by the driver");
    let cfg = StoreConfig {
        data_dir: PathBuf::from("/data"),
        journal_dir: None,
        shards: plan.shards,
        memory_per_shard: 3 << 20,
    };
    if id.0 == 0 {
        let found = recover(&cfg)
            .await
            .expect("what a crash leaves can be recovered");
        assert_eq!(
            found.report.damaged_commits, 0,
            "a crash damages nothing that was durable"
        );
        *parts.borrow_mut() = Some(found.shards.into_iter().map(Some).collect());
    }
    let part = loop {
        if let Some(p) = parts.borrow_mut().as_mut() {
            break p[usize::from(id.0)]
                .take()
                .expect("each shard takes its part once");
        }
        rt::sleep(Duration::from_micros(50)).await;
    };
    let budget = Budget::new(cfg.memory_per_shard);
    let metrics = Rc::new(ShardMetrics::default());
    let (log, restored) = ShardLog::open(Rc::new(cfg), id, part, budget, metrics)
        .await
        .expect("the log opens");
    log.set_on_failure(Rc::new(|e| panic!("the log failed: {e}")));
    let groups = Groups::new(log.clone(), NodeId(1), Rc::new(Silent));
    groups
        .restore(restored)
        .expect("what was restored is sound");
    groups.run().detach();
    let mut mine = Vec::new();
    for n in 0..GROUPS {
        if shard_of(group(n), plan.shards) != id {
            continue;
        }
        let replica = ReplicaId(n as u64 + 1);
        let g = match groups.get(group(n)) {
            Some(g) => g,
            None => groups
                .create(replica, group(n), &[replica])
                .expect("it is new"),
        };
        g.log().set_policy(LogPolicy {
            segment_bytes: 300 << 10,
            ..LogPolicy::default()
        });
        mine.push((n, g));
    }
    for (n, g) in &mine {
        let began = rt::now();
        while !g.serves() {
            rt::sleep(Duration::from_micros(100)).await;
            let waited = began.elapsed();
            assert!(
                waited < Duration::from_secs(60),
                "group {n} doesn't serve, pressure {}",
                log.pressure()
            );
        }
        check(g, &outside, *n).await;
    }
    *outside.starts_checked.borrow_mut() += 1;
    if !plan.check_only {
        for _ in 0..plan.rounds {
            round(&mine, &outside).await;
        }
    }
    if plan.close {
        log.close().await.expect("a clean end");
    }
    // A process ends with all its shards.
    outside.running.set(outside.running.get() - 1);
    while outside.running.get() > 0 {
        rt::sleep(Duration::from_millis(1)).await;
    }
}

/// Every group gets a few batches at once; their acknowledgements are noted as they come.
async fn round(mine: &[(i32, Rc<Group>)], outside: &Rc<Outside>) {
    let mut waits = Vec::new();
    for (n, g) in mine {
        for _ in 0..rt::random_u64() % 4 {
            let id = {
                let mut k = outside.groups[*n as usize].borrow_mut();
                k.next_id += 1;
                k.next_id
            };
            let large = rt::random_u64() % 8 == 0;
            let bytes = if large {
                rt::random_u64() % 9000
            } else {
                rt::random_u64() % 300
            };
            let records = 1 + (rt::random_u64() % 3) as i32;
            let batch = numbered(id, records, bytes as usize);
            let extent = rt::random_u64() % 12 == 0;
            outside
                .extents
                .set(outside.extents.get() + u64::from(extent));
            match produce(g, batch, extent).await {
                Ok(Produced::Wait(w)) => waits.push((*n, id, w)),
                Ok(Produced::Done(_)) => panic!("acks=all waits"),
                Err(ProduceError::Overloaded) => {}
                Err(e) => panic!("refused: {e:?}"),
            }
        }
    }
    for (n, id, w) in waits {
        let a = w.await.expect("a sole voter commits");
        outside.groups[n as usize]
            .borrow_mut()
            .acknowledged
            .insert(id, a.base_offset);
    }
    if rt::random_u64() % 3 == 0 {
        rt::sleep(Duration::from_millis(rt::random_u64() % 30)).await;
    }
}

async fn check(g: &Rc<Group>, outside: &Rc<Outside>, n: i32) {
    let mut found = BTreeMap::new();
    let mut at = g.log_start_offset();
    let end = g.high_watermark();
    while at < end {
        let max = 1 + (rt::random_u64() % 60_000) as usize;
        let batches = g
            .log()
            .read_whole(at, max, end)
            .await
            .expect("nothing is damaged")
            .expect("in range");
        assert!(
            !batches.is_empty(),
            "group {n}: a read at {at} below {end} gives something"
        );
        for b in batches {
            let b = Batch::check(b).expect("what is read is sound");
            let h: BatchHeader = b.header;
            assert_eq!(h.base_offset, at, "group {n}: offsets are dense");
            let before = found.insert(id_of(&b.bytes), at);
            assert!(
                before.is_none(),
                "group {n}: batch {} is there twice",
                id_of(&b.bytes)
            );
            at = h.next_offset();
        }
    }
    let mut k = outside.groups[n as usize].borrow_mut();
    for (id, offset) in &k.acknowledged {
        assert_eq!(
            found.get(id),
            Some(offset),
            "group {n}: acknowledged batch {id} at {offset} of {end}"
        );
    }
    *outside.checked.borrow_mut() += k.acknowledged.len() as u64;
    if let Some(id) = found.keys().find(|id| k.missing.contains(id)) {
        panic!("group {n}: batch {id} was cut and is back");
    }
    let missing: Vec<u64> = (1..=k.next_id)
        .filter(|id| !found.contains_key(id))
        .collect();
    k.missing.extend(missing);
}

struct Verdict {
    faults: rt::sim::Faults,
    checked: u64,
    extents: u64,
    starts: u64,
    in_recovery: u64,
    trace: u64,
}

fn run_seed(seed: u64) -> Verdict {
    let _replay = Replay(seed);
    let world = World::new(seed, SimConfig::default());
    let outside = Rc::new(Outside {
        groups: (0..GROUPS).map(|_| RefCell::default()).collect(),
        ..Outside::default()
    });
    // Drawn outside of the world's own generator, from the same seed.
    let mut draws = Draw(seed);
    let mut draw = |below| draws.below(below);
    let mut in_recovery = 0;
    for start in 0..=STARTS {
        let last = start == STARTS;
        let plan = Plan {
            shards: 1 + draw(3) as u16,
            rounds: 5 + draw(60),
            close: draw(4) == 0,
            check_only: last,
        };
        let ops = world.faults().disk_ops;
        let how = if draw(4) == 0 {
            Stop::Kill
        } else {
            Stop::PowerCut
        };
        // A third of the stops come early, while the start is still recovering.
        let reach = if draw(3) == 0 { 40 } else { 900 };
        let stop = (!last).then(|| (ops + 1 + draw(reach), how));
        world.configure(|c| c.stop_at_op = stop);
        let before = *outside.starts_checked.borrow();
        if std::env::var_os("SIM_SEED").is_some() {
            println!(
                "start {start}: {plan:?}, stop {stop:?}, files {:?}",
                world.files()
            );
        }
        outside.running.set(plan.shards);
        PARTS.set(Some((Rc::default(), outside.clone())));
        let launch = Launch {
            shards: plan.shards,
            overprovisioned: true,
            cpus: None,
            seed: Some(seed),
        };
        let ended = world.enter(|| rt::launch(launch, move |id| shard_main(id, plan)));
        match ended {
            Outcome::Done(r) => r.expect("the shards start"),
            Outcome::Stopped(_) => {
                in_recovery += u64::from(*outside.starts_checked.borrow() == before);
            }
            Outcome::Exited(code) => panic!("seed {seed}: exited with {code}"),
            Outcome::Stuck => panic!("seed {seed}: stuck"),
        }
    }
    let checked = *outside.checked.borrow();
    let starts = *outside.starts_checked.borrow();
    Verdict {
        faults: world.faults(),
        checked,
        extents: outside.extents.get(),
        starts,
        in_recovery,
        trace: world.trace(),
    }
}

#[test]
fn nothing_acknowledged_is_lost() {
    let (seeds, alone) = seeds();
    let mut sum = rt::sim::Faults::default();
    let (mut checked, mut starts, mut in_recovery, mut repeated, mut extents) = (0, 0, 0, 0, 0);
    for &seed in &seeds {
        let v = run_seed(seed);
        // Two runs of a seed take the same steps.
        if seed % 10 == 1 {
            assert_eq!(
                run_seed(seed).trace,
                v.trace,
                "seed {seed} isn't repeatable"
            );
            repeated += 1;
        }
        checked += v.checked;
        extents += v.extents;
        starts += v.starts;
        in_recovery += v.in_recovery;
        let f = &v.faults;
        sum.kills += f.kills;
        sum.power_cuts += f.power_cuts;
        sum.writes_lost += f.writes_lost;
        sum.writes_torn += f.writes_torn;
        sum.writes_kept += f.writes_kept;
        sum.journal_writes_in_flight += f.journal_writes_in_flight;
        sum.names_lost += f.names_lost;
        sum.reordered += f.reordered;
        sum.disk_ops += f.disk_ops;
    }
    println!(
        "SHOW seeds={} acknowledged_checked={checked} extents={extents} starts_checked={starts} kills={} power_cuts={} stops_in_recovery={in_recovery} writes_lost={} writes_torn={} writes_kept={} journal_writes_in_flight={} names_lost={} reordered={} disk_ops={} repeated={repeated}",
        seeds.len(),
        sum.kills,
        sum.power_cuts,
        sum.writes_lost,
        sum.writes_torn,
        sum.writes_kept,
        sum.journal_writes_in_flight,
        sum.names_lost,
        sum.reordered,
        sum.disk_ops,
    );
    if !alone {
        let fired = [
            checked,
            extents,
            sum.kills,
            sum.power_cuts,
            in_recovery,
            sum.writes_lost,
            sum.writes_torn,
            sum.journal_writes_in_flight,
            sum.names_lost,
            sum.reordered,
        ];
        assert!(
            fired.iter().all(|n| *n > 0),
            "a fault never fired: {fired:?}"
        );
    }
}
