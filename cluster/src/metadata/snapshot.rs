//! The metadata as one run of bytes, for checkpoints, and back.
//!
//! Put together in slices (L8): what a slice adds is bounded by [`SLICE_BYTES`] and one more partition, removed topic or entity with quotas, or what is set for one topic. Called by
//! [`crate::controller::Controller`] for the log layer.

use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Unbounded};

use bytes::Bytes;
use engine::types::{RaftIndex, TopicId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Metadata, Node, Removed, Topic};
use crate::command::{DecodeError, append, decode, encode};
use crate::quota::{Entity, Limits, Quotas};
use crate::{ids, topic_name};

/// What version 1 had. Version 2 puts the quotas behind it, version 3 the defaults behind those.
#[derive(Serialize, Deserialize)]
struct Snapshot {
    #[serde(with = "ids::index")]
    applied: RaftIndex,
    cluster_id: Option<[u8; 16]>,
    nodes: Vec<Node>,
    topics: Vec<Topic>,
    removed: Vec<Removed>,
    next_replica: u64,
    next_producer_id: i64,
}

/// What of a topic comes before its partitions, whose number is the last of it.
#[derive(Serialize)]
struct TopicHead<'a> {
    #[serde(with = "ids::topic")]
    id: TopicId,
    name: &'a str,
    partitions: usize,
}

/// What of a snapshot is put together before other tasks get a turn, in bytes.
pub(super) const SLICE_BYTES: usize = 8 << 10;
/// How often a snapshot that is put together in slices begins anew because of a change; then it is made in one step.
pub(super) const BEGUN_ANEW: u32 = 3;

/// A snapshot that is being put together.
#[derive(Debug)]
pub struct SnapshotDraft {
    /// Up to where the state was that it is of.
    of: Option<RaftIndex>,
    pieces: Vec<Bytes>,
    next: Next,
    begun: u32,
}

/// What comes next, in the order of [`Snapshot`]; bounds are of what was there before.
#[derive(Debug)]
enum Next {
    Topic(Bound<TopicId>),
    Partition(TopicId, usize),
    Removed(Bound<TopicId>),
    Quotas(Bound<Entity>),
    Nothing,
}

impl Default for SnapshotDraft {
    fn default() -> SnapshotDraft {
        SnapshotDraft {
            of: None,
            pieces: Vec::new(),
            next: Next::Nothing,
            begun: 0,
        }
    }
}

impl SnapshotDraft {
    /// Nothing is left to do.
    pub(super) fn is_whole(&self) -> bool {
        self.of.is_some() && matches!(self.next, Next::Nothing)
    }
}

impl Metadata {
    /// The whole state, from which [`Metadata::restore`] makes the same again.
    pub fn snapshot(&self) -> Bytes {
        let front = Snapshot {
            applied: self.applied,
            cluster_id: self.cluster_id.map(Uuid::into_bytes),
            nodes: self.nodes.values().cloned().collect(),
            topics: self.topics.values().cloned().collect(),
            removed: self.removed.values().copied().collect(),
            next_replica: self.next_replica,
            next_producer_id: self.next_producer_id,
        };
        encode(&(front, self.quotas_by_entity(), &self.defaults))
    }

    /// The same bytes, put together in slices of about [`SLICE_BYTES`]; `true`: nothing is left to do. A change in between begins it anew, a few times.
    pub fn prepare_snapshot(&self, draft: &mut SnapshotDraft) -> bool {
        if draft.of != Some(self.applied) {
            if draft.begun > BEGUN_ANEW {
                return true;
            }
            let nodes: Vec<&Node> = self.nodes.values().collect();
            let front = (
                self.applied.0,
                self.cluster_id.map(Uuid::into_bytes),
                nodes,
                self.topics.len(),
            );
            *draft = SnapshotDraft {
                of: Some(self.applied),
                pieces: vec![encode(&front)],
                next: Next::Topic(Unbounded),
                begun: draft.begun + 1,
            };
            return false;
        }
        let mut piece = Vec::with_capacity(2 * SLICE_BYTES);
        while piece.len() < SLICE_BYTES && !draft.is_whole() {
            let next = std::mem::replace(&mut draft.next, Next::Nothing);
            (piece, draft.next) = self.put_next(piece, next);
        }
        if !piece.is_empty() {
            draft.pieces.push(piece.into());
        }
        draft.is_whole()
    }

