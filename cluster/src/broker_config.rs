//! The broker's own configuration as DescribeConfigs shows it: only what has an effect. What a node is started with is read-only; the defaults of topics' configs, under the names
//! that Kafka's brokers have for them, can be set for the whole cluster while it runs ([`of_topics`] sorts such changes out).

use std::borrow::Cow;
use std::net::IpAddr;

use crate::error::{Refusal, Refused};
use crate::limits::{CONFIG_OPS, CONNECTION_OVERRIDES};
use crate::topic_config::table::{Definition, TABLE};
use crate::topic_config::value::ValueType;
use crate::topic_config::{
    AlterOp, ConfigOp, ConfigRow, ConfigSource, Settings, Synonym, of_the_cluster, shown,
};

/// What a node was started with, as far as clients may see it. Filled by the binary from its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    pub node_id: i32,
    pub rack: Option<String>,
    /// host:port that it listens on.
    pub listener: String,
    /// host:port that clients are told.
    pub advertised: String,
    pub data_dir: String,
    /// Whether Metadata and Produce create the topics that clients name.
    pub auto_create_topics: bool,
    /// Partitions of a topic that doesn't say how many.
    pub num_partitions: i32,
    pub default_replication_factor: i16,
    /// Largest answer to a fetch, in bytes.
    pub fetch_max_bytes: i32,
    /// Largest request, in bytes.
    pub socket_request_max_bytes: i32,
    /// Time after which an idle connection is closed, in milliseconds.
    pub connections_max_idle_ms: i64,
    /// Fetch sessions of all shards together.
    pub fetch_sessions: i32,
    /// Connections in all, of one address, of some addresses, and new ones a second; `i32::MAX` is no limit.
    pub max_connections: i32,
    pub max_connections_per_ip: i32,
    pub max_connections_per_ip_overrides: Vec<(IpAddr, i32)>,
    pub max_connection_creation_rate: i32,
    /// Over how many samples of how many seconds clients' rates are measured.
    pub quota_window_num: i32,
    pub quota_window_size_seconds: i32,
    /// The same for changes of the metadata.
    pub controller_quota_window_num: i32,
    pub controller_quota_window_size_seconds: i32,
    pub groups: GroupConfig,
}

/// What consumer groups go by, under Kafka's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    pub initial_rebalance_delay_ms: i32,
    pub min_session_timeout_ms: i32,
    pub max_session_timeout_ms: i32,
    /// Members of a group.
    pub max_size: i32,
    /// Of one committed offset.
    pub offset_metadata_max_bytes: i32,
    /// How long the offsets of a group without members are kept.
    pub offsets_retention_minutes: i32,
}

impl GroupConfig {
    /// Members that a group can have at most, whatever is set.
    pub const MEMBERS: i32 = 10_000;
}

impl Default for GroupConfig {
    fn default() -> GroupConfig {
        GroupConfig {
            initial_rebalance_delay_ms: 3_000,
            min_session_timeout_ms: 6_000,
            max_session_timeout_ms: 1_800_000,
            max_size: GroupConfig::MEMBERS,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_minutes: 7 * 24 * 60,
        }
    }
}

impl Default for BrokerConfig {
    fn default() -> BrokerConfig {
        BrokerConfig {
            node_id: 1,
            rack: None,
            listener: "127.0.0.1:9092".into(),
            advertised: "127.0.0.1:9092".into(),
            data_dir: "./data".into(),
            auto_create_topics: true,
            num_partitions: 1,
            default_replication_factor: 1,
            fetch_max_bytes: 57_671_680,
            socket_request_max_bytes: 104_857_600,
            connections_max_idle_ms: 600_000,
            fetch_sessions: 1_000,
            max_connections: i32::MAX,
            max_connections_per_ip: i32::MAX,
            max_connections_per_ip_overrides: Vec::new(),
            max_connection_creation_rate: i32::MAX,
            quota_window_num: 11,
            quota_window_size_seconds: 1,
            controller_quota_window_num: 11,
            controller_quota_window_size_seconds: 1,
            groups: GroupConfig::default(),
        }
    }
}

