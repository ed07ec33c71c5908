//! What each kind of process may still do once it has begun: rights, files, network, system calls.
//!
//! ```text
//! kind           user          rights             files (landlock)               calls (seccomp)
//! worker         server.user   none               read beneath roots and cache   a short list of what serving takes
//! precompressor  server.user   none               the same, write in the cache   all but a list: no network, no exec
//! spawner        stays root    SETUID SETGID KILL   all (scripts too)              all but what changes the system
//! module host    server.user   none               beneath what mounts name       all but a list: no network, no exec
//! metrics        server.user   none               none                           all but a list: no network, no exec
//! ```
//!
//! Where a mount lets programs gain privileges, the spawner enters nothing: whatever holds for it, holds for what it
//! starts.
//!
//! A description is a value; [`Sandbox::enter`] makes it so, for good, and for all threads and processes
//! that are begun later. Layers that this kernel lacks are left out: [`lacking`] says which, and what that means.
//! What is entered can only be narrowed, so what a process may need later has to stand here: files by their
//! directories, since landlock knows directories by inode and not by name.

mod calls;
mod paths;

use std::path::PathBuf;

use rustix::thread::CapabilitySet;

use super::user::{self, User};
use super::{Errno, Error, process};

pub use paths::{Place, lies_beneath, neighbours};

/// What a process may do.
#[derive(Clone, Debug)]
pub struct Sandbox {
    files: Files,
    calls: calls::List,
    rights: CapabilitySet,
}

/// Which files a process may open.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Files {
    /// Those its user may: the processes it starts are other people's programs.
    All,
    /// Those beneath directories.
    Beneath { reads: Reads, writes: Vec<PathBuf> },
}

/// What may be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reads {
    /// Whatever the user may: where a site follows symlinks anywhere, nobody knows where to.
    All,
    /// What lies beneath these directories. One that is not there is passed over.
    Beneath(Vec<PathBuf>),
}

/// What came of entering.
#[derive(Debug)]
pub struct Entered {
    /// The directories beneath which may be read; `None`: landlock does not limit reading.
    pub readable: Option<Vec<Place>>,
    /// Layers that should have worked and did not, each with its reason.
    pub failed: Vec<String>,
}

/// A layer that this kernel lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lack {
    /// What it is, and since when there is such a thing.
    pub feature: &'static str,
    /// What that means.
    pub effect: &'static str,
}

impl Sandbox {
    /// A worker: reads files, talks over what it accepts and is handed, computes; nothing else.
    pub fn worker(reads: Reads) -> Self {
        let files = Files::Beneath { reads, writes: Vec::new() };
        Self { files, calls: calls::List::Worker, rights: CapabilitySet::empty() }
    }

    /// The precompressor: reads files, writes the cache.
    pub fn precompressor(reads: Reads, cache: PathBuf) -> Self {
        let files = Files::Beneath { reads, writes: vec![cache] };
        Self { files, calls: calls::List::Files, rights: CapabilitySet::empty() }
    }

    /// The spawner: becomes others, kills what it started, executes. What it starts inherits all of this but
    /// the rights.
    pub fn spawner() -> Self {
        let rights = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
        Self { files: Files::All, calls: calls::List::Programs, rights }
    }

    /// The host of modules: reads them, makes machine code of them and keeps it, talks over what it is handed;
    /// reads and writes what modules may.
    pub fn module_host(reads: Vec<PathBuf>, writes: Vec<PathBuf>) -> Self {
        let files = Files::Beneath { reads: Reads::Beneath(reads), writes };
        Self { files, calls: calls::List::Modules, rights: CapabilitySet::empty() }
    }

    /// The process that serves metrics: talks over what it accepts and is handed, and opens nothing.
    pub fn metrics() -> Self {
        let files = Files::Beneath { reads: Reads::Beneath(Vec::new()), writes: Vec::new() };
        Self { files, calls: calls::List::Files, rights: CapabilitySet::empty() }
    }

    /// Becomes `user` where one is given, and from now on may do no more than this. To be called while the
    /// process has one thread: landlock and seccomp hold for the caller and for what it starts.
    ///
    /// # Errors
    /// When the user or the rights cannot be changed; the process must then end, being half one and half
    /// the other.
    pub fn enter(&self, user: Option<&User>) -> Result<Entered, Error> {
        let rights = match user {
            // Root that was told to stay root goes on reading what root may, beneath the roots.
            None if user::is_root() && self.files != Files::All => {
                self.rights | CapabilitySet::DAC_READ_SEARCH
            }
            _ => self.rights,
        };
        user::limit_rights(rights);
        match user {
            Some(user) => user.become_it()?,
            None => user::keep_rights(rights)?,
        }
        // After the change of user, which sets dumping to what the system's default is.
        process::confine()?;
        let mut entered = Entered { readable: None, failed: Vec::new() };
        if let Files::Beneath { reads, writes } = &self.files {
            match paths::restrict(reads, writes) {
                Ok(readable) => entered.readable = readable,
                Err(reason) => entered.failed.push(format!("landlock: {reason}")),
            }
        }
        if let Err(reason) = calls::restrict(self.calls) {
            entered.failed.push(format!("seccomp: {reason}"));
        }
        Ok(entered)
    }
}

/// What this kernel lacks of all this.
pub fn lacking() -> Vec<Lack> {
    let seccomp = rustix::thread::secure_computing_mode() == Err(Errno::INVAL);
    let filter =
        Lack { feature: "seccomp filters", effect: "workers may make every system call their user may" };
    paths::lacking().into_iter().chain(seccomp.then_some(filter)).collect()
}
