//! The node's settings: defaults, then the file of `--config`, then the environment, then flags; what comes later wins.
//!
//! There is one table of settings ([`KEYS`]). A setting has the same name everywhere: `kafka-addr` in the file, `TAILRACE_KAFKA_ADDR` in the
//! environment, `--kafka-addr` as a flag. Layers hold text; [`Settings::resolve`] parses it once, and every error names the place the text came from.
//! What isn't in the table is refused, wherever it is: a setting without effect would be a lie.

mod environment;
mod log_filter;
mod nearest;
mod parse;
pub use environment::from_environment;
pub(crate) use nearest::nearest;
pub(crate) use parse::{host_and_port, is_yes_or_no, join};
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use cluster::broker_config::GroupConfig;

/// One setting.
pub struct Key {
    pub name: &'static str,
    pub value_name: &'static str,
    pub help: &'static str,
    /// Whether it is a switch, so that a flag without a value means true.
    pub switch: bool,
}

macro_rules! keys {
    ($($name:literal $value:literal $help:literal;)*) => {
        /// Every setting, in the order in which they are shown.
        pub const KEYS: &[Key] = &[$(Key { name: $name, value_name: $value, help: $help, switch: matches!($value.as_bytes(), b"BOOL") },)*];
    };
}

keys! {
    "data-dir" "DIR" "Where the data lives; made if it is missing [default: ./data]";
    "journal-dir" "DIR" "Where the journals live, if on a disk of their own [default: in data-dir]";
    "kafka-addr" "HOST:PORT" "Where Kafka clients connect; port 0 takes a free one [default: 127.0.0.1:9092]";
    "shard-direct" "BOOL" "Each shard is a broker of its own to clients, at the port of kafka-addr (and of advertise) + 1 + its number, so that they connect to the shard that owns what they ask for [default: false]";
    "advertise" "HOST:PORT" "What clients are told to connect to [default: kafka-addr]";
    "admin-addr" "HOST:PORT" "Where /ready and /metrics are served over HTTP [default: nowhere]";
    "shards" "N" "Shards, one per core [default: the CPUs this process may use]";
    "memory" "SIZE" "Memory for all shards, e.g. 512MiB or 4GiB [default: half of what the machine has]";
    "overprovisioned" "BOOL" "Neither pin shards to cores nor spin, for machines that are shared [default: false]";
    "node-id" "N" "This node's id [default: 1]";
    "rack" "NAME" "This node's rack [default: none]";
    "auto-create-topics" "BOOL" "Create the topics that clients ask for [default: true]";
    "num-partitions" "N" "Partitions of a topic that doesn't say how many [default: 1]";
    "group-initial-rebalance-delay" "MS" "How long an empty consumer group waits for more members, in milliseconds [default: 3000]";
    "group-min-session-timeout" "MS" "Shortest session timeout that a member of a consumer group may ask for, in milliseconds [default: 6000]";
    "group-max-session-timeout" "MS" "Longest session timeout that a member of a consumer group may ask for, in milliseconds [default: 1800000]";
    "group-max-size" "N" "Members that a consumer group takes [default: 10000]";
    "offset-metadata-max" "BYTES" "Largest metadata of a committed offset [default: 4096]";
    "offsets-retention" "MINUTES" "How long the offsets of a group without members are kept [default: 10080]";
    "max-connections" "N" "Connections at a time; more than that wait [default: 2147483647]";
    "max-connections-per-ip" "N" "Connections of one address; more than that are closed [default: 2147483647]";
    "max-connections-per-ip-overrides" "LIST" "Addresses with a limit of their own: 10.0.0.1:5,10.0.0.2:500 [default: none]";
    "max-connection-creation-rate" "N" "New connections a second; more than that wait [default: 2147483647]";
    "quota-window-num" "N" "Samples over which clients' rates are measured for quotas [default: 11]";
    "quota-window-size" "SECONDS" "Length of such a sample [default: 1]";
    "controller-quota-window-num" "N" "Samples over which clients' changes of topics are measured for quotas [default: 11]";
    "controller-quota-window-size" "SECONDS" "Length of such a sample [default: 1]";
    "log" "FILTER" "What is logged to stderr: off, error, warn, info, debug or trace, and so for parts: warn,engine=debug [default: info]";
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    File(PathBuf),
    Environment(String),
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Environment(name) => write!(f, "environment {name}"),
            Source::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// Why the settings can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

/// The text of some settings, with its source.
pub type Layer = BTreeMap<&'static str, (String, Source)>;

/// All settings, parsed.
#[derive(Clone, Debug)]
pub struct Settings {
    pub data_dir: PathBuf,
    pub journal_dir: Option<PathBuf>,
    pub kafka_addr: SocketAddr,
    pub shard_direct: bool,
    /// Host and port that clients are told; port 0 stands for that of `kafka_addr`.
    pub advertise: (String, u16),
    pub admin_addr: Option<SocketAddr>,
    pub shards: u16,
    /// Of all shards together.
    pub memory_bytes: u64,
    pub overprovisioned: bool,
    pub node_id: i32,
    pub rack: Option<String>,
    pub auto_create_topics: bool,
    pub num_partitions: i32,
    pub groups: GroupConfig,
    pub max_connections: i32,
    pub max_connections_per_ip: i32,
    pub max_connections_per_ip_overrides: Vec<(IpAddr, i32)>,
    pub max_connection_creation_rate: i32,
    pub quota_window_num: i32,
    pub quota_window_size_seconds: i32,
    pub controller_quota_window_num: i32,
    pub controller_quota_window_size_seconds: i32,
    pub log: String,
    /// Name, value in the file's syntax, source; in the table's order.
    shown: Vec<(&'static str, Option<String>, Source)>,
}

/// What the machine gives, for defaults.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub cpus: u16,
    pub memory_bytes: u64,
}

/// The variable that sets a setting.
pub fn environment_name(key: &str) -> String {
    format!("TAILRACE_{}", key.to_ascii_uppercase().replace('-', "_"))
}

fn known(name: &str) -> Option<&'static str> {
    KEYS.iter().map(|k| k.name).find(|n| *n == name)
}

