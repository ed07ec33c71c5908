//! Standard error of all programs, read as it comes, so that no program ever waits for its reader, and logged
//! by line.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::gateway::lines::{Allowance, Lines};
use crate::sys::process::Pid;
use crate::sys::wait::{self, For};

/// Read at once: what a pipe holds.
const PIECE_BYTES: usize = 64 << 10;

/// Pieces read of a program that has ended: what a pipe holds that was made as large as one may be
/// (fs.pipe-max-size, 1 MiB by default).
const LAST_PIECES_MAX: usize = 16;

/// All pipes that may still be written to, by programs or by what they left behind.
#[derive(Debug)]
pub struct Voices {
    each: Vec<Voice>,
    /// What they may log together.
    all: Allowance,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Voice {
    pipe: File,
    pid: Pid,
    /// How its lines begin.
    speaker: String,
    lines: Lines,
}

impl Default for Voices {
    fn default() -> Self {
        Self { each: Vec::new(), all: Allowance::of_all(Instant::now()), buffer: vec![0; PIECE_BYTES] }
    }
}

impl Voices {
    /// Listens to a program from now on.
    pub fn add(&mut self, pipe: OwnedFd, pid: Pid, name: &str, unique: &str) {
        let speaker = format!("{name} (pid {}, request {unique})", pid.as_raw_nonzero());
        let lines = Lines::new(Instant::now());
        self.each.push(Voice { pipe: File::from(pipe), pid, speaker, lines });
    }

    /// To be waited for.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.each.iter().map(|voice| voice.pipe.as_fd())
    }

    /// Reads once from each that `speaks`, and lets go of those that ended.
    pub fn hear(&mut self, speaks: &[bool]) {
        let mut speaks = speaks.iter();
        let (buffer, all) = (&mut self.buffer, &mut self.all);
        self.each.retain_mut(|voice| match speaks.next() {
            Some(true) => voice.read(buffer, all),
            _ => true,
        });
    }

    /// Reads what a program that has ended still had to say. Its pipe is kept while others hold it, who may go
    /// on writing for as long as they like: they are heard in their turn.
    pub fn last_words(&mut self, pid: Pid) {
        let Some(at) = self.each.iter().rposition(|voice| voice.pid == pid) else { return };
        let voice = &mut self.each[at];
        for _ in 0..LAST_PIECES_MAX {
            if !voice.has_more() {
                return;
            }
            if !voice.read(&mut self.buffer, &mut self.all) {
                self.each.remove(at);
                return;
            }
        }
    }
}

impl Voice {
    fn has_more(&self) -> bool {
        let happened = wait::wait(&[(self.pipe.as_fd(), For::Reading)], Some(Duration::ZERO));
        happened.is_ok_and(|happened| happened == [true])
    }

    /// Reads once; whether there may be more one day.
    fn read(&mut self, buffer: &mut [u8], all: &mut Allowance) -> bool {
        let speaker = &self.speaker;
        let write = |line: &str| tracing::warn!("{speaker}: {line}");
        match self.pipe.read(buffer) {
            Ok(length) if length > 0 => {
                self.lines.take(&buffer[..length], Instant::now(), all, write);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => true,
            _ => {
                self.lines.finish(Instant::now(), all, write);
                false
            }
        }
    }
}
