//! The calls that never block, made directly: opens from the dentry cache, reads from the page
//! cache, facts, and socket calls that take what fits. Each is cheaper than the ring, and some have
//! no operation there that would not cost a kernel thread.

use std::ffi::{CStr, CString};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketFlags,
};

use super::Stream;
use crate::sys::Errno;
use crate::sys::fds::Fd;
use crate::sys::file::{Facts, Symlinks};
use crate::sys::tree::{facts_of, resolve_flags};

/// O_NONBLOCK, so that a fifo does not wait for its writer; O_NOCTTY, so that a terminal does not
/// become ours.
pub(super) const OPEN_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Descriptors that go along with a note: a program's input and output.
const DESCRIPTORS_MAX: usize = 2;

/// Lends a descriptor's number to a call.
pub(super) fn borrow(fd: Fd) -> BorrowedFd<'static> {
    assert!(fd.0 >= 0, "a descriptor's number");
    // SAFETY: the number is not -1. Whoever names a descriptor keeps it open for the length of a call:
    // the borrow does not leave the function that asked for it, and only this thread closes descriptors.
    unsafe { BorrowedFd::borrow_raw(fd.0) }
}

/// Closes a descriptor whose owner is gone.
pub(super) fn close(fd: Fd) {
    // SAFETY: the number comes from a buried `Descriptor`, which was its only owner.
    drop(unsafe { OwnedFd::from_raw_fd(fd.0) });
}

pub(super) fn open_cached(dir: Fd, path: &CString, symlinks: Symlinks) -> Result<Fd, Errno> {
    let resolve = resolve_flags(symlinks) | ResolveFlags::CACHED;
    let file = rustix::fs::openat2(borrow(dir), path, OPEN_FLAGS, Mode::empty(), resolve)?;
    Ok(Fd(file.into_raw_fd()))
}

/// O_PATH: the root itself is only opened beneath, which takes no right to list it.
pub(super) fn open_root(path: &Path) -> Result<Fd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Fd(rustix::fs::openat(CWD, path, flags, Mode::empty())?.into_raw_fd()))
}

pub(super) fn facts(file: Fd) -> Result<Facts, Errno> {
    Ok(facts_of(&rustix::fs::fstat(borrow(file))?))
}

/// Reads what the page cache has.
pub(super) fn read_cached(file: Fd, offset: u64, into: &mut Vec<u8>, length: usize) -> Result<usize, Errno> {
    match read_spare(file, offset, into, length, libc::RWF_NOWAIT) {
        // tmpfs knows no RWF_NOWAIT, but is all memory. Others without it (overlayfs, FUSE, NFS) may wait.
        Err(Errno::OPNOTSUPP) if is_memory(file) => read_spare(file, offset, into, length, 0),
        Err(Errno::OPNOTSUPP) => Err(Errno::AGAIN),
        other => other,
    }
}

fn read_spare(file: Fd, offset: u64, into: &mut Vec<u8>, length: usize, flags: i32) -> Result<usize, Errno> {
    assert!(file.0 >= 0);
    let filled = into.len();
    let spare = into.spare_capacity_mut();
    let part = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len().min(length) };
    let offset = libc::off64_t::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: the one part lies in the vector's spare capacity, borrowed for the length of the call;
    // writing to it needs no initialised bytes.
    let read = unsafe { libc::preadv64v2(file.0, &raw const part, 1, offset, flags) };
    let read = usize::try_from(read).map_err(|_| last_error())?;
    // SAFETY: the kernel wrote `read` bytes, no more than the part, behind the `filled` ones.
    unsafe { into.set_len(filled + read) };
    Ok(read)
}

