//! The command line: one module for each command with more than a few arguments, [`complete`] for shells.

mod cluster;
pub mod complete;
mod configs;
mod groups;
mod quotas;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand, ValueEnum};

use clap_complete::engine::ArgValueCompleter;
pub use cluster::ClusterCommand;
use complete::{complete_topic_configs, complete_topics};
pub use configs::{ConfigArgs, ConfigCommand, KindArg, MoreChanges};
pub use groups::{GroupCommand, ResetArgs};
pub use quotas::{EntityArgs, QuotaCommand};

use crate::settings::{KEYS, Layer, Source, is_yes_or_no};

/// A streaming engine that speaks the Kafka protocol. Without a command it serves.
#[derive(Debug, Parser)]
#[command(
    name = "tailrace",
    version,
    override_usage = "tailrace [SETTINGS]\n       tailrace <COMMAND> [OPTIONS]",
    max_term_width = 100,
    after_help = crate::exit::HELP
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub settings: SettingsArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node (the default)
    Serve(SettingsArgs),
    /// Print the settings in force, as a config file, and where each comes from; `get` and `set` are for the configs of topics, brokers and groups
    Config(ConfigArgs),
    /// Create, list, describe, alter and delete topics
    #[command(subcommand)]
    Topic(TopicCommand),
    /// List, describe, reset and delete consumer groups, and tell how far they are behind
    #[command(subcommand)]
    Group(GroupCommand),
    /// Show the cluster and whether it is well
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// List, set and delete quotas of users, client ids and addresses
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Produce one record per line of standard input
    Produce(ProduceArgs),
    /// Print the records of a topic
    Consume(ConsumeArgs),
    /// Measure the latency of a broker that speaks the Kafka protocol
    #[command(subcommand)]
    Bench(bench::cli::BenchCommand),
    /// Print the script with which a shell completes commands, topics and groups
    ///
    /// It completes the name that the binary is called by here, and `tailrace`; --name is for aliases and links.
    #[command(
        after_help = "For bash, in ~/.bashrc:     source <(tailrace completion bash)\nFor zsh, in ~/.zshrc:       source <(tailrace completion zsh)\nFor fish, in its config:    tailrace completion fish | source"
    )]
    Completion {
        #[arg(value_parser = ["bash", "elvish", "fish", "powershell", "zsh"])]
        shell: String,
        /// Another word that it is called by, for instance an alias; may be repeated
        #[arg(long = "name", value_name = "WORD", value_parser = complete::word)]
        names: Vec<String>,
    },
}

/// The settings given as flags, one flag per row of the table of settings.
#[derive(Debug, Default)]
pub struct SettingsArgs {
    pub config: Option<PathBuf>,
    pub layer: Layer,
}

impl SettingsArgs {
    /// These, given before a command, and those behind it, which win.
    pub fn and(&self, behind: &SettingsArgs) -> SettingsArgs {
        let mut layer = self.layer.clone();
        layer.extend(behind.layer.iter().map(|(k, v)| (*k, v.clone())));
        SettingsArgs {
            config: behind.config.clone().or_else(|| self.config.clone()),
            layer,
        }
    }

    /// What was given, for a message.
    pub fn first(&self) -> Option<String> {
        let config = self.config.iter().map(|_| "--config".to_string());
        let flags = self.layer.keys().map(|name| format!("--{name}"));
        config.chain(flags).next()
    }
}

/// The words of the command line, with `--switch false` as `--switch=false`: a switch may stand alone, so that the command line's parser takes no word behind it for its value.
pub fn words(given: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let is_switch = |word: &OsString| {
        let name = word.to_str().and_then(|w| w.strip_prefix("--"));
        name.is_some_and(|name| KEYS.iter().any(|key| key.switch && key.name == name))
    };
    let mut words: Vec<OsString> = Vec::new();
    for word in given {
        let says = word.to_str().is_some_and(is_yes_or_no);
        match words.last_mut().filter(|last| says && is_switch(last)) {
            Some(switch) => {
                switch.push("=");
                switch.push(word);
            }
            None => words.push(word),
        }
    }
    words
}

