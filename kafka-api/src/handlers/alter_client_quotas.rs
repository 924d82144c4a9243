//! AlterClientQuotas, key 49, versions 0-1.
//!
//! Sets and removes limits of users, client ids, both, and addresses; the controller on shard 0 keeps them with the metadata, and they are in force on every shard of this node when the answer goes out. Each
//! entity is checked by itself and has its own error; what is sound is carried out together. An entity that comes twice is INVALID_REQUEST. `validate_only` stops before the change.

use std::collections::BTreeSet;
use std::rc::Rc;

use cluster::quota::{self, Asked, Change};
use kafka_protocol::messages::alter_client_quotas_request::EntryData as Entry;
use kafka_protocol::messages::alter_client_quotas_response::{EntityData, EntryData};
use kafka_protocol::messages::{AlterClientQuotasRequest, AlterClientQuotasResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::limits;
use crate::request::{ControllerCall, ControllerReply};
use crate::schema;
use crate::shard::Shard;

pub(crate) type Failure = (i16, String);

pub async fn handle(shard: &Rc<Shard>, request: &Request) -> Result<Answer, Malformed> {
    let asked: AlterClientQuotasRequest = schema::decode(request, request.version)?;
    let mut checked = check(&asked.entries);
    let sound: Vec<Change> = checked.iter().flatten().cloned().collect();
    if !asked.validate_only
        && !sound.is_empty()
        && let Err(failure) = carry_out(shard, sound).await
    {
        for result in checked.iter_mut().filter(|r| r.is_ok()) {
            *result = Err(failure.clone());
        }
    }
    let rows = asked.entries.iter().zip(checked);
    let rows = rows.map(|(entry, result)| row(entry, result.map(|_| ())));
    let response = AlterClientQuotasResponse::default().with_entries(rows.collect());
    Answer::encode(shard, request, &response, request.version).await
}

pub(crate) fn check(entries: &[Entry]) -> Vec<Result<Change, Failure>> {
    let invalid = |why: String| Err((ErrorCode::InvalidRequest.code(), why));
    if entries.len() > limits::QUOTA_CHANGES {
        let why = format!(
            "More than {} entities in one request.",
            limits::QUOTA_CHANGES
        );
        return entries.iter().map(|_| invalid(why.clone())).collect();
    }
    let checked: Vec<Result<Change, Failure>> = entries
        .iter()
        .map(|entry| quota::check(&as_asked(entry)).map_err(|e| (e.code(), e.message)))
        .collect();
    let entities = checked.iter().flatten().map(|change| &change.entity);
    let twice: BTreeSet<_> = super::repeated(entities).into_iter().cloned().collect();
    let unless_twice = |result: Result<Change, Failure>| match result {
        Ok(change) if twice.contains(&change.entity) => {
            invalid("The request names the entity twice.".into())
        }
        result => result,
    };
    checked.into_iter().map(unless_twice).collect()
}

fn as_asked(entry: &Entry) -> Asked {
    let entity = entry.entity.iter();
    let ops = entry.ops.iter();
    Asked {
        entity: entity
            .map(|e| {
                let name = e.entity_name.as_ref().map(|n| n.to_string());
                (e.entity_type.to_string(), name)
            })
            .collect(),
        ops: ops
            .map(|op| (op.key.to_string(), (!op.remove).then_some(op.value)))
            .collect(),
    }
}

async fn carry_out(shard: &Rc<Shard>, changes: Vec<Change>) -> Result<(), Failure> {
    let call = ControllerCall::AlterQuotas(changes);
    match shard.ask_controller(call).await {
        Some(ControllerReply::QuotasAltered(result)) => result.map_err(|e| (e.code(), e.message)),
        _ => Err((
            ErrorCode::KafkaStorageError.code(),
            "The node is shutting down.".to_string(),
        )),
    }
}

pub(crate) fn row(entry: &Entry, result: Result<(), Failure>) -> EntryData {
    let entity = entry.entity.iter().map(|e| {
        EntityData::default()
            .with_entity_type(e.entity_type.clone())
            .with_entity_name(e.entity_name.clone())
    });
    let row = EntryData::default().with_entity(entity.collect());
    match result {
        Ok(()) => row.with_error_message(None),
        Err((code, message)) => row
            .with_error_code(code)
            .with_error_message(Some(StrBytes::from_string(message))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::messages::alter_client_quotas_request as r;
    use kafka_protocol::protocol::Encodable;

    fn entry(client: &'static str, rate: f64) -> Entry {
        let entity = r::EntityData::default()
            .with_entity_type(StrBytes::from_static_str("client-id"))
            .with_entity_name(Some(StrBytes::from_static_str(client)));
        let op = r::OpData::default()
            .with_key(StrBytes::from_static_str("producer_byte_rate"))
            .with_value(rate);
        Entry::default()
            .with_entity(vec![entity])
            .with_ops(vec![op])
    }

    #[test]
    fn each_entity_is_checked_by_itself() {
        let entries = [
            entry("a", 1.0),
            entry("b", 0.5),
            entry("c", 1.0),
            entry("c", 2.0),
        ];
        let sound: Vec<bool> = check(&entries).iter().map(Result::is_ok).collect();
        assert_eq!(sound, [true, false, false, false]);
    }

    /// Each of very many that come twice is looked for, not compared with all others.
    #[test]
    fn very_many_can_come_twice() {
        let mut entries = Vec::new();
        for n in 0..limits::QUOTA_CHANGES / 2 {
            let name = StrBytes::from_string(n.to_string());
            let mut one = entry("a", 1.0);
            one.entity[0].entity_name = Some(name);
            entries.extend([one.clone(), one]);
        }
        assert!(check(&entries).iter().all(Result::is_err));
        entries.push(entry("b", 1.0));
        let too_many = check(&entries);
        assert!(too_many.last().is_some_and(Result::is_err));
    }

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=1 {
            let rows = vec![
                row(&entry("a", 1.0), Ok(())),
                row(&entry("", 1.0), Err((42, "no".into()))),
            ];
            let response = AlterClientQuotasResponse::default().with_entries(rows);
            response
                .encode(&mut bytes::BytesMut::new(), version)
                .unwrap();
        }
    }
}
