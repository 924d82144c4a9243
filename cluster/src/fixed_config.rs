//! Configurations that Kafka knows and that have no effect here yet: those of groups (KIP-848, share and streams groups) and of client metrics subscriptions (KIP-714).
//!
//! They are described with their defaults, which is what is in force, and a change that keeps to the default is taken and does nothing; every other is refused with a sentence. Called by
//! the handlers of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

use crate::error::{Refusal, Refused};
use crate::limits::CONFIG_OPS;
use crate::topic_config::table::{Definition, Effect, config_table};
use crate::topic_config::value::{Valid, parse};
use crate::topic_config::{AlterOp, ConfigOp, ConfigRow, row, shown};

use Effect::Refused as No;
use Valid::{Any, OneOf};

const fn from(low: i64) -> Valid {
    Valid::Range(low, i64::MAX)
}

const NO_CONSUMER: Effect = No("Tailrace has no groups of the new consumer protocol yet");
const NO_SHARE: Effect = No("Tailrace has no share groups yet");
const NO_STREAMS: Effect = No("Tailrace has no streams groups yet");
const NO_METRICS: Effect = No("Tailrace has no receiver for clients' metrics");

config_table! {
    /// Of groups. Sorted by name.
    GROUP;
    "consumer.assignment.interval.ms" Int "1000" from(0), Some("group.consumer.assignment.interval.ms"), NO_CONSUMER,
        "Time between two assignments of a consumer group, in milliseconds.";
    "consumer.heartbeat.interval.ms" Int "5000" from(1), Some("group.consumer.heartbeat.interval.ms"), NO_CONSUMER,
        "How often members of a consumer group send a heartbeat, in milliseconds.";
    "consumer.session.timeout.ms" Int "45000" from(1), Some("group.consumer.session.timeout.ms"), NO_CONSUMER,
        "After how long without a heartbeat a member of a consumer group is taken for dead, in milliseconds.";
    "errors.deadletterqueue.copy.record.enable" Boolean "false" Any, Some("errors.deadletterqueue.copy.record.enable"), NO_SHARE,
        "Whether a share group's dead-letter queue gets the records themselves.";
    "errors.deadletterqueue.topic.name" String "" Any, Some("errors.deadletterqueue.topic.name"), NO_SHARE,
        "The topic of a share group's dead-letter queue.";
    "share.assignment.interval.ms" Int "1000" from(0), Some("group.share.assignment.interval.ms"), NO_SHARE,
        "Time between two assignments of a share group, in milliseconds.";
    "share.auto.offset.reset" String "latest" Any, Some("share.auto.offset.reset"), NO_SHARE,
        "Where a share group begins: latest, earliest or by_duration:<ISO 8601 duration>.";
    "share.delivery.count.limit" Int "5" from(2), Some("group.share.delivery.count.limit"), NO_SHARE,
        "How often a record is delivered to a share group at most.";
    "share.heartbeat.interval.ms" Int "5000" from(1), Some("group.share.heartbeat.interval.ms"), NO_SHARE,
        "How often members of a share group send a heartbeat, in milliseconds.";
    "share.isolation.level" String "read_uncommitted" OneOf(&["read_committed", "read_uncommitted"]), Some("share.isolation.level"), NO_SHARE,
        "Whether a share group sees records of open and aborted transactions.";
    "share.partition.max.record.locks" Int "2000" from(100), Some("group.share.partition.max.record.locks"), NO_SHARE,
        "Records of one partition that a share group may have in delivery.";
    "share.record.lock.duration.ms" Int "30000" from(1000), Some("group.share.record.lock.duration.ms"), NO_SHARE,
        "For how long a member of a share group has a record to itself, in milliseconds.";
    "share.renew.acknowledge.enable" Boolean "true" Any, Some("share.renew.acknowledge.enable"), NO_SHARE,
        "Whether members of a share group may renew their hold on a record.";
    "share.session.timeout.ms" Int "45000" from(1), Some("group.share.session.timeout.ms"), NO_SHARE,
        "After how long without a heartbeat a member of a share group is taken for dead, in milliseconds.";
    "streams.assignment.interval.ms" Int "1000" from(0), Some("group.streams.assignment.interval.ms"), NO_STREAMS,
        "Time between two assignments of a streams group, in milliseconds.";
    "streams.assignor.name" String "sticky" Any, Some("group.streams.assignors"), NO_STREAMS,
        "What assigns the tasks of a streams group.";
    "streams.heartbeat.interval.ms" Int "5000" from(1), Some("group.streams.heartbeat.interval.ms"), NO_STREAMS,
        "How often members of a streams group send a heartbeat, in milliseconds.";
    "streams.initial.rebalance.delay.ms" Int "3000" from(0), Some("group.streams.initial.rebalance.delay.ms"), NO_STREAMS,
        "How long a new streams group waits for more members, in milliseconds.";
    "streams.num.standby.replicas" Int "0" from(0), Some("group.streams.num.standby.replicas"), NO_STREAMS,
        "Standby copies of each task of a streams group.";
    "streams.rack.aware.assignment.tags" List "" Any, Some("group.streams.rack.aware.assignment.tags"), NO_STREAMS,
        "Client tags over which the standby copies of a streams group are spread.";
    "streams.session.timeout.ms" Int "45000" from(1), Some("group.streams.session.timeout.ms"), NO_STREAMS,
        "After how long without a heartbeat a member of a streams group is taken for dead, in milliseconds.";
}

