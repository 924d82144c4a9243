//! `tailrace cluster`: info and apis. What both these and [`super::health`] ask is here: brokers, and what their disks hold.

use std::collections::BTreeMap;

use kafka_protocol::messages::{
    ApiKey, DescribeClusterRequest, DescribeLogDirsRequest, MetadataResponse,
};
use serde::Serialize;

use super::cluster::Cluster;
use super::output::{NOTHING, Table, bytes, clean, or_nothing, print_json};
use super::progress::Progress;
use super::{ClientError, at, check, health, print};
use crate::cli::{AdminArgs, ClusterCommand};
use crate::exit::Fatal;
use crate::settings::join;

pub fn run(command: ClusterCommand) -> Result<(), Fatal> {
    match command {
        ClusterCommand::Info { admin } => info(&admin)?,
        ClusterCommand::Health { wait, admin } => return health::run(wait, &admin),
        ClusterCommand::Apis { admin } => apis(&admin)?,
    }
    Ok(())
}

#[derive(Clone, Debug, Serialize)]
pub struct Broker {
    pub broker: i32,
    pub address: String,
    pub rack: Option<String>,
    pub controller: bool,
    /// Registered, and kept out of the cluster; brokers before Kafka 4.0 don't tell.
    pub fenced: bool,
    pub leads: usize,
    pub replicas: usize,
    /// Bytes of partitions on its disks; nothing if it couldn't be asked.
    pub data_bytes: Option<i64>,
    pub disk_bytes: Option<i64>,
    pub free_bytes: Option<i64>,
}

/// The cluster as metadata tells it.
pub struct Overview {
    pub id: Option<String>,
    pub controller: i32,
    pub brokers: Vec<Broker>,
    pub metadata: MetadataResponse,
}

/// Brokers and all topics; nothing of disks yet.
pub fn overview(cluster: &mut Cluster) -> Result<Overview, ClientError> {
    let metadata = cluster.retry(|c| c.metadata(None, false))?;
    let (mut leads, mut replicas) = (BTreeMap::new(), BTreeMap::new());
    for p in metadata.topics.iter().flat_map(|t| &t.partitions) {
        *leads.entry(p.leader_id.0).or_insert(0) += 1;
        for id in &p.replica_nodes {
            *replicas.entry(id.0).or_insert(0) += 1;
        }
    }
    let broker = |id: i32, host: &str, port: i32, rack: Option<&str>| Broker {
        broker: id,
        address: join(host, port as u16),
        rack: rack.map(String::from),
        controller: id == metadata.controller_id.0,
        fenced: false,
        leads: leads.get(&id).copied().unwrap_or(0),
        replicas: replicas.get(&id).copied().unwrap_or(0),
        data_bytes: None,
        disk_bytes: None,
        free_bytes: None,
    };
    let mut brokers: Vec<Broker> = metadata
        .brokers
        .iter()
        .map(|b| broker(b.node_id.0, &b.host, b.port, b.rack.as_deref()))
        .collect();
    for b in fenced(cluster)? {
        if !brokers.iter().any(|known| known.broker == b.broker_id.0) {
            brokers.push(Broker {
                fenced: true,
                ..broker(b.broker_id.0, &b.host, b.port, b.rack.as_deref())
            });
        }
    }
    brokers.sort_by_key(|b| b.broker);
    Ok(Overview {
        id: metadata.cluster_id.as_ref().map(ToString::to_string),
        controller: metadata.controller_id.0,
        brokers,
        metadata,
    })
}

/// Brokers that are registered and not part of the cluster, as far as the one that we ask tells.
fn fenced(
    cluster: &mut Cluster,
) -> Result<
    Vec<kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker>,
    ClientError,
> {
    /// From this version on DescribeCluster tells them.
    const TELLS: i16 = 2;
    cluster.retry(|c| {
        let connection = c.any()?;
        if !matches!(connection.version::<DescribeClusterRequest>(i16::MAX), Ok(v) if v >= TELLS) {
            return Ok(Vec::new());
        }
        let request = DescribeClusterRequest::default().with_include_fenced_brokers(true);
        let answer = connection.call(&request, i16::MAX)?;
        check(answer.error_code, answer.error_message.as_deref())?;
        let brokers = answer.brokers.into_iter();
        Ok(brokers.filter(|b| b.is_fenced).collect())
    })
}

/// What a broker's disks hold and have free, and its directories that have failed.
#[derive(Default)]
pub struct Disks {
    pub data_bytes: i64,
    /// Nothing from brokers before Kafka 3.3.
    pub disk_bytes: Option<i64>,
    pub free_bytes: Option<i64>,
    pub failed: Vec<String>,
}