/// Whether a range is in memory. `cachestat` is turned off for good where the kernel lacks the call
/// or refuses it.
///
/// cachestat(2) looks at each page but is refused on files that the user could not write (EPERM, in
/// kernels that fixed CVE-2025-21691), which a worker's files mostly are: it is not asked twice. Then the
/// last page stands for all, since reading ahead brings them in that order.
pub(super) fn resident(file: Fd, range: Range<u64>, cachestat: &mut bool) -> bool {
    if range.is_empty() {
        return true;
    }
    if *cachestat {
        match pages_cached(file, &range) {
            Ok(pages) => return pages >= pages_in(&range),
            Err(Errno::NOSYS | Errno::PERM) => *cachestat = false,
            Err(_) => {}
        }
    }
    let mut byte = [0];
    let parts = &mut [IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(borrow(file), parts, range.end - 1, rustix::io::ReadWriteFlags::NOWAIT);
    match read {
        Ok(_) => true,
        Err(Errno::OPNOTSUPP) => is_memory(file),
        Err(_) => false,
    }
}

fn pages_in(range: &Range<u64>) -> u64 {
    let page = rustix::param::page_size() as u64;
    (range.end - 1) / page - range.start / page + 1
}

/// Tries cachestat(2) on no file at all, to learn whether there is such a call.
pub(super) fn has_cachestat() -> bool {
    cachestat(-1, &(0..1)) == Err(Errno::BADF)
}

fn pages_cached(file: Fd, range: &Range<u64>) -> Result<u64, Errno> {
    cachestat(file.0, range)
}

fn cachestat(file: i32, range: &Range<u64>) -> Result<u64, Errno> {
    /// The same number on every architecture, like all calls since Linux 5.1.
    const CACHESTAT: libc::c_long = 451;
    // `struct cachestat_range`: offset, length.
    let asked = [range.start, range.end - range.start];
    // `struct cachestat`: cached, dirty, in writeback, evicted, recently evicted.
    let mut answer = [0_u64; 5];
    // SAFETY: both structures are arrays of u64 as in the kernel's header, and live through the call.
    let result = unsafe { libc::syscall(CACHESTAT, file, asked.as_ptr(), answer.as_mut_ptr(), 0) };
    if result == 0 { Ok(answer[0]) } else { Err(last_error()) }
}

fn is_memory(file: Fd) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    rustix::fs::fstatfs(borrow(file)).is_ok_and(|facts| matches!(facts.f_type as u64, TMPFS | RAMFS))
}

pub(super) fn send_file(socket: Fd, file: Fd, offset: u64, length: usize) -> Result<usize, Errno> {
    let mut offset = offset;
    rustix::fs::sendfile(borrow(socket), borrow(file), Some(&mut offset), length)
}

pub(super) fn accept(listener: Fd) -> Result<Fd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::accept_with(borrow(listener), flags)?;
    Ok(Fd(socket.into_raw_fd()))
}

pub(super) fn send_now(socket: Fd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(borrow(socket), bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

pub(super) fn receive(socket: Fd, into: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(borrow(socket), into, RecvFlags::DONTWAIT).map(|(length, _)| length)
}

pub(super) fn shutdown(socket: Fd, both: bool) {
    // The peer may have gone first (ENOTCONN); what is left then is to close, as after a success.
    let _ = rustix::net::shutdown(borrow(socket), if both { Shutdown::Both } else { Shutdown::Write });
}

pub(super) fn peer(socket: Fd) -> Option<SocketAddr> {
    canonical(rustix::net::getpeername(borrow(socket)).ok()??.try_into().ok()?)
}

pub(super) fn local(socket: Fd) -> Option<SocketAddr> {
    canonical(rustix::net::getsockname(borrow(socket)).ok()?.try_into().ok()?)
}

/// An IPv4 client of an IPv6 listener is an IPv4 client, in logs and in lists of addresses.
fn canonical(address: SocketAddr) -> Option<SocketAddr> {
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

pub(super) fn unsent(socket: Fd) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ on a socket) writes one int, which lives through the call.
    let result = unsafe { libc::ioctl(socket.0, libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { u64::try_from(bytes).unwrap_or_default() } else { 0 }
}

pub(super) fn note(channel: Fd, into: &mut [u8]) -> Result<(usize, Option<Fd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(borrow(channel), &mut [IoSliceMut::new(into)], &mut control, flags)?;
    let mut came = None;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            // There is room for one; a second would be closed by its owner here.
            descriptors.for_each(|descriptor| came = Some(descriptor));
        }
    }
    Ok((message.bytes, came.map(|descriptor: OwnedFd| Fd(descriptor.into_raw_fd()))))
}

pub(super) fn send_note(channel: Fd, note: &[u8], descriptors: &[Fd]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let mut lent = [borrow(channel); DESCRIPTORS_MAX];
    let lent = &mut lent[..descriptors.len()];
    lent.iter_mut().zip(descriptors).for_each(|(place, fd)| *place = borrow(*fd));
    if !lent.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(lent));
        assert!(fits, "the space was made for as many descriptors");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(borrow(channel), &[IoSlice::new(note)], &mut control, flags).map(drop)
}

