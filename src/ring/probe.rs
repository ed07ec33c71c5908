//! What this kernel's io_uring offers, and in which words to tell the operator that it offers nothing.
//!
//! [`Failure::explain`] is a function of values alone, so that each sentence can be tested on any
//! machine.

use std::fmt;

use crate::sys::Errno;

/// What was found at set-up, beyond what the server cannot do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Receives take their buffer from a ring shared with the kernel. Otherwise a receive waits by
    /// poll and is made by recv(2): some kernels refuse every such ring.
    pub buffer_ring: bool,
    /// An idle worker is not counted as waiting for a disk (6.15). Otherwise its core shows as 100 %
    /// iowait, which is harmless.
    pub no_iowait: bool,
    /// Operations outside a short list are refused, also to who takes over the worker.
    pub restricted: bool,
    /// cachestat(2) tells whether a part of a file is in memory (6.5). Otherwise its last page
    /// stands for all of it.
    pub cachestat: bool,
    /// Submission queue entries granted.
    pub submissions: u32,
    /// Completion queue entries granted.
    pub completions: u32,
    /// Receive buffers.
    pub leases: u16,
}

const NAMES: [&str; 4] = ["buffer-ring", "no-iowait", "restrictions", "cachestat"];

impl Features {
    /// The yes-or-no features as bits, for a shared page; [`Features::names`] is the way back.
    pub fn bits(&self) -> u64 {
        let flags = [self.buffer_ring, self.no_iowait, self.restricted, self.cachestat];
        flags.iter().enumerate().map(|(position, &flag)| u64::from(flag) << position).sum()
    }

    /// Names of the features in `bits`; unknown bits are passed over.
    pub fn names(bits: u64) -> impl Iterator<Item = &'static str> {
        NAMES
            .into_iter()
            .enumerate()
            .filter(move |(position, _)| bits >> position & 1 == 1)
            .map(|(_, name)| name)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queues {}/{}, {} receive buffers", self.submissions, self.completions, self.leases)?;
        Self::names(self.bits()).try_for_each(|name| write!(f, ", {name}"))
    }
}

/// Which step of the set-up was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// io_uring_setup(2) with the flags that need Linux 6.1.
    Create,
    /// Mapping or registering the receive buffers.
    Buffers,
    /// Registering the limits and restrictions.
    Register,
    /// Enabling what was made.
    Enable,
}

impl Step {
    fn verb(self) -> &'static str {
        match self {
            Step::Create => "create an io_uring",
            Step::Buffers => "set up the receive buffers",
            Step::Register => "configure the io_uring",
            Step::Enable => "enable the io_uring",
        }
    }
}

/// Why there is no ring, with what can be done about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What was being done.
    pub step: Step,
    /// What the kernel said.
    pub errno: Errno,
    /// Contents of /proc/sys/kernel/io_uring_disabled, where there is such a file.
    pub disabled: Option<String>,
}

impl Failure {
    /// Adds to the kernel's refusal what its settings say.
    pub(super) fn new(step: Step, errno: Errno) -> Self {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
        Self { step, errno, disabled }
    }

    /// The cause as far as it can be told, and the way out, as sentences.
    pub fn explain(&self) -> String {
        let setting = self.disabled.as_deref().map(str::trim);
        let text = match (self.errno, setting) {
            (Errno::PERM, Some("2")) => {
                "io_uring is switched off for everyone by kernel.io_uring_disabled = 2. \
                 Allow it with: sysctl -w kernel.io_uring_disabled=0 (keep it in /etc/sysctl.d)"
            }
            (Errno::PERM, Some("1")) => {
                "io_uring is reserved by kernel.io_uring_disabled = 1. Put the server into the \
                 group that kernel.io_uring_group names (SupplementaryGroups= in the unit), give it CAP_SYS_ADMIN, or: \
                 sysctl -w kernel.io_uring_disabled=0"
            }
            (Errno::PERM | Errno::ACCESS, _) => {
                "io_uring is forbidden by a security policy, though not by kernel.io_uring_disabled: mostly the \
                 seccomp profile of a container. Use a profile that allows io_uring_setup, io_uring_enter and \
                 io_uring_register, or start the container with --security-opt seccomp=unconfined"
            }
            (Errno::NOSYS, _) => {
                "there is no io_uring here: the kernel is older than 6.1 or built without it, or the seccomp \
                 profile of a container hides it (--security-opt seccomp=PROFILE chooses another)"
            }
            (Errno::INVAL, _) => "the kernel's io_uring is too old: Linux 6.1 or later is needed",
            (Errno::NOMEM, _) => {
                "the memory limit for locked pages is used up. Raise it: LimitMEMLOCK=64M in the unit, \
                 or ulimit -l 65536"
            }
            (Errno::MFILE | Errno::NFILE, _) => {
                "no descriptor is left. Raise the limit: LimitNOFILE=65536 in the unit, or ulimit -n 65536"
            }
            _ => "this is not expected of any kernel from 6.1 on",
        };
        text.to_string()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}: {}", self.step.verb(), self.errno, self.explain())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_its_cause_and_the_way_out() {
        let cases = [
            (Errno::PERM, Some("2\n"), "kernel.io_uring_disabled = 2", "io_uring_disabled=0"),
            (Errno::PERM, Some("1\n"), "kernel.io_uring_disabled = 1", "kernel.io_uring_group"),
            (Errno::PERM, Some("0\n"), "seccomp", "--security-opt seccomp"),
            (Errno::PERM, None, "seccomp", "io_uring_setup"),
            (Errno::ACCESS, None, "security policy", "io_uring_enter"),
            (Errno::NOSYS, None, "older than 6.1", "--security-opt"),
            (Errno::INVAL, Some("0\n"), "too old", "6.1"),
            (Errno::NOMEM, Some("0\n"), "locked pages", "LimitMEMLOCK"),
            (Errno::MFILE, Some("0\n"), "descriptor", "LimitNOFILE"),
            (Errno::IO, Some("0\n"), "not expected", "6.1"),
        ];
        for (errno, disabled, cause, remedy) in cases {
            let failure = Failure { step: Step::Create, errno, disabled: disabled.map(str::to_string) };
            let text = failure.to_string();
            assert!(text.starts_with("cannot create an io_uring: "), "{text}");
            assert!(text.contains(cause) && text.contains(remedy), "{errno} {disabled:?}: {text}");
        }
    }

    #[test]
    fn bits_and_names_agree() {
        let features = Features {
            buffer_ring: true,
            no_iowait: false,
            restricted: true,
            cachestat: true,
            submissions: 512,
            completions: 4096,
            leases: 1024,
        };
        assert_eq!(features.bits(), 0b1101);
        assert_eq!(
            features.to_string(),
            "queues 512/4096, 1024 receive buffers, buffer-ring, restrictions, cachestat"
        );
        assert_eq!(Features::names(0).count(), 0);
        assert_eq!(Features::names(u64::MAX).count(), NAMES.len());
    }
}
