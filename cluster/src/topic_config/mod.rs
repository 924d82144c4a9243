//! Topic configuration: the table of configs ([`table`]), their values ([`value`]), how a topic's own settings become a [`TopicConfig`], how incremental
//! changes apply, and what DescribeConfigs answers.
//!
//! What a topic doesn't say is what the cluster has set for all of them, in the same form; what that doesn't say is the table's default.
//!
//! A topic's own settings are a map from name to text, checked by [`check_overrides`] before they enter the metadata group; so everything in the
//! metadata parses, and [`TopicConfig::in_force`] can't fail on it.

pub mod table;
pub mod value;

use std::borrow::Cow;
use std::collections::BTreeMap;

use engine::log::LogPolicy;
use table::{Definition, Effect, TABLE, definition};
use value::{Value, ValueType, parse, split_list};

use crate::error::{Refusal, Refused};
use crate::limits::{CONFIG_OPS, CONFIG_VALUE_BYTES};

/// Configs by name, in Kafka's text form.
pub type Settings = BTreeMap<String, String>;

/// How batches are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionType {
    /// As they were sent.
    Producer,
    Uncompressed,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

/// Whose clock stamps records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampType {
    CreateTime,
    LogAppendTime,
}

/// What is in force for a topic. Units are in the names, as in Kafka's own; -1 is "no limit" where Kafka says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// Whether retention removes old segments (cleanup.policy has `delete`).
    pub cleanup_delete: bool,
    pub compression_type: CompressionType,
    pub compression_gzip_level: i32,
    pub compression_lz4_level: i32,
    pub compression_zstd_level: i32,
    pub max_decompressed_message_bytes: i32,
    pub max_message_bytes: i32,
    pub message_timestamp_type: TimestampType,
    pub message_timestamp_before_max_ms: i64,
    pub message_timestamp_after_max_ms: i64,
    pub min_insync_replicas: i32,
    pub retention_bytes: i64,
    pub retention_ms: i64,
    pub segment_bytes: i32,
    pub segment_ms: i64,
}

impl Default for TopicConfig {
    fn default() -> TopicConfig {
        TopicConfig::in_force(&Settings::new(), &Settings::new())
    }
}

impl TopicConfig {
    /// What is in force when these are a topic's own settings and the cluster's for all topics. Text that doesn't parse (written by a version with other rules) counts as
    /// not set.
    pub fn in_force(own: &Settings, defaults: &Settings) -> TopicConfig {
        let value = |name: &str| {
            let d = definition(name).expect("only names of the table are asked for");
            let set = [own, defaults].into_iter();
            set.filter_map(|settings| settings.get(name))
                .find_map(|text| parse(d, text).ok())
                .unwrap_or_else(|| parse(d, d.default).expect("a test parses every default"))
        };
        let int = |name: &str| match value(name) {
            Value::Int(v) => v,
            other => unreachable!("{name} is an int in the table, not {other:?}"),
        };
        let long = |name: &str| match value(name) {
            Value::Long(v) => v,
            other => unreachable!("{name} is a long in the table, not {other:?}"),
        };
        TopicConfig {
            cleanup_delete: matches!(value("cleanup.policy"), Value::List(l) if l.iter().any(|p| p == "delete")),
            compression_type: match value("compression.type").to_string().as_str() {
                "uncompressed" => CompressionType::Uncompressed,
                "gzip" => CompressionType::Gzip,
                "snappy" => CompressionType::Snappy,
                "lz4" => CompressionType::Lz4,
                "zstd" => CompressionType::Zstd,
                _ => CompressionType::Producer,
            },
            compression_gzip_level: int("compression.gzip.level"),
            compression_lz4_level: int("compression.lz4.level"),
            compression_zstd_level: int("compression.zstd.level"),
            max_decompressed_message_bytes: int("max.decompressed.message.bytes"),
            max_message_bytes: int("max.message.bytes"),
            message_timestamp_type: match value("message.timestamp.type").to_string().as_str() {
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => TimestampType::CreateTime,
            },
            message_timestamp_before_max_ms: long("message.timestamp.before.max.ms"),
            message_timestamp_after_max_ms: long("message.timestamp.after.max.ms"),
            min_insync_replicas: int("min.insync.replicas"),
            retention_bytes: long("retention.bytes"),
            retention_ms: long("retention.ms"),
            segment_bytes: int("segment.bytes"),
            segment_ms: long("segment.ms"),
        }
    }

    /// What of it the log of a partition goes by.
    pub fn log_policy(&self) -> LogPolicy {
        let kept_for_ever = |limit: i64| if self.cleanup_delete { limit } else { -1 };
        LogPolicy {
            segment_bytes: u64::from(self.segment_bytes.unsigned_abs()),
            segment_ms: self.segment_ms,
            retention_ms: kept_for_ever(self.retention_ms),
            retention_bytes: kept_for_ever(self.retention_bytes),
        }
    }
}

