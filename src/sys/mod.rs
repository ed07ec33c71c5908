//! Safe wrappers of what the operating system offers, one concern a file. One of the two rooms
//! (with `ring`) that may hold unsafe code.

pub mod append;
pub mod beneath;
pub mod brotli;
pub mod bytes;
#[cfg(feature = "wcgi")]
pub mod compiled;
pub mod fds;
pub mod file;
pub mod inotify;
pub mod lock;
pub mod memory_file;
pub mod owner;
pub mod pass;
pub mod process;
pub mod sandbox;
pub mod shared;
pub mod signals;
pub mod sockets;
pub mod spawn;
pub mod stderr;
pub mod terminal;
pub mod tls_probe;
pub mod tree;
pub mod user;
pub mod wait;

pub use rustix::io::Errno;

/// A refusal of the operating system: what was being done, to what, and why not.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {object}: {errno}")]
pub struct Error {
    /// What was being done, as a verb phrase: "bind".
    pub verb: &'static str,
    /// To what: "0.0.0.0:80".
    pub object: String,
    /// The kernel's reason.
    pub errno: Errno,
}

impl Error {
    /// Puts a reason into its context.
    pub fn new(verb: &'static str, object: impl Into<String>, errno: Errno) -> Self {
        Self { verb, object: object.into(), errno }
    }

    /// The same for what the standard library says.
    pub fn from_io(verb: &'static str, object: impl Into<String>, error: &std::io::Error) -> Self {
        Self::new(verb, object, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }
}
