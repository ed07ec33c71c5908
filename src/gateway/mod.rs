//! Programs beside files: CGI scripts (RFC 3875) and WebAssembly modules that speak CGI.
//!
//! A worker never starts a program: it sends the request and the program's pipe ends to the **spawner**,
//! a process of its own, and relays bytes. What a program is told and how its answer is understood is
//! pure; only the spawner and what it starts touch the system.

pub mod admission;
pub mod cgi;
mod environment;
mod lines;
pub mod messages;
pub mod script;
pub mod spawner;
pub mod start;
pub mod trial;
#[cfg(feature = "wcgi")]
pub mod wcgi;
