//! A shard's read-only copy of the metadata, and of who leads what.
//!
//! Fed by [`Change`]s in the order of the metadata log and by leader announcements, of which the highest term wins, whatever their order. Belongs to one
//! shard (`Rc`); lookups by name and id allocate nothing. Announcements may overtake the change that brings their topic, so a bounded number
//! waits for it ([`limits::EARLY_LEADERS`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ahash::RandomState;
use engine::types::{GroupId, LeaderEpoch, NodeId, RaftIndex, ReplicaId, Term, TopicId};
use indexmap::IndexMap;

use crate::limits;
use crate::metadata::{self, Change, Image, Node, Partition, Replica};
use crate::quota::Quotas;
use crate::topic_config::{Settings, TopicConfig};

type Map<K, V> = IndexMap<K, V, RandomState>;

/// A topic as requests see it.
#[derive(Debug)]
pub struct Topic {
    pub id: TopicId,
    pub name: Rc<str>,
    /// By partition number.
    pub partitions: Vec<Partition>,
    /// What is in force.
    pub config: Rc<TopicConfig>,
    /// What was set for this topic.
    pub overrides: Rc<Settings>,
    leaders: RefCell<Vec<Leader>>,
}

impl Topic {
    pub fn partition(&self, partition: i32) -> Option<&Partition> {
        self.partitions.get(usize::try_from(partition).ok()?)
    }

    fn with_settings(&self, own: Rc<Settings>, defaults: &Settings) -> Topic {
        Topic {
            id: self.id,
            name: self.name.clone(),
            partitions: self.partitions.clone(),
            config: Rc::new(TopicConfig::in_force(&own, defaults)),
            overrides: own,
            leaders: self.leaders.clone(),
        }
    }

    pub fn group(&self, partition: i32) -> GroupId {
        GroupId {
            topic: self.id,
            partition,
        }
    }

    /// Who leads a partition, as far as this shard knows.
    pub fn leader(&self, partition: i32) -> Option<Leader> {
        let at = usize::try_from(partition).ok()?;
        self.leaders
            .borrow()
            .get(at)
            .copied()
            .filter(|l| l.term > Term(0))
    }
}

/// Who leads a partition in which term. `node` is empty while that term has no leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    pub node: Option<NodeId>,
    pub term: Term,
}

impl Leader {
    const UNKNOWN: Leader = Leader {
        node: None,
        term: Term(0),
    };

    /// The leader epoch that clients are told.
    pub fn epoch(&self) -> LeaderEpoch {
        self.term.leader_epoch().unwrap_or(LeaderEpoch::NONE)
    }
}

/// What a shard says when a group that it hosts has a new leader or term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub group: GroupId,
    pub node: Option<NodeId>,
    pub term: Term,
}

/// The copy.
pub struct View {
    node: NodeId,
    state: RefCell<State>,
    /// How often something changed, so that waiters can tell.
    version: Cell<u64>,
}

struct State {
    cluster_id: Option<Rc<str>>,
    nodes: Rc<[Node]>,
    topics: Map<TopicId, Rc<Topic>>,
    names: Map<Rc<str>, TopicId>,
    removed: Map<TopicId, RaftIndex>,
    early: Map<GroupId, Leader>,
    quotas: Rc<Quotas>,
    defaults: Rc<Settings>,
}

impl View {
    /// An empty copy, on `node`.
    pub fn new(node: NodeId) -> Rc<View> {
        Rc::new(View {
            node,
            state: RefCell::new(State {
                cluster_id: None,
                nodes: Rc::from([]),
                topics: map(),
                names: map(),
                removed: map(),
                early: map(),
                quotas: Rc::default(),
                defaults: Rc::default(),
            }),
            version: Cell::new(0),
        })
    }

    /// The node whose copy this is.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Rises with every change and announcement that told something new.
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    pub fn cluster_id(&self) -> Option<Rc<str>> {
        self.state.borrow().cluster_id.clone()
    }

    /// In the order of their ids.
    pub fn brokers(&self) -> Rc<[Node]> {
        self.state.borrow().nodes.clone()
    }

    pub fn topic(&self, name: &str) -> Option<Rc<Topic>> {
        let state = self.state.borrow();
        let id = state.names.get(name)?;
        state.topics.get(id).cloned()
    }

    pub fn topic_by_id(&self, id: TopicId) -> Option<Rc<Topic>> {
        self.state.borrow().topics.get(&id).cloned()
    }