pub fn disks(cluster: &mut Cluster, broker: i32) -> Result<Disks, ClientError> {
    let answer = cluster.broker(broker)?.call(
        &DescribeLogDirsRequest::default().with_topics(None),
        i16::MAX,
    )?;
    check(answer.error_code, None).map_err(|e| at(&format!("broker {broker}"), e))?;
    let mut disks = Disks::default();
    let add = |sum: &mut Option<i64>, n: i64| {
        if n >= 0 {
            *sum = Some(sum.unwrap_or(0).saturating_add(n));
        }
    };
    for dir in answer.results {
        if dir.error_code != 0 {
            disks.failed.push(dir.log_dir.to_string());
            continue;
        }
        for p in dir.topics.iter().flat_map(|t| &t.partitions) {
            disks.data_bytes = disks.data_bytes.saturating_add(p.partition_size.max(0));
        }
        add(&mut disks.disk_bytes, dir.total_bytes);
        add(&mut disks.free_bytes, dir.usable_bytes);
    }
    Ok(disks)
}

#[derive(Serialize)]
struct Info {
    cluster: Option<String>,
    controller: i32,
    topics: usize,
    internal_topics: usize,
    partitions: usize,
    brokers: Vec<Broker>,
}

fn info(admin: &AdminArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let overview = overview(&mut cluster)?;
    let mut brokers = overview.brokers;
    let mut progress = Progress::new("brokers asked for their disks", brokers.len());
    for b in &mut brokers {
        // One that can't be asked leaves its columns empty; `cluster health` says why.
        if let Ok(disks) = disks(&mut cluster, b.broker) {
            b.data_bytes = Some(disks.data_bytes);
            b.disk_bytes = disks.disk_bytes;
            b.free_bytes = disks.free_bytes;
        }
        progress.add(1);
    }
    drop(progress);
    let topics = &overview.metadata.topics;
    let info = Info {
        cluster: overview.id,
        controller: overview.controller,
        topics: topics.iter().filter(|t| !t.is_internal).count(),
        internal_topics: topics.iter().filter(|t| t.is_internal).count(),
        partitions: topics.iter().map(|t| t.partitions.len()).sum(),
        brokers,
    };
    if admin.json {
        return print_json(&info);
    }
    let id = info.cluster.as_deref().unwrap_or(NOTHING);
    print(format_args!("cluster     {}", clean(id)))?;
    print(format_args!("controller  {}", info.controller))?;
    print(format_args!(
        "topics      {} and {} internal, {} partitions in all\n",
        info.topics, info.internal_topics, info.partitions
    ))?;
    let mut table = Table::new(&[
        ">BROKER",
        "ADDRESS",
        "RACK",
        ">LEADS",
        ">REPLICAS",
        ">DATA",
        ">FREE",
        ">OF",
        "NOTE",
    ]);
    for b in &info.brokers {
        let mut notes = Vec::new();
        if b.controller {
            notes.push("controller");
        }
        if b.fenced {
            notes.push("fenced");
        }
        table.row(vec![
            b.broker.to_string(),
            b.address.clone(),
            b.rack.clone().unwrap_or_default(),
            b.leads.to_string(),
            b.replicas.to_string(),
            or_nothing(b.data_bytes.map(bytes)),
            or_nothing(b.free_bytes.map(bytes)),
            or_nothing(b.disk_bytes.map(bytes)),
            notes.join(", "),
        ]);
    }
    table.print()
}

#[derive(Serialize)]
struct Api {
    key: i16,
    name: String,
    /// Versions that the broker takes.
    min: i16,
    max: i16,
    /// The version that this client would use.
    used: Option<i16>,
}

fn apis(admin: &AdminArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let apis: Vec<Api> = cluster
        .any()?
        .versions()
        .map(|(key, min, max)| {
            let known = ApiKey::try_from(key).ok();
            let ours = known.map(|k| k.valid_versions());
            Api {
                key,
                name: known.map_or_else(|| NOTHING.into(), |k| format!("{k:?}")),
                min,
                max,
                used: ours
                    .map(|ours| ours.max.min(max))
                    .filter(|v| *v >= min && ours.is_some_and(|ours| *v >= ours.min)),
            }
        })
        .collect();
    if admin.json {
        return print_json(&apis);
    }
    let mut table = Table::new(&[">KEY", "NAME", ">MIN", ">MAX", ">USED"]);
    for api in apis {
        table.row(vec![
            api.key.to_string(),
            api.name,
            api.min.to_string(),
            api.max.to_string(),
            or_nothing(api.used),
        ]);
    }
    table.print()
}
