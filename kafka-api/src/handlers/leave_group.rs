//! LeaveGroup, key 13, versions 0-5.
//!
//! Up to version 2 one member leaves; from 3 on several at once, each with an answer of its own, and a static member may be removed by its name
//! alone. A reason (5) changes nothing.

use std::rc::Rc;

use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};

use crate::coordinator::requests::Leave;
use crate::coordinator::{self, Reply};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::schema;
use crate::shard::Shard;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: LeaveGroupRequest = schema::decode(request, request.version)?;
    let leave = read(&asked, request.version);
    let group = leave.group.clone();
    let reply = shard
        .ask_coordinator(&group, coordinator::Request::Leave(leave))
        .await;
    let response = match reply {
        Reply::Left(errors) => response(&asked, &errors, request.version),
        Reply::Refused(error) => LeaveGroupResponse::default().with_error_code(error.code()),
        other => unreachable!("a leave is not answered with {other:?}"),
    };
    Answer::encode(shard, request, &response, request.version).await
}

pub(crate) fn read(asked: &LeaveGroupRequest, version: i16) -> Leave {
    let members = if version < 3 {
        vec![(asked.member_id.clone(), None)]
    } else {
        let members = asked.members.iter();
        members
            .map(|m| (m.member_id.clone(), m.group_instance_id.clone()))
            .collect()
    };
    Leave {
        group: asked.group_id.0.clone(),
        members,
    }
}

pub(crate) fn response(
    asked: &LeaveGroupRequest,
    errors: &[ErrorCode],
    version: i16,
) -> LeaveGroupResponse {
    if version < 3 {
        let error = errors.first().copied().unwrap_or(ErrorCode::None);
        return LeaveGroupResponse::default().with_error_code(error.code());
    }
    let members = asked.members.iter().zip(errors).map(|(m, error)| {
        MemberResponse::default()
            .with_member_id(m.member_id.clone())
            .with_group_instance_id(m.group_instance_id.clone())
            .with_error_code(error.code())
    });
    LeaveGroupResponse::default().with_members(members.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::leave_group_request::MemberIdentity;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=5 {
            let asked = LeaveGroupRequest::default().with_members(vec![MemberIdentity::default()]);
            let errors = [ErrorCode::UnknownMemberId];
            let mut out = bytes::BytesMut::new();
            response(&asked, &errors, version)
                .encode(&mut out, version)
                .unwrap();
        }
    }
}