/// The rows of DescribeConfigs for this broker, sorted by name; `wanted` narrows them to some names, in ascending order. The defaults of topics are among them, under the names that
/// topics' configs give as synonyms.
pub fn describe(
    config: &BrokerConfig,
    defaults: &Settings,
    wanted: Option<&[&str]>,
) -> Vec<ConfigRow> {
    let plain = BrokerConfig::default();
    let own = rows(config).into_iter().zip(rows(&plain));
    let mut all: Vec<ConfigRow> = own.map(|(row, default)| own_row(row, default.2)).collect();
    for d in TABLE {
        if let Some(name) = d.broker_name
            && all.iter().all(|row| row.name != name)
        {
            all.push(default_row(d, name, defaults));
        }
    }
    all.sort_by_key(|row| row.name);
    all.retain(|row| wanted.is_none_or(|names| names.binary_search(&row.name).is_ok()));
    all
}

/// What the cluster has set for all brokers, sorted by name: these alone; `wanted` as above.
pub fn describe_defaults(defaults: &Settings, wanted: Option<&[&str]>) -> Vec<ConfigRow> {
    let set = TABLE.iter().filter(|d| defaults.contains_key(d.name));
    let mut all: Vec<ConfigRow> = set
        .filter_map(|d| Some(default_row(d, d.broker_name?, defaults)))
        .filter(|row| wanted.is_none_or(|names| names.binary_search(&row.name).is_ok()))
        .collect();
    for row in &mut all {
        let shared = |s: &Synonym| s.source == ConfigSource::DynamicDefault;
        row.synonyms.retain(shared);
    }
    all.sort_by_key(|row| row.name);
    all
}

/// The default of a topic's config, under the broker's name for it.
fn default_row(d: &Definition, name: &'static str, defaults: &Settings) -> ConfigRow {
    let shared = defaults.get(d.name).cloned();
    let source = match shared {
        Some(_) => ConfigSource::DynamicDefault,
        None => ConfigSource::Default,
    };
    let value = shared.clone().unwrap_or_else(|| d.default.to_string());
    ConfigRow {
        name,
        value: Some(value),
        read_only: false,
        source,
        sensitive: false,
        synonyms: of_the_cluster(d, shared),
        value_type: d.value_type,
        documentation: format!("Default of the topics' {}. {}", d.name, d.documentation()).into(),
    }
}

/// The config of topics of which a broker's config is the default.
pub fn of_topics(broker_name: &str) -> Option<&'static Definition> {
    TABLE.iter().find(|d| d.broker_name == Some(broker_name))
}

fn own_row((name, value_type, value, documentation): Row, default: Option<String>) -> ConfigRow {
    // What identifies a node never is a default.
    let fixed = matches!(
        name,
        "node.id" | "broker.id" | "log.dirs" | "listeners" | "advertised.listeners"
    );
    let source = if value != default || fixed {
        ConfigSource::StaticBroker
    } else {
        ConfigSource::Default
    };
    let default = default.filter(|_| !fixed);
    row(
        name,
        value_type,
        value,
        default,
        source,
        documentation.into(),
    )
}

fn row(
    name: &'static str,
    value_type: ValueType,
    value: Option<String>,
    default: Option<String>,
    source: ConfigSource,
    documentation: Cow<'static, str>,
) -> ConfigRow {
    let mut synonyms = vec![Synonym {
        name: name.to_string(),
        value: value.clone(),
        source,
    }];
    if source == ConfigSource::StaticBroker && default.is_some() {
        synonyms.push(Synonym {
            name: name.to_string(),
            value: default,
            source: ConfigSource::Default,
        });
    }
    ConfigRow {
        name,
        value,
        read_only: true,
        source,
        sensitive: false,
        synonyms,
        value_type,
        documentation,
    }
}

