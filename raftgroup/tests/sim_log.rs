//! The shipped log, recovery and pump on a simulated disk that loses and tears what isn't synced (built with `--cfg tailrace_sim`).
//!
//! A seed draws several starts of one node, with one to three shards; producers append numbered batches with acks=all; each start ends in a power cut or a kill at a
//! drawn disk operation, recovery's own included, or clean. After every start each log is read from its start: offsets are dense, every acknowledged batch
//! is where it was acknowledged, none is there twice, and none comes back that a reader once found missing.
//!
//! The same on a disk that fills and empties while all this happens, also between starts: nothing ends, batches are refused, and taken again when there is room.
//!
//! `SIM_SEEDS` says how many seeds (default 40), `SIM_SEED` runs just one. Every run prints how often each fault fired.
#![cfg(tailrace_sim)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use engine::batch::{Batch, BatchHeader};
use engine::log::{LogError, LogPolicy, ShardLog};
use engine::rt;
use engine::rt::sim::{Outcome, SimConfig, Stop, World};
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
    /// Shards that have served once: their journals are there for good.
    served: RefCell<BTreeSet<u16>>,
    /// Shards that still append.
    appending: Cell<u16>,
    /// Batches refused because the disk was full, and times that producing went on afterwards without a restart.
    refused: Cell<u64>,
    resumed: Cell<u64>,
    /// Batches that were taken and committed only when there was room again.
    waited: Cell<u64>,
    extents: Cell<u64>,
}

impl Outside {
    fn next_id(&self, group: i32) -> u64 {
        let mut k = self.groups[group as usize].borrow_mut();
        k.next_id += 1;
        k.next_id
    }
}

/// What is drawn for one start.
#[derive(Clone, Copy, Debug)]
struct Plan {
    shards: u16,
    rounds: u64,
    close: bool,
    check_only: bool,
    /// The disk fills and empties.
    tight: bool,
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
    let node = node::open(id, plan.shards, Rc::new(failed))
        .await
        .expect("what a crash leaves can be recovered");
    let damaged = node.report.as_ref().map_or(0, |r| r.damaged_commits);
    assert_eq!(damaged, 0, "a crash damages nothing that was durable");
    let (log, groups) = (&node.log, &node.groups);
    let mut mine = Vec::new();
    for n in node.mine(GROUPS) {
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
        node::serves(&node, g, || false).await;
        check(g, &outside, *n).await;
    }
    *outside.starts_checked.borrow_mut() += 1;
    outside.served.borrow_mut().insert(id.0);
    if !plan.check_only {
        for _ in 0..plan.rounds {
            let journals = outside.served.borrow().len() == usize::from(plan.shards);
            if plan.tight && journals && rt::random_u64().is_multiple_of(6) {
                squeeze(rt::random_u64());
                if rt::random_u64().is_multiple_of(4) {
                    burst(&mine, &outside).await;
                }
            }
            round(&mine, &outside).await;
        }
        if plan.tight {
            World::current().configure(|c| c.disk_bytes = None);
            resume(log, &mine, &outside).await;
        }
    }
    // As in a node: logs close when no shard takes anything any more.
    outside.appending.set(outside.appending.get() - 1);
    while plan.close && outside.appending.get() > 0 {
        rt::sleep(Duration::from_millis(1)).await;
    }
    if plan.close {
        log.close().await.expect("a clean end");
    }
    node::end().await;
}

/// Gives the disk another size: from not a byte left to plenty.
fn squeeze(draw: u64) {
    let world = World::current();
    let left = [0, 4096, 60 << 10, 300 << 10, 1 << 20, 6 << 20, 16 << 20][(draw % 7) as usize];
    let size = world.used_bytes() + left;
    world.configure(|c| c.disk_bytes = Some(size));
}

/// Until batches are refused, before the shard has seen how little room there is: more is taken than the journal has room for, so some of it can commit only
/// when the disk has room again.
async fn burst(mine: &[(i32, Rc<Group>)], outside: &Rc<Outside>) {
    let mut waits = Vec::new();
    'full: for _ in 0..100 {
        for (n, g) in mine {
            let id = outside.next_id(*n);
            match g.produce(numbered(id, 1, 9000), Acks::All, rt::wall_clock_ms()) {
                Ok(Produced::Wait(w)) => waits.push((*n, id, w)),
                Ok(Produced::Done(_)) => panic!("acks=all waits"),
                Err(ProduceError::Overloaded | ProduceError::DiskFull) => break 'full,
                Err(e) => panic!("refused: {e:?}"),
            }
        }
    }
    committed(waits, outside).await;
}

/// There is room again: every group takes batches soon, without a restart.
async fn resume(log: &ShardLog, mine: &[(i32, Rc<Group>)], outside: &Rc<Outside>) {
    let began = rt::now();
    for (n, g) in mine {
        loop {
            let id = outside.next_id(*n);
            match g.produce(numbered(id, 1, 20), Acks::All, rt::wall_clock_ms()) {
                Ok(Produced::Wait(w)) => {
                    let a = w.await.expect("a sole voter commits");
                    let mut k = outside.groups[*n as usize].borrow_mut();
                    k.acknowledged.insert(id, a.base_offset);
                    break;
                }
                Ok(Produced::Done(_)) => panic!("acks=all waits"),
                Err(ProduceError::DiskFull | ProduceError::Overloaded) => {}
                Err(e) => panic!("refused: {e:?}"),
            }
            let waited = began.elapsed();
            assert!(
                waited < Duration::from_secs(30),
                "group {n} takes nothing though the disk has room: pressure {}, {:?}",
                log.pressure(),
                log.disk()
            );
            rt::sleep(Duration::from_millis(20)).await;
        }
    }
    outside.resumed.set(outside.resumed.get() + 1);
}

