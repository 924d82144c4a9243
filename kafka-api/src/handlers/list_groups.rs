//! ListGroups, key 16, versions 0-5.
//!
//! The groups whose coordinator this node is, or this shard if it was reached directly: every partition's are asked for, some at a time. From version 4 on only those in certain states (KIP-518), from 5
//! on only those of certain types, of which there is one here, "classic". States and types that there aren't are passed over once, not for each group: a request may name a hundred thousand.

use std::rc::Rc;

use engine::rt;
use engine::types::GroupId;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{ListGroupsRequest, ListGroupsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::coordinator::group::State;
use crate::coordinator::requests::{Listed, States};
use crate::coordinator::{self, Reply};
use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::groups::topic;
use crate::handlers::Answer;
use crate::handlers::work::Work;
use crate::limits;
use crate::schema;
use crate::shard::Shard;
use crate::sync::join_all;

const CLASSIC: &str = "classic";

pub async fn handle(
    shard: &Rc<Shard>,
    request: &Request,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let (wanted, states) = read(request)?;
    let found = loop {
        if !wanted {
            break Ok(Vec::new());
        }
        match gather(shard, request.direct, states, work).await {
            Some(found) => break found,
            None => work.anew(&shard.work).await,
        }
    };
    let (groups, error) = match found {
        Ok(groups) => (groups, ErrorCode::None),
        Err(error) => (Vec::new(), error),
    };
    let response = response(groups, error, request.version);
    Answer::encode(shard, request, &response, request.version).await
}

/// Whether groups of the type here are wanted, and in which states.
pub(crate) fn read(request: &Request) -> Result<(bool, States), Malformed> {
    let asked: ListGroupsRequest = schema::decode(request, request.version)?;
    let types = &asked.types_filter;
    let wanted = types.is_empty() || types.iter().any(|t| t.eq_ignore_ascii_case(CLASSIC));
    Ok((wanted, states(&asked.states_filter)))
}

fn states(filter: &[StrBytes]) -> States {
    if filter.is_empty() {
        return States::ALL;
    }
    let known = filter.iter().filter_map(|name| State::named(name));
    known.fold(States::NONE, States::with)
}

/// What every partition's coordinator lists; nothing where there is no memory for it.
async fn gather(
    shard: &Rc<Shard>,
    direct: bool,
    states: States,
    work: &mut Work,
) -> Option<Result<Vec<Listed>, ErrorCode>> {
    let Some(offsets) = shard.view.topic(topic::NAME) else {
        return Some(Ok(Vec::new()));
    };
    let mut groups = Vec::new();
    let partitions = (0..offsets.partitions.len() as i32).map(|number| offsets.group(number));
    let here = |partition: &GroupId| !direct || shard.owner(*partition) == shard.id;
    let partitions: Vec<GroupId> = partitions.filter(here).collect();
    for some in partitions.chunks(limits::LISTED_AT_A_TIME) {
        let questions = some.iter().map(|partition| {
            let question = coordinator::Request::List(states);
            Box::pin(shard.ask_partition(*partition, question))
        });
        for reply in join_all(questions.collect()).await {
            match reply {
                Reply::Listed(listed) => {
                    let bytes = listed
                        .iter()
                        .map(|g| limits::LISTED_GROUP_BYTES + g.group.len());
                    if !work.grow(&shard.work, bytes.sum()) {
                        return None;
                    }
                    groups.extend(listed);
                }
                // Another node lists them.
                Reply::Refused(ErrorCode::NotCoordinator) => {}
                Reply::Refused(refused) => return Some(Err(refused)),
                other => unreachable!("it is not answered with {other:?}"),
            }
            rt::yield_if_needed().await;
        }
    }
    Some(Ok(groups))
}

pub(crate) fn response(groups: Vec<Listed>, error: ErrorCode, version: i16) -> ListGroupsResponse {
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
    fn states_are_looked_up_once_whatever_their_case() {
        let of = |names: &[&'static str]| {
            let names: Vec<_> = names.iter().map(|n| StrBytes::from_static_str(n)).collect();
            let states = states(&names);
            State::ALL.map(|state| states.have(state))
        };
        assert_eq!(of(&[]), [true; 4]);
        assert_eq!(of(&["nope", "Dead"]), [false; 4]);
        assert_eq!(of(&["stable", "EMPTY"]), [true, false, false, true]);
        assert_eq!(
            of(&["completingRebalance", "preparingrebalance"]),
            [false, true, true, false]
        );
    }

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
