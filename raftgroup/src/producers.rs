//! What a group remembers of idempotent producers, so that a batch sent twice is written once (KIP-98; G10).
//!
//! One table holds, per producer id, the last five *committed* batches and, behind them, the batches of the *uncommitted* tail of the log
//! (the overlay). A check looks at both. Each remembered batch carries all that follows from it (epoch, sequences, how many sequence
//! numbers are known to be written before it), so that taking back the tail is exact: drop the batches that were cut off, and the table is
//! what it was before them.
//!
//! Invariants:
//! - batches of one producer lie in log order, committed ones before uncommitted ones;
//! - offsets are Kafka offsets, never Raft indexes, except in the overlay, where the index says which commit a repeat waits for;
//! - within a producer's newest epoch, the newest batch covers `covered` sequence numbers up to its last without a gap.
//!
//! A batch older than those remembered is called a duplicate only if its sequences are *known* to be written (`covered`): a producer whose
//! state was forgotten may begin anywhere, and what lies before that beginning may never have arrived.
//!
//! Bounds: [`limits::BATCHES_REMEMBERED`] committed batches a producer (about 220 bytes each producer), [`limits::PRODUCERS_PER_GROUP`]
//! producers, the overlay by the uncommitted tail. Pure: time is passed in. Called by [`crate::state`].

use std::collections::VecDeque;

use engine::batch::{BatchHeader, add_sequence};
use engine::types::{Offset, RaftIndex};
use indexmap::IndexMap;
use smallvec::SmallVec;

use crate::api::{ActiveProducer, ProduceError};
use crate::limits;

/// The number of different sequence numbers: they wrap from `i32::MAX` to 0.
pub(crate) const SEQUENCES: i64 = i32::MAX as i64 + 1;

/// What one batch says about its producer.
/// A remembered batch as it is encoded.
const BATCH_BYTES: usize = 2 + 4 + 4 + 4 + 8 + 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub id: i64,
    pub epoch: i16,
    pub first_sequence: i32,
    pub last_sequence: i32,
    /// The batch's max timestamp, which is its append time where the broker sets it.
    pub timestamp: i64,
}

impl Stamp {
    /// None for a batch without a producer.
    pub fn of(header: &BatchHeader) -> Option<Stamp> {
        header.has_producer().then(|| Stamp {
            id: header.producer_id,
            epoch: header.producer_epoch,
            first_sequence: header.base_sequence,
            last_sequence: header.last_sequence(),
            timestamp: header.max_timestamp,
        })
    }

    /// How many sequence numbers the batch takes.
    fn count(&self) -> u32 {
        (distance(self.first_sequence, self.last_sequence) + 1) as u32
    }
}

/// How far `to` lies behind `from`, going upwards and wrapping.
pub(crate) fn distance(from: i32, to: i32) -> i64 {
    (i64::from(to) - i64::from(from)).rem_euclid(SEQUENCES)
}

/// A batch that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub base_offset: Offset,
    pub timestamp: i64,
    pub first_sequence: i32,
    pub last_sequence: i32,
    /// Sequence numbers of this epoch that are known to be written without a gap, up to and with this batch. Saturates.
    pub covered: u32,
    pub epoch: i16,
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Append,
    /// It was written before. `pending` is the entry whose commit the answer must wait for (G10).
    Repeat {
        base_offset: Offset,
        timestamp: i64,
        pending: Option<RaftIndex>,
    },
    Refuse(ProduceError),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Producer {
    committed: SmallVec<[Remembered; limits::BATCHES_REMEMBERED]>,
    pending: VecDeque<(RaftIndex, Remembered)>,
    /// Rank of its last write among all writes to the group.
    touched: u64,
    last_write_ms: i64,
}

impl Producer {
    /// Newest first, as far back as repeats are recognised.
    fn recent(&self) -> impl Iterator<Item = (Option<RaftIndex>, &Remembered)> {
        let pending = self.pending.iter().rev().map(|(i, b)| (Some(*i), b));
        let committed = self.committed.iter().rev().map(|b| (None, b));
        pending.chain(committed).take(limits::BATCHES_REMEMBERED)
    }

    fn newest(&self) -> Option<&Remembered> {
        let pending = self.pending.back().map(|(_, b)| b);
        pending.or(self.committed.last())
    }

    /// A commit of a batch of a new epoch makes those of older epochs worthless.
    fn commit(&mut self, batch: Remembered) {
        if self
            .committed
            .last()
            .is_some_and(|b| b.epoch != batch.epoch)
        {
            self.committed.clear();
        }
        if self.committed.len() == limits::BATCHES_REMEMBERED {
            self.committed.remove(0);
        }
        self.committed.push(batch);
    }
}

