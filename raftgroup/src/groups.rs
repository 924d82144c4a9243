//! All groups of a shard.
#![allow(unused_variables)]
use std::rc::Rc;

use engine::log::{Restored, ShardLog};
use engine::rt::Task;
use engine::types::{GroupId, NodeId, ReplicaId};

use crate::api::{GroupError, GroupSink};
use crate::handle::Group;

/// All groups of a shard and the pump that turns them.
pub struct Groups {
    _log: ShardLog,
}

impl Groups {
    pub fn new(log: ShardLog, node: NodeId, sink: Rc<dyn GroupSink>) -> Rc<Groups> {
        todo!()
    }
    pub fn run(self: &Rc<Self>) -> Task<()> {
        todo!()
    }
    pub fn restore(&self, r: Vec<Restored>) -> Result<(), GroupError> {
        todo!()
    }
    pub fn create(
        &self,
        id: ReplicaId,
        group: GroupId,
        voters: &[ReplicaId],
    ) -> Result<Rc<Group>, GroupError> {
        todo!()
    }
    pub fn remove(&self, group: GroupId) {
        todo!()
    }
    pub fn get(&self, group: GroupId) -> Option<Rc<Group>> {
        todo!()
    }
    pub fn len(&self) -> usize {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn ids(&self) -> Vec<GroupId> {
        todo!()
    }
}
