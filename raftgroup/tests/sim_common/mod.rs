//! What the simulated tests of the log share: numbered batches, the groups they go to, draws that depend on the seed alone.

#![allow(
    dead_code,
    unused_imports,
    reason = "each of the tests uses a part of it"
)]

use bytes::{Bytes, BytesMut};
use engine::batch::{self, Batch, HEADER_BYTES, testing};
use engine::rt;
use engine::types::*;
use raftgroup::*;
use uuid::Uuid;

pub mod node;
mod seeds;

pub use seeds::{Draw, Replay, seeds};

pub struct Silent;

impl GroupSink for Silent {
    fn leader_changed(&self, _: GroupId, _: Term, _: Option<ReplicaId>) {}
    fn command_applied(&self, _: GroupId, _: RaftIndex, _: Term, _: Bytes) {}
    fn snapshot_state(&self, _: GroupId) -> Vec<Bytes> {
        Vec::new()
    }
    fn restore_state(&self, _: GroupId, _: Bytes) {}
}

pub fn group(n: i32) -> GroupId {
    GroupId {
        topic: TopicId(Uuid::from_u128(77)),
        partition: n,
    }
}

/// Produces with acks=all, as a large append (L7) where that is asked for.
pub async fn produce(g: &Group, batch: Batch, large: bool) -> Result<Produced, ProduceError> {
    if large && let Some(extent) = g.put_extent(&batch, rt::wall_clock_ms()).await? {
        return g.produce_extent(extent, Acks::All, rt::wall_clock_ms());
    }
    g.produce(batch, Acks::All, rt::wall_clock_ms())
}

/// The largest timestamp of batch `id`: neighbours by id have changed places.
#[allow(dead_code, reason = "not every test asks by time")]
pub fn time_of(id: u64) -> i64 {
    1_000 + 10 * (id ^ 3) as i64
}

/// A batch that carries `id` in its first record bytes.
pub fn numbered(id: u64, records: i32, bytes: usize) -> Batch {
    let mut b = BytesMut::from(&testing::batch(records, bytes.max(8), None).bytes[..]);
    b[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&id.to_le_bytes());
    b[35..43].copy_from_slice(&time_of(id).to_be_bytes());
    batch::reseal(&mut b);
    Batch::check(b.freeze()).expect("a batch built here is valid")
}

pub fn id_of(b: &[u8]) -> u64 {
    u64::from_le_bytes(
        b[HEADER_BYTES..HEADER_BYTES + 8]
            .try_into()
            .expect("eight bytes"),
    )
}
