//! What a commit held, said again by the commit after it (L4), so that damage can be named and votes recovered.

use bytes::{BufMut, Bytes, BytesMut};
use uuid::Uuid;

use super::block::MAX_BLOCK_BYTES;
use super::record::APPEND_OVERHEAD_BYTES;
use super::wire::{Reader, put_varint};
use crate::types::*;

/// No commit holds more entries; what a directory says beyond that is a lie, and would be paid for with a slot for each.
const COMMIT_ENTRIES: u64 = (MAX_BLOCK_BYTES / APPEND_OVERHEAD_BYTES) as u64;

/// Entries of one replica and one term that lie side by side in a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub replica: ReplicaId,
    pub term: Term,
    pub first: RaftIndex,
    /// `first - 1` when the commit held only the replica's hard state.
    pub last: RaftIndex,
    /// The offset that the replica's next batch gets after `last`.
    pub next_offset: Offset,
    /// The hard state in force after the run.
    pub hard_state: HardState,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    pub runs: Vec<Run>,
    /// With the opaque state that each replica was created with.
    pub created: Vec<(ReplicaId, GroupId, Bytes)>,
    pub removed: Vec<ReplicaId>,
}

impl Directory {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.created.is_empty() && self.removed.is_empty()
    }

    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(16 + self.runs.len() * 24);
        put_varint(&mut out, self.runs.len() as u64);
        for r in &self.runs {
            put_varint(&mut out, r.replica.0);
            put_varint(&mut out, r.term.0);
            put_varint(&mut out, r.first.0);
            put_varint(&mut out, (r.last.0 + 1) - r.first.0);
            put_varint(&mut out, r.next_offset.0 as u64);
            put_varint(&mut out, r.hard_state.term.0);
            put_varint(&mut out, r.hard_state.vote);
            put_varint(&mut out, r.hard_state.commit.0);
        }
        put_varint(&mut out, self.created.len() as u64);
        for (replica, group, state) in &self.created {
            put_varint(&mut out, replica.0);
            out.put_u128_le(group.topic.0.as_u128());
            out.put_i32_le(group.partition);
            put_varint(&mut out, state.len() as u64);
            out.put_slice(state);
        }
        put_varint(&mut out, self.removed.len() as u64);
        for replica in &self.removed {
            put_varint(&mut out, replica.0);
        }
        out.freeze()
    }

    pub fn decode(bytes: &[u8]) -> Option<Directory> {
        let mut r = Reader::new(bytes);
        let mut d = Directory::default();
        let mut entries = 0;
        for _ in 0..r.count(8)? {
            let (replica, term, first) = (r.varint()?, r.term()?, r.index()?);
            let length = r.number()?;
            let last = RaftIndex((first.0 + length).checked_sub(1)?);
            entries += length;
            if entries > COMMIT_ENTRIES {
                return None;
            }
            d.runs.push(Run {
                replica: ReplicaId(replica),
                term,
                first,
                last,
                next_offset: r.offset()?,
                hard_state: HardState {
                    term: r.term()?,
                    vote: r.varint()?,
                    commit: r.index()?,
                },
            });
        }
        for _ in 0..r.count(22)? {
            let replica = ReplicaId(r.varint()?);
            let topic = TopicId(Uuid::from_u128(r.u128()?));
            let partition = r.u32()? as i32;
            let state_bytes = r.count(1)?;
            let state = Bytes::copy_from_slice(r.take(state_bytes)?);
            d.created
                .push((replica, GroupId { topic, partition }, state));
        }
        for _ in 0..r.count(1)? {
            d.removed.push(ReplicaId(r.varint()?));
        }
        r.is_empty().then_some(d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_comes_back(
            runs in proptest::collection::vec((1u64..1000, 1u64..9, 1u64..1_000_000, 0u64..50, 0i64..1 << 60), 0..20),
            created in proptest::collection::vec((1u64..1000, any::<u128>(), 0i32..100), 0..5),
            removed in proptest::collection::vec(1u64..1000, 0..5),
        ) {
            let d = Directory {
                runs: runs.into_iter().map(|(replica, term, first, n, next)| Run {
                    replica: ReplicaId(replica),
                    term: Term(term),
                    first: RaftIndex(first),
                    last: RaftIndex(first + n - 1),
                    next_offset: Offset(next),
                    hard_state: HardState { term: Term(term), vote: replica, commit: RaftIndex(first) },
                }).collect(),
                created: created.into_iter().map(|(replica, topic, partition)| {
                    let group = GroupId { topic: TopicId(Uuid::from_u128(topic)), partition };
                    (ReplicaId(replica), group, Bytes::from_static(b"state"))
                }).collect(),
                removed: removed.into_iter().map(ReplicaId).collect(),
            };
            prop_assert_eq!(Directory::decode(&d.encode()), Some(d));
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Directory::decode(&bytes);
        }
    }
}
