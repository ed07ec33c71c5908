//! The module host: a process that runs WebAssembly modules which speak CGI. Workers send it requests in the words
//! they have for the spawner; answers go straight into the worker's pipe.
//!
//! ```text
//! worker -> host    Hello   Start + descriptors   End
//! host -> worker    Hello   Started | Refused   Exited   Ran
//! ```
//!
//! A run has a thread to itself, and every worker threads of its own. They all wait for messages on its socket, of
//! which the kernel wakes one; a thread that takes a request sees to it that another one waits. The host lives
//! as long as its generation, or until it dies: its successor has another epoch, and what it ran has ended.
//!
//! Modules are guests: they reach what `wasi` offers and nothing else, and what goes wrong inside one ends
//! its run. The process around them still gives up what it does not need, against mistakes of the compiler.

mod complaints;
mod crew;
mod engine;
mod mailbox;
mod modules;
mod run;
mod stop;
mod wasi;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use crew::{Host, Mounted};
pub use wasi::Preopened;

use super::messages::MountId;
use super::start::Start;
use crate::config::{Config, Module, Mount, MountKind, Programs};
use crate::sys::beneath;
use crate::sys::compiled::Compiled;
use crate::sys::process::User;
use crate::sys::sandbox::{self, Sandbox};

/// Compiled modules that nobody used for so long are removed.
const UNUSED_MAX: Duration = Duration::from_secs(90 * 86_400);

/// Whether a configuration has modules to run.
pub fn is_wanted(config: &Config) -> bool {
    mounts(config).next().is_some()
}

/// Runs modules until told to stop.
pub fn run(start: Start) -> ExitCode {
    match begin(start).and_then(|host| Ok(host.serve()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("the module host cannot run: {}", modules::describe(&error));
            ExitCode::FAILURE
        }
    }
}

fn begin(start: Start) -> wasmtime::Result<Arc<Host>> {
    let config = Rc::clone(&start.config);
    // First of all, since the engine opens the map of its own pages, which is root's once rights are given up.
    let engine = engine_for(&config, start.workers.len())?;
    // Next, so that compiled modules are kept as who will load them.
    start.user.as_ref().map_or(Ok(()), User::become_it)?;
    let compiled = config.cache.dir.as_deref().and_then(compiled);
    let entered = sandbox(&config).enter(None)?;
    entered.failed.iter().for_each(|failed| tracing::warn!("the module host runs without {failed}"));
    Host::new(start, engine, mounted(&config)?, compiled)
}

/// The host of a configuration, about to serve; whose process stays as it is.
///
/// # Errors
/// When a directory of a mount cannot be opened, or no engine can be made here.
pub fn host(start: Start) -> wasmtime::Result<Arc<Host>> {
    let config = Rc::clone(&start.config);
    let (compiled, workers) = (config.cache.dir.as_deref().and_then(compiled), start.workers.len());
    Host::new(start, engine_for(&config, workers)?, mounted(&config)?, compiled)
}

fn engine_for(config: &Config, workers: usize) -> wasmtime::Result<wasmtime::Engine> {
    let instances = crew::threads_of_one(config, workers).saturating_mul(workers.max(1));
    let memory = mounts(config).map(|(.., module)| module.memory).max();
    engine::engine(u32::try_from(instances).unwrap_or(u32::MAX), memory.unwrap_or_default())
}

/// What the host reads and writes. A module that is a symlink out of its directory cannot be read.
fn sandbox(config: &Config) -> Sandbox {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (_, _, mount, module) in mounts(config) {
        // Deploys put another file into the directory, or flip a symlink that leads to it.
        let directory = match &mount.programs {
            Programs::Directory(path) => path.clone(),
            Programs::One(file) => file.parent().map(Path::to_path_buf).unwrap_or_default(),
        };
        reads.extend(sandbox::neighbours(&directory));
        reads.push(directory);
        for directory in &module.directories {
            let places = if directory.writable { &mut writes } else { &mut reads };
            places.push(directory.path.clone());
        }
    }
    writes.extend(config.cache.dir.as_deref().map(place));
    Sandbox::module_host(reads, writes)
}

/// Where compiled modules are kept.
fn place(cache: &Path) -> PathBuf {
    cache.join("wcgi")
}

/// Compiled modules have a directory of their own in the cache. Without it, everything works, later.
fn compiled(cache: &Path) -> Option<Compiled> {
    let compiled = match Compiled::open(&place(cache)) {
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

/// The mounts of modules.
fn mounts(config: &Config) -> impl Iterator<Item = (MountId, &Path, &Mount, &Module)> {
    config.sites.iter().zip(0..).flat_map(|(site, number)| {
        site.mounts.iter().zip(0..).filter_map(move |(mount, index)| match &mount.kind {
            MountKind::Module(module) => {
                Some((MountId { site: number, mount: index }, site.root.as_path(), mount, module))
            }
            MountKind::Process(_) => None,
        })
    })
}

/// The same, with their directories opened.
fn mounted(config: &Config) -> wasmtime::Result<HashMap<MountId, Mounted>> {
    let mut all = HashMap::new();
    for (id, root, mount, module) in mounts(config) {
        let mut directories = Vec::new();
        for directory in &module.directories {
            let fd = beneath::directory(&directory.path)?;
            let (name, writable) = (directory.name.clone(), directory.writable);
            directories.push(Arc::new(Preopened { name, fd, writable }));
        }
        let (mount, root, memory) = (mount.clone(), root.to_path_buf(), module.memory);
        all.insert(id, Mounted { mount, root, memory, directories });
    }
    Ok(all)
}
