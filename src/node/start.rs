//! The process: checks, the data directory, the side office, recovery, the shards, and the end of it all.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cluster::broker_config::BrokerConfig;
use cluster::ids::random_uuid;
use cluster::metadata::Node;
use engine::log::{RecoveredShard, StoreConfig, recover};
use engine::ring::{Class, Frame, Mesh, Port, Rpc};
use engine::rt::{self, Launch};
use engine::types::{NodeId, ShardId};
use kafka_api::ServerConfig;
use kafka_api::{CREDITS, ShardReply, ShardRequest};
use tokio::sync::{mpsc, oneshot};

use super::gate::Gate;
use super::shard::{self, Own, Plan};
use crate::data_dir::DataDir;
use crate::exit::{Exit, Fatal};
use crate::office::{self, Asked, Desk};
use crate::settings::{Settings, join};
use crate::{data_dir, fitness};

type ShardPort = Port<Frame<ShardRequest, ShardReply>>;

/// Messages that a ring between two participants holds, at most and at least.
const RING_MESSAGES: usize = 1024;
const RING_MESSAGES_MIN: usize = 64;
/// Messages that the rings to one participant hold together, where that is not below the least of each. There is a ring for every two of them, so that many
/// shards with rings of the full size would take gigabytes.
const RING_MESSAGES_TOGETHER: usize = 16 * 1024;

/// A full ring makes its sender wait, nothing else: smaller ones cost time, not safety.
fn ring_messages(participants: usize) -> usize {
    (RING_MESSAGES_TOGETHER / participants.max(1))
        .next_power_of_two()
        .clamp(RING_MESSAGES_MIN, RING_MESSAGES)
}

/// Runs a node until it is asked to stop.
pub fn serve(settings: &Settings) -> Result<(), Fatal> {
    fitness::check_cpus(settings.shards, settings.overprovisioned)?;
    fitness::check_locked_memory()?;
    fitness::check_io_uring()?;
    let kafka_addr = kafka_address(settings.kafka_addr)?;
    let admin = office::listen(settings.admin_addr)?;
    let directory = DataDir::open(
        &settings.data_dir,
        settings.node_id,
        random_uuid(rt::random_u64),
    )?;
    fitness::check_direct_io(&settings.data_dir)?;
    if let Some(journals) = &settings.journal_dir {
        std::fs::create_dir_all(journals)
            .map_err(|e| data_dir::cannot("make the journal directory", journals, &e))?;
        fitness::check_direct_io(journals)?;
    }
    fitness::warn_of_memory_filesystem(&settings.data_dir);
    let shards = settings.shards;
    let plan = Plan {
        shards,
        node: node(settings, &directory, kafka_addr),
        store: StoreConfig {
            data_dir: settings.data_dir.clone(),
            journal_dir: settings.journal_dir.clone(),
            shards,
            memory_per_shard: settings.memory_bytes / u64::from(shards),
        },
        server: ServerConfig {
            broker: broker_config(settings, kafka_addr),
            groups: kafka_api::coordinator::Settings {
                initial_rebalance_delay_ms: settings.group_initial_rebalance_delay_ms,
                ..Default::default()
            },
        },
        kafka_addr,
        serving: Gate::new(shards, shards),
        published: Gate::new(shards, 1),
        stop: Gate::new(shards, 1),
        drained: Gate::new(shards, shards),
    };
    tracing::info!(
        "tailrace {} starts: node {}, {shards} shards, {} MiB, data in {}",
        env!("CARGO_PKG_VERSION"),
        settings.node_id,
        settings.memory_bytes >> 20,
        settings.data_dir.display()
    );
    let participants = usize::from(shards) + 1;
    let mut ports: Vec<ShardPort> = Mesh::new(participants, ring_messages(participants));
    let office_port = ports
        .pop()
        .expect("the office's port comes after the shards'");
    let ready = Arc::new(AtomicBool::new(false));
    let desk = Desk {
        admin,
        ready: ready.clone(),
        stop: plan.stop.clone(),
    };
    office::open(desk, move |asked| {
        answer_scrapes(office_port, shards, asked)
    })?;
    run_shards(settings, &plan, ports, &ready)?;
    ready.store(false, Ordering::Release);
    tracing::info!("stopped");
    drop(directory);
    Ok(())
}

/// What waits for a shard's thread to fetch it.
struct Waiting {
    port: ShardPort,
    /// Where shard 0 sends this shard's part of the recovery, and where it is taken from.
    part: oneshot::Receiver<RecoveredShard>,
}

