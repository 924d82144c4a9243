//! The metadata state machine: what the metadata group's log says, applied entry by entry.
//!
//! Pure: same commands, same state, on every node and after every restart. A command that can't be carried out is refused and changes nothing.
//!
//! Invariants: a name (and everything that collides with it) belongs to at most one topic; a replica id is given once, ever (G3), and so is a
//! producer id; a deleted topic stays on the list of the removed until every node has dropped its replicas, because replicas go only on an
//! explicit removal. Sizes are bounded by [`crate::limits`].
//!
//! Called by [`crate::controller::Controller`], which publishes the [`Change`]s to the shards.

use std::collections::BTreeMap;

use engine::types::{NodeId, RaftIndex, ReplicaId, TopicId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::command::{Command, Placement};
use crate::error::{Refusal, Refused};
use crate::quota::{self, Entity, Limits, Quotas};
use crate::{ids, limits, topic_name};

mod snapshot;

pub use snapshot::SnapshotDraft;

/// A node of the cluster, as it registered itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    #[serde(with = "ids::node")]
    pub id: NodeId,
    /// What clients are told to connect to.
    pub host: String,
    pub port: u16,
    pub rack: Option<String>,
    pub shards: u16,
    /// The id of its data directory (G3).
    #[serde(with = "ids::uuid_bytes")]
    pub directory: Uuid,
}

/// One replica of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    #[serde(with = "ids::node")]
    pub node: NodeId,
    #[serde(with = "ids::replica")]
    pub id: ReplicaId,
}

/// A partition's replicas, preferred leader first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    pub replicas: Vec<Replica>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topic {
    #[serde(with = "ids::topic")]
    pub id: TopicId,
    pub name: String,
    /// By partition number.
    pub partitions: Vec<Partition>,
    /// What was set for this topic, by name, in Kafka's text form.
    pub configs: BTreeMap<String, String>,
    /// Counts the changes of `configs`.
    pub config_version: u64,
}

/// A topic that was deleted and may still have replicas somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    #[serde(with = "ids::topic")]
    pub id: TopicId,
    /// Where in the log it was deleted.
    #[serde(with = "ids::index")]
    pub at: RaftIndex,
}

/// Everything that shards need to know, at one point of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    pub cluster_id: Option<String>,
    pub nodes: Vec<Node>,
    pub topics: Vec<Topic>,
    pub removed: Vec<Removed>,
    pub quotas: Vec<(Entity, Limits)>,
    pub defaults: BTreeMap<String, String>,
}

/// What one command changed: plain data that crosses the rings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Everything anew: at start, and when a shard has missed too much.
    Reset(Box<Image>),
    ClusterFormed {
        cluster_id: String,
    },
    NodeRegistered(Node),
    TopicCreated(Topic),
    /// Replicas of this topic go.
    TopicDeleted(Removed),
    ConfigsAltered {
        topic: TopicId,
        configs: BTreeMap<String, String>,
        config_version: u64,
    },
    /// `partitions` follow after the `from` that were there.
    PartitionsAdded {
        topic: TopicId,
        from: i32,
        partitions: Vec<Partition>,
    },
    RemovedForgotten(Vec<TopicId>),
    QuotasAltered(Vec<quota::Change>),
    /// All that are set now.
    DefaultsAltered(BTreeMap<String, String>),
}

/// What the proposer of a command learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// `count` ids from `first` on.
    ProducerIds {
        first: i64,
        count: i64,
    },
}

/// The outcome of a command that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub answer: Answer,
    pub change: Option<Change>,
}

