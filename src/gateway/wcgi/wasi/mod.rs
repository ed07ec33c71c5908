//! `wasi_snapshot_preview1` as far as a CGI program can use it: arguments, environment, clocks, random
//! bytes, its standard streams, and files beneath the directories its mount names. No network, no signals,
//! no other process.
//!
//! Written here instead of taken from `wasmtime-wasi`: that needs the component model, fibres and tokio, about
//! eighty crates more, and turns each read and write of a plain program into a task of a runtime. A host that
//! gives a thread to every run needs none of that; the part of the interface that could be got wrong to
//! anybody's harm, keeping paths beneath a directory, is the kernel's (`sys::beneath`).

pub mod abi;
mod descriptors;
mod files;
mod paths;
mod process;
mod streams;

pub use descriptors::{Descriptors, Preopened};
pub use streams::{Input, Output, Pipe};

use wasmtime::{Caller, Extern, Linker, Memory, StoreLimits};

use self::abi::{Errno, Guest};
use super::complaints::Complaints;
use super::stop::{Stop, Watch};

/// What a run is to the calls it makes.
pub struct State {
    /// Bounds on its memory and tables.
    pub limits: StoreLimits,
    /// When it has to end.
    pub watch: Watch,
    /// Its memory, once a call has looked it up.
    pub memory: Option<Memory>,
    /// Arguments; the first is its own name.
    pub arguments: Strings,
    /// `NAME=value`.
    pub variables: Strings,
    /// Standard input.
    pub input: Input,
    /// Standard output.
    pub output: Output,
    /// Standard error.
    pub complaints: Complaints,
    /// All open descriptors.
    pub descriptors: Descriptors,
}

/// Strings that each end with a zero byte.
#[derive(Clone, Debug, Default)]
pub struct Strings {
    bytes: Vec<u8>,
    count: u32,
}

impl Strings {
    /// Adds one, made of parts.
    pub fn push(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.bytes.push(0);
        self.count += 1;
    }
}

/// How a call ends early.
enum Fail {
    /// The guest is told why and goes on.
    Errno(Errno),
    /// The run is over.
    Stop(Stop),
}

impl<E: Into<Errno>> From<E> for Fail {
    fn from(errno: E) -> Self {
        Self::Errno(errno.into())
    }
}

impl From<Stop> for Fail {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

type Answer = Result<(), Fail>;

/// The name of the interface, which modules import from.
const MODULE: &str = "wasi_snapshot_preview1";

/// Defines calls: the guest's numbers in, a function of the run and the guest's memory behind.
macro_rules! calls {
    ($linker:ident: $($name:ident($($argument:ident: $type:ty),*) $function:path;)*) => {
        $($linker.func_wrap(
            MODULE,
            stringify!($name),
            |mut caller: Caller<'_, State>, $($argument: $type),*| -> wasmtime::Result<i32> {
                call(&mut caller, |state, guest| $function(state, guest, $($argument),*))
            },
        )?;)*
    };
}

