//! The process itself: the children it forks, what they may, where they run, what they are called.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::RawFd;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::CpuSet;

pub use rustix::process::Pid;

pub use super::user::User;
use super::{Errno, Error};

/// Which side of a fork one is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fork {
    /// The parent; the child has this number.
    Parent(Pid),
    /// The child.
    Child,
}

/// How a child ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl Ended {
    /// Whether it was killed by SIGKILL: by somebody's hand or for want of memory, not by its own fault.
    pub fn is_by_kill(self) -> bool {
        self == Self::Killed(Signal::KILL.as_raw())
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Exited(code) => write!(formatter, "exit code {code}"),
            Self::Killed(signal) => match signal_name(signal) {
                Some(name) => write!(formatter, "signal {signal} ({name})"),
                None => write!(formatter, "signal {signal}"),
            },
        }
    }
}

/// The names of the signals that end a process by accident or by somebody's hand.
fn signal_name(signal: i32) -> Option<&'static str> {
    const NAMES: &[(Signal, &str)] = &[
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
        (Signal::SYS, "SIGSYS"),
    ];
    NAMES.iter().find(|(known, _)| known.as_raw() == signal).map(|(_, name)| *name)
}

/// Forks. The child is a copy with every lock in the state it has now, which is only sound while no
/// other thread can hold one: the process must be single-threaded.
///
/// # Errors
/// Those of fork(2).
///
/// # Panics
/// When the process has a second thread.
pub fn fork() -> Result<Fork, Error> {
    assert!(threads().is_none_or(|count| count == 1), "a process with several threads must not fork");
    // SAFETY: no other thread exists, so the child finds no lock held and no value half written.
    match unsafe { libc::fork() } {
        0 => Ok(Fork::Child),
        child => match Pid::from_raw(child.max(0)) {
            Some(pid) => Ok(Fork::Parent(pid)),
            None => Err(Error::new("fork", "a process", last_errno())),
        },
    }
}

/// How many threads this process has; `None` where /proc is not mounted.
fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

/// This process.
pub fn own_pid() -> Pid {
    rustix::process::getpid()
}

/// The number of the process that made this one; 0 where that is in another namespace.
pub fn parent_pid() -> i32 {
    rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get())
}

/// Takes the ending of any child, with the processor time that it and the children it waited for took;
/// `None` when none has ended.
pub fn reap_any() -> Option<(Pid, Ended, Duration)> {
    let mut status = 0;
    // SAFETY: all zeros is a usage of nothing.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values of ours.
    let pid = unsafe { libc::wait4(-1, &mut status, libc::WNOHANG, &mut usage) };
    let pid = Pid::from_raw(pid.max(0))?;
    let time = |time: libc::timeval| {
        let whole = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default());
        whole + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or_default())
    };
    let ended = match libc::WIFSIGNALED(status) {
        true => Ended::Killed(libc::WTERMSIG(status)),
        false => Ended::Exited(libc::WEXITSTATUS(status)),
    };
    Some((pid, ended, time(usage.ru_utime) + time(usage.ru_stime)))
}

/// Has every descendant that loses its parent become a child of this process, instead of process 1.
///
/// # Errors
/// Those of prctl(2).
pub fn adopt_orphans() -> Result<(), Error> {
    rustix::process::set_child_subreaper(Some(own_pid()))
        .map_err(|errno| Error::new("adopt", "orphans of programs", errno))
}

/// Gives up capabilities that programs would inherit.
pub fn keep_capabilities_from_programs() {
    // Older kernels have none of these.
    let _ = rustix::thread::clear_ambient_capability_set();
}

/// How a process is told to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kill {
    /// By SIGTERM.
    Gently,
    /// By SIGKILL.
    Surely,
}

impl Kill {
    fn signal(self) -> Signal {
        match self {
            Self::Gently => Signal::TERM,
            Self::Surely => Signal::KILL,
        }
    }
}

/// Ends the processes of a group; whether there are any.
pub fn end_group(leader: Pid, how: Kill) -> bool {
    rustix::process::kill_process_group(leader, how.signal()) != Err(Errno::SRCH)
}

/// Whether a group has processes, those that were not reaped among them. Its number is no other's while it has.
pub fn has_group(leader: Pid) -> bool {
    rustix::process::test_kill_process_group(leader) != Err(Errno::SRCH)
}

/// Ends a process by number. The number may be another's by now unless it is a child that was not reaped.
pub fn end(process: Pid, how: Kill) {
    let _ = rustix::process::kill_process(process, how.signal());
}

/// Kills a child that was not reaped yet, so that the number is still its own.
pub fn kill(child: Pid) {
    // The only failure is that it has just ended by itself.
    let _ = rustix::process::kill_process(child, Signal::KILL);
}

