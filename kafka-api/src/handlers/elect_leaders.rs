//! ElectLeaders, key 43, versions 0-2.
//!
//! Leaders are elected by their groups, and only among replicas that have every acknowledged record: an unclean election, which is type 1 from version 1 on, is never held. A partition whose preferred
//! replica leads (for type 1: that has a leader) is ELECTION_NOT_NEEDED; another is PREFERRED_LEADER_NOT_AVAILABLE or ELIGIBLE_LEADERS_NOT_AVAILABLE, since no group hands its leadership over
//! yet. Null asks for every partition: named are the topics, and of their partitions those for which there is something to tell.

use std::rc::Rc;

use cluster::view::Topic;
use engine::rt;
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::handlers::work::Work;
use crate::limits;
use crate::schema;
use crate::shard::Shard;

const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

pub async fn handle(
    shard: &Rc<Shard>,
    request: &Request,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let asked: ElectLeadersRequest = schema::decode(request, request.version)?;
    // Version 0 knows preferred elections alone, which is what the library leaves in the field.
    let kind = asked.election_type;
    let known = matches!(kind, PREFERRED | UNCLEAN);
    let mut results = Vec::new();
    match &asked.topic_partitions {
        None if known => {
            let all = shard.view.topic_count() * limits::GATHERED_TOPIC_BYTES;
            if !work.grow(&shard.work, all) {
                work.anew(&shard.work).await;
            }
            for topic in shard.view.topics() {
                results.push(everything(&topic, kind));
                rt::yield_if_needed().await;
            }
        }
        None => {}
        Some(topics) => {
            for asked in topics {
                let topic = shard.view.topic(&asked.topic);
                let mut rows = Vec::with_capacity(asked.partitions.len());
                for p in &asked.partitions {
                    let (code, why) = if known {
                        elect(topic.as_deref(), *p, kind)
                    } else {
                        (
                            ErrorCode::InvalidRequest,
                            "There is no such type of election.",
                        )
                    };
                    rows.push(row(*p, code, why));
                    if rows.len().is_multiple_of(limits::FETCH_SLICE) {
                        rt::yield_if_needed().await;
                    }
                }
                results.push(result(asked.topic.clone(), rows));
                rt::yield_if_needed().await;
            }
        }
    }
    let response = ElectLeadersResponse::default().with_replica_election_results(results);
    let response = match known {
        true => response,
        // Version 0 has no room for it, and no type that could be wrong.
        false => response.with_error_code(ErrorCode::InvalidRequest.code()),
    };
    Answer::encode(shard, request, &response, request.version).await
}

fn everything(topic: &Topic, kind: i8) -> ReplicaElectionResult {
    let rows = (0..topic.partitions.len() as i32)
        .map(|p| (p, elect(Some(topic), p, kind)))
        .filter(|(_, (code, _))| *code != ErrorCode::ElectionNotNeeded)
        .map(|(p, (code, why))| row(p, code, why));
    let name = StrBytes::from_string(topic.name.to_string());
    result(name.into(), rows.collect())
}

pub(crate) fn elect(topic: Option<&Topic>, partition: i32, kind: i8) -> (ErrorCode, &'static str) {
    let Some(topic) = topic else {
        return (
            ErrorCode::UnknownTopicOrPartition,
            "There is no such topic.",
        );
    };
    let Some(placed) = topic.partition(partition) else {
        return (
            ErrorCode::UnknownTopicOrPartition,
            "The topic has no such partition.",
        );
    };
    let leader = topic.leader(partition).and_then(|l| l.node);
    let preferred = placed.replicas.first().map(|r| r.node);
    match kind {
        UNCLEAN if leader.is_some() => {
            (ErrorCode::ElectionNotNeeded, "The partition has a leader.")
        }
        UNCLEAN => (
            ErrorCode::EligibleLeadersNotAvailable,
            "No replica is elected that may lack acknowledged records.",
        ),
        _ if leader.is_some() && leader == preferred => {
            (ErrorCode::ElectionNotNeeded, "The preferred replica leads.")
        }
        _ => (
            ErrorCode::PreferredLeaderNotAvailable,
            "The preferred replica doesn't lead now.",
        ),
    }
}

pub(crate) fn row(partition: i32, code: ErrorCode, why: &'static str) -> PartitionResult {
    PartitionResult::default()
        .with_partition_id(partition)
        .with_error_code(code.code())
        .with_error_message(Some(StrBytes::from_static_str(why)))
}

pub(crate) fn result(topic: TopicName, rows: Vec<PartitionResult>) -> ReplicaElectionResult {
    ReplicaElectionResult::default()
        .with_topic(topic)
        .with_partition_result(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=2 {
            let rows = vec![row(0, ErrorCode::ElectionNotNeeded, "it leads")];
            let results = vec![result(StrBytes::from_static_str("t").into(), rows)];
            let response = ElectLeadersResponse::default().with_replica_election_results(results);
            let mut out = bytes::BytesMut::new();
            response.encode(&mut out, version).unwrap();
        }
    }

    #[test]
    fn what_is_not_there_is_unknown() {
        let (code, _) = elect(None, 0, PREFERRED);
        assert_eq!(code, ErrorCode::UnknownTopicOrPartition);
    }
}
