//! Access log lines waiting to be written together.

use super::access_log::{Form, Lines, Record};

/// Lines of one worker that are not yet on their way.
#[derive(Debug)]
pub struct Batch {
    lines: Lines,
    pending: Vec<u8>,
    count: u64,
    /// The next request's number.
    next: u64,
}

impl Batch {
    /// Lines of this form. Requests are numbered from `first`, which should differ among workers.
    pub fn new(form: Form, first: u64) -> Self {
        Self { lines: Lines::new(form), pending: Vec::new(), count: 0, next: first }
    }

    /// A number for a request.
    pub fn number(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// Adds a line.
    pub fn write(&mut self, record: &Record) {
        self.lines.write(&mut self.pending, record);
        self.count += 1;
    }

    /// Bytes that wait.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Takes what waits; `spare` is filled next.
    pub fn take(&mut self, spare: Vec<u8>) -> Vec<u8> {
        self.count = 0;
        std::mem::replace(&mut self.pending, spare)
    }

    /// Drops what waits; how many lines that were.
    pub fn discard(&mut self) -> u64 {
        self.pending.clear();
        std::mem::take(&mut self.count)
    }
}
