//! DescribeConfigs, key 32, versions 1-4, answered by hand: thousands of topics are described in one go.
//!
//! Topics (type 2), this broker (4; what was set for all brokers, under an empty name), its loggers (8), client metrics subscriptions (16) and groups (32); every other type is INVALID_REQUEST. Of topics, groups and subscriptions
//! everything is listed that Kafka knows; the documentation says of what only the default is taken. Of the broker it is what has an effect, and the defaults of topics. Null, and an empty list of names,
//! stand for everything. A resource that is named twice is told twice, as by Kafka. Types and documentation come from version 3 on. An answer ends at
//! [`limits::DESCRIBED_CONFIGS_BYTES`]: what is asked for beyond that is INVALID_REQUEST. Its memory is taken before it is written, by what such answers take.

use std::rc::Rc;

use bytes::{BufMut, BytesMut};
use cluster::topic_config::{self, ConfigRow};
use cluster::{broker_config, fixed_config, topic_name};
use engine::rt;
use kafka_protocol::messages::DescribeConfigsRequest;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;

use crate::error::{ErrorCode, Malformed};
use crate::frame::{Request, finish};
use crate::handlers::incremental_alter_configs::{Failure, invalid};
use crate::handlers::{Answer, memory_for};
use crate::limits;
use crate::refusals::Refusals;
use crate::schema;
use crate::shard::Shard;
use crate::wire::Writer;

const FLEXIBLE_FROM: i16 = 4;
pub const TOPIC: i8 = 2;
pub const BROKER: i8 = 4;
pub const LOGGER: i8 = 8;
pub const CLIENT_METRICS: i8 = 16;
pub const GROUP: i8 = 32;

/// What the request wants of each row.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub synonyms: bool,
    pub documentation: bool,
    pub version: i16,
}

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: DescribeConfigsRequest = schema::decode(request, request.version)?;
    let wanted = Wanted {
        synonyms: asked.include_synonyms,
        documentation: asked.include_documentation,
        version: request.version,
    };
    let flexible = request.flexible();
    let estimate = estimate(&asked).min(limits::DESCRIBED_CONFIGS_BYTES);
    let mut memory = memory_for(shard, estimate).await;
    let mut out = request.answer(estimate);
    out.put_i32(0);
    out.put_array(asked.resources.len(), flexible);
    let mut refusals = Refusals::default();
    for resource in &asked.resources {
        let rows = if out.len() < limits::DESCRIBED_CONFIGS_BYTES {
            describe(shard, resource)
        } else {
            Err(invalid(
                "That is too much for one answer; ask for fewer resources at a time.",
            ))
        };
        if let Err((code, why)) = &rows {
            refusals.tell(*code, Some(why.clone()));
        }
        write_resource(&mut out, resource, &rows, wanted);
        rt::yield_if_needed().await;
    }
    out.put_no_tags(flexible);
    finish(&mut out, 0);
    memory.shrink_to(out.len());
    Ok(Answer {
        refusals,
        ..Answer::held(out.freeze(), memory)
    })
}

/// Bytes that an answer takes, about: names, values, their synonyms and documentation are about so long.
pub(crate) fn estimate(asked: &DescribeConfigsRequest) -> usize {
    let row = 64
        + if asked.include_synonyms { 128 } else { 0 }
        + if asked.include_documentation { 256 } else { 0 };
    let of = |resource: &DescribeConfigsResource| {
        let all = match resource.resource_type {
            TOPIC => 40,
            BROKER | LOGGER => 200,
            CLIENT_METRICS | GROUP => 20,
            _ => 1,
        };
        let keys = resource.configuration_keys.as_ref().map_or(0, Vec::len);
        let rows = if keys == 0 { all } else { keys.min(all) };
        64 + resource.resource_name.len() + rows * row
    };
    256 + asked.resources.iter().map(of).sum::<usize>()
}

fn describe(shard: &Shard, resource: &DescribeConfigsResource) -> Result<Vec<ConfigRow>, Failure> {
    let names: Option<Vec<&str>> = resource
        .configuration_keys
        .as_ref()
        .filter(|keys| !keys.is_empty())
        .map(|keys| sorted(keys.iter().map(|k| &**k)));
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
            Ok(topic_config::describe(
                &topic.overrides,
                &shard.view.defaults(),
                names.as_deref(),
            ))
        }
        BROKER if name.is_empty() => Ok(broker_config::describe_defaults(
            &shard.view.defaults(),
            names.as_deref(),
        )),
        BROKER => {
            check_broker(shard, name)?;
            let config = &shard.config.broker;
            Ok(broker_config::describe(
                config,
                &shard.view.defaults(),
                names.as_deref(),
            ))
        }
        LOGGER => {
            check_broker(shard, name)?;
            Ok(shard.config.loggers.describe(names.as_deref()))
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

/// Names as they are looked up: each row is looked for among them, and there may be a hundred thousand.
pub(crate) fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names
}

