//! All a runner is given at birth, and what a worker needs to reach it.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::config::{Config, Mount, MountKind};
use crate::observe::names::Counters;
use crate::sys::process::{self, User};

/// A process that runs for the workers what answers requests. A generation has at most one of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Runner {
    /// Starts programs.
    Spawner,
    /// Runs modules.
    ModuleHost,
}

impl Runner {
    /// All there are, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Spawner, Self::ModuleHost];

    /// Who runs what a mount names.
    pub fn of(mount: &Mount) -> Self {
        match mount.kind {
            MountKind::Process(_) => Self::Spawner,
            MountKind::Module(_) => Self::ModuleHost,
        }
    }

    /// As logs name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spawner => "spawner",
            Self::ModuleHost => "module host",
        }
    }
}

/// What a runner is given.
///
/// It is forked without exec, before the workers; the process is single-threaded, its name is set, and all
/// descriptors of the supervisor but those here and the standard ones are closed. No signal is blocked;
/// INT, TERM, HUP, USR1, USR2 and PIPE are ignored, since they are meant for the supervisor alone: a runner
/// takes its orders over `channel`, in the words of [`crate::gateway::start::STOP`]. The end of the stream
/// says that the supervisor is gone: stop.
#[derive(Debug)]
pub struct Start {
    /// Which generation, from 1.
    pub generation: u64,
    /// The number of this life: no other process of the generation has it.
    pub epoch: u64,
    /// The configuration of its generation.
    pub config: Rc<Config>,
    /// One end of a SEQPACKET pair, non-blocking.
    pub channel: OwnedFd,
    /// The far ends of the workers' mailboxes, by index. The supervisor keeps both ends of each, so that
    /// either side can be forked anew; who begins to live says so with its epoch.
    pub workers: Vec<OwnedFd>,
    /// Whom workers become, and programs unless their mount names another; `None`: nobody changes.
    pub user: Option<User>,
    /// Its counters, on a page the supervisor reads.
    pub counters: Counters,
}

/// A worker's ends of its connections with the runners.
#[derive(Debug)]
pub struct Mailboxes {
    /// One end of a SEQPACKET pair each, non-blocking, in the order of [`Runner::ALL`]; `None` where no site has
    /// anything to run of the kind.
    pub fds: [Option<OwnedFd>; 2],
    /// The number of the worker's life: no other process of the generation has it, and it tells the worker's
    /// index, as [`epoch_after`] makes it.
    pub epoch: u64,
}

/// The least epoch after `last` that a life of the worker of this index may have, of so many workers.
///
/// A worker says itself from which epoch its messages are. Since the numbers of each index are its own, one that
/// was taken over cannot speak for another, not even for one that is still to come.
///
/// # Panics
/// When there is no worker of that index.
pub fn epoch_after(last: u64, index: u32, workers: usize) -> u64 {
    let (index, workers) = (u64::from(index), workers as u64);
    assert!(index < workers, "an index is that of a worker");
    let first = last + 1;
    first + (index + workers - first % workers) % workers
}

/// Whether an epoch may be one of the worker of this index.
pub fn is_epoch_of(epoch: u64, index: usize, workers: usize) -> bool {
    epoch.checked_rem(workers as u64) == Some(index as u64)
}

/// How every UNIQUE_ID of a generation begins. What follows is made of a worker's epoch and its number for the
/// request, which it uses for one runner only.
pub fn unique_prefix(generation: u64) -> String {
    format!("{}-{generation}-", process::parent_pid())
}

/// The order to end what runs and to exit with success.
pub const STOP: &[u8] = b"S";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_rise_and_tell_whose_they_are() {
        let mut last = 0;
        for index in [0, 1, 2, 2, 1, 0, 0, 2] {
            let epoch = epoch_after(last, index, 3);
            assert!(epoch > last && epoch <= last + 3, "{last}, {index}: {epoch}");
            for other in 0..3 {
                assert_eq!(is_epoch_of(epoch, other as usize, 3), other == index);
            }
            last = epoch;
        }
        assert_eq!([epoch_after(0, 0, 1), epoch_after(1, 0, 1)], [1, 2]);
        assert!(!is_epoch_of(1, 0, 0));
    }
}
