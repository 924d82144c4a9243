//! Offsets of many partitions at once: one request to each leader for up to [`PER_REQUEST`] of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kafka_protocol::messages::ListOffsetsRequest;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};

use super::cluster::{Cluster, RETRY_PAUSE, topic_name};
use super::progress::Progress;
use super::{ClientError, at, check};

/// A partition of a topic.
pub type Place = (String, i32);
/// Partitions that one request asks for, at most.
const PER_REQUEST: usize = 10_000;
/// ListOffsets' timestamps for the first offset and for the end.
pub const START: i64 = -2;
pub const END: i64 = -1;

/// What became of each partition that was asked for.
pub type Found = BTreeMap<Place, Result<i64, ClientError>>;

/// How long it is worth to wait for a partition that has no leader or doesn't answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// What isn't known soon is shown as unknown.
    Brief,
    /// The command's whole time: nothing can be done without.
    Whole,
}

/// [`Patience::Brief`]: an election's time.
const BRIEF: Duration = Duration::from_secs(2);

/// For each partition the offset that belongs to a timestamp: the first record at or after it (-1 where there is none), or [`START`] or [`END`]. The end
/// is that of the log, as Kafka's tools count it, also where a transaction is open.
///
/// Partitions whose errors may pass are asked for again until the time is up; what then is left is each partition's own error.
pub fn look_up(
    cluster: &mut Cluster,
    wanted: &BTreeMap<Place, i64>,
    patience: Patience,
) -> Result<Found, ClientError> {
    let began = Instant::now();
    let time = match patience {
        Patience::Brief => cluster.timeout().min(BRIEF),
        Patience::Whole => cluster.timeout(),
    };
    let mut progress = Progress::new("offsets looked up", wanted.len());
    let mut found = Found::new();
    loop {
        let left: Vec<(&Place, i64)> = wanted
            .iter()
            .filter(|(place, _)| !found.contains_key(*place))
            .map(|(place, timestamp)| (place, *timestamp))
            .collect();
        if left.is_empty() {
            return Ok(found);
        }
        let answers = round(cluster, &left)?;
        let is_over = began.elapsed() + RETRY_PAUSE >= time;
        let mut broken = false;
        for (place, answer) in answers {
            match answer {
                Err(e) if e.is_retriable() && !is_over => {
                    broken |= matches!(e, ClientError::Connection(_));
                }
                answer => {
                    found.insert(place, answer);
                    progress.add(1);
                }
            }
        }
        if broken {
            cluster.disconnect();
        }
        if found.len() < wanted.len() {
            std::thread::sleep(RETRY_PAUSE);
        }
    }
}

/// Asks once for each partition.
fn round(cluster: &mut Cluster, left: &[(&Place, i64)]) -> Result<Found, ClientError> {
    let mut names: Vec<&str> = left.iter().map(|((topic, _), _)| topic.as_str()).collect();
    names.dedup();
    let leaders = leaders(cluster, &names)?;
    let mut found = Found::new();
    let mut by_leader: BTreeMap<i32, Vec<(&Place, i64)>> = BTreeMap::new();
    for (place, timestamp) in left {
        match leaders.get(*place) {
            Some(id) if *id >= 0 => by_leader.entry(*id).or_default().push((place, *timestamp)),
            Some(_) => {
                let e = ClientError::refused(5, None);
                found.insert((*place).clone(), Err(about(place, e)));
            }
            None => {
                let e = ClientError::Missing(format!(
                    "there is no partition {} of '{}'",
                    place.1, place.0
                ));
                found.insert((*place).clone(), Err(e));
            }
        }
    }
    for (leader, places) in by_leader {
        for part in places.chunks(PER_REQUEST) {
            match ask(cluster, leader, part) {
                Ok(answers) => found.extend(answers),
                // This leader's partitions only; the others can still be asked for.
                Err(e @ (ClientError::Connection(_) | ClientError::Refused { .. })) => {
                    for (place, _) in part {
                        found.insert((*place).clone(), Err(e.again()));
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }
    Ok(found)
}

fn about((topic, partition): &Place, e: ClientError) -> ClientError {
    at(&format!("partition {partition} of '{topic}'"), e)
}

/// Leaders (-1: none) of all partitions of these topics; those that there are not are left out.
pub fn leaders(cluster: &mut Cluster, names: &[&str]) -> Result<BTreeMap<Place, i32>, ClientError> {
    let answer = cluster.retry(|c| c.metadata(Some(names), false))?;
    let mut leaders = BTreeMap::new();
    for topic in answer.topics {
        let name = topic.name.map(|n| n.to_string()).unwrap_or_default();
        for p in topic.partitions {
            leaders.insert((name.clone(), p.partition_index), p.leader_id.0);
        }
    }
    Ok(leaders)
}

fn ask(cluster: &mut Cluster, leader: i32, part: &[(&Place, i64)]) -> Result<Found, ClientError> {
    let mut topics: Vec<ListOffsetsTopic> = Vec::new();
    for ((topic, partition), timestamp) in part {
        if topics.last().is_none_or(|t| t.name.as_str() != topic) {
            topics.push(ListOffsetsTopic::default().with_name(topic_name(topic)));
        }
        let last = topics.last_mut().expect("one was pushed");
        last.partitions.push(
            ListOffsetsPartition::default()
                .with_partition_index(*partition)
                .with_current_leader_epoch(-1)
                .with_timestamp(*timestamp),
        );
    }
    let request = ListOffsetsRequest::default()
        .with_replica_id((-1).into())
        .with_isolation_level(0)
        .with_topics(topics);
    let answer = cluster.broker(leader)?.call(&request, i16::MAX)?;
    let mut found = Found::new();
    for topic in answer.topics {
        for p in topic.partitions {
            let place = (topic.name.to_string(), p.partition_index);
            let offset = check(p.error_code, None)
                .map(|()| p.offset)
                .map_err(|e| about(&place, e));
            found.insert(place, offset);
        }
    }
    for (place, _) in part {
        found.entry((*place).clone()).or_insert_with(|| {
            Err(ClientError::Protocol(
                "an answer about offsets lacks a partition".into(),
            ))
        });
    }
    Ok(found)
}
