//! The command line of `tailrace config` and of what changes configs elsewhere.

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;

use super::complete::{complete_configs, complete_new_configs, complete_things};
use super::{AdminArgs, SettingsArgs};

/// Without a subcommand: this node's own settings.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: Option<ConfigCommand>,
    #[command(flatten)]
    pub settings: SettingsArgs,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show the configs of a topic, broker or group, as its broker has them
    Get {
        #[arg(value_enum)]
        kind: KindArg,
        /// A topic, a broker's id (or `default` for what all brokers share), a group, a subscription of client metrics
        #[arg(add = ArgValueCompleter::new(complete_things))]
        name: String,
        /// Only these configs
        #[arg(add = ArgValueCompleter::new(complete_configs))]
        configs: Vec<String>,
        /// Only what was set, for this or for all
        #[arg(long)]
        only_set: bool,
        /// Each with its type, where else it is set, and what it means
        #[arg(long, conflicts_with = "json")]
        explain: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Change the configs of a topic, broker or group
    Set {
        #[arg(value_enum)]
        kind: KindArg,
        /// A topic, a broker's id (or `default` for what all brokers share), a group, a subscription of client metrics
        #[arg(add = ArgValueCompleter::new(complete_things))]
        name: String,
        /// The new values, e.g. retention.ms=7d or segment.bytes=128MiB
        #[arg(value_name = "NAME=VALUE", add = ArgValueCompleter::new(complete_new_configs))]
        configs: Vec<String>,
        #[command(flatten)]
        more: MoreChanges,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// Changes of configs other than new values.
#[derive(Debug, Args)]
pub struct MoreChanges {
    /// Back to what holds without it; may be repeated
    #[arg(long, value_name = "NAME")]
    pub unset: Vec<String>,
    /// Add to a list; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub append: Vec<String>,
    /// Take out of a list; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub subtract: Vec<String>,
    /// Let the broker check it, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KindArg {
    Topic,
    Broker,
    /// What a broker logs
    Logger,
    Group,
    ClientMetrics,
}