/// Starts the shards and waits for their end.
fn run_shards(
    settings: &Settings,
    plan: &Plan,
    ports: Vec<ShardPort>,
    ready: &Arc<AtomicBool>,
) -> Result<(), Fatal> {
    let (senders, receivers): (Vec<_>, Vec<_>) = ports.iter().map(|_| oneshot::channel()).unzip();
    let waiting: Vec<Option<Waiting>> = ports
        .into_iter()
        .zip(receivers)
        .map(|(port, part)| Some(Waiting { port, part }))
        .collect();
    // Taken once by each shard, when its thread starts and before it runs anything.
    let (waiting, senders) = (
        Arc::new(Mutex::new(waiting)),
        Arc::new(Mutex::new(Some(senders))),
    );
    let launch = Launch {
        shards: plan.shards,
        overprovisioned: settings.overprovisioned,
        cpus: None,
        seed: None,
    };
    let (plan, ready) = (plan.clone(), ready.clone());
    rt::launch(launch, move |id: ShardId| {
        let mine = waiting
            .lock()
            .expect("no shard panics while it takes its things")[usize::from(id.0)]
        .take();
        let senders = senders
            .lock()
            .expect("no shard panics while it takes its things")
            .take_if(|_| id == ShardId(0));
        let (plan, ready) = (plan.clone(), ready.clone());
        async move {
            let mine = mine.expect("every shard starts once");
            if let Some(senders) = senders {
                rt::spawn(rt::Queue::Latency, tell_when_ready(plan.clone(), ready)).detach();
                recover_for(&plan, senders).await;
            }
            // The sender is gone only when the process is ending.
            let Ok(part) = mine.part.await else { return };
            let own = Own {
                id,
                port: mine.port,
                part,
            };
            shard::run(plan, own).await;
        }
    })
    .map_err(|e| Fatal::new(Exit::Unfit, format!("can't start the shards: {e}")))
}

/// Reads the journals and hands every shard its part.
async fn recover_for(plan: &Plan, senders: Vec<oneshot::Sender<RecoveredShard>>) {
    let recovery = match recover(&plan.store).await {
        Ok(recovery) => recovery,
        Err(e) => shard::of_the_log(&e).end(),
    };
    let report = &recovery.report;
    tracing::info!(
        "start {}: {} replicas, {} entries in {} MiB of journal, {} torn tails cut",
        recovery.boot_epoch,
        report.replicas,
        report.entries,
        report.journal_bytes >> 20,
        report.torn_tails
    );
    if report.damaged_commits + report.damaged_entries + report.suspect_replicas > 0 {
        tracing::error!(
            "the journals are damaged: {} commits, {} entries; of {} replicas it isn't known what they lost. What is lost answers an error",
            report.damaged_commits,
            report.damaged_entries,
            report.suspect_replicas
        );
    }
    assert_eq!(
        recovery.shards.len(),
        senders.len(),
        "recovery gives each shard its part"
    );
    for (sender, part) in senders.into_iter().zip(recovery.shards) {
        let _ = sender.send(part);
    }
}

async fn tell_when_ready(plan: Plan, ready: Arc<AtomicBool>) {
    plan.serving.opened(0).await;
    ready.store(true, Ordering::Release);
    tracing::info!(
        "ready: Kafka clients connect to {}",
        plan.server.broker.advertised
    );
}

/// Answers the office's scrapes by asking every shard, over the rings.
async fn answer_scrapes(port: ShardPort, shards: u16, mut asked: mpsc::Receiver<Asked>) {
    let rpc = Rpc::<ShardRequest, ShardReply>::new(port, CREDITS);
    // Nobody asks the office for anything: what comes is dropped, and the caller told so.
    let rings = rpc.serve(|_, _, _| {});
    let scrapes = async {
        while let Some(to) = asked.recv().await {
            let mut numbers = Vec::with_capacity(usize::from(shards));
            for shard in 0..usize::from(shards) {
                match rpc.call(shard, Class::Short, ShardRequest::Metrics).await {
                    Ok(ShardReply::Metrics(samples)) => numbers.push(samples),
                    _ => break,
                }
            }
            if numbers.len() == usize::from(shards) {
                let _ = to.send(numbers);
            }
        }
    };
    tokio::join!(rings, scrapes);
}

/// The address to listen on: free, and with a real port in place of 0, which every shard must share.
fn kafka_address(wanted: SocketAddr) -> Result<SocketAddr, Fatal> {
    if wanted.port() != 0 {
        fitness::check_port(wanted, "kafka-addr")?;
        return Ok(wanted);
    }
    let free = std::net::TcpListener::bind(wanted).and_then(|l| l.local_addr());
    free.map_err(|e| fitness::cannot_listen(wanted, "kafka-addr", &e))
}

fn advertised(settings: &Settings, kafka_addr: SocketAddr) -> (String, u16) {
    let (host, port) = settings.advertise.clone();
    (host, if port == 0 { kafka_addr.port() } else { port })
}

fn node(settings: &Settings, directory: &DataDir, kafka_addr: SocketAddr) -> Node {
    let (host, port) = advertised(settings, kafka_addr);
    Node {
        id: NodeId(settings.node_id),
        host,
        port,
        rack: settings.rack.clone(),
        shards: settings.shards,
        directory: directory.id,
    }
}

fn broker_config(settings: &Settings, kafka_addr: SocketAddr) -> BrokerConfig {
    let (host, port) = advertised(settings, kafka_addr);
    BrokerConfig {
        node_id: settings.node_id,
        rack: settings.rack.clone(),
        listener: kafka_addr.to_string(),
        advertised: join(&host, port),
        data_dir: settings.data_dir.display().to_string(),
        auto_create_topics: settings.auto_create_topics,
        num_partitions: settings.num_partitions,
        log: settings.log.clone(),
        ..BrokerConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_many_shards_are_smaller() {
        assert_eq!(ring_messages(2), RING_MESSAGES);
        assert_eq!(ring_messages(16), RING_MESSAGES);
        assert_eq!(ring_messages(65), 256);
        assert_eq!(ring_messages(1025), RING_MESSAGES_MIN);
    }
}
