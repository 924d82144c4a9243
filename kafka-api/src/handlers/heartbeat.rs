//! Heartbeat, key 12, versions 0-4.
//!
//! Keeps a member's session, and tells it when its group rebalances. From version 3 on with the name of a static member.

use std::rc::Rc;

use kafka_protocol::messages::{HeartbeatRequest, HeartbeatResponse};

use crate::coordinator::requests::Membership;
use crate::coordinator::{self, Reply};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::schema;
use crate::shard::Shard;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: HeartbeatRequest = schema::decode(request, request.version)?;
    let who = Membership {
        group: asked.group_id.0,
        member: asked.member_id,
        instance: asked.group_instance_id,
        generation: asked.generation_id,
    };
    let group = who.group.clone();
    let asked = coordinator::Request::Heartbeat(who);
    let error = match shard.ask_coordinator(&group, asked).await {
        // A member that comes while its group is loaded is no worse for it: Kafka answers so, too.
        Reply::Refused(ErrorCode::CoordinatorLoadInProgress) => ErrorCode::None,
        Reply::Heartbeat(error) | Reply::Refused(error) => error,
        other => unreachable!("a heartbeat is not answered with {other:?}"),
    };
    let response = HeartbeatResponse::default().with_error_code(error.code());
    Answer::encode(shard, request, &response, request.version).await
}