/// Whether a change would leave this broker as it is: it is configured when it starts, and so nothing else is taken.
pub fn check(config: &BrokerConfig, defaults: &Settings, ops: &[ConfigOp]) -> Result<(), Refused> {
    if ops.len() > CONFIG_OPS {
        return Err(Refused::new(
            Refusal::InvalidRequest,
            format!("More than {CONFIG_OPS} configs in one change."),
        ));
    }
    let rows = describe(config, defaults, None);
    for (i, op) in ops.iter().enumerate() {
        let name = shown(&op.name);
        let malformed = |why: String| Err(Refused::new(Refusal::InvalidRequest, why));
        if ops[..i].iter().any(|earlier| earlier.name == op.name) {
            return malformed(format!("The config {name} is named twice."));
        }
        if op.op != AlterOp::Delete && op.value.is_none() {
            return malformed(format!("Null value for {name}."));
        }
        let Some(row) = rows.iter().find(|row| row.name == op.name) else {
            if op.op == AlterOp::Delete {
                continue;
            }
            return Err(Refused::new(
                Refusal::InvalidConfig,
                format!("Unknown broker config name, or one without an effect here: {name}"),
            ));
        };
        let keeps = match op.op {
            // Nothing was set while it runs, so that there is nothing to take back.
            AlterOp::Delete => true,
            AlterOp::Set => {
                op.value.as_ref().map(|v| v.trim()) == row.value.as_deref() && op.value.is_some()
            }
            AlterOp::Append | AlterOp::Subtract => false,
        };
        if !keeps && of_topics(&op.name).is_some() {
            return malformed(format!(
                "{name} is the default of a topic's config, which is the same on all brokers: set it for all of them (`tailrace config set broker default`, `kafka-configs --entity-type brokers --entity-default`)."
            ));
        }
        if !keeps {
            return malformed(format!(
                "{name} can't be changed while the broker runs: it is set when the broker starts."
            ));
        }
    }
    Ok(())
}

type Row = (&'static str, ValueType, Option<String>, &'static str);

