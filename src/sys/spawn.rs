//! Starting a program: a process that shares our memory until it executes, and is somebody else by then.
//!
//! clone(2) with CLONE_VM and CLONE_VFORK copies nothing, not even page tables, which is most of what fork
//! costs a process that grew out of a server; and since memory is shared, the child tells why it failed by
//! writing it down. posix_spawn(3) does the same, but offers neither limits nor users nor the signal at the
//! parent's death. Between clone and execve the child makes bare system calls only: no allocation, no lock,
//! no call of libc that would carry a change to other threads.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{Gid, Uid};

use super::Errno;
use super::process::{Pid, last_errno};
use super::signals;
use super::user::User;

/// Strings that each end with a zero byte, one after the other, as execve(2) wants them.
#[derive(Clone, Debug, Default)]
pub struct Strings {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

impl Strings {
    /// Adds one, made of parts, up to the first zero byte.
    pub fn push(&mut self, parts: &[&[u8]]) {
        self.starts.push(self.bytes.len());
        for part in parts {
            let end = part.iter().position(|byte| *byte == 0).unwrap_or(part.len());
            self.bytes.extend_from_slice(&part[..end]);
        }
        self.bytes.push(0);
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
    }

    /// Each, without its zero byte.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let bytes = self.bytes.strip_suffix(b"\0");
        bytes.into_iter().flat_map(|bytes| bytes.split(|byte| *byte == 0))
    }

    /// A null pointer follows the last.
    fn pointers(&self) -> Vec<*const libc::c_char> {
        let each = self.starts.iter().map(|start| self.bytes[*start..].as_ptr().cast());
        each.chain([std::ptr::null()]).collect()
    }
}

/// A program, and as whom and within which limits it runs.
#[derive(Debug)]
pub struct Program<'a> {
    /// The file.
    pub file: &'a CStr,
    /// Where it runs.
    pub directory: &'a CStr,
    /// Its arguments, the name first.
    pub arguments: &'a Strings,
    /// Its environment.
    pub environment: &'a Strings,
    /// Standard input, output and error; all other descriptors are closed.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Whom it becomes; `None`: stays.
    pub user: Option<&'a User>,
    /// Its file mode mask.
    pub umask: u32,
    /// What it may use.
    pub limits: &'a Limits,
    /// Whether its files may give it privileges.
    pub gain_privileges: bool,
}

/// What a program may use; `None`: what we may.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Seconds of processor time.
    pub cpu: Option<u64>,
    /// Bytes of address space.
    pub memory: Option<u64>,
    /// Open descriptors.
    pub files: Option<u64>,
    /// Processes of its user.
    pub processes: Option<u64>,
}

/// What a program that sets no limit of its own expects: select(2) can name no more, and those that close
/// every descriptor there could be take as long as there are many. The hard limit stays.
const FILES_USUAL: u64 = 1024;

/// Why a program was not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed {
    /// What was being done, as a verb phrase.
    pub step: &'static str,
    /// The kernel's reason.
    pub errno: Errno,
}

/// The stack of children until they execute: they make system calls, a few frames deep.
const STACK_BYTES: usize = 64 << 10;

/// Memory for the stack of one child after the other.
#[derive(Debug)]
pub struct Stack(Vec<u128>);

impl Default for Stack {
    fn default() -> Self {
        Self(vec![0; STACK_BYTES / size_of::<u128>()])
    }
}

/// What the child reads, and where it writes what went wrong.
struct Plan<'a> {
    program: &'a Program<'a>,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    groups: Vec<Gid>,
    /// Written by the child before it exits, read when it is gone.
    failed: Option<Failed>,
}