    /// In the order of their names.
    pub fn topics(&self) -> Vec<Rc<Topic>> {
        let mut all: Vec<Rc<Topic>> = self.state.borrow().topics.values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Those whose names don't come before `from`, in the order of their names, `count` of them at most. Nothing is sorted but what is given.
    pub fn topics_from(&self, from: &str, count: usize) -> Vec<Rc<Topic>> {
        let state = self.state.borrow();
        let mut found: Vec<Rc<Topic>> = Vec::new();
        let wanted = state.topics.values().filter(|t| *t.name >= *from);
        for topic in wanted {
            found.push(topic.clone());
            // What is too much goes by halves, so that each look costs little.
            if found.len() >= count.saturating_mul(2).max(64) {
                found.select_nth_unstable_by(count, |a, b| a.name.cmp(&b.name));
                found.truncate(count);
            }
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        found.truncate(count);
        found
    }

    /// Whether anybody has a limit of this kind.
    pub fn any_quota(&self, key: crate::quota::Key) -> bool {
        self.state.borrow().quotas.any(key)
    }

    pub fn quotas(&self) -> Rc<Quotas> {
        self.state.borrow().quotas.clone()
    }

    /// What the cluster has set for topics that don't say.
    pub fn defaults(&self) -> Rc<Settings> {
        self.state.borrow().defaults.clone()
    }

    pub fn topic_count(&self) -> usize {
        self.state.borrow().topics.len()
    }

    /// Of all topics together.
    pub fn partition_count(&self) -> usize {
        let state = self.state.borrow();
        state.topics.values().map(|t| t.partitions.len()).sum()
    }

    /// What is in force for a topic.
    pub fn config(&self, id: TopicId) -> Option<Rc<TopicConfig>> {
        self.state
            .borrow()
            .topics
            .get(&id)
            .map(|t| t.config.clone())
    }

    pub fn leader(&self, group: GroupId) -> Option<Leader> {
        let state = self.state.borrow();
        match state.topics.get(&group.topic) {
            Some(topic) => topic.leader(group.partition),
            None => state.early.get(&group).copied(),
        }
    }

    /// The replica of a group that this node hosts.
    pub fn local_replica(&self, group: GroupId) -> Option<ReplicaId> {
        let state = self.state.borrow();
        let partition = state.topics.get(&group.topic)?.partition(group.partition)?;
        partition
            .replicas
            .iter()
            .find(|r| r.node == self.node)
            .map(|r| r.id)
    }

    /// Every replica that this node hosts, with all replicas of its group.
    pub fn local_replicas(&self) -> Vec<(GroupId, ReplicaId, Vec<Replica>)> {
        let state = self.state.borrow();
        let mut found = Vec::new();
        for topic in state.topics.values() {
            for (p, partition) in topic.partitions.iter().enumerate() {
                if let Some(own) = partition.replicas.iter().find(|r| r.node == self.node) {
                    found.push((topic.group(p as i32), own.id, partition.replicas.clone()));
                }
            }
        }
        found
    }

    /// Whether a topic was deleted, so that what is left of its replicas goes. False for topics that are merely unknown: nothing is deleted by inference.
    pub fn is_removed(&self, id: TopicId) -> bool {
        self.state.borrow().removed.contains_key(&id)
    }

    /// Takes over what the metadata group changed. Changes come in the order of its log; one that is told twice does no harm.
    pub fn apply(&self, change: &Change) {
        self.version.set(self.version.get() + 1);
        let state = &mut *self.state.borrow_mut();
        match change {
            Change::Reset(image) => state.reset(image),
            Change::ClusterFormed { cluster_id } => {
                state.cluster_id = Some(cluster_id.as_str().into());
            }
            Change::NodeRegistered(node) => state.register(node),
            Change::TopicCreated(topic) => state.put(topic),
            Change::TopicDeleted(removed) => {
                state.remove(removed.id);
                state.removed.insert(removed.id, removed.at);
            }
            Change::ConfigsAltered { topic, configs, .. } => {
                let defaults = state.defaults.clone();
                state.replace(*topic, |old| {
                    old.with_settings(Rc::new(configs.clone()), &defaults)
                });
            }
            Change::PartitionsAdded {
                topic,
                from,
                partitions,
            } => {
                state.replace(*topic, |old| {
                    let kept = usize::try_from(*from).unwrap_or(0);
                    let mut all: Vec<Partition> =
                        old.partitions.iter().take(kept).cloned().collect();
                    all.extend_from_slice(partitions);
                    let mut leaders = old.leaders.borrow().clone();
                    leaders.resize(all.len(), Leader::UNKNOWN);
                    Topic {
                        id: old.id,
                        name: old.name.clone(),
                        partitions: all,
                        config: old.config.clone(),
                        overrides: old.overrides.clone(),
                        leaders: RefCell::new(leaders),
                    }
                });
            }
            Change::RemovedForgotten(ids) => {
                for id in ids {
                    state.removed.swap_remove(id);
                }
            }
            Change::QuotasAltered(changes) => {
                Rc::make_mut(&mut state.quotas).apply(changes);
            }
            Change::DefaultsAltered(defaults) => state.set_defaults(defaults),
        }
    }

    /// Takes note of a leader. Older news than what is known is dropped; in one term a leader wins over none.
    pub fn announce(&self, a: Announcement) {
        let state = &mut *self.state.borrow_mut();
        let news = Leader {
            node: a.node,
            term: a.term,
        };
        let newer = |known: &Leader| {
            news.term > known.term
                || (news.term == known.term && known.node.is_none() && news.node.is_some())
        };
        // A leader that stepped down in its term: the term stays, the node goes.
        let stepped_down = |known: &Leader| {
            news.term == known.term && known.node == Some(self.node) && news.node.is_none()
        };
        if let Some(topic) = state.topics.get(&a.group.topic) {
            let mut leaders = topic.leaders.borrow_mut();
            let slot = usize::try_from(a.group.partition)
                .ok()
                .and_then(|p| leaders.get_mut(p));
            if let Some(known) = slot {
                if newer(known) || stepped_down(known) {
                    *known = news;
                    self.version.set(self.version.get() + 1);
                }
                return;
            }
        }
        if state.removed.contains_key(&a.group.topic) {
            return;
        }
        let room = state.early.len() < limits::EARLY_LEADERS;
        match state.early.get_mut(&a.group) {
            Some(known) if newer(known) => *known = news,
            Some(_) => {}
            None if room => {
                state.early.insert(a.group, news);
            }
            None => {}
        }
    }
}

impl State {
    fn reset(&mut self, image: &Image) {
        self.cluster_id = image.cluster_id.as_deref().map(Into::into);
        self.nodes = image.nodes.clone().into();
        let gone: Vec<TopicId> = {
            let kept: std::collections::BTreeSet<TopicId> =
                image.topics.iter().map(|t| t.id).collect();
            self.topics
                .keys()
                .filter(|id| !kept.contains(*id))
                .copied()
                .collect()
        };
        for id in gone {
            self.remove(id);
        }
        self.removed.clear();
        self.removed
            .extend(image.removed.iter().map(|r| (r.id, r.at)));
        self.defaults = Rc::new(image.defaults.clone());
        for topic in &image.topics {
            self.put(topic);
        }
        self.quotas = Rc::new(Quotas::new(image.quotas.iter().cloned()));
    }

    fn set_defaults(&mut self, defaults: &Settings) {
        self.defaults = Rc::new(defaults.clone());
        for topic in self.topics.values_mut() {
            *topic = Rc::new(topic.with_settings(topic.overrides.clone(), defaults));
        }
    }

    fn register(&mut self, node: &Node) {
        let mut nodes = self.nodes.to_vec();
        nodes.retain(|n| n.id != node.id);
        nodes.push(node.clone());
        nodes.sort_by_key(|n| n.id);
        self.nodes = nodes.into();
    }

    /// Adds a topic or takes over what is new about it; leaders that were announced before it count.
    fn put(&mut self, topic: &metadata::Topic) {
        let known = self
            .topics
            .get(&topic.id)
            .map(|t| t.leaders.borrow().clone());
        let mut leaders = known.unwrap_or_default();
        leaders.resize(topic.partitions.len(), Leader::UNKNOWN);
        for (p, leader) in leaders.iter_mut().enumerate() {
            let group = GroupId {
                topic: topic.id,
                partition: p as i32,
            };
            if !self.early.is_empty()
                && let Some(early) = self.early.swap_remove(&group)
                && early.term > leader.term
            {
                *leader = early;
            }
        }
        let name: Rc<str> = topic.name.as_str().into();
        let config = Rc::new(TopicConfig::in_force(&topic.configs, &self.defaults));
        let overrides = Rc::new(topic.configs.clone());
        self.names.insert(name.clone(), topic.id);
        self.topics.insert(
            topic.id,
            Rc::new(Topic {
                id: topic.id,
                name,
                partitions: topic.partitions.clone(),
                config,
                overrides,
                leaders: RefCell::new(leaders),
            }),
        );
    }

    fn remove(&mut self, id: TopicId) {
        if let Some(topic) = self.topics.swap_remove(&id)
            && self.names.get(&*topic.name) == Some(&id)
        {
            self.names.swap_remove(&*topic.name);
        }
        self.early.retain(|group, _| group.topic != id);
    }

    fn replace(&mut self, id: TopicId, make: impl FnOnce(&Topic) -> Topic) {
        if let Some(slot) = self.topics.get_mut(&id) {
            *slot = Rc::new(make(slot));
        }
        // Leaders of partitions that were not known yet may have been announced.
        if let Some(topic) = self.topics.get(&id).filter(|_| !self.early.is_empty()) {
            for (p, leader) in topic.leaders.borrow_mut().iter_mut().enumerate() {
                if let Some(early) = self.early.swap_remove(&topic.group(p as i32))
                    && early.term > leader.term
                {
                    *leader = early;
                }
            }
        }
    }
}

/// Fixed seeds: two runs of one seed see the same (design §2).
fn map<K, V>() -> Map<K, V> {
    IndexMap::with_hasher(RandomState::with_seeds(1, 2, 3, 4))
}

#[cfg(test)]
mod tests;