fn rows(c: &BrokerConfig) -> Vec<Row> {
    use ValueType::{Boolean, Int, List, Long, String};
    vec![
        (
            "advertised.listeners",
            List,
            Some(format!("PLAINTEXT://{}", c.advertised)),
            "What clients are told to connect to.",
        ),
        (
            "auto.create.topics.enable",
            Boolean,
            Some(c.auto_create_topics.to_string()),
            "Whether a topic is created when a client asks for its metadata.",
        ),
        (
            "broker.id",
            Int,
            Some(c.node_id.to_string()),
            "This node's id.",
        ),
        ("broker.rack", String, c.rack.clone(), "This node's rack."),
        (
            "connections.max.idle.ms",
            Long,
            Some(c.connections_max_idle_ms.to_string()),
            "Time after which an idle connection is closed, in milliseconds.",
        ),
        (
            "controller.quota.window.num",
            Int,
            Some(c.controller_quota_window_num.to_string()),
            "Samples over which clients' changes of the metadata are measured.",
        ),
        (
            "controller.quota.window.size.seconds",
            Int,
            Some(c.controller_quota_window_size_seconds.to_string()),
            "Length of such a sample, in seconds.",
        ),
        (
            "default.replication.factor",
            Int,
            Some(c.default_replication_factor.to_string()),
            "Replicas of a topic that doesn't say how many.",
        ),
        (
            "fetch.max.bytes",
            Int,
            Some(c.fetch_max_bytes.to_string()),
            "Largest answer to a fetch, in bytes; a first batch is always whole.",
        ),
        (
            "group.initial.rebalance.delay.ms",
            Int,
            Some(c.groups.initial_rebalance_delay_ms.to_string()),
            "How long an empty classic group waits for more members, in milliseconds.",
        ),
        (
            "group.max.session.timeout.ms",
            Int,
            Some(c.groups.max_session_timeout_ms.to_string()),
            "Longest session timeout that a member of a classic group may ask for, in milliseconds.",
        ),
        (
            "group.max.size",
            Int,
            Some(c.groups.max_size.to_string()),
            "Members that a classic group takes.",
        ),
        (
            "group.min.session.timeout.ms",
            Int,
            Some(c.groups.min_session_timeout_ms.to_string()),
            "Shortest session timeout that a member of a classic group may ask for, in milliseconds.",
        ),
        (
            "listeners",
            List,
            Some(format!("PLAINTEXT://{}", c.listener)),
            "What this node listens on.",
        ),
        (
            "log.dirs",
            List,
            Some(c.data_dir.clone()),
            "The data directory.",
        ),
        (
            "node.id",
            Int,
            Some(c.node_id.to_string()),
            "This node's id.",
        ),
        (
            "max.connection.creation.rate",
            Int,
            Some(c.max_connection_creation_rate.to_string()),
            "New connections a second, over all addresses; more than that wait.",
        ),
        (
            "max.connections",
            Int,
            Some(c.max_connections.to_string()),
            "Connections that this node has at a time; more than that wait.",
        ),
        (
            "max.connections.per.ip",
            Int,
            Some(c.max_connections_per_ip.to_string()),
            "Connections of one address; more than that are closed.",
        ),
        (
            "max.connections.per.ip.overrides",
            String,
            Some(overrides_text(&c.max_connections_per_ip_overrides)),
            "Addresses with a limit of their own, as address:number.",
        ),
        (
            "max.incremental.fetch.session.cache.slots",
            Int,
            Some(c.fetch_sessions.to_string()),
            "Fetch sessions that this node keeps, over all its shards.",
        ),
        (
            "max.request.partition.size.limit",
            Int,
            Some("2000".into()),
            "Partitions that one answer to DescribeTopicPartitions has at most.",
        ),
        (
            "num.partitions",
            Int,
            Some(c.num_partitions.to_string()),
            "Partitions of a topic that doesn't say how many.",
        ),
        (
            "offset.metadata.max.bytes",
            Int,
            Some(c.groups.offset_metadata_max_bytes.to_string()),
            "Largest metadata of a committed offset, in bytes.",
        ),
        (
            "offsets.retention.minutes",
            Int,
            Some(c.groups.offsets_retention_minutes.to_string()),
            "How long the offsets of a group without members are kept.",
        ),
        (
            "quota.window.num",
            Int,
            Some(c.quota_window_num.to_string()),
            "Samples over which clients' rates are measured.",
        ),
        (
            "quota.window.size.seconds",
            Int,
            Some(c.quota_window_size_seconds.to_string()),
            "Length of such a sample, in seconds.",
        ),
        (
            "socket.request.max.bytes",
            Int,
            Some(c.socket_request_max_bytes.to_string()),
            "Largest request, in bytes.",
        ),
        (
            "telemetry.max.bytes",
            Int,
            Some("1048576".into()),
            "Largest push of a client's metrics, in bytes.",
        ),
    ]
}

/// Addresses with limits of their own, as the setting has them: `address:number`, with commas between them. An address of version 6 may stand in brackets.
pub fn parse_overrides(text: &str) -> Result<Vec<(IpAddr, i32)>, String> {
    let wanted = "it must be a list of address:number, with commas";
    let entries = text.split(',').map(str::trim).filter(|e| !e.is_empty());
    let entries = entries.map(|entry| {
        let (ip, number) = entry.rsplit_once(':').ok_or(wanted)?;
        let ip = ip.trim_start_matches('[').trim_end_matches(']');
        let ip: IpAddr = ip.parse().map_err(|_| format!("{ip} is no address"))?;
        match number.parse() {
            Ok(number) if number >= 0 => Ok((ip, number)),
            _ => Err(wanted.to_string()),
        }
    });
    let entries: Vec<(IpAddr, i32)> = entries.collect::<Result<_, String>>()?;
    if entries.len() > CONNECTION_OVERRIDES {
        return Err(format!(
            "at most {CONNECTION_OVERRIDES} addresses have limits of their own"
        ));
    }
    Ok(entries)
}

