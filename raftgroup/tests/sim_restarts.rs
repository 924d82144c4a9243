//! Hundreds of starts of which none gets to a checkpoint, on a disk with room and on a full one (built with `--cfg tailrace_sim`): a loop of restarts must never
//! leave a directory that can't be started. And a write or sync that fails for another reason ends the log, which loses nothing either. What was acknowledged is there at every start, and batches are taken again once a start has room.
#![cfg(tailrace_sim)]

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use engine::batch::Batch;
use engine::log::{LogError, ShardLog, StoreConfig, recover};
use engine::memory::Budget;
use engine::metrics::ShardMetrics;
use engine::rt;
use engine::rt::sim::{Outcome, SimConfig, Stop, World};
use engine::types::*;
use raftgroup::*;

mod sim_common;
use sim_common::*;

/// More than a superblock can list.
const STARTS: u64 = 450;
const GROUPS: i32 = 3;

/// Acknowledged batches: group, number, offset.
type Acked = Rc<RefCell<Vec<(i32, u64, Offset)>>>;

fn config(memory: u64) -> StoreConfig {
    StoreConfig {
        data_dir: PathBuf::from("/data"),
        journal_dir: None,
        shards: 1,
        memory_per_shard: memory,
    }
}

/// Ends the process, as a node does; the tests in which nothing may fail say so.
fn failed(e: &LogError, may_fail: bool) -> ! {
    assert!(may_fail, "the log failed: {e}");
    rt::exit(7)
}

/// One start: groups that serve, with everything acknowledged in them. `None` when the log waits for room instead.
async fn start(memory: u64, acked: &Acked, may_fail: bool) -> Option<(ShardLog, Vec<Rc<Group>>)> {
    let cfg = config(memory);
    let mut found = match recover(&cfg).await {
        Ok(found) => found,
        Err(e) => failed(&e, may_fail),
    };
    let part = found.shards.pop().expect("one shard");
    let budget = Budget::new(cfg.memory_per_shard);
    let metrics = Rc::new(ShardMetrics::default());
    let open = ShardLog::open(Rc::new(cfg), ShardId(0), part, budget, metrics);
    let opened = rt::timeout(Duration::from_secs(5), open).await.ok()?;
    let (log, restored) = match opened {
        Ok(opened) => opened,
        Err(e) => failed(&e, may_fail),
    };
    log.set_on_failure(Rc::new(move |e| failed(e, may_fail)));
    let groups = Groups::new(log.clone(), NodeId(1), Rc::new(Silent));
    groups.restore(restored).expect("sound");
    groups.run().detach();
    let mut mine = Vec::new();
    for n in 0..GROUPS {
        let replica = ReplicaId(n as u64 + 1);
        mine.push(match groups.get(group(n)) {
            Some(g) => g,
            None => groups
                .create(replica, group(n), &[replica])
                .expect("it is new"),
        });
    }
    for (n, g) in mine.iter().enumerate() {
        let serves = async {
            while !g.serves() {
                rt::sleep(Duration::from_micros(100)).await;
            }
        };
        rt::timeout(Duration::from_secs(30), serves)
            .await
            .unwrap_or_else(|_| panic!("group {n} is elected, pressure {}", log.pressure()));
    }
    let promised = acked.borrow().clone();
    for (n, id, offset) in promised {
        let g = &mine[n as usize];
        let read = g.log().read_whole(offset, 1, g.high_watermark()).await;
        let batches = read.expect("readable").expect("in range");
        let batch = Batch::check(batches[0].clone()).expect("sound");
        assert_eq!(
            (id_of(&batch.bytes), batch.header.base_offset),
            (id, offset)
        );
    }
    Some((log, mine))
}

/// A batch for every group; whether the disk took them.
async fn produce(mine: &[Rc<Group>], acked: &Acked) -> bool {
    for (n, g) in mine.iter().enumerate() {
        let id = 1 + acked.borrow().len() as u64;
        match g.produce(numbered(id, 2, 300), Acks::All, rt::wall_clock_ms()) {
            Ok(Produced::Wait(w)) => {
                let a = w.await.expect("a sole voter commits");
                acked.borrow_mut().push((n as i32, id, a.base_offset));
            }
            Err(ProduceError::DiskFull) => return false,
            other => panic!("{other:?}"),
        }
    }
    true
}

/// Starts, produces if it may, and ends by `how` before or after a checkpoint.
fn run(world: &World, memory: u64, acked: &Acked, how: Option<Stop>) -> Option<bool> {
    let acked = acked.clone();
    let mut may_fail = false;
    world.configure(|c| may_fail = c.fail_op.is_some());
    let ended = world.run(move || async move {
        let (log, mine) = start(memory, &acked, may_fail).await?;
        let taken = produce(&mine, &acked).await;
        if let Some(how) = how {
            World::current().stop(how);
            // It takes effect with the next wait.
            rt::sleep(Duration::from_secs(1)).await;
        }
        log.close().await.expect("a clean end");
        Some(taken)
    });
    match ended {
        Outcome::Done(taken) => taken,
        Outcome::Stopped(_) => Some(true),
        Outcome::Exited(7) => None,
        other => panic!("seed {}: {other:?}", world.seed()),
    }
}

fn stop(n: u64) -> Stop {
    match n % 3 {
        0 => Stop::Kill,
        _ => Stop::PowerCut,
    }
}

/// Nothing is left, and nothing to give up either.
fn fill(world: &World) {
    let used = world.used_bytes();
    world.configure(|c| c.disk_bytes = Some(used));
}

fn empty(world: &World) {
    world.configure(|c| c.disk_bytes = None);
}

