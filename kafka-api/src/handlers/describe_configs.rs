//! DescribeConfigs, key 32, versions 1-4.
//!
//! Topics (type 2), this broker (4, read-only), its loggers (8, read-only), client metrics subscriptions (16) and groups (32); every other type is INVALID_REQUEST. Of topics, groups and subscriptions
//! everything is listed that Kafka knows; the documentation says of what only the default is taken. Of the broker it is what has an effect, and the defaults of topics. Null, and an empty list of names,
//! stand for everything. Types and documentation come from version 3 on.

use std::borrow::Cow;
use std::rc::Rc;

use cluster::topic_config::{self, ConfigRow};
use cluster::{broker_config, fixed_config, topic_name};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::handlers::incremental_alter_configs::{Failure, invalid};
use crate::schema;
use crate::shard::Shard;

pub const TOPIC: i8 = 2;
pub const BROKER: i8 = 4;
pub const LOGGER: i8 = 8;
pub const CLIENT_METRICS: i8 = 16;
pub const GROUP: i8 = 32;

/// What the request wants of each row.
#[derive(Clone, Copy)]
struct Wanted {
    synonyms: bool,
    documentation: bool,
    version: i16,
}

pub fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: DescribeConfigsRequest = schema::decode(request, request.version)?;
    let wanted = Wanted {
        synonyms: asked.include_synonyms,
        documentation: asked.include_documentation,
        version: request.version,
    };
    let results = asked.resources.into_iter().map(|resource| {
        let rows = describe(shard, &resource);
        result(resource, rows, wanted)
    });
    let response = DescribeConfigsResponse::default().with_results(results.collect());
    Answer::encode(request, &response, request.version)
}

fn describe(shard: &Shard, resource: &DescribeConfigsResource) -> Result<Vec<ConfigRow>, Failure> {
    let names: Option<Vec<&str>> = resource
        .configuration_keys
        .as_ref()
        .filter(|keys| !keys.is_empty())
        .map(|keys| keys.iter().map(|k| &**k).collect());
    let name = &*resource.resource_name;
    match resource.resource_type {
        TOPIC => {
            if let Err(refused) = topic_name::check(name) {
                return Err((refused.code(), refused.message));
            }
            let topic = shard.view.topic(name).ok_or_else(|| {
                let message = format!("There is no topic '{name}'.");
                (ErrorCode::UnknownTopicOrPartition.code(), message)
            })?;
            Ok(topic_config::describe(&topic.overrides, names.as_deref()))
        }
        // An empty name is the cluster-wide default, of which there is nothing.
        BROKER if name.is_empty() => Ok(Vec::new()),
        BROKER => {
            check_broker(shard, name)?;
            let config = &shard.config.broker;
            Ok(broker_config::describe(config, names.as_deref()))
        }
        LOGGER => {
            check_broker(shard, name)?;
            let config = &shard.config.broker;
            Ok(broker_config::describe_loggers(config, names.as_deref()))
        }
        CLIENT_METRICS | GROUP if name.is_empty() => Err(invalid("The resource has no name.")),
        CLIENT_METRICS => {
            let table = fixed_config::CLIENT_METRICS;
            Ok(fixed_config::describe(table, names.as_deref()))
        }
        GROUP => Ok(fixed_config::describe(
            fixed_config::GROUP,
            names.as_deref(),
        )),
        other => Err(invalid(format!(
            "Resources of type {other} have no configuration here."
        ))),
    }
}

/// Whether a resource's name is the id of this node.
pub(crate) fn check_broker(shard: &Shard, name: &str) -> Result<(), Failure> {
    match name.parse::<i32>() {
        Ok(id) if id == shard.node.0 => Ok(()),
        Ok(_) => Err(invalid(format!(
            "This is broker {}; ask another for its own.",
            shard.node
        ))),
        Err(_) => Err(invalid("A broker's id is a whole number.")),
    }
}

fn result(
    resource: DescribeConfigsResource,
    rows: Result<Vec<ConfigRow>, Failure>,
    wanted: Wanted,
) -> DescribeConfigsResult {
    let result = DescribeConfigsResult::default()
        .with_resource_type(resource.resource_type)
        .with_resource_name(resource.resource_name);
    match rows {
        Ok(rows) => result.with_configs(rows.into_iter().map(|r| row(r, wanted)).collect()),
        Err((code, message)) => result
            .with_error_code(code)
            .with_error_message(Some(StrBytes::from_string(message))),
    }
}

fn row(row: ConfigRow, wanted: Wanted) -> DescribeConfigsResourceResult {
    let told = DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str(row.name))
        .with_value(
            row.value
                .filter(|_| !row.sensitive)
                .map(StrBytes::from_string),
        )
        .with_read_only(row.read_only)
        .with_config_source(row.source as i8)
        .with_is_sensitive(row.sensitive);
    let told = if wanted.synonyms {
        let synonyms = row.synonyms.into_iter().map(|s| {
            DescribeConfigsSynonym::default()
                .with_name(StrBytes::from_string(s.name))
                .with_value(
                    s.value
                        .filter(|_| !row.sensitive)
                        .map(StrBytes::from_string),
                )
                .with_source(s.source as i8)
        });
        told.with_synonyms(synonyms.collect())
    } else {
        told
    };
    if wanted.version < 3 {
        return told;
    }
    let told = told.with_config_type(row.value_type as i8);
    if wanted.documentation {
        let text = match row.documentation {
            Cow::Borrowed(text) => StrBytes::from_static_str(text),
            Cow::Owned(text) => StrBytes::from_string(text),
        };
        told.with_documentation(Some(text))
    } else {
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 1..=4 {
            for yes in [false, true] {
                let wanted = Wanted {
                    synonyms: yes,
                    documentation: yes,
                    version,
                };
                let results = vec![
                    result(
                        DescribeConfigsResource::default(),
                        Ok(topic_config::describe(&Default::default(), None)),
                        wanted,
                    ),
                    result(
                        DescribeConfigsResource::default(),
                        Ok(broker_config::describe(&Default::default(), None)),
                        wanted,
                    ),
                    result(
                        DescribeConfigsResource::default(),
                        Err(invalid("no")),
                        wanted,
                    ),
                ];
                let response = DescribeConfigsResponse::default().with_results(results);
                let mut out = bytes::BytesMut::new();
                response.encode(&mut out, version).unwrap();
            }
        }
    }
}
