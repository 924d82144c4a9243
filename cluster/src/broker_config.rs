//! The broker's own configuration as DescribeConfigs shows it: read-only, and only what has an effect.

use crate::topic_config::value::ValueType;
use crate::topic_config::{ConfigRow, ConfigSource, Synonym};

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
        }
    }
}

/// The rows of DescribeConfigs for this broker, sorted by name; `wanted` narrows them to some names.
pub fn describe(config: &BrokerConfig, wanted: Option<&[&str]>) -> Vec<ConfigRow> {
    let plain = BrokerConfig::default();
    rows(config)
        .into_iter()
        .zip(rows(&plain))
        .filter(|((name, ..), _)| wanted.is_none_or(|names| names.contains(name)))
        .map(
            |((name, value_type, value, documentation), (_, _, default, _))| {
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
                let mut synonyms = vec![Synonym {
                    name: name.to_string(),
                    value: value.clone(),
                    source,
                }];
                if source == ConfigSource::StaticBroker && !fixed {
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
            },
        )
        .collect()
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
            "num.partitions",
            Int,
            Some(c.num_partitions.to_string()),
            "Partitions of a topic that doesn't say how many.",
        ),
        (
            "socket.request.max.bytes",
            Int,
            Some(c.socket_request_max_bytes.to_string()),
            "Largest request, in bytes.",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_read_only_and_know_their_source() {
        let config = BrokerConfig {
            num_partitions: 3,
            ..BrokerConfig::default()
        };
        let all = describe(&config, None);
        assert!(all.windows(2).all(|p| p[0].name < p[1].name));
        assert!(all.iter().all(|r| r.read_only));
        let some = describe(
            &config,
            Some(&["num.partitions", "fetch.max.bytes", "node.id"]),
        );
        assert_eq!(some.len(), 3);
        assert_eq!(some[0].source, ConfigSource::Default);
        assert_eq!(some[1].source, ConfigSource::StaticBroker);
        assert_eq!(some[2].value.as_deref(), Some("3"));
        assert_eq!(some[2].synonyms.len(), 2);
    }
}
