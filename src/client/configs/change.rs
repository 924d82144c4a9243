//! Changes of configs: what the command line asks for, what it will do, and how that is shown.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{Setting, Thing};
use crate::cli::MoreChanges;
use crate::client::output::Table;
use crate::client::units::{for_people, for_the_broker};
use crate::client::{ClientError, topics};

/// What to do with a config, with IncrementalAlterConfigs' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Set = 0,
    Unset = 1,
    Append = 2,
    Subtract = 3,
}

#[derive(Clone, Debug)]
pub struct Change {
    pub name: String,
    pub operation: Operation,
    /// Nothing for [`Operation::Unset`].
    pub value: Option<String>,
}

/// `NAME=VALUE` pairs of configs on the command line; values may have units.
pub fn pairs(given: &[String]) -> Result<Vec<(String, String)>, ClientError> {
    let pairs = topics::pairs(given)?.into_iter();
    pairs
        .map(|(name, value)| {
            let value = for_the_broker(&name, &value).map_err(ClientError::Usage)?;
            Ok((name, value))
        })
        .collect()
}

/// The changes of a command line, each config once.
pub fn changes(configs: &[String], more: &MoreChanges) -> Result<Vec<Change>, ClientError> {
    let mut changes = Vec::new();
    for (given, operation) in [
        (configs, Operation::Set),
        (more.append.as_slice(), Operation::Append),
        (more.subtract.as_slice(), Operation::Subtract),
    ] {
        for (name, value) in pairs(given)? {
            changes.push(Change {
                name,
                operation,
                value: Some(value),
            });
        }
    }
    changes.extend(more.unset.iter().map(|name| Change {
        name: name.clone(),
        operation: Operation::Unset,
        value: None,
    }));
    let mut seen = BTreeSet::new();
    match changes.iter().find(|c| !seen.insert(c.name.as_str())) {
        Some(twice) => Err(ClientError::Usage(format!(
            "'{}' is given twice: a config can be changed in one way at a time",
            twice.name
        ))),
        None => Ok(changes),
    }
}

/// What a change does, for people and programs.
#[derive(Serialize)]
pub struct Changed {
    pub config: String,
    pub before: Option<String>,
    /// Nothing for a default that the broker doesn't tell.
    pub after: Option<String>,
}

/// What holds now and after the changes.
pub fn foresee(settings: &[Setting], thing: Thing, changes: &[Change]) -> Vec<Changed> {
    let mut changed = Vec::new();
    for change in changes {
        let found = settings.iter().find(|s| s.name == change.name);
        // A broker takes names that it doesn't know, and those of what all brokers share aren't told before they are set.
        let before = found.map(|s| s.shown().to_string());
        let after = match (change.operation, found) {
            (Operation::Set, Some(s)) if s.sensitive => Some(s.shown().to_string()),
            (Operation::Set, _) => change.value.clone(),
            (Operation::Unset, Some(s)) if s.sensitive => None,
            (Operation::Unset, found) => {
                found.and_then(|s| s.without(thing.own_source()).map(String::from))
            }
            (operation, found) => {
                let items = found.and_then(|s| s.value.as_deref()).unwrap_or("");
                Some(in_list(
                    items,
                    operation,
                    change.value.as_deref().unwrap_or(""),
                ))
            }
        };
        changed.push(Changed {
            config: change.name.clone(),
            before,
            after,
        });
    }
    changed
}

/// A list after items were added or taken out.
fn in_list(list: &str, operation: Operation, value: &str) -> String {
    let items = |text: &str| -> Vec<String> {
        let parts = text.split(',').map(str::trim);
        parts.filter(|i| !i.is_empty()).map(String::from).collect()
    };
    let mut all = items(list);
    for item in items(value) {
        match operation {
            Operation::Append if !all.contains(&item) => all.push(item),
            Operation::Subtract => all.retain(|i| *i != item),
            _ => {}
        }
    }
    all.join(",")
}

pub fn print_changes(changed: &[Changed]) -> Result<(), ClientError> {
    let mut table = Table::new(&["CONFIG", "BEFORE", "AFTER"]);
    for c in changed {
        let shown = |value: &str| for_people(&c.config, value);
        table.row(vec![
            c.config.clone(),
            c.before.as_deref().map(shown).unwrap_or_default(),
            c.after.as_deref().map_or_else(|| "(default)".into(), shown),
        ]);
    }
    table.print()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::KindArg;
    use crate::client::configs::tests::setting;

    const TOPIC: Thing = Thing {
        kind: KindArg::Topic,
        name: "t",
    };

    fn more(unset: &[&str], append: &[&str], subtract: &[&str]) -> MoreChanges {
        let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        MoreChanges {
            unset: owned(unset),
            append: owned(append),
            subtract: owned(subtract),
            dry_run: false,
        }
    }

    #[test]
    fn what_a_change_does_is_foreseen() {
        let settings = [
            setting("retention.ms", "5", &[(1, "5"), (4, "7"), (5, "9")]),
            setting("cleanup.policy", "delete", &[(5, "delete")]),
        ];
        assert_eq!(settings[0].without(4), Some("5"));
        let changes = changes(
            &[],
            &more(&["retention.ms"], &["cleanup.policy=compact,delete"], &[]),
        )
        .unwrap();
        let changed = foresee(&settings, TOPIC, &changes);
        let told: Vec<_> = changed
            .iter()
            .map(|c| (c.before.as_deref(), c.after.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                (Some("delete"), Some("delete,compact")),
                (Some("5"), Some("7"))
            ]
        );
        assert_eq!(in_list("a,b,c", Operation::Subtract, "b, c"), "a");
    }

    #[test]
    fn a_config_is_changed_in_one_way() {
        let twice = changes(&["a=1".into()], &more(&["a"], &[], &[]));
        assert!(matches!(twice, Err(ClientError::Usage(_))));
        assert!(changes(&["a".into()], &more(&[], &[], &[])).is_err());
        assert_eq!(
            changes(&["a=b=c".into()], &more(&[], &[], &[])).unwrap()[0]
                .value
                .as_deref(),
            Some("b=c")
        );
    }
}