/// Raises the soft limit of open descriptors to the hard one and returns it.
///
/// # Errors
/// Those of setrlimit(2).
pub fn raise_descriptor_limit() -> Result<Option<u64>, Error> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(Resource::Nofile, raised)
        .map_err(|errno| Error::new("raise", "the limit of open descriptors", errno))?;
    Ok(limit.maximum)
}

/// Closes every descriptor but `keep` and the standard three.
///
/// To be called in a fresh child only: the values that own those descriptors in this process's copy of
/// its parent's memory must never be dropped.
///
/// # Errors
/// Those of close_range(2), which is in every kernel since 5.9.
pub fn close_all_but(keep: impl IntoIterator<Item = RawFd>) -> Result<(), Error> {
    let kept: BTreeSet<RawFd> = keep.into_iter().chain(0..=2).collect();
    let mut first = 0;
    for fd in kept.into_iter().chain([RawFd::MAX]) {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = fd.saturating_add(1);
    }
    Ok(())
}

fn close_range(first: RawFd, last: RawFd) -> Result<(), Error> {
    // SAFETY: the caller of `close_all_but` vouches that nothing in this process uses them any more.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(Error::new("close", "inherited descriptors", last_errno())),
    }
}

/// The cores this process may run on, in order.
pub fn cores() -> Vec<u32> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).map(|core| core as u32).collect()
}

/// Has this process run on one core only.
///
/// # Errors
/// Those of sched_setaffinity(2).
pub fn pin(core: u32) -> Result<(), Error> {
    let refused = |errno| Error::new("pin to", format!("core {core}"), errno);
    if core as usize >= CpuSet::MAX_CPU {
        return Err(refused(Errno::INVAL));
    }
    let mut set = CpuSet::new();
    set.set(core as usize);
    rustix::thread::sched_setaffinity(None, &set).map_err(refused)
}

/// Has this process, and the threads it will make, run only when nobody else wants the processor or the disk.
/// What of this the system refuses is gone without: it is politeness, not need.
pub fn be_idle() {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    const IOPRIO_CLASS_IDLE: libc::c_int = 3 << 13;
    // Both: a scheduler of another class than SCHED_IDLE's may look at the nice value alone.
    let _ = rustix::process::setpriority_process(None, 19);
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live through the call, which reads them only.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    // SAFETY: numbers only. The C library has no wrapper of it.
    unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE) };
}

/// Names the process, for ps and top; the kernel keeps 15 bytes.
pub fn rename(name: &str) {
    let bytes: Vec<u8> = name.bytes().filter(|&byte| byte != 0).take(15).collect();
    if let Ok(name) = CString::new(bytes) {
        // A name is only for people: without it everything works.
        let _ = rustix::thread::set_name(&name);
    }
}

/// From now on no exec can gain privileges, and nobody but root can trace this process, read its
/// memory or have it dump core: it may hold keys.
///
/// # Errors
/// Those of prctl(2).
pub fn confine() -> Result<(), Error> {
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| Error::new("give up", "gaining privileges", errno))?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(|errno| Error::new("forbid", "dumps of the process", errno))
}

/// Replaces the program, keeping the process: its number, children, blocked signals and all
/// descriptors that are not close-on-exec. Returns only if that failed.
pub fn replace(program: &CStr, arguments: &[CString], environment: &[CString]) -> Error {
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (argv, envp) = (pointers(arguments), pointers(environment));
    // SAFETY: both arrays end with a null pointer and point to strings that outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    Error::new("execute", program.to_string_lossy(), last_errno())
}

/// Why the last call of libc failed.
pub(super) fn last_errno() -> Errno {
    let code = std::io::Error::last_os_error().raw_os_error();
    code.map_or(Errno::IO, Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_read_well() {
        assert_eq!(Ended::Exited(3).to_string(), "exit code 3");
        assert_eq!(Ended::Killed(9).to_string(), "signal 9 (SIGKILL)");
        assert_eq!(Ended::Killed(64).to_string(), "signal 64");
        assert!(Ended::Killed(9).is_by_kill() && !Ended::Killed(11).is_by_kill());
    }

    #[test]
    fn some_core_is_ours_and_a_core_nobody_has_is_refused() {
        assert!(!cores().is_empty());
        assert_eq!(pin(u32::MAX).expect_err("no such core").errno, Errno::INVAL);
    }

    #[test]
    fn replacing_by_nothing_fails() {
        let error = replace(c"/nonexistent/httpd", &[], &[]);
        assert_eq!(
            error.to_string(),
            "cannot execute /nonexistent/httpd: No such file or directory (os error 2)"
        );
    }
}
