//! DeleteTopics, key 20, versions 1-6.
//!
//! By name; from version 6 on by name or by id. A topic that is named twice, or by both, is INVALID_REQUEST. From version 5 on a client with a quota that it has used up is told so, topic by topic.

use std::rc::Rc;

use cluster::controller::TopicRef;
use engine::types::TopicId;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::{Answer, repeated};
use crate::quotas::mutations::Mutations;
use crate::request::{ControllerCall, ControllerReply};
use crate::schema;
use crate::shard::Shard;

/// A topic as the request has it: by one of the two.
pub(crate) type Asked = (Option<TopicName>, Uuid);

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: DeleteTopicsRequest = schema::decode(request, request.version)?;
    let asked: Vec<Asked> = if request.version >= 6 {
        let topics = asked.topics.into_iter();
        topics.map(|t| (t.name, t.topic_id)).collect()
    } else {
        let names = asked.topic_names.into_iter();
        names.map(|n| (Some(n), Uuid::nil())).collect()
    };
    let twice = repeated(asked.iter());
    let mut mutations = Mutations::new(shard, request, 5);
    let mut rows = Vec::with_capacity(asked.len());
    for one in &asked {
        rows.push(if twice.contains(one) {
            row(
                one.clone(),
                Some(invalid("The request names the topic twice.")),
            )
        } else {
            delete(shard, &mut mutations, one).await
        });
    }
    let rows = rows.into_iter().map(|r| fit(r, request.version)).collect();
    let response = DeleteTopicsResponse::default().with_responses(rows);
    Ok(Answer {
        throttle_ms: mutations.throttle_ms(),
        ..Answer::encode(shard, request, &response, request.version).await?
    })
}

fn invalid(message: &str) -> (i16, String) {
    (ErrorCode::InvalidRequest.code(), message.to_string())
}

async fn delete(
    shard: &Rc<Shard>,
    mutations: &mut Mutations<'_>,
    asked: &Asked,
) -> DeletableTopicResult {
    let which = match asked {
        (Some(name), id) if id.is_nil() => TopicRef::Name(name.to_string()),
        (None, id) if !id.is_nil() => TopicRef::Id(TopicId(*id)),
        _ => {
            let why = invalid("A topic is deleted by its name or by its id.");
            return row(asked.clone(), Some(why));
        }
    };
    let known = match &which {
        TopicRef::Name(name) => shard.view.topic(name),
        TopicRef::Id(id) => shard.view.topic_by_id(*id),
    };
    // What isn't there costs nothing.
    if let Some(topic) = known
        && let Err(why) = mutations.charge(topic.partitions.len()).await
    {
        return row(asked.clone(), Some(why));
    }
    match shard.ask_controller(ControllerCall::Delete(which)).await {
        Some(ControllerReply::Deleted(Ok((name, id)))) => {
            row((Some(StrBytes::from_string(name).into()), id.0), None)
        }
        Some(ControllerReply::Deleted(Err(e))) => row(asked.clone(), Some((e.code(), e.message))),
        _ => {
            let code = ErrorCode::KafkaStorageError.code();
            let why = (code, "The node is shutting down.".to_string());
            row(asked.clone(), Some(why))
        }
    }
}

pub(crate) fn row((name, id): Asked, error: Option<(i16, String)>) -> DeletableTopicResult {
    let row = DeletableTopicResult::default()
        .with_name(name)
        .with_topic_id(id);
    match error {
        None => row,
        Some((code, message)) => row
            .with_error_code(code)
            .with_error_message(Some(StrBytes::from_string(message))),
    }
}

pub(crate) fn fit(mut row: DeletableTopicResult, version: i16) -> DeletableTopicResult {
    if version < 6 {
        row.topic_id = Uuid::nil();
    }
    if version < 5 {
        row.error_message = None;
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 1..=6 {
            let name: TopicName = StrBytes::from_static_str("t").into();
            let rows = [
                row((Some(name.clone()), Uuid::from_u128(3)), None),
                row((Some(name), Uuid::nil()), Some(invalid("no"))),
            ];
            let rows = rows.into_iter().map(|r| fit(r, version)).collect();
            let response = DeleteTopicsResponse::default().with_responses(rows);
            let mut out = bytes::BytesMut::new();
            response.encode(&mut out, version).unwrap();
        }
    }
}