    fn put_next(&self, piece: Vec<u8>, next: Next) -> (Vec<u8>, Next) {
        match next {
            Next::Topic(after) => match self.topics.range((after, Unbounded)).next() {
                Some((&id, topic)) => {
                    let head = TopicHead {
                        id: topic.id,
                        name: &topic.name,
                        partitions: topic.partitions.len(),
                    };
                    (append(piece, &head), Next::Partition(id, 0))
                }
                None => (append(piece, &self.removed.len()), Next::Removed(Unbounded)),
            },
            Next::Partition(id, n) => {
                let topic = self.topics.get(&id).expect("a change begins a draft anew");
                match topic.partitions.get(n) {
                    Some(partition) => (append(piece, partition), Next::Partition(id, n + 1)),
                    None => {
                        let rest = (&topic.configs, topic.config_version);
                        (append(piece, &rest), Next::Topic(Excluded(id)))
                    }
                }
            }
            Next::Removed(after) => match self.removed.range((after, Unbounded)).next() {
                Some((&id, removed)) => (append(piece, removed), Next::Removed(Excluded(id))),
                None => {
                    let counters = (self.next_replica, self.next_producer_id);
                    let front = (counters, self.quotas.len());
                    (append(piece, &front), Next::Quotas(Unbounded))
                }
            },
            Next::Quotas(after) => match self.quotas.after(after) {
                Some(one) => (append(piece, &one), Next::Quotas(Excluded(one.0.clone()))),
                None => (append(piece, &self.defaults), Next::Nothing),
            },
            Next::Nothing => (piece, Next::Nothing),
        }
    }

    /// The state in pieces: those of the draft, if it is whole and nothing changed since.
    pub fn finish_snapshot(&self, draft: &mut SnapshotDraft) -> Vec<Bytes> {
        let draft = std::mem::take(draft);
        if draft.is_whole() && draft.of == Some(self.applied) {
            return draft.pieces;
        }
        vec![self.snapshot()]
    }

    /// Reads a snapshot. Bytes that don't describe a state that commands could have made are damage.
    pub fn restore(bytes: &[u8]) -> Result<Metadata, DecodeError> {
        type ByEntity = Vec<(Entity, Limits)>;
        let (s, quotas, defaults): (Snapshot, ByEntity, BTreeMap<String, String>) =
            match bytes.first() {
                Some(1) => (decode(bytes)?, Vec::new(), BTreeMap::new()),
                Some(2) => {
                    let (s, quotas) = decode(bytes)?;
                    (s, quotas, BTreeMap::new())
                }
                _ => decode(bytes)?,
            };
        let mut m = Metadata {
            applied: s.applied,
            cluster_id: s.cluster_id.map(Uuid::from_bytes),
            next_replica: s.next_replica,
            next_producer_id: s.next_producer_id,
            quotas: Quotas::new(quotas),
            defaults,
            ..Metadata::default()
        };
        let damaged = |what: &str| Err(DecodeError::Damaged(what.into()));
        if s.next_replica > 1 << 62 || s.next_producer_id < 0 {
            return damaged("a counter that no log can have reached");
        }
        for node in s.nodes {
            m.nodes.insert(node.id, node);
        }
        for removed in s.removed {
            m.removed.insert(removed.id, removed);
        }
        for topic in s.topics {
            let key = topic_name::collision_key(&topic.name).into_owned();
            if m.names.insert(key, topic.id).is_some() {
                return damaged("two topics of one name");
            }
            for replica in topic.partitions.iter().flat_map(|p| &p.replicas) {
                if replica.id.0 >= m.next_replica {
                    return damaged("a replica id that was not given yet");
                }
                *m.hosted.entry(replica.node).or_default() += 1;
            }
            if m.topics.insert(topic.id, topic).is_some() {
                return damaged("two topics of one id");
            }
        }
        Ok(m)
    }
}
