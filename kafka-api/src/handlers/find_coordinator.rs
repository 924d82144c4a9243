//! FindCoordinator, key 10, versions 0-6.
//!
//! Groups (key type 0, the only one in version 0): the node that leads the group's partition of `__consumer_offsets`, which is made when it is first
//! asked for. From version 4 on many keys are asked for at once and each has an answer of its own.
//!
//! Transactional ids (type 1) can't be had yet: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the one code that clients take as final here, as
//! InitProducerId answers. Share groups (type 2) and other types are INVALID_REQUEST, as in a Kafka without them.

use std::rc::Rc;

use engine::rt;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::groups::topic;
use crate::handlers::Answer;
use crate::handlers::produce::wire::Endpoint;
use crate::schema;
use crate::shard::Shard;

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: FindCoordinatorRequest = schema::decode(request, request.version)?;
    let key_type = if request.version == 0 {
        GROUP
    } else {
        asked.key_type
    };
    let keys = if request.version < 4 {
        vec![asked.key]
    } else {
        asked.coordinator_keys
    };
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let result = match key_type {
            GROUP => of_group(shard, &key).await,
            TRANSACTION => Err(ErrorCode::TransactionalIdAuthorizationFailed),
            _ => Err(ErrorCode::InvalidRequest),
        };
        found.push((key, result));
        rt::yield_if_needed().await;
    }
    Answer::encode(
        shard,
        request,
        &response(found, request.version),
        request.version,
    )
    .await
}

async fn of_group(shard: &Rc<Shard>, group: &str) -> Result<Endpoint, ErrorCode> {
    let topic = topic::get(shard).await?;
    let number = topic::partition_of(group, topic.partitions.len());
    let leader = topic.leader(number).and_then(|l| l.node);
    let leader = leader.ok_or(ErrorCode::CoordinatorNotAvailable)?;
    let faces = shard.faces();
    let found = faces.endpoint(faces.of(leader, topic.group(number)));
    found.ok_or(ErrorCode::CoordinatorNotAvailable)
}

fn message(error: ErrorCode) -> &'static str {
    match error {
        ErrorCode::TransactionalIdAuthorizationFailed => "Transactions are not supported yet.",
        ErrorCode::InvalidRequest => "There are no coordinators of this type.",
        _ => "The coordinator is not available yet.",
    }
}

pub(crate) fn response(
    found: Vec<(StrBytes, Result<Endpoint, ErrorCode>)>,
    version: i16,
) -> FindCoordinatorResponse {
    let rows = found.into_iter().map(|(key, result)| {
        let row = Coordinator::default().with_key(key);
        match result {
            Ok(node) => row
                .with_node_id(node.node.into())
                .with_host(StrBytes::from_string(node.host))
                .with_port(node.port),
            Err(error) => row
                .with_node_id((-1).into())
                .with_port(-1)
                .with_error_code(error.code())
                .with_error_message(Some(StrBytes::from_static_str(message(error)))),
        }
    });
    let response = FindCoordinatorResponse::default();
    if version >= 4 {
        return response.with_coordinators(rows.collect());
    }
    let Some(only) = rows.into_iter().next() else {
        return response;
    };
    let response = response
        .with_error_code(only.error_code)
        .with_node_id(only.node_id)
        .with_host(only.host)
        .with_port(only.port);
    if version >= 1 {
        response.with_error_message(only.error_message)
    } else {
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=6 {
            let node = Endpoint {
                node: 1,
                host: "localhost".into(),
                port: 9092,
                rack: None,
            };
            for result in [Ok(node), Err(ErrorCode::CoordinatorNotAvailable)] {
                let found = vec![(StrBytes::from_static_str("g"), result)];
                let mut out = bytes::BytesMut::new();
                response(found, version).encode(&mut out, version).unwrap();
            }
        }
    }
}
