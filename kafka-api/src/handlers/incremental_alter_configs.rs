//! IncrementalAlterConfigs, key 44, versions 0-1.
//!
//! Changes of a topic's configuration (SET, DELETE, APPEND, SUBTRACT), carried out by the controller, all or nothing for each topic. Brokers' configuration is
//! read-only: INVALID_REQUEST, as for every other type of resource and for a resource that comes twice.

use std::rc::Rc;

use cluster::controller::AlterTopic;
use cluster::topic_config::{AlterOp, ConfigOp};
use kafka_protocol::messages::incremental_alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::{Answer, describe_configs, repeated};
use crate::request::{ControllerCall, ControllerReply};
use crate::schema;
use crate::shard::Shard;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: IncrementalAlterConfigsRequest = schema::decode(request, request.version)?;
    let named: Vec<_> = asked
        .resources
        .iter()
        .map(|r| (r.resource_type, r.resource_name.clone()))
        .collect();
    let twice = repeated(named.iter());
    let mut rows = Vec::with_capacity(named.len());
    for (resource, name) in asked.resources.iter().zip(&named) {
        let result = if twice.contains(name) {
            Err(invalid("The request names the resource twice."))
        } else {
            alter(shard, resource, asked.validate_only).await
        };
        rows.push(row(resource, result));
    }
    let response = IncrementalAlterConfigsResponse::default().with_responses(rows);
    Answer::encode(request, &response, request.version)
}

fn invalid(message: impl Into<String>) -> (i16, String) {
    (ErrorCode::InvalidRequest.code(), message.into())
}

async fn alter(
    shard: &Rc<Shard>,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), (i16, String)> {
    match resource.resource_type {
        describe_configs::TOPIC => {}
        describe_configs::BROKER => {
            return Err(invalid(
                "A broker's configuration is read-only; it is set when the broker starts.",
            ));
        }
        other => {
            return Err(invalid(format!(
                "Resources of type {other} have no configuration here."
            )));
        }
    }
    let mut ops = Vec::with_capacity(resource.configs.len());
    for config in &resource.configs {
        let Some(op) = AlterOp::from_code(config.config_operation) else {
            return Err(invalid(format!(
                "There is no operation {}.",
                config.config_operation
            )));
        };
        ops.push(ConfigOp {
            name: config.name.to_string(),
            op,
            value: config.value.as_ref().map(|v| v.to_string()),
        });
    }
    let alter = AlterTopic {
        name: resource.resource_name.to_string(),
        ops,
        validate_only,
    };
    match shard.ask_controller(ControllerCall::Alter(alter)).await {
        Some(ControllerReply::Altered(result)) => result.map_err(|e| (e.code(), e.message)),
        _ => Err((
            ErrorCode::KafkaStorageError.code(),
            "The node is shutting down.".to_string(),
        )),
    }
}

fn row(
    resource: &AlterConfigsResource,
    result: Result<(), (i16, String)>,
) -> AlterConfigsResourceResponse {
    let row = AlterConfigsResourceResponse::default()
        .with_resource_type(resource.resource_type)
        .with_resource_name(resource.resource_name.clone());
    match result {
        Ok(()) => row,
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
        for version in 0..=1 {
            let rows = vec![
                row(&AlterConfigsResource::default(), Ok(())),
                row(&AlterConfigsResource::default(), Err(invalid("no"))),
            ];
            let response = IncrementalAlterConfigsResponse::default().with_responses(rows);
            let mut out = bytes::BytesMut::new();
            response.encode(&mut out, version).unwrap();
        }
    }
}
