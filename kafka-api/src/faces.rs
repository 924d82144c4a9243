//! What clients take for brokers.
//!
//! Ordinarily that is each node, by its id. With shard-direct listeners it is each shard: shard `s` of node `n` is told to be broker `1000 n + s`, reached at the port `s + 1` above the node's,
//! and to be the leader, the replica or the coordinator of what lies on it. So ordinary clients connect to the shard that owns what they ask for, and no request of theirs crosses cores. The
//! node's own port leads to any of its shards, for a client's first question. Requests find their owner over the rings as ever: a client that comes to the wrong shard is served there.
//!
//! What is asked of every broker in turn, and not of an owner (ListGroups, DescribeLogDirs), is answered by a shard that was reached directly for itself alone, or clients would add it
//! up several times. Pure, but for the nodes that a [`Faces`] was made of; all nodes of a cluster have the same setting.

use std::rc::Rc;

use cluster::metadata::Node;
use engine::types::{GroupId, NodeId, ShardId, shard_of};

use crate::handlers::produce::wire::Endpoint;

/// Ids of a node's shards begin at so many times its own.
const IDS_A_NODE: i32 = 1_000;
/// The largest id of a node whose shards are brokers of their own.
pub const NODE_ID_MAX: i32 = i32::MAX / IDS_A_NODE - 1;

/// The id of no node.
const NOBODY: NodeId = NodeId(-1);
/// Brokers that a sentence names.
const BROKERS_NAMED: usize = 20;

/// The port of a shard's own listener, if there is one of such a number.
pub fn port_of(node_port: u16, shard: ShardId) -> Option<u16> {
    node_port.checked_add(shard.0)?.checked_add(1)
}

/// What the nodes look like to clients, at one moment.
pub struct Faces {
    nodes: Rc<[Node]>,
    direct: bool,
    /// This node, which may not be among the others yet, and its shards.
    own: (NodeId, u16),
}

impl Faces {
    pub fn new(nodes: Rc<[Node]>, direct: bool, own: NodeId, shards: u16) -> Faces {
        let own = (own, shards);
        Faces { nodes, direct, own }
    }

    /// The id of the broker that is told for `node` where it is about `group`.
    pub fn of(&self, node: NodeId, group: GroupId) -> i32 {
        if !self.direct {
            return node.0;
        }
        let known = self.nodes.iter().find(|n| n.id == node);
        let shards = match known {
            _ if node == self.own.0 => self.own.1,
            Some(known) => known.shards.max(1),
            None => 1,
        };
        self.of_shard(node, shard_of(group, shards))
    }

    /// The id of the broker that a shard is a part of, or is.
    pub fn of_shard(&self, node: NodeId, shard: ShardId) -> i32 {
        match self.direct {
            true => node
                .0
                .saturating_mul(IDS_A_NODE)
                .saturating_add(shard.0.into()),
            false => node.0,
        }
    }

    /// The node that a broker is a part of, or is.
    pub fn node_of(&self, broker: i32) -> NodeId {
        match self.direct {
            true => NodeId(broker.div_euclid(IDS_A_NODE)),
            false => NodeId(broker),
        }
    }

    /// Whether a broker is this node, or one of its shards.
    pub fn is_own(&self, broker: i32) -> bool {
        let shards = i32::from(self.own.1);
        self.node_of(broker) == self.own.0
            && (!self.direct || broker.rem_euclid(IDS_A_NODE) < shards)
    }

    /// The node of a broker that a client places a replica on; one that there isn't is no node's.
    pub fn assigned(&self, broker: i32) -> NodeId {
        match self.is_own(broker) || self.endpoint(broker).is_some() {
            true => self.node_of(broker),
            false => NOBODY,
        }
    }

    /// What is wrong with a placement on these brokers if one of them isn't there: in the ids that clients know, which with shard-direct are not the nodes'.
    pub fn stranger(&self, brokers: impl IntoIterator<Item = i32>) -> Option<String> {
        let mut brokers = brokers.into_iter();
        let stranger = brokers.find(|b| self.assigned(*b) == NOBODY)?;
        let mut known: Vec<String> = self.all().iter().map(|b| b.node.to_string()).collect();
        if known.len() > BROKERS_NAMED {
            known.truncate(BROKERS_NAMED);
            known.push("...".into());
        }
        Some(format!(
            "There is no broker {stranger}; there are {}.",
            known.join(", ")
        ))
    }

    /// All brokers, in the order of their ids.
    pub fn all(&self) -> Vec<Endpoint> {
        let mut all = Vec::with_capacity(self.nodes.len());
        for node in self.nodes.iter() {
            let shards = if self.direct { node.shards.max(1) } else { 1 };
            all.extend((0..shards).filter_map(|s| self.endpoint_of(node, ShardId(s))));
        }
        all
    }

