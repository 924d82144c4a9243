//! OffsetFetch, key 9, versions 1-10.
//!
//! What was committed; -1 where nothing was. From version 2 on null topics ask for all of a group's offsets, and an error of the group has a place of
//! its own. From 7 on one may ask for stable offsets only, which all are while there are no transactions. From 8 on several groups are asked for at
//! once; 9 brings the member of the other kind of group (KIP-848), of which there are none here; from 10 on topics go by id: a topic without one that is known is
//! UNKNOWN_TOPIC_ID.
//!
//! Coordinators are asked some at a time. A group that is named twice is told twice, as by Kafka; beyond [`limits::DESCRIBED_GROUPS_BYTES`] of offsets a group is INVALID_REQUEST.
//!
//! The request is read by hand: the library doesn't know version 10.

use std::rc::Rc;

use engine::rt;
use engine::types::TopicId;
use kafka_protocol::messages::OffsetFetchResponse;
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use uuid::Uuid;

use crate::coordinator::requests::{OffsetsOf, PartitionOffset, TopicOffsets};
use crate::coordinator::{self, Name, Reply, own};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::groups::calls::run_of_others;
use crate::handlers::Answer;
use crate::handlers::work::Work;
use crate::limits;
use crate::shard::Shard;
use crate::sync::join_all;
use crate::wire::Reader;

/// A request as it was read: one group up to version 7.
#[derive(Debug)]
pub struct OffsetFetchRequest {
    pub groups: Vec<AskedGroup>,
}

#[derive(Debug)]
pub struct AskedGroup {
    pub group: Name,
    pub topics: Option<Vec<AskedTopic>>,
}

#[derive(Debug)]
pub struct AskedTopic {
    /// Empty from version 10 on.
    pub name: Name,
    pub id: Uuid,
    pub partitions: Vec<i32>,
}

impl OffsetFetchRequest {
    pub fn read(request: &Request) -> Result<OffsetFetchRequest, Malformed> {
        let (version, flexible) = (request.version, request.flexible());
        let mut r = request.body.clone();
        let mut groups = Vec::new();
        if version < 8 {
            groups.push(AskedGroup {
                group: r.string(flexible)?,
                topics: topics(&mut r, version, flexible, version >= 2)?,
            });
        } else {
            for _ in 0..r.array(flexible, 3)? {
                let group = r.string(flexible)?;
                if version >= 9 {
                    r.nullable_string(flexible)?;
                    r.i32()?;
                }
                groups.push(AskedGroup {
                    group,
                    topics: topics(&mut r, version, flexible, true)?,
                });
                r.skip_tags(flexible)?;
            }
        }
        if version >= 7 {
            // Whether only stable offsets are wanted.
            r.i8()?;
        }
        r.skip_tags(flexible)?;
        Ok(OffsetFetchRequest { groups })
    }
}

fn topics(
    r: &mut Reader,
    version: i16,
    flexible: bool,
    nullable: bool,
) -> Result<Option<Vec<AskedTopic>>, Malformed> {
    let Some(count) = r.nullable_array(flexible, 3)? else {
        return if nullable {
            Ok(None)
        } else {
            Err(Malformed::Null)
        };
    };
    let mut topics = Vec::new();
    for _ in 0..count {
        let (name, id) = if version >= 10 {
            (Name::default(), r.uuid()?)
        } else {
            (r.string(flexible)?, Uuid::nil())
        };
        let mut partitions = Vec::new();
        for _ in 0..r.array(flexible, 4)? {
            partitions.push(r.i32()?);
        }
        r.skip_tags(flexible)?;
        topics.push(AskedTopic {
            name,
            id,
            partitions,
        });
    }
    Ok(Some(topics))
}

/// What is told of a topic.
pub(crate) struct Told {
    pub name: Name,
    pub id: Uuid,
    pub error: ErrorCode,
    pub partitions: Vec<PartitionOffset>,
}

