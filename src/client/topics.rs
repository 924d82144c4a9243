//! `tailrace topic`: create, list, describe, delete.

use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::{CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest};

use super::cluster::{Cluster, text, topic_name};
use super::{ClientError, at, check, print, tell};
use crate::cli::{BrokerArgs, TopicCommand};
use crate::exit::Fatal;

/// DescribeConfigs' number for topics.
const TOPIC: i8 = 2;
/// The last version of DeleteTopics that goes by a plain list of names.
const DELETE_BY_NAME: i16 = 5;

pub fn run(command: TopicCommand) -> Result<(), Fatal> {
    match command {
        TopicCommand::Create {
            names,
            partitions,
            replication_factor,
            configs,
            if_not_exists,
            broker,
        } => {
            let new = New {
                partitions,
                replication_factor,
                configs: pairs(&configs)?,
                if_not_exists,
            };
            create(&names, &new, &broker)?;
        }
        TopicCommand::List { broker } => list(&broker)?,
        TopicCommand::Describe { names, broker } => describe(&names, &broker)?,
        TopicCommand::Delete { names, broker } => delete(&names, &broker)?,
    }
    Ok(())
}

/// `name=value` pairs of the command line.
pub fn pairs(given: &[String]) -> Result<Vec<(String, String)>, ClientError> {
    given
        .iter()
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
            _ => Err(ClientError::Usage(format!(
                "'{pair}' is not of the form NAME=VALUE"
            ))),
        })
        .collect()
}

struct New {
    partitions: i32,
    replication_factor: i16,
    configs: Vec<(String, String)>,
    if_not_exists: bool,
}

/// Says which topic an error is about.
fn of(name: &str, e: ClientError) -> ClientError {
    at(&format!("topic '{name}'"), e)
}

fn create(names: &[String], new: &New, broker: &BrokerArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(broker)?;
    let topics = names
        .iter()
        .map(|name| {
            CreatableTopic::default()
                .with_name(topic_name(name))
                .with_num_partitions(new.partitions)
                .with_replication_factor(new.replication_factor)
                .with_configs(
                    new.configs
                        .iter()
                        .map(|(k, v)| {
                            CreatableTopicConfig::default()
                                .with_name(text(k))
                                .with_value(Some(text(v)))
                        })
                        .collect(),
                )
        })
        .collect();
    let request = CreateTopicsRequest::default()
        .with_topics(topics)
        .with_timeout_ms(cluster.timeout_ms());
    let answer = cluster.retry(|c| c.controller()?.call(&request, i16::MAX))?;
    let mut failed = Vec::new();
    for topic in &answer.topics {
        match check(topic.error_code, topic.error_message.as_deref()) {
            Ok(()) => print(format_args!("created {}", topic.name.as_str()))?,
            // 36: it exists.
            Err(_) if topic.error_code == 36 && new.if_not_exists => {
                print(format_args!("{} is there already", topic.name.as_str()))?;
            }
            Err(e) => failed.push(of(&topic.name, e)),
        }
    }
    tell(failed)
}

/// Names of all topics, for completion.
pub fn names(cluster: &mut Cluster) -> Result<Vec<String>, ClientError> {
    let topics = cluster.metadata(None, false)?.topics.into_iter();
    let mut names: Vec<String> = topics
        .filter_map(|t| t.name.map(|n| n.to_string()))
        .collect();
    names.sort();
    Ok(names)
}

fn list(broker: &BrokerArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(broker)?;
    let mut topics = cluster.metadata(None, false)?.topics;
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    for topic in topics {
        let name = topic.name.as_ref().map_or("?", |n| n.as_str());
        let replicas = topic
            .partitions
            .first()
            .map_or(0, |p| p.replica_nodes.len());
        print(format_args!(
            "{name}\t{} partition{}\t{replicas} replica{}",
            topic.partitions.len(),
            plural(topic.partitions.len()),
            plural(replicas)
        ))?;
    }
    Ok(())
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

fn describe(names: &[String], broker: &BrokerArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(broker)?;
    let mut failed = Vec::new();
    for name in names {
        match describe_one(&mut cluster, name) {
            // What one topic lacks is no reason not to show the others.
            Err(e @ (ClientError::Missing(_) | ClientError::Refused { .. })) => failed.push(e),
            result => result?,
        }
    }
    tell(failed)
}

fn describe_one(cluster: &mut Cluster, name: &str) -> Result<(), ClientError> {
    let topic = cluster.topic(name, false)?;
    let id = cluster::ids::kafka_uuid(topic.topic_id);
    print(format_args!("topic {name}\tid {id}"))?;
    let mut partitions = topic.partitions;
    partitions.sort_by_key(|p| p.partition_index);
    for p in &partitions {
        let leader = p.leader_id.0;
        let start = cluster.offset(leader, name, p.partition_index, -2)?;
        let end = cluster.offset(leader, name, p.partition_index, -1)?;
        let nodes = |ids: &[kafka_protocol::messages::BrokerId]| {
            ids.iter()
                .map(|b| b.0.to_string())
                .collect::<Vec<_>>()
                .join(",")
        };
        print(format_args!(
            "  partition {}\tleader {leader}\tepoch {}\treplicas {}\tin sync {}\toffsets {start} to {end}",
            p.partition_index,
            p.leader_epoch,
            nodes(&p.replica_nodes),
            nodes(&p.isr_nodes)
        ))?;
    }
    describe_configs(cluster, name)
}

fn describe_configs(cluster: &mut Cluster, name: &str) -> Result<(), ClientError> {
    let request = DescribeConfigsRequest::default().with_resources(vec![
        DescribeConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(text(name))
            .with_configuration_keys(None),
    ]);
    let answer = cluster.any()?.call(&request, i16::MAX)?;
    for result in answer.results {
        check(result.error_code, result.error_message.as_deref()).map_err(|e| of(name, e))?;
        let mut configs = result.configs;
        configs.sort_by(|a, b| a.name.cmp(&b.name));
        for c in configs {
            // 1: set for this topic.
            let mark = if c.config_source == 1 {
                "  (set for this topic)"
            } else {
                ""
            };
            let value = c.value.as_deref().unwrap_or("(hidden)");
            print(format_args!("  {} = {value}{mark}", c.name.as_str()))?;
        }
    }
    Ok(())
}

fn delete(names: &[String], broker: &BrokerArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(broker)?;
    let request = DeleteTopicsRequest::default()
        .with_topic_names(names.iter().map(|n| topic_name(n)).collect())
        .with_timeout_ms(cluster.timeout_ms());
    let answer = cluster.retry(|c| c.controller()?.call(&request, DELETE_BY_NAME))?;
    let mut failed = Vec::new();
    for topic in &answer.responses {
        let name = topic.name.as_ref().map_or("?", |n| n.as_str());
        match check(topic.error_code, topic.error_message.as_deref()) {
            Ok(()) => print(format_args!("deleted {name}"))?,
            Err(e) => failed.push(of(name, e)),
        }
    }
    tell(failed)
}
