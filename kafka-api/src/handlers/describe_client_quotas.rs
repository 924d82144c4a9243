//! DescribeClientQuotas, key 48, versions 0-1.
//!
//! From the shard's own copy. Each component of the filter names a type of entity and wants a name, the default, or any entry that speaks of that type; `strict` leaves out entities that speak of other types as
//! well. Addresses go with no other type. Without components all are told; strictly, none.

use std::rc::Rc;

use cluster::quota::{Entity, Limits, Name};
use engine::rt;
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::describe_client_quotas_response::{EntityData, EntryData, ValueData};
use kafka_protocol::messages::{DescribeClientQuotasRequest, DescribeClientQuotasResponse};
use kafka_protocol::protocol::StrBytes;

use crate::error::{ErrorCode, Malformed};
use crate::frame::Request;
use crate::handlers::Answer;
use crate::handlers::work::Work;
use crate::limits;
use crate::schema;
use crate::shard::Shard;

const EXACT: i8 = 0;
const DEFAULT: i8 = 1;
const ANY: i8 = 2;

pub async fn handle(
    shard: &Rc<Shard>,
    request: &Request,
    work: &mut Work,
) -> Result<Answer, Malformed> {
    let filter = {
        let asked: DescribeClientQuotasRequest = schema::decode(request, request.version)?;
        Filter::read(&asked.components, asked.strict)
    };
    let response = match filter {
        Ok(filter) => {
            let quotas = shard.view.quotas();
            let all = quotas.len() * limits::GATHERED_QUOTA_BYTES;
            if !work.grow(&shard.work, all) {
                work.anew(&shard.work).await;
            }
            let mut entries = Vec::new();
            for (entity, limits) in quotas.entities() {
                if filter.wants(entity) {
                    entries.push(told(entity, limits));
                }
                rt::yield_if_needed().await;
            }
            DescribeClientQuotasResponse::default()
                .with_error_message(None)
                .with_entries(Some(entries))
        }
        Err((code, message)) => DescribeClientQuotasResponse::default()
            .with_error_code(code.code())
            .with_error_message(Some(StrBytes::from_string(message)))
            .with_entries(None),
    };
    Answer::encode(shard, request, &response, request.version).await
}

/// What is wanted of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// This very name, or the default.
    Exactly(Name),
    Any,
}

#[derive(Debug, Default)]
pub(crate) struct Filter {
    user: Option<Wanted>,
    client: Option<Wanted>,
    ip: Option<Wanted>,
    strict: bool,
    /// None of the types was named.
    all: bool,
}

impl Filter {
    pub(crate) fn read(
        components: &[ComponentData],
        strict: bool,
    ) -> Result<Filter, (ErrorCode, String)> {
        let invalid = |why: &str| Err((ErrorCode::InvalidRequest, why.to_string()));
        let mut filter = Filter {
            strict,
            all: components.is_empty(),
            ..Filter::default()
        };
        for c in components {
            let slot = match &*c.entity_type {
                "" => return invalid("Invalid empty entity type."),
                "user" => &mut filter.user,
                "client-id" => &mut filter.client,
                "ip" => &mut filter.ip,
                other => {
                    let shown: String = other.chars().take(64).collect();
                    let why = format!("Unsupported entity type {}", shown.escape_debug());
                    return Err((ErrorCode::UnsupportedVersion, why));
                }
            };
            if slot.is_some() {
                return invalid("An entity type cannot appear more than once in the filter.");
            }
            let name = c._match.as_ref().map(|m| m.to_string());
            *slot = Some(match (c.match_type, name) {
                (EXACT, Some(name)) => Wanted::Exactly(Some(name)),
                (EXACT, None) => return invalid("An exact match needs a name."),
                (DEFAULT, None) => Wanted::Exactly(None),
                (ANY, None) => Wanted::Any,
                (DEFAULT | ANY, Some(_)) => {
                    return invalid("Only an exact match can have a name.");
                }
                _ => return invalid("Unknown match type."),
            });
        }
        if filter.ip.is_some() && (filter.user.is_some() || filter.client.is_some()) {
            return invalid(
                "Invalid entity filter component combination: an address goes with no user or client id.",
            );
        }
        // An address is found however it is written.
        if let Some(Wanted::Exactly(Some(name))) = &mut filter.ip
            && let Ok(address) = name.parse::<std::net::IpAddr>()
        {
            *name = address.to_canonical().to_string();
        }
        Ok(filter)
    }

