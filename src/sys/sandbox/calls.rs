//! System calls by seccomp: what a worker may make, what nobody of ours ever makes.
//!
//! Two filters stand one behind the other, and the harsher answer counts:
//! * **refused**: what is not on a worker's list answers ENOSYS, as a kernel that lacks it would. A C library
//!   that tries a new call then falls back on an old one (EPERM, which some take for final, would not do), and
//!   what was forgotten here costs a feature and not the worker.
//! * **fatal**: calls that have no fallback and no innocent reason, by which an attacker would leave the
//!   process or look into others. They end it with SIGSYS, which the supervisor and the audit log name.
//!
//! Calls without a condition stand in the kernel's bitmap of allowed ones (Linux 5.11) and cost next to nothing; so
//! those of the hot path have none. What io_uring does never passes here: the ring has restrictions of its own.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Which calls a process may make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum List {
    /// Only those of [`WORKER`].
    Worker,
    /// All but [`SYSTEM`], [`ALOOF`] and [`CODE`]: no network, no other program.
    Files,
    /// All but [`SYSTEM`]: scripts inherit it.
    Programs,
    /// Like [`List::Files`], but machine code may be made.
    Modules,
}

/// A call, and when it is meant.
#[derive(Clone, Copy)]
struct Call(i64, When);

/// Whether one argument has to have some value for a call to be meant.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// The argument at this place is one of these.
    One(u8, &'static [u64]),
    /// Of these bits of the argument at this place, these are set.
    Bits(u8, u64, u64),
    /// The argument at this place is the number of this process.
    Own(u8),
}

use When::{Always, Bits, One, Own};

