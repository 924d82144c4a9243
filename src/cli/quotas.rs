//! The command line of `tailrace quota`.

use clap::{Args, Subcommand};

use super::AdminArgs;

/// The quotas that Kafka knows, as `--help` tells them.
const QUOTAS: &str = "\
Quotas, each for every broker by itself:
  producer_byte_rate        bytes produced in a second, e.g. 1MiB
  consumer_byte_rate        bytes fetched in a second
  request_percentage        share of a thread's time for requests, e.g. 50 or 200%
  controller_mutation_rate  partitions created and deleted in a second
  connection_creation_rate  new connections in a second; only of an --ip

What is most exact holds: a user and client id together, then the user, then the client id; each
before the default.";

#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// List quotas
    List {
        #[command(flatten)]
        entity: EntityArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Set quotas of a user, a client id, both together, or an address
    #[command(after_help = QUOTAS)]
    Set {
        #[arg(required = true, value_name = "QUOTA=VALUE")]
        quotas: Vec<String>,
        #[command(flatten)]
        entity: EntityArgs,
        /// Let the broker check it, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Take quotas away
    #[command(after_help = QUOTAS)]
    Delete {
        /// Which [default: all that are set]
        #[arg(value_name = "QUOTA")]
        quotas: Vec<String>,
        #[command(flatten)]
        entity: EntityArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// Whose quotas.
#[derive(Clone, Debug, Default, Args)]
pub struct EntityArgs {
    /// A user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// All users that have none of their own
    #[arg(long, conflicts_with = "user")]
    pub default_user: bool,
    /// A client id
    #[arg(long, value_name = "ID")]
    pub client_id: Option<String>,
    /// All client ids that have none of their own
    #[arg(long, conflicts_with = "client_id")]
    pub default_client_id: bool,
    /// An address from which clients connect
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["user", "default_user", "client_id", "default_client_id"])]
    pub ip: Option<String>,
    /// All addresses that have none of their own
    #[arg(long, conflicts_with_all = ["ip", "user", "default_user", "client_id", "default_client_id"])]
    pub default_ip: bool,
}
