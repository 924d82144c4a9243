//! `tailrace topic describe`: partitions with their leaders and offsets, and what was set.

use std::collections::BTreeMap;

use kafka_protocol::messages::BrokerId;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use serde::Serialize;

use super::of;
use crate::cli::{AdminArgs, KindArg};
use crate::client::cluster::Cluster;
use crate::client::configs::{self, Setting, Thing};
use crate::client::offsets::{self, END, Found, Patience, Place, START};
use crate::client::output::{Table, clean, count, or_nothing, print_json};
use crate::client::{ClientError, print, tell};

#[derive(Serialize)]
struct Topic {
    topic: String,
    id: String,
    internal: bool,
    partitions: Vec<Partition>,
    configs: Vec<Setting>,
}

#[derive(Serialize)]
struct Partition {
    partition: i32,
    leader: i32,
    epoch: i32,
    replicas: Vec<i32>,
    in_sync: Vec<i32>,
    /// First offset and end; nothing while there is no leader.
    start: Option<i64>,
    end: Option<i64>,
}

pub fn run(names: &[String], admin: &AdminArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let (mut topics, mut failed) = (Vec::new(), Vec::new());
    for name in names {
        match describe(&mut cluster, name) {
            Ok(topic) => topics.push(topic),
            // What one topic lacks is no reason not to show the others.
            Err(e) if e.is_about_one() => failed.push(e),
            Err(e) => return Err(e),
        }
    }
    if admin.json {
        print_json(&topics)?;
    } else {
        for (i, topic) in topics.iter().enumerate() {
            if i > 0 {
                print("")?;
            }
            show(topic)?;
        }
    }
    tell(failed)
}

fn describe(cluster: &mut Cluster, name: &str) -> Result<Topic, ClientError> {
    let told = cluster.retry(|c| c.topic_as_it_is(name, false))?;
    let ask = |at: i64| -> BTreeMap<Place, i64> {
        let places = told
            .partitions
            .iter()
            .map(|p| (name.to_string(), p.partition_index));
        places.map(|place| (place, at)).collect()
    };
    let starts = offsets::look_up(cluster, &ask(START), Patience::Brief)?;
    let ends = offsets::look_up(cluster, &ask(END), Patience::Brief)?;
    let thing = Thing {
        kind: KindArg::Topic,
        name,
    };
    let configs = configs::describe(cluster, thing, false)?;
    Ok(Topic {
        topic: name.into(),
        id: ::cluster::ids::kafka_uuid(told.topic_id),
        internal: told.is_internal,
        partitions: partitions(name, told, &starts, &ends)?,
        configs,
    })
}

fn partitions(
    name: &str,
    told: MetadataResponseTopic,
    starts: &Found,
    ends: &Found,
) -> Result<Vec<Partition>, ClientError> {
    let ids = |nodes: &[BrokerId]| nodes.iter().map(|b| b.0).collect();
    let find = |among: &Found, partition: i32| match among.get(&(name.to_string(), partition)) {
        Some(Ok(offset)) => Ok(Some(*offset)),
        // 5: no leader, which the column of leaders tells.
        None | Some(Err(ClientError::Refused { code: 5, .. })) => Ok(None),
        Some(Err(e)) => Err(of(name, e.again())),
    };
    let mut partitions = Vec::new();
    for p in &told.partitions {
        partitions.push(Partition {
            partition: p.partition_index,
            leader: p.leader_id.0,
            epoch: p.leader_epoch,
            replicas: ids(&p.replica_nodes),
            in_sync: ids(&p.isr_nodes),
            start: find(starts, p.partition_index)?,
            end: find(ends, p.partition_index)?,
        });
    }
    partitions.sort_by_key(|p| p.partition);
    Ok(partitions)
}

fn show(topic: &Topic) -> Result<(), ClientError> {
    let records = |p: &Partition| Some(p.end?.saturating_sub(p.start?));
    let sum = topic
        .partitions
        .iter()
        .filter_map(records)
        .reduce(i64::saturating_add);
    for (name, value) in [
        ("topic", topic.topic.clone()),
        ("id", topic.id.clone()),
        ("partitions", topic.partitions.len().to_string()),
        ("offsets", or_nothing(sum)),
    ] {
        print(format_args!("{name:<11} {}", clean(&value)))?;
    }
    print("")?;
    let mut table = Table::new(&[
        ">PARTITION",
        ">LEADER",
        ">EPOCH",
        "REPLICAS",
        "IN SYNC",
        ">START",
        ">END",
        ">OFFSETS",
    ]);
    let ids = |ids: &[i32]| {
        ids.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
    };
    for p in &topic.partitions {
        table.row(vec![
            p.partition.to_string(),
            p.leader.to_string(),
            p.epoch.to_string(),
            ids(&p.replicas),
            ids(&p.in_sync),
            or_nothing(p.start),
            or_nothing(p.end),
            or_nothing(records(p)),
        ]);
    }
    table.print()?;
    print("")?;
    let (set, rest): (Vec<&Setting>, Vec<&Setting>) =
        topic.configs.iter().partition(|s| s.is_set());
    if !set.is_empty() {
        let mut table = Table::new(&["CONFIG", "VALUE", "SET BY"]);
        for s in set {
            table.row(vec![s.name.clone(), s.for_people(), s.source.into()]);
        }
        table.print()?;
    }
    print(format_args!(
        "{} have their defaults: tailrace config get topic {}",
        count(rest.len(), "config"),
        topic.topic
    ))
}
