//! `tailrace config get` and `set`, and configs for commands about topics.
//!
//! [`change`] is what the command line asks for and what that will do. Questions and changes about one broker go to that broker, all others to any. A change is one request for one thing, which takes all of it or nothing.

mod change;

use std::collections::BTreeMap;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};
use serde::Serialize;

use super::cluster::{Cluster, text};
use super::connection::Connection;
use super::output::{NOTHING, Table, clean, print_json};
use super::progress::Progress;
use super::units::for_people;
use super::{ClientError, at, check, print};
use crate::cli::{AdminArgs, ConfigCommand, KindArg};
use crate::exit::Fatal;
use crate::settings::nearest;
pub use change::{Change, Changed, changes, foresee, pairs, print_changes};

/// From this version on DescribeConfigs tells what configs mean.
const DOCUMENTED: i16 = 3;
/// Topics of which one request asks a config.
const TOPICS_PER_REQUEST: usize = 500;
/// What all brokers share: a broker without a name.
const ALL_BROKERS: &str = "default";

/// Something that has configs.
#[derive(Clone, Copy, Debug)]
pub struct Thing<'a> {
    pub kind: KindArg,
    pub name: &'a str,
}

impl Thing<'_> {
    fn number(self) -> i8 {
        match self.kind {
            KindArg::Topic => 2,
            KindArg::Broker => 4,
            KindArg::Logger => 8,
            KindArg::ClientMetrics => 16,
            KindArg::Group => 32,
        }
    }

    /// DescribeConfigs' number for a value that was set for this thing alone.
    fn own_source(self) -> i8 {
        match self.kind {
            KindArg::Topic => 1,
            KindArg::Broker if self.name == ALL_BROKERS => 3,
            KindArg::Broker => 2,
            KindArg::Logger => 6,
            KindArg::ClientMetrics => 7,
            KindArg::Group => 8,
        }
    }

    fn at(self, e: ClientError) -> ClientError {
        let word = match self.kind {
            KindArg::Topic => "topic",
            KindArg::Broker => "broker",
            KindArg::Logger => "loggers of broker",
            KindArg::ClientMetrics => "client metrics",
            KindArg::Group => "group",
        };
        match (self.kind, e) {
            (KindArg::Topic, ClientError::Refused { code: 3, .. }) => {
                ClientError::Missing(format!(
                    "there is no topic '{}'; `tailrace topic list` shows what there is",
                    self.name
                ))
            }
            (_, e) => at(&format!("{word} '{}'", self.name), e),
        }
    }

    /// The changes as this thing's broker reads them: Kafka's names of levels are in capitals.
    fn spell(self, mut changes: Vec<Change>) -> Vec<Change> {
        if matches!(self.kind, KindArg::Logger) {
            let values = changes.iter_mut().filter_map(|c| c.value.as_mut());
            values.for_each(|v| v.make_ascii_uppercase());
        }
        changes
    }
}

pub fn run(command: ConfigCommand) -> Result<(), Fatal> {
    match command {
        ConfigCommand::Get {
            kind,
            name,
            configs,
            only_set,
            explain,
            admin,
        } => {
            let thing = Thing { kind, name: &name };
            get(thing, &configs, only_set, explain, &admin)?;
        }
        ConfigCommand::Set {
            kind,
            name,
            configs,
            more,
            admin,
        } => {
            let thing = Thing { kind, name: &name };
            let changes = thing.spell(changes(&configs, &more)?);
            if changes.is_empty() {
                return Err(ClientError::Usage(
                    "nothing to change: give NAME=VALUE, --unset, --append or --subtract".into(),
                )
                .into());
            }
            set(thing, &changes, more.dry_run, &admin)?;
        }
    }
    Ok(())
}

/// A config as its broker tells it.
#[derive(Serialize)]
pub struct Setting {
    pub name: String,
    /// Nothing if it is secret.
    pub value: Option<String>,
    pub source: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    pub read_only: bool,
    pub sensitive: bool,
    /// Where else a value comes from, what wins first.
    pub synonyms: Vec<Synonym>,
    #[serde(skip_serializing_if = "Option::is_none")]
    documentation: Option<String>,
    #[serde(skip)]
    source_number: i8,
}

