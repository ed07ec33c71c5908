//! Waiting for several descriptors and a deadline, for processes without a ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Errno, Error};

/// What a descriptor is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// Something to read, or the end.
    Reading,
    /// Room to write, or the end.
    Writing,
}

/// Waits until something happens on one of the descriptors, but no longer than `limit`, and says on which.
/// An interruption counts as nothing happened.
///
/// # Errors
/// Those of poll(2).
pub fn wait(fds: &[(BorrowedFd<'_>, For)], limit: Option<Duration>) -> Result<Vec<bool>, Error> {
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|(fd, wanted)| {
            let flags = match wanted {
                For::Reading => PollFlags::IN,
                For::Writing => PollFlags::OUT,
            };
            PollFd::from_borrowed_fd(*fd, flags)
        })
        .collect();
    // A limit beyond what the kernel counts is as good as none.
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match rustix::event::poll(&mut polled, limit.as_ref()) {
        Ok(_) => Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(errno) => Err(Error::new("wait for", "events", errno)),
    }
}

/// Whether the other end of a stream or of a channel will never write again. What it had written may still be
/// there.
pub fn has_ended(fd: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&fd, PollFlags::RDHUP)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP)
}

/// How many bytes of a pipe nobody has read yet (FIONREAD).
pub fn unread(pipe: impl AsFd) -> usize {
    rustix::io::ioctl_fionread(pipe).map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The time of CLOCK_MONOTONIC, which other processes count by too.
pub fn monotonic() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The processor time this thread has taken.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Whether reading and writing wait. The flag belongs to all copies of the descriptor, but not to the other
/// end of a pipe or socket.
///
/// # Errors
/// Those of fcntl(2).
pub fn set_blocking(fd: impl AsFd, blocking: bool) -> Result<(), Errno> {
    let mut flags = rustix::fs::fcntl_getfl(&fd)?;
    flags.set(rustix::fs::OFlags::NONBLOCK, !blocking);
    rustix::fs::fcntl_setfl(&fd, flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_happens_is_said_of_the_right_descriptor() {
        let (idle, _writer) = std::io::pipe().unwrap();
        let (busy, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"x").unwrap();
        let fds =
            [(idle.as_fd(), For::Reading), (busy.as_fd(), For::Reading), (writer.as_fd(), For::Writing)];
        assert_eq!(wait(&fds, None).unwrap(), [false, true, true]);
        assert_eq!(wait(&fds[..1], Some(Duration::ZERO)).unwrap(), [false]);
        assert!(monotonic() > Duration::ZERO);
    }
}