fn unknown(partitions: &[i32]) -> Vec<PartitionOffset> {
    let one = |p: &i32| PartitionOffset {
        partition: *p,
        offset: -1,
        leader_epoch: -1,
        metadata: Name::default(),
    };
    partitions.iter().map(one).collect()
}

pub async fn handle(
    shard: &Rc<Shard>,
    request: &Request,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let found = loop {
        let asked = OffsetFetchRequest::read(request)?;
        match gather(shard, asked, request.version, work).await {
            Some(found) => break found,
            None => work.anew(&shard.work).await,
        }
    };
    let response = response(found, request.version);
    Answer::encode(shard, request, &response, request.version).await
}

/// The offsets of each group that is asked for; nothing where there is no memory for them.
async fn gather(
    shard: &Rc<Shard>,
    asked: OffsetFetchRequest,
    version: i16,
    work: &mut Work,
) -> Option<Vec<Found>> {
    let names: Vec<Name> = asked.groups.iter().map(|g| g.group.clone()).collect();
    let mut groups = asked.groups.into_iter();
    let mut found = Vec::with_capacity(names.len());
    let mut bytes = 0;
    while found.len() < names.len() {
        let left = &names[found.len()..];
        if bytes > limits::DESCRIBED_GROUPS_BYTES {
            groups.next();
            let refused = Err((ErrorCode::InvalidRequest, Vec::new()));
            found.push((left[0].clone(), refused));
            rt::yield_if_needed().await;
            continue;
        }
        let some = run_of_others(left);
        let asked = groups.by_ref().take(some);
        let asked = asked.map(|group| Box::pin(of_group(shard, group, version)));
        let told = join_all(asked.collect()).await;
        for (name, told) in left[..some].iter().zip(told) {
            let topics = told.iter().flatten();
            let more = topics
                .flat_map(|topic| &topic.partitions)
                .map(|p| limits::OFFSET_BYTES + p.metadata.len())
                .sum::<usize>();
            bytes += more;
            if !work.grow(&shard.work, more) {
                return None;
            }
            found.push((name.clone(), told));
        }
        rt::yield_if_needed().await;
    }
    Some(found)
}

async fn of_group(
    shard: &Rc<Shard>,
    asked: AskedGroup,
    version: i16,
) -> Result<Vec<Told>, (ErrorCode, Vec<Told>)> {
    let mut told = Vec::new();
    let mut wanted = Vec::new();
    for topic in asked.topics.iter().flatten() {
        let known = match version {
            10.. => shard
                .view
                .topic_by_id(TopicId(topic.id))
                .map(|t| own(&t.name)),
            _ => Some(topic.name.clone()),
        };
        let error = match known {
            Some(name) => {
                wanted.push((told.len(), (name, topic.partitions.clone())));
                ErrorCode::None
            }
            None => ErrorCode::UnknownTopicId,
        };
        told.push(Told {
            name: topic.name.clone(),
            id: topic.id,
            error,
            partitions: unknown(&topic.partitions),
        });
    }
    let (places, topics): (Vec<usize>, Vec<_>) = wanted.into_iter().unzip();
    let all = asked.topics.is_none();
    let question = coordinator::Request::Offsets(OffsetsOf {
        group: asked.group.clone(),
        topics: (!all).then_some(topics),
    });
    let found = match shard.ask_coordinator(&asked.group, question).await {
        Reply::Offsets(found) => found,
        Reply::Refused(error) => return Err((error, told)),
        other => unreachable!("a question for offsets is not answered with {other:?}"),
    };
    if all {
        return Ok(found
            .into_iter()
            .filter_map(|t| named(shard, t, version))
            .collect());
    }
    for (place, topic) in places.into_iter().zip(found) {
        told[place].partitions = topic.partitions;
    }
    Ok(told)
}

