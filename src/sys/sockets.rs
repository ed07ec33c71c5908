//! Listening sockets: opened, taken over from whoever started us, and asked where they listen.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::{Errno, Error};

/// Connections the kernel keeps until they are accepted. It takes the lesser of this and
/// net.core.somaxconn, whose default has been 4096 since Linux 5.4.
const BACKLOG: i32 = 65_535;

/// Where a socket listens.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// TCP.
    Tcp(SocketAddr),
    /// A unix stream socket.
    Unix(PathBuf),
}

/// A listening TCP socket and whether its address is one of this machine's.
#[derive(Debug)]
pub struct Tcp {
    /// The socket, non-blocking.
    pub fd: OwnedFd,
    /// False where the address may come later; until then nobody can connect to it.
    pub is_local: bool,
}

/// Opens a listener that shares its address with others of the same user (SO_REUSEPORT): the kernel
/// spreads connections among them.
///
/// An IPv6 listener takes no IPv4 connections, whatever net.ipv6.bindv6only says, so that `[::]` and
/// `0.0.0.0` can be listed side by side. An address this machine does not have (yet) is bound all the
/// same: a server should not fail because it starts before the network does. TCP_NODELAY is inherited
/// by accepted connections, which saves a call for each. TCP_DEFER_ACCEPT is left out: it delays the
/// handshake deadline's start and gains nothing where receives cost no wake-up of their own.
///
/// # Errors
/// Those of bind(2) and listen(2).
pub fn listen_tcp(address: SocketAddr) -> Result<Tcp, Error> {
    let refused = |errno| Error::new("listen on", address.to_string(), errno);
    let fd = tcp_socket(address).map_err(refused)?;
    sockopt::set_socket_reuseport(&fd, true).map_err(refused)?;
    sockopt::set_tcp_nodelay(&fd, true).map_err(refused)?;
    let is_local = match rustix::net::bind(&fd, &address) {
        Ok(()) => true,
        Err(Errno::ADDRNOTAVAIL) => {
            match address.ip() {
                IpAddr::V4(_) => sockopt::set_ip_freebind(&fd, true),
                IpAddr::V6(_) => sockopt::set_ipv6_freebind(&fd, true),
            }
            .and_then(|()| rustix::net::bind(&fd, &address))
            .map_err(refused)?;
            false
        }
        Err(errno) => return Err(refused(errno)),
    };
    rustix::net::listen(&fd, BACKLOG).map_err(refused)?;
    Ok(Tcp { fd, is_local })
}

/// Whether some other socket already listens there. SO_REUSEPORT would let us take part of its
/// connections without a word; a socket without it is refused.
///
/// # Errors
/// EADDRINUSE, and whatever else forbids to bind there.
pub fn check_unused(address: SocketAddr) -> Result<(), Error> {
    let refused = |errno| Error::new("listen on", address.to_string(), errno);
    let fd = tcp_socket(address).map_err(refused)?;
    match rustix::net::bind(&fd, &address) {
        Ok(()) | Err(Errno::ADDRNOTAVAIL) => Ok(()),
        Err(errno) => Err(refused(errno)),
    }
}

fn tcp_socket(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // Connections of a predecessor that linger in TIME_WAIT must not keep the port from us.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    Ok(fd)
}

/// Opens a unix stream listener with these permission bits. A socket file that nobody listens on any
/// more is replaced; anything else at that path is left alone.
///
/// # Errors
/// EADDRINUSE when somebody listens there, EEXIST when the path is no socket, and those of bind(2).
pub fn listen_unix(path: &Path, mode: u32) -> Result<OwnedFd, Error> {
    let refused = |errno| Error::new("listen on", path.display().to_string(), errno);
    remove_stale(path).map_err(refused)?;
    let fd = unix_socket().map_err(refused)?;
    let address = SocketAddrUnix::new(path).map_err(refused)?;
    let mode = Mode::from_bits_truncate(mode);
    // bind(2) makes the file with the mode of the socket less the umask, so that at no moment it is open
    // to more than it should be; the second call gives what the umask took.
    rustix::fs::fchmod(&fd, mode).map_err(refused)?;
    rustix::net::bind(&fd, &address).map_err(refused)?;
    rustix::fs::chmod(path, mode).map_err(refused)?;
    rustix::net::listen(&fd, BACKLOG).map_err(refused)?;
    Ok(fd)
}

/// Sets the permission bits of a unix socket's file.
///
/// # Errors
/// Those of chmod(2).
pub fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    rustix::fs::chmod(path, Mode::from_bits_truncate(mode))
        .map_err(|errno| Error::new("set the mode of", path.display().to_string(), errno))
}

/// Which file a path is now: device and inode. `None` where there is nothing, or no socket.
pub fn socket_file(path: &Path) -> Option<(u64, u64)> {
    let facts = rustix::fs::lstat(path).ok()?;
    let is_socket = rustix::fs::FileType::from_raw_mode(facts.st_mode).is_socket();
    is_socket.then_some((facts.st_dev, facts.st_ino))
}

/// Removes the file of a unix socket if it is still the one we made.
pub fn remove_socket_file(path: &Path, file: (u64, u64)) {
    if socket_file(path) == Some(file) {
        // It may have gone in between, which is what is wanted.
        let _ = rustix::fs::unlink(path);
    }
}

