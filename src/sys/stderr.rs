//! Standard error, written to without waiting for whoever reads it.

use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::wait::{For, wait};
use super::{Errno, pass};

/// What standard error leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A pipe, opened anew by us, so that not waiting is a matter of ours alone.
    Pipe,
    /// A socket, as of the journal.
    Socket,
    /// A file, a terminal, or a pipe that we may not open.
    Other,
}

/// The most that a pipe takes as a whole or not at all (PIPE_BUF).
pub const WHOLE_BYTES_MAX: usize = 4096;

/// Has nobody be waited for, as far as that is possible. Descriptor 2 itself is replaced, which is what children
/// inherit. Its flag is not set in place: the pipe would then not wait for others either who have it from the
/// same hand, such as the shell that started us.
pub fn prepare() -> Kind {
    let stderr = std::io::stderr();
    let kind = rustix::fs::fstat(&stderr).map(|facts| FileType::from_raw_mode(facts.st_mode));
    match kind {
        Ok(FileType::Socket) => Kind::Socket,
        Ok(FileType::Fifo) => {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(CWD, "/proc/self/fd/2", flags, Mode::empty());
            match opened.is_ok_and(|pipe| becomes_stderr(&pipe)) {
                true => Kind::Pipe,
                false => Kind::Other,
            }
        }
        _ => Kind::Other,
    }
}

fn becomes_stderr(pipe: &OwnedFd) -> bool {
    // SAFETY: numbers only. That descriptor 2 is replaced is what standard error is for: nobody owns it.
    unsafe { libc::dup2(pipe.as_raw_fd(), libc::STDERR_FILENO) == libc::STDERR_FILENO }
}

/// Writes a line of at most [`WHOLE_BYTES_MAX`].
///
/// # Errors
/// EAGAIN when there is no room for it, and those of write(2).
pub fn write(kind: Kind, line: &[u8]) -> Result<(), Errno> {
    let stderr = std::io::stderr();
    match kind {
        Kind::Socket => return pass::send(&stderr, line, None),
        Kind::Pipe => {}
        // Somebody else may take the room that was there; then it is waited for.
        Kind::Other => match wait(&[(stderr.as_fd(), For::Writing)], Some(Duration::ZERO)) {
            Ok(room) if room == [true] => {}
            _ => return Err(Errno::AGAIN),
        },
    }
    let written = stderr.lock().write(line);
    written.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
