//! A start of a node as the simulations make it: the shards of one process, all on this thread, recovery on shard 0, the groups over the logs.
//!
//! What goes wrong is told to the test: it decides whether that may be.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use engine::log::{LogError, RecoveredShard, RecoveryReport, ShardLog, StoreConfig, recover};
use engine::memory::Budget;
use engine::metrics::ShardMetrics;
use engine::rt::sim::{Outcome, World};
use engine::rt::{self, Launch};
use engine::types::*;
use raftgroup::*;

use super::{Silent, group};

/// Journals of 768 KiB.
const MEMORY_PER_SHARD: u64 = 3 << 20;
/// How long anything may take that has to come, in simulated time.
pub const PATIENCE: Duration = Duration::from_secs(60);

type Parts = Rc<RefCell<Option<Vec<Option<RecoveredShard>>>>>;

thread_local! {
    /// What the shards of the process that runs share: what recovery found, and how many of them run.
    static PARTS: RefCell<Parts> = RefCell::default();
    static RUNNING: Rc<Cell<u16>> = Rc::default();
}

/// A shard that is open.
pub struct Node {
    pub id: ShardId,
    pub shards: u16,
    pub log: ShardLog,
    pub groups: Rc<Groups>,
    /// On shard 0.
    pub report: Option<RecoveryReport>,
}

/// Runs a process of so many shards until it ends, one way or another.
pub fn launch<F, Fut>(world: &World, shards: u16, main: F) -> Outcome<()>
where
    F: Fn(ShardId) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    PARTS.take();
    RUNNING.with(|r| r.set(shards));
    let launch = Launch {
        shards,
        overprovisioned: true,
        cpus: None,
        seed: Some(world.seed()),
    };
    match world.enter(|| rt::launch(launch, main)) {
        Outcome::Done(r) => {
            r.expect("the shards start");
            Outcome::Done(())
        }
        Outcome::Exited(code) => Outcome::Exited(code),
        Outcome::Stopped(how) => Outcome::Stopped(how),
        Outcome::Stuck => Outcome::Stuck,
    }
}

/// Opens a shard's log and takes over its groups. An error of recovery is given to shard 0; the others wait until it ends the process.
pub async fn open(
    id: ShardId,
    shards: u16,
    failed: Rc<dyn Fn(&LogError)>,
) -> Result<Node, LogError> {
    let cfg = StoreConfig {
        data_dir: PathBuf::from("/data"),
        journal_dir: None,
        shards,
        memory_per_shard: MEMORY_PER_SHARD,
    };
    let parts = PARTS.with_borrow(Rc::clone);
    let mut report = None;
    if id.0 == 0 {
        let found = recover(&cfg).await?;
        report = Some(found.report);
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
    let (log, restored) = ShardLog::open(Rc::new(cfg), id, part, budget, metrics).await?;
    log.set_on_failure(failed);
    let groups = Groups::new(log.clone(), NodeId(1), Rc::new(Silent));
    groups
        .restore(restored)
        .expect("what was restored is sound");
    groups.run().detach();
    Ok(Node {
        id,
        shards,
        log,
        groups,
        report,
    })
}

impl Node {
    /// The numbers of the groups that belong here.
    pub fn mine(&self, groups: i32) -> impl Iterator<Item = i32> + use<> {
        let (id, shards) = (self.id, self.shards);
        (0..groups).filter(move |n| shard_of(group(*n), shards) == id)
    }
}

/// Waits until a group's leader has committed an entry of its term. `false` when `given_up` says so first.
pub async fn serves(node: &Node, g: &Group, given_up: impl Fn() -> bool) -> bool {
    let began = rt::now();
    while !g.serves() {
        if given_up() {
            return false;
        }
        rt::sleep(Duration::from_micros(100)).await;
        assert!(
            began.elapsed() < PATIENCE,
            "group {} doesn't serve, pressure {}",
            g.id(),
            node.log.pressure()
        );
    }
    true
}

/// A process ends with all its shards.
pub async fn end() {
    let running = RUNNING.with(Rc::clone);
    running.set(running.get() - 1);
    while running.get() > 0 {
        rt::sleep(Duration::from_millis(1)).await;
    }
}
