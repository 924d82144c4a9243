//! `tailrace quota`: list, set, delete.

use kafka_protocol::messages::alter_client_quotas_request as alter;
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::{AlterClientQuotasRequest, DescribeClientQuotasRequest};
use serde::Serialize;

use super::cluster::{Cluster, text};
use super::output::{NOTHING, Table, bytes, print_json};
use super::units::size;
use super::{ClientError, check, print, tell};
use crate::cli::{AdminArgs, EntityArgs, QuotaCommand};
use crate::exit::Fatal;
use crate::settings::nearest;

/// The quotas that Kafka 4.4 knows, and whether they count bytes.
const QUOTAS: [(&str, bool); 5] = [
    ("producer_byte_rate", true),
    ("consumer_byte_rate", true),
    ("request_percentage", false),
    ("controller_mutation_rate", false),
    ("connection_creation_rate", false),
];
/// Largest value of a quota: above that not every whole number has a value of its own any more.
const LARGEST: f64 = (1_u64 << 53) as f64;
/// How a default is shown.
const DEFAULT: &str = "(default)";
/// DescribeClientQuotas' ways to match a part of an entity.
const EXACT: i8 = 0;
const IS_DEFAULT: i8 = 1;

pub fn run(command: QuotaCommand) -> Result<(), Fatal> {
    match command {
        QuotaCommand::List { entity, admin } => list(&entity, &admin)?,
        QuotaCommand::Set {
            quotas,
            entity,
            dry_run,
            admin,
        } => set(&quotas, &entity, dry_run, &admin)?,
        QuotaCommand::Delete {
            quotas,
            entity,
            admin,
        } => delete(&quotas, &entity, &admin)?,
    }
    Ok(())
}

/// Whom a quota is for: kinds of entity with a name, or nothing for the default.
type Entity = Vec<(&'static str, Option<String>)>;

fn entity(args: &EntityArgs) -> Entity {
    [
        ("user", &args.user, args.default_user),
        ("client-id", &args.client_id, args.default_client_id),
        ("ip", &args.ip, args.default_ip),
    ]
    .into_iter()
    .filter(|(_, name, is_default)| name.is_some() || *is_default)
    .map(|(kind, name, _)| (kind, name.clone()))
    .collect()
}

fn somebody(args: &EntityArgs) -> Result<Entity, ClientError> {
    let entity = entity(args);
    if entity.is_empty() {
        return Err(ClientError::Usage(
            "whose? give --user, --default-user, --client-id, --default-client-id, --ip or --default-ip"
                .into(),
        ));
    }
    Ok(entity)
}

#[derive(Debug, Serialize)]
struct Listed {
    /// Nothing if it doesn't matter, [`DEFAULT`] for all that have none of their own.
    user: Option<String>,
    client_id: Option<String>,
    ip: Option<String>,
    quota: String,
    value: f64,
}

fn describe(
    cluster: &mut Cluster,
    entity: &Entity,
    strict: bool,
) -> Result<Vec<Listed>, ClientError> {
    let components = entity
        .iter()
        .map(|(kind, name)| {
            ComponentData::default()
                .with_entity_type(text(kind))
                .with_match_type(if name.is_some() { EXACT } else { IS_DEFAULT })
                .with_match(name.as_deref().map(text))
        })
        .collect();
    let request = DescribeClientQuotasRequest::default()
        .with_components(components)
        .with_strict(strict);
    let answer = cluster.retry(|c| {
        let answer = c.any()?.call(&request, i16::MAX)?;
        check(answer.error_code, answer.error_message.as_deref())?;
        Ok(answer)
    })?;
    let mut listed = Vec::new();
    for entry in answer.entries.unwrap_or_default() {
        let part = |kind: &str| {
            let found = entry.entity.iter().find(|e| &*e.entity_type == kind)?;
            let name = found.entity_name.as_ref();
            Some(name.map_or_else(|| DEFAULT.to_string(), ToString::to_string))
        };
        for value in &entry.values {
            listed.push(Listed {
                user: part("user"),
                client_id: part("client-id"),
                ip: part("ip"),
                quota: value.key.to_string(),
                value: value.value,
            });
        }
    }
    listed.sort_by_key(|l| {
        let (user, client_id, ip) = (l.user.clone(), l.client_id.clone(), l.ip.clone());
        (user, client_id, ip, l.quota.clone())
    });
    Ok(listed)
}

fn list(args: &EntityArgs, admin: &AdminArgs) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let listed = describe(&mut cluster, &entity(args), false)?;
    if admin.json {
        return print_json(&listed);
    }
    let mut table = Table::new(&["USER", "CLIENT ID", "IP", "QUOTA", ">VALUE", "IS"]);
    for l in listed {
        let or_nothing = |part: Option<String>| part.unwrap_or_else(|| NOTHING.into());
        table.row(vec![
            or_nothing(l.user),
            or_nothing(l.client_id),
            or_nothing(l.ip),
            l.quota.clone(),
            l.value.to_string(),
            in_words(&l.quota, l.value),
        ]);
    }
    table.print()
}

