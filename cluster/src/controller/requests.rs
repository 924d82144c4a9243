//! The controller's requests: what clients may ask of it, checked and turned into commands.

use std::collections::{BTreeMap, BTreeSet};

use engine::types::{NodeId, TopicId};

use super::room::Coming;
use super::{Answer, Controller};
use crate::command::{Command, Placement};
use crate::error::{Refusal, Refused};
use crate::ids::random_uuid;
use crate::limits::{ALTER_ATTEMPTS, PARTITIONS_PER_TOPIC, PRODUCER_ID_BLOCK, QUOTA_COMMAND_BYTES};
use crate::metadata::{Metadata, Node, Topic};
use crate::placement::{Candidate, place};
use crate::quota;
use crate::topic_config::{self, ConfigChange, ConfigRow, Settings};
use crate::topic_name;

/// A topic to create, as CreateTopics has it.
#[derive(Clone, Debug, Default)]
pub struct NewTopic {
    pub name: String,
    /// -1: the node's default.
    pub partitions: i32,
    /// -1: the node's default.
    pub replication_factor: i16,
    /// Partition and its nodes, when the client places them itself; then the two numbers above are -1.
    pub assignments: Vec<(i32, Vec<NodeId>)>,
    pub configs: Vec<(String, Option<String>)>,
    pub validate_only: bool,
    /// The broker's own: it may have settings that clients' topics can't have yet.
    pub internal: bool,
}

/// A topic that was created, or would have been.
#[derive(Clone, Debug)]
pub struct CreatedTopic {
    pub name: String,
    /// Nil when it was only validated.
    pub id: TopicId,
    pub partitions: i32,
    pub replication_factor: i16,
    pub configs: Vec<ConfigRow>,
}

/// A topic by what the client knows of it.
#[derive(Clone, Debug)]
pub enum TopicRef {
    Name(String),
    Id(TopicId),
}

/// A change of a topic's configuration.
#[derive(Clone, Debug)]
pub struct AlterTopic {
    pub name: String,
    pub change: ConfigChange,
    pub validate_only: bool,
}

/// More partitions for a topic, as CreatePartitions has it.
#[derive(Clone, Debug)]
pub struct NewPartitions {
    pub name: String,
    /// How many it shall have.
    pub count: i32,
    /// The nodes of each new partition, when the client places them itself.
    pub assignments: Option<Vec<Vec<NodeId>>>,
    pub validate_only: bool,
}

/// Producer ids that nobody else gets: `count` from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerIds {
    pub first: i64,
    pub count: i64,
}

impl Controller {
    /// Names the cluster if it has no name yet, and registers this node. At start, once the metadata group serves.
    pub async fn join(&self, node: Node) -> Result<(), Refused> {
        if self.read(|m| m.cluster_id().is_none()) {
            let cluster_id = random_uuid(&self.random);
            // Refused means that another was first, which is as good.
            match self.carry_out(Command::FormCluster { cluster_id }).await {
                Err(e) if e.refusal != Refusal::InvalidRequest => return Err(e),
                _ => {}
            }
        }
        if self.read(|m| m.node(node.id) != Some(&node)) {
            self.carry_out(Command::RegisterNode { node }).await?;
        }
        Ok(())
    }

    pub async fn create_topic(&self, new: NewTopic) -> Result<CreatedTopic, Refused> {
        topic_name::check(&new.name)?;
        // First of all, as Kafka does: who wants a topic that is there learns that it is, whatever else is wrong.
        self.read(|m| m.check_name_is_free(&new.name))?;
        let own = new.configs.iter().map(|(n, v)| (n.as_str(), v.as_deref()));
        let configs = if new.internal {
            topic_config::check_internal(own)?
        } else {
            topic_config::check_overrides(own)?
        };
        let (partitions, _coming) = self.read(|m| {
            let partitions = self.placements(m, &new)?;
            let coming = self.check_room(m, &partitions)?;
            Ok::<_, Refused>((partitions, coming))
        })?;
        let mut created = CreatedTopic {
            name: new.name.clone(),
            id: TopicId::default(),
            partitions: partitions.len() as i32,
            replication_factor: partitions.first().map_or(0, |p| p.nodes.len() as i16),
            configs: self.read(|m| topic_config::describe(&configs, m.defaults(), None)),
        };
        if !new.validate_only {
            created.id = TopicId(random_uuid(&self.random));
            self.carry_out(Command::CreateTopic {
                name: new.name,
                topic_id: created.id,
                partitions,
                configs,
            })
            .await?;
        }
        Ok(created)
    }

    /// Gives the name and id of what was deleted.
    pub async fn delete_topic(&self, which: TopicRef) -> Result<(String, TopicId), Refused> {
        let (name, topic_id) = self.read(|m| match &which {
            TopicRef::Name(name) => m
                .topic(name)
                .map(|t| (t.name.clone(), t.id))
                .ok_or_else(|| unknown(name)),
            TopicRef::Id(id) => m
                .topic_by_id(*id)
                .map(|t| (t.name.clone(), t.id))
                .ok_or_else(|| {
                    Refused::new(Refusal::UnknownTopicId, "There is no topic with this id.")
                }),
        })?;
        match self.carry_out(Command::DeleteTopic { topic_id }).await {
            // It was there a moment ago: somebody else deleted it first.
            Err(e)
                if e.refusal == Refusal::UnknownTopicId && matches!(which, TopicRef::Name(_)) =>
            {
                Err(unknown(&name))
            }
            result => result.map(|_| (name, topic_id)),
        }
    }

