//! CreateTopics, key 19, versions 2-7.
//!
//! The controller on shard 0 checks and creates, one topic after the other; `validate_only` stops before the change. A name that comes twice in a
//! request is INVALID_REQUEST; beyond [`limits::CREATED_TOPICS`] all are POLICY_VIOLATION. From version 6 on a client with a quota that it has used up is told so, topic by topic. From version 5 on the answer has the topic's size and configuration, from 7 on its id.

use std::rc::Rc;

use cluster::Refused;
use cluster::controller::{CreatedTopic, NewTopic};
use engine::rt;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};
use kafka_protocol::messages::{BrokerId, CreateTopicsRequest, CreateTopicsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::work::Work;
use crate::handlers::{Answer, metadata, repeated};
use crate::limits;
use crate::quotas::mutations::Mutations;
use crate::request::{ControllerCall, ControllerReply};
use crate::schema;
use crate::shard::Shard;

pub async fn handle(
    shard: &Rc<Shard>,
    request: &Request,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let mut asked: CreateTopicsRequest = schema::decode(request, request.version)?;
    let too_many = asked.topics.len() > limits::CREATED_TOPICS;
    let settings = asked.topics.len() * limits::CREATED_TOPIC_BYTES;
    if request.version >= 5 && !too_many && !work.grow(&shard.work, settings) {
        drop(asked);
        work.anew(&shard.work).await;
        asked = schema::decode(request, request.version)?;
    }
    let twice = repeated(asked.topics.iter().map(|t| &t.name));
    let mut mutations = Mutations::new(shard, request, 6);
    let mut rows = Vec::with_capacity(asked.topics.len());
    let mut made = Vec::new();
    for topic in &asked.topics {
        let result = if too_many {
            let why = format!(
                "More than {} topics in one request.",
                limits::CREATED_TOPICS
            );
            Err((ErrorCode::PolicyViolation.code(), why))
        } else if twice.contains(&topic.name) {
            Err((
                ErrorCode::InvalidRequest.code(),
                "The request names the topic twice.".to_string(),
            ))
        } else {
            let result = create(shard, &mut mutations, topic, asked.validate_only).await;
            let assigned = topic.assignments.iter().flat_map(|a| &a.broker_ids);
            result.map_err(|e| in_clients_terms(shard, e, assigned))
        };
        if result.is_ok() && !asked.validate_only {
            made.push(&topic.name);
        }
        // The settings of very many topics are a lot: no more of them is kept than is told.
        rows.push(row(topic, result, request.version));
        rt::yield_if_needed().await;
    }
    for name in made {
        metadata::wait_for_leaders(shard, name).await;
    }
    let response = CreateTopicsResponse::default().with_topics(rows);
    Ok(Answer {
        throttle_ms: mutations.throttle_ms(),
        ..Answer::encode(shard, request, &response, request.version).await?
    })
}

pub(crate) fn row(
    topic: &CreatableTopic,
    result: Result<CreatedTopic, (i16, String)>,
    version: i16,
) -> CreatableTopicResult {
    let row = CreatableTopicResult::default()
        .with_name(topic.name.clone())
        .with_error_message(None);
    match result {
        Ok(created) => created_row(row, created, version),
        Err((code, message)) => row
            .with_error_code(code)
            .with_error_message(Some(StrBytes::from_string(message))),
    }
}

async fn create(
    shard: &Rc<Shard>,
    mutations: &mut Mutations<'_>,
    topic: &CreatableTopic,
    validate_only: bool,
) -> Result<CreatedTopic, (i16, String)> {
    let faces = shard.faces();
    let new = NewTopic {
        name: topic.name.to_string(),
        partitions: topic.num_partitions,
        replication_factor: topic.replication_factor,
        assignments: topic
            .assignments
            .iter()
            .map(|a| {
                let nodes = a.broker_ids.iter().map(|b| faces.assigned(b.0)).collect();
                (a.partition_index, nodes)
            })
            .collect(),
        configs: topic
            .configs
            .iter()
            .map(|c| (c.name.to_string(), c.value.as_ref().map(|v| v.to_string())))
            .collect(),
        validate_only,
        internal: false,
    };
    if !mutations.are_limited() {
        return ask(shard, new).await;
    }
    // Only what would be created is charged.
    let sound = NewTopic {
        validate_only: true,
        ..new.clone()
    };
    let created = ask(shard, sound).await?;
    let partitions = usize::try_from(created.partitions).unwrap_or(0);
    mutations.charge(partitions).await?;
    if validate_only {
        return Ok(created);
    }
    ask(shard, new).await
}

/// A refused placement on a broker that isn't there is told with the ids that clients know.
pub(crate) fn in_clients_terms<'a>(
    shard: &Shard,
    (code, message): (i16, String),
    assigned: impl Iterator<Item = &'a BrokerId>,
) -> (i16, String) {
    if code != ErrorCode::InvalidReplicaAssignment.code() {
        return (code, message);
    }
    let stranger = shard.faces().stranger(assigned.map(|b| b.0));
    (code, stranger.unwrap_or(message))
}

async fn ask(shard: &Rc<Shard>, new: NewTopic) -> Result<CreatedTopic, (i16, String)> {
    match shard.ask_controller(ControllerCall::Create(new)).await {
        Some(ControllerReply::Created(result)) => {
            result.map_err(|e: Refused| (e.code(), e.message))
        }
        _ => Err((
            ErrorCode::KafkaStorageError.code(),
            "The node is shutting down.".to_string(),
        )),
    }
}

fn created_row(
    row: CreatableTopicResult,
    created: CreatedTopic,
    version: i16,
) -> CreatableTopicResult {
    if version < 5 {
        return row;
    }
    let configs = created.configs.into_iter().map(|c| {
        CreatableTopicConfigs::default()
            .with_name(StrBytes::from_static_str(c.name))
            .with_value(c.value.map(StrBytes::from_string))
            .with_read_only(c.read_only)
            .with_config_source(c.source as i8)
            .with_is_sensitive(c.sensitive)
    });
    let row = row
        .with_num_partitions(created.partitions)
        .with_replication_factor(created.replication_factor)
        .with_configs(Some(configs.collect()));
    if version >= 7 {
        row.with_topic_id(created.id.0)
    } else {
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::topic_config;
    use engine::types::TopicId;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 2..=7 {
            let created = CreatedTopic {
                name: "t".into(),
                id: TopicId(uuid::Uuid::from_u128(9)),
                partitions: 3,
                replication_factor: 1,
                configs: topic_config::describe(&Default::default(), &Default::default(), None),
            };
            let row = created_row(CreatableTopicResult::default(), created, version);
            let refused = CreatableTopicResult::default()
                .with_error_code(36)
                .with_error_message(Some(StrBytes::from_static_str("no")));
            let response = CreateTopicsResponse::default().with_topics(vec![row, refused]);
            let mut out = bytes::BytesMut::new();
            response.encode(&mut out, version).unwrap();
        }
    }
}
