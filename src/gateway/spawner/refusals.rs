//! Why something was not started, for the log. Clients can provoke as many refusals as they like, and a worker that
//! was taken over any message.

use std::time::Instant;

use crate::gateway::lines::Allowance;

/// What was refused, of all programs and all workers.
#[derive(Debug)]
pub struct Refusals(Allowance);

impl Default for Refusals {
    fn default() -> Self {
        Self(Allowance::of_one(Instant::now()))
    }
}

impl Refusals {
    /// Logs one, unless there are too many.
    pub fn log(&mut self, why: &str) {
        match self.0.take(Instant::now()) {
            Some(0) => tracing::warn!("{why}"),
            Some(others) => tracing::warn!("{why} (and {others} others before that are not logged)"),
            None => {}
        }
    }
}
