//! A journal that grows while it is written to as fast as it takes (built with `--cfg tailrace_sim`): the zeros behind its end are written beside write-out and checkpoints, so that these
//! keep room in it meanwhile, and nobody's append waits for all of them.
#![cfg(tailrace_sim)]

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use engine::log::{ShardLog, StoreConfig, recover};
use engine::memory::Budget;
use engine::metrics::ShardMetrics;
use engine::rt::sim::{SimConfig, World};
use engine::rt::{self, File, OpenOptions};
use engine::types::*;
use raftgroup::*;

mod sim_common;
use sim_common::*;

const GROUPS: i32 = 4;
/// Appends of a group at one time, and bytes of each.
const IN_FLIGHT: u64 = 8;
const BATCH_BYTES: usize = 100_000;
/// The journal has 32 MiB at first, and may have four times as much.
const MEMORY: u64 = 512 << 20;

/// One sight of a journal on its way to its next size.
#[derive(Clone, Copy, Debug)]
struct Growing {
    written_out: u64,
    began: rt::Instant,
}

#[test]
fn l6_write_out_goes_on_while_the_journal_grows() {
    let world = World::new(5, SimConfig::default());
    let ended = world.run(|| async move {
        let cfg = StoreConfig {
            data_dir: PathBuf::from("/data"),
            journal_dir: None,
            shards: 1,
            memory_per_shard: MEMORY,
        };
        let mut found = recover(&cfg).await.expect("an empty directory");
        let part = found.shards.pop().expect("one shard");
        let budget = Budget::new(MEMORY);
        let metrics = Rc::new(ShardMetrics::default());
        let open = ShardLog::open(Rc::new(cfg), ShardId(0), part, budget, metrics.clone());
        let (log, _) = open.await.expect("there is room");
        let groups = Groups::new(log.clone(), NodeId(1), Rc::new(Silent));
        groups.run().detach();
        let done = Rc::new(Cell::new(false));
        let slowest = Rc::new(Cell::new(Duration::ZERO));
        let mut tasks = Vec::new();
        for n in 0..GROUPS {
            let replica = ReplicaId(n as u64 + 1);
            let g = groups.create(replica, group(n), &[replica]).expect("new");
            for one in 0..IN_FLIGHT {
                let (g, done, slowest) = (g.clone(), done.clone(), slowest.clone());
                tasks.push(rt::spawn(rt::Queue::Latency, async move {
                    while !g.serves() {
                        rt::sleep(Duration::from_millis(1)).await;
                    }
                    while !done.get() {
                        let began = rt::now();
                        match g.produce(numbered(one + 1, 1, BATCH_BYTES), Acks::All, 1) {
                            Ok(Produced::Wait(w)) => {
                                w.await.expect("a sole voter commits");
                            }
                            Err(ProduceError::Overloaded) => {
                                rt::sleep(Duration::from_millis(1)).await;
                            }
                            other => panic!("{other:?}"),
                        }
                        slowest.set(slowest.get().max(began.elapsed()));
                    }
                }));
            }
        }
        let mut grown: Vec<(Duration, u64)> = Vec::new();
        let mut growing: Option<Growing> = None;
        let mut size = metrics.journal_size_bytes.get();
        while grown.len() < 2 {
            rt::sleep(Duration::from_micros(500)).await;
            let written_out = metrics.segment_bytes_written.get();
            let now = metrics.journal_size_bytes.get();
            if now > size {
                let seen = growing.take().expect("it was seen to grow");
                grown.push((seen.began.elapsed(), written_out - seen.written_out));
                size = now;
            } else if growing.is_none() && length(Path::new("/data/journal-0")).await > size {
                growing = Some(Growing {
                    written_out,
                    began: rt::now(),
                });
            }
        }
        done.set(true);
        for task in tasks {
            task.await;
        }
        log.close().await.expect("a clean end");
        (grown, slowest.get())
    });
    let (grown, slowest) = ended.done().expect("it ends");
    println!("grown: {grown:?}, the slowest append: {slowest:?}");
    for (took, written_out) in grown {
        assert!(
            written_out > 1 << 20,
            "{written_out} bytes were written out while zeros were for {took:?}"
        );
    }
}

async fn length(path: &Path) -> u64 {
    let options = OpenOptions {
        write: true,
        ..OpenOptions::default()
    };
    let file = File::open(path, options)
        .await
        .expect("the journal is there");
    let length = file.len().await.expect("a length");
    file.close().await.expect("closed");
    length
}
