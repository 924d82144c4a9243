//! Completion in the shell. Names of topics and groups are asked of the broker: the one on the line so far, else `TAILRACE_BROKER`, else the default.
//!
//! The shell waits meanwhile, so a broker that doesn't answer within [`PATIENCE_MS`] completes nothing; nor does any error.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

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
/// What the binary is called, if nobody has renamed it.
const NAME: &str = "tailrace";
/// The variable by which the shell's script asks for candidates.
const VARIABLE: &str = "TAILRACE_COMPLETE";

/// Answers the shell, if it is the shell that asks, and ends the process then.
pub fn answer_the_shell() {
    CompleteEnv::with_factory(Cli::command)
        .var(VARIABLE)
        .complete();
}

/// The script that a shell reads, for `tailrace completion`: for what we were called by, `tailrace`, and `names`.
pub fn print_script(shell: &str, names: Vec<String>) -> Result<(), Fatal> {
    let called = std::env::args_os().next().map(PathBuf::from);
    let called = called.as_deref().and_then(Path::file_name);
    let called = called.and_then(|name| word(name.to_str()?).ok());
    // The shell asks this very binary, whatever an alias or the PATH make of its name.
    let binary = std::env::current_exe().ok();
    let binary = binary.as_deref().and_then(Path::to_str);
    // The scripts put one that must be quoted into quotes of their own.
    let binary = binary.filter(|path| {
        path.split('/')
            .all(|part| part.is_empty() || word(part).is_ok())
    });
    let words: BTreeSet<String> = [NAME.to_string()]
        .into_iter()
        .chain(called)
        .chain(names)
        .collect();
    let script = script(shell, &words, binary.unwrap_or(NAME));
    std::io::stdout()
        .write_all(script.as_bytes())
        .map_err(|e| cannot_print(&e))
}

/// A word that the script can name a command by, unquoted in every shell.
pub fn word(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(fits) {
        true => Ok(text.to_string()),
        false => Err("a command's name has letters, digits, '.', '_', '+' and '-'".into()),
    }
}

fn script(shell: &str, words: &BTreeSet<String>, binary: &str) -> String {
    let shells = Shells::builtins();
    let completer = shells
        .completer(shell)
        .expect("the command line takes only shells that there are");
    let mut script = Vec::new();
    for word in words {
        // Names of functions have no dots and signs.
        let function: String = word
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        completer
            .write_registration(VARIABLE, &function, word, binary, &mut script)
            .expect("memory takes every write");
    }
    String::from_utf8(script).expect("it is made of texts")
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
    fn every_word_that_it_is_called_by_is_completed_by_this_binary() {
        let words = BTreeSet::from(["tailrace", "tr-2"].map(String::from));
        for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
            let script = script(shell, &words, "/opt/t/tailrace");
            // An alias of ours is none inside quotes: the path is asked.
            assert!(script.contains("/opt/t/tailrace"), "{script}");
            assert!(script.contains("tr-2"), "{script}");
        }
        let bash = script("bash", &words, "/opt/t/tailrace");
        for line in [
            "-F _clap_complete_tailrace tailrace",
            "-F _clap_complete_tr_2 tr-2",
        ] {
            assert!(bash.contains(line), "{bash}");
        }
        assert!(word("t").is_ok() && word("tail race").is_err() && word("$(x)").is_err());
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