    pub(crate) fn wants(&self, entity: &Entity) -> bool {
        let part = |wanted: &Option<Wanted>, part: &Option<Name>| match (wanted, part) {
            (None, None) => true,
            (None, Some(_)) => !self.strict,
            (Some(_), None) => false,
            (Some(Wanted::Any), Some(_)) => true,
            (Some(Wanted::Exactly(name)), Some(part)) => name == part,
        };
        (self.all && !self.strict)
            || part(&self.user, &entity.user)
                && part(&self.client, &entity.client)
                && part(&self.ip, &entity.ip)
    }
}

pub(crate) fn told(entity: &Entity, limits: &Limits) -> EntryData {
    let parts = [
        ("user", &entity.user),
        ("client-id", &entity.client),
        ("ip", &entity.ip),
    ];
    let parts = parts.into_iter().filter_map(|(kind, name)| {
        let name = name.as_ref()?.clone();
        Some(
            EntityData::default()
                .with_entity_type(StrBytes::from_static_str(kind))
                .with_entity_name(name.map(StrBytes::from_string)),
        )
    });
    let values = limits.iter().map(|(key, limit)| {
        ValueData::default()
            .with_key(StrBytes::from_static_str(key.name()))
            .with_value(limit.get())
    });
    EntryData::default()
        .with_entity(parts.collect())
        .with_values(values.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::quota::{Key, Limit};
    use kafka_protocol::protocol::Encodable;

    fn component(kind: &'static str, match_type: i8, name: Option<&'static str>) -> ComponentData {
        ComponentData::default()
            .with_entity_type(StrBytes::from_static_str(kind))
            .with_match_type(match_type)
            .with_match(name.map(StrBytes::from_static_str))
    }

    fn entity(user: Option<Option<&str>>, client: Option<Option<&str>>) -> Entity {
        let name = |n: Option<&str>| n.map(str::to_string);
        Entity {
            user: user.map(name),
            client: client.map(name),
            ip: None,
        }
    }

    #[test]
    fn filters_find_what_they_name() {
        let both = entity(Some(Some("u")), Some(None));
        let user = entity(Some(Some("u")), None);
        let default = entity(Some(None), None);
        let found = |components: &[ComponentData], strict| {
            let filter = Filter::read(components, strict).unwrap();
            [&both, &user, &default].map(|e| filter.wants(e))
        };
        let exact = component("user", EXACT, Some("u"));
        assert_eq!(
            found(std::slice::from_ref(&exact), false),
            [true, true, false]
        );
        assert_eq!(
            found(std::slice::from_ref(&exact), true),
            [false, true, false]
        );
        let any = component("user", ANY, None);
        assert_eq!(found(std::slice::from_ref(&any), true), [false, true, true]);
        assert_eq!(
            found(&[component("user", DEFAULT, None)], false),
            [false, false, true]
        );
        let default_client = component("client-id", DEFAULT, None);
        assert_eq!(found(&[any, default_client], true), [true, false, false]);
        assert_eq!(found(&[], false), [true; 3]);
        assert_eq!(found(&[], true), [false; 3]);
        assert_eq!(found(&[component("ip", ANY, None)], false), [false; 3]);
    }

    #[test]
    fn filters_that_make_no_sense_are_refused() {
        let code = |components: &[ComponentData]| Filter::read(components, false).unwrap_err().0;
        let twice = component("user", ANY, None);
        assert_eq!(code(&[twice.clone(), twice]), ErrorCode::InvalidRequest);
        assert_eq!(
            code(&[component("user", EXACT, None)]),
            ErrorCode::InvalidRequest
        );
        assert_eq!(
            code(&[component("user", DEFAULT, Some("u"))]),
            ErrorCode::InvalidRequest
        );
        assert_eq!(
            code(&[component("user", 7, None)]),
            ErrorCode::InvalidRequest
        );
        assert_eq!(code(&[component("", ANY, None)]), ErrorCode::InvalidRequest);
        assert_eq!(
            code(&[component("role", ANY, None)]),
            ErrorCode::UnsupportedVersion
        );
        let mixed = [component("ip", ANY, None), component("user", ANY, None)];
        assert_eq!(code(&mixed), ErrorCode::InvalidRequest);
    }

    #[test]
    fn answers_fit_every_version() {
        for version in 0..=1 {
            let limits = Limits::from([(Key::RequestPercentage, Limit::from(12.5))]);
            let entries = vec![told(&entity(Some(None), Some(Some("c"))), &limits)];
            for entries in [Some(entries), None] {
                let response = DescribeClientQuotasResponse::default().with_entries(entries);
                response
                    .encode(&mut bytes::BytesMut::new(), version)
                    .unwrap();
            }
        }
    }
}
