//! One group as its callers see it.
#![allow(unused_variables)]
use std::rc::Weak;

use bytes::Bytes;
use engine::batch::Batch;
use engine::log::ReplicaLog;
use engine::types::{GroupId, LeaderEpoch, Offset, RaftIndex, ReplicaId, Term};

use crate::api::{Acks, ProduceError, Produced, SubscriptionKey, Watcher};
use crate::wait::CommitWait;

pub struct Group {
    log: ReplicaLog,
}

impl Group {
    pub fn id(&self) -> GroupId {
        self.log.group()
    }
    pub fn replica(&self) -> ReplicaId {
        self.log.id()
    }
    /// Whether this replica leads and its term is durable (G1).
    pub fn is_leader(&self) -> bool {
        todo!()
    }
    /// Whether this replica leads and has committed an entry of its own term (G11).
    pub fn serves(&self) -> bool {
        todo!()
    }
    pub fn term(&self) -> Term {
        todo!()
    }
    pub fn leader(&self) -> Option<ReplicaId> {
        todo!()
    }
    /// The current term as Kafka clients see it.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        todo!()
    }
    pub fn log(&self) -> &ReplicaLog {
        &self.log
    }
    pub fn high_watermark(&self) -> Offset {
        self.log.high_watermark()
    }
    pub fn log_start_offset(&self) -> Offset {
        self.log.log_start_offset()
    }
    pub fn log_end_offset(&self) -> Offset {
        self.log.log_end_offset()
    }
    pub fn produce(&self, batch: Batch, acks: Acks, now_ms: i64) -> Result<Produced, ProduceError> {
        todo!()
    }
    pub fn propose_command(&self, data: Bytes) -> Result<CommitWait<RaftIndex>, ProduceError> {
        todo!()
    }
    pub fn propose_trim(&self, start: Offset) -> Result<CommitWait<Offset>, ProduceError> {
        todo!()
    }
    pub fn subscribe(&self, w: Weak<dyn Watcher>) -> SubscriptionKey {
        todo!()
    }
    pub fn unsubscribe(&self, k: SubscriptionKey) {
        todo!()
    }
}
