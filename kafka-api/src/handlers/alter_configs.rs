//! AlterConfigs, key 33, versions 0-2.
//!
//! The old way to change configurations: what the request names takes the place of everything that was set before. Topics, the defaults of all, this broker, groups and client metrics subscriptions, by the rules of
//! [`super::incremental_alter_configs`]; loggers only go that newer way, as in Kafka.

use std::rc::Rc;

use cluster::topic_config::{AlterOp, ConfigChange, ConfigOp};
use engine::rt;
use kafka_protocol::messages::alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::Malformed;
use crate::frame::Request;
use crate::handlers::describe_configs::{BROKER, LOGGER, TOPIC};
use crate::handlers::incremental_alter_configs::{
    Failure, alter_defaults, alter_topic, change_nothing, defaults_of, invalid, names_of_twice,
};
use crate::handlers::{Answer, repeated};
use crate::schema;
use crate::shard::Shard;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: AlterConfigsRequest = schema::decode(request, request.version)?;
    let named: Vec<_> = asked
        .resources
        .iter()
        .map(|r| (r.resource_type, r.resource_name.clone()))
        .collect();
    let twice = repeated(named.iter());
    let mut rows = Vec::with_capacity(named.len());
    for (resource, name) in asked.resources.iter().zip(&named) {
        let result = if twice.contains(name) {
            Err(names_of_twice())
        } else {
            replace(shard, resource, asked.validate_only).await
        };
        rows.push(row(resource, result));
        // What isn't a topic's is looked at here and now.
        rt::yield_if_needed().await;
    }
    let response = AlterConfigsResponse::default().with_responses(rows);
    Answer::encode(shard, request, &response, request.version).await
}

async fn replace(
    shard: &Rc<Shard>,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Failure> {
    let name = &resource.resource_name;
    let configs = resource.configs.iter();
    match resource.resource_type {
        TOPIC => {
            let configs =
                configs.map(|c| (c.name.to_string(), c.value.as_ref().map(|v| v.to_string())));
            let change = ConfigChange::Replace(configs.collect());
            alter_topic(shard, name, change, validate_only).await
        }
        BROKER if name.is_empty() => {
            let set = configs.map(|c| ConfigOp {
                name: c.name.to_string(),
                op: AlterOp::Set,
                value: c.value.as_ref().map(|v| v.to_string()),
            });
            let instead = |ops: Vec<ConfigOp>| {
                ConfigChange::Replace(ops.into_iter().map(|op| (op.name, op.value)).collect())
            };
            let change = defaults_of(shard, set.collect(), instead)?;
            alter_defaults(shard, change, validate_only).await
        }
        LOGGER => Err(invalid("Loggers are changed with IncrementalAlterConfigs.")),
        // Nothing else was ever set, so that to replace it all is to set what is named.
        other => {
            let set = configs.map(|c| ConfigOp {
                name: c.name.to_string(),
                op: AlterOp::Set,
                value: c.value.as_ref().map(|v| v.to_string()),
            });
            change_nothing(shard, other, name, &set.collect::<Vec<_>>())
        }
    }
}

pub(crate) fn row(
    resource: &AlterConfigsResource,
    result: Result<(), Failure>,
) -> AlterConfigsResourceResponse {
    let row = AlterConfigsResourceResponse::default()
        .with_resource_type(resource.resource_type)
        .with_resource_name(resource.resource_name.clone());
    match result {
        Ok(()) => row.with_error_message(None),
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
        for version in 0..=2 {
            let resource = AlterConfigsResource::default();
            let rows = vec![row(&resource, Ok(())), row(&resource, Err(invalid("no")))];
            let response = AlterConfigsResponse::default().with_responses(rows);
            let mut out = bytes::BytesMut::new();
            response.encode(&mut out, version).unwrap();
        }
    }
}
