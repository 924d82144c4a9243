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
    /// Nothing is counted: there is one thing to wait for.
    waiting: bool,
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
            waiting: false,
            terminal,
            next: Instant::now() + if terminal { SILENT } else { LOG_EVERY },
            shown: false,
        }
    }

    /// For one thing that is waited for: what it is waited for is told, and no number.
    pub fn waiting(what: &'static str) -> Progress {
        Progress {
            waiting: true,
            ..Progress::new(what, 0)
        }
    }

    /// So many more are done.
    pub fn add(&mut self, n: usize) {
        self.done += n;
        if !self.waiting {
            self.show("");
        }
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
        let line = self.line(state);
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

    fn line(&self, state: &str) -> String {
        let mut line = self.what.to_string();
        if self.total > 0 {
            line += &format!(": {} of {}", self.done, self.total);
        } else if self.done > 0 && !self.waiting {
            line += &format!(": {}", self.done);
        }
        if !state.is_empty() {
            line += &format!(": {}", super::output::clean(state));
        }
        line
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_has_no_number() {
        let mut counted = Progress::new("offsets set", 10);
        counted.add(4);
        assert_eq!(counted.line(""), "offsets set: 4 of 10");
        let mut waiting = Progress::waiting("waiting for the group's coordinator");
        waiting.add(1);
        assert_eq!(
            waiting.line("it is still loading"),
            "waiting for the group's coordinator: it is still loading"
        );
    }
}