/// A value as people read it.
fn in_words(quota: &str, value: f64) -> String {
    match quota {
        "request_percentage" => format!("{value} % of a thread"),
        "controller_mutation_rate" => format!("{value} partitions/s"),
        "connection_creation_rate" => format!("{value} connections/s"),
        _ if is_of_bytes(quota) => format!("{}/s", bytes(value as i64)),
        _ => String::new(),
    }
}

fn is_of_bytes(quota: &str) -> bool {
    QUOTAS
        .iter()
        .any(|(name, of_bytes)| *name == quota && *of_bytes)
}

/// A name that Kafka knows; a broker would take some others and never use them.
fn known(name: &str) -> Result<&str, ClientError> {
    if QUOTAS.iter().any(|(known, _)| *known == name) {
        return Ok(name);
    }
    let names = QUOTAS.iter().map(|(name, _)| *name);
    let meant = match nearest(name, names.clone()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("there are: {}", names.collect::<Vec<_>>().join(", ")),
    };
    Err(ClientError::Usage(format!(
        "there is no quota '{name}'; {meant}"
    )))
}

/// A number, for bytes with a unit, for shares with a per cent sign.
fn value(quota: &str, given: &str) -> Result<f64, ClientError> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let parsed = if is_of_bytes(quota) {
        size(given)
    } else if quota == "request_percentage" {
        number(given.strip_suffix('%').unwrap_or(given))
    } else {
        number(given)
    };
    if let Some(parsed) = parsed
        && parsed.is_finite()
        && parsed > LARGEST
    {
        return Err(ClientError::Usage(format!(
            "{quota} can't be '{given}': a quota so large limits nothing; `tailrace quota delete` takes a quota away"
        )));
    }
    parsed
        .filter(|v| v.is_finite() && *v > 0.0)
        .ok_or_else(|| {
            let example = if is_of_bytes(quota) { "1048576 or 1MiB" } else { "10" };
            ClientError::Usage(format!(
                "{quota} can't be '{given}': it is a number above 0, for instance {example}; `tailrace quota delete` takes a quota away"
            ))
        })
}

fn set(
    given: &[String],
    args: &EntityArgs,
    dry_run: bool,
    admin: &AdminArgs,
) -> Result<(), ClientError> {
    let entity = somebody(args)?;
    let mut ops = Vec::new();
    for (name, given) in super::topics::pairs(given)? {
        let name = known(&name)?;
        ops.push((name.to_string(), Some(value(name, &given)?)));
    }
    change(&entity, &ops, dry_run, admin)
}

fn delete(given: &[String], args: &EntityArgs, admin: &AdminArgs) -> Result<(), ClientError> {
    let entity = somebody(args)?;
    let mut ops = Vec::new();
    for name in given {
        ops.push((known(name)?.to_string(), None));
    }
    if ops.is_empty() {
        let mut cluster = Cluster::open(&admin.broker)?;
        let set = describe(&mut cluster, &entity, true)?;
        ops.extend(set.into_iter().map(|l| (l.quota, None)));
    }
    if ops.is_empty() {
        return Err(ClientError::Missing(
            "no quota is set there; `tailrace quota list` shows what there is".into(),
        ));
    }
    change(&entity, &ops, false, admin)
}

#[derive(Serialize)]
struct Changed {
    quota: String,
    before: Option<f64>,
    after: Option<f64>,
}