#[derive(Serialize)]
pub struct Synonym {
    pub name: String,
    pub value: Option<String>,
    pub source: &'static str,
    #[serde(skip)]
    source_number: i8,
}

impl Setting {
    fn new(c: DescribeConfigsResourceResult) -> Setting {
        let value = |v: Option<kafka_protocol::protocol::StrBytes>| v.map(|v| v.to_string());
        Setting {
            name: c.name.to_string(),
            value: value(c.value),
            source: source(c.config_source),
            kind: kind(c.config_type),
            read_only: c.read_only,
            sensitive: c.is_sensitive,
            synonyms: c
                .synonyms
                .into_iter()
                .map(|s| Synonym {
                    name: s.name.to_string(),
                    value: value(s.value),
                    source: source(s.source),
                    source_number: s.source,
                })
                .collect(),
            documentation: value(c.documentation),
            source_number: c.config_source,
        }
    }

    /// Whether somebody set it, in whatever place.
    pub fn is_set(&self) -> bool {
        self.source_number != DEFAULT
    }

    pub fn shown(&self) -> &str {
        if self.sensitive {
            return "(hidden)";
        }
        self.value.as_deref().unwrap_or("")
    }

    /// The same with what a large number means.
    pub fn for_people(&self) -> String {
        for_people(&self.name, self.shown())
    }

    /// What would hold if this thing had no value of its own, if the broker tells it in the same unit.
    fn without(&self, own: i8) -> Option<&str> {
        let other_unit = |s: &&Synonym| {
            self.name.ends_with(".ms")
                && (s.name.ends_with(".hours") || s.name.ends_with(".minutes"))
        };
        let next = self.synonyms.iter().find(|s| s.source_number != own)?;
        next.value.as_deref().filter(|_| !other_unit(&next))
    }
}

/// DescribeConfigs' number for a default.
const DEFAULT: i8 = 5;

fn source(number: i8) -> &'static str {
    match number {
        1 => "topic",
        2 => "broker",
        3 => "all brokers",
        4 => "broker's file",
        DEFAULT => "default",
        6 => "logger",
        7 => "client metrics",
        8 => "group",
        _ => "unknown",
    }
}

fn kind(number: i8) -> &'static str {
    match number {
        1 => "boolean",
        2 => "string",
        3 => "int",
        4 => "short",
        5 => "long",
        6 => "double",
        7 => "list",
        8 => "class",
        9 => "password",
        _ => "unknown",
    }
}

/// The connection to whom a thing's configs are asked of.
fn place<'c>(cluster: &'c mut Cluster, thing: Thing) -> Result<&'c mut Connection, ClientError> {
    let is_one_broker = matches!(thing.kind, KindArg::Broker | KindArg::Logger);
    if !is_one_broker || (thing.kind == KindArg::Broker && thing.name == ALL_BROKERS) {
        return cluster.any();
    }
    let id: i32 = thing.name.parse().map_err(|_| {
        ClientError::Usage(format!(
            "'{}' is no broker's id; `tailrace cluster info` shows them, `{ALL_BROKERS}` stands for what all brokers share",
            thing.name
        ))
    })?;
    cluster.metadata(Some(&[]), false)?;
    let known = cluster.broker_ids();
    if !known.contains(&id) {
        let known: Vec<String> = known.iter().map(ToString::to_string).collect();
        return Err(ClientError::Missing(format!(
            "there is no broker {id}; there are: {}",
            known.join(", ")
        )));
    }
    cluster.broker(id)
}

fn resource_name<'a>(thing: Thing<'a>) -> &'a str {
    match thing.kind {
        KindArg::Broker if thing.name == ALL_BROKERS => "",
        _ => thing.name,
    }
}

