//! All there is besides the worker: virtual time, descriptors, sockets, files, the supervisor's
//! channel, and the events to come. Time moves only from one event to the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use httpd::gateway::start::Runner;
use httpd::ring::{Clock, Completion, Done, Op, Payload, Token};
use httpd::sys::Errno;
use httpd::sys::fds::{Fd, Graveyard};
use httpd::worker::start::Order;

use crate::clients::Client;
use crate::faults::{Odds, Rng};
use crate::net::{Got, Socket};
use crate::pipes::Pipe;
use crate::records::Tls13;
use crate::scripts::{Peer, Script};
use crate::tree::{EPOCH_SECONDS, Inode, Tree};
use crate::variants::Forms;

/// What a descriptor refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    /// 0 speaks plainly, 1 by TLS.
    Listener(usize),
    Channel,
    Log,
    Socket(usize),
    File(Inode),
    /// Of one who runs scripts.
    Mailbox(Runner),
    /// An end of a pipe; that of the worker, or that of a script.
    Pipe {
        pipe: usize,
        ours: bool,
    },
}

/// Plain, and by TLS.
pub const LISTENERS: [Fd; 2] = [Fd(3), Fd(6)];
pub const CHANNEL: Fd = Fd(4);
pub const LOG: Fd = Fd(5);
/// In the order of [`Runner::ALL`].
pub const MAILBOXES: [Fd; 2] = [Fd(7), Fd(8)];

/// Something that happens at a time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Event {
    /// An op is tried for the first time.
    Attempt(u64),
    /// A completion that was held back arrives.
    Arrive(u64),
    /// A client does something.
    Act(usize),
    /// A script does something.
    Script(usize),
    /// The supervisor says something.
    Note(Vec<u8>),
    /// What a scenario planned.
    Deed(usize),
}

/// An op that has not completed for good.
#[derive(Debug)]
pub struct InFlight {
    pub token: Token,
    pub op: Op,
    pub object: Option<Object>,
    pub started: bool,
}

/// A completion on its way to the worker.
#[derive(Debug)]
pub struct Ready {
    pub token: Token,
    pub result: Result<usize, Errno>,
    pub more: bool,
    pub gift: Gift,
    /// The socket whose only send, or receive, this was.
    pub frees: Option<(usize, Way)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    In,
    Out,
}

/// What it carries.
#[derive(Debug)]
pub enum Gift {
    Plain(Payload),
    Received(Vec<u8>),
}

/// What a scenario has happen.
type Deed = Box<dyn FnOnce(&mut World)>;

pub struct World {
    pub now: Duration,
    pub base: Instant,
    pub rng: Rng,
    pub odds: Odds,
    pub tree: Tree,
    pub forms: Forms,
    /// Whether there is memory to decode what is shipped in coded form only.
    pub decodes: bool,
    /// Directories that the sandbox bars, each with all that is beneath.
    pub barred: Vec<Inode>,
    pub sockets: Vec<Socket>,
    pub pipes: Vec<Pipe>,
    pub runners: [Peer; 2],
    pub scripts: Vec<Script>,
    /// Sockets whose encryption the kernel does.
    pub sealing: BTreeMap<usize, Tls13>,
    pub backlogs: [VecDeque<usize>; 2],
    /// The most connections that the worker had at once.
    pub connections_most: usize,
    pub tls: Arc<rustls::ClientConfig>,
    pub fds: BTreeMap<i32, Object>,
    pub graveyard: Graveyard,
    pub notes: VecDeque<Vec<u8>>,
    /// What the worker told the supervisor.
    pub reports: Vec<Vec<u8>>,
    pub log: Vec<u8>,
    pub ops: BTreeMap<u64, InFlight>,
    pub ops_begun: u64,
    pub due: Vec<Ready>,
    late: BTreeMap<u64, Ready>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    events_begun: u64,
    pub leases_free: usize,
    pub clients: Vec<Option<Client>>,
    deeds: Vec<Option<Deed>>,
    pub acts_at: Vec<Option<Duration>>,
    /// The part of a file last said to be in memory, and in which turn.
    pub resident: Option<(Inode, Range<u64>, u64)>,
    pub turns: u64,
    /// When the worker was told to stop.
    pub stopped_at: Option<Duration>,
    /// Nothing will ever happen any more.
    pub stalled: bool,
    pub trace: Trace,
}