/// The layer of a TOML file.
pub fn read_file(path: &Path) -> Result<Layer, SettingsError> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        SettingsError(format!(
            "can't read the config file {}: {e}. See --config and TAILRACE_CONFIG",
            path.display()
        ))
    })?;
    parse_file(&text, path)
}

fn parse_file(text: &str, path: &Path) -> Result<Layer, SettingsError> {
    let place = path.display();
    let table: toml::Table = text
        .parse()
        .map_err(|e| SettingsError(format!("{place} is not valid TOML: {e}")))?;
    let mut layer = Layer::new();
    for (name, value) in table {
        let Some(key) = known(&name) else {
            let names = || KEYS.iter().map(|k| k.name);
            let meant = match nearest::nearest(&name, names()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
            };
            return Err(SettingsError(format!(
                "{place}: there is no setting '{name}'; {meant}"
            )));
        };
        let text = match value {
            toml::Value::String(s) => s,
            toml::Value::Integer(n) => n.to_string(),
            toml::Value::Boolean(b) => b.to_string(),
            other => {
                return Err(SettingsError(format!(
                    "{place}: {name} can't be of the type {}: it is a text, a number or true or false",
                    other.type_str()
                )));
            }
        };
        layer.insert(key, (text, Source::File(path.to_path_buf())));
    }
    Ok(layer)
}

impl Settings {
    /// Parses what the layers say; later layers win.
    pub fn resolve(layers: &[Layer], machine: Machine) -> Result<Settings, SettingsError> {
        let mut merged = Layer::new();
        for layer in layers {
            merged.extend(layer.iter().map(|(k, v)| (*k, v.clone())));
        }
        parse::settings(&merged, machine)
    }

    /// The settings in force as a config file, each with its source behind it.
    pub fn show(&self) -> String {
        let line = |(name, value, _): &(&str, Option<String>, Source)| match value {
            Some(value) => format!("{name} = {value}"),
            None => format!("# {name} is not set"),
        };
        let width = self
            .shown
            .iter()
            .map(|s| line(s).chars().count())
            .max()
            .unwrap_or(0);
        let mut text = String::new();
        for setting in &self.shown {
            let _ = writeln!(text, "{:<width$}  # {}", line(setting), setting.2);
        }
        text
    }
}
