//! A whole node under the simulation (built with `--cfg tailrace_sim`): the start that the binary makes, with its recovery, metadata group, shards, rings, listeners and
//! coordinators, on a simulated disk and simulated sockets; around it clients that speak real frames.
//!
//! A seed draws several starts, with one to three shards each. Producers (idempotent with acks=all, or acks=1 and 0), readers, members of a group and those who only
//! commit work side by side with clients that cut their connections within a frame, send garbage or don't take their answers. Each start ends in a kill
//! or a power cut, at a drawn disk operation or a drawn time, recovery's own included, or by being asked to stop. After every start: what was acknowledged with acks=all, or
//! read by anybody, is where it was, once, in the order of its producer, at dense offsets, and what was cut stays cut; committed offsets don't go back; topics keep
//! their ids; every partition's leader epoch has grown.
//!
//! `SIM_SEEDS` says how many seeds (default 40), `SIM_SEED` runs just one. Every run prints how often each fault fired.
#![cfg(tailrace_sim)]

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cluster::broker_config::BrokerConfig;
use cluster::metadata::Node;
use engine::log::StoreConfig;
use engine::metrics::Value;
use engine::rt::sim::{Faults, Outcome, SimConfig, Stop, World};
use engine::rt::{self, Queue};
use engine::types::NodeId;
use kafka_api::ServerConfig;
use node::{Asked, Plan};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

#[path = "../../raftgroup/tests/sim_common/seeds.rs"]
mod seeds;
mod sim_world;

use seeds::{Draw, Replay, seeds};
use sim_world::known::{Counts, IDEMPOTENT, Outside};
use sim_world::{address, check, group, producer, reader, rough};

const STARTS: u64 = 5;
/// Journals of 2 MiB, so that batches of half a MiB go to extents.
const MEMORY_PER_SHARD: u64 = 8 << 20;

/// What is drawn for one start.
#[derive(Clone, Copy, Debug)]
struct Life {
    shards: u16,
    rounds: u64,
    /// It is stopped so at a disk operation, or after a time in microseconds; if at neither it ends by being asked to.
    at_op: Option<(u64, Stop)>,
    at_us: Option<(u64, Stop)>,
    /// It is asked to stop after this time in microseconds, before anybody has come: most often within its start.
    asked_us: Option<u64>,
    check_only: bool,
}

fn plan(shards: u16) -> Plan {
    let addr = address();
    let node = Node {
        id: NodeId(1),
        host: addr.ip().to_string(),
        port: addr.port(),
        rack: None,
        shards,
        directory: Uuid::from_u128(4711),
    };
    let store = StoreConfig {
        data_dir: PathBuf::from("/data"),
        journal_dir: None,
        shards,
        memory_per_shard: MEMORY_PER_SHARD,
    };
    let server = ServerConfig {
        broker: BrokerConfig::default(),
        groups: kafka_api::coordinator::Settings {
            initial_rebalance_delay_ms: 50,
            ..Default::default()
        },
        ..ServerConfig::default()
    };
    Plan::new(node, store, server, addr)
}

/// The world around one process of the node, from its start to its end.
async fn around(outside: Rc<Outside>, life: Life, plan: Plan, office: mpsc::Sender<Asked>) {
    if let Some(us) = life.asked_us {
        rt::sleep(Duration::from_micros(us)).await;
        outside.count(|c| c.asked_in_start += u64::from(!plan.serving.is_open()));
        return end(&outside, &plan);
    }
    check::everything(&outside).await;
    if life.check_only {
        return end(&outside, &plan);
    }
    check::topics(&outside).await;
    let mut clients = Vec::new();
    let mut begin = |client: std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        clients.push(rt::spawn(Queue::Latency, client));
    };
    let (o, rounds) = (|| outside.clone(), life.rounds);
    for n in 0..IDEMPOTENT {
        begin(Box::pin(producer::idempotent(o(), n, rounds)));
    }
    begin(Box::pin(producer::careless(o(), 100, rounds)));
    begin(Box::pin(reader::reader(o(), rounds)));
    begin(Box::pin(group::committer(o(), rounds / 2)));
    begin(Box::pin(group::member(o(), rounds / 2)));
    begin(Box::pin(rough::rough(o(), rounds / 3)));
    for client in clients {
        client.await;
    }
    hops(&outside, office).await;
    end(&outside, &plan);
}