/// Starts a program in a session and process group of its own, with every signal at its default, which is
/// killed when this process dies. Returns when it executes; the caller must have [all signals
/// blocked](signals::Children::block_all) and a single thread.
///
/// # Errors
/// What the child, or its making, failed at.
pub fn start(program: &Program, stack: &mut Stack) -> Result<Pid, Failed> {
    let groups = program.user.map_or(&[][..], |user| &user.groups);
    let mut plan = Plan {
        argv: program.arguments.pointers(),
        envp: program.environment.pointers(),
        groups: groups.iter().map(|group| Gid::from_raw(*group)).collect(),
        program,
        failed: None,
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let top = stack.0.as_mut_ptr_range().end;
    // SAFETY: the stack is exclusively borrowed and aligned to 16 bytes at its upper end, from which it grows
    // down; CLONE_VFORK suspends this thread, the only one, until the child has executed or exited, so stack
    // and plan outlive the child's use of them and nobody else touches them meanwhile.
    let child = unsafe { libc::clone(child, top.cast(), flags, (&raw mut plan).cast()) };
    let failed = |step, errno| Failed { step, errno };
    // Numbers below zero are no processes.
    let pid = Pid::from_raw(child.max(0)).ok_or_else(|| failed("make a process", last_errno()))?;
    match plan.failed {
        None => Ok(pid),
        Some(failed) => {
            // It exits at once.
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            Err(failed)
        }
    }
}

/// The child. Shares our memory: what it writes there stays.
extern "C" fn child(plan: *mut c_void) -> c_int {
    // SAFETY: `start` passes its plan, which outlives the child, and waits.
    let plan = unsafe { &mut *plan.cast::<Plan>() };
    plan.failed = Some(prepare(plan).map_or_else(|failed| failed, |()| execute(plan)));
    127
}

fn prepare(plan: &Plan) -> Result<(), Failed> {
    let program = plan.program;
    let step = |step| move |errno| Failed { step, errno };
    rustix::process::setsid().map_err(step("begin a session"))?;
    let [input, output, error] = program.stdio;
    put(input, 0).map_err(step("set up standard input"))?;
    put(output, 1).map_err(step("set up standard output"))?;
    put(error, 2).map_err(step("set up standard error"))?;
    close_others().map_err(step("close descriptors"))?;
    limit(program.limits).map_err(step("set limits"))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(program.umask));
    if let Some(user) = program.user {
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        rustix::thread::set_thread_groups(&plan.groups).map_err(step("become its user"))?;
        rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(step("become its user"))?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(step("become its user"))?;
    }
    if !program.gain_privileges {
        rustix::thread::set_no_new_privs(true).map_err(step("give up privileges"))?;
    }
    // After the change of user, which would undo it.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(step("tie it to its parent"))?;
    rustix::process::chdir(program.directory).map_err(step("enter its directory"))
}

/// Never returns when it succeeds.
fn execute(plan: &Plan) -> Failed {
    signals::unblock();
    // SAFETY: both arrays end with a null pointer, and their strings, each with a zero byte at its end, are
    // borrowed by the plan.
    unsafe { libc::execve(plan.program.file.as_ptr(), plan.argv.as_ptr(), plan.envp.as_ptr()) };
    Failed { step: "execute", errno: last_errno() }
}

/// Puts a copy of a descriptor in the place of another.
fn put(fd: BorrowedFd, place: c_int) -> Result<(), Errno> {
    // SAFETY: replaces one of the standard three in the child's own table, and only there.
    match unsafe { libc::dup2(fd.as_raw_fd(), place) } {
        -1 => Err(last_errno()),
        _ => Ok(()),
    }
}

fn close_others() -> Result<(), Errno> {
    // SAFETY: closes descriptors of the child's own table only, since it was cloned without CLONE_FILES; it
    // uses none of them any more.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn limit(limits: &Limits) -> Result<(), Errno> {
    let set = |resource, current: u64, maximum: Option<u64>| {
        let hard = rustix::process::getrlimit(resource).maximum;
        let least = |one: u64| hard.map_or(one, |hard| one.min(hard));
        let maximum = maximum.map_or(hard, |maximum| Some(least(maximum)));
        rustix::process::setrlimit(resource, Rlimit { current: Some(least(current)), maximum })
    };
    if let Some(seconds) = limits.cpu {
        // SIGXCPU first, which can be caught, SIGKILL a second later.
        set(Resource::Cpu, seconds, Some(seconds + 1))?;
    }
    if let Some(bytes) = limits.memory {
        set(Resource::As, bytes, Some(bytes))?;
    }
    match limits.files {
        Some(files) => set(Resource::Nofile, files, Some(files))?,
        None => set(Resource::Nofile, FILES_USUAL, None)?,
    }
    if let Some(processes) = limits.processes {
        set(Resource::Nproc, processes, Some(processes))?;
    }
    // A dump would lie among the scripts.
    set(Resource::Core, 0, None)
}