/// The configs of something, by name.
pub fn describe(
    cluster: &mut Cluster,
    thing: Thing,
    documented: bool,
) -> Result<Vec<Setting>, ClientError> {
    let answer = cluster.retry(|c| {
        let connection = place(c, thing)?;
        let version = connection.version::<DescribeConfigsRequest>(i16::MAX)?;
        let request = DescribeConfigsRequest::default()
            .with_resources(vec![
                DescribeConfigsResource::default()
                    .with_resource_type(thing.number())
                    .with_resource_name(text(resource_name(thing)))
                    .with_configuration_keys(None),
            ])
            .with_include_synonyms(true)
            .with_include_documentation(documented && version >= DOCUMENTED);
        connection.call(&request, i16::MAX)
    })?;
    let mut settings = Vec::new();
    for result in answer.results {
        check(result.error_code, result.error_message.as_deref()).map_err(|e| thing.at(e))?;
        settings.extend(result.configs.into_iter().map(Setting::new));
    }
    settings.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(settings)
}

/// One config of each of these topics, as far as they are there still and have it.
pub fn of_topics(
    cluster: &mut Cluster,
    topics: &[&str],
    config: &str,
) -> Result<BTreeMap<String, String>, ClientError> {
    let mut found = BTreeMap::new();
    let mut progress = Progress::new("topics asked for their configs", topics.len());
    for part in topics.chunks(TOPICS_PER_REQUEST) {
        let resource = |name: &&str| {
            let thing = Thing {
                kind: KindArg::Topic,
                name,
            };
            DescribeConfigsResource::default()
                .with_resource_type(thing.number())
                .with_resource_name(text(name))
                .with_configuration_keys(Some(vec![text(config)]))
        };
        let request =
            DescribeConfigsRequest::default().with_resources(part.iter().map(resource).collect());
        let answer = cluster.retry(|c| c.any()?.call(&request, i16::MAX))?;
        for result in answer.results {
            // 3: it was deleted since.
            if result.error_code == 3 {
                continue;
            }
            let name = result.resource_name.to_string();
            check(result.error_code, result.error_message.as_deref())
                .map_err(|e| at(&format!("topic '{name}'"), e))?;
            let value = result.configs.into_iter().find(|c| &*c.name == config);
            if let Some(value) = value.and_then(|c| c.value) {
                found.insert(name, value.to_string());
            }
        }
        progress.add(part.len());
    }
    Ok(found)
}

fn get(
    thing: Thing,
    names: &[String],
    only_set: bool,
    explain: bool,
    admin: &AdminArgs,
) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let mut settings = describe(&mut cluster, thing, explain)?;
    for name in names {
        known(&settings, name)?;
    }
    settings.retain(|s| (names.is_empty() || names.contains(&s.name)) && (!only_set || s.is_set()));
    if admin.json {
        return print_json(&settings);
    }
    if explain {
        return settings.iter().try_for_each(explain_one);
    }
    let mut table = Table::new(&["CONFIG", "VALUE", "SET BY"]);
    for s in settings {
        table.row(vec![s.name.clone(), s.for_people(), s.source.into()]);
    }
    table.print()
}

/// The config of that name, or what may have been meant.
fn known<'s>(settings: &'s [Setting], name: &str) -> Result<&'s Setting, ClientError> {
    settings.iter().find(|s| s.name == name).ok_or_else(|| {
        let meant = nearest(name, settings.iter().map(|s| s.name.as_str()));
        let meant = meant.map(|m| format!(", did you mean {m}?")).unwrap_or_default();
        ClientError::Missing(format!(
            "there is no config '{name}'{meant}; without a name `tailrace config get` shows them all"
        ))
    })
}

fn explain_one(s: &Setting) -> Result<(), ClientError> {
    let fixed = if s.read_only {
        ", can't be changed here"
    } else {
        ""
    };
    print(format_args!(
        "{} = {}\n    {}, set by: {}{fixed}",
        clean(&s.name),
        clean(&s.for_people()),
        s.kind,
        s.source
    ))?;
    for other in &s.synonyms {
        print(format_args!(
            "    {}: {} = {}",
            other.source,
            clean(&other.name),
            clean(other.value.as_deref().unwrap_or(NOTHING))
        ))?;
    }
    if let Some(text) = s.documentation.as_deref().filter(|d| !d.is_empty()) {
        for line in wrapped(text) {
            print(format_args!("    {}", clean(&line)))?;
        }
    }
    Ok(())
}

