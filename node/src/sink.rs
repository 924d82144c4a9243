//! What groups tell: leaders go to the views of all shards, the metadata group's commands to the controller.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use bytes::Bytes;
use cluster::Controller;
use cluster::command::DecodeError;
use cluster::view::Announcement;
use engine::types::{GroupId, NodeId, RaftIndex, ReplicaId, Term};
use kafka_api::Shard;
use raftgroup::GroupSink;

use crate::exit::{Exit, Fatal};

pub struct Sink {
    /// On shard 0.
    controller: Option<Rc<Controller>>,
    /// There before the pump runs.
    shard: RefCell<Weak<Shard>>,
}

impl Sink {
    pub fn new(controller: Option<Rc<Controller>>) -> Rc<Sink> {
        Rc::new(Sink {
            controller,
            shard: RefCell::new(Weak::new()),
        })
    }

    pub fn attach(&self, shard: &Rc<Shard>) {
        *self.shard.borrow_mut() = Rc::downgrade(shard);
    }

    fn metadata(&self, group: GroupId) -> Option<&Controller> {
        self.controller
            .as_deref()
            .filter(|_| group == GroupId::METADATA)
    }
}

/// The node that a replica is on: this one if it is our own, else as the metadata has it.
fn node_of(shard: &Shard, group: GroupId, replica: ReplicaId) -> Option<NodeId> {
    if shard
        .groups
        .get(group)
        .is_some_and(|g| g.replica() == replica)
    {
        return Some(shard.node);
    }
    let topic = shard.view.topic_by_id(group.topic)?;
    let partition = topic.partition(group.partition)?;
    partition
        .replicas
        .iter()
        .find(|r| r.id == replica)
        .map(|r| r.node)
}

/// A node must not go on with half of the metadata.
fn must_read(result: Result<(), DecodeError>) {
    if let Err(e) = result {
        Fatal::new(Exit::Data, format!("the metadata can't be read: {e}")).end();
    }
}

impl GroupSink for Sink {
    fn leader_changed(&self, group: GroupId, term: Term, leader_replica: Option<ReplicaId>) {
        let Some(shard) = self
            .shard
            .borrow()
            .upgrade()
            .filter(|_| group != GroupId::METADATA)
        else {
            return;
        };
        let node = leader_replica.and_then(|r| node_of(&shard, group, r));
        shard.announce(Announcement { group, node, term });
    }

    fn command_applied(&self, group: GroupId, index: RaftIndex, _term: Term, command: Bytes) {
        if let Some(controller) = self.metadata(group) {
            must_read(controller.command_applied(index, &command));
        }
    }

    fn snapshot_state(&self, group: GroupId) -> Vec<Bytes> {
        self.metadata(group)
            .map_or_else(Vec::new, Controller::snapshot)
    }

    fn prepare_snapshot(&self, group: GroupId) -> bool {
        self.metadata(group)
            .is_none_or(Controller::prepare_snapshot)
    }

    fn restore_state(&self, group: GroupId, state: Bytes) {
        if let Some(controller) = self.metadata(group) {
            must_read(controller.restore(&state));
        }
    }
}
