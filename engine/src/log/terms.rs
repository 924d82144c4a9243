//! The table of terms of a replica, which is Kafka's leader epoch cache (G11).
//!
//! Rows are (term, first index, start offset); term and index strictly increase. Of rows with one start offset (terms that wrote no batch)
//! the last answers. The table grows by one row an election and shrinks with the log's start.

use crate::types::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermRow {
    pub term: Term,
    pub first: RaftIndex,
    /// The offset that the term's first batch gets or got.
    pub start: Offset,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TermTable {
    rows: Vec<TermRow>,
}

impl TermTable {
    /// Rows from a checkpoint; `None` when they don't strictly increase.
    pub fn from_rows(rows: Vec<TermRow>) -> Option<TermTable> {
        let ordered = rows
            .windows(2)
            .all(|w| w[0].term < w[1].term && w[0].first < w[1].first && w[0].start <= w[1].start);
        ordered.then_some(TermTable { rows })
    }

    pub fn rows(&self) -> &[TermRow] {
        &self.rows
    }

    /// Notes an entry that was appended.
    ///
    /// # Panics
    /// When terms go backwards: Raft's log never does, once truncated (L10).
    pub fn note(&mut self, index: RaftIndex, term: Term, base_offset: Offset) {
        match self.rows.last() {
            Some(last) if last.term == term => {
                assert!(index >= last.first, "indexes go up within a term")
            }
            last => {
                assert!(
                    last.is_none_or(|l| l.term < term && l.first < index),
                    "terms go up: {last:?}, then {term} at {index}"
                );
                self.rows.push(TermRow {
                    term,
                    first: index,
                    start: base_offset,
                });
            }
        }
    }

    /// Forgets everything from `index` on.
    pub fn truncate_from(&mut self, index: RaftIndex) {
        self.rows.retain(|r| r.first < index);
    }

    /// Forgets the terms that ended before `first`, the log's first index.
    pub fn trim_to(&mut self, first: RaftIndex) {
        let gone = self
            .rows
            .windows(2)
            .take_while(|w| w[1].first <= first)
            .count();
        self.rows.drain(..gone);
    }

    /// The term of the entry at `index`, which must be within the log.
    pub fn term_of(&self, index: RaftIndex) -> Option<Term> {
        let after = self.rows.partition_point(|r| r.first <= index);
        after.checked_sub(1).map(|i| self.rows[i].term)
    }

    /// The largest epoch ≤ the asked one that the log holds, and the offset where it ends: where the next one begins, or the log's end.
    /// Of one that is older than anything here it is told that it ended where the log's first one begins: who read under it has nothing to take back. `None`
    /// when the asked epoch is newer than the latest.
    pub fn end_of_epoch(
        &self,
        asked: LeaderEpoch,
        log_end: Offset,
    ) -> Option<(LeaderEpoch, Offset)> {
        let term = Term(u64::try_from(asked.0).ok()?);
        let latest = self.rows.last()?;
        if term > latest.term {
            return None;
        }
        let after = self.rows.partition_point(|r| r.term <= term);
        let Some(before) = after.checked_sub(1) else {
            return Some((asked, self.rows[0].start));
        };
        let row = &self.rows[before];
        let end = self.rows.get(after).map_or(log_end, |next| next.start);
        Some((row.term.leader_epoch()?, end))
    }

    /// The leader epochs from the one of `offset` on, each with the offset where it begins.
    pub fn epochs_from(&self, offset: Offset) -> Vec<(Offset, LeaderEpoch)> {
        let after = self.rows.partition_point(|r| r.start <= offset);
        let rows = &self.rows[after.saturating_sub(1)..];
        rows.iter()
            .filter_map(|r| Some((r.start, r.term.leader_epoch()?)))
            .collect()
    }

    /// The leader epoch under which `offset` was written: the last row that starts at or before it.
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let after = self.rows.partition_point(|r| r.start <= offset);
        self.rows[after.checked_sub(1)?].term.leader_epoch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TermTable {
        let mut t = TermTable::default();
        for (index, term, offset) in [
            (1, 1, 0),
            (2, 1, 0),
            (5, 3, 30),
            (6, 4, 30),
            (7, 4, 30),
            (9, 6, 55),
        ] {
            t.note(RaftIndex(index), Term(term), Offset(offset));
        }
        t
    }

    #[test]
    fn an_epoch_ends_where_the_next_begins() {
        let t = table();
        let ask = |e| {
            t.end_of_epoch(LeaderEpoch(e), Offset(80))
                .map(|(e, o)| (e.0, o.0))
        };
        assert_eq!(ask(0), Some((0, 0)));
        assert_eq!(ask(1), Some((1, 30)));
        assert_eq!(ask(2), Some((1, 30)));
        assert_eq!(ask(3), Some((3, 30)));
        assert_eq!(ask(5), Some((4, 55)));
        assert_eq!(ask(6), Some((6, 80)));
        assert_eq!(ask(7), None);
        assert_eq!(ask(-1), None);
    }

    #[test]
    fn of_rows_with_one_offset_the_last_answers() {
        assert_eq!(table().epoch_at(Offset(30)), Some(LeaderEpoch(4)));
        assert_eq!(table().epoch_at(Offset(29)), Some(LeaderEpoch(1)));
    }

    #[test]
    fn truncation_and_trimming_keep_what_is_in_the_log() {
        let mut t = table();
        t.truncate_from(RaftIndex(6));
        assert_eq!(t.term_of(RaftIndex(5)), Some(Term(3)));
        t.note(RaftIndex(6), Term(5), Offset(31));
        t.trim_to(RaftIndex(5));
        assert_eq!(t.rows().len(), 2);
        assert_eq!(t.term_of(RaftIndex(4)), None);
        // What was trimmed away ended where the rest begins.
        let old = t.end_of_epoch(LeaderEpoch(2), Offset(80));
        assert_eq!(old, Some((LeaderEpoch(2), Offset(30))));
        t.trim_to(RaftIndex(100));
        assert_eq!(t.rows().len(), 1);
    }
}
