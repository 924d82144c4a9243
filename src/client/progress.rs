//! How far long work is: on a terminal one line that is written over and goes away at the end, elsewhere a line now and then. Always on stderr, and
//! nothing for work that is done at once.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Work that takes no longer says nothing.
const SILENT: Duration = Duration::from_millis(400);
const TERMINAL_EVERY: Duration = Duration::from_millis(100);
const LOG_EVERY: Duration = Duration::from_secs(5);

pub struct Progress {
    /// What is done, as in "offsets looked up".
    what: &'static str,
    total: usize,
    done: usize,
    terminal: bool,
    next: Instant,
    shown: bool,
}

impl Progress {
    /// `total` is 0 when it isn't known.
    pub fn new(what: &'static str, total: usize) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress {
            what,
            total,
            done: 0,
            terminal,
            next: Instant::now() + if terminal { SILENT } else { LOG_EVERY },
            shown: false,
        }
    }

    /// So many more are done.
    pub fn add(&mut self, n: usize) {
        self.done += n;
        self.show("");
    }

    /// Something to tell that isn't a number.
    pub fn tell(&mut self, state: &str) {
        self.show(state);
    }

    fn show(&mut self, state: &str) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let mut line = self.what.to_string();
        if self.total > 0 {
            line += &format!(": {} of {}", self.done, self.total);
        } else if self.done > 0 {
            line += &format!(": {}", self.done);
        }
        if !state.is_empty() {
            line += &format!(": {}", super::output::clean(state));
        }
        let mut err = std::io::stderr().lock();
        // Who can't be told goes without.
        if self.terminal {
            let _ = write!(err, "\r\x1b[K{line}");
            let _ = err.flush();
            self.next = now + TERMINAL_EVERY;
        } else {
            let _ = writeln!(err, "{line}");
            self.next = now + LOG_EVERY;
        }
        self.shown = true;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
