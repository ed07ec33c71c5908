//! The metrics: a process beside the workers that tells monitoring how the server is.
//!
//! ```text
//! monitoring -- HTTP --> serve -- "status?" --> supervisor
//!                          ^--- a file with the status --'
//! ```
//!
//! The supervisor alone knows everything, holds the keys and must never wait or fall; so it speaks no
//! HTTP. This process does, with the worker's parser and without rights. All it can do to the supervisor is
//! to ask for the status, and it is told at most every 100 ms, however often it asks; were it to be crashed it
//! would be forked again.
//! Whether the server serves stands on a page it reads by itself, so that a balancer is answered also while
//! the supervisor is busy.

mod answer;
mod serve;
pub mod start;
mod text;

pub use serve::run;
