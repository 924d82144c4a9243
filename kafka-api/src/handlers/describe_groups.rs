//! DescribeGroups, key 15, versions 0-6.
//!
//! A group that isn't there is Dead and no error up to version 5, GROUP_ID_NOT_FOUND from 6 on (KIP-1043). From 3 on one may ask what one may do with
//! a group: everything, as there are no authorizations yet. From 4 on static members have their names. Coordinators are asked some at a time. A group that is named twice is told twice, as by Kafka;
//! beyond [`limits::DESCRIBED_GROUPS_BYTES`] of members a group is INVALID_REQUEST.

use std::rc::Rc;

use engine::rt;
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::coordinator::requests::Described;
use crate::coordinator::{self, Name, Reply};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::groups::calls::run_of_others;
use crate::handlers::Answer;
use crate::handlers::work::Work;
use crate::limits;
use crate::schema;
use crate::shard::Shard;

/// READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS, each by its number's bit.
const ALL_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

pub async fn handle(
    shard: &Rc<Shard>,
    request: &Request,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let rows = loop {
        let asked: DescribeGroupsRequest = schema::decode(request, request.version)?;
        match gather(shard, asked, request.version, work).await {
            Some(rows) => break rows,
            None => work.anew(&shard.work).await,
        }
    };
    let response = DescribeGroupsResponse::default().with_groups(rows);
    Answer::encode(shard, request, &response, request.version).await
}

/// A row for each group that is asked for; nothing where there is no memory for them.
async fn gather(
    shard: &Rc<Shard>,
    asked: DescribeGroupsRequest,
    version: i16,
    work: &mut Work,
) -> Option<Vec<DescribedGroup>> {
    let operations = asked
        .include_authorized_operations
        .then_some(ALL_OPERATIONS);
    let names: Vec<Name> = asked.groups.into_iter().map(|group| group.0).collect();
    let mut rows = Vec::with_capacity(names.len());
    let mut bytes = 0;
    while rows.len() < names.len() {
        let left = &names[rows.len()..];
        if bytes > limits::DESCRIBED_GROUPS_BYTES {
            let refused = Err(ErrorCode::InvalidRequest);
            rows.push(row(left[0].clone(), refused, operations, version));
            rt::yield_if_needed().await;
            continue;
        }
        let some = &left[..run_of_others(left)];
        let question = |group: &Name| coordinator::Request::Describe(group.clone());
        let replies = shard.ask_coordinators(some, question).await;
        for (group, reply) in some.iter().zip(replies) {
            let result = match reply {
                Reply::Described(described) => {
                    let members = described.members.iter();
                    let more = members
                        .map(|m| limits::MEMBER_BYTES + m.metadata.len() + m.assignment.len())
                        .sum::<usize>();
                    bytes += more;
                    if !work.grow(&shard.work, more) {
                        return None;
                    }
                    Ok(*described)
                }
                Reply::Refused(error) => Err(error),
                other => unreachable!("it is not answered with {other:?}"),
            };
            rows.push(row(group.clone(), result, operations, version));
        }
        rt::yield_if_needed().await;
    }
    Some(rows)
}

pub(crate) fn row(
    group: Name,
    result: Result<Described, ErrorCode>,
    operations: Option<i32>,
    version: i16,
) -> DescribedGroup {
    let row = DescribedGroup::default().with_group_id(group.clone().into());
    let allowed = |row: DescribedGroup| match operations {
        Some(bits) if version >= 3 => row.with_authorized_operations(bits),
        _ => row,
    };
    let described = match result {
        Ok(described) => described,
        Err(ErrorCode::GroupIdNotFound) => {
            let row = row.with_group_state(StrBytes::from_static_str("Dead"));
            if version < 6 {
                return allowed(row);
            }
            let message = StrBytes::from_string(format!("Group {} not found.", &*group));
            return row
                .with_error_code(ErrorCode::GroupIdNotFound.code())
                .with_error_message(Some(message));
        }
        Err(error) => return row.with_error_code(error.code()),
    };
    let row = allowed(row);
    let members = described.members.into_iter().map(|m| {
        let member = DescribedGroupMember::default()
            .with_member_id(m.member)
            .with_client_id(m.client_id)
            .with_client_host(m.client_host)
            .with_member_metadata(m.metadata)
            .with_member_assignment(m.assignment);
        if version >= 4 {
            member.with_group_instance_id(m.instance)
        } else {
            member
        }
    });
    row.with_group_state(StrBytes::from_static_str(described.state))
        .with_protocol_type(described.protocol_type)
        .with_protocol_data(described.protocol)
        .with_members(members.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::own;
    use crate::coordinator::requests::DescribedMember;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=6 {
            let described = Described {
                state: "Stable",
                protocol_type: own("consumer"),
                protocol: own("range"),
                members: vec![DescribedMember {
                    member: own("m"),
                    instance: Some(own("one")),
                    client_id: own("c"),
                    client_host: own("/127.0.0.1"),
                    metadata: bytes::Bytes::from_static(b"x"),
                    assignment: bytes::Bytes::from_static(b"y"),
                }],
            };
            let missing = Err(ErrorCode::GroupIdNotFound);
            for result in [Ok(described), missing, Err(ErrorCode::NotCoordinator)] {
                let rows = vec![row(own("g"), result, Some(ALL_OPERATIONS), version)];
                let response = DescribeGroupsResponse::default().with_groups(rows);
                let mut out = bytes::BytesMut::new();
                response.encode(&mut out, version).unwrap();
            }
        }
    }
}
