//! The administrative calls: those of its admin client, and of the consumer what that one lacks.

use futures_executor::block_on;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Map, Value, json};

use crate::{Answer, LIMIT, consumer, number, partition, text};

pub const CALLS: [&str; 15] = [
    "create_partitions",
    "create_topic",
    "delete_group",
    "delete_records",
    "delete_topic",
    "describe_cluster",
    "describe_group",
    "describe_topic",
    "get_config",
    "group_offsets",
    "list_groups",
    "list_offsets",
    "list_topics",
    "set_config",
    "set_group_offset",
];

pub fn call(bootstrap: &str, command: &Value) -> Answer {
    let name = text(command, "call");
    if !CALLS.contains(&name.as_str()) {
        return Err("unsupported".into());
    }
    let topic = text(command, "topic");
    let group = text(command, "group");
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .create()?;
    let with = AdminOptions::new();
    let asking = if group.is_empty() { "nobody" } else { &group };
    let consumer: BaseConsumer = consumer(bootstrap, asking).create()?;
    Ok(match name.as_str() {
        "create_topic" => {
            let partitions = number(command, "partitions") as i32;
            let mut new = NewTopic::new(&topic, partitions, TopicReplication::Fixed(1));
            for (name, value) in command["config"].as_object().expect("configurations") {
                new = new.set(name, value.as_str().expect("a text"));
            }
            one(block_on(admin.create_topics([&new], &with))?)?
        }
        "delete_topic" => one(block_on(admin.delete_topics(&[&topic], &with))?)?,
        "delete_group" => one(block_on(admin.delete_groups(&[&group], &with))?)?,
        "create_partitions" => {
            let new = NewPartitions::new(&topic, number(command, "partitions") as usize);
            one(block_on(admin.create_partitions([&new], &with))?)?
        }
        "get_config" => {
            let resource = ResourceSpecifier::Topic(&topic);
            let found = block_on(admin.describe_configs([&resource], &with))?;
            let found = found.into_iter().next().ok_or("no resource")??;
            let entry = found.get(&text(command, "name")).ok_or("no such entry")?;
            json!(entry.value)
        }
        "set_config" => {
            let (name, value) = (text(command, "name"), text(command, "value"));
            let new = AlterConfig::new(ResourceSpecifier::Topic(&topic)).set(&name, &value);
            let said = block_on(admin.alter_configs([&new], &with))?;
            match said.into_iter().next().ok_or("no answer")? {
                Ok(_) => Value::Null,
                Err((_, code)) => return Err(Box::new(code)),
            }
        }
        "delete_records" => {
            let mut before = TopicPartitionList::new();
            let offset = Offset::Offset(number(command, "before"));
            before.add_partition_offset(&topic, partition(command), offset)?;
            let found = block_on(admin.delete_records(&before, &with))?;
            let one = found
                .find_partition(&topic, partition(command))
                .ok_or("no answer")?;
            one.error()?;
            json!(one.offset().to_raw())
        }
        "describe_cluster" => json!(consumer.fetch_metadata(None, LIMIT)?.brokers().len()),
        "list_topics" => {
            let found = consumer.fetch_metadata(None, LIMIT)?;
            json!(found.topics().iter().map(|t| t.name()).collect::<Vec<_>>())
        }
        "describe_topic" => {
            let found = consumer.fetch_metadata(Some(&topic), LIMIT)?;
            json!(found.topics()[0].partitions().len())
        }
        "list_offsets" => {
            let (low, high) = consumer.fetch_watermarks(&topic, partition(command), LIMIT)?;
            json!([low, high])
        }
        "list_groups" => {
            let found = consumer.fetch_group_list(None, LIMIT)?;
            json!(found.groups().iter().map(|g| g.name()).collect::<Vec<_>>())
        }
        "describe_group" => {
            let found = consumer.fetch_group_list(Some(&group), LIMIT)?;
            let found = found.groups().first().ok_or("no such group")?;
            json!([found.state(), found.members().len()])
        }
        "group_offsets" => {
            let mut asked = TopicPartitionList::new();
            asked.add_partition_range(&topic, 0, 1);
            let found = consumer.committed_offsets(asked, LIMIT)?;
            let elements = found.elements();
            let offsets = elements.iter().filter_map(|p| match p.offset() {
                Offset::Offset(offset) => Some((p.partition().to_string(), json!(offset))),
                _ => None,
            });
            Value::Object(offsets.collect::<Map<_, _>>())
        }
        "set_group_offset" => {
            let mut new = TopicPartitionList::new();
            let offset = Offset::Offset(number(command, "offset"));
            new.add_partition_offset(&topic, partition(command), offset)?;
            consumer.commit(&new, CommitMode::Sync)?;
            Value::Null
        }
        other => unreachable!("{other} is among the calls and has nothing to do it"),
    })
}

/// The result of a call about one thing.
fn one<T>(results: Vec<Result<T, (T, RDKafkaErrorCode)>>) -> Answer {
    match results.into_iter().next().ok_or("no answer")? {
        Ok(_) => Ok(Value::Null),
        Err((_, code)) => Err(Box::new(code)),
    }
}
