//! CreatePartitions, key 37, versions 0-3.
//!
//! The controller on shard 0 checks and adds, one topic after the other; `validate_only` stops before the change. A number that is no increase is INVALID_PARTITIONS; a
//! topic that the request names twice is answered once, with INVALID_REQUEST. From version 3 on a client with a quota that it has used up is told so, topic by topic. A moment is spent on the leaders of new partitions, so that the client needn't wait for them.

use std::collections::BTreeSet;
use std::rc::Rc;

use cluster::controller::NewPartitions;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{BrokerId, CreatePartitionsRequest, CreatePartitionsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::create_topics::in_clients_terms;
use crate::handlers::{Answer, metadata, repeated};
use crate::quotas::mutations::Mutations;
use crate::request::{ControllerCall, ControllerReply};
use crate::schema;
use crate::shard::Shard;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: CreatePartitionsRequest = schema::decode(request, request.version)?;
    let twice = repeated(asked.topics.iter().map(|t| &t.name));
    let mut mutations = Mutations::new(shard, request, 3);
    let mut told = BTreeSet::new();
    let mut results = Vec::with_capacity(asked.topics.len());
    for topic in &asked.topics {
        if !told.insert(&topic.name) {
            continue;
        }
        let result = if twice.contains(&topic.name) {
            Err((
                ErrorCode::InvalidRequest.code(),
                "The request names the topic twice.".to_string(),
            ))
        } else {
            let result = add(shard, &mut mutations, topic, asked.validate_only).await;
            let assigned = topic.assignments.iter().flatten();
            let assigned = assigned.flat_map(|a| &a.broker_ids);
            result.map_err(|e| in_clients_terms(shard, e, assigned))
        };
        results.push((topic, result));
    }
    let mut rows = Vec::with_capacity(results.len());
    for (topic, result) in results {
        if result.is_ok() && !asked.validate_only {
            metadata::wait_for_leaders(shard, &topic.name).await;
        }
        rows.push(row(topic, result));
    }
    let response = CreatePartitionsResponse::default().with_results(rows);
    Ok(Answer {
        throttle_ms: mutations.throttle_ms(),
        ..Answer::encode(shard, request, &response, request.version).await?
    })
}

async fn add(
    shard: &Rc<Shard>,
    mutations: &mut Mutations<'_>,
    topic: &CreatePartitionsTopic,
    validate_only: bool,
) -> Result<i32, (i16, String)> {
    let faces = shard.faces();
    let assignments = topic.assignments.as_ref().map(|all| {
        let node = |b: &BrokerId| faces.assigned(b.0);
        let nodes = all.iter().map(|a| a.broker_ids.iter().map(node));
        nodes.map(Iterator::collect).collect()
    });
    let new = NewPartitions {
        name: topic.name.to_string(),
        count: topic.count,
        assignments,
        validate_only,
    };
    if mutations.are_limited() {
        // Only what would be added is charged.
        let sound = NewPartitions {
            validate_only: true,
            ..new.clone()
        };
        let count = ask(shard, sound).await?;
        let had = shard.view.topic(&topic.name).map(|t| t.partitions.len());
        let more = usize::try_from(count).unwrap_or(0);
        mutations
            .charge(more.saturating_sub(had.unwrap_or(0)))
            .await?;
    }
    ask(shard, new).await
}

async fn ask(shard: &Rc<Shard>, new: NewPartitions) -> Result<i32, (i16, String)> {
    let call = ControllerCall::AddPartitions(new);
    match shard.ask_controller(call).await {
        Some(ControllerReply::PartitionsAdded(result)) => result.map_err(|e| (e.code(), e.message)),
        _ => Err((
            ErrorCode::KafkaStorageError.code(),
            "The node is shutting down.".to_string(),
        )),
    }
}

pub(crate) fn row(
    topic: &CreatePartitionsTopic,
    result: Result<i32, (i16, String)>,
) -> CreatePartitionsTopicResult {
    let row = CreatePartitionsTopicResult::default().with_name(topic.name.clone());
    match result {
        Ok(_) => row.with_error_message(None),
        Err((code, message)) => row
            .with_error_code(code)
            .with_error_message(Some(StrBytes::from_string(message))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=3 {
            let topic = CreatePartitionsTopic::default();
            let rows = vec![row(&topic, Ok(3)), row(&topic, Err((37, "no".into())))];
            let response = CreatePartitionsResponse::default().with_results(rows);
            let mut out = bytes::BytesMut::new();
            response.encode(&mut out, version).unwrap();
        }
    }
}
