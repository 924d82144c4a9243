//! What goes through the metadata group's log: commands, in an envelope with a version.
//!
//! A command carries decisions, not wishes: whoever leads checks a request against the tables of its own version and proposes the outcome, so that
//! nodes of different versions apply the same thing. What can only be decided in log order (does the name exist by now, which replica id is next)
//! is decided by [`crate::metadata::Metadata::apply`] with rules that never change within a version of the format.
//!
//! Format: one byte [`VERSION`], then postcard. Variants and fields are only ever added at the end, together with a new version. Decoding bytes from a
//! disk never panics.

use std::collections::BTreeMap;

use bytes::Bytes;
use engine::types::{NodeId, TopicId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids;
use crate::metadata::Node;
use crate::quota;

/// The version of the format of commands and snapshots that this build writes, and the newest it reads. 2 has quotas, 3 the cluster's
/// defaults of topics' configs.
pub const VERSION: u8 = 3;

/// One change of what the nodes agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Names the cluster. Only the first one has an effect.
    FormCluster {
        #[serde(with = "ids::uuid_bytes")]
        cluster_id: Uuid,
    },
    /// A node starts, or starts again with other addresses.
    RegisterNode { node: Node },
    CreateTopic {
        name: String,
        #[serde(with = "ids::topic")]
        topic_id: TopicId,
        /// For each partition the nodes of its replicas, preferred leader first. Their replica ids are given when the command is applied (G3).
        partitions: Vec<Placement>,
        configs: BTreeMap<String, String>,
    },
    DeleteTopic {
        #[serde(with = "ids::topic")]
        topic_id: TopicId,
    },
    /// Replaces a topic's configuration, if it still is version `based_on`.
    AlterConfigs {
        #[serde(with = "ids::topic")]
        topic_id: TopicId,
        based_on: u64,
        configs: BTreeMap<String, String>,
    },
    /// Adds partitions behind the `from` that the topic still must have.
    CreatePartitions {
        #[serde(with = "ids::topic")]
        topic_id: TopicId,
        from: i32,
        partitions: Vec<Placement>,
    },
    /// Gives `count` producer ids that nobody else ever gets.
    AllocateProducerIds {
        #[serde(with = "ids::node")]
        node: NodeId,
        count: i64,
    },
    /// Every node has removed its replicas of these deleted topics.
    ForgetRemoved {
        #[serde(with = "ids::topics")]
        topics: Vec<TopicId>,
    },
    /// Sets and removes limits of clients.
    AlterQuotas { changes: Vec<quota::Change> },
    /// Sets defaults of topics' configs for the whole cluster, by the names that topics have for them, and takes others back.
    AlterDefaults {
        set: BTreeMap<String, String>,
        unset: Vec<String>,
    },
}

/// The nodes of one partition's replicas, preferred leader first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    #[serde(with = "ids::nodes")]
    pub nodes: Vec<NodeId>,
}

/// A command with the mark by which its proposer finds the answer again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// A random number of the proposing process.
    pub proposer: u64,
    /// Counts the proposals of that process.
    pub ticket: u64,
    pub command: Command,
}

/// Why bytes are not a command or a snapshot.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("no bytes")]
    Empty,
    #[error(
        "written by a newer version (format {0}, this build reads up to {VERSION}): start the newer one again"
    )]
    Newer(u8),
    #[error("damaged: {0}")]
    Damaged(String),
}

impl Envelope {
    pub fn encode(&self) -> Bytes {
        encode(self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Envelope, DecodeError> {
        decode(bytes)
    }
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    let bytes = postcard::to_extend(value, vec![VERSION])
        .expect("plain owned data without maps of unknown length always encodes");
    Bytes::from(bytes)
}

/// Behind what is encoded already.
pub(crate) fn append<T: Serialize>(behind: Vec<u8>, value: &T) -> Vec<u8> {
    postcard::to_extend(value, behind)
        .expect("plain owned data without maps of unknown length always encodes")
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let (&version, rest) = bytes.split_first().ok_or(DecodeError::Empty)?;
    match version {
        0 => return Err(DecodeError::Damaged("format 0".into())),
        v if v > VERSION => return Err(DecodeError::Newer(v)),
        _ => {}
    }
    let (value, left) =
        postcard::take_from_bytes(rest).map_err(|e| DecodeError::Damaged(e.to_string()))?;
    if !left.is_empty() {
        return Err(DecodeError::Damaged(format!(
            "{} bytes too many",
            left.len()
        )));
    }
    Ok(value)
}
