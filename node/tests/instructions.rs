//! A load of a fixed size on a simulated node (`--cfg tailrace_sim`), for a tool that counts instructions: `tests/show/bench/5` runs it under callgrind.
//!
//! One shard; `LOAD_PARTITIONS` partitions of one topic, `LOAD_CONNECTIONS` connections. In each turn [`A_TURN`] batches of one record of 1 KiB are sent, each to another partition and from another connection
//! as far as there are so many, and their answers awaited. So the work of a turn is the same whatever the number of partitions and connections, and what `LOAD_BATCHES` more cost is what batches cost.
//! Without `LOAD_BATCHES` it does nothing.
#![cfg(tailrace_sim)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cluster::metadata::Node;
use engine::log::StoreConfig;
use engine::rt::sim::{Outcome, SimConfig, World};
use engine::rt::{self, Queue};
use engine::types::NodeId;
use kafka_api::ServerConfig;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{CreateTopicsRequest, ProduceRequest, ProduceResponse};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{
    Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use node::Plan;
use uuid::Uuid;

#[allow(dead_code)]
#[path = "sim_world/wire.rs"]
mod wire;

use wire::Connection;

const ADDR: &str = "127.0.0.1:9092";
const A_TURN: usize = 10;
const TOPIC: &str = "load";
const PRODUCE: i16 = 9;
/// So much that nothing waits for it.
const MEMORY: u64 = 1 << 30;

#[derive(Clone, Copy)]
struct Load {
    batches: usize,
    partitions: usize,
    connections: usize,
}

fn number(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

fn batch() -> Bytes {
    let record = Record {
        transactional: false,
        control: false,
        partition_leader_epoch: -1,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: -1,
        timestamp: rt::wall_clock_ms(),
        key: None,
        value: Some(Bytes::from(vec![b'r'; 1_024])),
        headers: Default::default(),
        delete_horizon: false,
    };
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    let mut out = BytesMut::new();
    RecordBatchEncoder::encode(&mut out, [&record], &options).expect("a record of its version");
    out.freeze()
}

fn produce(partition: usize, batch: &Bytes) -> ProduceRequest {
    let part = PartitionProduceData::default()
        .with_index(partition as i32)
        .with_records(Some(batch.clone()));
    let topic = TopicProduceData::default()
        .with_name(StrBytes::from_static_str(TOPIC).into())
        .with_partition_data(vec![part]);
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic])
}

fn code(response: &ProduceResponse) -> i16 {
    response.responses[0].partition_responses[0].error_code
}

async fn begin(load: Load) -> Vec<Connection> {
    let addr = ADDR.parse().expect("an address");
    let mut all = Vec::with_capacity(load.connections);
    while all.len() < load.connections {
        match Connection::open(addr).await {
            Some(connection) => all.push(connection),
            None => rt::sleep(Duration::from_millis(1)).await,
        }
    }
    let topic = CreatableTopic::default()
        .with_name(StrBytes::from_static_str(TOPIC).into())
        .with_num_partitions(load.partitions as i32)
        .with_replication_factor(1);
    let request = CreateTopicsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(60_000);
    let created = all[0].call(5, &request).await.expect("a connection stays");
    assert_eq!(created.topics[0].error_code, 0);
    // Until every partition takes batches.
    let batch = batch();
    for partition in 0..load.partitions {
        loop {
            let answer = all[0].call(PRODUCE, &produce(partition, &batch)).await;
            if code(&answer.expect("a connection stays")) == 0 {
                break;
            }
            rt::sleep(Duration::from_millis(1)).await;
        }
    }
    all
}

async fn carry_out(load: Load) {
    let mut connections = begin(load).await;
    let batch = batch();
    let turns = load.batches / A_TURN;
    for turn in 0..turns {
        let turn_of = |i: usize, n: usize| (turn * A_TURN + i) % n;
        for i in 0..A_TURN {
            let request = produce(turn_of(i, load.partitions), &batch);
            let connection = &mut connections[turn_of(i, load.connections)];
            connection
                .send(PRODUCE, &request)
                .await
                .expect("a connection stays");
        }
        for i in 0..A_TURN {
            let connection = &mut connections[turn_of(i, load.connections)];
            let answer = connection.answer::<ProduceRequest>(PRODUCE).await;
            assert_eq!(code(&answer.expect("a connection stays")), 0);
        }
    }
}

#[test]
fn load() {
    let Some(batches) = number("LOAD_BATCHES") else {
        return;
    };
    let load = Load {
        batches,
        partitions: number("LOAD_PARTITIONS").unwrap_or(10),
        connections: number("LOAD_CONNECTIONS").unwrap_or(1),
    };
    let world = World::new(
        1,
        SimConfig {
            max_steps: u64::MAX,
            ..SimConfig::default()
        },
    );
    let addr: std::net::SocketAddr = ADDR.parse().expect("an address");
    let node = Node {
        id: NodeId(1),
        host: addr.ip().to_string(),
        port: addr.port(),
        rack: None,
        shards: 1,
        directory: Uuid::from_u128(4711),
    };
    let store = StoreConfig {
        data_dir: PathBuf::from("/data"),
        journal_dir: None,
        shards: 1,
        memory_per_shard: MEMORY,
    };
    let plan = Plan::new(node, store, ServerConfig::default(), addr);
    let ended = world.enter(|| {
        let (ports, _office) = node::rings(1);
        let stop = plan.stop.clone();
        rt::spawn(Queue::Latency, async move {
            carry_out(load).await;
            stop.arrive();
        })
        .detach();
        node::run(&plan, true, ports, &Arc::new(AtomicBool::new(false)))
    });
    assert!(matches!(ended, Outcome::Done(Ok(()))), "it ends cleanly");
    println!("SHOW load_batches={batches}");
}