type Table = IndexMap<i64, Producer, ahash::RandomState>;

/// All producers of one group.
#[derive(Clone, Debug)]
pub(crate) struct Producers {
    table: Table,
    writes: u64,
    limit: usize,
}

impl Default for Producers {
    fn default() -> Producers {
        Producers::new(limits::PRODUCERS_PER_GROUP)
    }
}

impl Producers {
    pub fn new(limit: usize) -> Producers {
        Producers {
            // Fixed seeds: two runs of one history must do the same.
            table: Table::with_hasher(ahash::RandomState::with_seeds(1, 2, 3, 4)),
            writes: 0,
            limit,
        }
    }

    /// Whether a batch may be written now, was written before, or must be refused.
    pub fn check(&self, stamp: &Stamp) -> Verdict {
        let Some(producer) = self.table.get(&stamp.id) else {
            // State that was never there, expired, or went with deleted records: any sequence may begin it.
            return Verdict::Append;
        };
        let Some(newest) = producer.newest() else {
            return Verdict::Append;
        };
        if stamp.epoch < newest.epoch {
            return Verdict::Refuse(ProduceError::InvalidProducerEpoch);
        }
        if stamp.epoch > newest.epoch {
            return if stamp.first_sequence == 0 {
                Verdict::Append
            } else {
                Verdict::Refuse(ProduceError::OutOfOrderSequence)
            };
        }
        if stamp.first_sequence == add_sequence(newest.last_sequence, 1) {
            return Verdict::Append;
        }
        for (pending, b) in producer.recent() {
            if b.epoch == stamp.epoch
                && b.first_sequence == stamp.first_sequence
                && b.last_sequence == stamp.last_sequence
            {
                return Verdict::Repeat {
                    base_offset: b.base_offset,
                    timestamp: b.timestamp,
                    pending,
                };
            }
        }
        let back = distance(stamp.first_sequence, newest.last_sequence) + 1;
        if back <= i64::from(newest.covered) && back >= i64::from(stamp.count()) {
            Verdict::Refuse(ProduceError::DuplicateSequence)
        } else {
            Verdict::Refuse(ProduceError::OutOfOrderSequence)
        }
    }

    /// Whether the producer has written here: its next batch then has a sequence that it must have.
    pub fn knows(&self, id: i64) -> bool {
        self.table.get(&id).is_some_and(|p| p.newest().is_some())
    }

    /// Adds the batch of the entry at `index` to the overlay. No check is made: entries of a leader's log are facts.
    pub fn push(&mut self, index: RaftIndex, stamp: &Stamp, base_offset: Offset, now_ms: i64) {
        if self.table.len() >= self.limit && !self.table.contains_key(&stamp.id) {
            self.evict();
        }
        self.writes += 1;
        let producer = self.table.entry(stamp.id).or_default();
        let covered = match producer.newest() {
            Some(b)
                if b.epoch == stamp.epoch
                    && add_sequence(b.last_sequence, 1) == stamp.first_sequence =>
            {
                b.covered.saturating_add(stamp.count()).min(i32::MAX as u32)
            }
            _ => stamp.count(),
        };
        producer.touched = self.writes;
        producer.last_write_ms = producer.last_write_ms.max(now_ms);
        producer.pending.push_back((
            index,
            Remembered {
                base_offset,
                timestamp: stamp.timestamp,
                first_sequence: stamp.first_sequence,
                last_sequence: stamp.last_sequence,
                covered,
                epoch: stamp.epoch,
            },
        ));
    }

    /// The entry at `index`, a batch of producer `id`, is committed and durable here: it moves from the overlay to the committed state.
    ///
    /// # Panics
    /// When it is not the oldest batch of the producer's overlay.
    pub fn apply(&mut self, index: RaftIndex, id: i64) {
        let producer = self
            .table
            .get_mut(&id)
            .expect("a producer with batches in the overlay is never forgotten");
        let (oldest, batch) = producer
            .pending
            .pop_front()
            .expect("an applied batch was in the overlay");
        assert_eq!(oldest, index, "batches are applied in log order");
        // State captured between two applied entries may already know the batch when the log is replayed over it.
        let known = producer.committed.last().map(|b| b.base_offset);
        if known.is_none_or(|o| o < batch.base_offset) {
            producer.commit(batch);
        }
    }