/// What an incremental change does with one config; the numbers are Kafka's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum AlterOp {
    Set = 0,
    Delete = 1,
    Append = 2,
    Subtract = 3,
}

impl AlterOp {
    pub fn from_code(code: i8) -> Option<AlterOp> {
        Some(match code {
            0 => AlterOp::Set,
            1 => AlterOp::Delete,
            2 => AlterOp::Append,
            3 => AlterOp::Subtract,
            _ => return None,
        })
    }
}

/// One step of an incremental change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigOp {
    pub name: String,
    pub op: AlterOp,
    pub value: Option<String>,
}

/// What shall become of a topic's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigChange {
    /// Steps, as IncrementalAlterConfigs has them.
    Steps(Vec<ConfigOp>),
    /// These instead of what was set before, as AlterConfigs has it.
    Replace(Vec<(String, Option<String>)>),
}

impl ConfigChange {
    /// The settings that come of it. Nothing is changed when one part is refused.
    pub fn apply(
        &self,
        overrides: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, Refused> {
        match self {
            ConfigChange::Steps(ops) => alter(overrides, ops),
            ConfigChange::Replace(configs) => {
                if configs.len() > CONFIG_OPS {
                    return Err(too_many());
                }
                for (i, (name, value)) in configs.iter().enumerate() {
                    if value.is_none() {
                        return Err(null(name));
                    }
                    if configs[..i].iter().any(|(earlier, _)| earlier == name) {
                        return Err(twice(name));
                    }
                }
                let configs = configs.iter().map(|(n, v)| (n.as_str(), v.as_deref()));
                check_overrides(configs)
            }
        }
    }
}

/// Checks the settings of a new topic and brings them into canonical form.
pub fn check_overrides<'a>(
    configs: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<BTreeMap<String, String>, Refused> {
    check_each(configs, accept)
}

/// The same for a topic of the broker's own: it carries its cleanup policy although nothing compacts it yet, because whoever writes it keeps it small.
pub fn check_internal<'a>(
    configs: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<BTreeMap<String, String>, Refused> {
    check_each(configs, |name, text| {
        Ok(parse(known(name)?, text)?.to_string())
    })
}

fn check_each<'a>(
    configs: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    accept: impl Fn(&str, &str) -> Result<String, Refused>,
) -> Result<BTreeMap<String, String>, Refused> {
    let mut checked = BTreeMap::new();
    for (i, (name, value)) in configs.into_iter().enumerate() {
        if i >= CONFIG_OPS {
            return Err(too_many());
        }
        let Some(value) = value else {
            return Err(invalid(format!("Null value for {name}.")));
        };
        let text = accept(name, value)?;
        checked.insert(name.to_string(), text);
    }
    Ok(checked)
}

/// Applies an incremental change to a topic's own settings. Nothing is changed when one step is refused.
pub fn alter(
    overrides: &BTreeMap<String, String>,
    ops: &[ConfigOp],
) -> Result<BTreeMap<String, String>, Refused> {
    if ops.len() > CONFIG_OPS {
        return Err(too_many());
    }
    // What is no change at all is told before what can't be changed so, as Kafka does.
    for (i, op) in ops.iter().enumerate() {
        if ops[..i].iter().any(|earlier| earlier.name == op.name) {
            return Err(twice(&op.name));
        }
        if op.op != AlterOp::Delete && op.value.is_none() {
            return Err(null(&op.name));
        }
    }
    let mut altered = overrides.clone();
    for op in ops {
        if op.op == AlterOp::Delete {
            // Also of a name that nobody knows (any more): Kafka takes it, and there is nothing to refuse.
            altered.remove(&op.name);
            continue;
        }
        let Some(value) = &op.value else {
            return Err(null(&op.name));
        };
        let d = known(&op.name)?;
        let text = match op.op {
            AlterOp::Set | AlterOp::Delete => accept(&op.name, value)?,
            AlterOp::Append | AlterOp::Subtract => {
                if d.value_type != ValueType::List {
                    return Err(invalid(format!(
                        "{} is no list, so nothing can be appended to it or subtracted from it.",
                        op.name
                    )));
                }
                if value.len() > CONFIG_VALUE_BYTES {
                    // Before it is taken apart: item by item, a list of a megabyte would take minutes.
                    parse(d, value)?;
                }
                let now = altered.get(&op.name).map_or(d.default, String::as_str);
                let mut items = split_list(now);
                let named = split_list(value);
                if op.op == AlterOp::Append {
                    for item in named {
                        if !items.contains(&item) {
                            items.push(item);
                        }
                    }
                } else {
                    items.retain(|item| !named.contains(item));
                }
                accept(&op.name, &items.join(","))?
            }
        };
        altered.insert(op.name.clone(), text);
    }
    Ok(altered)
}

