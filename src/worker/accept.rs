//! Taking new connections, and pausing when there are enough.

use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Worker;
use super::slots::{Key, Live};
use super::tokens::Kind;
use crate::config::{Config, contains};
use crate::conn::{Accepted, Connection};
use crate::files::Peer;
use crate::observe::names::Counter;
use crate::ring::{Op, Payload, Ring};
use crate::sys::Errno;
use crate::sys::fds::{Descriptor, Fd};
use crate::tls::{Endpoint, Session};

/// After the kernel refused another descriptor, how long until we ask again.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// A listener to accept from.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Its descriptor, owned by whoever started the worker.
    pub fd: Fd,
    /// Whether its connections speak TLS.
    pub tls: bool,
    /// Whether connections from `trusted` begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// Peers whose word about the client is taken.
    pub trusted: Rc<[ipnet::IpNet]>,
}

/// The listeners, and whether they are open for more.
#[derive(Debug)]
pub struct Listening {
    listeners: Vec<(Listener, Arming)>,
    tls: Option<Endpoint>,
    connections_max: usize,
    per_address_max: u32,
    by_address: HashMap<IpAddr, u32>,
    resumes_at: Option<Instant>,
    /// Whether peers' addresses are of any use.
    wants_addresses: bool,
    closed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arming {
    /// Nothing is asked of the kernel.
    Off,
    /// The kernel accepts.
    On,
    /// The kernel has been told to stop accepting.
    Stopping,
    /// The kernel accepts no more for good; who waits is to be taken as far as there is room.
    Leaving,
}

impl Listening {
    /// Listeners as configured; none accepts yet.
    pub fn new(config: &Config, listeners: Vec<Listener>, tls: Option<Endpoint>) -> Self {
        let needs_tls = listeners.iter().any(|listener| listener.tls);
        assert!(tls.is_some() || !needs_tls, "a TLS listener needs certificates");
        let rules = config.sites.iter().flat_map(|site| &site.rules);
        let restricted = rules.clone().any(|rule| !rule.allow.is_empty() || !rule.deny.is_empty());
        let wants_addresses = restricted
            || config.log.access != crate::config::AccessLog::Off
            || config.sites.iter().any(|site| !site.mounts.is_empty())
            || listeners.iter().any(|listener| listener.proxy_protocol);
        Self {
            listeners: listeners.into_iter().map(|listener| (listener, Arming::Off)).collect(),
            tls,
            connections_max: config.server.max_connections as usize,
            per_address_max: config.limits.connections_per_address,
            by_address: HashMap::new(),
            resumes_at: None,
            wants_addresses,
            closed: false,
        }
    }

    /// When accepting is to be tried again.
    pub fn resumes_at(&self) -> Option<Instant> {
        self.resumes_at
    }

    /// Whether no listener will give another connection.
    pub fn is_over(&self) -> bool {
        self.closed && self.listeners.iter().all(|(_, arming)| *arming == Arming::Off)
    }

    /// Accepts no more, for good, than who waits already.
    pub fn close(&mut self) {
        self.closed = true;
        self.resumes_at = None;
        // Where accepting paused, the kernel may have told this ring of who waits before that.
        for (_, arming) in &mut self.listeners {
            if *arming == Arming::Off {
                *arming = Arming::Leaving;
            }
        }
    }

    /// One connection from that address less.
    pub fn forget(&mut self, address: Option<IpAddr>) {
        if let Some(address) = address
            && let Some(count) = self.by_address.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// One connection from that address more, unless it has enough.
    fn admit(&mut self, address: IpAddr) -> bool {
        let count = self.by_address.entry(address).or_default();
        if *count >= self.per_address_max {
            return false;
        }
        *count += 1;
        true
    }
}

impl<R: Ring> Worker<R> {
    /// Arms or stops the listeners, as the number of connections and the kernel allow.
    pub(super) fn listen(&mut self) {
        let listening = &mut self.listening;
        if listening.resumes_at.is_some_and(|at| at <= self.shared.clock.now) {
            listening.resumes_at = None;
        }
        let full = self.slots.count() >= listening.connections_max;
        let open = !listening.closed && !full && listening.resumes_at.is_none();
        for (index, (listener, arming)) in listening.listeners.iter_mut().enumerate() {
            let key = Key { slot: index as u32, reuse: 0 };
            match *arming {
                Arming::Off if open => {
                    *arming = Arming::On;
                    self.ring.push(Kind::Accept.token(key), Op::Accept { listener: listener.fd });
                }
                Arming::On if full || listening.closed => {
                    *arming = Arming::Stopping;
                    if !listening.closed {
                        self.shared.counters.add(Counter::AcceptPaused, 1);
                    }
                    self.ring.push(Kind::Cancel.token(key), Op::Cancel { fd: listener.fd });
                }
                _ => {}
            }
        }
        if self.listening.closed {
            self.accept_rest();
        }
    }

