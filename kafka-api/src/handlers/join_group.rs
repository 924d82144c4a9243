//! JoinGroup, key 11, versions 0-9.
//!
//! Answered when the group's rebalance is done, or when it can't be had ([`crate::coordinator`]). Version 0 has one timeout for session and
//! rebalance; from 4 on a member that comes without an id is given one to come again with (KIP-394), from 5 on it may have a name that outlives
//! it (KIP-345), and from 9 on a leader may be told to leave the assignment as it is (KIP-814). A reason (8) changes nothing.

use std::rc::Rc;

use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse};

use engine::memory::Leases;

use crate::coordinator::requests::{Join, Joined};
use crate::coordinator::{self, Name, Reply, own};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::handlers::work::Work;
use crate::schema;
use crate::shard::Shard;

pub async fn handle(
    shard: &Rc<Shard>,
    request: &mut Request,
    memory: &mut Leases,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let asked: JoinGroupRequest = schema::decode(request, request.version)?;
    let member = own(&asked.member_id);
    let join = read(asked, request);
    let group = own(&join.group);
    // The coordinator copies what it keeps: nothing of the frame is left while others are waited for.
    request.let_go();
    memory.clear();
    work.let_go();
    let asked = coordinator::Request::Join(Box::new(join));
    let joined = match shard.ask_coordinator(&group, asked).await {
        Reply::Joined(joined) => *joined,
        Reply::Refused(error) => refused(member, error),
        other => unreachable!("a join is not answered with {other:?}"),
    };
    Answer::encode(
        shard,
        request,
        &response(joined, request.version),
        request.version,
    )
    .await
}

pub(crate) fn refused(member: Name, error: ErrorCode) -> Joined {
    match Joined::error(member, error) {
        Reply::Joined(joined) => *joined,
        _ => unreachable!("it makes the answer to a join"),
    }
}

pub(crate) fn read(asked: JoinGroupRequest, request: &Request) -> Join {
    let rebalance_timeout_ms = if request.version == 0 {
        asked.session_timeout_ms
    } else {
        asked.rebalance_timeout_ms
    };
    let protocols = asked.protocols.into_iter().map(|p| (p.name, p.metadata));
    Join {
        group: asked.group_id.0,
        member: asked.member_id,
        needs_known_member: request.version >= 4 && asked.group_instance_id.is_none(),
        can_skip_assignment: request.version >= 9,
        instance: asked.group_instance_id,
        client_id: client_id(request),
        client_host: client_host(request),
        session_timeout_ms: asked.session_timeout_ms,
        rebalance_timeout_ms,
        protocol_type: asked.protocol_type,
        protocols: protocols.collect(),
    }
}

/// The client's id as far as it is text.
fn client_id(request: &Request) -> Name {
    let bytes = request.client_id.0.as_deref().unwrap_or_default();
    own(&String::from_utf8_lossy(bytes))
}

/// Where the client is, as Kafka writes it.
fn client_host(request: &Request) -> Name {
    own(&request
        .peer
        .map_or_else(String::new, |peer| format!("/{}", peer.ip())))
}

pub(crate) fn response(joined: Joined, version: i16) -> JoinGroupResponse {
    let members = joined.members.into_iter().map(|m| {
        let row = JoinGroupResponseMember::default()
            .with_member_id(m.member)
            .with_metadata(m.metadata);
        if version >= 5 {
            row.with_group_instance_id(m.instance)
        } else {
            row
        }
    });
    // Before version 7 there must be a name.
    let protocol = joined.protocol;
    let protocol = if version >= 7 {
        protocol
    } else {
        Some(protocol.unwrap_or_default())
    };
    let response = JoinGroupResponse::default()
        .with_error_code(joined.error.code())
        .with_generation_id(joined.generation)
        .with_protocol_name(protocol)
        .with_leader(joined.leader)
        .with_member_id(joined.member)
        .with_members(members.collect());
    let response = if version >= 7 {
        response.with_protocol_type(joined.protocol_type)
    } else {
        response
    };
    if version >= 9 {
        response.with_skip_assignment(joined.skip_assignment)
    } else {
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::requests::JoinedMember;
    use bytes::Bytes;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=9 {
            let joined = Joined {
                error: ErrorCode::None,
                member: own("m-1"),
                generation: 3,
                protocol_type: Some(own("consumer")),
                protocol: Some(own("range")),
                leader: own("m-1"),
                skip_assignment: true,
                members: vec![JoinedMember {
                    member: own("m-1"),
                    instance: Some(own("one")),
                    metadata: Bytes::from_static(b"x"),
                }],
            };
            let refused = refused(own("m"), ErrorCode::UnknownMemberId);
            for joined in [joined, refused] {
                let mut out = bytes::BytesMut::new();
                response(joined, version).encode(&mut out, version).unwrap();
            }
        }
    }
}
