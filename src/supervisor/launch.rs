//! Making one process: everything it is given is put together first, then it is forked, and in the child
//! everything else is let go of.

use std::io::Write as _;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use crate::observe::log;
use crate::observe::names::Counters;
use crate::sys::process::{self, Fork, Pid};
use crate::sys::{Error, pass, signals};
use crate::worker::start::{self, Start};

/// A child, as its parent sees it.
#[derive(Debug)]
pub struct Launched {
    /// Its number.
    pub pid: Pid,
    /// Our end of the channel.
    pub channel: OwnedFd,
    /// Its counters.
    pub counters: Counters,
}

/// Whether a process gives up gaining privileges before anything else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confined {
    /// It does.
    Yes,
    /// It decides for itself.
    No,
}

/// Forks a worker. `prepare` is given its end of the channel and its counters.
///
/// # Errors
/// When the system has no room for another process, or `prepare` fails.
pub fn launch(
    worker: fn(Start) -> ExitCode,
    prepare: impl FnOnce(OwnedFd, Counters) -> Result<Start, Error>,
) -> Result<Launched, Error> {
    fork(prepare, |mut start| {
        let listeners = start.listeners.iter().map(|listener| &listener.fd);
        let mailboxes = start.mailboxes.iter().flat_map(|mailboxes| mailboxes.fds.iter().flatten());
        let kept = listeners.chain([&start.channel]).chain(&start.access_log).chain(mailboxes);
        let kept: Vec<RawFd> = kept.map(AsRawFd::as_raw_fd).collect();
        let settled = settle_in(&format!("worker {}", start.index), &kept).and_then(|()| {
            if let Some(core) = start.core
                && let Err(error) = process::pin(core)
            {
                tracing::warn!("{error}: running unpinned");
                start.core = None;
            }
            process::confine()
        });
        match settled {
            Ok(()) => worker(start),
            Err(error) => {
                // If even that cannot be said, the exit code says enough.
                let _ = pass::send(&start.channel, &start::failed(&error.to_string()), None);
                ExitCode::FAILURE
            }
        }
    })
}

/// Forks a companion that goes by `name`, in which `live` is called with what `prepare` made of its end of
/// the channel and its counters; of the descriptors in there, `kept` are those that stay open.
///
/// # Errors
/// When the system has no room for another process, or `prepare` fails.
pub fn accompany<S>(
    name: &str,
    confined: Confined,
    live: fn(S) -> ExitCode,
    prepare: impl FnOnce(OwnedFd, Counters) -> Result<S, Error>,
    kept: fn(&S) -> Vec<RawFd>,
) -> Result<Launched, Error> {
    fork(prepare, |start| {
        let settled = settle_in(name, &kept(&start)).and_then(|()| match confined {
            Confined::Yes => process::confine(),
            Confined::No => Ok(()),
        });
        match settled {
            Ok(()) => live(start),
            Err(error) => {
                tracing::error!("{error}");
                ExitCode::FAILURE
            }
        }
    })
}

fn fork<S>(
    prepare: impl FnOnce(OwnedFd, Counters) -> Result<S, Error>,
    live: impl FnOnce(S) -> ExitCode,
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
            let live = AssertUnwindSafe(move || i32::from(live(start) != ExitCode::SUCCESS));
            match std::panic::catch_unwind(live) {
                Ok(code) => std::process::exit(code),
                Err(_) => std::process::abort(),
            }
        }
    }
}

/// What every child does first: takes its name, and leaves to the supervisor what is the supervisor's.
fn settle_in(name: &str, kept: &[RawFd]) -> Result<(), Error> {
    log::speak_as(name);
    signals::leave_to_parent()?;
    process::close_all_but(kept.iter().copied())?;
    process::rename(&format!("httpd {name}"));
    Ok(())
}
