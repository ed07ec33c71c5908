//! (to come)

/// Serves until told to stop.
pub fn run(_source: crate::config::Source, _config: crate::config::Config) -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}

/// Prints what runs.
pub fn status(_config: &crate::config::Config, _json: bool) -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
