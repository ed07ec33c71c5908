//! Whether this kernel encrypts TLS: asked by trying it on a connection of our own over loopback.
//!
//! The trial also loads the kernel's module where the caller may (CAP_NET_ADMIN), which a worker
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
    let socket = client.as_fd();
    set(socket, libc::SOL_TCP, libc::TCP_ULP, b"tls").map_err(Refusal::Layer)?;
    set(socket, libc::SOL_TLS, libc::TLS_TX, info).map_err(Refusal::Keys)
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
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_whatever_the_kernel_knows() {
        assert!(matches!(try_install(&[0; 3]), Err(Refusal::Layer(_) | Refusal::Keys(_))));
    }
}
