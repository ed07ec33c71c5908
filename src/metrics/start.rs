//! All this process is given at birth, and the few words it exchanges with the supervisor.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::observe::health::Health;
use crate::sys::process::User;

/// What the process is given. It is forked without exec, is single-threaded, can gain no privileges, and
/// holds no descriptor but those here and the standard ones. Signals that are meant for the supervisor are
/// ignored; the end of the channel says that the supervisor is gone: stop.
#[derive(Debug)]
pub struct Start {
    /// Where to accept connections; non-blocking.
    pub listener: OwnedFd,
    /// One end of a SEQPACKET pair, non-blocking.
    pub channel: OwnedFd,
    /// Whether the server serves.
    pub health: Health,
    /// What the `Server` field of responses says.
    pub server_name: Option<String>,
    /// Whom to become before the first byte is read; `None`: nobody else.
    pub user: Option<User>,
}

/// The order to exit with success.
pub const STOP: &[u8] = b"S";

/// The note that asks the supervisor for the status, and of the answer, which brings along a file that
/// holds it as JSON.
pub const STATUS: &[u8] = b"?";

/// How old a status may be that is told again: it bounds how often the supervisor is asked, and how often
/// it answers.
pub const STATUS_EVERY: Duration = Duration::from_millis(100);
