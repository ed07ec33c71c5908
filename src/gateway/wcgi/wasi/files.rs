//! What can be done with an open descriptor: reading, writing, seeking, looking.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::FileExt as _;

use super::abi::{self, Errno, Guest};
use super::descriptors::{Descriptor, Descriptors};
use super::{Answer, Fail, State};
use crate::sys::beneath::{self, Kind, Look};
use crate::sys::file::Stamp;

pub fn fd_read(state: &mut State, mut guest: Guest<'_>, fd: u32, list: u32, count: u32, out: u32) -> Answer {
    let total = pieces(state, &mut guest, (list, count), |state, into, _| {
        if into.is_empty() {
            return Ok(0);
        }
        Ok(match state.descriptors.at(fd)? {
            // Who waits for input may be waiting for an answer to what was said so far.
            Descriptor::Input => {
                let output = &mut state.output;
                state.input.read(into, &mut state.watch, |watch| output.flush(watch))??
            }
            Descriptor::File { file, .. } => (&*file).read(into)?,
            Descriptor::Preopened(_) | Descriptor::Directory { .. } => return Err(Errno::ISDIR.into()),
            Descriptor::Output | Descriptor::Complaints => return Err(Errno::BADF.into()),
        })
    })?;
    count_out(guest, out, total)
}

pub fn fd_write(state: &mut State, mut guest: Guest<'_>, fd: u32, list: u32, count: u32, out: u32) -> Answer {
    let total = pieces(state, &mut guest, (list, count), |state, bytes, _| {
        Ok(match state.descriptors.at(fd)? {
            Descriptor::Output => {
                state.output.write(bytes, &mut state.watch)?;
                bytes.len()
            }
            Descriptor::Complaints => {
                state.complaints.write(bytes);
                bytes.len()
            }
            Descriptor::File { file, .. } => (&*file).write(bytes)?,
            Descriptor::Preopened(_) | Descriptor::Directory { .. } => return Err(Errno::ISDIR.into()),
            Descriptor::Input => return Err(Errno::BADF.into()),
        })
    })?;
    count_out(guest, out, total)
}

pub fn fd_pread(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    list: u32,
    count: u32,
    offset: u64,
    out: u32,
) -> Answer {
    let total = pieces(state, &mut guest, (list, count), |state, into, before| {
        Ok(state.descriptors.file(fd)?.read_at(into, offset.saturating_add(before))?)
    })?;
    count_out(guest, out, total)
}

pub fn fd_pwrite(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    list: u32,
    count: u32,
    offset: u64,
    out: u32,
) -> Answer {
    let total = pieces(state, &mut guest, (list, count), |state, bytes, before| {
        Ok(state.descriptors.file(fd)?.write_at(bytes, offset.saturating_add(before))?)
    })?;
    count_out(guest, out, total)
}

/// Has `one` move each piece of a list, told how many bytes went before, until a piece comes up short: more would
/// have to wait, or is at its end. A list may name the same memory a million times, and no code of the guest runs
/// meanwhile that could be stopped: so the run's time is looked at before each piece.
fn pieces(
    state: &mut State,
    guest: &mut Guest<'_>,
    (list, count): (u32, u32),
    mut one: impl FnMut(&mut State, &mut [u8], u64) -> Result<usize, Fail>,
) -> Result<usize, Fail> {
    let mut total = 0_usize;
    for index in 0..count {
        state.watch.check()?;
        let (at, length) = guest.piece(list, index)?;
        let moved = one(state, guest.bytes(at, length)?, total as u64)?;
        total += moved;
        if moved < length as usize {
            break;
        }
    }
    Ok(total)
}

/// A `size` says less than a call could move: a list of pieces may name the same memory again and again.
fn count_out(mut guest: Guest<'_>, out: u32, total: usize) -> Answer {
    Ok(guest.put_u32(out, u32::try_from(total).map_err(|_| Errno::OVERFLOW)?)?)
}

pub fn fd_seek(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    offset: i64,
    whence: u32,
    out: u32,
) -> Answer {
    let to = match whence {
        0 => SeekFrom::Start(u64::try_from(offset).map_err(|_| Errno::INVAL)?),
        1 => SeekFrom::Current(offset),
        2 => SeekFrom::End(offset),
        _ => return Err(Errno::INVAL.into()),
    };
    let mut file = state.descriptors.file(fd)?;
    Ok(guest.put_u64(out, file.seek(to)?)?)
}

pub fn fd_tell(state: &mut State, mut guest: Guest<'_>, fd: u32, out: u32) -> Answer {
    let mut file = state.descriptors.file(fd)?;
    Ok(guest.put_u64(out, file.stream_position()?)?)
}