/// Every group gets a few batches at once; their acknowledgements are noted as they come.
async fn round(mine: &[(i32, Rc<Group>)], outside: &Rc<Outside>) {
    let mut waits = Vec::new();
    for (n, g) in mine {
        for _ in 0..rt::random_u64() % 4 {
            let id = outside.next_id(*n);
            let large = rt::random_u64().is_multiple_of(8);
            let bytes = if large {
                rt::random_u64() % 9000
            } else {
                rt::random_u64() % 300
            };
            let records = 1 + (rt::random_u64() % 3) as i32;
            let batch = numbered(id, records, bytes as usize);
            let extent = rt::random_u64().is_multiple_of(12);
            outside
                .extents
                .set(outside.extents.get() + u64::from(extent));
            match produce(g, batch, extent).await {
                Ok(Produced::Wait(w)) => waits.push((*n, id, w)),
                Ok(Produced::Done(_)) => panic!("acks=all waits"),
                Err(ProduceError::Overloaded) => {}
                Err(ProduceError::DiskFull) => outside.refused.set(outside.refused.get() + 1),
                Err(e) => panic!("refused: {e:?}"),
            }
        }
    }
    committed(waits, outside).await;
    if rt::random_u64().is_multiple_of(3) {
        rt::sleep(Duration::from_millis(rt::random_u64() % 30)).await;
    }
}

/// Waits for the acknowledgements and notes them.
async fn committed(waits: Vec<(i32, u64, CommitWait<Appended>)>, outside: &Rc<Outside>) {
    for (n, id, mut w) in waits {
        // What was taken just before the last byte went may have to wait for room.
        let soon = rt::timeout(Duration::from_secs(20), &mut w).await;
        let committed = match soon {
            Ok(committed) => committed,
            Err(_) => {
                World::current().configure(|c| c.disk_bytes = None);
                outside.waited.set(outside.waited.get() + 1);
                rt::timeout(Duration::from_secs(20), w)
                    .await
                    .expect("with room again it goes on")
            }
        };
        let a = committed.expect("a sole voter commits");
        outside.groups[n as usize]
            .borrow_mut()
            .acknowledged
            .insert(id, a.base_offset);
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
    refused: u64,
    resumed: u64,
    waited: u64,
}

fn run_seed(seed: u64, tight: bool) -> Verdict {
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
        // New journals need room: on a tight disk their number stays.
        let shards = if tight { seed % 3 } else { draw(3) };
        let plan = Plan {
            shards: 1 + shards as u16,
            rounds: 5 + draw(60),
            close: draw(4) == 0,
            check_only: last,
            tight,
        };
        if tight {
            // A start on a full disk has journals: one before it has served.
            let full = !last && outside.served.borrow().len() == usize::from(plan.shards);
            let size = world.used_bytes() + draw(3) * 4096;
            world.configure(|c| c.disk_bytes = full.then_some(size));
        }
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
        outside.appending.set(plan.shards);
        OUTSIDE.set(Some(outside.clone()));
        let ended = node::launch(&world, plan.shards, move |id| shard_main(id, plan));
        match ended {
            Outcome::Done(()) => {}
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
        refused: outside.refused.get(),
        resumed: outside.resumed.get(),
        waited: outside.waited.get(),
    }
}

#[test]
fn nothing_acknowledged_is_lost() {
    many(false);
}

#[test]
fn nothing_acknowledged_is_lost_on_a_disk_that_fills() {
    many(true);
}

fn many(tight: bool) {
    let (seeds, alone) = seeds();
    let mut sum = rt::sim::Faults::default();
    let (mut checked, mut starts, mut in_recovery, mut repeated, mut extents) = (0, 0, 0, 0, 0);
    let (mut refused, mut resumed, mut waited) = (0, 0, 0);
    for &seed in &seeds {
        let v = run_seed(seed, tight);
        // Two runs of a seed take the same steps.
        if seed % 10 == 1 {
            assert_eq!(
                run_seed(seed, tight).trace,
                v.trace,
                "seed {seed} isn't repeatable"
            );
            repeated += 1;
        }
        checked += v.checked;
        extents += v.extents;
        starts += v.starts;
        in_recovery += v.in_recovery;
        refused += v.refused;
        resumed += v.resumed;
        waited += v.waited;
        sum.no_room += v.faults.no_room;
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
    if tight {
        println!(
            "SHOW tight_seeds={} tight_acknowledged_checked={checked} tight_refused={refused} tight_resumed={resumed} tight_waited={waited} tight_no_room={}",
            seeds.len(),
            sum.no_room
        );
        let fired = [
            checked,
            refused,
            resumed,
            waited,
            sum.no_room,
            in_recovery,
            sum.writes_lost,
        ];
        assert!(
            alone || fired.iter().all(|n| *n > 0),
            "a fault never fired: {fired:?}"
        );
        return;
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