/// The state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    applied: RaftIndex,
    cluster_id: Option<Uuid>,
    nodes: BTreeMap<NodeId, Node>,
    topics: BTreeMap<TopicId, Topic>,
    /// By collision key; the topic's own name may differ from the key in dots.
    names: BTreeMap<String, TopicId>,
    removed: BTreeMap<TopicId, Removed>,
    /// Replicas hosted per node.
    hosted: BTreeMap<NodeId, usize>,
    next_replica: u64,
    next_producer_id: i64,
    quotas: Quotas,
    /// What the cluster has set for topics that don't say, by the names that topics have for it.
    defaults: BTreeMap<String, String>,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata {
            applied: RaftIndex(0),
            cluster_id: None,
            nodes: BTreeMap::new(),
            topics: BTreeMap::new(),
            names: BTreeMap::new(),
            removed: BTreeMap::new(),
            hosted: BTreeMap::new(),
            // 0 is nobody, 1 is the metadata group's own first replica.
            next_replica: 2,
            next_producer_id: 0,
            quotas: Quotas::default(),
            defaults: BTreeMap::new(),
        }
    }
}

impl Metadata {
    /// The replica id of the metadata group's founding member.
    pub const FIRST_REPLICA: ReplicaId = ReplicaId(1);

    /// Applies the command at `index`. Entries come in order; one at or below [`Metadata::applied`] is a defect.
    pub fn apply(&mut self, index: RaftIndex, command: Command) -> Result<Outcome, Refused> {
        assert!(
            index > self.applied,
            "metadata entry {index} comes after {}",
            self.applied
        );
        self.applied = index;
        match command {
            Command::FormCluster { cluster_id } => self.form_cluster(cluster_id),
            Command::RegisterNode { node } => self.register_node(node),
            Command::CreateTopic {
                name,
                topic_id,
                partitions,
                configs,
            } => self.create_topic(name, topic_id, &partitions, configs),
            Command::DeleteTopic { topic_id } => self.delete_topic(index, topic_id),
            Command::AlterConfigs {
                topic_id,
                based_on,
                configs,
            } => self.alter_configs(topic_id, based_on, configs),
            Command::CreatePartitions {
                topic_id,
                from,
                partitions,
            } => self.create_partitions(topic_id, from, &partitions),
            Command::AllocateProducerIds { count, .. } => self.allocate_producer_ids(count),
            Command::ForgetRemoved { topics } => Ok(self.forget_removed(topics)),
            Command::AlterQuotas { changes } => self.alter_quotas(changes),
            Command::AlterDefaults { set, unset } => Ok(self.alter_defaults(set, &unset)),
        }
    }

    pub fn applied(&self) -> RaftIndex {
        self.applied
    }

    pub fn cluster_id(&self) -> Option<String> {
        self.cluster_id.map(ids::kafka_uuid)
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// In the order of their ids.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    pub fn topic(&self, name: &str) -> Option<&Topic> {
        self.colliding(name).filter(|t| t.name == name)
    }

    pub fn topic_by_id(&self, id: TopicId) -> Option<&Topic> {
        self.topics.get(&id)
    }