impl World {
    pub fn new(mut rng: Rng, odds: Odds, tree: Tree) -> Self {
        let listeners = [0, 1].map(|index| (LISTENERS[index].0, Object::Listener(index)));
        let [plain, tls] = listeners;
        let others = [(CHANNEL.0, Object::Channel), (LOG.0, Object::Log)];
        let mailboxes = [0, 1].map(|at| (MAILBOXES[at].0, Object::Mailbox(Runner::ALL[at])));
        let fds: BTreeMap<i32, Object> = [plain, tls].into_iter().chain(others).chain(mailboxes).collect();
        Self {
            now: Duration::ZERO,
            base: Instant::now(),
            rng: rng.fork(),
            leases_free: odds.leases,
            odds,
            tree,
            forms: Forms::default(),
            decodes: true,
            barred: Vec::new(),
            sockets: Vec::new(),
            pipes: Vec::new(),
            runners: Runner::ALL.map(Peer::new),
            scripts: Vec::new(),
            sealing: BTreeMap::new(),
            backlogs: Default::default(),
            connections_most: 0,
            tls: crate::tls::clients(),
            fds,
            graveyard: Graveyard::default(),
            notes: VecDeque::new(),
            reports: Vec::new(),
            log: Vec::new(),
            ops: BTreeMap::new(),
            ops_begun: 0,
            due: Vec::new(),
            late: BTreeMap::new(),
            events: BinaryHeap::new(),
            events_begun: 0,
            clients: Vec::new(),
            deeds: Vec::new(),
            acts_at: Vec::new(),
            resident: None,
            turns: 0,
            stopped_at: None,
            stalled: false,
            trace: Trace::default(),
        }
    }

