//! The one thread beside a worker: what would stall the worker and has no ring operation.
//!
//! Started with the first job, so after the worker gave up its privileges, which a thread inherits.
//! Answers wait in a channel; an eventfd, polled through the ring, says that there are some.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use rustix::event::EventfdFlags;
use rustix::fs::RawDir;
use zeroize::Zeroizing;

use super::{Computation, Done, Fd, Job, Token, direct};
use crate::sys::Errno;
use crate::sys::file::{Name, Symlinks};

/// A job in a form that may go to another thread.
enum Task {
    Verify { password: Zeroizing<Vec<u8>>, hash: String },
    List { directory: OwnedFd, symlinks: Symlinks, names_max: usize },
    Compute(Computation),
}

/// An answer, for the completion.
pub(super) type Answer = (Token, Result<Done, Errno>);

/// The worker's end of the thread.
#[derive(Debug)]
pub(super) struct Helper {
    tasks: Sender<(Token, Task)>,
    answers: Receiver<Answer>,
    bell: Arc<OwnedFd>,
    /// Jobs whose answers are not taken yet.
    pub(super) pending: usize,
    /// Whether a poll of the bell is in flight.
    pub(super) listening: bool,
}

impl Helper {
    /// Starts the thread.
    pub(super) fn start() -> Result<Self, Errno> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bell = Arc::new(bell);
        let (tasks, inbox) = channel::<(Token, Task)>();
        let (outbox, answers) = channel();
        let ring = Arc::clone(&bell);
        let thread = move || {
            for (token, task) in inbox {
                if outbox.send((token, work(task))).is_err() {
                    return;
                }
                // EAGAIN would mean 2^64 - 2 rings unheard.
                let _ = rustix::io::write(&*ring, &1_u64.to_ne_bytes());
            }
        };
        Builder::new().name("helper".into()).spawn(thread).map_err(super::uring::errno)?;
        Ok(Self { tasks, answers, bell, pending: 0, listening: false })
    }

    /// Hands a job over.
    pub(super) fn give(&mut self, token: Token, job: Job) -> Result<(), Errno> {
        let task = match job {
            Job::VerifyPassword { password, hash } => {
                Task::Verify { password: Zeroizing::new(password), hash }
            }
            Job::List { directory, symlinks, names_max } => {
                let directory = rustix::io::fcntl_dupfd_cloexec(direct::borrow(directory.fd()), 0)?;
                Task::List { directory, symlinks, names_max }
            }
            Job::Compute(computation) => Task::Compute(computation),
        };
        assert!(self.tasks.send((token, task)).is_ok(), "the helper thread ends only with the worker");
        self.pending += 1;
        Ok(())
    }

    /// What rings when there is an answer.
    pub(super) fn bell(&self) -> Fd {
        Fd(self.bell.as_raw_fd())
    }

    /// Silences the bell and takes the answers.
    pub(super) fn take(&mut self, mut each: impl FnMut(Answer)) {
        let mut count = [0; 8];
        // EAGAIN: an earlier ring was answered together with this one.
        let _ = rustix::io::read(&*self.bell, &mut count);
        while let Ok(answer) = self.answers.try_recv() {
            self.pending -= 1;
            each(answer);
        }
    }
}

fn work(task: Task) -> Result<Done, Errno> {
    match task {
        Task::Verify { password, hash } => {
            // A hash that cannot be read was refused with the configuration; here it matches nothing.
            Ok(Done::Verified(bcrypt::verify(password, &hash).unwrap_or(false)))
        }
        Task::List { directory, symlinks, names_max } => list(directory, symlinks, names_max),
        Task::Compute(computation) => Ok(Done::Computed(computation.run())),
    }
}

fn list(directory: OwnedFd, symlinks: Symlinks, names_max: usize) -> Result<Done, Errno> {
    let directory = direct::reopen_directory(directory.as_fd())?;
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut entries = RawDir::new(directory.as_fd(), buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if names.len() == names_max {
            return Ok(Done::Listed { names, truncated: true });
        }
        let facts = direct::look_at(directory.as_fd(), name, symlinks).ok();
        names.push(Name { name: name.to_bytes().to_vec(), facts });
    }
    Ok(Done::Listed { names, truncated: false })
}
