//! One worker: takes completions, feeds connections, pushes operations, waits.
//!
//! ```text
//! step: ring.turn -> completions -> dispatch -> Connection::handle -> actions -> perform -> ring.push
//! ```
//!
//! The worker decides nothing about HTTP. It owns what connections share (files, buffers, timers,
//! log), gives each event to its connection, and carries out the actions that come back. Actions
//! whose result is known at once are answered within the step; all else comes back as a completion.

mod accept;
mod drain;
mod gateways;
mod logging;
mod lookups;
mod perform;
mod roots;
mod run;
pub mod slots;
pub mod start;
mod timers;
mod tokens;
mod transfers;
mod variants;
mod watched;

pub use accept::Listener;
pub use gateways::Mailboxes;
pub use run::{run, settle};
pub use start::Start;

use std::time::Instant;

use crate::config::Config;
use crate::conn::buffers::Buffers;
use crate::conn::{Action, Event, Scope, Settings};
use crate::files::{Files, Share};
use crate::http::date::DateLine;
use crate::observe::batch::Batch;
use crate::observe::names::{Counter, Counters};
use crate::ring::{Clock, Completion, Payload, Ring};
use crate::sys::fds::Fd;
use crate::sys::{Errno, Error};
use crate::tls::Endpoint;
use accept::Listening;
use drain::Retirement;
use gateways::Gateways;
use logging::Log;
use lookups::Lookups;
use roots::Roots;
use slots::{Key, Slots};
use timers::Timers;
use tokens::{Kind, key};
use variants::Variants;

/// A worker over some ring.
pub struct Worker<R: Ring> {
    ring: R,
    slots: Slots,
    timers: Timers,
    listening: Listening,
    lookups: Lookups,
    /// Programs; `None` where no site has any.
    gateways: Option<Box<Gateways>>,
    shared: Shared,
    log: Log,
    retirement: Retirement,
    channel: Fd,
    completions: Vec<Completion>,
    actions: Vec<Action>,
    /// Connections whose receive found no buffer.
    starved: Vec<Key>,
    /// Passwords being verified.
    verifying: u32,
}

/// What a worker is made of.
pub struct Setup<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The listeners to accept from.
    pub listeners: Vec<accept::Listener>,
    /// The channel to the supervisor.
    pub channel: Fd,
    /// The mailboxes of those who run programs; `None` where no site has any.
    pub mailboxes: Option<Mailboxes>,
    /// What TLS sessions are made of; needed when a listener speaks TLS.
    pub tls: Option<Endpoint>,
    /// Where access log lines go.
    pub access_log: Option<Fd>,
    /// The worker's numbers.
    pub counters: Counters,
    /// Open files that the cache may hold.
    pub descriptors: usize,
    /// With at least so many bytes of files to send, the kernel takes over the encryption.
    pub kernel_tls_min: u64,
    /// Makes what is remembered of passwords useless elsewhere.
    pub secret: [u8; 32],
}

/// What connections share.
struct Shared {
    files: Files,
    roots: Roots,
    variants: Variants,
    settings: Settings,
    buffers: Buffers,
    log: Batch,
    counters: Counters,
    clock: Clock,
    common: DateLine,
    /// What was decrypted of the record at hand; empty between events.
    plain: Vec<u8>,
}

impl Shared {
    fn scope<'a>(&'a mut self, actions: &'a mut Vec<Action>) -> Scope<'a> {
        Scope {
            files: &mut self.files,
            settings: &self.settings,
            clock: self.clock,
            common: self.common.at(self.clock.wall),
            plain: &mut self.plain,
            buffers: &mut self.buffers,
            log: &mut self.log,
            counters: &self.counters,
            found: Vec::new(),
            actions,
        }
    }
}

/// Whether a worker goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// There is more to do.
    On,
    /// Everything is done, and it was told to stop.
    Over,
}

impl<R: Ring> Worker<R> {
    /// A worker that accepts from its listeners with the next step.
    pub fn new(mut ring: R, setup: Setup) -> Self {
        let clock = ring.clock();
        let config = setup.config;
        let memory = config.cache.memory / u64::from(config.server.workers);
        let first = setup.secret.last_chunk().map_or(0, |end| u64::from_le_bytes(*end));
        let settings = Settings::of(config, setup.access_log.is_some(), setup.kernel_tls_min);
        let shared = Shared {
            files: Files::new(config, Share { memory, descriptors: setup.descriptors }, setup.secret),
            roots: Roots::new(config, &mut ring),
            variants: Variants::new(config),
            settings,
            buffers: Buffers::default(),
            log: Batch::new(logging::form(config.log.format), first),
            counters: setup.counters,
            clock,
            common: DateLine::new(config.server.name.as_deref()),
            plain: Vec::new(),
        };
        let mut worker = Self {
            listening: Listening::new(config, setup.listeners, setup.tls),
            retirement: Retirement::new(config.server.drain),
            ring,
            slots: Slots::default(),
            timers: Timers::default(),
            lookups: Lookups::default(),
            gateways: Gateways::new(config, setup.mailboxes),
            shared,
            log: Log::new(setup.access_log),
            channel: setup.channel,
            completions: Vec::new(),
            actions: Vec::new(),
            starved: Vec::new(),
            verifying: 0,
        };
        worker.listen();
        worker.watch_channel();
        worker.greet_runners();
        worker
    }

