//! One client connection as a machine: [`Connection::handle`] takes an [`Event`] and leaves
//! [`Action`]s. No descriptor, no clock, no ring: time and everything looked up come as values.
//!
//! ```text
//!            +--> Proxy --+--> Handshake --+--> Http1 <--> (exchange being looked up or sent)
//!  accepted -+------------+----------------+      |
//!                                                 +--> Lingering --> closed
//! ```
//!
//! * Input that is not yet a whole request stays in `input`; an idle connection holds no memory
//!   beside itself.
//! * While a response waits to be sent beyond one buffer, no further request is read: that is the
//!   back-pressure, and the bound on memory.
//! * A connection ends when its response could not be completed (the peer must see that: nothing
//!   orderly is said), when either side asked for it, or at a deadline.

pub mod action;
pub mod buffers;
pub mod deadlines;
mod exchange;
pub mod outcome;
mod outgoing;
pub mod program;
mod request_body;
mod respond;
mod scope;
mod sending;
mod timing;
mod transport;

pub use action::{Action, Event};
pub use scope::{KERNEL_TLS_MIN, Scope, Settings, SitePrograms};

use std::rc::Rc;
use std::time::Duration;

use crate::files::Peer;
use crate::gateway::messages::Why;
use crate::http1::head::{self, Parsed};
use crate::http1::proxy_protocol;
use crate::tls::Session;
use deadlines::{Deadline, Stall, Waiting};
use exchange::{Logged, Pending};
use outcome::Outcome;
use outgoing::Outgoing;
use program::{Detour, Fault, Program, Wait};
use request_body::{Discard, Progress};
use sending::Sending;
use timing::Timing;
use transport::Transport;

/// How long we listen after our last byte, so that closing does not destroy what is under way.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// How long a TLS connection is idle before it gives up what memory it can. Long enough that a
/// busy one does not, short enough that thousands of idle ones do not add up.
const REST_AFTER: Duration = Duration::from_secs(2);
/// How much is read and dropped in that time.
const LINGER_BYTES: usize = 256 * 1024;

/// A client connection.
#[derive(Debug)]
pub struct Connection {
    peer: Peer,
    trusted: Rc<[ipnet::IpNet]>,
    stage: Stage,
    ending: Ending,
    /// Received and not yet understood; without allocation while idle.
    input: Vec<u8>,
    transport: Transport,
    outgoing: Outgoing,
    sending: Sending,
    pending: Option<Pending>,
    program: Option<Box<Program>>,
    detour: Option<Detour>,
    logged: Option<Box<Logged>>,
    timing: Timing,
    body: Option<Discard>,
    deadline: Option<Deadline>,
    stall: Stall,
    requests: u32,
    receiving: bool,
    peer_done: bool,
    draining: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// A PROXY protocol header is expected.
    Proxy,
    /// The TLS handshake is going on.
    Handshake,
    /// Requests are read and answered.
    Http1,
    /// Our last byte is sent; what still comes is dropped, up to so many bytes.
    Lingering { budget: usize },
    /// Nothing is done any more.
    Closed,
}

/// Whether the connection ends once what waits is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// It goes on.
    No,
    /// It ends. `linger`: input may be under way that we did not ask for.
    After { outcome: Outcome, linger: bool },
}

/// What is known of a connection when it is accepted.
pub struct Accepted {
    /// The other end.
    pub peer: Peer,
    /// The TLS it speaks, if it does.
    pub session: Option<Session>,
    /// Whether it begins with a PROXY protocol header.
    pub proxy_header: bool,
    /// Whose `Forwarded` fields are believed here: other listeners may trust others.
    pub trusted: Rc<[ipnet::IpNet]>,
    /// Whether the worker retires already, so that one request is all it will answer.
    pub draining: bool,
}

impl Connection {
    /// A connection just accepted. Its first actions are left in the scope.
    pub fn new(accepted: Accepted, scope: &mut Scope) -> Self {
        let stage = match (&accepted.session, accepted.proxy_header) {
            (_, true) => Stage::Proxy,
            (Some(_), false) => Stage::Handshake,
            (None, false) => Stage::Http1,
        };
        let mut connection = Self {
            peer: accepted.peer,
            trusted: accepted.trusted,
            stage,
            ending: Ending::No,
            input: Vec::new(),
            transport: Transport::new(accepted.session),
            outgoing: Outgoing::default(),
            sending: Sending::Idle,
            pending: None,
            program: None,
            detour: None,
            logged: None,
            timing: Timing::default(),
            body: None,
            deadline: None,
            stall: Stall::default(),
            requests: 0,
            receiving: false,
            peer_done: false,
            draining: accepted.draining,
        };
        connection.settle(scope);
        connection
    }

