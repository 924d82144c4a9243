//! A node: what its shards are put together of, how they start and end.
//!
//! This is everything between the process (settings, data directory, signals, admin HTTP: the binary's) and the crates that a shard is made of. It knows no
//! command line and no operating system but through `engine::rt`, so that the simulation starts the same node as the binary.
//!
//! [`start`] hands every shard its part of what recovery found, [`shard`] is one shard's life, [`replicas`] keeps a shard's groups as the metadata has them,
//! [`sink`] carries news from the groups to the metadata and to other shards, [`gate`] is how shards wait for each other at start and end, [`exit`] how
//! the process ends.

pub mod exit;
mod gate;
mod replicas;
mod shard;
mod sink;
#[allow(
    clippy::disallowed_types,
    reason = "what shards are given crosses threads once, before they run"
)]
mod start;

pub use gate::Gate;
pub use shard::Plan;
pub use start::{Asked, Numbers, ShardPort, answer_scrapes, rings, run};
