//! The plain types that every crate speaks: identities, positions and Raft entries.
//!
//! Newtypes keep apart what must not be mixed (a Kafka [`Offset`] is not a [`RaftIndex`]); conversions are named functions.
//! Nothing here does I/O or depends on a runtime.

use std::fmt;

use bytes::Bytes;
use uuid::Uuid;

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

newtype!(
    /// A shard of this process, counted from 0.
    ShardId(u16)
);
newtype!(
    /// A node (broker) of the cluster, as Kafka clients see it.
    NodeId(i32)
);
newtype!(
    /// One replica of one group. Never reused (design §5 G3); also the Raft peer id. 0 is nobody.
    ReplicaId(u64)
);
newtype!(
    /// A Kafka topic id (KIP-516).
    TopicId(Uuid)
);
newtype!(
    /// A Kafka record offset.
    Offset(i64)
);
newtype!(
    /// A position in a group's Raft log, from 1.
    RaftIndex(u64)
);
newtype!(
    /// A Raft term; Kafka's leader epoch is the same number.
    Term(u64)
);
newtype!(
    /// Kafka's leader epoch: a [`Term`] that fits an i32.
    LeaderEpoch(i32)
);
newtype!(
    /// The number of a journal commit. (`BootEpoch`, `Lsn`) orders everything that a replica ever journaled (design §4).
    Lsn(u64)
);
newtype!(
    /// The number of a start of this node's process, raised durably before that start's first write.
    BootEpoch(u64)
);

impl RaftIndex {
    pub fn next(self) -> RaftIndex {
        RaftIndex(self.0 + 1)
    }

    pub fn prev(self) -> RaftIndex {
        RaftIndex(self.0.saturating_sub(1))
    }
}

impl Term {
    /// The leader epoch of this term, if clients can be told it: terms above `i32::MAX` are refused (G11).
    pub fn leader_epoch(self) -> Option<LeaderEpoch> {
        i32::try_from(self.0).ok().map(LeaderEpoch)
    }
}

impl LeaderEpoch {
    /// "No epoch", as Kafka writes it.
    pub const NONE: LeaderEpoch = LeaderEpoch(-1);
}

/// One Raft group: a partition of a topic, or the metadata group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    pub topic: TopicId,
    pub partition: i32,
}

impl GroupId {
    /// Group 0, the metadata group (design §6). Its topic id is the one that Kafka reserves for its metadata topic.
    pub const METADATA: GroupId = GroupId {
        topic: TopicId(Uuid::from_u128(1)),
        partition: 0,
    };
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic.0.as_simple(), self.partition)
    }
}

/// The shard that owns a group: (hash(topic id) + partition) mod shards. The metadata group is always on shard 0.
pub fn shard_of(group: GroupId, shards: u16) -> ShardId {
    assert!(shards > 0, "a node has at least one shard");
    if group == GroupId::METADATA {
        return ShardId(0);
    }
    let id = group.topic.0.as_u128();
    // Topic ids are random, so folding the halves is hash enough; the multiplication spreads hand-made ids.
    let folded = ((id >> 64) as u64 ^ id as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let slot = folded.wrapping_add(group.partition as u64) % u64::from(shards);
    ShardId(slot as u16)
}

/// What an entry of a group's log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// One Kafka record batch (format v2); takes `next_offset - base_offset` offsets.
    Batch = 1,
    /// The empty entry with which a leader begins its term. Takes no offset, like all that follow.
    NoOp = 2,
    /// A Raft configuration change.
    Config = 3,
    /// Moves the log start (design §4 L9); data is the new start offset, i64 big-endian.
    TrimPrefix = 4,
    /// A command of the metadata group.
    Command = 5,
    /// A record batch whose bytes lie in an extent file of the replica (design §4 L7); data says where, and has the batch's header. Takes offsets as a batch does.
    Extent = 6,
}

impl EntryKind {
    pub fn from_u8(v: u8) -> Option<EntryKind> {
        Some(match v {
            1 => EntryKind::Batch,
            2 => EntryKind::NoOp,
            3 => EntryKind::Config,
            4 => EntryKind::TrimPrefix,
            5 => EntryKind::Command,
            6 => EntryKind::Extent,
            _ => return None,
        })
    }

    /// Whether it holds records and takes offsets.
    pub fn is_batch(self) -> bool {
        matches!(self, EntryKind::Batch | EntryKind::Extent)
    }
}

/// One entry of a group's Raft log. For a batch, `data` is the record batch exactly as it lies on disk and goes out to clients; for a batch in an extent,
/// where that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub index: RaftIndex,
    pub term: Term,
    pub kind: EntryKind,
    /// The first offset of the batch; for the other kinds the offset that the next batch will get.
    pub base_offset: Offset,
    /// The offset after the last record; equal to `base_offset` for everything that is not a batch.
    pub next_offset: Offset,
    pub data: Bytes,
}

/// An entry without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHeader {
    pub index: RaftIndex,
    pub term: Term,
    pub kind: EntryKind,
    pub base_offset: Offset,
    pub next_offset: Offset,
    /// Length of the entry's data in bytes.
    pub data_bytes: u32,
}

impl Entry {
    pub fn header(&self) -> EntryHeader {
        EntryHeader {
            index: self.index,
            term: self.term,
            kind: self.kind,
            base_offset: self.base_offset,
            next_offset: self.next_offset,
            data_bytes: self.data.len() as u32,
        }
    }
}

/// Raft's hard state: what a replica must never forget. `vote` is a replica id, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    pub term: Term,
    pub vote: u64,
    pub commit: RaftIndex,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_of_a_topic_spread_evenly() {
        for shards in 1..=8u16 {
            for topic in [1u128 << 70, 7, u128::MAX] {
                let mut count = vec![0; usize::from(shards)];
                for partition in 0..i32::from(shards) * 10 {
                    let group = GroupId {
                        topic: TopicId(Uuid::from_u128(topic)),
                        partition,
                    };
                    count[usize::from(shard_of(group, shards).0)] += 1;
                }
                assert_eq!(count, vec![10; usize::from(shards)]);
            }
        }
    }

    #[test]
    fn the_metadata_group_is_on_shard_0() {
        assert_eq!(shard_of(GroupId::METADATA, 7), ShardId(0));
    }

    #[test]
    fn terms_above_i32_have_no_epoch() {
        assert_eq!(
            Term(i32::MAX as u64).leader_epoch(),
            Some(LeaderEpoch(i32::MAX))
        );
        assert_eq!(Term(i32::MAX as u64 + 1).leader_epoch(), None);
    }
}
