//! `httpd generate DIR`: what a package ships beside the binary, made from the definitions the binary works by, so that
//! it cannot say anything else: manual pages and completions. Hidden, since only packagers need it.

use std::path::Path;
use std::{fs, io};

use clap::Command;
use clap_complete::Shell;

use super::{manual, reference};

/// Writes `man/httpd.8`, `man/httpd.toml.5` and `completions/` for bash, zsh and fish.
pub fn into(directory: &Path, command: &mut Command) -> io::Result<()> {
    let (pages, completions) = (directory.join("man"), directory.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    let version = command.get_version().unwrap_or_default().to_owned();
    fs::write(pages.join("httpd.8"), manual::page(command)?)?;
    fs::write(pages.join("httpd.toml.5"), reference::page(&version))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, command, "httpd", &completions)?;
    }
    Ok(())
}
