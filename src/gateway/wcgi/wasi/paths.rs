//! What can be done with a path beneath a directory of the mount. That it stays beneath is seen to by the
//! kernel; that a directory given for reading is not changed, here.

use std::os::fd::{AsFd as _, BorrowedFd};

use super::abi::{self, Errno, Guest, SYMLINK_FOLLOW, fdflags, oflags, rights};
use super::descriptors::Descriptor;
use super::process::FLAGS;
use super::{Answer, State};
use crate::sys::beneath::{self, How, Kind};

#[allow(clippy::too_many_arguments)]
pub fn path_open(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    lookup: u32,
    path: u32,
    length: u32,
    open: u32,
    base: u64,
    _inheriting: u64,
    flags: u32,
    out: u32,
) -> Answer {
    let flags = u16::try_from(flags).map_err(|_| Errno::INVAL)?;
    let has = |flag: u32| open & flag != 0;
    let directory = has(oflags::DIRECTORY);
    let how = How {
        read: base & (rights::FD_READ | rights::FD_READDIR) != 0,
        // Programs ask for every right there is when they open a directory.
        write: base & rights::FD_WRITE != 0 && !directory,
        append: flags & fdflags::APPEND != 0,
        create: has(oflags::CREAT),
        exclusive: has(oflags::EXCL),
        truncate: has(oflags::TRUNC),
        directory,
        follow: lookup & SYMLINK_FOLLOW != 0,
    };
    let path = guest.path(path, length)?;
    let (beneath, writable) = place(state, fd)?;
    if !writable && (how.write || how.create || how.truncate) {
        return Err(Errno::ROFS.into());
    }
    let (file, look) = beneath::open(beneath, &path, how)?;
    let descriptor = match look.kind {
        Kind::Directory => Descriptor::Directory { fd: file, writable },
        _ => Descriptor::File { file, flags: flags & FLAGS, writable },
    };
    Ok(guest.put_u32(out, state.descriptors.add(descriptor)?)?)
}

pub fn path_filestat_get(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    lookup: u32,
    path: u32,
    length: u32,
    out: u32,
) -> Answer {
    let path = guest.path(path, length)?;
    let look = beneath::look_at(place(state, fd)?.0, &path, lookup & SYMLINK_FOLLOW != 0)?;
    Ok(guest.put(out, &abi::filestat(&look))?)
}

#[allow(clippy::too_many_arguments)]
pub fn path_filestat_set_times(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    lookup: u32,
    path: u32,
    length: u32,
    accessed: u64,
    modified: u64,
    flags: u32,
) -> Answer {
    let (accessed, modified) = abi::times(accessed, modified, flags)?;
    let path = guest.path(path, length)?;
    let how = How { read: true, follow: lookup & SYMLINK_FOLLOW != 0, ..How::default() };
    let (file, _) = beneath::open(changeable(state, fd)?, &path, how)?;
    Ok(beneath::set_times(file, accessed, modified)?)
}

pub fn path_create_directory(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    path: u32,
    length: u32,
) -> Answer {
    let path = guest.path(path, length)?;
    Ok(beneath::make_directory(changeable(state, fd)?, &path)?)
}

pub fn path_remove_directory(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    path: u32,
    length: u32,
) -> Answer {
    let path = guest.path(path, length)?;
    Ok(beneath::remove(changeable(state, fd)?, &path, true)?)
}

pub fn path_unlink_file(state: &mut State, mut guest: Guest<'_>, fd: u32, path: u32, length: u32) -> Answer {
    let path = guest.path(path, length)?;
    Ok(beneath::remove(changeable(state, fd)?, &path, false)?)
}

#[allow(clippy::too_many_arguments)]
pub fn path_readlink(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    path: u32,
    length: u32,
    at: u32,
    room: u32,
    out: u32,
) -> Answer {
    let path = guest.path(path, length)?;
    let target = beneath::read_symlink(place(state, fd)?.0, &path)?;
    let target = target.get(..room as usize).unwrap_or(&target);
    guest.put(at, target)?;
    Ok(guest.put_u32(out, u32::try_from(target.len()).map_err(|_| Errno::OVERFLOW)?)?)
}

pub fn path_symlink(
    state: &mut State,
    mut guest: Guest<'_>,
    target: u32,
    target_length: u32,
    fd: u32,
    path: u32,
    length: u32,
) -> Answer {
    let (target, path) = (guest.path(target, target_length)?, guest.path(path, length)?);
    // Other programs follow symlinks without looking where they lead.
    if target.first() == Some(&b'/') {
        return Err(Errno::NOTCAPABLE.into());
    }
    Ok(beneath::make_symlink(&target, changeable(state, fd)?, &path)?)
}

#[allow(clippy::too_many_arguments)]
pub fn path_link(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    lookup: u32,
    path: u32,
    length: u32,
    to: u32,
    new: u32,
    new_length: u32,
) -> Answer {
    if lookup & SYMLINK_FOLLOW != 0 {
        return Err(Errno::NOTSUP.into());
    }
    let (path, new) = (guest.path(path, length)?, guest.path(new, new_length)?);
    Ok(beneath::link(changeable(state, fd)?, &path, changeable(state, to)?, &new)?)
}

#[allow(clippy::too_many_arguments)]
pub fn path_rename(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    path: u32,
    length: u32,
    to: u32,
    new: u32,
    new_length: u32,
) -> Answer {
    let (path, new) = (guest.path(path, length)?, guest.path(new, new_length)?);
    Ok(beneath::rename(changeable(state, fd)?, &path, changeable(state, to)?, &new)?)
}

/// A directory, and whether what is beneath may be changed.
fn place(state: &State, fd: u32) -> Result<(BorrowedFd<'_>, bool), Errno> {
    match state.descriptors.at(fd)? {
        Descriptor::Preopened(directory) => Ok((directory.fd.as_fd(), directory.writable)),
        Descriptor::Directory { fd, writable } => Ok((fd.as_fd(), *writable)),
        _ => Err(Errno::NOTDIR),
    }
}

fn changeable(state: &State, fd: u32) -> Result<BorrowedFd<'_>, Errno> {
    match place(state, fd)? {
        (directory, true) => Ok(directory),
        (_, false) => Err(Errno::ROFS),
    }
}
