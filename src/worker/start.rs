//! All a worker is given at birth, and the few words it exchanges with the supervisor afterwards.
//!
//! A worker is forked without exec: what stands here is everything it may rely on. All other
//! descriptors of the supervisor are closed before the worker runs.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use crate::config::{Address, Config};
use crate::gateway::start::Mailboxes;
use crate::observe::names::Counters;
use crate::sys::process::User;
use crate::tls::Endpoint;

/// What a worker is given.
///
/// The process is single-threaded, its name is set, it runs on its core and can gain no privileges.
/// No signal is blocked; INT, TERM, HUP, USR1, USR2 and PIPE are ignored, since a terminal or a service
/// manager may send them to every process of the group while they are meant for the supervisor alone:
/// a worker takes its orders over `channel`.
#[derive(Debug)]
pub struct Start {
    /// Which worker of its generation, from 0.
    pub index: u32,
    /// How many workers the generation has: the divisor of what they share, as memory.
    pub workers: u32,
    /// Which generation, from 1.
    pub generation: u64,
    /// The core it runs on; `None`: not pinned.
    pub core: Option<u32>,
    /// The configuration of its generation.
    pub config: Rc<Config>,
    /// Its listeners, in the order of `config.listen`.
    pub listeners: Vec<Listener>,
    /// One end of a SEQPACKET pair, non-blocking. See [`READY`] and [`Order`].
    pub channel: OwnedFd,
    /// Its counters, on a page the supervisor reads.
    pub counters: Counters,
    /// Where access log lines go, opened for appending; `None`: nowhere.
    pub access_log: Option<OwnedFd>,
    /// Whom to become, after the ring is made (its memory counts against a limit of the user) and
    /// before the first byte is read.
    pub user: Option<User>,
    /// What TLS sessions are made of; `None` where no listener speaks TLS. Made by the supervisor,
    /// which alone may read keys.
    pub tls: Option<Endpoint>,
    /// Where programs and modules are asked for; `None` where no site has any.
    pub mailboxes: Option<Mailboxes>,
}

/// A listener as a worker sees it.
#[derive(Debug)]
pub struct Listener {
    /// Index in `config.listen`.
    pub index: usize,
    /// Non-blocking and listening. TCP_NODELAY is set and inherited by what it accepts.
    pub fd: OwnedFd,
    /// Where it listens: with the port the kernel chose if port 0 was asked for.
    pub address: Address,
    /// Whether connections speak TLS.
    pub tls: bool,
    /// Whether connections from `trusted` begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Peers whose PROXY header, `Forwarded` and `X-Forwarded-For` fields are believed.
    pub trusted: Vec<ipnet::IpNet>,
}

impl Listener {
    /// The address, unless it is a unix socket.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self.address {
            Address::Tcp(address) => Some(address),
            Address::Unix(_) => None,
        }
    }
}

/// The note a worker sends when it serves.
pub const READY: &[u8] = b"R";

/// The note a worker sends when a root leads to where its sandbox lets nothing be read.
pub const BARRED: &[u8] = b"B";

/// The longest note, either way.
pub const NOTE_BYTES_MAX: usize = 4096;

/// The note a worker sends when it cannot serve, with the reason, before it exits with failure.
pub fn failed(reason: &str) -> Vec<u8> {
    let mut note = format!("F{reason}").into_bytes();
    note.truncate(NOTE_BYTES_MAX);
    note
}

/// What a worker told the supervisor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// It serves.
    Ready,
    /// It cannot serve.
    Failed(String),
    /// A site's root has moved out of its sandbox; workers that are begun now may read it.
    Barred,
}

impl Report {
    /// Reads a note; `None` where it is none of ours.
    pub fn from_note(note: &[u8]) -> Option<Self> {
        match note.split_first()? {
            (b'R', []) => Some(Self::Ready),
            (b'B', []) => Some(Self::Barred),
            (b'F', reason) => Some(Self::Failed(String::from_utf8_lossy(reason).into_owned())),
            _ => None,
        }
    }
}

/// What the supervisor tells a worker. The end of the stream says that the supervisor is gone: drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// A successor serves: stop accepting, finish what is in flight, answer one more request on each
    /// connection, and exit with success. At once when nothing is open; the supervisor kills what
    /// takes longer than `server.drain`.
    Drain,
    /// Nobody succeeds: the same, but idle connections are closed after a moment.
    Stop,
    /// From now on write access log lines to the descriptor that comes along.
    Log,
}

impl Order {
    /// The note that carries it.
    pub fn note(self) -> &'static [u8] {
        match self {
            Self::Drain => b"D",
            Self::Stop => b"S",
            Self::Log => b"L",
        }
    }

    /// Reads a note; `None` where it is none of ours.
    pub fn from_note(note: &[u8]) -> Option<Self> {
        [Self::Drain, Self::Stop, Self::Log].into_iter().find(|order| order.note() == note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
        assert_eq!(Report::from_note(READY), Some(Report::Ready));
        assert_eq!(Report::from_note(BARRED), Some(Report::Barred));
        assert_eq!(Report::from_note(&failed("no ring")), Some(Report::Failed("no ring".into())));
        assert_eq!(Report::from_note(b"Rx"), None);
        assert_eq!(Report::from_note(b""), None);
        assert_eq!(failed(&"x".repeat(9000)).len(), NOTE_BYTES_MAX);
        for order in [Order::Drain, Order::Stop, Order::Log] {
            assert_eq!(Order::from_note(order.note()), Some(order));
        }
        assert_eq!(Order::from_note(b"DD"), None);
    }
}
