//! What the service manager is told, by the protocol of sd_notify(3): a datagram of `NAME=value` lines
//! to the socket it names. Without one, nothing is said.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::sys::pass;

/// The way to the service manager.
#[derive(Debug, Default)]
pub struct Notify {
    manager: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notify {
    /// As the environment says: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub fn from_environment() -> Self {
        let manager = std::env::var_os("NOTIFY_SOCKET").as_deref().and_then(connect);
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        // The watchdog is for whoever is named, and where nobody is, for us.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|&limit| is_ours && limit > 0);
        Self { manager, watchdog: watchdog.map(Duration::from_micros) }
    }

    /// How often [`Notify::alive`] is to be said: twice within the limit, as sd_watchdog_enabled(3) advises.
    pub fn watchdog_every(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.manager.is_some()).map(|limit| limit / 2)
    }

    /// All workers serve; `status` is for `systemctl status`.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\n{}\n", Status(status)));
    }

    /// A new generation is being made; [`Notify::ready`] ends that, whatever became of it. The time is
    /// that of CLOCK_MONOTONIC, which `Type=notify-reload` wants to know.
    pub fn reloading(&self, monotonic: Duration) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}\n", monotonic.as_micros()));
    }

    /// Nothing serves yet, but something is done about it.
    pub fn waiting(&self, status: &str) {
        // Another half minute from now, in microseconds, whatever the unit's limit says.
        self.send(&format!("{}\nEXTEND_TIMEOUT_USEC=30000000\n", Status(status)));
    }

    /// The workers drain.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=draining\n");
    }

    /// Descriptors that it is to keep for the next program, under a name.
    pub fn store(&self, name: &str, fds: &[BorrowedFd<'_>]) {
        let Some((_, manager)) = &self.manager else { return };
        let note = format!("FDSTORE=1\nFDNAME={name}\n");
        let sent = UnixDatagram::unbound().and_then(|socket| {
            socket.connect_addr(manager)?;
            Ok(pass::send_all(&socket, note.as_bytes(), fds)?)
        });
        if let Err(error) = sent {
            tracing::warn!("a restart will reset who waits at {name}: the service manager: {error}");
        }
    }

    /// It need not keep what has this name any more.
    pub fn forget(&self, name: &str) {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"));
    }

    /// The loop still turns.
    pub fn alive(&self) {
        self.send("WATCHDOG=1\n");
    }

    fn send(&self, message: &str) {
        let Some((socket, manager)) = &self.manager else { return };
        // A manager that does not listen is not worth failing for; it will notice by itself.
        if let Err(error) = socket.send_to_addr(message.as_bytes(), manager) {
            tracing::debug!("telling the service manager: {error}");
        }
    }
}

/// A path, or a name in the abstract namespace where it begins with `@`.
fn connect(name: &OsStr) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(OsString::from(name)),
        _ => return None,
    };
    let socket = UnixDatagram::unbound().ok()?;
    // The supervisor waits for nobody.
    socket.set_nonblocking(true).ok()?;
    Some((socket, address.ok()?))
}

/// The first line of a text, as a status.
struct Status<'a>(&'a str);

impl std::fmt::Display for Status<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "STATUS={}", self.0.lines().next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).expect("a datagram");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    fn speak(name: &OsStr, manager: &UnixDatagram) {
        let notify = Notify { manager: connect(name), watchdog: Some(Duration::from_secs(10)) };
        notify.ready("serving\nand more");
        assert_eq!(received(manager), "READY=1\nSTATUS=serving\n");
        notify.reloading(Duration::from_micros(1_500_000));
        assert_eq!(received(manager), "RELOADING=1\nMONOTONIC_USEC=1500000\n");
        notify.stopping();
        assert_eq!(received(manager), "STOPPING=1\nSTATUS=draining\n");
        notify.alive();
        assert_eq!(received(manager), "WATCHDOG=1\n");
        assert_eq!(notify.watchdog_every(), Some(Duration::from_secs(5)));
    }

    #[test]
    fn a_manager_is_told_by_path_and_by_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        speak(path.as_os_str(), &manager);
        let name = format!("httpd-test-notify-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        speak(OsStr::new(&format!("@{name}")), &manager);
    }

    #[test]
    fn without_a_manager_nothing_is_said() {
        assert!(connect(OsStr::new("relative")).is_none());
        let notify = Notify { manager: None, watchdog: Some(Duration::from_secs(10)) };
        notify.ready("serving");
        assert_eq!(notify.watchdog_every(), None);
    }
}