    pub async fn alter_topic(&self, alter: AlterTopic) -> Result<(), Refused> {
        if alter.name.is_empty() {
            return Err(Refused::new(
                Refusal::InvalidRequest,
                "There is no configuration of topics in general; name one.",
            ));
        }
        topic_name::check(&alter.name)?;
        for _ in 0..ALTER_ATTEMPTS {
            let (topic_id, based_on, configs) = self.read(|m| {
                let Some(topic) = m.topic(&alter.name) else {
                    // What no topic could take is told first, as Kafka does.
                    alter.change.apply(&BTreeMap::new())?;
                    return Err(unknown(&alter.name));
                };
                let configs = alter.change.apply(&topic.configs)?;
                Ok::<_, Refused>((topic.id, topic.config_version, configs))
            })?;
            if alter.validate_only {
                return Ok(());
            }
            let command = Command::AlterConfigs {
                topic_id,
                based_on,
                configs,
            };
            match self.carry_out(command).await {
                // Another change of this topic came first: look again.
                Err(e) if self.overtaken(&e, topic_id, |t| t.config_version != based_on) => {}
                result => return result.map(|_| ()),
            }
        }
        Err(Refused::new(
            Refusal::RequestTimedOut,
            "Other changes of the topic kept coming first; try again.",
        ))
    }

    /// Changes what the cluster has set for topics that don't say; `change` has the names that topics have for it.
    pub async fn alter_defaults(
        &self,
        change: ConfigChange,
        validate_only: bool,
    ) -> Result<(), Refused> {
        let (set, unset) = self.read(|m| {
            let (now, then) = (m.defaults(), change.apply(m.defaults())?);
            let gone = now.keys().filter(|name| !then.contains_key(*name));
            let unset: Vec<String> = gone.cloned().collect();
            let set: Settings = then
                .into_iter()
                .filter(|(n, v)| now.get(n) != Some(v))
                .collect();
            Ok::<_, Refused>((set, unset))
        })?;
        if validate_only || (set.is_empty() && unset.is_empty()) {
            return Ok(());
        }
        self.carry_out(Command::AlterDefaults { set, unset })
            .await?;
        Ok(())
    }

    /// Gives the new number of partitions.
    pub async fn create_partitions(&self, new: NewPartitions) -> Result<i32, Refused> {
        let (topic_id, from, partitions, _coming) = self.read(|m| {
            let topic = m.topic(&new.name).ok_or_else(|| unknown(&new.name))?;
            let more = self.more_placements(m, topic, &new)?;
            let coming = self.check_room(m, &more)?;
            let from = topic.partitions.len() as i32;
            Ok::<_, Refused>((topic.id, from, more, coming))
        })?;
        if !new.validate_only {
            self.carry_out(Command::CreatePartitions {
                topic_id,
                from,
                partitions,
            })
            .await?;
        }
        Ok(new.count)
    }