    /// The entry at `index`, a batch of producer `id`, was cut off (L10). Entries are cut from the end.
    pub fn take_back(&mut self, index: RaftIndex, id: i64) {
        let producer = self
            .table
            .get_mut(&id)
            .expect("a producer with batches in the overlay is never forgotten");
        let (newest, _) = producer
            .pending
            .pop_back()
            .expect("a batch that is cut off was in the overlay");
        assert_eq!(newest, index, "batches are cut off from the end");
        if producer.pending.is_empty() && producer.committed.is_empty() {
            self.table.swap_remove(&id);
        }
    }

    /// Forgets those that have not written for a day; gives their number.
    pub fn expire(&mut self, now_ms: i64) -> usize {
        let before = self.table.len();
        self.table.retain(|_, p| {
            !p.pending.is_empty()
                || now_ms.saturating_sub(p.last_write_ms) < limits::PRODUCER_EXPIRATION_MS
        });
        before - self.table.len()
    }

    /// Forgets the sixteenth that wrote longest ago, at least one. Those with batches in the overlay stay, so the table may pass its limit
    /// by what is in flight.
    fn evict(&mut self) {
        let mut ranks: Vec<u64> = self
            .table
            .values()
            .filter(|p| p.pending.is_empty())
            .map(|p| p.touched)
            .collect();
        if ranks.is_empty() {
            return;
        }
        let last = (self.limit / 16).clamp(1, ranks.len()) - 1;
        let (_, bar, _) = ranks.select_nth_unstable(last);
        let bar = *bar;
        self.table
            .retain(|_, p| !p.pending.is_empty() || p.touched > bar);
    }

    /// Everyone's last batch, by producer id.
    pub fn active(&self) -> Vec<ActiveProducer> {
        let newest = self
            .table
            .iter()
            .filter_map(|(id, p)| Some((id, p.newest()?)));
        let mut active: Vec<ActiveProducer> = newest
            .map(|(id, b)| ActiveProducer {
                id: *id,
                epoch: b.epoch,
                last_sequence: b.last_sequence,
                last_timestamp: b.timestamp,
            })
            .collect();
        active.sort_unstable_by_key(|p| p.id);
        active
    }

    /// Appends the committed state to `out` (format in [`crate::codec`]): u32 count, then per producer, in the order of their last writes,
    /// id i64, last write i64 ms, count u8 and per batch epoch i16, first i32, last i32, covered u32, base offset i64, timestamp i64.
    pub fn encode(&self, out: &mut Vec<u8>) {
        // L8: this is one step, for thousands of producers. Numbers are sorted, not references, and batches are put whole.
        let known = self.table.values().enumerate();
        let mut known: Vec<(u64, u32)> = known
            .filter(|(_, p)| !p.committed.is_empty())
            .map(|(at, p)| (p.touched, at as u32))
            .collect();
        known.sort_unstable();
        out.extend_from_slice(&(known.len() as u32).to_be_bytes());
        for (_, at) in known {
            let (id, p) = self
                .table
                .get_index(at as usize)
                .expect("nothing was removed since");
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&p.last_write_ms.to_be_bytes());
            out.push(p.committed.len() as u8);
            for b in &p.committed {
                let mut bytes = [0; BATCH_BYTES];
                bytes[..2].copy_from_slice(&b.epoch.to_be_bytes());
                bytes[2..6].copy_from_slice(&b.first_sequence.to_be_bytes());
                bytes[6..10].copy_from_slice(&b.last_sequence.to_be_bytes());
                bytes[10..14].copy_from_slice(&b.covered.to_be_bytes());
                bytes[14..22].copy_from_slice(&b.base_offset.0.to_be_bytes());
                bytes[22..].copy_from_slice(&b.timestamp.to_be_bytes());
                out.extend_from_slice(&bytes);
            }
        }
    }

    /// What [`Producers::encode`] gives at most, in bytes.
    pub fn encoded_bytes(&self) -> usize {
        4 + self.table.len() * (17 + limits::BATCHES_REMEMBERED * BATCH_BYTES)
    }

    /// Takes over one producer from a decoded state, in the order of [`Producers::encode`].
    pub fn adopt(&mut self, id: i64, last_write_ms: i64, batches: &[Remembered]) {
        self.writes += 1;
        let mut producer = Producer {
            touched: self.writes,
            last_write_ms,
            ..Producer::default()
        };
        for b in batches {
            producer.commit(*b);
        }
        self.table.insert(id, producer);
    }
}

#[cfg(test)]
#[path = "producers_tests.rs"]
mod tests;
