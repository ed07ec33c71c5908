//! The modules of a host: read, compiled, linked, and found again by path as long as the file is the same.
//!
//! Every request has its module's facts compared; so a module that was replaced is seen at once. Compiling
//! happens once for the same contents, in whatever file, and is kept on disk.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{Hash as _, Hasher as _};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use aws_lc_rs::digest::{SHA256, digest};
use wasmtime::{Engine, ExternType, InstancePre, Linker, Module};
use xxhash_rust::xxh3::Xxh3;

use super::wasi::{self, State};
use crate::sys::beneath::{self, Look};
use crate::sys::compiled::Compiled;
use crate::sys::file::Stamp;

/// The largest module that is read: larger ones take minutes to compile.
const MODULE_BYTES_MAX: u64 = 128 << 20;

/// How often a file that changes while it is read is read again.
const ATTEMPTS: u32 = 3;

/// What a module has to export.
pub const ENTRY: &str = "_start";

/// All modules that were asked for.
pub struct Modules {
    engine: Engine,
    linker: Linker<State>,
    compiled: Option<Compiled>,
    /// Part of the names of compiled modules: everything of the engine that they depend on.
    engine_hash: u64,
    known: RwLock<HashMap<Vec<u8>, Known>>,
    /// Who reads a file holds its lock, so that the same is not compiled twice at once.
    loading: Mutex<HashMap<Vec<u8>, Arc<Mutex<()>>>>,
}

/// A module, ready to be instantiated.
pub type Program = InstancePre<State>;

/// What became of a file.
#[derive(Clone)]
struct Known {
    facts: Facts,
    /// The module, or what is wrong with it: that is not found out twice either.
    program: Result<Arc<Program>, Arc<str>>,
}

/// What a file is recognised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Facts {
    device: u64,
    inode: u64,
    size: u64,
    modified: Stamp,
    changed: Stamp,
}

impl From<&Look> for Facts {
    fn from(look: &Look) -> Self {
        let Look { device, inode, size, modified, changed, .. } = *look;
        Self { device, inode, size, modified, changed }
    }
}

impl Modules {
    /// None yet. Without a directory, modules are compiled anew by every host.
    ///
    /// # Errors
    /// Never: no call is defined twice.
    pub fn new(engine: &Engine, compiled: Option<Compiled>) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(engine);
        wasi::define(&mut linker)?;
        let mut hasher = Xxh3::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Ok(Self {
            engine: engine.clone(),
            linker,
            compiled,
            engine_hash: hasher.finish(),
            known: RwLock::default(),
            loading: Mutex::default(),
        })
    }

    /// The module in a file, of which `look` was just seen.
    ///
    /// # Errors
    /// What is wrong with it, for the log.
    pub fn find(&self, path: &[u8], look: &Look) -> Result<Arc<Program>, Arc<str>> {
        let facts = Facts::from(look);
        if let Some(known) = self.known(path, facts) {
            return known;
        }
        let lock = self.lock_of(path);
        let _reading = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known(path, facts) {
            return known;
        }
        let known = self.load(path)?;
        let program = known.program.clone();
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(path.to_vec(), known);
        program
    }

    fn lock_of(&self, path: &[u8]) -> Arc<Mutex<()>> {
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        loading.entry(path.to_vec()).or_default().clone()
    }

    fn known(&self, path: &[u8], facts: Facts) -> Option<Result<Arc<Program>, Arc<str>>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(path).filter(|known| known.facts == facts).map(|known| known.program.clone())
    }

    /// Reads a file. What is wrong with its contents stays known; what is wrong with reading it does not.
    fn load(&self, path: &[u8]) -> Result<Known, Arc<str>> {
        let cannot =
            |error: &dyn std::fmt::Display| -> Arc<str> { format!("it cannot be read: {error}").into() };
        for _ in 0..ATTEMPTS {
            let mut file = File::open(OsStr::from_bytes(path)).map_err(|error| cannot(&error))?;
            let before = Facts::from(&beneath::look(&file).map_err(|error| cannot(&error))?);
            if before.size > MODULE_BYTES_MAX {
                let program = Err(format!("it has {} bytes, which is too many", before.size).into());
                return Ok(Known { facts: before, program });
            }
            let mut bytes = Vec::new();
            (&mut file).take(MODULE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
            let after = Facts::from(&beneath::look(&file).map_err(|error| cannot(&error))?);
            if before == after && bytes.len() as u64 == after.size {
                let program = self.program(path, &bytes).map(Arc::new);
                return Ok(Known { facts: after, program: program.map_err(|error| describe(&error)) });
            }
        }
        Err("it changes while it is read".into())
    }

    fn program(&self, path: &[u8], bytes: &[u8]) -> wasmtime::Result<Program> {
        let module = self.module(path, bytes)?;
        match module.get_export(ENTRY) {
            Some(ExternType::Func(_)) => {}
            _ => {
                wasmtime::bail!("it exports no function `{ENTRY}`: only WASI commands are run, no libraries")
            }
        }
        self.linker.instantiate_pre(&module)
    }

    /// The compiled module, from disk if it is there.
    fn module(&self, path: &[u8], bytes: &[u8]) -> wasmtime::Result<Module> {
        let shown = String::from_utf8_lossy(path);
        let mut name = String::with_capacity(96);
        for byte in digest(&SHA256, bytes).as_ref() {
            name.push_str(&format!("{byte:02x}"));
        }
        name.push_str(&format!("-{:016x}.cwasm", self.engine_hash));
        match self.compiled.as_ref().map(|compiled| compiled.load(&name, &self.engine)) {
            Some(Ok(Some(module))) => return Ok(module),
            Some(Err(error)) => tracing::warn!("{shown} is compiled again; {name} was not used: {error}"),
            Some(Ok(None)) | None => {}
        }
        let began = Instant::now();
        // Not `Module::new`, which would take WebAssembly as text too where that is built in.
        let module = Module::from_binary(&self.engine, bytes)?;
        tracing::info!("compiled {shown} in {} ms", began.elapsed().as_millis());
        if let Some(compiled) = &self.compiled
            && let Err(error) = compiled.save(&name, &module)
        {
            tracing::warn!("{shown} will be compiled again by the next host: {error:#}");
        }
        Ok(module)
    }
}

/// An error and its causes, on one line.
pub fn describe(error: &wasmtime::Error) -> Arc<str> {
    format!("{error:#}").replace('\n', "; ").into()
}