    /// Sets and removes limits of clients; all or none where they fit one command.
    pub async fn alter_quotas(&self, changes: Vec<quota::Change>) -> Result<(), Refused> {
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let mut bytes = 0;
            let mut portion = Vec::new();
            while bytes < QUOTA_COMMAND_BYTES
                && let Some(change) = changes.next()
            {
                bytes += change.bytes();
                portion.push(change);
            }
            let command = Command::AlterQuotas { changes: portion };
            self.carry_out(command).await?;
        }
        Ok(())
    }

    /// A block of producer ids. What of it isn't used before the node stops is lost, so that no id is ever given twice.
    pub async fn allocate_producer_ids(&self) -> Result<ProducerIds, Refused> {
        let command = Command::AllocateProducerIds {
            node: self.node,
            count: PRODUCER_ID_BLOCK,
        };
        match self.carry_out(command).await? {
            Answer::ProducerIds { first, count } => Ok(ProducerIds { first, count }),
            Answer::Done => unreachable!("an allocation that was carried out has ids"),
        }
    }

    /// Takes topics off the list of the removed, once no shard has anything left of them.
    pub async fn forget_removed(&self, topics: Vec<TopicId>) -> Result<(), Refused> {
        if topics.is_empty() {
            return Ok(());
        }
        self.carry_out(Command::ForgetRemoved { topics })
            .await
            .map(|_| ())
    }

    fn overtaken(&self, e: &Refused, id: TopicId, moved: impl Fn(&Topic) -> bool) -> bool {
        e.refusal == Refusal::RequestTimedOut && self.read(|m| m.topic_by_id(id).is_some_and(moved))
    }

    /// Whether these replicas stay within what nodes and the cluster hold, and this node has memory for its own.
    fn check_room(&self, m: &Metadata, placements: &[Placement]) -> Result<Coming<'_>, Refused> {
        m.check_room(placements)?;
        let nodes = placements.iter().flat_map(|p| &p.nodes);
        let own = nodes.filter(|n| **n == self.node).count();
        self.room.take(m.hosted(self.node), own)
    }

    fn candidates(m: &Metadata) -> Vec<Candidate> {
        m.nodes()
            .map(|n| Candidate {
                node: n.id,
                hosted: m.hosted(n.id),
            })
            .collect()
    }

    fn placements(&self, m: &Metadata, new: &NewTopic) -> Result<Vec<Placement>, Refused> {
        if !new.assignments.is_empty() {
            if new.partitions != -1 || new.replication_factor != -1 {
                return Err(Refused::new(
                    Refusal::InvalidRequest,
                    "With an assignment of replicas, the number of partitions and the replication factor must be -1.",
                ));
            }
            return assigned(m, &new.assignments);
        }
        let partitions = match new.partitions {
            -1 => self.defaults.num_partitions,
            n => n,
        };
        check_partitions(partitions)?;
        let factor = match new.replication_factor {
            -1 => self.defaults.replication_factor,
            n => n,
        };
        place(
            &Self::candidates(m),
            partitions.unsigned_abs() as usize,
            factor,
        )
    }

    fn more_placements(
        &self,
        m: &Metadata,
        topic: &Topic,
        new: &NewPartitions,
    ) -> Result<Vec<Placement>, Refused> {
        let have = topic.partitions.len() as i32;
        if new.count <= have {
            return Err(Refused::new(
                Refusal::InvalidPartitions,
                format!(
                    "Topic '{}' has {have} partitions; their number can only grow.",
                    topic.name
                ),
            ));
        }
        check_partitions(new.count)?;
        let more = (new.count - have).unsigned_abs() as usize;
        let factor = topic.partitions.first().map_or(1, |p| p.replicas.len());
        match &new.assignments {
            None => place(&Self::candidates(m), more, factor as i16),
            Some(lists) if lists.len() == more => {
                let numbered: Vec<(i32, Vec<NodeId>)> = lists
                    .iter()
                    .cloned()
                    .enumerate()
                    .map(|(i, l)| (i as i32, l))
                    .collect();
                let placed = assigned(m, &numbered)?;
                if placed.iter().any(|p| p.nodes.len() != factor) {
                    return Err(bad_assignment(format!(
                        "Topic '{}' has {factor} replicas per partition.",
                        topic.name
                    )));
                }
                Ok(placed)
            }
            Some(lists) => Err(bad_assignment(format!(
                "{more} partitions are new, but {} are assigned.",
                lists.len()
            ))),
        }
    }
}

fn check_partitions(partitions: i32) -> Result<(), Refused> {
    match partitions {
        ..=0 => Err(Refused::new(
            Refusal::InvalidPartitions,
            "A topic has at least one partition.",
        )),
        n if n > PARTITIONS_PER_TOPIC => Err(Refused::new(
            Refusal::PolicyViolation,
            format!("A topic can have {PARTITIONS_PER_TOPIC} partitions at most."),
        )),
        _ => Ok(()),
    }
}

/// A client's own placement: partitions from 0 without a gap, the same number of replicas each, on nodes that exist, each once.
fn assigned(m: &Metadata, assignments: &[(i32, Vec<NodeId>)]) -> Result<Vec<Placement>, Refused> {
    check_partitions(i32::try_from(assignments.len()).unwrap_or(i32::MAX))?;
    let mut sorted: Vec<&(i32, Vec<NodeId>)> = assignments.iter().collect();
    sorted.sort_by_key(|(p, _)| *p);
    let factor = sorted[0].1.len();
    let mut placements = Vec::with_capacity(sorted.len());
    for (i, (partition, nodes)) in sorted.into_iter().enumerate() {
        if i32::try_from(i) != Ok(*partition) {
            return Err(bad_assignment(
                "Partitions must be numbered from 0 without a gap.".into(),
            ));
        }
        if nodes.is_empty() || nodes.len() != factor {
            return Err(bad_assignment(
                "Every partition must have the same number of replicas, at least one.".into(),
            ));
        }
        let distinct: BTreeSet<&NodeId> = nodes.iter().collect();
        if distinct.len() != nodes.len() {
            return Err(bad_assignment(format!(
                "Partition {partition} names a node twice."
            )));
        }
        if let Some(stranger) = nodes.iter().find(|n| m.node(**n).is_none()) {
            return Err(bad_assignment(format!("There is no node {stranger}.")));
        }
        placements.push(Placement {
            nodes: nodes.clone(),
        });
    }
    Ok(placements)
}

fn bad_assignment(why: String) -> Refused {
    Refused::new(Refusal::InvalidReplicaAssignment, why)
}

fn unknown(name: &str) -> Refused {
    let shown: String = name.chars().take(64).collect();
    Refused::new(
        Refusal::UnknownTopicOrPartition,
        format!("There is no topic '{}'.", shown.escape_debug()),
    )
}
