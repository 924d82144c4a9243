//! Requests about groups and their offsets, put to a coordinator.

use bytes::BytesMut;
use kafka_protocol::messages as m;

use crate::coordinator::requests::{
    Commit, CommitOffset, DeleteOffsets, Membership, OffsetsOf, TopicOffsets,
};
use crate::coordinator::{Name, Reply, Request as Question};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::groups::topic;
use crate::handlers::*;
use crate::schema::decode;
use crate::testing::world::{World, told};
use crate::versions::ApiKey;

/// What a coordinator refuses without a word about the parts.
fn refusal(reply: &Reply) -> ErrorCode {
    match reply {
        Reply::Refused(error) => *error,
        _ => ErrorCode::None,
    }
}

pub(super) fn carry_out(request: &Request, world: &mut World) -> Result<(), Malformed> {
    let version = request.version;
    match request.api.key {
        ApiKey::OffsetCommit => commit(request, world)?,
        ApiKey::OffsetFetch => fetch_offsets(request, world)?,
        ApiKey::FindCoordinator => {
            let asked: m::FindCoordinatorRequest = decode(request, version)?;
            let keys = match version {
                ..4 => vec![asked.key],
                _ => asked.coordinator_keys,
            };
            for key in &keys {
                assert!((0..50).contains(&topic::partition_of(key, 50)));
            }
            let refused = ErrorCode::CoordinatorNotAvailable;
            let found = keys.into_iter().map(|key| (key, Err(refused))).collect();
            told(&find_coordinator::response(found, version), version);
        }
        ApiKey::JoinGroup => {
            let asked: m::JoinGroupRequest = decode(request, version)?;
            let member = asked.member_id.clone();
            let question = Question::Join(Box::new(join_group::read(asked, request)));
            let joined = match world.ask(question) {
                Reply::Joined(joined) => *joined,
                other => join_group::refused(member, refusal(&other)),
            };
            told(&join_group::response(joined, version), version);
        }
        ApiKey::SyncGroup => {
            let asked: m::SyncGroupRequest = decode(request, version)?;
            let question = Question::Sync(Box::new(sync_group::read(asked)));
            if let Reply::Synced(synced) = world.ask(question) {
                told(&sync_group::response(synced, version), version);
            }
        }
        ApiKey::Heartbeat => {
            let asked: m::HeartbeatRequest = decode(request, version)?;
            let question = Question::Heartbeat(Membership {
                group: asked.group_id.0,
                member: asked.member_id,
                instance: asked.group_instance_id,
                generation: asked.generation_id,
            });
            let error = match world.ask(question) {
                Reply::Heartbeat(error) => error,
                other => refusal(&other),
            };
            let response = m::HeartbeatResponse::default().with_error_code(error.code());
            told(&response, version);
        }
        ApiKey::LeaveGroup => {
            let asked: m::LeaveGroupRequest = decode(request, version)?;
            let question = Question::Leave(leave_group::read(&asked, version));
            if let Reply::Left(errors) = world.ask(question) {
                let response = leave_group::response(&asked, &errors, version);
                told(&response, version);
            }
        }
        ApiKey::DescribeGroups => {
            let asked: m::DescribeGroupsRequest = decode(request, version)?;
            let rows = asked.groups.into_iter().map(|group| {
                let result = match world.ask(Question::Describe(group.0.clone())) {
                    Reply::Described(described) => Ok(*described),
                    other => Err(refusal(&other)),
                };
                describe_groups::row(group.0, result, Some(1), version)
            });
            let rows = rows.collect();
            let response = m::DescribeGroupsResponse::default().with_groups(rows);
            told(&response, version);
        }
        ApiKey::ListGroups => {
            let (_, states) = list_groups::read(request)?;
            if let Reply::Listed(listed) = world.ask(Question::List(states)) {
                let response = list_groups::response(listed, ErrorCode::None, version);
                told(&response, version);
            }
        }
        ApiKey::DeleteGroups => {
            let asked: m::DeleteGroupsRequest = decode(request, version.min(2))?;
            let results = asked.groups_names.into_iter().map(|group| {
                let error = match world.ask(Question::Delete(group.0.clone())) {
                    Reply::Deleted(error) => error,
                    other => refusal(&other),
                };
                (group.0, error)
            });
            let results: Vec<_> = results.collect();
            delete_groups::by_hand(&mut BytesMut::new(), &results);
        }
        ApiKey::OffsetDelete => {
            let asked: m::OffsetDeleteRequest = decode(request, version)?;
            let topics = asked.topics.iter();
            let partitions = topics.flat_map(|t| {
                let parts = t.partitions.iter();
                parts.map(|p| (t.name.0.clone(), p.partition_index))
            });
            let reply = world.ask(Question::DeleteOffsets(DeleteOffsets {
                group: asked.group_id.0.clone(),
                partitions: partitions.collect(),
            }));
            let error = refusal(&reply);
            let answers = match reply {
                Reply::OffsetsDeleted(errors) => errors,
                _ => Vec::new(),
            };
            told(&offset_delete::response(&asked, error, &answers), version);
        }
        other => unreachable!("{other:?} is not about groups"),
    }
    Ok(())
}

/// From version 10 on topics go by id: here all of them stand for the one that there is.
fn named(name: &Name) -> Name {
    match name.is_empty() {
        true => crate::coordinator::own("orders"),
        false => name.clone(),
    }
}

fn commit(request: &Request, world: &mut World) -> Result<(), Malformed> {
    let asked = offset_commit::OffsetCommitRequest::read(request)?;
    let offsets = asked.topics.iter().flat_map(|t| {
        t.partitions.iter().map(|p| CommitOffset {
            topic: named(&t.name),
            topic_id: t.id,
            partition: p.partition,
            offset: p.offset,
            leader_epoch: p.leader_epoch,
            metadata: p.metadata.clone(),
        })
    });
    let offsets: Vec<_> = offsets.collect();
    let count = offsets.len();
    let reply = world.ask(Question::Commit(Box::new(Commit {
        who: asked.who.clone(),
        retention_ms: asked.retention_ms,
        no_group: ErrorCode::GroupIdNotFound,
        offsets,
    })));
    let answers = match reply {
        Reply::Committed(errors) => errors,
        other => vec![refusal(&other); count],
    };
    assert_eq!(answers.len(), count, "one for each offset");
    let response = offset_commit::response(&asked, &answers, request.version);
    told(&response, request.version);
    Ok(())
}

fn fetch_offsets(request: &Request, world: &mut World) -> Result<(), Malformed> {
    let asked = offset_fetch::OffsetFetchRequest::read(request)?;
    let groups = asked.groups.into_iter().map(|group| {
        let topics = group.topics.map(|all| {
            let topics = all.into_iter().map(|t| (named(&t.name), t.partitions));
            topics.collect()
        });
        let question = Question::Offsets(OffsetsOf {
            group: group.group.clone(),
            topics,
        });
        let found = match world.ask(question) {
            Reply::Offsets(found) => Ok(found.into_iter().map(row).collect()),
            other => Err((refusal(&other), Vec::new())),
        };
        (group.group, found)
    });
    let groups = groups.collect();
    let response = offset_fetch::response(groups, request.version);
    told(&response, request.version);
    Ok(())
}

fn row(found: TopicOffsets) -> offset_fetch::Told {
    offset_fetch::Told {
        name: found.topic,
        id: uuid::Uuid::nil(),
        error: ErrorCode::None,
        partitions: found.partitions,
    }
}
