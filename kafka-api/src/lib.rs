//! What Kafka clients see: connections, frames, dispatch and the handlers of every API that is advertised.
//!
//! A connection lives on the shard that accepted it. It knows nothing of files, Raft or other nodes: what it needs of a partition it asks of
//! the shard that owns it, by ring or, when that is its own shard, in place. Read in this order: [`versions`] (what is spoken),
//! [`frame`], [`wire`] and [`schema`] (bytes become requests), [`records`] and [`codec`] (what a produced batch must be).

pub mod codec;
pub mod error;
pub mod frame;
pub mod handlers;
pub mod limits;
pub mod records;
pub mod schema;
pub mod validate;
pub mod versions;
pub mod wire;
