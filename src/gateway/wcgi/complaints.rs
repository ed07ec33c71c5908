//! What modules say on standard error, as lines of the log.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::gateway::lines::{Allowance, Lines};

/// What all runs together may log.
pub type Shared = Arc<Mutex<Allowance>>;

/// The standard error of a run.
#[derive(Debug)]
pub struct Complaints {
    /// Who speaks.
    label: String,
    lines: Lines,
    all: Shared,
}

impl Complaints {
    /// Nothing has been said so far.
    pub fn new(label: String, all: Shared) -> Self {
        Self { label, lines: Lines::new(Instant::now()), all }
    }

    /// Takes some bytes, and logs the lines that are whole.
    pub fn write(&mut self, bytes: &[u8]) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let label = &self.label;
        self.lines.take(bytes, Instant::now(), &mut all, |line| tracing::warn!("{label}: {line}"));
    }

    /// Logs what is left, and how much was not shown.
    pub fn finish(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let label = &self.label;
        self.lines.finish(Instant::now(), &mut all, |line| tracing::warn!("{label}: {line}"));
    }
}