    /// Where a broker is reached.
    pub fn endpoint(&self, broker: i32) -> Option<Endpoint> {
        let id = self.node_of(broker);
        let node = self.nodes.iter().find(|n| n.id == id)?;
        let shard = if self.direct {
            broker.rem_euclid(IDS_A_NODE)
        } else {
            0
        };
        let shard = u16::try_from(shard)
            .ok()
            .filter(|s| *s < node.shards.max(1))?;
        self.endpoint_of(node, ShardId(shard))
    }

    fn endpoint_of(&self, node: &Node, shard: ShardId) -> Option<Endpoint> {
        let port = if self.direct {
            port_of(node.port, shard)?
        } else {
            node.port
        };
        Some(Endpoint {
            node: self.of_shard(node.id, shard),
            host: node.host.clone(),
            port: i32::from(port),
            rack: node.rack.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::types::TopicId;
    use proptest::prelude::*;
    use uuid::Uuid;

    fn nodes() -> Rc<[Node]> {
        let node = |id: i32, shards| Node {
            id: NodeId(id),
            host: format!("host-{id}"),
            port: 9_092,
            rack: None,
            shards,
            directory: Uuid::from_u128(1),
        };
        Rc::from([node(1, 2), node(7, 4)])
    }

    fn faces(direct: bool) -> Faces {
        Faces::new(nodes(), direct, NodeId(1), 2)
    }

    #[test]
    fn nodes_are_brokers() {
        let faces = faces(false);
        let all: Vec<_> = faces.all().iter().map(|e| (e.node, e.port)).collect();
        assert_eq!(all, [(1, 9_092), (7, 9_092)]);
        assert!(faces.is_own(1) && !faces.is_own(7) && !faces.is_own(1_000));
        assert_eq!(faces.endpoint(7).unwrap().host, "host-7");
        assert!(faces.endpoint(2).is_none());
    }

    #[test]
    fn shards_are_brokers() {
        let faces = faces(true);
        let all: Vec<_> = faces.all().iter().map(|e| (e.node, e.port)).collect();
        let wanted = [1_000, 1_001, 7_000, 7_001, 7_002, 7_003];
        let ports = [9_093, 9_094, 9_093, 9_094, 9_095, 9_096];
        assert_eq!(all, wanted.into_iter().zip(ports).collect::<Vec<_>>());
        assert!(faces.is_own(1_001));
        for stranger in [1, 1_002, 7_000, -1, 0, i32::MAX, i32::MIN] {
            assert!(!faces.is_own(stranger), "{stranger}");
        }
        assert!(faces.endpoint(1_002).is_none() && faces.endpoint(-1).is_none());
        assert!(port_of(65_535, ShardId(0)).is_none());
    }

    #[test]
    fn a_placement_on_a_stranger_names_brokers_as_clients_know_them() {
        let direct = faces(true);
        assert_eq!(direct.assigned(7_003), NodeId(7));
        assert_eq!(direct.stranger([1_000, 7_003]), None);
        // A node's own id is no broker's there, nor is a shard that the node doesn't have.
        for stranger in [1, 1_002, 9_000, -1] {
            assert_eq!(direct.assigned(stranger), NOBODY);
            let why = direct.stranger([1_000, stranger]).unwrap();
            let wanted = format!("There is no broker {stranger}; there are 1000, 1001, 7000,");
            assert!(why.starts_with(&wanted), "{why}");
        }
        let plain = faces(false);
        assert_eq!(plain.stranger([7, 1]), None);
        let why = plain.stranger([2]).unwrap();
        assert_eq!(why, "There is no broker 2; there are 1, 7.");
    }

    proptest! {
        #[test]
        fn who_is_told_is_the_owner_and_reachable(topic: u128, partition in 0..10_000i32, direct: bool, own: bool) {
            let faces = faces(direct);
            let group = GroupId { topic: TopicId(Uuid::from_u128(topic)), partition };
            let (node, shards) = if own { (NodeId(1), 2) } else { (NodeId(7), 4) };
            let told = faces.of(node, group);
            prop_assert_eq!(faces.node_of(told), node);
            prop_assert_eq!(faces.is_own(told), own);
            let endpoint = faces.endpoint(told).expect("every broker that is told is there");
            prop_assert!(faces.all().contains(&endpoint));
            if direct {
                let port = port_of(9_092, shard_of(group, shards)).map(i32::from);
                prop_assert_eq!(Some(endpoint.port), port);
            }
        }
    }
}