/// Lines of at most 90 characters, if the words are no longer.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always one");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > 90 {
            lines.push(word.into());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

/// Sends the changes, or has them checked only.
pub fn alter(
    cluster: &mut Cluster,
    thing: Thing,
    changes: &[Change],
    validate_only: bool,
) -> Result<(), ClientError> {
    let configs = changes
        .iter()
        .map(|change| {
            AlterableConfig::default()
                .with_name(text(&change.name))
                .with_config_operation(change.operation as i8)
                .with_value(change.value.as_deref().map(text))
        })
        .collect();
    let request = IncrementalAlterConfigsRequest::default()
        .with_resources(vec![
            AlterConfigsResource::default()
                .with_resource_type(thing.number())
                .with_resource_name(text(resource_name(thing)))
                .with_configs(configs),
        ])
        .with_validate_only(validate_only);
    let answer = cluster.retry(|c| place(c, thing)?.call(&request, i16::MAX))?;
    for response in answer.responses {
        check(response.error_code, response.error_message.as_deref()).map_err(|e| thing.at(e))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Outcome {
    executed: bool,
    changes: Vec<Changed>,
}

fn set(
    thing: Thing,
    changes: &[Change],
    dry_run: bool,
    admin: &AdminArgs,
) -> Result<(), ClientError> {
    let mut cluster = Cluster::open(&admin.broker)?;
    let settings = describe(&mut cluster, thing, false)?;
    let changed = foresee(&settings, thing, changes);
    alter(&mut cluster, thing, changes, dry_run)?;
    if admin.json {
        return print_json(&Outcome {
            executed: !dry_run,
            changes: changed,
        });
    }
    print_changes(&changed)?;
    if dry_run {
        print("checked: nothing was changed; the same without --dry-run changes it")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::MoreChanges;

    pub fn setting(name: &str, value: &str, synonyms: &[(i8, &str)]) -> Setting {
        Setting {
            name: name.into(),
            value: Some(value.into()),
            source: source(synonyms[0].0),
            kind: "long",
            read_only: false,
            sensitive: false,
            synonyms: synonyms
                .iter()
                .map(|(number, value)| Synonym {
                    name: name.into(),
                    value: Some((*value).into()),
                    source: source(*number),
                    source_number: *number,
                })
                .collect(),
            documentation: None,
            source_number: synonyms[0].0,
        }
    }

    #[test]
    fn a_mistyped_config_is_recognised() {
        let settings = [setting("retention.ms", "5", &[(5, "5")])];
        let e = known(&settings, "retention.m").err().unwrap().to_string();
        assert!(e.contains("did you mean retention.ms?"), "{e}");
        assert!(known(&settings, "retention.ms").is_ok());
    }

    #[test]
    fn loggers_are_named_as_such_and_their_levels_may_be_small() {
        let thing = Thing {
            kind: KindArg::Logger,
            name: "1",
        };
        let e = thing.at(ClientError::refused(40, Some("There is no logger x.")));
        assert!(e.to_string().starts_with("loggers of broker '1': "), "{e}");
        let none = MoreChanges {
            unset: Vec::new(),
            append: Vec::new(),
            subtract: Vec::new(),
            dry_run: false,
        };
        let given = ["engine=debug".to_string()];
        let spelt = thing.spell(changes(&given, &none).unwrap());
        assert_eq!(spelt[0].value.as_deref(), Some("DEBUG"));
        assert_eq!(spelt[0].name, "engine");
    }

    #[test]
    fn documentation_is_wrapped() {
        let lines = wrapped(&"word ".repeat(50));
        assert!(lines.len() > 1 && lines.iter().all(|l| l.len() <= 90));
        assert_eq!(lines.join(" ").split(' ').count(), 50);
    }
}