    /// One turn: waits, and deals with everything that completed.
    ///
    /// # Errors
    /// When the ring is unusable.
    pub fn step(&mut self) -> Result<Life, Error> {
        let until = self.wakes_at();
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.turn(until, &mut completions)?;
        self.shared.clock = self.ring.clock();
        for completion in completions.drain(..) {
            self.dispatch(completion);
        }
        self.completions = completions;
        self.expire();
        self.tell_of_programs();
        self.feed_starved();
        self.listen();
        self.flush_log();
        self.count();
        Ok(self.life())
    }

    /// The ring, for the first word to the supervisor and for the simulation's checks.
    pub fn ring_mut(&mut self) -> &mut R {
        &mut self.ring
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.slots.count()
    }

    /// Copies what others count to where the supervisor reads it.
    fn count(&self) {
        let (counters, stats) = (&self.shared.counters, self.shared.files.stats());
        counters.set(Counter::CacheHits, stats.hits);
        counters.set(Counter::CacheMisses, stats.misses + stats.stale);
        counters.set(Counter::CacheEvicted, stats.evicted);
        counters.set(Counter::CacheEntries, stats.entries);
        counters.set(Counter::CacheBytes, stats.bytes);
        counters.set(Counter::CqOverflows, self.ring.overflows());
    }

    fn wakes_at(&mut self) -> Option<Instant> {
        let times = [
            self.timers.next(),
            self.listening.resumes_at(),
            self.log.flushes_at(),
            self.retirement.wakes_at(),
        ];
        times.into_iter().flatten().min()
    }

    fn dispatch(&mut self, completion: Completion) {
        let Completion { token, result, more, payload } = completion;
        let key = key(token);
        match Kind::of(token) {
            Kind::Accept => self.accepted(token.slot, result, more, payload),
            Kind::Channel => self.notes(),
            Kind::Receive => self.received(key, result, payload),
            Kind::Send => self.sent(key, result, payload),
            Kind::Writable => {
                if let Some(live) = self.slots.get(key) {
                    live.in_flight -= 1;
                    self.deliver(key, Event::Writable);
                }
            }
            Kind::ReadPiece => self.read_piece(key, result, payload),
            Kind::Verify => self.verified(key, payload),
            Kind::Lookup => self.looked_up(key, result, payload),
            Kind::Append => self.appended(result, payload),
            Kind::RunnerSays => self.runner_says(token.slot),
            Kind::RunnerHears => self.runner_hears(token.slot),
            Kind::ProgramInput => self.input_ready(key),
            Kind::ProgramOutput => self.output_ready(key),
            Kind::Cancel => {}
        }
    }

    fn received(&mut self, key: Key, result: Result<usize, Errno>, payload: Payload) {
        let lease = match payload {
            Payload::Lease(lease) => Some(lease),
            _ => None,
        };
        if let Some(live) = self.slots.get(key) {
            live.in_flight -= 1;
            match (result, &lease) {
                (Ok(length), Some(lease)) => {
                    self.shared.counters.add(Counter::BytesReceived, length as u64);
                    let bytes = self.ring.leased(lease);
                    let mut scope = self.shared.scope(&mut self.actions);
                    live.connection.handle(Event::Received(bytes), &mut scope);
                    self.perform(key);
                }
                (Ok(_), None) => self.deliver(key, Event::Received(&[])),
                (Err(Errno::NOBUFS), _) => {
                    self.shared.counters.add(Counter::LeasesStarved, 1);
                    self.starved.push(key);
                }
                (Err(errno), _) => self.deliver(key, Event::ReceiveFailed(errno)),
            }
        }
        if let Some(lease) = lease {
            self.ring.release(lease);
        }
    }

    fn sent(&mut self, key: Key, result: Result<usize, Errno>, payload: Payload) {
        let head = match payload {
            Payload::Memory(head) => head,
            _ => Vec::new(),
        };
        match self.slots.get(key) {
            Some(live) => {
                live.in_flight -= 1;
                if let Ok(bytes) = result {
                    self.shared.counters.add(Counter::BytesSent, bytes as u64);
                }
                self.deliver(key, Event::Sent { result, head });
            }
            None => self.shared.buffers.give(head),
        }
    }

    /// Gives an event to the connection, if that use of the slot still lives, and does what it wants.
    fn deliver(&mut self, key: Key, event: Event) {
        let Some(live) = self.slots.get(key) else { return };
        live.connection.handle(event, &mut self.shared.scope(&mut self.actions));
        self.perform(key);
    }

    /// Arms receives that found no buffer, as many as buffers are free: armed without one, each would
    /// fail again at once.
    fn feed_starved(&mut self) {
        let free = self.ring.leases_free().min(self.starved.len());
        for key in self.starved.drain(..free).collect::<Vec<_>>() {
            self.arm_receive(key);
        }
    }

    fn expire(&mut self) {
        let now = self.shared.clock.now;
        while let Some(slot) = self.timers.expired(now) {
            if let Some(key) = self.slots.key(slot) {
                let socket = self.slots.get(key).map(|live| live.socket.fd());
                let unsent = socket.map_or(0, |socket| self.ring.unsent(socket));
                self.deliver(key, Event::Deadline { unsent });
            }
        }
        self.retire_idle();
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("clock", &self.clock).finish_non_exhaustive()
    }
}