/// A value in canonical form, if Tailrace can honour it.
fn accept(name: &str, text: &str) -> Result<String, Refused> {
    let d = known(name)?;
    let value = parse(d, text)?;
    let canonical = value.to_string();
    if let Effect::Refused(why) = d.effect
        && parse(d, d.default).as_ref() != Ok(&value)
    {
        return Err(invalid(format!(
            "{name} can't be set to '{canonical}': {why}. Only its default, '{}', is taken.",
            d.default
        )));
    }
    if name == "cleanup.policy" && canonical.contains("compact") {
        return Err(invalid(
            "cleanup.policy can't have 'compact': Tailrace doesn't compact topics yet.".into(),
        ));
    }
    Ok(canonical)
}

fn known(name: &str) -> Result<&'static Definition, Refused> {
    definition(name).ok_or_else(|| invalid(format!("Unknown topic config name: {}", shown(name))))
}

fn null(name: &str) -> Refused {
    let message = format!("Null value for {}.", shown(name));
    Refused::new(Refusal::InvalidRequest, message)
}

fn twice(name: &str) -> Refused {
    let message = format!("The config {} is named twice.", shown(name));
    Refused::new(Refusal::InvalidRequest, message)
}

/// A name from a request, fit for a message.
pub(crate) fn shown(name: &str) -> String {
    let cut: String = name.chars().take(64).collect();
    cut.escape_debug().to_string()
}

fn invalid(message: String) -> Refused {
    Refused::new(Refusal::InvalidConfig, message)
}

fn too_many() -> Refused {
    Refused::new(
        Refusal::InvalidRequest,
        format!("More than {CONFIG_OPS} configs in one change."),
    )
}

/// Where a value comes from; the numbers are DescribeConfigs' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum ConfigSource {
    Topic = 1,
    /// Set for all brokers while they run.
    DynamicDefault = 3,
    StaticBroker = 4,
    Default = 5,
    Logger = 6,
}

/// One place that gives a value to a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synonym {
    pub name: String,
    pub value: Option<String>,
    pub source: ConfigSource,
}

/// One row of DescribeConfigs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigRow {
    pub name: &'static str,
    pub value: Option<String>,
    pub read_only: bool,
    pub source: ConfigSource,
    pub sensitive: bool,
    /// What gives it a value, what counts first.
    pub synonyms: Vec<Synonym>,
    pub value_type: ValueType,
    pub documentation: Cow<'static, str>,
}

/// DescribeConfigs for a topic with these settings, where the cluster has those defaults: everything that Kafka knows, and Tailrace's own where it has an effect, was set or is asked for by name. `wanted` narrows it to
/// some names, in ascending order: a request may have a hundred thousand.
pub fn describe(own: &Settings, defaults: &Settings, wanted: Option<&[&str]>) -> Vec<ConfigRow> {
    let text = |settings: &'_ Settings, d: &Definition| settings.get(d.name).cloned();
    TABLE
        .iter()
        .filter(|d| wanted.is_none_or(|names| names.binary_search(&d.name).is_ok()))
        .filter(|d| wanted.is_some() || !d.is_planned() || own.contains_key(d.name))
        .map(|d| row(d, text(own, d), text(defaults, d)))
        .collect()
}

/// Broker configs that are null in Kafka unless somebody sets them, and so no source of a topic's value.
const UNSET: &[&str] = &["log.flush.interval.ms", "log.roll.jitter.ms", "log.roll.ms"];

/// One row; `own` is what was set for the thing itself, `shared` what the cluster has for all of its kind.
pub(crate) fn row(d: &Definition, own: Option<String>, shared: Option<String>) -> ConfigRow {
    let mut synonyms = Vec::with_capacity(3);
    synonyms.extend(own.map(|value| Synonym {
        name: d.name.to_string(),
        value: Some(value),
        source: ConfigSource::Topic,
    }));
    synonyms.extend(of_the_cluster(d, shared));
    // Without one it is the default, for which there may be no broker's config that says so.
    let first = synonyms.first();
    ConfigRow {
        name: d.name,
        value: first.map_or_else(|| Some(d.default.to_string()), |s| s.value.clone()),
        read_only: false,
        source: first.map_or(ConfigSource::Default, |s| s.source),
        sensitive: false,
        synonyms,
        value_type: d.value_type,
        documentation: d.documentation(),
    }
}

/// What brokers have for a topic's config, what counts first: the cluster's, and the default.
pub(crate) fn of_the_cluster(d: &Definition, shared: Option<String>) -> Vec<Synonym> {
    let Some(broker_name) = d.broker_name else {
        return Vec::new();
    };
    let synonym = |value: String, source| Synonym {
        name: broker_name.to_string(),
        value: Some(value),
        source,
    };
    let default = (!UNSET.contains(&broker_name))
        .then(|| synonym(d.default.to_string(), ConfigSource::Default));
    let shared = shared.map(|value| synonym(value, ConfigSource::DynamicDefault));
    shared.into_iter().chain(default).collect()
}

#[cfg(test)]
mod tests;
