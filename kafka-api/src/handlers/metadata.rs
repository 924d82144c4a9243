//! Metadata, key 3, versions 0-13.
//!
//! Answered from the shard's own copy. Version 0 asks for all topics with an empty list, later ones with null. Topics that are asked for by name and
//! aren't there are created, if node and client allow it (clients can say no from version 4 on), at most [`limits::AUTO_CREATE_TOPICS`] a
//! request; a moment is spent on their leaders, so that the client needn't ask again. From 10 on topics have ids, from 12 on they can be
//! asked for by id. Authorized operations are told to who asks for them, from version 8 on, and are all of them: there are no authorizations yet. The controller is told to be the node that is
//! asked: admin requests are served anywhere.

use std::rc::Rc;
use std::time::Duration;

use cluster::controller::NewTopic;
use cluster::view::Topic;
use cluster::{Refusal, topic_name};
use engine::rt;
use engine::types::TopicId;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::groups::topic as offsets;
use crate::handlers::Answer;
use crate::handlers::describe_cluster::CLUSTER_OPERATIONS;
use crate::handlers::describe_topic_partitions::TOPIC_OPERATIONS;
use crate::limits;
use crate::request::{ControllerCall, ControllerReply};
use crate::schema;
use crate::shard::Shard;

/// How long an answer waits for the leaders of topics that it created.
const LEADERS_WAIT: Duration = Duration::from_secs(1);
const LEADERS_LOOK: Duration = Duration::from_millis(2);

/// What is told of one topic.
enum Told {
    Topic(Rc<Topic>),
    Missing {
        name: Option<TopicName>,
        id: Uuid,
        error: ErrorCode,
    },
}

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let version = request.version;
    let asked: MetadataRequest = schema::decode(request, version)?;
    let mut told = Vec::new();
    match asked.topics {
        None => told.extend(shard.view.topics().into_iter().map(Told::Topic)),
        Some(topics) if topics.is_empty() && version == 0 => {
            told.extend(shard.view.topics().into_iter().map(Told::Topic));
        }
        Some(topics) => {
            let may_create = (version < 4 || asked.allow_auto_topic_creation)
                && shard.config.broker.auto_create_topics;
            let mut created = 0;
            for topic in topics {
                told.push(match topic.name {
                    Some(name) => find(shard, name, may_create, &mut created).await,
                    None => by_id(shard, topic.topic_id),
                });
            }
        }
    }
    let response = response(shard, &told, version);
    let response = operations(
        response,
        asked.include_cluster_authorized_operations,
        asked.include_topic_authorized_operations,
    );
    Answer::encode(request, &response, version)
}

fn by_id(shard: &Shard, id: Uuid) -> Told {
    match shard.view.topic_by_id(TopicId(id)) {
        Some(topic) => Told::Topic(topic),
        None => Told::Missing {
            name: None,
            id,
            error: ErrorCode::UnknownTopicId,
        },
    }
}

async fn find(shard: &Rc<Shard>, name: TopicName, may_create: bool, created: &mut usize) -> Told {
    if let Some(topic) = shard.view.topic(&name) {
        return Told::Topic(topic);
    }
    let missing = |error| Told::Missing {
        name: Some(name.clone()),
        id: Uuid::nil(),
        error,
    };
    if topic_name::check(&name).is_err() {
        return missing(ErrorCode::InvalidTopic);
    }
    if !may_create || *created >= limits::AUTO_CREATE_TOPICS {
        return missing(ErrorCode::UnknownTopicOrPartition);
    }
    *created += 1;
    let new = if *name.0 == *offsets::NAME {
        offsets::new()
    } else {
        NewTopic {
            name: name.to_string(),
            partitions: -1,
            replication_factor: -1,
            ..NewTopic::default()
        }
    };
    let reply = shard.ask_controller(ControllerCall::Create(new)).await;
    let error = match reply {
        Some(ControllerReply::Created(Ok(_))) => ErrorCode::LeaderNotAvailable,
        Some(ControllerReply::Created(Err(refused))) => match refused.refusal {
            // Somebody else was first, which is as good.
            Refusal::TopicAlreadyExists => ErrorCode::LeaderNotAvailable,
            Refusal::InvalidTopic => ErrorCode::InvalidTopic,
            Refusal::InvalidReplicationFactor => ErrorCode::InvalidReplicationFactor,
            Refusal::PolicyViolation => ErrorCode::PolicyViolation,
            _ => ErrorCode::LeaderNotAvailable,
        },
        _ => ErrorCode::LeaderNotAvailable,
    };
    if error != ErrorCode::LeaderNotAvailable {
        return missing(error);
    }
    wait_for_leaders(shard, &name).await;
    match shard.view.topic(&name) {
        Some(topic) => Told::Topic(topic),
        None => missing(error),
    }
}