/// As the admin address would: every shard is asked for its numbers, over the rings.
async fn hops(outside: &Outside, office: mpsc::Sender<Asked>) {
    let (to, numbers) = oneshot::channel();
    assert!(office.send(to).await.is_ok(), "the office is there");
    let numbers = rt::timeout(Duration::from_secs(60), numbers).await;
    for sample in numbers
        .expect("in time")
        .expect("every shard answers")
        .iter()
        .flatten()
    {
        if let ("cross_shard_hops", Value::Counter(n)) = (sample.name, &sample.value) {
            outside.count(|c| c.hops += n);
        }
    }
}

fn end(outside: &Outside, plan: &Plan) {
    outside.stopping.set(true);
    plan.stop.arrive();
}

/// One process of the node.
fn live(world: &World, outside: &Rc<Outside>, life: Life) -> Outcome<()> {
    world.configure(|c| c.stop_at_op = life.at_op);
    outside.stopping.set(false);
    let plan = plan(life.shards);
    let ended = world.enter(|| {
        let (ports, office) = node::rings(life.shards);
        let (ask, asked) = mpsc::channel(1);
        let shards = life.shards;
        rt::spawn(Queue::Latency, node::answer_scrapes(office, shards, asked)).detach();
        let clients = around(outside.clone(), life, plan.clone(), ask);
        rt::spawn(Queue::Latency, clients).detach();
        if let Some((us, how)) = life.at_us {
            rt::spawn(Queue::Latency, async move {
                rt::sleep(Duration::from_micros(us)).await;
                World::current().stop(how);
            })
            .detach();
        }
        node::run(&plan, true, ports, &Arc::new(AtomicBool::new(false)))
    });
    match ended {
        Outcome::Done(Ok(())) => Outcome::Done(()),
        Outcome::Done(Err(e)) => panic!("the node can't start: {e}"),
        Outcome::Stopped(how) => Outcome::Stopped(how),
        Outcome::Exited(code) => panic!("the node exited with {code}"),
        Outcome::Stuck => panic!("nobody can run any more"),
    }
}

struct Verdict {
    faults: Faults,
    counts: Counts,
    trace: u64,
    in_recovery: u64,
    other_shards: u64,
    kills: u64,
    clock_jumps: u64,
}