/// Our end and the program's. Each end has a description of its own, so that only ours does not block.
pub(super) fn pipe(stream: Stream) -> Result<(Fd, Fd), Errno> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (ours, theirs) = match stream {
        Stream::Input => (writer, reader),
        Stream::Output => (reader, writer),
    };
    rustix::fs::fcntl_setfl(&ours, OFlags::NONBLOCK)?;
    Ok((Fd(ours.into_raw_fd()), Fd(theirs.into_raw_fd())))
}

pub(super) fn read_pipe(pipe: Fd, into: &mut Vec<u8>) -> Result<usize, Errno> {
    rustix::io::read(borrow(pipe), rustix::buffer::spare_capacity(into))
}

pub(super) fn install_tls(socket: Fd, info: &[u8]) -> Result<(), Errno> {
    set_option(socket, libc::SOL_TCP, libc::TCP_ULP, b"tls")?;
    // Should this fail the socket keeps the protocol layer, which passes everything through until it has keys.
    set_option(socket, libc::SOL_TLS, libc::TLS_TX, info)
}

fn set_option(socket: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: the kernel reads `len` bytes at `as_ptr` during the call and writes nothing.
    let result = unsafe {
        libc::setsockopt(socket.0, level, name, value.as_ptr().cast(), value.len() as libc::socklen_t)
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// A control message of one byte, as cmsg(3) lays it out.
#[repr(C)]
struct RecordType {
    header: libc::cmsghdr,
    content_type: u8,
    padding: [u8; size_of::<usize>() - 1],
}

pub(super) fn send_record(socket: Fd, content_type: u8, payload: &[u8]) -> Result<(), Errno> {
    // SAFETY: all zeroes is a valid cmsghdr.
    let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
    header.cmsg_level = libc::SOL_TLS;
    header.cmsg_type = libc::TLS_SET_RECORD_TYPE;
    header.cmsg_len = (size_of::<libc::cmsghdr>() + 1) as _;
    let mut control = RecordType { header, content_type, padding: [0; size_of::<usize>() - 1] };
    let mut part = libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    // SAFETY: all zeroes is a valid msghdr: null pointers with length 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<RecordType>() as _;
    // SAFETY: the message points to one part and one control message, all alive through the call, and
    // sendmsg reads them only.
    let sent =
        unsafe { libc::sendmsg(socket.0, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    match usize::try_from(sent) {
        Ok(sent) if sent == payload.len() => Ok(()),
        // Never for the few bytes of an alert; the rest would have to follow under the same type.
        Ok(_) => Err(Errno::MSGSIZE),
        Err(_) => Err(last_error()),
    }
}

/// Opens a directory anew, by the descriptor of one that is open: with a position of its own.
pub(super) fn reopen_directory(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, c".", flags, Mode::empty())
}

/// Facts of what a name in a directory leads to.
pub(super) fn look_at(directory: BorrowedFd<'_>, name: &CStr, symlinks: Symlinks) -> Result<Facts, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve_flags(symlinks))?;
    Ok(facts_of(&rustix::fs::fstat(&found)?))
}

fn last_error() -> Errno {
    super::uring::errno(std::io::Error::last_os_error())
}
