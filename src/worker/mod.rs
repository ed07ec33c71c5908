//! (to come)

pub mod start;

use std::process::ExitCode;

/// Serves until told to stop.
pub fn run(start: start::Start) -> ExitCode {
    drop(start);
    ExitCode::FAILURE
}
