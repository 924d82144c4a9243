//! ListGroups, key 16, versions 0-5.
//!
//! The groups whose coordinator this node is, or this shard if it was reached directly: every partition's are asked for. From version 4 on only those in certain states (KIP-518), from 5
//! on only those of certain types, of which there is one here, "classic".

use std::rc::Rc;

use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{ListGroupsRequest, ListGroupsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::coordinator::requests::Listed;
use crate::coordinator::{self, Reply};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::groups::topic;
use crate::handlers::Answer;
use crate::schema;
use crate::shard::Shard;

const CLASSIC: &str = "classic";

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: ListGroupsRequest = schema::decode(request, request.version)?;
    let types = &asked.types_filter;
    let wanted = types.is_empty() || types.iter().any(|t| t.eq_ignore_ascii_case(CLASSIC));
    let states: Vec<String> = asked.states_filter.iter().map(|s| s.to_string()).collect();
    let mut error = ErrorCode::None;
    let mut groups = Vec::new();
    let offsets = shard.view.topic(topic::NAME).filter(|_| wanted);
    for number in 0..offsets.as_ref().map_or(0, |t| t.partitions.len()) as i32 {
        let Some(offsets) = &offsets else { break };
        let group = offsets.group(number);
        if request.direct && shard.owner(group) != shard.id {
            continue;
        }
        let question = coordinator::Request::List(states.clone());
        match shard.ask_partition(group, question).await {
            Reply::Listed(listed) => groups.extend(listed),
            // Another node lists them.
            Reply::Refused(ErrorCode::NotCoordinator) => {}
            Reply::Refused(refused) => error = refused,
            other => unreachable!("it is not answered with {other:?}"),
        }
    }
    if !error.is_none() {
        groups.clear();
    }
    let response = response(groups, error, request.version);
    Answer::encode(shard, request, &response, request.version).await
}

fn response(groups: Vec<Listed>, error: ErrorCode, version: i16) -> ListGroupsResponse {
    let rows = groups.into_iter().map(|g| {
        let row = ListedGroup::default()
            .with_group_id(g.group.into())
            .with_protocol_type(g.protocol_type);
        let row = if version >= 4 {
            row.with_group_state(StrBytes::from_static_str(g.state))
        } else {
            row
        };
        if version >= 5 {
            row.with_group_type(StrBytes::from_static_str(CLASSIC))
        } else {
            row
        }
    });
    ListGroupsResponse::default()
        .with_error_code(error.code())
        .with_groups(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::own;
    use kafka_protocol::protocol::Encodable;

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=5 {
            let groups = vec![Listed {
                group: own("g"),
                protocol_type: own("consumer"),
                state: "Stable",
            }];
            let mut out = bytes::BytesMut::new();
            response(groups, ErrorCode::None, version)
                .encode(&mut out, version)
                .unwrap();
        }
    }
}
