//! The `httpd` command.

fn main() -> std::process::ExitCode {
    httpd::cli::main()
}