/// A topic that was not asked for by name or id. One that has no id any more can't be told to who wants ids.
fn named(shard: &Shard, found: TopicOffsets, version: i16) -> Option<Told> {
    let id = shard.view.topic(&found.topic).map(|t| t.id.0);
    Some(Told {
        id: if version >= 10 { id? } else { Uuid::nil() },
        name: found.topic,
        error: ErrorCode::None,
        partitions: found.partitions,
    })
}

pub(crate) type Found = (Name, Result<Vec<Told>, (ErrorCode, Vec<Told>)>);

pub(crate) fn response(found: Vec<Found>, version: i16) -> OffsetFetchResponse {
    if version >= 8 {
        let groups = found.into_iter().map(|(group, result)| {
            let row = OffsetFetchResponseGroup::default().with_group_id(group.into());
            match result {
                Ok(told) => {
                    let topics = told.into_iter().map(|t| topic_row(t, version));
                    row.with_topics(topics.collect())
                }
                Err((error, _)) => row.with_error_code(error.code()),
            }
        });
        return OffsetFetchResponse::default().with_groups(groups.collect());
    }
    let response = OffsetFetchResponse::default();
    let Some((_, result)) = found.into_iter().next() else {
        return response;
    };
    match result {
        Ok(told) => {
            let topics = told
                .into_iter()
                .map(|t| old_row(t, version, ErrorCode::None));
            response.with_topics(topics.collect())
        }
        Err((error, _)) if version >= 2 => response.with_error_code(error.code()),
        Err((error, told)) => {
            let topics = told.into_iter().map(|t| old_row(t, version, error));
            response.with_topics(topics.collect())
        }
    }
}

fn topic_row(told: Told, version: i16) -> OffsetFetchResponseTopics {
    let partitions = told.partitions.into_iter().map(|p| {
        OffsetFetchResponsePartitions::default()
            .with_partition_index(p.partition)
            .with_committed_offset(p.offset)
            .with_committed_leader_epoch(p.leader_epoch)
            .with_metadata(Some(p.metadata))
            .with_error_code(told.error.code())
    });
    let row = OffsetFetchResponseTopics::default().with_partitions(partitions.collect());
    if version >= 10 {
        row.with_topic_id(told.id)
    } else {
        row.with_name(told.name.into())
    }
}

fn old_row(told: Told, version: i16, error: ErrorCode) -> OffsetFetchResponseTopic {
    let partitions = told.partitions.into_iter().map(|p| {
        let row = OffsetFetchResponsePartition::default()
            .with_partition_index(p.partition)
            .with_committed_offset(p.offset)
            .with_metadata(Some(p.metadata))
            .with_error_code(error.code());
        if version >= 5 {
            row.with_committed_leader_epoch(p.leader_epoch)
        } else {
            row
        }
    });
    OffsetFetchResponseTopic::default()
        .with_name(told.name.into())
        .with_partitions(partitions.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{self, Frame};
    use crate::testing;
    use crate::versions::ApiKey;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn requests_are_read_and_answers_fit_every_version() {
        for version in 1..=10 {
            let Ok(Frame::Request(r)) = frame::parse(testing::frame(ApiKey::OffsetFetch, version))
            else {
                panic!("a good frame");
            };
            let asked = OffsetFetchRequest::read(&r).unwrap();
            assert_eq!(&*asked.groups[0].group, "group");
            let topics = asked.groups[0].topics.as_ref().unwrap();
            assert_eq!(topics[0].partitions, [0, 1]);
            let told = || {
                vec![Told {
                    name: own("t"),
                    id: Uuid::nil(),
                    error: ErrorCode::None,
                    partitions: unknown(&[0, 1]),
                }]
            };
            for result in [Ok(told()), Err((ErrorCode::NotCoordinator, told()))] {
                let mut out = bytes::BytesMut::new();
                response(vec![(own("group"), result)], version)
                    .encode(&mut out, version)
                    .unwrap();
            }
        }
    }
}
