//! The command line of `tailrace group`.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::AdminArgs;
use super::complete::{complete_groups, complete_topics};

/// The states of all protocols.
const STATES: [&str; 8] = [
    "Empty",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Dead",
];

#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// List groups: type, state, protocol, coordinator
    List {
        /// Only groups in this state; may be repeated
        #[arg(long = "state", value_name = "STATE", value_parser = STATES, ignore_case = true)]
        states: Vec<String>,
        /// Only groups of this type; may be repeated
        #[arg(long = "type", value_name = "TYPE", value_parser = ["classic", "consumer", "share", "streams"])]
        kinds: Vec<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Show a group's state and its members with what is assigned to them
    Describe {
        #[arg(required = true, add = ArgValueCompleter::new(complete_groups))]
        names: Vec<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Show how far groups are behind: partition by partition, or without a name one line for each group
    Lag {
        #[arg(add = ArgValueCompleter::new(complete_groups))]
        names: Vec<String>,
        /// Only this topic, or some of its partitions, as in orders:0,4-7; may be repeated
        #[arg(short, long = "topic", value_name = "TOPIC[:PARTITIONS]", add = ArgValueCompleter::new(complete_topics))]
        topics: Vec<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Move a group's committed offsets; shows what would happen, and does it only with --execute
    Reset(ResetArgs),
    /// Delete groups with their offsets
    Delete {
        #[arg(required = true, add = ArgValueCompleter::new(complete_groups))]
        names: Vec<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Forget a group's offsets in some topics
    DeleteOffsets {
        #[arg(add = ArgValueCompleter::new(complete_groups))]
        name: String,
        /// A topic, or some of its partitions, as in orders:0,4-7; may be repeated
        #[arg(short, long = "topic", value_name = "TOPIC[:PARTITIONS]", required = true, add = ArgValueCompleter::new(complete_topics))]
        topics: Vec<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

#[derive(Debug, Args)]
pub struct ResetArgs {
    #[arg(add = ArgValueCompleter::new(complete_groups))]
    pub name: String,
    #[command(flatten)]
    pub goal: GoalArgs,
    /// Only this topic, or some of its partitions, as in orders:0,4-7; may be repeated [default: all that the group has offsets for]
    #[arg(short, long = "topic", value_name = "TOPIC[:PARTITIONS]", add = ArgValueCompleter::new(complete_topics))]
    pub topics: Vec<String>,
    /// Do it; without this nothing is changed
    #[arg(long)]
    pub execute: bool,
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// Where to go: one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct GoalArgs {
    /// To the first records
    #[arg(long)]
    pub to_earliest: bool,
    /// To the end
    #[arg(long)]
    pub to_latest: bool,
    /// To this offset
    #[arg(long, value_name = "OFFSET", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
    pub to_offset: Option<i64>,
    /// So many records forward, or with a minus back
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub shift_by: Option<i64>,
    /// To the first records at or after a time, e.g. 2026-11-30T12:00 (UTC), with a zone 2026-11-30T12:00+01:00, or @MILLISECONDS
    #[arg(long, value_name = "TIME")]
    pub to_datetime: Option<String>,
    /// To the first records of the last so much time, e.g. 90s, 1h30m, 7d, PT1H
    #[arg(long, value_name = "DURATION")]
    pub by_duration: Option<String>,
}
