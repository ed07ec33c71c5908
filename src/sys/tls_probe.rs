//! Kernel TLS on a socket, for the trial at start and for tests; a worker asks its ring instead.
//!
//! Whether this kernel encrypts is asked by trying it on a connection of our own over loopback. The
//! trial also loads the kernel's module where the caller may (CAP_NET_ADMIN), which a worker
//! may not; so the supervisor makes it before workers exist.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::Errno;

/// Where a trial ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is no loopback to try on.
    Loopback(Errno),
    /// TCP_ULP: the kernel has no TLS, or has not loaded it.
    Layer(Errno),
    /// TLS_TX: the kernel's TLS does not know the cipher.
    Keys(Errno),
}

/// Installs `info`, a `tls12_crypto_info_*` structure, for sending on a connection made for that.
///
/// # Errors
/// Where it was refused, and why.
pub fn try_install(info: &[u8]) -> Result<(), Refusal> {
    let (_listener, client, _server) =
        connect().map_err(|error| Refusal::Loopback(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    install(client.as_fd(), info)
}

/// Has the kernel encrypt what is sent on a connection from now on.
///
/// # Errors
/// Where it was refused, and why; the connection then is as before.
pub fn install(socket: BorrowedFd<'_>, info: &[u8]) -> Result<(), Refusal> {
    set(socket, libc::SOL_TCP, libc::TCP_ULP, b"tls").map_err(Refusal::Layer)?;
    set(socket, libc::SOL_TLS, libc::TLS_TX, info).map_err(Refusal::Keys)
}

/// Sends one record of another content type than application data, on a socket whose kernel encrypts.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send_record(socket: BorrowedFd<'_>, content_type: u8, payload: &[u8]) -> Result<(), Errno> {
    /// A control message of one byte, as cmsg(3) lays it out.
    #[repr(C)]
    struct Control {
        header: libc::cmsghdr,
        content_type: u8,
    }
    // SAFETY: zeros are a valid cmsghdr.
    let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
    header.cmsg_len = size_of::<libc::cmsghdr>() + 1;
    header.cmsg_level = libc::SOL_TLS;
    header.cmsg_type = libc::TLS_SET_RECORD_TYPE;
    let mut control = Control { header, content_type };
    let mut part = libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    // SAFETY: zeros are a valid msghdr: no name, no parts, no control messages.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    // SAFETY: the message, its part and its control message live through the call, which reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent >= 0 { Ok(()) } else { Err(last_error()) }
}

fn connect() -> std::io::Result<(TcpListener, TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    // Completed by the kernel, without anybody accepting it.
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    Ok((listener, client, server))
}

fn set(socket: BorrowedFd<'_>, level: i32, option: i32, value: &[u8]) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel reads `length` bytes at `value`, which is that long, before it returns.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), length) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_whatever_the_kernel_knows() {
        assert!(matches!(try_install(&[0; 3]), Err(Refusal::Layer(_) | Refusal::Keys(_))));
    }
}
