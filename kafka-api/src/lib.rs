//! What Kafka clients see: connections, frames, dispatch and the handlers of every API that is advertised.
//!
//! A connection lives on the shard that accepted it. It knows nothing of files, Raft or other nodes: what it needs of a partition it asks of
//! the shard that owns it, by ring or, when that is its own shard, in place. Read in this order: [`versions`] (what is spoken),
//! [`frame`], [`wire`] and [`schema`] (bytes become requests), [`records`], [`codec`] and [`validate`] (what a produced batch must be),
//! [`connection`] (from the socket and back), [`handlers`] (one module per API key), [`coordinator`] and [`groups`] (consumer groups: the rules, and their shell), [`quotas`] (who uses too much waits), [`request`] and [`shard`] (what crosses the rings), [`faces`] (what clients take for brokers), [`refusals`] (errors that are told, counted and logged). Every bound
//! is in [`limits`], the one error type for what cannot be read in [`error`].

pub mod codec;
pub mod connection;
pub mod coordinator;
pub mod error;
pub mod faces;
pub mod frame;
pub mod groups;
pub mod handlers;
pub mod limits;
pub mod quotas;
pub mod records;
pub mod refusals;
pub mod request;
pub mod schema;
pub mod shard;
mod sync;
pub mod testing;
pub mod validate;
pub mod versions;
pub mod wire;

pub use request::{CREDITS, ShardReply, ShardRequest};
pub use shard::{Parts, ServerConfig, Shard};
