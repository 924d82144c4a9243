//! The process: checks, the data directory, the side office, recovery, the shards, and the end of it all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cluster::broker_config::BrokerConfig;
use cluster::ids::random_uuid;
use cluster::loggers::Loggers;
use cluster::metadata::Node;
use engine::log::StoreConfig;
use engine::rt;
use engine::types::{NodeId, ShardId};
use kafka_api::ServerConfig;
use kafka_api::faces::port_of;
use node::Plan;

use crate::data_dir::DataDir;
use crate::exit::{Exit, Fatal, cannot_listen};
use crate::office::{self, Desk};
use crate::settings::{Settings, join};
use crate::{allocator, data_dir, fitness};

/// How often another free port is tried where those above it are taken.
const FREE_PORT_TRIES: usize = 100;

/// Runs a node until it is asked to stop.
pub fn serve(settings: &Settings, loggers: Arc<Loggers>) -> Result<(), Fatal> {
    fitness::check_cpus(settings.shards, settings.overprovisioned)?;
    fitness::check_locked_memory()?;
    fitness::check_io_uring()?;
    let own_ports = if settings.shard_direct {
        settings.shards
    } else {
        0
    };
    let kafka_addr = kafka_address(settings.kafka_addr, own_ports)?;
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
    allocator::give_back_beside_the_shards()
        .map_err(|e| Fatal::new(Exit::Failure, format!("can't start a thread: {e}")))?;
    let shards = settings.shards;
    let plan = Plan::new(
        node(settings, &directory, kafka_addr),
        StoreConfig {
            data_dir: settings.data_dir.clone(),
            journal_dir: settings.journal_dir.clone(),
            shards,
            memory_per_shard: settings.memory_bytes / u64::from(shards),
        },
        ServerConfig {
            broker: broker_config(settings, kafka_addr),
            groups: kafka_api::coordinator::Settings::of(&settings.groups),
            loggers,
            shard_direct: settings.shard_direct,
        },
        kafka_addr,
    );
    tracing::info!(
        "tailrace {} starts: node {}, {shards} shards, {} MiB, data in {}",
        env!("CARGO_PKG_VERSION"),
        settings.node_id,
        settings.memory_bytes >> 20,
        settings.data_dir.display()
    );
    let (ports, office_port) = node::rings(shards);
    let ready = Arc::new(AtomicBool::new(false));
    let desk = Desk {
        admin,
        ready: ready.clone(),
        stop: plan.stop.clone(),
    };
    office::open(desk, move |asked| {
        node::answer_scrapes(office_port, shards, asked)
    })?;
    node::run(&plan, settings.overprovisioned, ports, &ready)?;
    ready.store(false, Ordering::Release);
    tracing::info!("stopped");
    drop(directory);
    Ok(())
}

/// The address to listen on: free, and with a real port in place of 0, which every shard must share. The `own_ports` above it, of the shards' own listeners, are free too.
fn kafka_address(wanted: SocketAddr, own_ports: u16) -> Result<SocketAddr, Fatal> {
    let above = |addr: SocketAddr| {
        let ports = (0..own_ports).map_while(move |s| port_of(addr.port(), ShardId(s)));
        ports.map(move |port| SocketAddr::new(addr.ip(), port))
    };
    if wanted.port() != 0 {
        fitness::check_port(wanted, "kafka-addr")?;
        for addr in above(wanted) {
            fitness::check_port(addr, "shard-direct")?;
        }
        return Ok(wanted);
    }
    for _ in 0..FREE_PORT_TRIES {
        let free = std::net::TcpListener::bind(wanted).and_then(|l| l.local_addr());
        let free = free.map_err(|e| cannot_listen(wanted, "kafka-addr", &e))?;
        let others: Vec<SocketAddr> = above(free).collect();
        let all = others.len() == usize::from(own_ports);
        if all && others.iter().all(|a| rt::check_port_free(*a).is_ok()) {
            return Ok(free);
        }
    }
    Err(Fatal::new(
        Exit::Failure,
        format!(
            "no {own_ports} free ports follow one another here: set kafka-addr to a port above which they do"
        ),
    ))
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
        groups: settings.groups,
        max_connections: settings.max_connections,
        max_connections_per_ip: settings.max_connections_per_ip,
        max_connections_per_ip_overrides: settings.max_connections_per_ip_overrides.clone(),
        max_connection_creation_rate: settings.max_connection_creation_rate,
        quota_window_num: settings.quota_window_num,
        quota_window_size_seconds: settings.quota_window_size_seconds,
        controller_quota_window_num: settings.controller_quota_window_num,
        controller_quota_window_size_seconds: settings.controller_quota_window_size_seconds,
        ..BrokerConfig::default()
    }
}
