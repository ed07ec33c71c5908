//! What went wrong with programs and with what is asked for, for the log. Clients can provoke as many failures as they
//! like, and a worker that was taken over any message.

use std::time::Instant;

use crate::gateway::lines::Allowance;

/// The faults of all programs and all workers.
#[derive(Debug)]
pub struct Faults(Allowance);

impl Default for Faults {
    fn default() -> Self {
        Self(Allowance::of_one(Instant::now()))
    }
}

impl Faults {
    /// Logs one, unless there are too many.
    pub fn log(&mut self, what: &str) {
        match self.0.take(Instant::now()) {
            Some(0) => tracing::warn!("{what}"),
            Some(others) => tracing::warn!("{what} (and {others} others before that are not logged)"),
            None => {}
        }
    }
}
