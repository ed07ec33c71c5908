//! The module host: a process that runs WebAssembly modules which speak CGI. The spawner keeps one and sends
//! it requests as workers sent them; answers go straight into the worker's pipe.
//!
//! ```text
//! spawner -> host    Start + descriptors   End
//! host -> spawner    Started | Refused   Exited
//! ```
//!
//! A run has a thread to itself. All threads wait for messages on the same socket, of which the kernel wakes
//! one; a thread that takes a request sees to it that another one waits, up to the number of runs all mounts
//! allow. No thread hands work to another, which would cost a request two changes of context more. The host
//! lives and dies with its socket, so epochs tell it nothing and are echoed.
//!
//! Modules are guests: they reach what `wasi` offers and nothing else, and what goes wrong inside one ends
//! its run. The process around them still gives up what it does not need, against mistakes of the compiler.

mod crew;
mod engine;
mod lines;
mod modules;
mod run;
mod stop;
mod wasi;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use crew::{Host, Mounted};
pub use wasi::Preopened;

use super::messages::MountId;
use crate::config::{Config, MountKind};
use crate::sys::compiled::Compiled;
use crate::sys::process::{self, User};
use crate::sys::{self, beneath};

/// Compiled modules that nobody used for so long are removed.
const UNUSED_MAX: Duration = Duration::from_secs(90 * 86_400);

/// What the host is given.
///
/// The process is a fresh child with a single thread; of the descriptors of its parent it has the standard
/// three and its own.
#[derive(Debug)]
pub struct Start<'a> {
    /// The configuration of its generation.
    pub config: &'a Config,
    /// One end of a SEQPACKET pair; the spawner has the other.
    pub channel: OwnedFd,
    /// The directory of caches, in which compiled modules have their own; `None`: they are not kept.
    pub cache: Option<&'a Path>,
    /// Whom to become; `None`: stay.
    pub user: Option<&'a User>,
}

/// Whether a configuration has modules to run.
pub fn is_wanted(config: &Config) -> bool {
    config.sites.iter().flat_map(|site| &site.mounts).any(|mount| matches!(mount.kind, MountKind::Module(_)))
}

/// Runs modules until the spawner is gone.
pub fn run(start: Start<'_>) -> ExitCode {
    let served = confine(start.user).map_err(wasmtime::Error::from).and_then(|()| {
        let host = host(start.config, start.channel, start.cache)?;
        Ok(host.serve()?)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the module host cannot run: {}", modules::describe(&error));
            ExitCode::FAILURE
        }
    }
}

fn confine(user: Option<&User>) -> Result<(), sys::Error> {
    process::rename("httpd modules");
    process::confine()?;
    user.map_or(Ok(()), User::become_it)
}

/// The host of a configuration, about to serve.
///
/// # Errors
/// When a directory of a mount cannot be opened, or no engine can be made here.
pub fn host(config: &Config, channel: OwnedFd, cache: Option<&Path>) -> wasmtime::Result<Arc<Host>> {
    Host::new(channel, mounts(config)?, cache.and_then(compiled))
}

/// Compiled modules have a directory of their own in the cache. Without it, everything works, later.
fn compiled(cache: &Path) -> Option<Compiled> {
    let compiled = match Compiled::open(&cache.join("wcgi")) {
        Ok(compiled) => compiled,
        Err(error) => {
            tracing::warn!("{error}: modules are compiled again at every start");
            return None;
        }
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let since = i64::try_from(now.saturating_sub(UNUSED_MAX).as_secs()).unwrap_or_default();
    if let Err(errno) = compiled.forget_before(since) {
        tracing::warn!("cannot remove old compiled modules: {errno}");
    }
    Some(compiled)
}

/// The mounts of modules, with their directories opened.
fn mounts(config: &Config) -> wasmtime::Result<HashMap<MountId, Mounted>> {
    let mut mounts = HashMap::new();
    for (site_index, site) in config.sites.iter().enumerate() {
        for (index, mount) in site.mounts.iter().enumerate() {
            let MountKind::Module(module) = &mount.kind else { continue };
            let mut directories = Vec::new();
            for directory in &module.directories {
                let fd = beneath::directory(&directory.path)?;
                let (name, writable) = (directory.name.clone(), directory.writable);
                directories.push(Arc::new(Preopened { name, fd, writable }));
            }
            let id = MountId { site: u16::try_from(site_index)?, mount: u16::try_from(index)? };
            let (mount, root) = (mount.clone(), site.root.clone());
            mounts.insert(id, Mounted { mount, root, memory: module.memory, directories });
        }
    }
    Ok(mounts)
}
