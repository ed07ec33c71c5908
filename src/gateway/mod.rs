//! Programs beside files: CGI scripts (RFC 3875) and WebAssembly modules that speak CGI.
//!
//! A worker never starts a program: it sends the request and the program's pipe ends to a **runner**, a process
//! of its own, and relays bytes: the spawner for scripts, the module host for modules. What a program is told and
//! how its answer is understood is pure; only runners and what they start touch the system.

pub mod admission;
pub mod cgi;
mod environment;
mod faults;
mod lines;
pub mod messages;
pub mod script;
pub mod spawner;
pub mod start;
pub mod trial;
#[cfg(feature = "wcgi")]
pub mod wcgi;

/// A build without modules. No configuration that has some gets past its check.
#[cfg(not(feature = "wcgi"))]
pub mod wcgi {
    use std::process::ExitCode;

    /// It has none.
    pub fn is_wanted(_: &crate::config::Config) -> bool {
        false
    }

    /// Runs nothing.
    pub fn run(_: super::start::Start) -> ExitCode {
        ExitCode::FAILURE
    }
}