    /// Takes an event. What is to be done is left in the scope's actions; after
    /// [`Action::Close`] the connection takes no more events.
    pub fn handle(&mut self, event: Event, scope: &mut Scope) {
        assert!(self.stage != Stage::Closed, "an event for a closed connection");
        match event {
            Event::Received(bytes) => self.received(bytes, scope),
            Event::ReceiveFailed(errno) => {
                self.receiving = false;
                self.close(Outcome::SocketFailed(errno), scope);
            }
            Event::Sent { result, head } => self.sent(result, head, scope),
            Event::Writable => self.writable(scope),
            Event::Transferred(bytes) => self.transferred(bytes, scope),
            Event::Chunk(bytes) => self.chunk(bytes, scope),
            Event::TransferFailed(outcome) => self.close(outcome, scope),
            Event::Found(question, entry) => {
                let pending = self.pending.as_mut().expect("a look-up was under way");
                pending.found.push((question, entry));
                self.retry(scope);
            }
            Event::Verified => self.retry(scope),
            Event::Overloaded => {
                self.pending = None;
                self.refuse(503, "Too many passwords are being checked. Please try again.", scope);
            }
            Event::ProgramStarted { unparsed } => self.program_started(unparsed, scope),
            Event::ProgramRefused(status) => self.fail(Fault::Refused(status), scope),
            Event::Relayed { buffer, deaf } => self.relayed(buffer, deaf, scope),
            Event::Printed { bytes, ended } => self.printed(bytes, ended, scope),
            Event::ProgramExited(exit) => self.program_exited(exit, scope),
            Event::KernelTls(result) => self.kernel_tls(result, scope),
            Event::RecordSent(result) => self.record_sent(result, scope),
            Event::Deadline { unsent } => self.expired(unsent, scope),
            Event::Drain { now } => self.drain(now),
            Event::Stop => self.close(Outcome::Stopped, scope),
        }
        self.settle(scope);
    }

