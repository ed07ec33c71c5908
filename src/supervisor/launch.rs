//! Making one worker: everything it is given is put together first, then the process is forked, and in
//! the child everything else is let go of.

use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use crate::observe::log;
use crate::observe::names::Counters;
use crate::sys::process::{self, Fork, Pid};
use crate::sys::{Error, pass, signals};
use crate::worker::start::{self, Start};

/// A worker's process, as its parent sees it.
#[derive(Debug)]
pub struct Launched {
    /// Its number.
    pub pid: Pid,
    /// Our end of the channel.
    pub channel: OwnedFd,
    /// Its counters.
    pub counters: Counters,
}

/// Forks a worker. `prepare` is given its end of the channel and its counters.
///
/// # Errors
/// When the system has no room for another process, or `prepare` fails.
pub fn launch(
    worker: fn(Start) -> ExitCode,
    prepare: impl FnOnce(OwnedFd, Counters) -> Result<Start, Error>,
) -> Result<Launched, Error> {
    let (channel, theirs) = pass::channel()?;
    let counters = Counters::new()?;
    let start = prepare(theirs, counters.clone())?;
    // What waits in the buffer would otherwise be written by both processes.
    let _ = std::io::stdout().flush();
    match process::fork()? {
        Fork::Parent(pid) => Ok(Launched { pid, channel, counters }),
        Fork::Child => {
            // Unwinding out of here would drop the supervisor's values in the child: close descriptors
            // that are others' by then, remove the files of sockets that are in use.
            let live = AssertUnwindSafe(move || live(worker, start));
            match std::panic::catch_unwind(live) {
                Ok(code) => std::process::exit(code),
                Err(_) => std::process::abort(),
            }
        }
    }
}

/// The life of the child. Returns its exit code.
fn live(worker: fn(Start) -> ExitCode, mut start: Start) -> i32 {
    log::speak_as_worker(start.index);
    if let Err(error) = settle_in(&mut start) {
        // If even that cannot be said, the exit code says enough.
        let _ = pass::send(&start.channel, &start::failed(&error.to_string()), None);
        return 1;
    }
    i32::from(worker(start) != ExitCode::SUCCESS)
}

fn settle_in(start: &mut Start) -> Result<(), Error> {
    signals::leave_to_parent()?;
    let listeners = start.listeners.iter().map(|listener| &listener.fd);
    let kept = listeners.chain([&start.channel]).chain(&start.access_log);
    process::close_all_but(kept.map(|fd| fd.as_raw_fd()))?;
    process::rename(&format!("httpd worker {}", start.index));
    if let Some(core) = start.core
        && let Err(error) = process::pin(core)
    {
        tracing::warn!("{error}: running unpinned");
        start.core = None;
    }
    process::confine()
}
