//! What the simulated tests of the log share: numbered batches, the groups they go to, draws that depend on the seed alone.

#![allow(dead_code, reason = "each of the tests uses a part of it")]

use bytes::{Bytes, BytesMut};
use engine::batch::{self, Batch, HEADER_BYTES, testing};
use engine::rt;
use engine::types::*;
use raftgroup::*;
use uuid::Uuid;

pub mod node;

pub struct Silent;

impl GroupSink for Silent {
    fn leader_changed(&self, _: GroupId, _: Term, _: Option<ReplicaId>) {}
    fn command_applied(&self, _: GroupId, _: RaftIndex, _: Term, _: Bytes) {}
    fn snapshot_state(&self, _: GroupId) -> Bytes {
        Bytes::new()
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

/// A batch that carries `id` in its first record bytes.
pub fn numbered(id: u64, records: i32, bytes: usize) -> Batch {
    let mut b = BytesMut::from(&testing::batch(records, bytes.max(8), None).bytes[..]);
    b[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&id.to_le_bytes());
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

/// Numbers drawn outside of a world's own generator.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

/// Says how to see a failure again.
pub struct Replay(pub u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {0} fails; again with SIM_SEED={0}", self.0);
        }
    }
}

/// The seeds to run: `SIM_SEED` alone, or the first `SIM_SEEDS` (40); and whether it is one alone.
pub fn seeds() -> (Vec<u64>, bool) {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    match number("SIM_SEED") {
        Some(one) => (vec![one], true),
        None => ((1..=number("SIM_SEEDS").unwrap_or(40)).collect(), false),
    }
}
