//! The table of open descriptors: 0 to 2 are the streams, the directories of the mount follow, then what the
//! module opens.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::abi::{self, Errno, Guest, fdflags, filetype, rights};
use super::{Answer, Input, State};

/// What a number stands for.
#[derive(Debug)]
pub enum Descriptor {
    /// Standard input.
    Input,
    /// Standard output.
    Output,
    /// Standard error.
    Complaints,
    /// A directory of the mount. It is opened once and shared by all runs.
    Preopened(Arc<Preopened>),
    /// A directory the module opened.
    Directory {
        /// It.
        fd: File,
        /// Whether what is beneath may be changed.
        writable: bool,
    },
    /// A file the module opened.
    File {
        /// It; the kernel refuses what it was not opened for.
        file: File,
        /// `fdflags` it was opened with.
        flags: u16,
        /// Whether the directory it was found in may be changed.
        writable: bool,
    },
}

/// A directory that a mount gives to its modules.
#[derive(Debug)]
pub struct Preopened {
    /// What the module calls it.
    pub name: String,
    /// The directory itself.
    pub fd: OwnedFd,
    /// Whether what is beneath may be changed.
    pub writable: bool,
}

/// All descriptors of a run.
#[derive(Debug)]
pub struct Descriptors(Vec<Option<Descriptor>>);

/// As many as a process of Linux may have by default.
const OPEN_MAX: usize = 1024;

impl Descriptors {
    /// The streams and the mount's directories.
    pub fn new(directories: &[Arc<Preopened>]) -> Self {
        let streams = [Descriptor::Input, Descriptor::Output, Descriptor::Complaints];
        let directories = directories.iter().cloned().map(Descriptor::Preopened);
        Self(streams.into_iter().chain(directories).map(Some).collect())
    }

    /// Whether a number stands for something.
    pub fn is_open(&self, fd: u32) -> bool {
        self.at(fd).is_ok()
    }

    /// What a number stands for.
    ///
    /// # Errors
    /// BADF.
    pub fn at(&self, fd: u32) -> Result<&Descriptor, Errno> {
        self.0.get(fd as usize).and_then(Option::as_ref).ok_or(Errno::BADF)
    }

    /// The same, to be changed.
    ///
    /// # Errors
    /// BADF.
    pub fn at_mut(&mut self, fd: u32) -> Result<&mut Descriptor, Errno> {
        self.0.get_mut(fd as usize).and_then(Option::as_mut).ok_or(Errno::BADF)
    }

    /// A file the module opened, or a directory of either kind.
    ///
    /// # Errors
    /// BADF, and SPIPE for a stream.
    pub fn file(&self, fd: u32) -> Result<&File, Errno> {
        match self.at(fd)? {
            Descriptor::File { file, .. } => Ok(file),
            Descriptor::Directory { .. } | Descriptor::Preopened(_) => Err(Errno::ISDIR),
            _ => Err(Errno::SPIPE),
        }
    }

    /// Gives the lowest free number.
    ///
    /// # Errors
    /// MFILE.
    pub fn add(&mut self, descriptor: Descriptor) -> Result<u32, Errno> {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if free >= OPEN_MAX {
            return Err(Errno::MFILE);
        }
        if free == self.0.len() {
            self.0.push(None);
        }
        self.0[free] = Some(descriptor);
        u32::try_from(free).map_err(|_| Errno::MFILE)
    }

    fn take(&mut self, fd: u32) -> Result<Descriptor, Errno> {
        self.0.get_mut(fd as usize).and_then(Option::take).ok_or(Errno::BADF)
    }
}

pub fn fd_close(state: &mut State, _: Guest<'_>, fd: u32) -> Answer {
    let closed = state.descriptors.take(fd)?;
    end(state, closed)
}

pub fn fd_renumber(state: &mut State, _: Guest<'_>, from: u32, to: u32) -> Answer {
    state.descriptors.at(from)?;
    state.descriptors.at(to)?;
    if from == to {
        return Ok(());
    }
    let moved = state.descriptors.take(from)?;
    let replaced = std::mem::replace(state.descriptors.at_mut(to)?, moved);
    end(state, replaced)
}

