//! How much of something came in the last while: samples that slide, as Kafka measures its clients by, and a bucket of tokens for changes of the metadata.
//!
//! Pure: time comes in as milliseconds of any clock that doesn't go back. A [`Window`] holds at most one sample more than its [`Shape`] says, since one that began before
//! the window and was added to within it still counts as a whole.

/// How a rate is measured: over this many samples of this length (`quota.window.num`, `quota.window.size.seconds`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub samples: u32,
    pub sample_ms: u64,
}

impl Shape {
    pub fn new(samples: i32, sample_s: i32) -> Shape {
        Shape {
            samples: samples.max(1).unsigned_abs(),
            sample_ms: 1000 * u64::from(sample_s.max(1).unsigned_abs()),
        }
    }

    /// After this long without anything a window is as good as a new one, in milliseconds.
    pub fn memory_ms(self) -> u64 {
        u64::from(self.samples) * self.sample_ms
    }

    /// The most that a window takes at once without being over `bound`: what a client that was silent may use.
    pub fn most_at_once(self, bound: f64) -> f64 {
        bound * f64::from(self.samples.max(2) - 1) * self.sample_ms as f64 / 1000.0
    }
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    begun_ms: u64,
    last_ms: u64,
    amount: f64,
}

/// What came, sample by sample, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Window {
    samples: Vec<Sample>,
}

impl Window {
    /// Adds an amount, or takes one back that is below 0.
    pub fn add(&mut self, shape: Shape, amount: f64, now_ms: u64) {
        self.forget(shape, now_ms);
        match self.samples.last_mut() {
            Some(s) if now_ms.saturating_sub(s.begun_ms) < shape.sample_ms => {
                s.amount += amount;
                s.last_ms = now_ms;
            }
            _ => self.samples.push(Sample {
                begun_ms: now_ms,
                last_ms: now_ms,
                amount,
            }),
        }
    }

    /// The amount a second over the window. A window that isn't full yet counts as one whose beginning was silent.
    pub fn rate(&mut self, shape: Shape, now_ms: u64) -> f64 {
        self.forget(shape, now_ms);
        let sum: f64 = self.samples.iter().map(|s| s.amount).sum();
        sum * 1000.0 / self.span_ms(shape, now_ms) as f64
    }

    /// How long nothing must come until the rate is `bound` again; 0 if it isn't above.
    pub fn throttle_ms(&mut self, shape: Shape, bound: f64, now_ms: u64) -> u32 {
        let rate = self.rate(shape, now_ms);
        if rate <= bound {
            return 0;
        }
        let wait = (rate - bound) / bound * self.span_ms(shape, now_ms) as f64;
        // Not a number when the bound is 0 and so is the excess' ratio to it: as long as can be told.
        if wait < f64::from(i32::MAX) {
            wait.round() as u32
        } else {
            i32::MAX as u32
        }
    }

    /// Whether it is as good as new.
    pub fn is_idle(&self, shape: Shape, now_ms: u64) -> bool {
        self.samples
            .last()
            .is_none_or(|s| now_ms.saturating_sub(s.last_ms) >= shape.memory_ms())
    }

    /// What the rate is reckoned over: from the oldest sample on, but never less than all samples but the last and what has passed of that.
    fn span_ms(&self, shape: Shape, now_ms: u64) -> u64 {
        let begun = self.samples.first().map_or(now_ms, |s| s.begun_ms);
        let passed = now_ms.saturating_sub(begun);
        let whole = passed / shape.sample_ms;
        let missing = u64::from(shape.samples - 1).saturating_sub(whole);
        (passed + missing * shape.sample_ms).max(1)
    }

    fn forget(&mut self, shape: Shape, now_ms: u64) {
        let old = |s: &Sample| now_ms.saturating_sub(s.last_ms) >= shape.memory_ms();
        let gone = self.samples.iter().take_while(|s| old(s)).count();
        self.samples.drain(..gone);
    }
}

/// Tokens that come at a rate and are kept up to a burst. It may be overdrawn: who finds it below 0 waits.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    tokens: f64,
    at_ms: u64,
}

impl Bucket {
    /// A full one.
    pub fn new(shape: Shape, rate: f64, now_ms: u64) -> Bucket {
        Bucket {
            tokens: burst(shape, rate),
            at_ms: now_ms,
        }
    }

    /// How long until it isn't overdrawn any more, in milliseconds.
    pub fn throttle_ms(&mut self, shape: Shape, rate: f64, now_ms: u64) -> u32 {
        self.fill(shape, rate, now_ms);
        if self.tokens >= 0.0 {
            return 0;
        }
        let wait = (-self.tokens / rate * 1000.0).round();
        if wait < f64::from(i32::MAX) {
            wait as u32
        } else {
            i32::MAX as u32
        }
    }

    pub fn take(&mut self, shape: Shape, rate: f64, tokens: f64, now_ms: u64) {
        self.fill(shape, rate, now_ms);
        self.tokens = (self.tokens - tokens).min(burst(shape, rate));
    }

    /// Whether it is as good as new.
    pub fn is_idle(&self, shape: Shape, rate: f64, now_ms: u64) -> bool {
        let mut filled = *self;
        filled.fill(shape, rate, now_ms);
        filled.tokens >= burst(shape, rate)
    }

    fn fill(&mut self, shape: Shape, rate: f64, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.at_ms) as f64 / 1000.0;
        self.tokens = (self.tokens + rate * passed).min(burst(shape, rate));
        self.at_ms = self.at_ms.max(now_ms);
    }
}

fn burst(shape: Shape, rate: f64) -> f64 {
    rate * shape.memory_ms() as f64 / 1000.0
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