fn run_seed(seed: u64) -> Verdict {
    let _replay = Replay(seed);
    let world = World::new(seed, SimConfig::default());
    let outside = Rc::new(Outside::new());
    let mut draws = Draw(seed);
    let mut draw = |below| draws.below(below);
    let (mut in_recovery, mut other_shards, mut kills, mut clock_jumps, mut before) =
        (0, 0, 0, 0, 0);
    for start in 0..=STARTS {
        let last = start == STARTS;
        let ops = world.faults().disk_ops;
        let how = if draw(3) == 0 {
            Stop::Kill
        } else {
            Stop::PowerCut
        };
        // A quarter of the stops come while the start is still recovering or being checked.
        let reach = if draw(4) == 0 { 60 } else { 2_000 };
        let at_op = (ops + 1 + draw(reach), how);
        let at_us = (1 + draw(400_000), how);
        let (at_op, at_us) = match draw(8) {
            _ if last => (None, None),
            0 => (None, None),
            1..5 => (Some(at_op), None),
            _ => (None, Some(at_us)),
        };
        let asked_us = (!last && draw(12) == 0).then(|| draw(8_000));
        let life = Life {
            shards: 1 + draw(3) as u16,
            rounds: 20 + draw(80),
            at_op,
            at_us,
            asked_us,
            check_only: last,
        };
        other_shards += u64::from(start > 0 && life.shards != before);
        before = life.shards;
        outside.start.set(start);
        if draw(3) == 0 {
            // Somebody sets the clock, by five minutes at most: batches of the future are refused.
            world.jump_wall_clock(draw(600_000) as i64 - 300_000);
            clock_jumps += 1;
        }
        let checked = outside.counts().starts;
        if std::env::var_os("SIM_SEED").is_some() {
            println!("start {start}: {life:?}");
        }
        let ended = live(&world, &outside, life);
        if std::env::var_os("SIM_SEED").is_some() {
            println!(
                "  {ended:?} at {:?}, trace {:016x}, {:?}",
                world.now(),
                world.trace(),
                outside.counts()
            );
        }
        kills += u64::from(ended == Outcome::Stopped(Stop::Kill));
        let clean = ended == Outcome::Done(());
        in_recovery += u64::from(outside.counts().starts == checked);
        outside.count(|c| c.clean += u64::from(clean && !last));
        for (place, log) in &outside.logs {
            let lost = log.borrow_mut().ended(*place, clean);
            outside.count(|c| c.acks_1_lost += lost);
        }
        assert!(clean || !last, "the last start ends when it is asked to");
    }
    Verdict {
        faults: world.faults(),
        counts: outside.counts(),
        trace: world.trace(),
        in_recovery,
        other_shards,
        kills,
        clock_jumps,
    }
}

#[test]
fn a_node_keeps_its_promises() {
    sim_world::log::show_if_wanted();
    let (seeds, alone) = seeds();
    let mut sums: Vec<(&'static str, u64)> = Vec::new();
    let mut add = |name: &'static str, n: u64| match sums.iter_mut().find(|s| s.0 == name) {
        Some(sum) => sum.1 += n,
        None => sums.push((name, n)),
    };
    for &seed in &seeds {
        let v = run_seed(seed);
        // Two runs of a seed take the same steps.
        if seed % 10 == 1 {
            assert_eq!(
                run_seed(seed).trace,
                v.trace,
                "seed {seed} isn't repeatable"
            );
            add("repeated", 1);
        }
        let (c, f) = (&v.counts, &v.faults);
        for (name, n) in [
            ("seeds", 1),
            ("acknowledged_checked", c.checked),
            ("starts_checked", c.starts),
            ("epochs_grown", c.epochs),
            ("commits", c.commits),
            ("commits_checked", c.commits_checked),
            ("members", c.members),
            ("connections", c.connections),
            ("requests", c.requests),
            ("records_fetched", c.fetched),
            ("hops", c.hops),
            ("large", c.large),
            ("resent", c.resent),
            ("duplicates", c.duplicates),
            ("acks_1", c.acks_1),
            ("acks_1_lost", c.acks_1_lost),
            ("cut_in_frame", c.cut_in_frame),
            ("cut_unanswered", c.cut_unanswered),
            ("garbage", c.garbage),
            ("closed_on_garbage", c.closed_on_garbage),
            ("slow_readers", c.slow),
            ("clean_stops", c.clean),
            ("asked_in_start", c.asked_in_start),
            ("kills", v.kills),
            ("power_cuts", f.power_cuts),
            ("stops_in_start", v.in_recovery),
            ("other_shards", v.other_shards),
            ("clock_jumps", v.clock_jumps),
            ("writes_lost", f.writes_lost),
            ("writes_torn", f.writes_torn),
            ("writes_kept", f.writes_kept),
            ("journal_writes_in_flight", f.journal_writes_in_flight),
            ("names_lost", f.names_lost),
            ("reordered", f.reordered),
            ("disk_ops", f.disk_ops),
        ] {
            add(name, n);
        }
    }
    let line: Vec<String> = sums
        .iter()
        .map(|(name, n)| format!("node_{name}={n}"))
        .collect();
    println!("SHOW {}", line.join(" "));
    for (name, n) in sums {
        assert!(alone || n > 0, "{name} never happened");
    }
}
