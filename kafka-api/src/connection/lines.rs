//! What connections leave in the log, held to [`limits::LINES_OF_CLIENTS`] a second for a shard: a flood of clients that send garbage must not become a flood of lines. What is kept
//! back is counted, and the next line says it, or a last word a little later.

use engine::line_limit::LineLimit;
use engine::rt::Instant;

use crate::limits;

/// See the module.
pub(crate) struct Lines {
    /// Of connections that were closed.
    ends: LineLimit,
    /// Of requests that were refused.
    refusals: LineLimit,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines {
            ends: LineLimit::several(limits::LINES_OF_CLIENTS),
            refusals: LineLimit::several(limits::LINES_OF_CLIENTS),
        }
    }
}

impl Lines {
    /// Whether the end of a connection is told; if so, how many weren't before.
    pub fn end(&self, now: Instant) -> Option<u64> {
        self.ends.pass(now)
    }

    /// Whether a refused request is told, by the connection's own limit and by that for all; if so, how many were kept back of its own, and of all.
    pub fn refusal(&self, own: &LineLimit, now: Instant) -> Option<(u64, u64)> {
        let own = own.pass(now)?;
        self.refusals_of(own, own, now)
    }

    /// What a connection that ends has kept back.
    pub fn refusals_at_end(&self, own: &LineLimit, now: Instant) -> Option<(u64, u64)> {
        let own = own.rest()?;
        // The line itself stands for none.
        self.refusals_of(own, own - 1, now)
    }

    fn refusals_of(&self, own: u64, kept_back: u64, now: Instant) -> Option<(u64, u64)> {
        let of_all = self.refusals.pass(now);
        if of_all.is_none() {
            self.refusals.keep_back(kept_back);
        }
        Some((own, of_all?))
    }

    /// The last word about what was kept back, when no more came. Called now and then.
    pub fn tell_the_rest(&self) {
        if let Some(kept_back) = self.ends.rest() {
            tracing::warn!(kept_back, "more connections were closed");
        }
        if let Some(kept_back) = self.refusals.rest() {
            tracing::warn!(kept_back, "more requests were refused");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(1_000_000 * (5_000 + ms))
    }

    #[test]
    fn a_flood_of_connections_is_a_few_lines_that_say_how_many_there_were() {
        let lines = Lines::default();
        let told = (0..1_500).filter(|n| lines.end(at(n / 2)).is_some());
        assert_eq!(told.count(), limits::LINES_OF_CLIENTS as usize);
        assert_eq!(lines.end(at(1_000)), Some(1_490));
    }

    #[test]
    fn a_flood_of_refusals_is_too_and_each_is_counted_once() {
        let lines = Lines::default();
        let mut told = 0;
        // Each is a connection of its own that is refused three things.
        for n in 0..1_500 {
            let own = LineLimit::default();
            told += (0..3)
                .filter(|_| lines.refusal(&own, at(n / 2)).is_some())
                .count();
            told += lines.refusals_at_end(&own, at(n / 2)).iter().count();
        }
        assert_eq!(told, limits::LINES_OF_CLIENTS as usize);
        let rest = lines.refusals.rest().unwrap();
        // Five connections have told all three, in two lines.
        assert_eq!(rest, 1_495 * 3);
    }
}