impl Args for SettingsArgs {
    fn augment_args(cmd: clap::Command) -> clap::Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("A TOML file of settings, named as the flags are; the variable TAILRACE_CONFIG does the same");
        KEYS.iter().fold(cmd.arg(file), |cmd, key| {
            let mut arg = Arg::new(key.name)
                .long(key.name)
                .value_name(key.value_name)
                .action(ArgAction::Set)
                .help(key.help);
            if key.switch {
                arg = arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("true");
            }
            cmd.arg(arg)
        })
    }

    fn augment_args_for_update(cmd: clap::Command) -> clap::Command {
        Self::augment_args(cmd)
    }
}

impl FromArgMatches for SettingsArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SettingsArgs, clap::Error> {
        let mut args = SettingsArgs::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>("config").cloned();
        for key in KEYS {
            if let Some(text) = matches.get_one::<String>(key.name) {
                let source = Source::Flag(format!("--{}", key.name));
                self.layer.insert(key.name, (text.clone(), source));
            }
        }
        Ok(())
    }
}

/// The broker that client commands talk to when none is named.
pub const DEFAULT_BROKER: &str = "127.0.0.1:9092";

/// Which broker client commands talk to.
#[derive(Clone, Debug, Args)]
pub struct BrokerArgs {
    /// The broker to start from
    #[arg(
        short,
        long,
        value_name = "HOST:PORT",
        default_value = DEFAULT_BROKER,
        env = "TAILRACE_BROKER"
    )]
    pub broker: String,
    /// How long one request may take, with everything that is tried again, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub timeout_ms: u64,
}