/// For output: what was gathered leaves now.
pub fn fd_sync(state: &mut State, _: Guest<'_>, fd: u32) -> Answer {
    match state.descriptors.at(fd)? {
        Descriptor::Output => state.output.flush(&mut state.watch)?,
        Descriptor::File { file, .. } => file.sync_data()?,
        Descriptor::Preopened(_) | Descriptor::Directory { .. } => {}
        Descriptor::Input | Descriptor::Complaints => return Err(Errno::INVAL.into()),
    }
    Ok(())
}

/// Advice may be left.
pub fn fd_advise(state: &mut State, _: Guest<'_>, fd: u32, _: u64, _: u64, advice: u32) -> Answer {
    state.descriptors.file(fd)?;
    if advice <= 5 { Ok(()) } else { Err(Errno::INVAL.into()) }
}

pub fn fd_allocate(state: &mut State, _: Guest<'_>, fd: u32, offset: u64, length: u64) -> Answer {
    let file = writable(&state.descriptors, fd)?;
    let end = offset.checked_add(length).filter(|_| length > 0).ok_or(Errno::INVAL)?;
    if file.metadata()?.len() < end {
        file.set_len(end)?;
    }
    Ok(())
}

pub fn fd_filestat_get(state: &mut State, mut guest: Guest<'_>, fd: u32, out: u32) -> Answer {
    let look = match any(&state.descriptors, fd)? {
        Some(fd) => beneath::look(fd)?,
        None => STREAM,
    };
    Ok(guest.put(out, &abi::filestat(&look))?)
}

/// A pipe has nothing to show, and its inode is nobody's business.
const STREAM: Look = {
    let never = Stamp { seconds: 0, nanoseconds: 0 };
    Look {
        kind: Kind::Special,
        device: 0,
        inode: 0,
        links: 1,
        size: 0,
        owner: 0,
        mode: 0,
        accessed: never,
        modified: never,
        changed: never,
    }
};

pub fn fd_filestat_set_size(state: &mut State, _: Guest<'_>, fd: u32, size: u64) -> Answer {
    Ok(writable(&state.descriptors, fd)?.set_len(size)?)
}

pub fn fd_filestat_set_times(
    state: &mut State,
    _: Guest<'_>,
    fd: u32,
    accessed: u64,
    modified: u64,
    flags: u32,
) -> Answer {
    let (accessed, modified) = abi::times(accessed, modified, flags)?;
    Ok(beneath::set_times(writable(&state.descriptors, fd)?, accessed, modified)?)
}

/// Entries from `cookie` on, the last one cut where the buffer ends: then there is more. The directory is read
/// anew for each call, and a cookie is the number of an entry.
pub fn fd_readdir(
    state: &mut State,
    mut guest: Guest<'_>,
    fd: u32,
    at: u32,
    length: u32,
    cookie: u64,
    out: u32,
) -> Answer {
    let directory = any(&state.descriptors, fd)?.ok_or(Errno::NOTDIR)?;
    let names = beneath::names(directory)?;
    let into = guest.bytes(at, length)?;
    let mut used = 0;
    for (number, entry) in names.iter().enumerate().skip(usize::try_from(cookie).unwrap_or(usize::MAX)) {
        let name_length = u32::try_from(entry.name.len()).map_err(|_| Errno::OVERFLOW)?;
        let head = abi::dirent(number as u64 + 1, entry.inode, name_length, entry.kind);
        for part in [&head[..], &entry.name] {
            let room = into.get_mut(used..).unwrap_or_default();
            let count = part.len().min(room.len());
            room[..count].copy_from_slice(&part[..count]);
            used += count;
        }
        if used == into.len() {
            break;
        }
    }
    count_out(guest, out, used)
}

/// What can be looked at; `None` for a stream.
fn any(descriptors: &Descriptors, fd: u32) -> Result<Option<BorrowedFd<'_>>, Errno> {
    Ok(match descriptors.at(fd)? {
        Descriptor::Preopened(directory) => Some(directory.fd.as_fd()),
        Descriptor::Directory { fd, .. } => Some(fd.as_fd()),
        Descriptor::File { file, .. } => Some(file.as_fd()),
        Descriptor::Input | Descriptor::Output | Descriptor::Complaints => None,
    })
}

/// A file beneath a directory that may be changed. The kernel checks how the file was opened for writes and
/// sizes, but not for times.
fn writable(descriptors: &Descriptors, fd: u32) -> Result<&File, Errno> {
    match descriptors.at(fd)? {
        Descriptor::File { writable: false, .. } => Err(Errno::ROFS),
        _ => descriptors.file(fd),
    }
}