config_table! {
    /// Of client metrics subscriptions. Sorted by name.
    CLIENT_METRICS;
    "interval.ms" Int "300000" Valid::Range(100, 3_600_000), None, NO_METRICS,
        "How often clients push their metrics, in milliseconds.";
    "match" List "" Any, None, NO_METRICS,
        "Which clients a subscription is for.";
    "metrics" List "" Any, None, NO_METRICS,
        "Which metrics are wanted, by the beginnings of their names.";
}

/// Everything, at its default; `wanted` narrows it to some names, in ascending order.
pub fn describe(table: &[Definition], wanted: Option<&[&str]>) -> Vec<ConfigRow> {
    table
        .iter()
        .filter(|d| wanted.is_none_or(|names| names.binary_search(&d.name).is_ok()))
        .map(|d| row(d, None, None))
        .collect()
}

/// One kind of them.
pub struct Kind {
    table: &'static [Definition],
    /// As messages name it.
    what: &'static str,
    /// What Kafka says to a name that it doesn't know.
    unknown: Refusal,
}

pub const GROUPS: Kind = Kind {
    table: GROUP,
    what: "group",
    unknown: Refusal::InvalidConfig,
};

pub const METRICS: Kind = Kind {
    table: CLIENT_METRICS,
    what: "client metrics",
    unknown: Refusal::InvalidRequest,
};

/// Whether a change leaves everything at its default.
pub fn check(kind: &Kind, ops: &[ConfigOp]) -> Result<(), Refused> {
    let invalid = |why: String| Err(Refused::new(Refusal::InvalidConfig, why));
    let malformed = |why: String| Err(Refused::new(Refusal::InvalidRequest, why));
    if ops.len() > CONFIG_OPS {
        return malformed(format!("More than {CONFIG_OPS} configs in one change."));
    }
    for (i, op) in ops.iter().enumerate() {
        let name = shown(&op.name);
        if ops[..i].iter().any(|earlier| earlier.name == op.name) {
            return malformed(format!("The config {name} is named twice."));
        }
        if op.op == AlterOp::Delete {
            continue;
        }
        let Some(value) = &op.value else {
            return malformed(format!("Null value for {name}."));
        };
        let Some(d) = kind.table.iter().find(|d| d.name == op.name) else {
            let what = kind.what;
            return Err(Refused::new(
                kind.unknown,
                format!("Unknown {what} config name: {name}"),
            ));
        };
        let value = parse(d, value)?;
        if op.op != AlterOp::Set || parse(d, d.default).as_ref() != Ok(&value) {
            let Effect::Refused(why) = d.effect else {
                unreachable!("nothing in these tables has an effect");
            };
            return invalid(format!(
                "{name} can't be changed: {why}. Only its default, '{}', is taken.",
                d.default
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, value: &str) -> ConfigOp {
        ConfigOp {
            name: name.into(),
            op: AlterOp::Set,
            value: Some(value.into()),
        }
    }

    #[test]
    fn only_defaults_are_taken() {
        for kind in [GROUPS, METRICS] {
            let table = kind.table;
            assert!(table.windows(2).all(|p| p[0].name < p[1].name));
            for d in table {
                assert_eq!(check(&kind, &[set(d.name, d.default)]), Ok(()));
                assert!(matches!(d.effect, Effect::Refused(_)), "{}", d.name);
            }
        }
        let refused = |op| check(&GROUPS, &[op]).unwrap_err();
        let e = refused(set("consumer.session.timeout.ms", "50000"));
        assert_eq!(e.refusal, Refusal::InvalidConfig);
        assert!(e.message.contains("45000"), "{}", e.message);
        let unknown = refused(set("nope", "1"));
        assert_eq!(unknown.refusal, Refusal::InvalidConfig);
        let unknown = check(&METRICS, &[set("nope", "1")]).unwrap_err();
        assert_eq!(unknown.refusal, Refusal::InvalidRequest);
        let null = ConfigOp {
            value: None,
            ..set("share.isolation.level", "")
        };
        assert_eq!(refused(null).refusal, Refusal::InvalidRequest);
    }

    #[test]
    fn they_are_described_with_their_broker_names() {
        let rows = describe(GROUP, Some(&["consumer.session.timeout.ms"]));
        assert_eq!(
            rows[0].synonyms[0].name,
            "group.consumer.session.timeout.ms"
        );
        assert!(rows[0].documentation.contains("Only the default is taken"));
        assert_eq!(describe(GROUP, None).len(), 21);
    }
}