/// What no number stands for any more is closed; each stream has but one, since numbers are moved and never copied.
/// Whoever is at the other end of a pipe is told at once, however long the module goes on.
fn end(state: &mut State, descriptor: Descriptor) -> Answer {
    match descriptor {
        Descriptor::Input => state.input = Input::default(),
        Descriptor::Output => {
            state.output.flush(&mut state.watch)?;
            state.output.end();
            state.watch.announce();
        }
        Descriptor::Complaints
        | Descriptor::Preopened(_)
        | Descriptor::Directory { .. }
        | Descriptor::File { .. } => {}
    }
    Ok(())
}

pub fn fd_fdstat_get(state: &mut State, mut guest: Guest<'_>, fd: u32, out: u32) -> Answer {
    let stat = match state.descriptors.at(fd)? {
        Descriptor::Input | Descriptor::Output | Descriptor::Complaints => {
            abi::fdstat(filetype::UNKNOWN, 0, rights::STREAM)
        }
        Descriptor::Preopened(_) | Descriptor::Directory { .. } => {
            abi::fdstat(filetype::DIRECTORY, 0, rights::ALL)
        }
        Descriptor::File { flags, .. } => abi::fdstat(filetype::REGULAR, *flags, rights::ALL),
    };
    Ok(guest.put(out, &stat)?)
}

/// Nothing ever blocks that a flag could change. Appending is decided when a file is opened.
pub fn fd_fdstat_set_flags(state: &mut State, _: Guest<'_>, fd: u32, flags: u32) -> Answer {
    let known = match state.descriptors.at(fd)? {
        Descriptor::File { flags, .. } => u32::from(flags & fdflags::APPEND),
        _ => 0,
    };
    if flags & !u32::from(fdflags::NONBLOCK) == known { Ok(()) } else { Err(Errno::NOTSUP.into()) }
}

/// Rights are what the mount says; a module may not even give its own away, which nobody does.
pub fn fd_fdstat_set_rights(state: &mut State, _: Guest<'_>, fd: u32, _: u64, _: u64) -> Answer {
    state.descriptors.at(fd)?;
    Err(Errno::NOTSUP.into())
}

/// Programs ask for every number from 3 on, until there is none.
pub fn fd_prestat_get(state: &mut State, mut guest: Guest<'_>, fd: u32, out: u32) -> Answer {
    let Descriptor::Preopened(directory) = state.descriptors.at(fd)? else { return Err(Errno::BADF.into()) };
    let length = u32::try_from(directory.name.len()).map_err(|_| Errno::OVERFLOW)?;
    guest.put_u32(out, 0)?;
    Ok(guest.put_u32(out.checked_add(4).ok_or(Errno::FAULT)?, length)?)
}

pub fn fd_prestat_dir_name(state: &mut State, mut guest: Guest<'_>, fd: u32, at: u32, length: u32) -> Answer {
    let Descriptor::Preopened(directory) = state.descriptors.at(fd)? else { return Err(Errno::BADF.into()) };
    if (length as usize) < directory.name.len() {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(guest.put(at, directory.name.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_again_and_bounded() {
        let mut table = Descriptors::new(&[]);
        assert!(table.is_open(2) && !table.is_open(3));
        let file = || File::open("/dev/null").expect("opened");
        let open = || Descriptor::File { file: file(), flags: 0, writable: false };
        assert_eq!(table.add(open()), Ok(3));
        assert_eq!(table.add(open()), Ok(4));
        table.take(3).expect("it was open");
        assert_eq!(table.at(3).err(), Some(Errno::BADF));
        assert_eq!(table.add(open()), Ok(3));
        assert_eq!(table.file(1).err(), Some(Errno::SPIPE));
        while table.0.len() < OPEN_MAX {
            table.0.push(Some(Descriptor::Output));
        }
        assert_eq!(table.add(open()), Err(Errno::MFILE));
    }
}
