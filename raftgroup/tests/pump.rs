//! Groups, pump and the real log together, on one shard with a directory of its own.
#![allow(
    clippy::disallowed_methods,
    reason = "tests make and remove their own directories"
)]

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use engine::batch::{Batch, testing};
use engine::log::{LogPolicy, Read, ShardLog, StoreConfig, recover};
use engine::memory::Budget;
use engine::metrics::ShardMetrics;
use engine::rt::{self, Launch};
use engine::types::*;
use raftgroup::*;
use uuid::Uuid;

/// What a sink was told, and the commands it was given.
#[derive(Default)]
struct Told {
    leaders: RefCell<Vec<(GroupId, Term, Option<ReplicaId>)>>,
    commands: RefCell<Vec<(RaftIndex, Bytes)>>,
    state: RefCell<Vec<u8>>,
    restored: RefCell<Vec<u8>>,
}

impl GroupSink for Told {
    fn leader_changed(&self, group: GroupId, term: Term, leader: Option<ReplicaId>) {
        self.leaders.borrow_mut().push((group, term, leader));
    }
    fn command_applied(&self, _group: GroupId, index: RaftIndex, _term: Term, command: Bytes) {
        self.state.borrow_mut().extend_from_slice(&command);
        self.commands.borrow_mut().push((index, command));
    }
    fn snapshot_state(&self, _group: GroupId) -> Vec<Bytes> {
        let state = self.state.borrow();
        state.chunks(3).map(Bytes::copy_from_slice).collect()
    }
    fn restore_state(&self, _group: GroupId, state: Bytes) {
        *self.state.borrow_mut() = state.to_vec();
        *self.restored.borrow_mut() = state.to_vec();
    }
}

struct Shard {
    log: ShardLog,
    groups: Rc<Groups>,
    told: Rc<Told>,
    metrics: Rc<ShardMetrics>,
}

async fn start(dir: PathBuf) -> Shard {
    let cfg = StoreConfig {
        data_dir: dir,
        journal_dir: None,
        shards: 1,
        memory_per_shard: 512 << 20,
    };
    let mut found = recover(&cfg).await.expect("the log is sound");
    let metrics = Rc::new(ShardMetrics::default());
    let budget = Budget::new(cfg.memory_per_shard);
    let part = found.shards.remove(0);
    let (log, restored) = ShardLog::open(Rc::new(cfg), ShardId(0), part, budget, metrics.clone())
        .await
        .expect("the log opens");
    let told = Rc::new(Told::default());
    let groups = Groups::new(log.clone(), NodeId(1), told.clone());
    groups.restore(restored).expect("its groups are sound");
    // Whatever the log does by itself before the pump runs must not need the groups to be up to date.
    rt::sleep(Duration::from_millis(30)).await;
    groups.run().detach();
    Shard {
        log,
        groups,
        told,
        metrics,
    }
}

/// Each of `lives` runs on a shard that starts on what the one before left: it ends like a killed process, unless it closes its log.
fn lives<F, Fut>(name: &str, count: usize, life: F)
where
    F: Fn(usize, Shard) -> Fut + Send + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let dir = std::env::temp_dir().join(format!("tailrace-groups-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a directory for the test");
    for n in 0..count {
        let l = Launch {
            shards: 1,
            overprovisioned: true,
            cpus: None,
            seed: Some(n as u64),
        };
        let (dir, life) = (dir.clone(), life.clone());
        rt::launch(l, move |_| {
            let (dir, life) = (dir.clone(), life.clone());
            async move {
                let run = async { life(n, start(dir).await).await };
                let limit = Duration::from_secs(60);
                rt::timeout(limit, run).await.expect("it ends in time");
            }
        })
        .expect("the shard runs");
    }
    let _ = std::fs::remove_dir_all(&dir);
}

fn group(n: i32) -> GroupId {
    GroupId {
        topic: TopicId(Uuid::from_u128(77)),
        partition: n,
    }
}

fn create(s: &Shard, n: i32) -> Rc<Group> {
    let id = ReplicaId(n as u64 + 1);
    s.groups.create(id, group(n), &[id]).expect("it is new")
}

