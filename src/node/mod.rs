//! A node: how it starts, what its shards are put together of, how it ends.
//!
//! [`start`] is the process, [`shard`] is one shard's life, [`replicas`] keeps a shard's groups as the metadata has them, [`sink`] carries news from
//! the groups to the metadata and to other shards, [`gate`] is how shards wait for each other at start and end.

mod gate;
#[deny(clippy::disallowed_methods, clippy::disallowed_types)]
mod replicas;
#[deny(clippy::disallowed_methods, clippy::disallowed_types)]
mod shard;
#[deny(clippy::disallowed_methods, clippy::disallowed_types)]
mod sink;
mod start;

pub use gate::Gate;
pub use start::serve;