/// Waits a little until a new topic's partitions have leaders.
pub(crate) async fn wait_for_leaders(shard: &Shard, name: &str) {
    let led = || {
        shard.view.topic(name).is_some_and(|t| {
            (0..t.partitions.len()).all(|p| t.leader(p as i32).is_some_and(|l| l.node.is_some()))
        })
    };
    let wait = async {
        while !led() {
            rt::sleep(LEADERS_LOOK).await;
        }
    };
    let _ = rt::timeout(LEADERS_WAIT, wait).await;
}

fn response(shard: &Shard, told: &[Told], version: i16) -> MetadataResponse {
    let brokers = shard.view.brokers();
    let brokers = brokers.iter().map(|node| {
        MetadataResponseBroker::default()
            .with_node_id(node.id.0.into())
            .with_host(StrBytes::from_string(node.host.clone()))
            .with_port(i32::from(node.port))
            .with_rack(node.rack.clone().map(StrBytes::from_string))
    });
    let cluster_id = shard.view.cluster_id();
    MetadataResponse::default()
        .with_brokers(brokers.collect())
        .with_cluster_id(cluster_id.map(|id| StrBytes::from_string(id.to_string())))
        .with_controller_id(shard.node.0.into())
        .with_topics(told.iter().map(|t| topic(t, version)).collect())
}

/// Adds what may be done, where it was asked for.
fn operations(mut response: MetadataResponse, cluster: bool, topics: bool) -> MetadataResponse {
    if cluster {
        response.cluster_authorized_operations = CLUSTER_OPERATIONS;
    }
    if topics {
        for topic in &mut response.topics {
            topic.topic_authorized_operations = TOPIC_OPERATIONS;
        }
    }
    response
}

fn topic(told: &Told, version: i16) -> MetadataResponseTopic {
    match told {
        Told::Topic(topic) => {
            let partitions = (0..topic.partitions.len()).map(|p| partition(topic, p, version));
            MetadataResponseTopic::default()
                .with_name(Some(StrBytes::from_string(topic.name.to_string()).into()))
                .with_topic_id(if version >= 10 {
                    topic.id.0
                } else {
                    Uuid::nil()
                })
                .with_is_internal(offsets::INTERNAL.contains(&&*topic.name))
                .with_partitions(partitions.collect())
        }
        Told::Missing { name, id, error } => MetadataResponseTopic::default()
            .with_name(name.clone())
            .with_topic_id(if version >= 10 { *id } else { Uuid::nil() })
            .with_error_code(error.code()),
    }
}

fn partition(topic: &Topic, p: usize, version: i16) -> MetadataResponsePartition {
    let replicas: Vec<_> = topic.partitions[p]
        .replicas
        .iter()
        .map(|r| r.node.0.into())
        .collect();
    let leader = topic.leader(p as i32);
    let node = leader.and_then(|l| l.node);
    let error = match node {
        Some(_) => ErrorCode::None,
        None => ErrorCode::LeaderNotAvailable,
    };
    let epoch = leader.map_or(-1, |l| l.epoch().0);
    MetadataResponsePartition::default()
        .with_error_code(error.code())
        .with_partition_index(p as i32)
        .with_leader_id(node.map_or(-1, |n| n.0).into())
        .with_leader_epoch(if version >= 7 { epoch } else { -1 })
        .with_isr_nodes(replicas.clone())
        .with_replica_nodes(replicas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=13 {
            let name: Option<TopicName> = Some(StrBytes::from_static_str("t").into());
            let mut missing = vec![Told::Missing {
                name,
                id: Uuid::nil(),
                error: ErrorCode::UnknownTopicOrPartition,
            }];
            if version >= 12 {
                missing.push(Told::Missing {
                    name: None,
                    id: Uuid::from_u128(5),
                    error: ErrorCode::UnknownTopicId,
                });
            }
            let topics = missing.iter().map(|t| topic(t, version)).collect();
            let response = MetadataResponse::default().with_topics(topics);
            let mut out = bytes::BytesMut::new();
            response.encode(&mut out, version).unwrap();
        }
    }
}