/// Whether a resource's name is the id of this node.
pub(crate) fn check_broker(shard: &Shard, name: &str) -> Result<(), Failure> {
    match name.parse::<i32>() {
        Ok(id) if shard.faces().is_own(id) => Ok(()),
        Ok(_) => Err(invalid(format!(
            "This is broker {}; ask another for its own.",
            shard.node
        ))),
        Err(_) => Err(invalid("A broker's id is a whole number.")),
    }
}

pub(crate) fn write_resource(
    out: &mut BytesMut,
    resource: &DescribeConfigsResource,
    rows: &Result<Vec<ConfigRow>, Failure>,
    wanted: Wanted,
) {
    let flexible = wanted.version >= FLEXIBLE_FROM;
    let (code, message, rows) = match rows {
        // Not null, as Kafka has it.
        Ok(rows) => (0, Some(""), rows.as_slice()),
        Err((code, message)) => (*code, Some(message.as_str()), [].as_slice()),
    };
    out.put_i16(code);
    out.put_nullable_str(message, flexible);
    out.put_i8(resource.resource_type);
    out.put_str(&resource.resource_name, flexible);
    out.put_array(rows.len(), flexible);
    for row in rows {
        write_row(out, row, wanted);
    }
    out.put_no_tags(flexible);
}

fn write_row(out: &mut BytesMut, row: &ConfigRow, wanted: Wanted) {
    let flexible = wanted.version >= FLEXIBLE_FROM;
    // What is secret is never told.
    let told = |value: &Option<String>| value.clone().filter(|_| !row.sensitive);
    out.put_str(row.name, flexible);
    out.put_nullable_str(told(&row.value).as_deref(), flexible);
    out.put_u8(u8::from(row.read_only));
    out.put_i8(row.source as i8);
    out.put_u8(u8::from(row.sensitive));
    let synonyms = match wanted.synonyms {
        true => row.synonyms.as_slice(),
        false => &[],
    };
    out.put_array(synonyms.len(), flexible);
    for synonym in synonyms {
        out.put_str(&synonym.name, flexible);
        out.put_nullable_str(told(&synonym.value).as_deref(), flexible);
        out.put_i8(synonym.source as i8);
        out.put_no_tags(flexible);
    }
    if wanted.version >= 3 {
        out.put_i8(row.value_type as i8);
        let documentation = wanted.documentation.then_some(&*row.documentation);
        out.put_nullable_str(documentation, flexible);
    }
    out.put_no_tags(flexible);
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::DescribeConfigsResponse;
    use kafka_protocol::protocol::Decodable;

    #[test]
    fn answers_of_every_version_are_what_the_library_reads() {
        let own = [("retention.ms".to_string(), "5".to_string())];
        let own = std::collections::BTreeMap::from(own);
        let all = [
            Ok(topic_config::describe(&own, &Default::default(), None)),
            Ok(broker_config::describe(
                &Default::default(),
                &Default::default(),
                None,
            )),
            Err(invalid("no")),
        ];
        for version in 1..=4 {
            for yes in [false, true] {
                let wanted = Wanted {
                    synonyms: yes,
                    documentation: yes,
                    version,
                };
                let flexible = version >= FLEXIBLE_FROM;
                let mut out = BytesMut::new();
                out.put_i32(0);
                out.put_array(all.len(), flexible);
                for rows in &all {
                    write_resource(&mut out, &DescribeConfigsResource::default(), rows, wanted);
                }
                out.put_no_tags(flexible);
                let mut bytes = out.freeze();
                let got = DescribeConfigsResponse::decode(&mut bytes, version).unwrap();
                assert!(bytes.is_empty(), "version {version}");
                assert_eq!(got.results[2].error_code, 42);
                let configs = &got.results[0].configs;
                assert_eq!(configs.len(), 37);
                let row = configs.iter().find(|c| &*c.name == "retention.ms").unwrap();
                assert_eq!(row.value.as_deref(), Some("5"));
                assert_eq!(row.config_source, 1);
                assert_eq!(row.synonyms.len(), if yes { 2 } else { 0 });
                if version >= 3 {
                    assert_eq!(row.config_type, 5);
                    assert_eq!(row.documentation.is_some(), yes);
                }
            }
        }
    }

    #[test]
    fn what_is_named_is_found_in_whatever_order() {
        let names = ["segment.ms", "nope", "cleanup.policy", "segment.ms", ""];
        let names = sorted(names.into_iter());
        let none = topic_config::Settings::new();
        let rows = topic_config::describe(&none, &none, Some(&names));
        let found: Vec<_> = rows.iter().map(|row| row.name).collect();
        assert_eq!(found, ["cleanup.policy", "segment.ms"]);
    }

    #[test]
    fn secrets_are_not_told() {
        let none = Default::default();
        let mut rows = broker_config::describe(&Default::default(), &none, Some(&["log.dirs"]));
        rows[0].sensitive = true;
        let wanted = Wanted {
            synonyms: true,
            documentation: true,
            version: 1,
        };
        let mut out = BytesMut::new();
        write_resource(
            &mut out,
            &DescribeConfigsResource::default(),
            &Ok(rows),
            wanted,
        );
        assert!(!out.windows(6).any(|w| w == b"./data"), "{out:?}");
    }
}
