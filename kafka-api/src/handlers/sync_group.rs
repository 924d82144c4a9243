//! SyncGroup, key 14, versions 0-5.
//!
//! The leader brings the assignment of its generation, everybody else waits for it. From version 5 on a member must say what kind of group and
//! which protocol it believes in (KIP-559).

use std::rc::Rc;

use kafka_protocol::messages::{SyncGroupRequest, SyncGroupResponse};

use engine::memory::Leases;

use crate::coordinator::requests::{Membership, Sync, Synced};
use crate::coordinator::{self, Reply, own};
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
    let asked: SyncGroupRequest = schema::decode(request, request.version)?;
    request.let_go();
    memory.clear();
    work.let_go();
    let unsaid = asked.protocol_type.is_none() || asked.protocol_name.is_none();
    let reply = if request.version >= 5 && unsaid {
        Synced::error(ErrorCode::InconsistentGroupProtocol)
    } else {
        let sync = read(asked);
        let group = own(&sync.who.group);
        let asked = coordinator::Request::Sync(Box::new(sync));
        shard.ask_coordinator(&group, asked).await
    };
    let response = match reply {
        Reply::Synced(synced) => response(synced, request.version),
        Reply::Refused(error) => SyncGroupResponse::default().with_error_code(error.code()),
        other => unreachable!("a sync is not answered with {other:?}"),
    };
    Answer::encode(shard, request, &response, request.version).await
}

pub(crate) fn read(asked: SyncGroupRequest) -> Sync {
    let assignments = asked.assignments.into_iter();
    Sync {
        who: Membership {
            group: asked.group_id.0,
            member: asked.member_id,
            instance: asked.group_instance_id,
            generation: asked.generation_id,
        },
        protocol_type: asked.protocol_type,
        protocol: asked.protocol_name,
        assignments: assignments.map(|a| (a.member_id, a.assignment)).collect(),
    }
}

pub(crate) fn response(synced: Synced, version: i16) -> SyncGroupResponse {
    let response = SyncGroupResponse::default()
        .with_error_code(synced.error.code())
        .with_assignment(synced.assignment);
    if version >= 5 {
        response
            .with_protocol_type(synced.protocol_type)
            .with_protocol_name(synced.protocol)
    } else {
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::own;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=5 {
            let synced = Synced {
                error: ErrorCode::None,
                protocol_type: Some(own("consumer")),
                protocol: Some(own("range")),
                assignment: bytes::Bytes::from_static(b"x"),
            };
            let mut out = bytes::BytesMut::new();
            response(synced, version).encode(&mut out, version).unwrap();
        }
    }
}
