//! Signals as something to be read, instead of something that interrupts.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use super::process::last_errno;
use super::{Errno, Error};

/// A signal the supervisor acts upon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
    /// SIGUSR1.
    Reopen,
    /// SIGUSR2.
    Replace,
    /// SIGCHLD.
    Child,
}

/// Which signals mean what.
const MEANINGS: &[(i32, Signal)] = &[
    (libc::SIGTERM, Signal::Stop),
    (libc::SIGINT, Signal::Stop),
    (libc::SIGHUP, Signal::Reload),
    (libc::SIGUSR1, Signal::Reopen),
    (libc::SIGUSR2, Signal::Replace),
    (libc::SIGCHLD, Signal::Child),
];

/// The signals of [`Signal`], blocked and queued for reading.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks them from now on, also across exec, so that none is lost while the program is replaced.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn block() -> Result<Self, Error> {
        let set = set_of(MEANINGS.iter().map(|(number, _)| *number));
        mask(libc::SIG_BLOCK, &set)?;
        // Whoever started us may have had it ignored, which makes children vanish unseen.
        // SAFETY: the effect is a constant of libc, so no handler of ours runs.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::new("open", "a descriptor for signals", last_errno()));
        }
        // SAFETY: just opened, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal, if one came. The same signal sent several times before it is read is one.
    pub fn take(&mut self) -> Option<Signal> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        loop {
            match rustix::io::read(&self.0, &mut info[..]) {
                Ok(length) if length == info.len() => {
                    let number = i32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
                    return MEANINGS.iter().find(|(known, _)| *known == number).map(|(_, signal)| *signal);
                }
                Err(Errno::INTR) => {}
                _ => return None,
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// In a forked child: ignores the signals that are meant for the supervisor, and SIGPIPE, which the failed
/// write says as well; lets SIGCHLD have its default effect, and blocks none.
///
/// # Errors
/// Those of sigprocmask(2).
pub fn leave_to_parent() -> Result<(), Error> {
    for number in MEANINGS.iter().map(|(number, _)| *number).chain([libc::SIGPIPE]) {
        let effect = if number == libc::SIGCHLD { libc::SIG_DFL } else { libc::SIG_IGN };
        // SAFETY: both effects are constants of libc, so no handler of ours runs.
        unsafe { libc::signal(number, effect) };
    }
    mask(libc::SIG_SETMASK, &set_of([]))
}

/// SIGCHLD, to be read by a process that starts programs of others.
#[derive(Debug)]
pub struct Children(OwnedFd);

impl Children {
    /// Gives every signal its default effect and blocks them all, so that none of them reaches a program
    /// between its making and its beginning; those that cannot be blocked, kill.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn block_all() -> Result<Self, Error> {
        // An action of the kernel: effect, flags, a function nobody calls, mask.
        let default = [0_u64; 4];
        for number in 1..=libc::SIGRTMAX() {
            // SAFETY: the default action has no handler. libc would refuse the two signals that it keeps for
            // itself, which may have been ignored by whoever started us; those whose effect is fixed, the
            // kernel refuses.
            unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    number,
                    default.as_ptr(),
                    std::ptr::null_mut::<u64>(),
                    8,
                )
            };
        }
        let all = full_set();
        mask(libc::SIG_SETMASK, &all)?;
        let set = set_of([libc::SIGCHLD]);
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::new("open", "a descriptor for signals", last_errno()));
        }
        // SAFETY: just opened, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Whether a child has ended since this was asked before.
    pub fn take(&mut self) -> bool {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        matches!(rustix::io::read(&self.0, &mut info[..]), Ok(length) if length > 0)
    }
}

impl AsFd for Children {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks no signal any more: for a child that is about to execute, or to be something else.
pub fn unblock() {
    // Refuses only what is no mask.
    let _ = mask(libc::SIG_SETMASK, &set_of([]));
}

fn full_set() -> libc::sigset_t {
    let mut set = set_of([]);
    // SAFETY: the set is initialised.
    unsafe { libc::sigfillset(&mut set) };
    set
}

fn mask(how: i32, set: &libc::sigset_t) -> Result<(), Error> {
    // SAFETY: the set is initialised and the old mask is not asked for.
    match unsafe { libc::sigprocmask(how, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(Error::new("block", "signals", last_errno())),
    }
}

fn set_of(numbers: impl IntoIterator<Item = i32>) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is to memory for one set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for number in numbers {
        // SAFETY: the set was made empty above, which initialises it.
        unsafe { libc::sigaddset(set.as_mut_ptr(), number) };
    }
    // SAFETY: as above.
    unsafe { set.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signals sent to this one thread, which alone blocks them.
    #[test]
    fn signals_are_read_once_and_in_any_number() {
        let mut signals = Signals::block().expect("a descriptor");
        assert_eq!(signals.take(), None);
        for number in [libc::SIGUSR1, libc::SIGUSR1, libc::SIGUSR2] {
            // SAFETY: raises a signal that this thread blocks.
            assert_eq!(unsafe { libc::raise(number) }, 0);
        }
        assert_eq!(signals.take(), Some(Signal::Reopen));
        assert_eq!(signals.take(), Some(Signal::Replace));
        assert_eq!(signals.take(), None);
    }
}