#[derive(Serialize)]
struct Outcome {
    executed: bool,
    changes: Vec<Changed>,
}

/// New values, or none to take a quota away.
fn change(
    entity: &Entity,
    ops: &[(String, Option<f64>)],
    dry_run: bool,
    admin: &AdminArgs,
) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let before = describe(&mut cluster, entity, true)?;
    let request = AlterClientQuotasRequest::default()
        .with_validate_only(dry_run)
        .with_entries(vec![
            alter::EntryData::default()
                .with_entity(
                    entity
                        .iter()
                        .map(|(kind, name)| {
                            alter::EntityData::default()
                                .with_entity_type(text(kind))
                                .with_entity_name(name.as_deref().map(text))
                        })
                        .collect(),
                )
                .with_ops(
                    ops.iter()
                        .map(|(quota, value)| {
                            alter::OpData::default()
                                .with_key(text(quota))
                                .with_value(value.unwrap_or(0.0))
                                .with_remove(value.is_none())
                        })
                        .collect(),
                ),
        ]);
    let answer = cluster.retry(|c| c.controller()?.call(&request, i16::MAX))?;
    let failed = answer
        .entries
        .iter()
        .filter_map(|e| check(e.error_code, e.error_message.as_deref()).err())
        .collect();
    tell(failed)?;
    let changes = ops
        .iter()
        .map(|(quota, after)| Changed {
            quota: quota.clone(),
            before: before.iter().find(|l| l.quota == *quota).map(|l| l.value),
            after: *after,
        })
        .collect();
    show(
        Outcome {
            executed: !dry_run,
            changes,
        },
        admin,
    )
}

fn show(outcome: Outcome, admin: &AdminArgs) -> Result<(), ClientError> {
    if admin.json {
        return print_json(&outcome);
    }
    let mut table = Table::new(&["QUOTA", "BEFORE", "AFTER"]);
    for c in &outcome.changes {
        let shown = |value: Option<f64>| value.map(|v| in_words(&c.quota, v)).unwrap_or_default();
        table.row(vec![c.quota.clone(), shown(c.before), shown(c.after)]);
    }
    table.print()?;
    if !outcome.executed {
        print("checked: nothing was changed; the same without --dry-run changes it")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_units() {
        let of = |quota, given| value(quota, given).ok();
        assert_eq!(of("producer_byte_rate", "1MiB"), Some(1_048_576.0));
        assert_eq!(of("consumer_byte_rate", "1.5 kB"), Some(1500.0));
        assert_eq!(of("producer_byte_rate", "1024"), Some(1024.0));
        assert_eq!(of("request_percentage", "50%"), Some(50.0));
        assert_eq!(of("controller_mutation_rate", "2.5"), Some(2.5));
        for (quota, given) in [
            ("producer_byte_rate", "0"),
            ("producer_byte_rate", "MiB"),
            ("producer_byte_rate", "-1MiB"),
            ("request_percentage", "inf"),
            ("request_percentage", "NaN"),
            ("controller_mutation_rate", "5MiB"),
        ] {
            assert_eq!(of(quota, given), None, "{quota}={given}");
        }
    }

    #[test]
    fn a_quota_that_limits_nothing_is_a_mistake() {
        for (quota, given) in [
            ("producer_byte_rate", "1e30"),
            ("consumer_byte_rate", "10000TiB"),
            ("request_percentage", "1e300"),
        ] {
            let why = value(quota, given).unwrap_err().to_string();
            assert!(why.contains("limits nothing"), "{why}");
        }
        assert!(value("producer_byte_rate", "100TiB").is_ok());
    }

    #[test]
    fn a_mistyped_quota_is_recognised() {
        let e = known("producer_byte_rat").unwrap_err().to_string();
        assert!(e.contains("did you mean producer_byte_rate?"), "{e}");
        assert!(known("x").unwrap_err().to_string().contains("there are:"));
    }

    #[test]
    fn whose_quota_it_is() {
        let args = EntityArgs {
            user: Some("alice".into()),
            default_client_id: true,
            ..EntityArgs::default()
        };
        assert_eq!(
            entity(&args),
            [("user", Some("alice".into())), ("client-id", None)]
        );
        assert!(somebody(&EntityArgs::default()).is_err());
    }
}
