//! IncrementalAlterConfigs, key 44, versions 0-1.
//!
//! Changes of a topic's configuration (SET, DELETE, APPEND, SUBTRACT), carried out by the controller, all or nothing for each topic; a resource that comes twice is INVALID_REQUEST. The broker
//! with the empty name stands for all: there the defaults of topics' configs are set, under the names that brokers have for them. Everything else of a broker is
//! configured when it starts, and groups and client metrics subscriptions have nothing to configure yet: of all these only a change that keeps to what is in force is taken, and the answer to every other says
//! why. Loggers change until the node starts anew. Brokers and loggers are those of the node that is asked.

use std::rc::Rc;

use cluster::controller::AlterTopic;
use cluster::topic_config::{AlterOp, ConfigChange, ConfigOp};
use cluster::{Refused, broker_config, fixed_config};
use engine::rt;
use kafka_protocol::messages::incremental_alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::describe_configs::{BROKER, CLIENT_METRICS, GROUP, LOGGER, TOPIC};
use crate::handlers::{Answer, describe_configs, repeated};
use crate::request::{ControllerCall, ControllerReply};
use crate::schema;
use crate::shard::Shard;

/// Kafka's code and a sentence.
pub(crate) type Failure = (i16, String);

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
            Err(names_of_twice())
        } else {
            alter(shard, resource, asked.validate_only).await
        };
        rows.push(row(resource, result));
        // What isn't a topic's is looked at here and now.
        rt::yield_if_needed().await;
    }
    let response = IncrementalAlterConfigsResponse::default().with_responses(rows);
    Answer::encode(shard, request, &response, request.version).await
}

pub(crate) fn invalid(message: impl Into<String>) -> Failure {
    (ErrorCode::InvalidRequest.code(), message.into())
}

pub(crate) fn names_of_twice() -> Failure {
    invalid("The request names the resource twice.")
}

pub(crate) fn refused(e: Refused) -> Failure {
    (e.code(), e.message)
}

async fn alter(
    shard: &Rc<Shard>,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Failure> {
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
    let name = &resource.resource_name;
    match resource.resource_type {
        TOPIC => alter_topic(shard, name, ConfigChange::Steps(ops), validate_only).await,
        BROKER if name.is_empty() => {
            let change = defaults_of(shard, ops, ConfigChange::Steps)?;
            alter_defaults(shard, change, validate_only).await
        }
        LOGGER => {
            describe_configs::check_broker(shard, name)?;
            let loggers = &shard.config.loggers;
            loggers.alter(&ops, validate_only).map_err(refused)
        }
        other => change_nothing(shard, other, name, &ops),
    }
}

pub(crate) async fn alter_topic(
    shard: &Rc<Shard>,
    name: &str,
    change: ConfigChange,
    validate_only: bool,
) -> Result<(), Failure> {
    let alter = AlterTopic {
        name: name.to_string(),
        change,
        validate_only,
    };
    altered(shard, ControllerCall::Alter(alter)).await
}

pub(crate) async fn alter_defaults(
    shard: &Rc<Shard>,
    change: ConfigChange,
    validate_only: bool,
) -> Result<(), Failure> {
    let call = ControllerCall::AlterDefaults {
        change,
        validate_only,
    };
    // Of brokers Kafka calls so what it calls an invalid configuration of topics.
    altered(shard, call).await.map_err(|(code, why)| {
        let invalid_config = code == ErrorCode::InvalidConfig.code();
        let code = if invalid_config {
            ErrorCode::InvalidRequest.code()
        } else {
            code
        };
        (code, why)
    })
}

/// What of a change of all brokers is one of the defaults of topics, under the names that topics have for them; the rest must change nothing.
pub(crate) fn defaults_of(
    shard: &Shard,
    ops: Vec<ConfigOp>,
    change: impl Fn(Vec<ConfigOp>) -> ConfigChange,
) -> Result<ConfigChange, Failure> {
    let (mut of_topics, others): (Vec<ConfigOp>, Vec<ConfigOp>) = ops
        .into_iter()
        .partition(|op| broker_config::of_topics(&op.name).is_some());
    let defaults = shard.view.defaults();
    broker_config::check(&shard.config.broker, &defaults, &others).map_err(refused)?;
    for op in &mut of_topics {
        if let Some(d) = broker_config::of_topics(&op.name) {
            op.name = d.name.to_string();
        }
    }
    Ok(change(of_topics))
}

async fn altered(shard: &Rc<Shard>, call: ControllerCall) -> Result<(), Failure> {
    match shard.ask_controller(call).await {
        Some(ControllerReply::Altered(result)) => result.map_err(refused),
        _ => Err((
            ErrorCode::KafkaStorageError.code(),
            "The node is shutting down.".to_string(),
        )),
    }
}

/// What isn't a topic's is taken only if it changes nothing.
pub(crate) fn change_nothing(
    shard: &Shard,
    kind: i8,
    name: &str,
    ops: &[ConfigOp],
) -> Result<(), Failure> {
    match kind {
        BROKER => {
            describe_configs::check_broker(shard, name)?;
            let defaults = shard.view.defaults();
            broker_config::check(&shard.config.broker, &defaults, ops).map_err(refused)
        }
        CLIENT_METRICS | GROUP if name.is_empty() => Err(invalid("The resource has no name.")),
        CLIENT_METRICS => fixed_config::check(&fixed_config::METRICS, ops).map_err(refused),
        GROUP => fixed_config::check(&fixed_config::GROUPS, ops).map_err(refused),
        other => Err(invalid(format!(
            "Resources of type {other} have no configuration here."
        ))),
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