    pub fn clock(&self) -> Clock {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH_SECONDS) + self.now;
        Clock { now: self.base + self.now, wall }
    }

    pub fn note(&mut self, what: fmt::Arguments) {
        self.trace.add(self.now, what);
    }

    pub fn schedule(&mut self, after: Duration, event: Event) {
        self.events_begun += 1;
        self.events.push(Reverse((self.now + after, self.events_begun, event)));
    }

    pub fn next_event_at(&self) -> Option<Duration> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    /// Moves time to the next event and has it happen.
    pub fn happen(&mut self) {
        let Some(Reverse((at, _, event))) = self.events.pop() else { return };
        self.now = self.now.max(at);
        self.tree.at(self.now);
        match event {
            Event::Attempt(id) => self.attempt(id),
            Event::Arrive(id) => self.due.extend(self.late.remove(&id)),
            Event::Act(client) => self.act(client, at),
            Event::Script(script) => self.act_script(script),
            Event::Deed(index) => {
                if let Some(deed) = self.deeds[index].take() {
                    deed(self);
                }
            }
            Event::Note(note) => {
                self.note(format_args!("order {}", String::from_utf8_lossy(&note)));
                self.stopped_at.get_or_insert(self.now);
                self.notes.push_back(note);
                self.wake(Object::Channel);
            }
        }
    }

    /// Has something happen after a while.
    pub fn later(&mut self, after: Duration, deed: impl FnOnce(&mut World) + 'static) {
        self.deeds.push(Some(Box::new(deed)));
        self.schedule(after, Event::Deed(self.deeds.len() - 1));
    }

    pub fn order(&mut self, after: Duration, order: Order) {
        self.schedule(after, Event::Note(order.note().to_vec()));
    }

    /// Adds a client that begins after a while.
    pub fn add_client(&mut self, after: Duration, client: Client) {
        self.clients.push(Some(client));
        self.acts_at.push(None);
        self.wake_client(self.clients.len() - 1, after);
    }

    /// Has a client act after a while, unless it will sooner anyway.
    pub fn wake_client(&mut self, client: usize, after: Duration) {
        let at = self.now + after;
        if self.acts_at[client].is_none_or(|planned| at < planned) {
            self.acts_at[client] = Some(at);
            self.schedule(after, Event::Act(client));
        }
    }

    fn act(&mut self, index: usize, at: Duration) {
        if self.acts_at[index] != Some(at) {
            return;
        }
        self.acts_at[index] = None;
        let Some(mut client) = self.clients[index].take() else { return };
        let again = client.act(index, self);
        self.clients[index] = Some(client);
        if let Some(after) = again {
            self.wake_client(index, after);
        }
        self.mutate_by_chance();
    }

    fn mutate_by_chance(&mut self) {
        for runner in Runner::ALL {
            if self.rng.chance(self.odds.runner_dies / 4) {
                self.runner_dies(runner);
            }
        }
        if self.rng.chance(self.odds.mutation) {
            crate::site::mutate(self);
        }
        if self.rng.chance(self.odds.variants) {
            crate::variants::happen(self);
        }
    }

    /// A client connects; its socket.
    pub fn connect(&mut self, client: usize, tls: bool) -> usize {
        let outbound_max = self.odds.socket_bytes;
        let inbound_max = self.rng.within(1, 20_000);
        self.sockets.push(Socket::new(client, inbound_max, outbound_max));
        let socket = self.sockets.len() - 1;
        self.backlogs[usize::from(tls)].push_back(socket);
        self.note(format_args!("client {client} connects as socket {socket}"));
        self.wake(Object::Listener(usize::from(tls)));
        socket
    }

    pub fn write(&mut self, socket: usize, bytes: &[u8]) -> usize {
        let destroys = self.rng.chance(self.odds.reset_destroys);
        let count = self.sockets[socket].write_by_client(bytes, destroys);
        self.note(format_args!("socket {socket}: client writes {count}"));
        self.wake(Object::Socket(socket));
        count
    }

    pub fn read(&mut self, socket: usize, length: usize) -> Got {
        let got = self.sockets[socket].read_by_client(length);
        if got != Got::Nothing {
            let what = match &got {
                Got::Bytes(bytes) => format!("{} bytes", bytes.len()),
                other => format!("{other:?}"),
            };
            self.note(format_args!("socket {socket}: client reads {what}"));
            self.wake(Object::Socket(socket));
        }
        got
    }

    /// The client will send no more.
    pub fn finish(&mut self, socket: usize) {
        self.note(format_args!("socket {socket}: client finishes"));
        self.sockets[socket].client_finished = true;
        self.wake(Object::Socket(socket));
    }

    /// The connection breaks down for both.
    pub fn break_down(&mut self, socket: usize) {
        self.note(format_args!("socket {socket}: broken"));
        self.sockets[socket].break_down();
        self.backlogs.iter_mut().for_each(|backlog| backlog.retain(|&waiting| waiting != socket));
        self.wake(Object::Socket(socket));
    }

    /// Tells the client of a socket that something changed.
    pub fn tell_client(&mut self, socket: usize) {
        let after = self.rng.micros(1, 60);
        self.wake_client(self.sockets[socket].client, after);
    }

    /// What a number refers to. Naming a closed descriptor is the worker's mistake.
    pub fn object(&self, fd: Fd, what: &str) -> Object {
        *self.fds.get(&fd.0).unwrap_or_else(|| panic!("{what} names descriptor {}, which is not open", fd.0))
    }

    /// The lowest free number, as the kernel chooses it.
    pub fn install(&mut self, object: Object) -> Fd {
        let number = (3..).find(|number| !self.fds.contains_key(number)).unwrap_or_default();
        self.fds.insert(number, object);
        Fd(number)
    }

    pub fn close(&mut self, fd: Fd) {
        let object = self.fds.remove(&fd.0);
        let object = object.unwrap_or_else(|| panic!("descriptor {} is closed twice", fd.0));
        self.note(format_args!("close {} ({object:?})", fd.0));
        if let Object::Pipe { pipe, ours } = object {
            return self.close_pipe(pipe, ours);
        }
        let Object::Socket(socket) = object else {
            assert!(matches!(object, Object::File(_)), "the worker closed the {object:?}");
            return;
        };
        let held = self.ops.values().find(|flight| flight.object == Some(object));
        if let Some(held) = held {
            assert!(
                self.sockets[socket].server_deaf,
                "socket {socket} is closed while {:?} holds it open, and was not shut down",
                held.op
            );
        }
        let destroys = self.rng.chance(self.odds.reset_destroys);
        self.sockets[socket].close_by_server(destroys);
        self.tell_client(socket);
    }

    fn close_pipe(&mut self, pipe: usize, ours: bool) {
        if ours {
            let object = Object::Pipe { pipe, ours };
            let held = self.ops.values().find(|flight| flight.object == Some(object));
            assert!(held.is_none(), "pipe {pipe} is closed while {held:?} holds it open");
            self.pipes[pipe].ours_open = false;
        } else {
            self.pipes[pipe].theirs_open -= 1;
            self.wake_pipe(pipe);
        }
    }

    /// Sockets the worker has open.
    pub fn sockets_open(&self) -> usize {
        self.fds.values().filter(|object| matches!(object, Object::Socket(_))).count()
    }

    /// Completes an op: at once or, by chance, late.
    pub fn complete(&mut self, ready: Ready) {
        let accept = ready.more || matches!(ready.gift, Gift::Plain(Payload::Descriptor(_)));
        if !accept && self.rng.chance(self.odds.late) {
            let after = self.rng.micros(1, 5000);
            self.events_begun += 1;
            let id = self.events_begun;
            self.late.insert(id, ready);
            self.schedule(after, Event::Arrive(id));
        } else {
            self.due.push(ready);
        }
    }

    /// The completions that are due, in some order.
    pub fn take_due(&mut self) -> Vec<Ready> {
        let mut due = std::mem::take(&mut self.due);
        if self.rng.chance(self.odds.reorder) {
            self.rng.shuffle(&mut due);
            // An accept's last completion stays its last.
            due.sort_by_key(|ready| !ready.more);
        }
        for ready in &due {
            self.trace.add(self.now, format_args!("{:?} {:?}{}", ready.token, ready.result, more(ready)));
        }
        due
    }

    /// Lets go of completions nobody will take.
    pub fn forget_completions(&mut self) {
        self.due.clear();
        self.late.clear();
    }

    pub fn verdict(password: &[u8], hash: &str) -> Done {
        Done::Verified(bcrypt::verify(password, hash).unwrap_or(false))
    }
}

fn more(ready: &Ready) -> &'static str {
    if ready.more { " and more" } else { "" }
}

/// Everything that happened, as a number to compare runs by, and the last lines of it.
#[derive(Default)]
pub struct Trace {
    hash: u64,
    lines: u64,
    last: VecDeque<String>,
}

const LINES_KEPT: usize = 120;

impl Trace {
    pub fn add(&mut self, now: Duration, what: fmt::Arguments) {
        let line = format!("{:>12.6} {what}", now.as_secs_f64());
        self.hash = xxhash_rust::xxh3::xxh3_64_with_seed(line.as_bytes(), self.hash);
        self.lines += 1;
        if self.last.len() == LINES_KEPT {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    /// The same for two runs that did the same.
    pub fn digest(&self) -> (u64, u64) {
        (self.lines, self.hash)
    }

    pub fn tail(&self) -> String {
        self.last.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }
}

/// Makes an [`Completion`] of what is ready.
pub fn completion(ready: Ready, payload: Payload) -> Completion {
    Completion { token: ready.token, result: ready.result, more: ready.more, payload }
}
