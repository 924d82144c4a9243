//! The journal lets go, and the power goes (built with `--cfg tailrace_sim`): one group writes several times what the journal holds, two others have small tails
//! from the beginning, which are carried (L6). The same run is cut at each of its disk operations in turn, so that every step of write-out, carrying, checkpoint
//! and the move of the tail was the last one once (L8). The next start must find everything that was acknowledged.
//!
//! With odd seeds there is time for checkpoints between the large batches; with even ones the journal fills faster than that, and everything is written out.
//!
//! `SIM_SEEDS` says how many seeds (default 40; a fiftieth of it, at least two), `SIM_SEED` runs just one.
#![cfg(tailrace_sim)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use engine::batch::Batch;
use engine::log::LogError;
use engine::rt;
use engine::rt::sim::{Outcome, SimConfig, Stop, World};
use engine::types::*;
use raftgroup::*;

mod sim_common;
use sim_common::*;

const GROUPS: i32 = 3;
/// Four times the journal.
const LARGE_BATCHES: u64 = 120;
const LARGE_BYTES: usize = 25_000;
/// Of these operations of a run one is the last, then another; the first are those of an empty directory.
const STRIDE: u64 = 2;

/// Acknowledged batches: group, number, offset.
type Acked = Rc<RefCell<Vec<(i32, u64, Offset)>>>;

thread_local! {
    static ACKED: RefCell<Acked> = RefCell::default();
}

async fn put(g: &Group, n: i32, bytes: usize, acked: &Acked) {
    let id = 1 + acked.borrow().len() as u64;
    loop {
        match g.produce(numbered(id, 1, bytes), Acks::All, rt::wall_clock_ms()) {
            Ok(Produced::Wait(w)) => {
                let a = w.await.expect("a sole voter commits");
                acked.borrow_mut().push((n, id, a.base_offset));
                return;
            }
            Err(ProduceError::Overloaded) => {
                rt::sleep(Duration::from_millis(1)).await;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Clone, Copy)]
enum Does {
    Nothing,
    /// Waits so long between two large batches.
    Produces(Duration),
}

/// Checks what was acknowledged before, and goes on.
async fn shard_main(id: ShardId, does: Does) {
    let acked = ACKED.with_borrow(Rc::clone);
    let failed = |e: &LogError| panic!("the log failed: {e}");
    let node = node::open(id, 1, Rc::new(failed))
        .await
        .expect("what a crash leaves can be recovered");
    let mut mine = Vec::new();
    for n in node.mine(GROUPS) {
        let replica = ReplicaId(n as u64 + 1);
        mine.push(match node.groups.get(group(n)) {
            Some(g) => g,
            None => node
                .groups
                .create(replica, group(n), &[replica])
                .expect("it is new"),
        });
    }
    for g in &mine {
        node::serves(&node, g, || false).await;
    }
    let before = acked.borrow().clone();
    for (n, id, offset) in before {
        let g = &mine[n as usize];
        let read = g.log().read_whole(offset, 1, g.high_watermark()).await;
        let first = read
            .expect("nothing is damaged")
            .and_then(|batches| batches.into_iter().next());
        let found = first.map(|bytes| {
            let batch = Batch::check(bytes).expect("sound");
            (id_of(&batch.bytes), batch.header.base_offset)
        });
        let what = format!("group {n}: acknowledged batch {id} at {offset} is lost");
        assert_eq!(found, Some((id, offset)), "{what}");
    }
    if let Does::Produces(pause) = does {
        for small in 1..GROUPS {
            put(&mine[small as usize], small, 100, &acked).await;
        }
        for _ in 0..LARGE_BATCHES {
            put(&mine[0], 0, LARGE_BYTES, &acked).await;
            rt::sleep(pause).await;
        }
    }
    node::end().await;
}

/// A run that ends at disk operation `stop`, if it gets there, and a start behind it. The operations that the first took.
fn run(seed: u64, stop: Option<u64>) -> (World, u64) {
    let _replay = Replay(seed);
    let world = World::new(seed, SimConfig::default());
    let pause = Duration::from_millis(200 * (seed % 2));
    ACKED.take();
    world.configure(|c| c.stop_at_op = stop.map(|op| (op, Stop::PowerCut)));
    match node::launch(&world, 1, move |id| shard_main(id, Does::Produces(pause))) {
        Outcome::Done(()) | Outcome::Stopped(_) => {}
        other => panic!("seed {seed}, cut at {stop:?}: {other:?}"),
    }
    let ops = world.faults().disk_ops;
    world.configure(|c| c.stop_at_op = None);
    match node::launch(&world, 1, |id| shard_main(id, Does::Nothing)) {
        Outcome::Done(()) => {}
        other => panic!("seed {seed}, cut at {stop:?}: the next start: {other:?}"),
    }
    (world, ops)
}

#[test]
fn l6_l8_a_cut_at_any_operation_of_a_reclaim_loses_nothing() {
    let (seeds, alone) = seeds();
    let seeds = if alone {
        seeds
    } else {
        (1..=(seeds.len() as u64 / 50).max(2)).collect()
    };
    let (cuts, checked) = (Cell::new(0u64), Cell::new(0u64));
    for &seed in &seeds {
        let (world, ops) = run(seed, None);
        let acked = ACKED.with_borrow(Rc::clone);
        let all = LARGE_BATCHES as usize + GROUPS as usize - 1;
        assert_eq!(acked.borrow().len(), all);
        // In time, what is small is not written out: it is carried, several times around the ring.
        for small in 1..GROUPS {
            let dir = format!("{}-r{}", group(small), small + 1);
            let segment = |f: &std::path::PathBuf| f.to_string_lossy().contains(&dir);
            let written_out = world.files().iter().any(segment);
            assert_eq!(written_out, seed % 2 == 0, "seed {seed}, group {small}");
        }
        for op in (1 + seed % STRIDE..=ops).step_by(STRIDE as usize) {
            run(seed, Some(op));
            cuts.set(cuts.get() + 1);
            checked.set(checked.get() + ACKED.with_borrow(|a| a.borrow().len() as u64));
        }
    }
    println!(
        "SHOW reclaim_seeds={} reclaim_cuts={} reclaim_acknowledged_checked={}",
        seeds.len(),
        cuts.get(),
        checked.get()
    );
    assert!(cuts.get() > 100 && checked.get() > 0);
}
