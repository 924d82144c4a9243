//! Completion in the shell. Names of topics and groups are asked of the broker: the one on the line so far, else `TAILRACE_BROKER`, else the default.
//!
//! The shell waits meanwhile, so a broker that doesn't answer within [`PATIENCE_MS`] completes nothing; nor does any error.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;

use ::cluster::topic_config::describe;
use clap::CommandFactory;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};

use super::{BrokerArgs, Cli, DEFAULT_BROKER};
use crate::client::cluster::Cluster;
use crate::client::{ClientError, groups, topics};
use crate::exit::{Fatal, cannot_print};

/// How long the shell may wait for a name, in milliseconds.
const PATIENCE_MS: u64 = 1000;
/// Candidates that are told to the shell, at most.
const CANDIDATES: usize = 1000;
/// The variable by which the shell's script asks for candidates.
const VARIABLE: &str = "TAILRACE_COMPLETE";

/// Answers the shell, if it is the shell that asks, and ends the process then.
pub fn answer_the_shell() {
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .complete();
}

/// The script that a shell reads, for `tailrace completion`.
pub fn print_script(shell: &str) -> Result<(), Fatal> {
    let shells = Shells::builtins();
    let shell = shells
        .completer(shell)
        .expect("the command line takes only shells that there are");
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "tailrace", "tailrace", "tailrace", &mut script)
        .and_then(|()| std::io::stdout().write_all(&script))
        .map_err(|e| cannot_print(&e))
}

pub fn complete_topics(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, topics::names)
}

pub fn complete_groups(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, groups::names)
}

/// Configs of topics, as far as this version knows them, each with what it means.
pub fn complete_topic_configs(current: &OsStr) -> Vec<CompletionCandidate> {
    topic_configs(current, "=")
}

/// Topics, groups or brokers, by what the line says before.
pub fn complete_things(current: &OsStr) -> Vec<CompletionCandidate> {
    match kind_of(std::env::args()).as_deref() {
        Some("topic") => complete_topics(current),
        Some("group") => complete_groups(current),
        Some("broker" | "logger") => candidates(current, |cluster| {
            cluster.metadata(Some(&[]), false)?;
            Ok(cluster
                .broker_ids()
                .iter()
                .map(ToString::to_string)
                .collect())
        }),
        _ => Vec::new(),
    }
}

/// Names of configs to show.
pub fn complete_configs(current: &OsStr) -> Vec<CompletionCandidate> {
    match kind_of(std::env::args()).as_deref() {
        Some("topic") => topic_configs(current, ""),
        _ => Vec::new(),
    }
}

/// Names of configs to set.
pub fn complete_new_configs(current: &OsStr) -> Vec<CompletionCandidate> {
    match kind_of(std::env::args()).as_deref() {
        Some("topic") => complete_topic_configs(current),
        _ => Vec::new(),
    }
}

fn topic_configs(current: &OsStr, end: &str) -> Vec<CompletionCandidate> {
    let current = current.to_str().unwrap_or_default();
    describe(&BTreeMap::new(), &BTreeMap::new(), None)
        .into_iter()
        .filter(|row| row.name.starts_with(current))
        .map(|row| {
            let help = row.documentation.into_owned();
            CompletionCandidate::new(format!("{}{end}", row.name)).help(Some(help.into()))
        })
        .collect()
}

/// The kind of thing that `config get` and `config set` are about: the word behind them.
fn kind_of(words: impl Iterator<Item = String>) -> Option<String> {
    let mut words = words.skip_while(|w| w != "get" && w != "set").skip(1);
    words.find(|w| !w.starts_with('-'))
}

fn candidates(
    current: &OsStr,
    names: impl FnOnce(&mut Cluster) -> Result<Vec<String>, ClientError>,
) -> Vec<CompletionCandidate> {
    let broker = BrokerArgs {
        broker: named(std::env::args()).unwrap_or_else(|| {
            std::env::var("TAILRACE_BROKER").unwrap_or_else(|_| DEFAULT_BROKER.into())
        }),
        timeout_ms: PATIENCE_MS,
    };
    let (Some(current), Ok(mut cluster)) = (current.to_str(), Cluster::open(&broker)) else {
        return Vec::new();
    };
    names(&mut cluster)
        .unwrap_or_default()
        .into_iter()
        // A name with control characters is none to type.
        .filter(|name| name.starts_with(current) && !name.contains(char::is_control))
        .take(CANDIDATES)
        .map(CompletionCandidate::new)
        .collect()
}

/// The broker that a command line names.
fn named(mut words: impl Iterator<Item = String>) -> Option<String> {
    let mut broker = None;
    while let Some(word) = words.next() {
        match word.as_str() {
            "-b" | "--broker" => broker = words.next(),
            word => {
                if let Some(value) = word.strip_prefix("--broker=") {
                    broker = Some(value.into());
                }
            }
        }
    }
    broker
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_of_the_line_is_asked() {
        let of = |line: &str| named(line.split(' ').map(String::from));
        assert_eq!(of("tailrace topic describe -b h:1 x"), Some("h:1".into()));
        assert_eq!(of("tailrace topic list --broker=h:2"), Some("h:2".into()));
        assert_eq!(of("tailrace topic list"), None);
    }

    #[test]
    fn configs_of_topics_are_known() {
        let found = complete_topic_configs(OsStr::new("retention."));
        let names: Vec<_> = found.iter().map(CompletionCandidate::get_value).collect();
        assert_eq!(names, ["retention.bytes=", "retention.ms="]);
        assert!(found.iter().all(|c| c.get_help().is_some()));
    }

    #[test]
    fn the_kind_of_thing_is_the_word_before() {
        let of = |line: &str| kind_of(line.split(' ').map(String::from));
        let asked = "/bin/tailrace -- tailrace config get topic ord";
        assert_eq!(of(asked), Some("topic".into()));
        assert_eq!(
            of("tailrace config set --dry-run group g"),
            Some("group".into())
        );
        assert_eq!(of("tailrace topic create x"), None);
    }
}