    pub(super) fn accepted(
        &mut self,
        index: u32,
        result: Result<usize, Errno>,
        more: bool,
        payload: Payload,
    ) {
        let closed = self.listening.closed;
        let (listener, arming) = &mut self.listening.listeners[index as usize];
        if !more {
            *arming = if closed { Arming::Leaving } else { Arming::Off };
        }
        let listener = listener.clone();
        match (result, payload) {
            (Ok(_), Payload::Descriptor(socket)) => self.welcome(&listener, socket),
            (Err(Errno::CANCELED | Errno::CONNABORTED | Errno::INTR | Errno::AGAIN), _) => {}
            (Err(errno), _) => {
                tracing::warn!(%errno, "cannot accept connections; trying again soon");
                self.shared.counters.add(Counter::AcceptPaused, 1);
                self.listening.resumes_at = Some(self.shared.clock.now + EXHAUSTED_PAUSE);
            }
            (Ok(_), _) => unreachable!("an accept gives a descriptor"),
        }
    }

    /// Takes the connections that wait at listeners this worker leaves. The kernel tells one waiting
    /// ring of a new connection, and if that was ours in the moment we stopped, the successor, which
    /// waits at the same listener, would not hear of it before the next one comes.
    fn accept_rest(&mut self) {
        for index in 0..self.listening.listeners.len() {
            let listener = self.listening.listeners[index].0.clone();
            while self.listening.listeners[index].1 == Arming::Leaving
                && self.slots.count() < self.listening.connections_max
            {
                match self.ring.accept_now(listener.fd) {
                    Ok(socket) => self.welcome(&listener, socket),
                    // Who waited has gone again, or a signal came: the next.
                    Err(Errno::CONNABORTED | Errno::INTR) => {}
                    // Nobody is left; or they are left to the successor, which may have the means.
                    Err(_) => self.listening.listeners[index].1 = Arming::Off,
                }
            }
        }
    }

    fn welcome(&mut self, listener: &Listener, socket: Descriptor) {
        let limited = self.listening.per_address_max > 0;
        let address = if limited || self.listening.wants_addresses {
            self.ring.peer(socket.fd()).map(|peer| peer.ip().to_canonical())
        } else {
            None
        };
        let counted = address.filter(|_| limited);
        if counted.is_some_and(|address| !self.listening.admit(address)) {
            self.shared.counters.add(Counter::Refused, 1);
            return;
        }
        // On a unix socket the only peers are those whom the file's permissions let in.
        let trusted = address.is_none_or(|address| contains(&listener.trusted, address));
        let accepted = Accepted {
            peer: Peer { address, secure: listener.tls },
            session: self.listening.tls.as_ref().filter(|_| listener.tls).map(Session::new),
            proxy_header: listener.proxy_protocol && trusted,
            draining: self.listening.closed,
            trusted: Rc::clone(&listener.trusted),
        };
        let key = self.slots.reserve();
        let connection = Connection::new(accepted, &mut self.shared.scope(&mut self.actions));
        let (reading, run, verifying) = (None, None, None);
        let live = Live { socket, connection, counted, in_flight: 0, reading, run, verifying };
        self.slots.fill(key, live);
        self.shared.counters.add(Counter::Accepted, 1);
        self.shared.counters.set(Counter::Active, self.slots.count() as u64);
        self.perform(key);
    }
}
