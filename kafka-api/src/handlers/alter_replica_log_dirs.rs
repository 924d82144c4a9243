//! AlterReplicaLogDirs, key 34, versions 1-2.
//!
//! This node has one data directory, under the name that DescribeLogDirs tells, so that nothing moves: a replica that is wanted where it is, is there. Another directory is LOG_DIR_NOT_FOUND, also of
//! partitions that don't exist; a partition that doesn't exist is UNKNOWN_TOPIC_OR_PARTITION. A partition that is named several times is answered once, for the last of its directories, as by Kafka.

use std::collections::BTreeMap;
use std::rc::Rc;

use cluster::view::Topic;
use engine::rt;
use kafka_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use kafka_protocol::messages::{
    AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, TopicName,
};

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::schema;
use crate::shard::Shard;

/// By topic and partition, whether the directory that is wanted last is the one there is.
pub(crate) type Wanted<'a> = BTreeMap<&'a str, BTreeMap<i32, bool>>;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: AlterReplicaLogDirsRequest = schema::decode(request, request.version)?;
    let wanted = wanted(&asked, &shard.config.broker.data_dir);
    let mut results = Vec::with_capacity(wanted.len());
    for (name, partitions) in &wanted {
        let topic = shard.view.topic(name);
        results.push(result(name, partitions, topic.as_deref()));
        rt::yield_if_needed().await;
    }
    let response = AlterReplicaLogDirsResponse::default().with_results(results);
    Answer::encode(shard, request, &response, request.version).await
}

pub(crate) fn result(
    name: &str,
    partitions: &BTreeMap<i32, bool>,
    topic: Option<&Topic>,
) -> AlterReplicaLogDirTopicResult {
    let rows = partitions.iter().map(|(partition, here)| {
        AlterReplicaLogDirPartitionResult::default()
            .with_partition_index(*partition)
            .with_error_code(moved(topic, *partition, *here).code())
    });
    AlterReplicaLogDirTopicResult::default()
        .with_topic_name(TopicName(name.to_string().into()))
        .with_partitions(rows.collect())
}

pub(crate) fn wanted<'a>(asked: &'a AlterReplicaLogDirsRequest, data_dir: &str) -> Wanted<'a> {
    let mut wanted = Wanted::new();
    for dir in &asked.dirs {
        let here = &*dir.path == data_dir;
        for topic in dir.topics.iter().filter(|t| !t.partitions.is_empty()) {
            let partitions = wanted.entry(&topic.name).or_default();
            partitions.extend(topic.partitions.iter().map(|p| (*p, here)));
        }
    }
    wanted
}

fn moved(topic: Option<&Topic>, partition: i32, here: bool) -> ErrorCode {
    match topic.and_then(|t| t.partition(partition)) {
        _ if !here => ErrorCode::LogDirNotFound,
        None => ErrorCode::UnknownTopicOrPartition,
        Some(_) => ErrorCode::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::alter_replica_log_dirs_request::{
        AlterReplicaLogDir, AlterReplicaLogDirTopic,
    };

    #[test]
    fn the_last_directory_of_a_partition_counts() {
        let dir = |path: &'static str, partitions: Vec<i32>| {
            AlterReplicaLogDir::default()
                .with_path(path.into())
                .with_topics(vec![
                    AlterReplicaLogDirTopic::default()
                        .with_name(TopicName("t".into()))
                        .with_partitions(partitions),
                    AlterReplicaLogDirTopic::default(),
                ])
        };
        let asked = AlterReplicaLogDirsRequest::default().with_dirs(vec![
            dir("/data", vec![0, 1]),
            dir("/data/", vec![1, 2]),
            dir("/data", vec![3, 2]),
        ]);
        let found = wanted(&asked, "/data");
        assert_eq!(found.len(), 1);
        let rows: Vec<_> = found["t"].iter().map(|(p, here)| (*p, *here)).collect();
        assert_eq!(rows, [(0, true), (1, false), (2, true), (3, true)]);
    }

    #[test]
    fn what_does_not_exist_is_told_apart() {
        assert_eq!(moved(None, 0, true), ErrorCode::UnknownTopicOrPartition);
        assert_eq!(moved(None, 0, false), ErrorCode::LogDirNotFound);
    }
}