async fn until(what: &str, f: impl Fn() -> bool) {
    for _ in 0..2000 {
        if f() {
            return;
        }
        rt::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not within ten seconds");
}

async fn serving(g: &Rc<Group>) {
    until("a group serves", || g.serves()).await;
}

fn send(g: &Group, sequence: i32, acks: Acks) -> Result<Produced, ProduceError> {
    let batch = testing::batch(2, 50, Some((7, 0, sequence)));
    g.produce(batch, acks, rt::wall_clock_ms())
}

async fn acked(g: &Group, sequence: i32) -> Appended {
    match send(g, sequence, Acks::All).expect("it is taken") {
        Produced::Wait(wait) => wait.await.expect("it commits"),
        Produced::Done(done) => done,
    }
}

#[derive(Default)]
struct Moves(Cell<u32>);
impl Watcher for Moves {
    fn moved(&self, _group: GroupId) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn what_is_acknowledged_is_there_after_a_restart_and_is_not_written_twice() {
    lives("restart", 3, |life, s| async move {
        let g = match life {
            0 => create(&s, 0),
            _ => s.groups.get(group(0)).expect("it was there"),
        };
        assert!(send(&g, 0, Acks::All).is_err_and(|e| e == ProduceError::NotLeader));
        serving(&g).await;
        // G11: every restart raises the term.
        assert_eq!(g.leader_epoch(), LeaderEpoch(life as i32 + 1));
        let led = (group(0), Term(life as u64 + 1), Some(ReplicaId(1)));
        assert_eq!(*s.told.leaders.borrow(), [led]);
        let moves = Rc::new(Moves::default());
        let weak: Weak<dyn Watcher> = Rc::downgrade(&(moves.clone() as Rc<dyn Watcher>));
        let key = g.subscribe(weak);
        for n in 0..10 {
            // Repeats of what earlier lives wrote, then new ones.
            for sequence in [20 * life as i32 + 2 * n, 20 * life as i32 + 2 * n] {
                let a = acked(&g, sequence).await;
                assert_eq!(a.base_offset, Offset(i64::from(sequence)));
                assert_eq!(a.log_append_time_ms, -1);
                assert!(g.high_watermark().0 >= i64::from(sequence) + 2);
            }
            if life > 0 && n == 0 {
                let last = 20 * life as i32 - 2;
                assert!(matches!(send(&g, last, Acks::All), Ok(Produced::Done(_))));
            }
        }
        assert!(moves.0.get() >= 10);
        g.unsubscribe(key);
        let Read::Ready(batches) = g.log().read(Offset(0), 1 << 20, g.high_watermark()) else {
            panic!("the tail is in memory");
        };
        assert_eq!(batches.len(), 10 * (life + 1));
        assert_eq!(g.log_end_offset(), g.high_watermark());
        if life == 1 {
            s.log.close().await.expect("it closes");
        }
    });
}

/// G7, as far as one node goes: elections of a round share a commit, and who is idle isn't turned. Beats come with a second node.
#[test]
fn g7_groups_are_elected_in_one_batch_and_idle_ones_cost_nothing() {
    const GROUPS: i32 = 500;
    lives("many", 2, |life, s| async move {
        if life == 0 {
            for n in 0..GROUPS {
                create(&s, n);
            }
        }
        assert_eq!(s.groups.len(), GROUPS as usize);
        let all: Vec<_> = s.groups.ids();
        let serves = |id: &GroupId| s.groups.get(*id).is_some_and(|g| g.serves());
        until("all serve", || all.iter().all(serves)).await;
        assert_eq!(s.groups.led(), GROUPS as usize);
        // One round wrote them all, and one commit made them all durable for the next.
        assert_eq!(s.groups.rounds(), 2);
        rt::sleep(Duration::from_millis(100)).await;
        let before = s.groups.rounds();
        rt::sleep(Duration::from_millis(300)).await;
        assert_eq!(
            s.groups.rounds(),
            before,
            "nothing runs when nothing happens"
        );
    });
}

#[test]
fn l11_acks_of_the_leader_do_not_wait_and_show_nothing() {
    lives("acks", 1, |_, s| async move {
        let g = create(&s, 0);
        serving(&g).await;
        for (n, acks) in [Acks::Leader, Acks::None].into_iter().enumerate() {
            let before = g.high_watermark();
            let Ok(Produced::Done(a)) = send(&g, 2 * n as i32, acks) else {
                panic!("answered at once");
            };
            assert_eq!(a.base_offset, Offset(2 * n as i64));
            // Only the acknowledgement is early.
            assert_eq!(g.high_watermark(), before);
            // Nor does a repeat that is in flight wait; for all it does.
            let repeat = send(&g, 2 * n as i32, Acks::Leader);
            assert!(matches!(repeat, Ok(Produced::Done(_))));
            let repeat = send(&g, 2 * n as i32, Acks::All);
            let Ok(Produced::Wait(wait)) = repeat else {
                panic!("G10: the repeat waits for the commit");
            };
            assert_eq!(wait.await.expect("it commits").base_offset, a.base_offset);
            assert_eq!(g.high_watermark(), Offset(before.0 + 2));
        }
    });
}

#[test]
fn many_producers_share_commits() {
    lives("share", 1, |_, s| async move {
        let groups: Vec<_> = (0..50).map(|n| create(&s, n)).collect();
        for g in &groups {
            serving(g).await;
        }
        let before = s.metrics.journal_commits.get();
        let waits: Vec<_> = (0..20)
            .flat_map(|n| groups.iter().map(move |g| send(g, 2 * n, Acks::All)))
            .collect();
        for w in waits {
            match w.expect("it is taken") {
                Produced::Wait(w) => w.await.expect("it commits"),
                Produced::Done(d) => d,
            };
        }
        let commits = s.metrics.journal_commits.get() - before;
        assert!(commits <= 3, "{commits} commits for 1000 batches at once");
    });
}

#[test]
fn a_removed_group_answers_and_does_not_come_back() {
    lives("removed", 2, |life, s| async move {
        if life == 1 {
            assert!(s.groups.get(group(0)).is_none());
            assert_eq!(s.groups.len(), 1);
            return;
        }
        let g = create(&s, 0);
        let other = create(&s, 1);
        serving(&g).await;
        serving(&other).await;
        let moves = Rc::new(Moves::default());
        let weak: Weak<dyn Watcher> = Rc::downgrade(&(moves.clone() as Rc<dyn Watcher>));
        g.subscribe(weak);
        let Ok(Produced::Wait(wait)) = send(&g, 0, Acks::All) else {
            panic!("it waits");
        };
        s.groups.remove(group(0));
        assert_eq!(wait.await, Err(ProduceError::Removed));
        assert_eq!(moves.0.get(), 1);
        assert!(send(&g, 2, Acks::All).is_err_and(|e| e == ProduceError::Removed));
        assert!(!g.is_leader());
        assert_eq!(s.groups.led(), 1);
        // The record of the removal is durable when a later one is.
        acked(&other, 0).await;
    });
}

#[test]
fn commands_reach_the_sink_once_in_order_and_its_state_comes_back() {
    lives("commands", 4, |life, s| async move {
        if life == 0 {
            let id = ReplicaId(1);
            s.groups.create(id, GroupId::METADATA, &[id]).unwrap();
        }
        let g = s.groups.get(GroupId::METADATA).expect("it was there");
        serving(&g).await;
        let all = b"abcdefgh".repeat(life);
        assert_eq!(*s.told.state.borrow(), all, "before anything is proposed");
        if life == 2 {
            // The life before closed its log: its state came from a checkpoint, not from commands.
            assert_eq!(*s.told.restored.borrow(), all);
        }
        for c in b"abcdefgh" {
            let wait = g.propose_command(Bytes::copy_from_slice(&[*c])).unwrap();
            let index = wait.await.unwrap();
            let last = s.told.commands.borrow().last().cloned();
            assert_eq!(last, Some((index, Bytes::copy_from_slice(&[*c]))));
        }
        if life == 1 {
            s.log.close().await.expect("it closes");
        }
    });
}

#[test]
fn trims_move_the_log_start_for_good() {
    lives("trim", 2, |life, s| async move {
        if life == 1 {
            let g = s.groups.get(group(0)).expect("it was there");
            serving(&g).await;
            assert_eq!(g.log_start_offset(), Offset(3));
            return;
        }
        let g = create(&s, 0);
        assert!(g.propose_trim(Offset(0)).is_err());
        serving(&g).await;
        for n in 0..3 {
            acked(&g, 2 * n).await;
        }
        let above = g.propose_trim(Offset(7));
        assert!(above.is_err_and(|e| e == ProduceError::OffsetOutOfRange));
        let moves = Rc::new(Moves::default());
        let weak: Weak<dyn Watcher> = Rc::downgrade(&(moves.clone() as Rc<dyn Watcher>));
        g.subscribe(weak);
        assert_eq!(g.propose_trim(Offset(3)).unwrap().await, Ok(Offset(3)));
        assert_eq!(g.log_start_offset(), Offset(3));
        assert!(moves.0.get() > 0);
        let no_move = g.propose_trim(Offset(2)).unwrap().await;
        assert_eq!(no_move, Ok(Offset(3)));
        assert_eq!(acked(&g, 6).await.log_start_offset, Offset(3));
    });
}

#[test]
fn retention_is_proposed_by_the_leader() {
    lives("retention", 1, |_, s| async move {
        let g = create(&s, 0);
        g.log().set_policy(LogPolicy {
            segment_bytes: 64 << 10,
            retention_bytes: 128 << 10,
            ..LogPolicy::default()
        });
        serving(&g).await;
        for n in 0..200 {
            let batch = testing::batch(1, 8 << 10, Some((7, 0, n)));
            let taken = g.produce(batch, Acks::All, 0).expect("it is taken");
            if let Produced::Wait(w) = taken {
                w.await.expect("it commits");
            }
        }
        until("the log says what should go", || {
            g.log().retention_start(rt::wall_clock_ms()).is_some()
        })
        .await;
        let start = g.log().retention_start(rt::wall_clock_ms()).unwrap();
        s.groups.retain_now();
        until("the start moves", || g.log_start_offset() >= start).await;
    });
}

#[test]
fn a_big_tail_comes_back_whole() {
    lives("tail", 3, |life, s| async move {
        let g = match life {
            0 => create(&s, 0),
            _ => s.groups.get(group(0)).expect("it was there"),
        };
        serving(&g).await;
        assert_eq!(g.high_watermark(), Offset(40 * life as i64));
        for n in 0..40 {
            let batch = testing::batch(1, 100 << 10, Some((7, 0, 40 * life as i32 + n)));
            match g.produce(batch, Acks::All, 0).expect("it is taken") {
                Produced::Wait(w) => w.await.expect("it commits"),
                Produced::Done(d) => d,
            };
        }
        let mut at = Offset(0);
        while at < g.high_watermark() {
            let read = g.log().read_whole(at, 1 << 20, g.high_watermark()).await;
            let batches = read.expect("it can be read").expect("it is in range");
            assert!(!batches.is_empty());
            for b in batches {
                let b = Batch::check(b).expect("a batch as it was written");
                assert_eq!(b.header.base_offset, at);
                at = b.header.next_offset();
            }
        }
    });
}

#[test]
fn a_failed_log_ends_every_wait() {
    lives("failed", 1, |_, s| async move {
        let g = create(&s, 0);
        serving(&g).await;
        let Ok(Produced::Wait(wait)) = send(&g, 0, Acks::All) else {
            panic!("it waits");
        };
        s.groups.fail();
        assert_eq!(wait.await, Err(ProduceError::Storage));
        assert!(send(&g, 2, Acks::All).is_err_and(|e| e == ProduceError::Storage));
    });
}

/// Not a test: prints what a produce costs. `cargo test --profile ci -p raftgroup --test pump -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn what_a_produce_costs() {
    lives("cost", 1, |_, s| async move {
        let g = create(&s, 0);
        serving(&g).await;
        for records_bytes in [100, 1000] {
            let start = g.log_end_offset().0 as i32;
            let (mut calls, mut turns) = (Duration::ZERO, Duration::ZERO);
            let rounds = 100;
            let per_round = 500;
            for _ in 0..rounds {
                let next = g.log_end_offset().0 as i32 - start;
                let batches: Vec<_> = (0..per_round)
                    .map(|n| {
                        testing::batch(
                            1,
                            records_bytes,
                            Some((9 + records_bytes as i64, 0, next + n)),
                        )
                    })
                    .collect();
                let mut waits = Vec::with_capacity(per_round as usize);
                let from = rt::now();
                for b in batches {
                    waits.push(g.produce(b, Acks::All, 0));
                }
                calls += from.elapsed();
                for w in waits {
                    let Ok(Produced::Wait(w)) = w else {
                        panic!("it is taken");
                    };
                    w.await.expect("it commits");
                }
                turns += from.elapsed();
            }
            let n = (rounds * per_round) as u128;
            println!(
                "{records_bytes} B: {} ns a call, {} ns with its commit",
                calls.as_nanos() / n,
                turns.as_nanos() / n
            );
        }
    });
}

/// Not a test: prints what an idle group takes, its log included.
#[test]
#[ignore = "a measurement"]
fn what_an_idle_group_takes() {
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/statm").expect("Linux says it");
        let pages = status.split(' ').nth(1).and_then(|p| p.parse::<u64>().ok());
        pages.expect("the second number is resident pages") * 4096
    }
    const GROUPS: i32 = 10_000;
    lives("memory", 2, |life, s| async move {
        let before = resident();
        if life == 0 {
            for n in 0..GROUPS {
                create(&s, n);
            }
        }
        let last = s.groups.get(group(GROUPS - 1)).expect("it was created");
        serving(&last).await;
        if life == 0 {
            let bytes = (resident() - before) / GROUPS as u64;
            println!("{bytes} bytes of resident memory a group");
        }
    });
}
