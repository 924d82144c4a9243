//! Log lines that others can provoke, held to one in [`limits::LINE_EVERY`]: whoever asks for damaged offsets or sends bad batches in a loop must
//! not fill the disk with lines.
//!
//! One [`LineLimit`] belongs to one kind of line of one source (a connection, a shard); one that stands for many sources, as a shard does for its clients, may let a few
//! lines pass in that time. What it keeps back it counts, and the next line
//! says how many there were, so that nothing is lost but the words. Time is passed in.

use std::cell::Cell;

use crate::limits;
use crate::rt::Instant;

/// See the module.
#[derive(Debug)]
pub struct LineLimit {
    /// Lines that pass in the time.
    most: u32,
    /// When the time began, and the lines since.
    began: Cell<Option<Instant>>,
    passed: Cell<u32>,
    kept_back: Cell<u64>,
}

impl Default for LineLimit {
    fn default() -> LineLimit {
        LineLimit::several(1)
    }
}

impl LineLimit {
    /// For lines of many sources: so many pass in [`limits::LINE_EVERY`].
    pub fn several(most: u32) -> LineLimit {
        LineLimit {
            most,
            began: Cell::new(None),
            passed: Cell::new(0),
            kept_back: Cell::new(0),
        }
    }

    /// Whether a line may be written now; if so, how many were kept back since the last one.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        let passed = match self.began.get() {
            Some(began) if now.saturating_duration_since(began) < limits::LINE_EVERY => {
                self.passed.get()
            }
            _ => {
                self.began.set(Some(now));
                0
            }
        };
        if passed >= self.most {
            self.kept_back.set(self.kept_back.get() + 1);
            return None;
        }
        self.passed.set(passed + 1);
        Some(self.kept_back.take())
    }

    /// So many lines of others were kept back, and the next line stands for them too.
    pub fn keep_back(&self, lines: u64) {
        self.kept_back.set(self.kept_back.get() + lines);
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
    #[test]
    fn of_many_sources_a_few_lines_pass() {
        let limit = LineLimit::several(3);
        let at = |ms: u64| Instant(1_000_000 * (5_000 + ms));
        let passed = (0..1_500).filter(|n| limit.pass(at(n / 2)).is_some());
        assert_eq!(passed.count(), 3);
        assert_eq!(limit.pass(at(1_000)), Some(1_497));
        limit.keep_back(2);
        assert_eq!(limit.pass(at(1_000)), Some(2));
    }
}
