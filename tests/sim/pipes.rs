//! Pipes in memory, between the worker and scripts.

use std::collections::VecDeque;

use httpd::sys::Errno;

use crate::world::World;

/// A pipe. The worker's end and the script's are counted apart.
#[derive(Debug, Default)]
pub struct Pipe {
    pub bytes: VecDeque<u8>,
    pub capacity: usize,
    /// The worker writes.
    pub is_input: bool,
    pub ours_open: bool,
    /// Descriptors of the script's end: the worker's until it has sent it, then the script's and those of
    /// whatever the script left running.
    pub theirs_open: usize,
    /// Whatever is read is printed anew at once.
    floods: bool,
}

impl Pipe {
    fn has_reader(&self) -> bool {
        if self.is_input { self.theirs_open > 0 } else { self.ours_open }
    }

    fn has_writer(&self) -> bool {
        if self.is_input { self.ours_open } else { self.theirs_open > 0 }
    }

    /// Whether a poll for reading is over.
    pub fn is_readable(&self) -> bool {
        !self.bytes.is_empty() || !self.has_writer()
    }

    /// Whether a poll for writing is over.
    pub fn is_writable(&self) -> bool {
        self.bytes.len() < self.capacity || !self.has_reader()
    }

    pub fn read(&mut self, length: usize) -> Result<Vec<u8>, Errno> {
        if self.bytes.is_empty() && self.has_writer() {
            return Err(Errno::AGAIN);
        }
        let count = length.min(self.bytes.len());
        let taken = crate::net::take(&mut self.bytes, count);
        if self.floods {
            self.flood();
        }
        Ok(taken)
    }

    /// Fills it, and keeps it full.
    pub fn flood(&mut self) {
        self.floods = true;
        self.bytes.resize(self.capacity, b'y');
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        if !self.has_reader() {
            return Err(Errno::PIPE);
        }
        match self.capacity - self.bytes.len() {
            0 => Err(Errno::AGAIN),
            room => {
                let count = room.min(bytes.len());
                self.bytes.extend(&bytes[..count]);
                Ok(count)
            }
        }
    }
}

impl World {
    pub fn make_pipe(&mut self, is_input: bool) -> usize {
        let capacity = *self.rng.pick(&[70, 900, 65_536]);
        let pipe = Pipe { capacity, is_input, ours_open: true, theirs_open: 1, ..Pipe::default() };
        self.pipes.push(pipe);
        self.pipes.len() - 1
    }
}
