//! The records inside a journal commit.
//!
//! Each begins with kind u8, replica id u64 and body length u32, little-endian; then the body. Decoding takes any bytes: it is run only on
//! blocks whose CRC is right, but a record that makes no sense is an error there too, never a panic.

use bytes::{BufMut, Bytes, BytesMut};
use uuid::Uuid;

use super::extent::Extent;
use super::wire::Reader;
use crate::batch::BatchHeader;
use crate::types::*;

const HARD_STATE: u8 = 1;
const APPEND: u8 = 2;
const CARRY: u8 = 3;
const CREATED: u8 = 4;
const REMOVED: u8 = 5;

const PREFIX_BYTES: usize = 13;
/// Bytes of an Append record besides the entry's data.
pub const APPEND_OVERHEAD_BYTES: usize = PREFIX_BYTES + 8 + 8 + 8 + 1 + 8 + 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    HardState(HardState),
    /// The entry at its index replaces everything from that index on (L1). `commit` is what the replica knew to be committed.
    Append {
        commit: RaftIndex,
        entry: Entry,
    },
    /// An entry that was journaled before and is written again so that the journal can let go of the first copy (L6). Replaces nothing.
    Carry {
        commit: RaftIndex,
        entry: Entry,
    },
    Created {
        group: GroupId,
        state: Bytes,
    },
    Removed,
}

fn put_prefix(out: &mut BytesMut, kind: u8, replica: ReplicaId, body: usize) {
    out.put_u8(kind);
    out.put_u64_le(replica.0);
    out.put_u32_le(u32::try_from(body).expect("a record is smaller than a commit"));
}

pub fn put_hard_state(out: &mut BytesMut, replica: ReplicaId, h: &HardState) {
    put_prefix(out, HARD_STATE, replica, 24);
    out.put_u64_le(h.term.0);
    out.put_u64_le(h.vote);
    out.put_u64_le(h.commit.0);
}

pub fn put_entry(
    out: &mut BytesMut,
    replica: ReplicaId,
    commit: RaftIndex,
    e: &Entry,
    carried: bool,
) {
    let kind = if carried { CARRY } else { APPEND };
    let body = APPEND_OVERHEAD_BYTES - PREFIX_BYTES + e.data.len();
    put_prefix(out, kind, replica, body);
    out.put_u64_le(commit.0);
    out.put_u64_le(e.index.0);
    out.put_u64_le(e.term.0);
    out.put_u8(e.kind as u8);
    out.put_i64_le(e.base_offset.0);
    out.put_i64_le(e.next_offset.0);
    out.put_slice(&e.data);
}

pub fn put_created(out: &mut BytesMut, replica: ReplicaId, group: GroupId, state: &[u8]) {
    put_prefix(out, CREATED, replica, 20 + state.len());
    out.put_u128_le(group.topic.0.as_u128());
    out.put_i32_le(group.partition);
    out.put_slice(state);
}

pub fn put_removed(out: &mut BytesMut, replica: ReplicaId) {
    put_prefix(out, REMOVED, replica, 0);
}

/// The records of a commit, in order. Ends with `Err(())` at the first that makes no sense.
pub fn records(bytes: Bytes) -> impl Iterator<Item = Result<(ReplicaId, Record), ()>> {
    let mut at = 0;
    let mut broken = false;
    std::iter::from_fn(move || {
        if broken || at == bytes.len() {
            return None;
        }
        match one(&bytes, at) {
            Some((replica, record, end)) => {
                at = end;
                Some(Ok((replica, record)))
            }
            None => {
                broken = true;
                Some(Err(()))
            }
        }
    })
}

fn one(bytes: &Bytes, at: usize) -> Option<(ReplicaId, Record, usize)> {
    let mut r = Reader::new(&bytes[at..]);
    let kind = r.u8()?;
    let replica = ReplicaId(r.u64()?);
    let length = r.u32()? as usize;
    let body_at = at + r.position();
    let mut b = Reader::new(r.take(length)?);
    let end = body_at + length;
    let record = match kind {
        HARD_STATE => Record::HardState(HardState {
            term: b.long_term()?,
            vote: b.u64()?,
            commit: RaftIndex(b.long()?),
        }),
        APPEND | CARRY => {
            let commit = RaftIndex(b.long()?);
            let entry = Entry {
                index: RaftIndex(b.long()?),
                term: b.long_term()?,
                kind: EntryKind::from_u8(b.u8()?)?,
                base_offset: Offset(b.long()? as i64),
                next_offset: Offset(b.long()? as i64),
                data: bytes.slice(body_at + b.position()..end),
            };
            if !makes_sense(&entry) {
                return None;
            }
            if kind == APPEND {
                Record::Append { commit, entry }
            } else {
                Record::Carry { commit, entry }
            }
        }
        CREATED => {
            let topic = TopicId(Uuid::from_u128(b.u128()?));
            let partition = b.u32()? as i32;
            let state = bytes.slice(body_at + b.position()..end);
            Record::Created {
                group: GroupId { topic, partition },
                state,
            }
        }
        REMOVED => Record::Removed,
        _ => return None,
    };
    Some((replica, record, end))
}

/// A batch (in an extent or not) is one, and lies at its entry's offsets; everything else takes none. (The batch's own CRC isn't looked at: the commit's covers it.)
fn makes_sense(e: &Entry) -> bool {
    let header = match e.kind {
        EntryKind::Batch => BatchHeader::parse(&e.data)
            .ok()
            .filter(|h| h.total_bytes == e.data.len()),
        EntryKind::Extent => Extent::decode(&e.data).map(|extent| extent.header()),
        _ => return e.index.0 > 0 && e.base_offset == e.next_offset,
    };
    let lies_there = |h: BatchHeader| {
        h.base_offset == e.base_offset
            && h.last_offset_delta >= 0
            && h.next_offset() == e.next_offset
    };
    e.index.0 > 0 && header.is_some_and(lies_there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::testing;
    use proptest::prelude::*;

    #[test]
    fn records_come_back_in_order() {
        let entry = Entry {
            index: RaftIndex(4),
            term: Term(2),
            kind: EntryKind::Batch,
            base_offset: Offset(10),
            next_offset: Offset(12),
            data: testing::batch(2, 10, None).stamped(Offset(10), LeaderEpoch(2)),
        };
        let hard_state = HardState {
            term: Term(2),
            vote: 1,
            commit: RaftIndex(3),
        };
        let group = GroupId {
            topic: TopicId(Uuid::from_u128(9)),
            partition: 3,
        };
        let mut out = BytesMut::new();
        put_created(&mut out, ReplicaId(1), group, b"state");
        put_hard_state(&mut out, ReplicaId(1), &hard_state);
        put_entry(&mut out, ReplicaId(1), RaftIndex(3), &entry, false);
        put_entry(&mut out, ReplicaId(1), RaftIndex(4), &entry, true);
        put_removed(&mut out, ReplicaId(2));
        let found: Vec<_> = records(out.freeze()).map(Result::unwrap).collect();
        let state = Bytes::from_static(b"state");
        let append = Record::Append {
            commit: RaftIndex(3),
            entry: entry.clone(),
        };
        let carry = Record::Carry {
            commit: RaftIndex(4),
            entry,
        };
        assert_eq!(
            found,
            vec![
                (ReplicaId(1), Record::Created { group, state }),
                (ReplicaId(1), Record::HardState(hard_state)),
                (ReplicaId(1), append),
                (ReplicaId(1), carry),
                (ReplicaId(2), Record::Removed),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = records(bytes.into()).count();
        }
    }
}
