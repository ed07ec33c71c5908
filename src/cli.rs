//! Commands and flags.

/// Parses the command line, runs the command, and says how it ended.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