/// Defines every call of the interface: a module that imports one it never makes is no worse for it.
///
/// # Errors
/// Never: no name is defined twice.
pub fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    calls! { linker:
        args_sizes_get(count: u32, size: u32) process::args_sizes_get;
        args_get(list: u32, text: u32) process::args_get;
        environ_sizes_get(count: u32, size: u32) process::environ_sizes_get;
        environ_get(list: u32, text: u32) process::environ_get;
        clock_res_get(clock: u32, out: u32) process::clock_res_get;
        clock_time_get(clock: u32, precision: u64, out: u32) process::clock_time_get;
        random_get(at: u32, length: u32) process::random_get;
        poll_oneoff(subscriptions: u32, events: u32, count: u32, out: u32) process::poll_oneoff;
        proc_raise(signal: u32) process::proc_raise;
        sched_yield() process::sched_yield;

        fd_read(fd: u32, list: u32, count: u32, out: u32) files::fd_read;
        fd_write(fd: u32, list: u32, count: u32, out: u32) files::fd_write;
        fd_pread(fd: u32, list: u32, count: u32, offset: u64, out: u32) files::fd_pread;
        fd_pwrite(fd: u32, list: u32, count: u32, offset: u64, out: u32) files::fd_pwrite;
        fd_seek(fd: u32, offset: i64, whence: u32, out: u32) files::fd_seek;
        fd_tell(fd: u32, out: u32) files::fd_tell;
        fd_sync(fd: u32) files::fd_sync;
        fd_datasync(fd: u32) files::fd_sync;
        fd_advise(fd: u32, offset: u64, length: u64, advice: u32) files::fd_advise;
        fd_allocate(fd: u32, offset: u64, length: u64) files::fd_allocate;
        fd_filestat_get(fd: u32, out: u32) files::fd_filestat_get;
        fd_filestat_set_size(fd: u32, size: u64) files::fd_filestat_set_size;
        fd_filestat_set_times(fd: u32, accessed: u64, modified: u64, flags: u32) files::fd_filestat_set_times;
        fd_readdir(fd: u32, at: u32, length: u32, cookie: u64, out: u32) files::fd_readdir;

        fd_close(fd: u32) descriptors::fd_close;
        fd_renumber(from: u32, to: u32) descriptors::fd_renumber;
        fd_fdstat_get(fd: u32, out: u32) descriptors::fd_fdstat_get;
        fd_fdstat_set_flags(fd: u32, flags: u32) descriptors::fd_fdstat_set_flags;
        fd_fdstat_set_rights(fd: u32, base: u64, inheriting: u64) descriptors::fd_fdstat_set_rights;
        fd_prestat_get(fd: u32, out: u32) descriptors::fd_prestat_get;
        fd_prestat_dir_name(fd: u32, at: u32, length: u32) descriptors::fd_prestat_dir_name;

        path_open(
            fd: u32, lookup: u32, path: u32, length: u32, oflags: u32,
            base: u64, inheriting: u64, fdflags: u32, out: u32
        ) paths::path_open;
        path_filestat_get(fd: u32, lookup: u32, path: u32, length: u32, out: u32) paths::path_filestat_get;
        path_filestat_set_times(
            fd: u32, lookup: u32, path: u32, length: u32, accessed: u64, modified: u64, flags: u32
        ) paths::path_filestat_set_times;
        path_create_directory(fd: u32, path: u32, length: u32) paths::path_create_directory;
        path_remove_directory(fd: u32, path: u32, length: u32) paths::path_remove_directory;
        path_unlink_file(fd: u32, path: u32, length: u32) paths::path_unlink_file;
        path_readlink(
            fd: u32, path: u32, length: u32, at: u32, room: u32, out: u32
        ) paths::path_readlink;
        path_symlink(
            target: u32, target_length: u32, fd: u32, path: u32, length: u32
        ) paths::path_symlink;
        path_link(
            fd: u32, lookup: u32, path: u32, length: u32, to: u32, new: u32, new_length: u32
        ) paths::path_link;
        path_rename(
            fd: u32, path: u32, length: u32, to: u32, new: u32, new_length: u32
        ) paths::path_rename;

        sock_accept(fd: u32, flags: u32, out: u32) process::sock_accept;
        sock_recv(
            fd: u32, list: u32, count: u32, flags: u32, out: u32, out_flags: u32
        ) process::sock_recv;
        sock_send(fd: u32, list: u32, count: u32, flags: u32, out: u32) process::sock_send;
        sock_shutdown(fd: u32, how: u32) process::sock_shutdown;
    }
    // The one call that does not come back.
    linker.func_wrap(MODULE, "proc_exit", |code: i32| -> wasmtime::Result<()> {
        Err(wasmtime::Error::from(Stop::Exit(code)))
    })?;
    Ok(())
}

fn call(
    caller: &mut Caller<'_, State>,
    function: impl FnOnce(&mut State, Guest<'_>) -> Answer,
) -> wasmtime::Result<i32> {
    let memory = match caller.data().memory {
        Some(memory) => memory,
        None => {
            let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
                return Err(wasmtime::Error::from(Stop::NoMemory));
            };
            caller.data_mut().memory = Some(memory);
            memory
        }
    };
    let (bytes, state) = memory.data_and_store_mut(caller);
    match function(state, Guest(bytes)) {
        Ok(()) => Ok(0),
        Err(Fail::Errno(Errno(number))) => Ok(number),
        Err(Fail::Stop(stop)) => Err(wasmtime::Error::from(stop)),
    }
}