    /// When the connection wants to be told that time has passed.
    pub fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Http1
            && self.ending == Ending::No
            && self.input.is_empty()
            && self.body.is_none()
            && self.is_silent()
    }

    fn received(&mut self, bytes: &[u8], scope: &mut Scope) {
        self.receiving = false;
        if bytes.is_empty() {
            return self.peer_ended(scope);
        }
        match &mut self.stage {
            Stage::Lingering { budget } => {
                *budget = budget.saturating_sub(bytes.len());
                if *budget == 0 {
                    self.close(self.outcome(), scope);
                }
            }
            Stage::Proxy => self.received_proxy_header(bytes, scope),
            Stage::Handshake | Stage::Http1 => self.received_records(bytes, scope),
            Stage::Closed => unreachable!("checked on entry"),
        }
    }

    /// Takes the bytes a proxy puts before the client's.
    fn received_proxy_header(&mut self, bytes: &[u8], scope: &mut Scope) {
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        match proxy_protocol::parse(&input) {
            Ok(proxy_protocol::Parsed::Incomplete) => self.input = input,
            Ok(proxy_protocol::Parsed::Complete { length, source }) => {
                self.peer.address = source.map(|source| source.ip().to_canonical()).or(self.peer.address);
                self.stage = self.transport.first_stage();
                if length < input.len() {
                    self.received_records(&input[length..], scope);
                }
            }
            Err(_) => self.close(Outcome::ProxyHeader, scope),
        }
    }

    /// Takes new bytes behind what is left of the input, and reads requests from both.
    fn understand(&mut self, bytes: &[u8], scope: &mut Scope) {
        if self.input.is_empty() {
            let consumed = self.read_requests(bytes, scope);
            if consumed < bytes.len() && self.stage != Stage::Closed {
                self.input = scope.buffers.small();
                self.input.extend_from_slice(&bytes[consumed..]);
            }
            return;
        }
        self.input.extend_from_slice(bytes);
        self.read_input(scope);
    }

    /// Reads requests from what is left of the input.
    fn read_input(&mut self, scope: &mut Scope) {
        let mut input = std::mem::take(&mut self.input);
        let consumed = self.read_requests(&input, scope);
        if consumed == input.len() || self.stage == Stage::Closed {
            scope.buffers.give(input);
        } else {
            input.drain(..consumed);
            self.input = input;
        }
    }

    /// Answers requests from the front of `bytes` while that makes sense; how many bytes are done with.
    fn read_requests(&mut self, bytes: &[u8], scope: &mut Scope) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            if self.program.as_ref().is_some_and(|program| program.wants_body()) {
                at += self.take_body(&bytes[at..], scope);
                continue;
            }
            if !self.may_read() {
                break;
            }
            if let Some(body) = &mut self.body {
                match body.discard(&bytes[at..]) {
                    Progress::More => {
                        at = bytes.len();
                        self.renew_deadline();
                    }
                    Progress::Done(length) => {
                        at += length;
                        self.body = None;
                    }
                    Progress::GiveUp => {
                        at = bytes.len();
                        self.body = None;
                        self.ending = Ending::After { outcome: Outcome::Refused, linger: true };
                    }
                }
                continue;
            }
            match head::parse(&bytes[at..], scope.settings.head_limits) {
                Ok(Parsed::Incomplete) => break,
                Ok(Parsed::Complete { request, framing, persistence, length }) => {
                    if !self.exchange(&request, framing, persistence, scope) {
                        break;
                    }
                    at += length;
                }
                Err(refusal) => {
                    self.refuse(refusal.status(), refusal.explanation(), scope);
                    at = bytes.len();
                }
            }
        }
        at
    }

    /// Whether the next request may be read: the last one is decided, and its answer small or sent.
    fn may_read(&self) -> bool {
        self.stage == Stage::Http1
            && self.ending == Ending::No
            && self.pending.is_none()
            && self.program.is_none()
            && self.logged.is_none()
            && self.outgoing.has_room()
    }

    /// Parses again the request that had to wait.
    fn retry(&mut self, scope: &mut Scope) {
        let pending = self.pending.take().expect("an exchange was waiting");
        scope.found = pending.found;
        self.read_input(scope);
        scope.found.clear();
    }

    /// The peer has said all it will. It may still be reading: what it asked is answered first
    /// (RFC 9112 section 9.6).
    fn peer_ended(&mut self, scope: &mut Scope) {
        self.peer_done = true;
        self.leave_answered(scope);
        if self.program.is_some() {
            return self.close(Outcome::PeerAborted, scope);
        }
        if matches!(self.stage, Stage::Lingering { .. }) {
            self.close(self.outcome(), scope);
        } else if self.stage != Stage::Http1 {
            self.close(Outcome::PeerClosed, scope);
        }
    }

    /// Whether nothing is being answered.
    fn is_silent(&self) -> bool {
        self.pending.is_none()
            && self.program.is_none()
            && self.sending.is_idle()
            && self.outgoing.is_empty()
            && self.transport.is_quiet()
    }

    fn outcome(&self) -> Outcome {
        match self.ending {
            Ending::After { outcome, .. } => outcome,
            Ending::No => Outcome::Complete,
        }
    }

    fn expired(&mut self, unsent: u64, scope: &mut Scope) {
        let Some(deadline) = self.deadline.take_if(|deadline| deadline.at <= scope.clock.now) else {
            return;
        };
        match deadline.waiting {
            Waiting::Handshake => self.close(Outcome::HandshakeTimeout, scope),
            Waiting::Request if self.transport.rest() => {
                let rest = scope.settings.timeouts.idle.saturating_sub(REST_AFTER);
                self.deadline = Some(Deadline { at: deadline.at + rest, waiting: Waiting::Request });
            }
            Waiting::Request => self.ending = Ending::After { outcome: Outcome::Idle, linger: false },
            Waiting::Head => self.refuse(408, "The request did not arrive in time.", scope),
            Waiting::Body if self.program.is_some() => {
                self.refuse_program(408, "The request body did not arrive in time.", scope);
            }
            Waiting::Program => self.program_idle(scope),
            Waiting::Wall => self.fail(Fault::Overran, scope),
            Waiting::Exit => self.exit_overdue(scope),
            Waiting::Body => {
                self.body = None;
                self.ending = Ending::After { outcome: Outcome::RequestTimeout, linger: false };
            }
            Waiting::Reading if self.stall.look(unsent) => self.close(Outcome::SendStalled, scope),
            Waiting::Reading => {}
            Waiting::Close => self.close(self.outcome(), scope),
        }
    }

    fn drain(&mut self, now: bool) {
        self.draining = true;
        if now && self.is_idle() {
            self.ending = Ending::After { outcome: Outcome::Stopped, linger: false };
        }
    }

    /// After each event: sends what can be sent, ends what has ended, listens where more is wanted.
    fn settle(&mut self, scope: &mut Scope) {
        if self.stage == Stage::Closed {
            return;
        }
        self.send(scope);
        if self.stage == Stage::Http1 && self.is_silent() {
            self.finish_exchange(0, scope);
            if !self.input.is_empty() && self.may_read() && self.unread(scope) {
                return self.settle(scope);
            }
            if self.peer_done && self.ending == Ending::No {
                let aborted = !self.input.is_empty() || self.body.is_some();
                let outcome = if aborted { Outcome::PeerAborted } else { Outcome::PeerClosed };
                self.ending = Ending::After { outcome, linger: false };
            }
            self.end(scope);
        }
        if let Some(program) = &self.program {
            if program.wants_body() && !self.input.is_empty() {
                self.read_input(scope);
                return self.settle(scope);
            }
            self.pump(scope);
        }
        if self.stage == Stage::Closed {
            return;
        }
        if !self.receiving && self.wants_input() {
            self.receiving = true;
            scope.actions.push(Action::Receive);
        }
        self.set_deadline(scope);
    }

    /// Ends the connection, if that is due, now that everything is sent.
    fn end(&mut self, scope: &mut Scope) {
        let Ending::After { outcome, linger } = self.ending else { return };
        if self.take_leave(scope) || self.stage == Stage::Closed {
            return;
        }
        if !linger || self.peer_done {
            return self.close(outcome, scope);
        }
        self.stage = Stage::Lingering { budget: LINGER_BYTES };
        scope.buffers.give(std::mem::take(&mut self.input));
        scope.actions.push(Action::ShutdownSend);
    }

    /// Reads on in the input; whether that led to anything.
    fn unread(&mut self, scope: &mut Scope) -> bool {
        let before = self.input.len();
        self.read_input(scope);
        self.input.len() != before || self.pending.is_some() || !self.outgoing.is_empty()
    }

    fn wants_input(&self) -> bool {
        match self.stage {
            Stage::Proxy | Stage::Handshake | Stage::Lingering { .. } => true,
            Stage::Http1 if self.peer_done => false,
            Stage::Http1 => match &self.program {
                Some(program) => program.wants_input(self.input.len()),
                None => self.may_read(),
            },
            Stage::Closed => false,
        }
    }

    fn set_deadline(&mut self, scope: &Scope) {
        let timeouts = &scope.settings.timeouts;
        let (waiting, after) = match self.stage {
            Stage::Closed => return self.deadline = None,
            Stage::Lingering { .. } => (Waiting::Close, LINGER_TIME),
            Stage::Proxy | Stage::Handshake => (Waiting::Handshake, timeouts.handshake),
            Stage::Http1 if !self.sending.is_idle() => (Waiting::Reading, timeouts.send / 2),
            Stage::Http1 if self.pending.is_some() => return self.deadline = None,
            Stage::Http1 if self.program.is_some() => self.program_waiting(timeouts.body),
            Stage::Http1 if self.body.is_some() => (Waiting::Body, timeouts.body),
            Stage::Http1 if !self.input.is_empty() => (Waiting::Head, timeouts.head),
            Stage::Http1 if self.transport.may_rest() => (Waiting::Request, timeouts.idle.min(REST_AFTER)),
            Stage::Http1 => (Waiting::Request, timeouts.idle),
        };
        if self.deadline.is_none_or(|deadline| deadline.waiting != waiting) {
            if self.deadline.is_some() {
                self.stall = Stall::default();
            }
            self.deadline = Some(Deadline { at: scope.clock.now + after, waiting });
        }
        if let Some(program) = &self.program
            && self.deadline.is_some_and(|deadline| deadline.at > program.wall_at())
        {
            self.deadline = Some(Deadline { at: program.wall_at(), waiting: Waiting::Wall });
        }
    }

    fn program_waiting(&self, body: Duration) -> (Waiting, Duration) {
        match self.program.as_ref().map(|program| program.waits()) {
            Some(Wait::Client) => (Waiting::Body, body),
            Some(Wait::Exit(after)) => (Waiting::Exit, after),
            Some(Wait::Program(after)) => (Waiting::Program, after),
            None => (Waiting::Request, body),
        }
    }

    /// The peer made progress: gives it another full time for what it is doing.
    fn renew_deadline(&mut self) {
        self.deadline = None;
        self.stall = Stall::default();
    }

    /// Ends the connection here and now.
    fn close(&mut self, outcome: Outcome, scope: &mut Scope) {
        if self.program.is_some() {
            let stops = outcome == Outcome::Stopped;
            self.drop_program(if stops { Why::Stop } else { Why::Gone }, scope);
        }
        self.detour = None;
        let unsent = self.outgoing.length() + self.sending.unsent();
        self.finish_exchange(unsent, scope);
        self.outgoing.abandon(scope.buffers);
        scope.buffers.give(std::mem::take(&mut self.input));
        self.pending = None;
        self.deadline = None;
        self.stage = Stage::Closed;
        scope.actions.push(Action::Close(outcome));
    }
}
