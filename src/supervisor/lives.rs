//! How often a process died and was forked again, and how long to wait before the next time. Pure.

use std::time::{Duration, Instant};

/// Back-off of the second death in a row; it doubles with each further one.
const BACK_OFF_FIRST: Duration = Duration::from_millis(100);

/// A process that lived this long did not die of how it was born: its death is the first in a row.
const FORGIVEN_AFTER: Duration = Duration::from_secs(1);

/// The lives of what is one process at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lives {
    /// When the process was last forked.
    pub born: Instant,
    /// How often it died and was, or is to be, forked again.
    pub restarts: u32,
    deaths_in_row: u32,
}

impl Lives {
    /// Born just now, for the first time.
    pub fn new(now: Instant) -> Self {
        Self { born: now, restarts: 0, deaths_in_row: 0 }
    }

    /// Counts a death, and says how long to wait before the next birth: not at all the first time, then
    /// longer and longer, at most `longest`.
    pub fn death(&mut self, by_kill: bool, longest: Duration, now: Instant) -> Duration {
        if now.saturating_duration_since(self.born) >= FORGIVEN_AFTER {
            self.deaths_in_row = 0;
        }
        self.restarts += 1;
        self.deaths_in_row += 1;
        if by_kill {
            // Not its own fault: waiting longer and longer would help nobody. The first step stays, for
            // the kernel's own hand when memory is short.
            self.deaths_in_row = self.deaths_in_row.min(2);
        }
        match self.deaths_in_row {
            1 => Duration::ZERO,
            more => BACK_OFF_FIRST.saturating_mul(1 << (more - 2).min(16)).min(longest),
        }
    }
}
