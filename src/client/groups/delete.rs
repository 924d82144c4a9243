//! `tailrace group delete` and `delete-offsets`.

use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::{DeleteGroupsRequest, GroupId, OffsetDeleteRequest};
use serde::Serialize;

use super::committed::{self, Committed};
use super::model;
use super::targets::{self, Target};
use crate::cli::AdminArgs;
use crate::client::cluster::{Cluster, text, topic_name};
use crate::client::coordinators;
use crate::client::offsets::Place;
use crate::client::output::print_json;
use crate::client::progress::Progress;
use crate::client::{ClientError, at, check, print, tell};

/// Groups that one request deletes, at most.
const PER_REQUEST: usize = 100;

#[derive(Serialize)]
struct Deleted {
    group: String,
    deleted: bool,
}

pub fn groups(names: &[String], admin: &AdminArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let mut progress = Progress::new("groups deleted", names.len());
    let answers = coordinators::ask(
        &mut cluster,
        names,
        PER_REQUEST,
        &mut progress,
        |connection, _, part| {
            let request = DeleteGroupsRequest::default()
                .with_groups_names(part.iter().map(|n| GroupId(text(n))).collect());
            let answer = connection.call(&request, i16::MAX)?;
            let results = answer.results.into_iter();
            Ok(results
                .map(|r| (r.group_id.to_string(), check(r.error_code, None)))
                .collect())
        },
    )?;
    drop(progress);
    let (mut deleted, mut failed) = (Vec::new(), Vec::new());
    for (group, result) in answers {
        deleted.push(Deleted {
            group: group.clone(),
            deleted: result.is_ok(),
        });
        match result {
            Ok(()) if admin.json => {}
            Ok(()) => print(format_args!("deleted {group}"))?,
            Err(e) => failed.push(e),
        }
    }
    if admin.json {
        print_json(&deleted)?;
    }
    tell(failed)
}

#[derive(Serialize)]
struct DeletedOffset {
    topic: String,
    partition: i32,
    offset: i64,
    deleted: bool,
}

pub fn offsets(name: &str, topics: &[String], admin: &AdminArgs) -> Result<(), ClientError> {
    let targets = targets::parse(topics)?;
    let mut cluster = Cluster::open(&admin.broker)?;
    let names = [name.to_string()];
    // A group that there isn't is told as such, and not as one without offsets.
    for (_, group) in model::describe(&mut cluster, &names)? {
        group?;
    }
    let mut committed = committed::of(&mut cluster, &names)?
        .remove(name)
        .unwrap_or_else(|| Ok(Committed::new()))?;
    committed.retain(|place, _| targets.iter().any(|t| t.takes(place)));
    let lacks = |t: &&Target| !committed.keys().any(|place| t.takes(place));
    if let Some(target) = targets.iter().find(lacks) {
        return Err(ClientError::Missing(format!(
            "group '{name}' has no committed offset in '{}'{}; `tailrace group lag {name}` shows what it has",
            target.topic,
            if target.partitions.is_empty() {
                ""
            } else {
                " in these partitions"
            }
        )));
    }
    let request = OffsetDeleteRequest::default()
        .with_group_id(GroupId(text(name)))
        .with_topics(by_topic(committed.keys()));
    let mut progress = Progress::waiting("waiting for the group's coordinator");
    let answers = coordinators::ask(
        &mut cluster,
        &names,
        1,
        &mut progress,
        |connection, _, _| {
            let answer = connection.call(&request, i16::MAX)?;
            let results = check(answer.error_code, None).map(|()| answer.topics);
            Ok(vec![(name.to_string(), results)])
        },
    )?;
    drop(progress);
    let (mut deleted, mut failed) = (Vec::new(), Vec::new());
    for (_, topics) in answers {
        for topic in topics? {
            for p in topic.partitions {
                let place = (topic.name.to_string(), p.partition_index);
                let result = check(p.error_code, None);
                let offset = committed.get(&place).copied().unwrap_or(-1);
                deleted.push(DeletedOffset {
                    topic: place.0.clone(),
                    partition: place.1,
                    offset,
                    deleted: result.is_ok(),
                });
                match result {
                    Ok(()) if admin.json => {}
                    Ok(()) => print(format_args!(
                        "deleted offset {offset} of partition {} of '{}'",
                        place.1, place.0
                    ))?,
                    Err(e) => {
                        let what =
                            format!("group '{name}', partition {} of '{}'", place.1, place.0);
                        failed.push(at(&what, e));
                    }
                }
            }
        }
    }
    if admin.json {
        print_json(&deleted)?;
    }
    tell(failed)
}

fn by_topic<'a>(places: impl Iterator<Item = &'a Place>) -> Vec<OffsetDeleteRequestTopic> {
    let mut topics: Vec<OffsetDeleteRequestTopic> = Vec::new();
    for (topic, partition) in places {
        if topics.last().is_none_or(|t| t.name.as_str() != topic) {
            topics.push(OffsetDeleteRequestTopic::default().with_name(topic_name(topic)));
        }
        let last = topics.last_mut().expect("one was pushed");
        last.partitions
            .push(OffsetDeleteRequestPartition::default().with_partition_index(*partition));
    }
    topics
}