#[test]
fn hundreds_of_starts_may_be_cut_short() {
    let world = World::new(7, SimConfig::default());
    let acked = Acked::default();
    for n in 0..STARTS {
        run(&world, 64 << 20, &acked, Some(stop(n)));
    }
    assert!(acked.borrow().len() as u64 > STARTS);
    assert_eq!(run(&world, 64 << 20, &acked, None), Some(true));
    assert_eq!(run(&world, 64 << 20, &acked, None), Some(true));
}

#[test]
fn a_loop_of_restarts_on_a_full_disk_ends_when_there_is_room() {
    let world = World::new(8, SimConfig::default());
    let acked = Acked::default();
    run(&world, 64 << 20, &acked, None);
    let before = acked.borrow().len();
    for n in 0..STARTS {
        fill(&world);
        run(&world, 64 << 20, &acked, Some(stop(n)));
    }
    assert_eq!(acked.borrow().len(), before, "a full disk takes nothing");
    empty(&world);
    assert_eq!(run(&world, 64 << 20, &acked, None), Some(true));
    assert_eq!(run(&world, 64 << 20, &acked, None), Some(true));
}

#[test]
fn a_journal_that_restarts_have_nearly_filled_is_left_alone_until_there_is_room() {
    // The smallest ring: some dozens of starts fill it.
    let memory = 2 << 20;
    let world = World::new(9, SimConfig::default());
    let acked = Acked::default();
    run(&world, memory, &acked, None);
    let waited = Rc::new(Cell::new(0));
    for n in 0..STARTS / 3 {
        fill(&world);
        let (a, waits) = (acked.clone(), waited.clone());
        world.run(move || async move {
            let started = start(memory, &a, false).await.is_some();
            waits.set(waits.get() + u64::from(!started));
            World::current().stop(stop(n));
        });
    }
    let waited = waited.get();
    assert!(
        waited > 10,
        "starts wait rather than fill the journal: {waited}"
    );
    empty(&world);
    assert_eq!(run(&world, memory, &acked, None), Some(true));
    assert_eq!(run(&world, memory, &acked, None), Some(true));
}

#[test]
fn a_write_that_fails_ends_the_log_and_loses_nothing() {
    let world = World::new(10, SimConfig::default());
    let acked = Acked::default();
    let mut ended = 0;
    let mut draws = Draw(10);
    for n in 0..150 {
        let op = world.faults().disk_ops + 1 + draws.below(60);
        world.configure(|c| c.fail_op = Some(op));
        let how = (n % 2 == 0).then(|| stop(n));
        ended += u64::from(run(&world, 4 << 20, &acked, how).is_none());
        // The next one must find everything.
        world.configure(|c| c.fail_op = None);
        assert_eq!(run(&world, 4 << 20, &acked, Some(stop(n))), Some(true));
    }
    assert!(ended > 30 && world.faults().failed_ops > 30, "{ended}");
}

/// A start of a node that has more groups than one election of each has room for in its journal; `None` when it was stopped before all of them served.
fn crowd(world: &World, groups: u64, stop_after: Option<(u64, Stop)>) -> Option<u64> {
    let ended = world.run(move || async move {
        let cfg = config(2 << 20);
        let mut found = recover(&cfg).await.expect("sound");
        let part = found.shards.pop().expect("one shard");
        let budget = Budget::new(cfg.memory_per_shard);
        let metrics = Rc::new(ShardMetrics::default());
        let open = ShardLog::open(Rc::new(cfg), ShardId(0), part, budget, metrics.clone());
        let (log, restored) = open.await.expect("there is room on the disk");
        let all = Groups::new(log.clone(), NodeId(1), Rc::new(Silent));
        all.restore(restored).expect("sound");
        all.run().detach();
        for n in 0..groups {
            let (id, replica) = (group(n as i32), ReplicaId(n + 1));
            if all.get(id).is_none() {
                all.create(replica, id, &[replica]).expect("it is new");
            }
        }
        if let Some((us, how)) = stop_after {
            let stop = async move {
                rt::sleep(Duration::from_micros(us)).await;
                World::current().stop(how);
            };
            rt::spawn(rt::Queue::Latency, stop).detach();
        }
        let lead = async {
            while all.led() < all.len() {
                rt::sleep(Duration::from_millis(1)).await;
            }
        };
        rt::timeout(Duration::from_secs(60), lead)
            .await
            .unwrap_or_else(|_| panic!("{} of {} lead", all.led(), all.len()));
        let live = metrics.journal_live_bytes.get();
        log.close().await.expect("a clean end");
        live
    });
    match ended {
        Outcome::Done(live) => Some(live),
        Outcome::Stopped(_) => None,
        other => panic!("seed {}: {other:?}", world.seed()),
    }
}

/// What a sole voter has on its disk is committed, so that it can be written out when there is no room for the entry of a new term. Else the elections of some starts that are cut short fill the
/// journal, and the node never starts again.
#[test]
fn l6_elections_that_were_cut_short_leave_a_journal_that_can_be_started() {
    let groups = 3_000;
    let world = World::new(11, SimConfig::default());
    assert!(crowd(&world, groups, None).is_some());
    let mut draws = Draw(11);
    let mut cut = 0;
    for n in 0..24 {
        // Within the elections, mostly: none gets to its first checkpoint.
        let us = 1_000 + draws.below(60_000);
        cut += u64::from(crowd(&world, groups, Some((us, stop(n)))).is_none());
    }
    assert!(cut > 12, "{cut} starts were cut short");
    assert!(crowd(&world, groups, None).is_some());
}
