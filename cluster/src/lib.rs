//! What the nodes agree on: the metadata group's state machine, topic configuration, and each shard's copy of both.
//!
//! The metadata group ("group 0") is an ordinary Raft group whose entries are [`command::Command`]s. [`metadata::Metadata`] applies them and is
//! a pure function of the log; [`controller::Controller`] is its shell on shard 0: it checks requests, proposes, waits until they are
//! applied and publishes [`metadata::Change`]s; every shard keeps a [`view::View`] that those changes feed, so that a request never leaves its shard
//! to look something up. The crate knows no connection and no request format; errors carry Kafka's codes because clients act on them.
//!
//! Read in this order: [`limits`], [`error`], [`ids`], [`command`], [`metadata`], [`placement`], [`topic_config`], [`fixed_config`], [`broker_config`], [`quota`], [`view`],
//! [`controller`].

pub mod broker_config;
pub mod command;
pub mod controller;
pub mod error;
pub mod fixed_config;
pub mod ids;
pub mod limits;
pub mod loggers;
pub mod metadata;
pub mod placement;
pub mod quota;
mod signal;
pub mod topic_config;
pub mod topic_name;
pub mod view;

pub use controller::Controller;
pub use error::{Refusal, Refused};
pub use metadata::{Change, Metadata};
pub use topic_config::TopicConfig;
pub use view::View;