/// All that a worker and its helper thread ask for, found by tracing them through every end-to-end test, and
/// what the C library and the allocator may ask for beside.
#[allow(clippy::unnecessary_cast, reason = "C libraries differ in the type of requests of ioctl(2)")]
const WORKER: &[Call] = &[
    // The ring. It is set up by then.
    Call(libc::SYS_io_uring_enter, Always),
    // Files: roots, directories, contents.
    Call(libc::SYS_openat2, Always),
    Call(libc::SYS_openat, Bits(2, (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64, 0)),
    Call(libc::SYS_close, Always),
    Call(libc::SYS_fstat, Always),
    Call(libc::SYS_newfstatat, Always),
    Call(libc::SYS_statx, Always),
    Call(libc::SYS_fstatfs, Always),
    Call(libc::SYS_getdents64, Always),
    Call(libc::SYS_lseek, Always),
    Call(libc::SYS_read, Always),
    Call(libc::SYS_pread64, Always),
    Call(libc::SYS_preadv2, Always),
    Call(CACHESTAT, Always),
    Call(libc::SYS_sendfile, Always),
    // Logs, whether their reader still takes them, and the bell of the helper thread.
    Call(libc::SYS_ppoll, Always),
    Call(libc::SYS_write, Always),
    Call(libc::SYS_writev, Always),
    Call(libc::SYS_eventfd2, Always),
    // Connections that were accepted, the channel to the supervisor, pipes to programs.
    Call(libc::SYS_accept4, Always),
    Call(libc::SYS_sendto, Always),
    Call(libc::SYS_sendmsg, Always),
    Call(libc::SYS_recvfrom, Always),
    Call(libc::SYS_recvmsg, Always),
    Call(libc::SYS_shutdown, Always),
    Call(libc::SYS_getpeername, Always),
    Call(libc::SYS_getsockname, Always),
    Call(libc::SYS_setsockopt, One(1, &[libc::SOL_TCP as u64, libc::SOL_TLS as u64])),
    Call(libc::SYS_socketpair, One(0, &[libc::AF_UNIX as u64])),
    Call(libc::SYS_pipe2, Always),
    Call(libc::SYS_splice, Always),
    Call(libc::SYS_ioctl, One(1, &[libc::TIOCOUTQ as u64, libc::FIONREAD as u64])),
    Call(
        libc::SYS_fcntl,
        One(
            1,
            &[
                libc::F_DUPFD_CLOEXEC as u64,
                libc::F_GETFD as u64,
                libc::F_SETFD as u64,
                libc::F_GETFL as u64,
                libc::F_SETFL as u64,
                libc::F_SETPIPE_SZ as u64,
            ],
        ),
    ),
    // Memory, of which none is ever machine code.
    Call(libc::SYS_brk, Always),
    Call(libc::SYS_mmap, Bits(2, EXECUTABLE, 0)),
    Call(libc::SYS_mprotect, Bits(2, EXECUTABLE, 0)),
    Call(libc::SYS_mremap, Always),
    Call(libc::SYS_munmap, Always),
    Call(libc::SYS_madvise, Always),
    // Threads, not processes. clone3 has its flags in memory: it does not exist here, so that clone is taken.
    Call(libc::SYS_clone, Bits(0, THREAD, THREAD)),
    Call(libc::SYS_set_robust_list, Always),
    Call(libc::SYS_rseq, Always),
    Call(libc::SYS_futex, Always),
    Call(libc::SYS_sched_yield, Always),
    Call(libc::SYS_sched_getaffinity, Always),
    Call(libc::SYS_prctl, One(0, &[libc::PR_SET_NAME as u64])),
    Call(libc::SYS_exit, Always),
    // Time and chance.
    Call(libc::SYS_clock_gettime, Always),
    Call(libc::SYS_clock_nanosleep, Always),
    Call(libc::SYS_nanosleep, Always),
    Call(libc::SYS_getrandom, Always),
    Call(libc::SYS_restart_syscall, Always),
    // An end in good order, and one by a panic.
    Call(libc::SYS_getpid, Always),
    Call(libc::SYS_gettid, Always),
    Call(libc::SYS_getuid, Always),
    Call(libc::SYS_rt_sigaction, Always),
    Call(libc::SYS_rt_sigprocmask, Always),
    Call(libc::SYS_rt_sigreturn, Always),
    Call(libc::SYS_sigaltstack, Always),
    Call(libc::SYS_tgkill, Own(0)),
    Call(libc::SYS_exit_group, Always),
];

/// The same number on every architecture, like all calls since Linux 5.1.
const CACHESTAT: i64 = 451;

const THREAD: u64 = (libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_FILES) as u64;

/// What changes the system, or looks into other processes past their permissions: for scripts too.
const SYSTEM: &[Call] = &[
    Call(libc::SYS_acct, Always),
    Call(libc::SYS_add_key, Always),
    Call(libc::SYS_adjtimex, Always),
    Call(libc::SYS_bpf, Always),
    Call(libc::SYS_clock_adjtime, Always),
    Call(libc::SYS_clock_settime, Always),
    Call(libc::SYS_delete_module, Always),
    Call(libc::SYS_finit_module, Always),
    Call(libc::SYS_fsconfig, Always),
    Call(libc::SYS_fsmount, Always),
    Call(libc::SYS_fsopen, Always),
    Call(libc::SYS_fspick, Always),
    Call(libc::SYS_init_module, Always),
    Call(libc::SYS_kexec_file_load, Always),
    Call(libc::SYS_kexec_load, Always),
    Call(libc::SYS_keyctl, Always),
    Call(libc::SYS_mount, Always),
    Call(libc::SYS_mount_setattr, Always),
    Call(libc::SYS_move_mount, Always),
    Call(libc::SYS_open_by_handle_at, Always),
    Call(libc::SYS_open_tree, Always),
    Call(libc::SYS_perf_event_open, Always),
    Call(libc::SYS_pivot_root, Always),
    Call(libc::SYS_process_vm_readv, Always),
    Call(libc::SYS_process_vm_writev, Always),
    Call(libc::SYS_ptrace, Always),
    Call(libc::SYS_quotactl, Always),
    Call(libc::SYS_reboot, Always),
    Call(libc::SYS_request_key, Always),
    Call(libc::SYS_setns, Always),
    Call(libc::SYS_settimeofday, Always),
    Call(libc::SYS_swapoff, Always),
    Call(libc::SYS_swapon, Always),
    Call(libc::SYS_umount2, Always),
    Call(libc::SYS_unshare, Always),
    Call(libc::SYS_userfaultfd, Always),
];

/// What no process does that is neither the supervisor nor starts programs.
const ALOOF: &[Call] = &[
    Call(libc::SYS_bind, Always),
    Call(libc::SYS_capset, Always),
    Call(libc::SYS_chroot, Always),
    Call(libc::SYS_connect, Always),
    Call(libc::SYS_execve, Always),
    Call(libc::SYS_execveat, Always),
    Call(libc::SYS_io_uring_setup, Always),
    Call(libc::SYS_listen, Always),
    Call(libc::SYS_mknodat, Always),
    Call(libc::SYS_pidfd_getfd, Always),
    Call(libc::SYS_pidfd_open, Always),
    Call(libc::SYS_setgid, Always),
    Call(libc::SYS_setgroups, Always),
    Call(libc::SYS_setregid, Always),
    Call(libc::SYS_setresgid, Always),
    Call(libc::SYS_setresuid, Always),
    Call(libc::SYS_setreuid, Always),
    Call(libc::SYS_setuid, Always),
    Call(libc::SYS_socket, Always),
];

/// What makes machine code of memory.
const CODE: &[Call] = &[
    Call(libc::SYS_mmap, Bits(2, EXECUTABLE, EXECUTABLE)),
    Call(libc::SYS_mprotect, Bits(2, EXECUTABLE, EXECUTABLE)),
    Call(libc::SYS_pkey_mprotect, Bits(2, EXECUTABLE, EXECUTABLE)),
];

const EXECUTABLE: u64 = libc::PROT_EXEC as u64;

/// Limits this thread and those it starts.
pub(super) fn restrict(list: List) -> Result<(), String> {
    let (fatal, refused) = (SeccompAction::KillProcess, SeccompAction::Errno(libc::ENOSYS as u32));
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let filters = match list {
        List::Worker => vec![
            filter([SYSTEM, ALOOF], SeccompAction::Allow, fatal)?,
            filter([WORKER], refused, SeccompAction::Allow)?,
        ],
        List::Files => vec![
            filter([SYSTEM, ALOOF], SeccompAction::Allow, fatal)?,
            filter([CODE], SeccompAction::Allow, denied)?,
        ],
        List::Modules => vec![filter([SYSTEM, ALOOF], SeccompAction::Allow, fatal)?],
        // Scripts are told no: many ask for what they can do without.
        List::Programs => vec![filter([SYSTEM], SeccompAction::Allow, denied)?],
    };
    filters.iter().try_for_each(|filter| seccompiler::apply_filter(filter).map_err(|error| error.to_string()))
}

/// A program that answers `of_listed` for what is on the lists and `otherwise` for the rest.
fn filter<const N: usize>(
    lists: [&[Call]; N],
    otherwise: SeccompAction,
    of_listed: SeccompAction,
) -> Result<BpfProgram, String> {
    let mut rules = BTreeMap::new();
    for Call(number, when) in lists.into_iter().flatten() {
        let earlier = rules.insert(*number, when.rules()?);
        assert!(earlier.is_none(), "call {number} stands on the lists twice");
    }
    let architecture = std::env::consts::ARCH.try_into().map_err(|error| format!("{error}"))?;
    let filter = SeccompFilter::new(rules, otherwise, of_listed, architecture);
    filter.and_then(BpfProgram::try_from).map_err(|error| error.to_string())
}

impl When {
    fn rules(self) -> Result<Vec<SeccompRule>, String> {
        let rule = |place, operator, value| {
            SeccompCondition::new(place, SeccompCmpArgLen::Dword, operator, value)
                .and_then(|condition| SeccompRule::new(vec![condition]))
                .map_err(|error| error.to_string())
        };
        match self {
            Always => Ok(Vec::new()),
            One(place, values) => values.iter().map(|&value| rule(place, SeccompCmpOp::Eq, value)).collect(),
            Bits(place, mask, value) => Ok(vec![rule(place, SeccompCmpOp::MaskedEq(mask), value)?]),
            Own(place) => Ok(vec![rule(place, SeccompCmpOp::Eq, u64::from(std::process::id()))?]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_compiles() {
        let (fatal, allow) = (SeccompAction::KillProcess, SeccompAction::Allow);
        filter([WORKER], fatal.clone(), allow.clone()).expect("the worker's");
        filter([SYSTEM, ALOOF], allow, fatal).expect("the others'");
    }

    #[test]
    fn nothing_is_both_needed_and_fatal() {
        for Call(number, _) in WORKER {
            let is_fatal = SYSTEM.iter().chain(ALOOF).any(|Call(fatal, _)| fatal == number);
            assert!(!is_fatal, "call {number}");
        }
    }
}
