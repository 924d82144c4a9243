//! OffsetDelete, key 47, version 0 (KIP-496).
//!
//! Removes a group's offsets of single partitions. Of a topic that members are subscribed to they stay: GROUP_SUBSCRIBED_TO_TOPIC. A group whose
//! members aren't consumers must be empty.

use std::rc::Rc;

use engine::rt;
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};

use crate::coordinator::requests::DeleteOffsets;
use crate::coordinator::{self, Reply};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::limits;
use crate::schema;
use crate::shard::Shard;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let mut asked: OffsetDeleteRequest = schema::decode(request, request.version)?;
    // A topic that is there has no row without partitions; one that isn't has its row, as in Kafka.
    let is_there = |name: &str| shard.view.topic(name).is_some();
    asked
        .topics
        .retain(|t| !t.partitions.is_empty() || !is_there(&t.name));
    let mut answers = Vec::new();
    let mut places = Vec::new();
    let mut partitions = Vec::new();
    for topic in &asked.topics {
        let found = shard.view.topic(&topic.name);
        for part in &topic.partitions {
            let known = found
                .as_ref()
                .is_some_and(|t| t.partition(part.partition_index).is_some());
            answers.push(if known {
                places.push(answers.len());
                partitions.push((topic.name.0.clone(), part.partition_index));
                ErrorCode::None
            } else {
                ErrorCode::UnknownTopicOrPartition
            });
            if answers.len().is_multiple_of(limits::FETCH_SLICE) {
                rt::yield_if_needed().await;
            }
        }
    }
    let question = coordinator::Request::DeleteOffsets(DeleteOffsets {
        group: asked.group_id.0.clone(),
        partitions,
    });
    let mut error = ErrorCode::None;
    match shard.ask_coordinator(&asked.group_id.0, question).await {
        Reply::OffsetsDeleted(errors) => {
            for (place, error) in places.into_iter().zip(errors) {
                answers[place] = error;
            }
        }
        Reply::Refused(refused) => error = refused,
        other => unreachable!("it is not answered with {other:?}"),
    }
    let response = response(&asked, error, &answers);
    Answer::encode(shard, request, &response, request.version).await
}

pub(crate) fn response(
    asked: &OffsetDeleteRequest,
    error: ErrorCode,
    answers: &[ErrorCode],
) -> OffsetDeleteResponse {
    if !error.is_none() {
        return OffsetDeleteResponse::default().with_error_code(error.code());
    }
    let mut answers = answers.iter();
    let topics = asked.topics.iter().map(|topic| {
        let partitions = topic.partitions.iter().zip(&mut answers);
        let partitions = partitions.map(|(part, error)| {
            OffsetDeleteResponsePartition::default()
                .with_partition_index(part.partition_index)
                .with_error_code(error.code())
        });
        OffsetDeleteResponseTopic::default()
            .with_name(topic.name.clone())
            .with_partitions(partitions.collect())
    });
    OffsetDeleteResponse::default().with_topics(topics.collect())
}
