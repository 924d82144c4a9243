//! DeleteGroups, key 42, versions 0-3.
//!
//! Removes empty groups with their offsets; one that has members is NON_EMPTY_GROUP. A group that is named twice is deleted once. Version 3 has a
//! message beside each error; the library doesn't know it, so that its answer is written by hand.

use std::rc::Rc;

use bytes::{BufMut, BytesMut};
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse};

use crate::coordinator::{self, Name, Reply};
use crate::error::{ErrorCode, Malformed};
use crate::frame::{Request, finish};
use crate::handlers::{Answer, memory_for};
use crate::schema;
use crate::shard::Shard;
use crate::wire::Writer;

/// The newest version that the library knows.
pub const KNOWN: i16 = 2;

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: DeleteGroupsRequest = schema::decode(request, request.version.min(KNOWN))?;
    let mut results: Vec<(Name, ErrorCode)> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for group in asked.groups_names {
        if !seen.insert(group.0.clone()) {
            continue;
        }
        let question = coordinator::Request::Delete(group.0.clone());
        let error = match shard.ask_coordinator(&group.0, question).await {
            Reply::Deleted(error) | Reply::Refused(error) => error,
            other => unreachable!("it is not answered with {other:?}"),
        };
        results.push((group.0, error));
    }
    if request.version > KNOWN {
        let names = results.iter().map(|(group, _)| group.len());
        let bytes = 16 + 96 * results.len() + names.sum::<usize>();
        let memory = memory_for(shard, bytes).await;
        let mut out = request.answer(bytes);
        by_hand(&mut out, &results);
        finish(&mut out, 0);
        let codes = results.iter().map(|(_, error)| error.code());
        return Ok(Answer::held(out.freeze(), memory).telling(codes));
    }
    let rows = results.into_iter().map(|(group, error)| {
        DeletableGroupResult::default()
            .with_group_id(group.into())
            .with_error_code(error.code())
    });
    let response = DeleteGroupsResponse::default().with_results(rows.collect());
    Answer::encode(shard, request, &response, request.version).await
}

fn message(error: ErrorCode) -> Option<&'static str> {
    match error {
        ErrorCode::None => None,
        ErrorCode::NonEmptyGroup => Some("The group is not empty."),
        ErrorCode::GroupIdNotFound => Some("The group id does not exist."),
        ErrorCode::NotCoordinator => Some("This is not the correct coordinator."),
        ErrorCode::CoordinatorLoadInProgress => {
            Some("The coordinator is loading and hence can't process requests.")
        }
        _ => Some("The coordinator is not available."),
    }
}

pub(crate) fn by_hand(out: &mut BytesMut, results: &[(Name, ErrorCode)]) {
    out.put_i32(0);
    out.put_array(results.len(), true);
    for (group, error) in results {
        out.put_str(group, true);
        out.put_i16(error.code());
        out.put_nullable_str(message(*error), true);
        out.put_no_tags(true);
    }
    out.put_no_tags(true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::own;

    #[test]
    fn version_3_has_messages() {
        let mut out = BytesMut::new();
        by_hand(
            &mut out,
            &[
                (own("g"), ErrorCode::NonEmptyGroup),
                (own("h"), ErrorCode::None),
            ],
        );
        let mut want = BytesMut::from(&b"\0\0\0\0\x03\x02g\0\x44\x18The group is not empty.\0"[..]);
        want.extend_from_slice(b"\x02h\0\0\0\0\0");
        assert_eq!(out, want);
    }
}