impl BrokerArgs {
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// What administrative commands have in common.
#[derive(Clone, Debug, Args)]
pub struct AdminArgs {
    #[command(flatten)]
    pub broker: BrokerArgs,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum TopicCommand {
    /// Create topics
    Create {
        #[arg(required = true)]
        names: Vec<String>,
        /// Partitions [default: the broker's]
        #[arg(short, long, default_value_t = -1, hide_default_value = true, allow_negative_numbers = true)]
        partitions: i32,
        /// Replicas of each partition [default: the broker's]
        #[arg(short, long, default_value_t = -1, hide_default_value = true, allow_negative_numbers = true)]
        replication_factor: i16,
        /// A topic config, e.g. retention.ms=7d or segment.bytes=128MiB; may be repeated
        #[arg(short, long = "config", value_name = "NAME=VALUE", add = ArgValueCompleter::new(complete_topic_configs))]
        configs: Vec<String>,
        /// Succeed if a topic is there already
        #[arg(long)]
        if_not_exists: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// List topics: name, partitions, replicas
    List {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Show a topic's partitions with their leaders and offsets, and the configs that were set
    Describe {
        #[arg(required = true, add = ArgValueCompleter::new(complete_topics))]
        names: Vec<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Give topics more partitions or other configs; all is checked before anything is changed
    Alter {
        #[arg(required = true, add = ArgValueCompleter::new(complete_topics))]
        names: Vec<String>,
        /// How many partitions there are to be; there can't be fewer than before
        #[arg(short, long, value_parser = clap::value_parser!(i32).range(1..))]
        partitions: Option<i32>,
        /// A topic config, e.g. retention.ms=7d or segment.bytes=128MiB; may be repeated
        #[arg(short, long = "config", value_name = "NAME=VALUE", add = ArgValueCompleter::new(complete_topic_configs))]
        configs: Vec<String>,
        #[command(flatten)]
        more: MoreChanges,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Delete topics with all their records
    Delete {
        #[arg(required = true, add = ArgValueCompleter::new(complete_topics))]
        names: Vec<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CodecArg {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AcksArg {
    /// Committed and synced
    All,
    /// In the leader's memory
    #[value(name = "1")]
    Leader,
    /// Don't wait
    #[value(name = "0")]
    None,
}

#[derive(Debug, Args)]
pub struct ProduceArgs {
    #[arg(add = ArgValueCompleter::new(complete_topics))]
    pub topic: String,
    /// The partition [default: by the key's hash as Kafka does it, without a key in turn]
    #[arg(short, long)]
    pub partition: Option<i32>,
    /// What parts key and value in a line; without it lines are values
    #[arg(short = 'K', long, value_name = "TEXT")]
    pub key_separator: Option<String>,
    /// A header of every record; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME=VALUE")]
    pub headers: Vec<String>,
    /// A key or value that is exactly this text is null
    #[arg(long, value_name = "TEXT")]
    pub null: Option<String>,
    #[arg(short = 'z', long, value_enum, default_value = "none")]
    pub codec: CodecArg,
    #[arg(long, value_enum, default_value = "all")]
    pub acks: AcksArg,
    /// Records per batch, at most
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub batch_records: usize,
    /// Print partition and offset of every batch
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub broker: BrokerArgs,
}

#[derive(Debug, Args)]
pub struct ConsumeArgs {
    #[arg(add = ArgValueCompleter::new(complete_topics))]
    pub topic: String,
    /// Only this partition; may be repeated
    #[arg(short, long = "partition")]
    pub partitions: Vec<i32>,
    /// Where to begin: beginning, end, an offset, -N for N before the end, or @MS for the first record at or after a time in milliseconds
    #[arg(short, long, default_value = "beginning", allow_hyphen_values = true)]
    pub offset: String,
    /// End after so many records
    #[arg(short, long, value_name = "N")]
    pub count: Option<u64>,
    /// End at the end of every partition
    #[arg(short, long)]
    pub exit: bool,
    /// Print the key and this text before each value
    #[arg(short = 'K', long, value_name = "TEXT")]
    pub key_separator: Option<String>,
    /// What is printed of each record: %k key, %v value, %h headers, %t topic, %p partition, %o offset, %T timestamp, %K and %V lengths (-1 for null), %% a per cent sign; \n, \t, \0
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "key_separator")]
    pub format: Option<String>,
    /// What is printed for a null key or value
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub null: String,
    #[command(flatten)]
    pub broker: BrokerArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn settings_may_stand_before_the_command_that_serves() {
        let line = "tailrace --shards 1 --rack a serve --rack b";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Some(Command::Serve(behind)) = &cli.command else {
            panic!("{:?}", cli.command);
        };
        let all = cli.settings.and(behind);
        let of = |name| all.layer.get(name).map(|(text, _)| text.as_str());
        assert_eq!((of("shards"), of("rack")), (Some("1"), Some("b")));
        assert_eq!(cli.settings.first().as_deref(), Some("--rack"));
        assert_eq!(SettingsArgs::default().first(), None);
    }

    #[test]
    fn a_switch_takes_the_word_behind_it_if_that_is_its_value() {
        let of = |line: &str| {
            let words = words(line.split(' ').map(OsString::from));
            let cli = Cli::try_parse_from(words).map(|cli| cli.settings.layer)?;
            let value = cli.get("overprovisioned").map(|(text, _)| text.clone());
            Ok::<_, clap::Error>(value)
        };
        let is =
            |line, value: &str| assert_eq!(of(line).unwrap().as_deref(), Some(value), "{line}");
        is("tailrace --overprovisioned false", "false");
        is("tailrace --overprovisioned --shards 1", "true");
        is("tailrace --overprovisioned=off", "off");
        is("tailrace --overprovisioned No --shards 1", "No");
        is("tailrace --overprovisioned serve", "true");
        assert!(of("tailrace --overprovisioned perhaps").is_err());
    }

    #[test]
    fn config_is_this_nodes_settings_or_a_command() {
        let of = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.command);
        let config = |line| match of(line) {
            Ok(Some(Command::Config(args))) => args,
            other => panic!("{line}: {other:?}"),
        };
        assert!(config("tailrace config --shards 1").command.is_none());
        assert!(config("tailrace config get topic t").command.is_some());
        assert!(of("tailrace config --shards 1 get topic t").is_err());
        assert!(of("tailrace group reset g --execute").is_err(), "no goal");
        assert!(of("tailrace group reset g --shift-by -5").is_ok());
        assert!(of("tailrace quota set producer_byte_rate=1 --user a --default-user").is_err());
    }
}
