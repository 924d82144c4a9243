//! The command line of `tailrace cluster`.

use clap::Subcommand;

use super::AdminArgs;

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show the cluster's id, its brokers with what they hold, and how many topics and partitions there are
    Info {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Check that brokers answer, partitions have leaders, replicas are in sync, acks=all can be kept and disks have room; exits with 1 if not
    ///
    /// Records that are damaged on a disk aren't looked for: that would mean to read them all. Brokers tell of those that they meet in their logs, and Tailrace in its metrics.
    Health {
        /// Wait until it is well, for at most --timeout-ms
        #[arg(short, long)]
        wait: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Show which requests the broker takes, in which versions, and which of them this client uses
    Apis {
        #[command(flatten)]
        admin: AdminArgs,
    },
}
