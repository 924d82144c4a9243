//! What a group remembers of batches that it refused for a passing reason, so that what their producers sent behind them is refused alike (G10).
//!
//! An idempotent producer has several batches in flight. When the first finds no room and the second, a moment later, would find some, the second must
//! not be judged by itself: of a producer that the group doesn't know it would be taken, and the first, sent again, be out of order for
//! ever; of one that it knows it would be called out of order, which clients take for a broker that has lost records (librdkafka gives up). So a
//! refusal holds for everything behind it until the refused batch comes again; then the client sends all of it again, in order.
//!
//! A note is about what is in flight, so it ends by itself after [`limits::HELD_MS`]: a client that gave the batch up must not be refused for ever.
//!
//! Bounds: [`limits::HELD_PER_GROUP`] producers, about 40 bytes each. Pure: time is passed in. Called by [`crate::handle`].

use indexmap::IndexMap;

use crate::api::ProduceError;
use crate::limits;
use crate::producers::{SEQUENCES, Stamp, distance};

#[derive(Clone, Copy, Debug)]
struct Note {
    epoch: i16,
    /// The lowest refused batch begins here.
    first_sequence: i32,
    why: ProduceError,
    at_ms: i64,
}

impl Note {
    fn counts(&self, epoch: i16, now_ms: i64) -> bool {
        // A clock that was set back ends a note too.
        self.epoch == epoch && (0..limits::HELD_MS).contains(&now_ms.saturating_sub(self.at_ms))
    }
}

/// The refused batches of one group.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// By producer. Absent when there is none, as in nearly every group: an idle one pays eight bytes.
    notes: Option<Box<Notes>>,
}

type Notes = IndexMap<i64, Note, ahash::RandomState>;

fn no_notes() -> Box<Notes> {
    // Fixed seeds: two runs of one history must do the same.
    let hasher = ahash::RandomState::with_seeds(13, 14, 15, 16);
    Box::new(IndexMap::with_hasher(hasher))
}

impl Held {
    /// Why a batch that could be taken, or would be out of order, is refused: one before it was.
    pub fn behind(&self, stamp: &Stamp, now_ms: i64) -> Option<ProduceError> {
        let note = self.notes.as_ref()?.get(&stamp.id)?;
        let behind = distance(note.first_sequence, stamp.first_sequence);
        (note.counts(stamp.epoch, now_ms) && (1..SEQUENCES / 2).contains(&behind))
            .then_some(note.why)
    }

    /// A batch was refused because of `why`. Only what passes by itself is noted.
    pub fn refused(&mut self, stamp: &Stamp, why: ProduceError, now_ms: i64) {
        if !matches!(
            why,
            ProduceError::DiskFull | ProduceError::Overloaded | ProduceError::NotLeader
        ) || self.behind(stamp, now_ms).is_some()
        {
            return;
        }
        if self.is_full_for(stamp) {
            self.expire(now_ms);
            if self.is_full_for(stamp) {
                return;
            }
        }
        let note = Note {
            epoch: stamp.epoch,
            first_sequence: stamp.first_sequence,
            why,
            at_ms: now_ms,
        };
        self.notes
            .get_or_insert_with(no_notes)
            .insert(stamp.id, note);
    }

    fn is_full_for(&self, stamp: &Stamp) -> bool {
        let notes = self.notes.as_ref();
        notes.is_some_and(|n| n.len() >= limits::HELD_PER_GROUP && !n.contains_key(&stamp.id))
    }

    /// A batch was taken. If it is the refused one, what is behind it is judged by itself again.
    pub fn taken(&mut self, stamp: &Stamp) {
        let Some(notes) = &mut self.notes else {
            return;
        };
        let Some(note) = notes.get(&stamp.id) else {
            return;
        };
        let length = distance(stamp.first_sequence, stamp.last_sequence);
        let inside = distance(stamp.first_sequence, note.first_sequence) <= length;
        if stamp.epoch != note.epoch || inside {
            notes.swap_remove(&stamp.id);
            self.forget_if_empty();
        }
    }

    /// Drops what is too old to count.
    pub fn expire(&mut self, now_ms: i64) {
        if let Some(notes) = &mut self.notes {
            notes.retain(|_, n| n.counts(n.epoch, now_ms));
            self.forget_if_empty();
        }
    }

    fn forget_if_empty(&mut self) {
        self.notes.take_if(|n| n.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProduceError::{DiskFull, OutOfOrderSequence, Overloaded};

    fn stamp(id: i64, epoch: i16, first: i32, count: i32) -> Stamp {
        Stamp {
            id,
            epoch,
            first_sequence: first,
            last_sequence: engine::batch::add_sequence(first, count - 1),
            timestamp: 0,
        }
    }

    #[test]
    fn a_refusal_holds_for_what_is_behind_it_until_it_comes_again() {
        let mut held = Held::default();
        held.refused(&stamp(7, 0, 10, 2), DiskFull, 100);
        assert_eq!(held.behind(&stamp(7, 0, 10, 2), 101), None);
        assert_eq!(held.behind(&stamp(7, 0, 8, 2), 101), None);
        assert_eq!(held.behind(&stamp(7, 0, 12, 1), 101), Some(DiskFull));
        assert_eq!(held.behind(&stamp(8, 0, 12, 1), 101), None);
        assert_eq!(held.behind(&stamp(7, 1, 12, 1), 101), None);
        held.taken(&stamp(7, 0, 8, 2));
        assert_eq!(held.behind(&stamp(7, 0, 12, 1), 102), Some(DiskFull));
        held.taken(&stamp(7, 0, 10, 2));
        assert_eq!(held.behind(&stamp(7, 0, 12, 1), 103), None);
    }

    #[test]
    fn the_first_refused_counts_and_it_ends_by_itself() {
        let mut held = Held::default();
        held.refused(&stamp(7, 0, i32::MAX, 1), Overloaded, 100);
        // Sequences wrap; what is refused because of the note neither moves nor renews it.
        held.refused(&stamp(7, 0, 0, 1), DiskFull, 100 + limits::HELD_MS / 2);
        assert_eq!(held.behind(&stamp(7, 0, 0, 1), 101), Some(Overloaded));
        assert_eq!(held.behind(&stamp(7, 0, 0, 1), 100 + limits::HELD_MS), None);
        assert_eq!(
            held.behind(&stamp(7, 0, 0, 1), 99),
            None,
            "a clock set back"
        );
        held.expire(100 + limits::HELD_MS);
        assert!(held.notes.is_none());
    }

    #[test]
    fn what_does_not_pass_is_not_noted_and_the_number_is_bounded() {
        let mut held = Held::default();
        held.refused(&stamp(7, 0, 10, 1), OutOfOrderSequence, 0);
        assert!(held.notes.is_none());
        for id in 0..limits::HELD_PER_GROUP as i64 + 5 {
            held.refused(&stamp(id, 0, 10, 1), DiskFull, 0);
        }
        let count = |held: &Held| held.notes.as_ref().map_or(0, |n| n.len());
        assert_eq!(count(&held), limits::HELD_PER_GROUP);
        held.refused(&stamp(9999, 0, 10, 1), DiskFull, limits::HELD_MS);
        assert_eq!(count(&held), 1, "old ones make room");
    }
}
