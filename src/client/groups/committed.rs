//! The offsets that groups have committed.

use std::collections::BTreeMap;

use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{GroupId, OffsetFetchRequest};

use super::model::{NOT_FOUND, PER_REQUEST};
use crate::client::cluster::{Cluster, text};
use crate::client::connection::Connection;
use crate::client::coordinators::{self, Answers};
use crate::client::offsets::Place;
use crate::client::progress::Progress;
use crate::client::{ClientError, at, check};

/// From this version on OffsetFetch takes several groups.
const FETCH_SEVERAL: i16 = 8;

/// The offsets that a group has committed. A group that there isn't has none.
pub type Committed = BTreeMap<Place, i64>;

/// Those of each of these groups.
pub fn of(cluster: &mut Cluster, names: &[String]) -> Result<Answers<Committed>, ClientError> {
    let mut progress = Progress::new("groups asked for their offsets", names.len());
    coordinators::ask(
        cluster,
        names,
        PER_REQUEST,
        &mut progress,
        |connection, _, names| {
            if connection.version::<OffsetFetchRequest>(i16::MAX)? >= FETCH_SEVERAL {
                return fetch_several(connection, names);
            }
            names
                .iter()
                .map(|name| Ok((name.clone(), fetch_one(connection, name))))
                .collect()
        },
    )
}

fn fetch_several(
    connection: &mut Connection,
    names: &[String],
) -> Result<coordinators::Told<Committed>, ClientError> {
    let groups = names
        .iter()
        .map(|name| {
            OffsetFetchRequestGroup::default()
                .with_group_id(GroupId(text(name)))
                .with_topics(None)
        })
        .collect();
    let answer = connection.call(&OffsetFetchRequest::default().with_groups(groups), i16::MAX)?;
    let told = answer.groups.into_iter().map(|g| {
        let offsets = g.topics.into_iter().flat_map(|t| {
            let topic = t.name.to_string();
            t.partitions.into_iter().map(move |p| {
                (
                    topic.clone(),
                    p.partition_index,
                    p.committed_offset,
                    p.error_code,
                )
            })
        });
        let name = g.group_id.to_string();
        (
            name,
            check(none_if_missing(g.error_code), None).and_then(|()| collect(offsets)),
        )
    });
    Ok(told.collect())
}

fn fetch_one(connection: &mut Connection, name: &str) -> Result<Committed, ClientError> {
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(text(name)))
        .with_topics(None);
    let answer = connection.call(&request, FETCH_SEVERAL - 1)?;
    check(none_if_missing(answer.error_code), None)?;
    collect(answer.topics.into_iter().flat_map(|t| {
        let topic = t.name.to_string();
        t.partitions.into_iter().map(move |p| {
            (
                topic.clone(),
                p.partition_index,
                p.committed_offset,
                p.error_code,
            )
        })
    }))
}

fn none_if_missing(code: i16) -> i16 {
    if code == NOT_FOUND { 0 } else { code }
}

fn collect(
    offsets: impl Iterator<Item = (String, i32, i64, i16)>,
) -> Result<Committed, ClientError> {
    let mut committed = Committed::new();
    for (topic, partition, offset, code) in offsets {
        check(code, None).map_err(|e| at(&format!("partition {partition} of '{topic}'"), e))?;
        // -1: none.
        if offset >= 0 {
            committed.insert((topic, partition), offset);
        }
    }
    Ok(committed)
}