    /// In the order of their ids.
    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.topics.values()
    }

    /// The topic that has this name or one that collides with it.
    pub fn colliding(&self, name: &str) -> Option<&Topic> {
        let id = self.names.get(topic_name::collision_key(name).as_ref())?;
        self.topics.get(id)
    }

    /// Deleted topics that may still have replicas.
    pub fn removed(&self) -> impl Iterator<Item = &Removed> {
        self.removed.values()
    }

    /// Replicas that a node hosts.
    pub fn hosted(&self, node: NodeId) -> usize {
        self.hosted.get(&node).copied().unwrap_or(0)
    }

    /// The replica id that is given next.
    pub fn next_replica(&self) -> ReplicaId {
        ReplicaId(self.next_replica)
    }

    /// Everything that shards need, for a [`Change::Reset`].
    pub fn image(&self) -> Image {
        Image {
            cluster_id: self.cluster_id(),
            nodes: self.nodes.values().cloned().collect(),
            topics: self.topics.values().cloned().collect(),
            removed: self.removed.values().copied().collect(),
            quotas: self.quotas_by_entity(),
            defaults: self.defaults.clone(),
        }
    }

    /// What the cluster has set for topics that don't say.
    pub fn defaults(&self) -> &BTreeMap<String, String> {
        &self.defaults
    }

    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    fn quotas_by_entity(&self) -> Vec<(Entity, Limits)> {
        let entities = self.quotas.entities();
        entities.map(|(e, l)| (e.clone(), l.clone())).collect()
    }

    fn form_cluster(&mut self, cluster_id: Uuid) -> Result<Outcome, Refused> {
        if self.cluster_id.is_some() {
            return Err(Refused::new(
                Refusal::InvalidRequest,
                "The cluster has an id.",
            ));
        }
        self.cluster_id = Some(cluster_id);
        Ok(changed(Change::ClusterFormed {
            cluster_id: ids::kafka_uuid(cluster_id),
        }))
    }

    fn register_node(&mut self, node: Node) -> Result<Outcome, Refused> {
        if !self.nodes.contains_key(&node.id) && self.nodes.len() >= limits::NODES {
            return Err(Refused::new(
                Refusal::PolicyViolation,
                format!("A cluster has at most {} nodes.", limits::NODES),
            ));
        }
        self.nodes.insert(node.id, node.clone());
        Ok(changed(Change::NodeRegistered(node)))
    }

    fn create_topic(
        &mut self,
        name: String,
        id: TopicId,
        placements: &[Placement],
        configs: BTreeMap<String, String>,
    ) -> Result<Outcome, Refused> {
        self.check_name_is_free(&name)?;
        if self.topics.len() >= limits::TOPICS {
            return Err(Refused::new(
                Refusal::PolicyViolation,
                format!("A cluster has at most {} topics.", limits::TOPICS),
            ));
        }
        if self.topics.contains_key(&id) || self.removed.contains_key(&id) {
            return Err(Refused::new(
                Refusal::UnknownServerError,
                "The new topic's id is in use; try again.",
            ));
        }
        self.check_room(placements)?;
        let partitions = self.place(placements);
        let topic = Topic {
            id,
            name,
            partitions,
            configs,
            config_version: 0,
        };
        let key = topic_name::collision_key(&topic.name).into_owned();
        self.names.insert(key, id);
        self.topics.insert(id, topic.clone());
        Ok(changed(Change::TopicCreated(topic)))
    }

    /// Whether a topic of this name could be created now.
    pub fn check_name_is_free(&self, name: &str) -> Result<(), Refused> {
        match self.colliding(name) {
            Some(topic) if topic.name == name => Err(Refused::new(
                Refusal::TopicAlreadyExists,
                format!("Topic '{name}' already exists."),
            )),
            Some(topic) => Err(Refused::new(
                Refusal::InvalidTopic,
                format!(
                    "Topic '{name}' collides with '{}': names that differ only in '.' and '_' exclude each other.",
                    topic.name
                ),
            )),
            None => Ok(()),
        }
    }

    /// Whether these replicas would stay within what nodes and the cluster hold.
    pub fn check_room(&self, placements: &[Placement]) -> Result<(), Refused> {
        let mut more: BTreeMap<NodeId, usize> = BTreeMap::new();
        for node in placements.iter().flat_map(|p| &p.nodes) {
            *more.entry(*node).or_default() += 1;
        }
        for (node, count) in more {
            if self.hosted(node) + count > limits::PARTITIONS_PER_NODE {
                return Err(Refused::new(
                    Refusal::PolicyViolation,
                    format!(
                        "Node {node} has {} partitions and can't take {count} more: the limit is {}.",
                        self.hosted(node),
                        limits::PARTITIONS_PER_NODE
                    ),
                ));
            }
        }
        Ok(())
    }

    fn delete_topic(&mut self, index: RaftIndex, id: TopicId) -> Result<Outcome, Refused> {
        let Some(topic) = self.topics.remove(&id) else {
            return Err(unknown_topic_id());
        };
        self.names
            .remove(topic_name::collision_key(&topic.name).as_ref());
        for replica in topic.partitions.iter().flat_map(|p| &p.replicas) {
            let hosted = self
                .hosted
                .get_mut(&replica.node)
                .expect("every replica was counted when it was placed");
            *hosted -= 1;
        }
        self.hosted.retain(|_, n| *n > 0);
        let removed = Removed { id, at: index };
        self.removed.insert(id, removed);
        Ok(changed(Change::TopicDeleted(removed)))
    }

    fn alter_configs(
        &mut self,
        id: TopicId,
        based_on: u64,
        configs: BTreeMap<String, String>,
    ) -> Result<Outcome, Refused> {
        let topic = self.topics.get_mut(&id).ok_or_else(unknown_topic_id)?;
        if topic.config_version != based_on {
            return Err(overtaken());
        }
        topic.configs.clone_from(&configs);
        topic.config_version = topic.config_version.wrapping_add(1);
        Ok(changed(Change::ConfigsAltered {
            topic: id,
            configs,
            config_version: topic.config_version,
        }))
    }

    fn create_partitions(
        &mut self,
        id: TopicId,
        from: i32,
        placements: &[Placement],
    ) -> Result<Outcome, Refused> {
        let topic = self.topics.get(&id).ok_or_else(unknown_topic_id)?;
        if i32::try_from(topic.partitions.len()) != Ok(from) {
            return Err(overtaken());
        }
        self.check_room(placements)?;
        let partitions = self.place(placements);
        let topic = self.topics.get_mut(&id).expect("it was there just now");
        topic.partitions.extend_from_slice(&partitions);
        Ok(changed(Change::PartitionsAdded {
            topic: id,
            from,
            partitions,
        }))
    }

    fn allocate_producer_ids(&mut self, count: i64) -> Result<Outcome, Refused> {
        let first = self.next_producer_id;
        match first.checked_add(count) {
            Some(next) if count > 0 => {
                self.next_producer_id = next;
                Ok(Outcome {
                    answer: Answer::ProducerIds { first, count },
                    change: None,
                })
            }
            _ => Err(Refused::new(
                Refusal::UnknownServerError,
                "There are no producer ids left.",
            )),
        }
    }

    fn forget_removed(&mut self, topics: Vec<TopicId>) -> Outcome {
        let forgotten: Vec<TopicId> = topics
            .into_iter()
            .filter(|id| self.removed.remove(id).is_some())
            .collect();
        changed(Change::RemovedForgotten(forgotten))
    }

    fn alter_quotas(&mut self, changes: Vec<quota::Change>) -> Result<Outcome, Refused> {
        let added = self.quotas.added(&changes);
        if added > 0 && self.quotas.len() + added > limits::QUOTA_ENTITIES {
            return Err(Refused::new(
                Refusal::PolicyViolation,
                format!(
                    "At most {} users, client ids and addresses have quotas.",
                    limits::QUOTA_ENTITIES
                ),
            ));
        }
        self.quotas.apply(&changes);
        Ok(changed(Change::QuotasAltered(changes)))
    }

    fn alter_defaults(&mut self, set: BTreeMap<String, String>, unset: &[String]) -> Outcome {
        self.defaults.extend(set);
        self.defaults.retain(|name, _| !unset.contains(name));
        changed(Change::DefaultsAltered(self.defaults.clone()))
    }

    /// Gives each replica its id, in order (G3).
    fn place(&mut self, placements: &[Placement]) -> Vec<Partition> {
        let mut place_one = |&node: &NodeId| {
            let id = ReplicaId(self.next_replica);
            self.next_replica += 1;
            *self.hosted.entry(node).or_default() += 1;
            Replica { node, id }
        };
        placements
            .iter()
            .map(|p| Partition {
                replicas: p.nodes.iter().map(&mut place_one).collect(),
            })
            .collect()
    }
}

fn changed(change: Change) -> Outcome {
    Outcome {
        answer: Answer::Done,
        change: Some(change),
    }
}

fn unknown_topic_id() -> Refused {
    Refused::new(Refusal::UnknownTopicId, "There is no topic with this id.")
}

/// Another change came first; the proposer looks again.
fn overtaken() -> Refused {
    Refused::new(
        Refusal::RequestTimedOut,
        "Another change of the topic came first; try again.",
    )
}

#[cfg(test)]
mod tests;