fn remove_stale(path: &Path) -> Result<(), Errno> {
    match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
        Ok(facts) if rustix::fs::FileType::from_raw_mode(facts.st_mode).is_socket() => {}
        Ok(_) => return Err(Errno::EXIST),
    }
    let probe = unix_socket()?;
    match rustix::net::connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path),
        Err(Errno::NOENT) => Ok(()),
        // Connected, or a full backlog, or a socket of another type: somebody is there.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(Errno::ADDRINUSE),
        Err(errno) => Err(errno),
    }
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Where a socket listens; `None` where it is nothing a web server could listen on.
///
/// # Errors
/// Those of getsockname(2) and getsockopt(2).
pub fn place(socket: impl AsFd) -> Result<Option<Place>, Errno> {
    if sockopt::socket_type(&socket)? != SocketType::STREAM || !sockopt::socket_acceptconn(&socket)? {
        return Ok(None);
    }
    let address: SocketAddrAny = rustix::net::getsockname(&socket)?;
    if let Ok(tcp) = SocketAddr::try_from(address.clone()) {
        return Ok(Some(Place::Tcp(tcp)));
    }
    let unix = SocketAddrUnix::try_from(address)?;
    let path = unix.path_bytes().map(|bytes| PathBuf::from(std::ffi::OsStr::from_bytes(bytes)));
    Ok(path.map(Place::Unix))
}

/// Takes ownership of descriptors that were open when this program began, close-on-exec from now on;
/// `None` for a number that is not open.
///
/// To be called once, before anything else is opened, with numbers that whoever started us vouches for.
pub fn adopt(numbers: impl IntoIterator<Item = RawFd>) -> Vec<Option<OwnedFd>> {
    numbers.into_iter().map(adopt_one).collect()
}

fn adopt_one(number: RawFd) -> Option<OwnedFd> {
    if number <= 2 {
        return None;
    }
    // SAFETY: only a number; for one that is not open the call fails.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return None;
    }
    // SAFETY: it is open, and the protocol of socket activation says that it was opened for us alone.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Makes a listener that somebody else opened as ours are.
///
/// # Errors
/// Those of setsockopt(2) and ioctl(2).
pub fn prepare_adopted(socket: &OwnedFd, place: &Place) -> Result<(), Errno> {
    rustix::io::ioctl_fionbio(socket, true)?;
    match place {
        Place::Tcp(_) => sockopt::set_tcp_nodelay(socket, true),
        Place::Unix(_) => Ok(()),
    }
}

/// Lets a descriptor stay open when the program is replaced, or not (the default), and says its number.
///
/// # Errors
/// Those of fcntl(2).
pub fn keep_across_exec(fd: &OwnedFd, keep: bool) -> Result<RawFd, Errno> {
    use rustix::io::FdFlags;
    rustix::io::fcntl_setfd(fd, if keep { FdFlags::empty() } else { FdFlags::CLOEXEC })?;
    Ok(fd.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    const ANY_PORT: &str = "127.0.0.1:0";

    fn tcp_of(fd: &OwnedFd) -> SocketAddr {
        match place(fd).expect("a socket") {
            Some(Place::Tcp(address)) => address,
            other => panic!("not TCP: {other:?}"),
        }
    }

    #[test]
    fn listeners_share_a_port_and_the_next_program_is_told_so() {
        let first = listen_tcp(ANY_PORT.parse().unwrap()).expect("a listener");
        let address = tcp_of(&first.fd);
        assert!(first.is_local && address.port() != 0);
        let second = listen_tcp(address).expect("a second listener");
        assert_eq!(tcp_of(&second.fd), address);
        assert_eq!(check_unused(address).expect_err("in use").errno, Errno::ADDRINUSE);
        drop((first, second));
        check_unused(address).expect("free again");
    }

    #[test]
    fn an_address_of_another_machine_is_bound_and_said_to_be_foreign() {
        // 192.0.2.0/24 is for documentation (RFC 5737).
        let listener = listen_tcp("192.0.2.1:0".parse().unwrap()).expect("a listener");
        assert!(!listener.is_local);
    }

    #[test]
    fn a_unix_socket_has_its_mode_and_replaces_only_a_dead_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("http.sock");
        let listener = listen_unix(&path, 0o666).expect("a listener");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
        assert_eq!(place(&listener).unwrap(), Some(Place::Unix(path.clone())));
        UnixStream::connect(&path).expect("somebody listens");
        assert_eq!(listen_unix(&path, 0o600).expect_err("taken").errno, Errno::ADDRINUSE);
        drop(listener);
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let _successor = listen_unix(&path, 0o600).expect("the dead one is replaced");
        UnixStream::connect(&path).expect("somebody listens again");
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert_eq!(listen_unix(&path, 0o600).expect_err("no socket").errno, Errno::EXIST);
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
        assert_eq!(socket_file(&path), None);
    }

    #[test]
    fn only_our_own_socket_file_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("http.sock");
        let first = listen_unix(&path, 0o600).expect("a listener");
        let ours = socket_file(&path).expect("a file");
        // The second is made before the first is removed, so that their inodes differ.
        let other = directory.path().join("other.sock");
        let second = listen_unix(&other, 0o600).expect("a listener");
        std::fs::rename(&other, &path).unwrap();
        remove_socket_file(&path, ours);
        assert!(path.exists(), "a successor's socket was removed");
        remove_socket_file(&path, socket_file(&path).unwrap());
        assert!(!path.exists());
        drop((first, second));
    }

    #[test]
    fn what_does_not_listen_is_no_place() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(place(OwnedFd::from(one)).unwrap(), None);
        assert!(adopt([0, -1, 1_000_000]).iter().all(Option::is_none));
    }
}
