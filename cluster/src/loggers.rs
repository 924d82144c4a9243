//! What a node logs, part by part: the levels that the setting `log` begins with and that can be changed while the node runs (IncrementalAlterConfigs of a broker's loggers). They
//! belong to the process, not to the metadata: a restart begins with the setting again, as in Kafka.
//!
//! Shared by all shards without a lock: a level is one atomic byte. Whoever writes the log is woken after a change and asks for [`Loggers::filter`]; what is logged in the moment
//! between goes by the old levels.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Refusal, Refused};
use crate::limits::CONFIG_OPS;
use crate::topic_config::value::ValueType;
use crate::topic_config::{AlterOp, ConfigOp, ConfigRow, ConfigSource, shown};

/// What log lines are named after, and everything else behind it. Sorted.
const NAMES: [&str; 7] = [
    "cluster",
    "engine",
    "kafka_api",
    "node",
    "raftgroup",
    "tailrace",
    ROOT,
];
/// The level of what has none of its own.
const ROOT: &str = "root";
/// Kafka's names of levels, and the logging library's; 0 is none of its own.
const LEVELS: [(&str, &str); 7] = [
    ("", ""),
    ("OFF", "off"),
    ("ERROR", "error"),
    ("WARN", "warn"),
    ("INFO", "info"),
    ("DEBUG", "debug"),
    ("TRACE", "trace"),
];
const INFO: u8 = 4;

/// See the module.
pub struct Loggers {
    levels: [AtomicU8; NAMES.len()],
    /// Directives for parts of parts, which only the setting has.
    finer: Vec<String>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Loggers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.filter())
    }
}

impl Default for Loggers {
    fn default() -> Loggers {
        Loggers::new("info", || {})
    }
}

impl Loggers {
    /// Begins with the setting, which was checked: levels of parts, and one of everything else. `wake` is called after each change, on the shard that made it: it must not block.
    pub fn new(setting: &str, wake: impl Fn() + Send + Sync + 'static) -> Loggers {
        let loggers = Loggers {
            levels: [const { AtomicU8::new(0) }; NAMES.len()],
            finer: setting
                .split(',')
                .filter(|directive| directive.contains("::"))
                .map(str::to_string)
                .collect(),
            wake: Box::new(wake),
        };
        loggers.put(ROOT, INFO);
        for directive in setting.split(',') {
            let (name, level) = directive.split_once('=').unwrap_or((ROOT, directive));
            if let Some(level) = level_of(&level.to_ascii_uppercase()) {
                loggers.put(name, level);
            }
        }
        loggers
    }

    fn put(&self, name: &str, level: u8) {
        if let Some(at) = NAMES.iter().position(|known| *known == name) {
            self.levels[at].store(level, Ordering::Relaxed);
        }
    }

    /// Its own level, or nothing.
    fn level(&self, at: usize) -> u8 {
        self.levels[at].load(Ordering::Relaxed)
    }

    /// What is in force, as the logging library reads it.
    pub fn filter(&self) -> String {
        let mut directives = Vec::with_capacity(NAMES.len());
        for (at, name) in NAMES.iter().enumerate() {
            let text = LEVELS[usize::from(self.level(at))].1;
            match (*name, text) {
                (_, "") => {}
                (ROOT, text) => directives.push(text.to_string()),
                (name, text) => directives.push(format!("{name}={text}")),
            }
        }
        directives.extend_from_slice(&self.finer);
        directives.join(",")
    }

    /// The rows of DescribeConfigs; `wanted` narrows them to some names, in ascending order.
    pub fn describe(&self, wanted: Option<&[&str]>) -> Vec<ConfigRow> {
        let root = self.level(NAMES.len() - 1);
        let named = NAMES.iter().enumerate();
        named
            .filter(|(_, name)| wanted.is_none_or(|names| names.binary_search(name).is_ok()))
            .map(|(at, name)| {
                let level = match self.level(at) {
                    0 => root,
                    own => own,
                };
                ConfigRow {
                    name,
                    value: Some(LEVELS[usize::from(level)].0.to_string()),
                    read_only: false,
                    source: ConfigSource::Logger,
                    sensitive: false,
                    synonyms: Vec::new(),
                    value_type: ValueType::Unknown,
                    documentation: "".into(),
                }
            })
            .collect()
    }

    /// Carries a change out, all of it or nothing; `validate_only`: only says whether it could.
    pub fn alter(&self, ops: &[ConfigOp], validate_only: bool) -> Result<(), Refused> {
        if ops.len() > CONFIG_OPS {
            return malformed(format!("More than {CONFIG_OPS} configs in one change."));
        }
        let mut changes = Vec::with_capacity(ops.len());
        for (i, op) in ops.iter().enumerate() {
            if ops[..i].iter().any(|earlier| earlier.name == op.name) {
                return malformed(format!("The logger {} is named twice.", shown(&op.name)));
            }
            changes.push((op.name.as_str(), check(op)?));
        }
        if !validate_only && !changes.is_empty() {
            for (name, level) in changes {
                self.put(name, level);
            }
            (self.wake)();
        }
        Ok(())
    }
}

