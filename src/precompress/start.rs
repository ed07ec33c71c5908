//! All the precompressor is given at birth.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use crate::config::Config;
use crate::observe::names::Counters;
use crate::sys::process::User;
use crate::sys::{Error, owner};

/// What the precompressor is given. It is forked without exec when a generation begins to serve, and told
/// to stop when another does.
///
/// The process is single-threaded as yet, its name is set, it can gain no privileges, and all descriptors
/// of the supervisor but `channel` and the standard ones are closed. No signal is blocked; INT, TERM, HUP,
/// USR1, USR2 and PIPE are ignored, since they are meant for the supervisor alone: orders come over
/// `channel`. The end of the stream says that the supervisor is gone: stop.
#[derive(Debug)]
pub struct Start {
    /// Which generation, from 1.
    pub generation: u64,
    /// The configuration of its generation.
    pub config: Rc<Config>,
    /// One end of a SEQPACKET pair, non-blocking.
    pub channel: OwnedFd,
    /// Whom to become before the first file is read; `None`: nobody else.
    pub user: Option<User>,
    /// Its counters, on a page the supervisor reads.
    pub counters: Counters,
}

/// The order to leave everything as it is and to exit with success.
pub const STOP: &[u8] = b"S";

/// The note that the first pass is over, whatever came of it.
pub const READY: &[u8] = b"R";

/// The note that it cannot work, and why, sent before it ends with failure.
pub fn failed(reason: &str) -> Vec<u8> {
    let mut note = format!("F{reason}").into_bytes();
    note.truncate(4096);
    note
}

/// Makes the cache directory where there is none, and gives it to whoever will write to it. One that holds
/// something already is left as it is: it may be anything.
///
/// # Errors
/// When it cannot be made, or others could have something else given away instead.
pub fn prepare(directory: &Path, user: Option<&User>) -> Result<(), Error> {
    match user {
        Some(user) => owner::provide(directory, user),
        None => super::store::make_directories(directory).map_err(|error| {
            Error::from_io("make the cache directory", directory.display().to_string(), &error)
        }),
    }
}