/// The opposite of [`parse_overrides`].
pub fn overrides_text(overrides: &[(IpAddr, i32)]) -> String {
    let entries = overrides.iter().map(|(ip, n)| format!("{ip}:{n}"));
    entries.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_addresses_read_back() {
        let overrides = parse_overrides("127.0.0.1:5, [::1]:0,::2:7").unwrap();
        assert_eq!(overrides.len(), 3);
        let text = overrides_text(&overrides);
        assert_eq!(text, "127.0.0.1:5,::1:0,::2:7");
        assert_eq!(parse_overrides(&text), Ok(overrides));
        assert_eq!(parse_overrides(""), Ok(Vec::new()));
        for bad in ["127.0.0.1", "host:5", "127.0.0.1:-1", "127.0.0.1:many"] {
            assert!(parse_overrides(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rows_are_sorted_read_only_and_know_their_source() {
        let config = BrokerConfig {
            num_partitions: 3,
            ..BrokerConfig::default()
        };
        let none = Settings::new();
        let all = describe(&config, &none, None);
        assert!(all.windows(2).all(|p| p[0].name < p[1].name));
        for row in &all {
            assert_eq!(row.read_only, of_topics(row.name).is_none(), "{}", row.name);
        }
        let some = describe(
            &config,
            &none,
            Some(&["fetch.max.bytes", "node.id", "num.partitions"]),
        );
        assert_eq!(some.len(), 3);
        assert_eq!(some[0].source, ConfigSource::Default);
        assert_eq!(some[1].source, ConfigSource::StaticBroker);
        assert_eq!(some[2].value.as_deref(), Some("3"));
        assert_eq!(some[2].synonyms.len(), 2);
        let topics = describe(&config, &none, Some(&["message.max.bytes"]));
        assert_eq!(topics[0].value.as_deref(), Some("1048588"));
    }

    #[test]
    fn what_the_cluster_has_set_is_told_of_every_broker() {
        let set = Settings::from([
            ("retention.ms".to_string(), "5".to_string()),
            ("segment.ms".to_string(), "6".to_string()),
        ]);
        let names = ["log.retention.ms", "log.roll.ms", "message.max.bytes"];
        let rows = describe(&BrokerConfig::default(), &set, Some(&names));
        let told: Vec<_> = rows.iter().map(|r| (r.source, r.synonyms.len())).collect();
        // There is no default of log.roll.ms: that is log.roll.hours.
        let wanted = [
            (ConfigSource::DynamicDefault, 2),
            (ConfigSource::DynamicDefault, 1),
            (ConfigSource::Default, 1),
        ];
        assert_eq!(told, wanted);
        assert_eq!(rows[0].value.as_deref(), Some("5"));
        let alone = describe_defaults(&set, None);
        let told: Vec<_> = alone.iter().map(|r| (r.name, r.synonyms.len())).collect();
        assert_eq!(told, [("log.retention.ms", 1), ("log.roll.ms", 1)]);
        assert_eq!(describe_defaults(&set, Some(&["log.roll.ms"])).len(), 1);
    }

    #[test]
    fn only_what_changes_nothing_is_taken() {
        let config = BrokerConfig::default();
        let refused = |name: &str, op, value: Option<&str>| {
            let op = ConfigOp {
                name: name.into(),
                op,
                value: value.map(Into::into),
            };
            check(&config, &Settings::new(), &[op])
                .err()
                .map(|e| e.refusal)
        };
        use AlterOp::{Append, Delete, Set};
        assert_eq!(refused("num.partitions", Set, Some("1")), None);
        assert_eq!(refused("num.partitions", Delete, None), None);
        assert_eq!(refused("log.retention.ms", Set, Some("604800000")), None);
        let no = Some(Refusal::InvalidRequest);
        assert_eq!(refused("log.retention.ms", Set, Some("5")), no);
        assert_eq!(refused("num.partitions", Set, Some("2")), no);
        assert_eq!(refused("num.partitions", Set, None), no);
        assert_eq!(refused("listeners", Append, Some("x")), no);
        let unknown = Some(Refusal::InvalidConfig);
        assert_eq!(refused("log.cleaner.threads", Set, Some("2")), unknown);
    }
}