/// The level that one step gives a logger, 0 for none of its own.
fn check(op: &ConfigOp) -> Result<u8, Refused> {
    let name = shown(&op.name);
    let invalid = |why: String| Err(Refused::new(Refusal::InvalidConfig, why));
    if op.op != AlterOp::Delete && op.value.is_none() {
        return malformed(format!("Null value for {name}."));
    }
    if !matches!(op.op, AlterOp::Set | AlterOp::Delete) {
        return malformed(
            "A logger has one level: nothing can be appended to it or subtracted from it.".into(),
        );
    }
    if !NAMES.contains(&op.name.as_str()) {
        let known = NAMES.join(", ");
        return invalid(format!("There is no logger {name}; there are {known}."));
    }
    match (op.op, op.value.as_deref()) {
        (AlterOp::Delete, _) if op.name == ROOT => {
            malformed("The root logger always has a level: set another.".into())
        }
        (AlterOp::Delete, _) => Ok(0),
        (_, value) => {
            let text = value.unwrap_or_default();
            match level_of(text) {
                Some(level) => Ok(level),
                None => invalid(format!(
                    "{name} can't have the level '{}'; levels are FATAL, ERROR, WARN, INFO, DEBUG and TRACE.",
                    shown(text)
                )),
            }
        }
    }
}

/// A level by its name in Kafka, in capitals as there. Nothing is fatal and logged: whoever wants only that gets nothing.
fn level_of(text: &str) -> Option<u8> {
    let name = match text.trim() {
        "FATAL" => "OFF",
        other => other,
    };
    let at = LEVELS
        .iter()
        .skip(1)
        .position(|(level, _)| *level == name)?;
    u8::try_from(at + 1).ok()
}

fn malformed<T>(why: String) -> Result<T, Refused> {
    Err(Refused::new(Refusal::InvalidRequest, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn op(name: &str, op: AlterOp, value: Option<&str>) -> ConfigOp {
        ConfigOp {
            name: name.into(),
            op,
            value: value.map(Into::into),
        }
    }

    fn told(loggers: &Loggers) -> Vec<(&'static str, String)> {
        let rows = loggers.describe(Some(&["cluster", "engine", ROOT]));
        rows.into_iter()
            .map(|row| (row.name, row.value.unwrap()))
            .collect()
    }

    #[test]
    fn they_begin_with_the_setting() {
        let loggers = Loggers::new("warn,engine=debug,engine::log=trace", || {});
        let wanted = [("cluster", "WARN"), ("engine", "DEBUG"), (ROOT, "WARN")];
        assert_eq!(told(&loggers), wanted.map(|(n, l)| (n, l.to_string())));
        assert_eq!(loggers.filter(), "engine=debug,warn,engine::log=trace");
        assert_eq!(
            Loggers::new("engine=off", || {}).filter(),
            "engine=off,info"
        );
    }

    #[test]
    fn a_change_is_made_whole_or_not_at_all_and_told() {
        use AlterOp::{Append, Delete, Set};
        let woken = Arc::new(AtomicU8::new(0));
        let seen = woken.clone();
        let loggers = Loggers::new("info", move || {
            seen.fetch_add(1, Ordering::Relaxed);
        });
        let good = [
            op("engine", Set, Some("TRACE")),
            op("node", Set, Some("FATAL")),
        ];
        loggers.alter(&good, true).unwrap();
        assert_eq!(loggers.filter(), "info");
        loggers.alter(&good, false).unwrap();
        assert_eq!(loggers.filter(), "engine=trace,node=off,info");
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        for bad in [
            op("nope", Set, Some("INFO")),
            op("cluster", Set, Some("LOUD")),
            op("cluster", Set, Some("info")),
            op("cluster", Set, None),
            op("cluster", Append, Some("INFO")),
            op("engine", Set, Some("INFO")),
            op(ROOT, Delete, None),
        ] {
            let both = [op("engine", Set, Some("WARN")), bad];
            assert!(loggers.alter(&both, false).is_err(), "{both:?}");
        }
        assert_eq!(loggers.filter(), "engine=trace,node=off,info");
        let back = [op("engine", Delete, None), op(ROOT, Set, Some("ERROR"))];
        loggers.alter(&back, false).unwrap();
        assert_eq!(loggers.filter(), "node=off,error");
    }
}
