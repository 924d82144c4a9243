//! `tailrace topic`: create, list, describe, alter, delete.

mod alter;
mod describe;

use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::{CreateTopicsRequest, DeleteTopicsRequest};
use serde::Serialize;

use super::cluster::{Cluster, text, topic_name};
use super::output::{Table, print_json};
use super::{ClientError, at, check, note, print, tell};
use crate::cli::{AdminArgs, TopicCommand};
use crate::exit::Fatal;

/// The last version of DeleteTopics that goes by a plain list of names.
const DELETE_BY_NAME: i16 = 5;
/// TOPIC_ALREADY_EXISTS
const EXISTS: i16 = 36;

pub fn run(command: TopicCommand) -> Result<(), Fatal> {
    match command {
        TopicCommand::Create {
            names,
            partitions,
            replication_factor,
            configs,
            if_not_exists,
            admin,
        } => {
            check_counts(partitions, replication_factor)?;
            let new = New {
                partitions,
                replication_factor,
                configs: super::configs::pairs(&configs)?,
                if_not_exists,
            };
            create(&names, &new, &admin)?;
        }
        TopicCommand::List { admin } => list(&admin)?,
        TopicCommand::Describe { names, admin } => describe::run(&names, &admin)?,
        TopicCommand::Alter {
            names,
            partitions,
            configs,
            more,
            admin,
        } => alter::run(&names, partitions, &configs, &more, &admin)?,
        TopicCommand::Delete { names, admin } => delete(&names, &admin)?,
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

/// -1 stands for the broker's default, as in the protocol.
fn check_counts(partitions: i32, replication_factor: i16) -> Result<(), ClientError> {
    let numbers = [
        ("--partitions", partitions),
        ("--replication-factor", replication_factor.into()),
    ];
    match numbers.iter().find(|(_, n)| *n == 0 || *n < -1) {
        Some((flag, n)) => Err(ClientError::Usage(format!(
            "{flag} can't be {n}: it is 1 or more; without it the broker's default holds"
        ))),
        None => Ok(()),
    }
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

fn create(names: &[String], new: &New, admin: &AdminArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
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
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for topic in &answer.topics {
        let result = check(topic.error_code, topic.error_message.as_deref());
        done.push(Done {
            topic: topic.name.to_string(),
            done: result.is_ok(),
        });
        match result {
            Ok(()) => {}
            Err(_) if topic.error_code == EXISTS && new.if_not_exists => {
                note(format_args!("{} is there already", topic.name.as_str()));
            }
            Err(e) => failed.push(of(&topic.name, e)),
        }
    }
    finish("created", done, failed, admin)
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

#[derive(Serialize)]
struct Listed {
    topic: String,
    id: String,
    partitions: usize,
    replicas: usize,
    internal: bool,
}

fn list(admin: &AdminArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let topics = cluster.retry(|c| c.metadata(None, false))?.topics;
    let mut topics: Vec<Listed> = topics
        .into_iter()
        .map(|topic| Listed {
            id: ::cluster::ids::kafka_uuid(topic.topic_id),
            partitions: topic.partitions.len(),
            replicas: topic
                .partitions
                .first()
                .map_or(0, |p| p.replica_nodes.len()),
            internal: topic.is_internal,
            topic: topic.name.map(|n| n.to_string()).unwrap_or_default(),
        })
        .collect();
    topics.sort_by(|a, b| a.topic.cmp(&b.topic));
    if admin.json {
        return print_json(&topics);
    }
    let mut table = Table::new(&["TOPIC", ">PARTITIONS", ">REPLICAS"]);
    for t in topics {
        table.row(vec![
            t.topic,
            t.partitions.to_string(),
            t.replicas.to_string(),
        ]);
    }
    table.print()
}

/// What became of a topic.
#[derive(Serialize)]
struct Done {
    topic: String,
    done: bool,
}

/// Prints what was done, and then tells what wasn't.
fn finish(
    word: &str,
    done: Vec<Done>,
    failed: Vec<ClientError>,
    admin: &AdminArgs,
) -> Result<(), ClientError> {
    if admin.json {
        print_json(&done)?;
    } else {
        for one in done.iter().filter(|d| d.done) {
            print(format_args!("{word} {}", one.topic))?;
        }
    }
    tell(failed)
}

fn delete(names: &[String], admin: &AdminArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let request = DeleteTopicsRequest::default()
        .with_topic_names(names.iter().map(|n| topic_name(n)).collect())
        .with_timeout_ms(cluster.timeout_ms());
    let answer = cluster.retry(|c| c.controller()?.call(&request, DELETE_BY_NAME))?;
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for topic in &answer.responses {
        let name = topic.name.as_ref().map_or("?", |n| n.as_str());
        let result = check(topic.error_code, topic.error_message.as_deref());
        done.push(Done {
            topic: name.into(),
            done: result.is_ok(),
        });
        if let Err(e) = result {
            failed.push(of(name, e));
        }
    }
    finish("deleted", done, failed, admin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_of_no_partitions_is_not_asked_for() {
        for (partitions, factor, flag) in [
            (0, -1, "--partitions can't be 0"),
            (-5, 1, "--partitions can't be -5"),
            (1, 0, "--replication-factor can't be 0"),
        ] {
            let e = check_counts(partitions, factor).unwrap_err();
            assert!(matches!(e, ClientError::Usage(_)));
            assert!(e.to_string().starts_with(flag), "{e}");
        }
        assert!(check_counts(-1, -1).is_ok() && check_counts(3, 1).is_ok());
    }
}
