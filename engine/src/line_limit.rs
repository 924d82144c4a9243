//! Log lines that others can provoke, held to one in [`limits::LINE_EVERY`]: whoever asks for damaged offsets or sends bad batches in a loop must
//! not fill the disk with lines.
//!
//! One [`LineLimit`] belongs to one kind of line of one source (a connection, a shard). What it keeps back it counts, and the next line
//! says how many there were, so that nothing is lost but the words. Time is passed in.

use std::cell::Cell;

use crate::limits;
use crate::rt::Instant;

/// See the module.
#[derive(Debug, Default)]
pub struct LineLimit {
    last: Cell<Option<Instant>>,
    kept_back: Cell<u64>,
}

impl LineLimit {
    /// Whether a line may be written now; if so, how many were kept back since the last one.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        if let Some(last) = self.last.get()
            && now.saturating_duration_since(last) < limits::LINE_EVERY
        {
            self.kept_back.set(self.kept_back.get() + 1);
            return None;
        }
        self.last.set(Some(now));
        Some(self.kept_back.take())
    }

    /// What was kept back since the last line, for a last word when the source ends.
    pub fn rest(&self) -> Option<u64> {
        Some(self.kept_back.take()).filter(|n| *n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_so_often_says_how_many_it_stands_for() {
        let limit = LineLimit::default();
        let at = |ms: u64| Instant(1_000_000 * (5_000 + ms));
        assert_eq!(limit.pass(at(0)), Some(0));
        for ms in 1..=3 {
            assert_eq!(limit.pass(at(ms)), None);
        }
        assert_eq!(limit.pass(at(1_000)), Some(3));
        assert_eq!(limit.rest(), None);
        assert_eq!(limit.pass(at(1_999)), None);
        assert_eq!(limit.rest(), Some(1));
        assert_eq!(limit.pass(at(2_000)), Some(0));
    }
}
