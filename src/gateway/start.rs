//! All the spawner is given at birth, and what a worker needs to reach it.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::config::Config;
use crate::observe::names::Counters;
use crate::sys::process::User;

/// What the spawner of a generation is given.
///
/// It is forked without exec, before the workers; the process is single-threaded, its name is set, and all
/// descriptors of the supervisor but those here and the standard ones are closed. No signal is blocked;
/// INT, TERM, HUP, USR1, USR2 and PIPE are ignored, since they are meant for the supervisor alone: the
/// spawner takes its orders over `channel`, in the words of [`crate::gateway::start::STOP`]. The end of
/// the stream says that the supervisor is gone: stop.
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

/// A worker's end of its connection with the spawner.
#[derive(Debug)]
pub struct Mailbox {
    /// One end of a SEQPACKET pair, non-blocking.
    pub fd: OwnedFd,
    /// The number of the worker's life: no other process of the generation has it.
    pub epoch: u64,
}

/// The order to end what runs and to exit with success.
pub const STOP: &[u8] = b"S";
